//! The byte format of a lane: draws, one after the other.
//!
//! ```text
//! lane file   "annlane1" | used: u64 little-endian | `used` bytes of draws | zeros
//! draw        1 to 4 | zigzag varint: nanoseconds since the clock draw before (first: since 1970)
//!             5      | varint: length | bytes
//! ```
//!
//! 1 is `clock_gettime(CLOCK_REALTIME)`, 2 its coarse form, 3 `gettimeofday`, 4 `time`, 5 entropy of whatever source. Varints are LEB128, at most 10 bytes.

/// The first bytes of a lane file.
pub const MAGIC: [u8; 8] = *b"annlane1";
/// Bytes before the draws of a lane file.
pub const HEADER_BYTES: usize = 16;
/// Maximum size of a lane file; later draws are not noted.
pub const LANE_BYTES_MAX: usize = 64 << 20;
/// Maximum length of a lane's name, in bytes.
pub const NAME_BYTES_MAX: usize = 95;
/// Environment variable: the private directory.
pub const DIRECTORY: &str = "ANNALS_NONDET_DIR";
/// Environment variable: the lane of a process's first thread.
pub const LANE: &str = "ANNALS_NONDET_LANE";

/// The function that read a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Clock {
    /// `clock_gettime(CLOCK_REALTIME)`, `timespec_get`.
    Realtime = 1,
    /// `clock_gettime(CLOCK_REALTIME_COARSE)`.
    Coarse = 2,
    /// `gettimeofday`.
    TimeOfDay = 3,
    /// `time`.
    Time = 4,
}

const BYTES: u8 = 5;
/// Maximum length of a varint, in bytes.
pub const VARINT_BYTES_MAX: usize = 10;

/// A value that a program drew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneDraw<'a> {
    /// The wall clock, in nanoseconds since 1970.
    Clock(Clock, u64),
    /// Entropy.
    Bytes(&'a [u8]),
}

/// Iterates over the draws of a lane.
#[derive(Debug, Clone)]
pub struct DrawReader<'a> {
    bytes: &'a [u8],
    at: usize,
    clock_ns: u64,
}

impl<'a> DrawReader<'a> {
    /// Reads the draws of a lane, without its header.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self::at(bytes, 0, 0)
    }

    /// Reads from a position on; `clock_ns` is the previous clock draw.
    pub(crate) fn at(bytes: &'a [u8], at: usize, clock_ns: u64) -> Self {
        Self { bytes, at, clock_ns }
    }

    /// Number of bytes read.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// The last clock draw.
    #[must_use]
    pub fn clock_ns(&self) -> u64 {
        self.clock_ns
    }
}

impl<'a> Iterator for DrawReader<'a> {
    type Item = LaneDraw<'a>;

    /// The next draw; `None` at the end or at malformed bytes: [`DrawReader::position`] tells which.
    fn next(&mut self) -> Option<LaneDraw<'a>> {
        let rest = self.bytes.get(self.at..)?;
        let (kind, rest) = rest.split_first()?;
        let clock = match *kind {
            1 => Some(Clock::Realtime),
            2 => Some(Clock::Coarse),
            3 => Some(Clock::TimeOfDay),
            4 => Some(Clock::Time),
            BYTES => None,
            _ => return None,
        };
        let (number, length) = varint(rest)?;
        let Some(clock) = clock else {
            let end = length.checked_add(usize::try_from(number).ok()?)?;
            let drawn = rest.get(length..end)?;
            self.at = self.at.checked_add(1)?.checked_add(end)?;
            return Some(LaneDraw::Bytes(drawn));
        };
        self.at = self.at.checked_add(1)?.checked_add(length)?;
        self.clock_ns = self.clock_ns.wrapping_add(unzigzag(number));
        Some(LaneDraw::Clock(clock, self.clock_ns))
    }
}

/// Decodes a varint: the number, and how many bytes it took.
#[must_use]
pub fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0_u64;
    for (index, byte) in bytes.iter().take(VARINT_BYTES_MAX).enumerate() {
        let bits = u64::from(byte & 0x7f);
        let shift = 7 * index as u32;
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some((number, index + 1));
        }
    }
    None
}

