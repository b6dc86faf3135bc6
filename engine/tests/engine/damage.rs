//! Damaged store files give a typed error, a report, or exactly the right bytes; never wrong bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use annals::io::sim::SimIo;
use annals::io::{Io, OpenMode};
use annals::{
    Error, ErrorKind, Options, RunSpec, Status, Store,
    kv::{History, ScanRange},
};

use crate::support::{GrowingConversation, SeededRng, record, recorded, seed, sim_options};

pub(crate) fn options(sim: &SimIo) -> Options {
    Options { segment_bytes_max: 3 << 10, ..sim_options(sim) }
}

/// Everything that a reader can return, by name.
pub(crate) type ReadableContent = BTreeMap<String, Vec<u8>>;

/// Reads everything. Unreadable things are left out, and their errors are returned.
pub(crate) fn read_all(store: &Store) -> (ReadableContent, Vec<Error>) {
    let (mut content, mut errors) = (ReadableContent::new(), Vec::new());
    let mut note = |name: String, found: annals::Result<Vec<u8>>| match found {
        Ok(bytes) => drop(content.insert(name, bytes)),
        Err(error) => errors.push(error),
    };
    let space = match store.namespace("default") {
        Ok(space) => space,
        Err(error) => return (content, vec![error]),
    };
    match space.runs() {
        Ok(runs) => {
            for info in runs {
                let reader = info.and_then(|info| space.run(&info.name));
                let reader = match reader {
                    Ok(reader) => reader,
                    Err(error) => {
                        note("run".into(), Err(error));
                        continue;
                    }
                };
                let name = reader.info().name.clone();
                note(format!("{name} info"), Ok(format!("{:?}", reader.info()).into_bytes()));
                note(format!("{name} metadata"), reader.metadata());
                for seq in 1..=reader.info().frames.min(64) {
                    note(
                        format!("{name}@{seq}"),
                        reader.frame(seq).map(|frame| format!("{frame:?}").into_bytes()),
                    );
                    match reader.snapshot(seq) {
                        Err(error) if error.kind() != ErrorKind::NotFound => note(String::new(), Err(error)),
                        _ => {}
                    }
                }
                note(format!("{name} whole"), reader.verify().map(|v| format!("{v:?}").into_bytes()));
                note(
                    format!("{name} state"),
                    reader.snapshot_at(u32::MAX - 1).map(|s| format!("{s:?}").into_bytes()),
                );
            }
        }
        Err(error) => note("runs".into(), Err(error)),
    }
    match space.keyspace("k", History::All) {
        Ok(keys) => {
            for pair in keys.scan(ScanRange::all()).take(1000) {
                match pair {
                    Ok((key, value)) => {
                        let history = keys.history(&key).map(|all| format!("{all:?}").into_bytes());
                        note(format!("history {key:?}"), history);
                        note(format!("key {key:?}"), Ok(value));
                    }
                    Err(error) => note("scan".into(), Err(error)),
                }
            }
        }
        Err(error) => note("keyspace".into(), Err(error)),
    }
    (content, errors)
}

/// A small store in several segments, closed cleanly.
pub(crate) fn small_store() -> (SimIo, ReadableContent) {
    let sim = SimIo::new(5);
    let store = Store::open_with("s", options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("one").metadata(SeededRng(1).text(300)).tag("a", "b")).unwrap();
    record(&run, &mut GrowingConversation::new("one"), 4);
    run.snapshot(SeededRng(2).text(500), &[("e", &[1.0, 2.0])]).unwrap();
    run.end(Status::Ok).unwrap();
    let keys = space.keyspace("k", History::All).unwrap();
    for i in 0..6u64 {
        keys.put(format!("key{}", i % 4).as_bytes(), SeededRng(i).bytes(30 + 900 * (i as usize % 2)))
            .unwrap();
    }
    keys.put(b"long", SeededRng(3).text(5000)).unwrap();
    keys.delete(b"key1").unwrap();
    let fork = space.fork("one", 3, true, RunSpec::new("two")).unwrap();
    record(&fork, &mut GrowingConversation::new("two"), 2);
    fork.end(Status::Failed).unwrap();
    store.close().unwrap();
    let (content, errors) = read_all(&Store::open_read_only_with("s", options(&sim)).unwrap());
    assert!(errors.is_empty(), "{errors:?}");
    assert!(content.len() > 20);
    (sim, content)
}

pub(crate) fn files(sim: &SimIo) -> BTreeMap<PathBuf, Vec<u8>> {
    // The reserve holds disk space and no bytes.
    let ours = sim.files().into_iter().filter(|path| !path.ends_with("RESERVE"));
    ours.map(|path| (path.clone(), sim.read(&path).unwrap())).collect()
}

