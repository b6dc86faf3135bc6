//! Workloads: sequences of operations that drive a store and its model.

use std::sync::Arc;
use std::time::Duration;

use annals::io::sim::SimIo;
use annals::{
    Component, Durability, ErrorKind, Frame, Keyspace, Namespace, Options, Result, Run, RunSpec, Severity,
    Status, Store,
    kv::History,
    ledger::Checkpoint,
    retention::{RetentionLimit, RetentionPolicy, RetentionRule},
    upkeep::CompactOptions,
};

use super::STORE;
use super::model::{KEYS_BY, ModelFrame, ModelRun, PIN, RUNS_BY, SPACES, StoreModel, vector};

/// One operation. If it needs something that is missing (a snapshot before any frame), it makes that first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkloadOp {
    /// A value of some hundred bytes.
    Put,
    /// Deletes two keys with `Confirmed` durability: the log is synced, then noted.
    Delete,
    /// Several keys of several keyspaces.
    Batch,
    /// A frame whose input holds everything before it.
    Record,
    /// A frame whose output comes in parts, all of them flushed.
    Stream,
    /// A snapshot after the last frame.
    Snapshot,
    /// A fork that edits the last frame; later operations record into it.
    Fork,
    /// A new run replaces the current one.
    Replace,
    /// Ends the current run as failed.
    End,
    /// A clean close and a reopening.
    Reopen,
    /// A put with `Process` durability.
    Lazy,
    /// Eighty keys in one batch.
    Bulk,
    /// A value that becomes a blob.
    Big,
    /// A failed tool call of its own component, escalated.
    Tool,
    /// A frame that is finished with an unflushed part. Nothing waits for the part's batch, so the system
    /// decides whether the writer takes it together with the next.
    Late,
    /// A frame that is begun, gets a part, and is never finished.
    Dangle,
    /// A batch that is dropped after its frame was packed.
    Drop,
    /// A fork that shares the last frame.
    Share,
    /// The current run is dropped without an end.
    Abandon,
    Severity,
    /// A compaction.
    Compact,
    /// A compaction that also recompresses live data.
    Recompress,
    /// Compresses the raw bodies at the log's end.
    CompressTail,
    /// Drops one of the runs; refused if it is open or pinned.
    DropRun,
    /// Pins or unpins the current run.
    Pin,
    /// Drops one of the runs and removes its bytes at once.
    Forget,
    /// Drops all failed and abandoned runs.
    Sweep,
    /// A checkpoint that later states are compared with.
    Checkpoint,
    /// Values with vectors, sometimes with `Process` durability.
    Embed,
    /// Writes all vectors into files, one for each embedder.
    Settle,
}

/// All operations. The exhaustive test uses the first ten.
pub(super) const OPS: [WorkloadOp; 30] = [
    WorkloadOp::Put,
    WorkloadOp::Delete,
    WorkloadOp::Batch,
    WorkloadOp::Record,
    WorkloadOp::Stream,
    WorkloadOp::Snapshot,
    WorkloadOp::Fork,
    WorkloadOp::Replace,
    WorkloadOp::End,
    WorkloadOp::Reopen,
    WorkloadOp::Lazy,
    WorkloadOp::Bulk,
    WorkloadOp::Big,
    WorkloadOp::Tool,
    WorkloadOp::Late,
    WorkloadOp::Dangle,
    WorkloadOp::Drop,
    WorkloadOp::Share,
    WorkloadOp::Abandon,
    WorkloadOp::Severity,
    WorkloadOp::Compact,
    WorkloadOp::Recompress,
    WorkloadOp::CompressTail,
    WorkloadOp::DropRun,
    WorkloadOp::Pin,
    WorkloadOp::Forget,
    WorkloadOp::Sweep,
    WorkloadOp::Checkpoint,
    WorkloadOp::Embed,
    WorkloadOp::Settle,
];

