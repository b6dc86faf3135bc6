//! Open segments and how a record is fetched from one.
//!
//! The active segment is read by position only, since it is still written and cut; sealed ones are mapped once,
//! at the first read.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, RwLock};

use crate::error::{Error, Result};
use crate::ids::{Place, SegmentId, StoreId};
use crate::io::{Bytes, File, Io, Open};
use crate::log::layout::{RECORD_HEADER_BYTES, RawRecord, SEGMENT_HEADER_BYTES, Salt, SegmentHeader};
use crate::log::paths::Paths;

/// One open segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) id: SegmentId,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn File>,
    pub(crate) salt: Salt,
    sealed: OnceLock<()>,
    map: OnceLock<Option<Bytes>>,
}

impl Segment {
    pub(crate) fn new(store: StoreId, id: SegmentId, path: PathBuf, file: Arc<dyn File>) -> Self {
        Self { id, path, file, salt: Salt::new(store, id), sealed: OnceLock::new(), map: OnceLock::new() }
    }

    /// Opens an existing segment and checks its header.
    pub(crate) fn open(io: &dyn Io, paths: &Paths, store: StoreId, id: SegmentId, how: Open) -> Result<Self> {
        let path = paths.segment(id);
        let file = io.open(&path, how).map_err(|e| match e.source.kind() {
            std::io::ErrorKind::NotFound => Error::damaged(&path, 0, "the file is missing"),
            _ => e.into(),
        })?;
        let mut header = [0; SEGMENT_HEADER_BYTES as usize];
        let got = file.read_at(&mut header, 0)?;
        SegmentHeader::decode(&header[..got], store, id).map_err(|e| Error::damaged(&path, 0, e))?;
        Ok(Self::new(store, id, path, file))
    }

    /// From now on nobody writes or cuts this file.
    pub(crate) fn mark_sealed(&self) {
        self.sealed.get_or_init(|| ());
    }

    fn map(&self) -> Option<&Bytes> {
        self.sealed.get()?;
        self.map.get_or_init(|| self.file.map().ok()).as_ref()
    }

    /// Calls `then` with the checked record at `place`.
    pub(crate) fn record<T>(&self, place: Place, then: impl FnOnce(RawRecord<'_>) -> Result<T>) -> Result<T> {
        let (start, len) = (u64::from(place.offset), place.len as usize);
        let checked = |bytes: &[u8]| {
            let record = RawRecord::check(bytes, self.salt, start)
                .map_err(|e| Error::damaged(&self.path, start, e))?;
            if record.bytes as usize != len || len < RECORD_HEADER_BYTES {
                return Err(Error::damaged(
                    &self.path,
                    start,
                    "a record has another length than the index says",
                ));
            }
            then(record)
        };
        match self.map() {
            Some(map) => {
                let end = start as usize + len;
                let bytes = map.get(start as usize..end);
                checked(
                    bytes
                        .ok_or_else(|| Error::damaged(&self.path, start, "the file ends before a record"))?,
                )
            }
            None => {
                if self.file.len()? < start + len as u64 {
                    return Err(Error::damaged(&self.path, start, "the file ends before a record"));
                }
                let mut bytes = vec![0; len];
                let got = self.file.read_at(&mut bytes, start)?;
                checked(&bytes[..got])
            }
        }
    }
}

/// All segments of a store.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    open: RwLock<BTreeMap<SegmentId, Arc<Segment>>>,
}

impl Segments {
    pub(crate) fn insert(&self, segment: Arc<Segment>) {
        write(&self.open).insert(segment.id, segment);
    }

    pub(crate) fn get(&self, id: SegmentId) -> Result<Arc<Segment>> {
        read(&self.open).get(&id).cloned().ok_or_else(|| {
            Error::new(
                crate::ErrorKind::Damaged,
                format!("the index names segment {}, which the manifest does not list", id.0),
            )
        })
    }

    pub(crate) fn all(&self) -> Vec<Arc<Segment>> {
        read(&self.open).values().cloned().collect()
    }
}

/// A read lock; a panic elsewhere does not spread, since every value behind these locks is whole at any time.
pub(crate) fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A write lock, as [`read`].
pub(crate) fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A mutex, as [`read`].
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
