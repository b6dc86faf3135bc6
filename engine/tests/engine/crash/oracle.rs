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
    Checkpoint, Dropped, Error, ErrorKind, GapKind, History, Keyspace, Namespace, Owner, RunReader,
    ScanRange, Search, Status, Store,
};

use super::drive::{Commit, Room};
use super::model::{self, KEYS, ModelFrame, SPACES};
use super::tally::Tally;
use super::{STORE, ledger};
use crate::support::Rng;

/// The key put into a recovered store; no workload uses it.
const AFTER: &[u8] = b"~";

/// The content of a store, in the model's words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) said: String,
    /// Number of runs that are still open.
    pub(super) open: usize,
}

/// Reads everything and continues after errors.
pub(super) fn observe_what_can_be(store: &Store) -> (Seen, Vec<Error>) {
    let mut seen = Seen { said: String::new(), open: 0 };
    let mut errors = Vec::new();
    let said = &mut seen.said;
    let names = kept(store.namespaces(), &mut errors).unwrap_or_default();
    for name in &names {
        let Some(space) = kept(store.namespace(name), &mut errors) else { continue };
        let _ = writeln!(said, "namespace {name}");
        for (name, _) in SPACES {
            if let Some(Some(keyspace)) = kept(space.find_keyspace(name), &mut errors) {
                let _ = writeln!(said, "keyspace {name}");
                observe_keys(&keyspace, name, said, &mut errors);
            }
        }
        observe_near(&space, said, &mut errors);
        let pins = kept(space.pins(), &mut errors).unwrap_or_default();
        for dropped in dropped(&space, &mut errors) {
            let Dropped { uid, frames, shared, rule, why, .. } = dropped;
            model::say_dropped(said, uid.0, frames, shared, &rule, &why);
            match space.run_numbered(uid) {
                Err(error) if error.kind() == ErrorKind::Gone => {}
                Err(error) => errors.push(error),
                Ok(_) => said.push_str("  AND IT IS THERE\n"),
            }
        }
        let mut pinned = 0;
        for info in kept(space.runs(), &mut errors).into_iter().flatten() {
            let Some(info) = kept(info, &mut errors) else { continue };
            seen.open += usize::from(info.status == Status::Open);
            let pin = pins.iter().find(|pin| pin.uid == info.uid).map(|pin| pin.why.as_str());
            pinned += usize::from(pin.is_some());
            if let Some(reader) = kept(space.run(&info.name), &mut errors) {
                observe_run(&reader, pin, said, &mut errors);
            }
        }
        if pinned != pins.len() && errors.is_empty() {
            let _ = writeln!(said, "OF {} PINS {pinned} ARE OF RUNS", pins.len());
        }
    }
    (seen, errors)
}

fn kept<T>(done: Result<T, Error>, errors: &mut Vec<Error>) -> Option<T> {
    done.map_err(|error| errors.push(error)).ok()
}

fn observe_keys(keyspace: &Keyspace, name: &str, said: &mut String, errors: &mut Vec<Error>) {
    for pair in keyspace.scan(ScanRange::all()) {
        match kept(pair, errors) {
            Some((key, value)) if key != AFTER => model::say_pair(said, &key, &value),
            _ => {}
        }
    }
    for key in KEYS {
        let Some(versions) = kept(keyspace.history(key.as_bytes()), errors) else { continue };
        if !versions.is_sorted_by(|a, b| a.seqno > b.seqno) {
            let _ = writeln!(said, "  OUT OF ORDER");
        }
        let ended = name == "latest" && versions.iter().all(|version| version.value.is_none());
        let versions = if ended { &[] } else { versions.as_slice() };
        model::say_history(said, key, versions.iter().map(|version| version.value.as_deref()));
    }
}

