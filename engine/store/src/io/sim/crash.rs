//! Chooses what a crash keeps, and builds the disk after it.
//!
//! Choices have a fixed order: directories by path, then files by number, each change in order, a write's
//! sectors before its length. So one way of choosing gives one disk at one point.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::history::OpHistory;
use super::prng::SplitMix64;
use super::replay::{ChangeFate, DataChange, DiskReplay, NameChange, PendingChange};
use super::tree::{DiskTree, Ino, write_bytes};
use super::{SECTOR_BYTES, SimIo, SimOp};

/// Which of the changes in doubt a crash keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// Nothing: only durable changes.
    Nothing,
    /// Everything: the state after a killed process on a running machine.
    Everything,
    /// Every name and every length, no data: the written ranges of files read as zeros.
    Hollow,
    /// Everything, but the last write and its length stop at the sector boundary at or before its middle.
    Torn,
    /// Each change by chance. The seed and the point also set how likely data, lengths and names are kept,
    /// from never to always.
    Seed(u64),
    /// As `Seed`, but a kept sector may be cut at any byte, as on a disk without atomic sectors. Bytes that
    /// are equal before and after stay unchanged.
    Ragged(u64),
    /// Change number i is kept if bit i is set; changes past 64 are lost. [`HistoryWalk::choice_count`]
    /// bounds the masks that cover every state of a small case.
    Mask(u64),
}

/// The changes in doubt that a crash lost or reordered. Counts of single changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CrashLosses {
    /// Lost sectors of writes.
    pub sectors: u32,
    /// Sectors that were kept in part.
    pub torn_sectors: u32,
    /// Writes with both kept and lost sectors.
    pub torn_writes: u32,
    /// Writes kept, whole or in part, although an earlier one of the same file was lost at least in part.
    pub reordered: u32,
    /// Lost changes of a file's length.
    pub lengths: u32,
    /// Writes whose new length was kept, and at least one of whose sectors was lost.
    pub hollow: u32,
    /// Files whose creation was lost.
    pub creations: u32,
    /// Lost renames.
    pub renames: u32,
    /// Lost removals.
    pub removals: u32,
}

/// Where and how a crash was made, for a test's message. `history.crash(point.at, point.how)` repeats it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrashPoint {
    /// Number of operations done.
    pub at: usize,
    /// Which changes in doubt were kept.
    pub how: Crash,
    /// The last operation done, if any.
    pub last: Option<SimOp>,
}

impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crash({}, Crash::{:?})", self.at, self.how)?;
        match &self.last {
            Some(op) => write!(f, " after {op}"),
            None => write!(f, " before anything"),
        }
    }
}

/// A cursor through a history that can crash at its position.
#[derive(Debug, Clone)]
pub struct HistoryWalk<'a> {
    history: &'a OpHistory,
    at: usize,
    state: DiskReplay,
}

impl<'a> HistoryWalk<'a> {
    pub(super) fn new(history: &'a OpHistory) -> Self {
        Self { history, at: 0, state: DiskReplay::new(&history.base) }
    }

    /// Number of operations done.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    /// The operation that the next step applies.
    #[must_use]
    pub fn next_op(&self) -> Option<&'a SimOp> {
        self.history.ops.get(self.at)
    }

    /// Applies the next operation; false at the end.
    pub fn step(&mut self) -> bool {
        let Some(op) = self.history.ops.get(self.at) else { return false };
        self.state.apply(self.at, op);
        self.at += 1;
        true
    }

    /// Whether a crash at this point has more than one outcome.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.state.is_in_doubt()
    }

    /// Number of changes in doubt; each sector and each length counts separately.
    #[must_use]
    pub fn choice_count(&self) -> usize {
        let mut chooser = SurvivalChooser::Count(0);
        surviving_tree(&self.state, &mut chooser, &mut CrashLosses::default());
        if let SurvivalChooser::Count(n) = chooser { n } else { 0 }
    }

    /// Describes a crash at this point.
    #[must_use]
    pub fn point(&self, how: Crash) -> CrashPoint {
        let last = self.at.checked_sub(1).and_then(|i| self.history.ops.get(i)).cloned();
        CrashPoint { at: self.at, how, last }
    }

    /// The disk after a crash at this point. It has no handles, locks, rules or capacity limit, and an empty
    /// history. Its clocks continue from the time at which the history was taken.
    #[must_use]
    pub fn crash(&self, how: Crash) -> SimIo {
        self.crash_with_losses(how).0
    }

    /// As [`HistoryWalk::crash`], with the losses of the crash.
    #[must_use]
    pub fn crash_with_losses(&self, how: Crash) -> (SimIo, CrashLosses) {
        let mut losses = CrashLosses::default();
        let tree =
            surviving_tree(&self.state, &mut SurvivalChooser::new(how, self.at, &self.state), &mut losses);
        let mut mix = SplitMix64::new(self.history.seed ^ (self.at as u64).rotate_left(32));
        let salt = match how {
            Crash::Seed(n) | Crash::Ragged(n) | Crash::Mask(n) => n,
            _ => 0,
        };
        let seed = mix.next() ^ SplitMix64::new(salt).next();
        (SimIo::with_tree(tree, seed, self.history.now_ns), losses)
    }
}

