//! Commands as a client sees them, in scripts of commands and their replies.

use std::sync::Arc;

use annals::io::{Io, RealIo};
use annals::{Options, Store};

use super::access::{AccessToken, Grant, Rights, TokenRegistry};
use super::client_loop::ClientLoop;
use super::connection::await_settled;
use super::databases::Databases;
use super::session::{ClientInfo, Daemon, ServeTimeouts, Session};
use super::turn::{TurnEnd, run_turn};
use annals_policy::profiles::Profiles;
use annals_wire::resp::{RequestDecoder, RequestLimits};

mod client_loop;
mod diagnostics;
mod disk_reads;
mod full_disk;
pub(super) mod hooked_io;
pub(super) mod memory;
mod namespaces;
mod own_commands;
pub(super) mod poisoned;
mod proxied_runs;
mod retention;
mod rights;
mod runs;

/// A daemon without sockets.
pub(super) struct DaemonBench {
    pub(super) daemon: Arc<Daemon>,
    _directory: tempfile::TempDir,
    pub(super) runtime: tokio::runtime::Runtime,
}

/// A connection to the daemon.
pub(super) struct TestClient<'a> {
    bench: &'a DaemonBench,
    session: Session,
    requests: RequestDecoder,
    /// How many turns it took so far.
    turns: usize,
}

impl DaemonBench {
    pub(super) fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(1).build().unwrap();
        let store = Store::open_with(directory.path().join("s"), options).unwrap();
        Self { daemon: Self::daemon(store), _directory: directory, runtime }
    }

    /// Another daemon over the same store, as after a restart.
    fn started_again(self) -> Self {
        let Self { daemon, _directory, runtime } = self;
        let store = daemon.store.clone();
        Self { daemon: Self::daemon(store), _directory, runtime }
    }

    fn daemon(store: Store) -> Arc<Daemon> {
        Self::daemon_with(store, Arc::new(RealIo::new()))
    }

    fn daemon_with(store: Store, io: Arc<dyn Io>) -> Arc<Daemon> {
        Self::daemon_with_timeouts(store, io, ServeTimeouts::default())
    }

    fn daemon_with_timeouts(store: Store, io: Arc<dyn Io>, patience: ServeTimeouts) -> Arc<Daemon> {
        let access = TokenRegistry::new([]);
        let profiles = Profiles::parse("[[profile]]\nname = \"mails\"\ndetect = \"email\"\n").unwrap();
        let client_loop = ClientLoop::start().unwrap();
        Arc::new(Daemon::new(store, "default", io, access, profiles, patience, client_loop))
    }

    pub(super) fn client(&self) -> TestClient<'_> {
        self.client_with(Some(self.daemon.owner().unwrap()))
    }

    fn client_with(&self, grant: Option<Grant>) -> TestClient<'_> {
        let session = Session::new(ClientInfo { id: 7, ..ClientInfo::default() }, grant, true);
        let limits =
            if session.grant.is_some() { RequestLimits::CLIENT } else { RequestLimits::UNAUTHENTICATED };
        TestClient { bench: self, session, requests: RequestDecoder::new(limits), turns: 0 }
    }
}

impl TestClient<'_> {
    /// The replies to these bytes, and whether the connection is closed.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> (String, bool) {
        let (mut input, mut all) = (bytes, Vec::new());
        loop {
            let mut turn = run_turn(&self.bench.daemon, &mut self.session, &mut self.requests, &mut input);
            self.turns += 1;
            self.bench.runtime.block_on(await_settled(&self.session, &mut turn));
            all.append(&mut turn.out);
            if turn.end.is_some() || !turn.more {
                let ends = matches!(turn.end, Some(TurnEnd::HangUp));
                return (String::from_utf8_lossy(&all).replace("\r\n", "|"), ends);
            }
        }
    }

    /// Runs a script of lines `command -> reply`. A line break in a reply is `|`; the last one is omitted.
    #[track_caller]
    fn script(&mut self, script: &str) {
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (command, reply) = line.split_once(" -> ").unwrap();
            let (got, _) = self.bytes(format!("{command}\r\n").as_bytes());
            // Lines of a script have no trailing spaces.
            assert_eq!(got.strip_suffix('|').unwrap_or(&got).trim_end(), reply, "{command}");
        }
    }
}

