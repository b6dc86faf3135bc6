//! `annals demo`.

use crate::CliBench;

#[test]
fn demo_kills_its_recorder_and_recovers_everything() {
    let bench = CliBench::new();
    let told = bench.run("demo --keep kept").text();
    assert!(told.contains("bit-exact: 408 of 408"), "{told}");
    assert!(told.contains("4,018,124"), "{told}");
    assert_eq!(bench.run("--store kept runs --json").json().len(), 12);
    bench.run("--store kept verify").ok();
    assert!(bench.run("demo --keep kept").failed(1).contains("exists"));
    let [first] = bench.run("demo --json").json().try_into().unwrap();
    let [second] = bench.run("demo --json").json().try_into().unwrap();
    assert_eq!((&first["runs"], &first["bit_exact"]), (&12.into(), &408.into()));
    assert_eq!(first["fingerprint"], second["fingerprint"], "equal runs have equal fingerprints");
    assert!(first["frames_before_kill"].as_u64().unwrap() >= 204);
    assert!(told.contains(first["fingerprint"].as_str().unwrap()));
}
