//! Compares a request with the previous one, part by part.
//!
//! Parameters, tools and the system prompt are compared by name. Messages are aligned by the parts that both
//! requests contain exactly once, in the longest common order (patience diff, Bram Cohen). Parts between two
//! aligned ones are paired in order if role and kind agree. The time is n log n in the number of parts, and
//! linear in the bytes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

use super::api::ModelApi;
use super::messages::{MessageView, PartKind, RequestPart, parts};
use super::text::{clip, one_line};

/// Maximum number of characters shown for each side of a difference.
const SPAN_CHARS: usize = 60;
/// Number of bytes shown before a difference.
const LEAD_BYTES: usize = 16;

/// One difference between two requests.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartChange {
    /// Only the later request has it.
    Added(MessageView),
    /// Only the earlier request has it.
    Dropped(MessageView),
    /// It replaces another part.
    Changed {
        /// The earlier part.
        before: MessageView,
        /// The later part.
        after: MessageView,
        /// Where their sources first differ.
        span: FirstDifference,
    },
}

/// Where two sources first differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstDifference {
    /// Offset of the first different byte in the part's JSON source.
    pub at: usize,
    /// The earlier text on one line, with a few bytes before the difference.
    pub was: String,
    /// The later text.
    pub is: String,
}

/// The changes from one request to the next. Its `Display` writes a line for each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestChanges {
    /// The differences: parameters, system prompt, tools, then messages in order.
    pub changes: Vec<PartChange>,
    /// How many parts are equal in both.
    pub same: usize,
}

/// A part that can be compared.
pub(super) trait ComparablePart {
    fn kind(&self) -> PartKind;
    fn name(&self) -> &str;
    /// Equal parts have equal hashes.
    fn hash(&self) -> &[u8; 32];
    /// Whether two different parts at the same position are versions of one.
    fn is_like(&self, other: &Self) -> bool;
}

/// How a part matches between two lists.
#[derive(Debug)]
pub(super) enum PartMatch<'p, T> {
    Same,
    Added(&'p T),
    Dropped(&'p T),
    Changed(&'p T, &'p T),
}

/// Compares two requests of the same interface. Bodies are JSON, decoded from their content encoding; any
/// other body counts as empty.
#[must_use]
pub fn request_changes(api: &ModelApi, before: &[u8], after: &[u8]) -> RequestChanges {
    let (before, after) = (parts(api, before), parts(api, after));
    let mut new = RequestChanges::default();
    for found in matches(&before, &after) {
        match found {
            PartMatch::Same => new.same += 1,
            PartMatch::Added(part) => new.changes.push(PartChange::Added(part.view.clone())),
            PartMatch::Dropped(part) => new.changes.push(PartChange::Dropped(part.view.clone())),
            PartMatch::Changed(old, part) => new.changes.push(PartChange::Changed {
                before: old.view.clone(),
                after: part.view.clone(),
                span: FirstDifference::new(old.source, part.source),
            }),
        }
    }
    new
}

impl ComparablePart for RequestPart<'_> {
    fn kind(&self) -> PartKind {
        self.view.kind
    }

    fn name(&self) -> &str {
        &self.view.name
    }

    fn hash(&self) -> &[u8; 32] {
        &self.view.hash
    }

    fn is_like(&self, other: &Self) -> bool {
        self.view.role == other.view.role && self.view.kind == other.view.kind
    }
}

/// Matches the parts of two requests. Parameters, system prompt and tools precede the messages.
pub(super) fn matches<'p, T: ComparablePart>(before: &'p [T], after: &'p [T]) -> Vec<PartMatch<'p, T>> {
    let beside = |part: &&T| matches!(part.kind(), PartKind::Parameter | PartKind::System | PartKind::Tool);
    let split = |parts: &[T]| parts.iter().take_while(beside).count();
    let (before, said_before) = before.split_at(split(before));
    let (after, said_after) = after.split_at(split(after));
    let mut found = Vec::new();
    by_name(before, after, &mut found);
    in_order(said_before, said_after, &mut found);
    found
}

fn by_name<'p, T: ComparablePart>(before: &'p [T], after: &'p [T], found: &mut Vec<PartMatch<'p, T>>) {
    // Equal names are told apart by their order.
    fn keyed<T: ComparablePart>(parts: &[T]) -> Vec<((PartKind, &str, usize), &T)> {
        let mut counts: HashMap<(PartKind, &str), usize> = HashMap::new();
        let mut keyed = Vec::with_capacity(parts.len());
        for part in parts {
            let count = counts.entry((part.kind(), part.name())).or_default();
            *count += 1;
            keyed.push(((part.kind(), part.name(), *count), part));
        }
        keyed
    }
    let mut left: HashMap<_, _> = keyed(before).into_iter().collect();
    for (key, part) in keyed(after) {
        found.push(match left.remove(&key) {
            Some(old) => match_pair(old, part),
            None => PartMatch::Added(part),
        });
    }
    for (key, part) in keyed(before) {
        if left.contains_key(&key) {
            found.push(PartMatch::Dropped(part));
        }
    }
}

fn in_order<'p, T: ComparablePart>(before: &'p [T], after: &'p [T], found: &mut Vec<PartMatch<'p, T>>) {
    let same = |(a, b): &(&T, &T)| a.hash() == b.hash();
    let head = before.iter().zip(after).take_while(same).count();
    let (before, after) = (&before[head..], &after[head..]);
    let tail = before.iter().rev().zip(after.iter().rev()).take_while(same).count();
    let (before, after) = (&before[..before.len() - tail], &after[..after.len() - tail]);
    found.extend((0..head + tail).map(|_| PartMatch::Same));
    let (mut from, mut to) = (0, 0);
    for (old, part) in anchors(before, after) {
        pair_unmatched(&before[from..old], &after[to..part], found);
        found.push(PartMatch::Same);
        (from, to) = (old + 1, part + 1);
    }
    pair_unmatched(&before[from..], &after[to..], found);
}

