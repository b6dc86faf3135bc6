//! Pins, drops and sweeps through the daemon, and the effect of a clock far ahead.

use std::sync::Arc;

use annals::io::Io as _;
use annals::io::sim::SimIo;
use annals::retention::DeadlineKind;
use annals::{
    Keyspace, Namespace,
    kv::{History, ScanRange},
};

use super::DaemonBench;
use crate::access::Rights;
use crate::databases::Databases;

#[test]
fn operators_pin_drop_and_sweep_runs() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    client.script(
        r#"
        run.begin name r -> *4|$4|name|$1|r|$3|uid|:1
        run.drop r asked -> -CONFLICT run "r" is open: end it first
        frame.add r llm a b -> :1
        run.end r -> +OK
        run.pin r example -> +OK
        run.pin no example -> -NOTFOUND there is no run "no"
        run.pin r -> -ERR wrong number of arguments for 'run.pin' command
        run.pin r example NAMESPACE nowhere -> -NOTFOUND there is no namespace "nowhere"
        run.drop r asked -> -CONFLICT run "r" is pinned: unpin it first
        run.unpin r -> +OK
        run.unpin r -> $-1
        run.flag r -> -ERR wrong number of arguments for 'run.flag' command
        run.flag r odd SEVERITY normal -> -ERR a flag is flagged or escalated, not normal
        run.flag r odd SEVERITY strange -> -ERR a flag's severity is flagged or escalated
        run.flag no odd -> -NOTFOUND there is no run "no"
        run.flag r odd NAMESPACE nowhere -> -NOTFOUND there is no namespace "nowhere"
        run.flag r odd -> +OK
        run.unflag r -> +OK
        run.unflag r -> $-1
        run.flag r odd severity ESCALATED -> +OK
        store.retain AT x -> -ERR value is not an integer or out of range
        store.retain POLICY -> -ERR syntax error
        store.retain POLICY [[rule]] -> -INVALID the policy, line 1, column 1: this [[rule]] lacks a keep condition: keep = "7d", keep_newest = 100, keep_share = "5%" or keep_for_ever = true; nothing was dropped
        "#,
    );
    let report = |told: &str| -> annals::retention::RetentionReport {
        serde_json::from_str(told.split('|').nth(1).unwrap()).unwrap()
    };
    let now = bench.daemon.now_ns();
    let later = now + 8 * 86_400_000_000_000;
    let dry = report(&client.bytes(format!("store.retain AT {later} DRYRUN\r\n").as_bytes()).0);
    assert_eq!((dry.dropped().runs, dry.at_ns), (0, later), "it is escalated");
    let later = now + 91 * 86_400_000_000_000;
    let dry = report(&client.bytes(format!("store.retain AT {later} DRYRUN\r\n").as_bytes()).0);
    assert_eq!((dry.dropped().runs, dry.rules[1].rule.as_str()), (1, "marked"));
    for command in ["run.get r", "run.list severity escalated"] {
        let (told, _) = client.bytes(format!("{command}\r\n").as_bytes());
        assert!(told.contains("|status|$2|ok|") && told.contains("|severity|$9|escalated|"), "{told}");
        assert!(told.contains("|flagged|$3|odd|"), "{told}");
    }
    client.script("run.drop r asked -> +OK");
    assert!(client.bytes(b"run.get r\r\n").0.starts_with("-GONE run \"r\" was dropped 20"));
    // The name of a dropped run is free for XADD, and a stream that does not exist is empty.
    client.script("xlen r -> :0");
    assert!(client.bytes(b"run.drop r again\r\n").0.starts_with("-GONE"));
    assert!(client.bytes(b"xadd r * k v\r\n").0.starts_with('$'));
}

#[test]
fn non_operators_cannot_drop_runs() {
    let bench = DaemonBench::new();
    bench.client().script("run.begin name r -> *4|$4|name|$1|r|$3|uid|:1\nrun.end r -> +OK");
    let mut grant = bench.daemon.owner().unwrap();
    grant.rights = Rights::RECORD.union(Rights::READ);
    let mut client = bench.client_with(Some(grant));
    for command in
        ["run.pin r x", "run.unpin r", "run.flag r x", "run.unflag r", "run.drop r x", "store.retain"]
    {
        let (told, _) = client.bytes(format!("{command}\r\n").as_bytes());
        assert!(told.starts_with("-NOPERM") && told.contains("operate"), "{told}");
    }
    assert!(client.bytes(b"run.get r\r\n").0.contains("|status|$2|ok|"));
}

