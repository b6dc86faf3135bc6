//! Runs, frames, draws and snapshots.

use annals::{Component, Frame, Options, RunSpec, Status};

use super::DaemonBench;
use super::own_commands::pattern;

#[test]
fn a_run_is_recorded_read_forked_and_verified() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    client.script(
        r#"
        run.get r -> -NOTFOUND there is no run "r"
        run.begin name r agent a model m tag k v tag "k 2" "" -> *4|$4|name|$1|r|$3|uid|:1
        run.begin name r -> -CONFLICT run "r" exists already: choose another name, or ask to replace it
        frame.add r llm "ask \xff\x00" "answer" -> :1
        frame.add r tool {} [] parent 1 metadata {"tool":{"name":"t"}} severity flagged duration 5 -> :2
        frame.add r own.kind "" "" error started 1000000 -> :3
        frame.get r 2 request -> $2|{}
        frame.get r 2 RESPONSE -> $2|[]
        frame.get r 2 metadata -> $21|{"tool":{"name":"t"}}
        frame.get r 1 wat -> -ERR syntax error
        frame.get r 4 -> -NOTFOUND run "r" has no frame 4: it has 1 to 3
        frame.get r 0 -> -NOTFOUND run "r" has no frame 0: it has 1 to 3
        frame.get r 4294967296 -> -ERR value is not an integer or out of range
        run.end r open -> -ERR a run cannot end as open: say ok, failed or abandoned
        run.end r wat -> -ERR a run ends as ok, failed or abandoned
        run.end r failed -> +OK
        run.end r -> -CONFLICT run r has ended (failed): fork it, or record into a new run
        frame.add r llm a b -> -CONFLICT run r has ended (failed): fork it, or record into a new run
        run.fork r@2 name f -> *4|$4|name|$1|f|$3|uid|:2
        run.fork r@2 edit name g -> *4|$4|name|$1|g|$3|uid|:3
        frame.add g llm other answer -> :2
        frame.get g 2 request -> $5|other
        frame.get f 2 request -> $2|{}
        run.end f -> +OK
        run.fork r@2 end name e agent b -> *4|$4|name|$1|e|$3|uid|:4
        frame.add e llm a b -> -CONFLICT run e has ended (ok): fork it, or record into a new run
        run.fork r@2 end namespace other name e2 -> -NOTFOUND there is no run "r"
        run.fork r@2 namespace default name e3 -> -ERR there is no option "NAMESPACE" here
        run.fork r@4 name h -> -NOTFOUND run "r" has no frame 4: it has 3
        run.fork r@0 name h -> -NOTFOUND run "r" has no frame 0: it has 3
        run.fork r name h -> -ERR a fork point is written run@seq
        run.fork no@1 name h -> -NOTFOUND there is no run "no"
        "#,
    );
    assert_eq!(client.field("run.get r", "status"), "failed");
    assert_eq!(client.field("run.get r", "severity"), "flagged");
    assert_eq!(client.field("run.get r", "k 2"), "");
    assert_eq!(client.field("frame.get r 2", "parent"), ":1");
    assert_eq!(client.field("frame.get r 3", "error"), ":1");
    assert_eq!(client.field("frame.get r 3", "component"), "own.kind");
    assert_eq!(client.field("frame.get r 3", "started_ns"), ":1000000");
    assert_eq!(client.field("run.get f", "shared"), ":2");
    assert_eq!(client.field("run.get g", "fingerprint"), "$-1");
    assert_eq!(client.field("run.verify r", "frames"), ":3");
    // The stored content and fingerprint are those of the replies.
    let space = bench.daemon.store.namespace("default").unwrap();
    let reader = space.run("r").unwrap();
    assert_eq!(reader.frame(1).unwrap().input, b"ask \xff\x00");
    assert_eq!(client.field("run.get r", "fingerprint"), reader.info().fingerprint.unwrap().to_string());
    assert_eq!(
        client.bytes(b"run.verify g\r\n").0,
        "*8|$6|frames|:2|$5|blobs|:4|$5|bytes|:23|$11|fingerprint|$-1|"
    );
    // Names chosen by the daemon are all different.
    let (one, two) = (client.field("run.begin", "name"), client.field("run.begin", "name"));
    assert!(one != two && one.len() == 20 && one.starts_with("run-"), "{one} {two}");
    // All in one read, with replies in order, one of them offloaded.
    let (all, _) =
        client.bytes(b"frame.add g user a b\r\nframe.get g 3 request\r\nrun.end g\r\nrun.get g\r\nping\r\n");
    assert!(all.starts_with(":3|$1|a|+OK|*28|$4|name|$1|g|") && all.ends_with("|+PONG|"), "{all}");
}

