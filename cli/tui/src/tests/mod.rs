//! Every screen as text, at 80x24 and 200x60, kept in `screens/`. `ANNALS_WRITE_SCREENS=1` writes them anew; look
//! at the difference before it is committed.

use std::path::Path;

use annals::{Component, Frame, Namespace, Run, RunSpec, Severity, Status, Store};
use annals_policy::profiles::{Profile, Redactor};
use annals_policy::providers::Prices;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

use crate::app::{App, Flow};
use crate::{Look, RunSource, StartScreen, Surroundings};

const SECOND_NS: u64 = 1_000_000_000;
/// When runs begin: later than the clock of any test, so that no screen depends on the time of its test.
const BEGAN_S: u64 = 4_000_000_000;
const NOW_NS: u64 = (BEGAN_S + 10_000) * SECOND_NS;
std::thread_local! {
    /// The clock of a test.
    static CLOCK_NS: std::cell::Cell<u64> = const { std::cell::Cell::new(NOW_NS) };
}
const PLAIN: Look = Look { colour: false, unicode: true };

struct ScreenBench {
    _writer: Store,
    space: Namespace,
    directory: tempfile::TempDir,
}

fn message(role: &str, content: &str) -> String {
    format!("{{\"role\":{role:?},\"content\":{}}}", text_json(content))
}

/// A JSON string.
fn text_json(text: &str) -> String {
    let mut json = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            c if c.is_control() => json += &format!("\\u{:04x}", u32::from(c)),
            c => json.push(c),
        }
    }
    json.push('"');
    json
}

fn call(messages: &[String], answer: &str, status: u16, began_s: u64, took_s: u64) -> Frame {
    let metadata = format!(
        r#"{{"http":{{"mount":"openai","method":"POST","path":"/v1/chat/completions","status":{status}}},"model":"gpt-4o","usage":{{"input":1200,"output":85}},"volatile":{{"asked":"","request_headers":[["content-type","application/json"]],"response_headers":[["content-type","application/json"],["x-request-id","req_7"]]}}}}"#
    );
    let request = format!("{{\"model\":\"gpt-4o\",\"messages\":[{}]}}", messages.join(","));
    timed(Frame::new(Component::Llm, request, answer).metadata(metadata), began_s, took_s)
}

fn timed(mut frame: Frame, began_s: u64, took_s: u64) -> Frame {
    frame.started_ns = Some((BEGAN_S + began_s) * SECOND_NS);
    frame.duration_ns = took_s * SECOND_NS + SECOND_NS / 2;
    frame
}

/// The blame of a run that is named for it.
fn badges(_: &Namespace, reader: &annals::RunReader) -> std::collections::BTreeMap<u32, String> {
    match reader.info().name.as_str() {
        "blamed" => [(2, "0.82".to_owned())].into(),
        _ => std::collections::BTreeMap::new(),
    }
}

