//! Crashes at every operation of small workloads, on the simulated disk.
//!
//! A workload runs once. Then, for each point of its history and each choice of what a crash keeps, the disk is what
//! the crash left: the store must open by itself and hold a state that the workload had after some commit, not older
//! than the last one acknowledged before the crash, and not newer than the last one issued. Then it must go on: verify
//! clean, take a write, close, and in some states survive a second crash inside the recovery.
//!
//! `ANNALS_CRASH_STATES` says how many states (20,000), `ANNALS_SEED` which.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use annals::io::sim::{Crash, CrashPoint, Op, OpKind, SimIo};
use annals::{
    Component, Durability, ErrorKind, Frame, History, Namespace, Options, RunSpec, ScanRange, Status, Store,
};

const STORE: &str = "/store";

fn options(io: &SimIo) -> Options {
    Options {
        io: Arc::new(io.clone()),
        segment_bytes_max: 6 << 10,
        zero_ahead_bytes: 4 << 10,
        ..crate::support::defaults()
    }
}

/// Memory for so few entries that tables are written, merged and listed all the time, by the upkeep thread.
fn tiny(io: &SimIo) -> Options {
    Options { index_memory_bytes: 512, ..options(io) }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// All that can be read of a store, in words. A run that was open reads the same once it is abandoned.
fn observe(store: &Store) -> Result<String, annals::Error> {
    let mut seen = String::new();
    for name in store.namespaces()? {
        let space = store.namespace(&name)?;
        let _ = writeln!(seen, "namespace {name}");
        for keyspace in ["all", "latest"] {
            if let Some(keyspace) = space.find_keyspace(keyspace)? {
                for pair in keyspace.scan(ScanRange::all()) {
                    let (key, value) = pair?;
                    let versions = if key.starts_with(b"key") { keyspace.history(&key)?.len() } else { 1 };
                    let _ = writeln!(seen, "{key:?} = {} bytes {} x{versions}", value.len(), blake(&value));
                }
            }
        }
        for info in space.runs()? {
            let info = info?;
            let status = if info.status == Status::Open { Status::Abandoned } else { info.status };
            let _ =
                writeln!(seen, "run {} {status} {} {:?}", info.name, info.frames, info.parent.map(|p| p.at));
            let reader = space.run(&info.name)?;
            for frame in reader.frames() {
                let f = frame?;
                let _ =
                    writeln!(seen, "  {} {} {} {} {}", f.seq, f.incomplete, f.input_id, f.output_id, f.link);
            }
            if let Some(snapshot) = reader.snapshot_at(info.frames)? {
                let _ = writeln!(seen, "  state after {} {}", snapshot.seq, blake(&snapshot.state));
            }
        }
    }
    Ok(seen)
}

fn blake(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..16].to_owned()
}

/// What a workload leaves: after how many operations of the disk each commit was issued and acknowledged, and what
/// the store then held.
struct Recorded {
    io: SimIo,
    commits: Vec<Commit>,
}

struct Commit {
    issued: usize,
    acknowledged: usize,
    state: String,
}

struct Workload<'a> {
    io: SimIo,
    commits: &'a mut Vec<Commit>,
}

impl Workload<'_> {
    /// A commit that asked for the process only: a crash may take it until a later one is on disk.
    fn process_step<T>(&mut self, store: &Store, change: impl FnOnce() -> T) -> T {
        let done = self.step(store, change);
        if let Some(last) = self.commits.last_mut() {
            last.acknowledged = usize::MAX;
        }
        done
    }

    /// A clean close puts everything on disk.
    fn close(&mut self, store: Store) {
        let (issued, state) = (self.io.op_count(), observe(&store).unwrap());
        store.close().unwrap();
        self.commits.push(Commit { issued, acknowledged: self.io.op_count(), state });
    }

    fn step<T>(&mut self, store: &Store, change: impl FnOnce() -> T) -> T {
        let issued = self.io.op_count();
        let done = change();
        let acknowledged = self.io.op_count();
        let state = observe(store).unwrap();
        self.commits.push(Commit { issued, acknowledged, state });
        done
    }
}

