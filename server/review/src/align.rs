//! Aligns two runs frame by frame.
//!
//! Frames match if component, failure flag, and the meaning of request and answer are equal. A body without a
//! known [`Meaning`] is compared by its bytes. The longest common beginning and end are taken first. Between
//! them, matching frames are paired in order; of the remaining ones, those of one component are. A call counts far more
//! than a draw, so draws that only one run has do not move calls apart.

use std::ops::Range;

use annals::{Component, RecordedFrame, RunReader};
use blake3::Hash;

use crate::frame_views::{api_and_body, redacted_frame};
use annals_policy::exchange::ExchangeMetadata;
use annals_policy::profiles::Redactor;
use annals_policy::providers::{self, FirstDifference, Meaning, MeaningDifference};

/// Maximum frames between the common ends that are aligned by content and component; more are paired by position.
const ALIGNED_MAX: usize = 2_000;
/// What a pair of calls counts; a pair of draws counts 1.
const CALL_WEIGHT: u32 = 1_000;

/// A pair of frames, or a frame that only one run has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FramePair {
    /// In both runs, with equal bytes.
    Same(u32, u32),
    /// In both runs, with different bytes.
    Changed {
        /// Frame number in the first run.
        a: u32,
        /// Frame number in the second run.
        b: u32,
        /// Whether the bytes of the request differ.
        input: bool,
        /// Whether the bytes of the answer differ.
        output: bool,
        /// Whether both mean the same despite different bytes.
        says_same: bool,
    },
    /// In the first run only.
    Dropped(u32),
    /// In the second run only.
    Added(u32),
}

/// Two aligned runs.
#[derive(Debug)]
pub struct Alignment {
    /// All frames of both runs, in order.
    pub pairs: Vec<FramePair>,
}

/// The difference between two requests, or two answers.
#[derive(Debug, Clone, PartialEq)]
pub enum BodyDifference {
    /// No difference.
    Same,
    /// The meaning differs.
    Words(Vec<MeaningDifference>),
    /// The meaning is equal and the bytes differ: the place of the first difference.
    Form(FirstDifference),
    /// Bodies without a known meaning differ: the place of the first difference.
    Bytes(FirstDifference),
    /// Only bytes that the profile hides differ.
    Hidden,
}

/// The differences between two frames.
#[derive(Debug, Clone, PartialEq)]
pub struct FrameDifference {
    /// Between the requests.
    pub request: BodyDifference,
    /// Between the answers.
    pub answer: BodyDifference,
}

struct FrameDigests {
    component: Component,
    error: bool,
    /// Hashes of the meaning of request and answer; of the bytes if the meaning is unknown. Both with their
    /// [`lines`].
    meaning: [[u8; 32]; 2],
    bytes: [Hash; 2],
}

/// What an HTTP exchange asked for and how it was answered, beside the bodies: method, path and query; the status. Empty
/// for other frames.
fn lines(frame: &RecordedFrame) -> [String; 2] {
    let Ok(ExchangeMetadata { http, .. }) = serde_json::from_slice(&frame.metadata) else {
        return Default::default();
    };
    let query = http.query.map(|query| format!("?{query}")).unwrap_or_default();
    let status = http.status.map(|status| format!("status {status}")).unwrap_or_default();
    [format!("{} {}{query}", http.method, http.path), status]
}

impl FrameDigests {
    fn of(frame: &RecordedFrame) -> Self {
        let [asked, answered] = lines(frame);
        let with_line = |line: &str, of: &[u8; 32]| {
            *blake3::Hasher::new().update(of).update(line.as_bytes()).finalize().as_bytes()
        };
        let bytes = [(&asked, &frame.input), (&answered, &frame.output)]
            .map(|(line, body)| Hash::from(with_line(line, blake3::hash(body).as_bytes())));
        let [request, answer] = meanings(frame);
        let or = |meaning: Option<Meaning>, line: &str, of: &Hash| {
            meaning.map_or(*of.as_bytes(), |said| with_line(line, &said.hash()))
        };
        let said = [or(request, &asked, &bytes[0]), or(answer, &answered, &bytes[1])];
        Self { component: frame.component.clone(), error: frame.error, meaning: said, bytes }
    }

