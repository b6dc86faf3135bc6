//! Tests of the importer over small inline sources, and over sources cut and changed at every byte.

use std::io::{BufRead, BufReader, Read};

use super::*;
use annals::kv::Content;
use annals::{Component, Frame, Severity, Status};

pub(super) const TWO_RUNS: &str = r#"[
  {
    "task_id": 7, "trial": 0, "reward": 1.0,
    "traj": [
      {"role": "system", "content": "be brief"},
      {"role": "user", "content": "caf\u00e9 \ud83d\ude00 \ud800"},
      {
        "role": "assistant", "content": null,
        "tool_calls": [
          {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": "{ \"q\": 1 }"}}
        ]
      },
      {"role": "tool", "tool_call_id": "call_1", "name": "find", "content": "-0 1e400", "x": -0, "y": 1e400, "x": 2},
      {"content": "done", "role": "assistant"},
      {"role": "user", "content": "STOP"}
    ],
    "info": {"a":  1}
  },
  {"task_id": "b", "trial": 1, "reward": 0.0, "traj": []}
]
"#;

pub(super) fn chat(source: &str, options: ChatOptions) -> Vec<Result<ImportedRun, ImportError>> {
    ChatRuns::new(source.as_bytes(), options).collect()
}

fn named(template: &str) -> ChatOptions {
    ChatOptions { id: Some(template.parse().unwrap()), ..ChatOptions::default() }
}

pub(super) fn one(source: &str) -> ImportedRun {
    chat(source, ChatOptions::default()).remove(0).unwrap()
}

pub(super) fn error(source: &str) -> String {
    chat(source, ChatOptions::default()).pop().unwrap().unwrap_err().to_string()
}

fn frames(source: &str) -> Vec<Result<ImportedRun, ImportError>> {
    FrameRuns::new(source.as_bytes(), FrameOptions::default()).collect()
}

fn frames_error(source: &str) -> String {
    frames(source).pop().unwrap().unwrap_err().to_string()
}

fn bytes(body: &Content) -> &[u8] {
    match body {
        Content::Bytes(bytes) => bytes,
        _ => panic!("an import stores nothing"),
    }
}

pub(super) fn body(content: &Content) -> &str {
    text(bytes(content))
}

/// Everything in a frame as text, for comparison.
fn facts(frame: &Frame) -> String {
    format!("{frame:?}")
}

pub(super) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn lines_arrays_and_loose_objects_read_the_same() {
    let a = r#"{"id":"a","messages":[{"role":"assistant"}]}"#;
    let b = r#"{"id":"b","messages":[]}"#;
    for source in [
        format!("[{a},{b}]"),
        format!(" [ {a} , {b} ] \n"),
        format!("{a}\n{b}\n"),
        format!("{a}\r\n\r\n{b}"),
        format!("{a}{b}"),
        format!("\u{feff}{a}\n{b}"),
    ] {
        for step in [1, 2, 3, 7, 4096] {
            let reader = BufReader::with_capacity(step, source.as_bytes());
            let runs: Vec<_> = ChatRuns::new(reader, ChatOptions::default()).map(Result::unwrap).collect();
            let seen: Vec<_> = runs.iter().map(|run| (run.id.as_str(), run.frame_count())).collect();
            assert_eq!(seen, [("a", 1), ("b", 0)], "{source}");
        }
    }
    for source in ["", "  \n", "[]", " [ ] "] {
        assert!(chat(source, ChatOptions::default()).is_empty(), "{source:?}");
    }
}

