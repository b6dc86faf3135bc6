use std::sync::atomic::{AtomicBool, Ordering};

use annals::io::RealIo;
use annals::io::sim::SimIo;
use annals::{Options, ReadMode, Store, kv::History};

use super::*;
use crate::forgetting::{ForgetTarget, mark_forgotten};
use crate::tests::hooked_io::{FileStep, HookedIo};

fn put(databases: &Databases, key: &str, value: &str) -> oneshot::Receiver<SettleResult> {
    let mut work = TurnBatch::new(databases);
    let entry = KeyEntry { value: value.as_bytes().to_vec().into(), stored: None, deadline: None };
    work.put(0, key.as_bytes(), entry).unwrap();
    work.commit().unwrap().unwrap()
}

fn get(databases: &Databases, key: &str) -> (Option<Vec<u8>>, SettleReceiver) {
    let mut work = TurnBatch::new(databases);
    let entry = work.get(0, key.as_bytes()).unwrap();
    (entry.map(|entry| entry.value.to_vec()), work.commit().unwrap())
}

fn put_until(databases: &Databases, key: &str, value: Vec<u8>, deadline: u64) {
    let mut work = TurnBatch::new(databases);
    let entry = KeyEntry { value: value.into(), stored: None, deadline: Some(deadline) };
    work.put(0, key.as_bytes(), entry).unwrap();
    drop(work.commit().unwrap());
    settle(databases);
}

fn open(space: Namespace, io: Arc<dyn Io>) -> Arc<Databases> {
    // No loop has this inbox, so nothing is submitted before a test does it.
    let inbox = Arc::new(LoopInbox::new().unwrap());
    Databases::open(space, io, &SharedValues::default(), inbox).unwrap()
}

fn open_simulated(sim: &SimIo) -> Arc<Databases> {
    let io: Arc<dyn Io> = Arc::new(sim.clone());
    let options = Options { io: io.clone(), reserve_bytes: 0, zero_ahead_bytes: 0, ..Options::default() };
    open(Store::open_with("s", options).unwrap().namespace("n").unwrap(), io)
}

fn settle(databases: &Databases) {
    databases.settle(SettleMode::Blocking, &mut Vec::new());
}

/// Bytes that zstd cannot shorten.
fn noise(len: usize) -> String {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(32 + (state % 95) as u8)
    };
    (0..len).map(|_| next()).collect()
}

/// Regression: a batch that the disk has no room for took its keys out of the pending ones, although an earlier
/// batch with one of them was still in flight. The next reader saw the value before both, and INCR returned a
/// number that it had acknowledged already.
#[test]
fn refused_batch_uncovers_the_value_in_flight() {
    let sim = SimIo::new(1);
    let databases = open_simulated(&sim);
    drop(put(&databases, "k", "0"));
    settle(&databases);
    assert!(matches!(get(&databases, "k"), (Some(value), None) if value == b"0"));
    let mut one = put(&databases, "k", "1");
    databases.submit();
    let mut two = put(&databases, "k", "2");
    sim.set_capacity(Some(sim.used_bytes()));
    // So long that the batch is submitted at once.
    let mut long = put(&databases, "long", &noise(GATHERED_BYTES_MAX + 1));
    sim.set_capacity(None);
    let (value, waits) = get(&databases, "k");
    assert_eq!(value.as_deref(), Some(&b"1"[..]));
    assert!(waits.is_some(), "its reader waits for it");
    settle(&databases);
    assert_eq!(one.try_recv().unwrap(), Ok(()));
    for refused in [&mut two, &mut long] {
        assert!(refused.try_recv().unwrap().is_err());
    }
    assert_eq!(get(&databases, "k").0.as_deref(), Some(&b"1"[..]));
}

