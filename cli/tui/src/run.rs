//! A run: the timeline to the left, the selected frame to the right; on a narrow terminal the frame takes the
//! whole width while it is read.

mod columns;
mod play;
mod search;

use std::collections::BTreeMap;

use annals::{RunReader, Status};
use annals_review::{FrameKind, FrameStatus, FrameView, ShownSeverity, Timeline, TimelineFrame};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::frame_text::{self, TextLine};
use columns::RowColumns;
use search::FrameSearch;

use crate::look::Look;
use crate::numbers::{count, dollars, plural};
use crate::runs::{run_facts, run_severity};
use crate::source::RunSource;
use crate::wrap::left;

/// From this width on, facts about the frame have a column of their own.
const FACTS_FROM: u16 = 140;
const FACTS_WIDTH: u16 = 36;

/// What is shown of the selected frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameMode {
    Conversation,
    /// A stored part: request, response, metadata.
    Raw(usize),
    Changes,
    /// The state after the frame.
    State,
}

/// Which frames the timeline lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowFilter {
    All,
    Calls,
    Tools,
    Severe,
}

impl RowFilter {
    fn next(self) -> Self {
        match self {
            Self::All => Self::Calls,
            Self::Calls => Self::Tools,
            Self::Tools => Self::Severe,
            Self::Severe => Self::All,
        }
    }

    fn holds(self, row: &TimelineFrame) -> bool {
        match self {
            Self::All => true,
            Self::Calls => row.kind == FrameKind::Llm,
            Self::Tools => row.kind == FrameKind::Tool,
            Self::Severe => row.severity > ShownSeverity::Ok || row.status != FrameStatus::Ok,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::All => "all frames",
            Self::Calls => "model calls",
            Self::Tools => "tools",
            Self::Severe => "failed or flagged",
        }
    }
}

/// What the selected frame's lines were made for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LinesKey {
    seq: u32,
    mode: FrameMode,
    columns: usize,
    all: bool,
    with_facts: bool,
}

#[derive(Debug)]
pub(crate) struct RunScreen {
    reader: RunReader,
    rows: Vec<TimelineFrame>,
    filter: RowFilter,
    /// Indexes of the listed rows.
    shown: Vec<usize>,
    selected: usize,
    top: usize,
    /// Whether the frame is read, not the timeline.
    pub(crate) is_reading: bool,
    mode: FrameMode,
    all: bool,
    scroll: usize,
    /// Lines of the frame's pane, as of the last drawing.
    height: usize,
    lines: Vec<TextLine>,
    facts: Vec<String>,
    made_for: Option<LinesKey>,
    search: Option<FrameSearch>,
    /// When the next frame is shown, while the run is played.
    play_ns: Option<u64>,
    /// Marks of frames: blame, suspect steps.
    badges: BTreeMap<u32, String>,
    last_search: String,
    /// Why the run can no longer be read.
    gone: Option<String>,
    /// Frames that arrived below the selected one.
    unseen: usize,
}

impl RunScreen {
    /// Opens a run at a frame, or at the frame to read first.
    ///
    /// # Errors
    /// A sentence, if the run or its timeline cannot be read.
    pub(crate) fn open(source: &RunSource, name: &str, at: Option<u32>) -> Result<Self, String> {
        let reader = source.named(name)?;
        let mut screen = Self {
            rows: Vec::new(),
            filter: RowFilter::All,
            shown: Vec::new(),
            selected: 0,
            top: 0,
            is_reading: false,
            mode: FrameMode::Conversation,
            all: false,
            scroll: 0,
            height: 1,
            lines: Vec::new(),
            facts: Vec::new(),
            made_for: None,
            search: None,
            play_ns: None,
            badges: source.badges(&reader),
            last_search: String::new(),
            gone: None,
            unseen: 0,
            reader,
        };
        screen.rows = read_rows(source, &screen.reader)?;
        screen.list();
        let seq = match at {
            Some(seq) if screen.rows.iter().any(|row| row.seq == seq) => seq,
            Some(seq) => return Err(format!("run {name} has no frame {seq}")),
            None => screen.first_to_read(source),
        };
        screen.select(seq);
        Ok(screen)
    }

