//! The draws of a program's threads: each lane as bytes (`annals_preload::format`), and its form in a run.
//!
//! A frame of component `nondet` whose metadata has `captured` holds the draws since the previous one, in
//! parts:
//!
//! ```text
//! part   name length u8 | name | varint: offset in the lane | varint: length | bytes
//! ```
//!
//! A part at offset 0 restarts its lane: a fork stores all draws of its program, also those that it shares
//! with its parent.

use std::collections::BTreeMap;

use annals::{Component, RunReader};
use annals_preload::format::{
    Clock, DrawReader, LANE_BYTES_MAX, LaneDraw, NAME_BYTES_MAX, to_varint, varint,
};

/// Maximum number of lanes in one run.
pub(super) const LANES_MAX: usize = 1 << 16;
/// Maximum number of bytes in all lanes of a run that is served.
const BYTES_MAX: usize = 1 << 30;
/// Maximum number of lanes whose difference is listed.
const LISTED_LANES_MAX: usize = 8;

/// Draws by lane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DrawLanes(pub(super) BTreeMap<String, Vec<u8>>);

/// Whether a text can be a lane's name, which is also a file name.
pub(super) fn is_name(name: &str) -> bool {
    name.starts_with('0')
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'p' | b't' | b'u' | b'~'))
}

/// Appends a part to a frame's output.
pub(super) fn put_part(out: &mut Vec<u8>, name: &str, at: usize, bytes: &[u8]) {
    out.push(name.len() as u8);
    out.extend(name.as_bytes());
    for number in [at, bytes.len()] {
        let (digits, length) = to_varint(number as u64);
        out.extend(&digits[..length]);
    }
    out.extend(bytes);
}

impl DrawLanes {
    /// The draws of a run.
    ///
    /// # Errors
    /// As reading frames; `Invalid` if a frame is not in the recorder's form.
    pub(crate) fn from_reader(reader: &RunReader) -> annals::Result<Self> {
        let mut lanes = Self::default();
        for seq in 1..=reader.info().frames {
            let info = reader.frame_info(seq)?;
            if info.component != Component::Nondet || !is_captured(&info.metadata) {
                continue;
            }
            let output = reader.frame(seq)?.output;
            lanes.read_frame(&output).ok_or_else(|| {
                let what = format!("frame {seq} holds no captured draws, or more than {BYTES_MAX} bytes");
                annals::Error::new(annals::ErrorKind::Invalid, what)
            })?;
        }
        Ok(lanes)
    }

    /// Adds a frame's parts.
    fn read_frame(&mut self, mut rest: &[u8]) -> Option<()> {
        let mut all: usize = self.0.values().map(Vec::len).sum();
        while let Some((length, after)) = rest.split_first() {
            let (name, after) = after.split_at_checked(usize::from(*length))?;
            let name = std::str::from_utf8(name).ok().filter(|name| is_name(name))?;
            let (at, used) = varint(after)?;
            let (length, more) = varint(after.get(used..)?)?;
            let after = after.get(used + more..)?;
            let (bytes, after) = after.split_at_checked(usize::try_from(length).ok()?)?;
            if !self.0.contains_key(name) {
                if self.0.len() == LANES_MAX {
                    return None;
                }
                self.0.insert(name.to_owned(), Vec::new());
            }
            let lane = self.0.get_mut(name)?;
            if at == 0 {
                all -= lane.len();
                lane.clear();
            }
            all = all.checked_add(bytes.len()).filter(|all| *all <= BYTES_MAX)?;
            if at != lane.len() as u64 || lane.len() + bytes.len() > LANE_BYTES_MAX {
                return None;
            }
            lane.extend(bytes);
            rest = after;
        }
        Some(())
    }

    /// The number of draws, and the lanes that are malformed from some position on.
    pub(super) fn count(&self) -> (u64, Vec<&str>) {
        let (mut draws, mut odd) = (0, Vec::new());
        for (name, bytes) in &self.0 {
            let mut reader = DrawReader::new(bytes);
            draws += reader.by_ref().count() as u64;
            if reader.position() != bytes.len() {
                odd.push(name.as_str());
            }
        }
        (draws, odd)
    }

    /// How a replay's draws differ from the recorded ones, one line for each lane.
    pub(super) fn differences(&self, replayed: &Self) -> Vec<String> {
        let empty = Vec::new();
        let names = self.0.keys().chain(replayed.0.keys().filter(|name| !self.0.contains_key(*name)));
        let mut told = Vec::new();
        let mut untold = 0_usize;
        for name in names {
            let (before, now) = (self.0.get(name).unwrap_or(&empty), replayed.0.get(name).unwrap_or(&empty));
            if before == now {
                continue;
            }
            if told.len() == LISTED_LANES_MAX {
                untold += 1;
                continue;
            }
            told.push(format!("lane {name} {}{}", difference(before, now), replayed.threads_beside(name)));
        }
        if untold > 0 {
            told.push(format!("and {untold} more lanes"));
        }
        told
    }

    fn threads_beside(&self, name: &str) -> String {
        let of = process(name);
        match self.0.iter().filter(|(name, bytes)| process(name) == of && !bytes.is_empty()).count() {
            0 | 1 => String::new(),
            many => format!(" (one of {many} threads of its process: their order may differ each time)"),
        }
    }
}