/// The kind of change that is kept or lost.
#[derive(Clone, Copy)]
enum SurvivalKind {
    Name,
    Data,
    Length,
}

enum SurvivalChooser {
    All { data: bool, rest: bool },
    Torn { write: Option<usize> },
    Random { rng: SplitMix64, names: u64, data: u64, lengths: u64, ragged: bool },
    Mask { bits: u64, next: u32 },
    Count(usize),
}

impl SurvivalChooser {
    fn new(how: Crash, at: usize, state: &DiskReplay) -> Self {
        match how {
            Crash::Nothing => Self::All { data: false, rest: false },
            Crash::Everything => Self::All { data: true, rest: true },
            Crash::Hollow => Self::All { data: false, rest: true },
            Crash::Torn => Self::Torn { write: last_write(state) },
            Crash::Seed(seed) | Crash::Ragged(seed) => {
                // The point is mixed into the seed, so that a few seeds at many points make many different
                // choices.
                let mut rng = SplitMix64::new(seed ^ SplitMix64::new(at as u64).next());
                let mut odds = || [0, 32, 128, 128, 224, 256][(rng.next() % 6) as usize];
                let (names, data, lengths) = (odds(), odds(), odds());
                Self::Random { rng, names, data, lengths, ragged: matches!(how, Crash::Ragged(_)) }
            }
            Crash::Mask(bits) => Self::Mask { bits, next: 0 },
        }
    }

    fn keeps(&mut self, fate: ChangeFate, about: SurvivalKind) -> bool {
        if fate == ChangeFate::Durable {
            return true;
        }
        match self {
            Self::All { data, rest } => *if matches!(about, SurvivalKind::Data) { data } else { rest },
            Self::Torn { .. } => true,
            Self::Random { rng, names, data, lengths, .. } => {
                let odds = match about {
                    SurvivalKind::Name => *names,
                    SurvivalKind::Data => *data,
                    SurvivalKind::Length => *lengths,
                };
                rng.next() >> 56 < odds
            }
            Self::Mask { bits, next } => {
                let bit = bits.checked_shr(*next).unwrap_or(0) & 1;
                *next += 1;
                bit == 1
            }
            Self::Count(n) => {
                *n += 1;
                true
            }
        }
    }

    /// Number of bytes of a kept sector that are kept.
    fn kept_sector_bytes(&mut self, fate: ChangeFate, len: usize) -> usize {
        match self {
            Self::Random { rng, ragged: true, .. } if fate != ChangeFate::Durable => {
                // Half of the sectors are whole: a disk that tears every sector does not work at all.
                let drawn = rng.next();
                if drawn & 1 == 0 { len } else { (drawn >> 1) as usize % (len + 1) }
            }
            _ => len,
        }
    }

    /// Number of bytes of a write that are kept.
    fn kept_write_bytes(&self, at: usize, offset: usize, len: usize) -> usize {
        if !matches!(self, Self::Torn { write } if *write == Some(at)) {
            return len;
        }
        let middle = offset + len / 2;
        (middle - middle % SECTOR_BYTES).saturating_sub(offset)
    }
}

/// The operation index of the last write in doubt.
fn last_write(state: &DiskReplay) -> Option<usize> {
    let changes = state.data.values().flat_map(|file| &file.changes);
    changes
        .filter(|pending| {
            pending.fate != ChangeFate::Durable && matches!(pending.change, DataChange::Write { .. })
        })
        .map(|pending| pending.at)
        .max()
}