#[test]
fn replay_of_an_ingested_run_diverges_at_step_one() {
    let bench = DaemonBench::new();
    let why = "-DIVERGED at step 1: run t was ingested from traces, which hold no requests and answers as they were sent";
    bench.client().script(&format!(
        r#"
        run.begin name t metadata {{"ingested":{{"from":"otlp"}}}} -> *4|$4|name|$1|t|$3|uid|:1
        frame.add t llm {{}} ok -> :1
        run.end t -> +OK
        run.replay t {{}} -> {why}
        run.replay t {{}} -> {why}
        "#
    ));
}

/// A fork of an ingested or a redacted run had no mark, and answered with what is not a recorded answer. The redacted
/// run itself answered, too.
#[test]
fn forks_of_ingested_and_redacted_runs_answer_nobody() {
    let bench = DaemonBench::new();
    let space = bench.daemon.store.namespace("default").unwrap();
    for (name, tag) in [("t", "annals.ingested"), ("p", "annals.redacted")] {
        let run = space.begin_run(RunSpec::new(name).tag(tag, "otlp")).unwrap();
        run.record(Frame::new(Component::Llm, "{}", "ok")).unwrap();
        run.end(Status::Ok).unwrap();
    }
    let ingested = "was ingested from traces, which hold no requests and answers as they were sent";
    let redacted =
        "was redacted by profile otlp before it came here: no program gets the answers that were recorded";
    let mut client = bench.client();
    for (name, why) in [("t", ingested), ("p", redacted)] {
        client.bytes(format!("run.fork {name}@1 name {name}1\r\n").as_bytes());
        client.bytes(format!("run.fork {name}1@1 name {name}2\r\n").as_bytes());
        for run in [name.to_owned(), format!("{name}1"), format!("{name}2")] {
            let (reply, _) = client.bytes(format!("run.replay {run} {{}}\r\n").as_bytes());
            assert!(reply.starts_with("-DIVERGED at step 1") && reply.contains(why), "{run}: {reply}");
        }
    }
}

#[test]
fn runs_are_listed_page_by_page() {
    let bench = DaemonBench::new();
    let space = bench.daemon.store.namespace("default").unwrap();
    for number in 0..25 {
        let spec = RunSpec::new(format!("r{number:02}")).agent(["clerk", "judge"][number % 2]);
        let spec = RunSpec { started_ns: Some(1_000_000_000 * number as u64), ..spec };
        let run = space.begin_run(spec.tag("team", format!("t{}", number % 3))).unwrap();
        run.end(if number % 5 == 0 { Status::Failed } else { Status::Ok }).unwrap();
    }
    let mut client = bench.client();
    let mut page = |options: &str| {
        let (reply, _) = client.bytes(format!("run.list {options}\r\n").as_bytes());
        let parts: Vec<&str> = reply.split('|').collect();
        let names = parts.windows(3).filter(|of| of[0] == "name").map(|of| of[2].to_owned());
        (parts[2].to_owned(), names.collect::<Vec<_>>())
    };
    assert_eq!(page("").1.len(), 25);
    let (mut cursor, mut seen) = ("0".to_owned(), Vec::new());
    loop {
        let (next, names) = page(&format!("count 10 from {cursor}"));
        assert!(names.len() <= 10);
        seen.extend(names);
        cursor = next;
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen, (0..25).map(|number| format!("r{number:02}")).collect::<Vec<_>>());
    assert_eq!(page("status failed").1, ["r00", "r05", "r10", "r15", "r20"]);
    assert_eq!(page("status FAILED count 2"), ("6".to_owned(), vec!["r00".to_owned(), "r05".to_owned()]));
    assert_eq!(page("from 9223372036854775807"), ("0".to_owned(), Vec::new()));
    assert_eq!(page("status open"), ("0".to_owned(), Vec::new()));
    assert_eq!(page("status failed agent judge").1, ["r05", "r15"]);
    assert_eq!(page("tag team=t2 order newest count 2").1, ["r23", "r20"]);
    assert_eq!(page("since 3000000000 until 5000000000").1, ["r03", "r04"]);
    assert_eq!(page("model large").1, Vec::<String>::new());
    client.script(
        "run.list count -> -ERR syntax error
        run.list count x -> -ERR value is not an integer or out of range
        run.list status wat -> -ERR a run's status is open, ok, failed or abandoned
        run.list severity x -> -ERR a run's severity is debug, normal, flagged or escalated
        run.list tag team -> -ERR a tag is written key=value
        run.list order up -> -ERR the order is oldest or newest
        run.list from -1 -> -ERR value is not an integer or out of range",
    );
}

