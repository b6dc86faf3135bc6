//! The list of runs.

use annals::runs::RunFilter;
use annals::{RunInfo, RunUid, Severity, Status};
use annals_review::ShownSeverity;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::look::{Look, letter};
use crate::numbers::{age, count, duration, plural};
use crate::source::RunSource;
use crate::wrap::{left, right};

/// Runs that are read at a time, and at most for one key.
const PAGE_RUNS: usize = 200;
const READ_MAX: usize = 20_000;

/// Which statuses are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum StatusFilter {
    #[default]
    All,
    Failed,
    Open,
    Ok,
}

impl StatusFilter {
    fn next(self) -> Self {
        match self {
            Self::All => Self::Failed,
            Self::Failed => Self::Open,
            Self::Open => Self::Ok,
            Self::Ok => Self::All,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Failed => "failed",
            Self::Open => "open",
            Self::Ok => "ok",
        }
    }

    fn statuses(self) -> Vec<Status> {
        match self {
            Self::All => Vec::new(),
            Self::Failed => vec![Status::Failed, Status::Abandoned],
            Self::Open => vec![Status::Open],
            Self::Ok => vec![Status::Ok],
        }
    }
}

/// The list: rows that were read so far, and what is shown of them.
#[derive(Debug, Default)]
pub(crate) struct RunsScreen {
    rows: Vec<RunInfo>,
    /// Indexes of the rows that match the text.
    shown: Vec<usize>,
    next: Option<RunUid>,
    /// Whether all runs were read.
    is_complete: bool,
    pub(crate) selected: usize,
    top: usize,
    pub(crate) filter: StatusFilter,
    pub(crate) text: String,
    error: Option<String>,
    /// The first rows of the list as they were read last: whether the list has to be read anew.
    head: Vec<(RunUid, Status, u32)>,
}

impl RunsScreen {
    pub(crate) fn new(source: &RunSource) -> Self {
        let mut screen = Self::default();
        screen.reload(source);
        screen
    }

    /// Reads the list anew if its first rows differ: a run began, went on, ended or was dropped.
    pub(crate) fn refresh(&mut self, source: &RunSource) {
        if self.error.is_some() || self.read_head(source) != self.head {
            self.reload(source);
        }
    }

    fn read_head(&self, source: &RunSource) -> Vec<(RunUid, Status, u32)> {
        let filter = RunFilter { statuses: self.filter.statuses(), ..RunFilter::default() };
        let page = source.page(&filter, None, PAGE_RUNS);
        let row = |run: &annals::RunReader| (run.info().uid, run.info().status, run.info().frames);
        page.map(|page| page.runs.iter().map(row).collect()).unwrap_or_default()
    }

    /// Reads the list anew, and keeps the selected run.
    pub(crate) fn reload(&mut self, source: &RunSource) {
        let selected = self.selected_run().map(|info| info.uid);
        let wanted = self.rows.len().clamp(PAGE_RUNS, 5 * PAGE_RUNS);
        (self.rows, self.shown, self.next, self.is_complete) = (Vec::new(), Vec::new(), None, false);
        self.error = None;
        self.read(source, wanted);
        self.head = self.read_head(source);
        match selected.and_then(|uid| self.shown.iter().position(|at| self.rows[*at].uid == uid)) {
            Some(at) => self.selected = at,
            None => self.selected = self.selected.min(self.shown.len().saturating_sub(1)),
        }
    }

    /// Reads until `wanted` rows are shown, or the end.
    fn read(&mut self, source: &RunSource, wanted: usize) {
        let filter = RunFilter { statuses: self.filter.statuses(), ..RunFilter::default() };
        let first = self.rows.len();
        while self.shown.len() < wanted && !self.is_complete && self.rows.len() - first < READ_MAX {
            match source.page(&filter, self.next, PAGE_RUNS) {
                Ok(page) => {
                    self.next = page.next;
                    self.is_complete = page.next.is_none();
                    for run in page.runs {
                        if self.matches(run.info(), source) {
                            self.shown.push(self.rows.len());
                        }
                        self.rows.push(run.info().clone());
                    }
                }
                Err(error) => {
                    self.error = Some(error);
                    self.is_complete = true;
                }
            }
        }
    }

