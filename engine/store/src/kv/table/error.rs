//! The errors of tables.

/// Result of a table operation.
pub type TableResult<T> = Result<T, TableError>;

/// Why a table could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The bytes are too few, or do not begin like a table.
    #[error("not a table file ({len} bytes, {what})")]
    NotATable {
        /// The file's length in bytes.
        len: u64,
        /// What is missing.
        what: &'static str,
    },
    /// The table was written by a format this build does not know.
    #[error("table format version {found} is not known here (this build reads version {known})")]
    UnknownVersion {
        /// The version in the file.
        found: u32,
        /// The version this build reads.
        known: u32,
    },
    /// The bytes are not what was written, or were never a valid table. The table can be rebuilt from the
    /// log.
    #[error("table {table} is damaged at byte {offset}: {what}")]
    Damaged {
        /// The table's id in its footer; 0 if the footer itself is damaged.
        table: u64,
        /// Where the damaged part begins, in bytes from the start of the file.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// An entry was added that does not come after the one before it.
    #[error("entry {position} of the table (seqno {seqno}) does not come after the one before it")]
    OutOfOrder {
        /// How many entries were added before.
        position: u64,
        /// The refused entry's seqno.
        seqno: u64,
    },
    /// A key is longer than a table can hold.
    #[error("key of {len} bytes is longer than {max}")]
    KeyTooLong {
        /// The key's length in bytes.
        len: usize,
        /// `KEY_LEN_MAX`.
        max: usize,
    },
    /// The table outgrew the format.
    #[error("the table is too large: {what}")]
    TooLarge {
        /// Which limit was met.
        what: &'static str,
    },
    /// An earlier write to the sink failed: the table being written is unusable.
    #[error("the table's writer failed before and cannot go on")]
    WriterFailed,
    /// The sink refused bytes.
    #[error("cannot write the table: {source}")]
    Sink {
        /// The sink's own error.
        #[source]
        source: std::io::Error,
    },
}

/// What is wrong with some bytes; the caller knows where they are.
pub(super) type DamageReason = &'static str;
