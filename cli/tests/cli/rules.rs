//! A user's own rules in TOML: severities, differences that are allowed, prices.

use crate::record::{agent, says};
use crate::upstream::FakeUpstream;
use crate::{CliBench, ProcessResult};

const FIRST: &str = "swapped doc-0b0a7e3c-5f0e-4a53-9a44-0c2f1d1f6f11,b";
const SECOND: &str = "swapped doc-77d1c1de-9a3b-4d0c-8f53-5a1f6f0e0b1a,b";
const MATCHER: &str = "[[matcher]]\nrule = 'mask uuid $.messages[1].content'\n";

impl CliBench {
    /// Records this command of the agent with a file of rules.
    fn record_with_rules(
        &self,
        upstream: &FakeUpstream,
        rules: &str,
        run: &str,
        doing: &str,
    ) -> ProcessResult {
        let doing: Vec<_> = doing.split(' ').collect();
        self.record_with(&["--run", run, "--rules", rules], &upstream.url, &doing)
    }

    fn replay_with_rules(&self, args: &str, doing: &str) -> ProcessResult {
        let (args, doing): (Vec<_>, Vec<_>) = (args.split(' ').collect(), doing.split(' ').collect());
        self.replay(&args, if doing == [""] { &[] } else { &doing })
    }

    fn frames(&self, run: &str) -> Vec<serde_json::Value> {
        self.run(&format!("replay {run} --json")).json()
    }
}

#[test]
fn severity_rule_raises_frame_and_run_and_opens_there() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let rule = "[[severity]]\nseverity = 'escalated'\nwhy = 'it was told of call 1'\ncontains = 'call 1'\n";
    let rules = bench.write("annals.toml", rule);
    assert_eq!(bench.record(&upstream.url, "without", &["is_killed", "3", "0"]).code, 137);
    assert!(bench.run("open --last-failed").text().contains("without@3 of 4: llm, normal"));

    assert_eq!(bench.record_with_rules(&upstream, &rules, "r", "is_killed 3 0").code, 137);
    let frames = bench.frames("r");
    let severities: Vec<_> = frames.iter().map(|frame| frame["severity"].as_str().unwrap()).collect();
    assert_eq!(severities, ["normal", "escalated", "normal", "flagged"]);
    assert_eq!(frames[1]["metadata"]["why_severe"], "it was told of call 1");
    let failed = bench.run("runs --failed --severity escalated --json").json();
    assert_eq!(failed.iter().map(|run| &run["id"]).collect::<Vec<_>>(), ["r"]);
    let shown = bench.run("open --last-failed").text();
    for what in ["r: failed, escalated", "r@2 of 4: llm, escalated", "it was told of call 1"] {
        assert!(shown.contains(what), "{what:?} is not in {shown}");
    }

    // A time-dependent reason is stored under `volatile`, because two recordings do not share it.
    let slow = bench.write("slow.toml", "[[severity]]\nseverity = 'escalated'\nwhy = 'slow'\nduration_over_ms = 5\ninput = { '$.stream' = true }\n");
    assert_eq!(bench.record_with_rules(&upstream, &slow, "s", "every").code, 0);
    let frames = bench.frames("s");
    assert_eq!(frames[2]["metadata"]["volatile"]["why_severe"], "slow", "{}", frames[2]);
    assert!(frames[2]["metadata"]["why_severe"].is_null() && frames[0]["severity"] == "normal");
    assert!(
        bench
            .run("open s")
            .text()
            .contains("s@3 of 11: llm, escalated\nPOST openai /v1/chat/completions: 200\nslow\n")
    );
}

