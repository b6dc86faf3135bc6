//! The file `NAMES`: the definitions of all namespaces and keyspaces once more.
//!
//! The log holds each definition once, most of them in its first segment. If that segment is lost, a repair
//! takes the names from here. Nothing else reads the file, so it may be missing: an opening for writing makes
//! it again from the log.
//!
//! ```text
//! NAMES  magic [8] | store uuid [16] | crc32 u32 | entry*
//! entry  as an edit of the manifest: crc32 u32 | bytes u32 | bincode(SpaceHead)
//! ```

use std::io::IoSlice;
use std::sync::Arc;

use crate::codec;
use crate::error::{Error, Result};
use crate::ids::StoreId;
use crate::io::{File, Io, OpenMode};
use crate::log::manifest::{self, EDIT_HEADER_BYTES, HEADER_BYTES, file_header, whole_edit_at};
use crate::log::paths::StorePaths;
use crate::log::record::SpaceHead;

const MAGIC: [u8; 8] = *b"annalnam";
/// A larger file is not read.
const BYTES_MAX: u64 = 256 << 20;

/// The definitions in the file, in order, up to the first entry that is not whole; none if it is missing.
///
/// # Errors
/// `Unavailable`.
pub fn read(io: &dyn Io, paths: &StorePaths, store: StoreId) -> Result<Vec<SpaceHead>> {
    let path = paths.names();
    let mut spaces = Vec::new();
    let len = io.stat(&path)?.map_or(0, |stat| if stat.is_dir { 0 } else { stat.len });
    if !(HEADER_BYTES..=BYTES_MAX).contains(&len) {
        return Ok(spaces);
    }
    let file = match io.open(&path, OpenMode::Read) {
        // Something else stands there.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => return Ok(spaces),
        file => file?,
    };
    let bytes = manifest::read_whole(&*file, &path, BYTES_MAX)?;
    if !bytes.starts_with(&file_header(MAGIC, store)) {
        return Ok(spaces);
    }
    let mut end = HEADER_BYTES;
    while let Some(body) = whole_edit_at(&bytes, end, &store) {
        let Ok(space) = codec::decode(body) else { break };
        end += EDIT_HEADER_BYTES + body.len() as u64;
        spaces.push(space);
    }
    Ok(spaces)
}

/// `NAMES`, open for writing.
#[derive(Debug)]
pub struct NamesFile {
    file: Arc<dyn File>,
    store: StoreId,
    end: u64,
}

impl NamesFile {
    /// Opens the file, and writes it anew unless it holds exactly `spaces`.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn open(io: &dyn Io, paths: &StorePaths, store: StoreId, spaces: &[SpaceHead]) -> Result<Self> {
        let mut bytes = file_header(MAGIC, store);
        for space in spaces {
            let entry = entry(store, bytes.len() as u64, space)?;
            bytes.extend_from_slice(&entry);
        }
        let is_known = read(io, paths, store)? == spaces && io.stat(&paths.names())?.is_some();
        let file = io.open(&paths.names(), OpenMode::CreateOrOpen)?;
        if !is_known {
            file.set_len(0)?;
            file.write_at(&[IoSlice::new(&bytes)], 0)?;
            file.sync()?;
            io.sync_dir(paths.root())?;
        }
        Ok(Self { file, store, end: bytes.len() as u64 })
    }

    /// Adds a definition, durably.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn add(&mut self, space: &SpaceHead) -> Result<()> {
        let entry = entry(self.store, self.end, space)?;
        self.file.write_at(&[IoSlice::new(&entry)], self.end)?;
        self.file.sync()?;
        self.end += entry.len() as u64;
        Ok(())
    }
}

fn entry(store: StoreId, at: u64, space: &SpaceHead) -> Result<Vec<u8>> {
    let body = codec::encode(space).map_err(|e| Error::bug(e.to_string()))?;
    Ok(manifest::edit(&store, at, &body))
}

#[cfg(test)]
#[cfg(not(annals_shuttle))]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::ids::NamespaceId;
    use crate::io::sim::SimIo;

    const STORE: StoreId = StoreId([7; 16]);

    fn space(id: u32, name: &str) -> SpaceHead {
        SpaceHead::Namespace { id: NamespaceId(id), name: name.to_owned() }
    }

    #[test]
    fn names_are_read_up_to_the_first_broken_entry() {
        let (sim, paths) = (SimIo::new(1), StorePaths::new(Path::new("s")));
        sim.create_dir_all(paths.root()).unwrap();
        let all = [space(16, "default"), space(18, "other"), space(19, "third")];
        assert_eq!(read(&sim, &paths, STORE).unwrap(), []);
        let mut file = NamesFile::open(&sim, &paths, STORE, &all[..2]).unwrap();
        file.add(&all[2]).unwrap();
        assert_eq!(read(&sim, &paths, STORE).unwrap(), all);
        assert_eq!(read(&sim, &paths, StoreId([8; 16])).unwrap(), []);
        let whole = sim.read(&paths.names()).unwrap();
        let ops = sim.op_count();
        drop(NamesFile::open(&sim, &paths, STORE, &all).unwrap());
        assert_eq!(sim.op_count(), ops, "a file that is right is not written again");
        for at in 0..whole.len() {
            sim.edit(&paths.names(), |bytes| bytes[at] ^= 8).unwrap();
            let found = read(&sim, &paths, STORE).unwrap();
            assert!(found.len() < 3 && all.starts_with(&found), "byte {at}: {found:?}");
            sim.edit(&paths.names(), |bytes| bytes.truncate(at)).unwrap();
            assert!(all.starts_with(&read(&sim, &paths, STORE).unwrap()), "cut to {at}");
            drop(NamesFile::open(&sim, &paths, STORE, &all).unwrap());
            assert_eq!(sim.read(&paths.names()).unwrap(), whole, "it is written anew");
        }
    }
}
