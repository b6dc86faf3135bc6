//! `annals get`, `put`, `del` and `scan`.

use crate::CliBench;

#[test]
fn a_value_comes_back_as_it_was_put() {
    let bench = CliBench::new();
    bench.run("put k v1").ok();
    bench.run("put k v2").ok();
    assert_eq!(bench.run("get k --raw").ok(), b"v2");
    assert_eq!(bench.run("get k").ok(), b"v2");
    let bytes: Vec<u8> = (0..=255).collect();
    bench.pipe("put binary -", &bytes).ok();
    assert_eq!(bench.run("get binary --raw").ok(), bytes);
    let [pair] = bench.run("get binary --json").json().try_into().unwrap();
    assert_eq!(pair["key"], "binary");
    assert!(pair["value_base64"].is_string() && pair["value"].is_null());
}

#[test]
fn keyspaces_and_namespaces_are_separate() {
    let bench = CliBench::new();
    bench.run("put k here").ok();
    bench.run("put k there --keyspace other").ok();
    bench.run("--namespace b put k elsewhere").ok();
    assert_eq!(bench.run("get k").ok(), b"here");
    assert_eq!(bench.run("get k --keyspace other").ok(), b"there");
    assert_eq!(bench.run("get k --namespace b").ok(), b"elsewhere");
}

#[test]
fn a_deleted_key_is_gone() {
    let bench = CliBench::new();
    bench.run("put k v").ok();
    bench.run("del k").ok();
    assert_eq!(bench.run("get k").failed(4), "no key `k`");
    bench.run("del k").failed(4);
}

#[test]
fn scan_runs_forward_and_reverse() {
    let bench = CliBench::new();
    for key in ["b", "a1", "a2", "c"] {
        bench.run(&format!("put {key} v-{key}")).ok();
    }
    let keys = |line: &str| -> Vec<String> {
        bench.run(line).json().iter().map(|pair| pair["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(keys("scan --json"), ["a1", "a2", "b", "c"]);
    assert_eq!(keys("scan --json --reverse"), ["c", "b", "a2", "a1"]);
    assert_eq!(keys("scan a --json"), ["a1", "a2"]);
    assert_eq!(keys("scan a --json --reverse --limit 1"), ["a2"]);
    assert_eq!(bench.run("scan b").text(), "b\tv-b\n");
}

#[test]
fn older_versions_can_be_read() {
    let bench = CliBench::new();
    let put = |value: &str| bench.run(&format!("put k {value} --json")).json()[0]["seqno"].as_u64().unwrap();
    let (first, second) = (put("v1"), put("v2"));
    bench.run("del k").ok();
    assert_eq!(bench.run(&format!("get k --at {first}")).ok(), b"v1");
    assert_eq!(bench.run(&format!("get k --at {second}")).ok(), b"v2");
    let versions = bench.run("get k --history --json").json();
    assert_eq!(versions.len(), 3);
    assert_eq!(versions.iter().filter(|version| version["deleted"] == true).count(), 1);
    assert!(versions.iter().any(|version| version["seqno"] == first && version["value"] == "v1"));
}

/// Regression: a scan showed the keys "a\tb" and "a\nb" both as "a b".
#[test]
fn scan_shows_white_space_in_keys() {
    let bench = CliBench::new();
    for key in ["a\tb", "a\nb", "a b"] {
        bench.run_args(["put", key, "value"]).ok();
    }
    let lines = bench.run("scan").text();
    assert_eq!(lines, "a\\tb\tvalue\na\\nb\tvalue\na b\tvalue\n");
}
