//! A recording process is killed at random moments: all acknowledged frames are there, and the store can be
//! used again.
//!
//! `ANNALS_KILLS` is the number of kills (50), `ANNALS_SEED` the seed of their times.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use annals::{Component, Durability, Frame, Options, RunSpec, Status, Store};

use crate::support::{GrowingConversation, SeededRng, assert_whole, bodies, seed};

const CHILD: &str = "kills::child_that_records_until_it_is_killed";
const CHILD_STORE: &str = "ANNALS_KILLS_STORE";

fn options(round: u64) -> Options {
    let durability = if round.is_multiple_of(2) { Durability::Process } else { Durability::Disk };
    Options {
        durability,
        segment_bytes_max: 256 << 10,
        zero_ahead_bytes: 64 << 10,
        ..crate::support::defaults()
    }
}

#[test]
#[ignore = "the process that the test of kills starts and kills"]
fn child_that_records_until_it_is_killed() {
    let Ok(told) = std::env::var(CHILD_STORE) else { return };
    let (round, path) = told.split_once(' ').unwrap();
    let round: u64 = round.parse().unwrap();
    let mut rng = SeededRng(round);
    let store = Store::open_with(path, options(round)).unwrap();
    let space = store.namespace("default").unwrap();
    let mut out = std::io::stdout();
    let mut say = |text: String| {
        out.write_all(text.as_bytes()).unwrap();
        out.flush().unwrap();
    };
    for number in 0.. {
        let name = format!("{round}-{number}");
        let run = space.begin_run(RunSpec::new(&name)).unwrap();
        let steps = 1 + rng.below(25);
        for (request, answer) in GrowingConversation::new(&name).take(steps) {
            let seq = if rng.below(4) == 0 {
                let open = run.begin_frame(&Frame::new(Component::Llm, request, "")).unwrap();
                for part in answer.chunks(150) {
                    open.append(part).unwrap();
                    open.flush().unwrap();
                }
                open.finish(false).unwrap()
            } else {
                run.record(Frame::new(Component::Llm, request, answer)).unwrap()
            };
            say(format!("@frame {name} {seq}\n"));
        }
        run.end(Status::Ok).unwrap();
        say(format!("@ended {name} {steps}\n"));
    }
}

/// The acknowledged frames of the child: for each run its last frame, and whether the run ended.
type AcknowledgedRuns = BTreeMap<String, (usize, bool)>;

fn kill_one(store: &Path, round: u64, rng: &mut SeededRng) -> AcknowledgedRuns {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([CHILD, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD_STORE, format!("{round} {}", store.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut acknowledged = AcknowledgedRuns::new();
    let (mut line, mut left, mut killed) = (Vec::new(), rng.below(80), false);
    loop {
        if left == 0 && !killed {
            // The kill hits at a random moment after this acknowledgement.
            for _ in 0..rng.below(60_000) {
                std::hint::spin_loop();
            }
            child.kill().unwrap();
            killed = true;
        }
        line.clear();
        lines.read_until(b'\n', &mut line).unwrap();
        // An incomplete line is no acknowledgement.
        if line.last() != Some(&b'\n') {
            break;
        }
        let line = String::from_utf8_lossy(&line);
        let Some(told) = line.find('@').map(|at| &line[at..]) else { continue };
        let words: Vec<_> = told.split_whitespace().collect();
        acknowledged.insert(words[1].to_owned(), (words[2].parse().unwrap(), words[0] == "@ended"));
        left = left.saturating_sub(1);
    }
    child.wait().unwrap();
    assert!(killed, "the child ended before the kill in round {round}");
    acknowledged
}

fn check(store: &Store, acknowledged: &AcknowledgedRuns) {
    let space = store.namespace("default").unwrap();
    for (name, (frames, ended)) in acknowledged {
        let reader = space.run(name).unwrap();
        let found = bodies(&reader);
        let wanted: Vec<_> = GrowingConversation::new(name).take(found.len()).collect();
        assert!(found.len() >= *frames, "run {name} has {} frames, {frames} were acknowledged", found.len());
        assert!(found[..*frames] == wanted[..*frames], "run {name} has other bytes");
        // An unacknowledged frame may be there, whole or with the bytes that had arrived.
        assert!(found.len() <= frames + 1, "run {name}");
        for ((input, output), (wanted_input, wanted_output)) in found.iter().zip(&wanted) {
            assert!(input == wanted_input && wanted_output.starts_with(output), "run {name}");
        }
        match reader.info().status {
            Status::Ok => assert_eq!(found.len(), wanted.len()),
            status => assert!(status == Status::Abandoned && !ended, "run {name} is {status}"),
        }
    }
}

#[test]
fn acknowledged_frames_survive_sigkill() {
    let kills = std::env::var("ANNALS_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(50);
    let mut rng = SeededRng(seed(31, "kills::acknowledged_frames_survive_sigkill"));
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join("s");
    let mut all = AcknowledgedRuns::new();
    for round in 0..kills {
        let acknowledged = kill_one(&path, round, &mut rng);
        let store = match Store::open_with(&path, options(round)) {
            Ok(store) => store,
            Err(error) => panic!("round {round}: {error}"),
        };
        if store.namespaces().unwrap().is_empty() {
            assert!(acknowledged.is_empty());
            continue;
        }
        let space = store.namespace("default").unwrap();
        let mine = |name: &str| name.split('-').next() == Some(round.to_string().as_str());
        let infos: Vec<_> = space.runs().unwrap().map(Result::unwrap).collect();
        assert!(infos.iter().all(|info| info.status != Status::Open), "a dead writer's run is left open");
        check(&store, &acknowledged);
        let names: Vec<_> = infos.into_iter().map(|info| info.name).filter(|name| mine(name)).collect();
        assert_eq!(store.verify_runs("default", &names).unwrap().damaged, [], "round {round}");
        all.extend(acknowledged);
        if round % 3 == 0 {
            store.close().unwrap();
        }
    }
    let store = Store::open_read_only(&path).unwrap();
    check(&store, &all);
    assert_whole(&store);
    let frames: usize = all.values().map(|(frames, _)| frames).sum();
    println!("{kills} kills, {} runs, {frames} acknowledged frames, all there", all.len());
}