/// Number of [`OPS`] that the exhaustive test uses.
pub(super) const ALPHABET: usize = 10;

/// The index memory of a store, and whether bodies are written raw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IndexRoom {
    /// Memory is never full: tables are written only by a close or a recovery.
    Ample,
    /// Memory for so few entries that the upkeep thread always writes, merges and lists tables. Bodies are raw at
    /// first.
    Tiny,
}

impl IndexRoom {
    pub(super) fn options(self, io: &SimIo) -> Options {
        let defaults = crate::support::defaults();
        Options {
            io: Arc::new(io.clone()),
            segment_bytes_max: 2 << 10,
            zero_ahead_bytes: 1 << 10,
            index_memory_bytes: if self == Self::Tiny { 512 } else { defaults.index_memory_bytes },
            raw_tail_bytes_max: if self == Self::Tiny { 64 << 10 } else { 0 },
            ..defaults
        }
    }
}

/// The disk operations after which a commit was issued and acknowledged, and the store's state from then on.
#[derive(Debug, Clone)]
pub(super) struct DrivenCommit {
    pub(super) issued: usize,
    /// `usize::MAX`: never by itself; a crash may lose it until a later commit is on disk.
    pub(super) acknowledged: usize,
    pub(super) state: Arc<str>,
    /// The caller got an error: the commit must stay invisible until the store is reopened.
    pub(super) failed: bool,
    /// Whether it is known if the writer took the commit.
    pub(super) outcome_known: bool,
    /// A checkpoint of exactly this state.
    pub(super) checkpoint: Option<Arc<Checkpoint>>,
}

#[derive(Debug)]
pub(super) struct WorkloadDriver {
    pub(super) io: SimIo,
    room: IndexRoom,
    pub(super) commits: Vec<DrivenCommit>,
    pub(super) model: StoreModel,
    /// The open store with its handles.
    open: Option<(Store, Namespace, Vec<Keyspace>)>,
    /// The current run, and its index in the model.
    run: Option<(usize, Run)>,
    count: usize,
}

/// Words that compress little, equal for equal salts.
fn text(words: usize, salt: usize) -> String {
    let mut text = String::new();
    for i in 0..words {
        let n = (i * 7919 + salt * 104_729) % 9973;
        text.push_str(&format!("{n:x} "));
    }
    text
}

impl WorkloadDriver {
    /// A new store with its keyspaces and one run.
    pub(super) fn new(io: &SimIo, room: IndexRoom) -> Self {
        let first = DrivenCommit {
            issued: 0,
            acknowledged: 0,
            state: "".into(),
            failed: false,
            outcome_known: true,
            checkpoint: None,
        };
        Self {
            io: io.clone(),
            room,
            commits: vec![first],
            model: StoreModel::default(),
            open: None,
            run: None,
            count: 0,
        }
    }

    /// Runs the set-up and then the operations, until the first failure.
    pub(super) fn run(&mut self, ops: &[WorkloadOp]) -> Result<()> {
        self.open()?;
        ops.iter().try_for_each(|op| self.apply(*op))
    }

    /// Closes cleanly.
    pub(super) fn close(&mut self) -> Result<()> {
        self.run = None;
        let Some((store, ..)) = self.open.take() else { return Ok(()) };
        let issued = self.io.op_count();
        let closed = store.close();
        for run in self.model.runs.iter_mut().filter(|run| run.status == Status::Open) {
            run.status = Status::Abandoned;
        }
        self.note_commit(issued, closed, Durability::Disk)
    }

    /// Notes an issued commit, whatever its result: its state is the model's current one.
    fn note_commit<T>(&mut self, issued: usize, done: Result<T>, durability: Durability) -> Result<T> {
        let known = done.is_ok() && durability >= Durability::Disk;
        let acknowledged = if known { self.io.op_count() } else { usize::MAX };
        let (state, failed) = (self.model.describe().into(), done.is_err());
        self.commits.push(DrivenCommit {
            issued,
            acknowledged,
            state,
            failed,
            outcome_known: true,
            checkpoint: None,
        });
        done
    }

