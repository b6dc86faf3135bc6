//! Repair copies all whole data, names the rest, and does not change the damaged store.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};

use annals::io::sim::{Crash, SimIo};
use annals::io::{Io, OpenMode};
use annals::{
    Component, ErrorKind, Frame, Options, RunSpec, Severity, Status, Store,
    kv::{History, ScanRange},
    upkeep::{LostItem, RepairReport, diagnose, repair},
};

use crate::support::{GrowingConversation, SeededRng, assert_whole, batches, record, seed, sim_options};

fn options(sim: &SimIo) -> Options {
    Options { segment_bytes_max: 3 << 10, ..sim_options(sim) }
}

/// Time and value of a version.
type TimedValue = (u64, Option<Vec<u8>>);

type StoreFiles = BTreeMap<PathBuf, Vec<u8>>;

/// The content of a store.
#[derive(Debug, Default, PartialEq, Eq)]
struct StoreContent {
    /// By namespace, run and number: the frame as text, without its link.
    frames: BTreeMap<(String, String, u32), String>,
    snapshots: BTreeMap<(String, String, u32), String>,
    /// The facts of each run as text, without its uid; with the fingerprint.
    runs: BTreeMap<(String, String), String>,
    /// By namespace, keyspace and key: time and value of each version, newest first.
    versions: BTreeMap<(String, String, Vec<u8>), Vec<TimedValue>>,
}

const KEYSPACES: [&str; 2] = ["all", "latest"];

fn content(store: &Store) -> StoreContent {
    let mut all = StoreContent::default();
    for space_name in store.namespaces().unwrap() {
        let space = store.namespace(&space_name).unwrap();
        for info in space.runs().unwrap().map(Result::unwrap) {
            let reader = space.run(&info.name).unwrap();
            let id = (space_name.clone(), info.name.clone());
            for frame in reader.frames().map(Result::unwrap) {
                if frame.component == Component::Other("lost".into()) {
                    continue;
                }
                let mut frame = frame;
                frame.link = annals::runs::Link([0; 32]);
                let of = (id.0.clone(), id.1.clone(), frame.seq);
                all.frames.insert(of.clone(), format!("{frame:?}"));
                if let Ok(snapshot) = reader.snapshot(frame.seq) {
                    all.snapshots.insert(of, format!("{snapshot:?}"));
                }
            }
            let metadata = reader.metadata().unwrap();
            let parent = info.parent.as_ref().map(|parent| (parent.run.clone(), parent.at, parent.shared));
            let known = format!(
                "{} {} {:?} {} {} {parent:?} {} {:?} {} {} {:?} {metadata:?}",
                info.agent,
                info.model,
                info.tags,
                info.status,
                info.severity,
                info.started_ns,
                info.ended_ns,
                info.frames,
                info.raw_bytes,
                info.fingerprint,
            );
            all.runs.insert(id, known);
        }
        for name in
            KEYSPACES.iter().map(|name| (*name).to_owned()).chain((16..40).map(|n| format!("keyspace-{n}")))
        {
            let Some(keys) = space.find_keyspace(&name).unwrap() else { continue };
            let mut seen: Vec<Vec<u8>> = keys.scan(ScanRange::all()).map(|pair| pair.unwrap().0).collect();
            seen.push(b"gone".to_vec());
            for key in seen {
                let versions = keys.history(&key).unwrap();
                let versions = versions.into_iter().map(|version| (version.time_ns, version.value)).collect();
                all.versions.insert((space_name.clone(), name.clone(), key), versions);
            }
        }
    }
    all
}

