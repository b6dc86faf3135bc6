//! The peers at the work that annals is for, beside what the disk itself can do.
//!
//! `cargo run --profile dist -p annals-benches --features peers-all --example peers -- [--rounds N]
//! [--workload conversation|kv|kv-sync] [--peer NAME] [--dir FOLDER] [--json]`
//!
//! - `conversation`: 200 steps of the growing conversation, each one transaction of four values, with and
//!   without a sync; then a clean close, a reopening (with the first read), and reads from the reopened
//!   store: one scan with the peer's own cache cold and the system's warm, then single values.
//! - `kv`: 500,000 records of 512 bytes under random keys of 16 bytes, 100 a transaction, without a sync.
//! - `kv-sync`: 1,500 such records, each in its own synced transaction, by one thread and by 16 threads. The
//!   threads share a handle if the peer lets writers run at once; otherwise they take a lock of ours.
//!
//! `raw` is one file in the same folder that gets the same bytes, one `pwrite` a transaction, with
//! `fdatasync` after each where the peers sync; `raw over zeros` is the same over a file filled before, whose
//! syncs need no new length or extents.
//!
//! Data is made before the clock starts, dirty pages are written out before each run, peers take turns, and
//! figures are medians over the rounds. Each peer's data is checked after the clock stops.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a program that measures and prints")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a benchmark fails by panicking")]

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use annals_benches::conversation::{BenchConversation, ConversationForm};
use annals_benches::measure::run_in_turn;
use annals_benches::peers::{
    Durability, OpenPeer, Peer, PeerRecord, PeerSettings, ValueSizes, all_peers, bytes_on_disk,
};

const STEPS: usize = 200;
const KV_RECORDS: usize = 500_000;
const KV_BATCH: usize = 100;
const SYNC_RECORDS: usize = 1_500;
const THREADS: usize = 16;
const RECORD_BYTES: usize = 512;
const READS: usize = 200;

fn main() {
    let arguments = PeerBenchArgs::parse();
    let peers: Vec<_> = all_peers().into_iter().filter(|(name, _)| arguments.wants_peer(name)).collect();
    if arguments.wants("conversation") {
        let data = WorkloadData::conversation();
        for durability in [Durability::Process, Durability::Disk] {
            let mut contest = Contest::new(&arguments, "conversation", durability, &data);
            for &(name, open) in peers.iter().filter(|(name, _)| is_distinct_peer(name, durability)) {
                contest.add(name, move |data, folder| conversation(open, durability, data, folder));
            }
            contest.run();
        }
    }
    if arguments.wants("kv") {
        let data = WorkloadData::records(KV_RECORDS, KV_BATCH);
        let mut contest = Contest::new(&arguments, "kv", Durability::Process, &data);
        for &(name, open) in &peers {
            contest.add(name, move |data, folder| kv(open, data, folder));
        }
        contest.run();
    }
    if arguments.wants("kv-sync") {
        let data = WorkloadData::records(SYNC_RECORDS, 1);
        let mut contest = Contest::new(&arguments, "kv-sync", Durability::Disk, &data);
        for &(name, open) in peers.iter().filter(|(name, _)| is_distinct_peer(name, Durability::Disk)) {
            contest.add(name, move |data, folder| kv_sync(open, data, folder));
        }
        contest.run();
    }
}

/// Whether this peer differs from one already measured: redb-memory equals redb if commits are synced.
fn is_distinct_peer(name: &str, durability: Durability) -> bool {
    name != "redb-memory" || durability == Durability::Process
}

// The workloads.

