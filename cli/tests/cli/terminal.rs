//! The terminal view without a terminal. With one: `.ci/terminal/view.py`.

use crate::CliBench;

#[test]
fn view_without_a_terminal_is_refused() {
    let bench = CliBench::new();
    bench.run("init").ok();
    for line in ["tui", "tui r@3", "open r --tui"] {
        let refused = bench.run(line);
        assert_eq!(refused.code, 2, "{line}: {}", refused.stderr);
        let said = "the terminal view cannot be shown: standard input and output must be a terminal";
        assert!(refused.stderr.contains(said), "{line}: {}", refused.stderr);
        assert!(refused.stdout.is_empty(), "{line}");
    }
    let refused = bench.run("--json tui");
    assert!(refused.code == 2 && refused.stderr.contains("no JSON"), "{}", refused.stderr);
    assert_eq!(bench.run("open r --tui --text").code, 2);
}
