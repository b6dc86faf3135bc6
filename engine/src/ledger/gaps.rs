//! What the log says is not there any more, or never came.

use crate::error::{Error, Result};
use crate::ids::{NamespaceId, RunUid, Seqno};
use crate::ledger::walk::{open_log, walk};
use crate::log::cursor::for_each_checked_record;
use crate::log::record::{LogicalBody, RecordKind, SpaceHead};
use crate::store::Store;
use crate::trace::Status;
use crate::trace::heads::{RunFields, RunHead, TombstoneHead};
use crate::trace::kinds;

/// Why something is not there.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapKind {
    /// A run whose place another one of its name took: readers do not find it any more.
    Replaced,
    /// A run whose recorder was gone before it ended: what came after is not in the log.
    Abandoned,
    /// A run that was dropped: what its forks do not share is not found any more.
    Dropped,
}

impl GapKind {
    /// Its name, lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Replaced => "replaced",
            Self::Abandoned => "abandoned",
            Self::Dropped => "dropped",
        }
    }

    /// The rule it follows from, as a sentence.
    #[must_use]
    pub fn rule(self) -> &'static str {
        match self {
            Self::Replaced => "a run recorded under the same name with leave to replace it",
            Self::Abandoned => "its recorder ended, or closed the store, before it ended the run",
            Self::Dropped => "retention, or somebody who asked for it",
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
    /// Its name; `None` of one that was dropped.
    pub name: Option<String>,
    /// Its namespace's name, where that is known.
    pub namespace: Option<String>,
    /// Frames of it that had been recorded.
    pub frames: u32,
    /// The rule by which it is not there: for one that was dropped what the tombstone says, else as [`GapKind::rule`].
    pub rule: String,
    /// The reason that whoever dropped it gave; empty without one.
    pub why: String,
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
        let names = core.list_spaces()?;
        let namespace = |id| {
            names.iter().find_map(|space| match space {
                SpaceHead::Namespace { id: of, name } if *of == id => Some(name.clone()),
                _ => None,
            })
        };
        let (found, state) = open_log(core)?;
        walk(&*core.schema, &found, state.ledger.leaves, &mut |leaf| {
            let mut gaps = Vec::new();
            for_each_checked_record(
                leaf.batch.whole,
                leaf.batch.offset,
                leaf.segment.salt,
                |_, seqno, record| {
                    let head = |body| LogicalBody::parse(body).map(|logical| logical.head);
                    let said = match RecordKind::parse(record.kind, record.layout)? {
                        Some(kinds::RUN) => gap_of_run(RunHead::parse(head(record.body)?)?.fields),
                        Some(kinds::TOMBSTONE) => {
                            Some(gap_of_tombstone(TombstoneHead::parse(head(record.body)?)?))
                        }
                        _ => None,
                    };
                    gaps.extend(said.map(|(id, gap)| {
                        let namespace = namespace(id);
                        Gap { namespace, seqno, time_ns: leaf.header.time_ns, ..gap }
                    }));
                    Ok(())
                },
            )
            .map_err(|e| Error::damaged(&leaf.segment.path, leaf.batch.offset, e))?;
            gaps.into_iter().try_for_each(&mut *each)
        })
        .map(drop)
    }
}

/// What a run's record says is not there, but for where it stands.
fn gap_of_run(fields: RunFields) -> Option<(NamespaceId, Gap)> {
    let kind = match (fields.gone, fields.status == Status::Abandoned.code()) {
        (true, _) => GapKind::Replaced,
        (false, true) => GapKind::Abandoned,
        _ => return None,
    };
    let gap = Gap {
        kind,
        run: fields.uid,
        name: Some(fields.name),
        namespace: None,
        frames: fields.frames,
        rule: kind.rule().to_owned(),
        why: String::new(),
        seqno: Seqno(0),
        time_ns: 0,
    };
    Some((fields.namespace, gap))
}

fn gap_of_tombstone(head: TombstoneHead) -> (NamespaceId, Gap) {
    let gap = Gap {
        kind: GapKind::Dropped,
        run: head.run,
        name: None,
        namespace: None,
        frames: head.frames,
        rule: head.rule,
        why: head.why,
        seqno: Seqno(0),
        time_ns: 0,
    };
    (head.namespace, gap)
}
