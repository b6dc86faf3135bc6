//! `annals tape` and `annals check`: runs as files, and files as a regression suite.

#![expect(clippy::disallowed_methods, reason = "files that a user would have, changed as a user would")]

use std::path::Path;
use std::process::Stdio;

use crate::upstream::FakeUpstream;
use crate::{CliBench, ProcessResult};

fn agent() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents/agent.py").to_str().unwrap().to_owned()
}

impl CliBench {
    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    /// Records this command of the agent into a store of this bench and exports the run to a tape.
    fn taped(&self, store: &str, upstream: &FakeUpstream, run: &str, doing: &[&str]) -> String {
        let agent = agent();
        let mut args = vec!["--store", store, "record", "--run", run, "--upstream", &upstream.url, "--"];
        args.extend(["python3", "-B", &agent]);
        args.extend(doing);
        let mut command = self.command(args);
        command.env("OPENAI_API_KEY", "sk-a-real-secret").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
        let done = ProcessResult::from_output(command.output().unwrap());
        assert_eq!(done.code, 0, "{done:?}");
        let tape = format!("{run}.tape");
        self.run(&format!("--store {store} tape export {run} -o {tape}")).ok();
        tape
    }
}

#[test]
fn tape_replays_in_another_store_without_upstream() {
    let bench = CliBench::new();
    let tape = {
        let upstream = FakeUpstream::start();
        bench.taped("a", &upstream, "r", &["every"])
    };
    let recorded = bench.run("--store a replay r --json").text();
    let told = bench.run(&format!("--store b tape import {tape}")).text();
    assert!(told.starts_with("imported r: ok, 11 frames, "), "{told}");
    assert_eq!(bench.run("--store b replay r --json").text(), recorded);
    assert_eq!(
        bench.run("--store b show r --metadata").text(),
        bench.run("--store a show r --metadata").text()
    );
    let mut command = bench.command(["--store", "b", "replay"]);
    command.env_remove("OPENAI_API_KEY").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
    let replayed = ProcessResult::from_output(command.output().unwrap());
    assert_eq!(replayed.code, 0, "{replayed:?}");
    assert!(replayed.stderr.contains("exact 9 of 9, served 9, unused 0"), "{}", replayed.stderr);
    // The same run gives the same bytes. An existing tape is replaced; a tape can also go to a pipe.
    bench.run("--store b tape export r -o again.tape").ok();
    assert_eq!(bench.read("again.tape"), bench.read(&tape));
    bench.run("--store b tape export r -o again.tape").ok();
    assert_eq!(crate::ledger::mode(&bench, "again.tape"), 0o600);
    let piped = bench.run("--store b tape export r").ok();
    assert_eq!(piped, bench.read(&tape));
    assert!(bench.run("--store b tape import r.tape").failed(1).contains("exists already"));
    bench.run("--store b tape import r.tape --run other").ok();
    assert_eq!(bench.pipe("--store b tape import - --replace --json", &piped).json()[0]["frames"], 11);
    assert_eq!(bench.run("--store b runs --json").json().len(), 2);
    assert!(!String::from_utf8_lossy(&piped).contains("sk-a-real-secret"));
}

#[test]
fn damaged_tape_records_nothing_and_creates_no_store() {
    let bench = CliBench::new();
    let upstream = FakeUpstream::start();
    let tape = bench.taped("a", &upstream, "r", &["swapped", "a,b"]);
    let mut bytes = bench.read(&tape);
    // A byte after the head, which holds the run's metadata.
    let middle = bytes.len() * 3 / 4;
    bytes[middle] ^= 1;
    bench.write("bad.tape", &bytes);
    let error = bench.run("--store b tape import bad.tape").failed(3);
    assert!(error.starts_with("bad.tape: the tape is damaged in frame "), "{error}");
    assert!(!bench.path("b").exists());
    bench.write("none.tape", "{}");
    assert!(bench.run("--store b tape import none.tape").failed(1).contains("no tape"));
    bench.run("--store b tape import missing.tape").failed(4);
    let told = bench.run("--store b tape import r.tape bad.tape");
    assert_eq!(told.code, 3, "{told:?}");
    assert_eq!(bench.run("--store b runs --json").json().len(), 1);
    assert!(bench.run("--store a tape export none -o x.tape").failed(4).contains("none"));
    assert!(bench.run("--store a tape export r -o no/such/folder").failed(1).contains("cannot write"));
    assert!(!bench.path("x.tape").exists());
}

