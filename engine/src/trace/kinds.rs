//! The record kinds of runs. docs/format.md describes their bytes.

use crate::log::record::Kind;

/// A run begins, changes or ends.
pub(crate) const RUN: Kind = Kind::Schema(4);
/// A frame, whole or just begun.
pub(crate) const FRAME: Kind = Kind::Schema(5);
/// A part of a frame's output, as it arrived.
pub(crate) const FRAME_PART: Kind = Kind::Schema(6);
/// An agent's state after a frame.
pub(crate) const SNAPSHOT: Kind = Kind::Schema(7);
/// A run was dropped.
pub(crate) const TOMBSTONE: Kind = Kind::Schema(8);
