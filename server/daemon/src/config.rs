//! The daemon's configuration: options, the environment, or a TOML file. The first that has a value wins.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use annals::retention::RetentionPolicy;
use serde::Deserialize;

use super::access::{AccessToken, Rights, check_profile, parse_time_ns};
use super::backups::BACKUPS_KEPT;
use super::session::ServeTimeouts;
use super::tls::TlsFiles;
use annals_policy::profiles::{PROFILES_BYTES_MAX, Profiles};
use annals_policy::rules::parse_policy;
use annals_proxy::proxy::UpstreamOptions;

/// How a store is served.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServeConfig {
    /// A Unix socket besides the store's own.
    pub socket: Option<PathBuf>,
    /// A loopback address for Redis clients, such as `127.0.0.1:7420`.
    pub tcp: Option<String>,
    /// A loopback address for HTTP, such as `127.0.0.1:7421`.
    pub http: Option<String>,
    /// Whether TCP and HTTP require no token.
    pub no_auth: bool,
    /// The certificate chain of the TCP and HTTP ports, a PEM file. With it they require TLS.
    pub tls_cert: Option<PathBuf>,
    /// The private key of `tls_cert`, a PEM file.
    pub tls_key: Option<PathBuf>,
    /// Host names that HTTP requests may name besides this machine's, such as `annals.example` or
    /// `annals.example:443`.
    pub http_host: Vec<String>,
    /// A file of profiles for redacted readers.
    pub profiles: Option<PathBuf>,
    /// Milliseconds after which a turn is logged as slow. Default: 100.
    pub slow_ms: Option<u64>,
    /// Seconds after which an inactive connection is closed. Default: 0, never.
    pub idle_seconds: Option<u64>,
    /// Seconds after which a namespace that nobody uses is closed. Default: 300; 0 means never.
    pub namespace_idle_seconds: Option<u64>,
    /// A retention policy (a TOML file) by which runs are dropped on a schedule; `default` is the built-in
    /// policy.
    pub retain: Option<PathBuf>,
    /// Interval of the schedule, such as `1h`. Default: one hour.
    pub sweep_every: Option<String>,
    /// A folder that gets a checkpoint of the ledger on a schedule.
    pub witness: Option<PathBuf>,
    /// Interval between two witnesses, such as `30min`. Default: one hour.
    pub witness_every: Option<String>,
    /// A folder that gets a backup of the store on a schedule.
    pub backup_to: Option<PathBuf>,
    /// Interval between two backups, such as `6h`. Default: one day.
    pub backup_every: Option<String>,
    /// How many backups are kept. Default: 14.
    pub backup_keep: Option<usize>,
    /// The format of the program's log. The daemon itself only emits `tracing` events.
    pub log: Option<LogFormat>,
    /// The command that clients of the HTTP port may continue a run with, as a fork. Empty: they start none.
    pub allow_fork: Vec<String>,
    /// The upstreams of the proxy.
    #[serde(flatten)]
    pub upstreams: UpstreamOptions,
    /// Tokens besides those stored in the store.
    pub tokens: Vec<ConfiguredToken>,
    /// Whether a store of an older format is refused instead of upgraded. Only the caller sets it.
    #[serde(skip)]
    pub no_upgrade: bool,
    /// Whether no token is made if there is none: then only links to the page log in. Only the caller sets it.
    #[serde(skip)]
    pub makes_no_token: bool,
    /// Whether the store is only read, because another process holds it: then there is no socket, no schedule, and
    /// nobody has the right to record. What the other process writes is followed. Only the caller sets it.
    #[serde(skip)]
    pub reads_only: bool,
    /// The program `annals`, which makes forks. Only the caller sets it.
    #[serde(skip)]
    pub executable: Option<PathBuf>,
    /// The file that these settings come from. Its tokens are read again on SIGHUP. Only the caller sets it.
    #[serde(skip)]
    pub file: Option<PathBuf>,
}

/// The format of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Human,
    /// One JSON object per line.
    Json,
}