#[test]
fn appended_response_is_tailed_only_once_ended() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    client.script(
        r#"
        run.begin name r -> *4|$4|name|$1|r|$3|uid|:1
        frame.begin r llm ask metadata {} -> :1
        frame.add r tool x y -> :2
        frame.append r 1 "one " -> :4
        frame.append r 1 "" -> :4
        frame.append r 1 two -> :7
        frame.append r 2 x -> -NOTFOUND run r has no open frame 2: FRAME.BEGIN gives the number of one
        frame.append r x y -> -ERR value is not an integer or out of range
        frame.append no 1 y -> -NOTFOUND there is no run "no"
        frame.get r 1 response -> $7|one two
        run.tail r -> *-1
        run.end r -> -CONFLICT frame 1 of run "r" is not finished: finish it first
        frame.end r 2 -> -NOTFOUND run r has no open frame 2: FRAME.BEGIN gives the number of one
        "#,
    );
    assert_eq!(client.field("frame.get r 1", "incomplete"), ":1");
    client.script("frame.end r 1 error metadata {\"a\":1} duration 7 -> +OK\nframe.end r 1 -> -NOTFOUND run r has no open frame 1: FRAME.BEGIN gives the number of one");
    assert_eq!(client.field("frame.get r 1", "error"), ":1");
    assert_eq!(client.field("frame.get r 1", "metadata"), "{\"a\":1}");
    assert_eq!(client.field("frame.get r 1", "duration_ns"), ":7");
    let seqs =
        |reply: &str| reply.split('|').collect::<Vec<_>>().windows(2).filter(|of| of[0] == "seq").count();
    assert_eq!(seqs(&client.bytes(b"run.tail r\r\n").0), 2);
    assert_eq!(seqs(&client.bytes(b"run.tail r from 2\r\n").0), 1);
    assert_eq!(seqs(&client.bytes(b"run.tail r count 1\r\n").0), 1);
    client.script(
        "run.tail r from 3 -> *-1
        run.tail r from 4294967295 -> *-1
        run.tail r from -1 -> -ERR value is not an integer or out of range
        run.tail r block x -> -ERR timeout is not an integer or out of range
        run.tail no -> -NOTFOUND there is no run \"no\"
        multi -> +OK
        run.tail r from 3 block 0 -> -ERR Command not allowed inside a transaction
        discard -> +OK
        run.end r -> +OK
        run.tail r from 3 block 0 -> *0
        frame.begin r llm x -> -CONFLICT run r has ended (ok): fork it, or record into a new run",
    );
    assert!(bench.daemon.store.namespace("default").unwrap().run("r").unwrap().verify().is_ok());
    // A frame that is never ended keeps what arrived, and its run is abandoned when the store closes.
    client.script("run.begin name s -> *4|$4|name|$1|s|$3|uid|:2\nframe.begin s llm ask -> :1\nframe.append s 1 half -> :4");
}

#[test]
fn open_frames_and_their_metadata_are_limited() {
    let bench = DaemonBench::with(Options { body_bytes_max: 1 << 20, ..Options::default() });
    let mut client = bench.client();
    client.bytes(b"run.begin name r\r\n");
    let mut begun = 0;
    let refused = loop {
        let reply = client.bytes(b"frame.begin r llm x\r\n").0;
        if reply.starts_with('-') {
            break reply;
        }
        begun += 1;
        assert!(begun < 2000);
    };
    assert!(begun == 1024 && refused.starts_with("-ERR at most 1024 frames"), "{begun} {refused}");
    client.script("frame.end r 7 -> +OK\nframe.begin r llm x -> :1025");
    let long = vec![b'm'; 70_000];
    let refused = client.ask(&[b"frame.begin", b"r", b"llm", b"x", b"METADATA", &long]);
    assert!(refused.starts_with("-ERR a frame begins with at most 65536 bytes of metadata"), "{refused}");
    // The store's limit on bodies applies to whole and appended bodies, and the run continues.
    let body = pattern((1 << 20) + 1);
    for words in [&[&b"frame.add"[..], b"r", b"llm", &body, b""][..], &[b"frame.append", b"r", b"1", &body]] {
        let refused = client.ask(words);
        assert!(refused.starts_with("-ERR a") && refused.contains("over the limit of 1048576"), "{refused}");
    }
    for command in ["set", "blob.put", "snap.put"] {
        let words: &[&[u8]] =
            if command == "blob.put" { &[b"blob.put", &body] } else { &[command.as_bytes(), b"r", &body] };
        let refused = client.ask(words);
        assert!(refused.starts_with("-ERR a body"), "{command}: {refused}");
    }
    assert_eq!(client.ask(&[b"frame.append", b"r", b"1", &body[..1 << 20]]), ":1048576|");
    client.script("frame.add r llm a b -> :1026");
}

