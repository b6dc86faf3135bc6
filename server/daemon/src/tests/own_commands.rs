//! The commands that Redis does not have, on blobs, keys and the store; and hostile arguments for all of
//! them.

use annals::{Store, kv::History};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{ClientInfo, DaemonBench, Session, TestClient};
use crate::client_connection::{ClientConnection, ClientStream};
use crate::connection;
use crate::turn::Offload;

impl TestClient<'_> {
    /// The reply to a command of arbitrary bytes, with `|` for each line break.
    pub(crate) fn ask(&mut self, words: &[&[u8]]) -> String {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        let (reply, ends) = self.bytes(&bytes);
        assert!(!ends, "{reply}");
        reply
    }

    /// The value of a field in the reply to a command.
    pub(super) fn field(&mut self, command: &str, field: &str) -> String {
        let (reply, _) = self.bytes(format!("{command}\r\n").as_bytes());
        let parts: Vec<&str> = reply.split('|').collect();
        let at = parts.iter().position(|part| *part == field);
        let at = at.unwrap_or_else(|| panic!("{field} is not in {reply}"));
        let value = parts[at + 1];
        if value.starts_with('$') && value != "$-1" { parts[at + 2] } else { value }.to_owned()
    }
}

pub(super) fn pattern(len: usize) -> Vec<u8> {
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn blobs_read_back_whole_and_in_ranges() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    let id = blake3::hash(b"hello").to_hex();
    client.script(&format!(
        r#"
        blob.put hello -> $64|{id}
        blob.put hello -> $64|{id}
        blob.get {id} -> $5|hello
        blob.get {id} 1 3 -> $3|ell
        blob.get {id} 3 100 -> $2|lo
        blob.get {id} 5 1 -> $0|
        blob.get {id} 9223372036854775807 9223372036854775807 -> $0|
        blob.get {id} 0 0 -> $0|
        blob.get {id} 1 -> -ERR syntax error
        blob.get {id} -1 1 -> -ERR value is not an integer or out of range
        blob.get {id} 0 9223372036854775808 -> -ERR value is not an integer or out of range
        blob.get abc -> -ERR a blob's id is 64 hexadecimal digits
        blob.get {} -> $-1
        blob.put "" -> $64|{}
        "#,
        "0".repeat(64),
        blake3::hash(b"").to_hex()
    ));
    // A long value is stored in a turn of its own; the replies still come in order.
    let long = pattern(300_000);
    let id = blake3::hash(&long).to_hex();
    assert_eq!(client.ask(&[b"blob.put", &long]), format!("$64|{id}|"));
    let mut wanted = b"$1000\r\n".to_vec();
    wanted.extend_from_slice(&long[250_000..251_000]);
    let wanted = String::from_utf8_lossy(&wanted).replace("\r\n", "|") + "|";
    assert_eq!(client.ask(&[b"BLOB.GET", id.as_bytes(), b"250000", b"1000"]), wanted);
}

#[test]
fn long_values_are_stored_ahead_and_read_back_unchanged() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    client.script("set a 1 -> +OK");
    let batches = || bench.daemon.store.stats().unwrap().batches;
    let space = bench.daemon.store.namespace("default").unwrap();
    let keyspace = space.find_keyspace("db0").unwrap().unwrap();
    for (number, command) in ["set", "setnx", "getset", "mset"].into_iter().enumerate() {
        let (before, long) = (batches(), pattern(100_000 + number));
        let (key, mut words) = (format!("long{number}"), Vec::new());
        words.extend([command.as_bytes(), key.as_bytes(), &long]);
        let replied = client.ask(&words);
        assert!(["+OK|", ":1|", "$-1|"].contains(&replied.as_str()), "{replied}");
        // The value was stored ahead in its own batch, so the batch of the key only references it.
        assert!(batches() >= before + 2, "{command}");
        assert_eq!(keyspace.get(key.as_bytes()).unwrap(), Some(long), "{command}");
    }
    client.script("strlen long0 -> :100000\nappend long0 x -> :100001\npexpire long1 100000 -> :1\nstrlen long1 -> :100001");
    // Commands before and after it in one read, all in order.
    let long = String::from_utf8(vec![b'y'; 70_000]).unwrap();
    let script =
        format!("set b 1\r\n*3\r\n$3\r\nset\r\n$1\r\nl\r\n$70000\r\n{long}\r\nget b\r\nstrlen l\r\n");
    assert_eq!(client.bytes(script.as_bytes()).0, "+OK|+OK|$1|1|:70000|");
    client.script("multi -> +OK\nset b 2 -> +QUEUED");
    // Bytes that the store does not have yet.
    let (before, mut new) = (batches(), pattern(70_001));
    new.reverse();
    assert_eq!(client.ask(&[b"set", b"l", &new]), "+QUEUED|");
    assert!(batches() > before, "it is stored before EXEC takes the lock");
    assert_eq!(keyspace.get(b"l").unwrap(), Some(long.into_bytes()));
    client.script(
        "exec -> *2|+OK|+OK\nstrlen l -> :70001\nmulti -> +OK\nstore.verify -> -ERR Command not allowed inside a transaction",
    );
    client.script("exec -> -EXECABORT Transaction discarded because of previous errors.");
}

