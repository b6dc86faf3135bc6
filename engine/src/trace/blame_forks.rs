//! Forks of blames: runs that belong to the run which they were forked from.
//!
//! A blame runs the program of a run again, each time as a fork. Such a fork has the tag [`BLAME_TAG`] with the
//! name of its parent, and frames of the same conversation. The commit that drops the parent drops the fork,
//! and no rule of retention judges the fork while its parent lives. A fork whose parent was replaced, or dropped
//! by a version that kept forks of blames, is orphaned: rules judge it, and forgetting its parent's name drops it.

use crate::error::Result;
use crate::ids::{NamespaceId, RunUid, Seqno};
use crate::store::Namespace;
use crate::trace::heads::RunFields;
use crate::trace::reader::run_record;
use crate::trace::run_keys;
use crate::trace::run_pages::{RunFilter, RunOrder};
use annals_store::kv::core::Core;
use annals_store::kv::index::prefix_end;

/// The tag of every fork of a blame; its value is the parent's name.
pub const BLAME_TAG: &str = "annals.blame";

/// Runs of a page of orphaned forks.
const PAGE_RUNS: usize = 256;

/// Whether a run is tagged as a fork of the blame of a run of this name.
pub(crate) fn is_blame_fork(fields: &RunFields, parent: &str) -> bool {
    fields.tags.iter().any(|(key, value)| key == BLAME_TAG && value == parent)
}

/// The living forks of a run's blame, without those of blames of these forks.
pub(crate) fn blame_forks(
    core: &Core,
    namespace: NamespaceId,
    parent: RunUid,
    name: &str,
) -> Result<Vec<RunFields>> {
    let _pin = core.pin();
    let mut forks = Vec::new();
    for hit in core.index.scan_prefix(&run_keys::forks(parent), Seqno(u64::MAX))? {
        // A fork is younger than its parent.
        let Some(uid) = run_keys::fork_uid(&hit.key).filter(|fork| *fork > parent) else { continue };
        let Some((head, _)) = run_record(core, namespace, uid)? else { continue };
        let is_own = head.fields.parent.is_some_and(|(of, ..)| of == parent);
        if is_own && !head.fields.gone && is_blame_fork(&head.fields, name) {
            forks.push(head.fields);
        }
    }
    Ok(forks)
}

/// The parent of a fork of a blame, if it lives.
pub(crate) fn living_parent(core: &Core, namespace: NamespaceId, uid: RunUid) -> Result<Option<RunUid>> {
    let Some((head, _)) = run_record(core, namespace, uid)? else { return Ok(None) };
    // A fork is younger than its parent: a damaged store must not lead a walk to the parents in a circle.
    let Some((parent, ..)) = head.fields.parent.filter(|(parent, ..)| *parent < uid) else { return Ok(None) };
    Ok(match run_record(core, namespace, parent)? {
        Some((of, _)) if !of.fields.gone && is_blame_fork(&head.fields, &of.fields.name) => Some(parent),
        _ => None,
    })
}

/// All forks of all namespaces, in order; dropped and replaced ones, too.
pub(crate) fn all_forks(core: &Core) -> Result<Vec<RunUid>> {
    let _pin = core.pin();
    let from = run_keys::all_forks();
    let end = prefix_end(&from).unwrap_or_default();
    let (mut forks, _) = core.index.pick_newest(&from, &end, usize::MAX, |key, _| run_keys::fork_uid(key))?;
    forks.sort_unstable();
    Ok(forks)
}

impl Namespace {
    /// Living forks of blames of runs of this name that were dropped or replaced, the oldest first.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn orphaned_blame_forks(&self, run: &str) -> Result<Vec<RunUid>> {
        let core = self.store.core();
        let filter = RunFilter { tags: vec![(BLAME_TAG.to_owned(), run.to_owned())], ..RunFilter::default() };
        let (mut after, mut found) = (None, Vec::new());
        loop {
            let page = self.page_runs(&filter, RunOrder::OldestFirst, after, PAGE_RUNS)?;
            for reader in &page.runs {
                let info = reader.info();
                if info.parent.is_some() && living_parent(core, self.id, info.uid)?.is_none() {
                    found.push(info.uid);
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::queue::Durability;
    use crate::runs::{Frame, RunSpec, Severity, Status};
    use crate::trace::kinds;
    use crate::trace::recorder::encode_run;
    use crate::upkeep::retention::RetentionPolicy;
    use crate::{Component, Store};
    use annals_store::kv::write::BatchWriter;

    /// The record of a run in a forged store names the run itself as its parent: a sweep went in a circle.
    #[test]
    fn sweep_ends_if_a_run_is_its_own_parent() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("s")).unwrap();
        let space = store.namespace("default").unwrap();
        let run = space.begin_run(RunSpec::new("r").tag(BLAME_TAG, "r")).unwrap();
        run.record(Frame::new(Component::User, "in", "out")).unwrap();
        let uid = run.end(Status::Ok).unwrap().uid;
        space.flag("r", Severity::Flagged, "odd").unwrap();
        let core = store.core();
        let (mut head, tail) = run_record(core, space.id, uid).unwrap().unwrap();
        head.fields.parent = Some((uid, 0, 1));
        let mut writer = BatchWriter::new(core, space.id).unwrap();
        writer.add_record(kinds::RUN, &encode_run(&head).unwrap(), &tail).unwrap();
        writer.submit_awaited(Durability::Disk).unwrap().unwrap().1.wait().unwrap();
        let forged = run_record(core, space.id, uid).unwrap().unwrap().0.fields.parent;
        assert_eq!(forged, Some((uid, 0, 1)));
        let plan = store.plan_retention(&RetentionPolicy::default(), Some(u64::MAX)).unwrap();
        assert_eq!(plan.report().dropped().runs, 1);
    }
}