fn conversation(open: OpenPeer, durability: Durability, data: &WorkloadData, folder: &Path) -> PeerFigures {
    let settings = PeerSettings { durability, values: ValueSizes::Large };
    let mut peer = open(folder, settings);
    let written = write(&mut *peer, data);
    let closed = seconds(|| peer.close());
    let disk = bytes_on_disk(folder);
    let started = Instant::now();
    let peer = open(folder, settings);
    assert!(peer.get(&data.records[0].0).is_some());
    let reopened = started.elapsed().as_secs_f64();
    let mut bytes = 0;
    let scanned = seconds(|| bytes = peer.scan());
    assert_eq!(bytes, data.value_bytes());
    let get = |(key, value): &OwnedRecord| {
        let mut found = None;
        let took = seconds(|| found = peer.get(key));
        assert!(found.as_ref() == Some(value), "not the bytes that were put");
        took
    };
    let biggest = data.records.iter().max_by_key(|(_, value)| value.len()).unwrap();
    let responses = data.records.iter().filter(|(key, _)| key.ends_with(b"|response"));
    let figures = vec![
        (data.unit, data.units() / written),
        ("disk/raw", disk as f64 / data.value_bytes() as f64),
        ("scan MB/s", bytes as f64 / scanned / 1e6),
        ("get biggest us", median((0..READS).map(|_| get(biggest)).collect()) * 1e6),
        ("get 4 KB us", median(responses.map(get).collect()) * 1e6),
        ("reopen ms", reopened * 1e3),
        ("close ms", closed * 1e3),
    ];
    peer.close();
    figures
}

fn kv(open: OpenPeer, data: &WorkloadData, folder: &Path) -> PeerFigures {
    let mut peer = open(folder, PeerSettings { durability: Durability::Process, values: ValueSizes::Small });
    let written = write(&mut *peer, data);
    assert_eq!(peer.scan(), data.value_bytes());
    let closed = seconds(|| peer.close());
    vec![
        (data.unit, data.units() / written),
        ("disk/raw", bytes_on_disk(folder) as f64 / data.value_bytes() as f64),
        ("close ms", closed * 1e3),
    ]
}

fn kv_sync(open: OpenPeer, data: &WorkloadData, folder: &Path) -> PeerFigures {
    let settings = PeerSettings { durability: Durability::Disk, values: ValueSizes::Small };
    let mut figures = Vec::new();
    for (label, threads) in [(data.unit, 1), ("by 16 threads", THREADS)] {
        let folder = folder.join(threads.to_string());
        std::fs::create_dir(&folder).unwrap();
        let mut peer = open(&folder, settings);
        let written = if threads == 1 {
            write(&mut *peer, data)
        } else {
            let taken;
            (peer, taken) = write_together(peer, data);
            taken
        };
        assert_eq!(peer.scan(), data.value_bytes());
        peer.close();
        figures.push((label, data.units() / written));
    }
    figures
}

/// Writes everything. Returns the seconds taken.
fn write(peer: &mut dyn Peer, data: &WorkloadData) -> f64 {
    let batches = data.batches();
    seconds(|| batches.iter().for_each(|batch| peer.put(batch)))
}

/// Writes from several threads at once. Returns the peer, and the seconds taken.
fn write_together(peer: Box<dyn Peer>, data: &WorkloadData) -> (Box<dyn Peer>, f64) {
    let batches = data.batches();
    let shares = batches.chunks(batches.len().div_ceil(THREADS));
    let handles: Vec<_> = shares.clone().map(|_| peer.share()).collect();
    let locked = Mutex::new(peer);
    let taken = seconds(|| {
        std::thread::scope(|scope| {
            for (share, handle) in shares.zip(handles) {
                let locked = &locked;
                scope.spawn(move || match handle {
                    Some(mut handle) => share.iter().for_each(|batch| handle.put(batch)),
                    None => share.iter().for_each(|batch| locked.lock().unwrap().put(batch)),
                });
            }
        });
    });
    (locked.into_inner().unwrap(), taken)
}