/// Positions of equal parts, ascending on both sides.
fn anchors<T: ComparablePart>(before: &[T], after: &[T]) -> Vec<(usize, usize)> {
    let old = unique(before);
    let mut pairs: Vec<(usize, usize)> =
        unique(after).into_iter().filter_map(|(hash, at)| Some(((*old.get(hash)?)?, at?))).collect();
    pairs.sort_unstable_by_key(|(_, after)| *after);
    // The longest ascending subsequence, by patience sorting.
    let mut piles: Vec<usize> = Vec::new();
    let mut previous: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    for (index, pair) in pairs.iter().enumerate() {
        let pile = piles.partition_point(|top| pairs[*top].0 < pair.0);
        previous.push(pile.checked_sub(1).and_then(|left| piles.get(left).copied()));
        match piles.get_mut(pile) {
            Some(top) => *top = index,
            None => piles.push(index),
        }
    }
    let mut row = Vec::with_capacity(piles.len());
    let mut at = piles.last().copied();
    while let Some(index) = at {
        row.push(pairs[index]);
        at = previous[index];
    }
    row.reverse();
    row
}

/// Each hash with its position, or `None` if it occurs more than once.
fn unique<T: ComparablePart>(parts: &[T]) -> HashMap<&[u8; 32], Option<usize>> {
    let mut places = HashMap::with_capacity(parts.len());
    for (at, part) in parts.iter().enumerate() {
        match places.entry(part.hash()) {
            Entry::Vacant(entry) => {
                entry.insert(Some(at));
            }
            Entry::Occupied(mut entry) => {
                entry.insert(None);
            }
        }
    }
    places
}

/// Matches the parts between two aligned ones.
fn pair_unmatched<'p, T: ComparablePart>(before: &'p [T], after: &'p [T], found: &mut Vec<PartMatch<'p, T>>) {
    let paired = before.iter().zip(after).take_while(|(a, b)| a.is_like(b)).count();
    found.extend(before.iter().zip(after).take(paired).map(|(old, part)| match_pair(old, part)));
    found.extend(before[paired..].iter().map(PartMatch::Dropped));
    found.extend(after[paired..].iter().map(PartMatch::Added));
}

fn match_pair<'p, T: ComparablePart>(old: &'p T, part: &'p T) -> PartMatch<'p, T> {
    if old.hash() == part.hash() { PartMatch::Same } else { PartMatch::Changed(old, part) }
}

impl FirstDifference {
    pub fn new(was: &str, is: &str) -> Self {
        let common = was.bytes().zip(is.bytes()).take_while(|(a, b)| a == b).count();
        let at = was.floor_char_boundary(common);
        let from = was.floor_char_boundary(at.saturating_sub(LEAD_BYTES));
        let show = |text: &str| {
            let rest = text.get(from..).unwrap_or_default();
            one_line(clip(rest, SPAN_CHARS * 8), SPAN_CHARS)
        };
        Self { at, was: show(was), is: show(is) }
    }
}

impl fmt::Display for RequestChanges {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = if self.same == 1 { "part" } else { "parts" };
        if self.changes.is_empty() {
            return writeln!(formatter, "nothing new: the same {} {parts}", self.same);
        }
        for change in &self.changes {
            writeln!(formatter, "{change}")?;
        }
        // A first request has no earlier parts.
        if self.same == 0 { Ok(()) } else { writeln!(formatter, "  and {} {parts} as before", self.same) }
    }
}

impl fmt::Display for PartChange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added(view) => write!(formatter, "+ {}: {}", PartTitle(view), view.preview),
            Self::Dropped(view) => write!(formatter, "- {}: {}", PartTitle(view), view.preview),
            Self::Changed { before, after, .. } if after.kind == PartKind::Parameter => {
                write!(formatter, "~ {}: {} -> {}", PartTitle(after), before.preview, after.preview)
            }
            Self::Changed { after, span, .. } => {
                let title = PartTitle(after);
                write!(
                    formatter,
                    "~ {title}, from byte {}\n    was  {}\n    is   {}",
                    span.at, span.was, span.is
                )
            }
        }
    }
}

/// `message 3, assistant tool call search (80 B)`.
pub(super) struct PartTitle<'a>(pub(super) &'a MessageView);

impl fmt::Display for PartTitle<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let view = self.0;
        if let Some(message) = view.message {
            write!(formatter, "message {}, ", message + 1)?;
        }
        if !view.role.is_empty() {
            write!(formatter, "{} ", one_line(&view.role, 20))?;
        }
        write!(formatter, "{}", view.kind)?;
        if !view.name.is_empty() {
            write!(formatter, " {}", one_line(&view.name, 60))?;
        }
        if view.failed {
            formatter.write_str(", failed")?;
        }
        if view.kind == PartKind::Parameter {
            Ok(())
        } else {
            write!(formatter, " ({})", ByteSize(view.bytes))
        }
    }
}

struct ByteSize(u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Shown with one decimal; a float is exact enough.
        #[expect(clippy::cast_precision_loss, reason = "shown to one decimal")]
        let bytes = self.0 as f64;
        match self.0 {
            0..1000 => write!(formatter, "{} B", self.0),
            1000..1_000_000 => write!(formatter, "{:.1} KB", bytes / 1e3),
            _ => write!(formatter, "{:.1} MB", bytes / 1e6),
        }
    }
}
