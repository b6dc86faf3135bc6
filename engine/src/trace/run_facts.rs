//! What statistics and retention ask of each run, kept in keys of the index, so that neither reads a record.
//!
//! The record of an ended run and each tombstone post a key that ends with these facts. The key of an earlier
//! record stays until a compaction. So a reader goes through the runs and their facts together, and facts count
//! only if they lead to the same record as the run's own key. A run without such facts is open, or its table is
//! older than these keys: then the record is read.

use std::sync::Arc;

use crate::codec::{ByteReader, CodecError, put_varint};
use crate::error::Result;
use crate::ids::{NamespaceId, RecordPlace, RunUid};
use crate::trace::heads::{RunFields, RunHead, TombstoneHead};
use crate::trace::kinds;
use crate::trace::model::Status;
use crate::trace::run_keys;
use crate::upkeep::retention::SAMPLING;
use annals_store::kv::core::Core;
use annals_store::kv::index::prefix_end;
use annals_store::kv::keys;

/// Runs that one look at the index finds. Each takes about 100 bytes of memory meanwhile.
const PAGE_RUNS: usize = 1 << 16;

/// What became of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunFate {
    /// It lives; the codes of its status and severity, and when it ended (0 while it is open).
    Living { status: u8, severity: u8, ended_ns: u64 },
    /// It was dropped, by sampling or by another rule.
    Dropped { by_sampling: bool },
    /// Another run took its name.
    Replaced,
}

/// What the newest record of a run says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunFacts {
    pub(crate) uid: RunUid,
    pub(crate) fate: RunFate,
    /// Number of its own frames; 0 if it is open or was replaced.
    pub(crate) own_frames: u32,
    /// Raw bytes of its own frames; 0 if it is open or does not live.
    pub(crate) raw_bytes: u64,
    pub(crate) has_tags: bool,
}

/// Greatest code of a status or severity that fits the flags.
const CODE_MAX: u8 = 3;
const DROPPED: u8 = 1 << 4;
const SAMPLED_OUT: u8 = 1 << 5;
const REPLACED: u8 = 1 << 6;
const TAGS: u8 = 1 << 7;

impl RunFacts {
    /// The facts that the record of a run posts; `None` if it is open. A record with unknown codes posts none,
    /// so that a reader looks at it.
    pub(super) fn of_run(fields: &RunFields) -> Option<Self> {
        let is_ended = fields.status != Status::Open.code();
        let is_known = fields.status <= CODE_MAX && fields.severity <= CODE_MAX;
        (fields.gone || is_ended && is_known).then(|| Self::of_fields(fields))
    }

    fn of_fields(fields: &RunFields) -> Self {
        let uid = fields.uid;
        if fields.gone {
            return Self { uid, fate: RunFate::Replaced, own_frames: 0, raw_bytes: 0, has_tags: false };
        }
        let shared = fields.parent.map_or(0, |(_, shared, _)| shared);
        let is_open = fields.status == Status::Open.code();
        let RunFields { status, severity, ended_ns, .. } = *fields;
        Self {
            uid,
            fate: RunFate::Living { status, severity, ended_ns },
            own_frames: if is_open { 0 } else { fields.frames.saturating_sub(shared) },
            raw_bytes: if is_open { 0 } else { fields.raw_bytes },
            has_tags: !fields.tags.is_empty(),
        }
    }

    pub(super) fn of_tombstone(head: &TombstoneHead) -> Self {
        let shared = head.parent.map_or(0, |(_, shared, _)| shared);
        Self {
            uid: head.run,
            fate: RunFate::Dropped { by_sampling: head.rule == SAMPLING },
            own_frames: head.frames.saturating_sub(shared),
            raw_bytes: 0,
            has_tags: false,
        }
    }

    /// The key that holds these facts.
    pub(super) fn key(&self, namespace: NamespaceId) -> Vec<u8> {
        let mut facts = Vec::with_capacity(24);
        match self.fate {
            RunFate::Living { status, severity, ended_ns } => {
                facts.push(
                    status & CODE_MAX | (severity & CODE_MAX) << 2 | if self.has_tags { TAGS } else { 0 },
                );
                put_varint(&mut facts, u64::from(self.own_frames));
                put_varint(&mut facts, self.raw_bytes);
                facts.extend_from_slice(&ended_ns.to_be_bytes());
            }
            RunFate::Dropped { by_sampling } => {
                facts.push(DROPPED | if by_sampling { SAMPLED_OUT } else { 0 });
                put_varint(&mut facts, u64::from(self.own_frames));
            }
            RunFate::Replaced => facts.push(REPLACED),
        }
        run_keys::run_facts(namespace, self.uid, &facts)
    }

