//! `annals diff`: two runs side by side.

use annals_server::Pair;
use serde_json::json;

use crate::args::{DiffArgs, Global};
use crate::failure::{Code, Failure, Result};
use crate::out::{Out, count, many, preview, printable};
use crate::profiles;

/// Rows of frames that are not the same.
const ROWS_MAX: usize = 200;

pub(super) fn run(global: &Global, args: &DiffArgs, out: &mut Out) -> Result<()> {
    let redactor = profiles::of(global, &args.reader)?;
    let redactor = redactor.as_ref();
    let door = super::reading(global)?;
    let (a, b) = (door.reader(&args.a)?, door.reader(&args.b)?);
    let alignment = door.align(&a, &b, redactor)?;
    let (name_a, name_b) = (a.info().name.clone(), b.info().name.clone());
    let same = alignment.pairs.iter().filter(|pair| matches!(pair, Pair::Same(..))).count();
    let other: Vec<_> = alignment.pairs.iter().filter(|pair| !matches!(pair, Pair::Same(..))).collect();
    if out.json {
        for pair in &alignment.pairs {
            let object = match pair {
                Pair::Same(a, b) => json!({ "same": true, "a": a, "b": b }),
                Pair::Changed { a, b, input, output } => {
                    json!({ "same": false, "a": a, "b": b, "input": input, "output": output })
                }
                Pair::Dropped(a) => json!({ "same": false, "a": a }),
                Pair::Added(b) => json!({ "same": false, "b": b }),
            };
            out.object(&object)?;
        }
    } else {
        profiles::note(redactor);
        let mut rows = Vec::new();
        for pair in other.iter().take(ROWS_MAX) {
            let (mark, of_a, of_b, what) = match pair {
                Pair::Same(..) => continue,
                Pair::Changed { a, b, input: true, output: true } => {
                    ("~", Some(*a), Some(*b), "request and answer")
                }
                Pair::Changed { a, b, input: true, .. } => ("~", Some(*a), Some(*b), "request"),
                Pair::Changed { a, b, output: true, .. } => ("~", Some(*a), Some(*b), "answer"),
                Pair::Changed { a, b, .. } => ("~", Some(*a), Some(*b), "component or failure"),
                Pair::Dropped(a) => ("-", Some(*a), None, "in the first only"),
                Pair::Added(b) => ("+", None, Some(*b), "in the second only"),
            };
            let shown = |run: &str, seq: Option<u32>| match seq {
                Some(seq) => {
                    door.frame(run, seq).map(|frame| preview(&profiles::shown(redactor, frame).output, 36))
                }
                None => Ok(String::new()),
            };
            let number = |seq: Option<u32>| seq.map(|seq| seq.to_string()).unwrap_or_default();
            rows.push(vec![
                mark.to_owned(),
                number(of_a),
                number(of_b),
                what.to_owned(),
                shown(&name_a, of_a)?,
                shown(&name_b, of_b)?,
            ]);
        }
        if !rows.is_empty() {
            out.table(&["", ">A", ">B", "DIFFERS", "ANSWER IN A", "ANSWER IN B"], rows)?;
        }
        if other.len() > ROWS_MAX {
            out.line(format_args!("and {} more", count((other.len() - ROWS_MAX) as u64)))?;
        }
        if let Some((a, b, new)) = &alignment.first {
            out.line(format_args!("\n{name_b}@{b} beside {name_a}@{a}:"))?;
            out.line(printable(new.to_string().trim_end()))?;
        }
        let (same, other) = (many(same as u64, "frame"), count(other.len() as u64));
        out.line(format_args!("{same} the same, {other} not"))?;
    }
    if other.is_empty() { Ok(()) } else { Err(Failure::Silent(Code::Damage)) }
}
