//! `--as PROFILE`: redacted content in show, replay and export.

#![expect(clippy::disallowed_methods, reason = "files that a user would have")]

use crate::CliBench;

const LINES: &str = concat!(
    r#"{"run":"r","model":"m","metadata":{"tenant":"anna@example.com"}}"#,
    "\n",
    r#"{"run":"r","component":"llm","input":"{\"to\":\"anna@example.com\",\"id\":\"call_VfUqzGYnS7Yd5hNvXk2mRpQ8\"}","output":"data: {\"delta\":\"ann\"}\n\ndata: {\"delta\":\"a@example.com, C-1234\"}\n\n","metadata":{"card":4111111111111111}}"#,
    "\n",
    r#"{"run":"r","status":"ok","end":true}"#,
    "\n"
);

fn bench() -> CliBench {
    let bench = CliBench::new();
    bench.write("lines", LINES);
    bench.run("--store s import lines --format frames").ok();
    bench
}

fn placeholders(text: &str) -> Vec<String> {
    text.match_indices("[email:").map(|(at, _)| text[at..at + 20].to_owned()).collect()
}

/// `show --as` printed the reason of a pin as it was given.
#[test]
fn reasons_of_pins_and_flags_are_redacted() {
    let bench = bench();
    for verb in ["pin", "flag"] {
        bench.run_args(["--store", "s", verb, "r", "--why", "ann@example.com asked"]).ok();
    }
    assert_eq!(bench.run("--store s show r").text().matches("ann@example.com asked").count(), 2);
    let shown = bench.run("--store s show r --as safe").text();
    assert!(!shown.contains("ann@") && shown.matches("] asked").count() == 2, "{shown}");
    let json = &bench.run("--store s show r --as safe --json").json()[0];
    for mark in ["pinned", "flagged"] {
        let why = json[mark].as_str().unwrap();
        assert!(why.ends_with("] asked") && !why.contains("ann@"), "{json}");
    }
    assert_eq!(bench.run("--store s report r --as safe -o r.html").code, 0);
    let page = std::fs::read_to_string(bench.path("r.html")).unwrap();
    assert!(!page.contains("ann@") && page.contains("] asked"), "the report");
}

#[test]
fn redacted_show_and_replay_name_the_profile() {
    let bench = bench();
    let raw = bench.run("--store s show r@1").text();
    assert_eq!(bench.run("--store s show r@1 --as raw").text(), raw);
    let shown = bench.run("--store s show r@1 --as safe").text();
    assert!(
        shown.contains("redacted by profile safe: not what was recorded") && !shown.contains("digest"),
        "{shown}"
    );
    assert!(!shown.contains("example.com") && shown.contains("call_VfUqzGYnS7Yd5hNvXk2mRpQ8"), "{shown}");
    assert!(shown.contains("\"card\":\"[card:"), "{shown}");
    // Equal values have equal placeholders in every read of this store.
    let listed = bench.run("--store s show r --as safe").text();
    assert!(listed.contains("redacted by profile safe") && !listed.contains("fingerprint"), "{listed}");
    let json = &bench.run("--store s show r@1 --as safe --json").json()[0];
    assert_eq!(json["redacted"], "safe");
    assert!(json.get("digest").is_none(), "{json}");
    let all = [
        shown,
        listed,
        json["input"].as_str().unwrap().to_owned(),
        json["output"].as_str().unwrap().to_owned(),
    ];
    let mut all: Vec<_> = all.iter().flat_map(|text| placeholders(text)).collect();
    assert!(all.len() >= 6, "{all:?}");
    all.dedup();
    assert_eq!(all.len(), 1, "{all:?}");
    let part = bench.run("--store s show r@1 --output --raw --as safe");
    assert_eq!(part.code, 0);
    assert!(part.stderr.contains("redacted by profile safe"), "{}", part.stderr);
    assert_eq!(String::from_utf8(part.stdout).unwrap().matches("data: {").count(), 2);
    let replayed = bench.run("--store s replay r --as safe").text();
    assert!(
        replayed.contains("redacted by profile safe, not what was recorded: 1 frames")
            && !replayed.contains("bit-exact"),
        "{replayed}"
    );
    assert!(bench.run("--store s replay r").text().contains("bit-exact: 1 frames"));
    assert!(bench.run("--store s replay --all --as safe").text().contains("not what was recorded"));
    assert!(
        bench
            .run("--store s replay r --as safe -- true")
            .failed(2)
            .contains("a program needs the recorded ones")
    );
    // Redacted output cannot be imported as a recording.
    let lines = bench.run("--store s replay r --as safe --json").ok();
    bench.write("shown", lines);
    assert!(bench.run("--store t import shown --format frames").failed(1).contains("it is redacted"));
}