#[test]
fn string_commands_match_redis() {
    let bench = DaemonBench::new();
    bench.client().script(
        r#"
        get a -> $-1
        set a 1 -> +OK
        GET a -> $1|1
        set a 2 nx -> $-1
        set b 2 xx -> $-1
        set a 2 xx get -> $1|1
        set a 3 nx get -> $1|2
        set new 1 nx get -> $-1
        get new -> $1|1
        set a 1 nx xx -> -ERR syntax error
        set a 1 ex -> -ERR syntax error
        set a 1 ex 1 px 1 -> -ERR syntax error
        set a 1 ex 1 keepttl -> -ERR syntax error
        set a 1 wat -> -ERR syntax error
        set a 1 ex 0 -> -ERR invalid expire time in 'set' command
        set a 1 ex x -> -ERR value is not an integer or out of range
        set a 1 ex 9223372036854775807 -> -ERR invalid expire time in 'set' command
        set a -> -ERR wrong number of arguments for 'set' command
        get -> -ERR wrong number of arguments for 'get' command
        get a b -> -ERR wrong number of arguments for 'get' command
        setnx n x -> :1
        setnx n y -> :0
        getset n z -> $1|x
        getdel n -> $1|z
        getdel n -> $-1
        strlen a -> :1
        strlen no -> :0
        append a bc -> :3
        append fresh bc -> :2
        get a -> $3|2bc
        getrange a 0 0 -> $1|2
        getrange a -2 -1 -> $2|bc
        getrange a 1 100 -> $2|bc
        getrange a -1 -2 -> $0|
        getrange a 2 1 -> $0|
        getrange a -100 1 -> $2|2b
        getrange no 0 -1 -> $0|
        getrange a x 1 -> -ERR value is not an integer or out of range
        substr a 1 1 -> $1|b
        setrange a 1 XY -> :3
        setrange a 0 "" -> :3
        setrange no 5 "" -> :0
        exists no -> :0
        setrange a -1 x -> -ERR offset is out of range
        setrange a 536870911 xx -> -ERR string exceeds maximum allowed size (proto-max-bulk-len)
        get a -> $3|2XY
        setrange pad 2 x -> :3
        getrange pad 2 2 -> $1|x
        set f 10.50 -> +OK
        incrbyfloat f 0.1 -> $4|10.6
        incrbyfloat f -5 -> $3|5.6
        incrbyfloat fresh.f 5.0e3 -> $4|5000
        incrbyfloat f x -> -ERR value is not a valid float
        incrbyfloat a 1 -> -ERR value is not a valid float
        set f 1e308 ex 100 -> +OK
        incrbyfloat f 1.7e308 -> -ERR increment would produce NaN or Infinity
        incr a -> -ERR value is not an integer or out of range
        incr i -> :1
        incrby i 10 -> :11
        decr i -> :10
        decrby i 20 -> :-10
        incrby i x -> -ERR value is not an integer or out of range
        set i 9223372036854775807 -> +OK
        incr i -> -ERR increment or decrement would overflow
        decrby i -9223372036854775808 -> -ERR decrement would overflow
        mset x 1 y 2 x 3 -> +OK
        mset x -> -ERR wrong number of arguments for 'mset' command
        mset x 1 y -> -ERR wrong number of arguments for 'mset' command
        msetnx q 1 x 2 -> :0
        msetnx q 1 r 2 -> :1
        mget x no y -> *3|$1|3|$-1|$1|2
        set empty "" -> +OK
        get empty -> $0|
        set "\x00\r\n" "a b" -> +OK
        get "\x00\r\n" -> $3|a b
        "#,
    );
}

