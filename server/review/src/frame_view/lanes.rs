//! Lanes for frames that overlap in time, so that a timeline can draw parallel calls side by side.

use std::collections::BTreeMap;

use annals::runs::FrameInfo;

/// Maximum number of lanes; frames beyond it share the last one.
const LANES_MAX: usize = 64;

/// Gives each frame the first lane in which it overlaps no frame before it in the run. The lane of a frame
/// depends only on frames with smaller numbers, so it never changes while a run grows. Frames of the program
/// itself span the whole run; they stand in lane 0 and take no room.
#[derive(Debug, Default)]
pub struct Lanes {
    /// For each lane: the spans in it, by their beginning.
    spans: Vec<BTreeMap<u64, u64>>,
}

impl Lanes {
    /// The lane of the next frame. Frames are added in the order of their numbers.
    pub fn add(&mut self, frame: &FrameInfo) -> u32 {
        if is_own_frame(frame.component.name()) {
            return 0;
        }
        // An open frame has no end yet: it overlaps everything after it.
        let end = match frame.incomplete {
            true => u64::MAX,
            false => frame.started_ns.saturating_add(frame.duration_ns),
        };
        let fits = |spans: &BTreeMap<u64, u64>| {
            let earlier = spans.range(..=frame.started_ns).next_back();
            let later = spans.range(frame.started_ns..).next();
            earlier.is_none_or(|(_, ended)| *ended <= frame.started_ns)
                && later.is_none_or(|(began, _)| *began >= end)
        };
        let lane = match self.spans.iter().position(fits) {
            Some(lane) => lane,
            None if self.spans.len() < LANES_MAX => {
                self.spans.push(BTreeMap::new());
                self.spans.len() - 1
            }
            None => LANES_MAX - 1,
        };
        if let Some(spans) = self.spans.get_mut(lane) {
            let ended = spans.entry(frame.started_ns).or_insert(end);
            *ended = end.max(*ended);
        }
        u32::try_from(lane).unwrap_or(u32::MAX)
    }
}

/// Whether a frame is the program itself: its input, its exit, its errors.
pub(super) fn is_own_frame(component: &str) -> bool {
    matches!(component, "stdin" | "program" | "stderr")
}
