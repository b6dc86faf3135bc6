//! `annals open --web`: the debugger page in a browser: the page of the store's daemon, else one of this process. If
//! another process holds the store, this process only reads it.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use annals::ErrorKind;
use annals_server::{ServeConfig, ServeError, StartedDaemon, ask_daemon, serve};

use super::open::named_run;
use crate::args::{GlobalArgs, OpenArgs};
use crate::failure::{CliResult, Failure};
use crate::locate;
use crate::output::{CliOutput, print_note};
use crate::profiles;
use crate::store_access::engine_failure;

pub(super) fn run(global: &GlobalArgs, args: &OpenArgs, out: &mut CliOutput) -> CliResult<()> {
    let root = locate::store(global.store.as_deref());
    // Read first, so that a wrong store, namespace or run is reported before anything listens.
    let door = super::open_to_read(global)?;
    door.refresh()?;
    let run = (args.run.is_some() || args.last_failed).then(|| named_run(&door, args)).transpose()?;
    door.check_namespace()?;
    drop(door);
    let to = run.map(|run| format!("?to=/run/{}", encode(&encode(&run.id)))).unwrap_or_default();
    let reads_only = match ask_daemon(&root, &[b"PAGE.LINK", global.namespace.as_bytes()]) {
        Ok(Some(link)) => {
            if args.port.is_some() {
                print_note("the store's daemon serves the page at its own port; --port is not used");
            }
            return show(&format!("{link}{to}"), out);
        }
        Ok(None) => false,
        // A recorder does not know the command; a daemon may have another reason.
        Err(error) => {
            if error.kind() == ErrorKind::Unavailable {
                print_note(format_args!("the daemon gives no link: {error}"));
            }
            true
        }
    };
    match serve_page(global, args, &root, &to, reads_only, out) {
        // Another process took the store meanwhile.
        Err(ServeError::Store(error)) if error.kind() == ErrorKind::Locked && !reads_only => {
            serve_page(global, args, &root, &to, true, out)
        }
        served => served,
    }
    .map_err(|error| serve_failure(error, args.port))?
}

/// Serves the page until this process is told to end. The inner result is that of printing the link.
fn serve_page(
    global: &GlobalArgs,
    args: &OpenArgs,
    root: &Path,
    to: &str,
    reads_only: bool,
    out: &mut CliOutput,
) -> Result<CliResult<()>, ServeError> {
    let serving = ServeConfig {
        http: Some(format!("127.0.0.1:{}", args.port.unwrap_or(0))),
        profiles: profiles::store_profiles(root),
        no_upgrade: global.no_upgrade,
        makes_no_token: true,
        reads_only,
        ..ServeConfig::default()
    };
    let mut shown = Ok(());
    let began = |began: &StartedDaemon| {
        if let Some(page) = &began.page {
            shown = show(&format!("{page}{to}"), out);
            print_note(match reads_only {
                true => {
                    "another process holds the store and serves no page: this page follows it, and changes nothing; it ends with Ctrl-C"
                }
                false => "the page ends with Ctrl-C; programs may record meanwhile",
            });
        }
    };
    let waiting = |count: usize| {
        print_note(format_args!("waiting for {count} recorders; Ctrl-C ends at once and abandons their runs"))
    };
    serve(root, &global.namespace, &serving, began, waiting)?;
    Ok(shown)
}

/// A text as a part of an address. A run's name is a part of the page's address, which is a value of the link.
fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => encoded.push(char::from(byte)),
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

/// Prints the link, and opens a browser where there is a screen.
fn show(link: &str, out: &mut CliOutput) -> CliResult<()> {
    match out.json {
        true => out.object(&serde_json::json!({ "page": link }))?,
        false => out.line(format_args!("the page, once and within 10 minutes: {link}"))?,
    }
    out.flush()?;
    open_browser(link);
    Ok(())
}

/// Asks the desktop to open a link. Without a desktop, or if it fails, the printed link is what there is.
fn open_browser(link: &str) {
    let has_screen = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let opener = match () {
        () if cfg!(target_os = "macos") => "open",
        () if has_screen("DISPLAY") || has_screen("WAYLAND_DISPLAY") => "xdg-open",
        () => return,
    };
    let started = Command::new(opener)
        .arg(link)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Err(error) = started {
        print_note(format_args!("no browser was opened ({opener}: {error}): open the link above"));
    }
}

fn serve_failure(error: ServeError, port: Option<u16>) -> Failure {
    match error {
        ServeError::Store(error) => engine_failure(error),
        ServeError::System { ref cause, .. } if cause.kind() == std::io::ErrorKind::AddrInUse => {
            let port = port.map_or(String::new(), |port| format!(" {port}"));
            Failure::failed(
                &error,
                format!("another program uses port{port}: --port names another, or leave it out"),
            )
        }
        error => Failure::failed(&error, "check that this machine has a free loopback port"),
    }
}