/// Fills a store with every kind of data, in several segments.
fn fill(store: &Store) {
    let space = store.namespace("default").unwrap();
    let spec =
        RunSpec::new("one").agent("agent").model("model").tag("a", "b").metadata(SeededRng(1).text(600));
    let run = space.begin_run(spec).unwrap();
    let mut talk = GrowingConversation::new("one");
    record(&run, &mut talk, 3);
    run.snapshot(SeededRng(2).text(900), &[("e", &[1.0, 2.5])]).unwrap();
    let mut frame = Frame::new(Component::Other("own".into()), SeededRng(3).bytes(2000), "").parent(2);
    frame.metadata = br#"{"k":1}"#.to_vec();
    frame.severity = Severity::Escalated;
    frame.error = true;
    frame.duration_ns = 77;
    run.record(frame).unwrap();
    record(&run, &mut talk, 3);
    run.snapshot(SeededRng(2).text(950), &[]).unwrap();
    run.end(Status::Ok).unwrap();
    let all = space.keyspace("all", History::All).unwrap();
    let latest = space.keyspace("latest", History::Latest).unwrap();
    for i in 0..12u64 {
        all.put(format!("key{}", i % 5).as_bytes(), SeededRng(i).bytes(20 + 700 * (i as usize % 2))).unwrap();
        latest.put(format!("key{}", i % 3).as_bytes(), SeededRng(i).text(90)).unwrap();
    }
    let mut batch = space.batch();
    batch
        .put(&all, b"gone", SeededRng(9).text(6000))
        .put(&all, b"long", SeededRng(8).text(9000))
        .delete(&latest, b"key1");
    batch.commit().unwrap();
    all.delete(b"gone").unwrap();
    let fork = space.fork("one", 4, true, RunSpec::new("fork")).unwrap();
    fork.snapshot(SeededRng(4).text(300), &[]).unwrap();
    record(&fork, &mut GrowingConversation::new("two"), 3);
    fork.end(Status::Failed).unwrap();
    space
        .begin_run(RunSpec::new("again"))
        .unwrap()
        .record(Frame::new(Component::User, "old", "old"))
        .unwrap();
    let again = space.begin_run(RunSpec::new("again").replace(true)).unwrap();
    again.record(Frame::new(Component::User, "new", SeededRng(5).text(400))).unwrap();
    again.end(Status::Ok).unwrap();
    let other = store.namespace("other").unwrap();
    let run = other.begin_run(RunSpec::new("one")).unwrap();
    record(&run, &mut GrowingConversation::new("other"), 4);
    let open = run.begin_frame(&Frame::new(Component::Llm, SeededRng(6).text(500), "")).unwrap();
    open.append(&SeededRng(7).text(700)).unwrap();
    open.flush().unwrap();
    drop(open);
    drop(run);
}

fn store() -> (SimIo, StoreContent) {
    let sim = SimIo::new(8);
    let store = Store::open_with("s", options(&sim)).unwrap();
    fill(&store);
    store.close().unwrap();
    let store = Store::open_read_only_with("s", options(&sim)).unwrap();
    assert!(store.stats().unwrap().segments > 4);
    (sim.crash(Crash::Everything), content(&store))
}

fn files(sim: &SimIo, of: &str) -> StoreFiles {
    // The reserve holds disk space and no bytes.
    let ours = sim.files().into_iter().filter(|path| path.starts_with(of) && !path.ends_with("RESERVE"));
    ours.map(|path| (path.clone(), sim.read(&path).unwrap())).collect()
}

/// Number of records reported lost without a name; `None` if the number is unknown.
fn unnamed(report: &RepairReport) -> Option<u64> {
    report.lost.iter().try_fold(0, |sum, lost| match lost {
        LostItem::Records { from, to: Some(to), .. } => Some(sum + to.0 - from.0 + 1),
        LostItem::Records { to: None, .. } => None,
        _ => Some(sum),
    })
}

