//! Measures what the agents' memory costs: the time of a recall among many entries, and the entries written in a second.
//!
//! `cargo run --profile dist -p annals-benches --example memory_costs -- [ENTRIES ...]`
//! writes so many entries (default: 1000 10000 100000) of one tenant with the engine and prints recall times, once in the
//! process that wrote them and once after the store was opened again.
//!
//! `... -- --resp HOST:PORT CONNECTIONS ENTRIES`
//! writes ENTRIES entries to a daemon (`annals serve`), one in each `MEM.PUT ... EMBED`, over so many connections with up to
//! 64 commands in flight each, then asks.
//!
//! `... -- --tenants TENANTS ENTRIES`
//! writes ENTRIES entries of recorded runs, spread over TENANTS tenants, and asks for the best 20 runs of all of them.
//!
//! Entries are made up: 60 words of a vocabulary of 20,000, frequent words more often than rare ones, an id of their own, and
//! a tool call. A seed makes them, so every run writes the same.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a program that measures and prints")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Instant;

use annals::{Durability, Options, Store};
use annals_memory::{Identity, Memory, MemoryQuery, WordEmbedder};

type CostsResult<T> = Result<T, Box<dyn std::error::Error>>;

const VOCABULARY: u64 = 20_000;
const WORDS: usize = 60;
/// Entries of one batch of the engine.
const BATCH: usize = 100;
const QUESTIONS: u64 = 200;
/// Commands in flight on a connection.
const IN_FLIGHT: usize = 64;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// A word; the first words of the vocabulary are the most frequent.
    fn word(&mut self) -> String {
        let share = self.next() as f64 / (1u64 << 31) as f64;
        word((VOCABULARY as f64).powf(share) as u64)
    }
}

/// The word of a number: syllables of its digits to the base 60.
fn word(mut number: u64) -> String {
    const FIRST: &[u8; 12] = b"bdfgklmnprst";
    const SECOND: &[u8; 5] = b"aeiou";
    let mut word = String::from("w");
    number += 60;
    while number > 0 {
        let syllable = (number % 60) as usize;
        word.push(char::from(FIRST[syllable / 5]));
        word.push(char::from(SECOND[syllable % 5]));
        number /= 60;
    }
    word
}

fn entry(number: usize) -> String {
    let mut random = Random(number as u64 * 7919 + 1);
    let mut words = |count: usize| (0..count).map(|_| random.word()).collect::<Vec<_>>().join(" ");
    let (query, answer, args) = (words(12), words(WORDS - 24), words(12));
    format!(
        "{{\"id\":\"e{number}\",\"createdAt\":1790000000000,\"value\":{{\"query\":\"Case C-{number}: {query}?\",\"finalContent\":\"Case C-{number}: {answer}.\",\"toolCalls\":[{{\"name\":\"look_up\",\"args\":\"{args}\"}}]}}}}"
    )
}

/// Every third names an entry by its id, the others hold words of an entry.
fn question(number: u64, entries: usize) -> String {
    let of = (number as usize * 7_919) % entries;
    let text = entry(of);
    match number % 3 {
        0 => format!("What was decided about case C-{of}?"),
        _ => {
            let words = text.split(": ").nth(1).unwrap_or_default().split(' ');
            let words: Vec<&str> = words.take(6).collect();
            format!("Why was it about {}?", words.join(" "))
        }
    }
}

fn identity(conversation: &str) -> Identity {
    Identity { tenant: Some("costs".into()), principal: None, conversation: Some(conversation.into()) }
}