fn surviving_tree(state: &DiskReplay, chooser: &mut SurvivalChooser, losses: &mut CrashLosses) -> DiskTree {
    let mut dirs = state.durable.dirs.clone();
    for (dir, pending) in state.names.iter().filter(|(_, pending)| !pending.is_empty()) {
        if let Some(names) = dirs.get_mut(dir) {
            surviving_names(Arc::make_mut(names), pending, chooser, losses);
        }
    }
    // Asks for the choices of every file, named or not, so that choice numbers do not depend on names.
    let mut changed = BTreeMap::new();
    for (ino, file) in &state.data {
        changed.insert(*ino, surviving_data(state.durable.bytes(*ino), &file.changes, chooser, losses));
    }
    let mut files = BTreeMap::new();
    for ino in dirs.values().flat_map(|names| names.values()) {
        if files.contains_key(ino) {
            continue; // Another name of the same file.
        }
        let bytes = match (changed.remove(ino), state.durable.files.get(ino)) {
            (Some(bytes), _) => Arc::new(bytes),
            (None, Some(bytes)) => Arc::clone(bytes),
            (None, None) => Arc::default(),
        };
        files.insert(*ino, bytes);
    }
    DiskTree { dirs, files, ino_next: state.durable.ino_next }
}

fn surviving_names(
    names: &mut BTreeMap<String, Ino>,
    pending: &[PendingChange<NameChange>],
    chooser: &mut SurvivalChooser,
    losses: &mut CrashLosses,
) {
    for one in pending {
        if chooser.keeps(one.fate, SurvivalKind::Name) {
            one.change.apply(names);
            continue;
        }
        match one.change {
            NameChange::Create { .. } => losses.creations += 1,
            NameChange::Rename { .. } => losses.renames += 1,
            NameChange::Remove { .. } => losses.removals += 1,
        }
    }
}

