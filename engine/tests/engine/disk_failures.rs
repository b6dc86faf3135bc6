//! Disks that are full, or fail to write or sync. Writing ends with the first cause, reads continue, and
//! reopening finds all acknowledged data.

use std::collections::BTreeMap;

use annals::io::sim::{Crash, FailRule, OpKind, SimIo};
use annals::upkeep::CompactOptions;
use annals::{
    Component, Durability, Error, ErrorKind, Frame, Namespace, Options, ReadMode, RunSpec, Status, Store,
    kv::History,
};

use crate::support::{GrowingConversation, SeededRng, assert_whole, bodies, recorded, seed, sim_options};

/// Inputs and outputs.
type FrameBodies = Vec<(Vec<u8>, Vec<u8>)>;

/// Small segments and small steps of zeros ahead: otherwise the disk fills up at few places only.
fn options(sim: &SimIo) -> Options {
    Options { segment_bytes_max: 3 << 10, zero_ahead_bytes: 256, ..sim_options(sim) }
}

/// Records until something fails; returns the acknowledged frames and the first error.
fn record_until_failure(space: &Namespace) -> (FrameBodies, Option<Error>) {
    let run = match space.begin_run(RunSpec::new("r")) {
        Ok(run) => run,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut acknowledged = Vec::new();
    for (request, answer) in GrowingConversation::new("work").take(25) {
        if let Err(error) = run.record(Frame::new(Component::Llm, request.clone(), answer.clone())) {
            // From now on every write fails with the first cause.
            let first = error.to_string();
            for refused in [
                run.record(Frame::new(Component::Llm, "a", "b")).map(drop),
                run.end(Status::Ok).map(drop),
                space.begin_run(RunSpec::new("another")).map(drop),
                space.keyspace("k", History::All).map(drop),
                space.store_blob(&[1u8; 5000][..]).map(drop),
            ] {
                let later = refused.unwrap_err();
                assert!(
                    later.kind() == ErrorKind::Poisoned && later.to_string().contains(&first),
                    "{later} / {first}"
                );
                assert!(later.to_string().contains("reopen"), "{later}");
            }
            return (acknowledged, Some(error));
        }
        acknowledged.push((request, answer));
    }
    (acknowledged, None)
}

/// Prepares a disk to fail, records, and checks that reads continue and that every reopening finds all
/// acknowledged frames.
fn fails_and_recovers(name: &str, prepare: impl Fn(&SimIo)) -> Option<usize> {
    let sim = SimIo::new(8);
    let store = Store::open_with("s", options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    prepare(&sim);
    let (acknowledged, failed) = record_until_failure(&space);
    let error = failed?;
    // A failed segment change has no caller of its own: the next caller gets its error.
    let told = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Poisoned);
    assert!(told && error.to_string().contains("os error"), "{name}: {error}");
    let check = |space: &Namespace| match space.run("r") {
        Ok(reader) => {
            assert!(bodies(&reader).starts_with(&acknowledged), "{name}: acknowledged frames are not there")
        }
        Err(error) => assert!(acknowledged.is_empty(), "{name}: {error}"),
    };
    check(&space);
    sim.clear_faults();
    sim.set_capacity(None);
    assert_eq!(
        space.begin_run(RunSpec::new("healed")).map(drop).unwrap_err().kind(),
        ErrorKind::Poisoned,
        "{name}"
    );
    check(&space);
    for how in [Crash::Nothing, Crash::Everything, Crash::Torn, Crash::Seed(1)] {
        let disk = sim.crash(how);
        let store = Store::open_with("s", options(&disk)).unwrap();
        check(&store.namespace("default").unwrap());
    }
    assert_eq!(store.close().unwrap_err().kind(), ErrorKind::Poisoned, "{name}");
    drop(space);
    let store = Store::open_with("s", options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    check(&space);
    recorded(&space, "after", 3).0.end(Status::Ok).unwrap();
    assert_whole(&store);
    store.close().unwrap();
    assert_whole(&Store::open_read_only_with("s", options(&sim)).unwrap());
    Some(acknowledged.len())
}

#[test]
fn a_failed_write_or_sync_poisons_and_reopening_recovers() {
    for kind in [OpKind::Sync, OpKind::Write, OpKind::Create, OpKind::SyncDir, OpKind::SetLen] {
        let mut tried = 0;
        for after in (0..).step_by(if matches!(kind, OpKind::Sync | OpKind::Write) { 3 } else { 1 }) {
            let prepare = |sim: &SimIo| sim.fail(FailRule::eio(kind).after(after));
            if fails_and_recovers(&format!("{kind:?} number {after}"), prepare).is_none() {
                break;
            }
            tried += 1;
        }
        println!("{kind:?} failed at {tried} places");
        assert!(tried > 0 || matches!(kind, OpKind::SetLen), "{kind:?} never failed");
    }
}

/// A full disk once poisoned the writer: a daemon refused every write until it was started again, also when
/// there was room.
#[test]
fn full_disk_refuses_commits_and_later_takes_them() {
    let mut tried = BTreeMap::new();
    for room in (0..90_000).step_by(397) {
        let sim = SimIo::new(8);
        let small = |sim: &SimIo| Options { reserve_bytes: 4 << 10, ..options(sim) };
        let store = Store::open_with("s", small(&sim)).unwrap();
        let space = store.namespace("default").unwrap();
        sim.set_capacity(Some(sim.used_bytes() + room));
        let refused = |error: Error| {
            let text = error.to_string();
            assert!(text.contains("is full") && text.contains("os error"), "{room}: {text}");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{room}: {text}");
        };
        let run = match space.begin_run(RunSpec::new("r")) {
            Ok(run) => run,
            Err(error) => {
                refused(error);
                sim.set_capacity(None);
                space.begin_run(RunSpec::new("r")).unwrap()
            }
        };
        let mut recorded: FrameBodies = Vec::new();
        let mut refusals = 0;
        let talk: FrameBodies = GrowingConversation::new("work").take(25).collect();
        for (input, output) in &talk {
            let frame = || Frame::new(Component::Llm, input.clone(), output.clone());
            if let Err(error) = run.record(frame()) {
                refused(error);
                refusals += 1;
                refused(space.store_blob(&*SeededRng(1).bytes(50_000)).unwrap_err());
                assert!(bodies(&space.run("r").unwrap()) == recorded, "{room}");
                for how in [Crash::Nothing, Crash::Everything, Crash::Torn, Crash::Seed(1)] {
                    let store = Store::open_with("s", small(&sim.crash(how))).unwrap();
                    let found = store.namespace("default").unwrap().run("r");
                    assert!(found.map_or(recorded.is_empty(), |run| bodies(&run) == recorded), "{room}");
                }
                *tried.entry(recorded.len()).or_insert(0) += 1;
                // Others make room: the same run goes on.
                sim.set_capacity(None);
                run.record(frame()).unwrap();
            }
            recorded.push((input.clone(), output.clone()));
        }
        assert!(refusals <= 1);
        if let Err(error) = run.end(Status::Ok) {
            refused(error);
            sim.set_capacity(None);
            run.end(Status::Ok).unwrap();
        }
        assert_whole(&store);
        store.close().unwrap();
        let store = Store::open_with("s", small(&sim)).unwrap();
        assert!(bodies(&store.namespace("default").unwrap().run("r").unwrap()) == talk, "{room}");
        assert_whole(&store);
    }
    println!("disks full after so many frames: {tried:?}");
    assert!(tried.len() > 5, "{tried:?}");
}

/// A part that a full disk refused was counted and never written: the frame, which ended later, could not be read, and its
/// run could not be ended. A frame whose end was refused could not be ended any more.
#[test]
fn stream_goes_on_after_a_full_disk() {
    const NAME: &str = "disk_failures::stream_goes_on_after_a_full_disk";
    let mut rng = SeededRng(seed(33, NAME));
    let mut refused = [0; 4];
    for round in 0..60 {
        let sim = SimIo::new(8);
        let small =
            |sim: &SimIo| Options { reserve_bytes: 4 << 10, zero_ahead_bytes: 4 << 10, ..options(sim) };
        let store = Store::open_with("s", small(&sim)).unwrap();
        let space = store.namespace("default").unwrap();
        let run = space.begin_run(RunSpec::new("r")).unwrap();
        let open = run.begin_frame(&Frame::new(Component::Llm, "question", "")).unwrap();
        let mut acknowledged = Vec::new();
        for _ in 0..25 {
            let room = [Some(rng.below(40_000) as u64), None, Some(0)][rng.below(3)];
            sim.set_capacity(room.map(|room| sim.used_bytes() + room));
            let (len, how) = ([10, 3000, 20_000, 70_000][rng.below(4)], rng.below(3));
            let part = rng.bytes(len);
            let appended = match how {
                0 => open.append(&part),
                1 => open.submit_append(&part, Durability::Disk).and_then(|(len, ticket)| {
                    assert_eq!(len, (acknowledged.len() + part.len()) as u64);
                    ticket.wait().map(drop)
                }),
                // What was appended stays, though it is not written yet.
                _ => open.append(&part).inspect(|()| refused[how] += u64::from(open.flush().is_err())),
            };
            match appended {
                Ok(()) => acknowledged.extend_from_slice(&part),
                Err(error) => {
                    assert!(error.to_string().contains("is full"), "{round}: {error}");
                    refused[how] += 1;
                }
            }
            assert_eq!(open.output_len(), acknowledged.len() as u64, "{round}");
            let found = Store::open_read_only_with("s", small(&sim)).unwrap();
            let found = found.namespace("default").unwrap().run("r").unwrap().frame(1).unwrap();
            assert!(acknowledged.starts_with(&found.output), "{round}");
        }
        // Somebody else uses up what is left.
        sim.set_capacity(Some(sim.used_bytes()));
        while open.finish(false).is_err() {
            refused[3] += 1;
            sim.set_capacity(None);
        }
        assert_eq!(open.append(b"more").unwrap_err().kind(), ErrorKind::Invalid);
        sim.set_capacity(None);
        run.end(Status::Ok).unwrap();
        assert!(space.run("r").unwrap().frame(1).unwrap().output == acknowledged, "{round}");
        assert_whole(&store);
        store.close().unwrap();
        assert_whole(&Store::open_read_only_with("s", small(&sim)).unwrap());
    }
    println!("refused: {refused:?} appends, awaited appends, flushes, ends");
    assert!(refused.iter().all(|count| *count > 5), "{refused:?}");
}

/// A run that was open at a crash ends at the next opening, for which its unfinished frames are read. If they were damaged,
/// the store could not be opened for writing, and the run could not be forgotten.
#[test]
fn damaged_open_run_ends_and_can_be_forgotten() {
    let sim = SimIo::new(8);
    // Openings read the log from where the tables end.
    let small = |sim: &SimIo| Options { index_memory_bytes: 2 << 10, ..options(sim) };
    let store = Store::open_with("s", small(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let open = run.begin_frame(&Frame::new(Component::Llm, "question", "")).unwrap();
    open.append(&SeededRng(1).bytes(20_000)).unwrap();
    open.flush().unwrap();
    recorded(&space, "other", 200).0.end(Status::Ok).unwrap();
    let disk = sim.crash(Crash::Nothing);
    let first = disk.files().into_iter().find(|path| path.ends_with("00000001.seg")).unwrap();
    let part = disk.read(&first).unwrap().len() / 2;
    disk.edit(&first, |bytes| bytes[part] ^= 1).unwrap();
    let store = Store::open_with("s", small(&disk)).unwrap();
    let space = store.namespace("default").unwrap();
    assert_eq!(space.run("r").unwrap().info().status, Status::Abandoned);
    assert_eq!(space.run("r").unwrap().frame(1).unwrap_err().kind(), ErrorKind::Damaged);
    assert!(!store.verify().unwrap().damaged.is_empty());
    recorded(&space, "after", 3).0.end(Status::Ok).unwrap();
    space.forget("r", "damaged").unwrap();
    store.close().unwrap();
}

/// Dropping runs and compacting are how a full disk gets room again. Both once needed room themselves: a
/// store on a full disk could not even be opened for writing. Later a compaction failed on ext4: the log asked
/// for a whole step of disk space, got all that was left, and kept it.
#[test]
fn full_disk_still_drops_runs_and_compacts() {
    for (reopened, zero_ahead_bytes) in [(false, 4 << 10), (true, 4 << 10), (false, 1 << 20), (true, 1 << 20)]
    {
        let sim = SimIo::new(8);
        let small = || Options { segment_bytes_max: 32 << 10, zero_ahead_bytes, ..sim_options(&sim) };
        let store = Store::open_with("s", small()).unwrap();
        let mut space = store.namespace("default").unwrap();
        sim.set_capacity(Some(sim.used_bytes() + (1 << 20)));
        let mut names = Vec::new();
        let refused = loop {
            let name = format!("run{}", names.len());
            let recorded = space.begin_run(RunSpec::new(&name)).and_then(|run| {
                run.record(Frame::new(Component::Tool, SeededRng(names.len() as u64).bytes(9000), "out"))?;
                run.end(Status::Ok)
            });
            match recorded {
                Ok(_) => names.push(name),
                Err(error) => break error,
            }
        };
        assert!(names.len() > 50 && refused.to_string().contains("is full"), "{refused}");
        // Whatever is left is used up by somebody else.
        sim.set_capacity(Some(sim.used_bytes()));
        let store = match reopened {
            false => store,
            true => {
                drop(space);
                store.close().unwrap();
                sim.set_capacity(Some(sim.used_bytes()));
                let store = Store::open_with("s", small()).unwrap();
                space = store.namespace("default").unwrap();
                store
            }
        };
        let (kept, dropped) = names.split_at(names.len() / 8);
        dropped.iter().for_each(|name| drop(space.drop_run(name, "room", "").unwrap()));
        let report = store.compact(&CompactOptions::default()).unwrap();
        assert!(report.freed_bytes() > 300_000, "{report:?}");
        assert_eq!(report.unfit, 0, "{report:?}");
        for (n, name) in kept.iter().enumerate() {
            let found = bodies(&space.run(name).unwrap());
            assert_eq!(found, [(SeededRng(n as u64).bytes(9000), b"out".to_vec())]);
        }
        recorded(&space, "after", 3).0.end(Status::Ok).unwrap();
        assert_whole(&store);
        store.close().unwrap();
        assert_whole(&Store::open_read_only_with("s", small()).unwrap());
    }
}

/// A compaction that needed room for all of its new files at once was refused on a disk with room for some.
#[test]
fn compaction_with_little_room_goes_on_in_passes() {
    let sim = SimIo::new(8);
    let small = || Options { segment_bytes_max: 32 << 10, reserve_bytes: 0, ..sim_options(&sim) };
    let store = Store::open_with("s", small()).unwrap();
    let space = store.namespace("default").unwrap();
    let body = |n: u64| SeededRng(n).bytes(9000);
    for n in 0..90 {
        let run = space.begin_run(RunSpec::new(n.to_string())).unwrap();
        run.record(Frame::new(Component::Tool, body(n), "out")).unwrap();
        run.end(Status::Ok).unwrap();
    }
    (0..90).step_by(2).for_each(|n| drop(space.drop_run(&n.to_string(), "half", "").unwrap()));
    let told = store.compact(&CompactOptions { dry_run: true, ..CompactOptions::default() }).unwrap();
    assert!(told.needed_bytes > 300_000, "{told:?}");
    sim.set_capacity(Some(sim.used_bytes() + 200_000));
    let report = store.compact(&CompactOptions::default()).unwrap();
    assert_eq!(report.unfit, 0, "{report:?}");
    assert!(report.freed_bytes() > 300_000, "{report:?}");
    for n in (1..90).step_by(2) {
        assert_eq!(bodies(&space.run(&n.to_string()).unwrap()), [(body(n), b"out".to_vec())]);
    }
    assert_whole(&store);
    store.close().unwrap();
    assert_whole(&Store::open_read_only_with("s", small()).unwrap());
}

#[test]
fn failed_store_creation_on_full_disk_can_be_retried() {
    for room in (0..20_000u64).step_by(97) {
        let sim = SimIo::new(9);
        sim.set_capacity(Some(room));
        let opened = Store::open_with("s", options(&sim));
        let Err(error) = opened else { break };
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{room}: {error}");
        sim.set_capacity(None);
        let store = Store::open_with("s", options(&sim)).unwrap_or_else(|e| panic!("{room}: {e}"));
        store.namespace("default").unwrap();
        store.close().unwrap();
    }
}

/// Regression: `forget` read the tombstone again after it had committed it. If only that read failed, the
/// call failed although the run was gone.
#[test]
fn drop_that_cannot_read_has_dropped_nothing() {
    let mut failed = 0;
    for reads in 0.. {
        let sim = SimIo::new(8);
        let options = Options { read_mode: ReadMode::Positional, ..sim_options(&sim) };
        let store = Store::open_with("s", options).unwrap();
        let space = store.namespace("default").unwrap();
        recorded(&space, "r", 3).0.end(Status::Ok).unwrap();
        store.drop_caches();
        sim.fail(FailRule::eio(OpKind::Read).on("segments").after(reads).forever());
        let done = space.forget("r", "asked for");
        sim.clear_faults();
        assert_eq!(space.run("r").is_ok(), done.is_err(), "after {reads} reads");
        if done.is_ok() {
            break;
        }
        failed += 1;
    }
    assert!(failed > 0, "nothing was read");
}