#[test]
fn key_expiry_and_listing_match_redis() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    client.script(
        r#"
        dbsize -> :0
        mset a 1 b 2 c 3 -> +OK
        exists a a no -> :2
        touch a no -> :1
        type a -> +string
        type no -> +none
        ttl a -> :-1
        ttl no -> :-2
        pttl no -> :-2
        expire no 10 -> :0
        expire a 100 -> :1
        ttl a -> :100
        expire a 50 gt -> :0
        expire a 50 nx -> :0
        expire a 50 lt -> :1
        expire b 50 xx -> :0
        expire b 50 gt -> :0
        expire a 50 nx xx -> -ERR NX and XX, GT or LT options at the same time are not compatible
        expire a 50 gt lt -> -ERR GT and LT options at the same time are not compatible
        expire a 50 wat -> -ERR Unsupported option wat
        expire a 9223372036854775807 -> -ERR invalid expire time in 'expire' command
        append a 1 -> :2
        ttl a -> :50
        set a 5 keepttl -> +OK
        ttl a -> :50
        persist a -> :1
        persist a -> :0
        set a 1 ex 100 -> +OK
        set a 2 -> +OK
        ttl a -> :-1
        set a 1 exat 4000000000 -> +OK
        expiretime a -> :4000000000
        getex a persist -> $1|1
        ttl a -> :-1
        set a 1 pxat 1 -> +OK
        get a -> $-1
        expire b -1 -> :1
        exists b -> :0
        keys * -> *1|$1|c
        set ca 1 -> +OK
        keys c? -> *1|$2|ca
        scan 0 match *a count 100 -> *2|$1|0|*1|$2|ca
        scan 0 type list -> *2|$1|0|*0
        scan 0 count 0 -> -ERR syntax error
        scan x -> -ERR invalid cursor
        scan 0 wat -> -ERR syntax error
        dbsize -> :2
        del c ca no -> :2
        unlink c -> :0
        dbsize -> :0
        select 1 -> +OK
        set other 1 -> +OK
        select 0 -> +OK
        exists other -> :0
        select 16 -> -ERR DB index is out of range
        select x -> -ERR invalid DB index
        "#,
    );
    // Expired keys are gone for every command; later writes remain.
    client.script("set short 1 px 20 -> +OK\nset long 1 -> +OK");
    while client.ask(&[b"exists", b"short"]) == ":1|" {
        std::thread::yield_now();
    }
    client
        .script("dbsize -> :1\nexists short -> :0\nsetnx short 2 -> :1\nttl short -> :-1\nget short -> $1|2");
}

#[test]
fn renames_and_copies_take_value_and_deadline() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    client.script(
        r#"
        randomkey -> $-1
        set a 1 ex 100 -> +OK
        set b 2 -> +OK
        rename a b -> +OK
        exists a -> :0
        get b -> $1|1
        ttl b -> :100
        rename b b -> +OK
        get b -> $1|1
        rename no b -> -ERR no such key
        set a 3 -> +OK
        renamenx a b -> :0
        renamenx a c -> :1
        renamenx no c -> -ERR no such key
        copy b d -> :1
        ttl d -> :100
        copy b c -> :0
        copy b c replace -> :1
        get c -> $1|1
        copy b b -> -ERR source and destination objects are the same
        copy b b db 1 -> :1
        copy b x db 16 -> -ERR DB index is out of range
        copy no x -> :0
        copy b x wat -> -ERR syntax error
        del c d -> :2
        randomkey -> $1|b
        object encoding b -> $3|int
        object refcount b -> :1
        object encoding no -> $-1
        object freq b -> -ERR the daemon does not keep when or how often a key was read
        object wat b -> -ERR unknown subcommand 'wat'. Try OBJECT HELP.
        memory usage b -> :2
        memory usage b samples 5 -> :2
        memory usage no -> $-1
        memory usage -> -ERR wrong number of arguments for 'memory|usage' command
        memory doctor -> -ERR of MEMORY only USAGE is offered: INFO and /metrics describe the daemon
        "#,
    );
    client.bytes(b"xadd stream * k v\r\n");
    client.script(
        "rename stream x -> -ERR a run keeps its name: only keys of strings can be renamed
        copy stream x -> -ERR a run is not copied: RUN.FORK forks it
        select 1 -> +OK
        get b -> $1|1",
    );
    client.script("mset k1 1 k2 2 k3 3 -> +OK\nselect 1 -> +OK\ndel b -> :1");
    let mut seen = std::collections::HashSet::new();
    while seen.len() < 3 {
        seen.insert(client.bytes(b"randomkey\r\n").0);
    }
}