/// The process of a lane: its name without the threads at the end.
fn process(name: &str) -> &str {
    let mut name = name;
    loop {
        let shorter = name.trim_end_matches(|c: char| c.is_ascii_digit());
        match shorter.strip_suffix(['t', 'u']) {
            Some(shorter) => name = shorter,
            None => return name,
        }
    }
}

/// Describes the first draw that differs.
fn difference(before: &[u8], now: &[u8]) -> String {
    let (mut recorded, mut replayed) = (DrawReader::new(before), DrawReader::new(now));
    let mut same = 0_u64;
    loop {
        match (recorded.next(), replayed.next()) {
            (Some(a), Some(b)) if a == b => same += 1,
            (Some(a), Some(b)) => {
                let number = same + 1;
                return format!("drew {} as its draw {number}, and {} was recorded", name(&b), name(&a));
            }
            (Some(_), None) => {
                let all = same + 1 + recorded.count() as u64;
                return format!("drew {same} times, and {all} were recorded");
            }
            (None, _) => {
                let all = same + 1 + replayed.count() as u64;
                return format!("drew {all} times, and {same} were recorded: the rest are new values");
            }
        }
    }
}

fn name(draw: &LaneDraw<'_>) -> String {
    match draw {
        LaneDraw::Clock(Clock::Realtime, _) => "a clock (clock_gettime)".to_owned(),
        LaneDraw::Clock(Clock::Coarse, _) => "a coarse clock".to_owned(),
        LaneDraw::Clock(Clock::TimeOfDay, _) => "a clock (gettimeofday)".to_owned(),
        LaneDraw::Clock(Clock::Time, _) => "a clock (time)".to_owned(),
        LaneDraw::Bytes(bytes) => format!("{} random bytes", bytes.len()),
    }
}

fn is_captured(metadata: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(metadata).is_ok_and(|value| value["captured"].is_object())
}

#[cfg(test)]
mod tests {
    use annals_preload::format::{bytes_head, clock_draw};

    use super::*;

    fn lanes(of: &[(&str, &[u8])]) -> DrawLanes {
        DrawLanes(of.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect())
    }

    fn clock(ns: u64) -> Vec<u8> {
        let (bytes, length) = clock_draw(Clock::Time, 0, ns);
        bytes[..length].to_vec()
    }

    fn random(drawn: &[u8]) -> Vec<u8> {
        let (bytes, length) = bytes_head(drawn.len());
        [&bytes[..length], drawn].concat()
    }

    #[test]
    fn parts_join_and_offset_zero_restarts_a_lane() {
        let mut read = DrawLanes::default();
        let mut frame = Vec::new();
        put_part(&mut frame, "0", 0, b"ab");
        put_part(&mut frame, "0p1t2", 0, b"");
        read.read_frame(&frame).unwrap();
        let mut frame = Vec::new();
        put_part(&mut frame, "0", 2, b"c");
        read.read_frame(&frame).unwrap();
        assert_eq!(read, lanes(&[("0", b"abc"), ("0p1t2", b"")]));
        let mut frame = Vec::new();
        put_part(&mut frame, "0", 0, b"x");
        read.read_frame(&frame).unwrap();
        assert_eq!(read.0["0"], b"x");
    }

    #[test]
    fn hostile_frames_are_refused() {
        let mut whole = Vec::new();
        put_part(&mut whole, "0", 0, b"abc");
        for cut in 1..whole.len() {
            assert_eq!(DrawLanes::default().read_frame(&whole[..cut]), None, "{cut}");
        }
        for (name, at) in [("../0", 0), ("", 0), ("1", 0), ("0/x", 0), ("0", 1), ("0", usize::MAX)] {
            let mut bad = Vec::new();
            put_part(&mut bad, name, at, b"abc");
            assert_eq!(DrawLanes::default().read_frame(&bad), None, "{name} at {at}");
        }
        let mut long = vec![1, b'0', 0];
        long.extend([0xff; 9]);
        long.push(1);
        assert_eq!(DrawLanes::default().read_frame(&long), None);
    }

    #[test]
    fn differences_name_lane_and_draw() {
        let (a, b, bytes) = (clock(5), clock(6), random(b"1234"));
        let recorded = lanes(&[("0", &[a.clone(), bytes.clone()].concat()), ("0t1", &a)]);
        assert_eq!(recorded.count(), (3, vec![]));
        assert!(recorded.differences(&recorded).is_empty());
        let told = |replayed: &DrawLanes| recorded.differences(replayed).join("\n");
        let less = told(&lanes(&[("0", &a), ("0t1", &a)]));
        assert!(less.contains("lane 0 drew 1 times, and 2 were recorded (one of 2 threads"), "{less}");
        let more = told(&lanes(&[("0", &[a.clone(), bytes.clone(), b].concat()), ("0t1", &a)]));
        assert!(more.contains("drew 3 times, and 2 were recorded: the rest are new values"), "{more}");
        let other = told(&lanes(&[("0", &[bytes, a].concat())]));
        assert!(
            other.contains("lane 0 drew 4 random bytes as its draw 1, and a clock (time) was"),
            "{other}"
        );
        assert!(other.contains("lane 0t1 drew 0 times, and 1 were recorded"), "{other}");
        assert_eq!(lanes(&[("0", b"\x09")]).count(), (0, vec!["0"]));
        assert_eq!((process("0p1t2t3"), process("0p1"), process("0")), ("0p1", "0p1", "0"));
    }
}