    pub(crate) fn reader(&self) -> &RunReader {
        &self.reader
    }

    fn first_to_read(&self, source: &RunSource) -> u32 {
        let rows = Timeline { frames: self.rows.clone(), next: None, total: 0 };
        source.first_to_read(&self.reader, &rows)
    }

    fn list(&mut self) {
        self.shown = (0..self.rows.len()).filter(|at| self.filter.holds(&self.rows[*at])).collect();
        self.selected = self.selected.min(self.shown.len().saturating_sub(1));
    }

    fn row(&self) -> Option<&TimelineFrame> {
        self.shown.get(self.selected).and_then(|at| self.rows.get(*at))
    }

    pub(crate) fn seq(&self) -> Option<u32> {
        self.row().map(|row| row.seq)
    }

    /// Selects a frame, and lists all frames if the filter hides it. Returns whether there is one.
    fn select(&mut self, seq: u32) -> bool {
        let of = |screen: &Self| screen.shown.iter().position(|at| screen.rows[*at].seq == seq);
        if of(self).is_none() && self.rows.iter().any(|row| row.seq == seq) {
            self.filter = RowFilter::All;
            self.list();
        }
        match of(self) {
            Some(at) => {
                self.move_to(at);
                true
            }
            None => false,
        }
    }

    fn move_to(&mut self, at: usize) {
        let at = at.min(self.shown.len().saturating_sub(1));
        if at != self.selected {
            self.scroll = 0;
        }
        self.selected = at;
        if at + 1 == self.shown.len() {
            self.unseen = 0;
        }
    }

    /// Moves in the timeline.
    pub(crate) fn step(&mut self, by: isize) {
        self.move_to(self.selected.saturating_add_signed(by));
    }

    pub(crate) fn scroll_by(&mut self, by: isize) {
        let most = self.lines.len().saturating_sub(self.height);
        self.scroll = self.scroll.saturating_add_signed(by).min(most);
    }

    pub(crate) fn page_height(&self) -> isize {
        isize::try_from(self.height.saturating_sub(2).max(1)).unwrap_or(1)
    }

    /// The last frame, or the end of the frame that is read.
    pub(crate) fn go_to_end(&mut self) {
        match self.is_reading {
            true => self.scroll = self.lines.len().saturating_sub(self.height),
            false => self.move_to(usize::MAX),
        }
    }

    /// Jumps to a frame by its number.
    ///
    /// # Errors
    /// A sentence, if there is no such frame.
    pub(crate) fn jump(&mut self, text: &str) -> Result<(), String> {
        let last = self.rows.last().map_or(0, |row| row.seq);
        let seq: u32 = text.trim().parse().map_err(|_| format!("{text:?} is no number of a frame"))?;
        match self.select(seq) {
            true => Ok(()),
            false => Err(format!("there is no frame {seq}: the last is {last}")),
        }
    }

    pub(crate) fn go_to_first_to_read(&mut self, source: &RunSource) {
        let seq = self.first_to_read(source);
        self.select(seq);
    }

    pub(crate) fn next_filter(&mut self) -> String {
        let seq = self.seq();
        self.filter = self.filter.next();
        self.list();
        let at = seq.and_then(|seq| self.shown.iter().position(|at| self.rows[*at].seq >= seq));
        self.move_to(at.unwrap_or(0));
        format!(
            "{}: {} of {}",
            self.filter.name(),
            count(self.shown.len() as u64),
            count(self.rows.len() as u64)
        )
    }

