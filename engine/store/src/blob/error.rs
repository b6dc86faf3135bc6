//! Errors of parts and recipes.

use super::GroupId;

/// Why blob bytes could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// This version does not know the codec byte.
    #[error("codec byte {found} is unknown")]
    UnknownCodec {
        /// The byte.
        found: u8,
    },
    /// A group's parts do not share one codec.
    #[error("part {part} of the group has a different codec than the parts before it")]
    MixedCodec {
        /// Which part, from 0.
        part: usize,
    },
    /// The recorded lengths of the parts exceed the limit of a group.
    #[error("the parts record {found} raw bytes, over the limit of {most} for a group")]
    GroupTooLong {
        /// Sum of the recorded lengths so far.
        found: u64,
        /// The bound.
        most: u64,
    },
    /// A part does not decode to its recorded length.
    #[error("part {part} decodes to at least {found} bytes, but its recorded length is {expected}")]
    PartLength {
        /// Which part, from 0.
        part: usize,
        /// Recorded raw length.
        expected: u64,
        /// Bytes that came out before the check failed.
        found: u64,
    },
    /// The encoded bytes of a part cannot come from a group writer.
    #[error("part {part} is damaged: {what}")]
    PartDamaged {
        /// Which part, from 0.
        part: usize,
        /// What the decoder found.
        what: &'static str,
    },
    /// Compression or its context failed: a bug of the engine, or no memory.
    #[error("zstd could not {what}")]
    Zstd {
        /// What was tried.
        what: &'static str,
        /// What zstd said.
        #[source]
        source: std::io::Error,
    },
    /// An append is longer than the room left in the group.
    #[error("{asked} bytes do not fit in the {room} bytes left in the group")]
    NoRoom {
        /// Bytes to append.
        asked: usize,
        /// Bytes that fit.
        room: usize,
    },
    /// The plan given to a packer does not cover the body in order.
    #[error("the plan covers {found} bytes of a body of {expected}")]
    PlanMismatch {
        /// Body length.
        expected: usize,
        /// Where the plan ended or left the body.
        found: usize,
    },
    /// A recipe ends inside a number, or the number passes 64 bits.
    #[error("the number at byte {at} of the recipe is cut off or too large")]
    RecipeNumber {
        /// Byte in the recipe.
        at: usize,
    },
    /// A recipe's operation is out of bounds.
    #[error("the operation at byte {at} of the recipe is invalid: {what}")]
    RecipeOperation {
        /// Byte in the recipe.
        at: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A body exceeds the size limit.
    #[error("the body has at least {found} bytes, over the limit of {most}")]
    BodyTooLong {
        /// Length so far.
        found: u64,
        /// The bound.
        most: u64,
    },
    /// A recipe has too many extents.
    #[error("the recipe has more than {most} extents")]
    TooManyExtents {
        /// The bound.
        most: usize,
    },
    /// A group that an extent names is not available.
    #[error("group {} is missing", group.0)]
    MissingGroup {
        /// The group.
        group: GroupId,
    },
    /// An extent reaches past its group's raw bytes.
    #[error("extent {offset}+{len} reaches past the {raw_len} bytes of group {}", group.0)]
    OutsideGroup {
        /// The group.
        group: GroupId,
        /// First byte.
        offset: u32,
        /// Length.
        len: u32,
        /// The group's raw length.
        raw_len: usize,
    },
}
