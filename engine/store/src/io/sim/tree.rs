//! Names and bytes at one moment: the disk as a program on a [`SimIo`](super::SimIo) sees it, or in a replay
//! its durable part. Cheap to clone: directories and contents are shared until one side changes them.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Number of a file's content, independent of its names; never reused in one history.
pub(super) type Ino = u64;

#[derive(Debug, Clone)]
pub(super) struct DiskTree {
    pub(super) dirs: BTreeMap<PathBuf, Arc<BTreeMap<String, Ino>>>,
    pub(super) files: BTreeMap<Ino, Arc<Vec<u8>>>,
    pub(super) ino_next: Ino,
}

/// A path split into directory and name; the directory exists.
#[derive(Debug, Clone)]
pub(super) struct DirEntry {
    pub(super) dir: PathBuf,
    pub(super) name: String,
}

impl DiskTree {
    /// Only the root and the working directory.
    pub(super) fn new() -> Self {
        let dirs = [PathBuf::new(), PathBuf::from("/")].map(|path| (path, Arc::default()));
        Self { dirs: BTreeMap::from(dirs), files: BTreeMap::new(), ino_next: 1 }
    }

    /// The directory entry of a path, whether the file exists or not.
    pub(super) fn resolve(&self, path: &Path) -> Result<DirEntry, Error> {
        let path = normalized_path(path)?;
        if self.dirs.contains_key(&path) {
            return Err(ErrorKind::IsADirectory.into());
        }
        let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
            return Err(ErrorKind::InvalidInput.into());
        };
        if !self.dirs.contains_key(dir) {
            return Err(ErrorKind::NotFound.into());
        }
        Ok(DirEntry { dir: dir.to_path_buf(), name: name.to_owned() })
    }

    pub(super) fn lookup(&self, place: &DirEntry) -> Option<Ino> {
        self.dirs.get(&place.dir)?.get(&place.name).copied()
    }

    pub(super) fn find(&self, path: &Path) -> Result<(DirEntry, Ino), Error> {
        let place = self.resolve(path)?;
        let ino = self.lookup(&place).ok_or(ErrorKind::NotFound)?;
        Ok((place, ino))
    }

    /// The normal form of a directory that exists.
    pub(super) fn dir(&self, path: &Path) -> Result<PathBuf, Error> {
        let path = normalized_path(path)?;
        if self.dirs.contains_key(&path) { Ok(path) } else { Err(ErrorKind::NotFound.into()) }
    }

    pub(super) fn names_mut(&mut self, dir: &Path) -> Option<&mut BTreeMap<String, Ino>> {
        self.dirs.get_mut(dir).map(Arc::make_mut)
    }

    pub(super) fn bytes(&self, ino: Ino) -> &[u8] {
        self.files.get(&ino).map_or(&[], |bytes| bytes.as_slice())
    }

    pub(super) fn bytes_mut(&mut self, ino: Ino) -> &mut Vec<u8> {
        Arc::make_mut(self.files.entry(ino).or_default())
    }

    /// BLAKE3 over all directories, names and bytes, each prefixed with its length.
    pub(super) fn hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        let mut part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        };
        for (dir, names) in &self.dirs {
            part(dir.as_os_str().as_encoded_bytes());
            part(&(names.len() as u64).to_le_bytes());
            for (name, ino) in names.iter() {
                part(name.as_bytes());
                part(self.bytes(*ino));
            }
        }
        hasher.finalize().into()
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.files.values().map(|bytes| bytes.len() as u64).sum()
    }
}

/// Writes `bytes` at `offset` and fills a gap before it with zeros. The caller has checked `FILE_BYTES_MAX`.
pub(super) fn write_bytes(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset..end].copy_from_slice(bytes);
}

/// A path without `.` and doubled slashes. Refuses `..`: no store needs it.
pub(super) fn normalized_path(path: &Path) -> Result<PathBuf, Error> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => return Err(ErrorKind::InvalidInput.into()),
            kept => out.push(kept),
        }
    }
    Ok(out)
}
