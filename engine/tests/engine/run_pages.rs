//! Pages of runs by filter: what they show is what a look at every run finds.

use annals::runs::{RunFilter, RunOrder};
use annals::upkeep::CompactOptions;
use annals::{Component, Frame, Namespace, RunInfo, RunSpec, Severity, Status, Store};

use crate::support::{SeededRng, delete_tables, fresh, reader, seed, writer};

const SECOND_NS: u64 = 1_000_000_000;
const BEGAN_NS: u64 = 1_700_000_000 * SECOND_NS;

fn admits(filter: &RunFilter, info: &RunInfo) -> bool {
    (filter.statuses.is_empty() || filter.statuses.contains(&info.status))
        && filter.severity.is_none_or(|severity| severity == info.severity)
        && filter.agent.as_ref().is_none_or(|agent| *agent == info.agent)
        && filter.model.as_ref().is_none_or(|model| *model == info.model)
        && filter.tags.iter().all(|tag| info.tags.contains(tag))
        && filter.since_ns.is_none_or(|since| info.started_ns >= since)
        && filter.until_ns.is_none_or(|until| info.started_ns < until)
}

fn random_filter(rng: &mut SeededRng) -> RunFilter {
    let statuses = [Status::Open, Status::Ok, Status::Failed, Status::Abandoned];
    let severities = [Severity::Debug, Severity::Normal, Severity::Flagged, Severity::Escalated];
    let mut filter = RunFilter::default();
    if rng.below(2) == 0 {
        filter.statuses = (0..=rng.below(2)).map(|_| statuses[rng.below(4)]).collect();
    }
    if rng.below(4) == 0 {
        filter.severity = Some(severities[rng.below(4)]);
    }
    if rng.below(3) == 0 {
        filter.agent = Some(["", "clerk", "judge", "nobody"][rng.below(4)].to_owned());
    }
    if rng.below(4) == 0 {
        filter.model = Some(["", "small", "large"][rng.below(3)].to_owned());
    }
    if rng.below(4) == 0 {
        filter.tags = vec![("team".to_owned(), format!("t{}", rng.below(5)))];
    }
    if rng.below(4) == 0 {
        filter.since_ns = Some(BEGAN_NS + rng.below(400) as u64 * SECOND_NS / 2);
    }
    if rng.below(4) == 0 {
        filter.until_ns = Some(BEGAN_NS + rng.below(400) as u64 * SECOND_NS / 2);
    }
    filter
}

/// All pages of a filter.
fn paged(space: &Namespace, filter: &RunFilter, order: RunOrder, count: usize) -> Vec<String> {
    let (mut after, mut names) = (None, Vec::new());
    loop {
        let page = space.page_runs(filter, order, after, count).unwrap();
        assert!(page.runs.len() <= count);
        names.extend(page.runs.iter().map(|run| run.info().name.clone()));
        after = page.next;
        if after.is_none() {
            return names;
        }
    }
}

fn check(store: &Store, rng: &mut SeededRng) {
    let space = store.namespace("default").unwrap();
    let all: Vec<RunInfo> = space.runs().unwrap().map(Result::unwrap).collect();
    for _ in 0..60 {
        let filter = random_filter(rng);
        let mut wanted: Vec<String> =
            all.iter().filter(|info| admits(&filter, info)).map(|info| info.name.clone()).collect();
        let count = [1, 7, 500][rng.below(3)];
        assert_eq!(paged(&space, &filter, RunOrder::OldestFirst, count), wanted, "{filter:?}");
        wanted.reverse();
        assert_eq!(paged(&space, &filter, RunOrder::NewestFirst, count), wanted, "{filter:?}");
    }
}

fn spec(rng: &mut SeededRng, number: usize) -> RunSpec {
    let mut spec = RunSpec::new(format!("run-{number}"))
        .agent(["", "clerk", "judge"][rng.below(3)])
        .model(["", "small", "large"][rng.below(3)]);
    if rng.below(2) == 0 {
        spec = spec.tag("team", format!("t{}", rng.below(4)));
    }
    // Imported runs may begin before runs with smaller numbers.
    spec.started_ns = Some(BEGAN_NS + rng.below(200) as u64 * SECOND_NS);
    spec
}

/// Runs begin, change their severity, end, are replaced, dropped and resumed. Then every page must show what a look
/// at each run finds: in the store as it is, with open runs, after reopening, with rebuilt tables, and compacted.
#[test]
fn pages_show_what_a_look_at_every_run_finds() {
    let mut rng = SeededRng(seed(11, "run_pages::pages_show_what_a_look_at_every_run_finds"));
    let (dir, store, space) = fresh();
    let path = dir.path().join("s");
    let mut open = Vec::new();
    for number in 0..600 {
        let mut spec = spec(&mut rng, number % 450);
        spec.replace = true;
        let Ok(run) = space.begin_run(spec) else { continue };
        run.record(Frame::new(Component::Llm, "q", "a")).unwrap();
        match rng.below(8) {
            0 => run.set_severity(Severity::Flagged).unwrap(),
            1 => {
                run.set_severity(Severity::Escalated).unwrap();
                run.set_severity(Severity::Normal).unwrap();
            }
            _ => {}
        }
        match rng.below(6) {
            0 => open.push(run),
            1 => drop(run.end(Status::Failed).unwrap()),
            2 => {
                run.abandon().unwrap();
                drop(run);
                if rng.below(2) == 0 {
                    space.resume_run(&format!("run-{}", number % 450)).unwrap().run.end(Status::Ok).unwrap();
                }
            }
            3 if rng.below(2) == 0 => {
                run.end(Status::Ok).unwrap();
                space.drop_run(&format!("run-{}", number % 450), "test", "").unwrap();
            }
            _ => drop(run.end(Status::Ok).unwrap()),
        }
    }
    check(&store, &mut rng);
    drop(open);
    store.close().unwrap();
    check(&reader(&path).unwrap(), &mut rng);
    delete_tables(&path);
    check(&reader(&path).unwrap(), &mut rng);
    let store = writer(&path).unwrap();
    check(&store, &mut rng);
    store.compact(&CompactOptions::default()).unwrap();
    check(&store, &mut rng);
    store.close().unwrap();
    check(&reader(&path).unwrap(), &mut rng);
}

/// A page looks at a bounded number of runs, and goes on where it stopped.
#[test]
fn page_without_hits_says_where_to_go_on() {
    let (_dir, _store, space) = fresh();
    for number in 0..1500 {
        let run = space.prepare_run(RunSpec::new(format!("run-{number}"))).unwrap();
        let mut batch = run.batch().unwrap();
        batch.end(if number == 0 { Status::Failed } else { Status::Ok }).unwrap();
        drop(batch.submit().unwrap());
    }
    // No list has the runs of an empty agent.
    let filter =
        RunFilter { statuses: vec![Status::Failed], agent: Some(String::new()), ..RunFilter::default() };
    let first = space.page_runs(&filter, RunOrder::NewestFirst, None, 10).unwrap();
    assert!(first.runs.is_empty() && first.next.is_some());
    let second = space.page_runs(&filter, RunOrder::NewestFirst, first.next, 10).unwrap();
    assert_eq!(second.runs.len(), 1);
    assert!(second.next.is_none());
}
