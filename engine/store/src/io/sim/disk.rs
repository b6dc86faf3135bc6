//! The simulated disk as a program sees it, and the handle with which tests control it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use super::faults::FaultRules;
use super::file::SimFile;
use super::history::{OpDetail, OpHistory, SimOp};
use super::prng::SplitMix64;
use super::tree::{DiskTree, Ino, normalized_path, write_bytes};
use super::{Crash, FailRule, OpKind, SECTOR_BYTES};
use crate::io::real::start_thread;
use crate::io::traits::check_rename;
use crate::io::{File, FileId, Io, IoError, IoResult, LockKind, OpenMode, PathStat};
use crate::sync::{JoinHandle, Mutex, MutexGuard, rank};

/// The first `now_ns` of a new disk: 2020-09-13 12:26:40 UTC.
const NOW_NS: u64 = 1_600_000_000_000_000_000;
/// Each clock read advances that clock by one microsecond.
const STEP_NS: u64 = 1_000;

/// A simulated disk, clock and source of randomness; clones are the same disk.
///
/// The wall clock starts at 1.6e18 ns and the monotonic clock at 0; each read of a clock advances it by 1000
/// ns, and no wait for it ends by itself. Random bytes come from SplitMix64 and the seed. Threads are real.
#[derive(Clone)]
pub struct SimIo(Arc<Mutex<SimState, { rank::SIMULATED_DISK }>>);

pub(super) struct SimState {
    /// The disk as the program sees it.
    pub(super) tree: DiskTree,
    /// The content of the disk at the start of `ops`.
    base: DiskTree,
    ops: Vec<SimOp>,
    pub(super) faults: FaultRules,
    pub(super) capacity: Option<u64>,
    /// Space that was allocated for files, from their start.
    pub(super) allocated: BTreeMap<Ino, u64>,
    threads: usize,
    handles: BTreeMap<Ino, usize>,
    handle_next: u64,
    pub(super) locks: BTreeMap<Ino, Vec<(u64, LockKind)>>,
    /// Numbers of directories that were opened. They count down from the greatest, apart from those of files.
    dir_inos: BTreeMap<PathBuf, Ino>,
    /// Files without a name, kept while a handle is open.
    unlinked: BTreeSet<Ino>,
    /// For each misdirected write: the intended file, and the file that received it.
    misdirected: Vec<(PathBuf, PathBuf)>,
    now_ns: u64,
    monotonic_ns: u64,
    seed: u64,
    rng: SplitMix64,
}