#[test]
fn keys_do_not_expire_by_a_clock_far_ahead() {
    let bench = DaemonBench::new();
    bench.client().script("set a 1 px 60000 -> +OK");
    let space = bench.daemon.store.namespace("default").unwrap();
    let keys = space.find_keyspace("db0").unwrap().unwrap();
    let day = 86_400_000_000_000;
    let sim = SimIo::new(1);
    let inbox = bench.daemon.client_loop.inbox().clone();
    let later = Databases::open(space, Arc::new(sim.clone()), &Default::default(), inbox).unwrap();
    sim.set_now_ns(bench.daemon.now_ns() + 401 * day);
    assert!(later.sweep(None, 100).unwrap().1.is_none(), "nothing was written");
    assert!(keys.get(b"a").unwrap().is_some());
    sim.set_now_ns(sim.now_ns() - 2 * day);
    let (_, settled) = later.sweep(None, 100).unwrap();
    bench.runtime.block_on(settled.unwrap()).unwrap().unwrap();
    assert!(keys.get(b"a").unwrap().is_none());
}

#[test]
fn keys_and_blobs_are_forgotten_with_a_report() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    client.script(
        r#"
        set a secret px 100000 -> +OK
        set a newer px 100000 -> +OK
        kv.forget -> -ERR wrong number of arguments for 'kv.forget' command
        kv.forget a asked NAMESPACE nowhere -> -NOTFOUND there is no namespace "nowhere"
        kv.forget a asked KEYSPACE annals.pins -> -ERR keyspace "annals.pins" belongs to annals: forget a run or a blob instead
        kv.forget none asked -> -NOTFOUND the store has no record of this key: nothing was forgotten
        blob.forget zz asked -> -ERR a blob's id is 64 hexadecimal digits, not "zz"
        multi -> +OK
        kv.forget a asked -> -ERR Command not allowed inside a transaction
        "#,
    );
    client.bytes(b"discard\r\n");
    client.script("get a -> $5|newer");
    let report = |told: String| -> serde_json::Value {
        serde_json::from_str(told.split('|').nth(1).unwrap_or(&told)).unwrap()
    };
    // Two values and the deletion, and the same of the deadline.
    let done = report(client.bytes(b"kv.forget a asked\r\n").0);
    assert_eq!((&done["forgotten"], done["records"].as_u64().unwrap() >= 5), (&"key".into(), true), "{done}");
    assert_eq!(done["held"], serde_json::json!({ "shared": [], "backups": [] }));
    client.script(
        "get a -> $-1
        ttl a -> :-2
        set a again -> +OK
        get a -> $5|again",
    );
    // Another namespace's key, which its own connection has in the cache.
    let other = bench.daemon.tenant("other").unwrap();
    let mut grant = bench.daemon.owner().unwrap();
    grant.tenant = other;
    let mut elsewhere = bench.client_with(Some(grant));
    elsewhere.script("set k hidden -> +OK\nget k -> $6|hidden");
    assert!(client.bytes(b"kv.forget k asked NAMESPACE other\r\n").0.starts_with('$'));
    elsewhere.script("get k -> $-1");
}

/// Sweeps until nothing is left to do.
fn sweep_all(bench: &DaemonBench, databases: &Databases, most: usize) {
    let mut after = None;
    loop {
        let (next, settled) = databases.sweep(after.as_ref(), most).unwrap();
        if let Some(settled) = settled {
            bench.runtime.block_on(settled).unwrap().unwrap();
        }
        if next.is_none() {
            return;
        }
        after = next;
    }
}

fn indexed(space: &Namespace) -> Vec<(u64, Vec<u8>)> {
    let index = space.find_deadlines().unwrap().unwrap();
    let all = index.due(DeadlineKind::Key, u64::MAX, None, usize::MAX).unwrap();
    all.into_iter().map(|deadline| (deadline.ms, deadline.id)).collect()
}

/// A sweep examined every deadline of the namespace, past or not.
#[test]
fn index_of_deadlines_has_each_deadline_once() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    client.script(
        "set a 1 pxat 40000000000000 -> +OK
        set b 1 pxat 40000000000001 -> +OK
        set c 1 -> +OK
        set d 1 pxat 40000000000002 -> +OK
        pexpireat a 40000000000003 -> :1
        set b 2 keepttl -> +OK
        incr b -> :3
        persist d -> :1
        rename a e -> +OK
        pexpireat c 40000000000004 -> :1
        del c -> :1",
    );
    let space = bench.daemon.store.namespace("default").unwrap();
    let expected = [(40_000_000_000_001, b"\0b".to_vec()), (40_000_000_000_003, b"\0e".to_vec())];
    assert_eq!(indexed(&space), expected);
    client.script("del b e -> :2");
    assert_eq!(indexed(&space), []);
}

