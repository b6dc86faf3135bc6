//! Two runs beside each other: their frames in pairs, and the difference of the selected pair.

use annals::RunReader;
use annals_policy::providers::FirstDifference;
use annals_review::{BodyDifference, FrameDifference, FramePair, ShownSeverity};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::frame_text::{LineKind, TextLine, TextLines};
use crate::look::Look;
use crate::numbers::{count, plural};
use crate::source::RunSource;
use crate::wrap::left;

#[derive(Debug)]
pub(crate) struct CompareScreen {
    a: RunReader,
    b: RunReader,
    pairs: Vec<FramePair>,
    /// Whether equal pairs are listed, too.
    lists_all: bool,
    shown: Vec<usize>,
    selected: usize,
    top: usize,
    scroll: usize,
    height: usize,
    lines: Vec<TextLine>,
    made_for: Option<(usize, usize)>,
}

impl CompareScreen {
    /// Compares run `a` with the run named `b`.
    ///
    /// # Errors
    /// A sentence, if a run cannot be read.
    pub(crate) fn open(source: &RunSource, a: &RunReader, b: &str) -> Result<Self, String> {
        let b = source.run(b)?;
        let pairs = source.align(a, &b)?.pairs;
        let mut screen = Self {
            a: a.clone(),
            b,
            pairs,
            lists_all: false,
            shown: Vec::new(),
            selected: 0,
            top: 0,
            scroll: 0,
            height: 1,
            lines: Vec::new(),
            made_for: None,
        };
        screen.list();
        Ok(screen)
    }

    fn list(&mut self) {
        let differs = |pair: &FramePair| !matches!(pair, FramePair::Same(..));
        self.shown = (0..self.pairs.len()).filter(|at| self.lists_all || differs(&self.pairs[*at])).collect();
        self.made_for = None;
    }

    pub(crate) fn next_filter(&mut self) -> String {
        let at = self.shown.get(self.selected).copied();
        self.lists_all = !self.lists_all;
        self.list();
        let same = at.and_then(|at| self.shown.iter().position(|shown| *shown >= at));
        self.selected = same.unwrap_or(0).min(self.shown.len().saturating_sub(1));
        (if self.lists_all { "all pairs" } else { "differing pairs" }).to_owned()
    }

    pub(crate) fn step(&mut self, by: isize) {
        let at = self.selected.saturating_add_signed(by);
        self.selected = at.min(self.shown.len().saturating_sub(1));
        self.scroll = 0;
    }

    pub(crate) fn scroll_by(&mut self, pages: isize) {
        let by = pages * isize::try_from(self.height.saturating_sub(2).max(1)).unwrap_or(1);
        let most = self.lines.len().saturating_sub(self.height);
        self.scroll = self.scroll.saturating_add_signed(by).min(most);
    }

    /// The frame of the first run in the selected pair, else of the second.
    pub(crate) fn frame(&self) -> Option<(String, u32)> {
        let (a, b) = (&self.a.info().name, &self.b.info().name);
        Some(match self.shown.get(self.selected).and_then(|at| self.pairs.get(*at))? {
            FramePair::Same(seq, _) | FramePair::Changed { a: seq, .. } | FramePair::Dropped(seq) => {
                (a.clone(), *seq)
            }
            FramePair::Added(seq) => (b.clone(), *seq),
        })
    }

    pub(crate) fn title(&self, look: Look) -> String {
        let same = self.pairs.iter().filter(|pair| matches!(pair, FramePair::Same(..))).count();
        let says = |pair: &&FramePair| matches!(pair, FramePair::Changed { says_same: true, .. });
        let form = self.pairs.iter().filter(says).count();
        let differ = self.pairs.len() - same - form;
        let form = match form {
            0 => String::new(),
            form => format!(", {} the same in other bytes", count(form as u64)),
        };
        format!(
            "{} beside {}: {} the same{form}, {} {}",
            look.one_line(&self.a.info().name),
            look.one_line(&self.b.info().name),
            plural(same as u64, "frame"),
            count(differ as u64),
            if differ == 1 { "differs" } else { "differ" }
        )
    }

    pub(crate) fn draw(&mut self, source: &RunSource, area: Rect, buffer: &mut Buffer, look: Look) {
        if self.shown.is_empty() {
            let text = match self.pairs.is_empty() {
                true => "Neither run has a frame.",
                false => "Both runs are the same. f lists the pairs.",
            };
            buffer.set_stringn(area.x, area.y, text, area.width.into(), look.bold());
            return;
        }
        let list_width = 26.min(area.width / 2);
        let height = usize::from(area.height).max(1);
        self.top = self.top.min(self.selected).max((self.selected + 1).saturating_sub(height));
        for (line, at) in self.shown.iter().skip(self.top).take(height).enumerate() {
            let Some(pair) = self.pairs.get(*at) else { continue };
            let style = match self.top + line == self.selected {
                true => look.selected(),
                false => ratatui::style::Style::new(),
            };
            let y = area.y + u16::try_from(line).unwrap_or(0);
            let text = left(&pair_line(pair), list_width.into(), "");
            buffer.set_stringn(area.x, y, text, list_width.into(), style);
        }
        for y in area.top()..area.bottom() {
            buffer.set_stringn(area.x + list_width + 1, y, look.upright(), 1, look.dim());
        }
        let x = area.x + list_width + 3;
        let columns = usize::from(area.right().saturating_sub(x));
        if self.made_for != Some((self.selected, columns)) {
            self.lines = self.difference_lines(source, look, columns);
            self.made_for = Some((self.selected, columns));
        }
        self.height = height;
        self.scroll = self.scroll.min(self.lines.len().saturating_sub(height));
        for (at, line) in self.lines.iter().skip(self.scroll).take(height).enumerate() {
            let y = area.y + u16::try_from(at).unwrap_or(0);
            buffer.set_stringn(x, y, &line.text, columns, line.kind.style(look));
        }
    }

