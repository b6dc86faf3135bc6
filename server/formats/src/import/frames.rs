//! Frames as JSON Lines, each with the name of its run. Any program can write them; `replay --json` prints
//! them.
//!
//! A line with a `component` is a frame; a line without one describes its run. The lines of a run are
//! consecutive: a run ends when a line of another run follows, at a line with `"end":true`, or at the end of
//! the input. A run is returned only when it has ended, so a bad line leaves no part of it behind. Until then
//! its lines are held compressed, within the limit on one run's text, and decoded again when they are recorded.
//!
//! An unknown key is an error: a misspelt `output` would otherwise be lost silently.

use std::io::BufRead;

use super::base64;
use super::chat::RunNameSet;
use super::error::{ImportError, SourcePosition};
use super::packed_lines::PackedLines;
use super::run::{ImportedRun, RunContent, status_named};
use super::source::{ObjectReader, RUN_BYTES_MAX, SourceObject};
use super::span::{self, ObjectMember};
use annals::{Component, Frame, Severity, Status};

/// Options for reading frames.
#[derive(Debug, Clone)]
pub struct FrameOptions {
    /// The model of runs that do not name one.
    pub model: Option<String>,
    /// Maximum total bytes of the lines of one run, at most 4 GiB.
    pub run_bytes_max: u64,
}

impl Default for FrameOptions {
    fn default() -> Self {
        Self { model: None, run_bytes_max: RUN_BYTES_MAX }
    }
}

/// Reads frames and returns their runs. Holds one run in memory.
#[derive(Debug)]
pub struct FrameRuns<R> {
    objects: ObjectReader<R>,
    options: FrameOptions,
    seen: RunNameSet,
    /// The run whose lines are being read.
    open: Option<PartialRun>,
    /// The result of the last line itself, if that line also ended the run before it.
    next: Option<Result<ImportedRun, ImportError>>,
    over: bool,
}

#[derive(Debug)]
struct PartialRun {
    run: ImportedRun,
    frames: PackedLines,
    bytes: u64,
}

impl<R: BufRead> FrameRuns<R> {
    /// Reads frames from `reader`.
    pub fn new(reader: R, options: FrameOptions) -> Self {
        let bytes_max = options.run_bytes_max.min(u64::from(u32::MAX));
        let objects = ObjectReader::new(reader, "object", bytes_max);
        Self { objects, options, seen: RunNameSet::default(), open: None, next: None, over: false }
    }

    fn read(&mut self) -> Result<Option<ImportedRun>, ImportError> {
        while let Some(object) = self.objects.next()? {
            if let Some(run) = self.take_line(&object)? {
                return Ok(Some(run));
            }
        }
        Ok(self.open.take().map(PartialRun::close))
    }

    /// Takes one line; returns the run that it ends. If the line ends the run before it and has a result of
    /// its own, the second result is kept in `next`.
    fn take_line(&mut self, object: &SourceObject) -> Result<Option<ImportedRun>, ImportError> {
        let place = object.place;
        let shape = |what: String| ImportError::Shape { place, what };
        let members = span::members(&object.text).ok_or_else(|| shape("not an object".to_owned()))?;
        let id =
            string_of(&members, "run").map_err(shape)?.ok_or_else(|| shape("it has no `run`".to_owned()))?;
        let other = self.open.as_ref().is_some_and(|open| open.run.id != id);
        let before = if other { self.open.take().map(PartialRun::close) } else { None };
        let own = self.add(id, &members, object);
        match before {
            None => own,
            Some(before) => {
                self.next = own.transpose();
                Ok(Some(before))
            }
        }
    }

    /// Adds a line to its run; returns the run if the line ends it.
    fn add(
        &mut self,
        id: String,
        members: &[ObjectMember<'_>],
        object: &SourceObject,
    ) -> Result<Option<ImportedRun>, ImportError> {
        let place = object.place;
        let mut open = match self.open.take() {
            Some(open) => open,
            None => {
                self.seen.add(&id, place)?;
                PartialRun::new(id, self.options.model.clone(), place)
            }
        };
        open.bytes += object.text.len() as u64;
        if open.bytes > self.objects.bytes_max() {
            return Err(ImportError::TooBig { place: open.run.place, limit: self.objects.bytes_max() });
        }
        if open.add(members, &object.text).map_err(|what| ImportError::Shape { place, what })? {
            return Ok(Some(open.close()));
        }
        self.open = Some(open);
        Ok(None)
    }
}

impl<R: BufRead> Iterator for FrameRuns<R> {
    type Item = Result<ImportedRun, ImportError>;

