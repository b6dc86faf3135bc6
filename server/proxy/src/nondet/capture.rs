//! The private directory that the preloaded library and this process share while a program runs.
//!
//! It holds `preload.so` and `node.cjs` (loaded into processes), `in` (lanes to serve), `out` (lanes that the
//! program draws) and `exec` (a note for each program started). The lanes are files that survive a killed
//! program. New draws become a frame before each exchange and at the end, so that a killed recorder has
//! everything that led to its recording.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use annals::{Component, Frame};
use annals_preload::format::{self, HEADER_BYTES, LANE_BYTES_MAX, MAGIC};
use serde_json::json;

use super::lanes::{DrawLanes, LANES_MAX, is_name, put_part};
use super::reach::{self, CoverageObstacle};
use crate::destination::NewRun;
use crate::private_directory::{PrivateDirectory, Purpose};
use crate::program::Program;

/// The library, built by `build.rs`; empty on systems without one.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/preload.so"));
static NODE: &[u8] = include_bytes!("node.cjs");

/// The variable that makes Python's string hashing the same in each process.
pub(crate) const HASH_SEED: &str = "PYTHONHASHSEED";
/// Maximum number of lane files kept open.
const OPEN_MAX: usize = 128;
/// Maximum number of programs named.
const LISTED_PROGRAMS_MAX: usize = 8;

/// Why clocks and randomness cannot be captured.
#[derive(Debug)]
pub struct NondetError(pub String);

impl std::fmt::Display for NondetError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The result of capturing or serving draws.
#[derive(Debug, Clone, Default)]
pub struct CaptureReport {
    /// Clock reads and entropy.
    pub draws: u64,
    /// Threads that drew, in all processes.
    pub lanes: u64,
    /// What was not covered, and why.
    pub missed: Vec<String>,
    /// How the draws of a replay differ from the recorded ones.
    pub differences: Vec<String>,
}

/// Captures the draws of one program.
#[derive(Debug)]
pub(crate) struct NondetCapture {
    directory: PrivateDirectory,
    beyond: Option<CoverageObstacle>,
    served: DrawLanes,
    noted: Mutex<CapturedLanes>,
}

#[derive(Debug, Default)]
struct CapturedLanes {
    /// For each lane: its file if kept open, and the number of bytes recorded.
    lanes: BTreeMap<String, (Option<File>, usize)>,
    failed: Option<String>,
}

fn failed(what: &str, error: &std::io::Error) -> NondetError {
    NondetError(format!("{what}: {error}"))
}

impl NondetCapture {
    /// Captures this program, which is served these lanes.
    ///
    /// # Errors
    /// If there is no library for this system, or no usable directory.
    pub(crate) fn begin(program: &Program, served: DrawLanes) -> Result<Self, NondetError> {
        has_library()?;
        let capture = Self {
            directory: PrivateDirectory::create(Purpose::Nondet).map_err(NondetError)?,
            beyond: reach::coverage_obstacle(program),
            served,
            noted: Mutex::default(),
        };
        capture
            .create_files()
            .map_err(|error| failed("the library cannot be written for the program", &error))?;
        Ok(capture)
    }

    fn create_files(&self) -> std::io::Result<()> {
        for folder in ["in", "out", "exec"] {
            DirBuilder::new().mode(0o700).create(self.directory.path().join(folder))?;
        }
        write(&self.directory.path().join("preload.so"), 0o500, LIBRARY)?;
        write(&self.directory.path().join("node.cjs"), 0o400, NODE)?;
        let mut lanes = self.served.0.iter().filter(|(_, bytes)| !bytes.is_empty());
        lanes.try_for_each(|(name, bytes)| write(&self.directory.path().join("in").join(name), 0o600, bytes))
    }

    /// The variables that the program needs.
    pub(crate) fn environment(&self, hash_seed: &str) -> Vec<(String, String)> {
        let mut variables = vec![(HASH_SEED.to_owned(), hash_seed.to_owned())];
        if self.beyond.as_ref().is_some_and(|beyond| beyond.harmful) {
            return variables;
        }
        let of = |name: &str| self.directory.path().join(name).to_string_lossy().into_owned();
        let more = |name: &str, between: &str, first: String, before: bool| {
            let set = std::env::var(name).ok().filter(|value| !value.is_empty());
            let value = match (set, before) {
                (None, _) => first,
                (Some(set), true) => format!("{first}{between}{set}"),
                (Some(set), false) => format!("{set}{between}{first}"),
            };
            (name.to_owned(), value)
        };
        variables.extend([
            more("LD_PRELOAD", ":", of("preload.so"), true),
            more("NODE_OPTIONS", " ", format!("--require {}", of("node.cjs")), false),
            (format::DIRECTORY.to_owned(), self.directory.path().to_string_lossy().into_owned()),
            (format::LANE.to_owned(), "0".to_owned()),
        ]);
        variables
    }

