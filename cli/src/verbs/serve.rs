//! `annals serve`: serves a store to Redis clients and recorders until a signal ends it.

use annals_server::{LogFormat, ServeConfig, ServeError, StartedDaemon, UpstreamOptions};

use crate::args::{GlobalArgs, LogFormatArg, ServeArgs};
use crate::failure::{CliResult, Failure};
use crate::locate;
use crate::output::print_note;
use crate::profiles;
use crate::store_access::engine_failure;

pub(super) fn run(global: &GlobalArgs, args: &ServeArgs) -> CliResult<()> {
    let options = ServeConfig {
        socket: args.socket.clone(),
        tcp: args.tcp.clone(),
        http: args.http.clone(),
        no_auth: args.no_auth,
        profiles: args.profiles.clone(),
        slow_ms: args.slow_ms,
        idle_seconds: args.idle_seconds,
        namespace_idle_seconds: args.namespace_idle_seconds,
        retain: args.retain.clone(),
        sweep_every: args.sweep_every.clone(),
        witness: args.witness.clone(),
        witness_every: args.witness_every.clone(),
        log: args.log.map(|form| match form {
            LogFormatArg::Human => LogFormat::Human,
            LogFormatArg::Json => LogFormat::Json,
        }),
        upstreams: UpstreamOptions { upstream: args.upstream.clone(), allow_host: args.allow_host.clone() },
        tokens: Vec::new(),
        no_upgrade: global.no_upgrade,
    };
    let serving = match &args.config {
        Some(path) => {
            #[expect(clippy::disallowed_methods, reason = "a file of the user's, not of a store")]
            let text = std::fs::read(path).map_err(|error| {
                let message = format!("cannot read {}: {error}", path.display());
                Failure::failed(message, "name a file that can be read")
            })?;
            options.with_defaults_from(
                ServeConfig::parse(&String::from_utf8_lossy(&text), &path.display().to_string())
                    .map_err(serve_failure)?,
            )
        }
        None => options,
    };
    let root = locate::store(global.store.as_deref());
    let serving =
        ServeConfig { profiles: serving.profiles.or_else(|| profiles::store_profiles(&root)), ..serving };
    let log = serving.log.unwrap_or_default();
    start_log(log);
    let served = match log {
        LogFormat::Human => {
            annals_server::serve(&root, &global.namespace, &serving, print_addresses, print_waiting)
        }
        // A program that reads the JSON log cannot parse lines of text.
        LogFormat::Json => annals_server::serve(&root, &global.namespace, &serving, |_| {}, |_| {}),
    };
    served.map_err(serve_failure)
}

/// Starts the log on standard error: warnings for a person, everything as JSON for a program.
fn start_log(log: LogFormat) {
    let tells = tracing_subscriber::fmt().with_writer(std::io::stderr);
    // Setting a second subscriber would fail, but this process sets only one.
    let _ = match log {
        LogFormat::Human => {
            let colour = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
            let tells = tells.with_max_level(tracing::Level::WARN).with_ansi(colour).with_target(false);
            tracing::subscriber::set_global_default(tells.finish())
        }
        LogFormat::Json => {
            let tells = tells.with_max_level(tracing::Level::INFO).json().flatten_event(true);
            tracing::subscriber::set_global_default(tells.finish())
        }
    };
}

fn serve_failure(error: ServeError) -> Failure {
    match error {
        ServeError::Store(error) => engine_failure(error),
        ServeError::Refused(_) => Failure::usage(error, "`annals serve --help` lists the valid options"),
        ServeError::System { .. } => {
            Failure::failed(error, "name another place with --socket, --tcp or --http")
        }
    }
}

/// Prints the addresses on standard error.
fn print_addresses(began: &StartedDaemon) {
    for socket in &began.sockets {
        print_note(format_args!("listening at {}", socket.display()));
    }
    if let Some(address) = began.tcp {
        let login = if began.is_open { "without a token" } else { "with a token" };
        print_note(format_args!("listening at {address}, {login}"));
    }
    if let Some(address) = began.http {
        let login = if began.is_open { "without a token" } else { "with a token" };
        print_note(format_args!("listening at http://{address}, {login}"));
    }
    if let Some(token) = &began.token {
        print_note(format_args!("the token, which is shown only once: {token}"));
    }
    print_note("ready");
}

fn print_waiting(count: usize) {
    print_note(format_args!("waiting for {count} recorders; Ctrl-C ends at once and abandons their runs"));
}