/// A token of the configuration; its text is kept elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfiguredToken {
    /// Its name.
    pub name: String,
    /// The namespace that it gives access to; the daemon's if none is named.
    pub namespace: Option<String>,
    /// `record`, `read`, `redacted`, `operate`, separated by commas. Default: all.
    pub rights: Option<Rights>,
    /// The profile of a reader with the right `redacted`.
    pub profile: Option<String>,
    /// The BLAKE3 hash of its text, in hexadecimal digits. The text must be long and random: the hash of a
    /// chosen word can be guessed.
    pub blake3: String,
    /// When it expires, as RFC 3339 (`2026-12-31T00:00:00Z`). Default: never.
    pub expires: Option<String>,
}

/// Why a store is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration is invalid or not supported.
    #[error("{0}")]
    Refused(String),
    /// An error of the store.
    #[error(transparent)]
    Store(#[from] annals::Error),
    /// An error of the system.
    #[error("{what}: {cause}")]
    System {
        /// The operation that failed.
        what: String,
        /// The system's error.
        #[source]
        cause: std::io::Error,
    },
}

/// Default interval between retention sweeps and between witnesses, and the minimum interval in nanoseconds.
const EVERY: Duration = Duration::from_secs(3600);
const BACKUP_EVERY: Duration = Duration::from_secs(24 * 3600);
const EVERY_MIN_NS: u64 = 1_000_000_000;

/// The policy by which runs are dropped, and the interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RetentionSchedule {
    pub(super) policy: RetentionPolicy,
    pub(super) every: Duration,
}

/// Where checkpoints are kept, and the interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WitnessSchedule {
    pub(super) folder: PathBuf,
    pub(super) every: Duration,
}

/// Where backups are kept, how many, and the interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BackupSchedule {
    pub(super) folder: PathBuf,
    pub(super) keep: usize,
    pub(super) every: Duration,
}

/// How forks are started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ForkCommand {
    /// The program `annals`.
    pub(super) executable: PathBuf,
    pub(super) store: PathBuf,
    /// The command that a fork continues with.
    pub(super) command: Vec<String>,
}

/// Addresses to listen at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListenAddresses {
    pub(super) tcp: Option<SocketAddr>,
    pub(super) http: Option<SocketAddr>,
}