    fn weight(&self) -> u32 {
        if self.component == Component::Nondet { 1 } else { CALL_WEIGHT }
    }

    fn matches(&self, other: &Self) -> bool {
        (&self.component, self.error, &self.meaning) == (&other.component, other.error, &other.meaning)
    }
}

/// The meaning of a model call's request and answer.
fn meanings(frame: &RecordedFrame) -> [Option<Meaning>; 2] {
    let Some((api, request)) = api_and_body(frame) else { return [None, None] };
    let said = Meaning::of_request(&api, &request);
    let Ok(exchange) = serde_json::from_slice::<ExchangeMetadata>(&frame.metadata) else {
        return [said, Meaning::of_message(&api, &frame.output)];
    };
    let header = |name: &str| exchange.volatile.response_headers.get(name);
    let answer = Meaning::of_answer(&providers::WireExchange {
        api: &api,
        request: &request,
        request_encoding: None,
        status: exchange.http.status.unwrap_or(0),
        content_type: header("content-type"),
        content_encoding: header("content-encoding"),
        response: &frame.output,
    });
    [said, answer]
}

/// Aligns two runs as they were recorded.
///
/// # Errors
/// As [`RunReader::frame`].
pub fn align(a: &RunReader, b: &RunReader) -> annals::Result<Alignment> {
    let sums = |reader: &RunReader| -> annals::Result<Vec<FrameDigests>> {
        reader.frames().map(|frame| frame.map(|frame| FrameDigests::of(&frame))).collect()
    };
    Ok(Alignment { pairs: align_frames(&sums(a)?, &sums(b)?) })
}

/// The differences between two frames as the profile `by` shows them.
#[must_use]
pub fn frame_difference(a: &RecordedFrame, b: &RecordedFrame, by: Option<&Redactor>) -> FrameDifference {
    let differs = [a.input != b.input, a.output != b.output];
    let (lines_a, lines_b) = (lines(a), lines(b));
    let lines_differ = [0, 1].map(|part: usize| lines_a[part] != lines_b[part]);
    let (a, b) = (redacted_frame(a.clone(), by), redacted_frame(b.clone(), by));
    let ([asked_a, answered_a], [asked_b, answered_b]) = (meanings(&a), meanings(&b));
    let of = |differs: bool, said: (Option<Meaning>, Option<Meaning>), a: &[u8], b: &[u8]| {
        let span = || FirstDifference::new(&String::from_utf8_lossy(a), &String::from_utf8_lossy(b));
        let words = match &said {
            (Some(a), Some(b)) => Some(a.differences(b)),
            _ => None,
        };
        match words {
            _ if !differs => BodyDifference::Same,
            Some(words) if !words.is_empty() => BodyDifference::Words(words),
            _ if a == b => BodyDifference::Hidden,
            Some(_) => BodyDifference::Form(span()),
            None => BodyDifference::Bytes(span()),
        }
    };
    let ([line_a, status_a], [line_b, status_b]) = (lines(&a), lines(&b));
    let with_line = |found: BodyDifference, differs: bool, a: &str, b: &str| match found {
        BodyDifference::Same if differs && a == b => BodyDifference::Hidden,
        BodyDifference::Same | BodyDifference::Form(_) if differs && a != b => {
            BodyDifference::Bytes(FirstDifference::new(a, b))
        }
        found => found,
    };
    let request = of(differs[0], (asked_a, asked_b), &a.input, &b.input);
    let answer = of(differs[1], (answered_a, answered_b), &a.output, &b.output);
    FrameDifference {
        request: with_line(request, lines_differ[0], &line_a, &line_b),
        answer: with_line(answer, lines_differ[1], &status_a, &status_b),
    }
}

