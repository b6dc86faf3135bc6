//! What a crash may leave, and what must work afterwards.
//!
//! The store must open for reading and show a state of the model. That state is not older than the last
//! commit acknowledged before the crash, and not newer than the last one issued. Up to three nested crashes
//! inside the recovery must not change that. Then the store must open for writing, show the same without open
//! runs, and verify. Its ledger must equal that of the second reader and agree with earlier checkpoints. It
//! must take a commit, and show it after a crash or a clean close.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

use annals::io::sim::{Crash, SimIo};
use annals::{
    Error, ErrorKind, Keyspace, Namespace, RunReader, Status, Store,
    kv::{History, ScanRange},
    ledger::{Checkpoint, GapKind},
    runs::DroppedRun,
    vectors::{Owner, Search},
};

use super::drive::{DrivenCommit, IndexRoom};
use super::model::{self, KEYS, ModelFrame, SPACES};
use super::tally::CrashTally;
use super::{STORE, ledger};
use crate::support::SeededRng;

/// The key put into a recovered store; no workload uses it.
const AFTER: &[u8] = b"~";

/// The content of a store, in the model's words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ObservedState {
    pub(super) text: String,
    /// Number of runs that are still open.
    pub(super) open: usize,
}

/// Reads everything and continues after errors.
pub(super) fn observe_readable(store: &Store) -> (ObservedState, Vec<Error>) {
    let mut seen = ObservedState { text: String::new(), open: 0 };
    let mut errors = Vec::new();
    let said = &mut seen.text;
    let names = keep_or_note_error(store.namespaces(), &mut errors).unwrap_or_default();
    for name in &names {
        let Some(space) = keep_or_note_error(store.namespace(name), &mut errors) else { continue };
        let _ = writeln!(said, "namespace {name}");
        for (name, _) in SPACES {
            if let Some(Some(keyspace)) = keep_or_note_error(space.find_keyspace(name), &mut errors) {
                let _ = writeln!(said, "keyspace {name}");
                observe_keys(&keyspace, name, said, &mut errors);
            }
        }
        observe_near(&space, said, &mut errors);
        let pins = keep_or_note_error(space.pins(), &mut errors).unwrap_or_default();
        for dropped in dropped(&space, &mut errors) {
            let DroppedRun { uid, frames, shared, rule, why, .. } = dropped;
            model::describe_dropped(said, uid.0, frames, shared, &rule, &why);
            match space.run_by_uid(uid) {
                Err(error) if error.kind() == ErrorKind::Gone => {}
                Err(error) => errors.push(error),
                Ok(_) => said.push_str("  AND IT IS THERE\n"),
            }
        }
        let mut pinned = 0;
        for info in keep_or_note_error(space.runs(), &mut errors).into_iter().flatten() {
            let Some(info) = keep_or_note_error(info, &mut errors) else { continue };
            seen.open += usize::from(info.status == Status::Open);
            let pin = pins.iter().find(|pin| pin.uid == info.uid).map(|pin| pin.why.as_str());
            pinned += usize::from(pin.is_some());
            if let Some(reader) = keep_or_note_error(space.run(&info.name), &mut errors) {
                observe_run(&reader, pin, said, &mut errors);
            }
        }
        if pinned != pins.len() && errors.is_empty() {
            let _ = writeln!(said, "OF {} PINS {pinned} ARE OF RUNS", pins.len());
        }
    }
    (seen, errors)
}

fn keep_or_note_error<T>(done: Result<T, Error>, errors: &mut Vec<Error>) -> Option<T> {
    done.map_err(|error| errors.push(error)).ok()
}

fn observe_keys(keyspace: &Keyspace, name: &str, said: &mut String, errors: &mut Vec<Error>) {
    for pair in keyspace.scan(ScanRange::all()) {
        match keep_or_note_error(pair, errors) {
            Some((key, value)) if key != AFTER => model::describe_pair(said, &key, &value),
            _ => {}
        }
    }
    for key in KEYS {
        let Some(versions) = keep_or_note_error(keyspace.history(key.as_bytes()), errors) else { continue };
        if !versions.is_sorted_by(|a, b| a.seqno > b.seqno) {
            let _ = writeln!(said, "  OUT OF ORDER");
        }
        let ended = name == "latest" && versions.iter().all(|version| version.value.is_none());
        let versions = if ended { &[] } else { versions.as_slice() };
        model::describe_history(said, key, versions.iter().map(|version| version.value.as_deref()));
    }
}

