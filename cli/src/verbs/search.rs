//! `annals search`: finds frames by what was said in them.

use annals_server::search::{SearchAnswer, SearchHit};

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
    let count = args.count.map_or(HITS_DEFAULT, usize::from);
    let answer = door.search(&question, redactor.as_ref(), count, not_indexed.is_none())?;
    profiles::print_redaction_note(redactor.as_ref());
    for hit in &answer.hits {
        match out.json {
            true => out.object(hit)?,
            false => print_hit(hit, out)?,
        }
    }
    out.flush()?;
    print_gaps(&answer);
    match not_indexed {
        Some(failure) if !answer.is_whole => {
            Err(failure.with_end("; the newest frames are not indexed and were not searched"))
        }
        _ if answer.hits.is_empty() => Err(Failure::missing(
            format!("no frame says {question:?}"),
            "frequent words alone find nothing: add a word that stands for the matter",
        )),
        _ => Ok(()),
    }
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
