//! Kills the daemon under load again and again, on one store. `.ci/kills/serve.py` does this fifty times,
//! with all processes that write.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{CliBench, ask, line};

const KILLS: u64 = 3;
const CLIENTS: u64 = 12;
/// Acknowledged writes before a kill. The kill comes during later writes.
const WRITES: u64 = 300;

/// A client's acknowledged writes, and its unfinished write at the end.
#[derive(Default)]
struct AcknowledgedWrites {
    keys: BTreeMap<String, u64>,
    count: u64,
    entries: u64,
    unacknowledged: Option<(String, u64)>,
}

/// Writes until the daemon ends, and notes each reply before the next write.
fn load(mut client: impl Read + Write, name: u64, kill: u64, told: &mut AcknowledgedWrites, all: &AtomicU64) {
    for number in 0.. {
        let value = kill * 1_000_000 + number;
        let (command, replies) = match number % 4 {
            0 => (format!("set k:{name}:{} {value}\r\n", number % 28), 1),
            1 => (format!("incr c:{name}\r\n"), 1),
            2 => (format!("xadd x:{kill}:{name} * field {value}\r\n"), 2),
            _ => (format!("multi\r\nset m:{name}:a {value}\r\nset m:{name}:b {value}\r\nexec\r\n"), 6),
        };
        told.unacknowledged = Some((command.split_whitespace().next().unwrap_or_default().to_owned(), value));
        let sent = client.write_all(command.as_bytes()).is_ok();
        let replies: Vec<String> = (0..if sent { replies } else { 0 }).map(|_| line(&mut client)).collect();
        if replies.last().is_none_or(|last| last.is_empty()) {
            return;
        }
        assert!(!replies.iter().any(|reply| reply.starts_with('-')), "{replies:?}");
        match number % 4 {
            0 => drop(told.keys.insert(format!("k:{name}:{}", number % 28), value)),
            1 => told.count += 1,
            2 => told.entries += 1,
            _ => drop(told.keys.insert(format!("m:{name}:a"), value)),
        }
        told.unacknowledged = None;
        all.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn acknowledged_writes_survive_repeated_kills() {
    let bench = CliBench::new();
    let options = ["--tcp", "127.0.0.1:0", "--no-auth"];
    let mut told: Vec<AcknowledgedWrites> = (0..CLIENTS).map(|_| AcknowledgedWrites::default()).collect();
    let mut daemon = bench.serve(&options);
    for kill in 1..=KILLS {
        let all = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for (name, told) in (0..).zip(&mut told) {
                let all = &all;
                match name % 2 {
                    0 => {
                        let client = bench.connect();
                        scope.spawn(move || load(client, name, kill, told, all))
                    }
                    _ => {
                        let client = daemon.tcp();
                        scope.spawn(move || load(client, name, kill, told, all))
                    }
                };
            }
            while all.load(Ordering::Relaxed) < WRITES {
                std::thread::yield_now();
            }
            daemon.signal("-KILL");
        });
        assert_eq!(daemon.wait_for_exit().0, None);
        daemon = bench.serve(&options);
        let mut client = bench.connect();
        let mut get = |command: &str| match ask(&mut client, command).as_str() {
            "$-1" => None,
            head if head.starts_with('$') => Some(line(&mut client).parse::<u64>().unwrap()),
            head => head.strip_prefix(':').map(|number| number.parse().unwrap()),
        };
        for (name, told) in (0..).zip(&mut told) {
            let doubt = told.unacknowledged.take();
            let may_be = |kind: &str| doubt.as_ref().filter(|(of, _)| of == kind).map(|(_, value)| *value);
            for (key, value) in &mut told.keys {
                let found = get(&format!("get {key}")).unwrap();
                let in_doubt = may_be(if key.starts_with('k') { "set" } else { "multi" });
                assert!(
                    found == *value || in_doubt == Some(found),
                    "{key} is {found}, {value} was acknowledged"
                );
                *value = found;
            }
            // The two keys of a transaction are set together or not at all.
            assert_eq!(get(&format!("get m:{name}:a")), get(&format!("get m:{name}:b")));
            let count = get(&format!("get c:{name}")).unwrap_or(0);
            let more = u64::from(may_be("incr").is_some());
            assert!((told.count..=told.count + more).contains(&count), "{count}, {} were told", told.count);
            told.count = count;
            let entries = get(&format!("xlen x:{kill}:{name}")).unwrap_or(0);
            let more = u64::from(may_be("xadd").is_some());
            assert!(
                (told.entries..=told.entries + more).contains(&entries),
                "{entries}, {} told",
                told.entries
            );
            told.entries = 0;
        }
    }
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    assert_eq!(bench.run("verify").code, 0);
}