// redis-py's lock sends its scripts by their SHA-1. They were refused, so a lock that was taken could not be
// released before it expired.
#[test]
fn the_scripts_of_redis_pys_lock_release_and_extend_it() {
    let bench = DaemonBench::new();
    bench.client().script(
        r#"
        set lock mine nx px 100000 -> +OK
        evalsha c3f8721cbb97f72bc19e972846bd7aaf91901658 1 lock other -> :0
        evalsha a4e8783852e6b949f9ef3a97212805108459a890 1 lock other 500000 1 -> :0
        evalsha a4e8783852e6b949f9ef3a97212805108459a890 1 lock mine 500000 1 -> :1
        ttl lock -> :500
        evalsha a4e8783852e6b949f9ef3a97212805108459a890 1 lock mine 100000 0 -> :1
        ttl lock -> :600
        evalsha 1cac51482acf5858da00f6d685d68f886cd6b6b2 1 lock mine 70000 -> :1
        ttl lock -> :70
        evalsha 1cac51482acf5858da00f6d685d68f886cd6b6b2 1 lock other 70000 -> :0
        evalsha C3F8721CBB97F72BC19E972846BD7AAF91901658 1 lock mine -> :1
        exists lock -> :0
        evalsha c3f8721cbb97f72bc19e972846bd7aaf91901658 1 lock mine -> :0
        set lock forever -> +OK
        evalsha a4e8783852e6b949f9ef3a97212805108459a890 1 lock forever 500000 1 -> :0
        evalsha 1cac51482acf5858da00f6d685d68f886cd6b6b2 1 lock forever 0 -> :1
        exists lock -> :0
        evalsha c3f8721cbb97f72bc19e972846bd7aaf91901658 0 -> -ERR this script takes 1 key and 1 arguments
        evalsha 0000000000000000000000000000000000000000 1 lock x -> -ERR script 0000000000000000000000000000000000000000 is not offered: no Lua runs here, only the scripts of redis-py's lock are known, by their SHA-1
        eval "return 1" 0 -> -ERR EVAL is not offered: no Lua runs here; EVALSHA knows the scripts of redis-py's lock
        script load "return 1" -> -ERR this script is not offered: no Lua runs here, only the scripts of redis-py's lock are known, by their SHA-1
        script exists c3f8721cbb97f72bc19e972846bd7aaf91901658 0 -> *2|:1|:0
        script flush -> +OK
        script kill -> -NOTBUSY No scripts in execution right now.
        script wat -> -ERR unknown subcommand 'wat'. Try SCRIPT HELP.
        "#,
    );
}

// A stream ended with the daemon: after a restart XADD refused every entry.
#[test]
fn xadd_goes_on_after_a_restart() {
    let bench = DaemonBench::new();
    let id = |reply: &str| reply.split('|').nth(1).unwrap().to_owned();
    let first = id(&bench.client().bytes(b"xadd s * k 1\r\n").0);
    bench.client().bytes(b"xadd ended * k 1\r\nrun.end ended\r\nrun.begin name program\r\n");
    let now_ns = bench.daemon.now_ns();
    bench.daemon.tenants().iter().for_each(|tenant| tenant.end_streams(now_ns));
    let bench = bench.started_again();
    let mut client = bench.client();
    let second = id(&client.bytes(b"xadd s * k 2\r\n").0);
    assert!(first.ends_with("-1") && second.ends_with("-2") && first < second, "{first} {second}");
    client.script("xlen s -> :2");
    client.script(&format!(
        "xread streams s {first} -> *1|*2|$1|s|*1|*2|${}|{second}|*2|$1|k|$1|2",
        second.len()
    ));
    assert!(client.bytes(b"xadd ended * k 2\r\n").0.starts_with("-ERR run ended is ok: XADD adds only"));
    assert!(client.bytes(b"xadd program * k 2\r\n").0.starts_with("-ERR run program is"));
}