    fn parse(uid: RunUid, facts: &[u8]) -> std::result::Result<Self, CodecError> {
        let mut r = ByteReader::new(facts, "facts of a run");
        let flags = r.u8()?;
        let mut found =
            Self { uid, fate: RunFate::Replaced, own_frames: 0, raw_bytes: 0, has_tags: flags & TAGS != 0 };
        if flags & REPLACED == 0 {
            found.own_frames = r.varint32()?;
            found.fate = RunFate::Dropped { by_sampling: flags & SAMPLED_OUT != 0 };
        }
        if flags & (REPLACED | DROPPED) == 0 {
            found.raw_bytes = r.varint()?;
            let ended_ns = u64::from_be_bytes(r.array()?);
            found.fate =
                RunFate::Living { status: flags & CODE_MAX, severity: flags >> 2 & CODE_MAX, ended_ns };
        }
        r.finish()?;
        Ok(found)
    }
}

/// Calls `each` with the facts of every run of a namespace, in the order of their numbers; those of runs that
/// were dropped or replaced too, as long as the index knows them.
pub(crate) fn for_each_run(
    core: &Arc<Core>,
    namespace: NamespaceId,
    each: &mut dyn FnMut(RunFacts) -> Result<()>,
) -> Result<()> {
    let mut from = run_keys::runs(namespace);
    let end = prefix_end(&from).unwrap_or_default();
    loop {
        let _pin = core.pin();
        let (runs, more) = core.index.pick_newest(&from, &end, PAGE_RUNS, |key, value| {
            Some((run_keys::run_uid(key)?, keys::place(value)))
        })?;
        if let (Some((first, _)), Some((last, _))) = (runs.first(), runs.last()) {
            let known = posted_facts(core, namespace, *first, *last)?;
            let mut left = known.iter().peekable();
            for (uid, place) in runs {
                let mut found = None;
                while let Some((at, facts)) = left.next_if(|(_, facts)| facts.uid <= uid) {
                    if facts.uid == uid && *at == place {
                        found = Some(*facts);
                    }
                }
                match found {
                    Some(facts) => each(facts)?,
                    None => each(read_facts(core, place)?)?,
                }
            }
        }
        match more {
            Some(next) => from = next,
            None => return Ok(()),
        }
    }
}

/// The posted facts of the runs `first` to `last`, in the order of their numbers, each with the place of the
/// record that they lead to.
fn posted_facts(
    core: &Core,
    namespace: NamespaceId,
    first: RunUid,
    last: RunUid,
) -> Result<Vec<(RecordPlace, RunFacts)>> {
    let from = run_keys::run_facts(namespace, first, &[]);
    let end = prefix_end(&run_keys::run_facts(namespace, last, &[])).unwrap_or_default();
    let (known, _) = core.index.pick_newest(&from, &end, usize::MAX, |key, value| {
        let (uid, facts) = run_keys::uid_and_facts(key)?;
        // Not all keys of this list hold facts: see `run_keys::run_facts`.
        Some((keys::place(value), RunFacts::parse(uid, facts).ok()?))
    })?;
    Ok(known)
}

/// The facts that the record at a place states.
fn read_facts(core: &Core, place: RecordPlace) -> Result<RunFacts> {
    core.read_logical_any(place, &[kinds::RUN, kinds::TOMBSTONE], |kind, logical| match kind {
        kinds::TOMBSTONE => Ok(RunFacts::of_tombstone(&TombstoneHead::parse(logical.head)?)),
        _ => Ok(RunFacts::of_fields(&RunHead::parse(logical.head)?.fields)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_come_back_from_their_key() {
        let living = |status, severity, ended_ns| RunFate::Living { status, severity, ended_ns };
        for (fate, own_frames, raw_bytes, has_tags) in [
            (living(1, 0, 5), 0, 0, false),
            (living(3, 3, u64::MAX), u32::MAX, u64::MAX, true),
            (RunFate::Dropped { by_sampling: true }, 7, 0, false),
            (RunFate::Dropped { by_sampling: false }, 300, 0, false),
            (RunFate::Replaced, 0, 0, false),
        ] {
            let facts = RunFacts { uid: RunUid(9), fate, own_frames, raw_bytes, has_tags };
            let key = facts.key(NamespaceId(3));
            let (uid, bytes) = run_keys::uid_and_facts(&key).unwrap();
            assert_eq!(RunFacts::parse(uid, bytes).unwrap(), facts);
        }
        // The key of a run in the list of a term.
        assert!(RunFacts::parse(RunUid(9), &[]).is_err());
    }
}
