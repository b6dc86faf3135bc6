//! Verifies a store: its files first, then every run.

use std::collections::BTreeMap;

use crate::error::{Error, ErrorKind, Result};
use crate::log::cursor::for_each_checked_record;
use crate::log::layout::{LogState, SEGMENT_HEADER_BYTES};
use crate::log::manifest::LogCut;
use crate::log::open::{Damage, FoundLog, changed_since_close, find};
use crate::log::scan::{ScanEnd, scan_states, sealed_footer};
use crate::log::writer_lock::is_being_written;
use crate::replay::record_check::{TABLE_DAMAGED, find_with_check, remedy};
use crate::store::Store;
use crate::trace::census::LogCensus;
use crate::trace::reader::RunReader;
use crate::trace::verify::ranges_per_thread;
use annals_store::kv::core::Core;
use annals_store::kv::parallel;

/// Maximum number of runs that are open for verification at a time.
const RUNS_AT_ONCE: usize = 256;

/// A place where the store is not what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyProblem {
    /// The namespace and the run, if the problem was found while reading a run.
    pub run: Option<(String, String)>,
    /// What is wrong, and where.
    pub what: String,
}

/// What a verification read and found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerifyReport {
    /// Number of runs read in full.
    pub runs: u64,
    /// Number of frames whose bytes and links were checked.
    pub frames: u64,
    /// Number of bodies that were hashed again.
    pub blobs: u64,
    /// Bytes of those bodies.
    pub bytes: u64,
    /// Number of values of keys that a reader can ask for and whose bytes were checked, stored blobs among them; 0 if
    /// only runs were verified.
    pub values: u64,
    /// Number of snapshots whose states and vectors were checked.
    pub snapshots: u64,
    /// Number of batches whose checksums, chain and ledger were checked; 0 if only runs were verified.
    pub batches: u64,
    /// The damage that was found, and erasures that the ledger does not state; empty in a sound store.
    pub damaged: Vec<VerifyProblem>,
    /// What is in doubt at the log's end after an unclean stop. It is no damage that is known.
    pub tail: TailReport,
    /// Index tables that were missing or damaged. They are a cache of the log, so nothing is lost. They were
    /// rebuilt from the log; in a store open for reading, only in memory.
    pub rebuilt: Vec<Damage>,
    /// What could not be checked, as sentences. It is no damage.
    pub notes: Vec<String>,
}

/// What is in doubt at the end of a store's log.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TailReport {
    /// Bytes after the last whole batch. The next opening for writing cuts them. `None` while a process writes
    /// to the store: then they are a batch on its way.
    pub torn: Option<LogCut>,
    /// The file `SYNCED` is missing or unreadable, and the store was not closed cleanly. Damage to its last
    /// commits cannot be told from a torn write.
    pub is_note_lost: bool,
    /// The newest cuts that openings for writing made, in order of age.
    pub cuts: Vec<LogCut>,
    /// Number of earlier cuts.
    pub earlier_cuts: u64,
}

impl TailReport {
    fn new(core: &Core, found: &FoundLog, end: &ScanEnd) -> Result<Self> {
        let torn = match end.torn() {
            Some(torn) if !is_being_written(&*core.io, &core.paths)? => Some(torn),
            _ => None,
        };
        let (is_note_lost, cuts) = (found.is_note_lost(), &found.state.cuts);
        Ok(Self { torn, is_note_lost, cuts: cuts.newest.clone(), earlier_cuts: cuts.earlier })
    }
}

impl VerifyReport {
    fn note(&mut self, run: Option<(&str, &str)>, error: &Error) -> Result<()> {
        match error.kind() {
            // A failing disk must not be reported as a damaged store.
            ErrorKind::Unavailable | ErrorKind::Unsupported | ErrorKind::Bug => {
                Err(Error::new(error.kind(), error.to_string()))
            }
            _ => {
                let run = run.map(|(namespace, run)| (namespace.to_owned(), run.to_owned()));
                self.damaged.push(VerifyProblem { run, what: error.to_string() });
                Ok(())
            }
        }
    }
}

impl Store {
    /// Verifies every file (checksums, chain of batches, ledger roots, tables), that the index and the log agree,
    /// every value of a key that a reader can ask for, and every run of every namespace with its snapshots.
    ///
    /// # Errors
    /// `Unavailable` if files cannot be read. Damage is reported, not returned as an error.
    pub fn verify(&self) -> Result<VerifyReport> {
        self.verify_with_threads(1)
    }

