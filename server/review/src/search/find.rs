//! Hits of a search, as a person reads them.

use annals::{ErrorKind, Namespace, RunReader};
use annals_memory::{FrameTextHit, FrameTexts, text_share};
use annals_policy::profiles::Redactor;
use annals_policy::providers::Prices;
use serde::Serialize;

use super::catch_up::is_blame_fork;
use super::texts::message_texts;
use crate::frame_view::{FrameKind, FrameStatus, FrameView, FrameViewOptions, as_text, frame_view};

/// Bytes of text that are shown before and after the found words.
const BEFORE_BYTES: usize = 80;
const AFTER_BYTES: usize = 160;
/// Candidates that are read for a reader with a profile, for each hit that is asked for.
const REDACTED_EACH: usize = 4;
/// Most frames that are looked at to find ones that may be shown.
const CANDIDATES_MAX: usize = 1 << 14;
/// Maximum bytes of a text of a hit that are looked through.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// Maximum number of hits of a search.
pub const HITS_MAX: usize = 100;

/// The result of a search.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SearchAnswer {
    /// The best first.
    pub hits: Vec<SearchHit>,
    /// All frames that had ended are in the index. Otherwise the hits are of a part of them.
    pub is_whole: bool,
    /// Runs of which the index does not hold all texts.
    pub gaps: Vec<SearchGap>,
}

/// A run of which the index does not hold all texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SearchGap {
    pub run: String,
    /// Number of damaged frames, which are not in the index.
    pub unread: u32,
    /// Number of frames with a text of more than 1 MiB, of which only the beginning is in the index.
    pub cut: u32,
}

/// A frame that a search found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SearchHit {
    pub run: String,
    pub uid: u64,
    pub seq: u32,
    pub component: String,
    pub kind: FrameKind,
    /// The model, the tool, the name of the call, or the line of the request.
    pub name: Option<String>,
    pub status: FrameStatus,
    #[serde(serialize_with = "as_text")]
    pub began_ns: u64,
    /// The share of the question that the frame holds, from 0 to 1.
    pub score: f32,
    /// Where the frame says it; `None` if its texts only say something similar.
    pub text: Option<FoundText>,
}

/// A place in a text: the found words, and what stands around them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FoundText {
    pub before: String,
    pub found: String,
    pub after: String,
    /// The question stands there as it was asked, apart from capitals.
    pub is_exact: bool,
}

