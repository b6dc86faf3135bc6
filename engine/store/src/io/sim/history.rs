//! The log of all changes to the disk, and ways to crash within it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::tree::{DiskTree, Ino, write_bytes};
use super::{Crash, CrashPoint, HistoryWalk, OpKind, SimIo};

/// One operation that changed the disk, or tried to sync it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimOp {
    pub(super) path: Arc<Path>,
    pub(super) what: OpDetail,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OpDetail {
    MakeDir,
    Create { dir: PathBuf, name: String, ino: Ino },
    Rename { dir: PathBuf, from: String, to: String },
    Remove { dir: PathBuf, name: String },
    SyncDir { ok: bool },
    Write { ino: Ino, offset: usize, bytes: Arc<[u8]> },
    SetLen { ino: Ino, len: usize },
    Sync { ino: Ino, ok: bool },
    Edit { ino: Ino, bytes: Arc<[u8]> },
}

impl SimOp {
    /// The kind of the operation.
    #[must_use]
    pub fn kind(&self) -> OpKind {
        match self.what {
            OpDetail::MakeDir => OpKind::MakeDir,
            OpDetail::Create { .. } => OpKind::Create,
            OpDetail::Rename { .. } => OpKind::Rename,
            OpDetail::Remove { .. } => OpKind::Remove,
            OpDetail::SyncDir { .. } => OpKind::SyncDir,
            OpDetail::Write { .. } => OpKind::Write,
            OpDetail::SetLen { .. } => OpKind::SetLen,
            OpDetail::Sync { .. } => OpKind::Sync,
            OpDetail::Edit { .. } => OpKind::Edit,
        }
    }

    /// The file or directory, by the name used to open or call it; for a rename the old name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of a write; empty for other operations.
    #[must_use]
    pub fn written(&self) -> &[u8] {
        match &self.what {
            OpDetail::Write { bytes, .. } => bytes,
            _ => &[],
        }
    }

    /// The offset of a write in its file, or the new length of a `set_len`.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        match &self.what {
            OpDetail::Write { offset, .. } => Some(*offset as u64),
            OpDetail::SetLen { len, .. } => Some(*len as u64),
            _ => None,
        }
    }

    fn hash(&self, hasher: &mut blake3::Hasher) {
        let mut part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        };
        part(self.path.as_os_str().as_encoded_bytes());
        let path = |dir: &PathBuf| dir.as_os_str().as_encoded_bytes().to_vec();
        match &self.what {
            OpDetail::MakeDir => part(b"make"),
            OpDetail::Create { dir, name, ino } => {
                for piece in [&b"create"[..], &path(dir), name.as_bytes(), &ino.to_le_bytes()] {
                    part(piece);
                }
            }
            OpDetail::Rename { dir, from, to } => {
                for piece in [&b"rename"[..], &path(dir), from.as_bytes(), to.as_bytes()] {
                    part(piece);
                }
            }
            OpDetail::Remove { dir, name } => {
                for piece in [&b"remove"[..], &path(dir), name.as_bytes()] {
                    part(piece);
                }
            }
            OpDetail::SyncDir { ok } => {
                part(b"sync_dir");
                part(&[u8::from(*ok)]);
            }
            OpDetail::Write { ino, offset, bytes } => {
                for piece in [&b"write"[..], &ino.to_le_bytes(), &(*offset as u64).to_le_bytes(), bytes] {
                    part(piece);
                }
            }
            OpDetail::SetLen { ino, len } => {
                for piece in [&b"set_len"[..], &ino.to_le_bytes(), &(*len as u64).to_le_bytes()] {
                    part(piece);
                }
            }
            OpDetail::Sync { ino, ok } => {
                for piece in [&b"sync"[..], &ino.to_le_bytes(), &[u8::from(*ok)]] {
                    part(piece);
                }
            }
            OpDetail::Edit { ino, bytes } => {
                for piece in [&b"edit"[..], &ino.to_le_bytes(), bytes] {
                    part(piece);
                }
            }
        }
    }
}

impl fmt::Display for SimOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        let outcome = |ok: &bool| if *ok { "" } else { " (failed)" };
        match &self.what {
            OpDetail::MakeDir => write!(f, "make directory {path}"),
            OpDetail::Create { .. } => write!(f, "create {path}"),
            OpDetail::Rename { to, .. } => write!(f, "rename {path} to {to}"),
            OpDetail::Remove { .. } => write!(f, "remove {path}"),
            OpDetail::SyncDir { ok } => write!(f, "sync directory {path}{}", outcome(ok)),
            OpDetail::Write { offset, bytes, .. } => {
                write!(f, "write {path} at {offset}, {} bytes", bytes.len())
            }
            OpDetail::SetLen { len, .. } => write!(f, "set the length of {path} to {len}"),
            OpDetail::Sync { ok, .. } => write!(f, "sync {path}{}", outcome(ok)),
            OpDetail::Edit { .. } => write!(f, "edit {path}"),
        }
    }
}

/// The operations of a [`SimIo`] so far, from the disk it started with. Cheap to take: contents are shared.
#[derive(Debug, Clone)]
pub struct OpHistory {
    pub(super) base: DiskTree,
    pub(super) ops: Vec<SimOp>,
    /// Start values of the clocks and the random numbers of the disk after a crash.
    pub(super) now_ns: u64,
    pub(super) seed: u64,
}