    pub(crate) fn next_raw(&mut self) {
        self.mode = match self.mode {
            FrameMode::Raw(2) => FrameMode::Conversation,
            FrameMode::Raw(part) => FrameMode::Raw(part + 1),
            _ => FrameMode::Raw(0),
        };
        self.scroll = 0;
    }

    pub(crate) fn toggle_changes(&mut self) {
        self.mode = match self.mode {
            FrameMode::Changes => FrameMode::Conversation,
            _ => FrameMode::Changes,
        };
        self.scroll = 0;
    }

    pub(crate) fn toggle_state(&mut self) {
        self.mode = match self.mode {
            FrameMode::State => FrameMode::Conversation,
            _ => FrameMode::State,
        };
        self.scroll = 0;
    }

    /// The command that runs the program on from the selected frame into a new run.
    pub(crate) fn fork_command(&self) -> Option<String> {
        let address = format!("{}@{}", self.reader.info().name, self.seq()?);
        Some(format!("annals fork {}", annals_text::shell::quote(&address)))
    }

    pub(crate) fn toggle_all(&mut self) {
        (self.all, self.scroll, self.mode) = (!self.all, 0, FrameMode::Conversation);
    }

    /// Back from reading, or from bytes and changes. Returns whether there was something to go back from.
    pub(crate) fn back(&mut self) -> bool {
        if self.search.take().is_some() || self.play_ns.take().is_some() {
            return true;
        }
        if self.mode != FrameMode::Conversation {
            (self.mode, self.scroll) = (FrameMode::Conversation, 0);
            return true;
        }
        std::mem::take(&mut self.is_reading)
    }

    /// Reads what was recorded meanwhile. Returns whether anything changed.
    pub(crate) fn refresh(&mut self, source: &RunSource) -> bool {
        if self.gone.is_some() || self.reader.info().status != Status::Open {
            // A run that has ended can only be dropped.
            return self.check_dropped(source);
        }
        let follows = self.selected + 1 == self.shown.len();
        let read = source.named(&self.reader.info().name).and_then(|reader| {
            let rows = read_rows(source, &reader)?;
            Ok((reader, rows))
        });
        let (reader, rows) = match read {
            Ok(read) => read,
            Err(error) => {
                self.gone = Some(error);
                return true;
            }
        };
        let is_same = rows == self.rows && reader.info().status == self.reader.info().status;
        (self.reader, self.rows) = (reader, rows);
        if is_same {
            return false;
        }
        let before = self.shown.len();
        self.list();
        self.made_for = None;
        if follows && !self.is_reading {
            self.move_to(usize::MAX);
        } else {
            self.unseen += self.shown.len().saturating_sub(before);
        }
        true
    }

    fn check_dropped(&mut self, source: &RunSource) -> bool {
        if self.gone.is_some() {
            return false;
        }
        match source.named(&self.reader.info().name) {
            Ok(reader) if reader.info().uid == self.reader.info().uid => false,
            Ok(_) => {
                self.gone = Some("the run was replaced by another of this name".to_owned());
                true
            }
            Err(error) => {
                self.gone = Some(error);
                true
            }
        }
    }

    /// The line above the panes.
    pub(crate) fn title(&self, look: Look) -> (String, ShownSeverity) {
        let info = self.reader.info();
        let severity = run_severity(info);
        let mut text = format!("{}  {}", look.one_line(&info.name), run_facts(info));
        let costs: Vec<f64> = self.rows.iter().filter_map(|row| row.dollars).collect();
        if !costs.is_empty() {
            text += &format!(", {}", dollars(costs.iter().sum()));
        }
        if !info.model.is_empty() {
            text += &format!(", {}", look.one_line(&info.model));
        }
        if self.filter != RowFilter::All {
            text += &format!("  [{}]", self.filter.name());
        }
        if info.status == Status::Open {
            text += "  recording";
        }
        if self.unseen > 0 {
            text += &format!("  {}: G", plural(self.unseen as u64, "new frame"));
        }
        (text, severity)
    }