/// Regression: these verbs accepted no profile and printed the values that other verbs replaced.
#[test]
fn every_verb_that_prints_run_content_takes_a_profile() {
    let bench = CliBench::new();
    let ask = |run: &str, text: &str, answer: &str| {
        let input = serde_json::json!({ "model": "m", "messages": [{ "role": "user", "content": text }] })
            .to_string();
        let frame = serde_json::json!({ "run": run, "component": "llm", "error": true, "input": input, "output": answer });
        let end = serde_json::json!({ "run": run, "status": "failed", "end": true });
        format!("{{\"run\":\"{run}\",\"model\":\"m\"}}\n{frame}\n{end}\n")
    };
    let lines = [
        ask("a", "write to anna@example.com", "no such host: example.com/anna@example.com"),
        ask("b", "write to anna@example.com or bob@example.com", "no, bob@example.com"),
    ];
    bench.write("lines", lines.concat());
    bench.run("--store s import lines --format frames").ok();
    let store = annals::Store::open(bench.path("s")).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(annals::RunSpec::new("stated")).unwrap();
    run.record(annals::Frame::new(annals::Component::User, "in", "out")).unwrap();
    run.snapshot(r#"{"memory":"anna@example.com","turn":3}"#, &[]).unwrap();
    run.end(annals::Status::Ok).unwrap();
    store.close().unwrap();
    for (line, code) in [
        ("tail b", 0),
        ("tail b --json", 0),
        ("open b", 0),
        ("open b --json", 0),
        ("diff a b", 3),
        ("show b@1 --new", 0),
        ("state stated", 0),
        ("state stated --raw", 0),
        ("state stated --json", 0),
    ] {
        let plain = bench.run(&format!("--store s {line}"));
        let shown = bench.run(&format!("--store s {line} --as safe"));
        assert_eq!((plain.code, shown.code), (code, code), "{line}: {shown:?}");
        let (text, said) =
            (String::from_utf8(shown.stdout).unwrap(), String::from_utf8(plain.stdout).unwrap());
        assert!(said.contains("@example.com") || line == "open b --json", "{line}: {said}");
        assert!(!text.contains("@example.com"), "{line}: {text}");
        assert!(text.contains("[email:") || line == "open b --json", "{line}: {text}");
        let marked = if line.ends_with("--json") {
            text.contains("\"redacted\":\"safe\"")
        } else {
            text.contains("redacted by profile safe") || shown.stderr.contains("redacted by profile safe")
        };
        assert!(marked, "{line}: {text} {}", shown.stderr);
        bench.run(&format!("--store s {line} --as nobody")).failed(2);
    }
    // The rest of a state is unchanged, and a value has the same placeholder everywhere.
    let state = bench.run("--store s state stated --as safe --json").json()[0]["state"].to_string();
    assert!(
        state.contains("turn")
            && placeholders(&state)
                == placeholders(
                    &bench.run("--store s show a@1 --input --as safe --json").json()[0]["input"].to_string()
                ),
        "{state}"
    );
    // The paths of a user's own profile are redacted, too.
    bench.write(
        "mine.toml",
        "[[profile]]\nname = \"mine\"\ndetect = []\npaths = [\"$..content\", \"$.memory\"]\n",
    );
    for line in ["state stated", "show b@1 --new", "diff a b"] {
        let shown = bench.run(&format!("--store s {line} --as mine --profiles mine.toml"));
        let text = String::from_utf8(shown.stdout).unwrap();
        assert!(!text.contains("write to") && !text.contains("anna@example.com\""), "{line}: {text}");
    }
}

#[test]
fn user_defined_profiles_are_applied() {
    let bench = bench();
    bench.write(
        "mine.toml",
        "[[profile]]\nname = \"mine\"\ndetect = []\npatterns = { customer = 'C-\\d{4}' }\n",
    );
    let shown = bench.run("--store s show r@1 --as mine --profiles mine.toml").text();
    assert!(shown.contains("[customer:") && shown.contains("anna@example.com"), "{shown}");
    assert!(
        bench
            .run("--store s show r@1 --as mine")
            .failed(2)
            .contains("there is no profile \"mine\"; there are raw, safe")
    );
    std::fs::copy(bench.path("mine.toml"), bench.path("s").join("profiles.toml")).unwrap();
    assert_eq!(bench.run("--store s show r@1 --as mine").text(), shown);
    bench.run("--store s verify").ok();
    bench.write("bad.toml", "[[profile]]\nname = \"x\"\npattern = 1\n");
    let error = bench.run("--store s show r --as x --profiles bad.toml").failed(2);
    assert!(error.starts_with("bad.toml:3:1: \"pattern\" is not a key of [[profile]]"), "{error}");
    assert!(bench.run("--store s show r --as safe --profiles none.toml").failed(4).contains("none.toml"));
}

#[test]
fn redacted_tape_is_marked_and_not_replayed() {
    let bench = bench();
    let told = bench.run("--store s tape export r -o r.tape --as safe").text();
    assert!(told.contains("redacted by profile safe") && !told.contains("fingerprint"), "{told}");
    let bytes = std::fs::read(bench.path("r.tape")).unwrap();
    assert!(!bytes.windows(11).any(|window| window == b"example.com"));
    assert!(bench.run("--store t tape import r.tape").failed(1).contains("it was redacted by profile safe"));
    assert!(!bench.path("t").exists());
    let told = bench.run("--store t tape import r.tape --redacted").text();
    assert!(told.contains("redacted by profile safe: not what was recorded"), "{told}");
    assert!(bench.run("--store t show r").text().contains("redacted by profile safe before it came here"));
    assert!(bench.run("--store t replay r").text().contains("not what was recorded"));
    bench.run("--store t verify").ok();
    // A redacted tape stays marked as redacted. A whole tape is unchanged.
    bench.run("--store t tape export r -o again.tape").ok();
    assert!(bench.run("--store u tape import again.tape").failed(1).contains("redacted"));
    bench.run("--store s tape export r -o whole.tape").ok();
    bench.run("--store u tape import whole.tape").ok();
    assert!(bench.run("--store u replay r").text().contains("bit-exact: 1 frames"));
}

/// A fork of a redacted run had no mark: its replay was bit-exact, and its tape was taken for a whole one. A connection
/// got the redacted answers even from the marked run.
#[test]
fn forks_of_a_redacted_run_are_marked_too() {
    let bench = bench();
    bench.run("--store s tape export r -o r.tape --as safe").ok();
    bench.run("--store t tape import r.tape --redacted").ok();
    bench.run("--store t fork r@1 f --no-run").ok();
    bench.run("--store t fork f@1 g --no-run").ok();
    for run in ["f", "g"] {
        let told = bench.run(&format!("--store t replay {run}")).text();
        assert!(told.contains("redacted by profile safe") && !told.contains("bit-exact"), "{told}");
    }
    bench.run("--store t tape export g -o g.tape").ok();
    assert!(bench.run("--store u tape import g.tape").failed(1).contains("redacted by profile safe"));
}

#[test]
fn token_can_carry_a_profile() {
    let bench = bench();
    bench.run("--store s token add support --profile safe").ok();
    assert_eq!(bench.run("--store s token list").text(), "support  default  redacted  safe\n");
    assert!(
        bench.run("--store s token add x --profile safe --rights read").failed(1).contains("without read")
    );
}