fn record(seed: u64, workload: fn(&mut Workload<'_>)) -> Recorded {
    let io = SimIo::new(seed);
    let mut commits = vec![Commit { issued: 0, acknowledged: 0, state: String::new() }];
    workload(&mut Workload { io: io.clone(), commits: &mut commits });
    Recorded { io, commits }
}

fn text(words: usize, salt: usize) -> String {
    (0..words).fold(String::new(), |mut text, i| {
        let _ = write!(text, "word{} ", (i * 7919 + salt * 104_729) % 1000);
        text
    })
}

fn space_of(work: &mut Workload<'_>, store: &Store) -> Namespace {
    work.step(store, || store.namespace("default").unwrap())
}

/// Keys: overwritten, deleted, batched, small and large; segments change on the way; closed and reopened.
fn keys(work: &mut Workload<'_>) {
    keys_with(work, options);
}

/// The same while the upkeep thread is always at work. Which operation of its own comes between which of the writer's
/// is for the system to choose: whatever came, the history has it in its order.
fn keys_in_little_memory(work: &mut Workload<'_>) {
    keys_with(work, tiny);
    let made = work.io.history().ops().iter().filter(|op| is_table(op, OpKind::Create)).count();
    let gone = work.io.history().ops().iter().filter(|op| is_table(op, OpKind::Remove)).count();
    assert!(made > 10 && gone > 8, "{made} tables made, {gone} removed");
}

fn is_table(op: &Op, kind: OpKind) -> bool {
    op.kind() == kind && op.path().extension().is_some_and(|end| end == "tbl")
}

fn keys_with(work: &mut Workload<'_>, options: fn(&SimIo) -> Options) {
    let mut values = BTreeMap::new();
    for round in 0..2 {
        let store = Store::open_with(STORE, options(&work.io)).unwrap();
        let space = space_of(work, &store);
        let all = work.step(&store, || space.keyspace("all", History::All).unwrap());
        let latest = work.step(&store, || space.keyspace("latest", History::Latest).unwrap());
        // Enough keys that a table is more than a sector or two.
        work.step(&store, || {
            let mut batch = space.batch();
            for i in 0..80usize {
                batch.put(&all, blake(&[i as u8, round as u8]).as_bytes(), "v");
            }
            batch.commit().unwrap()
        });
        for i in 0..12usize {
            let key = format!("key{}", i % 5);
            let value = text([1, 40, 200, 900][i % 4], i + round * 50);
            let change = || {
                let mut batch = space.batch();
                batch.put(&all, key.as_bytes(), value.clone()).put(&latest, key.as_bytes(), value.clone());
                batch.delete(&latest, b"key3");
                let durability = if i % 3 == 2 { Durability::Process } else { Durability::Disk };
                batch.submit_with(durability).unwrap().wait().unwrap()
            };
            match i % 3 {
                2 => work.process_step(&store, change),
                _ => work.step(&store, change),
            };
            values.insert(key, value);
            // The plain model beside the store.
            for (key, value) in &values {
                assert_eq!(all.get(key.as_bytes()).unwrap().as_deref(), Some(value.as_bytes()));
            }
        }
        if round == 0 {
            work.close(store);
        }
    }
}

/// Runs: frames that grow, one streaming in, snapshots, forks, a run replaced, one left open.
fn runs(work: &mut Workload<'_>) {
    runs_with(work, options);
}

fn runs_in_little_memory(work: &mut Workload<'_>) {
    runs_with(work, tiny);
}

/// Commits to the process only, so that the log is synced by hardly anybody but the upkeep, before it lists a table.
fn keys_to_the_process(work: &mut Workload<'_>) {
    let options = Options { segment_bytes_max: 256 << 10, ..tiny(&work.io) };
    let store = Store::open_with(STORE, options).unwrap();
    let space = space_of(work, &store);
    let all = work.step(&store, || space.keyspace("all", History::All).unwrap());
    for i in 0..40usize {
        work.process_step(&store, || {
            let mut batch = space.batch();
            for j in 0..4 {
                batch.put(&all, format!("key{}", (i * 4 + j) % 50).as_bytes(), text(20, i + j));
            }
            batch.submit_with(Durability::Process).unwrap().wait().unwrap()
        });
    }
    work.close(store);
}

fn runs_with(work: &mut Workload<'_>, options: fn(&SimIo) -> Options) {
    let store = Store::open_with(STORE, options(&work.io)).unwrap();
    let space = space_of(work, &store);
    let run = work.step(&store, || space.begin_run(RunSpec::new("a").metadata(text(30, 3))).unwrap());
    let mut messages = String::from("[");
    for i in 0..6usize {
        let answer = text(60, i);
        let frame =
            Frame::new(Component::Llm, messages.clone(), answer.clone()).metadata(format!("{{\"n\":{i}}}"));
        work.step(&store, || run.record(frame).unwrap());
        let _ = write!(messages, "{answer},");
        if i % 2 == 1 {
            work.step(&store, || run.snapshot(messages.clone(), &[("mock", &[0.5; 32])]).unwrap());
        }
    }
    let open =
        work.step(&store, || run.begin_frame(&Frame::new(Component::Llm, messages.clone(), "")).unwrap());
    for i in 0..3 {
        open.append(text(50, 90 + i).as_bytes()).unwrap();
        work.step(&store, || open.flush().unwrap());
    }
    work.step(&store, || open.finish(false).unwrap());
    let fork = work.step(&store, || space.fork("a", 4, true, RunSpec::new("fork")).unwrap());
    work.step(&store, || fork.record(Frame::new(Component::Llm, messages.clone(), "other")).unwrap());
    work.step(&store, || run.end(Status::Failed).unwrap());
    work.step(&store, || {
        let again = space.prepare_run(RunSpec::new("a").replace(true)).unwrap();
        let mut batch = again.batch().unwrap();
        batch.frame(Frame::new(Component::User, "hello", "")).unwrap();
        batch.end(Status::Ok).unwrap();
        batch.commit().unwrap()
    });
    drop(fork);
    work.close(store);
}

/// Opens what a crash left and holds it against the commits.
fn check(disk: &SimIo, point: &CrashPoint, commits: &[Commit], second: Option<u64>) -> Result<(), String> {
    let fail = |what: String| Err(format!("{what}\nafter a crash at {point}"));
    let acknowledged = commits.iter().rposition(|c| c.acknowledged <= point.at).unwrap_or(0);
    let issued = commits.iter().rposition(|c| c.issued <= point.at).unwrap_or(0);
    let allowed = &commits[acknowledged..=issued];
    let read = match Store::open_read_only_with(STORE, options(disk)) {
        Ok(store) => observe(&store).map_err(|e| format!("reading: {e}\nafter a crash at {point}"))?,
        Err(error) if error.kind() == ErrorKind::NotFound && acknowledged == 0 => String::new(),
        Err(error) => return fail(format!("cannot open for reading: {error}")),
    };
    if !allowed.iter().any(|commit| commit.state == read) {
        return fail(format!("read-only sees no state between commits {acknowledged} and {issued}:\n{read}"));
    }
    // Every other state is recovered in so little memory that opening itself writes tables.
    let writing = if second.is_some() || point.at.is_multiple_of(2) { tiny } else { options };
    let store = match Store::open_with(STORE, writing(disk)) {
        Ok(store) => store,
        Err(error) => return fail(format!("cannot open for writing: {error}")),
    };
    let recovered = observe(&store).map_err(|e| format!("reading: {e}\nafter a crash at {point}"))?;
    if recovered != read {
        return fail(format!("recovery changed what was there:\n{read}\nbecame\n{recovered}"));
    }
    let report = store.verify().map_err(|e| e.to_string())?;
    if !report.damaged.is_empty() {
        return fail(format!("verify finds {:?}", report.damaged));
    }
    if let Some(seed) = second {
        let crashed = disk.crash(Crash::Seed(seed));
        let again =
            Store::open_with(STORE, options(&crashed)).map_err(|e| format!("second crash: {e}\n{point}"))?;
        if observe(&again).map_err(|e| e.to_string())? != read {
            return fail("a second crash lost what the first had kept".to_owned());
        }
    }
    let space = store.namespace("after").map_err(|e| e.to_string())?;
    let keyspace = space.keyspace("all", History::All).map_err(|e| e.to_string())?;
    keyspace.put(b"still", "writing").map_err(|e| e.to_string())?;
    store.close().map_err(|e| e.to_string())?;
    let store =
        Store::open_read_only_with(STORE, options(disk)).map_err(|e| format!("after closing: {e}"))?;
    match observe(&store) {
        Ok(after) if after.starts_with(&read) && after.contains("namespace after") => Ok(()),
        Ok(after) => {
            fail(format!("after one more write and a clean close there is\n{after}\ninstead of\n{read}"))
        }
        Err(error) => fail(format!("after one more write and a clean close: {error}")),
    }
}

fn crash_everywhere(name: &str, workload: fn(&mut Workload<'_>), share: u64) {
    let wanted = number("ANNALS_CRASH_STATES", 20_000) * share / 100;
    let seed = number("ANNALS_SEED", 1);
    let recorded = record(seed, workload);
    let history = recorded.io.history();
    let points = history.ops().len() as u64 + 1;
    // Where nothing is in doubt a point gives one state whatever is asked for.
    let seeds = (wanted + wanted / 4).div_ceil(points).max(1);
    let tried = AtomicUsize::new(0);
    for (index, (point, disk)) in history.crashes(seeds).enumerate() {
        let second = (index % 8 == 0).then_some(seed + index as u64);
        if let Err(what) = check(&disk, &point, &recorded.commits, second) {
            panic!(
                "{what}\nrepeat with: ANNALS_SEED={seed} ANNALS_CRASH_STATES={wanted} cargo test -p annals --test engine crash::{name}"
            );
        }
        tried.fetch_add(1, Ordering::Relaxed);
    }
    let tried = tried.into_inner() as u64;
    println!("{name}: {tried} crash states of {} commits, {points} points", recorded.commits.len());
    assert!(tried >= wanted, "{tried} states instead of {wanted}");
}

#[test]
fn keys_survive_crashes() {
    crash_everywhere("keys_survive_crashes", keys, 50);
}

#[test]
fn keys_survive_crashes_while_tables_are_written() {
    crash_everywhere("keys_survive_crashes_while_tables_are_written", keys_in_little_memory, 50);
}

#[test]
fn runs_survive_crashes_while_tables_are_written() {
    crash_everywhere("runs_survive_crashes_while_tables_are_written", runs_in_little_memory, 50);
}

#[test]
fn a_listed_table_points_at_nothing_that_a_crash_takes() {
    crash_everywhere("a_listed_table_points_at_nothing_that_a_crash_takes", keys_to_the_process, 40);
}

#[test]
fn runs_survive_crashes() {
    crash_everywhere("runs_survive_crashes", runs, 50);
}