/// The index is a hint: an entry whose key ends later, not at all or does not exist deletes nothing but itself.
#[test]
fn outdated_entries_of_the_index_are_deleted_alone() {
    let bench = DaemonBench::new();
    bench.client().script("set later 1 pxat 40000000000000 -> +OK\nset never 1 -> +OK");
    let space = bench.daemon.store.namespace("default").unwrap();
    let (index, mut batch) = (space.find_deadlines().unwrap().unwrap(), space.batch());
    for name in ["later", "never", "none"] {
        index.add(&mut batch, DeadlineKind::Key, 1, format!("\0{name}").as_bytes());
    }
    batch.commit().unwrap();
    assert_eq!(indexed(&space).len(), 4);
    sweep_all(&bench, &bench.daemon.tenant("default").unwrap().databases, 2);
    assert_eq!(indexed(&space), [(40_000_000_000_000, b"\0later".to_vec())]);
    bench.client().script("mget later never -> *2|$1|1|$1|1");
}

/// Stores of earlier versions have deadlines without an index. Keys of a namespace that was not open did not end.
#[test]
fn unindexed_deadlines_and_closed_namespaces_are_swept() {
    let bench = DaemonBench::new();
    let now_ms = bench.daemon.now_ns() / 1_000_000;
    let space = bench.daemon.store.namespace("old").unwrap();
    let keys = space.keyspace("db3", History::Latest).unwrap();
    let deadlines = space.keyspace("annals.deadlines", History::Latest).unwrap();
    for number in 0..7u64 {
        let (key, due) = (number.to_string(), if number % 2 == 0 { 1 } else { now_ms + 3_600_000 });
        keys.put(key.as_bytes(), b"1".to_vec()).unwrap();
        deadlines.put(format!("\u{3}{key}").as_bytes(), due.to_le_bytes().to_vec()).unwrap();
    }
    let is_open = || bench.daemon.tenants().iter().any(|tenant| tenant.name == "old");
    assert!(!is_open());
    bench.daemon.open_expired_tenants().unwrap();
    assert!(is_open());
    let tenant = bench.daemon.tenant("old").unwrap();
    sweep_all(&bench, &tenant.databases, 2);
    let names =
        |keyspace: &Keyspace| keyspace.scan(ScanRange::all()).map(|pair| pair.unwrap().0).collect::<Vec<_>>();
    assert_eq!(names(&keys), [b"1", b"3", b"5"]);
    assert_eq!(names(&deadlines), [b"\x031", b"\x033", b"\x035"]);
    assert_eq!(indexed(&space).len(), 3);
    // Nothing is left to do, also for a daemon that starts again.
    assert!(!space.has_due(DeadlineKind::Key, now_ms).unwrap());
    assert!(space.has_due(DeadlineKind::Key, now_ms + 7_200_000).unwrap());
}

/// Regression: after a clock that was ahead was set back, a sweep passed over what ended before the wrong time.
#[test]
fn keys_end_by_a_sweep_after_the_clock_was_set_back() {
    let bench = DaemonBench::new();
    bench.client().script("set a 1 px 60000 -> +OK\nset b 1 px 7200000 -> +OK");
    let space = bench.daemon.store.namespace("default").unwrap();
    let keys = space.find_keyspace("db0").unwrap().unwrap();
    let sim = SimIo::new(1);
    let inbox = bench.daemon.client_loop.inbox().clone();
    let later = Databases::open(space, Arc::new(sim.clone()), &Default::default(), inbox).unwrap();
    let (began, hour) = (bench.daemon.now_ns(), 3_600_000_000_000);
    sim.set_now_ns(began + hour);
    sweep_all(&bench, &later, 100);
    assert!(keys.get(b"a").unwrap().is_none() && keys.get(b"b").unwrap().is_some());
    sim.set_now_ns(began);
    let mut work = crate::databases::TurnBatch::new(&later);
    let deadline = Some(began / 1_000_000 + 1000);
    let value = b"1".to_vec().into();
    work.put(0, b"c", crate::databases::KeyEntry { value, stored: None, deadline }).unwrap();
    let settled = work.commit().unwrap().unwrap();
    bench.runtime.block_on(settled).unwrap().unwrap();
    sim.set_now_ns(began + 2_000_000_000);
    sweep_all(&bench, &later, 100);
    assert!(keys.get(b"c").unwrap().is_none());
}