    fn difference_lines(&self, source: &RunSource, look: Look, columns: usize) -> Vec<TextLine> {
        let mut lines = TextLines::new(look, columns);
        let (a, b) = (&self.a.info().name, &self.b.info().name);
        match self.shown.get(self.selected).and_then(|at| self.pairs.get(*at)) {
            None => {}
            Some(FramePair::Same(..)) => lines.add(LineKind::Dim, 0, "the same in both runs"),
            Some(FramePair::Dropped(seq)) => self.only(source, &self.a, *seq, &mut lines),
            Some(FramePair::Added(seq)) => self.only(source, &self.b, *seq, &mut lines),
            Some(FramePair::Changed { a: left, b: right, .. }) => {
                lines.add(LineKind::Heading, 0, &format!("{a}@{left} beside {b}@{right}"));
                match source.difference((&self.a, *left), (&self.b, *right)) {
                    Ok(FrameDifference { request, answer }) => {
                        body_lines("request", &request, &mut lines);
                        body_lines("answer", &answer, &mut lines);
                    }
                    Err(error) => lines.add(LineKind::Bad(ShownSeverity::Failed), 0, &error),
                }
            }
        }
        lines.lines
    }

    fn only(&self, source: &RunSource, run: &RunReader, seq: u32, lines: &mut TextLines) {
        lines.add(LineKind::Heading, 0, &format!("only {}@{seq}", run.info().name));
        match source.view(run, seq, false) {
            Ok(view) => {
                let name = view.name.as_deref().unwrap_or_default();
                lines.add(LineKind::Plain, 0, &format!("{} {name}", view.component));
                for message in view.messages.iter().chain(&view.answer) {
                    for part in &message.parts {
                        if let annals_policy::providers::ConversationPart::Text { text, .. } = part {
                            lines.add(LineKind::Title, 0, &message.role);
                            lines.add(LineKind::Plain, 2, text);
                        }
                    }
                }
            }
            Err(error) => lines.add(LineKind::Bad(ShownSeverity::Failed), 0, &error),
        }
    }
}

/// `~   7    7`: a mark, and the numbers in both runs.
fn pair_line(pair: &FramePair) -> String {
    let of = |mark: &str, a: Option<u32>, b: Option<u32>, what: &str| {
        let number = |seq: Option<u32>| seq.map_or(String::new(), |seq| seq.to_string());
        format!("{mark} {:>5} {:>5}  {what}", number(a), number(b))
    };
    match pair {
        FramePair::Same(a, b) => of("=", Some(*a), Some(*b), ""),
        FramePair::Dropped(a) => of("-", Some(*a), None, "only left"),
        FramePair::Added(b) => of("+", None, Some(*b), "only right"),
        FramePair::Changed { a, b, says_same: true, .. } => of("~", Some(*a), Some(*b), "bytes"),
        FramePair::Changed { a, b, input: true, output: true, .. } => of("~", Some(*a), Some(*b), "both"),
        FramePair::Changed { a, b, input: true, .. } => of("~", Some(*a), Some(*b), "request"),
        FramePair::Changed { a, b, .. } => of("~", Some(*a), Some(*b), "answer"),
    }
}

fn body_lines(side: &str, body: &BodyDifference, lines: &mut TextLines) {
    let mut span = |why: &str, at: &FirstDifference| {
        lines.add(LineKind::Title, 0, &format!("{side}, {why}, from byte {}", at.at));
        lines.add(LineKind::Plain, 2, &format!("was  {}\nis   {}", at.was, at.is));
    };
    match body {
        BodyDifference::Same => {}
        BodyDifference::Hidden => {
            lines.add(LineKind::Dim, 0, &format!("{side}: differs in what this profile does not show"));
        }
        BodyDifference::Form(_) => {
            lines.add(LineKind::Dim, 0, &format!("{side}: says the same in other bytes"))
        }
        BodyDifference::Bytes(at) => span("compared by its bytes", at),
        BodyDifference::Words(all) => {
            lines.add(LineKind::Title, 0, side);
            for difference in all {
                lines.add(LineKind::Plain, 2, &difference.to_string());
            }
        }
    }
}
