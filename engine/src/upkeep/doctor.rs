//! Describes the state of a store for people. It changes nothing.

use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Seqno, StoreId};
use crate::io::IoError;
use crate::log::manifest::{FORMAT, ManifestState, current_line};
use crate::log::open::{Damage, LAST_EDITS_LOST, changed_since_close, enter, find};
use crate::log::paths::{
    RESERVE, SOCKET, SOCKET_NEXT, StorePaths, parse_manifest, parse_segment, parse_table, parse_vector_file,
};
use crate::log::scan::scan;
use crate::log::writer_lock::{StoreLock, keep_writers_out};
use crate::replay::record_check::{INDEX_DIFFERS, TABLE_DAMAGED, remedy};
use crate::replay::{TailReport, VerifyReport};
use crate::store::Store;
use crate::trace::erasure_report::{ERASED, FORGED};
use crate::upkeep::directory::inspect_directory;
use crate::upkeep::salvage::salvage;
use annals_store::kv::core::Options;

/// How often files are looked for if a compaction of another process replaces them meanwhile.
const ATTEMPTS_MAX: usize = 3;

/// A damaged place in a file, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub file: PathBuf,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
    /// What this means for the recorded data.
    pub means: String,
    /// What to do next.
    pub next: String,
}

/// The state of a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diagnosis {
    /// The store's identity, if any file names it.
    pub store: Option<StoreId>,
    /// The format of the files, if the manifest is readable.
    pub format: Option<u16>,
    /// The process number of the current writer, if there is one.
    pub writer: Option<String>,
    /// The store was closed cleanly, and nothing has been written since.
    pub clean: bool,
    /// Number of log files.
    pub segments: u64,
    /// Number of index tables.
    pub tables: u64,
    /// The number of the last intact record.
    pub seqno: Seqno,
    /// Bytes of log that no table covers: opening the store reads them.
    pub unindexed_bytes: u64,
    /// What is in doubt at the log's end.
    pub tail: TailReport,
    /// The next opening for writing succeeds. It reads what no table covers, and refuses damage there.
    pub opens_for_writing: bool,
    /// Open runs. The next opening for writing marks them as abandoned, unless their recorder is still at
    /// work.
    pub open_runs: u64,
    /// Damage in the log and the manifest, erasures that nothing explains, and tables whose content is wrong or damaged.
    pub findings: Vec<Finding>,
    /// Missing or damaged tables. What needs them is rebuilt from the log.
    pub rebuild: Vec<Damage>,
    /// Files that a crash left over: the next opening for writing removes or replaces them.
    pub leftovers: Vec<PathBuf>,
    /// Files that the manifest does not list, in a store that does not open. They may hold newer data than the manifest
    /// knows, so nobody should remove them.
    pub unlisted: Vec<PathBuf>,
    /// Files in the directory that do not belong to a store.
    pub foreign: Vec<PathBuf>,
    /// Free bytes on the file system, if it reports them.
    pub free_bytes: Option<u64>,
    /// What could not be checked, as sentences. It is no damage.
    pub notes: Vec<String>,
}

impl Diagnosis {
    /// Whether no recorded data is damaged.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Diagnoses a store: its writer, its last close, what the next opening will do, and any damage with its
/// remedy. It reads the whole log and every table, and compares them, but reads no bodies; [`Store::verify`] checks
/// those. It changes
/// nothing.
///
/// # Errors
/// `NotFound` if the directory holds no part of a store; `Unsupported` for a newer format; `Unavailable`. Damage
/// is reported, not returned as an error.
pub fn diagnose(path: impl AsRef<Path>, options: Options) -> Result<Diagnosis> {
    let mut left = ATTEMPTS_MAX;
    loop {
        left -= 1;
        match diagnose_once(path.as_ref(), options.clone()) {
            // A compaction of another process has replaced files.
            Err(error) if left > 0 && is_missing_file(&error) => {}
            diagnosed => return diagnosed,
        }
    }
}

fn is_missing_file(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<IoError>());
    error.kind() == ErrorKind::Unavailable
        && source.is_some_and(|source| source.kind() == std::io::ErrorKind::NotFound)
}

