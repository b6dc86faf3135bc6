//! Crashes while deadlines are set, moved, removed, swept, and copied into an index that lacks them.
//!
//! A key with a deadline and its entry in the index are changed in one commit, so after a crash the index of a kind
//! that is complete holds exactly the deadlines of the keys; before that it holds no entry without a key.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

use annals::io::sim::SimIo;
use annals::retention::{Deadline, DeadlineIndex, DeadlineKind};
use annals::{Durability, Keyspace, Namespace, Store, kv::History, kv::ScanRange};

use super::drive::IndexRoom;
use super::explore::{CrashChoices, crash_kinds};
use super::oracle::any_crash;
use super::tally::{CrashTally, borders};
use super::{STORE, number, report};
use crate::support::SeededRng;

const KIND: DeadlineKind = DeadlineKind::Key;
/// The keyspace of the kind's owners: key to milliseconds.
const OWNERS: &str = "annals.deadlines";
const KEYS: usize = 6;
/// Keys that a store of an earlier version has, without an entry each: more than one commit of the copying.
const OLDER: usize = 4100;

type Owners = BTreeMap<Vec<u8>, u64>;

/// The keys after a commit.
struct KeysFrom {
    issued: usize,
    /// `usize::MAX`: a crash may lose it until a later commit is on disk.
    acknowledged: usize,
    owners: Owners,
}

/// What happens to the keys of a store.
struct DeadlineWorkload {
    io: SimIo,
    room: IndexRoom,
    rng: SeededRng,
    owners: Owners,
    commits: Vec<KeysFrom>,
}

fn deadline_of(value: &[u8]) -> annals::Result<Option<u64>> {
    Ok(value.try_into().ok().map(u64::from_le_bytes))
}

fn owners_of(space: &Namespace) -> annals::Result<Keyspace> {
    space.keyspace(OWNERS, History::Latest)
}

fn entries(index: &DeadlineIndex) -> annals::Result<Vec<Deadline>> {
    index.due(KIND, u64::MAX, None, usize::MAX)
}

/// The entries that keys should have.
fn entries_of(owners: &Owners) -> Vec<Deadline> {
    let mut all: Vec<_> = owners.iter().map(|(id, ms)| Deadline { ms: *ms, id: id.clone() }).collect();
    all.sort();
    all
}

impl DeadlineWorkload {
    fn commit(&mut self, done: impl FnOnce(&mut Self) -> annals::Result<Durability>) -> annals::Result<()> {
        let issued = self.io.op_count();
        let durability = done(self)?;
        let acknowledged = if durability >= Durability::Disk { self.io.op_count() } else { usize::MAX };
        self.commits.push(KeysFrom { issued, acknowledged, owners: self.owners.clone() });
        Ok(())
    }

    fn durability(&mut self) -> Durability {
        if self.rng.below(3) == 0 { Durability::Process } else { Durability::Disk }
    }

    /// Keys of a store of an earlier version: they have deadlines, the index does not.
    fn put_older(&mut self, space: &Namespace, count: usize) -> annals::Result<()> {
        self.commit(|this| {
            let owners = owners_of(space)?;
            let mut batch = space.batch();
            for number in 0..count as u64 {
                let key = number.to_be_bytes();
                batch.put(&owners, &key, number.to_le_bytes().to_vec());
                this.owners.insert(key.to_vec(), number);
            }
            batch.submit_with(Durability::Disk)?.wait()?;
            Ok(Durability::Disk)
        })
    }

    /// Sets a key with a deadline, moves its deadline, or deletes it.
    fn change(&mut self, space: &Namespace) -> annals::Result<()> {
        let owners = owners_of(space)?;
        let index = space.complete_deadlines(KIND, deadline_of)?;
        self.commit(|this| {
            let key = format!("key {}", this.rng.below(KEYS)).into_bytes();
            let mut batch = space.batch();
            let before = this.owners.remove(&key);
            if let Some(ms) = before {
                index.remove(&mut batch, KIND, ms, &key);
            }
            if before.is_some() && this.rng.below(4) == 0 {
                batch.delete(&owners, &key);
            } else {
                let ms = this.rng.below(1000) as u64;
                batch.put(&owners, &key, ms.to_le_bytes().to_vec());
                index.add(&mut batch, KIND, ms, &key);
                this.owners.insert(key, ms);
            }
            let durability = this.durability();
            batch.submit_with(durability)?.wait()?;
            Ok(durability)
        })
    }

