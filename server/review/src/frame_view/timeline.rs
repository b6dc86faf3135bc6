//! The timeline of a run: a row for each frame, from records and metadata. No body is read.

use annals::{ErrorKind, RunReader};
use serde::Serialize;

use annals_policy::profiles::Redactor;
use annals_policy::providers::Prices;

use super::facts::FrameFacts;
use super::lanes::Lanes;
use super::view::{FrameKind, FrameStatus, ShownSeverity, as_text};

/// Frames of one part of a timeline: by default, and at most for a client of the daemon.
pub const TIMELINE_FRAMES: usize = 512;
pub const TIMELINE_FRAMES_MAX: usize = 10_000;

/// A part of a run's timeline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timeline {
    pub frames: Vec<TimelineFrame>,
    /// The frame to continue with; `None` at the end.
    pub next: Option<u32>,
    /// How many frames the run has.
    pub total: u32,
}

/// A frame in a timeline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimelineFrame {
    pub seq: u32,
    pub component: String,
    pub name: Option<String>,
    pub kind: FrameKind,
    pub lane: u32,
    #[serde(serialize_with = "as_text")]
    pub began_ns: u64,
    /// `None` while the frame is open.
    pub duration_ns: Option<u64>,
    pub status: FrameStatus,
    pub severity: ShownSeverity,
    pub dollars: Option<f64>,
    /// Input and output tokens.
    pub tokens: Option<u64>,
    pub parent: Option<u32>,
    /// Why the frame's record cannot be read. The other members are then empty.
    pub damage: Option<String>,
}

/// Reads the timeline of a run from frame `from` on, at most `limit` frames. The records of
/// all earlier frames are read too, for the lanes. Names are as the profile `by`
/// shows them. A frame whose record is damaged has a row that says so.
///
/// # Errors
/// As [`RunReader::frame_info`], except for damage.
pub fn timeline(
    reader: &RunReader,
    from: u32,
    limit: usize,
    prices: &Prices,
    by: Option<&Redactor>,
) -> annals::Result<Timeline> {
    let total = reader.info().frames;
    let from = from.max(1);
    let limit = u32::try_from(limit.max(1)).unwrap_or(u32::MAX);
    let last = total.min(from.saturating_add(limit - 1));
    let mut lanes = Lanes::default();
    let mut frames = Vec::new();
    for seq in 1..=last {
        let info = match reader.frame_info(seq) {
            Ok(info) => info,
            Err(error) if error.kind() == ErrorKind::Damaged => {
                if seq >= from {
                    frames.push(TimelineFrame::damaged(seq, error.to_string()));
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        let lane = lanes.add(&info);
        if seq < from {
            continue;
        }
        let facts = FrameFacts::read(&by.map_or_else(
            || std::borrow::Cow::Borrowed(info.metadata.as_slice()),
            |by| by.metadata(&info.metadata).bytes,
        ));
        let status = facts.status(&info, reader.info().status);
        frames.push(TimelineFrame {
            seq,
            name: facts.name(&info.component),
            kind: FrameKind::of(&info.component),
            lane,
            began_ns: info.started_ns,
            duration_ns: (status != FrameStatus::Open).then_some(info.duration_ns),
            status,
            severity: ShownSeverity::of(&info),
            dollars: facts.dollars(prices),
            tokens: facts.tokens(),
            parent: info.parent,
            damage: None,
            component: info.component.name().to_owned(),
        });
    }
    Ok(Timeline { frames, next: (last < total).then(|| last + 1), total })
}

impl TimelineFrame {
    fn damaged(seq: u32, damage: String) -> Self {
        Self {
            seq,
            component: String::new(),
            name: None,
            kind: FrameKind::Other,
            lane: 0,
            began_ns: 0,
            duration_ns: None,
            status: FrameStatus::Error,
            severity: ShownSeverity::Failed,
            dollars: None,
            tokens: None,
            parent: None,
            damage: Some(damage),
        }
    }
}
