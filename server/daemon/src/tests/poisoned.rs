//! After a failed write nothing is acknowledged, and reads answer from the last commit.
//!
//! Regression: a SET failed because the disk refused its sync; a later DEL of the key found nothing to delete
//! and replied `:0`, although the SET may be in the log when the store is opened again.

use std::collections::HashSet;
use std::sync::Arc;

use annals::io::sim::{FailRule, OpKind, SimIo};
use annals::{Durability, Options, Store};
use annals_deliberation::{Caller, Method};
use annals_wire::schema::{CommandSchema, all_commands};

use super::{DaemonBench, TestClient};
use crate::databases::TurnBatch;

/// Commands without an effect on the store, and without a reply that depends on it.
const NEUTRAL: &str = "ping echo hello auth select quit reset client multi exec discard command config info slowlog time script page.link";

/// For each command that writes: arguments with which it writes something after `PREPARATION`.
const WRITES: &str = "
    set k 2
    setnx new 1
    setex k 100 2
    psetex k 100000 2
    getset k 2
    getdel k
    getex timed persist
    append k 2
    setrange k 0 2
    incrbyfloat n 0.5
    rename k other
    renamenx k renamed
    copy k copied
    evalsha c3f8721cbb97f72bc19e972846bd7aaf91901658 1 lock mine
    incr n
    incrby n 5
    decr n
    decrby n 5
    mset k 2 other 3
    msetnx x 1 y 2
    del k
    unlink k
    expire k 100
    pexpire k 100000
    expireat k 4000000000
    pexpireat k 4000000000000
    persist timed
    xadd s * a 2
    run.begin name another
    run.end open
    run.fork done@1 name fork
    frame.add r llm question answer
    frame.begin r llm question
    frame.append r 2 more
    frame.end r 2
    nondet.draw r clock
    snap.put s state
    blob.put bytes
    mem.put '{\"id\":\"e\",\"value\":2}'
    mem.putif '{\"id\":\"e\",\"value\":2}' 1
    mem.define '{\"id\":\"other\"}'
    mem.undefine d
    mem.delete e
    mem.forget
    mem.feedback e value 1
    mem.seen signature record
    diag.record '{\"sessionId\":\"new\",\"outcome\":\"rejected\",\"injectedObservationIds\":[\"o\"]}' strict
    diag.inject '{\"sessionId\":\"other\",\"observationIds\":[\"o\"]}'
    diag.weighting off
    delib.record '{\"decision\":\"d\",\"confidence\":1}'
    delib.thought '{\"text\":\"t\"}'
    delib.review '{\"id\":\"DECISION\",\"outcome\":\"success\"}'
    delib.guardrail '{\"id\":\"g\"}'
    delib.unguard '{\"id\":\"kept\"}'
    delib.config '{\"inputTtlMs\":5}'
    run.index rebuild
    run.pin r why
    run.unpin pinned
    run.flag r why
    run.unflag pinned
    run.drop done why
    kv.forget k why
    blob.forget 5e6f1a1a18575bd6705c9f36b25b50795525dc34e37f11bcbf0ff4bb1ff690e5 why
    store.retain
    store.verify
    store.checkpoint
    store.backup /nowhere
    store.compact
    token.add another
    token.rotate t
    token.revoke t
";

/// Commands that read, with arguments that find something.
const READS: &str = "
    get k
    get expired
    get none
    strlen k
    getrange k 0 -1
    substr k 0 -1
    object encoding k
    memory usage k
    mget k n none
    exists k n none expired
    touch k
    type s
    keys *
    scan 0
    dbsize
    ttl k
    pttl k
    expiretime timed
    pexpiretime timed
    xlen s
    xrange s - +
    xrevrange s + -
    xread streams s 0
    xinfo stream s
    run.get r
    run.list
    run.list with usage
    run.failure done
    run.suspect done
    run.blame done
    run.diff done done
    run.forks done
    run.verify done
    run.tail r
    run.replay done question restart
    frame.get done 1
    run.view done 1
    run.timeline done
    store.sizes
    nondet.draw drawn clock
    snap.get r 2
    snap.at r 2
    blob.get 5b5eec79b8a1c8e2b3c42ea1b3a2e02d8a0f1c9d6c2f7f5a0b0c9e8d7f6a5b4c
    kv.at k 1000
    kv.history k
    mem.list
    mem.search vector [1]
    mem.definitions
    mem.feedback e
    mem.seen noted
    diag.record '{\"sessionId\":\"new\",\"outcome\":\"rejected\"}' dryrun
    diag.get s
    diag.misleading
    diag.distribution
    diag.weight observation o
    diag.history observation o
    diag.audit
    diag.retrievals s
    diag.weighting
    delib.stats
    delib.spikes '{\"id\":\"DECISION\"}'
    delib.guardrails
    store.stats
    token.list
";

/// One read whose reply has a count of accesses, which a failed store cannot keep.
const COUNTED_READ: &str = "mem.get e";

