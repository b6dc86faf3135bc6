//! Replays a history and tracks what is durable: a durable [`DiskTree`] and, in order, the changes in doubt.
//!
//! Invariant: applying every pending change to the durable tree gives the disk as the program saw it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::history::{OpDetail, SimOp};
use super::tree::{DiskTree, Ino, write_bytes};

/// How certain a change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangeFate {
    /// Not synced yet.
    Open,
    /// A sync that covered it failed: in doubt for good.
    Limbo,
    /// Durable, but listed after a change in limbo, so it is applied later.
    Durable,
}

#[derive(Debug, Clone)]
pub(super) struct PendingChange<T> {
    /// Index of the operation.
    pub(super) at: usize,
    pub(super) fate: ChangeFate,
    pub(super) change: T,
}

#[derive(Debug, Clone)]
pub(super) enum NameChange {
    Create { name: String, ino: Ino },
    Rename { from: String, to: String, ino: Ino },
    Remove { name: String, ino: Ino },
}

#[derive(Debug, Clone)]
pub(super) enum DataChange {
    /// `grew`: whether the write made the file longer.
    Write {
        offset: usize,
        bytes: Arc<[u8]>,
        grew: bool,
    },
    SetLen {
        len: usize,
    },
}

#[derive(Debug, Clone, Default)]
pub(super) struct PendingFile {
    /// The length as the program sees it.
    pub(super) len_now: usize,
    pub(super) changes: Vec<PendingChange<DataChange>>,
}

#[derive(Debug, Clone)]
pub(super) struct DiskReplay {
    pub(super) durable: DiskTree,
    /// Names as the program sees them.
    pub(super) names_now: BTreeMap<PathBuf, Arc<BTreeMap<String, Ino>>>,
    pub(super) names: BTreeMap<PathBuf, Vec<PendingChange<NameChange>>>,
    pub(super) data: BTreeMap<Ino, PendingFile>,
}

impl DiskReplay {
    pub(super) fn new(base: &DiskTree) -> Self {
        Self {
            durable: base.clone(),
            names_now: base.dirs.clone(),
            names: BTreeMap::new(),
            data: BTreeMap::new(),
        }
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.names.values().any(|list| !list.is_empty())
            || self.data.values().any(|file| !file.changes.is_empty())
    }

    /// Applies operation number `at`.
    pub(super) fn apply(&mut self, at: usize, op: &SimOp) {
        match &op.what {
            OpDetail::MakeDir => {
                self.durable.dirs.entry(op.path.to_path_buf()).or_default();
                self.names_now.entry(op.path.to_path_buf()).or_default();
            }
            OpDetail::Create { dir, name, ino } => {
                self.durable.ino_next = self.durable.ino_next.max(ino + 1);
                self.change_name(at, dir, NameChange::Create { name: name.clone(), ino: *ino });
            }
            OpDetail::Rename { dir, from, to } => {
                if let Some(ino) = self.current_ino(dir, from) {
                    let (from, to) = (from.clone(), to.clone());
                    self.change_name(at, dir, NameChange::Rename { from, to, ino });
                }
            }
            OpDetail::Remove { dir, name } => {
                if let Some(ino) = self.current_ino(dir, name) {
                    self.change_name(at, dir, NameChange::Remove { name: name.clone(), ino });
                }
            }
            OpDetail::SyncDir { ok } => self.sync_dir(&op.path, *ok),
            OpDetail::Write { ino, offset, bytes } => {
                let file = self.file(*ino);
                let end = offset + bytes.len();
                let grew = end > file.len_now;
                file.len_now = file.len_now.max(end);
                let change = DataChange::Write { offset: *offset, bytes: Arc::clone(bytes), grew };
                file.changes.push(PendingChange { at, fate: ChangeFate::Open, change });
            }
            OpDetail::SetLen { ino, len } => {
                let file = self.file(*ino);
                file.len_now = *len;
                let change = DataChange::SetLen { len: *len };
                file.changes.push(PendingChange { at, fate: ChangeFate::Open, change });
            }
            OpDetail::Sync { ino, ok } => self.sync(*ino, *ok),
            OpDetail::Edit { ino, bytes } => {
                self.data.remove(ino);
                *self.durable.bytes_mut(*ino) = bytes.to_vec();
            }
        }
    }

    fn current_ino(&self, dir: &Path, name: &str) -> Option<Ino> {
        self.names_now.get(dir)?.get(name).copied()
    }

    fn file(&mut self, ino: Ino) -> &mut PendingFile {
        let len_now = self.durable.bytes(ino).len();
        self.data.entry(ino).or_insert_with(|| PendingFile { len_now, changes: Vec::new() })
    }

    fn change_name(&mut self, at: usize, dir: &Path, change: NameChange) {
        if let Some(names) = self.names_now.get_mut(dir) {
            change.apply(Arc::make_mut(names));
        }
        self.names.entry(dir.to_path_buf()).or_default().push(PendingChange {
            at,
            fate: ChangeFate::Open,
            change,
        });
    }

    fn sync_dir(&mut self, dir: &Path, ok: bool) {
        let Some(list) = self.names.get_mut(dir) else { return };
        decide_pending(list, ok);
        if let Some(names) = self.durable.names_mut(dir) {
            for change in drain_durable(list) {
                change.apply(names);
            }
        }
    }

    fn sync(&mut self, ino: Ino, ok: bool) {
        let Some(file) = self.data.get_mut(&ino) else { return };
        decide_pending(&mut file.changes, ok);
        if file.changes.first().is_some_and(|first| first.fate == ChangeFate::Durable) {
            let bytes = self.durable.bytes_mut(ino);
            for change in drain_durable(&mut file.changes) {
                change.apply(bytes);
            }
        }
        if file.changes.is_empty() {
            self.data.remove(&ino);
        }
    }
}

/// Applies the outcome of a sync to every change that is still open.
fn decide_pending<T>(list: &mut [PendingChange<T>], ok: bool) {
    for pending in list.iter_mut().filter(|pending| pending.fate == ChangeFate::Open) {
        pending.fate = if ok { ChangeFate::Durable } else { ChangeFate::Limbo };
    }
}

/// Takes the durable changes up to the first change in doubt.
fn drain_durable<T>(list: &mut Vec<PendingChange<T>>) -> impl Iterator<Item = T> {
    let n = list.iter().take_while(|pending| pending.fate == ChangeFate::Durable).count();
    list.drain(..n).map(|pending| pending.change)
}

impl NameChange {
    pub(super) fn apply(&self, names: &mut BTreeMap<String, Ino>) {
        match self {
            Self::Create { name, ino } => {
                names.insert(name.clone(), *ino);
            }
            Self::Rename { from, to, ino } => {
                if names.get(from) == Some(ino) {
                    names.remove(from);
                }
                names.insert(to.clone(), *ino);
            }
            Self::Remove { name, ino } => {
                if names.get(name) == Some(ino) {
                    names.remove(name);
                }
            }
        }
    }
}

impl DataChange {
    fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes, .. } => write_bytes(file, *offset, bytes),
            Self::SetLen { len } => file.resize(*len, 0),
        }
    }
}