    /// Returns the next run. An error ends the iteration and discards the run that is being read.
    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.next.take().or_else(|| self.read().transpose());
        self.over = !matches!(next, Some(Ok(_)));
        next
    }
}

impl PartialRun {
    fn new(id: String, model: Option<String>, place: SourcePosition) -> Self {
        let run = ImportedRun {
            id,
            status: Status::Ok,
            severity: Severity::Normal,
            model,
            metadata: Vec::new(),
            unframed_messages: 0,
            place,
            body: RunContent::Frames(PackedLines::default()),
        };
        Self { run, frames: PackedLines::default(), bytes: 0 }
    }

    /// Adds a line; returns whether it ends the run.
    fn add(&mut self, members: &[ObjectMember<'_>], line: &str) -> Result<bool, String> {
        if span::last_value(members, "component").is_some() {
            let next = self.frames.len().checked_add(1).ok_or("too many frames")?;
            frame_of(members, next)?;
            self.frames.push(line)?;
            return Ok(false);
        }
        let line = run_line_of(members)?;
        self.run.status = line.status.unwrap_or(self.run.status);
        self.run.severity = line.severity.unwrap_or(self.run.severity);
        self.run.model = line.model.or(self.run.model.take());
        if let Some(metadata) = line.metadata {
            if !self.run.metadata.is_empty() && self.run.metadata != metadata {
                return Err("its metadata is not that of an earlier line of the run".into());
            }
            self.run.metadata = metadata;
        }
        Ok(line.end)
    }

    fn close(self) -> ImportedRun {
        ImportedRun { body: RunContent::Frames(self.frames), ..self.run }
    }
}

/// The frames of lines that are sound.
pub(super) fn frames_of(lines: &PackedLines) -> impl Iterator<Item = Frame> + '_ {
    (1..).zip(lines.iter()).map_while(|(seq, line)| frame_of(&span::members(&line)?, seq).ok())
}

/// A line that describes its run.
struct RunLine {
    status: Option<Status>,
    severity: Option<Severity>,
    model: Option<String>,
    metadata: Option<Vec<u8>>,
    end: bool,
}

