//! Rights and namespaces of tokens.

use super::{DaemonBench, Rights, token};

#[test]
fn token_reaches_only_its_own_namespace() {
    let bench = DaemonBench::new();
    bench.daemon.access.add(token("one", "first", Rights::ALL));
    let mut owner = bench.client();
    owner.script(
        "set k home -> +OK\nrun.begin name r -> *4|$4|name|$1|r|$3|uid|:1\nframe.add r llm a b -> :1",
    );
    let mut client = bench.client_with(None);
    // Commands after a login in the same bytes run in the login's namespace.
    let (reply, _) = client.bytes(b"auth one token\r\nget k\r\nset k first\r\n");
    assert_eq!(reply, "+OK|$-1|+OK|");
    client.script(
        "get k -> $5|first
        run.get r -> -NOTFOUND there is no run \"r\"
        frame.get r 1 -> -NOTFOUND there is no run \"r\"
        run.list -> *2|$1|0|*0
        frame.add r llm a b -> -NOTFOUND there is no run \"r\"",
    );
    owner.script("get k -> $4|home");
    // It sees only its own connections; an operator sees all.
    let lists = |reply: String| reply.matches("addr=").count();
    bench.daemon.clients().insert(1, owner.session.facts.clone());
    assert_eq!(lists(owner.bytes(b"client list\r\n").0), 2);
    client.session.grant.as_mut().unwrap().rights = Rights::READ;
    assert_eq!(lists(client.bytes(b"client list\r\n").0), 1);
}

#[test]
fn each_right_allows_only_its_commands() {
    let bench = DaemonBench::new();
    let mut owner = bench.client();
    owner.script("set k 1 -> +OK\nframe.add none llm a b -> -NOTFOUND there is no run \"none\"");
    owner.bytes(b"run.begin name r metadata '{\"secret\":1}' tag a b\r\nframe.add r llm question answer METADATA '{\"x\":1}'\r\n");
    let of = |rights: Rights| {
        let mut grant = bench.daemon.owner().unwrap();
        grant.rights = rights;
        bench.client_with(Some(grant))
    };
    let no = |name: &str, right: &str| {
        format!(
            "-NOPERM this user has no permissions to run the '{name}' command: it takes the right {right}"
        )
    };
    of(Rights::RECORD).script(&format!(
        "set k 2 -> +OK
        frame.add r tool a b -> :2
        get k -> {}
        incr k -> {}
        set k 3 get -> -NOPERM SET with GET returns the old value, which takes the right read
        run.get r -> {}
        store.verify -> {}
        ping -> +PONG",
        no("get", "read"),
        no("incr", "record,read"),
        no("run.get", "read"),
        no("store.verify", "operate"),
    ));
    of(Rights::READ).script(&format!(
        "get k -> $1|2\nset k 3 -> {}\nframe.get r 1 request -> $8|question\ntoken.list -> {}",
        no("set", "record"),
        no("token.list", "operate"),
    ));
    of(Rights::OPERATE).script(&format!("get k -> {}\ntoken.list -> *0", no("get", "read")));
    // A record token draws and records; a read token replays the draws.
    of(Rights::RECORD).bytes(b"nondet.draw r uuid\r\n");
    assert!(
        of(Rights::READ)
            .bytes(b"nondet.draw r uuid\r\n")
            .0
            .starts_with("-NOPERM a draw for this run takes the right record")
    );
    owner.bytes(b"run.end r\r\n");
    assert!(of(Rights::READ).bytes(b"nondet.draw r uuid\r\n").0.starts_with("$36|"));
    assert!(
        of(Rights::RECORD)
            .bytes(b"nondet.draw r uuid\r\n")
            .0
            .starts_with("-NOPERM a draw for this run takes the right read")
    );
    // Also within a transaction.
    of(Rights::READ).script("multi -> +OK");
    let (reply, _) = of(Rights::READ).bytes(b"multi\r\nset k 9\r\nexec\r\n");
    assert!(reply.ends_with("-EXECABORT Transaction discarded because of previous errors.|"), "{reply}");
    owner.script("get k -> $1|2");
}

#[test]
fn redacted_reader_sees_no_hashes_of_redacted_content() {
    let bench = DaemonBench::new();
    let mut owner = bench.client();
    owner.bytes(b"run.begin name r tag who b@example.com metadata '{\"to\":\"b@example.com\",\"card\":4111111111111111}'\r\n");
    owner.bytes(b"frame.add r llm b@example.com 'hello b@example.com' METADATA '{\"to\":\"b@example.com\"}'\r\nrun.end r\r\n");
    let mut grant = bench.daemon.owner().unwrap();
    grant.rights = Rights::REDACTED;
    let mut client = bench.client_with(Some(grant.clone()));
    let ids = [b"b@example.com".as_slice(), b"hello b@example.com"]
        .map(|said| blake3::hash(said).to_hex().to_string());
    let fingerprint = bench.daemon.store.namespace("default").unwrap().run("r").unwrap().info().fingerprint;
    let [asked, answered] = ids;
    let hidden = ["b@example.com".to_owned(), fingerprint.unwrap().to_string(), asked, answered];
    let mut placeholders = std::collections::BTreeSet::new();
    for command in ["run.get r", "run.list", "frame.get r 1", "run.tail r"] {
        let whole = owner.bytes(format!("{command}\r\n").as_bytes()).0;
        let (reply, _) = client.bytes(format!("{command}\r\n").as_bytes());
        assert!(
            !reply.starts_with('-') && !hidden.iter().any(|hidden| reply.contains(hidden)),
            "{command}: {reply}"
        );
        assert!(reply.contains("redacted") && reply.contains("profile|$4|safe"), "{command}: {reply}");
        assert!(whole.contains("b@example.com") && !whole.contains("redacted"), "{command}: {whole}");
        let found = reply.match_indices("[email:").map(|(at, _)| reply[at..at + 20].to_owned());
        placeholders.extend(found);
    }
    assert_eq!(placeholders.len(), 1, "the same value has the same placeholder: {placeholders:?}");
    for command in [
        "run.failure r",
        "run.suspect r",
        "run.diff r r",
        "run.forks r",
        "run.list with usage",
        "run.view r 1",
    ] {
        let (reply, _) = client.bytes(format!("{command}\r\n").as_bytes());
        assert!(
            !reply.starts_with('-') && !hidden.iter().any(|hidden| reply.contains(hidden)),
            "{command}: {reply}"
        );
    }
    // Another profile shows other content; a missing profile shows none.
    let as_profile = |profile: &str| {
        let mut grant = grant.clone();
        grant.profile = profile.into();
        bench.client_with(Some(grant)).bytes(b"run.get r\r\n").0
    };
    assert!(client.bytes(b"run.get r\r\n").0.contains("[card:"));
    let mails = as_profile("mails");
    assert!(mails.contains("4111111111111111") && mails.contains("[email:"), "{mails}");
    for gone in ["gone", "raw"] {
        assert!(as_profile(gone).starts_with(&format!("-NOPERM this token's profile {gone}")));
    }
    for command in [
        "frame.get r 1 response",
        "run.blame r",
        "run.replay r question",
        "xrange r - +",
        "get r",
        "snap.get r 1",
    ] {
        let (reply, _) = client.bytes(format!("{command}\r\n").as_bytes());
        assert!(reply.starts_with("-NOPERM"), "{command}: {reply}");
    }
}