fn surviving_data(
    durable: &[u8],
    pending: &[PendingChange<DataChange>],
    chooser: &mut SurvivalChooser,
    losses: &mut CrashLosses,
) -> Vec<u8> {
    let mut bytes = durable.to_vec();
    // The length is tracked separately from the bytes: kept sectors past it are dropped, or uncovered by a
    // later length.
    let mut len = bytes.len();
    let mut lost_before = false;
    for one in pending {
        match &one.change {
            DataChange::Write { offset, bytes: all, grew } => {
                let written = &all[..chooser.kept_write_bytes(one.at, *offset, all.len())];
                let end = offset + written.len();
                let (mut kept, mut lost) = (0, u32::from(written.len() < all.len()));
                let mut from = *offset;
                while from < end {
                    let to = end.min(from - from % SECTOR_BYTES + SECTOR_BYTES);
                    if chooser.keeps(one.fate, SurvivalKind::Data) {
                        let came = chooser.kept_sector_bytes(one.fate, to - from);
                        write_bytes(&mut bytes, from, &written[from - offset..from - offset + came]);
                        losses.torn_sectors += u32::from(came < to - from);
                        kept += 1;
                    } else {
                        lost += 1;
                    }
                    from = to;
                }
                losses.sectors += lost;
                losses.torn_writes += u32::from(kept > 0 && lost > 0);
                losses.reordered += u32::from(kept > 0 && lost_before);
                lost_before |= lost > 0;
                if *grew && !written.is_empty() {
                    if chooser.keeps(one.fate, SurvivalKind::Length) {
                        len = end;
                        losses.hollow += u32::from(lost > 0);
                    } else {
                        losses.lengths += 1;
                    }
                }
            }
            DataChange::SetLen { len: to } => {
                if chooser.keeps(one.fate, SurvivalKind::Length) {
                    bytes.truncate(*to);
                    len = *to;
                } else {
                    losses.lengths += 1;
                }
            }
        }
    }
    bytes.resize(len, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::path::Path;

    use super::*;
    use crate::io::{Io, OpenMode};

    const ABOUTS: [SurvivalKind; 3] = [SurvivalKind::Name, SurvivalKind::Data, SurvivalKind::Length];

    fn random(names: u64, data: u64, lengths: u64, ragged: bool) -> SurvivalChooser {
        SurvivalChooser::Random { rng: SplitMix64::new(1), names, data, lengths, ragged }
    }

    /// How many of 2000 changes in doubt are kept.
    fn kept_of_2000(chooser: &mut SurvivalChooser, about: SurvivalKind) -> usize {
        (0..2000).filter(|_| chooser.keeps(ChangeFate::Open, about)).count()
    }

    #[test]
    fn each_change_kind_has_its_own_odds() {
        let counts = |mut chooser: SurvivalChooser| ABOUTS.map(|about| kept_of_2000(&mut chooser, about));
        assert_eq!(counts(random(0, 256, 0, false)), [0, 2000, 0]);
        assert_eq!(counts(random(256, 0, 256, false)), [2000, 0, 2000]);
        let [eighth, half, most] = counts(random(32, 128, 224, false));
        assert!((200..300).contains(&eighth) && (900..1100).contains(&half), "{eighth} {half}");
        assert!((1700..1800).contains(&most), "{most}");
        // A durable change is kept without drawing a random number.
        let mut never = random(0, 0, 0, false);
        assert!(ABOUTS.iter().all(|about| never.keeps(ChangeFate::Durable, *about)));
        let SurvivalChooser::Random { mut rng, .. } = never else { return };
        assert_eq!(rng.next(), SplitMix64::new(1).next());
        assert_eq!(counts(SurvivalChooser::All { data: true, rest: false }), [0, 2000, 0]);
        assert_eq!(counts(SurvivalChooser::Mask { bits: 0b101, next: 0 }), [2, 0, 0]);
        assert_eq!(counts(SurvivalChooser::Mask { bits: u64::MAX, next: 0 }), [64, 0, 0]);
    }

    #[test]
    fn ragged_sector_is_whole_half_of_the_time() {
        let mut ragged = random(0, 0, 0, true);
        let mut came = [0; 4];
        (0..2000).for_each(|_| came[ragged.kept_sector_bytes(ChangeFate::Open, 3)] += 1);
        assert!(came[..3].iter().all(|count| (200..300).contains(count)), "{came:?}");
        assert!((1150..1350).contains(&came[3]), "{came:?}");
        assert!((0..100).all(|_| ragged.kept_sector_bytes(ChangeFate::Durable, 3) == 3));
        let mut whole = random(0, 0, 0, false);
        assert!((0..100).all(|_| whole.kept_sector_bytes(ChangeFate::Open, 3) == 3));
    }

    #[test]
    fn torn_write_stops_at_the_sector_before_its_middle() {
        let torn = SurvivalChooser::Torn { write: Some(7) };
        let cuts = [(0, 1024), (0, 1023), (0, 4096), (100, 1024), (511, 4), (512, 10), (600, 1000)];
        let wanted = [512, 0, 2048, 412, 1, 0, 424];
        for ((offset, len), cut) in cuts.into_iter().zip(wanted) {
            assert_eq!(torn.kept_write_bytes(7, offset, len), cut, "{len} bytes at {offset}");
            assert_eq!(torn.kept_write_bytes(8, offset, len), len);
            assert_eq!(SurvivalChooser::Torn { write: None }.kept_write_bytes(7, offset, len), len);
            assert_eq!(random(0, 0, 0, true).kept_write_bytes(7, offset, len), len);
        }
    }

    #[test]
    fn disk_after_crash_has_its_own_random_numbers() {
        let sim = SimIo::new(9);
        for byte in 0..3 {
            let file = sim.open(Path::new("a"), OpenMode::CreateOrOpen).unwrap();
            file.write_at(&[IoSlice::new(&[byte])], 0).unwrap();
        }
        let history = sim.history();
        let drawn = |at: usize, how: Crash| {
            let mut bytes = [0; 8];
            history.crash(at, how).random(&mut bytes).unwrap();
            u64::from_le_bytes(bytes)
        };
        for (at, how, salt) in [
            (0, Crash::Nothing, 0),
            (1, Crash::Everything, 0),
            (3, Crash::Seed(5), 5),
            (3, Crash::Ragged(6), 6),
            (4, Crash::Mask(7), 7),
        ] {
            let point = SplitMix64::new(9 ^ ((at as u64) << 32)).next();
            let seed = point ^ SplitMix64::new(salt).next();
            assert_eq!(drawn(at, how), SplitMix64::new(seed).next(), "{at} {how:?}");
        }
    }

    #[test]
    fn sectors_cut_off_a_torn_write_count_as_lost() {
        let sim = SimIo::new(1);
        let file = sim.open(Path::new("a"), OpenMode::CreateNew).unwrap();
        file.write_at(&[IoSlice::new(&[1; 1024])], 0).unwrap();
        let history = sim.history();
        let mut walk = history.walk();
        while walk.step() {}
        let (disk, losses) = walk.crash_with_losses(Crash::Torn);
        assert_eq!(disk.read(Path::new("a")).map(|bytes| bytes.len()), Some(512));
        let wanted = CrashLosses { sectors: 1, torn_writes: 1, hollow: 1, ..CrashLosses::default() };
        assert_eq!(losses, wanted);
    }
}