fn run_line_of(members: &[ObjectMember<'_>]) -> Result<RunLine, String> {
    check_keys(members, &["run", "status", "severity", "model", "metadata", "metadata_base64", "end"])?;
    let end = flag_of(members, "end")?;
    Ok(RunLine {
        status: name_of(members, "status", status_named)?,
        severity: name_of(members, "severity", |name| name.parse().ok())?,
        model: string_of(members, "model")?,
        metadata: metadata_of(members)?,
        end,
    })
}

/// Parses the frame of a line; `next` is its number.
fn frame_of(members: &[ObjectMember<'_>], next: u32) -> Result<Frame, String> {
    check_keys(
        members,
        &[
            "run",
            "seq",
            "component",
            "parent",
            "started_ns",
            "duration_ns",
            "input",
            "input_base64",
            "output",
            "output_base64",
            "metadata",
            "metadata_base64",
            "severity",
            "digest",
            "error",
            "incomplete",
        ],
    )?;
    if let Some(seq) = number_of(members, "seq")?
        && seq != u64::from(next)
    {
        return Err(format!("`seq` is {seq}, but this is frame {next} of its run"));
    }
    let parent = match number_of(members, "parent")? {
        None => None,
        Some(parent) => {
            let earlier = u32::try_from(parent).ok().filter(|parent| (1..next).contains(parent));
            Some(
                earlier
                    .ok_or_else(|| format!("`parent` is {parent}, but must name one before frame {next}"))?,
            )
        }
    };
    let component = string_of(members, "component")?.ok_or_else(|| "`component` is null".to_owned())?;
    let component: Component = component.parse().map_err(|error| format!("`component`: {error}"))?;
    let (input, output) =
        (body_of(members, "input", "input_base64")?, body_of(members, "output", "output_base64")?);
    // An unfinished frame is imported as a failed frame with the output that it had.
    let failed = [flag_of(members, "error")?, flag_of(members, "incomplete")?].contains(&true);
    Ok(Frame {
        parent,
        started_ns: number_of(members, "started_ns")?,
        duration_ns: number_of(members, "duration_ns")?.unwrap_or(0),
        metadata: metadata_of(members)?.unwrap_or_default(),
        severity: name_of(members, "severity", |name| name.parse().ok())?.unwrap_or_default(),
        error: failed,
        ..Frame::new(component, input, output)
    })
}

/// Fails on keys that are not in `names`, and on keys that appear twice.
fn check_keys(members: &[ObjectMember<'_>], names: &[&str]) -> Result<(), String> {
    for (index, member) in members.iter().enumerate() {
        let Some(name) = names.iter().find(|name| member.has_key(name)) else {
            if member.has_key("redacted") {
                return Err(
                    "it is redacted: its contents were never recorded and cannot be imported".to_owned()
                );
            }
            return Err(format!("the key {} is unknown", member.key));
        };
        if members.iter().take(index).any(|earlier| earlier.has_key(name)) {
            return Err(format!("the key `{name}` appears twice"));
        }
    }
    Ok(())
}

/// The value of a key that may be missing or null.
fn value_of<'a>(members: &[ObjectMember<'a>], key: &str) -> Option<&'a str> {
    span::last_value(members, key).filter(|json| *json != "null")
}

fn string_of(members: &[ObjectMember<'_>], key: &str) -> Result<Option<String>, String> {
    let Some(json) = value_of(members, key) else { return Ok(None) };
    match span::decode_string(json) {
        Some(string) => Ok(Some(string)),
        None => Err(format!("`{key}` is not a string of valid Unicode")),
    }
}

fn flag_of(members: &[ObjectMember<'_>], key: &str) -> Result<bool, String> {
    match value_of(members, key) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(format!("`{key}` is not true or false")),
    }
}

fn number_of(members: &[ObjectMember<'_>], key: &str) -> Result<Option<u64>, String> {
    let Some(json) = value_of(members, key) else { return Ok(None) };
    json.parse().map(Some).map_err(|_| format!("`{key}` is not a whole number from 0 to {}", u64::MAX))
}

fn name_of<T>(
    members: &[ObjectMember<'_>],
    key: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, String> {
    let Some(name) = string_of(members, key)? else { return Ok(None) };
    parse(&name).map(Some).ok_or_else(|| format!("`{key}` cannot be `{name}`"))
}

fn metadata_of(members: &[ObjectMember<'_>]) -> Result<Option<Vec<u8>>, String> {
    let encoded = string_of(members, "metadata_base64")?;
    match value_of(members, "metadata") {
        Some(_) if encoded.is_some() => Err("it has both `metadata` and `metadata_base64`".to_owned()),
        None => match encoded {
            None => Ok(None),
            Some(text) => {
                base64::decode(&text).map(Some).ok_or_else(|| "`metadata_base64` is not base64".to_owned())
            }
        },
        Some(json) if json.starts_with('{') => Ok(Some(json.as_bytes().to_vec())),
        Some(_) => Err("`metadata` is not an object".to_owned()),
    }
}

/// A body, given as text or as base64; empty if neither is given.
fn body_of(members: &[ObjectMember<'_>], text: &str, encoded: &str) -> Result<Vec<u8>, String> {
    match (string_of(members, text)?, string_of(members, encoded)?) {
        (Some(_), Some(_)) => Err(format!("it has both `{text}` and `{encoded}`")),
        (Some(body), None) => Ok(body.into_bytes()),
        (None, Some(body)) => base64::decode(&body).ok_or_else(|| format!("`{encoded}` is not base64")),
        (None, None) => Ok(Vec::new()),
    }
}
