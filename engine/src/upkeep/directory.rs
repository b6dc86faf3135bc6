//! Lists the files of a store's directory, each on its own, without trusting any. It changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{SegmentId, StoreId};
use crate::io::{File, Io, LockKind, OpenMode};
use crate::log::layout::{SEGMENT_HEADER_LEN, SegmentHeader, claimed_header};
use crate::log::manifest::{LoadedManifest, load, load_generation, read_whole};
use crate::log::open::Damage;
use crate::log::paths::{StorePaths, parse_manifest, parse_segment};
use crate::log::segments::Segment;
use crate::upkeep::order;

/// The process that has the store open for writing, if any.
#[derive(Debug)]
pub(super) enum LockHolder {
    /// No process, for as long as this handle is held.
    Nobody(Option<Arc<dyn File>>),
    /// A process, with its number if LOCK names it.
    Process(String),
}

/// A segment file that belongs to this store.
#[derive(Debug)]
pub(super) struct SegmentFile {
    pub(super) segment: Arc<Segment>,
    /// `None` if the header is damaged.
    pub(super) header: Option<SegmentHeader>,
    pub(super) len: u64,
}

/// The segments, manifest and damage found in a store's directory.
#[derive(Debug)]
pub(super) struct StoreDirectory {
    /// The manifest, or the reason why none can be trusted.
    pub(super) manifest: std::result::Result<LoadedManifest, Error>,
    pub(super) store: StoreId,
    /// Segments in log order, as far as the order is known.
    pub(super) segments: Vec<SegmentFile>,
    pub(super) damage: Vec<Damage>,
}

impl StoreDirectory {
    pub(super) fn segment(&self, id: SegmentId) -> Option<&SegmentFile> {
        self.segments.iter().find(|standing| standing.segment.id == id)
    }
}

/// Who holds LOCK. The call takes a shared lock, which is held until the result is dropped.
pub(super) fn lock_holder(io: &dyn Io, paths: &StorePaths) -> Result<LockHolder> {
    let path = paths.lock();
    if io.stat(&path)?.is_none() {
        return Ok(LockHolder::Nobody(None));
    }
    let file = io.open(&path, OpenMode::Read)?;
    if file.try_lock(LockKind::Shared)? {
        return Ok(LockHolder::Nobody(Some(file)));
    }
    let text = read_whole(&*file, &path, 64).ok().and_then(|text| String::from_utf8(text).ok());
    Ok(LockHolder::Process(text.unwrap_or_default().trim().to_owned()))
}

/// Reads the manifest and every segment's header.
///
/// # Errors
/// `NotFound` if the directory holds no part of a store; `Unsupported` for a newer format; `Unavailable`.
pub(super) fn inspect_directory(io: &dyn Io, paths: &StorePaths) -> Result<StoreDirectory> {
    let root = paths.root();
    let nothing = || Error::not_found(format!("there is no annals store in {}", root.display()));
    if !io.stat(root)?.is_some_and(|stat| stat.is_dir) {
        return Err(nothing());
    }
    let mut damage = Vec::new();
    let mut note = |file: std::path::PathBuf, offset, what: &str| {
        damage.push(Damage { file, offset, what: what.to_owned() });
    };
    let mut manifest = match load(io, paths) {
        Ok(Some(loaded)) => Ok(loaded),
        Ok(None) => Err(Error::new(ErrorKind::Damaged, "CURRENT is missing")),
        Err(error) if error.kind() == ErrorKind::Damaged => Err(error),
        Err(error) => return Err(error),
    };
    if let Err(error) = &manifest {
        note(paths.current(), 0, &error.to_string());
        // The intact generation with the latest edit is the best substitute for the current one. A greater
        // generation may be older: one that was prepared and never became current.
        let generations: Vec<u64> = io.list(root)?.iter().filter_map(|name| parse_manifest(name)).collect();
        let whole = generations.iter().filter_map(|at| load_generation(io, paths, *at).ok());
        let newest = whole.max_by_key(|loaded| {
            let state = &loaded.state;
            let active = state.active().map(|entry| entry.id.0).unwrap_or_default();
            let next = (state.next_rewritten, state.next_table, state.vectors.next);
            (active, next, state.clean.is_some(), loaded.generation)
        });
        manifest = newest.map_or(manifest, Ok);
    }
    let mut headers = BTreeMap::new();
    let dir = paths.segments();
    let names = if io.stat(&dir)?.is_some() { io.list(&dir)? } else { Vec::new() };
    for id in names.iter().filter_map(|name| parse_segment(name)) {
        let path = paths.segment(id);
        let file = io.open(&path, OpenMode::Read)?;
        let mut bytes = [0; SEGMENT_HEADER_LEN];
        let got = file.read_at(&mut bytes, 0)?;
        let header = claimed_header(&bytes[..got]).map_err(|e| Error::of_codec(&path, 0, e))?;
        headers.insert(id, (path, file, header));
    }
    if headers.is_empty() && manifest.is_err() {
        return Err(nothing());
    }
    let store = match &manifest {
        Ok(loaded) => loaded.state.store,
        Err(_) => most_common(headers.values().filter_map(|(_, _, header)| Some(header.as_ref()?.store)))
            .ok_or_else(|| {
                let what =
                    "no manifest and no segment identifies the store: none of its files can be checked";
                Error::new(ErrorKind::Damaged, format!("{}: {what}", root.display()))
            })?,
    };
    let mut segments = Vec::new();
    for (id, (path, file, header)) in headers {
        if header.as_ref().is_some_and(|header| header.store != store || header.segment != id) {
            note(path, 0, "the header names another store or another segment");
            continue;
        }
        if header.is_none() {
            note(path.clone(), 0, "the segment's header is damaged");
        }
        let len = file.len()?;
        let segment = Arc::new(Segment::new(store, id, path, file));
        segments.push(SegmentFile { segment, header, len });
    }
    let listed = manifest.as_ref().ok().map(|loaded| loaded.state.segments.as_slice());
    let segments = order::log_order(segments, listed)?;
    for id in order::missing_segments(&segments, listed) {
        note(paths.segment(id), 0, "the file is missing");
    }
    Ok(StoreDirectory { manifest, store, segments, damage })
}

fn most_common(ids: impl Iterator<Item = StoreId>) -> Option<StoreId> {
    let mut counts: BTreeMap<[u8; 16], usize> = BTreeMap::new();
    ids.for_each(|id| *counts.entry(id.0).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(id, _)| StoreId(id))
}