/// Every vector that a search can find.
fn observe_near(space: &Namespace, said: &mut String, errors: &mut Vec<Error>) {
    let wanted = Search { k: usize::MAX, exact: true, ..Search::default() };
    let mut all = |embedder: &str, query: &[f32]| match space.nearest(embedder, query, &wanted) {
        // An embedder that never was cannot be told from one without vectors.
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        found => kept(found, errors).unwrap_or_default(),
    };
    let mut keys = all(model::KEYS_BY, &model::QUERY);
    keys.sort_by_cached_key(|found| format!("{:?}", found.owner));
    let keys = keys.iter().filter_map(|found| match &found.owner {
        Owner::Key { keyspace, key } => Some((keyspace.as_str(), key.as_slice(), found.score)),
        Owner::Snapshot { .. } => None,
    });
    model::say_near(said, keys);
    // All have the same direction: they are ordered by run and frame.
    let states = all(model::RUNS_BY, &[1.0; 24]);
    let states = states.iter().filter_map(|found| match found.owner {
        Owner::Snapshot { run, seq } => Some((run.0, seq)),
        Owner::Key { .. } => None,
    });
    model::say_states_near(said, states);
}

fn dropped(space: &Namespace, errors: &mut Vec<Error>) -> Vec<Dropped> {
    let mut all = Vec::new();
    let each = &mut |one| {
        all.push(one);
        Ok(())
    };
    kept(space.dropped(each), errors);
    all
}