fn diagnose_once(path: &Path, options: Options) -> Result<Diagnosis> {
    let paths = StorePaths::new(path);
    let io = enter(&options.io, &paths, false)?;
    let site = inspect_directory(&*io, &paths)?;
    let mut all = Diagnosis {
        store: Some(site.store),
        format: site.manifest.as_ref().ok().map(|loaded| loaded.state.format),
        segments: site.segments.len() as u64,
        free_bytes: io.free_bytes(paths.root())?,
        ..Diagnosis::default()
    };
    if let Ok(loaded) = &site.manifest {
        // These facts are known even if the store does not open.
        let state = &loaded.state;
        let end = state.clean.as_ref().map_or(&state.covers_state, |clean| &clean.state);
        (all.clean, all.tables, all.seqno) =
            (state.clean.is_some(), state.tables.len() as u64, end.last_seqno());
    }
    if let StoreLock::Writer(pid) = keep_writers_out(&*io, &paths)? {
        all.writer = Some(pid);
    }
    let checked = match Store::open_read_only_with(path, options) {
        Ok(store) => examine(&store, &paths, &mut all),
        Err(error) => Err(error),
    };
    let mut wrong = Vec::new();
    match checked {
        Ok(report) => {
            for problem in report.damaged {
                if problem.what.starts_with(ERASED) || problem.what.starts_with(FORGED) {
                    all.findings.push(finding_of_forgery(&paths, problem.what));
                } else if problem.what.starts_with(INDEX_DIFFERS) || problem.what.starts_with(TABLE_DAMAGED) {
                    all.findings.push(finding_of_index(&paths, problem.what));
                } else {
                    wrong.push(problem.what);
                }
            }
            all.notes = report.notes;
        }
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::Unavailable | ErrorKind::Unsupported | ErrorKind::Invalid
            ) =>
        {
            return Err(error);
        }
        Err(error) => wrong.push(error.to_string()),
    }
    if !wrong.is_empty() {
        // Locates the damage file by file. A torn end alone is no damage; together with other damage it may
        // be part of it.
        let found = salvage(&site, &mut |_| {})?;
        let mut located: Vec<Finding> =
            site.damage.iter().chain(&found.damage).map(|damage| finding_of(&paths, damage)).collect();
        if let Ok(loaded) = &site.manifest {
            for finding in located.iter_mut().filter(|finding| finding.file == paths.current()) {
                mend_current(&paths, loaded.generation, finding);
            }
        }
        // Each file is as it was written, and they do not belong together.
        let is_older = site.manifest.is_ok() && wrong.iter().any(|what| what.contains(LAST_EDITS_LOST));
        if located.is_empty() || is_older {
            let whole = |what| Damage { file: paths.root().to_path_buf(), offset: 0, what };
            located.splice(0..0, wrong.into_iter().map(|what| finding_of(&paths, &whole(what))));
        }
        all.findings.append(&mut located);
    }
    sort_files(&*io, &paths, site.manifest.as_ref().ok(), &mut all)?;
    if !all.opens_for_writing {
        all.unlisted = std::mem::take(&mut all.leftovers);
    }
    Ok(all)
}

/// Adds the facts that only an open store can give.
fn examine(store: &Store, paths: &StorePaths, all: &mut Diagnosis) -> Result<VerifyReport> {
    let core = store.core();
    let found = find(&*core.io, paths, false, false, core.options.read_mode)?;
    let (from, state) = (found.state.covers, found.state.covers_state.clone());
    let before = state.totals.bytes();
    let end = scan(&*core.schema, &found, from, state, &mut |_, _| Ok(()))?;
    all.seqno = end.state.last_seqno();
    all.opens_for_writing = end.damage.is_none() && changed_since_close(&found.state, &end).is_none();
    all.clean = !end.is_torn && found.state.clean.is_some();
    all.tables = found.state.tables.len() as u64;
    all.unindexed_bytes = end.state.totals.bytes().saturating_sub(before);
    let mut report = VerifyReport::default();
    store.verify_files(&mut report, false)?;
    all.tail = std::mem::take(&mut report.tail);
    for namespace in store.namespaces()? {
        for info in store.namespace(&namespace)?.runs()? {
            all.open_runs += u64::from(info.is_ok_and(|info| info.status == crate::Status::Open));
        }
    }
    all.rebuild = store.rebuilt();
    Ok(report)
}

/// Tells how to restore CURRENT, if an intact manifest is there.
fn mend_current(paths: &StorePaths, generation: u64, finding: &mut Finding) {
    let line = current_line(generation);
    let to = paths.current().display().to_string().replace('\'', r"'\''");
    finding.means =
        "the manifest is there, but nothing names it: nothing is lost if no other damage is listed"
            .to_owned();
    // Removed first: if it is a link, its target is no file of the store.
    finding.next = format!("rm -f -- '{to}' && printf '{}\\n' > '{to}'", line.trim_end());
}

