//! Exit codes, hints, and where the store is looked for.

use crate::{CliBench, LINES};

#[test]
fn missing_things_exit_with_4() {
    let bench = CliBench::new();
    for line in ["runs", "show a", "replay a", "verify", "stats", "get k", "del k", "fork a@1 b", "scan"] {
        assert_eq!(bench.run(line).failed(4), "no store at .annals", "{line}");
    }
    assert!(!bench.path(".annals").exists(), "reading must not create a store");
    bench.run("import --format chat nowhere.json").failed(4);
    assert!(!bench.path(".annals").exists(), "a refused import must not create a store");
    bench.pipe("import --format chat -", LINES.as_bytes()).ok();
    for line in
        ["show none", "replay none", "verify none", "fork none@1 x", "show a@4", "state a", "fork a@9 x"]
    {
        bench.run(line).failed(4);
    }
}

/// Regression: reading verbs and `doctor` said that there is no store, and to create one.
#[test]
#[expect(clippy::disallowed_methods, reason = "leaves what an interrupted repair leaves")]
fn unfinished_repair_is_named_by_each_verb() {
    let bench = CliBench::new();
    std::fs::create_dir_all(bench.path("new/segments")).unwrap();
    std::fs::write(bench.path("new/DRAFT"), "MANIFEST-0001 00000000\n").unwrap();
    for line in ["runs", "get k", "verify", "doctor", "put k v", "stats"] {
        let said = bench.run(&format!("{line} --store new")).failed(4);
        assert!(said.contains("holds an unfinished repair, not a store"), "{line}: {said}");
    }
}

/// Regression: these options were accepted and ignored. `forget NAME --keyspace KS` dropped the run NAME, `backup DEST
/// --every 6h` made one backup and ended with 0.
#[test]
fn options_that_would_be_ignored_are_refused() {
    let bench = CliBench::new();
    bench.pipe("import --format chat -", LINES.as_bytes()).ok();
    bench.run("put a value --keyspace ks").ok();
    for line in [
        "forget a --keyspace ks --why x",
        "backup copy --every 6h",
        "backup copy --keep 3",
        "check --sample 3 --write-sums",
        "check --ignore $.note",
        "check --allow-host h",
        "replay a --remember",
        "replay a --cache-for 7d",
        "replay --all -- false",
        "replay a --json -- false",
        "replay a --raw --chaos 3",
        "fork a@1 b --no-run --upstream http://127.0.0.1:1",
    ] {
        assert_eq!(bench.run(line).code, 2, "{line}");
    }
    let refused = bench.run_args(["record", "--reroll", "3", "--", "true"]);
    assert!(refused.stderr.contains("no cache is read"), "{refused:?}");
    assert!(!bench.path("copy").exists());
    assert_eq!(bench.run("get a --keyspace ks --raw").text(), "value");
    bench.run("show a").ok();
    assert!(bench.run("tui a@99").stderr.contains("terminal"), "a view needs a terminal");
}

/// Regression: a wrong name of a run counted as a run that could not be checked (1); a frame that does not exist failed as
/// if the program could not be started (125).
#[test]
fn wrong_names_of_runs_and_frames_exit_with_4() {
    let bench = CliBench::new();
    assert_eq!(bench.run_args(["record", "--run", "r", "--allow-empty", "--", "true"]).code, 0);
    assert!(bench.run("check nope").failed(4).contains("nope"));
    assert!(bench.run("check nope neither").failed(4).contains("nope"));
    // Beside others it is named with them.
    assert_eq!(bench.run("check r nope").code, 1);
    assert!(bench.run("fork r@99").failed(4).contains("run `r` has no frame 99"));
    bench.run("check r").ok();
}

#[test]
fn usage_errors_exit_with_2() {
    let bench = CliBench::new();
    bench.pipe("import --format chat -", LINES.as_bytes()).ok();
    for line in ["", "nonsense", "replay a --all", "import x", "verify --sample 0", "show a@1 --raw"] {
        let done = bench.run(line);
        assert_eq!((done.code, done.stdout.as_slice()), (2, &b""[..]), "{line}");
        assert!(done.stderr.lines().any(|line| line.starts_with("hint: ")), "{line}: {}", done.stderr);
    }
    for line in ["fork a x", "show a --input", "show a@0"] {
        bench.run(line).failed(2);
    }
    let help = bench.run("--help");
    assert_eq!((help.code, help.stderr.as_str()), (0, ""));
    assert_eq!(bench.run("--version").text(), concat!("annals ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn store_is_option_then_variable_then_nearest_parent() {
    let bench = CliBench::new();
    assert!(bench.run("init").text().starts_with("created a store in "));
    assert!(bench.run("init").text().starts_with("there is a store already in "));
    bench.run("put k nearest").ok();
    bench.run("--store named put k named").ok();
    let below = bench.path("a/b");
    std::process::Command::new("mkdir").arg("-p").arg(&below).status().unwrap();
    let get = |change: &dyn Fn(&mut std::process::Command)| {
        let mut command = bench.command(["get", "k"]);
        change(command.current_dir(&below));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!(get(&|_| ()), "nearest");
    assert_eq!(
        get(&|command| {
            command.env("ANNALS_STORE", bench.path("named"));
        }),
        "named"
    );
    assert_eq!(
        get(&|command| {
            command.env("ANNALS_STORE", "nowhere").arg("--store").arg(bench.path("named"));
        }),
        "named"
    );
}
