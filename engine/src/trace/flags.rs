//! Flags: what a person says of a run, also after its end.
//!
//! A flag is a key in the keyspace `annals.flags` of the run's namespace: the run's uid in eight bytes, big-endian.
//! Its value is JSON with `severity`, `why` and `flagged_ns`. It is a belonging of the run (see `belongings`), so it
//! goes with it. The run's record and its digests stay as they are. Lists and retention count the greater of the
//! recorded severity and the flag's.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ids::RunUid;
use crate::log::queue::Durability;
use crate::store::Namespace;
use crate::trace::heads::WHY_BYTES_MAX;
use crate::trace::model::{Severity, check_text};
use crate::trace::reader::RunReader;
use annals_store::kv::keyspace::{Keyspace, ScanRange};

/// The keyspace of flags.
pub(crate) const FLAGS: &str = "annals.flags";

/// A run that a person has flagged or escalated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// The run's uid.
    pub uid: RunUid,
    /// At least how severe the run counts.
    pub severity: Severity,
    /// The reason given for the flag.
    pub why: String,
    /// When it was flagged, nanoseconds since 1970-01-01 UTC.
    pub flagged_ns: u64,
}

/// The stored value of a flag.
#[derive(Debug, Serialize, Deserialize)]
#[serde(default)]
struct FlagValue {
    severity: String,
    why: String,
    flagged_ns: u64,
}

impl Default for FlagValue {
    fn default() -> Self {
        Self { severity: Severity::Flagged.name().to_owned(), why: String::new(), flagged_ns: 0 }
    }
}

impl Flag {
    /// A value that cannot be parsed still flags the run: keeping too much is safer than losing a run.
    fn from_value(uid: RunUid, value: &[u8]) -> Self {
        let FlagValue { severity, why, flagged_ns } = serde_json::from_slice(value).unwrap_or_default();
        Self { uid, severity: severity.parse().unwrap_or(Severity::Flagged), why, flagged_ns }
    }

    /// The severity that a run counts with: the greater of what was recorded and what its flag says.
    #[must_use]
    pub fn raise(flag: Option<&Self>, recorded: Severity) -> Severity {
        flag.map_or(recorded, |flag| flag.severity.max(recorded))
    }
}

impl Namespace {
    /// Flags a run, open or ended: lists and retention count it as at least this severe. Replaces an existing flag. On
    /// disk when this returns.
    ///
    /// # Errors
    /// `Invalid` if the severity is below `flagged`, or the reason is empty, too long or has control characters;
    /// `NotFound`, `Gone`, `Unavailable`, `Poisoned`.
    pub fn flag(&self, run: &str, severity: Severity, why: &str) -> Result<Flag> {
        check_text("the reason why a run is flagged", why, 1, WHY_BYTES_MAX)?;
        if severity < Severity::Flagged {
            return Err(Error::invalid(format!("a flag is flagged or escalated, not {}", severity.name())));
        }
        let (uid, flagged_ns) = (self.run(run)?.info().uid, self.store.core().io.now_ns());
        let flag = Flag { uid, severity, why: why.to_owned(), flagged_ns };
        self.write_flag(&flag)?;
        Ok(flag)
    }

    /// Writes a flag and its link to the run.
    pub(crate) fn write_flag(&self, flag: &Flag) -> Result<()> {
        let kept = FlagValue {
            severity: flag.severity.name().to_owned(),
            why: flag.why.clone(),
            flagged_ns: flag.flagged_ns,
        };
        let kept = serde_json::to_vec(&kept).map_err(|e| Error::bug(e.to_string()))?;
        let key = flag.uid.0.to_be_bytes();
        self.put_belonging(flag.uid, (FLAGS, &key), kept, None, Durability::Disk)
    }

    /// Removes the flag of a person from a run; returns whether it had one. Its recorded severity stays. On disk when
    /// this returns.
    ///
    /// # Errors
    /// `NotFound`, `Gone`, `Unavailable`, `Poisoned`.
    pub fn unflag(&self, run: &str) -> Result<bool> {
        let uid = self.run(run)?.info().uid;
        self.delete_belonging(uid, (FLAGS, &uid.0.to_be_bytes()))
    }

    /// The flag of a run.
    pub(crate) fn flag_of(&self, uid: RunUid) -> Result<Option<Flag>> {
        match self.store.core().find_keyspace(self.id, FLAGS)? {
            Some(flags) => flag_in(&flags, uid),
            None => Ok(None),
        }
    }

    /// The flags of this namespace, in the order of the runs' uids.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn flags(&self) -> Result<Vec<Flag>> {
        let Some(keyspace) = self.find_keyspace(FLAGS)? else { return Ok(Vec::new()) };
        let mut flags = Vec::new();
        for pair in keyspace.scan(ScanRange::all()) {
            let (key, value) = pair?;
            if let Ok(number) = <[u8; 8]>::try_from(key.as_slice()) {
                flags.push(Flag::from_value(RunUid(u64::from_be_bytes(number)), &value));
            }
        }
        Ok(flags)
    }
}

/// The flag of a run in the keyspace of flags.
pub(crate) fn flag_in(flags: &Keyspace, uid: RunUid) -> Result<Option<Flag>> {
    Ok(flags.get(&uid.0.to_be_bytes())?.map(|value| Flag::from_value(uid, &value)))
}

impl RunReader {
    /// What a person says of this run, if it is flagged. [`RunInfo::severity`](crate::RunInfo::severity) is what was
    /// recorded; [`Flag::raise`] gives what counts.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn flag(&self) -> Result<Option<Flag>> {
        match self.core.find_keyspace(self.namespace, FLAGS)? {
            Some(flags) => flag_in(&flags, self.info().uid),
            None => Ok(None),
        }
    }
}