    fn matches(&self, info: &RunInfo, source: &RunSource) -> bool {
        if self.text.is_empty() {
            return true;
        }
        let wanted = self.text.to_lowercase();
        let holds = |text: &str| text.to_lowercase().contains(&wanted);
        let tag = |(key, value): &(String, String)| holds(&format!("{key}={}", source.tag(value)));
        holds(&info.name) || holds(&info.agent) || holds(&info.model) || info.tags.iter().any(tag)
    }

    pub(crate) fn selected_run(&self) -> Option<&RunInfo> {
        self.shown.get(self.selected).and_then(|at| self.rows.get(*at))
    }

    pub(crate) fn step(&mut self, by: isize, source: &RunSource) {
        self.selected = self.selected.saturating_add_signed(by);
        self.settle(source);
    }

    pub(crate) fn go_to(&mut self, at: usize, source: &RunSource) {
        self.selected = at;
        self.settle(source);
    }

    fn settle(&mut self, source: &RunSource) {
        if self.selected + PAGE_RUNS / 2 > self.shown.len() {
            self.read(source, self.selected.saturating_add(PAGE_RUNS));
        }
        self.selected = self.selected.min(self.shown.len().saturating_sub(1));
    }

    pub(crate) fn next_filter(&mut self, source: &RunSource) {
        self.filter = self.filter.next();
        (self.selected, self.top) = (0, 0);
        self.rows.clear();
        self.reload(source);
    }

    pub(crate) fn set_text(&mut self, text: String, source: &RunSource) {
        self.text = text;
        (self.selected, self.top) = (0, 0);
        self.reload(source);
    }

    /// The line above the list.
    pub(crate) fn title(&self) -> String {
        let more = if self.is_complete { "" } else { "+" };
        let mut text = format!("{}{more} {}", count(self.shown.len() as u64), run_word(self.shown.len()));
        if self.filter != StatusFilter::All {
            text += &format!("  status {}", self.filter.name());
        }
        if !self.text.is_empty() {
            text += &format!("  text \"{}\"", self.text);
        }
        text
    }

    pub(crate) fn draw(&mut self, area: Rect, buffer: &mut Buffer, look: Look, now_ns: u64) {
        if let Some(error) = &self.error {
            buffer.set_stringn(area.x, area.y, look.one_line(error), area.width.into(), look.bold());
            return;
        }
        if self.shown.is_empty() {
            for (at, line) in self.empty().iter().enumerate().take(area.height.into()) {
                let y = area.y + u16::try_from(at).unwrap_or(0);
                buffer.set_stringn(
                    area.x,
                    y,
                    look.safe(line),
                    area.width.into(),
                    ratatui::style::Style::new(),
                );
            }
            return;
        }
        let columns = RunColumns::of(area.width.into());
        buffer.set_stringn(area.x, area.y, look.own(&columns.header()), area.width.into(), look.dim());
        let height = usize::from(area.height.saturating_sub(1)).max(1);
        self.top = self.top.min(self.selected).max((self.selected + 1).saturating_sub(height));
        for (line, at) in self.shown.iter().skip(self.top).take(height).enumerate() {
            let Some(info) = self.rows.get(*at) else { continue };
            let y = area.y + 1 + u16::try_from(line).unwrap_or(0);
            let severity = run_severity(info);
            let style = match self.top + line == self.selected {
                true => look.selected().patch(look.severity(severity)),
                false => look.severity(severity),
            };
            let text = columns.row(info, severity, look, now_ns);
            buffer.set_stringn(area.x, y, text, area.width.into(), style);
        }
    }