#[test]
fn scan_returns_every_key_once_including_pending_keys() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    let mut script = Vec::new();
    for number in 0..250 {
        script.extend_from_slice(format!("set key:{number:03} {number}\r\n").as_bytes());
    }
    // In the same turn as the last of them, so none of these writes is durable when they are listed.
    script.extend_from_slice(b"del key:007\r\ndbsize\r\n");
    assert!(client.bytes(&script).0.ends_with(":1|:249|"));
    let (mut cursor, mut seen) = ("0".to_owned(), Vec::new());
    loop {
        let (reply, _) = client.bytes(format!("scan {cursor} count 33\r\n").as_bytes());
        let mut parts = reply.split('|').map(str::to_owned);
        cursor = parts.nth(2).unwrap();
        seen.extend(parts.filter(|part| part.starts_with("key:")));
        if cursor == "0" {
            break;
        }
    }
    let expected: Vec<String> =
        (0..250).filter(|n| *n != 7).map(|number| format!("key:{number:03}")).collect();
    assert_eq!(seen, expected);
    client.script("scan 99999 -> -ERR this cursor is no longer known: begin at 0");
}

#[test]
fn transactions_apply_whole_or_not_at_all() {
    let bench = DaemonBench::new();
    bench.client().script(
        r#"
        exec -> -ERR EXEC without MULTI
        discard -> -ERR DISCARD without MULTI
        multi -> +OK
        multi -> -ERR MULTI calls can not be nested
        set a 1 -> +QUEUED
        incr a -> +QUEUED
        get a -> +QUEUED
        select 2 -> +QUEUED
        set b 1 -> +QUEUED
        exec -> *5|+OK|:2|$1|2|+OK|+OK
        get b -> $1|1
        select 0 -> +OK
        get b -> $-1
        multi -> +OK
        set a 9 -> +QUEUED
        discard -> +OK
        get a -> $1|2
        multi -> +OK
        nosuch x -> -ERR unknown command 'nosuch', with args beginning with: 'x' 
        set a 9 -> +QUEUED
        exec -> -EXECABORT Transaction discarded because of previous errors.
        get a -> $1|2
        multi -> +OK
        set a x -> +QUEUED
        incr a -> +QUEUED
        exec -> *2|+OK|-ERR value is not an integer or out of range
        multi -> +OK
        exec -> *0
        watch a -> -ERR WATCH is not offered: transactions are atomic but not conditional; INCR, SET NX and SET GET change a key by its value
        "#,
    );
}

#[test]
fn connection_commands_match_redis() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    client.script(
        r#"
        ping -> +PONG
        PING hi -> $2|hi
        ping a b -> -ERR wrong number of arguments for 'ping' command
        echo x -> $1|x
        nosuch a b -> -ERR unknown command 'nosuch', with args beginning with: 'a' 'b' 
        lpush a 1 -> -ERR LPUSH is not offered: values are strings here
        auth x -> -ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?
        auth default x -> +OK
        auth somebody x -> -WRONGPASS invalid username-password pair or user is disabled.
        client id -> :7
        client getname -> $-1
        client setname me -> +OK
        client getname -> $2|me
        client setname "a b" -> -ERR Client names cannot contain spaces, newlines or special characters.
        client setinfo lib-name x -> +OK
        client setinfo wat x -> -ERR Unrecognized option 'wat'
        client setinfo x -> -ERR wrong number of arguments for 'client|setinfo' command
        client list type master -> $0|
        client list type wat -> -ERR Unknown client type 'wat'
        client list type normal x -> -ERR syntax error
        client list id 999999 -> $0|
        client list id x -> -ERR Invalid client ID
        client list id 0 -> -ERR Invalid client ID
        client list id -> -ERR wrong number of arguments for 'client|list' command
        client list wat x -> -ERR syntax error
        client maint_notifications on -> -ERR unknown subcommand 'maint_notifications'. Try CLIENT HELP.
        config get save -> *2|$4|save|$0|
        config get append* -> *4|$11|appendfsync|$6|always|$10|appendonly|$3|yes
        config get no -> *0
        command info nosuch -> *1|*-1
        command wat -> -ERR unknown subcommand 'wat'. Try COMMAND HELP.
        hello 4 -> -NOPROTO unsupported protocol version
        hello x -> -ERR Protocol version is not an integer or out of range
        hello 3 wat -> -ERR Syntax error in HELLO option 'wat'
        hello 3 -> %7|$6|server|$6|annals|$7|version|$5|7.2.0|$5|proto|:3|$2|id|:7|$4|mode|$10|standalone|$4|role|$6|master|$7|modules|*0
        get no -> _
        config get no -> %0
        reset -> +RESET
        get no -> $-1
        "#,
    );
    let (info, _) = client.bytes(b"info\r\ninfo server\r\n");
    assert!(info.contains("loading:0") && info.contains("role:master"), "{info}");
    let (listed, _) =
        bench.client().bytes(b"hello 2 setname finder\r\nclient list id 7\r\nclient list type normal\r\n");
    assert!(listed.contains("id=7 addr=") && listed.contains("name=finder"), "{listed}");
    // The replies of COMMAND are complete in both versions.
    let (two, _) = client.bytes(b"command docs\r\ncommand\r\ncommand count\r\n");
    assert!(two.contains("$7|summary|") && two.contains("*10|$3|get|:2|"), "{two}");
    assert_eq!(client.bytes(b"set a 1\r\nquit\r\nset a 2\r\n"), ("+OK|+OK|".to_owned(), true));
    bench.client().script("get a -> $1|1");
    assert_eq!(bench.client().bytes(b"POST / HTTP/1.1\r\nHost: x\r\n\r\nset a 3\r\n"), (String::new(), true));
    let (refused, ends) = bench.client().bytes(b"*1\r\n$536870913\r\n");
    assert!(ends && refused == "-ERR Protocol error: invalid bulk length|", "{refused}");
}