    /// Deletes what is over.
    fn sweep(&mut self, space: &Namespace) -> annals::Result<()> {
        let owners = owners_of(space)?;
        let index = space.complete_deadlines(KIND, deadline_of)?;
        let due = index.due(KIND, self.rng.below(1000) as u64, None, 50)?;
        if due.is_empty() {
            return Ok(());
        }
        self.commit(|this| {
            let mut batch = space.batch();
            for Deadline { ms, id } in due {
                index.remove(&mut batch, KIND, ms, &id);
                batch.delete(&owners, &id);
                this.owners.remove(&id);
            }
            let durability = this.durability();
            batch.submit_with(durability)?.wait()?;
            Ok(durability)
        })
    }

    fn run(&mut self, steps: usize, older: usize) -> annals::Result<()> {
        let mut store = Store::open_with(STORE, self.room.options(&self.io))?;
        let mut space = store.namespace("default")?;
        if older > 0 {
            self.put_older(&space, older)?;
        }
        for _ in 0..steps {
            match self.rng.below(8) {
                0 => drop(store.compact(&annals::upkeep::CompactOptions::default())?),
                1 => {
                    drop(space);
                    store.close()?;
                    store = Store::open_with(STORE, self.room.options(&self.io))?;
                    space = store.namespace("default")?;
                }
                2 | 3 => self.sweep(&space)?,
                _ => self.change(&space)?,
            }
        }
        drop(space);
        store.close()
    }

    /// The keys that a crash at a point may leave.
    fn may_show(&self, at: usize) -> Range<usize> {
        let acknowledged = self.commits.iter().rposition(|commit| commit.acknowledged <= at).unwrap_or(0);
        let issued = self.commits.iter().rposition(|commit| commit.issued <= at).unwrap_or(0);
        acknowledged..issued + 1
    }
}

fn check(
    disk: &SimIo,
    allowed: &[KeysFrom],
    rng: &mut SeededRng,
    tally: &mut CrashTally,
) -> Result<(), String> {
    let room = if rng.below(2) == 0 { IndexRoom::Tiny } else { IndexRoom::Ample };
    let said = |what: &'static str| move |e: annals::Error| format!("{what}: {:?}: {e}", e.kind());
    let open = || Store::open_with(STORE, room.options(disk)).map_err(said("it cannot be recovered"));
    let mut store = open()?;
    if store.namespaces().map_err(said("namespaces"))?.is_empty() {
        return Ok(());
    }
    let mut completed = false;
    // The second time after a crash or a clean close: nobody copies again, and nothing is lost.
    for round in 0..2 {
        let space = store.namespace("default").map_err(said("namespace"))?;
        let mut found = Owners::new();
        if let Some(owners) = space.find_keyspace(OWNERS).map_err(said("the keys"))? {
            for pair in owners.scan(ScanRange::all()) {
                let (key, value) = pair.map_err(said("a key"))?;
                found.insert(
                    key.to_vec(),
                    deadline_of(&value).map_err(said("a deadline"))?.unwrap_or(u64::MAX),
                );
            }
        }
        if !allowed.iter().any(|commit| commit.owners == found) {
            let counts: Vec<_> = allowed.iter().map(|commit| commit.owners.len()).collect();
            return Err(format!(
                "{} keys, which is none of the states that it may show: {counts:?}",
                found.len()
            ));
        }
        let wanted = entries_of(&found);
        let before = match space.find_deadlines().map_err(said("the index"))? {
            Some(index) => entries(&index).map_err(said("the index"))?,
            None => Vec::new(),
        };
        if let Some(stray) = before.iter().find(|entry| wanted.binary_search(entry).is_err()) {
            return Err(format!("an entry without its key: {stray:?}"));
        }
        let copied = Cell::new(0);
        let count = |value: &[u8]| {
            copied.set(copied.get() + 1);
            deadline_of(value)
        };
        let index = space.complete_deadlines(KIND, count).map_err(said("copying"))?;
        let after = entries(&index).map_err(said("the index"))?;
        if after != wanted {
            let (has, needs) = (after.len(), wanted.len());
            return Err(format!(
                "a complete index has {has} entries, {needs} keys have a deadline (round {round})"
            ));
        }
        if copied.get() == 0 && before != wanted {
            return Err(format!("the index calls itself complete with {} of {}", before.len(), wanted.len()));
        }
        if completed && copied.get() > 0 {
            return Err("an index that was on disk was copied again".to_owned());
        }
        let report = store.verify().map_err(said("verify"))?;
        if !report.damaged.is_empty() {
            return Err(format!("verify finds {:?}", report.damaged));
        }
        drop((space, index));
        completed = rng.below(2) == 0;
        if completed {
            tally.after_close += 1;
            store.close().map_err(said("closing"))?;
        } else {
            tally.after_append += 1;
            drop(store);
            let crashed = disk.crash(any_crash(rng));
            store = Store::open_with(STORE, room.options(&crashed))
                .map_err(said("it cannot be recovered again"))?;
            continue;
        }
        store = open()?;
    }
    Ok(())
}