#[test]
fn token_profile_survives_restart() {
    let bench = DaemonBench::new();
    let mut owner = bench.client();
    owner.bytes(b"run.begin name r\r\nframe.add r llm 4111111111111111 b@example.com\r\nrun.end r\r\n");
    owner.script(
        "token.add x profile none -> -NOTFOUND there is no profile \"none\"; there are raw, safe, mails
        token.add x profile safe rights read -> -ERR a profile needs the right redacted without read: the right read shows everything",
    );
    let made = owner.bytes(b"token.add support profile mails\r\n").0;
    let text = made.split('|').nth(1).unwrap().to_owned();
    let listed = owner.bytes(b"token.list\r\n").0;
    assert!(listed.contains("rights|$8|redacted|") && listed.contains("profile|$5|mails|"), "{listed}");
    // Also after a restart.
    let bench = bench.started_again();
    for token in super::super::access::list_tokens(&bench.daemon.store).unwrap() {
        bench.daemon.access.add(token);
    }
    let mut client = bench.client_with(None);
    let (reply, _) = client.bytes(format!("auth support {text}\r\nframe.get r 1\r\n").as_bytes());
    assert!(reply.contains("4111111111111111") && reply.contains("[email:"), "{reply}");
    assert!(!reply.contains("b@example.com"), "{reply}");
    bench.client().script("token.revoke support -> +OK");
    assert_eq!(client.bytes(b"frame.get r 1\r\n"), (String::new(), true));
}

#[test]
fn token_actions_are_recorded_as_operations() {
    let bench = DaemonBench::new();
    let mut owner = bench.client();
    let made = owner.bytes(b"token.add ci namespace n rights record,read\r\n").0;
    let text = made.split('|').nth(1).unwrap().to_owned();
    assert_eq!(text.len(), 64, "{made}");
    owner.script("token.add ci -> -ERR there is a token ci already: revoke it, or take another name");
    owner.script("token.add x rights everything -> -ERR \"everything\" is not a right: use record, read, redacted or operate");
    let mut client = bench.client_with(None);
    assert_eq!(client.bytes(format!("auth ci {text}\r\nset a 1\r\n").as_bytes()).0, "+OK|+OK|");
    assert!(client.bytes(b"token.add mine\r\n").0.starts_with("-NOPERM"));
    // A revoked token's connection is closed before its next command runs.
    owner.script("token.revoke ci -> +OK\ntoken.revoke ci -> -NOTFOUND there is no token ci in the store");
    assert_eq!(client.bytes(b"set a 2\r\n"), (String::new(), true));
    assert!(
        bench.client_with(None).bytes(format!("auth ci {text}\r\n").as_bytes()).0.starts_with("-WRONGPASS")
    );
    bench.daemon.shut_down();
    let space = bench.daemon.store.namespace("annals").unwrap();
    let run = space.last_run().unwrap();
    let frames: Vec<_> = run.frames().map(|frame| frame.unwrap()).collect();
    let told = |at: usize| String::from_utf8(frames[at].input.clone()).unwrap();
    assert_eq!(frames.len(), 5);
    assert!(
        told(0).contains("\"words\":[\"token.add\",\"ci\"") && told(0).contains("\"who\":\"owner\""),
        "{}",
        told(0)
    );
    assert!(frames[1].error && !frames[0].error && told(3).contains("token.revoke"));
    let whole: Vec<u8> =
        frames.iter().flat_map(|frame| [frame.input.clone(), frame.output.clone()]).flatten().collect();
    assert!(!String::from_utf8(whole).unwrap().contains(&text), "a token's text is kept nowhere");
}

/// Regression: a login within a transaction would have run the queued commands for another client.
#[test]
fn login_inside_a_transaction_is_refused() {
    let bench = DaemonBench::new();
    bench.daemon.access.add(token("one", "first", Rights::ALL));
    let (reply, _) = bench.client().bytes(b"multi\r\nauth one token\r\nset k 1\r\nexec\r\nget k\r\n");
    assert_eq!(reply, "+OK|+QUEUED|+QUEUED|*2|-ERR a login is not possible inside a transaction|+OK|$1|1|");
}
