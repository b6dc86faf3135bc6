//! Views that are counted, an opening beside a missing table, bodies that are streamed.

use std::io::Read as _;
use std::path::Path;

use super::*;
use crate::io::sim::{Crash, FailRule, OpKind, SimIo};
use crate::testing::KvStore as Store;
use crate::{History, ScanRange};

fn options(sim: &SimIo) -> Options {
    Options { io: Arc::new(sim.clone()), zero_ahead_bytes: 0, ..Options::default() }
}

#[test]
fn view_count_ends_with_the_last_view() {
    let sim = SimIo::new(1);
    let store = Store::open_with("s", options(&sim)).unwrap();
    let space = store.namespace("n").unwrap();
    let keyspace = space.keyspace("k", History::Latest).unwrap();
    let index = &store.core().index;
    let counts = || lock(&index.views).values().copied().collect::<Vec<_>>();
    let first = crate::View::new(store.core());
    let again = crate::View::new(store.core());
    assert_eq!(counts(), [2]);
    keyspace.put(b"a", "1").unwrap();
    let later = crate::View::new(store.core());
    assert_eq!((counts(), first.seqno() < later.seqno()), (vec![2, 1], true));
    let scan = first.scan(&keyspace, ScanRange::all());
    assert_eq!(counts(), [3, 1]);
    drop(first);
    drop(scan);
    assert_eq!(counts(), [1, 1]);
    drop(later);
    assert_eq!(counts(), [1]);
    drop(again);
    assert!(counts().is_empty());
}

/// Creates and closes a store of one segment and one table. Returns the table's path.
fn closed_store(sim: &SimIo) -> std::path::PathBuf {
    let store = Store::open_with("s", options(sim)).unwrap();
    let keyspace = store.namespace("n").unwrap().keyspace("k", History::Latest).unwrap();
    keyspace.put(b"key", "value").unwrap();
    store.close().unwrap();
    let mut tables = sim.files();
    tables.retain(|path| path.extension().is_some_and(|end| end == "tbl"));
    tables.remove(0)
}