/// A disk that holds these files.
pub(crate) fn disk_of(files: &BTreeMap<PathBuf, Vec<u8>>) -> SimIo {
    let sim = SimIo::new(6);
    for (path, bytes) in files {
        sim.create_dir_all(path.parent().unwrap()).unwrap();
        sim.open(path, OpenMode::CreateNew).unwrap().write_at(&[IoSlice::new(bytes)], 0).unwrap();
    }
    sim
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DamageOutcome {
    /// The store does not open and gives a reason.
    Refused,
    /// The store opens, damage is reported, and no wrong bytes are returned.
    Reported,
    /// Every byte is right.
    Right,
}

impl fmt::Display for DamageOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_lowercase())
    }
}

pub(crate) fn assert_typed_error(error: &Error) {
    assert!(!matches!(error.kind(), ErrorKind::Bug | ErrorKind::Poisoned | ErrorKind::Locked), "{error:?}");
    assert!(!error.to_string().is_empty());
}

fn outcome(opened: annals::Result<Store>, wanted: &ReadableContent) -> DamageOutcome {
    let store = match opened {
        Ok(store) => store,
        Err(error) => {
            assert_typed_error(&error);
            return DamageOutcome::Refused;
        }
    };
    let (content, errors) = read_all(&store);
    errors.iter().for_each(assert_typed_error);
    for (name, bytes) in &content {
        assert!(wanted.get(name) == Some(bytes), "wrong bytes are returned for {name:?}");
    }
    let reported = match store.verify() {
        Ok(report) => !report.damaged.is_empty(),
        Err(error) => {
            assert_typed_error(&error);
            true
        }
    };
    let whole = content.len() == wanted.len();
    assert!(
        reported || whole,
        "{} of {} things are gone without a report",
        wanted.len() - content.len(),
        wanted.len()
    );
    assert!(reported || errors.is_empty(), "reading fails and verify finds nothing: {errors:?}");
    if reported { DamageOutcome::Reported } else { DamageOutcome::Right }
}

/// The kind of a file, for the counts.
fn kind(path: &Path) -> String {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    match path.extension() {
        Some(extension) => extension.to_string_lossy().into_owned(),
        None => name.split('-').next().unwrap().to_owned(),
    }
}

/// Applies each change of `ways` to each file, opens the store, and counts the outcomes.
fn count_outcomes(
    what: &str,
    ways: impl Fn(&[u8]) -> Vec<(String, Vec<u8>)>,
    write: bool,
    skip_same: bool,
) -> BTreeMap<(String, DamageOutcome), usize> {
    let (sim, wanted) = small_store();
    let files = files(&sim);
    let mut counts = BTreeMap::new();
    for (path, bytes) in &files {
        for (how, hurt) in ways(bytes) {
            if skip_same && hurt == *bytes {
                continue;
            }
            let done = catch_unwind(AssertUnwindSafe(|| {
                if write {
                    let mut files = files.clone();
                    files.insert(path.clone(), hurt.clone());
                    return outcome(Store::open_with("s", options(&disk_of(&files))), &wanted);
                }
                sim.edit(path, |bytes| bytes.clone_from(&hurt)).unwrap();
                let done = outcome(Store::open_read_only_with("s", options(&sim)), &wanted);
                sim.edit(path, |to| to.clone_from(bytes)).unwrap();
                done
            }));
            let Ok(done) = done else { panic!("{} of {} bytes: {how}", path.display(), bytes.len()) };
            *counts.entry((kind(path), done)).or_default() += 1;
        }
    }
    println!("{what}, opened for {}:", if write { "writing" } else { "reading" });
    for ((kind, outcome), count) in &counts {
        println!("  {kind:<9} {outcome:<9} {count}");
    }
    counts
}

fn flips(seed: u64, step: usize) -> impl Fn(&[u8]) -> Vec<(String, Vec<u8>)> {
    move |bytes| {
        let mut rng = SeededRng(seed ^ bytes.len() as u64);
        let first = rng.below(step);
        (first..bytes.len())
            .step_by(step)
            .map(|at| {
                let mut hurt = bytes.to_vec();
                let bit = rng.below(8);
                hurt[at] ^= 1 << bit;
                (format!("bit {bit} of byte {at} flipped"), hurt)
            })
            .collect()
    }
}

fn cuts(step: usize) -> impl Fn(&[u8]) -> Vec<(String, Vec<u8>)> {
    move |bytes| {
        let mut lengths: Vec<usize> = (0..bytes.len()).step_by(step).collect();
        lengths.extend((1..20).filter_map(|back| bytes.len().checked_sub(back)));
        lengths.into_iter().map(|len| (format!("cut to {len} bytes"), bytes[..len].to_vec())).collect()
    }
}

