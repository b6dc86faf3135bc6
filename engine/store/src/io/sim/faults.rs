//! Injected failures: which operation fails, how, and how often. Also a disk that reports writes as done that
//! never arrived, or arrived elsewhere.

use std::collections::HashMap;
use std::path::Path;

/// The error numbers of Linux, the same on every Unix.
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// The kind of an operation, for fault rules and for reading a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OpKind {
    /// `open` that creates a file.
    Create,
    /// `open` of an existing file. Not in a history.
    Open,
    /// `read_at` or `map`. Not in a history.
    Read,
    /// `write_at`.
    Write,
    /// `set_len`.
    SetLen,
    /// `sync`.
    Sync,
    /// `sync_dir`.
    SyncDir,
    /// `rename`.
    Rename,
    /// `remove`.
    Remove,
    /// `create_dir_all`, once for each directory made.
    MakeDir,
    /// [`SimIo::edit`](super::SimIo::edit). Never fails.
    Edit,
}

/// The effect of a rule on an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SimFault {
    /// It fails with this error number.
    Errno(i32),
    /// A write is reported as done but its bytes are lost. The file's length changes as if they were written.
    Lost,
    /// As `Lost`, but the bytes land in another sector of this file or of another one, chosen by the seed.
    Misdirected(u64),
}

/// Makes operations of one kind fail, or redirects writes.
///
/// A failed write has written the first half of its bytes. A failed sync leaves its changes in doubt for
/// good. Any other failed operation has no effect.
#[derive(Debug, Clone)]
pub struct FailRule {
    kind: OpKind,
    fault: SimFault,
    skip: u64,
    left: u64,
    on: Option<String>,
}

impl FailRule {
    /// The next operation of `kind` fails with an input/output error (EIO).
    #[must_use]
    pub fn eio(kind: OpKind) -> Self {
        Self { kind, fault: SimFault::Errno(EIO), skip: 0, left: 1, on: None }
    }

    /// The next operation of `kind` fails because the disk is full (ENOSPC).
    #[must_use]
    pub fn enospc(kind: OpKind) -> Self {
        Self { fault: SimFault::Errno(ENOSPC), ..Self::eio(kind) }
    }

    /// The next write, and a sync after it, are reported as done, but the bytes are lost. The file's length
    /// grows, because lengths are written separately from data.
    #[must_use]
    pub fn lost_write() -> Self {
        Self { fault: SimFault::Lost, ..Self::eio(OpKind::Write) }
    }

    /// The next write lands in other sectors than intended, of the same file or of another one, within that
    /// file's length. Nothing arrives at the intended place. The seed chooses the sectors.
    #[must_use]
    pub fn misdirected_write(seed: u64) -> Self {
        Self { fault: SimFault::Misdirected(seed), ..Self::eio(OpKind::Write) }
    }

    /// Lets `n` matching operations through first.
    #[must_use]
    pub fn after(self, n: u64) -> Self {
        Self { skip: n, ..self }
    }

    /// Fails `n` matching operations instead of one.
    #[must_use]
    pub fn times(self, n: u64) -> Self {
        Self { left: n, ..self }
    }

    /// Fails every matching operation from then on.
    #[must_use]
    pub fn forever(self) -> Self {
        self.times(u64::MAX)
    }

    /// Matches only paths that contain `part`.
    #[must_use]
    pub fn on(self, part: &str) -> Self {
        Self { on: Some(part.to_owned()), ..self }
    }

    fn matches(&self, kind: OpKind, path: &Path) -> bool {
        self.kind == kind && self.on.as_ref().is_none_or(|part| path.to_string_lossy().contains(part))
    }
}

/// The active rules. Every matching rule counts an operation; the first one that is due decides. Every operation
/// passes here, so its kind is counted here, too.
#[derive(Debug, Default)]
pub(super) struct FaultRules {
    rules: Vec<FailRule>,
    counts: HashMap<OpKind, u64>,
}

impl FaultRules {
    pub(super) fn add(&mut self, rule: FailRule) {
        self.rules.push(rule);
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    /// Number of operations of a kind, failed ones included.
    pub(super) fn count(&self, kind: OpKind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or_default()
    }

    /// The fault that applies to an operation, if any.
    pub(super) fn next_fault(&mut self, kind: OpKind, path: &Path) -> Option<SimFault> {
        *self.counts.entry(kind).or_default() += 1;
        let mut due = None;
        for rule in self.rules.iter_mut().filter(|rule| rule.matches(kind, path)) {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if rule.left > 0 {
                rule.left -= 1;
                due = due.or(Some(rule.fault));
            }
        }
        due
    }

    /// The error of an operation other than a write.
    pub(super) fn check(&mut self, kind: OpKind, path: &Path) -> std::io::Result<()> {
        match self.next_fault(kind, path) {
            Some(SimFault::Errno(errno)) => Err(std::io::Error::from_raw_os_error(errno)),
            _ => Ok(()),
        }
    }
}

/// The error of the disk itself when its capacity is used up.
pub(super) fn no_space() -> std::io::Error {
    std::io::Error::from_raw_os_error(ENOSPC)
}