/// The rates of the file system with the same bytes.
fn measure_raw_file(data: &WorkloadData, file: &Path, sync: bool, zeros_ahead: bool) -> PeerFigures {
    let batches: Vec<Vec<u8>> = data.batches().iter().map(|batch| join_records(batch)).collect();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(file).unwrap();
    let bytes: usize = batches.iter().map(Vec::len).sum();
    if zeros_ahead {
        file.write_all_at(&vec![0; bytes], 0).unwrap();
        file.sync_all().unwrap();
    }
    let mut at = 0;
    let written = seconds(|| {
        for batch in &batches {
            file.write_all_at(batch, at).unwrap();
            at += batch.len() as u64;
            if sync {
                file.sync_data().unwrap();
            }
        }
    });
    let mut figures = vec![(data.unit, data.units() / written)];
    if data.unit == "steps/s" {
        let mut buffer = vec![0; 1 << 20];
        let read = seconds(|| {
            let mut at = 0;
            while at < bytes {
                at += std::hint::black_box(file.read_at(&mut buffer, at as u64).unwrap());
            }
        });
        figures.push(("scan MB/s", bytes as f64 / read / 1e6));
    }
    figures
}

fn join_records(batch: &[PeerRecord<'_>]) -> Vec<u8> {
    batch.iter().flat_map(|(key, value)| [*key, *value]).collect::<Vec<_>>().concat()
}

// The data.

type OwnedRecord = (Vec<u8>, Vec<u8>);

/// Records in the order of writing, and how many make a transaction.
struct WorkloadData {
    records: Vec<OwnedRecord>,
    batch: usize,
    /// The unit of the rate.
    unit: &'static str,
    records_per_unit: usize,
}

impl WorkloadData {
    fn conversation() -> Self {
        let mut records = Vec::with_capacity(STEPS * 4);
        for (number, step) in BenchConversation::new(ConversationForm::Plain, 1).take(STEPS).enumerate() {
            let slots = [
                ("request", step.request),
                ("response", step.response),
                ("tool_input", step.tool_input),
                ("tool_output", step.tool_output),
            ];
            for (slot, value) in slots {
                records.push((format!("run-1|{number:010}|{slot}").into_bytes(), value));
            }
        }
        Self { records, batch: 4, unit: "steps/s", records_per_unit: 4 }
    }

    /// Records of the conversation's words, each drawn anew, so that only common words repeat.
    fn records(count: usize, batch: usize) -> Self {
        let texts: Vec<Vec<u8>> = BenchConversation::new(ConversationForm::Plain, 1)
            .take(60)
            .flat_map(|step| [step.response, step.tool_output])
            .collect();
        let words: Vec<&[u8]> = texts
            .iter()
            .flat_map(|text| text.split(|&byte| byte == b' '))
            .filter(|word| word.len() < 20)
            .collect();
        let mut random = PeerRng(2);
        let record = |_| {
            let key = [random.next().to_be_bytes(), random.next().to_be_bytes()].concat();
            let mut value = Vec::with_capacity(RECORD_BYTES + 20);
            while value.len() < RECORD_BYTES {
                value.extend_from_slice(words[(random.next() % words.len() as u64) as usize]);
                value.push(b' ');
            }
            value.truncate(RECORD_BYTES);
            (key, value)
        };
        let records = (0..count).map(record).collect();
        Self { records, batch, unit: "records/s", records_per_unit: 1 }
    }

    fn batches(&self) -> Vec<Vec<PeerRecord<'_>>> {
        fn parts((key, value): &OwnedRecord) -> PeerRecord<'_> {
            (key, value)
        }
        self.records.chunks(self.batch).map(|batch| batch.iter().map(parts).collect()).collect()
    }

    fn units(&self) -> f64 {
        (self.records.len() / self.records_per_unit) as f64
    }

    fn value_bytes(&self) -> u64 {
        self.records.iter().map(|(_, value)| value.len() as u64).sum()
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct PeerRng(u64);

impl PeerRng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

// Measuring and printing.

type PeerFigures = Vec<(&'static str, f64)>;

fn seconds(work: impl FnOnce()) -> f64 {
    let started = Instant::now();
    work();
    started.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

type PeerWorkload<'a> = Box<dyn Fn(&WorkloadData, &Path) -> PeerFigures + 'a>;

/// Peers that take turns at one workload, together with the raw file.
struct Contest<'a> {
    arguments: &'a PeerBenchArgs,
    workload: &'static str,
    durability: Durability,
    data: &'a WorkloadData,
    entrants: Vec<(&'static str, PeerWorkload<'a>)>,
}

impl<'a> Contest<'a> {
    fn new(
        arguments: &'a PeerBenchArgs,
        workload: &'static str,
        durability: Durability,
        data: &'a WorkloadData,
    ) -> Self {
        let sync = durability == Durability::Disk;
        let mut contest = Self { arguments, workload, durability, data, entrants: Vec::new() };
        contest.add("raw", move |data, folder| measure_raw_file(data, &folder.join("raw"), sync, false));
        if sync {
            contest.add("raw over zeros", move |data, folder| {
                measure_raw_file(data, &folder.join("raw"), sync, true)
            });
        }
        contest
    }

    fn add(&mut self, name: &'static str, run: impl Fn(&WorkloadData, &Path) -> PeerFigures + 'a) {
        self.entrants.push((name, Box::new(run)));
    }

    fn run(&self) {
        let rounds = run_in_turn(self.arguments.rounds, self.entrants.len(), |index| {
            let folder = tempfile::tempdir_in(&self.arguments.dir).unwrap();
            // Otherwise the dirty pages of one run would be written while the next is timed.
            assert!(std::process::Command::new("sync").status().unwrap().success());
            (self.entrants[index].1)(self.data, folder.path())
        });
        for ((name, _), rounds) in self.entrants.iter().zip(&rounds) {
            let figures: PeerFigures = (0..rounds[0].len())
                .map(|i| (rounds[0][i].0, median(rounds.iter().map(|figures| figures[i].1).collect())))
                .collect();
            self.print(name, &figures);
        }
    }

    fn print(&self, name: &str, figures: &PeerFigures) {
        let durability = match self.durability {
            Durability::Disk | Durability::Confirmed => "disk",
            Durability::Process => "process",
        };
        if self.arguments.json {
            let figures: serde_json::Map<_, _> =
                figures.iter().map(|&(label, value)| (label.to_owned(), value.into())).collect();
            let line = serde_json::json!({
                "workload": self.workload, "durability": durability, "peer": name,
                "rounds": self.arguments.rounds, "figures": figures,
            });
            println!("{line}");
        } else {
            let figures: Vec<_> =
                figures.iter().map(|&(label, value)| format!("{label} {}", format_figure(value))).collect();
            println!("{:<12} {durability:<7} {name:<14} {}", self.workload, figures.join("  "));
        }
    }
}

/// Three significant digits, or all digits of a larger whole number.
fn format_figure(value: f64) -> String {
    let decimals = if value < 1.0 {
        3
    } else if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:>8.decimals$}")
}

/// The command line's arguments.
struct PeerBenchArgs {
    rounds: usize,
    workload: Option<String>,
    peer: Option<String>,
    dir: PathBuf,
    json: bool,
}

impl PeerBenchArgs {
    fn parse() -> Self {
        let mut arguments =
            Self { rounds: 5, workload: None, peer: None, dir: std::env::temp_dir(), json: false };
        let mut given = std::env::args().skip(1);
        while let Some(name) = given.next() {
            let mut value = || given.next().unwrap_or_else(|| panic!("{name} needs a value"));
            match name.as_str() {
                "--rounds" => arguments.rounds = value().parse().unwrap(),
                "--workload" => arguments.workload = Some(value()),
                "--peer" => arguments.peer = Some(value()),
                "--dir" => arguments.dir = value().into(),
                "--json" => arguments.json = true,
                _ => panic!("unknown argument {name}"),
            }
        }
        assert!(arguments.rounds > 0, "--rounds must be at least 1");
        arguments
    }

    fn wants(&self, workload: &str) -> bool {
        self.workload.as_deref().is_none_or(|wanted| wanted == workload)
    }

    fn wants_peer(&self, peer: &str) -> bool {
        self.peer.as_deref().is_none_or(|wanted| wanted == peer)
    }
}