/// Finds the frames that answer a question, the best first, and of equal ones the newest. A reader with a profile finds
/// what the profile shows: the question is redacted, and so is each text before it is compared. The caller says whether the
/// index is whole.
///
/// # Errors
/// `Damaged`, `Unavailable`.
pub fn find(
    space: &Namespace,
    index: &FrameTexts,
    question: &str,
    by: Option<&Redactor>,
    count: usize,
    is_whole: bool,
) -> annals::Result<SearchAnswer> {
    let count = count.min(HITS_MAX);
    let question = by.map_or_else(|| question.to_owned(), |by| by.text(question));
    let candidates = match by {
        Some(_) => count.saturating_mul(REDACTED_EACH),
        None => count,
    };
    let prices = Prices::built_in();
    let options =
        |all| FrameViewOptions { redactor: by, all, text_bytes_max: TEXT_BYTES_MAX, prices: &prices };
    let mut hits = Vec::new();
    for (reader, found) in searched(space, index, &question, candidates)? {
        let view = match frame_view(&reader, found.seq, &options(false)) {
            Ok(view) => view,
            Err(error) if matches!(error.kind(), ErrorKind::Gone | ErrorKind::NotFound) => continue,
            Err(error) => return Err(error),
        };
        let mut texts = view_texts(&view);
        // What is new to the conversation comes first: the rest stands in earlier frames, too.
        let mut text = found_text(&texts, &question);
        if text.is_none() {
            match frame_view(&reader, found.seq, &options(true)) {
                Ok(view) => texts = view_texts(&view),
                Err(error) if matches!(error.kind(), ErrorKind::Gone | ErrorKind::NotFound) => continue,
                Err(error) => return Err(error),
            }
            text = found_text(&texts, &question);
        }
        let score = match by {
            Some(_) => match text_share(&question, &texts)? {
                Some(score) => score,
                None => continue,
            },
            None => found.score,
        };
        hits.push(SearchHit {
            text,
            run: view.run,
            uid: view.uid,
            seq: view.seq,
            component: view.component,
            kind: view.kind,
            name: view.name,
            status: view.status,
            began_ns: view.began_ns,
            score,
        });
    }
    let is_exact = |hit: &SearchHit| hit.text.as_ref().is_some_and(|text| text.is_exact);
    // Stable: of equal hits the newest stays first.
    hits.sort_by(|a, b| is_exact(b).cmp(&is_exact(a)).then(b.score.total_cmp(&a.score)));
    hits.truncate(count);
    let mut gaps = Vec::new();
    for (run, of_run) in index.gaps()? {
        match space.run_by_uid(run) {
            Ok(reader) => {
                let run = reader.info().name.clone();
                gaps.push(SearchGap { run, unread: of_run.unread, cut: of_run.cut });
            }
            Err(error) if matches!(error.kind(), ErrorKind::Gone | ErrorKind::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(SearchAnswer { hits, is_whole, gaps })
}

/// The best frames of living runs, except those of a blame's forks: earlier versions indexed them, and a blame has many.
fn searched(
    space: &Namespace,
    index: &FrameTexts,
    question: &str,
    count: usize,
) -> annals::Result<Vec<(RunReader, FrameTextHit)>> {
    let mut wanted = count;
    loop {
        let found = index.find(question, wanted)?;
        let is_all = found.len() < wanted || wanted >= CANDIDATES_MAX;
        let mut some = Vec::new();
        for found in found {
            match space.run_by_uid(found.run) {
                Ok(reader) if is_blame_fork(&reader) => {}
                Ok(reader) => some.push((reader, found)),
                // Dropped since the search began.
                Err(error) if matches!(error.kind(), ErrorKind::Gone | ErrorKind::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        if is_all || some.len() >= count {
            some.truncate(count);
            return Ok(some);
        }
        wanted = wanted.saturating_mul(4);
    }
}

/// The texts of a view, the newest first: a request repeats what was said before.
fn view_texts(view: &FrameView) -> Vec<String> {
    let mut texts = Vec::new();
    let mut add = |text: &str, _: bool| texts.push(text.to_owned());
    for messages in [&view.messages, &view.answer] {
        message_texts(messages, &mut add);
    }
    texts.reverse();
    texts
}

/// The first place that holds the whole question, else the first one that holds its longest word.
fn found_text(texts: &[String], question: &str) -> Option<FoundText> {
    let question = question.trim().to_lowercase();
    let lowered: Vec<String> = texts.iter().map(|text| text.to_lowercase()).collect();
    let mut words: Vec<&str> =
        question.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    words.sort_by_key(|word| std::cmp::Reverse(word.len()));
    for (needle, is_exact) in
        std::iter::once((&*question, true)).chain(words.into_iter().map(|word| (word, false)))
    {
        for (text, lowered) in texts.iter().zip(&lowered) {
            if let Some(at) = lowered.find(needle).filter(|_| !needle.is_empty()) {
                // Lower case may have another length: then the lower-case text is shown.
                let shown = if lowered.len() == text.len() { text } else { lowered };
                return Some(place(shown, at, at + needle.len(), is_exact));
            }
        }
    }
    None
}

fn place(text: &str, from: usize, to: usize, is_exact: bool) -> FoundText {
    let boundary = |mut at: usize| {
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let (from, to) = (boundary(from), boundary(to));
    let start = boundary(from.saturating_sub(BEFORE_BYTES));
    let end = boundary((to + AFTER_BYTES).min(text.len()));
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default().to_owned();
    FoundText { before: part(start, from), found: part(from, to), after: part(to, end), is_exact }
}
