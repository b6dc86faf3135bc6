//! The store that is looked at.

use std::collections::BTreeMap;

use annals::runs::{RunFilter, RunOrder, RunPage};
use annals::{ErrorKind, Namespace, RunReader, RunUid, Store};
use annals_policy::profiles::Redactor;
use annals_policy::providers::Prices;
use annals_review::{
    Alignment, FrameDifference, FrameView, FrameViewOptions, Timeline, align, failure_report,
    frame_difference, frame_view, new_part, timeline,
};

/// Maximum bytes of a text that are read for a frame.
const TEXT_BYTES_MAX: usize = 200_000;

/// Marks of frames in the timeline: the blame of a step, or its place among the suspect ones.
pub type BadgesFn = fn(&Namespace, &RunReader) -> BTreeMap<u32, String>;

/// A namespace of a store, opened for reading, and how it is shown.
pub struct RunSource {
    store: Store,
    space: Namespace,
    redactor: Option<Redactor>,
    prices: fn(&RunReader) -> Prices,
    badges: BadgesFn,
    now_ns: fn() -> u64,
}

impl std::fmt::Debug for RunSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunSource").finish_non_exhaustive()
    }
}

impl RunSource {
    /// A source that shows everything as `redactor` does, costs by `prices`, and ages by the clock `now_ns`. `badges` are
    /// shown without a redactor only, because they follow from all of the content.
    #[must_use]
    pub fn new(
        store: Store,
        space: Namespace,
        redactor: Option<Redactor>,
        prices: fn(&RunReader) -> Prices,
        badges: BadgesFn,
        now_ns: fn() -> u64,
    ) -> Self {
        Self { store, space, redactor, prices, badges, now_ns }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        (self.now_ns)()
    }

    pub(crate) fn badges(&self, reader: &RunReader) -> BTreeMap<u32, String> {
        match self.redactor {
            Some(_) => BTreeMap::new(),
            None => (self.badges)(&self.space, reader),
        }
    }

    /// The state after a frame, and the number of the frame after which it was stored.
    pub(crate) fn state(&self, reader: &RunReader, seq: u32) -> Result<String, String> {
        if let Some(profile) = self.profile() {
            return Err(format!("States are not shown to readers with a profile ({profile})."));
        }
        match reader.snapshot_at(seq).map_err(|error| error.to_string())? {
            None => Ok(format!("No state was stored up to frame {seq}.")),
            Some(kept) => {
                let text = match serde_json::from_slice::<serde_json::Value>(&kept.state) {
                    Ok(json) => serde_json::to_string_pretty(&json).unwrap_or_default(),
                    Err(_) => String::from_utf8_lossy(&kept.state).into_owned(),
                };
                Ok(format!("STATE after frame {}\n{text}", kept.seq))
            }
        }
    }

    /// The name of the profile that redacts what is shown.
    pub(crate) fn profile(&self) -> Option<&str> {
        self.redactor.as_ref().map(|by| by.profile().name())
    }

    /// Makes later commits visible.
    pub(crate) fn refresh(&self) -> Result<(), String> {
        self.store.refresh().map_err(|error| error.to_string())
    }

    pub(crate) fn page(
        &self,
        filter: &RunFilter,
        after: Option<RunUid>,
        count: usize,
    ) -> Result<RunPage, String> {
        let page = self.space.page_runs(filter, RunOrder::NewestFirst, after, count);
        page.map_err(|error| error.to_string())
    }

    /// The run of this name.
    pub(crate) fn named(&self, name: &str) -> Result<RunReader, String> {
        self.space.run(name).map_err(|error| error.to_string())
    }

    /// A run by its name, or by an unambiguous beginning of it.
    pub(crate) fn run(&self, name: &str) -> Result<RunReader, String> {
        match self.space.run(name) {
            Err(error) if error.kind() == ErrorKind::NotFound && !name.is_empty() => {
                let mut found = None;
                for run in self.space.runs().map_err(|error| error.to_string())? {
                    let other = run.map_err(|error| error.to_string())?.name;
                    if other.starts_with(name) && found.replace(other).is_some() {
                        return Err(format!("{name:?} is the start of several run names"));
                    }
                }
                match found {
                    Some(found) => self.space.run(&found).map_err(|error| error.to_string()),
                    None => Err(error.to_string()),
                }
            }
            found => found.map_err(|error| error.to_string()),
        }
    }

    pub(crate) fn tag(&self, value: &str) -> String {
        self.redactor.as_ref().map_or_else(|| value.to_owned(), |by| by.text(value))
    }

    pub(crate) fn timeline(&self, reader: &RunReader) -> Result<Timeline, String> {
        let prices = (self.prices)(reader);
        timeline(reader, 1, usize::MAX, &prices, self.redactor.as_ref()).map_err(|error| error.to_string())
    }

    pub(crate) fn view(&self, reader: &RunReader, seq: u32, all: bool) -> Result<FrameView, String> {
        let prices = (self.prices)(reader);
        let options = FrameViewOptions {
            redactor: self.redactor.as_ref(),
            all,
            text_bytes_max: TEXT_BYTES_MAX,
            prices: &prices,
        };
        frame_view(reader, seq, &options).map_err(|error| error.to_string())
    }

    /// What a request adds to the one before, as lines.
    pub(crate) fn changes(&self, reader: &RunReader, seq: u32) -> Result<String, String> {
        let found = new_part(reader, seq, self.redactor.as_ref()).map_err(|error| error.to_string())?;
        Ok(match found {
            None => "This frame is no model call, so there is no request before it.".to_owned(),
            Some((0, changes)) => format!("The first request of the run:\n{changes}"),
            Some((before, changes)) => format!("Beside frame {before}:\n{changes}"),
        })
    }

    /// The stored parts of a frame, redacted: request, response, metadata.
    pub(crate) fn parts(&self, reader: &RunReader, seq: u32) -> Result<[Vec<u8>; 3], String> {
        let frame = reader.frame(seq).map_err(|error| error.to_string())?;
        Ok(match &self.redactor {
            None => [frame.input, frame.output, frame.metadata],
            Some(by) => {
                let shown = by.frame(&frame.input, &frame.output, &frame.metadata);
                [shown.input, shown.output, shown.metadata]
            }
        })
    }

    /// The frame of a run to read first: where it failed, else its last model call, else its last frame.
    pub(crate) fn first_to_read(&self, reader: &RunReader, rows: &Timeline) -> u32 {
        let has_failed = rows
            .frames
            .iter()
            .any(|row| row.severity > annals_review::ShownSeverity::Ok || row.damage.is_some());
        let failed = || failure_report(reader, self.redactor.as_ref()).ok().flatten();
        if has_failed && let Some(report) = failed() {
            return report.frame.seq;
        }
        let of = |row: &&annals_review::TimelineFrame| row.kind == annals_review::FrameKind::Llm;
        rows.frames.iter().rev().find(of).or(rows.frames.last()).map_or(1, |row| row.seq)
    }

    pub(crate) fn align(&self, a: &RunReader, b: &RunReader) -> Result<Alignment, String> {
        align(a, b).map_err(|error| error.to_string())
    }

    pub(crate) fn difference(
        &self,
        a: (&RunReader, u32),
        b: (&RunReader, u32),
    ) -> Result<FrameDifference, String> {
        let a = a.0.frame(a.1).map_err(|error| error.to_string())?;
        let b = b.0.frame(b.1).map_err(|error| error.to_string())?;
        Ok(frame_difference(&a, &b, self.redactor.as_ref()))
    }
}