/// Repairs `s` and compares the result with the original content.
fn check(sim: &SimIo, wanted: &StoreContent) -> RepairReport {
    let before = files(sim, "s");
    let report = match repair("s", "new", options(sim)) {
        Ok(report) => report,
        Err(error) => panic!("{error}"),
    };
    assert!(files(sim, "s") == before, "the damaged store was changed");
    let store = Store::open_read_only_with("new", options(sim)).unwrap();
    assert_whole(&store);
    let found = content(&store);
    let renamed = report.lost.iter().any(|lost| matches!(lost, LostItem::Name { .. } | LostItem::Run { .. }));
    let budget = unnamed(&report);
    let mut missing = 0;
    for (of, frame) in &found.frames {
        // A run under a new name is compared by its bytes alone.
        let mut same = wanted.frames.get(of) == Some(frame);
        // The last parts of an unfinished stream may be lost without a report.
        same |= frame.contains("incomplete: true") && !report.lost.is_empty();
        // The record that a run was replaced may be lost: then the older run has its name again.
        let old = format!("{:?}", b"old");
        let is_older = of.1 == "again" && of.2 == 1 && frame.matches(&old).count() == 2;
        same |= is_older && !report.lost.is_empty();
        assert!(same || (renamed && wanted.frames.values().any(|known| same_bodies(known, frame))), "{of:?}");
    }
    for of in wanted.frames.keys().filter(|of| !found.frames.contains_key(*of)) {
        let named = report.lost.iter().any(|lost| {
            matches!(lost, LostItem::Frames { namespace, run, from, to, .. }
                if (namespace, run) == (&of.0, &of.1) && (*from..=*to).contains(&of.2))
        });
        missing += u64::from(!named);
        assert!(named || renamed || budget != Some(0), "{of:?} is gone: {:#?}", report.lost);
    }
    for (of, snapshot) in &found.snapshots {
        // A fork that lost its own state after a shared frame shows its parent's state.
        let parents = || !report.lost.is_empty() && wanted.snapshots.values().any(|known| known == snapshot);
        assert!(wanted.snapshots.get(of) == Some(snapshot) || parents(), "snapshot {of:?}");
    }
    for of in wanted.snapshots.keys().filter(|of| !found.snapshots.contains_key(*of)) {
        let named = report.lost.iter().any(|lost| {
            matches!(lost, LostItem::Snapshot { namespace, run, seq, .. }
                if (namespace, run, seq) == (&of.0, &of.1, &of.2))
        });
        assert!(named || renamed || budget != Some(0), "snapshot {of:?} is gone: {:#?}", report.lost);
    }
    for (of, versions) in &wanted.versions {
        let there = found.versions.get(of).map(Vec::as_slice).unwrap_or_default();
        let mut known = versions.iter();
        assert!(there.iter().all(|one| known.any(|known| known == one)) || of.1 == "latest", "{of:?}");
        let named =
            report.lost.iter().filter(|lost| matches!(lost, LostItem::Version { key, .. } if *key == of.2));
        let gone =
            (versions.len() - there.len().min(versions.len()) - named.count().min(versions.len())) as u64;
        missing += gone;
        assert!(gone == 0 || renamed || budget != Some(0), "{of:?} is gone: {:#?}", report.lost);
    }
    // Shared frames are records of one run only.
    assert!(
        renamed || budget.is_none_or(|budget| missing <= 2 * budget),
        "{missing} of {budget:?}: {:#?}",
        report.lost
    );
    if report.lost.is_empty() {
        let found = StoreContent {
            runs: if wanted.runs.is_empty() { BTreeMap::new() } else { found.runs.clone() },
            ..found
        };
        assert!(&found == wanted);
        assert_eq!(report.runs_whole, report.runs);
    }
    for (of, run) in &content(&store).runs {
        let marked = run.contains("annals.repair");
        assert!(
            wanted.runs.is_empty()
                || wanted.runs.get(of) == Some(run)
                || marked
                || renamed
                || !report.lost.is_empty(),
            "{of:?}: {run}"
        );
    }
    drop(store);
    for path in files(sim, "new").into_keys() {
        sim.remove(&path).unwrap();
    }
    report
}

fn same_bodies(a: &str, b: &str) -> bool {
    let bodies = |text: &str| text.split("input:").nth(1).map(str::to_owned);
    bodies(a) == bodies(b)
}

fn disk_of(files: &BTreeMap<PathBuf, Vec<u8>>) -> SimIo {
    let sim = SimIo::new(6);
    for (path, bytes) in files {
        sim.create_dir_all(path.parent().unwrap()).unwrap();
        sim.open(path, OpenMode::CreateNew).unwrap().write_at(&[IoSlice::new(bytes)], 0).unwrap();
    }
    sim
}

#[test]
fn repair_of_whole_store_copies_everything() {
    let (sim, wanted) = store();
    let report = check(&sim, &wanted);
    assert_eq!((report.lost.as_slice(), report.damage.as_slice()), (&[][..], &[][..]));
    assert_eq!(report.frames, 7 + 3 + 1 + 5);
    // An unclosed store whose last run is still open.
    let sim = SimIo::new(8);
    let store = Store::open_with("s", options(&sim)).unwrap();
    fill(&store);
    let sim = sim.crash(Crash::Everything);
    let report = check(&sim, &StoreContent { runs: BTreeMap::new(), ..content(&store) });
    assert_eq!((report.runs, report.runs_whole), (4, 4));
    assert!(report.lost.is_empty(), "{:?}", report.lost);
}