/// After a clean close, a flip in the log is damage and must be reported.
fn no_segment_passes_as_right(counts: &BTreeMap<(String, DamageOutcome), usize>) {
    assert_eq!(counts.get(&("seg".to_owned(), DamageOutcome::Right)), None);
    assert!(counts.keys().any(|(kind, _)| kind == "seg") && counts.keys().any(|(kind, _)| kind == "tbl"));
}

#[test]
fn a_flipped_bit_is_refused_or_reported_when_reading() {
    let seed = seed(21, "damage::a_flipped_bit_is_refused_or_reported_when_reading");
    no_segment_passes_as_right(&count_outcomes("one bit flipped", flips(seed, 3), false, true));
}

#[test]
fn a_flipped_bit_is_refused_or_reported_when_writing() {
    let seed = seed(22, "damage::a_flipped_bit_is_refused_or_reported_when_writing");
    count_outcomes("one bit flipped", flips(seed, 11), true, true);
}

#[test]
fn a_truncated_file_is_refused_or_reported() {
    no_segment_passes_as_right(&count_outcomes("cut short", cuts(29), false, true));
    // A writer must neither cut acknowledged batches nor fill them with zeros.
    let counts = count_outcomes("cut short", cuts(83), true, true);
    assert!(
        counts.keys().all(|(kind, outcome)| kind != "seg" || *outcome == DamageOutcome::Refused),
        "{counts:?}"
    );
}

#[test]
fn garbage_in_place_of_a_file_is_refused_or_reported() {
    let garbage = |bytes: &[u8]| {
        let mut longer = bytes.to_vec();
        longer.extend_from_slice(&SeededRng(4).bytes(700));
        let mut swapped = bytes.to_vec();
        swapped.reverse();
        vec![
            ("noise".to_owned(), SeededRng(5).bytes(bytes.len())),
            ("zeros".to_owned(), vec![0; bytes.len()]),
            ("ones".to_owned(), vec![0xff; bytes.len().max(4096)]),
            ("noise at its end".to_owned(), longer),
            ("its bytes reversed".to_owned(), swapped),
        ]
    };
    count_outcomes("garbage", garbage, false, true);
    count_outcomes("garbage", garbage, true, true);
}

#[test]
fn missing_and_foreign_files_are_named() {
    let (sim, wanted) = small_store();
    let files = files(&sim);
    let path = |end: &str| files.keys().find(|path| path.to_string_lossy().contains(end)).unwrap().clone();
    let manifest = path("MANIFEST-");
    let mut listed: Vec<PathBuf> = files.keys().filter(|path| kind(path) == "seg").cloned().collect();
    assert!(listed.len() > 2, "{listed:?}");
    listed.extend([manifest.clone(), path("CURRENT")]);
    for missing in listed {
        let mut files = files.clone();
        files.remove(&missing);
        for write in [false, true] {
            let sim = disk_of(&files);
            let opened = if write {
                Store::open_with("s", options(&sim))
            } else {
                Store::open_read_only_with("s", options(&sim))
            };
            let error = opened.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged, "{} missing: {error}", missing.display());
        }
    }
    // Tables are caches: the answers are the same without them.
    let no_tables: BTreeMap<_, _> =
        files.clone().into_iter().filter(|(path, _)| kind(path) != "tbl").collect();
    let sim = disk_of(&no_tables);
    sim.create_dir_all(Path::new("s/tables")).unwrap();
    assert_eq!(outcome(Store::open_read_only_with("s", options(&sim)), &wanted), DamageOutcome::Right);
    // Replaces files by those of another store.
    let other = SimIo::new(99);
    let store = Store::open_with("s", options(&other)).unwrap();
    let (run, _) = recorded(&store.namespace("default").unwrap(), "one", 8);
    run.end(Status::Ok).unwrap();
    drop(run);
    store.close().unwrap();
    for ours in files.keys().filter(|path| matches!(kind(path).as_str(), "seg" | "tbl" | "MANIFEST")) {
        let Some(theirs) = other.read(ours) else { continue };
        let mut files = files.clone();
        files.insert(ours.clone(), theirs);
        let done = outcome(Store::open_read_only_with("s", options(&disk_of(&files))), &wanted);
        let expected = if kind(ours) == "tbl" { DamageOutcome::Right } else { DamageOutcome::Refused };
        assert_eq!(done, expected, "{}", ours.display());
    }
}

