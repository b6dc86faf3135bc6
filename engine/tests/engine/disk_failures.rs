//! Disks that are full, or fail to write or sync. Writing ends with the first cause, reads continue, and
//! reopening finds all acknowledged data.

use std::collections::BTreeMap;

use annals::io::sim::{Crash, FailRule, OpKind, SimIo};
use annals::{Component, Error, ErrorKind, Frame, History, Namespace, Options, RunSpec, Status, Store};

use crate::support::{GrowingConversation, assert_whole, bodies, recorded, sim_options};

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

#[test]
fn a_full_disk_refuses_and_loses_nothing() {
    let mut tried = BTreeMap::new();
    for room in (0..60_000).step_by(211) {
        let prepare = |sim: &SimIo| {
            let used: usize = sim.files().iter().filter_map(|path| Some(sim.read(path)?.len())).sum();
            sim.set_capacity(Some(used as u64 + room));
        };
        match fails_and_recovers(&format!("{room} bytes free"), prepare) {
            Some(acknowledged) => *tried.entry(acknowledged).or_insert(0) += 1,
            None => break,
        }
    }
    println!("disks full after so many frames: {tried:?}");
    assert!(tried.len() > 5, "{tried:?}");
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
