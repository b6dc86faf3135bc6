//! What stays and what goes: policies, pins, flags, forgetting.

use annals::{
    RunUid, Severity,
    retention::{RetentionPlan, RetentionPolicy, RetentionReport, RunRemnants},
    runs::DroppedRun,
    upkeep::CompactOptions,
};
use annals_server::{ExpiredCounts, ForgetTarget};

use super::StoreAccess;
use super::failures::engine_failure;
use crate::failure::CliResult;
use crate::output::print_note;

impl StoreAccess {
    /// Returns the time in nanoseconds since 1970-01-01 UTC. Fails if a sweep would not trust the clock.
    pub(crate) fn now_ns(&self) -> CliResult<u64> {
        self.store.believed_now_ns().map_err(engine_failure)
    }

    /// Plans which runs a policy drops.
    pub(crate) fn plan_retention(
        &self,
        policy: &RetentionPolicy,
        at_ns: Option<u64>,
    ) -> CliResult<RetentionPlan> {
        self.store.plan_retention(policy, at_ns).map_err(engine_failure)
    }

    /// Drops the planned runs.
    /// See [`annals::Store::use_reserve`].
    pub(crate) fn use_reserve(&self) -> CliResult<impl Sized + '_> {
        self.store.use_reserve().map_err(engine_failure)
    }

    pub(crate) fn retain(&self, plan: RetentionPlan) -> CliResult<RetentionReport> {
        self.store.retain(plan).map_err(engine_failure)
    }

    /// Deletes memory entries that have expired. Returns their number.
    pub(crate) fn delete_expired_memories(
        &self,
        policy: &RetentionPolicy,
        at_ns: u64,
        dry_run: bool,
    ) -> CliResult<u64> {
        annals_server::delete_expired_memories(&self.store, policy, at_ns, dry_run).map_err(engine_failure)
    }

    /// Deletes keys of databases and cached answers that are over. By a clock that is not trusted it deletes nothing, and
    /// says so.
    pub(crate) fn delete_expired(&self) -> CliResult<ExpiredCounts> {
        match self.store.believed_now_ns() {
            Ok(now_ns) => annals_server::delete_expired(&self.store, now_ns).map_err(engine_failure),
            Err(_) => {
                print_note(
                    "keys and cached answers that have expired stay, because the clock is wrong: correct it",
                );
                Ok(ExpiredCounts::default())
            }
        }
    }

    pub(crate) fn pin(&self, run: &str, why: &str) -> CliResult<()> {
        self.namespace()?.pin(run, why).map(drop).map_err(engine_failure)
    }

    /// Removes the pin of a run. Returns whether the run was pinned.
    pub(crate) fn unpin(&self, run: &str) -> CliResult<bool> {
        self.namespace()?.unpin(run).map_err(engine_failure)
    }

    /// Flags a run.
    pub(crate) fn flag(&self, run: &str, severity: Severity, why: &str) -> CliResult<()> {
        self.namespace()?.flag(run, severity, why).map(drop).map_err(engine_failure)
    }

    /// Removes the flag of a run. Returns whether the run was flagged.
    pub(crate) fn unflag(&self, run: &str) -> CliResult<bool> {
        self.namespace()?.unflag(run).map_err(engine_failure)
    }

    /// Whether entries in memory or forks of its blame have outlived a run of this name.
    pub(crate) fn has_remnants(&self, run: &str) -> CliResult<bool> {
        let space = self.namespace()?;
        let remembered = space.has_lasting_belongings(run).map_err(engine_failure)?
            || !space.unerased_runs(run).map_err(engine_failure)?.is_empty();
        Ok(remembered || !space.orphaned_blame_forks(run).map_err(engine_failure)?.is_empty())
    }

    /// Drops a run at once, and erases its bytes. Returns the report of the compaction as JSON.
    pub(crate) fn forget(&self, run: &str, why: &str) -> CliResult<String> {
        let space = self.namespace()?;
        let forgotten = space.forget_to_erase(run, why).map_err(engine_failure)?;
        annals_server::forget_answers(&space, run).map_err(engine_failure)?;
        let erased = annals_server::erase_run(&space, &forgotten, CompactOptions::default());
        erased.map_err(|error| {
            engine_failure(error)
                .with_end("; the run is dropped, but its bytes are still there: run the same command again")
        })
    }

    /// Forgets a key or a stored blob at once. Returns the report as JSON.
    pub(crate) fn forget_content(&self, target: ForgetTarget<'_>, why: &str) -> CliResult<String> {
        annals_server::forget(&self.namespace()?, target, why, CompactOptions::default())
            .map_err(engine_failure)
    }

    /// Returns a dropped run, and the files and backups that still hold its bytes.
    pub(crate) fn still_held(&self, uid: RunUid) -> CliResult<(DroppedRun, RunRemnants)> {
        self.namespace()?.run_remnants(uid).map_err(engine_failure)
    }
}