fn align_frames(a: &[FrameDigests], b: &[FrameDigests]) -> Vec<FramePair> {
    let matched = |at_a: usize, at_b: usize| pair_frames(a, b, at_a, at_b);
    let head = a.iter().zip(b).take_while(|(a, b)| a.matches(b)).count();
    let tail = a[head..].iter().rev().zip(b[head..].iter().rev()).take_while(|(a, b)| a.matches(b)).count();
    let (mid_a, mid_b) = (head..a.len() - tail, head..b.len() - tail);
    let mut found: Vec<_> = (0..head).map(|at| matched(at, at)).collect();
    let (mut from_a, mut from_b) = (head, head);
    let common = heaviest_common_subsequence(&a[mid_a.clone()], &b[mid_b.clone()], FrameDigests::matches);
    for (at_a, at_b) in common.unwrap_or_default() {
        let (at_a, at_b) = (head + at_a, head + at_b);
        pair_unmatched(a, b, from_a..at_a, from_b..at_b, &mut found);
        found.push(matched(at_a, at_b));
        (from_a, from_b) = (at_a + 1, at_b + 1);
    }
    pair_unmatched(a, b, from_a..mid_a.end, from_b..mid_b.end, &mut found);
    found.extend((0..tail).map(|at| matched(mid_a.end + at, mid_b.end + at)));
    found
}

/// Pairs two frames.
fn pair_frames(a: &[FrameDigests], b: &[FrameDigests], at_a: usize, at_b: usize) -> FramePair {
    let (of_a, of_b) = (&a[at_a], &b[at_b]);
    let says_same = of_a.matches(of_b);
    let [input, output] = [0, 1].map(|part: usize| of_a.bytes[part] != of_b.bytes[part]);
    match says_same && !input && !output {
        true => FramePair::Same(frame_number(at_a), frame_number(at_b)),
        false => {
            FramePair::Changed { a: frame_number(at_a), b: frame_number(at_b), input, output, says_same }
        }
    }
}

/// The frame number at an index.
fn frame_number(at: usize) -> u32 {
    u32::try_from(at + 1).unwrap_or(u32::MAX)
}

/// Pairs unmatched frames of one component; the rest is dropped or added.
fn pair_unmatched(
    a: &[FrameDigests],
    b: &[FrameDigests],
    of_a: Range<usize>,
    of_b: Range<usize>,
    found: &mut Vec<FramePair>,
) {
    let of_one_kind = |a: &FrameDigests, b: &FrameDigests| a.component == b.component;
    let pairs = heaviest_common_subsequence(&a[of_a.clone()], &b[of_b.clone()], of_one_kind);
    let pairs = pairs.unwrap_or_else(|| (0..of_a.len().min(of_b.len())).map(|at| (at, at)).collect());
    let (mut from_a, mut from_b) = (of_a.start, of_b.start);
    let alone = |of_a: Range<usize>, of_b: Range<usize>, found: &mut Vec<FramePair>| {
        found.extend(of_a.map(|at| FramePair::Dropped(frame_number(at))));
        found.extend(of_b.map(|at| FramePair::Added(frame_number(at))));
    };
    for (at_a, at_b) in pairs {
        let (at_a, at_b) = (of_a.start + at_a, of_b.start + at_b);
        alone(from_a..at_a, from_b..at_b, found);
        found.push(pair_frames(a, b, at_a, at_b));
        (from_a, from_b) = (at_a + 1, at_b + 1);
    }
    alone(from_a..of_a.end, from_b..of_b.end, found);
}

