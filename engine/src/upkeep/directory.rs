//! Lists the files of a store's directory, each on its own, without trusting any. It changes nothing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{SegmentId, StoreId};
use crate::io::{File, Io, OpenMode};
use crate::log::layout::{SEGMENT_HEADER_LEN, SegmentHeader, claimed_header};
use crate::log::manifest::{LoadedManifest, load, load_generation};
use crate::log::open::{Damage, unfinished};
use crate::log::paths::{StorePaths, parse_manifest, parse_segment};
use crate::log::segments::Segment;
use crate::log::synced::{self, SyncedNote};
use crate::upkeep::correct::PatchedFile;
use crate::upkeep::order;

/// A segment file that belongs to this store.
#[derive(Debug)]
pub(super) struct SegmentFile {
    pub(super) segment: Arc<Segment>,
    /// The segment's file, in which bytes can be corrected.
    pub(super) patched: Arc<PatchedFile>,
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
    /// The newest whole note of `SYNCED`.
    pub(super) synced: Option<SyncedNote>,
    /// Segments in log order, as far as the order is known.
    pub(super) segments: Vec<SegmentFile>,
    pub(super) damage: Vec<Damage>,
}

impl StoreDirectory {
    pub(super) fn segment(&self, id: SegmentId) -> Option<&SegmentFile> {
        self.segments.iter().find(|standing| standing.segment.id == id)
    }
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
    if io.stat(&paths.current())?.is_none() && io.stat(&StorePaths::draft(root).current())?.is_some() {
        return Err(unfinished(root));
    }
    let mut damage = Vec::new();
    let mut note = |file: PathBuf, offset, what: &str| {
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
    let found = read_segment_files(io, paths, &mut note)?;
    if found.is_empty() && manifest.is_err() {
        return Err(nothing());
    }
    let store = match &manifest {
        Ok(loaded) => loaded.state.store,
        Err(_) => {
            most_common(found.iter().filter_map(|one| Some(one.header.as_ref()?.store))).ok_or_else(|| {
                let what =
                    "no manifest and no segment identifies the store: none of its files can be checked";
                Error::new(ErrorKind::Damaged, format!("{}: {what}", root.display()))
            })?
        }
    };
    let synced = synced::newest(synced::read(io, paths)?.as_deref(), store, paths)?.note;
    let mut segments = Vec::new();
    for (id, file) in number_segments(found, store, &mut note) {
        let len = file.file.len()?;
        let patched = Arc::new(PatchedFile::new(file.file));
        let segment = Arc::new(Segment::new(store, id, file.path, patched.clone()));
        segments.push(SegmentFile { segment, patched, header: file.header, len });
    }
    if let Ok(loaded) = &manifest
        && order::is_older(&loaded.state.segments, &segments)?
    {
        let what = "its manifest is older than the log: an older copy was put over this store";
        note(paths.current(), 0, what);
        manifest = Err(Error::new(ErrorKind::Damaged, what));
    }
    let listed = manifest.as_ref().ok().map(|loaded| loaded.state.segments.as_slice());
    let segments = order::log_order(segments, listed)?;
    for id in order::missing_segments(&segments, listed) {
        note(paths.segment(id), 0, "the file is missing");
    }
    Ok(StoreDirectory { manifest, store, synced, segments, damage })
}

/// A file in the directory of the segments.
#[derive(Debug)]
struct FoundFile {
    path: PathBuf,
    /// The number in its name.
    named: Option<SegmentId>,
    file: Arc<dyn File>,
    header: Option<SegmentHeader>,
}

/// Every file in the directory of the segments that could be a segment: by its name or by its header.
fn read_segment_files(
    io: &dyn Io,
    paths: &StorePaths,
    note: &mut impl FnMut(PathBuf, u64, &str),
) -> Result<Vec<FoundFile>> {
    let dir = paths.segments();
    let mut found = Vec::new();
    for name in if io.stat(&dir)?.is_some() { io.list(&dir)? } else { Vec::new() } {
        let (path, named) = (dir.join(&name), parse_segment(&name));
        let file = match io.open(&path, OpenMode::Read) {
            Ok(file) => file,
            // A link, a pipe, a directory.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                if named.is_some() {
                    note(path, 0, &error.source.to_string());
                }
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let mut bytes = [0; SEGMENT_HEADER_LEN];
        let got = file.read_at(&mut bytes, 0)?;
        let header = claimed_header(&bytes[..got]).map_err(|e| Error::of_codec(&path, 0, e))?;
        if header.is_some() || named.is_some() {
            found.push(FoundFile { path, named, file, header });
        }
    }
    Ok(found)
}

/// The number of each segment: that in its header, whatever the file is named. A file without a header counts
/// by its name.
fn number_segments(
    mut found: Vec<FoundFile>,
    store: StoreId,
    note: &mut impl FnMut(PathBuf, u64, &str),
) -> BTreeMap<SegmentId, FoundFile> {
    let mut segments: BTreeMap<SegmentId, FoundFile> = BTreeMap::new();
    let number = |one: &FoundFile| one.header.as_ref().map(|header| header.segment);
    // Of two files with one number, the one that is named so counts; headers come before names.
    found.sort_by_key(|one| (one.header.is_none(), number(one) != one.named));
    for one in found {
        if one.header.as_ref().is_some_and(|header| header.store != store) {
            if one.named.is_some() {
                note(one.path, 0, "the header names another store");
            }
            continue;
        }
        let Some(id) = number(&one).or(one.named) else { continue };
        let misnamed = one.named != Some(id);
        match segments.entry(id) {
            Entry::Vacant(free) => {
                if one.header.is_none() {
                    note(one.path.clone(), 0, "the segment's header is damaged");
                } else if misnamed {
                    let what = format!("by its header this file is segment {}: rename it", id.0);
                    note(one.path.clone(), 0, &what);
                }
                free.insert(one);
            }
            // A copy that somebody made beside the segment is no damage.
            Entry::Occupied(_) if one.named.is_none() => {}
            Entry::Occupied(other) => {
                let what =
                    format!("{} is segment {}, too: this file is left out", other.get().path.display(), id.0);
                note(one.path, 0, &what);
            }
        }
    }
    segments
}

fn most_common(ids: impl Iterator<Item = StoreId>) -> Option<StoreId> {
    let mut counts: BTreeMap<[u8; 16], usize> = BTreeMap::new();
    ids.for_each(|id| *counts.entry(id.0).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(id, _)| StoreId(id))
}
