//! Allowed and forbidden crash states, injected failures, and determinism.

use std::collections::BTreeSet;
use std::io::{ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::prng::SplitMix64;
use super::{Crash, FailRule, HistoryWalk, OpKind, SECTOR_BYTES, SimIo};
use crate::io::{File, Io, LockKind, OpenMode, RealIo};

const A: &str = "a";

fn create(sim: &SimIo, name: &str) -> Arc<dyn File> {
    sim.open(Path::new(name), OpenMode::CreateNew).unwrap()
}

fn write(file: &Arc<dyn File>, bytes: &[u8], offset: u64) {
    file.write_at(&[IoSlice::new(bytes)], offset).unwrap();
}

fn read(sim: &SimIo, name: &str) -> Option<Vec<u8>> {
    sim.read(Path::new(name))
}

fn sync_root(sim: &SimIo) {
    sim.sync_dir(Path::new("")).unwrap();
}

/// A disk with a durable file `a` of these bytes, and the file's handle.
fn sim_with_durable_file(bytes: &[u8]) -> (SimIo, Arc<dyn File>) {
    let sim = SimIo::new(1);
    let file = create(&sim, A);
    write(&file, bytes, 0);
    file.sync().unwrap();
    sync_root(&sim);
    (sim, file)
}

/// Every crash state of a small case at the cursor.
fn all_states<'a>(walk: &'a HistoryWalk<'_>) -> impl Iterator<Item = SimIo> + 'a {
    let choices = walk.choice_count();
    assert!(choices <= 12, "{choices} choices are too many to go through");
    (0..1_u64 << choices).map(|bits| walk.crash(Crash::Mask(bits)))
}

fn at_end(history: &super::OpHistory) -> HistoryWalk<'_> {
    let mut walk = history.walk();
    while walk.step() {}
    walk
}

/// All contents that file `a` may have after a crash now.
fn outcomes(sim: &SimIo) -> BTreeSet<Option<Vec<u8>>> {
    let history = sim.history();
    all_states(&at_end(&history)).map(|disk| read(&disk, A)).collect()
}

fn contents_set(states: &[&[u8]]) -> BTreeSet<Option<Vec<u8>>> {
    states.iter().map(|bytes| Some(bytes.to_vec())).collect()
}