impl SimIo {
    /// An empty disk with the root and the working directory.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_tree(DiskTree::new(), seed, NOW_NS)
    }

    pub(super) fn with_tree(tree: DiskTree, seed: u64, now_ns: u64) -> Self {
        Self(Arc::new(Mutex::new(SimState {
            base: tree.clone(),
            tree,
            ops: Vec::new(),
            faults: FaultRules::default(),
            capacity: None,
            allocated: BTreeMap::new(),
            threads: 1,
            misdirected: Vec::new(),
            handles: BTreeMap::new(),
            handle_next: 0,
            locks: BTreeMap::new(),
            dir_inos: BTreeMap::new(),
            unlinked: BTreeSet::new(),
            now_ns,
            monotonic_ns: 0,
            seed,
            rng: SplitMix64::new(seed),
        })))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, SimState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The operations so far.
    #[must_use]
    pub fn history(&self) -> OpHistory {
        let state = self.state();
        OpHistory { base: state.base.clone(), ops: state.ops.clone(), now_ns: state.now_ns, seed: state.seed }
    }

    /// Number of operations in the history. A change that was acknowledged when the count was n must survive
    /// a crash at any point from n on.
    #[must_use]
    pub fn op_count(&self) -> usize {
        self.state().ops.len()
    }

    /// Number of operations of a kind so far, failed ones included. Reads are counted, too, although no history has them.
    #[must_use]
    pub fn count(&self, kind: OpKind) -> u64 {
        self.state().faults.count(kind)
    }

    /// For each misdirected write that landed: the intended file, and the file that received it.
    #[must_use]
    pub fn misdirected(&self) -> Vec<(PathBuf, PathBuf)> {
        self.state().misdirected.clone()
    }

    /// BLAKE3 over the history's operations: equal for equal runs.
    #[must_use]
    pub fn trace_hash(&self) -> [u8; 32] {
        self.history().trace_hash()
    }

    /// The disk after a crash now; this disk continues unchanged.
    #[must_use]
    pub fn crash(&self, how: Crash) -> SimIo {
        self.history().crash(usize::MAX, how)
    }

    /// Adds a failure rule. Every matching rule counts an operation; the first rule that is due decides the
    /// error.
    pub fn fail(&self, rule: FailRule) {
        self.state().faults.add(rule);
    }

    /// Removes every failure rule.
    pub fn clear_faults(&self) {
        self.state().faults.clear();
    }

    /// Bytes of all files together, with the space that was allocated for them.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        let mut state = self.state();
        let capacity = state.capacity.replace(u64::MAX);
        let used = u64::MAX - state.room_for(0).0;
        state.capacity = capacity;
        used
    }

    /// Limits the bytes of all files together. A write past the limit writes what fits and fails with
    /// `StorageFull`. `None`, the default, means no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// Sets the number of threads that long tasks may use; 1 by default.
    pub fn set_threads(&self, threads: usize) {
        self.state().threads = threads;
    }

    /// Sets the wall clock, forward or back.
    pub fn set_now_ns(&self, now_ns: u64) {
        self.state().now_ns = now_ns;
    }

    /// Moves both clocks forward.
    pub fn advance_ns(&self, by: u64) {
        let mut state = self.state();
        state.now_ns = state.now_ns.saturating_add(by);
        state.monotonic_ns = state.monotonic_ns.saturating_add(by);
    }

    /// A file's bytes, ignoring all fault rules; `None` if there is no such file.
    #[must_use]
    pub fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.state();
        let (_, ino) = state.tree.find(path).ok()?;
        Some(state.tree.bytes(ino).to_vec())
    }

    /// The paths of all files, sorted.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let state = self.state();
        let mut paths: Vec<_> =
            state.tree.dirs.iter().flat_map(|(dir, names)| names.keys().map(|n| dir.join(n))).collect();
        paths.sort_unstable();
        paths
    }

    /// BLAKE3 over every directory, name and byte: equal for disks that a program cannot distinguish.
    #[must_use]
    pub fn contents_hash(&self) -> [u8; 32] {
        self.state().tree.hash()
    }

    /// Restores durably what a sector held before an earlier write; the seed chooses the write and the
    /// sector. Returns the file and the offset of the sector; `None` if nothing would change.
    pub fn restore_old_sector(&self, seed: u64) -> Option<(PathBuf, u64)> {
        let mut rng = SplitMix64::new(seed);
        let history = self.history();
        let writes: Vec<usize> =
            (0..history.ops.len()).filter(|at| history.ops[*at].kind() == OpKind::Write).collect();
        let at = *writes.get(rng.below(writes.len().max(1)))?;
        let OpDetail::Write { ino, offset, bytes } = &history.ops[at].what else { return None };
        let sector = (offset + rng.below(bytes.len())) / SECTOR_BYTES * SECTOR_BYTES;
        let old = history.bytes_before(at, *ino);
        let mut state = self.state();
        let (dirs, mut named) = (&state.tree.dirs, None);
        for (dir, names) in dirs {
            named = named.or(names.iter().find(|(_, of)| *of == ino).map(|(name, _)| dir.join(name)));
        }
        let path = named?;
        let mut now = state.tree.bytes(*ino).to_vec();
        let end = now.len().min(sector + SECTOR_BYTES);
        let before: Vec<u8> = (sector..end).map(|i| old.get(i).copied().unwrap_or(0)).collect();
        if now.get(sector..end)? == before {
            return None;
        }
        now[sector..end].copy_from_slice(&before);
        state.tree.bytes_mut(*ino).clone_from(&now);
        state.log(Arc::from(path.as_path()), OpDetail::Edit { ino: *ino, bytes: Arc::from(now) });
        Some((path, sector as u64))
    }

    /// Changes a file's bytes durably, unseen by the program: flips, cuts, garbage. The disk is locked while
    /// `change` runs, so `change` must not access it.
    ///
    /// # Errors
    /// `NotFound` if there is no such file.
    pub fn edit(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> IoResult<()> {
        let mut state = self.state();
        let (_, ino) = state.tree.find(path).map_err(|e| IoError::new("edit", path, e))?;
        let bytes = state.tree.bytes_mut(ino);
        change(bytes);
        let bytes = Arc::from(bytes.as_slice());
        state.log(Arc::from(path), OpDetail::Edit { ino, bytes });
        Ok(())
    }
}