    fn noted(&self) -> std::sync::MutexGuard<'_, CapturedLanes> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the draws since the last call, if any. Queues the frame without waiting; frames recorded later
    /// follow it.
    pub(crate) fn record_new_draws(&self, run: &NewRun) {
        let mut noted = self.noted();
        if noted.failed.is_some() {
            return;
        }
        let mut parts = Vec::new();
        let mut lanes = 0;
        let new = self.read_new_draws(&mut noted, |name, at, bytes| {
            lanes += 1;
            put_part(&mut parts, name, at, bytes);
        });
        let kept = match new {
            Ok(()) if lanes == 0 => return,
            Ok(()) => {
                let metadata = json!({ "captured": { "lanes": lanes } }).to_string();
                let frame = Frame::new(Component::Nondet, Vec::new(), parts).metadata(metadata);
                run.submit(frame).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        noted.failed = kept.err();
    }

    /// Reads the new bytes of each lane.
    fn read_new_draws(
        &self,
        noted: &mut CapturedLanes,
        mut new: impl FnMut(&str, usize, &[u8]),
    ) -> std::io::Result<()> {
        for name in self.names("out")? {
            let path = self.directory.path().join("out").join(&name);
            let mut open = noted.lanes.len() < OPEN_MAX;
            let lane = noted.lanes.entry(name.clone()).or_default();
            let opened;
            let file = match &lane.0 {
                Some(file) => file,
                None => {
                    opened = open_file(&path)?;
                    open &= lane.1 == 0;
                    &opened
                }
            };
            let used = used_bytes(file)?;
            if used > lane.1 {
                let mut bytes = vec![0; used - lane.1];
                file.read_exact_at(&mut bytes, (HEADER_BYTES + lane.1) as u64)?;
                new(&name, lane.1, &bytes);
                lane.1 = used;
            }
            if lane.0.is_none() && open {
                lane.0 = open_file(&path).ok();
            }
        }
        Ok(())
    }

    /// The lanes that have a file in a folder.
    fn names(&self, folder: &str) -> std::io::Result<Vec<String>> {
        #[expect(clippy::disallowed_methods, reason = "a directory of our own outside any store")]
        let listed = std::fs::read_dir(self.directory.path().join(folder))?;
        let names = listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<_> = names.filter(|name| is_name(name)).take(LANES_MAX).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// The result of a recording; records the remaining draws.
    pub(crate) fn finish(&self, run: &NewRun) -> CaptureReport {
        self.record_new_draws(run);
        let mut captured = self.captured(&self.read_lanes());
        if let Some(why) = &self.noted().failed {
            captured.missed.push(format!("later draws could not be recorded: {why}"));
        }
        captured
    }

    /// The result of a replay.
    pub(crate) fn compare(&self) -> CaptureReport {
        let drawn = self.read_lanes();
        let differences = self.served.differences(&drawn);
        CaptureReport { differences, ..self.captured(&drawn) }
    }

    /// All draws. A lane that cannot be read is included as far as possible.
    fn read_lanes(&self) -> DrawLanes {
        let mut lanes = DrawLanes::default();
        let mut all = CapturedLanes::default();
        let _ = self.read_new_draws(&mut all, |name, _, bytes| {
            lanes.0.insert(name.to_owned(), bytes.to_vec());
        });
        for name in all.lanes.into_keys() {
            lanes.0.entry(name).or_default();
        }
        lanes
    }

    fn captured(&self, drawn: &DrawLanes) -> CaptureReport {
        let mut missed = Vec::new();
        if let Some(beyond) = &self.beyond {
            missed.push(beyond.why.clone());
        } else if !drawn.0.contains_key("0") {
            missed.push("the program did not load the library".to_owned());
        }
        let started = self.names("exec").unwrap_or_default();
        let silent: Vec<_> = started.iter().filter(|name| !drawn.0.contains_key(*name)).collect();
        for name in silent.iter().take(LISTED_PROGRAMS_MAX) {
            #[expect(clippy::disallowed_methods, reason = "a file of our own outside any store")]
            let program = std::fs::read(self.directory.path().join("exec").join(name)).unwrap_or_default();
            let program = String::from_utf8_lossy(&program).into_owned();
            missed
                .push(format!("{program} (process {name}) did not load the library: is it a static binary?"));
        }
        if silent.len() > LISTED_PROGRAMS_MAX {
            missed.push(format!("and {} more processes", silent.len() - LISTED_PROGRAMS_MAX));
        }
        let (draws, odd) = drawn.count();
        for name in odd {
            missed.push(format!("the program overwrote lane {name}"));
        }
        let full = drawn.0.iter().filter(|(_, bytes)| bytes.len() + FULL_MARGIN_BYTES > LANE_BYTES_MAX);
        for (name, _) in full {
            missed.push(format!("lane {name} is full: draws after {LANE_BYTES_MAX} bytes are missing"));
        }
        let lanes = drawn.0.values().filter(|bytes| !bytes.is_empty()).count() as u64;
        CaptureReport { draws, lanes, missed, differences: Vec::new() }
    }
}

/// A lane with less free space may have lost a draw.
const FULL_MARGIN_BYTES: usize = 1 << 20;

/// How many bytes of draws a lane's file holds.
fn used_bytes(file: &File) -> std::io::Result<usize> {
    let mut header = [0; HEADER_BYTES];
    // A new file is empty, or has no header yet.
    let read = file.read_at(&mut header, 0)?;
    let (magic, used) = header.split_at(MAGIC.len());
    if read < HEADER_BYTES || magic != MAGIC {
        return Ok(0);
    }
    let used = used.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let most = file.metadata()?.len().min(LANE_BYTES_MAX as u64).saturating_sub(HEADER_BYTES as u64);
    Ok(used.min(most) as usize)
}

#[expect(clippy::disallowed_methods, reason = "a file of our own outside any store")]
fn open_file(path: &Path) -> std::io::Result<File> {
    File::open(path)
}

#[expect(clippy::disallowed_methods, reason = "a file of our own outside any store")]
fn write(path: &Path, mode: u32, bytes: &[u8]) -> std::io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?.write_all(bytes)
}

fn has_library() -> Result<(), NondetError> {
    match LIBRARY.is_empty() {
        false => Ok(()),
        true => Err(NondetError(
            "clocks and randomness are captured on Linux with glibc only, on x86-64 and AArch64".to_owned(),
        )),
    }
}

/// Whether this machine can capture clocks and randomness. Creates nothing.
///
/// # Errors
/// Why not.
pub(crate) fn check_support() -> Result<(), NondetError> {
    has_library()?;
    PrivateDirectory::check_support().map_err(NondetError)
}
