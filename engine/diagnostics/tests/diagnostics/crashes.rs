//! After a crash at any moment no acknowledged session is lost, and none is applied twice.

use annals::ErrorKind;
use annals_diagnostics::LessonFilter;
use serde_json::{Value, json};

use crate::support::{Bench, ended, session};

/// The reports of the history; each is acknowledged before the next one begins.
fn reports() -> Vec<Value> {
    ["rejected", "rework", "rejected", "accepted", "rejected"]
        .iter()
        .enumerate()
        .map(|(number, outcome)| {
            let mut report = ended(&format!("s{number}"), outcome, &["o", "p"]);
            report["orgId"] = "org".into();
            report["injectedGraphEntityIds"] = json!(["n"]);
            report
        })
        .collect()
}

/// Everything that reports leave behind, as one text.
fn contents(bench: &Bench) -> String {
    let all = LessonFilter::default();
    let of = LessonFilter { org: Some("org"), ..all };
    let diagnostics = &bench.diagnostics;
    let rows: Vec<bool> =
        (0..5).map(|number| diagnostics.session(&format!("s{number}")).unwrap().is_some()).collect();
    for filter in [all, of] {
        let recount = diagnostics.recount(&filter).unwrap();
        assert_eq!(recount.misleading, diagnostics.misleading(&filter).unwrap());
        assert_eq!(recount.distribution, diagnostics.distribution(&filter).unwrap());
    }
    format!(
        "{rows:?} {:?} {:?} {:?} {:?} {:?}",
        diagnostics.distribution(&of).unwrap(),
        ["o", "p"].map(|id| diagnostics.weight(id).unwrap()),
        ["o", "p"].map(|id| diagnostics.weight_history(id).unwrap().len()),
        diagnostics.node_weight("n").unwrap(),
        diagnostics.audit(0, 100).unwrap().len(),
    )
}

#[test]
fn crash_loses_no_acknowledged_session_and_applies_none_twice() {
    // What the store holds after each number of sessions.
    let mut states = Vec::new();
    let bench = Bench::new();
    let mut acknowledged = vec![(bench.sim.op_count(), 0)];
    states.push(contents(&bench));
    let from = bench.sim.op_count();
    for (number, report) in reports().iter().enumerate() {
        bench.record(report);
        acknowledged.push((bench.sim.op_count(), number + 1));
        states.push(contents(&bench));
    }
    let (mut crashes, mut between) = (0, 0);
    for (point, disk) in bench.sim.history().crashes(2).filter(|(point, _)| point.at >= from) {
        let least = acknowledged.iter().rev().find(|(at, _)| *at <= point.at).unwrap().1;
        let after = Bench::on(disk);
        let found = contents(&after);
        let there = states.iter().position(|state| *state == found);
        let there = there.unwrap_or_else(|| panic!("{point}: no whole number of sessions: {found}"));
        assert!(there == least || there == least + 1, "{point}: {there} sessions, {least} acknowledged");
        between += usize::from(there == least + 1);
        // The caller reports again what it does not know to be recorded. In the end all is there once.
        for report in &reports()[least..] {
            match after.diagnostics.record(&session(report), None) {
                Ok(_) => {}
                Err(error) => panic!("{point}: {error} ({:?})", ErrorKind::Conflict),
            }
        }
        assert_eq!(contents(&after), states[5], "{point}");
        after.store.close().unwrap();
        crashes += 1;
    }
    assert!(crashes > 20 && between > 0, "{crashes} crashes, {between} within a commit");
}
