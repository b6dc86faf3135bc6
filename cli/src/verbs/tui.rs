//! `annals tui` and `annals open --tui`: the terminal view of the crate `annals-tui`.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use annals_server::profiles::Redactor;
use annals_tui::{Look, StartScreen, Surroundings, TerminalEnd};

use crate::address::RunAddress;
use crate::args::{GlobalArgs, OpenArgs, TuiArgs};
use crate::failure::{CliResult, Failure, SIGNAL_BASE};
use crate::output::{CliOutput, plural, printable};
use crate::profiles;
use crate::store_access::StoreAccess;

/// How long the view may take to end by itself after its terminal was closed.
const HANG_UP_WAIT: Duration = Duration::from_secs(1);

pub(super) fn run(global: &GlobalArgs, args: &TuiArgs) -> CliResult<()> {
    if global.json {
        return Err(Failure::usage("the terminal view writes no JSON", "`annals runs --json` lists runs"));
    }
    let look = required_look()?;
    let redactor = profiles::redactor(global, &args.reader)?;
    let door = super::open_to_read(global)?;
    let start = match &args.target {
        None => StartScreen::Runs,
        Some(target) => {
            let address = RunAddress::parse(target)?;
            let run = door.run(&address.run)?;
            if let Some(seq) = address.seq.filter(|seq| u64::from(*seq) > run.frames || *seq == 0) {
                let message =
                    format!("run `{}` has no frame {seq}: it has {}", run.id, plural(run.frames, "frame"));
                return Err(Failure::missing(message, "`annals show RUN` lists the frames"));
            }
            StartScreen::Run(run.id, address.seq)
        }
    };
    show(door, redactor, look, &start)
}

/// The look of the view for `annals open`; `None` if text is printed instead.
pub(super) fn wanted_look(args: &OpenArgs, out: &CliOutput) -> CliResult<Option<Look>> {
    if args.tui && out.json {
        return Err(Failure::usage("--tui writes no JSON", "leave out --tui or --json"));
    }
    if args.tui {
        return required_look().map(Some);
    }
    // A terminal that cannot show the view still shows text.
    Ok(Look::of(&surroundings()).ok().filter(|_| !args.text && !out.json))
}

fn required_look() -> CliResult<Look> {
    Look::of(&surroundings()).map_err(|unfit| {
        let hint = "`annals runs`, `annals open --text` and `annals show` print text";
        Failure::usage(format!("the terminal view cannot be shown: {}", unfit.0), hint)
    })
}

fn surroundings() -> Surroundings {
    let variable = |name: &str| std::env::var(name).ok();
    Surroundings {
        is_terminal: io::stdin().is_terminal() && io::stdout().is_terminal(),
        term: variable("TERM"),
        no_color: variable("NO_COLOR"),
        lc_all: variable("LC_ALL"),
        lc_ctype: variable("LC_CTYPE"),
        lang: variable("LANG"),
    }
}

/// Shows the view until a key or a signal ends it.
pub(super) fn show(
    door: StoreAccess,
    redactor: Option<Redactor>,
    look: Look,
    start: &StartScreen,
) -> CliResult<()> {
    let source = door.terminal_source(redactor)?;
    let (stop, signal) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI32::new(0)));
    let (stopped, by) = (Arc::clone(&stop), Arc::clone(&signal));
    annals_server::when_interrupted(move |sent| {
        by.store(sent, Ordering::Release);
        stopped.store(true, Ordering::Release);
        if sent == rustix::process::Signal::HUP.as_raw() {
            // Where the terminal is gone, the library that reads keys reads its end again and again, and never returns.
            std::thread::sleep(HANG_UP_WAIT);
            std::process::exit(SIGNAL_BASE + sent);
        }
    });
    match annals_tui::show(source, look, start, &stop) {
        Ok(TerminalEnd::Quit) => Ok(()),
        Ok(TerminalEnd::Stopped) => {
            let code = SIGNAL_BASE + signal.load(Ordering::Acquire);
            Err(Failure::Exit(u8::try_from(code).unwrap_or(u8::MAX)))
        }
        Err(error) => {
            Err(Failure::failed(printable(&error), "`annals show` and `annals doctor` may say more"))
        }
    }
}