fn print_times(what: &str, mut took: Vec<f64>, answered: usize) {
    took.sort_by(f64::total_cmp);
    let at = |share: f64| took[((took.len() - 1) as f64 * share).round() as usize];
    println!(
        "{what}: {} questions, {answered} answered: p50 {:.2} ms, p99 {:.2} ms, longest {:.2} ms",
        took.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

fn ask(memory: &Memory, entries: usize, what: &str, questions: u64) -> CostsResult<()> {
    let (mut took, mut answered) = (Vec::new(), 0);
    for number in 0..questions {
        let text = question(number, entries);
        let wanted = MemoryQuery { k: 1, across_conversations: true, ..MemoryQuery::default() };
        let began = Instant::now();
        answered += memory.recall(&identity("asking"), &text, &WordEmbedder, &wanted)?.len();
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    print_times(what, took, answered);
    Ok(())
}

fn measure_engine(entries: usize) -> CostsResult<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("store");
    let options = || Options { durability: Durability::Disk, ..Options::default() };
    let store = Store::open_with(&path, options())?;
    let memory = Memory::open(&store.namespace("default")?)?;
    let began = Instant::now();
    for batch in 0..entries.div_ceil(BATCH) {
        let texts: Vec<String> = (batch * BATCH..((batch + 1) * BATCH).min(entries)).map(entry).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let (_, waiting) = memory.submit_remember(&identity("c"), &texts, &WordEmbedder)?;
        if let Some(waiting) = waiting {
            waiting.wait()?;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{entries} entries, batches of {BATCH}, each synced: {seconds:.1} s, {:.0} a second",
        entries as f64 / seconds
    );
    ask(&memory, entries, "  in the process that wrote", QUESTIONS)?;
    drop(memory);
    store.close()?;
    let store = Store::open_with(&path, options())?;
    let memory = Memory::open(&store.namespace("default")?)?;
    ask(&memory, entries, "  the first after opening", 1)?;
    ask(&memory, entries, "  the next", QUESTIONS)?;
    drop(memory);
    store.close()?;
    Ok(())
}

/// Runs that `annals search --meaning` reads for its 20 hits.
const RUNS_READ: usize = 80;

fn measure_tenants(tenants: usize, entries: usize) -> CostsResult<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("store");
    let options = || Options { durability: Durability::Process, ..Options::default() };
    let store = Store::open_with(&path, options())?;
    let memory = Memory::open(&store.namespace("default")?)?;
    for tenant in 0..tenants {
        let whose = Identity { tenant: Some(format!("t{tenant}")), ..Identity::default() };
        let texts: Vec<String> = (tenant..entries)
            .step_by(tenants)
            .map(|number| {
                let run = format!("{{\"metadata\":{{\"run\":\"e{number}\",\"frame\":1}},\"id\":\"run-");
                entry(number).replacen("{\"id\":\"", &run, 1)
            })
            .collect();
        for some in texts.chunks(BATCH) {
            let some: Vec<&str> = some.iter().map(String::as_str).collect();
            if let (_, Some(waiting)) = memory.submit_remember(&whose, &some, &WordEmbedder)? {
                waiting.wait()?;
            }
        }
    }
    drop(memory);
    store.close()?;
    let store = Store::open_with(&path, options())?;
    let memory = Memory::open(&store.namespace("default")?)?;
    let (mut took, mut answered) = (Vec::new(), 0);
    for number in 0..QUESTIONS {
        let text = question(number, entries);
        let began = Instant::now();
        let found = memory.recall_runs(&text, &WordEmbedder, RUNS_READ)?;
        took.push(began.elapsed().as_secs_f64() * 1e3);
        answered += usize::from(!found.is_empty());
    }
    println!("{entries} entries of {tenants} tenants, the first question: {:.2} ms", took[0]);
    print_times("  all", took, answered);
    drop(memory);
    store.close()?;
    Ok(())
}

fn command(words: &[&str]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    out
}

/// Reads a reply of RESP2 and says whether it is an error, and how many elements its first array has.
fn read_reply(reader: &mut impl BufRead) -> CostsResult<usize> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let (kind, rest) = line.trim_end().split_at(1);
    match kind {
        "-" => Err(line.into()),
        "$" => {
            let length: i64 = rest.parse()?;
            let mut bytes = vec![0; if length < 0 { 0 } else { length as usize + 2 }];
            reader.read_exact(&mut bytes)?;
            Ok(0)
        }
        "*" => {
            let count: i64 = rest.parse()?;
            let mut inner = 0;
            for _ in 0..count.max(0) {
                inner += read_reply(reader)?;
            }
            Ok(inner.max(count.max(0) as usize))
        }
        _ => Ok(0),
    }
}

fn measure_resp(address: &str, connections: usize, entries: usize) -> CostsResult<()> {
    let began = Instant::now();
    let each = entries.div_ceil(connections);
    let writers: Vec<_> = (0..connections)
        .map(|connection| {
            let address = address.to_owned();
            std::thread::spawn(move || {
                let write = || -> CostsResult<()> {
                    let mut stream = TcpStream::connect(&address)?;
                    stream.set_nodelay(true)?;
                    let mut replies = BufReader::new(stream.try_clone()?);
                    let mut numbers = connection * each..((connection + 1) * each).min(entries);
                    let mut in_flight = 0;
                    loop {
                        while in_flight < IN_FLIGHT {
                            let Some(number) = numbers.next() else { break };
                            let text = entry(number);
                            let words = ["MEM.PUT", &text, "EMBED", "TENANT", "costs", "CONVERSATION", "c"];
                            stream.write_all(&command(&words))?;
                            in_flight += 1;
                        }
                        if in_flight == 0 {
                            return Ok(());
                        }
                        read_reply(&mut replies)?;
                        in_flight -= 1;
                    }
                };
                write().map_err(|error| error.to_string())
            })
        })
        .collect();
    for writer in writers {
        writer.join().map_err(|_| "a writer panicked")??;
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{entries} entries over {connections} connections: {seconds:.1} s, {:.0} a second",
        entries as f64 / seconds
    );
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut replies = BufReader::new(stream.try_clone()?);
    let mut took = Vec::new();
    for number in 0..QUESTIONS {
        let text = question(number, entries);
        let words = [
            "MEM.SEARCH",
            "QUESTION",
            &text,
            "K",
            "1",
            "ACROSS",
            "TENANT",
            "costs",
            "CONVERSATION",
            "asking",
        ];
        let began = Instant::now();
        stream.write_all(&command(&words))?;
        read_reply(&mut replies)?;
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    print_times("MEM.SEARCH", took, QUESTIONS as usize);
    Ok(())
}

fn main() -> CostsResult<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [option, address, connections, entries] = arguments.as_slice()
        && option == "--resp"
    {
        return measure_resp(address, connections.parse()?, entries.parse()?);
    }
    if let [option, tenants, entries] = arguments.as_slice()
        && option == "--tenants"
    {
        return measure_tenants(tenants.parse()?, entries.parse()?);
    }
    let counts: Vec<usize> = arguments.iter().map(|count| count.parse()).collect::<Result<_, _>>()?;
    let counts = if counts.is_empty() { vec![1000, 10_000, 100_000] } else { counts };
    counts.into_iter().try_for_each(measure_engine)
}