#[test]
fn key_history_returns_earlier_versions() {
    let bench = DaemonBench::new();
    let space = bench.daemon.store.namespace("default").unwrap();
    let kept = space.keyspace("db3", History::All).unwrap();
    let one = kept.put(b"k", "one").unwrap().0;
    let gone = kept.delete(b"k").unwrap().0;
    let two = kept.put(b"k", "two").unwrap().0;
    // A daemon that starts after these writes, as after a restart.
    let later = bench.started_again();
    let mut client = later.client();
    client.script(&format!(
        r#"
        kv.at k {two} -> $-1
        select 3 -> +OK
        kv.at k {two} -> $3|two
        kv.at k {gone} -> $-1
        kv.at k {one} -> $3|one
        kv.at k 0 -> $-1
        kv.at k 9223372036854775807 -> $3|two
        kv.at k -1 -> -ERR value is not an integer or out of range
        kv.at k x -> -ERR value is not an integer or out of range
        kv.at no 1 -> $-1
        kv.history no -> *0
        kv.history k count 0 -> *0
        kv.history k count -> -ERR syntax error
        kv.history k most 1 -> -ERR syntax error
        "#
    ));
    let all = client.bytes(b"kv.history k\r\n").0;
    let of = |seqno: u64, value: &str| format!("*6|$5|seqno|:{seqno}|$7|time_ns|:T|$5|value|{value}|");
    let shown = {
        let mut parts: Vec<&str> = all.split('|').collect();
        for at in 1..parts.len() {
            if parts[at - 1] == "time_ns" {
                parts[at] = ":T";
            }
        }
        parts.join("|")
    };
    assert_eq!(shown, format!("*3|{}{}{}", of(two, "$3|two"), of(gone, "$-1"), of(one, "$3|one")));
    assert!(client.bytes(b"kv.history k count 2\r\n").0.starts_with(&format!("*2|*6|$5|seqno|:{two}")));
    client.script("select 0 -> +OK\nset n 1 -> +OK");
    // The daemon's own keyspaces keep the latest value; a value set in the same read is visible.
    let (told, _) = client.bytes(b"set n 2\r\nkv.at n 9223372036854775807\r\n");
    assert_eq!(told, "+OK|$1|2|");
    client.script("kv.at n 1 -> -GONE the value after record 1 is past this keyspace's history (Latest)");
    assert_eq!(client.ask(&[b"kv.at", &vec![b'k'; 70_000], b"1"]), "-ERR a key has at most 65535 bytes|");
}