#[test]
fn commands_before_login_are_refused() {
    let bench = DaemonBench::new();
    bench.daemon.access.add(token("ci", "default", Rights::ALL));
    let mut client = bench.client_with(None);
    client.script(
        r#"
        ping -> -NOAUTH Authentication required.
        set a 1 -> -NOAUTH Authentication required.
        multi -> -NOAUTH Authentication required.
        nosuch -> -NOAUTH Authentication required.
        hello 3 -> -NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time
        auth wrong -> -WRONGPASS invalid username-password pair or user is disabled.
        auth nobody token -> -WRONGPASS invalid username-password pair or user is disabled.
        auth -> -ERR wrong number of arguments for 'auth' command
        auth a b c -> -ERR syntax error
        auth token -> +OK
        set a 1 -> +OK
        reset -> +RESET
        get a -> -NOAUTH Authentication required.
        "#,
    );
    let mut other = bench.client_with(None);
    let (reply, ends) = other.bytes(format!("set a {}\r\n", "x ".repeat(20)).as_bytes());
    assert!(ends && reply == "-ERR Protocol error: unauthenticated multibulk length|", "{reply}");
    let mut third = bench.client_with(None);
    let (reply, _) = third.bytes(b"hello 2 auth default token setname me\r\nget a\r\n");
    assert!(reply.starts_with("*14|$6|server|") && reply.ends_with("$1|1|"), "{reply}");
    // After its login, a client may send long requests, even in the same bytes.
    let big = "x".repeat(20_000);
    let mut fourth = bench.client_with(None);
    let (reply, _) =
        fourth.bytes(format!("auth token\r\n*3\r\n$3\r\nset\r\n$1\r\nb\r\n$20000\r\n{big}\r\n").as_bytes());
    assert_eq!(reply, "+OK|+OK|");
}

/// A token with the text `token`.
pub(super) fn token(name: &str, namespace: &str, rights: Rights) -> AccessToken {
    let hash = blake3::hash(b"token");
    AccessToken {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        rights,
        profile: None,
        made_ns: 0,
        expires_ns: None,
        hash,
    }
}

#[test]
fn concurrent_increments_are_all_kept_and_replied_once() {
    let bench = DaemonBench::new();
    let mut told: Vec<i64> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = bench.client();
                    let once =
                        |_| client.bytes(b"incr n\r\n").0.trim_matches([':', '|']).parse::<i64>().unwrap();
                    (0..50).map(once).collect::<Vec<_>>()
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    told.sort_unstable();
    assert_eq!(told, (1..=200).collect::<Vec<_>>());
    // The store has the last number that was returned.
    let space = bench.daemon.store.namespace("default").unwrap();
    let value = space.find_keyspace("db0").unwrap().unwrap().get(b"n").unwrap();
    assert_eq!(value.as_deref(), Some(&b"200"[..]));
}

