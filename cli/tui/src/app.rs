//! The screens, and what keys do to them. Nothing here touches the terminal: a frame is drawn into a buffer.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::StartScreen;
use crate::compare::CompareScreen;
use crate::help::KEYS;
use crate::look::{Look, letter};
use crate::run::RunScreen;
use crate::runs::RunsScreen;
use crate::source::RunSource;
use crate::wrap::{clip, left};

/// The smallest terminal on which anything is shown.
const COLUMNS_MIN: u16 = 40;
const ROWS_MIN: u16 = 8;
/// Maximum length of a typed text, in characters.
const TYPED_MAX: usize = 200;

/// Whether the view goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    Quit,
}

/// What a typed text is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PromptKind {
    Find,
    Jump,
    Compare,
}

#[derive(Debug)]
struct Prompt {
    kind: PromptKind,
    text: String,
}

#[derive(Debug)]
enum Screen {
    Run(Box<RunScreen>),
    Compare(Box<CompareScreen>),
}

/// The view.
#[derive(Debug)]
pub(crate) struct App {
    source: RunSource,
    look: Look,
    runs: RunsScreen,
    /// Screens above the list; the last one is shown.
    above: Vec<Screen>,
    prompt: Option<Prompt>,
    message: Option<String>,
    shows_help: bool,
}

impl App {
    /// The view at its first screen.
    ///
    /// # Errors
    /// A sentence, if the run or the frame to begin with cannot be read.
    pub(crate) fn new(source: RunSource, look: Look, start: &StartScreen) -> Result<Self, String> {
        let runs = RunsScreen::new(&source);
        let mut app =
            Self { source, look, runs, above: Vec::new(), prompt: None, message: None, shows_help: false };
        if let StartScreen::Run(name, at) = start {
            app.above.push(Screen::Run(Box::new(RunScreen::open(&app.source, name, *at)?)));
        }
        Ok(app)
    }