impl fmt::Debug for SimIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("SimIo")
            .field("files", &state.tree.files.len())
            .field("ops", &state.ops.len())
            .finish_non_exhaustive()
    }
}

impl SimState {
    pub(super) fn log(&mut self, path: Arc<Path>, what: OpDetail) {
        self.ops.push(SimOp { path, what });
    }

    /// Extends a file to at least `len` bytes, without data.
    pub(super) fn grow(&mut self, ino: Ino, path: &Arc<Path>, len: usize) {
        if len > self.tree.bytes(ino).len() {
            self.tree.bytes_mut(ino).resize(len, 0);
            self.log(Arc::clone(path), OpDetail::SetLen { ino, len });
        }
    }

    /// Writes bytes meant for `from` of `ino` to other sectors, up to the end of the file there.
    pub(super) fn misdirect(&mut self, (ino, meant): (Ino, &Path), from: usize, bytes: &[u8], seed: u64) {
        let mut rng = SplitMix64::new(seed);
        let named = self.tree.dirs.iter().flat_map(|(dir, names)| names.iter().map(move |name| (dir, name)));
        let mut files: Vec<(PathBuf, Ino)> = named
            .filter(|(_, (_, other))| self.tree.bytes(**other).len() > from % SECTOR_BYTES)
            .map(|(dir, (name, other))| (dir.join(name), *other))
            .collect();
        if rng.next() & 1 == 0 {
            files.retain(|(_, other)| *other == ino);
        }
        let Some((path, victim)) = files.get(rng.below(files.len().max(1))) else {
            return;
        };
        let len = self.tree.bytes(*victim).len();
        let sectors = (len - from % SECTOR_BYTES).div_ceil(SECTOR_BYTES);
        let offset = rng.below(sectors) * SECTOR_BYTES + from % SECTOR_BYTES;
        if offset == from && *victim == ino {
            return;
        }
        let bytes: Arc<[u8]> = Arc::from(&bytes[..bytes.len().min(len - offset)]);
        self.misdirected.push((meant.to_owned(), path.clone()));
        write_bytes(self.tree.bytes_mut(*victim), offset, &bytes);
        self.log(Arc::from(path.as_path()), OpDetail::Write { ino: *victim, offset, bytes });
    }

    /// The number of a directory or a file.
    fn ino_of(&mut self, path: &Path) -> Result<Ino, Error> {
        let Ok(dir) = self.tree.dir(path) else { return Ok(self.tree.find(path)?.1) };
        let next = Ino::MAX - self.dir_inos.len() as Ino;
        Ok(*self.dir_inos.entry(dir).or_insert(next))
    }

