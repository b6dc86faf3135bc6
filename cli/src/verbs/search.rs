//! `annals search`: finds frames by what was said in them, and runs by what they were asked.

use annals_server::profiles::Redactor;
use annals_server::search::{RunHit, SearchAnswer, SearchHit};

use crate::args::{GlobalArgs, SearchArgs};
use crate::failure::{CliResult, Failure};
use crate::locate;
use crate::output::{CliOutput, plural, print_note, printable};
use crate::profiles;
use crate::store_access::{StoreAccess, StoreWait};

/// Default number of hits.
const HITS_DEFAULT: usize = 20;

pub(super) fn run(global: &GlobalArgs, args: &SearchArgs, out: &mut CliOutput) -> CliResult<()> {
    let root = locate::store(global.store.as_deref());
    let question = args.text.join(" ");
    let redactor = profiles::redactor(global, &args.reader)?;
    // Read first, so that a wrong store or namespace is reported as by other verbs.
    super::open_to_read(global)?.check_namespace()?;
    let count = args.count.map_or(HITS_DEFAULT, usize::from);
    if args.meaning {
        return by_meaning(global, &question, redactor.as_ref(), count, out);
    }
    let mut is_told = false;
    let mut progress = || {
        if !std::mem::replace(&mut is_told, true) {
            print_note("indexing the frames that came since the last search");
        }
    };
    let wait = StoreWait::from_args(global);
    let indexed = StoreAccess::index_frames(&root, &global.namespace, args.rebuild, wait, &mut progress);
    let not_indexed = match indexed {
        // Else the answer would be that of the old index.
        Err(failure) if args.rebuild => return Err(failure),
        indexed => indexed.err(),
    };
    let door = super::open_to_read(global)?;
    door.refresh()?;
    let answer = door.search(&question, redactor.as_ref(), count, not_indexed.is_none())?;
    profiles::print_redaction_note(redactor.as_ref());
    for hit in &answer.hits {
        match out.json {
            true => out.object(hit)?,
            false => print_hit(hit, out)?,
        }
    }
    out.flush()?;
    if answer.hits.len() >= count {
        print_note(format_args!(
            "these are the {count} best; --count lists up to 100, more words find others"
        ));
    }
    print_gaps(&answer);
    match not_indexed {
        Some(failure) if !answer.is_whole => {
            Err(failure.with_end("; the newest frames are not indexed and were not searched"))
        }
        // What the damaged frames say is not known.
        _ if answer.gaps.iter().any(|gap| gap.unread > 0) => Err(Failure::damage(
            "damaged frames were not searched",
            "`annals doctor` lists the damage and the remedies",
        )),
        _ if answer.hits.is_empty() => Err(Failure::missing(
            format!("nothing was found for {question:?}"),
            match has_unspaced(&question) {
                // The index has words, and of such a text a whole stretch is one word.
                true => {
                    "of Chinese, Japanese or Thai, only whole stretches between spaces and punctuation are found"
                }
                false => "frequent words alone find nothing: add a word that stands for the matter",
            },
        )),
        _ => Ok(()),
    }
}

/// Whether a text has letters of a script that puts no spaces between words.
fn has_unspaced(text: &str) -> bool {
    text.chars().any(|c| {
        matches!(c, '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'
            | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}'
            | '\u{20000}'..='\u{3ffff}')
    })
}

fn by_meaning(
    global: &GlobalArgs,
    question: &str,
    by: Option<&Redactor>,
    count: usize,
    out: &mut CliOutput,
) -> CliResult<()> {
    let answer = super::open_to_read(global)?.search_by_meaning(question, by, count)?;
    profiles::print_redaction_note(by);
    for hit in &answer.hits {
        match out.json {
            true => out.object(hit)?,
            false => print_run(hit, out)?,
        }
    }
    out.flush()?;
    if !answer.not_compared.is_empty() {
        let others: Vec<String> = answer.not_compared.iter().map(|other| printable(other)).collect();
        print_note(format_args!(
            "memory of other embedders was not compared: {} (this search: {})",
            others.join(", "),
            printable(&answer.embedder)
        ));
    }
    match answer.hits.is_empty() {
        true => Err(Failure::missing(
            format!("no question of a run is near to {question:?}"),
            "runs without an entry in memory are not found: docs/run-memory.md names them",
        )),
        false => Ok(()),
    }
}

fn print_run(hit: &RunHit, out: &mut CliOutput) -> CliResult<()> {
    let gone = if hit.gone { "  gone: only its memory is left" } else { "" };
    let (run, identity) = (printable(&hit.run), printable(&hit.identity));
    out.line(format_args!("{run}@{}  {identity}  {:.2}{gone}", hit.best.seq, hit.best.score))?;
    let one_line = |text: &str| printable(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    out.line(format_args!("    {}", one_line(&hit.best.question)))?;
    out.line(format_args!("    > {}", one_line(&hit.best.answer)))?;
    for other in &hit.others {
        out.line(format_args!("    @{}  {:.2}  {}", other.seq, other.score, one_line(&other.question)))?;
    }
    Ok(())
}

fn print_hit(hit: &SearchHit, out: &mut CliOutput) -> CliResult<()> {
    let name = hit.name.as_deref().unwrap_or(&hit.component);
    out.line(format_args!("{}@{}  {}  {:.2}", printable(&hit.run), hit.seq, printable(name), hit.score))?;
    match &hit.text {
        Some(text) => {
            let text = format!("{}{}{}", text.before, text.found, text.after);
            let words: Vec<&str> = text.split_whitespace().collect();
            out.line(format_args!("    {}", printable(&words.join(" "))))
        }
        None => out.line("    (similar words)"),
    }
}

/// Says which runs are not in the index, or only in part.
fn print_gaps(answer: &SearchAnswer) {
    for gap in &answer.gaps {
        let run = printable(&gap.run);
        if gap.unread > 0 {
            print_note(format_args!(
                "{run}: {} damaged and not searched",
                plural(gap.unread.into(), "frame")
            ));
        }
        if gap.cut > 0 {
            print_note(format_args!(
                "{run}: {} with a text of more than 1 MiB, of which the rest was not searched",
                plural(gap.cut.into(), "frame")
            ));
        }
    }
}