#[test]
fn run_keeps_its_matchers_until_a_file_replaces_them() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let (rules, none) = (bench.write("annals.toml", MATCHER), bench.write("none.toml", "# none\n"));
    assert_eq!(bench.record_with_rules(&upstream, &rules, "r", FIRST).code, 0);
    assert_eq!(bench.run("show r --json").json()[0]["metadata"]["program"]["rules"], MATCHER);
    let replayed = bench.replay_with_rules("r", SECOND);
    assert_eq!(replayed.code, 0, "{replayed:?}");
    says(&replayed, &["exact 1 of 2, same after the matcher 1"]);
    assert_eq!(bench.replay_with_rules("r --rules none.toml", SECOND).code, 3);
    let args = ["r", "--rules", &none, "--rule", "mask uuid $.messages[1].content"];
    assert_eq!(bench.replay(&args, &SECOND.split(' ').collect::<Vec<_>>()).code, 0, "both together");

    // A run without rules is replayed with the rules of a file.
    assert_eq!(bench.record(&upstream.url, "bare", &FIRST.split(' ').collect::<Vec<_>>()).code, 0);
    assert_eq!(bench.replay_with_rules("bare", SECOND).code, 3);
    assert_eq!(bench.replay_with_rules("bare --rules annals.toml", SECOND).code, 0);
    let check = |run: &str, more: &[&str]| {
        let agent = agent();
        let mut args = vec!["check", run];
        args.extend(more);
        args.extend(["--", "python3", "-B", &agent]);
        args.extend(SECOND.split(' '));
        bench.run_args(args).code
    };
    assert_eq!([check("r", &[]), check("bare", &[]), check("bare", &["--rules", &rules])], [0, 3, 0]);
    assert_eq!(check("r", &["--rules", &none]), 3);

    // The tape keeps the rules, too.
    bench.run("tape export r -o r.tape").ok();
    bench.run("--store other tape import r.tape").ok();
    let agent = agent();
    let mut args = vec!["--store", "other", "replay", "r", "--", "python3", "-B", &agent];
    args.extend(SECOND.split(' '));
    assert_eq!(bench.run_args(&args).code, 0);
    args.splice(4..4, ["--rules", &none]);
    assert_eq!(bench.run_args(&args).code, 3);
}

#[test]
fn forks_and_live_replays_keep_the_rules_of_their_run() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let severity = "[[severity]]\nseverity = 'escalated'\nwhy = 'm-1 again'\nmodel = 'm-*'\nstatus = '2xx'\n";
    let price = "[[price]]\nmodel = 'm-1'\ninput = 100\noutput = 1000\n";
    let rules = bench.write("annals.toml", format!("{MATCHER}{severity}{price}"));
    assert_eq!(bench.record_with_rules(&upstream, &rules, "r", FIRST).code, 0);
    let agent = agent();
    let again: Vec<_> = ["--", "python3", "-B", &agent].into_iter().chain(SECOND.split(' ')).collect();
    let forked = bench.fork(&[&["r@1", "f"], again.as_slice()].concat(), &upstream.url);
    assert_eq!(forked.code, 0, "{forked:?}");
    says(&forked, &["prefix replayed 1, tail recorded 1", " s, $0.0060 not spent on the prefix, $0.0060, "]);
    let frames = bench.frames("f");
    assert_eq!(
        (&frames[1]["severity"], &frames[1]["metadata"]["why_severe"]),
        (&"escalated".into(), &"m-1 again".into())
    );
    assert_eq!(bench.replay_with_rules("f", SECOND).code, 0, "the child keeps the rules");
    // Another file replaces the run's own rules.
    let none = bench.write("none.toml", "");
    let args = [&["r@1", "g", "--rules", &none], again.as_slice()].concat();
    assert_eq!(bench.fork(&args, &upstream.url).code, 3);
    let forked = bench.fork(&["r@1", "h", "--rules", &none], &upstream.url);
    assert_eq!((forked.code, &bench.frames("h")[1]["severity"]), (0, &"normal".into()), "{forked:?}");
    says(&forked, &[" s, price unknown, ", "): annals replay h"]);
    assert!(!forked.stderr.contains("not spent"), "{}", forked.stderr);

    let live = bench.replay_live(&["r"], &upstream.url, &[SECOND.split(' ').collect(), vec![]].concat());
    assert_eq!(live.code, 0, "{live:?}");
    let more = format!("{SECOND},c");
    let live = bench.replay_live(&["r"], &upstream.url, &more.split(' ').collect::<Vec<_>>());
    says(&live, &["went on live into r-live: 2 answered from r, then 1 request recorded, $0.0060"]);
    assert_eq!(bench.frames("r-live")[2]["metadata"]["why_severe"], "m-1 again");
}