#[test]
fn each_connection_replays_a_run_in_recorded_order() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    client.script(
        r#"
        run.begin name r -> *4|$4|name|$1|r|$3|uid|:1
        frame.add r llm {"q":1} first -> :1
        frame.add r llm {"q":1} second -> :2
        frame.add r tool {"t":1} tooled metadata {"call":{"name":"search"}} -> :3
        frame.add r llm bad "it broke" error -> :4
        run.end r -> +OK
        run.replay r {"q":1} -> $5|first
        run.replay r {"q":1} -> $6|second
        run.replay r {"t":1} name search -> $6|tooled
        run.replay r bad -> -FAILED it broke
        run.replay r {"q":1} restart -> $5|first
        run.replay r -> -ERR wrong number of arguments for 'run.replay' command
        run.replay r x wat -> -ERR syntax error
        run.replay r x name -> -ERR a call's name is missing
        run.replay no x -> -NOTFOUND there is no run "no"
        "#,
    );
    let mut other = bench.client();
    other.script("run.replay r {\"q\":1} -> $5|first");
    let diverged = other.bytes(b"run.replay r {\"q\":2}\r\n").0;
    assert!(
        diverged.starts_with("-DIVERGED at step 2 the program asked llm") && diverged.contains("differs by"),
        "{diverged}"
    );
    let more = client.bytes(b"run.replay r {\"q\":1}\r\nrun.replay r {\"q\":1}\r\n").0;
    assert!(
        more.starts_with("$6|second|-DIVERGED") && more.contains("once more than it was recorded (2 times)"),
        "{more}"
    );
    // A reset restarts the replay; a closed connection holds no replay.
    client.script("reset -> +RESET\nrun.replay r {\"q\":1} -> $5|first");
    let held = || format!("{:?}", bench.daemon.replayed);
    let before = held();
    drop((client, other));
    assert!(
        before != held() && held() == format!("{:?}", super::super::replay::ReplayMemory::default()),
        "{}",
        held()
    );
}

#[test]
fn draws_are_recorded_and_served_again() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    client.bytes(b"run.begin name r\r\n");
    let mut draw = |kind: &str| client.bytes(format!("nondet.draw r {kind}\r\n").as_bytes()).0;
    let drawn = ["clock", "UUID", "random", "fill 5", "fill 0"].map(&mut draw);
    assert!(drawn[0].len() == 21 && drawn[1].starts_with("$36|") && drawn[3].starts_with("$5|"), "{drawn:?}");
    for (kind, refused) in [
        ("coin", "-ERR the kind of draw is missing: give CLOCK, UUID, RANDOM or FILL length|"),
        ("fill", "-ERR the kind of draw is missing: give CLOCK, UUID, RANDOM or FILL length|"),
        ("fill -1", "-ERR value is not an integer or out of range|"),
        ("fill 16385", "-ERR one draw fills at most 16384 bytes|"),
        ("clock 1", "-ERR syntax error|"),
    ] {
        assert_eq!(draw(kind), refused);
    }
    client.script("run.end r -> +OK\nnondet.draw no clock -> -NOTFOUND there is no run \"no\"");
    assert_eq!(bench.daemon.store.namespace("default").unwrap().run("r").unwrap().info().frames, 5);
    // Each connection starts at the first draw.
    for _ in 0..2 {
        let mut client = bench.client();
        let mut again = |kind: &str| client.bytes(format!("nondet.draw r {kind}\r\n").as_bytes()).0;
        assert_eq!(["clock", "uuid"].map(&mut again), drawn[..2]);
        let other = again("clock");
        assert!(other.starts_with("-DIVERGED draw 3 was a random and is now a clock"), "{other}");
        assert_eq!(["random", "fill 5", "fill 0"].map(&mut again), drawn[2..]);
        assert!(again("uuid").starts_with("-DIVERGED the program draws a uuid after the last"));
    }
    let mut client = bench.client();
    client.script("multi -> +OK\nnondet.draw r clock -> +QUEUED\nexec -> *1|-ERR Command not allowed inside a transaction");
    // A run recorded elsewhere cannot be added to.
    let space = bench.daemon.store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("theirs")).unwrap();
    run.record(Frame::new(Component::Llm, "a", "b")).unwrap();
    client.script(
        "nondet.draw theirs clock -> -CONFLICT run theirs is recorded by another client
        frame.add theirs llm a b -> -CONFLICT run theirs is recorded by another client
        run.end theirs -> -CONFLICT run theirs is recorded by another client",
    );
}

