//! Mapped and positional reads: equal answers, and the effect of a file that another program truncates.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use annals::io::sim::{FailRule, OpKind, SimIo};
use annals::{
    Component, ErrorKind, Frame, Namespace, Options, ReadMode, RunSpec, Status, Store,
    kv::{History, ScanRange},
};

use crate::support::{SeededRng, assert_whole, frames};

const CHILD: &str = "read_modes::child_whose_files_are_cut";
const CHILD_STORE: &str = "ANNALS_READ_MODES_STORE";
/// The signal number of "Bus error" on every Linux.
const SIGBUS: i32 = 7;
const FRAMES: u32 = 60;

fn options(read_mode: ReadMode) -> Options {
    Options {
        read_mode,
        segment_bytes_max: 128 << 10,
        index_memory_bytes: 32 << 10,
        durability: annals::Durability::Process,
        ..Options::default()
    }
}

fn input(seq: u32) -> Vec<u8> {
    SeededRng(u64::from(seq)).bytes(20_000)
}

fn key(n: u64) -> Vec<u8> {
    SeededRng(n).bytes(30)
}

/// Several sealed segments, and tables with many blocks.
fn fill(path: &Path) {
    let store = Store::open_with(path, options(ReadMode::Mapped)).unwrap();
    let space = store.namespace("n").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    for seq in 1..=FRAMES {
        run.record(Frame::new(Component::Tool, input(seq), "out")).unwrap();
    }
    run.end(Status::Ok).unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    for chunk in (0..4000).collect::<Vec<_>>().chunks(200) {
        let mut batch = space.batch();
        for n in chunk {
            batch.put(&keys, &key(*n), n.to_string());
        }
        batch.commit().unwrap();
    }
    assert!(store.stats().unwrap().segments > 5);
    store.close().unwrap();
}

/// The content of a store, read by scan and by single gets.
fn observe(store: &Store, space: &Namespace) -> Vec<Vec<u8>> {
    let reader = space.run("r").unwrap();
    let mut seen: Vec<_> =
        frames(&reader).into_iter().flat_map(|frame| [frame.input, frame.output]).collect();
    store.drop_caches();
    seen.extend((1..=FRAMES).rev().map(|seq| reader.frame(seq).unwrap().input));
    let keys = space.find_keyspace("k").unwrap().unwrap();
    seen.extend(keys.scan(ScanRange::all()).flat_map(|pair| <[Vec<u8>; 2]>::from(pair.unwrap())));
    seen.extend((0..4000).map(|n| keys.get(&key(n)).unwrap().unwrap()));
    seen
}

#[test]
fn both_read_modes_agree_and_writers_continue_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    fill(&path);
    let seen = [ReadMode::Mapped, ReadMode::Positional].map(|mode| {
        let store = Store::open_read_only_with(&path, options(mode)).unwrap();
        assert_whole(&store);
        observe(&store, &store.namespace("n").unwrap())
    });
    assert!(seen[0] == seen[1]);
    for round in 0..4u32 {
        let mode = [ReadMode::Positional, ReadMode::Mapped][round as usize % 2];
        let store = Store::open_with(&path, options(mode)).unwrap();
        let space = store.namespace("n").unwrap();
        let run = space.begin_run(RunSpec::new(format!("more {round}"))).unwrap();
        (0..10).for_each(|seq| _ = run.record(Frame::new(Component::Tool, input(seq), "")).unwrap());
        run.end(Status::Ok).unwrap();
        assert!(observe(&store, &space) == seen[0], "round {round}");
        assert_whole(&store);
        store.close().unwrap();
    }
}

/// Truncates each file of a folder to its first page, as another program might.
fn cut(dir: &Path) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let file = std::fs::OpenOptions::new().write(true).open(entry.unwrap().path()).unwrap();
        if file.metadata().unwrap().len() > 4096 {
            file.set_len(4096).unwrap();
        }
    }
}

#[test]
#[ignore = "the process that the test of cut files starts"]
fn child_whose_files_are_cut() {
    let Ok(told) = std::env::var(CHILD_STORE) else { return };
    let [mode, folder, path] = told.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
    let mode = if mode == "mapped" { ReadMode::Mapped } else { ReadMode::Positional };
    let store = Store::open_read_only_with(path, options(mode)).unwrap();
    let space = store.namespace("n").unwrap();
    let (reader, keys) = (space.run("r").unwrap(), space.find_keyspace("k").unwrap().unwrap());
    assert!(reader.frame(2).unwrap().input == input(2));
    cut(&Path::new(path).join(folder));
    store.drop_caches();
    let (mut right, mut damaged) = (0, 0);
    let mut note = |found: annals::Result<bool>| match found {
        Ok(same) => {
            assert!(same, "wrong bytes");
            right += 1;
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
            damaged += 1;
        }
    };
    for seq in 1..=FRAMES {
        note(reader.frame(seq).map(|frame| frame.input == input(seq)));
    }
    for n in 0..4000 {
        note(keys.get(&key(n)).map(|value| value.unwrap() == n.to_string().into_bytes()));
    }
    println!("\n@read {right} right {damaged} damaged");
}

/// Runs the child; its signal, or how many reads were right and how many returned `Damaged`.
fn cut_under_a_reader(mode: &str, folder: &str) -> Result<(u32, u32), i32> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    fill(&path);
    let done = Command::new(std::env::current_exe().unwrap())
        .args([CHILD, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD_STORE, format!("{mode} {folder} {}", path.display()))
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    if let Some(signal) = done.status.signal() {
        return Err(signal);
    }
    assert!(done.status.success());
    let text = String::from_utf8(done.stdout).unwrap();
    let counts = text.lines().find_map(|line| line.strip_prefix("@read ")).unwrap();
    let numbers: Vec<u32> = counts.split(' ').filter_map(|word| word.parse().ok()).collect();
    Ok((numbers[0], numbers[1]))
}

/// docs/guarantees.md documents this case: with maps the process ends, with positional reads there is an
/// error.
#[test]
fn truncated_file_is_sigbus_when_mapped_and_error_by_read() {
    let all = FRAMES + 4000;
    assert_eq!(cut_under_a_reader("mapped", "segments"), Err(SIGBUS));
    assert_eq!(cut_under_a_reader("mapped", "tables"), Err(SIGBUS));
    let (right, damaged) = cut_under_a_reader("positional", "segments").unwrap();
    assert!(right + damaged == all && damaged > FRAMES / 2, "{right} right, {damaged} damaged");
    // Tables are read into memory when they are opened: later changes to the files have no effect.
    assert_eq!(cut_under_a_reader("positional", "tables"), Ok((all, 0)));
}

#[test]
fn failing_disk_is_an_error_in_positional_mode() {
    let sim = SimIo::new(1);
    let options = || Options { io: Arc::new(sim.clone()), ..options(ReadMode::Positional) };
    let store = Store::open_with("s", options()).unwrap();
    let run = store.namespace("n").unwrap().begin_run(RunSpec::new("r")).unwrap();
    for seq in 1..=FRAMES {
        run.record(Frame::new(Component::Tool, input(seq), "out")).unwrap();
    }
    run.end(Status::Ok).unwrap();
    drop(run);
    store.close().unwrap();
    let store = Store::open_read_only_with("s", options()).unwrap();
    let reader = store.namespace("n").unwrap().run("r").unwrap();
    for seq in 1..=FRAMES {
        store.drop_caches();
        sim.fail(FailRule::eio(OpKind::Read).on("segments").forever());
        let error = reader.frame(seq).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        sim.clear_faults();
        assert!(reader.frame(seq).unwrap().input == input(seq));
    }
}
