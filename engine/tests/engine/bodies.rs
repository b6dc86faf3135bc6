//! Bodies of every size come back exactly and take the expected space.

use annals::{Component, ErrorKind, Frame, Options, RunSpec, Status, Store, kv::History};

use crate::support::{SeededRng, assert_whole, bodies, delete_tables, fresh, process_durability_options};

/// Closes the store and returns the size of its files.
fn closed_bytes(dir: &tempfile::TempDir, store: Store) -> u64 {
    store.close().unwrap();
    let store = Store::open_read_only(dir.path().join("s")).unwrap();
    assert_whole(&store);
    store.stats().unwrap().disk_bytes
}

#[test]
fn bodies_of_every_size_come_back_exactly() {
    const SIZES: [usize; 9] = [0, 1, 40, 41, 4095, 4096, 64 << 10, 1 << 20, 5 << 20];
    let (dir, store, space) = fresh();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let keys = space.keyspace("k", History::All).unwrap();
    let mut rng = SeededRng(4);
    let mut wanted = Vec::new();
    let mut raw = 0;
    for len in SIZES {
        for random in [true, false] {
            let mut make = || if random { rng.bytes(len) } else { rng.text(len) };
            let (input, output) = (make(), make());
            run.record(Frame::new(Component::Tool, input.clone(), output.clone())).unwrap();
            keys.put(format!("{len}-{random}").as_bytes(), output.clone()).unwrap();
            raw += 2 * len;
            wanted.push((input, output));
        }
    }
    run.end(Status::Ok).unwrap();
    let check = |store: &Store| {
        let space = store.namespace("default").unwrap();
        assert!(bodies(&space.run("r").unwrap()) == wanted);
        let keys = space.find_keyspace("k").unwrap().unwrap();
        for (i, len) in SIZES.iter().enumerate() {
            for (j, random) in [true, false].iter().enumerate() {
                let value = keys.get(format!("{len}-{random}").as_bytes()).unwrap().unwrap();
                assert!(value == wanted[i * 2 + j].1, "{len} {random}");
            }
        }
    };
    check(&store);
    let disk = closed_bytes(&dir, store);
    // The random half cannot shrink; the values equal the outputs.
    assert!(disk < raw as u64 * 8 / 10, "{disk} bytes for {raw}");
    delete_tables(&dir.path().join("s"));
    check(&Store::open_read_only(dir.path().join("s")).unwrap());
}

#[test]
fn incompressible_body_does_not_grow() {
    let (dir, store, space) = fresh();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let mut rng = SeededRng(8);
    let mut raw = 0;
    for len in [3_000_000, 100_000, 1_000_000, 250_000, 10_000] {
        run.record(Frame::new(Component::Tool, rng.bytes(len), rng.bytes(len / 2))).unwrap();
        raw += (len + len / 2) as u64;
    }
    run.end(Status::Ok).unwrap();
    drop(run);
    let disk = closed_bytes(&dir, store);
    println!("{raw} random bytes take {disk}");
    assert!(disk <= raw * 102 / 100 + 10_000, "{disk} bytes for {raw}");
}

