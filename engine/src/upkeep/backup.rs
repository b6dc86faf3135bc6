//! Copies a store, even while a process writes to it.
//!
//! Sealed files never change, so a hard link to one is a copy. Where links do not work, the copy uses a
//! reflink, or else the bytes. Of the active segment it copies the bytes up to the end of a whole batch;
//! those never change either. The copy gets its own manifest. CURRENT is written last: until then the
//! directory is no store. The copy is the store as of that moment, with the same identity and ledger.
//!
//! Not included: deleting old backups, and incremental copies. A link costs almost nothing.

use std::io::IoSlice;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::Seqno;
use crate::io::{File, Io, OpenMode};
use crate::log::layout::{LogState, SEGMENT_HEADER_BYTES};
use crate::log::manifest::{CleanClose, Manifest, ManifestState, VectorList};
use crate::log::names::NamesFile;
use crate::log::open::{FoundLog, find};
use crate::log::paths::StorePaths;
use crate::log::scan::{ScanEnd, scan};
use crate::log::synced::{FIRST_STORE_FORMAT, FoundNote, SyncedFile};
use crate::replay::record_check::TABLE_DAMAGED;
use crate::store::Store;
use crate::upkeep::repair::require_new_dir;
use annals_store::kv::core::{Core, Options};

/// Bytes that one read copies.
const COPY_BYTES: usize = 1 << 20;

/// How a copy gets the files that never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// By a second name for the same bytes on disk, where the file system allows it. It takes no space, but
    /// damage to the shared bytes damages both stores.
    #[default]
    Shared,
    /// By a copy of the bytes.
    Copied,
}

/// What a backup or a restore did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BackupReport {
    /// The last record in the copy.
    pub seqno: Seqno,
    /// Number of log files.
    pub segments: u64,
    /// Number of files that share their bytes with the source (links and reflinks). It includes tables and
    /// vector files.
    pub shared_files: u64,
    /// Number of files that were copied.
    pub copied_files: u64,
    /// Bytes of the copied files.
    pub copied_bytes: u64,
}

impl Store {
    /// Copies the current store into a directory that is empty or does not exist. Any process, this one
    /// included, may write to the store meanwhile. The copy is durable when this returns; after an
    /// interruption the directory is no store.
    ///
    /// The copy holds everything published before the call. It opens like a store whose process was stopped
    /// at that moment: runs that were open become abandoned at its first opening for writing. A copy of a
    /// cleanly closed store is clean.
    ///
    /// # Errors
    /// `Invalid` if the directory is not empty; `Damaged` if the log's end is damaged; `Unavailable`.
    pub fn backup(&self, to: impl AsRef<Path>, sharing: Sharing) -> Result<BackupReport> {
        let core = self.core();
        if core.is_writer() && !core.is_closed() {
            core.log()?.queue.barrier(core.index.visible())?;
        }
        copy_store(core, to.as_ref(), sharing, true)
    }
}

/// Restores a backup into a directory that is empty or does not exist. It verifies the backup first, and
/// copies every byte.
///
/// # Errors
/// `Damaged` if the backup is damaged; `Invalid` if the directory is not empty; `NotFound`, `Unavailable`.
pub fn restore(backup: impl AsRef<Path>, to: impl AsRef<Path>, options: Options) -> Result<BackupReport> {
    require_new_dir(&*options.io, to.as_ref(), backup.as_ref())?;
    let store = Store::open_read_only_with(backup, options)?;
    let report = store.verify()?;
    // The first opening of the copy makes the tables from the log.
    let (tables, damaged): (Vec<_>, Vec<_>) =
        report.damaged.iter().partition(|problem| problem.what.starts_with(TABLE_DAMAGED));
    if let Some(first) = damaged.first() {
        let what = format!("damaged places in the backup: {}; first: {}", damaged.len(), first.what);
        return Err(Error::new(ErrorKind::Damaged, what));
    }
    copy_store(store.core(), to.as_ref(), Sharing::Copied, tables.is_empty())
}

/// Copies a store; its tables only if `has_whole_tables`.
fn copy_store(core: &Core, to: &Path, sharing: Sharing, has_whole_tables: bool) -> Result<BackupReport> {
    require_new_dir(&*core.io, to, core.paths.root())?;
    core.io.create_dir_all(to)?;
    let entered = core.io.beneath(to)?;
    let io = &*entered;
    // While this is held, every log file stays readable, even after it loses its name.
    let found = find(io, &core.paths, false, false, core.options.read_mode)?;
    let (from, state) = (found.state.covers, found.state.covers_state.clone());
    let end = scan(&*core.schema, &found, from, state, &mut |_, _| Ok(()))?;
    if let Some(damage) = &end.damage {
        return Err(damage.error());
    }
    let mut copy = BackupCopy {
        io,
        from: &core.paths,
        to: StorePaths::new(to),
        sharing,
        report: BackupReport::default(),
    };
    copy.report.seqno = end.state.last_seqno();
    copy.copy_segments(&found, &end)?;
    let tables = copy.copy_tables(&found.state, has_whole_tables)?;
    let vectors = copy.copy_vectors(&found.state)?;
    let state = copy_state(found.state, &end, tables, vectors);
    if state.format >= FIRST_STORE_FORMAT {
        NamesFile::open(io, &copy.to, state.store, &core.list_spaces()?)?;
        let none = FoundNote::default();
        SyncedFile::open(io, &copy.to, state.store, &none, (end.segment, end.tail), &end.state)?;
    }
    Manifest::create(io, &copy.to, 1, state)?;
    Ok(copy.report)
}

