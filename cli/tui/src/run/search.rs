//! Text that is looked for in the frames of a run, some frames at a time.

use annals_policy::providers::{ConversationMessage, ConversationPart};
use annals_review::FrameView;

use super::{FrameMode, LinesKey, RunScreen};
use crate::look::Look;
use crate::numbers::{count, plural};
use crate::source::RunSource;

/// Frames that one tick of a search reads.
const SEARCHED_FRAMES: usize = 20;
/// A search through the frames that is under way.
#[derive(Debug)]
pub(super) struct FrameSearch {
    text: String,
    /// The next frame to look at, and how many are left.
    next: usize,
    left: usize,
}

impl RunScreen {
    /// Begins to search the frames after the selected one, around the end. An empty text repeats the last.
    pub(crate) fn find(&mut self, text: &str) -> Result<(), String> {
        if !text.is_empty() {
            self.last_search = text.to_owned();
        }
        if self.last_search.is_empty() {
            return Err("there is no text to find: / asks for it".to_owned());
        }
        if self.shown.is_empty() {
            return Err("there are no frames to search".to_owned());
        }
        let text = self.last_search.to_lowercase();
        self.search = Some(FrameSearch { text, next: self.selected + 1, left: self.shown.len() });
        Ok(())
    }

    /// Searches some more frames. `None` if no search is under way; else a message.
    pub(crate) fn search_on(&mut self, source: &RunSource) -> Option<String> {
        let mut search = self.search.take().filter(|_| !self.shown.is_empty())?;
        for _ in 0..SEARCHED_FRAMES {
            if search.left == 0 {
                return Some(format!("no frame has \"{}\"", self.last_search));
            }
            let at = search.next % self.shown.len();
            (search.next, search.left) = (at + 1, search.left - 1);
            let Some(row) = self.shown.get(at).and_then(|at| self.rows.get(*at)) else { continue };
            let seq = row.seq;
            // A damaged frame holds no text that can be found.
            let holds = source.view(&self.reader, seq, false).is_ok_and(|view| holds(&view, &search.text));
            if holds {
                self.move_to(at);
                self.mode = FrameMode::Conversation;
                self.scroll_to(source, &search.text);
                return Some(format!("found in frame {seq}: * finds the next"));
            }
        }
        let done = self.shown.len() - search.left;
        let message = format!(
            "searching: {} of {}; esc stops",
            count(done as u64),
            plural(self.shown.len() as u64, "frame")
        );
        self.search = Some(search);
        Some(message)
    }

    pub(crate) fn is_searching(&self) -> bool {
        self.search.is_some()
    }

    fn scroll_to(&mut self, source: &RunSource, text: &str) {
        let Some(key) = self.made_for.clone() else { return };
        let Some(seq) = self.seq() else { return };
        // The lines are made anew for the frame that was found, at the width of the last drawing.
        self.make_lines(
            source,
            Look { colour: false, unicode: true },
            LinesKey { seq, mode: self.mode, ..key },
        );
        let found = self.lines.iter().position(|line| line.text.to_lowercase().contains(text));
        self.scroll = found.unwrap_or(0).saturating_sub(2);
        self.made_for = None;
    }
}

fn holds(view: &FrameView, text: &str) -> bool {
    let of = |words: &str| words.to_lowercase().contains(text);
    let part = |part: &ConversationPart| match part {
        ConversationPart::Text { text, .. } | ConversationPart::Thinking { text, .. } => of(text),
        ConversationPart::ToolCall { name, arguments, .. } => of(name) || of(arguments),
        ConversationPart::ToolResult { name, text, .. } => name.as_deref().is_some_and(of) || of(text),
        ConversationPart::Other { json, .. } => of(json),
        ConversationPart::Image { .. } | ConversationPart::Binary { .. } => false,
    };
    let message = |message: &ConversationMessage| message.parts.iter().any(part);
    view.messages.iter().chain(&view.answer).any(message)
        || [&view.name, &view.error, &view.why].into_iter().flatten().any(|words| of(words))
}
