//! `annals serve`: serves a store to Redis clients and recorders until a signal ends it.

use std::os::unix::net::{SocketAddr, UnixDatagram};

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
        tls_cert: args.tls_cert.clone(),
        tls_key: args.tls_key.clone(),
        http_host: args.http_host.clone(),
        profiles: args.profiles.clone(),
        slow_ms: args.slow_ms,
        idle_seconds: args.idle_seconds,
        namespace_idle_seconds: args.namespace_idle_seconds,
        retain: args.retain.clone(),
        sweep_every: args.sweep_every.clone(),
        witness: args.witness.clone(),
        witness_every: args.witness_every.clone(),
        backup_to: args.backup_to.clone(),
        backup_every: args.backup_every.clone(),
        backup_keep: args.backup_keep,
        log: args.log.map(|form| match form {
            LogFormatArg::Human => LogFormat::Human,
            LogFormatArg::Json => LogFormat::Json,
        }),
        upstreams: UpstreamOptions { upstream: args.upstream.clone(), allow_host: args.allow_host.clone() },
        tokens: Vec::new(),
        no_upgrade: global.no_upgrade,
        makes_no_token: false,
        reads_only: false,
        allow_fork: if args.allow_fork { args.command.clone() } else { Vec::new() },
        executable: std::env::current_exe().ok(),
        file: args.config.clone(),
    };
    let serving = match &args.config {
        Some(path) => {
            let read = ServeConfig::read(path).map_err(|error| match error {
                ServeError::System { .. } => Failure::failed(error, "name a file that can be read"),
                other => serve_failure(other),
            })?;
            options.with_defaults_from(read)
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
        LogFormat::Json => {
            annals_server::serve(&root, &global.namespace, &serving, |_| notify_ready(), |_| {})
        }
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
            Failure::failed(error, "check the files and addresses that the options name")
        }
    }
}

/// Prints the addresses on standard error.
fn print_addresses(began: &StartedDaemon) {
    for socket in &began.sockets {
        print_note(format_args!("listening at {}", socket.display()));
    }
    let login = if began.is_open { "without a token" } else { "with a token" };
    if let Some(address) = began.tcp {
        let tls = if began.has_tls { "with TLS, " } else { "" };
        print_note(format_args!("listening at {address}, {tls}{login}"));
    }
    if let Some(address) = began.http {
        let scheme = if began.has_tls { "https" } else { "http" };
        print_note(format_args!("listening at {scheme}://{address}, {login}"));
    }
    if let Some(token) = &began.token {
        print_note(format_args!("the token, which is shown only once: {token}"));
    }
    if let Some(page) = &began.page {
        let once = if began.is_open { "" } else { ", once and within 10 minutes" };
        print_note(format_args!("the page, in a browser{once}: {page}"));
    }
    print_note("ready");
    notify_ready();
}

/// Tells systemd that the daemon listens, if it asks for this (`Type=notify`).
fn notify_ready() {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return };
    // A service manager that does not listen ends the daemon by itself after its time limit.
    if let Err(error) = send_ready(&place) {
        tracing::warn!(%error, "the service manager could not be told that the daemon is ready");
    }
}

fn send_ready(place: &std::ffi::OsStr) -> std::io::Result<()> {
    let bytes = std::os::unix::ffi::OsStrExt::as_bytes(place);
    let address = match bytes.strip_prefix(b"@") {
        #[cfg(target_os = "linux")]
        Some(name) => <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(place)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address).map(drop)
}

fn print_waiting(count: usize) {
    print_note(format_args!("waiting for {count} recorders; Ctrl-C ends at once and abandons their runs"));
}