    /// Notes a commit that may be on disk, without an answer.
    fn note_unsure(&mut self, issued: usize) {
        let state = self.model.describe().into();
        self.commits.push(DrivenCommit {
            issued,
            acknowledged: usize::MAX,
            state,
            failed: false,
            outcome_known: false,
            checkpoint: None,
        });
    }

    pub(super) fn open(&mut self) -> Result<()> {
        let store = Store::open_with(STORE, self.room.options(&self.io))?;
        let issued = self.io.op_count();
        let fresh = !std::mem::replace(&mut self.model.made, true);
        let space = store.namespace("default");
        let space = if fresh { self.note_commit(issued, space, Durability::Disk)? } else { space? };
        let mut keyspaces = Vec::new();
        for (name, _) in SPACES {
            let history = match name {
                "age" => History::Age(Duration::from_secs(3600)),
                "all" => History::All,
                "latest" => History::Latest,
                _ => History::Newest(2),
            };
            let issued = self.io.op_count();
            let fresh =
                self.model.spaces.insert(name, self.model.spaces.get(name).cloned().unwrap_or_default());
            let keyspace = space.keyspace(name, history);
            let keyspace = if fresh.is_none() {
                self.note_commit(issued, keyspace, Durability::Disk)?
            } else {
                keyspace?
            };
            keyspaces.push(keyspace);
        }
        self.open = Some((store, space, keyspaces));
        Ok(())
    }

    /// The store, while it is open.
    pub(super) fn store(&self) -> Option<&Store> {
        self.open.as_ref().map(|(store, ..)| store)
    }

    fn parts(&self) -> (Namespace, Vec<Keyspace>) {
        let (_, space, keyspaces) = self.open.as_ref().unwrap();
        (space.clone(), keyspaces.clone())
    }

    pub(super) fn apply(&mut self, op: WorkloadOp) -> Result<()> {
        self.count += 1;
        let n = self.count;
        match op {
            WorkloadOp::Put => self.write(&[(1, "a", Some(text(40 + n % 3 * 40, n)))], Durability::Disk),
            WorkloadOp::Delete => self.write(&[(1, "a", None), (3, "b", None)], Durability::Confirmed),
            WorkloadOp::Lazy => self.write(&[(1, "c", Some(text(30, n)))], Durability::Process),
            WorkloadOp::Big => self.write(&[(3, "c", Some(text(1100, n)))], Durability::Disk),
            WorkloadOp::Batch => {
                let short = || Some(text(3, n));
                let changes = [
                    (0, "a", short()),
                    (2, "a", short()),
                    (3, "a", short()),
                    (3, "b", short()),
                    (2, "b", None),
                ];
                self.write(&changes, Durability::Disk)
            }
            WorkloadOp::Bulk => {
                let keys: Vec<String> = (0..80).map(|i| format!("k{:x}", (i * 7919 + n) % 200)).collect();
                let changes: Vec<_> =
                    keys.iter().map(|key| (1, key.as_str(), Some("v".to_owned()))).collect();
                self.write(&changes, Durability::Disk)
            }
            WorkloadOp::Record => self.record(Component::Llm),
            WorkloadOp::Tool => self.record(Component::Other("own".into())),
            WorkloadOp::Stream => self.stream(true, true),
            WorkloadOp::Late => self.stream(true, false),
            WorkloadOp::Dangle => self.stream(false, true),
            WorkloadOp::Drop => self.drop_batch(),
            WorkloadOp::Snapshot => self.snapshot(),
            WorkloadOp::Fork => self.fork(true),
            WorkloadOp::Share => self.fork(false),
            WorkloadOp::Replace => self.replace(),
            WorkloadOp::End => self.end(),
            WorkloadOp::Abandon => {
                self.run = None;
                Ok(())
            }
            WorkloadOp::Severity => self.severity(),
            WorkloadOp::Compact => self.compact(CompactOptions::default()),
            WorkloadOp::Recompress => {
                self.compact(CompactOptions { recompress: Some(5), ..CompactOptions::default() })
            }
            WorkloadOp::CompressTail => self.store().map_or(Ok(()), |store| store.compress_tail().map(drop)),
            WorkloadOp::DropRun => self.drop_run(None),
            WorkloadOp::Forget => self.drop_run(Some("asked for")),
            WorkloadOp::Pin => self.pin(),
            WorkloadOp::Sweep => self.sweep(),
            WorkloadOp::Checkpoint => self.checkpoint(),
            WorkloadOp::Embed => self.embed(),
            WorkloadOp::Settle => self.store().map_or(Ok(()), Store::settle_vectors),
            WorkloadOp::Reopen => {
                self.close()?;
                self.open()
            }
        }
    }