/// Every vector that a search can find.
fn observe_near(space: &Namespace, said: &mut String, errors: &mut Vec<Error>) {
    let wanted = Search { k: usize::MAX, exact: true, ..Search::default() };
    let mut all = |embedder: &str, query: &[f32]| match space.nearest(embedder, query, &wanted) {
        // An embedder that never was cannot be told from one without vectors.
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        found => keep_or_note_error(found, errors).unwrap_or_default(),
    };
    let mut keys = all(model::KEYS_BY, &model::QUERY);
    keys.sort_by_cached_key(|found| format!("{:?}", found.owner));
    let keys = keys.iter().filter_map(|found| match &found.owner {
        Owner::Key { keyspace, key } => Some((keyspace.as_str(), key.as_slice(), found.score)),
        Owner::Snapshot { .. } => None,
    });
    model::describe_near(said, keys);
    // All have the same direction: they are ordered by run and frame.
    let states = all(model::RUNS_BY, &[1.0; 24]);
    let states = states.iter().filter_map(|found| match found.owner {
        Owner::Snapshot { run, seq } => Some((run.0, seq)),
        Owner::Key { .. } => None,
    });
    model::describe_states_near(said, states);
}

fn dropped(space: &Namespace, errors: &mut Vec<Error>) -> Vec<DroppedRun> {
    let mut all = Vec::new();
    let each = &mut |one| {
        all.push(one);
        Ok(())
    };
    keep_or_note_error(space.dropped(each), errors);
    all
}

