//! The record kinds of runs. docs/format.md describes their bytes.

use crate::log::record::RecordKind;

/// A run begins, changes or ends.
pub(crate) const RUN: RecordKind = RecordKind::Schema(4);
/// A frame, whole or just begun.
pub(crate) const FRAME: RecordKind = RecordKind::Schema(5);
/// A part of a frame's output, as it arrived.
pub(crate) const FRAME_PART: RecordKind = RecordKind::Schema(6);
/// An agent's state after a frame.
pub(crate) const SNAPSHOT: RecordKind = RecordKind::Schema(7);
/// A run was dropped.
pub(crate) const TOMBSTONE: RecordKind = RecordKind::Schema(8);