    /// Bytes that the disk still has room for, and how many bytes of a file have their room.
    pub(super) fn room_for(&self, ino: Ino) -> (u64, u64) {
        let len = |ino| self.tree.bytes(ino).len() as u64;
        let ahead: u64 = self.allocated.iter().map(|(ino, end)| end.saturating_sub(len(*ino))).sum();
        let used = self.tree.used_bytes() + ahead;
        let free = self.capacity.map_or(u64::MAX, |all| all.saturating_sub(used));
        (free, len(ino).max(self.allocated.get(&ino).copied().unwrap_or(0)))
    }

    fn take_handle(&mut self, ino: Ino) -> u64 {
        *self.handles.entry(ino).or_default() += 1;
        self.handle_next += 1;
        self.handle_next
    }

    pub(super) fn drop_handle(&mut self, ino: Ino, handle: u64) {
        if let Some(locks) = self.locks.get_mut(&ino) {
            locks.retain(|(holder, _)| *holder != handle);
        }
        if let Some(count) = self.handles.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.handles.remove(&ino);
                self.locks.remove(&ino);
            }
        }
        self.reap(ino);
    }

    fn link(&mut self, from: &Path, to: &Path) -> Result<(), Error> {
        let (_, ino) = self.tree.find(from)?;
        let place = self.tree.resolve(to)?;
        if self.tree.lookup(&place).is_some() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.faults.check(OpKind::Create, to)?;
        if let Some(names) = self.tree.names_mut(&place.dir) {
            names.insert(place.name.clone(), ino);
        }
        self.log(Arc::from(to), OpDetail::Create { dir: place.dir, name: place.name, ino });
        Ok(())
    }

    fn unlink(&mut self, ino: Ino) {
        if self.tree.dirs.values().any(|names| names.values().any(|named| *named == ino)) {
            return; // It has another name.
        }
        self.unlinked.insert(ino);
        self.reap(ino);
    }

    fn reap(&mut self, ino: Ino) {
        if !self.handles.contains_key(&ino) && self.unlinked.remove(&ino) {
            self.tree.files.remove(&ino);
            self.allocated.remove(&ino);
        }
    }

    fn open(&mut self, path: &Path, how: OpenMode) -> Result<(Ino, u64), Error> {
        let place = self.tree.resolve(path)?;
        let ino = match (self.tree.lookup(&place), how) {
            (Some(_), OpenMode::CreateNew) => return Err(ErrorKind::AlreadyExists.into()),
            (None, OpenMode::Read | OpenMode::Write) => return Err(ErrorKind::NotFound.into()),
            (Some(ino), _) => {
                self.faults.check(OpKind::Open, path)?;
                ino
            }
            (None, OpenMode::CreateNew | OpenMode::CreateOrOpen) => {
                self.faults.check(OpKind::Create, path)?;
                let ino = self.tree.ino_next;
                self.tree.ino_next += 1;
                self.tree.files.insert(ino, Arc::default());
                if let Some(names) = self.tree.names_mut(&place.dir) {
                    names.insert(place.name.clone(), ino);
                }
                self.log(Arc::from(path), OpDetail::Create { dir: place.dir, name: place.name, ino });
                ino
            }
        };
        Ok((ino, self.take_handle(ino)))
    }

    fn create_dir_all(&mut self, dir: &Path) -> Result<(), Error> {
        let dir = normalized_path(dir)?;
        let mut missing: Vec<_> =
            dir.ancestors().filter(|path| !self.tree.dirs.contains_key(*path)).collect();
        missing.reverse();
        for path in missing {
            let place = self.tree.resolve(path)?;
            if self.tree.lookup(&place).is_some() {
                let deeper = path != dir;
                return Err(if deeper { ErrorKind::NotADirectory } else { ErrorKind::AlreadyExists }.into());
            }
            self.faults.check(OpKind::MakeDir, path)?;
            self.tree.dirs.insert(path.to_path_buf(), Arc::default());
            self.log(Arc::from(path), OpDetail::MakeDir);
        }
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Result<(), Error> {
        let (old, ino) = self.tree.find(from)?;
        let new = self.tree.resolve(to)?;
        self.faults.check(OpKind::Rename, from)?;
        if old.name == new.name {
            return Ok(());
        }
        if let Some(names) = self.tree.names_mut(&old.dir) {
            names.remove(&old.name);
            if let Some(replaced) = names.insert(new.name.clone(), ino) {
                self.unlink(replaced);
            }
        }
        self.log(Arc::from(from), OpDetail::Rename { dir: old.dir, from: old.name, to: new.name });
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> Result<(), Error> {
        let (place, ino) = self.tree.find(path)?;
        self.faults.check(OpKind::Remove, path)?;
        if let Some(names) = self.tree.names_mut(&place.dir) {
            names.remove(&place.name);
        }
        self.unlink(ino);
        self.log(Arc::from(path), OpDetail::Remove { dir: place.dir, name: place.name });
        Ok(())
    }

    fn sync_dir(&mut self, dir: &Path) -> Result<(), Error> {
        let dir = self.tree.dir(dir)?;
        let outcome = self.faults.check(OpKind::SyncDir, &dir);
        self.log(Arc::from(dir), OpDetail::SyncDir { ok: outcome.is_ok() });
        outcome
    }
}

impl Io for SimIo {
    /// A simulated disk has no links.
    fn beneath(&self, root: &Path) -> IoResult<Arc<dyn Io>> {
        self.state().tree.dir(root).map_err(|e| IoError::new("open", root, e))?;
        Ok(Arc::new(self.clone()))
    }

    fn open_dir(&self, dir: &Path) -> IoResult<Arc<dyn File>> {
        let mut state = self.state();
        let found = state.tree.dir(dir).and_then(|dir| state.ino_of(&dir));
        let ino = found.map_err(|e| IoError::new("open", dir, e))?;
        let handle = state.take_handle(ino);
        Ok(Arc::new(SimFile::new(self.clone(), dir, ino, handle, false)))
    }

    fn id(&self, path: &Path) -> IoResult<Option<FileId>> {
        match self.state().ino_of(path) {
            Ok(inode) => Ok(Some(FileId { device: 0, inode })),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(IoError::new("stat", path, e)),
        }
    }

    fn open(&self, path: &Path, how: OpenMode) -> IoResult<Arc<dyn File>> {
        let (ino, handle) = self.state().open(path, how).map_err(|e| IoError::new("open", path, e))?;
        Ok(Arc::new(SimFile::new(self.clone(), path, ino, handle, how != OpenMode::Read)))
    }

    fn stat(&self, path: &Path) -> IoResult<Option<PathStat>> {
        let state = self.state();
        if state.tree.dir(path).is_ok() {
            return Ok(Some(PathStat { len: 0, is_dir: true }));
        }
        match state.tree.find(path) {
            Ok((_, ino)) => Ok(Some(PathStat { len: state.tree.bytes(ino).len() as u64, is_dir: false })),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(IoError::new("stat", path, e)),
        }
    }

    fn list(&self, dir: &Path) -> IoResult<Vec<String>> {
        let state = self.state();
        let dir = state.tree.dir(dir).map_err(|e| IoError::new("list", dir, e))?;
        let files = state.tree.dirs.get(&dir).into_iter().flat_map(|names| names.keys().cloned());
        let inner = state.tree.dirs.keys().filter(|path| path.parent() == Some(&dir));
        let inner = inner.filter_map(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
        let mut names: Vec<_> = files.chain(inner).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn create_dir_all(&self, dir: &Path) -> IoResult<()> {
        self.state().create_dir_all(dir).map_err(|e| IoError::new("create directory", dir, e))
    }

    fn rename(&self, from: &Path, to: &Path) -> IoResult<()> {
        check_rename(from, to)?;
        self.state().rename(from, to).map_err(|e| IoError::new("rename", from, e))
    }

    fn link(&self, from: &Path, to: &Path) -> IoResult<()> {
        self.state().link(from, to).map_err(|e| IoError::new("link", to, e))
    }

    fn free_bytes(&self, _dir: &Path) -> IoResult<Option<u64>> {
        let state = self.state();
        Ok(state.capacity.map(|_| state.room_for(0).0))
    }

    fn remove(&self, path: &Path) -> IoResult<()> {
        self.state().remove(path).map_err(|e| IoError::new("remove", path, e))
    }

    fn sync_dir(&self, dir: &Path) -> IoResult<()> {
        self.state().sync_dir(dir).map_err(|e| IoError::new("sync directory", dir, e))
    }

    fn now_ns(&self) -> u64 {
        let mut state = self.state();
        state.now_ns = state.now_ns.saturating_add(STEP_NS);
        state.now_ns
    }

    fn monotonic_ns(&self) -> u64 {
        let mut state = self.state();
        state.monotonic_ns = state.monotonic_ns.saturating_add(STEP_NS);
        state.monotonic_ns
    }

    fn random(&self, buf: &mut [u8]) -> IoResult<()> {
        self.state().rng.fill(buf);
        Ok(())
    }

    fn worker_threads(&self) -> usize {
        self.state().threads
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> IoResult<JoinHandle<()>> {
        start_thread(name, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_tells_file_directory_missing_and_invalid_path() {
        let sim = SimIo::new(1);
        sim.create_dir_all(Path::new("d")).unwrap();
        let file = sim.open(Path::new("d/f"), OpenMode::CreateNew).unwrap();
        file.write_at(&[std::io::IoSlice::new(b"abc")], 0).unwrap();
        let stat =
            |path: &str| sim.stat(Path::new(path)).map(|stat| stat.map(|stat| (stat.len, stat.is_dir)));
        assert_eq!(stat("d/f").unwrap(), Some((3, false)));
        assert_eq!(stat("./d").unwrap(), Some((0, true)));
        assert_eq!(stat("d/g").unwrap(), None);
        assert_eq!(stat("d/f/below").unwrap(), None);
        assert_eq!(stat("d/../d/f").unwrap_err().source.kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn clocks_advance_a_microsecond_per_read_and_as_set() {
        let sim = SimIo::new(1);
        assert_eq!((sim.now_ns(), sim.now_ns()), (NOW_NS + STEP_NS, NOW_NS + 2 * STEP_NS));
        assert_eq!((sim.monotonic_ns(), sim.monotonic_ns()), (STEP_NS, 2 * STEP_NS));
        sim.advance_ns(5);
        assert_eq!((sim.now_ns(), sim.monotonic_ns()), (NOW_NS + 3 * STEP_NS + 5, 3 * STEP_NS + 5));
        sim.set_now_ns(7);
        assert_eq!((sim.now_ns(), sim.monotonic_ns()), (7 + STEP_NS, 4 * STEP_NS + 5));
    }

    #[test]
    fn unlinked_file_lives_until_its_last_handle_closes() {
        let sim = SimIo::new(1);
        let files = || sim.state().tree.files.len();
        let open = |how| sim.open(Path::new("a"), how).unwrap();
        let (one, two) = (open(OpenMode::CreateNew), open(OpenMode::Read));
        one.write_at(&[std::io::IoSlice::new(b"x")], 0).unwrap();
        sim.link(Path::new("a"), Path::new("b")).unwrap();
        sim.remove(Path::new("a")).unwrap();
        drop((one, open_b(&sim)));
        assert_eq!(files(), 1);
        sim.remove(Path::new("b")).unwrap();
        assert_eq!((files(), two.len().unwrap()), (1, 1));
        drop(two);
        assert_eq!(files(), 0);
        assert!(sim.state().unlinked.is_empty() && sim.state().handles.is_empty());
    }

    fn open_b(sim: &SimIo) -> Arc<dyn File> {
        sim.open(Path::new("b"), OpenMode::Read).unwrap()
    }
}