    fn write(&mut self, changes: &[(usize, &str, Option<String>)], durability: Durability) -> Result<()> {
        let (space, keyspaces) = self.parts();
        let mut batch = space.batch();
        for (at, key, value) in changes {
            match value {
                Some(value) => batch.put(&keyspaces[*at], key.as_bytes(), value.clone()),
                None => batch.delete(&keyspaces[*at], key.as_bytes()),
            };
            self.model.put(SPACES[*at].0, key, value.as_deref().map(Arc::from));
        }
        let issued = self.io.op_count();
        let done = batch.submit_with(durability).and_then(annals::Ticket::wait);
        self.note_commit(issued, done.map(drop), durability)
    }

    fn embed(&mut self) -> Result<()> {
        let (space, keyspaces) = self.parts();
        let n = self.count;
        let mut batch = space.batch();
        for (at, key) in [(2, "a"), (1, ["b", "c"][n % 2])] {
            let vector = vector(n + at);
            let value = text(20, n);
            batch.put_embedded(&keyspaces[at], key.as_bytes(), value.clone(), &[(KEYS_BY, &vector)]);
            self.model.put(SPACES[at].0, key, Some(value.into()));
            self.model.near.insert((SPACES[at].0, key.to_owned()), vector);
        }
        let durability = if n.is_multiple_of(3) { Durability::Process } else { Durability::Disk };
        let issued = self.io.op_count();
        let done = batch.submit_with(durability).and_then(annals::Ticket::wait);
        self.note_commit(issued, done.map(drop), durability)
    }