/// Regression: the cache did not take the value of a batch while a newer one was pending. If that was refused, the
/// cache had the value before both, and readers got it until the refused batch was settled.
#[test]
fn refused_batch_uncovers_the_last_settled_value() {
    let sim = SimIo::new(1);
    let databases = open_simulated(&sim);
    drop(put(&databases, "k", "0"));
    settle(&databases);
    drop(put(&databases, "k", "1"));
    databases.submit();
    drop(put(&databases, "k", &noise(GATHERED_BYTES_MAX / 2)));
    let ticket = databases.lock().submitted.front_mut().and_then(|first| first.tickets.pop_front());
    ticket.unwrap().wait().unwrap();
    // What `settle` does with the first batch, before it submits the next.
    let first = databases.lock().submitted.pop_front().unwrap();
    databases.lock().settle_batch(first.batch.unwrap().0, true);
    sim.set_capacity(Some(sim.used_bytes()));
    databases.submit_gathered(&mut databases.lock());
    sim.set_capacity(None);
    assert_eq!(get(&databases, "k").0.as_deref(), Some(&b"1"[..]));
}

/// Regression: a sweep noted the time up to which everything is swept before its deletions were accepted. Keys whose
/// deletion a full disk refused stayed on disk for good.
#[test]
fn refused_sweep_is_repeated() {
    let sim = SimIo::new(1);
    let databases = open_simulated(&sim);
    let now_ms = databases.now_ns() / 1_000_000;
    put_until(&databases, "k", b"value".to_vec(), now_ms + 1000);
    sim.set_now_ns((now_ms + 200_000) * 1_000_000);
    let deadline_of = |value: &[u8]| Ok(deadline_in(Some(value.to_vec())));
    drop(databases.space.complete_deadlines(DeadlineKind::Key, deadline_of).unwrap());
    sim.set_capacity(Some(sim.used_bytes()));
    let is_refused = |number| {
        let mut done = put(&databases, "other", &noise(number));
        settle(&databases);
        done.try_recv().unwrap().is_err()
    };
    assert!((100..2000).any(is_refused), "what is allocated is not filled");
    let sweep = || {
        let (next, deleted) = databases.sweep(None, 100).unwrap();
        assert!(next.is_none());
        settle(&databases);
        deleted.map(|mut deleted| deleted.try_recv().unwrap().is_ok())
    };
    assert_eq!(sweep(), Some(false));
    sim.set_capacity(None);
    assert_eq!(sweep(), Some(true));
    assert_eq!(databases.keyspace_of(0).unwrap().get(b"k").unwrap(), None);
    assert_eq!(sweep(), None, "swept once");
}

/// Regression: a read that had looked before KV.FORGET and ended after it put the value into the cache, from where
/// it was served until it was evicted.
#[test]
#[expect(clippy::disallowed_methods, reason = "the other thread belongs to the test")]
fn read_beside_a_forgetting_does_not_cache_the_value() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let io = HookedIo::new(Arc::new(RealIo::new()));
    let open_store = || {
        let io: Arc<dyn Io> = Arc::new(io.clone());
        let options = Options { io, read_mode: ReadMode::Positional, ..Options::default() };
        Store::open_with(&path, options).unwrap()
    };
    let store = open_store();
    let keys = store.namespace("n").unwrap().keyspace("db0", History::Latest).unwrap();
    keys.put(b"k", vec![b's'; 5000]).unwrap();
    store.close().unwrap();
    let store = open_store();
    let space = store.namespace("n").unwrap();
    let databases = open(space.clone(), Arc::new(RealIo::new()));
    let reader = std::thread::current().id();
    let (forgetter, is_syncing) = (Arc::new(Mutex::new(None)), Arc::new(AtomicBool::new(false)));
    let (of, to, begun) = (databases.clone(), space.clone(), forgetter.clone());
    io.set_hook(move |step| {
        if std::thread::current().id() != reader {
            // The read goes on while the deletion waits for the disk.
            let is_first = step == FileStep::Sync && !is_syncing.swap(true, Ordering::SeqCst);
            (0..if is_first { 100_000 } else { 0 }).for_each(|_| std::thread::yield_now());
            return;
        }
        let mut begun = begun.lock().unwrap();
        if begun.is_some() {
            return;
        }
        let (of, to) = (of.clone(), to.clone());
        *begun = Some(std::thread::spawn(move || {
            let mut work = TurnBatch::new(&of);
            assert!(work.forget_cached(0, b"k"));
            let target = ForgetTarget::Key { keyspace: "db0", key: b"k" };
            mark_forgotten(&to, target, "asked").map(drop).unwrap();
        }));
        while !is_syncing.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    });
    let _ = get(&databases, "k");
    forgetter.lock().unwrap().take().unwrap().join().unwrap();
    io.clear_hook();
    assert_eq!(space.find_keyspace("db0").unwrap().unwrap().get(b"k").unwrap(), None);
    assert_eq!(get(&databases, "k").0, None);
}