#[test]
fn deadlines_survive_restart_and_sweep_deletes_expired_keys() {
    let bench = DaemonBench::new();
    bench.client().script("set a 1 px 30 -> +OK\nset b 1 px 60000 -> +OK\nset c 1 -> +OK");
    let space = bench.daemon.store.namespace("default").unwrap();
    let (keys, deadlines) = (
        space.find_keyspace("db0").unwrap().unwrap(),
        space.find_keyspace("annals.deadlines").unwrap().unwrap(),
    );
    // Another daemon over the same store, as after a restart.
    let inbox = bench.daemon.client_loop.inbox().clone();
    let later = Databases::open(space, Arc::new(RealIo::new()), &Default::default(), inbox).unwrap();
    let kept = deadlines.get(b"\0b").unwrap().unwrap();
    let left = u64::from_le_bytes(kept.try_into().unwrap()) - later.now_ns() / 1_000_000;
    assert!((1..=60_000).contains(&left), "{left}");
    let due = deadlines.get(b"\0a").unwrap().unwrap();
    let due = u64::from_le_bytes(due.try_into().unwrap());
    while later.now_ns() / 1_000_000 <= due {
        std::thread::yield_now();
    }
    assert!(keys.get(b"a").unwrap().is_some());
    let (next, settled) = later.sweep(None, 100).unwrap();
    bench.runtime.block_on(settled.unwrap()).unwrap().unwrap();
    assert!(next.is_none() && keys.get(b"a").unwrap().is_none() && deadlines.get(b"\0a").unwrap().is_none());
    assert!(keys.get(b"b").unwrap().is_some() && keys.get(b"c").unwrap().is_some());
}

/// Anyone may write to the keyspace of deadlines. Regression: EXPIRETIME overflowed when adding half a second
/// to the maximum.
#[test]
fn maximum_deadline_written_by_others_does_not_overflow() {
    let bench = DaemonBench::new();
    bench.client().script("set a 1 px 60000 -> +OK");
    let space = bench.daemon.store.namespace("default").unwrap();
    let deadlines = space.find_keyspace("annals.deadlines").unwrap().unwrap();
    deadlines.put(b"\0a", u64::MAX.to_le_bytes().to_vec()).unwrap();
    // A daemon reads it at its start; a running daemon is the only writer.
    let bench = bench.started_again();
    bench.client().script(
        "expiretime a -> :18446744073709551
        pexpiretime a -> :9223372036854775807
        pttl a -> :9223372036854775807
        get a -> $1|1",
    );
}

/// The stream ids in a reply.
fn ids(reply: &str) -> Vec<String> {
    let is_id =
        |part: &&str| part.contains('-') && part.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    reply.split('|').filter(is_id).map(str::to_owned).collect()
}

/// Regression: of many clients that added to a new stream at once, one began it; another had looked before
/// that, waited for the lock, and got an error that the run was already open.
#[test]
fn concurrent_first_xadds_all_append_to_one_stream() {
    let bench = DaemonBench::new();
    for round in 0..20 {
        let (name, gate) = (format!("s{round}"), std::sync::Barrier::new(8));
        let add = format!("xadd {name} * a 1\r\n");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    gate.wait();
                    let (reply, _) = bench.client().bytes(add.as_bytes());
                    assert!(reply.starts_with('$'), "{reply}");
                });
            }
        });
        bench.client().script(&format!("xlen {name} -> :8"));
    }
}