impl CliBench {
    /// Checks without a provider's key.
    fn check(&self, args: &[&str]) -> ProcessResult {
        let mut command = self.command(["--json", "check"].iter().chain(args));
        command.env_remove("OPENAI_API_KEY").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
        ProcessResult::from_output(command.output().unwrap())
    }
}

fn lines(done: &ProcessResult) -> Vec<serde_json::Value> {
    let text = String::from_utf8(done.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The rest of the line of docs/tapes.md that begins with this text.
fn documented(begins: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tapes.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    docs.lines().find_map(|line| line.strip_prefix(begins)).unwrap().to_owned()
}

/// Counts of a JUnit file and a line for each case, read by Python's own parser.
fn junit(bench: &CliBench, file: &str) -> String {
    let script = "import sys, xml.etree.ElementTree as E
root = E.parse(sys.argv[1]).getroot()
assert root.tag == 'testsuites' and len(root) == 1 and root[0].tag == 'testsuite'
print(*(root[0].get(name) for name in ('tests', 'failures', 'errors', 'skipped')))
for case in root[0]:
    wrong = list(case)
    print(case.get('classname'), case.get('name'), *(f'{w.tag} {w.get(\"type\")}' for w in wrong), float(case.get('time')) >= 0)
    for w in wrong: print(w.text)
";
    let mut command = std::process::Command::new("python3");
    let command = command.args(["-c", script, file]).current_dir(bench.directory.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// One good tape, one whose program changed, one damaged, and one whose program is missing. The check reports
/// each, and none hides another.
#[test]
fn a_folder_of_tapes_is_a_regression_suite() {
    let bench = CliBench::new();
    {
        let upstream = FakeUpstream::start();
        // The program of this tape reads its question from a file that changes later.
        let script = format!(
            "exec python3 -B {} changed \"$(cat {}/word)\"\n",
            agent(),
            bench.directory.path().display()
        );
        let script = bench.write("drifts.sh", script);
        bench.write("word", "two");
        let record = |run: &str, command: &[&str]| {
            let mut args = vec![
                "--store",
                "a",
                "record",
                "--allow-empty",
                "--run",
                run,
                "--upstream",
                &upstream.url,
                "--",
            ];
            args.extend(command);
            let mut command = bench.command(args);
            command.env("OPENAI_API_KEY", "sk-x").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
            let done = ProcessResult::from_output(command.output().unwrap());
            assert!(matches!(done.code, 0 | 7), "{done:?}");
        };
        let agent = agent();
        record("drifts", &["sh", &script]);
        record("good", &["python3", "-B", &agent, "every"]);
        record("fails", &["python3", "-B", &agent, "fails", "7"]);
        let gone = bench.write("gone.sh", "#!/bin/sh\nexit 0\n");
        let gone = bench.path(&gone).to_str().unwrap().to_owned();
        std::fs::set_permissions(&gone, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        record("gone", &[&gone]);
        std::fs::remove_file(gone).unwrap();
    }
    std::fs::create_dir_all(bench.path("tapes/more")).unwrap();
    for (run, file) in [("good", "good"), ("fails", "fails"), ("drifts", "more/drifts"), ("gone", "gone")] {
        bench.run(&format!("--store a tape export {run} -o tapes/{file}.tape")).ok();
    }
    std::fs::copy(bench.path("tapes/good.tape"), bench.path("kept")).unwrap();
    // Regression: the tapes of a linked folder were passed over without a word.
    std::fs::create_dir_all(bench.path("linked")).unwrap();
    let link = |to: &str, at: &str| std::os::unix::fs::symlink(bench.path(to), bench.path(at)).unwrap();
    link("tapes", "linked/there");
    link("linked", "tapes/more/back");
    link("tapes/more", "linked/again");
    let linked = bench.check(&["linked"]);
    assert_eq!(lines(&linked).last().unwrap()["ok"], 4, "each tape is checked once: {linked:?}");
    std::fs::remove_file(bench.path("tapes/more/back")).unwrap();
    // The bytes of all tapes are sound. Without `--programs` the check starts no program.
    bench.write("word", "twp");
    let sound = bench.check(&["tapes"]);
    assert_eq!(sound.code, 0, "{sound:?}");
    assert_eq!(lines(&sound).last().unwrap()["ok"], 4);
    // A tape that could not be checked is neither a success nor drift.
    // Nor is a redacted one: it counted as drift, although no program ran.
    bench.run("--store a tape export good -o safe.tape --as safe").ok();
    let safe = bench.check(&["safe.tape", "--programs"]);
    assert_eq!((safe.code, lines(&safe)[0]["verdict"].as_str()), (1, Some("failed")), "{safe:?}");
    let gone = bench.check(&["tapes/good.tape", "tapes/fails.tape", "tapes/gone.tape", "--programs"]);
    assert_eq!(gone.code, 1, "{gone:?}");
    let verdicts: Vec<_> =
        lines(&gone).iter().filter_map(|line| line["verdict"].as_str().map(str::to_owned)).collect();
    assert_eq!(verdicts, ["ok", "ok", "failed"]);

    let mut bytes = bench.read("tapes/good.tape");
    let middle = bytes.len() / 3;
    bytes[middle] ^= 0x40;
    bench.write("tapes/bad.tape", bytes);
    // The command of the job in docs/tapes.md, word for word.
    let job = documented("      - run: annals check ");
    let checked = bench.check(&job.split(' ').collect::<Vec<_>>());
    assert_eq!((checked.code, checked.stderr.as_str()), (3, ""), "{checked:?}");
    let told = lines(&checked);
    let summary = told.last().unwrap();
    assert_eq!(
        [&summary["checked"], &summary["ok"], &summary["drift"], &summary["damaged"], &summary["failed"]],
        [5, 2, 1, 1, 1]
    );
    let drifted = told.iter().find(|line| line["verdict"] == "drift").unwrap();
    assert_eq!(drifted["name"], "tapes/more/drifts.tape");
    let text = drifted["text"].as_str().unwrap();
    assert!(text.contains("step 2") && text.contains("$.messages[1].content"), "{text}");
    let xml = junit(&bench, "tapes.xml");
    assert!(xml.starts_with("5 2 1 0\n"), "{xml}");
    for line in [
        "annals.tapes tapes/good.tape True",
        "annals.tapes tapes/bad.tape failure damaged True",
        "annals.tapes tapes/gone.tape error failed True",
        "annals.tapes tapes/more/drifts.tape failure drift True",
    ] {
        assert!(xml.contains(line), "{line:?} is not in {xml}");
    }
    assert!(xml.contains("the tape is damaged in frame"), "{xml}");
    // Another program for one tape, and a rule that covers the change.
    let agent = agent();
    let other = ["tapes/more/drifts.tape", "--", "python3", "-B", &agent, "changed", "two"];
    assert_eq!(bench.check(&other).code, 0);
    assert!(!bench.path(".annals").exists(), "a check of tapes makes no store");
}

impl CliBench {
    /// Exports a run of one frame with this answer, under the same name each time.
    fn answer_taped(&self, answer: &str, file: &str) {
        let frame = format!(r#"{{"run":"r","component":"llm","input":"asked","output":"{answer}"}}"#);
        self.pipe("import --format frames --replace -", frame.as_bytes()).ok();
        self.run(&format!("tape export r -o {file}")).ok();
    }
}

/// Regression: a check compared a tape only with what is in it, so a tape that was recorded again with another answer
/// passed; a deleted tape did, too.
#[test]
fn tape_other_than_the_listed_one_fails_the_check() {
    let bench = CliBench::new();
    std::fs::create_dir_all(bench.path("tapes/more")).unwrap();
    bench.answer_taped("yes", "tapes/a.tape");
    bench.answer_taped("yes", "tapes/more/b.tape");
    bench.answer_taped("maybe", "tapes/c.tape");
    let text = bench.run("check tapes --write-sums").text();
    assert!(text.ends_with("0 not checked\nwrote tapes/tapes.sums\n"), "{text}");
    let sums = String::from_utf8(bench.read("tapes/tapes.sums")).unwrap();
    let fingerprint = bench.run("runs --json").json()[0]["fingerprint"].as_str().unwrap().to_owned();
    let names: Vec<_> = sums.lines().map(|line| line.split_once("  ").unwrap()).collect();
    let listed = ["a.tape", "c.tape", "more/b.tape"];
    assert_eq!(names.iter().map(|(_, name)| *name).collect::<Vec<_>>(), listed);
    assert_eq!((names[1].0, names[0].0), (fingerprint.as_str(), names[2].0));
    assert_eq!(bench.check(&["tapes"]).code, 0);
    // Regression: a folder without a tape was passed over if there was something else to check.
    std::fs::create_dir(bench.path("lost")).unwrap();
    let empty = bench.check(&["tapes", "lost"]);
    assert!(empty.code == 4 && empty.stderr.contains("lost holds no tape"), "{empty:?}");

    // The same content, recorded at another time, is what was listed.
    bench.answer_taped("yes", "tapes/a.tape");
    let same = bench.check(&["tapes"]);
    assert_eq!(same.code, 0, "{same:?}");

    bench.answer_taped("no", "tapes/more/b.tape");
    std::fs::remove_file(bench.path("tapes/c.tape")).unwrap();
    std::fs::copy(bench.path("tapes/a.tape"), bench.path("tapes/new.tape")).unwrap();
    let checked = bench.check(&["tapes", "--programs", "--junit", "tapes.xml"]);
    assert_eq!(checked.code, 3, "{checked:?}");
    let told = lines(&checked);
    let verdict_of = |name: &str| {
        let line = told.iter().find(|line| line["name"] == name).unwrap();
        (line["verdict"].as_str().unwrap().to_owned(), line["text"].as_str().unwrap().to_owned())
    };
    assert_eq!(verdict_of("tapes/a.tape").0, "ok");
    for (name, verdict, text) in [
        ("tapes/more/b.tape", "damaged", "another tape than the listed one: fingerprint "),
        ("tapes/c.tape", "failed", "tapes.sums lists this tape, and it is not there"),
        ("tapes/new.tape", "failed", "tapes.sums does not list this tape"),
    ] {
        let (found, why) = verdict_of(name);
        assert!(found == verdict && why.starts_with(text), "{name}: {found}: {why}");
    }
    assert_eq!(told.last().unwrap()["checked"], 4);
    assert!(junit(&bench, "tapes.xml").contains("annals.tapes tapes/more/b.tape failure damaged True"));
    // A listed tape that is missing, and one that is not listed, could not be checked.
    bench.answer_taped("yes", "tapes/more/b.tape");
    assert_eq!(bench.check(&["tapes"]).code, 1);

    // Damage writes no sums; then new sums replace the old ones.
    bench.write("tapes/bad.tape", &bench.read("tapes/a.tape")[..60]);
    let refused = bench.run("check tapes --write-sums");
    assert_eq!(refused.code, 3, "{refused:?}");
    assert!(
        String::from_utf8_lossy(&refused.stdout).ends_with("tapes.sums was not written\n"),
        "{refused:?}"
    );
    assert_eq!(String::from_utf8(bench.read("tapes/tapes.sums")).unwrap(), sums);
    std::fs::remove_file(bench.path("tapes/bad.tape")).unwrap();
    let written = bench.check(&["tapes", "--write-sums"]);
    assert_eq!(lines(&written).last().unwrap()["sums"], serde_json::json!(["tapes/tapes.sums"]));
    assert_eq!(bench.check(&["tapes"]).code, 0);
    assert_eq!(bench.run("check tapes/a.tape --write-sums").code, 2);
    assert_eq!(bench.run("check --write-sums").code, 2);
    bench.write("tapes/tapes.sums", "<<<<<<< HEAD\n");
    assert!(bench.run("check tapes").failed(1).contains("line 1 is not `FINGERPRINT  NAME`"));
}

/// Regression: `replay FILE.tape` ended with `no run` or `no store`, and did not say that a tape is imported first.
#[test]
fn replay_of_a_tape_file_names_the_import() {
    let bench = CliBench::new();
    bench.answer_taped("yes", "kept.tape");
    for store in ["--store a", ""] {
        let refused =
            bench.run_args(format!("{store} replay kept.tape").split_whitespace().collect::<Vec<_>>());
        assert_eq!(refused.code, 4, "{refused:?}");
        assert!(refused.stderr.contains("`annals tape import kept.tape`"), "{}", refused.stderr);
    }
    let refused = bench.run("replay missing.tape");
    assert!(refused.code == 4 && !refused.stderr.contains("tape import"), "{refused:?}");
    bench.run("--store a tape import kept.tape").ok();
    bench.run("--store a replay r").ok();
}

#[test]
fn check_sample_is_repeated_by_its_seed() {
    let bench = CliBench::new();
    let frame = |run: u32| {
        format!("{{\"run\":\"run-{run}\",\"component\":\"llm\",\"input\":\"{run}\",\"output\":\"a\"}}\n")
    };
    let frames: String = (0..130).map(frame).collect();
    bench.pipe("import --format frames -", frames.as_bytes()).ok();
    let names = |done: &ProcessResult| -> Vec<String> {
        lines(done).iter().filter_map(|line| line["name"].as_str().map(str::to_owned)).collect()
    };
    let first = bench.check(&["--sample", "5"]);
    assert_eq!((first.code, names(&first).len()), (0, 5), "{first:?}");
    let summary = lines(&first).pop().unwrap();
    let repeat = summary["repeat"].as_str().unwrap().to_owned();
    let words: Vec<_> = repeat.split(' ').skip(2).collect();
    assert_eq!(names(&bench.check(&words)), names(&first));
    assert_ne!(
        names(&bench.check(&["--sample", "5", "--seed", "1"])),
        names(&bench.check(&["--sample", "5", "--seed", "2"]))
    );
    // The nightly job of the source: 100 runs at random, all replayed as recorded.
    let nightly = bench.check(&[]);
    let summary = lines(&nightly).pop().unwrap();
    assert_eq!((nightly.code, names(&nightly).len()), (0, 100), "{summary}");
    assert_ne!(names(&bench.check(&[])), names(&nightly), "another sample each time");
    let some = bench.check(&["run-3", "none", "run-7"]);
    assert_eq!((some.code, lines(&some)[1]["verdict"].as_str()), (1, Some("failed")));
    let text = bench.run("check run-3 run-7").text();
    assert!(text.ends_with("as recorded: 2 runs checked, 0 drifted, 0 damaged, 0 not checked\n"), "{text}");
    std::fs::create_dir_all(bench.path("empty")).unwrap();
    assert!(bench.run("check empty").failed(4).contains("nothing to check"));
    assert_eq!(bench.run("check run-3 --seed 4").code, 2);
    let ended = bench.run("check run-3 --junit no/such/x.xml");
    assert_eq!(ended.code, 1, "{ended:?}");
}

/// cli/tests/data/PROVENANCE.md names the source of this tape.
#[test]
fn tracefork_tape_imports_with_digest_and_replays() {
    let bench = CliBench::new();
    let tape = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tracefork_single_turn.tape.sqlite");
    let digest = "5020d10d6829cfd079f71dc0aa88c36e973302a8861eed9284f2eb70792139d1";
    let told = bench.run(&format!("tape import {}", tape.display())).text();
    assert!(
        told.starts_with("imported single_turn: ok, 1 frame, 281 B, ") || told.contains(digest),
        "{told}"
    );
    assert!(told.contains(digest), "{told}");
    let metadata = bench.run("show single_turn --metadata").text();
    assert!(metadata.contains(digest), "{metadata}");
    // A program that sends the recorded request gets the recorded answer.
    let frame = &bench.run("replay single_turn --json").json()[0];
    assert_eq!(frame["component"], "llm");
    bench.write("request", frame["input"].as_str().unwrap());
    let script = "import os, urllib.request, sys
body = open('request', 'rb').read()
path = '/v1/messages'
asked = urllib.request.Request(os.environ['ANTHROPIC_BASE_URL'] + path, body, {'content-type': 'application/json'})
answer = urllib.request.urlopen(asked)
sys.stdout.write(answer.headers['content-type'] + ' ' + answer.read().decode())
";
    let script = bench.write("ask.py", script);
    let done = bench.run_args(["replay", "single_turn", "--", "python3", "-B", &script]);
    assert_eq!(done.code, 0, "{done:?}");
    let expected = format!("application/json {}", frame["output"].as_str().unwrap());
    assert_eq!(String::from_utf8(done.stdout).unwrap(), expected);
    // The run can be exported to a tape of annals; both tapes pass a check.
    bench.run("tape export single_turn -o x.tape").ok();
    assert_eq!(bench.check(&[tape.to_str().unwrap(), "x.tape"]).code, 0);
    // A blob whose content was replaced under the old name is refused.
    let mut bytes = std::fs::read(&tape).unwrap();
    let at = bytes
        .windows(12)
        .position(|window| window == b"\"role\": \"user")
        .or_else(|| bytes.windows(4).position(|window| window == [0x28, 0xb5, 0x2f, 0xfd]).map(|at| at + 20));
    bytes[at.unwrap()] ^= 1;
    bench.write("forged.tape.sqlite", bytes);
    bench.run("tape import forged.tape.sqlite").failed(3);
    bench.write("other.tape.sqlite-wal", "x");
    bench.write("other.tape.sqlite", std::fs::read(&tape).unwrap());
    assert!(bench.run("tape import other.tape.sqlite").failed(1).contains("write-ahead log"));
}

/// Regression: `tape export` without a file wrote the tape to the terminal, which obeys control sequences in
/// recorded bodies.
#[test]
fn tape_export_to_a_terminal_needs_a_file_or_a_dash() {
    let bench = CliBench::new();
    bench.pipe("import --format frames -", br#"{"run":"r","component":"llm","output":"x"}"#).ok();
    let on_terminal = |args: &[&str]| {
        let script = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
        let mut command = std::process::Command::new("python3");
        command.args(["-c", script, env!("CARGO_BIN_EXE_annals")]).args(args).stdin(Stdio::null());
        ProcessResult::from_output(command.current_dir(bench.path("")).output().unwrap())
    };
    let refused = on_terminal(&["tape", "export", "r"]);
    let shown = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(shown.contains("not written to one") && !shown.contains("annals tape"), "{shown}");
    let forced = on_terminal(&["tape", "export", "r", "-o", "-"]);
    assert_eq!(forced.code, 0, "{forced:?}");
    assert!(forced.stdout.starts_with(b"annals tape\0"), "{forced:?}");
}