fn observe_run(reader: &RunReader, pin: Option<&str>, said: &mut String, errors: &mut Vec<Error>) {
    let info = reader.info();
    let parent = info.parent.as_ref().map(|p| (p.run.as_deref(), p.at, p.shared));
    let Some(metadata) = kept(reader.metadata(), errors) else { return };
    model::say_run(said, &info.name, info.status, info.severity, info.frames, parent, &metadata);
    if let Some(why) = pin {
        model::say_pinned(said, why);
    }
    let mut link = model::genesis();
    for frame in reader.frames() {
        let Some(frame) = kept(frame, errors) else { return };
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
        model::say_frame(said, frame.seq, &words, &link);
        match reader.snapshot(frame.seq) {
            Ok(taken) => {
                let number = taken.embeddings.first().and_then(|(_, v)| v.last()).copied();
                model::say_snapshot(said, taken.seq, &taken.state, number.unwrap_or(f32::NAN));
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
pub(super) fn observe(store: &Store) -> Result<Seen, Error> {
    let (seen, errors) = observe_what_can_be(store);
    errors.into_iter().next().map_or(Ok(seen), Err)
}

fn words(what: &str, error: &Error) -> String {
    format!("{what}: {:?}: {error}", error.kind())
}

/// Opens for reading; `None` if there is no store yet.
fn open_to_look(disk: &SimIo) -> Result<Option<Store>, Error> {
    match Store::open_read_only_with(STORE, Room::Ample.options(disk)) {
        Ok(store) => Ok(Some(store)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens for reading and reads everything. A store that does not exist yet is empty.
pub(super) fn look(disk: &SimIo) -> Result<Seen, Error> {
    let none = Seen { said: String::new(), open: 0 };
    open_to_look(disk)?.map_or(Ok(none), |store| observe(&store))
}

fn looks_the_same(disk: &SimIo, said: &str, when: &str) -> Result<(), String> {
    let again = look(disk).map_err(|e| words(when, &e))?;
    if again.said == said { Ok(()) } else { Err(differs(when, said, &again.said)) }
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
pub(super) fn any_crash(rng: &mut Rng) -> Crash {
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
    commits: &[Commit],
    may_show: Range<usize>,
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<(), String> {
    let acknowledged = &commits[..=may_show.start];
    let kept: Vec<_> = acknowledged.iter().filter_map(|commit| commit.checkpoint.as_deref()).collect();
    let allowed = &commits[may_show];
    let seen = look(disk).map_err(|e| words("it cannot be read", &e))?;
    if !allowed.iter().any(|commit| *commit.state == *seen.said) {
        let last = &allowed[allowed.len() - 1].state;
        let what = format!("it shows none of the {} states that it may; the last of them:", allowed.len());
        return Err(differs(&what, last, &seen.said));
    }
    let said = seen.said;
    let mut disk = disk.crash(Crash::Everything);
    let depth = [0, 0, 0, 0, 1, 1, 2, 3][rng.below(8)];
    for level in 0..depth {
        let room = if rng.below(2) == 0 { Room::Tiny } else { Room::Ample };
        drop(Store::open_with(STORE, room.options(&disk)).map_err(|e| words("it cannot be recovered", &e))?);
        let history = disk.history();
        let (at, how) = (rng.below(history.ops().len() + 1), any_crash(rng));
        disk = history.crash(at, how);
        tally.inside(level);
        looks_the_same(&disk, &said, &format!("after crash({at}, {how:?}) inside recovery {}", level + 1))?;
    }
    goes_on(&disk, &said, &kept, rng, tally)
}

/// Checks recovery for writing, and normal use afterwards.
fn goes_on(
    disk: &SimIo,
    said: &str,
    checkpoints: &[&Checkpoint],
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<(), String> {
    let room = if rng.below(2) == 0 { Room::Tiny } else { Room::Ample };
    let store =
        Store::open_with(STORE, room.options(disk)).map_err(|e| words("it cannot be recovered", &e))?;
    let seen = observe(&store).map_err(|e| words("recovered, it cannot be read", &e))?;
    if seen.said != said {
        return Err(differs("recovery changed what was there", said, &seen.said));
    }
    if seen.open > 0 {
        return Err(format!("after a recovery {} runs are still open:\n{said}", seen.open));
    }
    let report = store.verify().map_err(|e| words("verify", &e))?;
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
        let stats = store.stats().map_err(|e| words("stats", &e))?;
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
        let compared = store.verify_against(checkpoint).map_err(|e| words("a checkpoint", &e))?;
        if !compared.differences.is_empty() || compared.erased >= 64 {
            return Err(format!("a checkpoint taken before finds {compared:?}"));
        }
        tally.compared += 1;
    }
    after(&store, |keyspace| keyspace.put(AFTER, "still writing").map(drop))
        .map_err(|e| words("one more commit", &e))?;
    let disk = match rng.below(2) {
        0 => {
            tally.after_append += 1;
            disk.crash(any_crash(rng))
        }
        _ => {
            store.close().map_err(|e| words("closing", &e))?;
            tally.after_close += 1;
            disk.crash(Crash::Nothing)
        }
    };
    let when = "after one more commit and a crash or close";
    let again = open_to_look(&disk).map_err(|e| words(when, &e))?.ok_or("the store is gone")?;
    let seen = observe(&again).map_err(|e| words(when, &e))?;
    let mut wanted = said.to_owned();
    if !said.contains("keyspace all") {
        // The keyspace was made for that commit: the workload had not come so far.
        let space = if said.is_empty() { "namespace default\n" } else { "" };
        let _ = write!(wanted, "{space}keyspace all\n  a:\n  b:\n  c:\n");
    }
    if seen.said != wanted {
        return Err(differs(when, &wanted, &seen.said));
    }
    let mut value = None;
    let got = after(&again, |keyspace| keyspace.get(AFTER).map(|got| value = got));
    got.map_err(|e| words(when, &e))?;
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
    let space = store.namespace("default").map_err(|e| words("gaps", &e))?;
    let mut errors = Vec::new();
    let tombstones: Vec<_> =
        dropped(&space, &mut errors).into_iter().map(|one| (one.uid, one.frames, one.rule)).collect();
    let mut gaps = Vec::new();
    let each = &mut |gap: annals::Gap| {
        if gap.kind == GapKind::Dropped {
            gaps.push((gap.run, gap.frames, gap.rule));
        }
        Ok(())
    };
    kept(store.gaps(each), &mut errors);
    gaps.sort();
    match errors.first() {
        Some(error) => Err(words("gaps", error)),
        None if gaps != tombstones => Err(format!("gaps are {gaps:?}, tombstones {tombstones:?}")),
        None => Ok(()),
    }
}

/// The keyspace for one more commit: an existing one if possible.
fn after(store: &Store, with: impl FnOnce(&Keyspace) -> Result<(), Error>) -> Result<(), Error> {
    let space = store.namespace("default")?;
    with(&space.keyspace("all", History::All)?)
}
