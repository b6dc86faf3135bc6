//! A frame as a person reads it (`read`), as values that serialise to JSON (`view`), and the timeline of a run
//! (`timeline`), with a lane for each frame of those that overlap (`lanes`). The web page, the report file and
//! the terminal show the same.

mod facts;
mod lanes;
mod read;
#[cfg(test)]
mod tests;
mod timeline;
mod view;

pub(crate) use view::as_text;

pub use lanes::Lanes;
pub use read::{FrameViewOptions, TEXT_BYTES_MAX, frame_view};
pub use timeline::{TIMELINE_FRAMES, TIMELINE_FRAMES_MAX, Timeline, TimelineFrame, timeline};
pub use view::{
    FrameKind, FrameStatus, FrameView, HttpView, RequestBefore, ShownBody, ShownSeverity, ShownUsage,
};