/// Reports sessions until the daemon ends. Returns how many were acknowledged.
fn report_sessions(mut client: impl Read + Write, name: u64, kill: u64, all: &AtomicU64) -> u64 {
    for number in 0.. {
        let report = session_report(name, kill, number);
        let command =
            format!("*3\r\n$11\r\nDIAG.RECORD\r\n${}\r\n{report}\r\n$6\r\nSTRICT\r\n", report.len());
        let sent = client.write_all(command.as_bytes()).is_ok();
        let head = if sent { line(&mut client) } else { String::new() };
        let reply = if head.starts_with('$') { line(&mut client) } else { head };
        if reply.is_empty() {
            return number;
        }
        assert!(reply.contains("\"failures\":[]"), "{reply}");
        all.fetch_add(1, Ordering::Relaxed);
    }
    0
}

fn session_report(name: u64, kill: u64, number: u64) -> String {
    let outcome = ["rejected", "accepted", "rework"][(number % 3) as usize];
    format!(
        r#"{{"sessionId":"{kill}-{name}-{number}","outcome":"{outcome}","injectedObservationIds":["all","{kill}-{name}"]}}"#
    )
}

/// Each acknowledged session is there after a kill, with its weights, and none is applied twice: an observation has
/// one change for each row, also after every session was reported again.
#[test]
fn acknowledged_sessions_survive_kills_and_apply_once() {
    let bench = CliBench::new();
    let mut daemon = bench.serve(&[]);
    let mut rows = 0;
    for kill in 1..=KILLS {
        let all = AtomicU64::new(0);
        let told: Vec<u64> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..4)
                .map(|name| {
                    let (client, all) = (bench.connect(), &all);
                    scope.spawn(move || report_sessions(client, name, kill, all))
                })
                .collect();
            while all.load(Ordering::Relaxed) < 60 {
                std::thread::yield_now();
            }
            daemon.signal("-KILL");
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        assert_eq!(daemon.wait_for_exit().0, None);
        daemon = bench.serve(&[]);
        let mut client = bench.connect();
        for (name, told) in (0_u64..).zip(told) {
            let history = |client: &mut _| {
                let head = ask(client, &format!("diag.history observation {kill}-{name}"));
                let count: u64 = head.strip_prefix('*').unwrap().parse().unwrap();
                for _ in 0..count {
                    line(client);
                    line(client);
                }
                count
            };
            let found = history(&mut client);
            assert!(found == told || found == told + 1, "{found} sessions, {told} were acknowledged");
            // What the client does not know it reports again; the rest is known to be repeated.
            for number in 0..=told {
                let head =
                    ask(&mut client, &format!("diag.record '{}' strict", session_report(name, kill, number)));
                assert!(head.starts_with('$'), "{head}");
                let reply = line(&mut client);
                assert_eq!(reply.contains("\"repeated\":true"), number < found, "{reply}");
            }
            assert_eq!(history(&mut client), told + 1);
            rows += told + 1;
        }
        let head = ask(&mut client, "diag.history observation all");
        assert_eq!(head, format!("*{rows}"));
    }
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    assert_eq!(bench.run("verify").code, 0);
}