impl ScreenBench {
    fn empty() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let writer = Store::open(directory.path().join("s")).unwrap();
        let space = writer.namespace("default").unwrap();
        Self { _writer: writer, space, directory }
    }

    fn filled() -> Self {
        let bench = Self::empty();
        bench.lending("monday", None);
        bench.lending("tuesday", Some("The application needs a manual review."));
        bench.hostile();
        let run = bench.begin("wednesday", "support-agent");
        run.record(call(&[message("user", "Where is order 1187?")], "{}", 200, 3000, 1)).unwrap();
        run.end(Status::Ok).unwrap();
        bench
    }

    fn begin(&self, name: &str, agent: &str) -> Run {
        let spec = RunSpec::new(name).agent(agent).model("gpt-4o").started_ns(BEGAN_S * SECOND_NS);
        self.space.begin_run(spec).unwrap()
    }

    /// A run of five frames; without an answer the last call fails.
    fn lending(&self, name: &str, answer: Option<&str>) {
        let run = self.begin(name, "lending-agent");
        let mut said = vec![
            message("system", "You decide on loans. Be brief."),
            message("user", "Should we approve loan #42? Credit: 580. Income: 95k. Amount: 50k."),
        ];
        let asks = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"credit_report","arguments":"{\"loan\": 42}"}},{"id":"call_2","type":"function","function":{"name":"income","arguments":"{\"loan\": 42}"}}]}"#;
        let whole = |message: &str| format!("{{\"choices\":[{{\"index\":0,\"message\":{message}}}]}}");
        run.record(timed(Frame::new(Component::User, "Should we approve loan #42?", ""), 0, 0)).unwrap();
        run.record(call(&said, &whole(asks), 200, 1, 2)).unwrap();
        let mut tool =
            Frame::new(Component::Tool, "{\"loan\": 42}", "{\"score\": 580, \"source\": \"bureau\"}");
        tool = tool.metadata(r#"{"tool":{"name":"credit_report"}}"#);
        tool.parent = Some(2);
        run.record(timed(tool, 4, 3)).unwrap();
        let mut tool = Frame::new(Component::Tool, "{\"loan\": 42}", "Error: income service is down");
        tool = tool.metadata(r#"{"tool":{"name":"income"}}"#);
        (tool.parent, tool.error) = (Some(2), true);
        run.record(timed(tool, 5, 1)).unwrap();
        said.push(asks.to_owned());
        said.push(
            r#"{"role":"tool","tool_call_id":"call_1","content":"{\"score\": 580, \"source\": \"bureau\"}"}"#
                .to_owned(),
        );
        said.push(
            r#"{"role":"tool","tool_call_id":"call_2","content":"Error: income service is down"}"#.to_owned(),
        );
        match answer {
            Some(answer) => {
                run.record(call(&said, &whole(&message("assistant", answer)), 200, 8, 4)).unwrap();
                run.end(Status::Ok).unwrap();
            }
            None => {
                let answer =
                    r#"{"error":{"type":"rate_limit_exceeded","message":"Rate limit reached for gpt-4o"}}"#;
                let mut last = call(&said, answer, 429, 8, 0);
                (last.error, last.severity) = (true, Severity::Flagged);
                run.record(last).unwrap();
                run.end(Status::Failed).unwrap();
            }
        }
    }

    /// Escapes, bidirectional marks, scripts and bytes that are no text, wherever a recording has text.
    fn hostile(&self) {
        let run = self.begin("hostile", "agent\u{202e}\u{200b}");
        let words = "\u{1b}[31mred\u{1b}]0;title\u{7}\u{9b}2J <script>alert(1)</script> \u{202e}txt.exe 日本語 👨\u{200d}👩 \u{e0041}";
        run.record(call(
            &[message("user", words)],
            &format!("{{\"error\":{}}}", text_json(words)),
            500,
            1,
            1,
        ))
        .unwrap();
        run.record(timed(
            Frame::new(Component::Other("\u{2067}tool".to_owned()), vec![0, 27, 91, 50, 74], vec![0xff; 40]),
            3,
            1,
        ))
        .unwrap();
        run.end(Status::Ok).unwrap();
    }

    fn app(&self, look: Look, start: &StartScreen, by: Option<Redactor>) -> App {
        // As the command opens it: another handle that only reads.
        let store = Store::open_read_only(self.directory.path().join("s")).unwrap();
        let space = store.namespace("default").unwrap();
        let source = RunSource::new(store, space, by, |_| Prices::built_in(), badges, || CLOCK_NS.get());
        App::new(source, look, start).unwrap()
    }

    fn at(&self, run: &str, seq: u32) -> App {
        self.app(PLAIN, &StartScreen::Run(run.to_owned(), Some(seq)), None)
    }
}

fn press(app: &mut App, keys: &str) -> Flow {
    let mut flow = Flow::Continue;
    for c in keys.chars() {
        let code = match c {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            c => KeyCode::Char(c),
        };
        flow = app.press(KeyEvent::new(code, KeyModifiers::NONE));
    }
    while app.is_busy() {
        app.work();
    }
    flow
}

fn terminal(columns: u16, rows: u16) -> Terminal<TestBackend> {
    Terminal::new(TestBackend::new(columns, rows)).unwrap()
}