#[test]
fn repair_copies_whole_data_and_names_the_rest() {
    let mut rng = SeededRng(seed(51, "repair::repair_copies_whole_data_and_names_the_rest"));
    let (sim, wanted) = store();
    let all = files(&sim, "s");
    let (mut tried, mut hurt, mut frames, mut whole) = (0, 0, 0, 0);
    for (path, bytes) in &all {
        let rounds = 1 + bytes.len() / 90;
        for round in 0..rounds {
            let mut damaged = bytes.clone();
            match round % 5 {
                4 => damaged.truncate(rng.below(bytes.len() + 1)),
                3 => {
                    let from = rng.below(bytes.len());
                    let to = (from + 1 + rng.below(800)).min(bytes.len());
                    damaged[from..to].copy_from_slice(&rng.bytes(to - from));
                }
                _ => damaged[rng.below(bytes.len())] ^= 1 << rng.below(8),
            }
            let mut files = all.clone();
            files.insert(path.clone(), damaged);
            let report = check(&disk_of(&files), &wanted);
            tried += 1;
            hurt += usize::from(!report.lost.is_empty());
            frames += report.frames;
            whole += usize::from(report.frames == 16);
        }
    }
    println!("{tried} damaged stores: {hurt} lost something, {whole} no frame; {frames} frames saved");
    assert!(tried > 200 && hurt > 60 && whole > 20 && frames > 8 * tried);
}

/// Regression: the manifest was gone and the log had been cut. `SYNCED` knew of later records, yet repair reported
/// nothing as lost, and `annals repair` ended with 0.
#[test]
fn records_of_a_cut_log_are_lost_without_a_manifest() {
    let (sim, _) = store();
    let all = files(&sim, "s");
    let is_own = |path: &Path| path.to_string_lossy().contains("segments/0");
    let (path, bytes) = all.iter().rfind(|(path, _)| is_own(path)).unwrap();
    let (at, _) = *batches(bytes).last().unwrap();
    let without = |cut: Option<usize>, manifest: bool| {
        let mut files = all.clone();
        files.retain(|path, _| manifest || !path.to_string_lossy().contains("MANIFEST"));
        if let Some(len) = cut {
            files.insert(path.clone(), bytes[..len].to_vec());
        }
        repair("s", "new", options(&disk_of(&files))).unwrap().lost
    };
    assert_eq!(without(None, false), []);
    for cut in [at, at + 1, bytes.len() - 1] {
        let lost = without(Some(cut), false);
        let [LostItem::Records { to: Some(_), why, .. }, ..] = &lost[..] else { panic!("{cut}: {lost:?}") };
        assert!(why.contains("SYNCED says that they were synced"), "{cut}: {why}");
        assert!(!without(Some(cut), true).is_empty(), "{cut}");
    }
}

