//! SIGHUP: the tokens of the configuration file and the certificate are read again.
//!
//! Either all of it is taken over, or nothing: an invalid file leaves the daemon as it was, and the log says
//! why. Connections whose token is gone or changed end. Other options need a restart.

use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::config::{ServeConfig, ServeError};
use super::session::Daemon;
use super::tls::TlsPorts;

/// Reads the configuration again on each SIGHUP, in a task. The signal no longer ends the process.
///
/// # Errors
/// The system cannot handle the signal.
pub(super) fn reload_on_hangup(
    daemon: Arc<Daemon>,
    namespace: &str,
    serving: &ServeConfig,
    tls: watch::Sender<Option<TlsPorts>>,
) -> std::io::Result<JoinHandle<()>> {
    let mut hangups = signal(SignalKind::hangup())?;
    let (namespace, serving) = (namespace.to_owned(), serving.clone());
    let mut known = serving.file.as_deref().and_then(|file| ServeConfig::read(file).ok());
    Ok(tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            match tokio::task::block_in_place(|| reload(&daemon, &namespace, &serving, &tls)) {
                Ok(read) => {
                    if is_changed_elsewhere(known.as_ref(), read.as_ref()) {
                        tracing::warn!("options other than the tokens have changed: they need a restart");
                    }
                    known = read;
                    // As a warning, because the log for people shows nothing less.
                    tracing::warn!("SIGHUP: the tokens and the certificate were read again");
                }
                Err(error) => {
                    tracing::warn!(%error, "SIGHUP: the configuration is invalid, and the old one stays");
                }
            }
        }
    }))
}

/// Whether options that SIGHUP does not take over differ.
fn is_changed_elsewhere(known: Option<&ServeConfig>, read: Option<&ServeConfig>) -> bool {
    let others = |config: &ServeConfig| ServeConfig { tokens: Vec::new(), ..config.clone() };
    known.map(others) != read.map(others)
}

/// Takes the tokens and the certificate over; returns the file's settings.
fn reload(
    daemon: &Daemon,
    namespace: &str,
    serving: &ServeConfig,
    tls: &watch::Sender<Option<TlsPorts>>,
) -> Result<Option<ServeConfig>, ServeError> {
    let read = serving.file.as_deref().map(ServeConfig::read).transpose()?;
    let ports = serving.tls_files()?.map(|files| files.load()).transpose()?;
    if let Some(read) = &read {
        daemon.access.replace_configured(read.tokens(namespace)?)?;
    }
    // It fails only when the daemon ends.
    let _ = tls.send(ports);
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{FoundToken, Rights};
    use crate::tests::{DaemonBench, token};

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a file that a user would have")]
    fn invalid_file_keeps_the_tokens_that_were_known() {
        let bench = DaemonBench::new();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("annals.toml");
        let (sender, _tls) = watch::channel(None);
        let serving = ServeConfig { file: Some(file.clone()), ..ServeConfig::default() };
        let write = |names: &[&str]| {
            let one = |name: &&str| {
                format!(
                    "[[tokens]]\nname = \"{name}\"\nblake3 = \"{}\"\n",
                    blake3::hash(name.as_bytes()).to_hex()
                )
            };
            std::fs::write(&file, names.iter().map(one).collect::<String>()).unwrap();
        };
        let again =
            || reload(&bench.daemon, "default", &serving, &sender).map(drop).map_err(|e| e.to_string());
        let is_known = |name: &str| {
            let found = bench.daemon.access.find(name.as_bytes(), name.as_bytes(), 1);
            matches!(found, FoundToken::Valid(_))
        };
        write(&["old"]);
        again().unwrap();
        assert!(is_known("old") && !is_known("new"));
        std::fs::write(&file, "[[tokens]]\nname = \"new\"\n").unwrap();
        assert!(again().unwrap_err().contains("annals.toml:1"), "the place is named");
        assert!(is_known("old"));
        // A stored token of this name: nothing of the file is taken over.
        bench
            .daemon
            .access
            .add(crate::access::AccessToken { made_ns: 5, ..token("taken", "default", Rights::READ) });
        write(&["new", "taken"]);
        assert!(again().unwrap_err().contains("two tokens are called"));
        assert!(is_known("old") && !is_known("new"));
        write(&["new"]);
        again().unwrap();
        assert!(!is_known("old") && is_known("new"));
        let found = bench.daemon.access.find(b"taken", b"token", 1);
        assert!(matches!(found, FoundToken::Valid(_)), "stored tokens stay");
    }
}
