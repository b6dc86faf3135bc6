//! Measures what a store costs on disk: the growing conversation in its three forms with one commit for each
//! frame, real runs, and forks. Every file is counted after a clean close.
//!
//! `cargo run --profile dist -p annals-benches --example storage -- [STEPS] [--csv FILE] [--chat FILE.json]`

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a program that measures and prints")]

use std::io::Write;
use std::path::Path;

use annals::upkeep::CompactOptions;
use annals::{Component, Durability, Frame, Options, RunSpec, Stats, Status, Store};
use annals_benches::conversation::{BenchConversation, ConversationForm};
use annals_formats::import::{ChatOptions, ChatRuns, Expansion};

type StorageBenchResult<T> = Result<T, Box<dyn std::error::Error>>;

fn options() -> Options {
    Options { durability: Durability::Process, ..Options::default() }
}

fn print(what: &str, raw: u64, stats: &Stats) {
    let frames = stats.frames;
    let beyond = stats.disk_bytes - stats.bytes.pieces - stats.bytes.recipes;
    println!(
        "{what}: {raw} raw bytes, {} on disk, 1/{:.1}; {frames} frames, {:.1} bytes a frame beyond pieces and recipes",
        stats.disk_bytes,
        raw as f64 / stats.disk_bytes as f64,
        beyond as f64 / frames as f64,
    );
    println!("  {:?}", stats.bytes);
}

fn stats(path: &Path) -> StorageBenchResult<Stats> {
    Ok(Store::open_read_only(path)?.stats()?)
}

fn measure_conversation(
    form: ConversationForm,
    steps: usize,
    csv: &mut Option<std::fs::File>,
) -> StorageBenchResult<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("store");
    let store = Store::open_with(&path, options())?;
    let space = store.namespace("default")?;
    let run = space.begin_run(RunSpec::new("conversation").model("gpt-4o"))?;
    let mut raw = 0;
    for (number, step) in BenchConversation::new(form, 1).take(steps).enumerate() {
        raw += step.raw_len() as u64;
        let llm = run.record(Frame::new(Component::Llm, step.request, step.response))?;
        run.record(Frame::new(Component::Tool, step.tool_input, step.tool_output).parent(llm))?;
        if let Some(csv) = csv.as_mut().filter(|_| (number + 1).is_multiple_of(10)) {
            let bytes = store.stats()?.bytes;
            let stored = bytes.pieces + bytes.recipes + bytes.frame_records + bytes.chains_and_ledger;
            writeln!(csv, "{},{},{stored},{raw}", form.name(), number + 1)?;
        }
    }
    run.end(Status::Ok)?;
    store.close()?;
    let before = stats(&path)?;
    print(&format!("{} {steps}", form.name()), raw, &before);
    let store = Store::open_with(&path, options())?;
    let space = store.namespace("default")?;
    let frames = before.frames as u32;
    for number in 0..100u32 {
        let fork = RunSpec::new(format!("fork-{number}"));
        space.fork("conversation", (number * 7) % frames + 1, number % 2 == 0, fork)?.end(Status::Ok)?;
    }
    store.close()?;
    println!("  100 forks: {} bytes more", stats(&path)?.disk_bytes - before.disk_bytes);
    Ok(())
}

/// How the frames of an import are committed.
#[derive(Debug, Clone, Copy)]
enum Commits {
    /// As `annals import` does it.
    EachRun,
    EachFrame,
}

/// Imports a file of chats, and prints the bytes after a clean close and after a recompression.
fn measure_chat(file: &str, expansion: Expansion, commits: Commits) -> StorageBenchResult<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("store");
    let store = Store::open_with(&path, options())?;
    let space = store.namespace("default")?;
    let source = std::io::BufReader::new(std::fs::File::open(file)?);
    let chat = ChatOptions { id: Some("{task_id}-{trial}".parse()?), expansion, ..Default::default() };
    let (mut requests, mut raw) = (0, 0);
    for imported in ChatRuns::new(source, chat) {
        let imported = imported?;
        let spec = RunSpec::new(imported.id.clone()).metadata(imported.metadata.clone());
        let frames = imported.frames().inspect(|frame| {
            requests += if frame.component == Component::Llm { frame.input.len() } else { 0 };
        });
        match commits {
            Commits::EachRun => {
                let run = space.prepare_run(spec)?;
                let mut batch = run.batch()?;
                for frame in frames {
                    batch.frame(frame)?;
                }
                batch.end(Status::Ok)?;
                batch.commit()?;
            }
            Commits::EachFrame => {
                let run = space.begin_run(spec)?;
                for frame in frames {
                    run.record(frame)?;
                }
                run.end(Status::Ok)?;
            }
        }
    }
    store.close()?;
    let mut print_store = |what| -> StorageBenchResult<()> {
        let stats = stats(&path)?;
        raw = stats.raw_bytes;
        print(&format!("real input, {expansion:?}, {commits:?}, {what}: requests"), requests, &stats);
        println!("  1/{:.2} of all {raw} recorded bytes", raw as f64 / stats.disk_bytes as f64);
        Ok(())
    };
    print_store("closed")?;
    let store = Store::open_with(&path, options())?;
    let recompress = Some(CompactOptions::RECOMPRESS_LEVEL);
    store.compact(&CompactOptions { recompress, ..Default::default() })?;
    store.close()?;
    print_store("recompressed")
}

fn main() -> StorageBenchResult<()> {
    let mut steps = 200;
    let mut csv = None;
    let mut transcript = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--csv" => csv = arguments.next(),
            "--chat" => transcript = arguments.next(),
            number => steps = number.parse()?,
        }
    }
    if let Some(file) = transcript {
        for commits in [Commits::EachRun, Commits::EachFrame] {
            // `Calls` has no user frames, so that the figures of docs/storage.md can be compared with earlier ones.
            for expansion in [Expansion::Calls, Expansion::Turns] {
                measure_chat(&file, expansion, commits)?;
            }
        }
        return Ok(());
    }
    let mut csv = csv.map(std::fs::File::create).transpose()?;
    if let Some(csv) = &mut csv {
        writeln!(csv, "form,step,stored_bytes,raw_bytes")?;
    }
    for form in [ConversationForm::Plain, ConversationForm::MovingMarker, ConversationForm::ChangingHead] {
        measure_conversation(form, steps, &mut csv)?;
    }
    Ok(())
}