#[test]
fn an_image_in_fifty_requests_is_stored_once() {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let image: Vec<u8> =
        SeededRng(9).bytes(400_000).iter().map(|byte| DIGITS[usize::from(byte & 63)]).collect();
    let image = String::from_utf8(image).unwrap();
    let (dir, store, space) = fresh();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let mut messages = format!(r#"{{"role":"user","image":"data:image/png;base64,{image}"}}"#);
    let mut wanted = Vec::new();
    for step in 0..50 {
        let (request, answer) =
            (format!(r#"{{"messages":[{messages}]}}"#), format!(r#"{{"content":"step {step}"}}"#));
        messages.push_str(&format!(",{answer}"));
        wanted.push((request.clone().into_bytes(), answer.clone().into_bytes()));
        run.record(Frame::new(Component::Llm, request, answer)).unwrap();
    }
    // The same in another run, which has no previous body.
    let other = space.begin_run(RunSpec::new("other")).unwrap();
    other.record(Frame::new(Component::Llm, wanted[0].0.clone(), "seen")).unwrap();
    run.end(Status::Ok).unwrap();
    other.end(Status::Ok).unwrap();
    assert!(bodies(&space.run("r").unwrap()) == wanted);
    assert_eq!(bodies(&space.run("other").unwrap())[0].0, wanted[0].0);
    let disk = closed_bytes(&dir, store);
    println!("50 requests with an image of 400,000 characters take {disk} bytes");
    assert!(disk < 440_000, "{disk} bytes: the image is stored more than once");
}

#[test]
fn a_body_over_the_limit_is_refused_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { body_bytes_max: 10_000, ..process_durability_options() };
    let store = Store::open_with(dir.path().join("s"), options).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let keys = space.keyspace("k", History::All).unwrap();
    let (fits, over) = (vec![b'x'; 10_000], vec![b'y'; 10_001]);
    run.record(Frame::new(Component::Llm, fits.clone(), fits.clone())).unwrap();
    let refused = |error: annals::Error| {
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("10000"), "{error}");
    };
    refused(run.record(Frame::new(Component::Llm, over.clone(), "")).unwrap_err());
    refused(run.record(Frame::new(Component::Llm, fits.clone(), over.clone())).unwrap_err());
    refused(keys.put(b"k", over.clone()).unwrap_err());
    refused(space.store_blob(&over[..]).unwrap_err());
    refused(space.begin_run(RunSpec::new("m").metadata(over.clone())).map(drop).unwrap_err());
    let open = run.begin_frame(&Frame::new(Component::Llm, "q", "")).unwrap();
    open.append(&fits).unwrap();
    refused(open.append(b"z").unwrap_err());
    open.finish(false).unwrap();
    // Frame numbers have no gap, and the refused body left nothing.
    assert_eq!(run.record(Frame::new(Component::Llm, fits.clone(), "end")).unwrap(), 3);
    let end = (fits.clone(), b"end".to_vec());
    assert!(
        bodies(&space.run("r").unwrap())
            == [(fits.clone(), fits.clone()), (b"q".to_vec(), fits.clone()), end]
    );
    assert_eq!(keys.get(b"k").unwrap(), None);
    space.begin_run(RunSpec::new("m")).unwrap();
    assert_whole(&store);
}

/// A stream of incompressible bytes that is never held whole.
struct RandomStream {
    rng: SeededRng,
    left: u64,
    hasher: blake3::Hasher,
}

impl std::io::Read for RandomStream {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let len = (buf.len() as u64).min(self.left).min(100_000) as usize;
        buf[..len].copy_from_slice(&self.rng.bytes(len));
        self.hasher.update(&buf[..len]);
        self.left -= len as u64;
        Ok(len)
    }
}

fn stream_in_and_out(bytes: u64) {
    let (dir, store, space) = fresh();
    let mut source = RandomStream { rng: SeededRng(10), left: bytes, hasher: blake3::Hasher::new() };
    let start = std::time::Instant::now();
    let blob = space.store_blob(&mut source).unwrap();
    println!("{bytes} bytes in: {:?}", start.elapsed());
    let id = source.hasher.finalize();
    assert_eq!((blob.len(), blob.id().to_string()), (bytes, id.to_hex().to_string()));
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    run.record(Frame::new(Component::Tool, "download", blob.clone())).unwrap();
    let keys = space.keyspace("k", History::All).unwrap();
    keys.put(b"blob", blob.clone()).unwrap();
    let theirs = store.namespace("theirs").unwrap().keyspace("k", History::All).unwrap();
    assert_eq!(theirs.put(b"blob", blob).unwrap_err().kind(), ErrorKind::Invalid);
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    let start = std::time::Instant::now();
    let store = Store::open_read_only(dir.path().join("s")).unwrap();
    let space = store.namespace("default").unwrap();
    let mut output = space.run("r").unwrap().output_reader(1).unwrap();
    // The record has the first eight bytes of the id; the link proves the rest.
    assert_eq!((output.len(), output.id().to_string()), (bytes, id.to_hex()[..16].to_owned()));
    let mut read = blake3::Hasher::new();
    let copied = std::io::copy(&mut output, &mut read).unwrap();
    assert!(copied == bytes && read.finalize() == id);
    println!("{bytes} bytes out: {:?}", start.elapsed());
    let disk = store.stats().unwrap().disk_bytes;
    assert!(disk <= bytes * 102 / 100 + 100_000, "{disk} bytes for {bytes}");
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap_or("peak memory unknown here")
        .to_owned();
    println!("{peak}");
}

