//! Builds and parses every file name of a store.

use std::path::{Path, PathBuf};

use crate::ids::SegmentId;

/// The socket of the process that writes a store.
pub const SOCKET: &str = "SOCKET";
/// The directory in which that socket is created.
pub const SOCKET_NEXT: &str = "SOCKET.next";

/// The file that holds disk space in reserve.
pub const RESERVE: &str = "RESERVE";
/// What CURRENT is named while a repair writes the store.
pub const DRAFT: &str = "DRAFT";

/// The path at which the writing process may listen for other processes that want to write, and the directory
/// in which it creates that socket. The engine itself opens no socket.
#[must_use]
pub fn socket_paths(root: &Path) -> (PathBuf, PathBuf) {
    (root.join(SOCKET), root.join(SOCKET_NEXT))
}

/// Paths of the files of a store.
#[derive(Debug, Clone)]
pub struct StorePaths {
    root: PathBuf,
    /// CURRENT is still named DRAFT.
    is_draft: bool,
}

impl StorePaths {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf(), is_draft: false }
    }

    /// Paths of a store that no one may open yet: it has a DRAFT in place of CURRENT.
    pub fn draft(root: &Path) -> Self {
        Self { is_draft: true, ..Self::new(root) }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn lock(&self) -> PathBuf {
        self.root.join("LOCK")
    }

    pub fn current(&self) -> PathBuf {
        self.root.join(if self.is_draft { DRAFT } else { "CURRENT" })
    }

    pub fn current_next(&self) -> PathBuf {
        self.root.join(if self.is_draft { "DRAFT.next" } else { "CURRENT.next" })
    }

    /// Disk space for what makes room on a full disk.
    pub fn reserve(&self) -> PathBuf {
        self.root.join(RESERVE)
    }

    pub fn names(&self) -> PathBuf {
        self.root.join("NAMES")
    }

    pub fn synced(&self) -> PathBuf {
        self.root.join("SYNCED")
    }

    pub fn manifest(&self, generation: u64) -> PathBuf {
        self.root.join(manifest_name(generation))
    }

    pub fn segments(&self) -> PathBuf {
        self.root.join("segments")
    }

    pub fn segment(&self, id: SegmentId) -> PathBuf {
        self.segments().join(format!("{:08}.seg", id.0))
    }

    pub fn tables(&self) -> PathBuf {
        self.root.join("tables")
    }

    pub fn table(&self, id: u64) -> PathBuf {
        self.tables().join(format!("{id:08}.tbl"))
    }

    pub fn vectors(&self) -> PathBuf {
        self.root.join("vectors")
    }

    pub fn vector_file(&self, id: u64) -> PathBuf {
        self.vectors().join(vector_file_name(id))
    }
}

/// `MANIFEST-0007`.
pub fn manifest_name(generation: u64) -> String {
    format!("MANIFEST-{generation:04}")
}

/// The generation in `MANIFEST-0007`.
pub fn parse_manifest(name: &str) -> Option<u64> {
    let generation = name.strip_prefix("MANIFEST-")?.parse().ok()?;
    (manifest_name(generation) == name).then_some(generation)
}

/// The id in `00000001.seg`.
pub fn parse_segment(name: &str) -> Option<SegmentId> {
    let id: u32 = name.strip_suffix(".seg")?.parse().ok()?;
    (format!("{id:08}.seg") == name).then_some(SegmentId(id))
}

/// The id in `00000001.tbl`.
pub fn parse_table(name: &str) -> Option<u64> {
    let id: u64 = name.strip_suffix(".tbl")?.parse().ok()?;
    (format!("{id:08}.tbl") == name).then_some(id)
}

pub fn vector_file_name(id: u64) -> String {
    format!("{id:08}.vec")
}

/// The id in `00000001.vec`.
pub fn parse_vector_file(name: &str) -> Option<u64> {
    let id: u64 = name.strip_suffix(".vec")?.parse().ok()?;
    (vector_file_name(id) == name).then_some(id)
}