#[test]
fn the_store_is_counted_verified_and_copied() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    client.script("set a 1 -> +OK\nrun.begin name r -> *4|$4|name|$1|r|$3|uid|:1\nframe.add r llm a b -> :1");
    assert_eq!(client.field("store.stats", "runs"), ":1");
    assert_eq!(client.field("store.stats", "frames"), ":1");
    assert_eq!(client.field("store.verify", "damages"), ":0");
    // The earlier verification is a frame of the daemon's own run.
    assert_eq!(client.field("store.verify", "frames"), ":2");
    let told = client.bytes(b"store.checkpoint\r\n").0;
    let json = told.split('|').nth(1).unwrap();
    let checkpoint = annals::ledger::Checkpoint::from_json(json.as_bytes()).unwrap();
    assert_eq!(checkpoint.store, bench.daemon.store.id());
    let told = client.bytes(b"store.compact dryrun rate 1000000 recompress\r\n").0;
    let told: serde_json::Value = serde_json::from_str(told.split('|').nth(1).unwrap()).unwrap();
    assert_eq!((&told["dry_run"], &told["rewritten"]), (&true.into(), &1.into()), "{told}");
    // Nothing is dead, so nothing is packed anew.
    let did = client.bytes(b"store.compact\r\n").0;
    assert!(did.contains(r#""dry_run":false"#) && did.contains(r#""rewritten":0"#), "{did}");
    client.script(
        "store.compact wat -> -ERR syntax error
        store.compact rate -> -ERR syntax error
        store.compact rate wat -> -ERR value is not an integer or out of range",
    );
    let to = tempfile::tempdir().unwrap();
    let copy = to.path().join("copy");
    let shown = copy.display();
    // The compaction sealed a segment; its dry run did not.
    assert_eq!(client.field(&format!("store.backup {shown}"), "segments"), ":2");
    let there = Store::open_read_only(&copy).unwrap();
    assert_eq!(there.namespace("default").unwrap().run("r").unwrap().frame(1).unwrap().output, b"b");
    client.script(&format!(
        "store.backup {shown} -> -CONFLICT {shown} is there already: name a new directory
        store.backup {} -> -CONFLICT {} is there already: name a new directory
        store.backup relative -> -ERR a backup goes to an absolute path
        store.backup /nowhere/x wat -> -ERR syntax error
        store.stats wat -> -ERR wrong number of arguments for 'store.stats' command",
        to.path().display(),
        to.path().display(),
    ));
    assert_eq!(client.ask(&[b"store.backup", b"/a\0b"]), "-ERR a backup goes to an absolute path|");
    assert_eq!(client.field(&format!("store.backup {shown}2 copy"), "shared_files"), ":0");
    // Over TCP, a client cannot have files written.
    client.session.local = false;
    let refused = client.ask(&[b"store.backup", format!("{shown}3").as_bytes()]);
    assert_eq!(refused, "-NOPERM STORE.BACKUP writes files and needs a connection by a Unix socket|");
}

#[test]
fn hostile_arguments_get_errors_and_connection_stays_open() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    client.script("run.begin name r -> *4|$4|name|$1|r|$3|uid|:1\nframe.add r llm a b -> :1");
    let long = vec![b'n'; 600];
    let hostile: [&[u8]; 9] = [
        b"",
        b"\0",
        b"\xff\xfe",
        b"-1",
        b"18446744073709551616",
        b"r@99999999999",
        b"r\r\n+OK",
        b"@1",
        &long,
    ];
    let own = annals_wire::schema::all_commands().filter(|command| command.since.starts_with("annals"));
    let mut asked = 0;
    for command in own {
        // Each hostile word at each position and for each number of words; the other words are valid.
        let fixed: [&[u8]; 5] = [b"r", b"1", b"x", b"y", b"z"];
        for count in 0..=5 {
            for (at, bad) in (0..=count).flat_map(|at| hostile.iter().map(move |bad| (at, *bad))) {
                if command.name == "store.verify" || command.name == "run.end" && count == 1 && at == 1 {
                    continue;
                }
                let mut words: Vec<&[u8]> = vec![command.name.as_bytes()];
                words.extend(&fixed[..count]);
                if let Some(word) = words.get_mut(at + 1) {
                    *word = bad;
                }
                let reply = client.ask(&words);
                if let Some(error) = reply.strip_prefix('-') {
                    let code = error.split(' ').next().unwrap();
                    assert!(code.len() > 2 && code.bytes().all(|byte| byte.is_ascii_uppercase()), "{reply}");
                    assert!(code != "BUG" && !reply.contains("|+OK") && reply.ends_with('|'), "{reply}");
                }
                asked += 1;
            }
        }
    }
    assert!(asked > 2000, "{asked}");
    assert_eq!(client.bytes(b"ping\r\n").0, "+PONG|");
}

#[test]
fn annals_commands_reply_in_resp2_and_resp3() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    client.bytes(b"run.begin name r tag k v\r\nframe.add r llm a b\r\nhello 3\r\n");
    let three = client.bytes(b"frame.get r 1\r\nrun.get r\r\n").0;
    assert!(
        three.starts_with("%16|$3|seq|:1|$6|parent|_|") && three.contains("$10|incomplete|#f|"),
        "{three}"
    );
    assert!(three.contains("$4|tags|%1|$1|k|$1|v|"), "{three}");
}