/// The screen as lines; a wide character takes two cells.
fn screen(app: &mut App, columns: u16, rows: u16) -> String {
    let mut terminal = terminal(columns, rows);
    // A search places its text by the width of the last drawing.
    terminal.draw(|frame| app.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let mut text = String::new();
    for y in 0..rows {
        let mut line = String::new();
        let mut skipped = 0;
        for x in 0..columns {
            let symbol = buffer[(x, y)].symbol();
            if skipped > 0 {
                skipped -= 1;
                continue;
            }
            skipped = crate::wrap::width(symbol).saturating_sub(1);
            line.push_str(symbol);
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Compares a screen at both sizes with the kept ones.
#[track_caller]
fn check(name: &str, app: &mut App) {
    for (columns, rows) in [(80, 24), (200, 60)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("src/tests/screens/{name}-{columns}x{rows}.txt"));
        let drawn = screen(app, columns, rows);
        assert!(!drawn.contains('\u{1b}'), "{name}: an escape reached the screen");
        if std::env::var_os("ANNALS_WRITE_SCREENS").is_some() {
            #[expect(clippy::disallowed_methods, reason = "screens are written where that was asked for")]
            std::fs::write(&path, &drawn).unwrap();
        }
        #[expect(clippy::disallowed_methods, reason = "the screen is in the repository")]
        let kept = std::fs::read(&path).unwrap_or_default();
        assert!(
            String::from_utf8_lossy(&kept) == drawn,
            "{name} at {columns}x{rows} is another: ANNALS_WRITE_SCREENS=1 writes it\n{drawn}"
        );
    }
}

#[test]
fn empty_store_names_the_commands_that_fill_it() {
    check("empty", &mut ScreenBench::empty().app(PLAIN, &StartScreen::Runs, None));
}

#[test]
fn runs_are_listed_and_filtered() {
    let bench = ScreenBench::filled();
    let mut app = bench.app(PLAIN, &StartScreen::Runs, None);
    check("runs", &mut app);
    press(&mut app, "f");
    check("runs-failed", &mut app);
    press(&mut app, "/nothing\n");
    check("runs-no-match", &mut app);
    press(&mut app, "\u{1b}fff/lending\n");
    assert!(screen(&mut app, 80, 24).contains("2 runs  text \"lending\""), "{}", screen(&mut app, 80, 24));
    press(&mut app, "/half typed");
    check("prompt", &mut app);
    press(&mut app, "\u{1b}?");
    check("help", &mut app);
    assert_eq!(press(&mut app, "q"), Flow::Quit);
}

#[test]
fn failed_run_opens_at_the_frame_that_failed() {
    let bench = ScreenBench::filled();
    let mut app = bench.app(PLAIN, &StartScreen::Runs, None);
    press(&mut app, "f\n");
    check("failed-run", &mut app);
    press(&mut app, "\n");
    check("frame-reading", &mut app);
    press(&mut app, "r");
    check("raw-request", &mut app);
    press(&mut app, "\u{1b}d");
    check("changes", &mut app);
    press(&mut app, "da");
    check("all-messages", &mut app);
}

#[test]
fn frames_are_stepped_jumped_to_and_filtered() {
    let bench = ScreenBench::filled();
    let mut app = bench.at("tuesday", 1);
    let title =
        |app: &mut App| screen(app, 200, 60).lines().find(|line| line.contains("FRAME")).unwrap().to_owned();
    assert!(title(&mut app).contains("FRAME 1  user"));
    press(&mut app, "jj");
    assert!(title(&mut app).contains("FRAME 3  tool  credit_report"), "{}", title(&mut app));
    press(&mut app, "g5\n");
    assert!(title(&mut app).contains("FRAME 5"));
    press(&mut app, "g9\n");
    assert!(screen(&mut app, 80, 24).contains("there is no frame 9: the last is 5"));
    press(&mut app, "ff");
    check("tools-only", &mut app);
    press(&mut app, "f");
    assert!(screen(&mut app, 80, 24).contains("failed or flagged: 1 of 5"));
}

#[test]
fn state_is_shown_after_each_frame() {
    let bench = ScreenBench::empty();
    let run = bench.begin("stateful", "agent");
    for (at, step) in ["asked", "booked"].into_iter().enumerate() {
        run.record(timed(Frame::new(Component::Tool, "{}", step), at as u64, 0)).unwrap();
        run.snapshot(format!("{{\"step\":\"{step}\",\"flights\":[1472]}}"), &[]).unwrap();
    }
    run.end(Status::Ok).unwrap();
    let mut app = bench.at("stateful", 1);
    press(&mut app, "s");
    assert!(screen(&mut app, 80, 24).contains("\"step\": \"asked\""), "{}", screen(&mut app, 80, 24));
    press(&mut app, "j");
    assert!(screen(&mut app, 80, 24).contains("\"step\": \"booked\""), "{}", screen(&mut app, 80, 24));
    let profile = Some(Redactor::new(&Profile::safe(), [7; 32]));
    let mut app = bench.app(PLAIN, &StartScreen::Run("stateful".to_owned(), Some(2)), profile);
    press(&mut app, "s");
    let drawn = screen(&mut app, 80, 24);
    assert!(drawn.contains("States are not shown") && !drawn.contains("1472"), "{drawn}");
}

#[test]
fn fork_command_and_blame_stand_beside_the_frame() {
    let bench = ScreenBench::filled();
    bench.lending("blamed", None);
    let mut app = bench.at("blamed", 2);
    press(&mut app, "x");
    let drawn = screen(&mut app, 80, 24);
    assert!(drawn.lines().any(|line| line.contains("llm") && line.contains("0.82")), "{drawn}");
    assert!(screen(&mut app, 80, 24).contains("annals fork blamed@2"));
    let profile = Some(Redactor::new(&Profile::safe(), [7; 32]));
    let mut app = bench.app(PLAIN, &StartScreen::Run("blamed".to_owned(), Some(2)), profile);
    assert!(!screen(&mut app, 80, 24).contains("0.82"), "a blame follows from all of the content");
}

/// A frame is shown for the time that it took until the next one began, at most 2 s.
#[test]
fn run_is_played_with_its_recorded_times() {
    let bench = ScreenBench::filled();
    let mut app = bench.at("tuesday", 1);
    let frame =
        |app: &mut App| screen(app, 200, 60).lines().find(|line| line.contains("FRAME")).unwrap().to_owned();
    let wait = |app: &mut App, ms: u64| {
        CLOCK_NS.set(CLOCK_NS.get() + ms * 1_000_000);
        app.tick()
    };
    assert!(!wait(&mut app, 10_000), "nothing is played yet");
    press(&mut app, "P");
    // Frame 2 began one second after frame 1, frame 3 three seconds after that.
    assert!(!wait(&mut app, 999));
    assert!(wait(&mut app, 1));
    assert!(frame(&mut app).contains("FRAME 2"));
    assert!(!wait(&mut app, 1999));
    assert!(wait(&mut app, 1));
    assert!(frame(&mut app).contains("FRAME 3"));
    press(&mut app, "P");
    assert!(!wait(&mut app, 10_000), "it was stopped");
    press(&mut app, "GP");
    assert!(screen(&mut app, 80, 24).contains("this is the last frame"));
}

#[test]
fn text_is_found_in_the_frames_of_a_run() {
    let bench = ScreenBench::filled();
    let mut app = bench.at("tuesday", 1);
    screen(&mut app, 80, 24);
    press(&mut app, "/MANUAL review\n");
    let drawn = screen(&mut app, 80, 24);
    assert!(drawn.contains("found in frame 5"), "{drawn}");
    press(&mut app, "/no such words\n");
    assert!(screen(&mut app, 80, 24).contains("no frame has \"no such words\""));
}

#[test]
fn two_runs_are_compared() {
    let bench = ScreenBench::filled();
    let mut app = bench.at("monday", 5);
    press(&mut app, "ctues\n");
    check("compare", &mut app);
    press(&mut app, "f");
    check("compare-all", &mut app);
    press(&mut app, "\n\u{1b}\u{1b}cnobody\n");
    assert!(screen(&mut app, 80, 24).contains("nobody"), "{}", screen(&mut app, 80, 24));
}

#[test]
fn hostile_recording_is_shown_without_effect() {
    let bench = ScreenBench::filled();
    check("hostile", &mut bench.at("hostile", 1));
    let mut app = bench.at("hostile", 2);
    check("binary", &mut app);
    press(&mut app, "r");
    check("binary-raw", &mut app);
    let mut app = bench.app(
        Look { colour: false, unicode: false },
        &StartScreen::Run("hostile".to_owned(), Some(1)),
        None,
    );
    check("ascii", &mut app);
    let drawn = screen(&mut app, 200, 60);
    assert!(drawn.is_ascii(), "{drawn}");
    let mut app = bench.app(PLAIN, &StartScreen::Runs, None);
    assert!(!screen(&mut app, 200, 60).contains('\u{202e}'));
}

#[test]
fn redacted_reader_sees_the_profile_and_no_secret() {
    let bench = ScreenBench::empty();
    let run = bench.begin("r", "a");
    run.record(call(&[message("user", "write to jane.roe@example.com")], "{}", 200, 1, 1)).unwrap();
    run.end(Status::Ok).unwrap();
    let redactor = Redactor::new(&Profile::safe(), [7; 32]);
    let mut app = bench.app(PLAIN, &StartScreen::Run("r".to_owned(), None), Some(redactor));
    let drawn = screen(&mut app, 200, 60);
    assert!(drawn.contains("redacted by profile safe") && !drawn.contains("jane.roe"), "{drawn}");
    press(&mut app, "r");
    let drawn = screen(&mut app, 200, 60);
    assert!(drawn.contains("[email:") && !drawn.contains("jane.roe"), "{drawn}");
}

#[test]
fn open_run_grows_while_it_is_looked_at() {
    let bench = ScreenBench::empty();
    let run = bench.begin("live", "a");
    let step = |at: u64| timed(Frame::new(Component::Tool, format!("step {at}"), "done"), at, 0);
    run.record(step(1)).unwrap();
    run.record(step(2)).unwrap();
    let mut app = bench.app(PLAIN, &StartScreen::Run("live".to_owned(), Some(2)), None);
    run.record(step(3)).unwrap();
    assert!(app.refresh());
    // The view follows from the last frame on.
    let drawn = screen(&mut app, 80, 24);
    assert!(drawn.contains("FRAME 3") && drawn.contains("recording"), "{drawn}");
    press(&mut app, "kk");
    run.record(step(4)).unwrap();
    run.record(step(5)).unwrap();
    assert!(app.refresh());
    let drawn = screen(&mut app, 80, 24);
    assert!(drawn.contains("FRAME 1") && drawn.contains("2 new frames: G"), "{drawn}");
    press(&mut app, "G");
    assert!(screen(&mut app, 80, 24).contains("FRAME 5"));
    run.end(Status::Ok).unwrap();
    assert!(app.refresh());
    assert!(!screen(&mut app, 80, 24).contains("recording"));
}

#[test]
fn dropped_run_is_said_to_be_gone() {
    let bench = ScreenBench::filled();
    let mut app = bench.at("tuesday", 2);
    bench.space.drop_run("tuesday", "test", "by the test").unwrap();
    assert!(app.refresh());
    // The sentence has the time of the drop, so no screen is kept.
    let drawn = screen(&mut app, 80, 24);
    assert!(drawn.contains("This run can no longer be read: run \"tuesday\" was dropped"), "{drawn}");
    assert!(drawn.contains("by the rule \"test\" (by the test)"), "{drawn}");
    press(&mut app, "\u{1b}");
    assert!(!screen(&mut app, 80, 24).contains("tuesday"));
}

#[test]
fn small_terminals_get_what_fits() {
    let bench = ScreenBench::filled();
    let mut app = bench.at("monday", 5);
    for (columns, rows) in [(1, 1), (39, 8), (40, 8), (40, 100), (300, 8), (99, 9), (139, 30), (141, 30)] {
        for keys in ["", "\n", "r", "\u{1b}", "d", "\u{1b}", "?", "?", "ctuesday\n", "\u{1b}", "\u{1b}"] {
            press(&mut app, keys);
            screen(&mut app, columns, rows);
        }
    }
    assert!(screen(&mut app, 30, 8).starts_with("at least 40x8"));
}

#[test]
fn colours_are_only_where_they_are_wanted() {
    let bench = ScreenBench::filled();
    let coloured = |look: Look| {
        let mut app = bench.app(look, &StartScreen::Run("monday".to_owned(), None), None);
        let mut terminal = terminal(80, 24);
        terminal.draw(|frame| app.draw(frame)).unwrap();
        terminal
            .backend()
            .buffer()
            .content()
            .iter()
            .any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(coloured(Look { colour: true, unicode: true }));
    assert!(!coloured(PLAIN));
}

#[test]
fn look_follows_the_environment() {
    let of = |term: Option<&str>, no_color: Option<&str>, lc_all: Option<&str>, lang: Option<&str>| {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Look::of(&Surroundings {
            is_terminal: true,
            term: owned(term),
            no_color: owned(no_color),
            lc_all: owned(lc_all),
            lc_ctype: None,
            lang: owned(lang),
        })
    };
    let look = |colour, unicode| Ok(Look { colour, unicode });
    assert_eq!(of(Some("xterm"), None, None, Some("en_US.UTF-8")), look(true, true));
    assert_eq!(of(Some("xterm"), Some("1"), None, Some("C.utf8")), look(false, true));
    assert_eq!(of(Some("xterm"), Some(""), Some("C"), Some("C.UTF-8")), look(true, false));
    assert_eq!(of(Some("xterm"), None, Some(""), None), look(true, false));
    assert!(of(Some("dumb"), None, None, None).unwrap_err().0.contains("TERM=dumb"));
    assert!(of(None, None, None, None).is_err());
    assert!(Look::of(&Surroundings::default()).unwrap_err().0.contains("must be a terminal"));
}