#[test]
fn snapshots_are_stored_after_frames() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    client.script(
        r#"
        run.begin name r -> *4|$4|name|$1|r|$3|uid|:1
        snap.put r early -> -ERR a snapshot needs a frame before it: record a frame first
        frame.add r llm a b -> :1
        snap.at r 1 -> $-1
        snap.put r one embedding e "\x00\x00\x80?" -> :1
        snap.put r again -> -CONFLICT frame 1 of run "r" has a snapshot already
        frame.add r llm a b -> :2
        snap.get r 1 -> *6|$3|seq|:1|$10|embeddings|*2|$1|e|$4|

        "#
        .split("        snap.get r 1 ->")
        .next()
        .unwrap(),
    );
    assert!(client.bytes(b"snap.get r 1\r\n").0.ends_with("|$5|state|$3|one|"));
    assert!(client.bytes(b"snap.at r 2\r\n").0.starts_with("*6|$3|seq|:1|$10|embeddings|*2|$1|e|$4|"));
    client.script(
        r#"
        snap.get r 2 -> -NOTFOUND run "r" has no snapshot after frame 2
        snap.at r 0 -> $-1
        snap.put r s embedding e -> -ERR syntax error
        snap.put r s vector e xxxx -> -ERR syntax error
        snap.put r s embedding e xxx -> -ERR a vector is of f32, four bytes each
        snap.put r s embedding e "" -> -ERR the vector of "e" has no dimensions: no search could ever find it
        snap.put no s -> -NOTFOUND there is no run "no"
        snap.put r two -> :2
        snap.get r 2 -> *6|$3|seq|:2|$10|embeddings|*0|$5|state|$3|two
        "#,
    );
    let state = bench.daemon.store.namespace("default").unwrap().run("r").unwrap().snapshot(1).unwrap();
    assert_eq!((state.state, state.embeddings), (b"one".to_vec(), vec![("e".to_owned(), vec![1.0])]));
}

#[test]
fn pipelined_xadds_form_one_batch_with_ordered_replies() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    client.bytes(b"xadd s * k 0\r\nxadd t * k 0\r\n");
    let batches = || bench.daemon.store.stats().unwrap().batches;
    let before = batches();
    let (told, _) = client.bytes(b"xadd s * k 1\r\nxadd s * k 2\r\nxadd s * k 3\r\n");
    let numbers = |told: &str| -> Vec<String> {
        told.split('|')
            .filter_map(|line| line.rsplit_once('-').map(|(_, number)| number.to_owned()))
            .collect()
    };
    assert_eq!(numbers(&told), ["2", "3", "4"], "{told}");
    assert_eq!(batches() - before, 1);
    // Other commands in between keep their order: another run, an error, a read of what was added, a key.
    let mixed = b"xadd s * k 4\r\nxadd t * k 1\r\nxadd s * odd\r\nxadd s * k 5\r\nxlen s\r\nxadd s * k 6\r\nset k v\r\nXADD s * k 7\r\n";
    let (told, _) = client.bytes(mixed);
    let lines: Vec<&str> = told.split('|').filter(|line| !line.starts_with('$')).collect();
    let number = |at: usize| lines[at].rsplit_once('-').unwrap().1;
    assert_eq!((number(0), number(1)), ("5", "2"), "{told}");
    assert!(lines[2].starts_with("-ERR wrong number"), "{told}");
    assert_eq!((number(3), lines[4], number(5), lines[6], number(7)), ("6", ":6", "7", "+OK", "8"), "{told}");
    // A run that ends in between is not added to.
    let (told, _) = client.bytes(b"xadd s * k 8\r\nrun.end s\r\nxadd s * k 9\r\n");
    assert!(told.contains("-9|+OK|-ERR run s is "), "{told}");
    // Replies before a protocol error come first.
    let (told, ends) = client.bytes(b"xadd t * k 2\r\n*1\r\n$x\r\n");
    assert!(ends && told.contains("-3|-ERR Protocol error"), "{told}");
    let reader = bench.daemon.tenant("default").unwrap().space.run("s").unwrap();
    assert_eq!((reader.info().frames, reader.verify().unwrap().frames), (9, 9));
    assert_eq!(reader.frame(3).unwrap().input, b"*2\r\n$1\r\nk\r\n$1\r\n2\r\n");
}
