//! Measures the engine's rates, each path beside its physical limit, in one process and in turn. Prints
//! medians.
//!
//! `cargo run --profile dist -p annals-benches --example performance -- [--dir DIR] [--rounds N] [--chat FILE.json] [SECTION…]`
//!
//! Sections: conversation, many, real, kv, frames, scan, single, open, forks, memory, curve, waits, large; without any,
//! all of them but `large`, which fills 20 GB.
#![expect(clippy::print_stdout, reason = "a program that measures and prints")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a measurement fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "it measures the system itself")]

use std::path::{Path, PathBuf};

use annals_benches::measure::Rates;

mod reading;
mod recording;
mod scale;

/// The command line's arguments.
pub(crate) struct PerformanceArgs {
    dir: PathBuf,
    rounds: usize,
    chat: Option<PathBuf>,
}

impl PerformanceArgs {
    /// A new directory that is removed when the result is dropped.
    pub(crate) fn temporary_dir(&self) -> tempfile::TempDir {
        tempfile::tempdir_in(&self.dir).unwrap()
    }
}

/// A section's name, and what measures it.
type BenchSection = (&'static str, fn(&PerformanceArgs));

/// Prints rates. The others are compared with the first.
pub(crate) fn print_rates(title: &str, unit: &str, rates: &[Rates]) {
    println!("\n{title} ({unit} a second; median, least, most)");
    let base = rates.first().map_or(1.0, Rates::median);
    for row in rates {
        let (least, most) = (row.rates.first().unwrap(), row.rates.last().unwrap());
        println!(
            "  {:44} {:>14.0} {least:>14.0} {most:>14.0}   {:.2} of the first",
            row.name,
            row.median(),
            row.median() / base
        );
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut plan = PerformanceArgs { dir: std::env::temp_dir(), rounds: 5, chat: None };
    let mut sections = Vec::new();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} needs a value"));
        match argument.as_str() {
            "--dir" => plan.dir = value().into(),
            "--rounds" => plan.rounds = value().parse().unwrap(),
            "--chat" => plan.chat = Some(value().into()),
            // The section `open` starts this program with `--fill`, and kills it.
            "--fill" => return scale::fill_until_killed(Path::new(&value())),
            _ => sections.push(argument),
        }
    }
    let wanted = |name: &str| match sections.is_empty() {
        true => name != "large",
        false => sections.iter().any(|section| section == name),
    };
    let all: [BenchSection; 13] = [
        ("conversation", recording::conversation),
        ("many", recording::many_conversations),
        ("real", recording::real_runs),
        ("kv", recording::kv),
        ("frames", recording::frames),
        ("scan", reading::scan),
        ("single", reading::single),
        ("open", scale::open_and_recover),
        ("forks", scale::forks),
        ("memory", scale::memory),
        ("curve", scale::step_cost_curve),
        ("waits", scale::commit_waits),
        ("large", scale::large),
    ];
    for section in &sections {
        assert!(all.iter().any(|(name, _)| name == section), "there is no section {section:?}");
    }
    for (name, run) in all {
        if wanted(name) {
            run(&plan);
        }
    }
}