/// Reads that become inputs of a decision, which a failed store cannot keep; and the one that shows inputs.
const CAPTURED_READS: &str = "
    delib.query
    delib.check '{\"description\":\"d\"}'
    delib.get '{\"id\":\"DECISION\"}'
    delib.reasons
    delib.tracked
";

/// Reads whose reply is another one each time, or says whether the index can be kept.
const UNCOMPARED_READS: &str = "
    randomkey
    run.search question
";

const PREPARATION: &str = "
    set k 1
    set n 1
    set timed 1 ex 1000
    set expired 1 px 5
    set lock mine px 100000000
    xadd s * a 1
    run.begin name r
    frame.add r llm question answer
    frame.begin r llm question
    frame.append r 2 some
    snap.put r state
    run.begin name open
    run.begin name done
    frame.add done llm question answer
    run.end done
    run.begin name drawn
    nondet.draw drawn clock
    run.end drawn
    run.begin name pinned
    run.end pinned
    run.pin pinned why
    run.flag pinned why
    blob.put kept
    mem.put '{\"id\":\"e\",\"value\":1,\"version\":1,\"embedding\":[1]}'
    mem.define '{\"id\":\"d\"}'
    mem.feedback e value 1
    mem.seen noted record
    run.begin name gone
    run.end gone
    run.drop gone why
    set gone 1
    kv.forget gone why
    diag.record '{\"sessionId\":\"s\",\"outcome\":\"rework\",\"injectedObservationIds\":[\"o\",\"o\",\"o\"]}'
    delib.guardrail '{\"id\":\"kept\",\"contains\":[\"never\"]}'
    delib.record '{\"decision\":\"first\",\"confidence\":1,\"deliberation\":{\"steps\":[{\"step\":1,\"thought\":\"t\"}]}}'
    token.add t
    store.backup /before
    run.index
";

fn lines(script: &str) -> impl Iterator<Item = &str> {
    script.lines().map(str::trim).filter(|line| !line.is_empty())
}