#[test]
fn user_defined_price_is_in_every_summary_line() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    let dear = bench.write("dear.toml", "[[price]]\nmodel = 'm-1'\ninput = 100\noutput = 1000\n");
    bench.write("cheap.toml", "[[price]]\nmodel = 'm-1'\ninput = 1\n");
    bench.write("free.toml", "[[price]]\nmodel = 'm-1'\ninput = 0\n");
    bench.write("none.toml", "");
    let recorded = bench.record_with_rules(&upstream, &dear, "r", "swapped a,b");
    says(&recorded, &["recorded 2 requests into r (", " s, $0.0120, "]);
    for (args, cost) in [
        ("r", "$0.0120"),
        ("r --rules cheap.toml", "under $0.0001"),
        ("r --rules free.toml", "$0"),
        ("r --rules none.toml", "price unknown"),
    ] {
        says(&bench.replay_with_rules(args, ""), &[&format!("not spent: 30 tokens, {cost})")]);
    }
    says(&bench.record(&upstream.url, "unknown", &["swapped", "a"]), &[" s, price unknown, "]);
    // If no tokens were counted, the closing line names no price.
    let recorded = bench.record(&upstream.url, "uncounted", &["nothing"]);
    assert!(!recorded.stderr.contains("price") && !recorded.stderr.contains('$'), "{}", recorded.stderr);
    let again = bench.record_with(
        &["--run", "w", "--cache", "write", "--rules", &dear],
        &upstream.url,
        &["swapped", "a"],
    );
    assert_eq!(again.code, 0, "{again:?}");
    let again = bench.record_with(
        &["--run", "c", "--cache", "read", "--rules", &dear],
        &upstream.url,
        &["swapped", "a"],
    );
    says(&again, &["1 answer of earlier runs, $0.0060 saved, "]);
}

#[test]
fn invalid_rules_file_is_refused_before_start() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["swapped", "a"]).code, 0);
    bench.write("typo.toml", "# mine\n[[severity]]\nseverity = 'flagged'\nwhy = 'x'\nstatsu = 429\n");
    bench.write("hides.toml", "[[matcher]]\nignore = '$.messages'\n");
    bench.write("latin.toml", b"# caf\xe9\n");
    let told = [
        (
            "typo.toml",
            "error: typo.toml:5:1: \"statsu\" is not a key of [[severity]]; allowed are severity, why, status,",
        ),
        ("hides.toml", "error: hides.toml:2:10: a rule that ignores $.messages is refused: "),
        ("latin.toml", "error: latin.toml: not UTF-8 after byte 5"),
        ("gone.toml", "error: cannot read gone.toml: "),
        ("-", "error: --rules takes a file"),
    ];
    for (file, what) in told {
        // Run one verb at a time: an `attach` that is not refused would never end.
        let starts: [&dyn Fn() -> ProcessResult; 4] = [
            &|| bench.record_with_rules(&upstream, file, "x", "swapped a"),
            &|| bench.replay_with_rules(&format!("r --rules {file}"), ""),
            &|| bench.fork(&["r@1", "y", "--rules", file], &upstream.url),
            &|| bench.run(&format!("attach --rules {file}")),
        ];
        for start in starts {
            let done = start();
            assert_eq!(done.code, 125, "{done:?}");
            says(&done, &[what, "hint: "]);
        }
        let checked = bench.run(&format!("check r --rules {file}"));
        assert!(matches!(checked.code, 2 | 4) && checked.stderr.starts_with(what), "{checked:?}");
    }
    assert_eq!(upstream.asked(), 1);
    assert_eq!(bench.run("runs --json").json().len(), 1);
    // A rule that contains a secret is refused, because the run would store it.
    let mut command = bench.command(["record", "--secret", "TOKEN", "--rules", "why.toml", "--", "true"]);
    bench.write("why.toml", "[[severity]]\nseverity = 'flagged'\nwhy = 'hunter-2-hunter'\nstatus = 500\n");
    let done = ProcessResult::from_output(command.env("TOKEN", "hunter-2-hunter").output().unwrap());
    assert_eq!(done.code, 125, "{done:?}");
    says(&done, &["the rules file holds a secret"]);
}

#[test]
fn first_request_is_shown_as_first() {
    let (bench, upstream) = (CliBench::new(), FakeUpstream::start());
    assert_eq!(bench.record(&upstream.url, "r", &["swapped", "a,b"]).code, 0);
    let first = bench.run("show r@1 --new").text();
    assert!(first.starts_with("the first request:") && !first.contains("as before"), "{first}");
    assert!(bench.run("show r@2 --new").text().contains("as before"));
}
