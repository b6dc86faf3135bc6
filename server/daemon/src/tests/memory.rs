//! Agent memory over RESP: agentfootprint's own example, each command, and its rights.

use annals::kv::ScanRange;
use annals_memory::{Memory, Projection, WordEmbedder, render};

use crate::schedules::sweep_memory_and_answers;

use super::{DaemonBench, Rights, TestClient, token};

/// agentfootprint's example; its spaces must be preserved.
pub(crate) const MONDAY: &str = r#"{ "query":"Should we approve loan #42? Credit: 580. Income: 95k. Amount: 50k.","finalContent":"Application #42: REJECTED. Credit (580) below floor (600). Suggest manual review.","iterations":1,"decisions":[{"stageId":"classify-risk","chosen":"rejected","rule":"Marginal credit","evidence":{"creditScore":580, "threshold" : 600}},{"stageId":"pick-reason","chosen":"credit-too-low","rule":"Credit below floor","evidence":{"creditScore":580,"incomeAboveFloor":true}}],"toolCalls":[{"name":"lookupCreditBureau","args":{"applicationId":"42"},"resultPreview":"{ \"score\": 580, \"bureau\": \"experian\" }","errored":false}],"durationMs":1840,"tokenUsage":{"input":1200,"output":180}}"#;
pub(crate) const QUESTION: &str = "Why was application #42 rejected?";

impl TestClient<'_> {
    /// The reply to a command whose words are separated by bars.
    fn mem(&mut self, words: &str) -> String {
        let words: Vec<&[u8]> = words.split('|').map(str::as_bytes).collect();
        self.ask(&words)
    }
}

fn friday(more: &str) -> String {
    format!("mem.search|question|{QUESTION}|tenant|lending|conversation|app-42-followup{more}")
}

#[test]
fn recall_crosses_conversations_but_never_tenants() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    let kept = client.mem(&format!("mem.put|{MONDAY}|embed|tenant|lending|conversation|app-42"));
    assert_eq!(kept, "*1|$6|snap-1|");
    assert_eq!(client.mem(&friday("|projection|decisions")), "*4|$4|hits|*0|$4|text|$0||", "without ACROSS");
    let found = client.mem(&friday("|across|projection|decisions"));
    assert!(found.contains("|$2|id|$6|snap-1|$8|identity|$16|lending/_/app-42|$5|score|"), "{found}");
    assert!(found.contains(&format!("\"value\":{MONDAY},")), "byte for byte: {found}");
    let score: f32 = found.split("|$5|score|").nth(1).unwrap().split('|').nth(1).unwrap().parse().unwrap();
    let text = render(MONDAY, Projection::Decisions, score).unwrap();
    let told = found.rsplit("|$4|text|").next().unwrap();
    assert!(told.contains(&text), "{told} is not {text}");
    assert!(text.contains("evidence: {\"creditScore\":580,\"threshold\":600}"));
    let when = found.split("|$10|decided_at|$20|").nth(1).unwrap().split('|').next().unwrap();
    assert!(told.ends_with(&format!("\ndecided at {when}|")), "{told}");
    for tenant in ["lendin", "lending2", "_", "%", "lending/_"] {
        let other =
            format!("mem.search|question|{QUESTION}|tenant|{tenant}|conversation|app-42|across|minscore|-1");
        assert_eq!(client.mem(&other), "*2|$4|hits|*0|", "{tenant}");
    }
    let nobody = format!("mem.search|question|{QUESTION}|across|minscore|-1");
    assert_eq!(client.mem(&nobody), "*2|$4|hits|*0|");
    // Entries below the minimum score are absent, and the text is empty.
    let strict = format!("mem.search|question|{QUESTION}|tenant|lending|across|minscore|1|budget|1000");
    assert_eq!(client.mem(&strict), "*4|$4|hits|*0|$4|text|$0||");
    assert!(client.mem(&friday("|across|budget|1")).ends_with("|$4|text|$0||"), "nothing is cut");
    // Another daemon over the same store finds it, too.
    let bench = bench.started_again();
    assert!(bench.client().mem(&friday("|across")).contains("snap-1"));
}

