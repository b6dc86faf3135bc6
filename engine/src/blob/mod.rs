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
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod group;
mod packer;
mod plan;
mod recipe;
#[cfg(test)]
pub(crate) use {group::GroupWriter, group::Part, plan::MATCH_BYTES_MIN};
#[cfg(test)]
mod tests;
mod tree;
mod types;

pub(crate) use anchor::{ANCHOR_WINDOW_BYTES, anchors_of};
pub(crate) use compare::{Same, common_front, common_tail, compare};
pub(crate) use decode::{GroupDecoder, decode_group};
pub(crate) use delta::DeltaStack;
pub(crate) use error::BlobError;
pub(crate) use group::RestEncoder;
pub(crate) use packer::Packer;
pub(crate) use plan::{Before, Compared, Earlier, Step, plan};
pub(crate) use recipe::{decode_recipe, encode_recipe};
pub(crate) use tree::{BLOCK_BYTES, TreeHash};
pub(crate) use types::{
    Anchor, AnchorKey, AnchorSeed, BODY_BYTES_MAX, Body, Codec, EXTENTS_MAX, Extent, GROUP_BYTES_MAX,
    GroupId, assemble,
};
