//! What a crash may leave, and what must still be possible then.
//!
//! The store must open by itself for reading and show a state of the model: not older than the last commit that was
//! acknowledged before the crash, not newer than the last one issued. Crashes inside the recovery, up to three one in the
//! other, must change nothing of that. Then it must open for writing, show the same with no run left open, verify, have
//! the ledger that the second reader computes, take a commit, and after a crash or a clean close show the same and it.

use std::fmt::Write as _;
use std::path::Path;

use annals::io::sim::{Crash, SimIo};
use annals::{Error, ErrorKind, History, ScanRange, Status, Store};

use super::drive::{Commit, Room};
use super::model::{self, KEYS, ModelFrame, SPACES};
use super::tally::Tally;
use super::{STORE, ledger};
use crate::support::Rng;

/// All that can be read of a store, in the model's words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) said: String,
    /// Runs that are still open.
    pub(super) open: usize,
}

/// Reads everything.
pub(super) fn observe(store: &Store) -> Result<Seen, Error> {
    let mut seen = Seen { said: String::new(), open: 0 };
    let said = &mut seen.said;
    for name in store.namespaces()?.iter().filter(|name| *name != "after") {
        let _ = writeln!(said, "namespace {name}");
        let space = store.namespace(name)?;
        for (name, _) in SPACES {
            let Some(keyspace) = space.find_keyspace(name)? else { continue };
            let _ = writeln!(said, "keyspace {name}");
            for pair in keyspace.scan(ScanRange::all()) {
                let (key, value) = pair?;
                model::say_pair(said, &key, &value);
            }
            for key in KEYS {
                let versions = keyspace.history(key.as_bytes())?;
                if !versions.is_sorted_by(|a, b| a.seqno > b.seqno) {
                    let _ = writeln!(said, "  OUT OF ORDER");
                }
                model::say_history(said, key, versions.iter().map(|version| version.value.as_deref()));
            }
        }
        for info in space.runs()? {
            let info = info?;
            seen.open += usize::from(info.status == Status::Open);
            let reader = space.run(&info.name)?;
            let parent = info.parent.as_ref().map(|p| (p.run.as_deref(), p.at, p.shared));
            let metadata = reader.metadata()?;
            model::say_run(said, &info.name, info.status, info.severity, info.frames, parent, &metadata);
            let mut link = model::genesis();
            for frame in reader.frames() {
                let frame = frame?;
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
                    Err(error) => return Err(error),
                }
            }
            if info.fingerprint.is_some_and(|fingerprint| fingerprint.0 != link) {
                let _ = writeln!(said, "  ITS FINGERPRINT IS NOT ITS LAST LINK");
            }
        }
    }
    Ok(seen)
}

fn words(what: &str, error: &Error) -> String {
    format!("{what}: {:?}: {error}", error.kind())
}

/// Opens for reading and reads. A store that is not there yet shows nothing.
pub(super) fn look(disk: &SimIo) -> Result<Seen, Error> {
    match Store::open_read_only_with(STORE, Room::Ample.options(disk)) {
        Ok(store) => observe(&store),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Seen { said: String::new(), open: 0 }),
        Err(error) => Err(error),
    }
}

fn looks_the_same(disk: &SimIo, said: &str, when: &str) -> Result<(), String> {
    let again = look(disk).map_err(|e| words(when, &e))?;
    if again.said == said { Ok(()) } else { Err(differs(when, said, &again.said)) }
}

/// The lines that two states do not share.
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

/// A choice of what a crash keeps.
pub(super) fn any_crash(rng: &mut Rng) -> Crash {
    let seed = rng.next();
    match rng.below(8) {
        0 => Crash::Everything,
        1 => Crash::Nothing,
        2 | 3 => Crash::Ragged(seed),
        _ => Crash::Seed(seed),
    }
}

/// Holds what a crash left against the commits that it may show. Leaves the disk as it is.
pub(super) fn check(
    disk: &SimIo,
    allowed: &[Commit],
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<(), String> {
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
    goes_on(&disk, &said, rng, tally)
}

/// Recovery for good, and life after it.
fn goes_on(disk: &SimIo, said: &str, rng: &mut Rng, tally: &mut Tally) -> Result<(), String> {
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
    let stats = store.stats().map_err(|e| words("stats", &e))?;
    let ledger = ledger::read(disk, Path::new(STORE));
    let root = stats.ledger_root.map(|root| root.0);
    if (stats.ledger_leaves, root, stats.batches) != (ledger.leaves, Some(ledger.root), ledger.batches) {
        return Err(format!("the second reader finds {ledger:?}, the store says {stats:?}"));
    }
    let space = store.namespace("after").map_err(|e| words("a new namespace", &e))?;
    let keyspace = space.keyspace("k", History::All).map_err(|e| words("a new keyspace", &e))?;
    keyspace.put(b"still", "writing").map_err(|e| words("one more commit", &e))?;
    let disk = match rng.below(2) {
        0 => {
            let crashed = disk.crash(any_crash(rng));
            tally.after_append += 1;
            crashed
        }
        _ => {
            store.close().map_err(|e| words("closing", &e))?;
            tally.after_close += 1;
            disk.crash(Crash::Nothing)
        }
    };
    let when = "after one more commit and a crash or close";
    looks_the_same(&disk, said, when)?;
    let again = Store::open_read_only_with(STORE, Room::Ample.options(&disk)).map_err(|e| words(when, &e))?;
    let keyspace = again.namespace("after").and_then(|space| space.keyspace("k", History::All));
    let value = keyspace.and_then(|keyspace| keyspace.get(b"still")).map_err(|e| words(when, &e))?;
    let after = ledger::read(&disk, Path::new(STORE));
    if value.as_deref() != Some(b"writing") || after.leaves < ledger.leaves + 3 {
        return Err(format!(
            "{when}: the commit is {value:?}, leaves {} became {}",
            ledger.leaves, after.leaves
        ));
    }
    Ok(())
}