impl OpHistory {
    /// The operations, in order.
    #[must_use]
    pub fn ops(&self) -> &[SimOp] {
        &self.ops
    }

    /// A cursor at the start, for crashing cheaply at every point of a long history.
    #[must_use]
    pub fn walk(&self) -> HistoryWalk<'_> {
        HistoryWalk::new(self)
    }

    /// The disk after a crash before operation `at`: operations `0..at` are done and no other. An `at` past
    /// the end means the end. Costs a replay from the start; use [`walk`](Self::walk) for many points.
    #[must_use]
    pub fn crash(&self, at: usize, how: Crash) -> SimIo {
        let mut walk = self.walk();
        while walk.at() < at && walk.step() {}
        walk.crash(how)
    }

    /// Every crash point in order. Each has the four extremes of [`Crash`] and `seeds` random choices, or a
    /// single one if nothing is in doubt.
    pub fn crashes(&self, seeds: u64) -> impl Iterator<Item = (CrashPoint, SimIo)> {
        let mut walk = self.walk();
        let mut turn = 0;
        std::iter::from_fn(move || {
            let all = if walk.is_in_doubt() { 4 + seeds } else { 1 };
            if turn >= all {
                turn = 0;
                if !walk.step() {
                    // A step past the end stays refused, so the iterator stays finished.
                    turn = u64::MAX;
                    return None;
                }
            }
            let how = match turn {
                0 => Crash::Nothing,
                1 => Crash::Everything,
                2 => Crash::Hollow,
                3 => Crash::Torn,
                random => Crash::Seed(random - 4),
            };
            turn += 1;
            Some((walk.point(how), walk.crash(how)))
        })
    }

    /// The content of a file, as the program saw it, before an operation.
    pub(super) fn bytes_before(&self, at: usize, of: Ino) -> Vec<u8> {
        let mut now = self.base.bytes(of).to_vec();
        for op in self.ops.iter().take(at) {
            match &op.what {
                OpDetail::Write { ino, offset, bytes } if *ino == of => write_bytes(&mut now, *offset, bytes),
                OpDetail::SetLen { ino, len } if *ino == of => now.resize(*len, 0),
                OpDetail::Edit { ino, bytes } if *ino == of => now = bytes.to_vec(),
                _ => {}
            }
        }
        now
    }

    /// BLAKE3 over the operations: equal for equal runs.
    #[must_use]
    pub fn trace_hash(&self) -> [u8; 32] {
        self.trace_hash_until(usize::MAX)
    }

    /// As `trace_hash`, over the first `at` operations.
    #[must_use]
    pub fn trace_hash_until(&self, at: usize) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for op in self.ops.iter().take(at) {
            op.hash(&mut hasher);
        }
        hasher.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::*;
    use crate::io::{File, Io, OpenMode};

    fn create(sim: &SimIo, name: &str) -> Arc<dyn File> {
        sim.open(Path::new(name), OpenMode::CreateNew).unwrap()
    }

    #[test]
    fn bytes_before_replays_one_file_only() {
        let sim = SimIo::new(1);
        let (a, b) = (create(&sim, "a"), create(&sim, "b"));
        let [ino_a, ino_b] = [0, 1].map(|at| match sim.history().ops[at].what {
            OpDetail::Create { ino, .. } => ino,
            _ => 0,
        });
        let put = |file: &Arc<dyn File>, bytes: &[u8], at| file.write_at(&[IoSlice::new(bytes)], at).unwrap();
        put(&a, b"12345", 0);
        put(&b, b"bbb", 1);
        a.set_len(3).unwrap();
        b.set_len(2).unwrap();
        sim.edit(Path::new("b"), |bytes| *bytes = b"edited".to_vec()).unwrap();
        put(&a, b"x", 4);
        sim.edit(Path::new("a"), |bytes| *bytes = b"new".to_vec()).unwrap();
        let history = sim.history();
        let before = |ino| (2..=9).map(|at| history.bytes_before(at, ino)).collect::<Vec<_>>();
        let (x, e) = (b"123\0x".to_vec(), b"edited".to_vec());
        let [whole, cut] = [b"12345".to_vec(), b"123".to_vec()];
        let wanted = vec![vec![], whole.clone(), whole, cut.clone(), cut.clone(), cut, x, b"new".to_vec()];
        assert_eq!(before(ino_a), wanted);
        let (long, short) = (b"\0bbb".to_vec(), b"\0b".to_vec());
        let wanted = vec![vec![], vec![], long.clone(), long, short, e.clone(), e.clone(), e];
        assert_eq!(before(ino_b), wanted);
        // An operation reports what it wrote, and where.
        let said: Vec<_> = history.ops()[2..].iter().map(|op| (op.written(), op.offset())).collect();
        let none: &[u8] = &[];
        assert_eq!(said[0], (&b"12345"[..], Some(0)));
        assert_eq!(said[1], (&b"bbb"[..], Some(1)));
        assert_eq!(said[2], (none, Some(3)));
        assert_eq!(said[4], (none, None));
        // The history of the disk after a crash starts with the content after that crash.
        let crashed = sim.crash(Crash::Everything);
        assert_eq!(crashed.history().bytes_before(0, ino_a), b"new");
    }
}
