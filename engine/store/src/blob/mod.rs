//! Stores bodies as ranges of earlier bytes plus new bytes.
//!
//! An agent's request contains most of the previous request. This module finds the repeats of a body
//! ([`plan`]) and packs the rest in bounded compressed groups ([`Packer`]). It encodes the list of ranges that
//! make the body ([`encode_recipe`]). It is pure: no file, clock or thread.
//!
//! - A **group** is a virtual space of at most [`GROUP_BYTES_MAX`] raw bytes, written as **parts** that one
//!   streaming decoder reads in order ([`decode_group`]).
//! - An **extent** is a range of a group's raw bytes; a **recipe** is a list of extents.
//! - An **anchor** maps the hash of a short window of raw bytes to its place in a group. Anchors are a cache:
//!   [`anchors_of`] recomputes them from a part's raw bytes. A hit is always verified by comparing bytes. A
//!   stale or colliding anchor costs a lookup, never a wrong byte.
//!
//! Left out on purpose: blob ids and their checks. Zstandard frames here carry no checksum, so a flipped bit
//! in a part may decode to wrong bytes of the right length. The caller hashes the assembled body and compares
//! the hash with the blob's id. The caller also stores anchors, parts and recipes.

mod anchor;
mod compare;
mod decode;
mod delta;
mod error;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod fuzz;
mod group;
mod packer;
mod plan;
mod recipe;
#[cfg(test)]
pub(crate) use {group::EncodedPart, group::GroupWriter, plan::MATCH_BYTES_MIN};
#[cfg(test)]
mod tests;
mod tree;
mod types;

pub use anchor::{ANCHOR_WINDOW_BYTES, anchors_of};
pub use compare::{CommonRange, RESYNC_BYTES_MIN, common_front, common_tail, compare};
pub use decode::{GroupDecoder, decode_group};
pub use delta::DeltaStack;
pub use error::BlobError;
pub use group::{PartEncoder, RemainderEncoder, is_incompressible};
pub use packer::Packer;
pub use plan::{BodyPlan, ComparedBody, Comparison, EarlierBytes, PlanStep, PreviousMatch, plan};
pub use recipe::{decode_recipe, encode_recipe};
pub use tree::{BLOCK_BYTES, TreeHash};
pub use types::{
    Anchor, AnchorKey, AnchorSeed, BODY_BYTES_MAX, Codec, EXTENTS_MAX, Extent, GROUP_BYTES_MAX, GroupId,
    LaneBody, assemble,
};