/// The manifest state of the copy. The copy has the format of its source: so a backup that is made before an
/// upgrade is the way back.
fn copy_state(found: ManifestState, end: &ScanEnd, tables: bool, vectors: bool) -> ManifestState {
    let first = found.segments.first().map_or(end.segment, |entry| entry.id);
    let clean = found.clean.filter(|clean: &CleanClose| !end.is_torn && clean.tail == end.tail);
    let (covers, covers_state) = match tables {
        true => (found.covers, found.covers_state),
        false => ((first, SEGMENT_HEADER_BYTES), LogState::empty()),
    };
    let tables = if tables { found.tables } else { Vec::new() };
    let vectors = match vectors {
        true => found.vectors,
        false => VectorList { next: found.vectors.next, ..VectorList::default() },
    };
    ManifestState { vectors, tables, covers, covers_state, synced: end.tail, clean, ..found }
}

struct BackupCopy<'a> {
    io: &'a dyn Io,
    from: &'a StorePaths,
    to: StorePaths,
    sharing: Sharing,
    report: BackupReport,
}

impl BackupCopy<'_> {
    fn copy_segments(&mut self, found: &FoundLog, end: &ScanEnd) -> Result<()> {
        self.io.create_dir_all(&self.to.segments())?;
        for segment in &found.segments.all() {
            let to = self.to.segment(segment.id);
            if segment.id != end.segment {
                self.link_or_copy(&segment.path, Some(&*segment.file), &to)?;
            } else {
                self.copy_bytes(&segment.path, &*segment.file, &to, Some(end.tail))?;
            }
            self.report.segments += 1;
        }
        Ok(self.io.sync_dir(&self.to.segments())?)
    }

    /// Copies the tables if they are whole; false if they are not, or if one cannot be read. Then opening the copy
    /// reads the whole log.
    fn copy_tables(&mut self, state: &ManifestState, are_whole: bool) -> Result<bool> {
        self.io.create_dir_all(&self.to.tables())?;
        if !are_whole {
            return Ok(false);
        }
        for entry in &state.tables {
            let (from, to) = (self.from.table(entry.id), self.to.table(entry.id));
            match self.link_or_copy(&from, None, &to) {
                Ok(()) => {}
                // The writer has replaced the table meanwhile, or it is lost.
                Err(_) if self.io.stat(&from)?.is_none() => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.io.sync_dir(&self.to.tables())?;
        Ok(true)
    }

    /// Copies the vector files; false if one cannot be read. Then opening the copy reads the vectors from its
    /// log.
    fn copy_vectors(&mut self, state: &ManifestState) -> Result<bool> {
        if state.vectors.files.is_empty() {
            return Ok(true);
        }
        self.io.create_dir_all(&self.to.vectors())?;
        for entry in &state.vectors.files {
            let (from, to) = (self.from.vector_file(entry.id), self.to.vector_file(entry.id));
            match self.link_or_copy(&from, None, &to) {
                Ok(()) => {}
                // The writer has replaced the file meanwhile, or it is lost.
                Err(_) if self.io.stat(&from)?.is_none() => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.io.sync_dir(&self.to.vectors())?;
        Ok(true)
    }

    /// Links or copies a file that never changes. It reads from `open`, if given, because a compaction may
    /// have removed the file's name.
    fn link_or_copy(&mut self, from: &Path, open: Option<&dyn File>, to: &Path) -> Result<()> {
        if self.sharing == Sharing::Shared && self.io.link(from, to).is_ok() {
            self.report.shared_files += 1;
            return Ok(());
        }
        if self.sharing == Sharing::Shared && self.io.clone_file(from, to).is_ok() {
            self.io.open(to, OpenMode::Write)?.sync()?;
            self.report.shared_files += 1;
            return Ok(());
        }
        match open {
            Some(file) => self.copy_bytes(from, file, to, None),
            None => self.copy_bytes(from, &*self.io.open(from, OpenMode::Read)?, to, None),
        }
    }

    /// Copies a file, or its first `len` bytes.
    fn copy_bytes(&mut self, from: &Path, source: &dyn File, to: &Path, len: Option<u64>) -> Result<()> {
        let len = len.map_or_else(|| source.len(), Ok)?;
        let file = self.io.open(to, OpenMode::CreateNew)?;
        let mut bytes = vec![0; COPY_BYTES];
        let mut at = 0;
        while at < len {
            let want = COPY_BYTES.min(usize::try_from(len - at).unwrap_or(COPY_BYTES));
            let got = source.read_at(&mut bytes[..want], at)?;
            if got < want {
                return Err(Error::damaged(from, at + got as u64, "the file is shorter than expected"));
            }
            file.write_at(&[IoSlice::new(&bytes[..want])], at)?;
            at += want as u64;
        }
        file.sync()?;
        self.report.copied_files += 1;
        self.report.copied_bytes += len;
        Ok(())
    }
}
