//! A run that is played: each frame is shown for its recorded time.

use super::RunScreen;
use crate::source::RunSource;

/// Shortest and longest time for which a played frame is shown.
const PLAY_NS_MIN: u64 = 100_000_000;
const PLAY_NS_MAX: u64 = 2_000_000_000;
impl RunScreen {
    /// Begins or stops to step through the frames with the recorded times, at most 2 s each.
    pub(crate) fn toggle_play(&mut self, source: &RunSource) -> String {
        match self.play_ns.take() {
            Some(_) => "stopped".to_owned(),
            None if self.selected + 1 >= self.shown.len() => "this is the last frame".to_owned(),
            None => {
                self.plan_step(source);
                "playing: P stops".to_owned()
            }
        }
    }

    fn plan_step(&mut self, source: &RunSource) {
        let began = |at: usize| self.shown.get(at).and_then(|at| self.rows.get(*at)).map(|row| row.began_ns);
        self.play_ns = began(self.selected + 1).map(|next| {
            let now = began(self.selected).unwrap_or(next);
            source.now_ns().saturating_add(next.saturating_sub(now).clamp(PLAY_NS_MIN, PLAY_NS_MAX))
        });
    }

    /// Shows the next frame if its time has come. Returns whether the screen changed.
    pub(crate) fn play_on(&mut self, source: &RunSource) -> bool {
        if self.play_ns.is_none_or(|due| source.now_ns() < due) {
            return false;
        }
        self.step(1);
        self.plan_step(source);
        true
    }
}