impl ServeConfig {
    /// Parses a configuration file; `file` is its name in errors.
    ///
    /// # Errors
    /// `Refused` for an invalid file, with its name, the line and the column.
    pub fn parse(text: &str, file: &str) -> Result<Self, ServeError> {
        toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
            ServeError::Refused(format!("{file}:{line}:{column}: {}", error.message()))
        })
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// `System` for a file that cannot be read; as [`ServeConfig::parse`].
    pub fn read(file: &Path) -> Result<Self, ServeError> {
        #[expect(clippy::disallowed_methods, reason = "a file of the user's, not of a store")]
        let text = std::fs::read(file)
            .map_err(|cause| ServeError::System { what: format!("cannot read {}", file.display()), cause })?;
        let read = Self::parse(&String::from_utf8_lossy(&text), &file.display().to_string())?;
        Ok(Self { file: Some(file.to_owned()), ..read })
    }

    /// These settings, with missing ones taken from a file.
    #[must_use]
    pub fn with_defaults_from(self, other: Self) -> Self {
        Self {
            socket: self.socket.or(other.socket),
            tcp: self.tcp.or(other.tcp),
            http: self.http.or(other.http),
            no_auth: self.no_auth || other.no_auth,
            tls_cert: self.tls_cert.or(other.tls_cert),
            tls_key: self.tls_key.or(other.tls_key),
            http_host: if self.http_host.is_empty() { other.http_host } else { self.http_host },
            profiles: self.profiles.or(other.profiles),
            slow_ms: self.slow_ms.or(other.slow_ms),
            idle_seconds: self.idle_seconds.or(other.idle_seconds),
            namespace_idle_seconds: self.namespace_idle_seconds.or(other.namespace_idle_seconds),
            retain: self.retain.or(other.retain),
            sweep_every: self.sweep_every.or(other.sweep_every),
            witness: self.witness.or(other.witness),
            witness_every: self.witness_every.or(other.witness_every),
            backup_to: self.backup_to.or(other.backup_to),
            backup_every: self.backup_every.or(other.backup_every),
            backup_keep: self.backup_keep.or(other.backup_keep),
            log: self.log.or(other.log),
            allow_fork: if self.allow_fork.is_empty() { other.allow_fork } else { self.allow_fork },
            upstreams: if self.upstreams == UpstreamOptions::default() {
                other.upstreams
            } else {
                self.upstreams
            },
            tokens: if self.tokens.is_empty() { other.tokens } else { self.tokens },
            no_upgrade: self.no_upgrade || other.no_upgrade,
            makes_no_token: self.makes_no_token || other.makes_no_token,
            reads_only: self.reads_only || other.reads_only,
            executable: self.executable.or(other.executable),
            file: self.file.or(other.file),
        }
    }

    /// The profiles that readers may have.
    ///
    /// # Errors
    /// `Refused` for an invalid file, with the position; `System` for a file that cannot be read.
    pub(super) fn profiles(&self) -> Result<Profiles, ServeError> {
        let Some(file) = &self.profiles else { return Ok(Profiles::default()) };
        let shown = file.display();
        let limit = PROFILES_BYTES_MAX as u64 + 1;
        #[expect(clippy::disallowed_methods, reason = "a file of the user's, not of a store")]
        let opened = std::fs::File::open(file);
        let mut text = String::new();
        opened
            .and_then(|opened| opened.take(limit).read_to_string(&mut text))
            .map_err(|cause| ServeError::System { what: format!("cannot read {shown}"), cause })?;
        Profiles::parse(&text).map_err(|error| {
            ServeError::Refused(format!("{shown}:{}:{}: {}", error.line, error.column, error.what))
        })
    }

    /// The addresses to listen at.
    ///
    /// # Errors
    /// `Refused` for an address that is malformed, or that others can reach without TLS or without a token.
    pub(super) fn listen_addresses(&self) -> Result<ListenAddresses, ServeError> {
        let (has_tls, is_open) = (self.tls_files()?.is_some(), self.no_auth);
        let place =
            |text: &Option<String>| text.as_deref().map(|text| address(text, has_tls, is_open)).transpose();
        Ok(ListenAddresses { tcp: place(&self.tcp)?, http: place(&self.http)? })
    }

    /// The files for TLS; `None` if it is off.
    ///
    /// # Errors
    /// `Refused` if only one is named.
    pub(super) fn tls_files(&self) -> Result<Option<TlsFiles>, ServeError> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert: cert.clone(), key: key.clone() })),
            (None, None) => Ok(None),
            (Some(_), None) => {
                Err(ServeError::Refused("tls_cert needs tls_key, the file of its private key".to_owned()))
            }
            (None, Some(_)) => {
                Err(ServeError::Refused("tls_key needs tls_cert, the file of its certificate".to_owned()))
            }
        }
    }

    /// The timeouts of connections and turns.
    pub(super) fn timeouts(&self) -> ServeTimeouts {
        let default = ServeTimeouts::default();
        let limit = |seconds: u64| (seconds > 0).then(|| Duration::from_secs(seconds));
        ServeTimeouts {
            slow_ms: self.slow_ms.unwrap_or(default.slow_ms),
            idle: self.idle_seconds.and_then(limit),
            namespace_idle: self.namespace_idle_seconds.map_or(default.namespace_idle, limit),
        }
    }

    /// The policy by which runs are dropped, and the interval.
    ///
    /// # Errors
    /// `Refused` for an invalid or unreadable policy, and for an invalid interval.
    pub(super) fn schedule(&self) -> Result<Option<RetentionSchedule>, ServeError> {
        let refused = |what: String| Err(ServeError::Refused(what));
        let every = interval("sweep_every", self.sweep_every.as_deref(), EVERY)?;
        let Some(path) = &self.retain else {
            return match &self.sweep_every {
                Some(_) => refused(
                    "sweep_every needs retain, which says by which policy runs are dropped".to_owned(),
                ),
                None => Ok(None),
            };
        };
        if path.as_os_str() == "default" {
            return Ok(Some(RetentionSchedule { policy: RetentionPolicy::default(), every }));
        }
        #[expect(clippy::disallowed_methods, reason = "a file of the user's, not of a store")]
        let text = std::fs::read(path).map_err(|cause| ServeError::System {
            what: format!("cannot read the policy {}", path.display()),
            cause,
        })?;
        let Ok(text) = String::from_utf8(text) else {
            return refused(format!("the policy {} is not UTF-8", path.display()));
        };
        match parse_policy(&text) {
            Ok(policy) => Ok(Some(RetentionSchedule { policy, every })),
            Err(error) => {
                refused(format!("{}:{}:{}: {}", path.display(), error.line, error.column, error.what))
            }
        }
    }

    /// The command that clients may start for a store; `None` if they start none.
    ///
    /// # Errors
    /// `Refused` without an HTTP port, and if the caller names no program that makes forks.
    pub(super) fn fork_command(&self, store: &Path) -> Result<Option<ForkCommand>, ServeError> {
        if self.allow_fork.is_empty() {
            return Ok(None);
        }
        let refused = |what: &str| ServeError::Refused(what.to_owned());
        if self.http.is_none() {
            return Err(refused("allow_fork needs http: forks are started over HTTP"));
        }
        if self.no_auth {
            return Err(refused(
                "allow_fork needs tokens: without them every user of this machine could run the command",
            ));
        }
        let executable = self.executable.clone();
        let executable = executable.ok_or_else(|| refused("allow_fork needs the program `annals`"))?;
        Ok(Some(ForkCommand { executable, store: store.to_owned(), command: self.allow_fork.clone() }))
    }

    /// The folder of witnesses, and the interval.
    ///
    /// # Errors
    /// `Refused` for an invalid interval, and if the folder does not exist.
    pub(super) fn witness_schedule(&self) -> Result<Option<WitnessSchedule>, ServeError> {
        let every = interval("witness_every", self.witness_every.as_deref(), EVERY)?;
        let Some(folder) = &self.witness else {
            return match &self.witness_every {
                Some(_) => Err(ServeError::Refused(
                    "witness_every needs witness, the folder that checkpoints are kept in".to_owned(),
                )),
                None => Ok(None),
            };
        };
        #[expect(clippy::disallowed_methods, reason = "a folder of the user's, not of a store")]
        let is_folder = std::fs::metadata(folder).is_ok_and(|facts| facts.is_dir());
        match is_folder {
            true => Ok(Some(WitnessSchedule { folder: folder.clone(), every })),
            false => Err(ServeError::Refused(format!(
                "the folder of witnesses {} does not exist: create it where the store's owner cannot change it",
                folder.display()
            ))),
        }
    }

    /// The folder of backups, their number, and the interval.
    ///
    /// # Errors
    /// `Refused` for an invalid interval or number, and if the folder does not exist.
    pub(super) fn backup_schedule(&self) -> Result<Option<BackupSchedule>, ServeError> {
        let refused = |what: String| Err(ServeError::Refused(what));
        let every = interval("backup_every", self.backup_every.as_deref(), BACKUP_EVERY)?;
        let keep = self.backup_keep.unwrap_or(BACKUPS_KEPT);
        if keep == 0 {
            return refused("backup_keep must be at least 1: the newest backup is always kept".to_owned());
        }
        let Some(folder) = &self.backup_to else {
            return match (&self.backup_every, self.backup_keep) {
                (None, None) => Ok(None),
                (Some(_), _) => {
                    refused("backup_every needs backup_to, the folder that backups are kept in".to_owned())
                }
                (None, Some(_)) => {
                    refused("backup_keep needs backup_to, the folder that backups are kept in".to_owned())
                }
            };
        };
        #[expect(clippy::disallowed_methods, reason = "a folder of the user's, not of a store")]
        let is_folder = std::fs::metadata(folder).is_ok_and(|facts| facts.is_dir());
        match is_folder {
            true => Ok(Some(BackupSchedule { folder: folder.clone(), keep, every })),
            false => refused(format!(
                "the folder of backups {} does not exist: create it, best on another disk",
                folder.display()
            )),
        }
    }

    /// The configured tokens. Two may have the same name, so that one can replace the other while both are
    /// valid; they then have the same rights.
    ///
    /// # Errors
    /// `Refused` for an invalid token.
    pub(super) fn tokens(&self, home: &str) -> Result<Vec<AccessToken>, ServeError> {
        let token =
            |token: &ConfiguredToken| {
                let hash = blake3::Hash::from_hex(&token.blake3).map_err(|_| {
                    let name = &token.name;
                    ServeError::Refused(format!(
                        "token {name:?}: blake3 must be 64 hexadecimal digits, as `b3sum` prints them"
                    ))
                })?;
                let namespace = token.namespace.clone().unwrap_or_else(|| home.to_owned());
                let default = if token.profile.is_some() { Rights::REDACTED } else { Rights::ALL };
                let (rights, profile) = (token.rights.unwrap_or(default), token.profile.clone());
                check_profile(rights, profile.as_deref())?;
                let expires_ns =
                    token.expires.as_deref().map(parse_time_ns).transpose().map_err(|why| {
                        ServeError::Refused(format!("token {:?}: expires {why}", token.name))
                    })?;
                let name = token.name.clone();
                Ok(AccessToken { name, namespace, rights, profile, made_ns: 0, expires_ns, hash })
            };
        let tokens: Vec<AccessToken> = self.tokens.iter().map(token).collect::<Result<_, ServeError>>()?;
        for (at, token) in tokens.iter().enumerate() {
            for other in tokens.iter().take(at).filter(|other| other.name == token.name) {
                let why = if other.hash == token.hash {
                    "have the same blake3: remove one"
                } else if !other.is_equivalent(token) {
                    "differ in namespace, rights or profile: give them different names"
                } else {
                    continue;
                };
                return Err(ServeError::Refused(format!("two tokens are called {:?} and {why}", token.name)));
            }
        }
        Ok(tokens)
    }
}