#[test]
fn repair_loses_only_data_of_missing_files() {
    let (sim, wanted) = store();
    let all = files(&sim, "s");
    for missing in all.keys() {
        let mut files = all.clone();
        files.remove(missing);
        let report = check(&disk_of(&files), &wanted);
        let segment = missing.extension().is_some_and(|end| end == "seg");
        assert_eq!(report.lost.is_empty(), !segment, "{}: {:?}", missing.display(), report.lost);
        assert_eq!(
            report.damage.is_empty(),
            !segment && !missing.ends_with("CURRENT") && !missing.to_string_lossy().contains("MANIFEST"),
            "{}",
            missing.display()
        );
    }
    let only = |keep: &dyn Fn(&str) -> bool| {
        let kept = all.clone().into_iter().filter(|(path, _)| keep(&path.to_string_lossy()));
        disk_of(&kept.collect())
    };
    // Repair needs nothing but segments.
    let report = check(&only(&|path| path.ends_with(".seg")), &wanted);
    assert_eq!(report.frames, 16);
    // But nothing else says where the log ended.
    let [LostItem::Records { to: None, why, .. }] = &report.lost[..] else { panic!("{:?}", report.lost) };
    assert!(why.contains("neither a manifest nor SYNCED"), "{why}");
    // Every second segment, and no manifest.
    let odd = |path: &str| path.ends_with("1.seg") || path.ends_with("3.seg") || path.ends_with("5.seg");
    let report = check(&only(&odd), &wanted);
    assert!(report.frames < 16 && !report.lost.is_empty());
    let error = repair("s", "new", options(&only(&|path| path.ends_with("LOCK")))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// Definitions stand in the log once, so the names in a lost first segment used to be lost, too.
#[test]
fn names_survive_the_loss_of_the_first_segment() {
    let sim = SimIo::new(4);
    let store = Store::open_with("s", options(&sim)).unwrap();
    let keyspaces = [("default", "notes"), ("default", "plans"), ("tenant", "notes")];
    let open = |store: &Store, (space, name): (&str, &str)| {
        store.namespace(space).unwrap().keyspace(name, History::Newest(3)).unwrap()
    };
    keyspaces.iter().for_each(|names| drop(open(&store, *names)));
    for round in 0..8u64 {
        for names in keyspaces {
            open(&store, names).put(format!("key{round}").as_bytes(), SeededRng(round).bytes(900)).unwrap();
        }
    }
    let run = store.namespace("tenant").unwrap().begin_run(RunSpec::new("late")).unwrap();
    record(&run, &mut GrowingConversation::new("late"), 3);
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    let all = files(&sim, "s");
    assert!(all.keys().filter(|path| path.extension().is_some_and(|end| end == "seg")).count() > 3);
    for also in ["s/CURRENT", "s/LOCK"] {
        let kept = all.clone().into_iter().filter(|(path, _)| {
            !path.ends_with("00000001.seg") && !path.starts_with("s/MANIFEST-0001") && path != Path::new(also)
        });
        let disk = disk_of(&kept.collect());
        let report = repair("s", "new", options(&disk)).unwrap();
        assert!(!report.lost.is_empty(), "the first segment is gone");
        assert!(report.lost.iter().all(|lost| !matches!(lost, LostItem::Name { .. })), "{:?}", report.lost);
        let store = Store::open_read_only_with("new", options(&disk)).unwrap();
        assert_eq!(store.namespaces().unwrap(), ["default", "tenant"]);
        for (space, name) in keyspaces {
            let keyspace = store.namespace(space).unwrap().find_keyspace(name).unwrap().unwrap();
            assert_eq!(keyspace.history_policy(), History::Newest(3));
            assert_eq!(keyspace.get(b"key7").unwrap().unwrap(), SeededRng(7).bytes(900));
        }
        assert_eq!(store.namespace("tenant").unwrap().run("late").unwrap().frames().count(), 3);
    }
}

#[test]
fn repair_rejects_changed_batch_with_valid_checksums() {
    let (sim, wanted) = store();
    let all = files(&sim, "s");
    let mut tried = 0;
    for (path, bytes) in all.iter().filter(|(path, _)| path.extension().is_some_and(|end| end == "seg")) {
        for (at, len) in batches(bytes) {
            // A batch may hold the records of many: joined batches are one here.
            for byte in [at + 48 + 30, at + len / 5, at + len / 4, at + len / 3, at + len / 2, at + len - 1] {
                let mut changed = bytes.clone();
                changed[byte.min(at + len - 1)] ^= 4;
                if !crate::support::reseal_batch(&mut changed, at, len) || changed == *bytes {
                    continue;
                }
                let mut files = all.clone();
                files.insert(path.clone(), changed);
                let report = check(&disk_of(&files), &wanted);
                assert!(
                    !report.lost.is_empty() && !report.damage.is_empty(),
                    "byte {byte} of {}",
                    path.display()
                );
                tried += 1;
            }
        }
    }
    assert!(tried > 50, "{tried}");
}

#[test]
fn repair_refuses_locked_source_or_used_target() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let kind = |from: &Path, to: &Path| repair(from, to, Options::default()).unwrap_err().kind();
    assert_eq!(kind(&at("none"), &at("new")), ErrorKind::NotFound);
    let store = Store::open(at("s")).unwrap();
    fill(&store);
    assert_eq!(kind(&at("s"), &at("new")), ErrorKind::Locked);
    store.close().unwrap();
    std::fs::create_dir(at("used")).unwrap();
    std::fs::write(at("used/thesis"), "x").unwrap();
    assert_eq!(kind(&at("s"), &at("used")), ErrorKind::Invalid);
    assert_eq!(kind(&at("s"), &at("s")), ErrorKind::Invalid);
    assert!(!at("new").exists());
    let report = repair(at("s"), at("new"), Options::default()).unwrap();
    assert_eq!((report.frames, report.lost.len()), (16, 0));
}

/// A repair that was interrupted left a store that opened, verified whole, and lacked most of the data.
#[test]
fn interrupted_repair_leaves_no_store_or_a_whole_one() {
    let (sim, wanted) = store();
    let sim = disk_of(&files(&sim, "s"));
    let began = sim.op_count();
    repair("s", "new", options(&sim)).unwrap();
    let done = sim.op_count();
    let (mut none, mut whole) = (0, 0);
    for (point, disk) in sim.history().crashes(3) {
        if point.at < began {
            continue;
        }
        match Store::open_read_only_with("new", options(&disk)) {
            Ok(copy) => {
                assert!(content(&copy) == wanted, "{point}");
                whole += 1;
                continue;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{point}: {error}"),
        }
        assert!(point.at < done, "{point}: a finished repair is gone");
        none += 1;
        let files: Vec<_> = disk.files().into_iter().filter(|path| path.starts_with("new")).collect();
        if files.iter().any(|path| path.ends_with("DRAFT")) {
            for error in [
                Store::open_read_only_with("new", options(&disk)).unwrap_err(),
                Store::open_with("new", options(&disk)).unwrap_err(),
                diagnose("new", options(&disk)).unwrap_err(),
                repair("new", "other", options(&disk)).unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{point}: {error}");
                assert!(error.to_string().contains("unfinished repair"), "{point}: {error}");
            }
        }
    }
    println!("{none} crashes left no store, {whole} a whole one");
    assert!(none > 100 && whole > 1);
}

/// Repair numbered segments by their file names: a renamed file was lost with all its records.
#[test]
fn renamed_segments_are_taken_by_their_headers() {
    let (sim, wanted) = store();
    let all = files(&sim, "s");
    let segments: Vec<PathBuf> =
        all.keys().filter(|path| path.extension().is_some_and(|end| end == "seg")).cloned().collect();
    let renamed = |changes: &[(&PathBuf, PathBuf)]| {
        let mut files = all.clone();
        changes.iter().for_each(|(from, _)| drop(files.remove(*from)));
        changes.iter().for_each(|(from, to)| drop(files.insert(to.clone(), all[*from].clone())));
        check(&disk_of(&files), &wanted)
    };
    for path in &segments {
        for name in ["00000099.seg", "segment", "lost+found-1"] {
            let report = renamed(&[(path, path.with_file_name(name))]);
            assert_eq!((&*report.lost, report.frames), (&[][..], 16), "{}", path.display());
            assert!(
                report.damage.iter().any(|damage| damage.what.contains("rename it")),
                "{:?}",
                report.damage
            );
        }
    }
    let swapped = renamed(&[(&segments[0], segments[1].clone()), (&segments[1], segments[0].clone())]);
    assert_eq!((&*swapped.lost, swapped.frames), (&[][..], 16));
    // A copy beside the segment is no damage; under the name of a segment it is left out.
    let mut files = all.clone();
    files.insert(segments[1].with_file_name("copy"), all[&segments[1]].clone());
    let report = check(&disk_of(&files), &wanted);
    assert_eq!((report.lost.as_slice(), report.damage.as_slice()), (&[][..], &[][..]));
    files.insert(segments[1].with_file_name("00000098.seg"), all[&segments[1]].clone());
    let report = check(&disk_of(&files), &wanted);
    assert_eq!((&*report.lost, report.damage.len()), (&[][..], 1));
}

/// One changed byte once cost every later frame whose body shares bytes with it: up to 211 of 360.
#[test]
fn one_changed_byte_is_restored_and_costs_nothing() {
    let mut rng = SeededRng(seed(52, "repair::one_changed_byte_is_restored_and_costs_nothing"));
    let (sim, wanted) = store();
    let all = files(&sim, "s");
    let mut tried = 0;
    for (path, bytes) in all.iter().filter(|(path, _)| path.extension().is_some_and(|end| end == "seg")) {
        for _ in 0..40.min(bytes.len()) {
            let mut files = all.clone();
            let (at, change) = (rng.below(bytes.len()), 1 + rng.below(255) as u8);
            files.get_mut(path).unwrap()[at] ^= change;
            let report = check(&disk_of(&files), &wanted);
            let what = format!("byte {at} of {} by {change}", path.display());
            assert_eq!((&*report.lost, report.frames), (&[][..], 16), "{what}");
            assert!(!report.damage.is_empty(), "{what}");
            tried += 1;
        }
    }
    assert!(tried > 200, "{tried}");
}

/// A conversation whose bodies share bytes, closed: its files, and the length of its segment after each frame.
fn talk_of(frames: usize, options: impl Fn(&SimIo) -> Options) -> (StoreFiles, Vec<usize>) {
    let sim = SimIo::new(8);
    let store = Store::open_with("s", options(&sim)).unwrap();
    let run = store.namespace("default").unwrap().begin_run(RunSpec::new("r")).unwrap();
    let mut talk = GrowingConversation::new("r");
    let mut ends = Vec::new();
    for _ in 0..frames {
        record(&run, &mut talk, 1);
        ends.push(sim.read(Path::new("s/segments/00000001.seg")).unwrap().len());
    }
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    (files(&sim, "s"), ends)
}

/// Destroys each whole sector of the longest segment, one after the other. Returns its length, and for each
/// place how many frames a repair finds.
fn frames_after_a_destroyed_sector(
    all: &StoreFiles,
    options: impl Fn(&SimIo) -> Options,
) -> (usize, Vec<(usize, usize)>) {
    let (segment, bytes) = (all.iter())
        .filter(|(path, _)| path.extension().is_some_and(|end| end == "seg"))
        .max_by_key(|(_, bytes)| bytes.len())
        .unwrap();
    let places = bytes.len() / 512;
    let found = (0..places).map(|round| {
        let at = round * 512;
        let mut files = all.clone();
        files.get_mut(segment).unwrap()[at..at + 512].copy_from_slice(&SeededRng(round as u64).bytes(512));
        (at, repair("s", "new", options(&disk_of(&files))).unwrap().frames as usize)
    });
    (bytes.len(), found.collect())
}

/// Returns the mean.
fn print_lost(what: &str, len: usize, frames: usize, found: &[(usize, usize)]) -> usize {
    let mut lost: Vec<usize> = found.iter().map(|(_, found)| frames - found).collect();
    lost.sort_unstable();
    let mean = lost.iter().sum::<usize>() / lost.len();
    let (least, most) = (lost[0], lost[lost.len() - 1]);
    println!(
        "{what}: a destroyed sector of {len} bytes costs {least}, {mean}, {most} of {frames} frames: least, mean, \
         most"
    );
    mean
}

/// What a destroyed sector costs in a conversation whose bodies share bytes: at most what was recorded from
/// there on, never a frame before.
#[test]
fn destroyed_sector_costs_no_earlier_frame() {
    let options = |sim: &SimIo| Options { zero_ahead_bytes: 0, raw_tail_bytes_max: 0, ..sim_options(sim) };
    let (all, ends) = talk_of(360, options);
    let (len, found) = frames_after_a_destroyed_sector(&all, options);
    for (at, found) in &found {
        let before = ends.iter().filter(|end| *end <= at).count();
        assert!(*found >= before, "byte {at}: {found} of {before} frames");
    }
    assert!(print_lost("compressed at once", len, 360, &found) > 120);
}

/// Where the tail was compressed, a part holds the new bytes of several frames, so that some before it are lost. As
/// fewer parts follow one another, most places cost less.
#[test]
fn destroyed_sector_in_a_compressed_tail_costs_less_on_average() {
    let options = |sim: &SimIo| Options { zero_ahead_bytes: 0, ..sim_options(sim) };
    let (all, _) = talk_of(360, options);
    let (len, found) = frames_after_a_destroyed_sector(&all, options);
    let mean = print_lost("compressed by the closing", len, 360, &found);
    assert!(mean < 120, "{found:?}");
}