#[test]
fn connection_waiting_for_a_permit_blocks_no_other() {
    let bench = DaemonBench::new();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    bench.runtime.block_on(async {
        let serve = || {
            let (near, far) = tokio::net::UnixStream::pair().unwrap();
            let session = Session::new(ClientInfo::default(), Some(bench.daemon.owner().unwrap()), true);
            let stream = ClientStream::Unix(far.into_std().unwrap());
            let connection = ClientConnection::new(&bench.daemon, session, stream);
            let served = connection::serve(connection, stopped.clone());
            let served = tokio::spawn(async move { served.await.map(|recorder| recorder.is_some()) });
            (near, served)
        };
        let places = bench.daemon.offload_permits(Offload::FullScan).acquire_many(2).await.unwrap();
        let ((mut waits, _), (mut goes, _)) = (serve(), serve());
        waits.write_all(b"set a 1\r\nstore.verify\r\nping\r\n").await.unwrap();
        let mut first = [0; 5];
        waits.read_exact(&mut first).await.unwrap();
        goes.write_all(b"get a\r\nrun.list\r\n").await.unwrap();
        let mut replies = [0; 7 + 15];
        goes.read_exact(&mut replies).await.unwrap();
        assert_eq!((&first, &replies), (b"+OK\r\n", b"$1\r\n1\r\n*2\r\n$1\r\n0\r\n*0\r\n"));
        let mut none = [0];
        let early = tokio::time::timeout(std::time::Duration::from_millis(50), waits.read(&mut none)).await;
        assert!(early.is_err(), "there was no permit for it");
        let (mut last, served) = serve();
        last.write_all(b"store.stats\r\n").await.unwrap();
        drop(places);
        let mut rest = vec![0; 16];
        waits.read_exact(&mut rest).await.unwrap();
        assert!(rest.starts_with(b"*20\r\n$4\r\nruns\r\n"), "{rest:?}");
        while !rest.ends_with(b"+PONG\r\n") {
            rest.push(waits.read_u8().await.unwrap());
        }
        let mut told = [0; 3];
        last.read_exact(&mut told).await.unwrap();
        // A command that waits for a permit ends with the daemon.
        let _places = bench.daemon.offload_permits(Offload::FullScan).acquire_many(2).await.unwrap();
        let (mut ends, ended) = serve();
        // Its first reply says that the daemon has read the second command, too.
        ends.write_all(b"set b 1\r\nstore.stats\r\n").await.unwrap();
        ends.read_exact(&mut first).await.unwrap();
        stop.send(true).unwrap();
        assert!(!ended.await.unwrap().unwrap() && !served.await.unwrap().unwrap());
    });
}

/// Regression: these took unlimited memory: the same run named often, and long keys.
#[test]
fn multi_part_replies_share_one_byte_limit() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    let entry = vec![b'x'; 4 << 20];
    assert!(client.ask(&[b"xadd", b"s", b"*", b"field", &entry]).starts_with('$'));
    let mut words: Vec<&[u8]> = vec![b"xread", b"streams"];
    words.extend([&b"s"[..]; 40]);
    words.extend([&b"0"[..]; 40]);
    assert_eq!(client.ask(&words), "-ERR entries of over 67108864 bytes: ask for fewer by COUNT|");
    let key = |number: usize| format!("{number:0>60000}").into_bytes();
    for number in 0..1200 {
        assert_eq!(client.ask(&[b"set", &key(number), b""]), "+OK|");
    }
    // At most 64 MiB and a key; then the rest.
    let (first, _) = client.bytes(b"scan 0 count 10000\r\n");
    let mut parts = first.split('|');
    let (head, cursor, count) = (parts.next(), parts.nth(1).unwrap(), parts.next().unwrap());
    assert_eq!((head, cursor, count), (Some("*2"), "1", "*1119"));
    let (cut, _) = client.bytes(b"scan 0 count 1100\r\n");
    let cursor = cut.split('|').nth(2).unwrap();
    assert!(cut.contains("|*1100|"));
    let (rest, _) = client.bytes(format!("scan {cursor} count 1100\r\n").as_bytes());
    assert!(rest.starts_with("*2|$1|0|*100|"));
}