#[test]
fn first_messages_key_wins_and_other_keys_are_metadata() {
    let run = one(r#"{"history":[1],"traj":2,"messages":[{"role":"assistant","content":"x"}]}"#);
    assert_eq!(run.frame_count(), 1);
    assert_eq!(text(&run.metadata), r#"{"history":[1],"traj":2}"#);
    assert_eq!(run.id, "run-000001");
    assert_eq!(one(r#"{"history":[{"role":"assistant"}]}"#).frame_count(), 1);
    assert_eq!(one(r#"{"messages":[]}"#).metadata, b"");
}

#[test]
fn the_model_comes_from_the_run_then_from_the_options() {
    let options = ChatOptions { model: Some("o\"1".to_owned()), ..ChatOptions::default() };
    let source = r#"{"model":"gpt\u002d4","messages":[{"role":"assistant"}]}
        {"model":null,"messages":[{"role":"assistant"}]}"#;
    let runs: Vec<_> = chat(source, options).into_iter().map(Result::unwrap).collect();
    let seen = |run: &ImportedRun| {
        let frame = run.frames().next().unwrap();
        (run.model.clone().unwrap(), body(&frame.input).to_owned(), text(&frame.metadata).to_owned())
    };
    assert_eq!(
        seen(&runs[0]),
        (
            "gpt-4".to_owned(),
            r#"{"model":"gpt\u002d4","messages":[]}"#.to_owned(),
            r#"{"model":"gpt\u002d4"}"#.to_owned()
        )
    );
    assert_eq!(
        seen(&runs[1]),
        ("o\"1".to_owned(), r#"{"model":"o\"1","messages":[]}"#.to_owned(), r#"{"model":"o\"1"}"#.to_owned())
    );
    assert_eq!(error(r#"{"model":4,"messages":[]}"#), "line 1: run 1: `model` is not a string");
}

#[test]
fn the_data_may_say_how_a_run_ended() {
    let status = |field: &str| {
        let source = format!(r#"{{"reward":{field},"messages":[]}}"#);
        let options = ChatOptions { status_from: Some("reward".to_owned()), ..ChatOptions::default() };
        chat(&source, options).remove(0).map(|run| run.status)
    };
    for (field, expected) in [
        ("true", Status::Ok),
        ("false", Status::Failed),
        ("1", Status::Ok),
        ("1.0", Status::Ok),
        ("1e400", Status::Ok),
        ("0.99", Status::Failed),
        ("0.0", Status::Failed),
        ("-1e400", Status::Failed),
        ("\"ok\"", Status::Ok),
        ("\"failed\"", Status::Failed),
        ("\"abandoned\"", Status::Abandoned),
    ] {
        assert_eq!(status(field).unwrap(), expected, "{field}");
    }
    for field in ["null", "\"good\"", "[]", "{}", "\"\""] {
        assert!(matches!(status(field), Err(ImportError::Shape { .. })), "{field}");
    }
    let options = ChatOptions { status_from: Some("score".to_owned()), ..ChatOptions::default() };
    let missing = chat(r#"{"messages":[]}"#, options).remove(0).unwrap_err();
    assert_eq!(
        missing.to_string(),
        "line 1: run 1: there is no key `score`, which the status of runs (--status-from) needs"
    );
    let run = one(r#"{"status":"failed","severity":"flagged","messages":[]}"#);
    assert_eq!((run.status, run.severity), (Status::Failed, Severity::Flagged));
    let run = one(r#"{"status":"completed","severity":3,"messages":[]}"#);
    assert_eq!((run.status, run.severity), (Status::Ok, Severity::Normal));
}

#[test]
fn names_come_from_templates_over_scalar_keys() {
    let id = |template: &str, run: &str| chat(run, named(template)).remove(0).map(|run| run.id);
    let run = r#"{"a":"x\u0079","n":-0.50,"t":true,"l":[],"z":null,"messages":[]}"#;
    assert_eq!(id("{a}", run).unwrap(), "xy");
    assert_eq!(id("{{{a}}}-{n}/{t}é", run).unwrap(), "{xy}--0.50/trueé");
    for key in ["l", "z", "none"] {
        let error = id(&format!("{{a}}-{{{key}}}"), run).unwrap_err();
        assert!(matches!(&error, ImportError::MissingKey { key: missing, .. } if missing == key), "{error}");
    }
    for template in ["{", "}", "{a", "a}", "{a{b}}", "{}", "", "plain", "{{a}}"] {
        assert!(template.parse::<IdTemplate>().is_err(), "{template}");
    }
    let twice = "{\"id\":\"s\",\"messages\":[]}\n{\"id\":\"s\",\"messages\":[]}";
    assert_eq!(error(twice), "line 2: run 2: a second run named `s` in this input");
}

#[test]
fn an_error_names_the_line_and_the_run() {
    let good = r#"{"id":"a","messages":[]}"#;
    for (source, expected) in [
        (
            format!("{good}\n{{\"id\":\"b\",\"messages\":["),
            "line 2: run 2: expected a value or `]` at line 2, column 23, found the end of the input",
        ),
        (
            format!("{good}\n{{\"id\":\"b\",\"messages\":[\n{good}\n{good}\n"),
            "line 2: run 2: expected `,` or `]` at line 4, column 1, found `{`",
        ),
        (format!("{{\"id\":\"b\",\n{good}"), "line 1: run 1: expected a key at line 2, column 1, found `{`"),
        (
            format!("{good}\n{{\"id\":\"b\n{good}"),
            "line 2: run 2: expected the rest of a string at line 2, column 9, found the end of the line",
        ),
        (
            format!("[{good},\n{{\"messages\":[]}}\n,\n{{\"id\":tru}}]"),
            "line 4: run 3: expected `true`, `false` or `null` at line 4, column 10, found `}`",
        ),
        (format!("[{good}\n{good}]"), "line 2: run 2: expected `,` or `]` at line 2, column 1, found `{`"),
        (format!("[{good},]"), "line 1: run 2: expected `{` at line 1, column 27, found `]`"),
        (
            format!("[{good}"),
            "line 1: run 2: expected `,` or `]` at line 1, column 26, found the end of the input",
        ),
        (
            format!("[{good}]\n x"),
            "line 2: run 2: expected the end of the input after `]` at line 2, column 2, found `x`",
        ),
        ("hello".to_owned(), "line 1: run 1: expected `[` or `{` at line 1, column 1, found `h`"),
        (
            "\u{feff}\u{feff}{}".to_owned(),
            "line 1: run 1: expected `[` or `{` at line 1, column 1, found byte 0xef",
        ),
        ("[[]]".to_owned(), "line 1: run 1: expected `{` or `]` at line 1, column 2, found `[`"),
        (format!("{good}\n{{}}"), "line 2: run 2: none of the keys `messages`, `traj`, `history`"),
        ("{\"messages\":{}}".to_owned(), "line 1: run 1: `messages` is not an array"),
        ("{\"messages\":[],\"messages\":[]}".to_owned(), "line 1: run 1: the key `messages` appears twice"),
        ("{\"messages\":[1]}".to_owned(), "line 1: run 1: message 1 is not an object"),
        ("{\"messages\":[{}]}".to_owned(), "line 1: run 1: message 1 has no `role`"),
        (
            "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":1}]}".to_owned(),
            "line 1: run 1: `tool_calls` of message 1 is not an array",
        ),
        (
            "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[1]}]}".to_owned(),
            "line 1: run 1: a tool call of message 1 is not an object",
        ),
    ] {
        assert_eq!(error(&source), expected, "{source}");
    }
}

#[test]
fn bytes_that_are_not_utf8_are_an_error_with_their_line() {
    let source = b"{\"messages\":[],\n\"x\":\"\xff\"}";
    let error = ChatRuns::new(&source[..], ChatOptions::default()).next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "line 1: run 1: the bytes at line 2 are not UTF-8");
}

#[test]
fn deep_nesting_is_an_error_and_no_overflow() {
    let deep =
        |levels: usize| format!("{{\"messages\":[],\"x\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
    assert!(chat(&deep(DEPTH_MAX - 1), ChatOptions::default()).remove(0).is_ok());
    assert!(matches!(
        chat(&deep(DEPTH_MAX), ChatOptions::default()).remove(0),
        Err(ImportError::TooDeep { limit: DEPTH_MAX, .. })
    ));
    let hostile = format!("{{\"messages\":[],\"x\":{}", "{\"k\":[".repeat(100_000));
    assert!(matches!(chat(&hostile, ChatOptions::default()).remove(0), Err(ImportError::TooDeep { .. })));
    assert!(matches!(frames(&hostile).remove(0), Err(ImportError::TooDeep { .. })));
}

/// An endless reader: one string that never ends.
struct EndlessReader;

impl Read for EndlessReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        buffer.fill(b'x');
        Ok(buffer.len())
    }
}

#[test]
fn a_run_over_the_limit_is_an_error_before_it_is_held() {
    let options = ChatOptions { run_bytes_max: 1 << 20, ..ChatOptions::default() };
    let reader = BufReader::new(b"{\"messages\":[],\"x\":\"".chain(EndlessReader));
    let error = ChatRuns::new(reader, options.clone()).next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "line 1: run 1: the text of one run is over 1048576 bytes");
    let line = format!("{{\"run\":\"a\",\"component\":\"llm\",\"input\":\"{}\"}}\n", "x".repeat(300_000));
    let options = FrameOptions { run_bytes_max: 1 << 20, ..FrameOptions::default() };
    let mut runs = FrameRuns::new(BufReader::new(line.repeat(4).as_bytes()), options).collect::<Vec<_>>();
    assert!(matches!(runs.pop(), Some(Err(ImportError::TooBig { .. }))) && runs.is_empty());
}

/// A reader that fails after its last byte.
struct FailingReader<'a>(&'a [u8]);

impl Read for FailingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.0.is_empty() { Err(std::io::Error::other("the disk is gone")) } else { self.0.read(buffer) }
    }
}

#[test]
fn a_reader_that_fails_ends_the_import_with_its_error() {
    let reader = BufReader::with_capacity(5, FailingReader(b"{\"messages\":[]}\n{\"mess"));
    let runs: Vec<_> = ChatRuns::new(reader, ChatOptions::default()).collect();
    assert_eq!(runs.len(), 2);
    assert!(runs[0].is_ok());
    let error = runs[1].as_ref().unwrap_err();
    assert_eq!(error.to_string(), "line 2: run 2: cannot read the input: the disk is gone");
}

#[test]
fn a_source_cut_anywhere_gives_whole_runs_and_then_an_error() {
    let whole = chat(TWO_RUNS, named("{task_id}-{trial}"));
    let ends = TWO_RUNS.trim_end().len();
    for cut in 1..ends {
        let runs = chat(&TWO_RUNS[..cut], named("{task_id}-{trial}"));
        let (last, before) = runs.split_last().unwrap();
        assert!(last.is_err(), "cut at {cut}");
        for (run, expected) in before.iter().zip(&whole) {
            let (run, expected) = (run.as_ref().unwrap(), expected.as_ref().unwrap());
            assert!(
                run.frames().map(|frame| facts(&frame)).eq(expected.frames().map(|frame| facts(&frame))),
                "cut at {cut}"
            );
        }
    }
}

#[test]
fn scanner_agrees_with_serde_json_on_every_changed_byte() {
    let source = br#"{"a":[-0.5e+10,0,12,"\u00e9\\\"",{},[],true,false,null],"messages":[{"role":"tool"}]}"#;
    let mut changed = source.to_vec();
    for at in 0..source.len() {
        for byte in 0..=255u8 {
            changed[at] = byte;
            let run = ChatRuns::new(&changed[..], ChatOptions::default()).next();
            let ours = !matches!(
                run,
                Some(Err(ImportError::Syntax { .. }
                    | ImportError::NotUtf8 { .. }
                    | ImportError::TooDeep { .. }))
            );
            let theirs = serde_json::from_slice::<&serde_json::value::RawValue>(&changed)
                .is_ok_and(|raw| raw.get().starts_with('{'));
            // If the changed byte ends the object early, only the next call reads the bytes after it.
            let early = byte == b'}' && ours && !theirs;
            assert!(ours == theirs || early, "byte {byte:#x} at {at}: ours {ours}, theirs {theirs}");
        }
        changed[at] = source[at];
    }
}

#[test]
fn frame_lines_end_a_run_where_another_begins() {
    let source = r#"{"run":"a","model":"m","metadata":{"k":  1}}
{"run":"a","seq":1,"component":"llm","input":"in\n","output_base64":"AP8=","metadata":{"x":1.50},"started_ns":5,"duration_ns":7,"severity":"flagged","error":true,"digest":"00"}
{"run":"a","component":"mine","parent":1,"metadata_base64":"ewp9"}
{"run":"b","status":"failed","end":true}
{"run":"c","component":"nondet"}
{"run":"c","status":"abandoned","severity":"debug"}
"#;
    let runs: Vec<_> = frames(source).into_iter().map(Result::unwrap).collect();
    let seen: Vec<_> = runs
        .iter()
        .map(|run| {
            (
                run.id.as_str(),
                run.status,
                run.severity,
                run.model.as_deref(),
                text(&run.metadata),
                run.frame_count(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("a", Status::Ok, Severity::Normal, Some("m"), r#"{"k":  1}"#, 2),
            ("b", Status::Failed, Severity::Normal, None, "", 0),
            ("c", Status::Abandoned, Severity::Debug, None, "", 1),
        ]
    );
    let frames: Vec<_> = runs[0].frames().collect();
    let first = &frames[0];
    assert_eq!((&first.component, first.parent, first.severity), (&Component::Llm, None, Severity::Flagged));
    assert_eq!((first.started_ns, first.duration_ns, first.error), (Some(5), 7, true));
    assert_eq!((body(&first.input), bytes(&first.output)), ("in\n", &[0, 255][..]));
    assert_eq!(text(&first.metadata), r#"{"x":1.50}"#);
    assert_eq!((frames[1].component.name(), frames[1].parent), ("mine", Some(1)));
    assert_eq!(frames[1].metadata, b"{\n}");
}

#[test]
fn bad_frames_are_errors_and_leave_nothing_of_their_run() {
    let good = r#"{"run":"a","component":"llm"}"#;
    for (line, expected) in [
        (r#"{"component":"llm"}"#, "it has no `run`"),
        (r#"{"run":1,"component":"llm"}"#, "`run` is not a string of valid Unicode"),
        (r#"{"run":"a","component":""}"#, "`component`: a component's name must not be empty"),
        (r#"{"run":"a","component":null}"#, "`component` is null"),
        (
            r#"{"run":"a","component":"\u001b"}"#,
            "`component`: a component's name has the control character '\\u{1b}': leave it out",
        ),
        (r#"{"run":"a","component":"llm","error":1}"#, "`error` is not true or false"),
        (r#"{"run":"a","component":"llm","ouput":"x"}"#, "the key \"ouput\" is unknown"),
        (r#"{"run":"a","component":"llm","input":"x","input":"y"}"#, "the key `input` appears twice"),
        (
            r#"{"run":"a","component":"llm","input":"x","input_base64":""}"#,
            "it has both `input` and `input_base64`",
        ),
        (r#"{"run":"a","component":"llm","input_base64":"x"}"#, "`input_base64` is not base64"),
        (r#"{"run":"a","component":"llm","input":"\ud800"}"#, "`input` is not a string of valid Unicode"),
        (r#"{"run":"a","component":"llm","seq":3}"#, "`seq` is 3, but this is frame 2 of its run"),
        (r#"{"run":"a","component":"llm","parent":2}"#, "`parent` is 2, but must name one before frame 2"),
        (r#"{"run":"a","component":"llm","parent":0}"#, "`parent` is 0, but must name one before frame 2"),
        (
            r#"{"run":"a","component":"llm","started_ns":-1}"#,
            "`started_ns` is not a whole number from 0 to 18446744073709551615",
        ),
        (r#"{"run":"a","component":"llm","metadata":[]}"#, "`metadata` is not an object"),
        (r#"{"run":"a","component":"llm","metadata_base64":"x"}"#, "`metadata_base64` is not base64"),
        (
            r#"{"run":"a","component":"llm","metadata":{},"metadata_base64":"e30="}"#,
            "it has both `metadata` and `metadata_base64`",
        ),
        (r#"{"run":"a","component":"llm","severity":"bad"}"#, "`severity` cannot be `bad`"),
        (r#"{"run":"a","status":"bad"}"#, "`status` cannot be `bad`"),
        (r#"{"run":"a","end":1}"#, "`end` is not true or false"),
        (r#"{"run":"a","seq":1}"#, "the key \"seq\" is unknown"),
    ] {
        let runs = frames(&format!("{good}\n{line}\n{good}"));
        let [Err(error)] = runs.as_slice() else { panic!("{line}: {runs:?}") };
        assert_eq!(error.to_string(), format!("line 2: object 2: {expected}"));
    }
    let runs = frames(&format!("{good}\n{{\"run\":\"b\",\"component\":1}}\n{good}"));
    assert!(matches!(runs.as_slice(), [Ok(_), Err(_)]), "{runs:?}");
    assert_eq!(
        frames_error(&format!("{good}\n{{\"run\":\"b\",\"component\":\"llm\"}}\n{good}")),
        "line 3: object 3: a second run named `a` in this input"
    );
    assert_eq!(
        frames_error(&format!("{{\"run\":\"a\",\"end\":true}}\n{good}")),
        "line 2: object 2: a second run named `a` in this input"
    );
    // Regression: of two lines with metadata the last one was kept, and nothing said so.
    let about = |metadata: &str| format!(r#"{{"run":"a","metadata":{metadata}}}"#);
    let (one, two) = (about(r#"{"tenant":"lending"}"#), about(r#"{"reviewer":"ann"}"#));
    assert_eq!(
        frames_error(&format!("{one}\n{good}\n{two}")),
        "line 3: object 3: its metadata is not that of an earlier line of the run"
    );
    assert!(matches!(frames(&format!("{one}\n{good}\n{one}")).as_slice(), [Ok(_)]));
}

/// A reader that counts the bytes that were read from it.
struct CountingReader<R>(R, std::rc::Rc<std::cell::Cell<usize>>);

impl<R: BufRead> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.0.read(buffer)?;
        self.1.set(self.1.get() + read);
        Ok(read)
    }
}

#[test]
fn a_source_is_read_no_further_than_the_run_that_is_handed_out() {
    let count = std::rc::Rc::new(std::cell::Cell::new(0));
    let source = format!("[{}]", vec![r#"{"messages":[{"role":"assistant"}]}"#; 1000].join(","));
    let reader = BufReader::with_capacity(16, CountingReader(source.as_bytes(), count.clone()));
    let mut runs = ChatRuns::new(reader, ChatOptions::default());
    for handed in 1..=1000 {
        assert!(runs.next().unwrap().is_ok());
        assert!(count.get() <= handed * 36 + 16);
    }
    assert!(runs.next().is_none());
}

/// Marsaglia's xorshift: a small generator, good enough to choose positions and bytes.
pub(super) struct XorShift(pub(super) u64);

impl XorShift {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).unwrap()
    }
}

#[test]
fn random_bytes_give_whole_runs_and_at_most_one_error() {
    let seed = std::env::var("ANNALS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_u64);
    println!("ANNALS_SEED={seed} cargo test -p annals-formats --lib import::tests::random -- --nocapture");
    let mut random = XorShift(seed | 1);
    let lines = r#"{"run":"a","component":"llm","parent":null,"input":"x","output_base64":"AP8=","metadata":{"a":[1]}}
{"run":"a","component":"tool","parent":1,"started_ns":7,"severity":"debug"}
{"run":"b","status":"failed","end":true}"#;
    let pieces: [&[u8]; 12] =
        [b"{", b"}", b"[", b"]", b"\"", b",", b":", b"\\u", b"\n", b"\xff", b"null", b"\"messages\":[]"];
    for _ in 0..30_000 {
        let mut bytes = if random.below(2) == 0 { TWO_RUNS } else { lines }.as_bytes().to_vec();
        for _ in 0..1 + random.below(4) {
            let (from, to) = (random.below(bytes.len() + 1), random.below(bytes.len() + 1));
            let (from, to) = (from.min(to), from.max(to));
            match random.below(4) {
                0 => drop(bytes.drain(from..to.min(from + 8))),
                1 => {
                    let copy = bytes[from..to].to_vec();
                    bytes.splice(to..to, copy);
                }
                _ => drop(bytes.splice(from..from, pieces[random.below(pieces.len())].iter().copied())),
            }
        }
        let options = ChatOptions { status_from: Some("reward".to_owned()), ..ChatOptions::default() };
        let chat = ChatRuns::new(&bytes[..], options).collect::<Vec<_>>();
        let frames = FrameRuns::new(&bytes[..], FrameOptions::default()).collect::<Vec<_>>();
        for runs in [chat, frames] {
            let errors = runs.iter().filter(|run| run.is_err()).count();
            assert!(errors == 0 || errors == 1 && runs.last().is_some_and(Result::is_err));
            for run in runs.iter().flatten() {
                assert_eq!(run.frames().count(), run.frame_count());
                assert!(
                    run.frames().zip(1..).all(|(frame, seq)| frame.parent.is_none_or(|parent| parent < seq))
                );
            }
        }
    }
}