/// The common subsequence of greatest weight (Wagner and Fischer's table) as index pairs; `None` if the table would be
/// too large.
fn heaviest_common_subsequence(
    a: &[FrameDigests],
    b: &[FrameDigests],
    matches: impl Fn(&FrameDigests, &FrameDigests) -> bool,
) -> Option<Vec<(usize, usize)>> {
    if a.len() > ALIGNED_MAX || b.len() > ALIGNED_MAX {
        return None;
    }
    let width = b.len() + 1;
    let mut heaviest = vec![0_u32; (a.len() + 1) * width];
    for at_a in (0..a.len()).rev() {
        for at_b in (0..b.len()).rev() {
            let without = heaviest[(at_a + 1) * width + at_b].max(heaviest[at_a * width + at_b + 1]);
            let with = heaviest[(at_a + 1) * width + at_b + 1] + a[at_a].weight();
            heaviest[at_a * width + at_b] =
                if matches(&a[at_a], &b[at_b]) { with.max(without) } else { without };
        }
    }
    let (mut at_a, mut at_b, mut found) = (0, 0, Vec::new());
    while at_a < a.len() && at_b < b.len() {
        let with = heaviest[(at_a + 1) * width + at_b + 1] + a[at_a].weight();
        if matches(&a[at_a], &b[at_b]) && heaviest[at_a * width + at_b] == with {
            found.push((at_a, at_b));
            (at_a, at_b) = (at_a + 1, at_b + 1);
        } else if heaviest[(at_a + 1) * width + at_b] >= heaviest[at_a * width + at_b + 1] {
            at_a += 1;
        } else {
            at_b += 1;
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A letter is a call, a digit a draw. Letters of one kind in both cases mean the same.
    fn digests_of_letters(text: &str) -> Vec<FrameDigests> {
        let one = |c: char| {
            let component = if c.is_ascii_digit() { Component::Nondet } else { Component::Llm };
            let bytes = [blake3::hash(&[c as u8]), blake3::hash(&[c.to_ascii_lowercase() as u8])];
            let said = bytes.map(|hash| *hash.as_bytes());
            FrameDigests { component, error: false, meaning: said, bytes }
        };
        text.chars().map(one).collect()
    }

    fn aligned_text(a: &str, b: &str) -> String {
        let one = |pair: &FramePair| match pair {
            FramePair::Same(a, b) => format!("={a}:{b}"),
            FramePair::Changed { a, b, input, output, .. } => {
                format!("~{a}:{b}{}{}", if *input { "i" } else { "" }, if *output { "o" } else { "" })
            }
            FramePair::Dropped(a) => format!("-{a}"),
            FramePair::Added(b) => format!("+{b}"),
        };
        align_frames(&digests_of_letters(a), &digests_of_letters(b))
            .iter()
            .map(one)
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn frames_align_by_content() {
        assert_eq!(aligned_text("abc", "abc"), "=1:1 =2:2 =3:3");
        assert_eq!(aligned_text("abc", "axc"), "=1:1 ~2:2io =3:3");
        assert_eq!(aligned_text("abc", "aBc"), "=1:1 ~2:2i =3:3");
        assert_eq!(aligned_text("abcd", "abd"), "=1:1 =2:2 -3 =4:3");
        assert_eq!(aligned_text("abd", "abcd"), "=1:1 =2:2 +3 =3:4");
        assert_eq!(aligned_text("abcdef", "axcyef"), "=1:1 ~2:2io =3:3 ~4:4io =5:5 =6:6");
        assert_eq!(aligned_text("", "ab"), "+1 +2");
        assert_eq!(aligned_text("ab", ""), "-1 -2");
        assert_eq!(aligned_text("aaaa", "aa"), "=1:1 =2:2 -3 -4");
    }

    /// Regression: runs with captured draws were paired by position, so a call was paired with a draw.
    #[test]
    fn draws_of_one_run_do_not_move_calls_apart() {
        assert_eq!(aligned_text("1a2b", "1x34y"), "=1:1 ~2:2io ~3:3io +4 ~4:5io");
        assert_eq!(aligned_text("a12b34c", "xyz"), "~1:1io -2 -3 ~4:2io -5 -6 ~7:3io");
        assert_eq!(aligned_text("123a", "b456"), "-1 -2 -3 ~4:1io +2 +3 +4");
    }
}