/// Regression: a daemon beside the process that holds the store kept the first value that it read of each key.
#[test]
fn databases_of_a_store_that_another_process_writes_follow_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let store = Store::open_with(&path, Options::default()).unwrap();
    let space = store.namespace("n").unwrap();
    let keys = space.keyspace("db0", History::Latest).unwrap();
    keys.put(b"k", "one").unwrap();
    let follower = Store::open_read_only(&path).unwrap();
    let databases = open(follower.namespace("n").unwrap(), Arc::new(RealIo::new()));
    let get = |database| {
        let mut work = TurnBatch::new(&databases);
        work.get(database, b"k").unwrap().map(|entry| entry.value.to_vec())
    };
    assert_eq!(get(0).as_deref(), Some(&b"one"[..]));
    keys.put(b"k", "two").unwrap();
    space.keyspace("db1", History::Latest).unwrap().put(b"k", "new").unwrap();
    follower.refresh().unwrap();
    databases.follow(&SharedValues::default()).unwrap();
    assert_eq!(get(0).as_deref(), Some(&b"two"[..]));
    assert_eq!(get(1).as_deref(), Some(&b"new"[..]), "a database that is new");
}

#[test]
fn writes_during_a_batch_form_the_next_and_keep_all_versions() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path().join("s"), Options::default()).unwrap();
    let space = store.namespace("n").unwrap();
    let kept = space.keyspace("db0", History::All).unwrap();
    let before = store.stats().unwrap().batches;
    // No loop has this inbox, so nothing is submitted before it is settled below.
    let inbox = Arc::new(LoopInbox::new().unwrap());
    let databases = Databases::open(space, Arc::new(RealIo::new()), &SharedValues::default(), inbox).unwrap();
    let mut waits = vec![put(&databases, "k", "one"), put(&databases, "k", "two"), put(&databases, "j", "x")];
    waits.push(put(&databases, "k", "three"));
    let (value, rests) = get(&databases, "k");
    assert_eq!(value.as_deref(), Some(&b"three"[..]));
    let mut rests = rests.unwrap();
    assert!(rests.try_recv().is_err(), "the value that was read is not durable yet");
    databases.settle(SettleMode::Blocking, &mut Vec::new());
    for mut wait in waits {
        wait.try_recv().unwrap().unwrap();
    }
    rests.try_recv().unwrap().unwrap();
    assert_eq!(store.stats().unwrap().batches - before, 1);
    let versions: Vec<_> =
        kept.versions(b"k").unwrap().map(|version| version.unwrap().value.unwrap()).collect();
    assert_eq!(versions, [b"three".to_vec(), b"two".to_vec(), b"one".to_vec()]);
    // Regression: the cache kept the first value of a batch instead of the last, so INCR returned numbers
    // twice.
    assert_eq!(get(&databases, "k").0.as_deref(), Some(&b"three"[..]));
    assert!(get(&databases, "k").1.is_none(), "the value is cached and durable");
}