#[test]
fn a_body_of_64_mib_streams_in_and_comes_back() {
    stream_in_and_out(64 << 20);
}

#[test]
#[ignore = "a body of 1 GiB takes 2 GiB of disk and a minute; run it with --release"]
fn a_body_of_1_gib_streams_in_and_comes_back() {
    stream_in_and_out(1 << 30);
}

/// Regression: a long value was packed into one batch, which took three times its size, and failed for 1 GiB
/// that do not compress.
#[test]
fn long_value_of_a_key_is_written_in_parts() {
    let (_dir, store, space) = fresh();
    let keys = space.keyspace("k", History::All).unwrap();
    let value = SeededRng(12).bytes((9 << 20) + 5);
    let before = store.stats().unwrap().batches;
    let mut batch = space.batch();
    batch.put(&keys, b"long", value.clone()).put(&keys, b"short", "x");
    batch.commit().unwrap();
    assert_eq!(
        store.stats().unwrap().batches - before,
        10 + 1,
        "parts of 1 MiB, and the batch that names them"
    );
    assert!(keys.get(b"long").unwrap().unwrap() == value);
    assert_eq!(keys.get(b"short").unwrap().unwrap(), b"x");
    store.verify().unwrap();
}

/// The anchors of old bytes are a cache and are rebuilt from the log if the tables are gone.
#[test]
fn bodies_are_deduplicated_after_reopening() {
    let (dir, store, space) = fresh();
    let mut rng = SeededRng(21);
    // Small bodies share groups; a large body has its own group, with fewer anchors.
    let small: Vec<_> = (0..5).map(|_| rng.bytes(12_000)).collect();
    let large = rng.bytes(250_000);
    let run = space.begin_run(RunSpec::new("before")).unwrap();
    for body in small.iter().chain([&large]) {
        run.record(Frame::new(Component::Tool, body.clone(), "")).unwrap();
    }
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    delete_tables(&dir.path().join("s"));

    let store = Store::open_with(dir.path().join("s"), process_durability_options()).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("after")).unwrap();
    let cost = |body: Vec<u8>| {
        let before = store.stats().unwrap().bytes.pieces;
        run.record(Frame::new(Component::Tool, body, "")).unwrap();
        store.stats().unwrap().bytes.pieces - before
    };
    let moved: Vec<u8> = small.iter().rev().flatten().copied().collect();
    assert!(cost(moved.clone()) < 12_000, "60,000 bytes in another order");
    assert!(cost([b"moved by a little: ", &large[..]].concat()) < 20_000);
    assert!(bodies(&space.run("after").unwrap())[0].0 == moved);
    assert_whole(&store);
}

/// Otherwise one tenant could learn from the cost of a guess what another one stored.
#[test]
fn nothing_is_shared_across_namespaces() {
    let (dir, store, ours) = fresh();
    let theirs = store.namespace("theirs").unwrap();
    // Bodies of one group: whether a second short one gets an anchor is random.
    let secret = SeededRng(20).bytes(250_000);
    let grown_by = |space: &annals::Namespace, name: &str| {
        let before = store.stats().unwrap().bytes.pieces;
        let run = space.begin_run(RunSpec::new(name)).unwrap();
        run.record(Frame::new(Component::Tool, secret.clone(), "")).unwrap();
        run.end(Status::Ok).unwrap();
        store.stats().unwrap().bytes.pieces - before
    };
    assert!(grown_by(&ours, "first") >= 250_000);
    // Control: within a namespace the same bytes are deduplicated.
    assert!(grown_by(&ours, "again") < 10_000);
    assert!(grown_by(&theirs, "guess") >= 250_000);
    assert_eq!(bodies(&theirs.run("guess").unwrap())[0].0, secret);
    drop(dir);
}