#[test]
fn a_newer_format_is_refused_as_such() {
    let (sim, _) = small_store();
    for (path, bytes) in files(&sim).iter().filter(|(path, _)| kind(path) == "MANIFEST") {
        let mut changed = bytes.clone();
        // Marks every edit with a later format: crc u32 | bytes u32 | format u16 ...
        let store: [u8; 16] = bytes[8..24].try_into().unwrap();
        let mut at = 28;
        while at + 8 < bytes.len() {
            let len = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
            changed[at + 8] = changed[at + 8].wrapping_add(1);
            let mut crc = crc32fast::Hasher::new();
            crc.update(&store);
            crc.update(&(at as u64).to_le_bytes());
            crc.update(&changed[at + 4..at + 8 + len]);
            changed[at..at + 4].copy_from_slice(&crc.finalize().to_le_bytes());
            at += 8 + len;
        }
        sim.edit(path, |bytes| bytes.clone_from(&changed)).unwrap();
    }
    let error = Store::open_read_only_with("s", options(&sim)).map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("newer"), "{error}");
    let error = Store::open_with("s", options(&sim)).map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("newer"), "{error}");
}

#[test]
fn foreign_directory_is_refused_and_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let kind = |opened: annals::Result<Store>| opened.map(drop).unwrap_err().kind();
    assert_eq!(kind(Store::open_read_only(at("none"))), ErrorKind::NotFound);
    assert_eq!(
        kind(Store::open_with(at("none"), Options { create: false, ..Options::default() })),
        ErrorKind::NotFound
    );
    assert!(!at("none").exists());
    std::fs::write(at("file"), "x").unwrap();
    assert_eq!(kind(Store::open(at("file"))), ErrorKind::Invalid);
    assert_eq!(kind(Store::open_read_only(at("file"))), ErrorKind::Invalid);
    assert_eq!(std::fs::read(at("file")).unwrap(), b"x");
    std::fs::create_dir(at("other")).unwrap();
    std::fs::write(at("other/thesis.txt"), "x").unwrap();
    let error = Store::open(at("other")).map(drop).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Invalid && error.to_string().contains("empty or a new directory"),
        "{error}"
    );
    assert_eq!(kind(Store::open_read_only(at("other"))), ErrorKind::NotFound);
    assert_eq!(std::fs::read_dir(at("other")).unwrap().count(), 1);
    std::fs::create_dir(at("empty")).unwrap();
    assert_eq!(kind(Store::open_read_only(at("empty"))), ErrorKind::NotFound);
    assert_eq!(
        kind(Store::open_with(at("empty"), Options { create: false, ..Options::default() })),
        ErrorKind::NotFound
    );
    assert_eq!(std::fs::read_dir(at("empty")).unwrap().count(), 0);
    Store::open(at("empty")).unwrap().close().unwrap();
    // Foreign files in the directory are ignored.
    std::fs::write(at("empty/notes.txt"), "mine").unwrap();
    Store::open(at("empty")).unwrap().close().unwrap();
    assert_eq!(std::fs::read(at("empty/notes.txt")).unwrap(), b"mine");
    assert_eq!(kind(Store::open(at("file/below"))), ErrorKind::Unavailable);
}

#[test]
fn a_directory_without_permission_is_unavailable() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let closed = dir.path().join("closed");
    Store::open(&closed).unwrap().close().unwrap();
    let allow = |mode| std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(mode)).unwrap();
    allow(0o000);
    if std::fs::read_dir(&closed).is_ok() {
        println!("skipped: this user may read everything");
        allow(0o700);
        return;
    }
    let error = Store::open(&closed).map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("closed"), "{error}");
    assert_eq!(Store::open_read_only(&closed).map(drop).unwrap_err().kind(), ErrorKind::Unavailable);
    allow(0o700);
    Store::open(&closed).unwrap();
}

/// A new store over segments without `CURRENT` would hide their data.
#[test]
fn store_is_not_created_over_leftover_segments() {
    let (sim, _) = small_store();
    let files = files(&sim);
    let longest = files.iter().filter(|(path, _)| kind(path) == "seg").max_by_key(|(_, bytes)| bytes.len());
    let (any, bytes) = longest.unwrap();
    let len = bytes.len();
    let [first, second] = ["00000001.seg", "00000002.seg"].map(|name| any.with_file_name(name));
    let cases = [(&first, len, true), (&second, 0, true), (&second, len, true), (&first, 0, false)];
    for (segment, len, refused) in cases {
        let left = BTreeMap::from([(segment.clone(), bytes[..len].to_vec())]);
        let sim = disk_of(&left);
        let opened = Store::open_with("s", options(&sim));
        if !refused {
            opened.unwrap();
            continue;
        }
        let error = opened.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Damaged
                && error.to_string().contains("neither CURRENT nor a manifest"),
            "{}: {error}",
            segment.display()
        );
    }
}
