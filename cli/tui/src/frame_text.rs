//! A frame as lines of text that fit.

use annals_policy::providers::{ConversationMessage, ConversationPart};
use annals_review::{FrameStatus, FrameView, ShownSeverity, ShownUsage};
use ratatui::style::Style;

use crate::look::Look;
use crate::numbers::{bytes, count, dollars, duration, plural, time};
use crate::wrap::wrap;

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineKind {
    Heading,
    Plain,
    Dim,
    /// A role or a call.
    Title,
    Bad(ShownSeverity),
}

/// A line that fits, safe for the terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextLine {
    pub(crate) kind: LineKind,
    pub(crate) text: String,
}

impl LineKind {
    pub(crate) fn style(self, look: Look) -> Style {
        match self {
            Self::Heading | Self::Title => look.bold(),
            Self::Plain => Style::new(),
            Self::Dim => look.dim(),
            Self::Bad(severity) => look.severity(severity),
        }
    }
}

/// Collects lines of a width.
pub(crate) struct TextLines {
    look: Look,
    columns: usize,
    pub(crate) lines: Vec<TextLine>,
}

impl TextLines {
    pub(crate) fn new(look: Look, columns: usize) -> Self {
        Self { look, columns, lines: Vec::new() }
    }

    /// Adds text from a recording, `indent` columns from the left.
    pub(crate) fn add(&mut self, kind: LineKind, indent: usize, text: &str) {
        let safe = self.look.safe(text);
        let margin = " ".repeat(indent);
        for line in wrap(&safe, self.columns.saturating_sub(indent)) {
            self.lines.push(TextLine { kind, text: format!("{margin}{line}") });
        }
    }

    pub(crate) fn gap(&mut self) {
        if self.lines.last().is_some_and(|line| !line.text.is_empty()) {
            self.lines.push(TextLine { kind: LineKind::Plain, text: String::new() });
        }
    }
}

/// The conversation of a frame. With `with_facts`, times and counts come first; else they stand elsewhere.
pub(crate) fn conversation(view: &FrameView, look: Look, columns: usize, with_facts: bool) -> Vec<TextLine> {
    let mut lines = TextLines::new(look, columns);
    heading(view, &mut lines);
    if with_facts {
        for fact in facts(view) {
            lines.add(LineKind::Dim, 0, &fact);
        }
    }
    if let Some(why) = &view.why {
        lines.add(LineKind::Bad(view.severity.max(ShownSeverity::Flagged)), 0, why);
    }
    if let Some(error) = &view.error {
        lines.add(LineKind::Bad(ShownSeverity::Failed), 0, &format!("error: {error}"));
    }
    if let Some(damage) = &view.damage {
        lines.add(LineKind::Bad(ShownSeverity::Failed), 0, &format!("damaged: {damage}"));
    }
    for label in &view.labels {
        lines.add(LineKind::Dim, 0, &format!("[{label}]"));
    }
    for change in &view.changes {
        lines.add(LineKind::Dim, 0, change);
    }
    lines.gap();
    let before = &view.before;
    if before.messages > 0 {
        let of = before.seq.map_or(String::new(), |seq| format!(" of frame {seq}"));
        let text = format!(
            "{} as in the request{of} ({}): a shows all",
            plural(before.messages as u64, "message"),
            bytes(before.bytes)
        );
        lines.add(LineKind::Dim, 0, &text);
    }
    if view.removed > 0 {
        let text = format!("- {} of the request before", plural(view.removed as u64, "message"));
        lines.add(LineKind::Dim, 0, &text);
    }
    if view.messages.is_empty() && before.messages > 0 {
        lines.add(LineKind::Dim, 0, "no new message");
    }
    let mark = if before.messages > 0 { "+ " } else { "" };
    for message in &view.messages {
        show_message(message, mark, &mut lines);
    }
    lines.gap();
    lines.add(LineKind::Heading, 0, "answer");
    for message in &view.answer {
        show_message(message, "", &mut lines);
    }
    if view.answer.is_empty() {
        let text = match view.status {
            FrameStatus::Open => "still to come",
            FrameStatus::Aborted => "none came",
            _ => "empty",
        };
        lines.add(LineKind::Dim, 2, text);
    }
    lines.lines
}

fn heading(view: &FrameView, lines: &mut TextLines) {
    let mut text = format!("FRAME {}  {}", view.seq, view.component);
    if let Some(name) = &view.name {
        text += &format!("  {name}");
    }
    if let Some(ns) = view.duration_ns {
        text += &format!("  {}", duration(ns));
    }
    if let Some(amount) = view.dollars {
        text += &format!("  {}", dollars(amount));
    }
    if view.status != FrameStatus::Ok {
        text += &format!("  {}", view.status.name());
    }
    let kind = match view.severity {
        ShownSeverity::Ok => LineKind::Heading,
        severity => LineKind::Bad(severity),
    };
    lines.add(kind, 0, &text);
}