    pub(crate) fn draw(&mut self, source: &RunSource, area: Rect, buffer: &mut Buffer, look: Look) {
        if let Some(gone) = &self.gone {
            let text = format!("This run can no longer be read: {gone}");
            for (at, line) in frame_text::plain(&text, look, area.width.into()).iter().enumerate() {
                let y = area.y + u16::try_from(at).unwrap_or(u16::MAX);
                if y < area.bottom() {
                    buffer.set_stringn(area.x, y, &line.text, area.width.into(), Style::new());
                }
            }
            return;
        }
        if self.rows.is_empty() {
            let text = match self.reader.info().status {
                Status::Open => "No frame has ended yet.",
                _ => "This run has no frames.",
            };
            buffer.set_stringn(area.x, area.y, text, area.width.into(), Style::new());
            return;
        }
        let is_narrow = area.width < 100;
        if is_narrow && self.is_reading {
            self.draw_frame(source, area, buffer, look, true);
            return;
        }
        let rows_width = (area.width * 2 / 5).clamp(28, 56);
        let (rows_area, rest) = split(area, rows_width);
        let (frame_area, facts_area) = match area.width >= FACTS_FROM {
            true => {
                let (frame, facts) = split(rest, rest.width - FACTS_WIDTH - 3);
                (frame, Some(facts))
            }
            false => (rest, None),
        };
        self.draw_rows(rows_area, buffer, look);
        draw_rule(rows_area.right() + 1, area, buffer, look);
        self.draw_frame(source, frame_area, buffer, look, facts_area.is_none());
        if let Some(facts_area) = facts_area {
            draw_rule(facts_area.x - 2, area, buffer, look);
            self.draw_facts(facts_area, buffer, look);
        }
    }

    fn draw_rows(&mut self, area: Rect, buffer: &mut Buffer, look: Look) {
        if self.shown.is_empty() {
            let text = format!("No {}. f: next filter", self.filter.name());
            buffer.set_stringn(area.x, area.y, text, area.width.into(), look.dim());
            return;
        }
        let height = usize::from(area.height).max(1);
        self.top = self.top.min(self.selected).max((self.selected + 1).saturating_sub(height));
        let columns = RowColumns::of(area.width.into(), &self.rows);
        for (line, at) in self.shown.iter().skip(self.top).take(height).enumerate() {
            let Some(row) = self.rows.get(*at) else { continue };
            let is_selected = self.top + line == self.selected;
            let style = match is_selected {
                true if self.is_reading => look.bold().patch(look.severity(row.severity)),
                true => look.selected().patch(look.severity(row.severity)),
                false => look.severity(row.severity),
            };
            let y = area.y + u16::try_from(line).unwrap_or(0);
            let badge = self.badges.get(&row.seq).map_or("", String::as_str);
            buffer.set_stringn(area.x, y, columns.row(row, badge, look), area.width.into(), style);
        }
    }

    fn draw_frame(
        &mut self,
        source: &RunSource,
        area: Rect,
        buffer: &mut Buffer,
        look: Look,
        with_facts: bool,
    ) {
        let Some(row) = self.row() else { return };
        let (seq, columns, all) = (row.seq, usize::from(area.width), self.all);
        let key = LinesKey { seq, mode: self.mode, columns, all, with_facts };
        if self.made_for.as_ref() != Some(&key) {
            self.make_lines(source, look, key);
        }
        self.height = usize::from(area.height).max(1);
        self.scroll = self.scroll.min(self.lines.len().saturating_sub(self.height));
        for (at, line) in self.lines.iter().skip(self.scroll).take(self.height).enumerate() {
            let y = area.y + u16::try_from(at).unwrap_or(0);
            buffer.set_stringn(area.x, y, &line.text, columns, line.kind.style(look));
        }
        let below = self.lines.len().saturating_sub(self.scroll + self.height);
        if below > 0 {
            let text = look.own(&format!(" … {} below ", plural(below as u64 + 1, "line")));
            let text = left(&text, columns, "");
            buffer.set_stringn(area.x, area.bottom() - 1, text, columns, look.dim());
        }
    }