    /// Like [`Store::verify`], with `threads` threads for the runs, the caller's included; 0 counts as 1. The
    /// report is the same.
    ///
    /// # Errors
    /// As [`Store::verify`].
    pub fn verify_with_threads(&self, threads: usize) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        self.verify_files(&mut report, true)?;
        for namespace in self.namespaces()? {
            let space = self.namespace(&namespace)?;
            let mut some = Vec::new();
            for info in space.runs()? {
                match info {
                    // By its number: the name may lead elsewhere in a damaged index, which is reported apart.
                    Ok(info) => match space.run_by_uid(info.uid) {
                        // It was dropped meanwhile.
                        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Gone) => {}
                        run => some.push((info.name, run)),
                    },
                    Err(error) => {
                        self.verify_run_group(&namespace, std::mem::take(&mut some), threads, &mut report)?;
                        report.note(None, &error)?;
                    }
                }
                if some.len() == RUNS_AT_ONCE {
                    self.verify_run_group(&namespace, std::mem::take(&mut some), threads, &mut report)?;
                }
            }
            self.verify_run_group(&namespace, some, threads, &mut report)?;
        }
        report.rebuilt = self.rebuilt();
        Ok(report)
    }

    /// Verifies only the named runs.
    ///
    /// # Errors
    /// `NotFound` for a run that does not exist; `Unavailable`.
    pub fn verify_runs(&self, namespace: &str, runs: &[String]) -> Result<VerifyReport> {
        self.verify_runs_with_threads(namespace, runs, 1)
    }

    /// Like [`Store::verify_runs`], with `threads` threads as in [`Store::verify_with_threads`].
    ///
    /// # Errors
    /// As [`Store::verify_runs`].
    pub fn verify_runs_with_threads(
        &self,
        namespace: &str,
        runs: &[String],
        threads: usize,
    ) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        let space = self.namespace(namespace)?;
        for names in runs.chunks(RUNS_AT_ONCE) {
            let some = names.iter().map(|name| (name.clone(), space.run(name))).collect();
            self.verify_run_group(namespace, some, threads, &mut report)?;
        }
        report.rebuilt = self.rebuilt();
        Ok(report)
    }

    /// Verifies some runs. A long run is split into ranges, so that no thread is left alone with it.
    fn verify_run_group(
        &self,
        namespace: &str,
        runs: Vec<(String, Result<RunReader>)>,
        threads: usize,
        report: &mut VerifyReport,
    ) -> Result<()> {
        let frames =
            |run: &Result<RunReader>| run.as_ref().map_or(0, |reader| u64::from(reader.info().frames));
        let total: u64 = runs.iter().map(|(_, run)| frames(run)).sum();
        let (mut jobs, mut counts) = (Vec::new(), Vec::new());
        for (_, run) in &runs {
            let ranges = threads.saturating_mul(ranges_per_thread(threads)) as u64;
            let share = frames(run).saturating_mul(ranges).div_ceil(total.max(1));
            let ranges = match run {
                Ok(reader) => reader.verify_jobs(usize::try_from(share).unwrap_or(1)),
                Err(_) => Vec::new(),
            };
            counts.push(ranges.len());
            jobs.extend(ranges);
        }
        let mut done = parallel::run_all(&*self.core().io, threads, jobs)?.into_iter();
        for ((name, run), count) in runs.into_iter().zip(counts) {
            let ranges: Vec<_> = done.by_ref().take(count).collect();
            let checked = match run {
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(error),
                run => run.and_then(|reader| {
                    let verified = reader.join_ranges(ranges)?;
                    Ok((verified, reader.verify_snapshots()?))
                }),
            };
            match checked {
                Ok((verified, (snapshots, bytes))) => {
                    report.runs += 1;
                    report.frames += verified.frames;
                    report.blobs += verified.blobs;
                    report.bytes += verified.bytes + bytes;
                    report.snapshots += snapshots;
                }
                Err(error) => report.note(Some((namespace, &name)), &error)?,
            }
        }
        Ok(())
    }

    /// Reads the log from its first byte, and compares the index with it. It trusts neither the tables nor a clean
    /// close. With `values`, it reads the values of keys, too.
    pub(crate) fn verify_files(&self, report: &mut VerifyReport, values: bool) -> Result<()> {
        let core = self.core();
        let is_readable = match core.index.verify_tables() {
            Ok(()) => true,
            Err(error) => {
                report.note(None, &error)?;
                false
            }
        };
        let (found, mut check) = match find_with_check(core, values) {
            Ok(found) => found,
            Err(error) => return report.note(None, &error),
        };
        if check.is_none() {
            let what = "the index was not compared with the log, and no values were read: a compaction replaced \
                        files meanwhile; try again";
            report.notes.push(what.to_owned());
        }
        check = check.filter(|_| is_readable);
        // A writer lists its tables anew at its next flush or at the closing.
        let listed = match core.is_writer() && !core.is_closed() {
            true => Vec::new(),
            false => found.state.tables.clone(),
        };
        for Damage { file, offset, what } in core.index.damaged_tables(&listed) {
            let file = file.display();
            let remedy = remedy(&core.paths.tables());
            let what = format!(
                "{TABLE_DAMAGED}: {file} at byte {offset}: {what}, but its file is as before, and its other blocks were not compared; {remedy}"
            );
            report.damaged.push(VerifyProblem { run: None, what });
        }
        let first = found.state.segments.first().map(|segment| segment.id).unwrap_or_default();
        let mut batches = 0;
        let mut state_at_end = LogState::empty();
        let mut roots = Vec::new();
        let mut states = BTreeMap::new();
        let mut census = LogCensus::new(0);
        let scanned = scan_states(
            &*core.schema,
            &found,
            (first, SEGMENT_HEADER_BYTES),
            LogState::empty(),
            &mut |batch, segment, state| {
                batches += 1;
                states.insert(segment.id, state.clone());
                let mut checked = Ok(());
                for_each_checked_record(batch, segment.salt, |at, seqno, record| {
                    if let (Some(check), Ok(())) = (&mut check, &checked) {
                        checked = check.add(segment, at, seqno, &record);
                    }
                    Ok(())
                })
                .map_err(|e| Error::damaged(&segment.path, batch.offset, e))?;
                checked?;
                census.add(batch, segment, state)
            },
        );
        report.batches = batches;
        if let Some(check) = &mut check {
            report.values += check.values;
            report.bytes += check.value_bytes;
            report.damaged.append(&mut check.problems);
        }
        let end = match scanned {
            Ok(end) => end,
            Err(error) => return report.note(None, &error),
        };
        if let Some(damage) = &end.damage {
            report.note(None, &damage.error())?;
        }
        // Entries of a damaged end are those of records that cannot be read.
        if let Some(check) = check.filter(|_| end.damage.is_none()) {
            match check.finish(core.paths.tables()) {
                Ok(problem) => report.damaged.extend(problem),
                Err(error) => report.note(None, &error)?,
            }
        }
        report.tail = TailReport::new(core, &found, &end)?;
        // A process that has opened the store since has changed the manifest.
        let is_closed = || {
            let now = find(&*core.io, &core.paths, false, false, core.options.read_mode);
            now.is_ok_and(|now| now.state == found.state)
        };
        if report.tail.torn.is_some()
            && let Some(what) = changed_since_close(&found.state, &end)
            && is_closed()
        {
            report.damaged.push(VerifyProblem { run: None, what });
        }
        state_at_end.clone_from(&end.state);
        if let Some(clean) =
            found.state.clean.as_ref().filter(|clean| !end.is_torn && clean.state != state_at_end)
        {
            let what = format!(
                "the log ends at record {}, the manifest says {}: one of the two is damaged",
                state_at_end.last_seqno(),
                clean.state.last_seqno()
            );
            report.damaged.push(VerifyProblem { run: None, what });
        }
        match census.finish(&*core.schema, &found) {
            Ok(erasures) => {
                let problems = erasures.problems().into_iter();
                report.damaged.extend(problems.map(|what| VerifyProblem { run: None, what }));
                report.notes.extend(erasures.notes());
            }
            Err(error) => report.note(None, &error)?,
        }
        for segment in found.segments.all() {
            if segment.id != end.segment {
                match segment.file.len().map_err(Error::from).and_then(|len| sealed_footer(&segment, len)) {
                    Ok(footer) => roots.push((segment.id, segment.path.clone(), footer)),
                    Err(error) => report.note(None, &error)?,
                }
            }
        }
        for (id, path, footer) in roots {
            if footer.root != footer.state.ledger.root() {
                let error =
                    Error::damaged(&path, footer.tail, "its footer's ledger root does not match its ledger");
                report.note(None, &error)?;
            }
            if states.get(&id).is_some_and(|state| *state != footer.state) {
                let what = "its footer does not say what its batches add up to";
                report.note(None, &Error::damaged(&path, footer.tail, what))?;
            }
        }
        Ok(())
    }
}