/// What is known about a frame, a fact a line.
pub(crate) fn facts(view: &FrameView) -> Vec<String> {
    let mut facts = Vec::new();
    if let Some(http) = &view.http {
        let status = http.status.map_or("no answer".to_owned(), |status| status.to_string());
        let api = view.api.map_or(String::new(), |api| format!("{api}  "));
        facts.push(format!("{api}{} {} → {status}", http.method, http.target));
    } else if let Some(api) = view.api {
        facts.push(api.to_owned());
    }
    if let Some(usage) = &view.usage {
        facts.extend(tokens(usage));
    }
    let answer = view.response.as_ref().map_or(0, |body| body.bytes);
    facts.push(format!("began {}", time(view.began_ns)));
    facts.push(format!("{} in, {} out", bytes(view.request.bytes), bytes(answer)));
    if let Some(parent) = view.parent {
        facts.push(format!("called by frame {parent}"));
    }
    facts
}

fn tokens(usage: &ShownUsage) -> Option<String> {
    let of = |number: Option<u64>, what: &str| number.map(|number| format!("{} {what}", count(number)));
    let all = [
        of(usage.input, "in"),
        of(usage.output, "out"),
        of(usage.cached.filter(|number| *number > 0), "cached"),
        of(usage.reasoning.filter(|number| *number > 0), "reasoning"),
    ];
    let all: Vec<String> = all.into_iter().flatten().collect();
    (!all.is_empty()).then(|| format!("tokens: {}", all.join(", ")))
}

fn show_message(message: &ConversationMessage, mark: &str, lines: &mut TextLines) {
    let at = message.at.as_ref().map_or(String::new(), |at| format!("  {at}"));
    // The heading above a plain answer says as much as its role.
    if message.role != "output" {
        lines.add(LineKind::Title, 0, &format!("{mark}{}{at}", message.role));
    }
    for part in &message.parts {
        show_part(part, lines);
    }
}

fn show_part(part: &ConversationPart, lines: &mut TextLines) {
    let rest = |lines: &mut TextLines, shown: usize, bytes_all: u64, is_cut: bool| {
        if is_cut {
            let text = format!(
                "… cut: {} of {} shown; r shows the raw bytes",
                bytes(shown as u64),
                bytes(bytes_all)
            );
            lines.add(LineKind::Dim, 2, &text);
        }
    };
    match part {
        ConversationPart::Text { text, bytes, cut } => {
            lines.add(LineKind::Plain, 2, text);
            rest(lines, text.len(), *bytes, *cut);
        }
        ConversationPart::Thinking { text, bytes, cut } => {
            lines.add(LineKind::Dim, 2, "thinking:");
            lines.add(
                LineKind::Dim,
                2,
                if text.is_empty() { "(hidden by the provider)" } else { text.as_str() },
            );
            rest(lines, text.len(), *bytes, *cut);
        }
        ConversationPart::ToolCall { id, name, arguments, bytes, cut } => {
            lines.add(LineKind::Title, 2, &format!("→ {name}{}", call_id(id)));
            lines.add(LineKind::Plain, 4, arguments);
            rest(lines, arguments.len(), *bytes, *cut);
        }
        ConversationPart::ToolResult { id, name, text, bytes, cut, error } => {
            let name = name.as_deref().unwrap_or("result");
            let failed = if *error { ", failed" } else { "" };
            let kind = if *error { LineKind::Bad(ShownSeverity::Failed) } else { LineKind::Title };
            lines.add(kind, 2, &format!("← {name}{}{failed}", call_id(id)));
            lines.add(LineKind::Plain, 4, text);
            rest(lines, text.len(), *bytes, *cut);
        }
        ConversationPart::Image { media_type, url, bytes: size, .. } => {
            let place = url.as_ref().map_or_else(|| bytes(*size), Clone::clone);
            lines.add(LineKind::Dim, 2, &format!("[image {media_type}, {place}]"));
        }
        ConversationPart::Other { json, bytes, cut } => {
            lines.add(LineKind::Plain, 2, json);
            rest(lines, json.len(), *bytes, *cut);
        }
        ConversationPart::Binary { bytes: size, hex } => {
            lines.add(
                LineKind::Dim,
                2,
                &format!("[{} that are no text; the first in hexadecimal]", bytes(*size)),
            );
            lines.add(LineKind::Plain, 2, hex);
        }
    }
}

fn call_id(id: &str) -> String {
    if id.is_empty() { String::new() } else { format!("  {id}") }
}

/// The recorded bytes of a part of a frame.
pub(crate) fn raw(name: &str, body: &[u8], look: Look, columns: usize) -> Vec<TextLine> {
    /// Bytes of a body that are shown.
    const SHOWN_MAX: usize = 200_000;
    let mut lines = TextLines::new(look, columns);
    lines.add(LineKind::Heading, 0, &format!("{name}, {}", bytes(body.len() as u64)));
    let head = body.get(..body.len().min(SHOWN_MAX)).unwrap_or_default();
    let text = String::from_utf8_lossy(head);
    if matches!(text, std::borrow::Cow::Owned(_)) {
        lines.add(LineKind::Dim, 0, "[bytes that are not UTF-8 are shown as \u{fffd}]");
    }
    lines.add(LineKind::Plain, 0, &text);
    if head.len() < body.len() {
        let more = count((body.len() - head.len()) as u64);
        lines.add(LineKind::Dim, 0, &format!("… {more} bytes more: `annals show` with --raw writes all"));
    }
    lines.lines
}

/// Any text of the program's own.
pub(crate) fn plain(text: &str, look: Look, columns: usize) -> Vec<TextLine> {
    let mut lines = TextLines::new(look, columns);
    lines.add(LineKind::Plain, 0, text);
    lines.lines
}