    /// The current run; begins one if there is none.
    fn current(&mut self) -> Result<usize> {
        if let Some((at, _)) = &self.run {
            return Ok(*at);
        }
        let name = format!("r{}", self.model.runs.len());
        let metadata = format!(r#"{{"n":{}}}"#, self.count);
        self.add_run(&name, &metadata, None);
        let spec = RunSpec::new(&name).metadata(metadata);
        let (issued, space) = (self.io.op_count(), self.parts().0);
        let begun = space.begin_run(spec);
        let run = self.note_commit(issued, begun, Durability::Disk)?;
        self.run = Some((self.model.runs.len() - 1, run));
        Ok(self.model.runs.len() - 1)
    }

    fn add_run(&mut self, name: &str, metadata: &str, parent: Option<(usize, u32, u32)>) {
        let (mut frames, mut snapshots) = (Vec::new(), std::collections::BTreeMap::new());
        if let Some((of, _, shared)) = parent {
            let parent = &self.model.runs[of];
            frames.extend(parent.frames.iter().take(shared as usize).cloned());
            snapshots.extend(
                parent.snapshots.iter().filter(|(seq, _)| **seq <= shared).map(|(s, x)| (*s, x.clone())),
            );
        }
        self.model.runs.push(ModelRun {
            name: name.to_owned(),
            status: Status::Open,
            severity: Severity::Normal,
            parent,
            metadata: metadata.to_owned(),
            frames,
            snapshots,
            gone: false,
            dropped: None,
            pinned: false,
        });
    }

    /// The next frame of a run: its input holds every earlier output.
    fn next_frame(&mut self, at: usize, component: Component) -> ModelFrame {
        let run = &mut self.model.runs[at];
        let own = matches!(component, Component::Other(_));
        let severity = if own { Severity::Escalated } else { Severity::Normal };
        let before: String = run.frames.iter().map(|frame| &*frame.output).collect();
        let n = self.count;
        ModelFrame {
            severity,
            parent: if own { run.frames.len() as u32 } else { 0 },
            open: false,
            error: own,
            input: if own { text(2, n).into() } else { format!("[{before}]").into() },
            output: text(50, n).into(),
            metadata: if n.is_multiple_of(2) { format!(r#"{{"n":{n}}}"#).into() } else { "".into() },
            component,
        }
    }

    fn record(&mut self, component: Component) -> Result<()> {
        let at = self.current()?;
        let frame = self.next_frame(at, component);
        let mut given = frame_of_model(&frame);
        given.error = frame.error;
        given.output = frame.output.to_string().into();
        self.add_frame(at, frame);
        let issued = self.io.op_count();
        let recorded = self.run.as_ref().map(|(_, run)| run.record(given)).transpose();
        self.note_commit(issued, recorded.map(drop), Durability::Disk)
    }

    fn add_frame(&mut self, at: usize, frame: ModelFrame) {
        let run = &mut self.model.runs[at];
        run.severity = run.severity.max(frame.severity);
        run.frames.push(frame);
    }

    fn stream(&mut self, finish: bool, flush: bool) -> Result<()> {
        let at = self.current()?;
        let mut frame = self.next_frame(at, Component::Llm);
        let (whole, start) = (frame.output.clone(), frame_of_model(&frame));
        (frame.output, frame.open) = ("".into(), true);
        self.add_frame(at, frame);
        let Some((_, run)) = self.run.take() else { return Ok(()) };
        let issued = self.io.op_count();
        let open = run.begin_frame(&start);
        let open = self.note_commit(issued, open, Durability::Disk)?;
        let set = |model: &mut StoreModel, output: &str, still: bool| {
            if let Some(frame) = model.runs[at].frames.last_mut() {
                (frame.output, frame.open) = (output.into(), still);
            }
        };
        let (first, rest) = whole.split_at(whole.len() / 2);
        open.append(first.as_bytes())?;
        set(&mut self.model, first, true);
        let issued = self.io.op_count();
        let flushed = open.flush();
        self.note_commit(issued, flushed, Durability::Disk)?;
        if !finish {
            drop(open);
            return Ok(());
        }
        open.append(rest.as_bytes())?;
        set(&mut self.model, &whole, true);
        let issued = self.io.op_count();
        if flush {
            let flushed = open.flush();
            self.note_commit(issued, flushed, Durability::Disk)?;
        } else {
            // `finish` sends the rest in a batch of its own, before the one that finishes the frame.
            self.note_unsure(issued);
        }
        let issued = self.io.op_count();
        let finished = open.finish(false);
        set(&mut self.model, &whole, false);
        self.note_commit(issued, finished, Durability::Disk)?;
        self.run = Some((at, run));
        Ok(())
    }

    fn drop_batch(&mut self) -> Result<()> {
        let at = self.current()?;
        let frame = self.next_frame(at, Component::Llm);
        if let Some((_, run)) = &self.run {
            let mut dropped = frame_of_model(&frame);
            dropped.output = text(70, self.count).into();
            run.batch()?.frame(dropped)?;
        }
        Ok(())
    }

    fn snapshot(&mut self) -> Result<()> {
        let at = self.current()?;
        let run = &self.model.runs[at];
        let seq = run.frames.len() as u32;
        // The snapshot of a shared frame belongs to the parent.
        if seq == 0
            || run.snapshots.contains_key(&seq)
            || run.parent.is_some_and(|(.., shared)| seq <= shared)
        {
            return self.record(Component::Llm);
        }
        let state: Arc<str> = run.frames.iter().map(|frame| &*frame.output).collect::<String>().into();
        let number = self.count as f32;
        self.model.runs[at].snapshots.insert(seq, (state.clone(), number));
        let issued = self.io.op_count();
        let taken =
            self.run.as_ref().map(|(_, run)| run.snapshot(state.to_string(), &[(RUNS_BY, &[number; 24])]));
        self.note_commit(issued, taken.transpose().map(drop), Durability::Disk)
    }

    fn fork(&mut self, edit: bool) -> Result<()> {
        let of = self.current()?;
        let frames = self.model.runs[of].frames.len() as u32;
        if frames == 0 {
            return self.record(Component::Llm);
        }
        let name = format!("f{}", self.model.runs.len());
        let parent = self.model.runs[of].name.clone();
        self.add_run(&name, "", Some((of, frames, frames - u32::from(edit))));
        let (issued, space) = (self.io.op_count(), self.parts().0);
        let forked = space.fork(&parent, frames, edit, RunSpec::new(&name));
        let fork = self.note_commit(issued, forked, Durability::Disk)?;
        self.run = Some((self.model.runs.len() - 1, fork));
        Ok(())
    }

    fn compact(&self, options: CompactOptions) -> Result<()> {
        self.store().map_or(Ok(()), |store| store.compact(&options).map(drop))
    }

    /// Drops one of the runs; with a reason it is forgotten.
    fn drop_run(&mut self, why: Option<&'static str>) -> Result<()> {
        let living: Vec<usize> =
            (0..self.model.runs.len()).filter(|run| !self.model.runs[*run].gone).collect();
        let Some(at) = (!living.is_empty()).then(|| living[self.count * 7 % living.len()]) else {
            return self.record(Component::Llm);
        };
        let run = &mut self.model.runs[at];
        let (name, held) = (run.name.clone(), run.pinned || run.status == Status::Open);
        if !held {
            (run.gone, run.dropped) =
                (true, Some((if why.is_some() { "forget" } else { "own" }, why.unwrap_or(""))));
        }
        let (issued, space) = (self.io.op_count(), self.parts().0);
        let done = match why {
            Some(why) => space.forget(&name, why).map(|forgotten| forgotten.run),
            None => space.drop_run(&name, "own", ""),
        };
        if held {
            return match done {
                Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
                Err(error) => Err(error),
                Ok(dropped) => panic!("{name} is open or pinned and was dropped: {dropped:?}"),
            };
        }
        let uid = self.note_commit(issued, done, Durability::Disk)?.uid;
        if why.is_some() {
            self.compact(CompactOptions { must_go: vec![uid], ..CompactOptions::default() })?;
            let (_, left) = space.run_remnants(uid)?;
            let shared = self.model.shared_by_living(at);
            assert_eq!(left.shared, shared, "{name} is shared up to there");
            assert!(shared > 0 || left.segments.is_empty(), "{name} is gone, but {left:?} is still there");
        }
        Ok(())
    }

    fn pin(&mut self) -> Result<()> {
        let at = self.current()?;
        let run = &mut self.model.runs[at];
        run.pinned = !run.pinned;
        let (name, pinned) = (run.name.clone(), run.pinned);
        let (issued, space) = (self.io.op_count(), self.parts().0);
        let done = if pinned { space.pin(&name, PIN).map(drop) } else { space.unpin(&name).map(drop) };
        self.note_commit(issued, done, Durability::Disk)
    }

    fn sweep(&mut self) -> Result<()> {
        let Some(store) = self.store().cloned() else { return Ok(()) };
        let rule = |name: &str, status| RetentionRule {
            statuses: vec![status],
            ..RetentionRule::new(name, RetentionLimit::ForNs(0))
        };
        let rules = vec![rule("failed", Status::Failed), rule("abandoned", Status::Abandoned)];
        let issued = self.io.op_count();
        let swept =
            store.plan_retention(&RetentionPolicy::new(rules), None).and_then(|plan| store.retain(plan));
        // Each rule that drops something commits once: a crash may keep the first commit alone.
        let mut commits = 0;
        for (name, status) in [("failed", Status::Failed), ("abandoned", Status::Abandoned)] {
            let runs = self.model.runs.iter_mut();
            let doomed: Vec<_> =
                runs.filter(|run| !run.gone && !run.pinned && run.status == status).collect();
            commits += usize::from(!doomed.is_empty());
            for run in doomed {
                (run.gone, run.dropped) = (true, Some((name, "")));
            }
            if name == "failed" && commits > 0 {
                self.note_unsure(issued);
            }
        }
        if commits == 0 {
            return swept.map(drop);
        }
        let swept = self.note_commit(issued, swept, Durability::Disk)?;
        assert_eq!(swept.held, 0, "{swept:?}");
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<()> {
        let Some(store) = self.store().cloned() else { return Ok(()) };
        let issued = self.io.op_count();
        let taken = self.note_commit(issued, store.checkpoint(), Durability::Disk)?;
        if let Some(last) = self.commits.last_mut() {
            last.checkpoint = Some(Arc::new(taken));
        }
        Ok(())
    }

    fn replace(&mut self) -> Result<()> {
        let old = self.current()?;
        if self.model.runs[old].pinned {
            let again = RunSpec::new(&self.model.runs[old].name).replace(true);
            return match self.parts().0.prepare_run(again) {
                Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
                Err(error) => Err(error),
                Ok(_) => panic!("a pinned run can be replaced"),
            };
        }
        self.run = None;
        let name = self.model.runs[old].name.clone();
        let (issued, space) = (self.io.op_count(), self.parts().0);
        let prepared = space.prepare_run(RunSpec::new(&name).replace(true))?;
        self.model.runs[old].gone = true;
        self.add_run(&name, "", None);
        let at = self.model.runs.len() - 1;
        let mut frame = self.next_frame(at, Component::User);
        (frame.input, frame.metadata) = (format!("hello {}", self.count).into(), "".into());
        let mut first = frame_of_model(&frame);
        first.output = frame.output.to_string().into();
        self.add_frame(at, frame);
        let done = prepared.batch().and_then(|mut batch| {
            batch.frame(first)?;
            batch.commit()
        });
        self.note_commit(issued, done.map(drop), Durability::Disk)?;
        self.run = Some((at, prepared));
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let at = self.current()?;
        self.model.runs[at].status = Status::Failed;
        let Some((_, run)) = self.run.take() else { return Ok(()) };
        let issued = self.io.op_count();
        let ended = run.end(Status::Failed);
        let ended = self.note_commit(issued, ended.map(drop), Durability::Disk);
        if let (Err(_), Some(last)) = (&ended, self.commits.last_mut()) {
            // The engine reads the run again after the commit: if only that fails, the run has ended all the
            // same.
            (last.failed, last.outcome_known) = (false, false);
        }
        ended
    }

    fn severity(&mut self) -> Result<()> {
        let at = self.current()?;
        self.model.runs[at].severity = Severity::Flagged;
        let issued = self.io.op_count();
        let set = self.run.as_ref().map(|(_, run)| run.set_severity(Severity::Flagged)).transpose();
        self.note_commit(issued, set.map(drop), Durability::Disk)
    }
}

/// A model frame as a caller passes it, without its output.
fn frame_of_model(frame: &ModelFrame) -> Frame {
    let mut given = Frame::new(frame.component.clone(), frame.input.to_string(), "");
    given.severity = frame.severity;
    if frame.parent != 0 {
        given = given.parent(frame.parent);
    }
    given.metadata(frame.metadata.as_bytes().to_vec())
}
