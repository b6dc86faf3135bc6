//! The lines of a run's frames, held compressed until the run has ended.
//!
//! A run is recorded only once all of its lines are known to be sound, and a run may have millions of them.

/// Bytes of lines that are compressed together.
const BLOCK_BYTES: usize = 256 << 10;
/// zstd's fastest level: the lines of a run repeat each other's keys.
const LEVEL: i32 = 1;
/// The length of a line stands before it.
const LENGTH_BYTES: usize = 4;

/// Lines in order. A line has at most 4 GiB.
#[derive(Debug, Clone, Default)]
pub(super) struct PackedLines {
    /// Compressed blocks, and the length of each before.
    blocks: Vec<(Vec<u8>, usize)>,
    /// The block that is being filled.
    open: Vec<u8>,
    count: u32,
}

impl PackedLines {
    /// Adds a line.
    ///
    /// # Errors
    /// There are too many lines, the line is too long, or zstd fails.
    pub(super) fn push(&mut self, line: &str) -> Result<(), String> {
        let length = u32::try_from(line.len()).map_err(|_| "the line is too long".to_owned())?;
        self.count = self.count.checked_add(1).ok_or("too many frames")?;
        self.open.extend_from_slice(&length.to_le_bytes());
        self.open.extend_from_slice(line.as_bytes());
        if self.open.len() >= BLOCK_BYTES {
            let block = zstd::bulk::compress(&self.open, LEVEL).map_err(|error| error.to_string())?;
            self.blocks.push((block, self.open.len()));
            self.open.clear();
        }
        Ok(())
    }

    /// Number of lines.
    pub(super) fn len(&self) -> u32 {
        self.count
    }

    /// The lines in order. It ends early if a block cannot be unpacked, which only a fault of the memory
    /// could cause: a caller that needs all lines compares their number.
    pub(super) fn iter(&self) -> impl Iterator<Item = String> + '_ {
        let packed =
            self.blocks.iter().map_while(|(block, length)| zstd::bulk::decompress(block, *length).ok());
        packed.chain(std::iter::once_with(|| self.open.clone())).flat_map(lines_of)
    }
}

/// The lines of an unpacked block.
fn lines_of(block: Vec<u8>) -> impl Iterator<Item = String> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (length, rest) = block.get(at..)?.split_first_chunk::<LENGTH_BYTES>()?;
        let line = rest.get(..u32::from_le_bytes(*length) as usize)?;
        at += LENGTH_BYTES + line.len();
        String::from_utf8(line.to_vec()).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_BYTES, PackedLines};

    #[test]
    fn lines_come_back_in_order() {
        let mut packed = PackedLines::default();
        let line = |number: usize| match number {
            7 => String::new(),
            9 => "x".repeat(BLOCK_BYTES + 1),
            number => format!(r#"{{"run":"r","component":"llm","output":"{number} é"}}"#),
        };
        for number in 0..20_000 {
            packed.push(&line(number)).unwrap();
        }
        assert_eq!(packed.len(), 20_000);
        assert!(packed.blocks.len() > 3, "{}", packed.blocks.len());
        assert!(packed.iter().eq((0..20_000).map(line)));
        let held: usize = packed.blocks.iter().map(|(block, _)| block.len()).sum();
        assert!(held < 300_000, "{held} bytes of {}", 20_000 * 45);
    }
}