    fn make_lines(&mut self, source: &RunSource, look: Look, key: LinesKey) {
        const PARTS: [&str; 3] = ["request", "response", "metadata"];
        let (seq, columns) = (key.seq, key.columns);
        let view = source.view(&self.reader, seq, key.all);
        self.facts = view.as_ref().map(side_facts).unwrap_or_default();
        let lines = match key.mode {
            FrameMode::Conversation => {
                view.map(|view| frame_text::conversation(&view, look, columns, key.with_facts))
            }
            FrameMode::Raw(part) => source.parts(&self.reader, seq).map(|parts| {
                let name =
                    format!("frame {seq}: {} as recorded", PARTS.get(part).copied().unwrap_or_default());
                let name = match source.profile() {
                    Some(profile) => format!("{name}, redacted by profile {profile}"),
                    None => name,
                };
                frame_text::raw(&name, parts.get(part).map_or(&[][..], Vec::as_slice), look, columns)
            }),
            FrameMode::State => {
                source.state(&self.reader, seq).map(|text| frame_text::plain(&text, look, columns))
            }
            FrameMode::Changes => {
                let changes = source.changes(&self.reader, seq);
                changes.map(|text| {
                    frame_text::plain(&format!("FRAME {seq}: what changed\n{text}"), look, columns)
                })
            }
        };
        self.lines = lines.unwrap_or_else(|error| frame_text::plain(&error, look, columns));
        self.made_for = Some(key);
    }

    fn draw_facts(&self, area: Rect, buffer: &mut Buffer, look: Look) {
        let mut y = area.y;
        for fact in &self.facts {
            for line in frame_text::plain(fact, look, area.width.into()) {
                if y >= area.bottom() {
                    return;
                }
                buffer.set_stringn(area.x, y, &line.text, area.width.into(), look.dim());
                y += 1;
            }
        }
    }
}

/// Facts with a column of their own: also hashes, headers and tools.
fn side_facts(view: &FrameView) -> Vec<String> {
    let mut facts = frame_text::facts(view);
    let bodies = [("request", Some(&view.request)), ("response", view.response.as_ref())];
    for (name, body) in bodies {
        if let Some((first, last)) = body.and_then(|body| body.blake3.as_ref()?.split_at_checked(32)) {
            facts.push(format!("BLAKE3 of the {name}\n  {first}\n  {last}"));
        }
    }
    if !view.tools.is_empty() {
        facts.push(format!("tools offered: {}", view.tools.join(", ")));
    }
    if let Some(http) = &view.http {
        facts.push(String::new());
        facts.push("request headers".to_owned());
        facts.extend(http.request_headers.iter().map(|(name, value)| format!("  {name}: {value}")));
        facts.push("response headers".to_owned());
        facts.extend(http.response_headers.iter().map(|(name, value)| format!("  {name}: {value}")));
    }
    facts
}

fn read_rows(source: &RunSource, reader: &RunReader) -> Result<Vec<TimelineFrame>, String> {
    source.timeline(reader).map(|all| all.frames)
}

/// The left part of an area of this width, and the rest behind a rule.
fn split(area: Rect, width: u16) -> (Rect, Rect) {
    let width = width.min(area.width);
    let rest = area.width.saturating_sub(width + 3);
    (Rect { width, ..area }, Rect { x: area.x + (width + 3).min(area.width), width: rest, ..area })
}

fn draw_rule(x: u16, area: Rect, buffer: &mut Buffer, look: Look) {
    if x < area.right() {
        for y in area.top()..area.bottom() {
            buffer.set_stringn(x, y, look.upright(), 1, look.dim());
        }
    }
}