fn observe_run(reader: &RunReader, pin: Option<&str>, said: &mut String, errors: &mut Vec<Error>) {
    let info = reader.info();
    let parent = info.parent.as_ref().map(|p| (p.run.as_deref(), p.at, p.shared));
    let Some(metadata) = keep_or_note_error(reader.metadata(), errors) else { return };
    model::describe_run(said, &info.name, info.status, info.severity, info.frames, parent, &metadata);
    if let Some(why) = pin {
        model::describe_pinned(said, why);
    }
    let mut link = model::genesis();
    for frame in reader.frames() {
        let Some(frame) = keep_or_note_error(frame, errors) else { return };
        let body = |bytes: &[u8]| String::from_utf8_lossy(bytes).into();
        link = frame.link.0;
        let words = ModelFrame {
            component: frame.component,
            severity: frame.severity,
            parent: frame.parent.unwrap_or(0),
            open: frame.incomplete,
            error: frame.error,
            input: body(&frame.input),
            output: body(&frame.output),
            metadata: body(&frame.metadata),
        };
        model::describe_frame(said, frame.seq, &words, &link);
        match reader.snapshot(frame.seq) {
            Ok(taken) => {
                let number = taken.embeddings.first().and_then(|(_, v)| v.last()).copied();
                model::describe_snapshot(said, taken.seq, &taken.state, number.unwrap_or(f32::NAN));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => errors.push(error),
        }
    }
    if info.fingerprint.is_some_and(|fingerprint| fingerprint.0 != link) {
        let _ = writeln!(said, "  ITS FINGERPRINT IS NOT ITS LAST LINK");
    }
}

/// Reads everything; the first error is returned.
pub(super) fn observe(store: &Store) -> Result<ObservedState, Error> {
    let (seen, errors) = observe_readable(store);
    errors.into_iter().next().map_or(Ok(seen), Err)
}

fn error_text(what: &str, error: &Error) -> String {
    format!("{what}: {:?}: {error}", error.kind())
}

/// Opens for reading; `None` if there is no store yet.
fn open_to_look(disk: &SimIo) -> Result<Option<Store>, Error> {
    match Store::open_read_only_with(STORE, IndexRoom::Ample.options(disk)) {
        Ok(store) => Ok(Some(store)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens for reading and reads everything. A store that does not exist yet is empty.
pub(super) fn observe_disk(disk: &SimIo) -> Result<ObservedState, Error> {
    let none = ObservedState { text: String::new(), open: 0 };
    open_to_look(disk)?.map_or(Ok(none), |store| observe(&store))
}

fn assert_same_state(disk: &SimIo, said: &str, when: &str) -> Result<(), String> {
    let again = observe_disk(disk).map_err(|e| error_text(when, &e))?;
    if again.text == said { Ok(()) } else { Err(differs(when, said, &again.text)) }
}

/// The lines in which two states differ.
fn differs(when: &str, wanted: &str, found: &str) -> String {
    let only = |these: &str, others: &str| {
        these
            .lines()
            .filter(|line| !others.lines().any(|other| other == *line))
            .map(|l| format!("\n    {l}"))
            .collect::<String>()
    };
    format!("{when}\n  only before:{}\n  only now:{}", only(wanted, found), only(found, wanted))
}

/// A random choice of what a crash keeps.
pub(super) fn any_crash(rng: &mut SeededRng) -> Crash {
    let seed = rng.next();
    match rng.below(8) {
        0 => Crash::Everything,
        1 => Crash::Nothing,
        2 | 3 => Crash::Ragged(seed),
        _ => Crash::Seed(seed),
    }
}

/// Compares a disk after a crash with the commits that it may show, and with earlier checkpoints. Does not
/// change the disk.
pub(super) fn check(
    disk: &SimIo,
    commits: &[DrivenCommit],
    may_show: Range<usize>,
    rng: &mut SeededRng,
    tally: &mut CrashTally,
) -> Result<(), String> {
    let acknowledged = &commits[..=may_show.start];
    let kept: Vec<_> = acknowledged.iter().filter_map(|commit| commit.checkpoint.as_deref()).collect();
    let allowed = &commits[may_show];
    let seen = observe_disk(disk).map_err(|e| error_text("it cannot be read", &e))?;
    if !allowed.iter().any(|commit| *commit.state == *seen.text) {
        let last = &allowed[allowed.len() - 1].state;
        let what = format!("it shows none of the {} states that it may; the last of them:", allowed.len());
        return Err(differs(&what, last, &seen.text));
    }
    let said = seen.text;
    let mut disk = disk.crash(Crash::Everything);
    let depth = [0, 0, 0, 0, 1, 1, 2, 3][rng.below(8)];
    for level in 0..depth {
        let room = if rng.below(2) == 0 { IndexRoom::Tiny } else { IndexRoom::Ample };
        drop(
            Store::open_with(STORE, room.options(&disk))
                .map_err(|e| error_text("it cannot be recovered", &e))?,
        );
        let history = disk.history();
        let (at, how) = (rng.below(history.ops().len() + 1), any_crash(rng));
        disk = history.crash(at, how);
        tally.inside(level);
        assert_same_state(
            &disk,
            &said,
            &format!("after crash({at}, {how:?}) inside recovery {}", level + 1),
        )?;
    }
    check_continues(&disk, &said, &kept, rng, tally)
}

/// Checks recovery for writing, and normal use afterwards.
fn check_continues(
    disk: &SimIo,
    said: &str,
    checkpoints: &[&Checkpoint],
    rng: &mut SeededRng,
    tally: &mut CrashTally,
) -> Result<(), String> {
    let room = if rng.below(2) == 0 { IndexRoom::Tiny } else { IndexRoom::Ample };
    let store =
        Store::open_with(STORE, room.options(disk)).map_err(|e| error_text("it cannot be recovered", &e))?;
    if store.opening().is_note_lost {
        return Err("a crash destroyed both notes of the log's end".to_owned());
    }
    let seen = observe(&store).map_err(|e| error_text("recovered, it cannot be read", &e))?;
    if seen.text != said {
        return Err(differs("recovery changed what was there", said, &seen.text));
    }
    if seen.open > 0 {
        return Err(format!("after a recovery {} runs are still open:\n{said}", seen.open));
    }
    let report = store.verify().map_err(|e| error_text("verify", &e))?;
    if !report.damaged.is_empty() {
        return Err(format!("verify finds {:?}", report.damaged));
    }
    // A damaged table is rebuilt, which would hide that it was listed before it was complete.
    let rebuilt = store.rebuilt();
    if !rebuilt.is_empty() {
        return Err(format!("a crash of an honest disk left damaged tables: {rebuilt:?}"));
    }
    let ledger = ledger::read(disk, Path::new(STORE));
    // Rereading every file sometimes is enough, since `verify` compares the same totals with the stored ones.
    if rng.below(4) == 0 {
        let stats = store.stats().map_err(|e| error_text("stats", &e))?;
        let root = stats.ledger_root.map(|root| root.0);
        if (stats.ledger_leaves, root) != (ledger.leaves, Some(ledger.root)) {
            return Err(format!("the second reader finds {ledger:?}, the store says {stats:?}"));
        }
        gaps_are_tombstones(&store)?;
    }
    if report.batches != ledger.batches {
        return Err(format!("the second reader finds {ledger:?}, verify read {report:?}"));
    }
    if !checkpoints.is_empty() {
        let checkpoint = checkpoints[rng.below(checkpoints.len())];
        let compared = store.verify_against(checkpoint).map_err(|e| error_text("a checkpoint", &e))?;
        if !compared.differences.is_empty() || compared.erased >= 64 {
            return Err(format!("a checkpoint taken before finds {compared:?}"));
        }
        tally.compared += 1;
    }
    check_write_after(&store, |keyspace| keyspace.put(AFTER, "still writing").map(drop))
        .map_err(|e| error_text("one more commit", &e))?;
    let disk = match rng.below(2) {
        0 => {
            tally.after_append += 1;
            disk.crash(any_crash(rng))
        }
        _ => {
            store.close().map_err(|e| error_text("closing", &e))?;
            tally.after_close += 1;
            disk.crash(Crash::Nothing)
        }
    };
    let when = "after one more commit and a crash or close";
    let again = open_to_look(&disk).map_err(|e| error_text(when, &e))?.ok_or("the store is gone")?;
    let seen = observe(&again).map_err(|e| error_text(when, &e))?;
    let mut wanted = said.to_owned();
    if !said.contains("keyspace all") {
        // The keyspace was made for that commit: the workload had not come so far.
        let space = if said.is_empty() { "namespace default\n" } else { "" };
        let _ = write!(wanted, "{space}keyspace all\n  a:\n  b:\n  c:\n");
    }
    if seen.text != wanted {
        return Err(differs(when, &wanted, &seen.text));
    }
    let mut value = None;
    let got = check_write_after(&again, |keyspace| keyspace.get(AFTER).map(|got| value = got));
    got.map_err(|e| error_text(when, &e))?;
    let later = ledger::read(&disk, Path::new(STORE));
    if value.as_deref() != Some(b"still writing") || later.leaves <= ledger.leaves {
        return Err(format!(
            "{when}: the commit is {value:?}, leaves {} became {}",
            ledger.leaves, later.leaves
        ));
    }
    Ok(())
}

/// The ledger's gaps are exactly the tombstones, and name no other existing run.
fn gaps_are_tombstones(store: &Store) -> Result<(), String> {
    let space = store.namespace("default").map_err(|e| error_text("gaps", &e))?;
    let mut errors = Vec::new();
    let tombstones: Vec<_> =
        dropped(&space, &mut errors).into_iter().map(|one| (one.uid, one.frames, one.rule)).collect();
    let mut gaps = Vec::new();
    let each = &mut |gap: annals::ledger::Gap| {
        if gap.kind == GapKind::Dropped {
            gaps.push((gap.run, gap.frames.unwrap_or_default(), gap.rule));
        }
        Ok(())
    };
    keep_or_note_error(store.gaps(each), &mut errors);
    gaps.sort();
    match errors.first() {
        Some(error) => Err(error_text("gaps", error)),
        None if gaps != tombstones => Err(format!("gaps are {gaps:?}, tombstones {tombstones:?}")),
        None => Ok(()),
    }
}

/// The keyspace for one more commit: an existing one if possible.
fn check_write_after(store: &Store, with: impl FnOnce(&Keyspace) -> Result<(), Error>) -> Result<(), Error> {
    let space = store.namespace("default")?;
    with(&space.keyspace("all", History::All)?)
}
