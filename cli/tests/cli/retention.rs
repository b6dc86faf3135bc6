//! Retention, `forget` and pins as a user sees them.

use crate::upkeep::files;
use crate::{CliBench, LINES, ProcessResult};

/// A store with two runs: `a` ended well, `b` failed.
fn recorded() -> CliBench {
    let bench = CliBench::new();
    bench
        .pipe("import --format chat -", LINES.replace("\"reward\":0", "\"status\":\"failed\"").as_bytes())
        .ok();
    bench
}

/// Names of the runs, oldest first.
fn runs(bench: &CliBench) -> Vec<String> {
    let mut rows = bench.run("runs --json").json();
    rows.reverse();
    rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn sweep_reports_by_rule_before_and_ledger_after() {
    let bench = recorded();
    let text = bench.run("retain").text();
    assert!(text.contains("to be dropped: 0 runs"), "{text}");
    let text = bench.run("retain --dry-run --at +8d").text();
    assert!(text.contains("normal") && text.contains("to be dropped: 1 run with"), "{text}");
    assert_eq!(runs(&bench), ["a", "b"], "a dry run changes nothing");
    let [dry] = bench.run("retain --dry-run --at +8d --json").json().try_into().unwrap();
    assert_eq!((&dry["done"], &dry["dropped"]["runs"]), (&false.into(), &1.into()));
    let text = bench.run("retain --at +8d").text();
    let (before, after) =
        (text.find("to be dropped: 1 run").unwrap(), text.find("dropped: 1 run with").unwrap());
    assert!(before <= after && text.trim_end().ends_with("frees their space"), "{text}");
    assert_eq!(runs(&bench), ["b"]);
    let error = bench.run("show a@1").failed(4);
    assert!(error.contains("was dropped 20") && error.contains("by the rule \"normal\""), "{error}");
    let [gap] = bench.run("ledger gaps --json").json().try_into().unwrap();
    assert_eq!(
        (&gap["what"], &gap["rule"], &gap["uid"], &gap["run"]),
        (&"dropped".into(), &"normal".into(), &1.into(), &serde_json::Value::Null)
    );
    let text = bench.run("ledger gaps").text();
    assert!(
        text.starts_with("dropped 20") && text.contains("(number 1, ") && text.ends_with(": normal\n"),
        "{text}"
    );
    let [stats] = bench.run("stats --json").json().try_into().unwrap();
    assert_eq!((&stats["runs"], &stats["dropped_runs"]), (&1.into(), &1.into()));
    bench.run("verify").ok();
    let [done] = bench.run("retain --at +91d --json").json().try_into().unwrap();
    assert_eq!((&done["done"], &done["dropped"]["runs"]), (&true.into(), &1.into()));
    assert_eq!(done["report"]["rules"][0]["rule"], "failed");
    assert!(runs(&bench).is_empty());
}

#[test]
fn policy_file_is_applied_and_invalid_one_drops_nothing() {
    let bench = recorded();
    bench.write("keep.toml", "[[rule]]\nname = \"one\"\nkeep_newest = 1\n");
    bench.run("retain --policy keep.toml").ok();
    assert_eq!(runs(&bench), ["b"]);
    // A second call finds nothing to drop.
    let text = bench.run("retain --policy keep.toml").text();
    assert!(text.ends_with("to be dropped: 0 runs with 0 frames and 0 B\nnothing was dropped\n"), "{text}");
    let before = files(&bench.path(".annals"));
    for (text, place, what) in [
        ("[[rule]]\nstatus = \"open\"\nkeep = \"0d\"\n", ":1:1", "open runs"),
        ("[[rule]]\npinned = true\nkeep = \"0d\"\n", ":1:1", "pinned runs"),
        ("[[rule]]\nkeep = \"0d\"\nkept = 1\n", ":3:1", "is not a key of"),
        ("[[rule]]\nkeep = \"0d\"\nkeep_for_ever = true\n", ":1:1", "contradicts itself"),
        ("[[rule]]\nkeep = \"0d\"\nkeep = \"1d\"\n", ":3:1", "duplicate key"),
        ("[[rule]]\nkeep = \"0d\"\n[[rule]]\nkeep = \"1d\"\n", ":3:1", "never reached"),
        ("keep = \n", ":1:", "not valid TOML"),
        ("", ":1:1", "would drop nothing"),
    ] {
        bench.write("wrong.toml", text);
        for line in ["retain --policy wrong.toml", "retain --dry-run --policy wrong.toml"] {
            let error = bench.run(line).failed(2);
            assert!(error.contains(&format!("wrong.toml{place}")) && error.contains(what), "{error}");
        }
    }
    bench.write("wrong.toml", [0xff]);
    assert!(bench.run("retain --policy wrong.toml").failed(2).contains("not UTF-8 after byte 0"));
    bench.write("wrong.toml", " ".repeat(70_000));
    assert!(bench.run("retain --policy wrong.toml").failed(1).contains("larger than 65536 bytes"));
    for at in
        ["tomorrow", "8d", "+8x", "", "2026-01-31", "1950-01-01T00:00:00Z", "9999-01-01T00:00:00Z", "+600y"]
    {
        let error = bench.run_args(["retain", "--at", at]).failed(2);
        assert!(error.contains("takes a time"), "{error}");
    }
    bench.run("retain --policy nowhere.toml").failed(4);
    assert!(files(&bench.path(".annals")) == before, "a refused policy changed a file");
    assert_eq!(runs(&bench), ["b"]);
    assert_eq!(CliBench::new().run("retain").failed(4), format!("no store at {}", ".annals"));
}

/// Regression: relative times started at the system clock, whatever it showed. With a clock three years
/// ahead, `--at +0s` dropped everything.
#[test]
#[cfg(target_os = "linux")]
fn wrong_clock_drops_nothing_without_explicit_time() {
    let bench = recorded();
    // The engine reads its clock through the C library, so a preloaded library can change it.
    let source = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdlib.h>\n#include <time.h>\n\
        int clock_gettime(clockid_t id, struct timespec *now) {\n\
        static int (*real)(clockid_t, struct timespec *);\n\
        if (!real) real = dlsym(RTLD_NEXT, \"clock_gettime\");\n\
        int failed = real(id, now);\n\
        if (!failed && id == CLOCK_REALTIME) now->tv_sec += atoll(getenv(\"AHEAD\"));\n\
        return failed; }\n";
    bench.write("clock.c", source);
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o", "clock.so", "clock.c", "-ldl"]).current_dir(bench.path("."));
    assert!(compiler.status().unwrap().success());
    let at = |ahead_days: i64, line: &str| {
        let mut command = bench.command(line.split_whitespace());
        command.env("LD_PRELOAD", bench.path("clock.so")).env("AHEAD", (ahead_days * 86_400).to_string());
        ProcessResult::from_output(command.stdin(std::process::Stdio::null()).output().unwrap())
    };
    let before = files(&bench.path(".annals"));
    for (ahead, what) in
        [(-1, "before the newest record"), (1000, "more than 400 days after the newest record")]
    {
        for line in
            ["retain", "retain --dry-run", "retain --at +0s", "retain --at -1s", "retain --dry-run --at +8d"]
        {
            let error = at(ahead, line).failed(1);
            assert!(error.contains(what) && error.contains("nothing was dropped"), "{line}: {error}");
        }
    }
    assert!(files(&bench.path(".annals")) == before);
    // An explicit time is accepted, and so is a plausible clock.
    let text = at(1000, "retain --dry-run --at 2020-01-01T00:00:00Z").text();
    assert!(text.contains("to be dropped: 0 runs"), "{text}");
    let text = at(100, "retain --dry-run").text();
    assert!(text.contains("to be dropped: 2 runs"), "{text}");
    assert!(files(&bench.path(".annals")) == before);
}

#[test]
fn forgotten_run_keeps_frames_shared_by_forks() {
    let bench = recorded();
    bench.run("fork a@1 child --no-run").ok();
    let shared = bench.run("show child@1 --json").json();
    let text = bench.run_args(["forget", "a", "--why", "asked for"]).text();
    assert!(text.contains("forgotten: a (number 1, "), "{text}");
    assert!(text.contains("forks share 1 frame of it"), "{text}");
    assert!(text.contains("log files with frames that forks share: "), "{text}");
    bench.run("show a@1").failed(4);
    assert_eq!(bench.run("show child@1 --json").json(), shared);
    assert!(bench.run("show child").text().contains("forked from a run that is gone"));
    bench.run("verify").ok();
    // After the fork is dropped, too, none of its bytes are left.
    let text = bench.run_args(["forget", "child", "--why", "asked for"]).text();
    assert!(!text.contains("log files with frames"), "{text}");
    assert_eq!(runs(&bench), ["b"]);
}

#[test]
fn pin_keeps_a_run_until_unpinned() {
    let bench = recorded();
    bench.run_args(["pin", "a", "--why", "an example"]).ok();
    assert!(bench.run("runs").text().contains("ok, pinned"));
    assert!(bench.run("show a").text().contains("pinned: an example"));
    assert_eq!(bench.run("show a --json").json()[0]["pinned"], "an example");
    let text = bench.run("retain --at +1000d").text();
    assert!(text.contains("(pinned)"), "{text}");
    assert_eq!(runs(&bench), ["a"]);
    let done = bench.run("forget a --why asked");
    assert!(done.stderr.contains("hint: resolve the conflict that the message names"), "{}", done.stderr);
    assert!(done.failed(1).contains("is pinned: unpin it first"));
    bench.run("unpin a").ok();
    let error = bench.run("unpin a").failed(4);
    assert!(error.contains("not pinned"), "{error}");
    bench.run("retain --at +1000d").ok();
    assert!(runs(&bench).is_empty());
    bench.run("pin a --why late").failed(4);
}

/// A run that had ended could only be pinned, for ever: nobody could say that it should be looked at.
#[test]
fn person_flags_a_run_that_has_ended() {
    let bench = recorded();
    bench.run_args(["forget", "b", "--why", "it failed"]).ok();
    let before = bench.run("show a --json").json()[0].clone();
    assert_eq!(before["severity"], "normal");
    assert_eq!(bench.run_args(["flag", "a", "--why", "an odd answer"]).text(), "flagged a\n");
    assert!(bench.run("show a").text().starts_with("a: ok, flagged"), "{}", bench.run("show a").text());
    let text = bench.run_args(["flag", "a", "--why", "a customer asked", "--escalate"]).text();
    assert_eq!(text, "escalated a\n");
    assert!(bench.run("show a").text().contains("flagged: a customer asked"));
    let shown = bench.run("show a --json").json()[0].clone();
    assert_eq!((&shown["severity"], &shown["flagged"]), (&"escalated".into(), &"a customer asked".into()));
    assert_eq!(shown["fingerprint"], before["fingerprint"], "what was recorded stays");
    assert!(bench.run("runs --severity escalated").text().contains("escalated"));
    assert_eq!(bench.run("runs --severity normal").text(), bench.run("runs --severity debug").text());
    let opened = bench.run("open --last-failed --text");
    let (code, told) = (opened.code, opened.stderr.clone());
    assert!(code == 0 && told.contains("no run has failed"), "{told}");
    assert!(String::from_utf8_lossy(&opened.stdout).contains("a: ok, escalated"));
    bench.run("verify").ok();
    bench.run("retain --at +89d").ok();
    assert_eq!(runs(&bench), ["a"], "flagged runs stay for 90 days, others for 7");
    assert_eq!(bench.run("unflag a").text(), "unflagged a\n");
    assert!(bench.run("unflag a").failed(4).contains("run `a` is not flagged"));
    bench.run("flag nobody --why x").failed(4);
    assert_eq!(bench.run("flag a").code, 2);
    bench.run_args(["flag", "a", "--why", ""]).failed(1);
    bench.run("retain --at +8d").ok();
    assert!(runs(&bench).is_empty());
    bench.run("flag a --why late").failed(4);
}

#[test]
fn forget_erases_at_once_and_lists_remaining_holders() {
    let bench = recorded();
    bench.run("backup copy").ok();
    assert!(bench.run("forget l --why x").failed(4).contains("no run"));
    // Without a target, all three kinds are named: the message of the argument parser named a run only.
    let nothing = bench.run("forget --why x");
    assert!(nothing.failed(2).contains("nothing to forget was named"));
    assert!(bench.run("forget --why x").stderr.contains("name a run, --key KEY or --blob HASH"));
    let [told] = bench.run_args(["forget", "a", "--why", "asked for", "--json"]).json().try_into().unwrap();
    assert_eq!(
        (&told["forgotten"], &told["uid"], &told["why"]),
        (&"a".into(), &1.into(), &"asked for".into())
    );
    assert_eq!(told["segments"], serde_json::json!([]), "the store was compacted");
    assert!(told["compacted"]["rewritten"].as_u64().unwrap() > 0, "{told}");
    let backup = bench.path("copy").canonicalize().unwrap();
    assert_eq!(told["backups"], serde_json::json!([backup.to_str().unwrap()]));
    bench.run("show a").failed(4);
    let text = bench.run("ledger gaps").text();
    assert!(text.contains(": forget (asked for)"), "{text}");
    let text = bench.run_args(["forget", "b", "--why", "asked for, too"]).text();
    assert!(
        text.contains("forgotten: b") && !text.contains("log files") && text.contains("a backup: "),
        "{text}"
    );
    bench.run("forget b --why again").failed(4);
    // `forget` accepts neither a prefix of a name nor `last`.
    bench.pipe("import --format chat -", LINES.replace("\"a\"", "\"alpha\"").as_bytes()).ok();
    for name in ["alp", "last"] {
        let error = bench.run_args(["forget", name, "--why", "x"]).failed(4);
        assert!(error.contains("whole name"), "{error}");
    }
    bench.run("forget alpha --why").failed(2);
}

/// A process that reads the store keeps the old files open. It can read forgotten bytes until it ends.
#[test]
fn forget_reports_bytes_held_by_readers() {
    let bench = recorded();
    let reader = annals::Store::open_read_only(bench.path(".annals")).unwrap();
    let text = bench.run_args(["forget", "a", "--why", "asked for"]).text();
    assert!(text.contains("what still holds its bytes:"), "{text}");
    assert!(
        text.contains(" of old log files, until the processes that read them end or refresh their view"),
        "{text}"
    );
    drop(reader);
    let text = bench.run_args(["forget", "b", "--why", "asked for"]).text();
    assert!(!text.contains("what still holds its bytes:") && !text.contains("old log files"), "{text}");
}

#[test]
fn daemon_runs_retention_commands_and_logs_them() {
    let bench = recorded();
    let daemon = bench.serve(&[]);
    bench.run_args(["pin", "b", "--why", "look at it"]).ok();
    let [done] = bench.run("retain --at +1000d --json").json().try_into().unwrap();
    assert_eq!((&done["done"], &done["dropped"]["runs"]), (&true.into(), &1.into()));
    assert_eq!(done["report"]["pinned"]["runs"], 1);
    assert!(bench.run("forget b --why asked").failed(1).contains("is pinned"));
    bench.run("unpin b").ok();
    assert!(bench.run("unpin b").failed(4).contains("not pinned"));
    bench.run_args(["flag", "b", "--why", "odd", "--escalate"]).ok();
    assert_eq!(bench.run("show b --json").json()[0]["severity"], "escalated");
    bench.run("unflag b").ok();
    bench.run("unflag b").failed(4);
    bench.run_args(["forget", "b", "--why", "asked for"]).ok();
    bench.run("show b").failed(4);
    bench.write("wrong.toml", "[[rule]]\npinned = true\nkeep = \"0d\"\n");
    bench.run("retain --policy wrong.toml").failed(2);
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    assert!(runs(&bench).is_empty());
    // The store's record of operations names a run by its number, so the forgotten name is nowhere in it.
    let frames = bench.run("--namespace annals replay --all --json").json();
    let words: Vec<String> = frames.iter().map(|frame| frame["input"].as_str().unwrap().to_owned()).collect();
    for (words, done) in words.iter().zip([
        "RUN.PIN\",\"2",
        "STORE.RETAIN",
        "RUN.UNPIN\",\"2",
        "RUN.FLAG\",\"2",
        "RUN.UNFLAG\",\"2",
        "RUN.DROP\",\"2\",\"asked for",
    ]) {
        assert!(words.contains(done), "{words}");
    }
    assert_eq!(words.len(), 6);
}

#[test]
fn daemon_drops_sampled_out_run_when_it_ends() {
    let bench = recorded();
    bench.write("sample.toml", "[[sampling]]\nkeep_share = \"0%\"\n");
    let daemon = bench.serve(&["--retain", "sample.toml", "--sweep-every", "1000h"]);
    // The first sweep drops runs that ended before the daemon started.
    while runs(&bench) != ["b"] {
        std::thread::yield_now();
    }
    let mut client = bench.connect();
    let words = b"run.begin name ok\r\nrun.end ok\r\nrun.begin name wrong\r\nrun.end wrong failed\r\n";
    std::io::Write::write_all(&mut client, words).unwrap();
    while bench.run("stats --json").json()[0]["sampled_out_runs"] != 2 {
        std::thread::yield_now();
    }
    assert_eq!(runs(&bench), ["b", "wrong"]);
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    let gaps = bench.run("ledger gaps --json").json();
    assert!(gaps.iter().all(|gap| gap["rule"] == "sampling") && gaps.len() == 2, "{gaps:?}");
}

#[test]
fn recorder_drops_its_sampled_out_run() {
    let bench = CliBench::new();
    bench.write("none.toml", "[[sampling]]\nkeep_share = \"0%\"\n");
    bench.write("wrong.toml", "[[sampling]]\n");
    let error = bench.run("record --retain wrong.toml --run r -- true").failed(125);
    assert!(error.contains("wrong.toml:1:1"), "{error}");
    let done = bench.run("record --allow-empty --retain none.toml --run gone -- true");
    assert!(
        done.code == 0 && done.stderr.contains("1 run was left out by the policy's sampling"),
        "{}",
        done.stderr
    );
    let done = bench.run("record --retain none.toml --run wrong -- false");
    assert!(done.code == 1 && !done.stderr.contains("left out"), "{}", done.stderr);
    let done = bench.run("record --allow-empty --retain default --run stays -- true");
    assert!(done.code == 0 && !done.stderr.contains("left out"), "{}", done.stderr);
    assert_eq!(runs(&bench), ["wrong", "stays"]);
    assert_eq!(bench.run("stats --json").json()[0]["sampled_out_runs"], 1);
    bench.run("show gone").failed(4);
}

#[test]
fn a_daemon_sweeps_on_schedule() {
    let bench = recorded();
    bench.write("all.toml", "[[rule]]\nname = \"all\"\nkeep = \"0d\"\n");
    let refused = bench.run("serve --retain nowhere.toml").failed(1);
    assert!(refused.contains("cannot read the policy"), "{refused}");
    bench.run("serve --sweep-every 1h").failed(2);
    bench.write("serve.toml", "retain = \"all.toml\"\nsweep_every = \"1s\"\n");
    let daemon = bench.serve(&["--config", "serve.toml"]);
    while !runs(&bench).is_empty() {
        std::thread::yield_now();
    }
    // Later sweeps drop runs that end later.
    let mut client = bench.connect();
    std::io::Write::write_all(&mut client, b"run.begin name later\r\nrun.end later\r\n").unwrap();
    while bench.run("stats --json").json()[0]["dropped_runs"] != 3 {
        std::thread::yield_now();
    }
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    let gaps = bench.run("ledger gaps --json").json();
    assert_eq!(gaps.iter().filter(|gap| gap["rule"] == "all").count(), 3);
    let said = bench.run("--namespace annals replay --all --json").text();
    assert!(said.contains("schedule") && said.contains("2 runs dropped"), "{said}");
}

/// The store's whole text, as the files have it.
fn raw(bench: &CliBench, wanted: &[u8]) -> bool {
    files(&bench.path(".annals"))
        .iter()
        .any(|(_, bytes)| bytes.windows(wanted.len()).any(|row| row == wanted))
}

/// Bytes that do not compress, without a digit of a hash that the store keeps.
fn noise(seed: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new_keyed(&[seed; 32]).finalize_xof().fill(&mut bytes);
    bytes
}

/// After `forget` had compacted the store, a request for the run by its name said "no run", as if it never was.
#[test]
fn forgotten_run_stays_gone_after_compaction_repair_backup() {
    let bench = recorded();
    bench.run_args(["forget", "a", "--why", "asked for"]).ok();
    bench.run("retain --at +91d").ok();
    bench.run("compact --now").ok();
    // Compacts the segments with the tombstones, too.
    bench
        .pipe("import --format chat -", LINES.replace("\"a\"", "\"c\"").replace("\"b\"", "\"d\"").as_bytes())
        .ok();
    bench.run("forget c --why more").ok();
    bench.run("compact --now --recompress").ok();
    let check = |store: &str| {
        for (run, rule) in [("a", "rule \"forget\" (asked for)"), ("b", "rule \"failed\""), ("c", "(more)")] {
            let error = bench.run(&format!("--store {store} show {run}")).failed(4);
            assert!(error.contains("was dropped 20") && error.contains(rule), "{store}: {error}");
        }
        let error = bench.run(&format!("--store {store} show z")).failed(4);
        assert!(!error.contains("was dropped"), "{error}");
        bench.run(&format!("--store {store} show d")).ok();
        bench.run(&format!("--store {store} verify")).ok();
    };
    check(".annals");
    bench.run("backup copy").ok();
    bench.run("restore copy restored").ok();
    check("restored");
    bench.run("repair --to repaired").ok();
    check("repaired");
    // A run of the same name lives again.
    bench.pipe("import --format chat -", LINES.as_bytes()).ok();
    bench.run("show a").ok();
}

/// A backup that the command line made while a daemon held the store was not noted, so the report of `forget` did not
/// name it. Where it cannot be noted, this is said.
#[test]
fn backup_beside_a_daemon_is_named_by_forget() {
    let bench = recorded();
    let daemon = bench.serve(&[]);
    bench.run("backup copy").ok();
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    let [told] = bench.run_args(["forget", "a", "--why", "asked for", "--json"]).json().try_into().unwrap();
    let backup = bench.path("copy").canonicalize().unwrap();
    assert_eq!(told["backups"], serde_json::json!([backup.to_str().unwrap()]));
    let daemon = bench.serve(&[]);
    daemon.signal("-KILL");
    drop(daemon);
    let done = bench.run("backup second");
    assert!(done.code == 0 && done.stderr.contains("`annals forget` will not name it"), "{done:?}");
}

#[test]
fn forgotten_key_leaves_no_bytes_in_the_store() {
    let bench = recorded();
    let (first, second) = (noise(1, 6000), noise(2, 300));
    bench.pipe("put user:7 -", &first).ok();
    bench.pipe("put user:7 -", &second).ok();
    bench.run_args(["put", "user:8", "stays"]).ok();
    bench.run("backup copy").ok();
    bench.run("del user:7").ok();
    bench.run("compact --now").ok();
    assert!(raw(&bench, &first[100..164]) && raw(&bench, &second[..64]) && raw(&bench, b"user:7"));
    for wrong in ["--key user:7", "a --key user:7 --why x", "--keyspace default --why x", "--why x"] {
        assert_eq!(bench.run(&format!("forget {wrong}")).code, 2, "{wrong}");
    }
    let error = bench.run("forget --key annals --keyspace annals.pins --why x").failed(1);
    assert!(error.contains("belongs to annals"), "{error}");
    // Regression: `put` made such a keyspace with another history. From then on every sweep failed.
    for own in ["annals.dropped", "annals.pins", "annals.blobs"] {
        for line in [format!("put k v --keyspace {own}"), format!("del k --keyspace {own}")] {
            let error = bench.run(&line).failed(1);
            assert!(error.contains("belongs to annals"), "{line}: {error}");
        }
    }
    let text = bench.run_args(["forget", "--key", "user:7", "--why", "asked for"]).text();
    assert!(text.starts_with("forgotten: a key with 3 records\n"), "{text}");
    assert!(text.contains("  - a backup: ") && text.contains("exports, tapes"), "{text}");
    assert!(!raw(&bench, &first[100..164]) && !raw(&bench, &second[..64]) && !raw(&bench, b"user:7"));
    assert!(bench.run("forget --key user:7 --why again").failed(4).contains("no record of this key"));
    bench.run("get user:7").failed(4);
    assert_eq!(bench.run("get user:8 --raw").text(), "stays");
    assert!(bench.run("scan --keyspace annals.forgotten").text().contains("asked for"));
    bench.run("verify").ok();
    // The list of gaps said "no gaps".
    let gaps = bench.run("ledger gaps").text();
    assert!(gaps.starts_with("erased: ") && gaps.contains("forgotten keys"), "{gaps}");
    assert!(gaps.ends_with("\nno gaps among runs\n"), "{gaps}");
    let line = &bench.run("ledger gaps --json").json()[0];
    assert!(line["what"] == "erased" && line["records"].as_u64().unwrap() >= 3, "{line}");
}

/// What a run still contains cannot be erased under it: `forget` names the run, as git keeps what a branch reaches.
#[test]
fn blob_in_use_is_refused_and_named() {
    let bench = recorded();
    let content = noise(3, 9000);
    let id = blake3::hash(&content).to_hex().to_string();
    {
        let store = annals::Store::open(bench.path(".annals")).unwrap();
        let space = store.namespace("default").unwrap();
        let blobs = space.keyspace("annals.blobs", annals::kv::History::Latest).unwrap();
        blobs.put(blake3::hash(&content).as_bytes(), content.clone()).unwrap();
        let run = space.begin_run(annals::RunSpec::new("user")).unwrap();
        run.record(annals::Frame::new(annals::Component::Tool, content.clone(), "done")).unwrap();
        run.end(annals::Status::Ok).unwrap();
        store.close().unwrap();
    }
    bench.pipe("put copy -", &content).ok();
    let error = bench.run(&format!("forget --blob {id} --why asked")).failed(1);
    assert!(error.contains("frame 1 of run \"user\", key \"copy\" of keyspace \"default\""), "{error}");
    assert!(raw(&bench, &content[..64]));
    bench.run("forget user --why asked").ok();
    bench.run("forget --key copy --why asked").ok();
    assert!(raw(&bench, &content[..64]), "the blob still holds it");
    let [done] = bench.run(&format!("forget --blob {id} --why asked --json")).json().try_into().unwrap();
    assert_eq!((&done["forgotten"], &done["held"]["shared"]), (&"blob".into(), &serde_json::json!([])));
    assert!(!raw(&bench, &content[..64]));
    bench.run(&format!("forget --blob {id} --why asked")).failed(4);
    assert!(bench.run("forget --blob zz --why asked").failed(1).contains("64 hexadecimal digits"));
}

/// A daemon holds values in its cache and keeps deadlines beside the keys: both go.
#[test]
fn daemon_forgets_keys_and_names_remaining_holders() {
    let bench = recorded();
    bench.run("backup copy").ok();
    let daemon = bench.serve(&[]);
    let mut client = bench.connect();
    let mut ask = |line: &str| -> String {
        use std::io::{BufRead, Read, Write};
        client.write_all(format!("{line}\r\n").as_bytes()).unwrap();
        let mut reader = std::io::BufReader::new(&mut client);
        let mut first = String::new();
        reader.read_line(&mut first).unwrap();
        if let Some(len) = first.strip_prefix('$').and_then(|len| len.trim().parse::<usize>().ok()) {
            let mut bytes = vec![0; len + 2];
            reader.read_exact(&mut bytes).unwrap();
            return String::from_utf8(bytes).unwrap();
        }
        first
    };
    let secret = "k9XzQ4vB7mNp2LrT8wYc3HsD6fGj1KaE";
    assert_eq!(ask(&format!("set person:{secret} {secret}value px 10000000")), "+OK\r\n");
    assert_eq!(ask(&format!("set person:{secret} {secret}later px 10000000")), "+OK\r\n");
    assert!(ask(&format!("get person:{secret}")).starts_with(secret));
    let [done] = bench
        .run_args([
            "forget",
            "--key",
            &format!("person:{secret}"),
            "--keyspace",
            "db0",
            "--why",
            "asked",
            "--json",
        ])
        .json()
        .try_into()
        .unwrap();
    let backup = bench.path("copy").canonicalize().unwrap();
    assert_eq!(done["held"]["backups"], serde_json::json!([backup.to_str().unwrap()]));
    assert_eq!(ask(&format!("get person:{secret}")), "$-1\r\n");
    let dropped = ask("run.drop a asked compact");
    let dropped: serde_json::Value = serde_json::from_str(dropped.trim()).unwrap();
    assert_eq!(dropped["held"]["backups"], serde_json::json!([backup.to_str().unwrap()]));
    assert_eq!(dropped["held"]["segments"], serde_json::json!([]));
    assert!(!raw(&bench, secret.as_bytes()), "before the daemon ends");
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    assert!(!raw(&bench, secret.as_bytes()));
    bench.run("verify").ok();
}

/// Keys that had expired stayed in a store that no daemon served again, however often `retain` ran.
#[test]
fn retain_deletes_expired_keys_without_a_daemon() {
    let bench = recorded();
    let daemon = bench.serve(&[]);
    let mut client = LineClient::connect(&bench);
    client.ask("set short gone px 1500");
    client.ask("set changed stays px 1500");
    client.ask("set changed stays px 10000000");
    client.ask("set plain stays");
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    let retained = || -> serde_json::Value {
        let [done] = bench.run("retain --json").json().try_into().unwrap();
        done["expired"].clone()
    };
    let expired = (0..1000).map(|_| retained()).find(|expired| expired["keys"] != 0);
    assert_eq!(expired.unwrap(), serde_json::json!({ "keys": 1, "answers": 0 }));
    assert_eq!(retained(), serde_json::json!({ "keys": 0, "answers": 0 }));
    assert!(bench.run("retain").text().contains("nothing was dropped"));
    bench.run("compact --now").ok();
    let store = annals::Store::open(bench.path(".annals")).unwrap();
    let space = store.namespace("default").unwrap();
    for (keyspace, left) in [("db0", 2), ("annals.deadlines", 1)] {
        let keys = space.find_keyspace(keyspace).unwrap().unwrap();
        assert_eq!(keys.scan(annals::kv::ScanRange::all()).count(), left, "{keyspace}");
    }
}

/// A connection that sends lines and reads the reply to each.
struct LineClient(Box<dyn std::io::Write>, Box<dyn std::io::BufRead>);

impl LineClient {
    fn connect(bench: &CliBench) -> Self {
        let stream = bench.connect();
        Self(Box::new(stream.try_clone().unwrap()), Box::new(std::io::BufReader::new(stream)))
    }

    fn ask(&mut self, line: &str) {
        self.0.write_all(format!("{line}\r\n").as_bytes()).unwrap();
        let mut first = String::new();
        self.1.read_line(&mut first).unwrap();
        let rest = match first.as_bytes()[0] {
            b'$' => 1,
            b'*' => 2 * first[1..].trim().parse::<usize>().unwrap() - 1,
            b'+' => 0,
            _ => unreachable!("{first}"),
        };
        for _ in 0..rest {
            self.1.read_line(&mut first).unwrap();
        }
    }

    /// Adds 200 kB that do not compress well.
    fn fill(&mut self, seed: u8) {
        for (part, bytes) in noise(seed, 200_000).chunks(20_000).enumerate() {
            let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            self.ask(&format!("set k{seed}-{part} {text}"));
        }
    }
}

/// Regression: a forgotten run's decisions and memories were deleted keys, whose bytes stay until a tenth of their log
/// file is dead. They stood in a large file with their text and the run's name, and no report said so. Four ways lead
/// to the same end: a daemon, a recorder that holds the store, the command itself, and a run that retention dropped
/// before.
#[test]
fn forget_erases_decisions_of_a_run_from_large_files() {
    let bench = CliBench::new();
    let names =
        ["victim-of-daemon", "victim-of-recorder", "victim-of-command", "victim-of-retention", "stays"];
    let end = |daemon: crate::serve::ServeProcess| {
        daemon.signal("-TERM");
        assert_eq!(daemon.wait_for_exit().0, Some(0));
    };
    // The runs stand in a log file of their own, which is rewritten anyway.
    let daemon = bench.serve(&[]);
    let mut client = LineClient::connect(&bench);
    for name in names {
        client.ask(&format!("run.begin name {name}"));
        client.ask(&format!("run.end {name}"));
    }
    end(daemon);
    bench.run("compact --now").ok();
    let daemon = bench.serve(&[]);
    let mut client = LineClient::connect(&bench);
    for (name, seed) in names.iter().zip(1..) {
        client.fill(seed);
        let decision = format!(r#"{{"decision":"text of {name}","confidence":1,"run":"{name}"}}"#);
        client.ask(&format!("delib.record {decision:?}"));
    }
    client.fill(10);
    let there =
        |name: &str| (raw(&bench, format!("text of {name}").as_bytes()), raw(&bench, name.as_bytes()));
    assert!(names.iter().all(|name| there(name) == (true, true)));
    bench.run_args(["forget", names[0], "--why", "asked"]).ok();
    assert_eq!(there(names[0]), (false, false), "by the daemon");
    end(daemon);
    let program = bench.command([""]).get_program().to_str().unwrap().to_owned();
    // The command line and the output are recorded, so they must not name the run.
    let script = bench.write("forget.sh", format!("{program} forget {} --why asked > told\n", names[1]));
    let done = bench.run_args(["record", "--allow-empty", "--run", "r", "--", "sh", &script]);
    assert!(done.code == 0, "{}", done.stderr);
    assert_eq!(there(names[1]), (false, false), "by a recorder");
    bench.run_args(["forget", names[2], "--why", "asked"]).ok();
    assert_eq!(there(names[2]), (false, false), "by the command");
    bench.run_args(["pin", names[4], "--why", "stays"]).ok();
    bench.run("retain --at +1000d").ok();
    bench.run("compact --now").ok();
    assert_eq!(there(names[3]), (true, true), "retention keeps the decision");
    let text = bench.run_args(["forget", names[3], "--why", "asked"]).text();
    assert!(text.contains("it had been dropped before"), "{text}");
    assert_eq!(there(names[3]), (false, false), "after retention");
    assert_eq!(there(names[4]), (true, true));
    bench.run("verify").ok();
}

/// Regression: a `forget` that was cut off after the drop, by a signal or a full disk, could not be repeated: "run ... was
/// dropped". The bytes stayed until somebody compacted everything.
#[test]
fn forget_erases_a_run_that_was_dropped_and_not_compacted() {
    let bench = CliBench::new();
    let text = noise(9, 3000);
    let store = annals::Store::open(bench.path(".annals")).unwrap();
    let space = store.namespace("default").unwrap();
    for name in ["cut off", "other"] {
        let run = space.begin_run(annals::RunSpec::new(name)).unwrap();
        let output = if name == "other" { noise(10, 3000) } else { text.clone() };
        run.record(annals::Frame::new(annals::Component::Llm, "q", output)).unwrap();
        run.end(annals::Status::Ok).unwrap();
    }
    space.drop_run("cut off", "forget", "gdpr").unwrap();
    drop(space);
    store.close().unwrap();
    assert!(raw(&bench, &text[..64]), "the drop alone erases nothing");
    let done = bench.run_args(["forget", "cut off", "--why", "gdpr"]);
    assert!(done.code == 0, "{}", done.stderr);
    assert!(!raw(&bench, &text[..64]) && raw(&bench, &noise(10, 3000)[..64]));
    let again = bench.run_args(["forget", "cut off", "--why", "gdpr"]);
    assert!(again.failed(4).contains("was dropped"));
    bench.run("verify --all").ok();
}