#[test]
fn reader_without_a_table_reads_the_log() {
    let sim = SimIo::new(1);
    let table = closed_store(&sim);
    sim.remove(&table).unwrap();
    // CURRENT is opened five times: for two stamps of the reader, two stamps of the log, and the read itself.
    sim.fail(FailRule::eio(OpKind::Open).on("CURRENT").after(5).forever());
    let store = Store::open_read_only_with("s", options(&sim)).unwrap();
    assert!(sim.open(Path::new("s/CURRENT"), crate::io::OpenMode::Read).is_err(), "all five were used");
    let keyspace = store.namespace("n").unwrap().find_keyspace("k").unwrap().unwrap();
    assert_eq!(keyspace.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(store.rebuilt().len(), 1);
    drop(store);
    sim.clear_faults();
    let store = Store::open_with("s", options(&sim)).unwrap();
    let keyspace = store.namespace("n").unwrap().find_keyspace("k").unwrap().unwrap();
    assert_eq!(keyspace.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn unclean_end_seals_the_segment() {
    let segments = |sim: &SimIo| {
        let files = sim.files();
        files.iter().filter(|path| path.extension().is_some_and(|end| end == "seg")).count()
    };
    let sim = SimIo::new(1);
    let store = Store::open_with("s", options(&sim)).unwrap();
    store.namespace("n").unwrap();
    let crashed = sim.crash(Crash::Everything);
    assert_eq!(segments(&crashed), 1);
    drop(Store::open_with("s", options(&crashed)).unwrap());
    assert_eq!(segments(&crashed), 2);
    // After a clean close the segment is continued, unless the file has another length by then.
    let write =
        |sim: &SimIo, name| drop(Store::open_with("s", options(sim)).unwrap().namespace(name).unwrap());
    write(&crashed, "m");
    write(&crashed, "l");
    assert_eq!(segments(&crashed), 2);
    crashed.edit(Path::new("s/segments/00000002.seg"), |bytes| bytes.extend_from_slice(&[0; 50])).unwrap();
    write(&crashed, "k");
    assert_eq!(segments(&crashed), 3);
    // An empty segment is continued.
    let sim = SimIo::new(1);
    let store = Store::open_with("s", options(&sim)).unwrap();
    let crashed = sim.crash(Crash::Everything);
    drop(store);
    drop(Store::open_with("s", options(&crashed)).unwrap());
    assert_eq!(segments(&crashed), 1);
    // Unless there are zeros after its header.
    let sim = SimIo::new(1);
    let store = Store::open_with("s", options(&sim)).unwrap();
    let crashed = sim.crash(Crash::Everything);
    drop(store);
    let segment = crashed.files().into_iter().find(|path| path.ends_with("00000001.seg")).unwrap();
    crashed.edit(&segment, |bytes| bytes.resize(200, 0)).unwrap();
    drop(Store::open_with("s", options(&crashed)).unwrap());
    assert_eq!(segments(&crashed), 2);
}

fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

#[test]
fn streamed_body_joins_adjacent_extents() {
    let sim = SimIo::new(1);
    let store = Store::open_with("s", Options { body_bytes_max: 2_500_000, ..options(&sim) }).unwrap();
    let space = store.namespace("n").unwrap();
    let small = space.store_blob(&noise(200_000)[100_000..105_000]).unwrap();
    assert_eq!((small.extents.len(), small.len()), (1, 5000));
    // The body does not start at the border of a group: its first piece ends within a group, which the second
    // continues.
    let body: Vec<u8> = noise(2_600_000)[200_000..2_500_000].to_vec();
    let blob = space.store_blob(&body[..]).unwrap();
    let lens: Vec<usize> = blob.extents.iter().map(|extent| extent.len as usize).collect();
    assert_eq!(lens.iter().sum::<usize>(), body.len());
    assert!(blob.extents.windows(2).all(|two| !two[0].is_followed_by(&two[1])), "{lens:?}");
    let most = crate::blob::GROUP_BYTES_MAX;
    assert!(lens.iter().filter(|len| **len == most).count() >= 7, "{lens:?}");
    assert_eq!(blob.id(), crate::ids::BlobId::of(&body));
    let core = store.core();
    let read = |blob: &crate::StoredBlob| {
        crate::kv::bodies::read_body(core, blob.namespace, &blob.extents, blob.len, blob.id.into()).unwrap()
    };
    assert!(read(&blob) == body);
    let named = (blob.len, blob.id.into());
    let hashing = crate::kv::bodies::HashCheck::Compared;
    let mut reader =
        crate::BlobReader::new(core.clone(), blob.namespace, blob.extents.clone(), named, hashing);
    assert_eq!((reader.len(), reader.is_empty(), reader.id()), (blob.len, false, blob.id.into()));
    let mut whole = Vec::new();
    reader.read_to_end(&mut whole).unwrap();
    assert!(whole == body);
    let none = crate::BlobReader::from_bytes(core.clone(), blob.namespace, Vec::new());
    assert_eq!((none.len(), none.is_empty(), none.id()), (0, true, crate::ids::BlobId::of(&[]).into()));
    let mut few = crate::BlobReader::from_bytes(core.clone(), blob.namespace, b"few".to_vec());
    let mut two = [0; 2];
    assert_eq!((few.len(), few.read(&mut two).unwrap(), two), (3, 2, *b"fe"));
    assert_eq!((few.read(&mut two).unwrap(), two[0], few.read(&mut two).unwrap()), (1, b'w', 0));
    // Exactly as long as the limit, and a byte more.
    assert_eq!(space.store_blob(&vec![7; 2_500_000][..]).unwrap().len(), 2_500_000);
    assert_eq!(space.store_blob(&vec![7; 2_500_001][..]).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn damaged_table_is_rebuilt_in_a_file_or_in_memory() {
    for (full, for_writing, files) in [(false, true, 2), (true, true, 1), (false, false, 1), (true, false, 1)]
    {
        let sim = SimIo::new(1);
        let table = closed_store(&sim);
        sim.edit(&table, |bytes| bytes[20] ^= 1).unwrap();
        if full {
            sim.fail(FailRule::enospc(OpKind::Create).on("tbl").forever());
        }
        let open = if for_writing { Store::open_with } else { Store::open_read_only_with };
        let store = open("s", options(&sim)).unwrap();
        let keyspace = store.namespace("n").unwrap().find_keyspace("k").unwrap().unwrap();
        assert_eq!(keyspace.get(b"key").unwrap().as_deref(), Some(&b"value"[..]), "{full} {for_writing}");
        assert_eq!(store.rebuilt().len(), 1, "{full} {for_writing}");
        let tables = sim.files().into_iter().filter(|path| path.extension().is_some_and(|end| end == "tbl"));
        assert_eq!(tables.count(), files, "{full} {for_writing}");
        sim.clear_faults();
        store.close().unwrap();
        let again = Store::open_read_only_with("s", options(&sim)).unwrap();
        assert_eq!(again.rebuilt().len(), usize::from(!for_writing), "a writer leaves a repaired table");
    }
}
