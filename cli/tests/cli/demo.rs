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
    let reported = bench.run("demo --report demo.html").text();
    assert!(reported.contains("report       demo.html: "), "{reported}");
    let page = std::fs::read_to_string(bench.path("demo.html")).unwrap();
    assert!(
        page.contains("id=\"annals-report\"") && page.contains("Airline Agent Policy"),
        "no run is in it"
    );
    let [first] = bench.run("demo --json").json().try_into().unwrap();
    let [second] = bench.run("demo --json").json().try_into().unwrap();
    assert_eq!((&first["runs"], &first["bit_exact"]), (&12.into(), &408.into()));
    assert_eq!(first["fingerprint"], second["fingerprint"], "equal runs have equal fingerprints");
    assert!(first["frames_before_kill"].as_u64().unwrap() >= 204);
    assert!(told.contains(first["fingerprint"].as_str().unwrap()));
}
