//! docs/format.md bound to the code: golden bytes, a second implementation of the bincode form, hostile bytes, rewritten
//! segments. Records of the store and of runs are tested together, as they stand in one log.

mod golden;
mod hostile;
mod manifest;
mod oracle;
pub(crate) mod rewrite;
pub(crate) mod samples;

/// The schema that stores are opened with.
pub(crate) fn schema() -> std::sync::Arc<dyn annals_store::schema::RecordSchema> {
    crate::trace::schema::RunSchema::shared()
}