/// The interval that an option names.
fn interval(option: &str, text: Option<&str>, default: Duration) -> Result<Duration, ServeError> {
    let Some(text) = text else { return Ok(default) };
    match annals::retention::parse_duration_ns(text).filter(|ns| *ns >= EVERY_MIN_NS) {
        Some(ns) => Ok(Duration::from_nanos(ns)),
        None => Err(ServeError::Refused(format!(
            "{option} must be a duration of a second or more, such as \"1h\", and not {text:?}"
        ))),
    }
}

/// An address to listen at. Outside of the loopback it needs TLS and tokens.
fn address(text: &str, has_tls: bool, is_open: bool) -> Result<SocketAddr, ServeError> {
    let address: SocketAddr = text.parse().map_err(|_| {
        ServeError::Refused(format!("{text:?} is not an address: write 127.0.0.1:7420 or [::1]:7420"))
    })?;
    let problem = if address.ip().is_loopback() {
        return Ok(address);
    } else if !has_tls {
        "others on the network could read what goes over it unencrypted: give tls_cert and tls_key, or forward a port through ssh"
    } else if is_open {
        "without tokens, everybody on the network could read and write: leave no_auth out"
    } else {
        return Ok(address);
    };
    Err(ServeError::Refused(format!("{address} is not an address of the loopback: {problem}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_outside_loopback_are_refused() {
        let loopback_address = |text: &str| address(text, false, false);
        assert!(loopback_address("127.0.0.1:7420").is_ok() && loopback_address("[::1]:0").is_ok());
        for elsewhere in ["0.0.0.0:7420", "10.0.0.1:7420", "[::]:7420", "192.168.1.1:1", "[::ffff:8.8.8.8]:1"]
        {
            let refused = loopback_address(elsewhere).unwrap_err().to_string();
            assert!(refused.contains("not an address of the loopback"), "{refused}");
        }
        assert!(loopback_address("localhost").is_err() && loopback_address("").is_err());
        let both = ServeConfig { http: Some("0.0.0.0:1".to_owned()), ..ServeConfig::default() };
        assert!(both.listen_addresses().is_err());
        // With TLS they are open to others, who then need a token.
        assert!(address("0.0.0.0:7420", true, false).is_ok());
        let open = address("0.0.0.0:7420", true, true).unwrap_err().to_string();
        assert!(open.contains("without tokens") && address("127.0.0.1:1", true, true).is_ok(), "{open}");
        let half = ServeConfig { tls_cert: Some("c.pem".into()), ..ServeConfig::default() };
        assert!(half.listen_addresses().unwrap_err().to_string().contains("tls_cert needs tls_key"));
    }

    #[test]
    fn backups_need_an_existing_folder_and_keep_at_least_one() {
        let folder = tempfile::tempdir().unwrap();
        let of = |to: Option<PathBuf>, every: Option<&str>, keep: Option<usize>| {
            let backup_every = every.map(str::to_owned);
            let serving =
                ServeConfig { backup_to: to, backup_every, backup_keep: keep, ..ServeConfig::default() };
            serving.backup_schedule().map_err(|error| error.to_string())
        };
        let there = folder.path().to_path_buf();
        assert_eq!(of(None, None, None), Ok(None));
        let of_day = Duration::from_secs(86_400);
        let wanted = |keep, every| Ok(Some(BackupSchedule { folder: there.clone(), keep, every }));
        assert_eq!(of(Some(there.clone()), None, None), wanted(14, of_day));
        assert_eq!(of(Some(there.clone()), Some("6h"), Some(2)), wanted(2, of_day / 4));
        for (to, every, keep, what) in [
            (None, Some("1h"), None, "backup_every needs backup_to"),
            (None, None, Some(3), "backup_keep needs backup_to"),
            (Some(there.clone()), None, Some(0), "at least 1"),
            (Some(there.join("none")), None, None, "does not exist"),
        ] {
            let error = of(to, every, keep).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }

    /// Two tokens of one name overlap while a client changes from one to the other.
    #[test]
    fn configured_tokens_of_one_name_have_the_same_rights() {
        let (old, new) = (blake3::hash(b"old").to_hex(), blake3::hash(b"new").to_hex());
        let parsed = |second: &str| {
            let file = format!(
                "[[tokens]]\nname = \"ci\"\nblake3 = \"{old}\"\nexpires = \"2026-12-31T00:00:00Z\"\n[[tokens]]\nname = \"ci\"\n{second}\n"
            );
            ServeConfig::parse(&file, "f").and_then(|serving| serving.tokens("home"))
        };
        let both = parsed(&format!("blake3 = \"{new}\"")).unwrap();
        assert_eq!((both[0].expires_ns, both[1].expires_ns), (Some(1_798_675_200_000_000_000), None));
        for (second, what) in [
            (format!("blake3 = \"{old}\""), "same blake3"),
            (format!("blake3 = \"{new}\"\nrights = \"read\""), "differ in"),
            (format!("blake3 = \"{new}\"\nexpires = \"tomorrow\""), "expires"),
        ] {
            let error = parsed(&second).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn options_override_file_and_unknown_keys_are_refused() {
        let file =
            ServeConfig::parse("tcp = \"127.0.0.1:1\"\nsocket = \"/tmp/x\"\nslow_ms = 5\n", "f").unwrap();
        let options = ServeConfig { tcp: Some("127.0.0.1:2".to_owned()), ..ServeConfig::default() };
        let both = options.with_defaults_from(file.clone());
        assert_eq!((both.tcp.as_deref(), both.socket), (Some("127.0.0.1:2"), file.socket));
        assert_eq!(both.slow_ms, Some(5));
        // Errors did not say where they are.
        for (text, at) in
            [("port = 1", "a.toml:1:1: "), ("slow_ms = 5\nidle_seconds = \"x\"\n", "a.toml:2:16: ")]
        {
            let error = ServeConfig::parse(text, "a.toml").unwrap_err().to_string();
            assert!(error.contains(at), "{error}");
        }
    }

    #[test]
    fn schedule_needs_a_policy_and_a_valid_interval() {
        let of = |retain: Option<&str>, every: Option<&str>| {
            let sweep_every = every.map(str::to_owned);
            let serving =
                ServeConfig { retain: retain.map(PathBuf::from), sweep_every, ..ServeConfig::default() };
            serving.schedule().map_err(|error| error.to_string())
        };
        assert_eq!(of(None, None), Ok(None));
        let built_in = |every| Ok(Some(RetentionSchedule { policy: RetentionPolicy::default(), every }));
        assert_eq!(of(Some("default"), None), built_in(Duration::from_secs(3600)));
        assert_eq!(of(Some("default"), Some("5min")), built_in(Duration::from_secs(300)));
        for (retain, every, what) in [
            (None, Some("1h"), "by which policy"),
            (Some("default"), Some("0s"), "a second or more"),
            (Some("default"), Some("1 hour"), "sweep_every"),
            (Some("nowhere/policy.toml"), None, "cannot read the policy"),
        ] {
            let error = of(retain, every).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p.toml");
        #[expect(clippy::disallowed_methods, reason = "a file that a user would have")]
        std::fs::write(&path, "[[rule]]\nkept = \"1d\"\n").unwrap();
        assert!(of(path.to_str(), None).unwrap_err().contains("p.toml:2:1: \"kept\" is not a key"));
    }

    #[test]
    fn witnesses_need_an_existing_folder_and_a_valid_interval() {
        let folder = tempfile::tempdir().unwrap();
        let of = |witness: Option<PathBuf>, every: Option<&str>| {
            let witness_every = every.map(str::to_owned);
            let serving = ServeConfig { witness, witness_every, ..ServeConfig::default() };
            serving.witness_schedule().map_err(|error| error.to_string())
        };
        let there = folder.path().to_path_buf();
        assert_eq!(of(None, None), Ok(None));
        let wanted = WitnessSchedule { folder: there.clone(), every: Duration::from_secs(600) };
        assert_eq!(of(Some(there.clone()), Some("10min")), Ok(Some(wanted)));
        for (witness, every, what) in [
            (None, Some("1h"), "the folder that checkpoints are kept in"),
            (Some(there.clone()), Some("often"), "witness_every"),
            (Some(there.join("none")), None, "does not exist"),
        ] {
            let error = of(witness, every).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn configured_tokens_are_read_by_hash() {
        let hash = blake3::hash(b"x").to_hex();
        let parsed = |text: &str| ServeConfig::parse(text, "f").and_then(|serving| serving.tokens("home"));
        let tokens = parsed(&format!("[[tokens]]\nname = \"ci\"\nblake3 = \"{hash}\"\n")).unwrap();
        assert_eq!((tokens[0].namespace.as_str(), tokens[0].rights), ("home", Rights::ALL));
        let some =
            format!("[[tokens]]\nname = \"ci\"\nnamespace = \"n\"\nrights = \"read\"\nblake3 = \"{hash}\"\n");
        let tokens = parsed(&some).unwrap();
        assert_eq!((tokens[0].namespace.as_str(), tokens[0].rights), ("n", Rights::READ));
        assert!(parsed("[[tokens]]\nname = \"ci\"\nblake3 = \"12\"\n").is_err());
        assert!(
            parsed(&some.replace("\"read\"", "\"all\"")).unwrap_err().to_string().contains("not a right")
        );
    }
}
