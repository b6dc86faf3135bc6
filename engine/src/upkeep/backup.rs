//! Copies of a store, also of one that a process is writing.
//!
//! What is sealed never changes, so a second name for it is a copy (a hard link; a reflink where links do not work; else
//! its bytes). Of the active segment the bytes up to the end of a whole batch are copied: they never change either. The
//! copy gets a manifest of its own, and CURRENT last of all: before that its directory is no store. It is the same store
//! as it was at that moment, down to its identity and its ledger.
//!
//! Left out: thinning out, and copying only what is new. A link costs next to nothing.

use std::io::IoSlice;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::Seqno;
use crate::io::{File, Io, OpenMode};
use crate::kv::core::{Core, Options};
use crate::log::layout::{LogState, SEGMENT_HEADER_BYTES};
use crate::log::manifest::{CleanClose, FORMAT, Manifest, ManifestState, VectorList};
use crate::log::open::{FoundLog, ScanEnd, find, scan};
use crate::log::paths::StorePaths;
use crate::store::Store;
use crate::upkeep::repair::require_empty_dir;

/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// How a copy gets the files that never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// By another name for the same bytes on disk where that works. Costs no room; but what damages the bytes of one
    /// damages both.
    #[default]
    Shared,
    /// By bytes of its own.
    Copied,
}

/// What a backup or a restoring did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BackupReport {
    /// The last record in the copy.
    pub seqno: Seqno,
    /// Log files.
    pub segments: u64,
    /// Files, tables and vectors included, that share their bytes with the source: links and reflinks.
    pub shared_files: u64,
    /// Files that were copied.
    pub copied_files: u64,
    /// Bytes of those.
    pub copied_bytes: u64,
}

impl Store {
    /// Copies the store as it is now into a directory that is empty or not there yet, whether or not a process (also this
    /// one) writes to it meanwhile. Durable when this returns; interrupted before, the directory is no store.
    ///
    /// The copy holds all that was published when this was called. It opens like a store whose process was stopped at
    /// that moment: runs that were open become abandoned when it is first opened for writing. After a clean close it
    /// is a clean store.
    ///
    /// # Errors
    /// `Invalid` where the directory is not empty; `Damaged` where the log's end is; `Unavailable`.
    pub fn backup(&self, to: impl AsRef<Path>, sharing: Sharing) -> Result<BackupReport> {
        let core = self.core();
        if core.is_writer() && !core.is_closed() {
            core.log()?.queue.barrier(core.index.visible())?;
        }
        copy_store(core, to.as_ref(), sharing)
    }
}

/// Makes a store of a backup in a directory that is empty or not there yet: verified first, every byte its own.
///
/// # Errors
/// `Damaged` where the backup is not what was written; `Invalid` where the directory is not empty; `NotFound`,
/// `Unavailable`.
pub fn restore(backup: impl AsRef<Path>, to: impl AsRef<Path>, options: Options) -> Result<BackupReport> {
    require_empty_dir(&*options.io, to.as_ref())?;
    let store = Store::open_read_only_with(backup, options)?;
    let report = store.verify()?;
    if let Some(first) = report.damaged.first() {
        let what = format!("the backup is damaged in {} places; first: {}", report.damaged.len(), first.what);
        return Err(Error::new(ErrorKind::Damaged, what));
    }
    copy_store(store.core(), to.as_ref(), Sharing::Copied)
}

fn copy_store(core: &Core, to: &Path, sharing: Sharing) -> Result<BackupReport> {
    let io = &*core.io;
    require_empty_dir(io, to)?;
    let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if whole(to).starts_with(whole(core.paths.root())) {
        return Err(Error::invalid(format!(
            "{} lies within the store: name a directory beside it",
            to.display()
        )));
    }
    // As long as this is held every file of the log can be read, whether or not it still has a name.
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
    let tables = copy.copy_tables(&found.state)?;
    let vectors = copy.copy_vectors(&found.state)?;
    Manifest::create(io, &copy.to, 1, copy_state(found.state, &end, tables, vectors))?;
    Ok(copy.report)
}

/// What the copy's manifest says.
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
    ManifestState { format: FORMAT, vectors, tables, covers, covers_state, synced: end.tail, clean, ..found }
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

    /// Copies the tables; false where one of them is not to be had, which costs the copy a look at the whole log.
    fn copy_tables(&mut self, state: &ManifestState) -> Result<bool> {
        self.io.create_dir_all(&self.to.tables())?;
        for entry in &state.tables {
            let (from, to) = (self.from.table(entry.id), self.to.table(entry.id));
            match self.link_or_copy(&from, None, &to) {
                Ok(()) => {}
                // The writer has replaced it meanwhile, or it is lost.
                Err(_) if self.io.stat(&from)?.is_none() => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.io.sync_dir(&self.to.tables())?;
        Ok(true)
    }

    /// Copies the vector files; false where one of them is not to be had: then the copy's vectors are read from its log.
    fn copy_vectors(&mut self, state: &ManifestState) -> Result<bool> {
        if state.vectors.files.is_empty() {
            return Ok(true);
        }
        self.io.create_dir_all(&self.to.vectors())?;
        for entry in &state.vectors.files {
            let (from, to) = (self.from.vector_file(entry.id), self.to.vector_file(entry.id));
            match self.link_or_copy(&from, None, &to) {
                Ok(()) => {}
                // The writer has replaced it meanwhile, or it is lost.
                Err(_) if self.io.stat(&from)?.is_none() => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.io.sync_dir(&self.to.vectors())?;
        Ok(true)
    }

    /// Gives a file that never changes another name, or copies it: out of `open` where a compaction may have taken its own
    /// name away.
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

    /// Copies a file, or the first `len` bytes of it.
    fn copy_bytes(&mut self, from: &Path, source: &dyn File, to: &Path, len: Option<u64>) -> Result<()> {
        let len = len.map_or_else(|| source.len(), Ok)?;
        let file = self.io.open(to, OpenMode::CreateNew)?;
        let mut bytes = vec![0; COPY_BYTES];
        let mut at = 0;
        while at < len {
            let want = COPY_BYTES.min(usize::try_from(len - at).unwrap_or(COPY_BYTES));
            let got = source.read_at(&mut bytes[..want], at)?;
            if got < want {
                return Err(Error::damaged(from, at + got as u64, "the file ends while it is copied"));
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