/// An entry whose time was over stayed in a daemon without a retention policy.
#[test]
fn expired_entries_are_deleted_without_a_policy() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    for (id, ttl) in [("past", "5"), ("later", "40000000000000")] {
        let put = client.mem(&format!(r#"mem.put|{{"id":"{id}","value":1,"ttl":{ttl}}}|conversation|c"#));
        assert_eq!(put, format!("*1|${}|{id}|", id.len()));
    }
    let tenant = bench.daemon.tenant("default").unwrap();
    let entries = tenant.space.find_keyspace("annals.memory").unwrap().unwrap();
    let stored = || entries.scan(ScanRange::all()).keys().count();
    assert_eq!(stored(), 2);
    assert!(!sweep_memory_and_answers(&tenant).unwrap());
    assert_eq!(stored(), 1);
    assert!(client.mem("mem.get|later|conversation|c").contains("later"));
}

/// The error named the damage, and no way out of it.
#[test]
fn search_in_a_damaged_index_says_how_to_make_it_again() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    let tenant = bench.daemon.tenant("default").unwrap();
    let run = tenant.space.begin_run(annals::RunSpec::new("walk")).unwrap();
    run.record(annals::Frame::new(annals::Component::Tool, "{}", "a heron waits")).unwrap();
    run.end(annals::Status::Ok).unwrap();
    let mut search = |word: &str| client.mem(word);
    assert!(search("run.search|heron").contains(r#""run":"walk""#));
    let parts = tenant.space.find_keyspace("annals.search.parts").unwrap().unwrap();
    let keys: Vec<Vec<u8>> = parts.scan(ScanRange::all()).keys().map(Result::unwrap).collect();
    for key in keys {
        parts.put(&key, vec![9; 7]).unwrap();
    }
    let damaged = search("run.search|heron");
    assert!(damaged.starts_with('-') && damaged.contains("RUN.INDEX REBUILD"), "{damaged}");
    search("run.index|rebuild");
    assert!(search("run.search|heron").contains(r#""run":"walk""#));
}

/// The tenants of a memory see nothing of each other. A reader of the namespace's runs finds those of all tenants.
#[test]
fn search_by_meaning_crosses_tenants_for_readers_of_runs() {
    let bench = DaemonBench::new();
    let mut owner = bench.client();
    for (tenant, run) in [("bank", "loan"), ("agency", "house")] {
        let entry = format!(
            r#"{{"id":"run-{run}","value":{{"query":"Why was the mortgage of jo@example.org rejected?","finalContent":"So."}},"metadata":{{"run":"{run}","frame":3}}}}"#
        );
        owner.mem(&format!("mem.put|{entry}|embed|tenant|{tenant}"));
    }
    let question = "run.search|why was the mortgage rejected|by|meaning";
    let found = owner.mem(question);
    assert!(found.contains(r#""run":"loan""#) && found.contains(r#""run":"house""#), "{found}");
    assert!(
        found.contains(r#""seq":3"#) && found.contains(r#""gone":true"#),
        "no such run is stored: {found}"
    );
    let one = owner.mem("run.search|mortgage rejected|count|1|by|meaning");
    assert_eq!(one.matches(r#""run":"#).count(), 1, "{one}");
    assert!(owner.mem("run.search|mortgage|by|words").contains(r#""is_whole":true"#));
    for wrong in ["by", "by|vectors", "by|meaning|by|words", "count|x|by|meaning"] {
        assert!(owner.mem(&format!("run.search|mortgage|{wrong}")).starts_with("-ERR"), "{wrong}");
    }
    let of = |rights: Rights| {
        let mut grant = bench.daemon.owner().unwrap();
        grant.rights = rights;
        bench.client_with(Some(grant)).mem(question)
    };
    assert!(of(Rights::READ).contains("jo@example.org"));
    let shown = of(Rights::REDACTED);
    assert!(shown.contains("[email:") && !shown.contains("jo@"), "{shown}");
    for rights in [Rights::RECORD, Rights::OPERATE] {
        assert!(of(rights).starts_with("-NOPERM "), "{rights}");
    }
}

#[test]
fn memory_commands_match_agentfootprint_store() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    let a = r#"{"id":"a","value":{ "version" : 3 },"version":1,"updatedAt":5,"embedding":[1,0],"embeddingModel":"e","tier":"hot"}"#;
    let b = r#"{"id":"b","value":2,"updatedAt":7,"embedding":[1,1],"embeddingModel":"e","tier":"cold"}"#;
    let text = |entry: &str| format!("${}|{entry}|", entry.len());
    assert_eq!(client.mem(&format!("mem.put|{a}|{b}|tenant|t")), "*2|$1|a|$1|b|");
    assert_eq!(client.mem("mem.list|tenant|t"), format!("*2|$1|0|*2|{}{}", text(b), text(a)));
    assert_eq!(client.mem("mem.list|tenant|t|limit|1"), format!("*2|$1|1|*1|{}", text(b)));
    assert_eq!(client.mem("mem.list|tenant|t|limit|1|cursor|1"), format!("*2|$1|0|*1|{}", text(a)));
    assert_eq!(client.mem("mem.list|tenant|t|tiers|hot, warm"), format!("*2|$1|0|*1|{}", text(a)));
    assert_eq!(client.mem("mem.list|tenant|t|conversation|c"), "*2|$1|0|*0|");
    let looked = client.mem("mem.get|a|tenant|t");
    assert!(
        looked.contains("\"value\":{ \"version\" : 3 }") && looked.contains("\"accessCount\":1,"),
        "{looked}"
    );
    assert!(client.mem("mem.get|a|tenant|t").contains("\"accessCount\":2,"));
    assert_eq!(client.mem("mem.get|a"), "$-1|");
    let ids = |reply: String| -> Vec<String> {
        reply.split("|$2|id|$1|").skip(1).map(|rest| rest.split('|').next().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(client.mem("mem.search|vector|[2, 0]|tenant|t|embedder|e")), ["a", "b"]);
    assert_eq!(ids(client.mem("mem.search|vector|[2,0]|tenant|t|k|1")), ["a"]);
    assert_eq!(ids(client.mem("mem.search|vector|[2,0]|tenant|t|tiers|cold")), ["b"]);
    assert_eq!(ids(client.mem("mem.search|vector|[2,0]|tenant|t|minscore|1")), ["a"], "equal passes");
    let bytes: Vec<u8> = [0.0f32, 3.0].iter().flat_map(|number| number.to_le_bytes()).collect();
    assert_eq!(ids(client.ask(&[b"mem.search", b"fp32", &bytes, b"TENANT", b"t"])), ["b"]);
    let mismatch = client.mem("mem.search|vector|[2,0]|tenant|t|embedder|f");
    assert!(
        mismatch.starts_with("-ERR ") && mismatch.contains("\"f\"") && mismatch.contains("\"e\""),
        "{mismatch}"
    );
    // The version is that of the entry, not a member of its value.
    let with = |version: u64| format!("{{\"id\":\"a\",\"value\":{{\"version\":3}},\"version\":{version}}}");
    for (version, over, reply) in [
        (2, 3, "*4|$7|applied|:0|$7|version|:1|"),
        (2, 1, "*4|$7|applied|:1|$7|version|$-1|"),
        (1, 0, "*4|$7|applied|:0|$7|version|:2|"),
    ] {
        assert_eq!(client.mem(&format!("mem.putif|{}|{over}|tenant|t", with(version))), reply);
    }
    let none = client.mem("mem.putif|{\"id\":\"z\",\"value\":1}|4|tenant|t");
    assert_eq!(none, "*4|$7|applied|:0|$7|version|$-1|");
    client.script(
        "mem.feedback a tenant t -> $-1
        mem.feedback a value 0.5 tenant t -> +OK
        mem.feedback a value -7 tenant t -> +OK
        mem.feedback a value nan tenant t -> +OK
        mem.feedback a tenant t -> *4|$7|average|$5|-0.25|$5|count|:2
        mem.seen s tenant t -> :0
        mem.seen s record tenant t -> +OK
        mem.seen s tenant t -> :1
        mem.seen s -> :0
        mem.delete a tenant t -> +OK
        mem.delete a tenant t -> +OK
        mem.get a tenant t -> $-1
        mem.feedback a tenant t -> $-1
        mem.seen s tenant t -> :1
        mem.forget tenant t -> :1
        mem.seen s tenant t -> :0
        mem.list tenant t -> *2|$1|0|*0",
    );
}

#[test]
fn invalid_memory_commands_are_refused_with_a_reason() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    for (words, why) in [
        ("mem.put|{}", "must have an id"),
        ("mem.put|no", "JSON object"),
        ("mem.put|embed|tenant|t", "missing before the options"),
        ("mem.put|{\"id\":\"a\",\n\"value\":}|embed", "line 2 column 9"),
        ("mem.put|{\"a\":1}|embed", "an entry, with an id and a value, or a run's snapshot"),
        ("mem.put|{\"id\":\"a\",\"value\":1,\"embedding\":[0,0]}", "zeros"),
        ("mem.put|{\"id\":\"a\",\"value\":1}|{}", "must have an id"),
        ("mem.put|{\"id\":\"a\",\"value\":1}|tenant", "syntax"),
        ("mem.put|{\"id\":\"a\",\"value\":1}|tenant|t|tenant|u", "syntax"),
        ("mem.put|{\"id\":\"a\",\"value\":1}|embed|embed", "syntax"),
        ("mem.put|{\"id\":\"a\",\"value\":1}|k|1", "JSON object"),
        ("mem.get|a|k|1", "syntax"),
        ("mem.list|tiers|lukewarm", "unknown tier \"lukewarm\""),
        ("mem.list|limit|-1", "integer"),
        ("mem.search|k|1", "FP32 vector, VECTOR array or QUESTION text"),
        ("mem.search|vector|[1,\"x\"]", "not a JSON array of numbers"),
        ("mem.search|vector|[]", "zeros"),
        ("mem.search|fp32|abc", "four bytes each"),
        ("mem.search|vector|[1]|question|x", "syntax"),
        ("mem.search|question|x|embedder|e", "\"annals-words-1\" here, not by \"e\""),
        ("mem.search|vector|[1]|k|0", "1 to 1000"),
        ("mem.search|vector|[1]|k|1001", "1 to 1000"),
        ("mem.search|vector|[1]|minscore|nan", "float"),
        ("mem.search|vector|[1]|projection|all", "decisions, commits, narrative or full"),
        ("mem.feedback|a|value|x", "float"),
        ("mem.define|[\"d\"]", "JSON object"),
        ("mem.define|{\"id\":\"d\",\"topK\":1}", "unknown field `topK`"),
        ("mem.define|{\"id\":\"d\"}|namespace", "syntax"),
        ("mem.search|question|x|memory", "syntax"),
        ("mem.search|question|x|memory|d|memory|d", "syntax"),
        ("mem.putif|{\"id\":\"a\",\"value\":1}|x", "integer"),
    ] {
        let reply = client.mem(words);
        assert!(reply.starts_with("-ERR ") && reply.contains(why), "{words}: {reply}");
    }
    // Nothing was stored: entries that are put together are stored all or none.
    assert_eq!(client.mem("mem.list"), "*2|$1|0|*0|");
    assert_eq!(WordEmbedder::ID, "annals-words-1");
}

#[test]
fn memory_requires_rights_and_stays_in_token_namespace() {
    let bench = DaemonBench::new();
    let mut owner = bench.client();
    let entry = r#"{"id":"a","value":"secret","embedding":[1]}"#;
    owner.mem(&format!("mem.put|{entry}|tenant|t"));
    let of = |rights: Rights| {
        let mut grant = bench.daemon.owner().unwrap();
        grant.rights = rights;
        bench.client_with(Some(grant))
    };
    let reads = [
        "mem.get|a|tenant|t",
        "mem.list|tenant|t",
        "mem.search|vector|[1]|tenant|t",
        "mem.feedback|a|tenant|t",
        "mem.seen|s",
        "mem.definitions",
    ];
    let writes = [
        "mem.put|{\"id\":\"b\",\"value\":1}",
        "mem.delete|b",
        "mem.feedback|a|value|1",
        "mem.seen|s|record",
        "mem.forget",
        "mem.define|{\"id\":\"d\"}",
        "mem.undefine|d",
    ];
    for (rights, may, may_not) in
        [(Rights::READ, &reads[..], &writes[..]), (Rights::RECORD, &writes[..], &reads[..])]
    {
        for command in may {
            let reply = of(rights).mem(command);
            assert!(!reply.starts_with('-'), "{rights}: {command}: {reply}");
        }
        for command in may_not {
            let reply = of(rights).mem(command);
            assert!(
                reply.starts_with("-NOPERM ") && !reply.contains("secret"),
                "{rights}: {command}: {reply}"
            );
        }
        let reply = of(rights).mem("mem.putif|{\"id\":\"a\",\"value\":1}|9|tenant|t");
        assert!(
            reply.starts_with("-NOPERM ") && reply.contains("record,read"),
            "it tells what is there: {reply}"
        );
    }
    // Operators read no memory. Redacted readers see entries by their profile, and no search by a vector.
    for rights in [Rights::REDACTED, Rights::OPERATE] {
        for command in reads.iter().chain(&writes) {
            let shows = ["mem.get|", "mem.list|"].iter().any(|shown| command.starts_with(shown));
            if rights == Rights::OPERATE || !shows {
                assert!(of(rights).mem(command).starts_with("-NOPERM "), "{rights}: {command}");
            }
        }
    }
    bench.daemon.access.add(token("one", "first", Rights::ALL));
    let mut client = bench.client_with(None);
    assert!(client.mem("mem.get|a|tenant|t").starts_with("-NOAUTH"));
    client.script("auth one token -> +OK\nmem.get a tenant t -> $-1\nmem.list tenant t -> *2|$1|0|*0");
    client.session.local = false;
    let elsewhere = format!("mem.put|{entry}|namespace|default|tenant|t");
    assert!(client.mem(&elsewhere).starts_with("-NOPERM another namespace"));
    assert_eq!(client.mem(&format!("mem.put|{entry}|namespace|first")), "*1|$1|a|");
    assert_eq!(owner.mem(&format!("mem.put|{entry}|namespace|first|tenant|u")), "*1|$1|a|");
    assert!(client.mem("mem.get|a|tenant|u").contains("secret"));
    // A definition belongs to its namespace, too.
    assert_eq!(client.mem("mem.define|{\"id\":\"d\"}"), "+OK|");
    assert!(
        client.mem("mem.define|{\"id\":\"d\"}|namespace|default").starts_with("-NOPERM another namespace")
    );
    assert_eq!(owner.mem("mem.definitions"), "*0|");
    assert_eq!(owner.mem("mem.define|{\"id\":\"e\"}|namespace|first"), "+OK|");
    assert_eq!(client.mem("mem.definitions"), "*2|$10|{\"id\":\"d\"}|$10|{\"id\":\"e\"}|");
}

#[test]
fn search_options_override_the_named_definition() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    client.mem(&format!("mem.put|{MONDAY}|embed|tenant|lending|conversation|app-42"));
    let definition = r#"{ "id":"causal","strategy":{"kind":"TOP_K","threshold":0.5},"projection":"commits","acrossConversations":true}"#;
    assert_eq!(client.mem(&format!("mem.define|{definition}")), "+OK|");
    assert_eq!(client.mem("mem.definitions"), format!("*1|${}|{definition}|", definition.len()));
    let found = client.mem(&friday("|memory|causal"));
    assert!(found.contains("snap-1") && found.contains("classify-risk: chose \"rejected\""), "{found}");
    assert_eq!(client.mem(&friday("|memory|causal|minscore|1")), "*4|$4|hits|*0|$4|text|$0||");
    assert!(client.mem(&friday("|memory|causal|projection|full")).contains("\n  \"query\": "));
    let other = format!("mem.search|question|{QUESTION}|tenant|other|memory|causal");
    assert_eq!(client.mem(&other), "*4|$4|hits|*0|$4|text|$0||", "a definition does not set the identity");
    let missing = client.mem(&friday("|memory|casual"));
    assert_eq!(missing, "-NOTFOUND there is no memory \"casual\": there are \"causal\"|");
    client.mem("mem.define|{\"id\":\"far\",\"strategy\":{\"embedder\":\"e\"}}");
    assert!(client.mem(&friday("|memory|far")).contains("\"annals-words-1\" here, not by \"e\""));
    assert_eq!(client.mem("mem.undefine|causal"), ":1|");
    assert_eq!(client.mem("mem.undefine|causal"), ":0|");
    assert!(client.mem(&friday("|memory|causal")).starts_with("-NOTFOUND "));
}

/// The daemon's store only survives the death of the process by default, for recorders; a reply requires the
/// disk.
#[test]
fn replied_memory_writes_survive_a_crash() {
    use annals::io::sim::{Crash, SimIo};
    use annals::{Durability, Options, Store};

    let sim = SimIo::new(1);
    let on = |sim: &SimIo| {
        let options = Options {
            io: std::sync::Arc::new(sim.clone()),
            durability: Durability::Process,
            ..Options::default()
        };
        Store::open_with("s", options).unwrap()
    };
    let daemon = DaemonBench::daemon(on(&sim));
    let memory = daemon.tenant("default").unwrap().memory().unwrap();
    let whose = annals_memory::Identity::default();
    memory.put(&whose, r#"{"id":"a","value":1}"#).unwrap();
    memory.record_signature(&whose, "s").unwrap();
    memory.rate(&whose, "a", 1.0).unwrap();
    let left = sim.crash(Crash::Nothing);
    let memory = Memory::open(&on(&left).namespace("default").unwrap()).unwrap();
    assert!(memory.get(&whose, "a").unwrap().is_some());
    assert!(memory.has_signature(&whose, "s").unwrap());
    assert_eq!(memory.feedback(&whose, "a").unwrap().unwrap().count, 1);
}

/// Each entry of a pipeline took a thread, a sync and a reply of its own, so that a daemon kept 3,400 a second. They
/// share turns now, and whatever follows them reads them.
#[test]
fn pipelined_entries_share_turns() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    let packed = |words: &[&str]| {
        let mut bytes = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| bytes += &format!("${}\r\n{word}\r\n", word.len()));
        bytes
    };
    let put = |id: &str, answer: &str| {
        let entry = format!(
            "{{\"id\":\"{id}\",\"value\":{{\"query\":\"Case {id}?\",\"finalContent\":\"{answer}\"}}}}"
        );
        packed(&["MEM.PUT", &entry, "EMBED", "CONVERSATION", "c"])
    };
    let version = |id: &str| {
        packed(&["MEM.PUTIF", &format!("{{\"id\":\"{id}\",\"value\":1}}"), "77", "CONVERSATION", "c"])
    };
    // An entry that replaces one of the same pipeline, a faulty one in the middle, and commands that read what was put.
    let sent = [
        put("a", "first"),
        put("b", "other"),
        packed(&["mem.put", "{\"id\":", "EMBED"]),
        put("a", "second"),
        packed(&["PING"]),
        put("d", "last"),
        packed(&["MEM.GET", "d", "CONVERSATION", "c"]),
        packed(&["MEM.GET", "a", "CONVERSATION", "c"]),
        version("d"),
    ]
    .concat();
    let (replies, _) = client.bytes(sent.as_bytes());
    let mut rest = replies.as_str();
    for expected in
        ["*1|$1|a|", "*1|$1|b|", "-ERR ", "*1|$1|a|", "+PONG|", "*1|$1|d|", "last", "second", "|applied|:0|"]
    {
        let at = rest.find(expected).unwrap_or_else(|| panic!("{expected} is missing in {rest}"));
        rest = &rest[at + expected.len()..];
    }
    assert!(!rest.contains("|*1|$1|"), "{rest}");
    // 300 entries in a turn each were 600 turns.
    client.turns = 0;
    let many: String = (0..300).map(|number| put(&format!("n{number}"), "kept")).collect();
    let (replies, _) = client.bytes(many.as_bytes());
    assert_eq!(replies.matches("*1|").count(), 300);
    assert!(client.turns <= 7, "{} turns", client.turns);
    assert!(client.mem("mem.get|n299|conversation|c").contains("kept"));
}

/// A token with a profile read the secrets of a run in the memory's entry, or nothing at all.
#[test]
fn redacted_reader_sees_redacted_memory() {
    let bench = DaemonBench::new();
    let mut owner = bench.client();
    let entry = r#"{"id":"a","value":{"query":"Is #42 of jo@example.org approved?","finalContent":"No: password=hunter2secret9."},"createdAt":1795602084643}"#;
    assert_eq!(owner.mem(&format!("mem.put|{entry}|embed|tenant|t")), "*1|$1|a|");
    let mut grant = bench.daemon.owner().unwrap();
    grant.rights = Rights::REDACTED;
    let mut client = bench.client_with(Some(grant));
    let search = "mem.search|question|Was #42 approved?|tenant|t|projection|full|minscore|0.1";
    for command in ["mem.get|a|tenant|t", "mem.list|tenant|t", search] {
        let whole = owner.mem(command);
        assert!(whole.contains("jo@example.org") && whole.contains("hunter2secret9"), "{command}: {whole}");
        let shown = client.mem(command);
        assert!(shown.contains("[email:") && shown.contains("\"redacted\":\"safe\""), "{command}: {shown}");
        for hidden in ["jo@example.org", "hunter2secret9", "embedding\":"] {
            assert!(!shown.contains(hidden), "{command}: {hidden}: {shown}");
        }
    }
    assert!(client.mem(search).contains("|profile|$4|safe|"), "{}", client.mem(search));
    assert!(client.mem("mem.search|vector|[1]|tenant|t").starts_with("-NOPERM a search by a vector"));
    // A question cannot confirm a guess of a hidden value.
    let guess = "mem.search|question|jo@example.org|tenant|t";
    assert!(owner.mem(guess).contains("\"id\":\"a\""), "{}", owner.mem(guess));
    assert_eq!(client.mem(guess).split('|').nth(3), Some("*0"), "{}", client.mem(guess));
}
