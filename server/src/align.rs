//! Two runs side by side, frame by frame.
//!
//! Frames are the same where component, request, answer and failure are. The longest common beginning and end are taken off;
//! between them frames of equal content are paired in order, and what is left over is paired by its place.

use annals::{RecordedFrame, RunReader};
use blake3::Hash;

use crate::look::api_shown;
use crate::profiles::Redactor;
use crate::providers::{self, NewPart};

/// Frames between the common ends that are aligned by content; more are paired by their place.
const ALIGNED_MAX: usize = 2_000;

/// A pair of frames, or one that the other run does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pair {
    /// In both, the same.
    Same(u32, u32),
    /// In both, not the same.
    Changed {
        /// In the first run.
        a: u32,
        /// In the second.
        b: u32,
        /// Whether what was asked differs.
        input: bool,
        /// Whether what was answered differs.
        output: bool,
    },
    /// In the first run only.
    Dropped(u32),
    /// In the second run only.
    Added(u32),
}

/// Two runs side by side.
#[derive(Debug)]
pub struct Alignment {
    /// Every frame of both, in order.
    pub pairs: Vec<Pair>,
    /// What the first changed request has in the second run and not in the first.
    pub first: Option<(u32, u32, NewPart)>,
}

#[derive(PartialEq, Eq)]
struct Sums {
    component: String,
    input: Hash,
    output: Hash,
    error: bool,
}

fn sums(reader: &RunReader) -> annals::Result<Vec<Sums>> {
    let of = |frame: RecordedFrame| Sums {
        component: frame.component.name().to_owned(),
        input: blake3::hash(&frame.input),
        output: blake3::hash(&frame.output),
        error: frame.error,
    };
    reader.frames().map(|frame| frame.map(of)).collect()
}

/// Aligns two runs. What is the same is so as it was recorded; what the first changed request has is as `by` shows it.
///
/// # Errors
/// As [`RunReader::frame`].
pub fn align(a: &RunReader, b: &RunReader, by: Option<&Redactor>) -> annals::Result<Alignment> {
    let pairs = pairs(&sums(a)?, &sums(b)?);
    let changed = pairs.iter().find_map(|pair| match pair {
        Pair::Changed { a, b, input: true, .. } => Some((*a, *b)),
        _ => None,
    });
    let mut first = None;
    if let Some((of_a, of_b)) = changed
        && let (Some((speaks, before)), Some((_, after))) =
            (api_shown(&a.frame(of_a)?, by), api_shown(&b.frame(of_b)?, by))
    {
        first = Some((of_a, of_b, providers::new_part(&speaks, &before, &after)));
    }
    Ok(Alignment { pairs, first })
}

fn pairs(a: &[Sums], b: &[Sums]) -> Vec<Pair> {
    let number = |at: usize| u32::try_from(at + 1).unwrap_or(u32::MAX);
    let head = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let tail = a[head..].iter().rev().zip(b[head..].iter().rev()).take_while(|(a, b)| a == b).count();
    let (mid_a, mid_b) = (head..a.len() - tail, head..b.len() - tail);
    let mut found: Vec<_> = (0..head).map(|at| Pair::Same(number(at), number(at))).collect();
    let (mut from_a, mut from_b) = (head, head);
    for (at_a, at_b) in common(&a[mid_a.clone()], &b[mid_b.clone()]) {
        let (at_a, at_b) = (head + at_a, head + at_b);
        between(a, b, from_a..at_a, from_b..at_b, &mut found);
        found.push(Pair::Same(number(at_a), number(at_b)));
        (from_a, from_b) = (at_a + 1, at_b + 1);
    }
    between(a, b, from_a..mid_a.end, from_b..mid_b.end, &mut found);
    found.extend((0..tail).map(|at| Pair::Same(number(mid_a.end + at), number(mid_b.end + at))));
    found
}

/// Frames without an equal one: paired by their place as long as both have one.
fn between(
    a: &[Sums],
    b: &[Sums],
    of_a: std::ops::Range<usize>,
    of_b: std::ops::Range<usize>,
    found: &mut Vec<Pair>,
) {
    let number = |at: usize| u32::try_from(at + 1).unwrap_or(u32::MAX);
    let both = of_a.len().min(of_b.len());
    for (at_a, at_b) in of_a.clone().zip(of_b.clone()) {
        let (input, output) = (a[at_a].input != b[at_b].input, a[at_a].output != b[at_b].output);
        found.push(Pair::Changed { a: number(at_a), b: number(at_b), input, output });
    }
    found.extend(of_a.skip(both).map(|at| Pair::Dropped(number(at))));
    found.extend(of_b.skip(both).map(|at| Pair::Added(number(at))));
}

/// The longest common subsequence (Wagner and Fischer's table), by places; none where that would be too large.
fn common(a: &[Sums], b: &[Sums]) -> Vec<(usize, usize)> {
    if a.is_empty() || b.is_empty() || a.len() > ALIGNED_MAX || b.len() > ALIGNED_MAX {
        return Vec::new();
    }
    let width = b.len() + 1;
    let mut longest = vec![0_u16; (a.len() + 1) * width];
    for at_a in (0..a.len()).rev() {
        for at_b in (0..b.len()).rev() {
            longest[at_a * width + at_b] = if a[at_a] == b[at_b] {
                longest[(at_a + 1) * width + at_b + 1] + 1
            } else {
                longest[(at_a + 1) * width + at_b].max(longest[at_a * width + at_b + 1])
            };
        }
    }
    let (mut at_a, mut at_b, mut found) = (0, 0, Vec::new());
    while at_a < a.len() && at_b < b.len() {
        if a[at_a] == b[at_b] {
            found.push((at_a, at_b));
            (at_a, at_b) = (at_a + 1, at_b + 1);
        } else if longest[(at_a + 1) * width + at_b] >= longest[at_a * width + at_b + 1] {
            at_a += 1;
        } else {
            at_b += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<Sums> {
        let one = |c: char| Sums {
            component: "llm".into(),
            input: blake3::hash(&[c as u8]),
            output: blake3::hash(&[c.to_ascii_lowercase() as u8]),
            error: false,
        };
        text.chars().map(one).collect()
    }

    fn shown(a: &str, b: &str) -> String {
        let one = |pair: &Pair| match pair {
            Pair::Same(a, b) => format!("={a}:{b}"),
            Pair::Changed { a, b, input, output } => {
                format!("~{a}:{b}{}{}", if *input { "i" } else { "" }, if *output { "o" } else { "" })
            }
            Pair::Dropped(a) => format!("-{a}"),
            Pair::Added(b) => format!("+{b}"),
        };
        pairs(&of(a), &of(b)).iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn frames_are_aligned_by_what_they_hold() {
        assert_eq!(shown("abc", "abc"), "=1:1 =2:2 =3:3");
        assert_eq!(shown("abc", "axc"), "=1:1 ~2:2io =3:3");
        assert_eq!(shown("abc", "aBc"), "=1:1 ~2:2i =3:3");
        assert_eq!(shown("abcd", "abd"), "=1:1 =2:2 -3 =4:3");
        assert_eq!(shown("abd", "abcd"), "=1:1 =2:2 +3 =3:4");
        assert_eq!(shown("abcdef", "axcyef"), "=1:1 ~2:2io =3:3 ~4:4io =5:5 =6:6");
        assert_eq!(shown("", "ab"), "+1 +2");
        assert_eq!(shown("ab", ""), "-1 -2");
        assert_eq!(shown("aaaa", "aa"), "=1:1 =2:2 -3 -4");
    }
}