#[test]
fn runs_read_as_streams() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    // All in one read: reads see what was added just before.
    let (reply, _) = client
        .bytes(b"xadd s * a 1 \"\\xff\\r\\n\" \"\"\r\nxadd s * b 2\r\nxadd s * c 3\r\nxlen s\r\ntype s\r\n");
    let of = ids(&reply);
    assert!(of.len() == 3 && reply.ends_with("|:3|+stream|"), "{reply}");
    let raw = "*4|$1|a|$1|1|$3|\u{fffd}||$0||";
    let all = client.bytes(b"xrange s - +\r\n").0;
    assert_eq!(ids(&all), of);
    assert!(all.starts_with(&format!("*3|*2|${}|{}|{raw}", of[0].len(), of[0])), "{all}");
    let mut asked = |command: String| ids(&client.bytes(format!("{command}\r\n").as_bytes()).0);
    assert_eq!(asked("xrevrange s + -".to_owned()), [of[2].clone(), of[1].clone(), of[0].clone()]);
    assert_eq!(asked("xrange s - + count 2".to_owned()), of[..2]);
    assert_eq!(asked(format!("xrange s ({} +", of[0])), of[1..]);
    assert_eq!(asked(format!("xrange s {} {}", of[1], of[1])), of[1..2]);
    assert_eq!(asked(format!("xread count 1 streams s {}", of[0])), of[1..2]);
    assert_eq!(asked(format!("xread streams no s 0 {}", of[1])), of[2..]);
    client.script(
        r#"
        xread streams s $ -> *-1
        xrange no - + -> *0
        xrange s - + count 0 -> *-1
        xrange s x + -> -ERR Invalid stream ID specified as stream command argument
        xrange s - -> -ERR wrong number of arguments for 'xrange' command
        xrange s - + wat -> -ERR syntax error
        xlen no -> :0
        xadd s * a -> -ERR wrong number of arguments for 'xadd' command
        xadd s * a 1 b -> -ERR wrong number of arguments for 'xadd' command
        xadd s 1-1 a 1 -> -ERR an entry's id is its time and its frame's number: only * is supported
        xadd s maxlen 1 * a 1 -> -ERR trimming is not supported: a recorded run is immutable
        xadd no nomkstream * a 1 -> $-1
        xread count 1 streams s -> -ERR Unbalanced 'xread' list of streams: for each stream key an ID or '$' must be specified.
        xread block x streams s 0 -> -ERR timeout is not an integer or out of range
        xread block -1 streams s 0 -> -ERR timeout is negative
        xdel s 1-1 -> -ERR XDEL is not offered: a recorded run is immutable; retention drops whole runs
        xinfo stream no -> -ERR no such key
        xinfo wat s -> -ERR unknown subcommand 'wat'. Try XINFO HELP.
        set string 1 -> +OK
        xadd string * a 1 -> -WRONGTYPE Operation against a key holding the wrong kind of value
        xlen string -> -WRONGTYPE Operation against a key holding the wrong kind of value
        run.end s -> +OK
        run.end s -> -CONFLICT run s has ended (ok): fork it, or record into a new run
        xadd s * a 1 -> -ERR run s is ok: XADD adds only to runs that XADD began
        "#,
    );
    let about = client.bytes(b"xinfo stream s\r\n").0;
    assert!(about.contains("$6|length|:3|") && about.contains("$20|max-deleted-entry-id|$3|0-0|"), "{about}");
    // A stream is a run, and any run reads as a stream.
    let space = bench.daemon.store.namespace("default").unwrap();
    let reader = space.run("s").unwrap();
    assert!(reader.verify().is_ok());
    assert_eq!(reader.frame(2).unwrap().input, b"*2\r\n$1\r\nb\r\n$1\r\n2\r\n");
    let run = space.begin_run(annals::RunSpec::new("recorded")).unwrap();
    // By its recorder's clock, the second frame began before the first.
    for (started, text) in [(5_000_000_000, "one"), (3_000_000_000, "two")] {
        let mut frame = annals::Frame::new(annals::Component::Llm, text, "out");
        frame.started_ns = Some(started);
        run.record(frame).unwrap();
    }
    let all = client.bytes(b"xrange recorded - +\r\n").0;
    assert_eq!(ids(&all), ["5000-1", "5000-2"]);
    assert!(all.contains("$9|component|$3|llm|$5|input|$3|one|$6|output|$3|out|$8|metadata|$0||"), "{all}");
    assert_eq!(ids(&client.bytes(b"xrange recorded 5000-2 5000\r\n").0), ["5000-2"]);
    // Within a transaction nothing blocks; outside, the command is held until its timeout.
    client.script("multi -> +OK\nxread block 0 streams s $ -> +QUEUED\nexec -> *1|*-1");
    let mut input = &b"xread block 40 streams s $\r\nping\r\n"[..];
    let held = run_turn(&bench.daemon, &mut client.session, &mut client.requests, &mut input);
    assert!(held.out.is_empty() && held.more && held.waits.is_some());
    let after = loop {
        let after = run_turn(&bench.daemon, &mut client.session, &mut client.requests, &mut input);
        if !after.out.is_empty() {
            break after;
        }
        std::thread::yield_now();
    };
    assert_eq!(String::from_utf8_lossy(&after.out), "*-1\r\n+PONG\r\n");
}
