//! Recorders that hand a store over to each other, in one process.

use std::path::Path;
use std::sync::Arc;

use annals::{Component, Durability, ErrorKind, Frame, Options, RunSpec, Status, Store, runs::Ending};
use annals_proxy::destination::{RemoteFrame, RemoteSpace};
use annals_proxy::spool::SpooledBody;

use super::holder::StoreHolder;
use super::keys::{KeyChange, SharedKeys};
use super::remote::{JoinOutcome, RemoteStore};

/// A recorder that writes over the socket also while it holds the store itself.
struct HandoverRecorder {
    holder: Arc<StoreHolder>,
    remote: RemoteStore,
}

impl HandoverRecorder {
    fn open(root: &Path) -> Self {
        let options = Options { durability: Durability::Process, ..Options::default() };
        let holder = Arc::new(StoreHolder::new(root, &options));
        loop {
            if let Err(error) = holder.open() {
                assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
            }
            if let JoinOutcome::Joined(remote) = RemoteStore::join(&holder, "n").unwrap() {
                return Self { holder, remote };
            }
            std::thread::yield_now();
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct SeededRng(u64);

impl SeededRng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// The bytes that frame `seq` of a run holds.
fn bytes(run: &str, seq: u32) -> Vec<u8> {
    format!("{run} {seq} ").repeat(1 + seq as usize % 5 * 700).into_bytes()
}

fn frame(run: &str, seq: u32) -> Frame {
    Frame::new(Component::Llm, bytes(run, seq), "").metadata(format!(r#"{{"seq":{seq}}}"#))
}

/// A frame that was begun, with the rest of its output.
type UnfinishedFrame = (Box<dyn RemoteFrame>, Vec<u8>);

/// Records one run by a random mix of steps, and hands the store over at its end if it holds it.
fn record(root: &Path, name: &str, rng: &mut SeededRng) -> u32 {
    let recorder = HandoverRecorder::open(root);
    let run = recorder.remote.begin_run(&RunSpec::new(name).metadata(r#"{"of":"a test"}"#)).unwrap();
    let mut seq = 0;
    let mut open: Vec<UnfinishedFrame> = Vec::new();
    for _ in 0..20 + rng.below(20) {
        match rng.below(6) {
            0 | 1 => {
                seq += 1;
                let begun = run.begin_frame(&frame(name, seq)).unwrap();
                assert_eq!(begun.seq(), seq);
                open.push((begun, bytes(name, seq)));
            }
            2 => {
                seq += 1;
                let mut frame = frame(name, seq);
                frame.output = bytes(name, seq).into();
                run.submit(&frame, None).unwrap();
            }
            3 if !open.is_empty() => {
                let at = rng.below(open.len() as u64) as usize;
                let (begun, rest) = open.swap_remove(at);
                begun.append(&rest).unwrap();
                begun.finish_with(&Ending::default()).unwrap();
            }
            _ => {
                for (begun, rest) in &mut open {
                    let len = (rng.below(900) as usize).min(rest.len());
                    begun.append(&rest.drain(..len).collect::<Vec<u8>>()).unwrap();
                }
            }
        }
    }
    for (begun, rest) in open {
        begun.append(&rest).unwrap();
        begun.finish_with(&Ending::default()).unwrap();
    }
    seq += 1;
    let body = Arc::new(SpooledBody::read_from(&mut bytes(name, seq).as_slice()).unwrap());
    run.submit(&frame(name, seq), Some(&body)).unwrap();
    run.end(Status::Ok).unwrap();
    recorder.holder.close().unwrap();
    seq
}

/// Four recorders after each other in four threads: the store changes hands all the time, in the middle of steps.
#[test]
fn handover_keeps_every_step_once() {
    let seed = std::env::var("ANNALS_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(24);
    println!("ANNALS_SEED={seed} cargo test -p annals-daemon --lib handover_keeps -- --nocapture");
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("store");
    let recorded: Vec<(String, u32)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let root = &root;
                scope.spawn(move || {
                    let mut rng = SeededRng(seed ^ (thread << 32));
                    let runs = (0..6).map(|number| format!("r-{thread}-{number}"));
                    runs.map(|name| (name.clone(), record(root, &name, &mut rng))).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let store = Store::open(&root).unwrap();
    let space = store.namespace("n").unwrap();
    assert_eq!(space.runs().unwrap().count(), recorded.len());
    for (name, frames) in recorded {
        let reader = space.run(&name).unwrap();
        assert_eq!((reader.info().status, reader.info().frames), (Status::Ok, frames), "{name}");
        for frame in reader.frames() {
            let frame = frame.unwrap();
            assert!(!frame.incomplete && frame.output == bytes(&name, frame.seq), "{name} {}", frame.seq);
            assert_eq!(frame.input, frame.output, "{name} {}", frame.seq);
        }
    }
    assert!(store.verify().unwrap().damaged.is_empty());
}

/// The token of a run is known to its recorder alone: nobody else takes its run up.
#[test]
fn run_is_resumed_by_its_own_recorder_only() {
    use annals_wire::resp::Reply;
    use annals_wire::schema::recorder::RecorderCommand as Command;

    use super::host::WriterGate;
    use super::member::{KeyOwner, RECORDER_TAG, RecorderSession, token_hash};

    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    let session = || {
        let mut session =
            RecorderSession::new(store.clone(), WriterGate::new(), Arc::default(), KeyOwner::Nobody);
        let used = session.answer(vec![Command::UseStore.name().into(), b"n".to_vec()]);
        assert_eq!(used, Some(Reply::OK));
        session
    };
    let ask = |session: &mut RecorderSession, words: &[&str]| {
        let words = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        match session.answer(words).unwrap() {
            Reply::Bulk(text) => String::from_utf8(text).unwrap(),
            Reply::Error(text) => text,
            reply => format!("{reply:?}"),
        }
    };
    let mut first = session();
    let hash = token_hash(b"secret");
    ask(&mut first, &["RUN.BEGIN", "r", "TAG", RECORDER_TAG, &hash]);
    ask(&mut first, &["FRAME.ADD", "r", "llm", "in", "out"]);
    ask(&mut first, &["FRAME.BEGIN", "r", "llm", "in"]);
    assert_eq!(ask(&mut first, &["FRAME.APPEND", "r", "2", "half"]), "Integer(4)");
    let mut second = session();
    // Still being recorded; then of another token; then by its own.
    assert!(ask(&mut second, &["RUN.RESUME", "r", "secret"]).starts_with("CONFLICT "));
    drop(first);
    assert!(ask(&mut second, &["RUN.RESUME", "r", "guess"]).starts_with("NOTFOUND "));
    assert!(ask(&mut second, &["RUN.RESUME", "r", &hash]).starts_with("NOTFOUND "));
    assert!(ask(&mut second, &["RUN.RESUME", "nobody", "secret"]).starts_with("NOTFOUND "));
    assert_eq!(ask(&mut second, &["RUN.RESUME", "r", "secret"]), "2 open 2 4");
    assert_eq!(ask(&mut second, &["FRAME.END", "r", "2"]), "Integer(2)");
    assert_eq!(ask(&mut second, &["RUN.END", "r", "ok"]), "Integer(2)");
    assert_eq!(ask(&mut second, &["RUN.RESUME", "r", "secret"]), "2 ok");
    assert_eq!(store.namespace("n").unwrap().run("r").unwrap().frame(2).unwrap().output, b"half");
}

/// Regression: the daemon has values of keys in memory. A recorder's connection to it deleted a key behind its back, and
/// the daemon served the forgotten value until it was evicted.
#[test]
fn recorder_connection_forgets_no_key_of_a_daemon() {
    use super::host::WriterGate;
    use super::member::{KeyOwner, RecorderSession};

    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    let keys = store.namespace("n").unwrap().keyspace("db0", annals::kv::History::Latest).unwrap();
    keys.put(b"k", "secret").unwrap();
    let forget = |key_owner| {
        let mut session = RecorderSession::new(store.clone(), WriterGate::new(), Arc::default(), key_owner);
        let ask = |line: &str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
        session.answer(ask("STORE.USE n")).unwrap();
        format!("{:?}", session.answer(ask("KV.FORGET k asked NAMESPACE n KEYSPACE db0")).unwrap())
    };
    let refused = forget(KeyOwner::Daemon);
    assert!(refused.contains("INVALID the daemon's databases forget their own keys"), "{refused}");
    assert!(keys.get(b"k").unwrap().is_some());
    forget(KeyOwner::Nobody);
    assert_eq!(keys.get(b"k").unwrap(), None, "beside a recorder nobody has the value in memory");
}

/// Regression: the notes and keys of a write came after its forks and drops. A fork at a note of the same write found
/// no such note, and a run that was noted into and then dropped lived.
#[test]
fn changes_of_a_write_are_made_in_their_order() {
    let directory = tempfile::tempdir().unwrap();
    let keys = SharedKeys::open(&directory.path().join("store"), &Options::default()).unwrap();
    let note = |run: &str| {
        let (run, id) = (run.to_owned(), "first".to_owned());
        KeyChange::Note { run, id, metadata: b"{}".to_vec(), output: b"state".to_vec() }
    };
    let (run, id, fork) = ("r".to_owned(), "first".to_owned(), "f".to_owned());
    keys.write("n", vec![note("r"), KeyChange::Fork { run, id, fork }]).unwrap();
    keys.write("n", vec![note("gone"), KeyChange::Drop { run: "gone".to_owned() }]).unwrap();
    let store = keys.local().unwrap();
    let runs = store.namespace("n").unwrap().runs().unwrap();
    let names: Vec<_> = runs.map(|run| run.unwrap().name).collect();
    assert_eq!(names, ["r", "f"]);
}
