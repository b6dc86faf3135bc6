//! The forks of a blame go with the run that was blamed.

use serde_json::json;

use super::StepUpstream;
use crate::CliBench;
use crate::record::says;

/// A failed run of three steps with a blame of 3 re-runs and 6 forks.
fn blamed() -> CliBench {
    let (bench, upstream) = (CliBench::new(), StepUpstream::with_fault(2));
    assert_eq!(bench.record_steps(&upstream, "r", &["3"]).code, 1);
    assert_eq!(bench.blame_command(&["blame", "r", "--k", "2", "--no-early-stop"]).code, 0);
    assert_eq!(bench.names(), ["r", "9 forks"]);
    bench
}

impl CliBench {
    /// Names of the runs, and how many forks of blames there are.
    fn names(&self) -> Vec<String> {
        let all = self.run("runs --json --blame-forks").json();
        let (forks, mut names): (Vec<_>, Vec<_>) = all
            .iter()
            .map(|run| run["id"].as_str().unwrap().to_owned())
            .partition(|name| name.contains("-blame-"));
        names.reverse();
        if !forks.is_empty() {
            names.push(format!("{} forks", forks.len()));
        }
        names
    }
}

/// `forget` and a policy dropped the run and left its forks, which hold the same conversation. Nothing named them, and
/// `blame --drop` refused a run that was dropped.
#[test]
fn forgotten_run_takes_its_blame_forks_along() {
    let bench = blamed();
    let text = bench.run("forget r --why asked").text();
    assert!(text.contains("9 forks of its blame went with it\n"), "{text}");
    assert!(!text.contains("forks share"), "{text}");
    assert!(bench.names().is_empty());
    bench.run("blame r --drop").failed(4);
    assert_eq!(bench.run("verify --all").code, 0);

    let bench = blamed();
    let [told] = bench.run("forget r --why asked --json").json().try_into().unwrap();
    assert_eq!((&told["blame_forks"], &told["shared_by_forks"]), (&json!(9), &json!(0)));
}

#[test]
fn retention_drops_blame_forks_with_their_run() {
    let bench = blamed();
    // The forks end with the status ok or failed; the run failed, so the rule for failed runs decides about all.
    let text = bench.run("retain --dry-run --at +30d").text();
    assert!(text.contains("to be dropped: 0 runs"), "{text}");
    let text = bench.run("retain --dry-run --at +100d").text();
    assert!(text.contains("to be dropped: 10 runs"), "{text}");
    bench.run("pin r-blame-4 --why evidence").ok();
    // Regression: the forks before the pinned one were dropped.
    let before = bench.names();
    let refused = bench.run("blame r --drop");
    assert_eq!(refused.code, 1, "{refused:?}");
    assert_eq!(bench.names(), before);
    let text = bench.run("retain --at +100d").text();
    assert!(text.contains("dropped: 9 runs"), "{text}");
    assert_eq!(bench.names(), ["1 forks"]);
    // The pinned fork outlived its run, and is found by its tag.
    let refused = bench.run("blame r --drop");
    assert_eq!(refused.code, 1, "{refused:?}");
    says(&refused, &["is pinned: unpin it first"]);
    bench.run("unpin r-blame-4").ok();
    let text = bench.run("blame r --drop").text();
    assert!(text.contains("dropped the blame of r and 1 fork\n"), "{text}");
    assert!(bench.names().is_empty());
}

/// A fork that outlived its run is named by `forget`, too, which else says that there is no such run.
#[test]
fn forks_of_a_dropped_run_are_forgotten_by_its_name() {
    let bench = blamed();
    bench.run("pin r-blame-4 --why evidence").ok();
    let error = bench.run("forget r --why asked").failed(1);
    assert!(error.contains("\"r-blame-4\", a fork of the blame of \"r\", is pinned"), "{error}");
    assert_eq!(bench.names(), ["r", "9 forks"]);
    bench.run("retain --at +100d").ok();
    bench.run("unpin r-blame-4").ok();
    let text = bench.run("forget r --why asked").text();
    assert!(text.contains("1 fork of its blame"), "{text}");
    assert!(bench.names().is_empty());
    bench.run("forget r --why asked").failed(4);
}