fn finding_of_forgery(paths: &StorePaths, what: String) -> Finding {
    let means = match what.starts_with(FORGED) {
        true => {
            "somebody wrote records past annals, and readers get those; all other runs and keys are intact"
        }
        false => {
            "somebody removed records past annals, or cut the log back behind the record of a deletion; all other \
             runs and keys are intact"
        }
    };
    let next = "compare with a checkpoint that was kept elsewhere: annals verify --against FILE; or restore a backup";
    Finding { file: paths.segments(), offset: 0, what, means: means.to_owned(), next: next.to_owned() }
}

fn finding_of_index(paths: &StorePaths, what: String) -> Finding {
    let means =
        "readers may miss runs or keys, or get old versions; nothing is lost, because the log holds them";
    let next = remedy(&paths.tables());
    let (file, means) = (paths.tables(), means.to_owned());
    Finding { file, offset: 0, what, means, next }
}

fn finding_of(paths: &StorePaths, damage: &Damage) -> Finding {
    let in_segment = damage.file.starts_with(paths.segments());
    let means = match in_segment {
        true => {
            "these bytes cannot be read; the runs and keys that need them are damaged, all others are intact"
        }
        false => {
            "it is not certain which files belong to the store; the data in the log may still be complete"
        }
    };
    Finding {
        file: damage.file.clone(),
        offset: damage.offset,
        what: damage.what.clone(),
        means: means.to_owned(),
        next: "restore a backup, or save the intact data into a new store: annals repair --to NEWDIR"
            .to_owned(),
    }
}

/// Sorts the files that the manifest does not list into leftovers and foreign files.
fn sort_files(
    io: &dyn crate::io::Io,
    paths: &StorePaths,
    loaded: Option<&crate::log::manifest::LoadedManifest>,
    all: &mut Diagnosis,
) -> Result<()> {
    let root = paths.root();
    for name in io.list(root)? {
        let stale = parse_manifest(&name).is_some_and(|at| loaded.is_some_and(|l| l.generation != at));
        if stale || name == "CURRENT.next" || name == SOCKET_NEXT {
            all.leftovers.push(root.join(&name));
        } else if parse_manifest(&name).is_none()
            && !["LOCK", "CURRENT", "SYNCED", "NAMES", "segments", "tables", "vectors", SOCKET, RESERVE]
                .contains(&name.as_str())
        {
            all.foreign.push(root.join(&name));
        }
    }
    let state = loaded.map(|loaded| &loaded.state);
    for dir in [paths.segments(), paths.tables(), paths.vectors()] {
        let names = if io.stat(&dir)?.is_some() { io.list(&dir)? } else { Vec::new() };
        for name in names {
            let (segment, table, vectors) =
                (parse_segment(&name), parse_table(&name), parse_vector_file(&name));
            let (ours, listed) = if dir == paths.segments() {
                (segment.is_some(), state.is_none_or(|s| s.segments.iter().any(|e| Some(e.id) == segment)))
            } else if dir == paths.tables() {
                (table.is_some(), state.is_none_or(|s| s.tables.iter().any(|e| Some(e.id) == table)))
            } else {
                let listed = |s: &ManifestState| s.vectors.files.iter().any(|e| Some(e.id) == vectors);
                (vectors.is_some(), state.is_none_or(listed))
            };
            match (ours, listed) {
                (false, _) => all.foreign.push(dir.join(&name)),
                // With a writer at work, its new files may be listed soon, so they are no leftovers.
                (true, false) if all.writer.is_none() => all.leftovers.push(dir.join(&name)),
                _ => {}
            }
        }
    }
    Ok(())
}

impl Diagnosis {
    /// The steps of the next opening for writing, one sentence each.
    #[must_use]
    pub fn recovery_steps(&self) -> Vec<String> {
        let mut steps = Vec::new();
        if !self.opens_for_writing {
            return vec!["it will refuse to open this store for writing until it is repaired".to_owned()];
        }
        if let Some(format) = self.format.filter(|format| *format < FORMAT) {
            steps.push(format!(
                "upgrade the store from format {format} to format {FORMAT}, which older versions of annals do not read: run `annals backup` first, to keep a way back"
            ));
        }
        if self.clean {
            return steps;
        }
        if self.unindexed_bytes > 0 {
            steps.push(format!("read the last {} bytes of the log into the index", self.unindexed_bytes));
        }
        if let Some(torn) = &self.tail.torn {
            steps.push(format!("cut what a crash tore or damage changed, {torn}"));
        }
        steps.push("seal the last log file and begin the next".to_owned());
        if self.open_runs > 0 {
            steps.push(format!("mark {} open runs as abandoned", self.open_runs));
        }
        steps
    }
}
