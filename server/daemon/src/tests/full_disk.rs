//! A disk that is full for a while, as clients see it.

use super::TestClient;
use super::poisoned::prepared;

fn ask(client: &mut TestClient<'_>, line: &str) -> String {
    client.bytes(format!("{line}\r\n").as_bytes()).0
}

/// Sets keys until the disk refuses one.
fn fill(client: &mut TestClient<'_>) {
    for (value, most) in [("x".repeat(4000), 5000), ("x".to_owned(), 1000)] {
        let mut set = |number| ask(client, &format!("set fill:{number} {value}"));
        assert!((0..most).any(|number| set(number).contains("is full")));
    }
}

/// Regression: a part that a full disk refused was counted and never written, so a frame that ended later could not be
/// read. A frame whose end was refused was not open any more, and its run could never be ended.
#[test]
fn refused_parts_and_ends_of_frames_can_be_sent_again() {
    let (bench, sim) = prepared();
    let mut client = bench.client();
    assert!(ask(&mut client, "run.begin name stream").contains("stream"));
    assert_eq!(ask(&mut client, "frame.begin stream llm question"), ":1|");
    assert_eq!(ask(&mut client, "frame.append stream 1 one-"), ":4|");
    sim.set_capacity(Some(sim.used_bytes()));
    fill(&mut client);
    for refused in ["frame.append stream 1 two-", "frame.end stream 1"] {
        let reply = ask(&mut client, refused);
        assert!(reply.starts_with("-UNAVAILABLE") && reply.contains("is full"), "{refused}: {reply}");
    }
    sim.set_capacity(None);
    assert_eq!(ask(&mut client, "frame.append stream 1 two-"), ":8|");
    assert_eq!(ask(&mut client, "frame.append stream 1 three"), ":13|");
    assert_eq!(ask(&mut client, "frame.end stream 1"), "+OK|");
    assert!(ask(&mut client, "frame.end stream 1").starts_with("-NOTFOUND"));
    assert_eq!(ask(&mut client, "run.end stream"), "+OK|");
    let space = bench.daemon.store.namespace("default").unwrap();
    assert_eq!(space.run("stream").unwrap().frame(1).unwrap().output, b"one-two-three");
    assert!(bench.daemon.store.verify().unwrap().damaged.is_empty());
}

/// Regression: the drop used the reserve, and the note about it did not. RUN.DROP said that nothing was written, and the
/// operations had no word of it.
#[test]
fn drop_on_a_full_disk_is_acknowledged_and_noted() {
    let (bench, sim) = prepared();
    let mut client = bench.client();
    sim.set_capacity(Some(sim.used_bytes()));
    fill(&mut client);
    let noted = |bench: &super::DaemonBench| {
        let operations = bench.daemon.store.namespace("annals").unwrap();
        let frames = |name: &str| u64::from(operations.run(name).unwrap().info().frames);
        operations.runs().unwrap().map(|run| frames(&run.unwrap().name)).sum::<u64>()
    };
    let before = noted(&bench);
    assert_eq!(ask(&mut client, "run.drop done asked"), "+OK|");
    assert_eq!(noted(&bench), before + 1);
    assert!(ask(&mut client, "run.get done").starts_with("-GONE"));
}
