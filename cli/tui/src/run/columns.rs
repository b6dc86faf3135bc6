//! The columns of the timeline.

use annals_review::{FrameStatus, TimelineFrame};

use crate::look::{Look, letter};
use crate::numbers::duration;
use crate::wrap::{left, right};

/// The columns of the timeline, with bars to scale in time.
pub(super) struct RowColumns {
    seq: usize,
    name: usize,
    bar: usize,
    began_ns: u64,
    span_ns: u64,
}

impl RowColumns {
    pub(super) fn of(width: usize, rows: &[TimelineFrame]) -> Self {
        let seq = rows.last().map_or(1, |row| row.seq.to_string().len()).max(2);
        // Number, mark, name, bar, duration, with a gap between each.
        let rest = width.saturating_sub(seq + 1 + 2 + 1 + 8);
        let bar = if rest >= 20 { rest / 3 } else { 0 };
        // Frames without a time of their own (a damaged record) are left out of the scale.
        let timed = rows.iter().filter(|row| row.began_ns > 0 && row.damage.is_none());
        let began_ns = timed.clone().map(|row| row.began_ns).min().unwrap_or(0);
        let end = |row: &TimelineFrame| row.began_ns.saturating_add(row.duration_ns.unwrap_or(0));
        let ended_ns = timed.map(end).max().unwrap_or(0);
        let name = rest - if bar > 0 { bar + 1 } else { 0 };
        Self { seq, name, bar, began_ns, span_ns: ended_ns.saturating_sub(began_ns).max(1) }
    }

    pub(super) fn row(&self, row: &TimelineFrame, badge: &str, look: Look) -> String {
        let more = if look.unicode { "…" } else { ">" };
        let lane = " ".repeat(usize::try_from(row.lane).unwrap_or(0).min(4));
        let name = match (&row.name, &row.damage) {
            (_, Some(_)) => "damaged".to_owned(),
            (Some(name), _) => format!("{} {}", row.component, name),
            (None, _) => row.component.clone(),
        };
        let room = if badge.is_empty() { self.name } else { self.name.saturating_sub(badge.len() + 1) };
        let mut name = left(&format!("{lane}{}", look.one_line(&name)), room, more);
        if !badge.is_empty() {
            name += &format!(" {badge}");
        }
        let took = match (row.status, row.duration_ns) {
            (FrameStatus::Open, _) => "open".to_owned(),
            (_, Some(ns)) => duration(ns),
            (_, None) => "-".to_owned(),
        };
        let seq = right(&row.seq.to_string(), self.seq, "");
        let mut line = format!("{seq} {} {name}", letter(row.severity));
        if self.bar > 0 {
            line += &format!(" {}", self.bar_of(row, look));
        }
        line + &format!(" {}", right(&took, 8, more))
    }

    fn bar_of(&self, row: &TimelineFrame, look: Look) -> String {
        let scaled = |ns: u64| {
            let at = u128::from(ns) * self.bar as u128 / u128::from(self.span_ns);
            usize::try_from(at).unwrap_or(self.bar).min(self.bar)
        };
        let from = scaled(row.began_ns.saturating_sub(self.began_ns)).min(self.bar - 1);
        let long = scaled(row.duration_ns.unwrap_or(0)).clamp(1, self.bar - from);
        format!("{}{}{}", " ".repeat(from), look.bar().repeat(long), " ".repeat(self.bar - from - long))
    }
}
