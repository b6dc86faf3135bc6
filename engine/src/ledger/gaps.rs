//! What the log says is not there any more, or never came.

use crate::error::{Error, Result};
use crate::ids::{RunUid, Seqno};
use crate::ledger::walk::{look, walk};
use crate::log::cursor::for_each_record;
use crate::log::record::{Kind, Logical, RunHead, SpaceHead};
use crate::store::Store;
use crate::trace::Status;

/// Why something is not there.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapKind {
    /// A run whose place another one of its name took: readers do not find it any more.
    Replaced,
    /// A run whose recorder was gone before it ended: what came after is not in the log.
    Abandoned,
}

impl GapKind {
    /// Its name, lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Replaced => "replaced",
            Self::Abandoned => "abandoned",
        }
    }

    /// The rule it follows from, as a sentence.
    #[must_use]
    pub fn rule(self) -> &'static str {
        match self {
            Self::Replaced => "a run recorded under the same name with leave to replace it",
            Self::Abandoned => "its recorder ended, or closed the store, before it ended the run",
        }
    }
}

/// Something that is not there, and since when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// Why.
    pub kind: GapKind,
    /// The run.
    pub run: RunUid,
    /// Its name.
    pub name: String,
    /// Its namespace's name, where that is known.
    pub namespace: Option<String>,
    /// Frames of it that had been recorded.
    pub frames: u32,
    /// The record that says so.
    pub seqno: Seqno,
    /// When that was queued, nanoseconds since 1970-01-01 UTC.
    pub time_ns: u64,
}

impl Store {
    /// Calls `each` with everything that the log says is not there, oldest first. Reads the whole log once, in bounded
    /// memory.
    ///
    /// # Errors
    /// What `each` gives; `Damaged` where the log cannot be read any further; `Unavailable`.
    pub fn gaps(&self, each: &mut dyn FnMut(Gap) -> Result<()>) -> Result<()> {
        let core = self.core();
        let names = core.spaces_known()?;
        let namespace = |id| {
            names.iter().find_map(|space| match space {
                SpaceHead::Namespace { id: of, name } if *of == id => Some(name.clone()),
                _ => None,
            })
        };
        let (found, state) = look(core)?;
        walk(&found, state.ledger.leaves, &mut |leaf| {
            let mut gaps = Vec::new();
            for_each_record(leaf.batch.whole, leaf.batch.offset, leaf.segment.salt, |_, seqno, record| {
                if Kind::parse(record.kind, record.layout)? == Some(Kind::Run) {
                    gaps.push((seqno, RunHead::parse(Logical::parse(record.body)?.head)?.fields));
                }
                Ok(())
            })
            .map_err(|e| Error::damaged(&leaf.segment.path, leaf.batch.offset, e))?;
            for (seqno, fields) in gaps {
                let kind = match (fields.gone, fields.status == Status::Abandoned.code()) {
                    (true, _) => GapKind::Replaced,
                    (false, true) => GapKind::Abandoned,
                    _ => continue,
                };
                each(Gap {
                    kind,
                    run: fields.uid,
                    namespace: namespace(fields.namespace),
                    name: fields.name,
                    frames: fields.frames,
                    seqno,
                    time_ns: leaf.header.time_ns,
                })?;
            }
            Ok(())
        })
        .map(drop)
    }
}
