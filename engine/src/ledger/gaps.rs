//! Gaps: runs that were dropped, replaced or abandoned, as the log records them.

use std::sync::Arc;

use crate::codec::CodecError;
use crate::error::{Error, Result};
use crate::ids::{NamespaceId, RunUid, Seqno};
use crate::ledger::walk::{Visit, open_log, walk};
use crate::log::cursor::for_each_checked_record;
use crate::log::erasure::{ErasureHead, ErasureRule};
use crate::log::layout::RawRecord;
use crate::log::record::{LogicalBody, RecordKind, SpaceHead};
use crate::store::Store;
use crate::trace::heads::{RunFields, RunHead, TombstoneHead};
use crate::trace::kinds;
use crate::trace::reader::run_record;
use crate::trace::{ErasureReport, Status};
use annals_store::kv::core::Core;

/// The kind of a gap.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapKind {
    /// The run was replaced by another of its name: readers no longer find it.
    Replaced,
    /// The run's recorder was gone before the run ended: later frames are not in the log.
    Abandoned,
    /// The run was dropped: only the frames that its forks share can be read.
    Dropped,
    /// The number was taken for a run, and the run never began.
    Unused,
}

impl GapKind {
    /// Its name, lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Replaced => "replaced",
            Self::Abandoned => "abandoned",
            Self::Dropped => "dropped",
            Self::Unused => "unused",
        }
    }

    /// The general reason for this kind of gap.
    #[must_use]
    pub fn rule(self) -> &'static str {
        match self {
            Self::Replaced => "a run of the same name was recorded with the option to replace it",
            Self::Abandoned => "its recorder stopped, or closed the store, before the run ended",
            Self::Dropped => "retention, or a request to drop it",
            Self::Unused => "the number was taken for a run that never began",
        }
    }
}

/// A run that is missing or incomplete, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The kind of gap.
    pub kind: GapKind,
    /// The run.
    pub run: RunUid,
    /// Its name; `None` if no record of the run is left.
    pub name: Option<String>,
    /// Its namespace's name, if known.
    pub namespace: Option<String>,
    /// Number of its recorded frames; `None` if no record and no tombstone of the run is left.
    pub frames: Option<u32>,
    /// The reason for the gap: the tombstone's rule for a dropped run, else [`GapKind::rule`].
    pub rule: String,
    /// The reason given for dropping it; empty if none was given.
    pub why: String,
    /// The record that shows the gap.
    pub seqno: Seqno,
    /// When the run was dropped or abandoned, as its record says, or when the last record of a run was erased, as the
    /// statement of that says: nanoseconds since 1970-01-01 UTC. Of a replaced run whose record is left, when that
    /// record was queued; the ledger does not cover this time.
    pub time_ns: u64,
}

impl Store {
    /// Calls `each` for every gap in the log, oldest first, and returns what was erased without one. Reads the
    /// whole log once, in bounded memory; twice if something was erased without a tombstone.
    ///
    /// # Errors
    /// Errors of `each`; `Damaged` if the log is damaged; `Unavailable`.
    pub fn gaps(&self, each: &mut dyn FnMut(Gap) -> Result<()>) -> Result<ErasureReport> {
        let core = self.core();
        let names = core.list_spaces()?;
        let namespace = |id| {
            names.iter().find_map(|space| match space {
                SpaceHead::Namespace { id: of, name } if *of == id => Some(name.clone()),
                _ => None,
            })
        };
        let (found, state) = open_log(core)?;
        let mut walked = walk(&*core.schema, &found, state.ledger.leaves, &mut |visit| {
            let Visit::Leaf(leaf) = visit else { return Ok(()) };
            let (mut gaps, mut numbers) = (Vec::new(), Vec::new());
            for_each_checked_record(leaf.batch, leaf.segment.salt, |_, seqno, record| {
                let head = || LogicalBody::of(&record).map(|logical| logical.head);
                let said = match kind_of(&record)? {
                    Some(kinds::RUN) => {
                        let fields = RunHead::parse(head()?)?.fields;
                        let ended_ns = fields.ended_ns;
                        // A run that its recorder took up again has no gap there.
                        gap_of_run(fields).filter(|(id, gap)| {
                            gap.kind != GapKind::Abandoned || is_still_abandoned(core, *id, gap.run, ended_ns)
                        })
                    }
                    Some(kinds::TOMBSTONE) => Some(gap_of_tombstone(TombstoneHead::parse(head()?)?)),
                    _ => None,
                };
                if kind_of(&record)? == Some(RecordKind::Erasure) {
                    let head = ErasureHead::parse(head()?)?;
                    let kind = match head.rule {
                        ErasureRule::Compaction => Some(GapKind::Replaced),
                        ErasureRule::Unused => Some(GapKind::Unused),
                        ErasureRule::BeforeFormat4 => None,
                    };
                    numbers.extend(kind.map(|kind| (seqno, kind, head.time_ns, head.runs)));
                }
                gaps.extend(said.map(|(id, gap)| {
                    let namespace = namespace(id);
                    let time_ns = match gap.kind {
                        GapKind::Replaced => leaf.batch.header.time_ns,
                        _ => gap.time_ns,
                    };
                    Gap { namespace, seqno, time_ns, ..gap }
                }));
                Ok(())
            })
            .map_err(|e| Error::damaged(&leaf.segment.path, leaf.batch.offset, e))?;
            gaps.into_iter().try_for_each(&mut *each)?;
            // A forged statement names up to a million numbers in few bytes, so they are not kept.
            for (seqno, kind, time_ns, runs) in numbers {
                for run in runs.into_iter().flatten() {
                    each(Gap { seqno, time_ns, ..gap_of_number(RunUid(run), kind) })?;
                }
            }
            Ok(())
        })?;
        walked.census.finish(&*core.schema, &found)
    }
}

/// Whether a run's newest record says that it was abandoned at this time, or the run has none any more.
fn is_still_abandoned(core: &Arc<Core>, namespace: NamespaceId, run: RunUid, ended_ns: u64) -> bool {
    let newest = run_record(core, namespace, run).ok().flatten();
    newest.is_none_or(|(head, _)| {
        head.fields.status == Status::Abandoned.code() && head.fields.ended_ns == ended_ns
    })
}

fn kind_of(record: &RawRecord<'_>) -> std::result::Result<Option<RecordKind>, CodecError> {
    RecordKind::parse(record.kind, record.layout)
}

/// The gap of a run of which only a statement is left.
fn gap_of_number(run: RunUid, kind: GapKind) -> Gap {
    let why = match kind {
        GapKind::Replaced => "a compaction erased its last record",
        _ => "",
    };
    Gap {
        kind,
        run,
        name: None,
        namespace: None,
        frames: None,
        rule: kind.rule().to_owned(),
        why: why.to_owned(),
        seqno: Seqno(0),
        time_ns: 0,
    }
}

/// The gap that a run's record shows. `walk` adds namespace and seqno.
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
        frames: Some(fields.frames),
        rule: kind.rule().to_owned(),
        why: String::new(),
        seqno: Seqno(0),
        time_ns: fields.ended_ns,
    };
    Some((fields.namespace, gap))
}

fn gap_of_tombstone(head: TombstoneHead) -> (NamespaceId, Gap) {
    let gap = Gap {
        kind: GapKind::Dropped,
        run: head.run,
        name: None,
        namespace: None,
        frames: Some(head.frames),
        rule: head.rule,
        why: head.why,
        seqno: Seqno(0),
        time_ns: head.dropped_ns,
    };
    (head.namespace, gap)
}