    /// Whether there is something to do before the next key.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.above.last(), Some(Screen::Run(run)) if run.is_searching())
    }

    /// Goes on with a search.
    pub(crate) fn work(&mut self) {
        if let Some(Screen::Run(run)) = self.above.last_mut()
            && let Some(message) = run.search_on(&self.source)
        {
            self.message = Some(message);
        }
    }

    /// Shows the next frame of a run that is played, if its time has come. Returns whether the screen has to be drawn.
    pub(crate) fn tick(&mut self) -> bool {
        match self.above.last_mut() {
            Some(Screen::Run(run)) => run.play_on(&self.source),
            _ => false,
        }
    }

    /// Reads what was recorded meanwhile. Returns whether the screen has to be drawn.
    pub(crate) fn refresh(&mut self) -> bool {
        if let Err(error) = self.source.refresh() {
            self.message = Some(error);
            return true;
        }
        match self.above.last_mut() {
            None => {
                self.runs.refresh(&self.source);
                true
            }
            Some(Screen::Run(run)) => run.refresh(&self.source),
            Some(Screen::Compare(_)) => false,
        }
    }

    pub(crate) fn press(&mut self, key: KeyEvent) -> Flow {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c' | 'd') => Flow::Quit,
                _ => Flow::Continue,
            };
        }
        if self.prompt.is_some() {
            self.type_key(key.code);
            return Flow::Continue;
        }
        self.message = None;
        if std::mem::take(&mut self.shows_help) {
            return if key.code == KeyCode::Char('q') { Flow::Quit } else { Flow::Continue };
        }
        match key.code {
            KeyCode::Char('q') => return Flow::Quit,
            KeyCode::Char('?') => self.shows_help = true,
            KeyCode::Char('/') => self.ask(PromptKind::Find),
            KeyCode::Char('g') => self.ask(PromptKind::Jump),
            KeyCode::Char('c') => self.ask_to_compare(),
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left | KeyCode::Char('h') => self.back(),
            code => match self.above.pop() {
                None => self.press_in_list(code),
                Some(Screen::Run(mut run)) => {
                    self.press_in_run(code, &mut run);
                    self.above.push(Screen::Run(run));
                }
                Some(Screen::Compare(compare)) => self.press_in_compare(code, compare),
            },
        }
        Flow::Continue
    }

    fn ask(&mut self, kind: PromptKind) {
        self.prompt = Some(Prompt { kind, text: String::new() });
    }

    fn ask_to_compare(&mut self) {
        let parent = match self.above.last() {
            Some(Screen::Run(run)) => run.reader().info().parent.as_ref().and_then(|point| point.run.clone()),
            Some(Screen::Compare(_)) => {
                self.message = Some("esc goes back to the run; c there compares it".to_owned());
                return;
            }
            None if self.runs.selected_run().is_none() => return,
            None => self.runs.selected_run().and_then(|info| info.parent.as_ref()?.run.clone()),
        };
        self.prompt = Some(Prompt { kind: PromptKind::Compare, text: parent.unwrap_or_default() });
    }

    fn back(&mut self) {
        let is_done = match self.above.last_mut() {
            Some(Screen::Run(run)) => run.back(),
            _ => false,
        };
        if is_done {
            return;
        }
        match self.above.pop() {
            Some(_) if self.above.is_empty() => self.runs.reload(&self.source),
            Some(_) => {}
            None if !self.runs.text.is_empty() => self.runs.set_text(String::new(), &self.source),
            None => self.message = Some("q quits".to_owned()),
        }
    }

    fn press_in_list(&mut self, code: KeyCode) {
        let source = &self.source;
        match code {
            KeyCode::Char('j') | KeyCode::Down => self.runs.step(1, source),
            KeyCode::Char('k') | KeyCode::Up => self.runs.step(-1, source),
            KeyCode::Char(' ') | KeyCode::PageDown => self.runs.step(20, source),
            KeyCode::Char('b') | KeyCode::PageUp => self.runs.step(-20, source),
            KeyCode::Char('G') | KeyCode::End => self.runs.go_to(usize::MAX / 2, source),
            KeyCode::Home => self.runs.go_to(0, source),
            KeyCode::Char('f') => self.runs.next_filter(source),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => {
                let Some(name) = self.runs.selected_run().map(|info| info.name.clone()) else { return };
                self.open_run(&name, None);
            }
            _ => self.message = Some("? lists the keys".to_owned()),
        }
    }

    fn open_run(&mut self, name: &str, at: Option<u32>) {
        match RunScreen::open(&self.source, name, at) {
            Ok(run) => self.above.push(Screen::Run(Box::new(run))),
            Err(error) => self.message = Some(error),
        }
    }

    fn press_in_run(&mut self, code: KeyCode, run: &mut RunScreen) {
        let source = &self.source;
        let page = run.page_height();
        match code {
            KeyCode::Char('j') | KeyCode::Down if run.is_reading => run.scroll_by(1),
            KeyCode::Char('k') | KeyCode::Up if run.is_reading => run.scroll_by(-1),
            KeyCode::Char('j' | 'n') | KeyCode::Down => run.step(1),
            KeyCode::Char('k' | 'p') | KeyCode::Up => run.step(-1),
            KeyCode::Char(' ') | KeyCode::PageDown => run.scroll_by(page),
            KeyCode::Char('b') | KeyCode::PageUp => run.scroll_by(-page),
            KeyCode::Home if run.is_reading => run.scroll_by(isize::MIN / 2),
            KeyCode::Home => run.step(isize::MIN / 2),
            KeyCode::Char('G') | KeyCode::End => run.go_to_end(),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => run.is_reading = true,
            KeyCode::Char('f') => self.message = Some(run.next_filter()),
            KeyCode::Char('e') => run.go_to_first_to_read(source),
            KeyCode::Char('r') => run.next_raw(),
            KeyCode::Char('d') => run.toggle_changes(),
            KeyCode::Char('a') => run.toggle_all(),
            KeyCode::Char('s') => run.toggle_state(),
            KeyCode::Char('x') => self.message = run.fork_command(),
            KeyCode::Char('P') => self.message = Some(run.toggle_play(source)),
            KeyCode::Char('*') => self.message = run.find("").err(),
            _ => self.message = Some("? lists the keys".to_owned()),
        }
    }

    fn press_in_compare(&mut self, code: KeyCode, mut compare: Box<CompareScreen>) {
        let mut opened = None;
        match code {
            KeyCode::Char('j' | 'n') | KeyCode::Down => compare.step(1),
            KeyCode::Char('k' | 'p') | KeyCode::Up => compare.step(-1),
            KeyCode::Char(' ') | KeyCode::PageDown => compare.scroll_by(1),
            KeyCode::Char('b') | KeyCode::PageUp => compare.scroll_by(-1),
            KeyCode::Char('G') | KeyCode::End => compare.step(isize::MAX / 2),
            KeyCode::Home => compare.step(isize::MIN / 2),
            KeyCode::Char('f') => self.message = Some(compare.next_filter()),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => opened = compare.frame(),
            _ => self.message = Some("? lists the keys".to_owned()),
        }
        self.above.push(Screen::Compare(compare));
        if let Some((name, seq)) = opened {
            self.open_run(&name, Some(seq));
        }
    }

    fn type_key(&mut self, code: KeyCode) {
        let Some(prompt) = &mut self.prompt else { return };
        match code {
            KeyCode::Char(c) if !c.is_control() && prompt.text.chars().count() < TYPED_MAX => {
                prompt.text.push(c);
            }
            KeyCode::Backspace => {
                let was_empty = prompt.text.pop().is_none();
                if was_empty {
                    self.prompt = None;
                }
            }
            KeyCode::Esc => self.prompt = None,
            KeyCode::Enter => {
                if let Some(prompt) = self.prompt.take() {
                    self.message = self.answer(prompt.kind, prompt.text).err();
                }
            }
            _ => {}
        }
    }

    fn answer(&mut self, kind: PromptKind, text: String) -> Result<(), String> {
        let source = &self.source;
        match (kind, self.above.last_mut()) {
            (PromptKind::Find, None) => {
                self.runs.set_text(text, source);
                Ok(())
            }
            (PromptKind::Find, Some(Screen::Run(run))) => run.find(&text),
            (PromptKind::Find | PromptKind::Jump, Some(Screen::Compare(_))) => {
                Err("the comparison has no text to find and no number to jump to".to_owned())
            }
            (PromptKind::Jump, Some(Screen::Run(run))) => run.jump(&text),
            (PromptKind::Jump, None) => {
                let at: usize = text.trim().parse().map_err(|_| format!("{text:?} is no number"))?;
                self.runs.go_to(at.saturating_sub(1), source);
                Ok(())
            }
            (PromptKind::Compare, _) if text.trim().is_empty() => Ok(()),
            (PromptKind::Compare, above) => {
                let first = match above {
                    Some(Screen::Run(run)) => run.reader().clone(),
                    _ => match self.runs.selected_run() {
                        Some(info) => source.run(&info.name)?,
                        None => return Ok(()),
                    },
                };
                let compare = CompareScreen::open(source, &first, text.trim())?;
                self.above.push(Screen::Compare(Box::new(compare)));
                Ok(())
            }
        }
    }

    pub(crate) fn draw(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let look = self.look;
        if area.width < COLUMNS_MIN || area.height < ROWS_MIN {
            let text = format!("at least {COLUMNS_MIN}x{ROWS_MIN}");
            frame.buffer_mut().set_stringn(0, 0, text, area.width.into(), Style::new());
            return;
        }
        self.draw_title(frame);
        let body = Rect { y: area.y + 2, height: area.height - 4, ..area };
        if self.shows_help {
            draw_help(body, frame, look);
        } else {
            let source = &self.source;
            match self.above.last_mut() {
                None => self.runs.draw(body, frame.buffer_mut(), look, source.now_ns()),
                Some(Screen::Run(run)) => run.draw(source, body, frame.buffer_mut(), look),
                Some(Screen::Compare(compare)) => compare.draw(source, body, frame.buffer_mut(), look),
            }
        }
        self.draw_foot(frame);
    }

    fn draw_title(&self, frame: &mut Frame<'_>) {
        let (area, look) = (frame.area(), self.look);
        let (text, style) = match self.above.last() {
            None => (self.runs.title(), Style::new()),
            Some(Screen::Run(run)) => {
                let (text, severity) = run.title(look);
                let mark = letter(severity).trim();
                let mark = if mark.is_empty() { String::new() } else { format!("{mark} ") };
                (format!("{mark}{text}"), look.severity(severity))
            }
            Some(Screen::Compare(compare)) => (compare.title(look), Style::new()),
        };
        let text = look.safe(&text);
        let profile = self.source.profile().map(|name| format!(" redacted by profile {name} "));
        let profile = profile.unwrap_or_default();
        let columns = usize::from(area.width);
        let more = if look.unicode { "…" } else { ">" };
        let room = columns.saturating_sub(profile.len() + 8);
        let buffer = frame.buffer_mut();
        buffer.set_stringn(0, 0, "annals", columns, look.bold());
        buffer.set_stringn(8, 0, clip(&text, room, more), room, style);
        if !profile.is_empty() {
            let x = area.width.saturating_sub(u16::try_from(profile.len()).unwrap_or(0));
            buffer.set_stringn(x, 0, look.one_line(&profile), profile.len(), look.bold());
        }
        buffer.set_stringn(0, 1, look.rule().repeat(columns), columns, look.dim());
    }

    fn draw_foot(&self, frame: &mut Frame<'_>) {
        let (area, look) = (frame.area(), self.look);
        let columns = usize::from(area.width);
        let y = area.height - 1;
        let keys = match self.above.last() {
            None => "j/k move  enter open  / text  f status  c compare  ? keys  q quit",
            Some(Screen::Run(run)) if run.is_reading => {
                "j/k scroll  n/p frame  / find  d changes  r raw  a all  esc back  ? keys"
            }
            Some(Screen::Run(_)) => {
                "j/k frame  enter read  g jump  / find  d changes  r raw  e failed  ? keys"
            }
            Some(Screen::Compare(_)) => "j/k pair  enter frame  f same too  space page  esc back  ? keys",
        };
        let (text, style) = match (&self.prompt, &self.message) {
            (Some(prompt), _) => {
                let what = match (prompt.kind, self.above.is_empty()) {
                    (PromptKind::Find, true) => "runs with the text",
                    (PromptKind::Find, false) => "find",
                    (PromptKind::Jump, true) => "number in the list",
                    (PromptKind::Jump, false) => "frame",
                    (PromptKind::Compare, _) => "compare with run",
                };
                (format!("{what}: {}_", look.one_line(&prompt.text)), look.bold())
            }
            (None, Some(message)) => (look.one_line(message), look.bold()),
            (None, None) => (keys.to_owned(), look.dim()),
        };
        let buffer = frame.buffer_mut();
        buffer.set_stringn(0, y - 1, look.rule().repeat(columns), columns, look.dim());
        let more = if look.unicode { "…" } else { ">" };
        buffer.set_stringn(0, y, left(&text, columns, more), columns, style);
    }
}

fn draw_help(area: Rect, frame: &mut Frame<'_>, look: Look) {
    for (at, (keys, text)) in KEYS.iter().enumerate().take(area.height.into()) {
        let y = area.y + u16::try_from(at).unwrap_or(0);
        let line = format!("{}  {text}", left(keys, 14, ""));
        frame.buffer_mut().set_stringn(
            area.x,
            y,
            line,
            area.width.into(),
            if at == 0 { look.bold() } else { Style::new() },
        );
    }
}