#[test]
fn index_of_deadlines_agrees_with_the_keys_after_a_crash() {
    const NAME: &str = "deadlines::index_of_deadlines_agrees_with_the_keys_after_a_crash";
    let seed = number("ANNALS_SEED", 1);
    let states = number("ANNALS_CRASH_STATES", 8_000);
    let mut tally = CrashTally::default();
    // A share, as the random workloads have.
    while tally.states < states / 10 {
        let mut rng = SeededRng(seed.wrapping_mul(1_000_003) ^ tally.workloads);
        let room = if rng.below(2) == 0 { IndexRoom::Tiny } else { IndexRoom::Ample };
        let copies_long = tally.workloads % 8 == 1;
        let older = if copies_long { OLDER } else { [0, 3, 40][rng.below(3)] };
        let io = SimIo::new(rng.next());
        let first = KeysFrom { issued: 0, acknowledged: 0, owners: Owners::new() };
        let mut workload = DeadlineWorkload {
            io: io.clone(),
            room,
            rng: SeededRng(rng.next()),
            owners: Owners::new(),
            commits: vec![first],
        };
        let steps = 1 + rng.below(16);
        let failed = |what: String| -> ! { panic!("{what}\n{}", report(NAME, seed, states)) };
        if let Err(error) = workload.run(steps, older) {
            failed(format!("the workload fails: {error}"));
        }
        tally.workloads += 1;
        let history = io.history();
        let marks = borders(&history);
        let mut walk = history.walk();
        // A long copying is crashed from its beginning on.
        let (from, points) = match copies_long {
            true => (workload.commits[1].acknowledged, 24),
            false => (rng.below(history.ops().len()), 12),
        };
        loop {
            let at = walk.at();
            if (from..from + points).contains(&at) {
                tally.points += 1;
                let choices = CrashChoices { all_up_to: 2, seeds: 3 };
                for how in crash_kinds(walk.choice_count(), choices, &mut rng) {
                    let (disk, losses) = walk.crash_with_losses(how);
                    tally.state(marks[at], losses);
                    tally.distinct += 1;
                    let allowed = &workload.commits[workload.may_show(at)];
                    if let Err(what) = check(&disk, allowed, &mut rng, &mut tally) {
                        failed(format!(
                            "{what}\nafter {}, {older} older keys, {steps} steps",
                            walk.point(how)
                        ));
                    }
                }
            }
            if at >= from + points || !walk.step() {
                break;
            }
        }
    }
    println!("{NAME}:\n{tally}");
    super::keep(&tally);
}