#[test]
fn synced_bytes_survive_every_crash() {
    let (sim, file) = sim_with_durable_file(b"durable");
    let acknowledged = sim.op_count();
    write(&create(&sim, "b"), &[7; 3000], 100);
    write(&file, &[1; 600], 1024);
    let mut seen = 0;
    for (point, disk) in sim.history().crashes(50) {
        if point.at >= acknowledged {
            let bytes = read(&disk, A).unwrap_or_default();
            assert_eq!(bytes.get(..7), Some(&b"durable"[..]), "{point}");
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen}");
}

#[test]
fn write_survives_sector_by_sector() {
    let (sim, file) = sim_with_durable_file(&[b'-'; 3 * SECTOR_BYTES]);
    write(&file, &[b'x'; 2 * SECTOR_BYTES], 256);
    let shapes: BTreeSet<Vec<u8>> = outcomes(&sim)
        .into_iter()
        .map(|bytes| {
            let bytes = bytes.unwrap();
            assert_eq!(bytes.len(), 3 * SECTOR_BYTES);
            [0, 255, 256, 511, 512, 1023, 1024, 1279, 1280, 1535].map(|i| bytes[i]).to_vec()
        })
        .collect();
    let expected = (0..8).map(|bits| {
        let piece = |i: i32| if bits >> i & 1 == 1 { b'x' } else { b'-' };
        let (a, b, c) = (piece(0), piece(1), piece(2));
        vec![b'-', b'-', a, a, b, b, c, c, b'-', b'-']
    });
    assert_eq!(shapes, expected.collect());
}

#[test]
fn an_older_write_may_outlive_a_newer_one() {
    let (sim, file) = sim_with_durable_file(b"0000");
    write(&file, b"11", 0);
    write(&file, b"22", 1);
    assert_eq!(outcomes(&sim), contents_set(&[b"0000", b"1100", b"0220", b"1220"]));
}

#[test]
fn length_and_data_survive_independently() {
    let (sim, file) = sim_with_durable_file(b"ab");
    write(&file, b"cd", 2);
    assert_eq!(outcomes(&sim), contents_set(&[b"ab", b"ab\0\0", b"abcd"]));

    let (sim, file) = sim_with_durable_file(b"abcd");
    file.set_len(1).unwrap();
    file.set_len(3).unwrap();
    assert_eq!(outcomes(&sim), contents_set(&[b"abcd", b"a", b"abc", b"a\0\0"]));
    file.sync().unwrap();
    assert_eq!(outcomes(&sim), contents_set(&[b"a\0\0"]));
}

#[test]
fn name_without_directory_sync_may_be_lost() {
    let sim = SimIo::new(1);
    let file = create(&sim, A);
    write(&file, b"x", 0);
    file.sync().unwrap();
    assert_eq!(outcomes(&sim), BTreeSet::from([None, Some(b"x".to_vec())]));
    sync_root(&sim);
    assert_eq!(outcomes(&sim), contents_set(&[b"x"]));
    sim.remove(Path::new(A)).unwrap();
    assert_eq!(outcomes(&sim), BTreeSet::from([None, Some(b"x".to_vec())]));
    sync_root(&sim);
    assert_eq!(outcomes(&sim), BTreeSet::from([None]));
}

#[test]
fn directory_sync_covers_only_that_directory() {
    let sim = SimIo::new(1);
    sim.create_dir_all(Path::new("d/e")).unwrap();
    create(&sim, "d/x");
    create(&sim, "d/e/y");
    sim.sync_dir(Path::new("./d")).unwrap();
    let left = sim.crash(Crash::Nothing);
    assert_eq!(left.files(), [Path::new("d/x")]);
    assert_eq!(left.list(Path::new("d")).unwrap(), ["e", "x"], "directories are durable when made");
}

#[test]
fn rename_survives_as_old_or_new_name() {
    let rename = |source_durable: bool| {
        let (sim, _file) = sim_with_durable_file(b"old");
        let temporary = create(&sim, "t");
        write(&temporary, b"new", 0);
        temporary.sync().unwrap();
        if source_durable {
            sync_root(&sim);
        }
        sim.rename(Path::new("t"), Path::new(A)).unwrap();
        let history = sim.history();
        all_states(&at_end(&history))
            .map(|disk| (read(&disk, A).unwrap(), read(&disk, "t")))
            .collect::<BTreeSet<_>>()
    };
    let [old, new] = [b"old", b"new"].map(|bytes| bytes.to_vec());
    let both = BTreeSet::from([(old.clone(), Some(new.clone())), (new.clone(), None)]);
    assert_eq!(rename(true), both);
    assert_eq!(rename(false), &both | &BTreeSet::from([(old, None)]));
}

#[test]
fn extreme_crashes_give_their_states() {
    let (sim, file) = sim_with_durable_file(b"");
    write(&file, &[1; 600], 0);
    write(&file, &[2; 4 * SECTOR_BYTES], 600);
    let bytes = |how| read(&sim.crash(how), A).unwrap();
    assert_eq!(bytes(Crash::Nothing), b"");
    assert_eq!(bytes(Crash::Everything), read(&sim, A).unwrap());
    assert_eq!(bytes(Crash::Hollow), [0; 600 + 4 * SECTOR_BYTES]);
    let torn = bytes(Crash::Torn);
    assert_eq!(torn.len(), 3 * SECTOR_BYTES, "cut at the sector boundary before 600 + 1024");
    assert_eq!((&torn[..600], &torn[600..]), (&[1; 600][..], &[2; 936][..]));
    let last = sim.history().crashes(2).last().unwrap().0;
    assert_eq!(last.to_string(), "crash(5, Crash::Seed(1)) after write a at 600, 2048 bytes");
}

#[test]
fn seeds_reach_every_state_of_a_small_case() {
    let (sim, file) = sim_with_durable_file(b"0000");
    write(&file, b"11", 0);
    write(&file, b"222", 2);
    let history = sim.history();
    let walk = at_end(&history);
    let seeded: BTreeSet<_> = (0..200).map(|seed| read(&walk.crash(Crash::Seed(seed)), A)).collect();
    assert_eq!(seeded, outcomes(&sim));
}

#[test]
fn crash_point_reproduces_its_disk() {
    let sim = workload(3);
    let history = sim.history();
    for (point, disk) in history.crashes(3) {
        let again = history.crash(point.at, point.how);
        assert_eq!(contents(&disk), contents(&again), "{point}");
        let draw = |sim: &SimIo| {
            let mut buf = [0; 16];
            sim.random(&mut buf).unwrap();
            (buf, sim.now_ns())
        };
        assert_eq!(draw(&disk), draw(&again), "{point}");
    }
}

#[test]
fn a_disk_after_a_crash_can_crash_again() {
    let (sim, file) = sim_with_durable_file(b"one");
    write(&file, b"two", 0);
    let second = sim.crash(Crash::Everything);
    assert_eq!(second.op_count(), 0);
    let file = second.open(Path::new(A), OpenMode::Write).unwrap();
    assert_eq!(read(&second.crash(Crash::Nothing), A).unwrap(), b"two", "what a crash left is durable");
    write(&file, b"x", 0);
    assert_eq!(outcomes(&second), contents_set(&[b"two", b"xwo"]));
    assert_eq!(read(&sim, A).unwrap(), b"two", "the first disk is another one");
    create(&second, "b");
    assert_eq!(read(&second, A).unwrap(), b"xwo", "a new file is a new number");
}

#[test]
fn crash_releases_locks() {
    let (sim, file) = sim_with_durable_file(b"");
    assert!(file.try_lock(LockKind::Exclusive).unwrap());
    let other =
        |sim: &SimIo| sim.open(Path::new(A), OpenMode::Read).unwrap().try_lock(LockKind::Shared).unwrap();
    assert!(!other(&sim));
    assert!(other(&sim.crash(Crash::Everything)));
}

#[test]
fn fail_rules_fail_the_chosen_operations() {
    let sim = SimIo::new(1);
    let file = create(&sim, A);
    sim.fail(FailRule::eio(OpKind::Write).after(1).times(2).on("a"));
    write(&file, b"0", 0);
    for _ in 0..2 {
        let error = file.write_at(&[IoSlice::new(b"12")], 1).unwrap_err();
        assert_eq!((error.op, error.source.raw_os_error()), ("write", Some(5)));
    }
    assert_eq!(read(&sim, A).unwrap(), b"01", "half of it was written");
    write(&file, b"12", 1);
    sim.fail(FailRule::enospc(OpKind::Create).forever());
    for _ in 0..3 {
        let error = sim.open(Path::new("b"), OpenMode::CreateOrOpen).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    }
    sim.clear_faults();
    create(&sim, "b");
    let path = Path::new(A);
    for kind in [OpKind::Read, OpKind::SetLen, OpKind::Sync, OpKind::SyncDir, OpKind::Rename, OpKind::Remove]
    {
        sim.fail(FailRule::eio(kind));
        let failed = match kind {
            OpKind::Read => file.read_at(&mut [0], 0).is_err(),
            OpKind::SetLen => file.set_len(9).is_err(),
            OpKind::Sync => file.sync().is_err(),
            OpKind::SyncDir => sim.sync_dir(Path::new("")).is_err(),
            OpKind::Rename => sim.rename(path, Path::new("c")).is_err(),
            _ => sim.remove(path).is_err(),
        };
        assert!(failed, "{kind:?}");
    }
    assert_eq!(read(&sim, A).unwrap(), b"012");
}

/// The fsync trap: the second sync succeeds and says nothing about what the first one lost.
#[test]
fn failed_sync_leaves_its_data_in_doubt() {
    let (sim, file) = sim_with_durable_file(b"000");
    write(&file, b"11", 0);
    sim.fail(FailRule::eio(OpKind::Sync));
    file.sync().unwrap_err();
    write(&file, b"22", 1);
    file.sync().unwrap();
    assert_eq!(outcomes(&sim), contents_set(&[b"022", b"122"]), "the later write is durable and on top");
    write(&file, b"111", 0);
    file.sync().unwrap();
    assert_eq!(outcomes(&sim), contents_set(&[b"111"]), "writing it again makes it durable");

    create(&sim, "b");
    sim.fail(FailRule::eio(OpKind::SyncDir));
    sim.sync_dir(Path::new("")).unwrap_err();
    sync_root(&sim);
    assert_eq!(read(&sim.crash(Crash::Nothing), "b"), None);
    assert_eq!(read(&sim.crash(Crash::Everything), "b"), Some(Vec::new()));
}

#[test]
fn full_disk_writes_what_fits() {
    let (sim, file) = sim_with_durable_file(b"0000");
    sim.set_capacity(Some(6));
    let error = file.write_at(&[IoSlice::new(b"12"), IoSlice::new(b"34")], 3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(read(&sim, A).unwrap(), b"000123");
    write(&file, b"9999", 0);
    assert_eq!(file.set_len(7).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(file.write_at(&[IoSlice::new(b"1")], 8).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(read(&sim, A).unwrap(), b"999923");
    let other = create(&sim, "b");
    sim.remove(Path::new(A)).unwrap();
    assert!(other.set_len(1).is_err(), "an open file keeps its space");
    drop(file);
    other.set_len(6).unwrap();
}

#[test]
fn an_edit_is_durable_and_in_the_history() {
    let (sim, file) = sim_with_durable_file(b"abc");
    write(&file, b"x", 0);
    sim.edit(Path::new(A), |bytes| bytes[2] ^= 1).unwrap();
    assert_eq!(outcomes(&sim), contents_set(&[b"xbb"]));
    assert!(sim.edit(Path::new("none"), |_| {}).is_err());
}

fn contents(sim: &SimIo) -> Vec<(PathBuf, Vec<u8>)> {
    sim.files().into_iter().map(|path| (path.clone(), sim.read(&path).unwrap_or_default())).collect()
}

fn workload(seed: u64) -> SimIo {
    let sim = SimIo::new(seed);
    run_workload(&sim, Path::new(""), seed);
    sim
}

/// Random operations on a few files, the same for the same seed.
fn run_workload(io: &dyn Io, root: &Path, seed: u64) {
    let mut rng = SplitMix64::new(seed);
    io.create_dir_all(&root.join("d")).unwrap();
    let names = ["a", "b", "d/c", "d/t"].map(|name| root.join(name));
    for _ in 0..60 {
        let path = &names[(rng.next() % 4) as usize];
        let file = io.open(path, OpenMode::CreateOrOpen).unwrap();
        let dir = path.parent().unwrap();
        match rng.next() % 10 {
            0..5 => {
                let mut bytes = vec![0; (rng.next() % 1500) as usize];
                rng.fill(&mut bytes);
                let (one, two) = bytes.split_at(bytes.len() / 3);
                file.write_at(&[IoSlice::new(one), IoSlice::new(two)], rng.next() % 4000).unwrap();
            }
            5 => file.set_len(rng.next() % 4000).unwrap(),
            6 => file.sync().unwrap(),
            7 => io.sync_dir(dir).unwrap(),
            8 => io.remove(path).unwrap(),
            _ => io.rename(path, &dir.join("t")).unwrap(),
        }
    }
}

/// Every file under `root` and its directory `d`, read through [`Io`].
fn contents_of(io: &dyn Io, root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for dir in ["", "d"] {
        for name in io.list(&root.join(dir)).unwrap() {
            let path = Path::new(dir).join(name);
            let facts = io.stat(&root.join(&path)).unwrap().unwrap();
            if !facts.is_dir {
                let mut bytes = vec![0; usize::try_from(facts.len).unwrap()];
                io.open(&root.join(&path), OpenMode::Read).unwrap().read_at(&mut bytes, 0).unwrap();
                found.push((path, bytes));
            }
        }
    }
    found.sort_unstable();
    found
}

#[test]
fn the_simulation_does_what_the_real_disk_does() {
    for seed in 0..30 {
        let dir = tempfile::tempdir().unwrap();
        let real = RealIo::new();
        run_workload(&real, dir.path(), seed);
        let sim = workload(seed);
        let again = format!("seed {seed}; repeat: cargo test -p annals the_simulation_does");
        assert_eq!(contents(&sim), contents_of(&real, dir.path()), "{again}");
        assert_eq!(contents(&sim), contents_of(&sim, Path::new("")), "{again}");
    }
}

#[test]
fn any_difference_changes_the_trace_hash() {
    let trace = |name: &str, bytes: &[u8], offset: u64, sync_good: bool, len: u64| {
        let sim = SimIo::new(1);
        let file = create(&sim, name);
        write(&file, bytes, offset);
        if !sync_good {
            sim.fail(FailRule::eio(OpKind::Sync));
        }
        assert_eq!(file.sync().is_ok(), sync_good);
        file.set_len(len).unwrap();
        sim.trace_hash()
    };
    let runs = [
        trace("a", b"12", 0, true, 9),
        trace("b", b"12", 0, true, 9),
        trace("a", b"13", 0, true, 9),
        trace("a", b"12", 1, true, 9),
        trace("a", b"12", 0, false, 9),
        trace("a", b"12", 0, true, 8),
    ];
    assert_eq!(BTreeSet::from(runs).len(), runs.len());
}

#[test]
fn history_reports_each_operation() {
    let (sim, file) = sim_with_durable_file(b"abc");
    let before = sim.op_count();
    write(&file, b"xy", 1);
    file.set_len(9).unwrap();
    file.sync().unwrap();
    let history = sim.history();
    let told: Vec<_> =
        history.ops()[before..].iter().map(|op| (op.kind(), op.written(), op.offset())).collect();
    let wanted =
        [(OpKind::Write, &b"xy"[..], Some(1)), (OpKind::SetLen, b"", Some(9)), (OpKind::Sync, b"", None)];
    assert_eq!(told, wanted);
}

#[test]
fn equal_runs_have_equal_trace_hashes() {
    assert_eq!(workload(5).trace_hash(), workload(5).trace_hash());
    let hashes: BTreeSet<_> = (0..20).map(|seed| workload(seed).trace_hash()).collect();
    assert_eq!(hashes.len(), 20);
}

/// The replay and the live disk are two implementations. With every change kept they agree at every point.
#[test]
fn a_replay_that_keeps_everything_is_what_the_program_saw() {
    for seed in 0..100 {
        let again = format!("seed {seed}; repeat: cargo test -p annals a_replay_that_keeps_everything");
        let sim = workload(seed);
        assert_eq!(contents(&sim.crash(Crash::Everything)), contents(&sim), "{again}");
        // Once everything is synced, nothing is in doubt and every crash gives the same disk.
        for path in sim.files() {
            sim.open(&path, OpenMode::Write).unwrap().sync().unwrap();
        }
        sync_root(&sim);
        sim.sync_dir(Path::new("d")).unwrap();
        assert_eq!(contents(&sim.crash(Crash::Nothing)), contents(&sim), "{again}");
        assert_eq!(contents(&sim.crash(Crash::Seed(seed))), contents(&sim), "{again}");
    }
}

#[test]
fn a_ragged_crash_tears_within_sectors() {
    let (sim, file) = sim_with_durable_file(&[b'-'; 2 * SECTOR_BYTES]);
    write(&file, &[b'x'; 2 * SECTOR_BYTES], 0);
    let history = sim.history();
    let walk = at_end(&history);
    let (mut whole, mut torn, mut counted) = (0, Vec::new(), 0);
    for seed in 0..200 {
        let (disk, losses) = walk.crash_with_losses(Crash::Ragged(seed));
        let bytes = read(&disk, A).unwrap();
        for sector in bytes.chunks(SECTOR_BYTES) {
            let came = sector.iter().take_while(|byte| **byte == b'x').count();
            assert!(sector[came..].iter().all(|byte| *byte == b'-'), "a sector comes up to some byte");
            match came {
                0 => {}
                SECTOR_BYTES => whole += 1,
                came => torn.push(came),
            }
        }
        counted += losses.torn_sectors;
    }
    assert!(counted as usize >= torn.len());
    // About half of the kept sectors are whole; the others end anywhere.
    assert!(whole > 20 && torn.len() > 20, "{whole} whole, {} torn", torn.len());
    assert!(whole < 2 * torn.len() && torn.len() < 2 * whole, "{whole} whole, {} torn", torn.len());
    let (first, last) = (torn.iter().min().unwrap(), torn.iter().max().unwrap());
    assert!(*first < SECTOR_BYTES / 8 && *last > SECTOR_BYTES / 8 * 7, "{first} to {last}");
}

#[test]
fn crash_losses_are_counted() {
    let (sim, file) = sim_with_durable_file(b"0000");
    write(&file, &[1; 600], 0);
    write(&file, &[2; 10], 1024);
    file.set_len(2000).unwrap();
    file.set_len(1034).unwrap();
    create(&sim, "b");
    sim.rename(Path::new("b"), Path::new("c")).unwrap();
    sim.remove(Path::new(A)).unwrap();
    let history = sim.history();
    let walk = at_end(&history);
    let none = walk.crash_with_losses(Crash::Everything).1;
    assert_eq!(none, super::CrashLosses::default());
    let all = walk.crash_with_losses(Crash::Nothing).1;
    assert_eq!((all.sectors, all.lengths, all.torn_writes, all.reordered), (3, 4, 0, 0));
    assert_eq!((all.creations, all.renames, all.removals), (1, 1, 1));
    assert_eq!(walk.crash_with_losses(Crash::Hollow).1.hollow, 2);
    // Choices: names first, then both sectors and the length of the first write. Only its second sector is
    // lost.
    let mixed = walk.crash_with_losses(Crash::Mask(0b1_1110_1111)).1;
    assert_eq!((mixed.sectors, mixed.torn_writes, mixed.reordered, mixed.hollow), (1, 1, 1, 1));
}

#[test]
fn a_lost_write_leaves_its_length_alone() {
    let (sim, file) = sim_with_durable_file(b"abc");
    sim.fail(FailRule::lost_write());
    write(&file, b"xyz", 2);
    file.sync().unwrap();
    assert_eq!(read(&sim, A).unwrap(), b"abc\0\0");
    assert_eq!(outcomes(&sim), contents_set(&[b"abc\0\0"]));
    write(&file, b"Z", 2);
    assert_eq!(read(&sim, A).unwrap(), b"abZ\0\0", "only one was lost");
}

#[test]
fn misdirected_write_lands_in_another_sector() {
    let (mut here, mut there) = (0, 0);
    for seed in 0..64 {
        let (sim, file) = sim_with_durable_file(&[b'-'; 3 * SECTOR_BYTES]);
        write(&create(&sim, "b"), &[b'.'; 2 * SECTOR_BYTES], 0);
        sim.fail(FailRule::misdirected_write(seed));
        write(&file, b"xy", SECTOR_BYTES as u64 + 7);
        let (a, b) = (read(&sim, A).unwrap(), read(&sim, "b").unwrap());
        assert_eq!((a.len(), b.len()), (3 * SECTOR_BYTES, 2 * SECTOR_BYTES));
        assert_ne!(&a[SECTOR_BYTES + 7..][..2], b"xy", "not where it was meant for");
        let at = |bytes: &[u8]| bytes.windows(2).position(|two| two == b"xy");
        here += usize::from(at(&a).is_some_and(|at| at % SECTOR_BYTES == 7));
        there += usize::from(at(&b).is_some_and(|at| at % SECTOR_BYTES == 7));
    }
    assert!(here > 5 && there > 5, "{here} {there}");
}

#[test]
fn restore_old_sector_brings_back_old_bytes() {
    let came: BTreeSet<_> = (0..64)
        .filter_map(|seed| {
            let disk = SimIo::new(1);
            let file = create(&disk, A);
            write(&file, &[b'1'; 2 * SECTOR_BYTES], 0);
            write(&create(&disk, "b"), &[b'b'; 2 * SECTOR_BYTES], 0);
            write(&file, &[b'2'; 2 * SECTOR_BYTES], 0);
            let (path, sector) = disk.restore_old_sector(seed)?;
            if path != Path::new(A) {
                return None;
            }
            let bytes = read(&disk, A).unwrap();
            let other = SECTOR_BYTES - sector as usize;
            assert_eq!(bytes[other], b'2', "the other sector stays");
            Some((sector, bytes[sector as usize]))
        })
        .collect();
    assert_eq!(came, BTreeSet::from([(0, 0), (0, b'1'), (512, 0), (512, b'1')]));
}

#[test]
fn equal_disks_have_equal_contents_hash() {
    let [one, two] = [1, 2].map(|seed| {
        let sim = SimIo::new(seed);
        write(&create(&sim, A), b"x", 0);
        sim
    });
    assert_eq!(one.contents_hash(), two.contents_hash());
    two.rename(Path::new(A), Path::new("b")).unwrap();
    assert_ne!(one.contents_hash(), two.contents_hash());
    one.edit(Path::new(A), |bytes| bytes[0] = b'y').unwrap();
    assert_ne!(one.contents_hash(), workload(1).contents_hash());
}
