//! `annals tape` and `annals check`: runs as files, and files as a regression suite.

#![expect(clippy::disallowed_methods, reason = "files that a user would have, changed as a user would")]

use std::path::Path;
use std::process::Stdio;

use crate::upstream::Upstream;
use crate::{Bench, Done};

fn agent() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents/agent.py").to_str().unwrap().to_owned()
}

impl Bench {
    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    /// Records the agent doing this into a store of this bench, and takes it onto a tape.
    fn taped(&self, store: &str, upstream: &Upstream, run: &str, doing: &[&str]) -> String {
        let agent = agent();
        let mut args = vec!["--store", store, "record", "--run", run, "--upstream", &upstream.url, "--"];
        args.extend(["python3", "-B", &agent]);
        args.extend(doing);
        let mut command = self.command(args);
        command.env("OPENAI_API_KEY", "sk-a-real-secret").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
        let done = Done::of(command.output().unwrap());
        assert_eq!(done.code, 0, "{done:?}");
        let tape = format!("{run}.tape");
        self.run(&format!("--store {store} tape export {run} -o {tape}")).ok();
        tape
    }
}

#[test]
fn a_tape_replays_in_another_store_without_an_upstream() {
    let bench = Bench::new();
    let tape = {
        let upstream = Upstream::start();
        bench.taped("a", &upstream, "r", &["every"])
    };
    let recorded = bench.run("--store a replay r --json").text();
    let told = bench.run(&format!("--store b tape import {tape}")).text();
    assert!(told.starts_with("imported r: ok, 11 frames, "), "{told}");
    assert_eq!(bench.run("--store b replay r --json").text(), recorded);
    assert_eq!(bench.run("--store b show r --metadata").text(), bench.run("--store a show r --metadata").text());
    let mut command = bench.command(["--store", "b", "replay"]);
    command.env_remove("OPENAI_API_KEY").env_remove("OPENAI_BASE_URL").stdin(Stdio::null());
    let replayed = Done::of(command.output().unwrap());
    assert_eq!(replayed.code, 0, "{replayed:?}");
    assert!(replayed.stderr.contains("exact 9 of 9, served 9, unused 0"), "{}", replayed.stderr);
    // The same run, the same bytes; a tape that is there is replaced, or piped.
    bench.run("--store b tape export r -o again.tape").ok();
    assert_eq!(bench.read("again.tape"), bench.read(&tape));
    bench.run("--store b tape export r -o again.tape").ok();
    let piped = bench.run("--store b tape export r").ok();
    assert_eq!(piped, bench.read(&tape));
    assert!(bench.run("--store b tape import r.tape").failed(1).contains("exists already"));
    bench.run("--store b tape import r.tape --run other").ok();
    assert_eq!(bench.pipe("--store b tape import - --replace --json", &piped).json()[0]["frames"], 11);
    assert_eq!(bench.run("--store b runs --json").json().len(), 2);
    assert!(!String::from_utf8_lossy(&piped).contains("sk-a-real-secret"));
}

#[test]
fn a_damaged_tape_records_nothing_and_makes_no_store() {
    let bench = Bench::new();
    let upstream = Upstream::start();
    let tape = bench.taped("a", &upstream, "r", &["swapped", "a,b"]);
    let mut bytes = bench.read(&tape);
    let middle = bytes.len() / 2;
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