/// Encodes a varint: the bytes, and how many of them are used.
#[must_use]
pub fn to_varint(mut number: u64) -> ([u8; VARINT_BYTES_MAX], usize) {
    let mut bytes = [0; VARINT_BYTES_MAX];
    let mut length = 0;
    for byte in &mut bytes {
        length += 1;
        *byte = (number & 0x7f) as u8;
        number >>= 7;
        if number == 0 {
            break;
        }
        *byte |= 0x80;
    }
    (bytes, length)
}

/// The head of an entropy draw of this length: the bytes, and how many of them are used.
#[must_use]
pub fn bytes_head(length: usize) -> ([u8; 1 + VARINT_BYTES_MAX], usize) {
    head(BYTES, length as u64)
}

/// A clock draw that follows one of `before_ns`: the bytes, and how many of them are used.
#[must_use]
pub fn clock_draw(clock: Clock, before_ns: u64, ns: u64) -> ([u8; 1 + VARINT_BYTES_MAX], usize) {
    head(clock as u8, zigzag(ns.wrapping_sub(before_ns)))
}

fn head(kind: u8, number: u64) -> ([u8; 1 + VARINT_BYTES_MAX], usize) {
    let (varint, length) = to_varint(number);
    let mut bytes = [kind; 1 + VARINT_BYTES_MAX];
    for (to, from) in bytes.iter_mut().skip(1).zip(varint) {
        *to = from;
    }
    (bytes, 1 + length)
}

fn zigzag(difference: u64) -> u64 {
    let signed = difference.cast_signed();
    (signed << 1 ^ signed >> 63).cast_unsigned()
}

fn unzigzag(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_round_trip() {
        let draws = [
            LaneDraw::Clock(Clock::Realtime, 1_700_000_000_123_456_789),
            LaneDraw::Clock(Clock::Time, 1_700_000_000_000_000_000),
            LaneDraw::Bytes(&[7; 300]),
            LaneDraw::Clock(Clock::TimeOfDay, u64::MAX),
            LaneDraw::Clock(Clock::Coarse, 0),
            LaneDraw::Bytes(&[]),
        ];
        let (mut bytes, mut before) = (Vec::new(), 0);
        for draw in draws {
            match draw {
                LaneDraw::Clock(clock, ns) => {
                    let (head, length) = clock_draw(clock, before, ns);
                    bytes.extend(&head[..length]);
                    before = ns;
                }
                LaneDraw::Bytes(drawn) => {
                    let (head, length) = bytes_head(drawn.len());
                    bytes.extend(&head[..length]);
                    bytes.extend(drawn);
                }
            }
        }
        let mut reader = DrawReader::new(&bytes);
        assert_eq!(reader.by_ref().collect::<Vec<_>>(), draws);
        assert_eq!(reader.position(), bytes.len());
        // At any cut, all draws before it are returned, and the position shows that the lane is incomplete.
        for cut in 0..bytes.len() {
            let mut reader = DrawReader::new(&bytes[..cut]);
            let whole = reader.by_ref().count();
            assert!(whole < draws.len() && reader.position() <= cut);
        }
    }

    #[test]
    fn lane_format_matches_its_documentation() {
        let (bytes, length) = clock_draw(Clock::Time, 1_000_000_000, 0);
        assert_eq!(bytes[..length], [4, 0xff, 0xa7, 0xd6, 0xb9, 0x07]);
        let (bytes, length) = bytes_head(300);
        assert_eq!(bytes[..length], [5, 0xac, 0x02]);
    }

    #[test]
    fn hostile_bytes_end_the_lane() {
        let endless = [0xff; 11];
        for bad in [
            &[0, 1][..],
            &[6, 1],
            &[255],
            &[1],
            &[5, 2, 1],
            &[[1].as_slice(), &endless].concat(),
            &[[5].as_slice(), &[0xff; 9], &[1]].concat(),
            &[[5].as_slice(), &[0xff; 9], &[2]].concat(),
        ] {
            let mut reader = DrawReader::new(bad);
            assert_eq!((reader.next(), reader.position()), (None, 0), "{bad:?}");
        }
        assert_eq!(varint(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]), Some((u64::MAX, 10)));
    }
}