    fn empty(&self) -> Vec<String> {
        match (self.filter, self.text.is_empty()) {
            (StatusFilter::All, true) => vec![
                "This namespace has no runs yet. Two commands fill it:".to_owned(),
                String::new(),
                "  annals record -- python agent.py     record a program".to_owned(),
                "  annals import runs.json              import recorded conversations".to_owned(),
            ],
            (StatusFilter::All, false) => {
                vec![
                    format!("No run has \"{}\" in its name, agent, model or tags.", self.text),
                    "/ and enter shows all runs.".to_owned(),
                ]
            }
            (filter, true) => {
                vec![
                    format!("No run has the status {}.", filter.name()),
                    "f shows the next status.".to_owned(),
                ]
            }
            (filter, false) => vec![
                format!(
                    "No run with the status {} has \"{}\" in its name, agent, model or tags.",
                    filter.name(),
                    self.text
                ),
                "f shows the next status; / and enter drops the text.".to_owned(),
            ],
        }
    }
}

fn run_word(number: usize) -> &'static str {
    if number == 1 { "run" } else { "runs" }
}

/// The severity of a run: a failed one is failed, unless it is escalated.
pub(crate) fn run_severity(info: &RunInfo) -> ShownSeverity {
    match (info.severity, info.status) {
        (Severity::Escalated, _) => ShownSeverity::Escalated,
        (_, Status::Failed | Status::Abandoned) => ShownSeverity::Failed,
        (Severity::Flagged, _) => ShownSeverity::Flagged,
        _ => ShownSeverity::Ok,
    }
}

/// `failed, 12 frames, 3.2 s`.
pub(crate) fn run_facts(info: &RunInfo) -> String {
    let took = info
        .ended_ns
        .map_or(String::new(), |ended| format!(", {}", duration(ended.saturating_sub(info.started_ns))));
    format!("{}, {}{took}", info.status.name(), plural(info.frames.into(), "frame"))
}

/// The columns of the list at a width: the narrowest first lose the model, then the agent.
struct RunColumns {
    name: usize,
    agent: usize,
    model: usize,
}

impl RunColumns {
    fn of(width: usize) -> Self {
        // Mark, status, frames, duration and age with their gaps.
        let rest = width.saturating_sub(2 + 11 + 8 + 10 + 8);
        match width {
            0..60 => Self { name: rest, agent: 0, model: 0 },
            60..100 => Self { name: rest - rest / 3, agent: rest / 3, model: 0 },
            _ => Self { name: rest / 2, agent: rest / 4, model: rest - rest / 2 - rest / 4 },
        }
    }

    fn line(&self, cells: [&str; 8], more: &str) -> String {
        let [mark, name, agent, model, status, frames, took, began] = cells;
        let mut line = format!("{} {}", left(mark, 1, ""), left(name, self.name, more));
        for (cell, width) in [(agent, self.agent), (model, self.model)] {
            if width > 0 {
                line += &format!(" {}", left(cell, width - 1, more));
            }
        }
        line += &format!(
            " {} {} {} {}",
            left(status, 10, more),
            right(frames, 7, more),
            right(took, 9, more),
            right(began, 7, more)
        );
        line
    }

    fn header(&self) -> String {
        self.line(["", "RUN", "AGENT", "MODEL", "STATUS", "FRAMES", "TOOK", "AGE"], "")
    }

    fn row(&self, info: &RunInfo, severity: ShownSeverity, look: Look, now_ns: u64) -> String {
        let more = if look.unicode { "…" } else { ">" };
        let took =
            info.ended_ns.map_or("-".to_owned(), |ended| duration(ended.saturating_sub(info.started_ns)));
        self.line(
            [
                letter(severity),
                &look.one_line(&info.name),
                &look.one_line(&info.agent),
                &look.one_line(&info.model),
                info.status.name(),
                &count(info.frames.into()),
                &took,
                &age(now_ns, info.started_ns),
            ],
            more,
        )
    }
}