/// A daemon on a simulated disk, prepared.
pub(crate) fn prepared() -> (DaemonBench, SimIo) {
    let sim = SimIo::new(1);
    // As the daemon opens its store: replies wait for the disk by themselves.
    let options =
        Options { io: Arc::new(sim.clone()), durability: Durability::Process, ..Options::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(1).build().unwrap();
    let store = Store::open_with("s", options).unwrap();
    let daemon = DaemonBench::daemon_with(store, Arc::new(sim.clone()));
    let bench = DaemonBench { daemon, _directory: tempfile::tempdir().unwrap(), runtime };
    let mut client = bench.client();
    for line in lines(PREPARATION) {
        let reply = ask(&mut client, line);
        assert!(!reply.starts_with('-'), "{line}: {reply}");
    }
    sim.advance_ns(10_000_000);
    (bench, sim)
}

fn ask(client: &mut TestClient<'_>, line: &str) -> String {
    if line.contains("DECISION") {
        // annals chooses the id. This look-up captures nothing, so it writes nothing.
        let decisions = client.bench.daemon.tenant("default").unwrap().deliberation().unwrap();
        let caller = Caller { tracks: false, ..Caller::new("owner") };
        let found = decisions.call(&caller, Method::QueryDecisions, "{}").unwrap();
        let id = found.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        return ask(client, &line.replace("DECISION", id));
    }
    client.bytes(format!("{line}\r\n").as_bytes()).0
}

fn read_all(client: &mut TestClient<'_>) -> Vec<String> {
    let blob = blake3::hash(b"kept").to_hex();
    let line = |line: &str| match line.starts_with("blob.get") {
        true => format!("blob.get {blob}"),
        false => line.to_owned(),
    };
    lines(READS)
        .map(line)
        .map(|line| {
            let reply = ask(client, &line);
            assert!(!reply.starts_with('-'), "{line}: {reply}");
            let reply = if line == "store.stats" { counts(&reply) } else { reply };
            format!("{line}: {reply}")
        })
        .collect()
}

/// What a store has, of the reply of STORE.STATS; its files also change by a backup.
fn counts(reply: &str) -> String {
    let parts: Vec<_> = reply.split('|').collect();
    let count = |name: &&str| parts.iter().position(|part| part == name).map(|at| parts[at + 1]);
    let names = ["runs", "frames", "raw_bytes", "batches", "seqno", "ledger_leaves"];
    names.iter().map(|name| format!("{name}{} ", count(name).unwrap())).collect()
}

fn is_refused(reply: &str) -> bool {
    reply.starts_with('-') && reply.contains("os error 5")
}

#[test]
fn every_command_stands_in_one_list_by_what_it_does() {
    let first = |script: &'static str| lines(script).map(|line| line.split(' ').next().unwrap());
    let writes: HashSet<_> = first(WRITES).collect();
    let reads: HashSet<_> = first(READS)
        .chain(first(COUNTED_READ))
        .chain(first(CAPTURED_READS))
        .chain(first(UNCOMPARED_READS))
        .collect();
    let neutral: HashSet<_> = NEUTRAL.split(' ').collect();
    for CommandSchema { name, flags, .. } in all_commands() {
        let both = flags.contains(&"both");
        let listed = (writes.contains(name), reads.contains(name), neutral.contains(name));
        let schema = all_commands().find(|command| command.name == *name).unwrap();
        let expected = match schema.writes() {
            true => (true, false, false),
            false if both => (true, true, false),
            false => (false, !neutral.contains(name), neutral.contains(name)),
        };
        assert_eq!(listed, expected, "{name}: (writes, reads, neutral)");
    }
}

/// The arguments of [`WRITES`] must write, or the test below shows nothing.
#[test]
fn listed_writes_succeed_while_the_disk_is_sound() {
    let refused: Vec<_> = lines(WRITES)
        .map(|line| (line, ask(&mut prepared().0.client(), line)))
        .filter(|(_, reply)| reply.starts_with('-'))
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
}

/// Each command that writes is the first one that fails; then every one is refused with the first cause,
/// although the next sync of the disk succeeds.
#[test]
fn after_a_failed_sync_no_command_acknowledges_a_write() {
    let mut faults = Vec::new();
    // RUN.INDEX empties a cache in several commits, and syncs the later ones: the first of them may be seen.
    for failing in lines(WRITES).filter(|line| !line.starts_with("run.index")) {
        let (bench, sim) = prepared();
        let mut client = bench.client();
        let mut before = read_all(&mut client);
        sim.fail(FailRule::eio(OpKind::Sync).on("s/segments"));
        let mut expect_refused = |client: &mut TestClient<'_>, line: &str| {
            let reply = ask(client, line);
            if !is_refused(&reply) {
                faults.push(format!("{line} after {failing}: {reply}"));
            }
        };
        expect_refused(&mut client, failing);
        assert!(bench.daemon.store.check_writer().is_err(), "{failing}");
        lines(WRITES).for_each(|line| expect_refused(&mut client, line));
        let replies = ask(&mut client, "multi\r\nset k 9\r\nexec");
        assert!(replies.starts_with("+OK|-POISONED ") && replies.contains("|-EXECABORT "), "{replies}");
        let mut after = read_all(&mut client);
        let counts = before.iter_mut().zip(&mut after).filter(|(reply, _)| reply.starts_with("store.stats"));
        for (before, after) in counts {
            if failing.starts_with("store.backup") {
                // The backup succeeds. The namespace for its note is made before the note's sync fails.
                after.clone_from(before);
            } else if failing == "store.retain" {
                // The sweep makes the keyspace of the index of deadlines before a sync fails, and that stays.
                before.clone_from(after);
            }
        }
        assert_eq!(after, before, "after {failing}");
        // Also by a daemon that has nothing in memory: no open run to draw for, and no tokens.
        let bench = bench.started_again();
        let mut client = bench.client();
        let has_no_run = |line: &&str| line.starts_with("nondet.draw");
        lines(WRITES).filter(|line| !has_no_run(line)).for_each(|line| expect_refused(&mut client, line));
        let is_stored = |line: &&String| !line.starts_with("token.list");
        let after = read_all(&mut client);
        assert!(
            after.iter().filter(is_stored).eq(before.iter().filter(is_stored)),
            "after {failing}: {after:?}"
        );
        for line in lines(CAPTURED_READS) {
            let reply = ask(&mut client, line);
            let says_so = reply.contains("deliberation_not_tracked") || line == "delib.tracked";
            assert!(says_so && !reply.starts_with('-'), "{line} after {failing}: {reply}");
        }
        let got = ask(&mut client, COUNTED_READ);
        assert!(got.contains(r#""id":"e""#), "{got}");
        let info = ask(&mut client, "info");
        let seqno = format!("reads_as_of_seqno:{}|", bench.daemon.store.seqno());
        for part in ["aof_last_write_status:err|", "writes:refused|", &seqno, "os error 5"] {
            assert!(info.contains(part), "{part}: {info}");
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// DEL reads its key as absent once the failed SET is no longer pending; the writer may fail between the
/// check before the command and its end.
#[test]
fn write_that_fails_while_a_turn_runs_fails_the_turn() {
    let (bench, sim) = prepared();
    let databases = bench.daemon.tenant("default").unwrap().databases.clone();
    let mut turn = TurnBatch::new(&databases);
    turn.require_writer();
    sim.fail(FailRule::eio(OpKind::Sync).on("s/segments"));
    assert!(is_refused(&ask(&mut bench.client(), "set failing 1")));
    assert!(!turn.delete(0, b"failing").unwrap());
    assert!(turn.commit().unwrap_err().to_string().contains("os error 5"));
}

/// Regression: FRAME.APPEND of no bytes replied at once with a length that counted bytes of an append whose
/// sync was under way, and failed.
#[test]
fn empty_append_waits_for_the_appends_before_it() {
    let (bench, sim) = prepared();
    let open = bench.daemon.tenant("default").unwrap().open_run("r").unwrap();
    sim.fail(FailRule::eio(OpKind::Sync).on("s/segments"));
    let (_, first) = open.append(2, b"more").unwrap();
    let (len, second) = open.append(2, b"").unwrap();
    assert_eq!(len, 8);
    assert!(first.wait().is_err() && second.wait().is_err());
}
