//! Work on a schedule: expired keys, retention, witnesses, backups, the size of the store.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use annals::ledger::Checkpoint;
use annals::retention::{DeadlineKind, RunShare};
use annals::upkeep::Sharing;
use annals::{Seqno, Store};

use annals_proxy::proxy::delete_due_answers;
use annals_review::memory_retention::delete_expired_memories;

use super::backups::{KeptBackup, keep_backup};
use super::config::{BackupSchedule, RetentionSchedule, WitnessSchedule};
use super::session::Daemon;
use super::sizes::{day_of, measure};
use super::tenant::Tenant;
use super::witness::{contradicted_witness, is_kept_witness, write_witness};

/// Pause between two parts of a sweep.
const PAUSE: Duration = Duration::from_millis(20);
/// Interval between sweeps for expired keys, and maximum number of deadlines examined at a time.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
const SWEPT_MAX: usize = 256;
/// Interval at which a store of another process is read again.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(250);
/// Times in a row that it may be unreadable.
const FOLLOW_FAILURES_MAX: u32 = 8;
/// Number of such sweeps after which namespaces that are not open are swept, too.
const ROUNDS_OF_CLOSED: u64 = 6;
/// Interval of sampling: how long a run that is sampled out may remain after its end.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Periodically deletes expired keys, a few at a time, ends quiet traces, closes idle namespaces, and measures the store
/// once a day.
pub(super) async fn sweep(daemon: Arc<Daemon>) {
    let mut measured = None;
    for round in 0u64.. {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        if round.is_multiple_of(ROUNDS_OF_CLOSED) {
            let opened = tokio::task::block_in_place(|| daemon.open_expired_tenants());
            if let Err(why) = opened {
                tracing::warn!(%why, "what is over stays in namespaces that are not open");
            }
        }
        for tenant in daemon.tenants() {
            sweep_one(&tenant).await;
            // A store that cannot be written reports it to its writers.
            let _ = tokio::task::block_in_place(|| tenant.ingest.end_quiet_traces(daemon.now_ns(), false));
        }
        tokio::task::block_in_place(|| daemon.close_idle_tenants());
        let today = day_of(daemon.now_ns());
        if measured != Some(today) {
            // A store that cannot be written reports it to its writers; the next try is tomorrow.
            if let Err(why) = tokio::task::block_in_place(|| measure(&daemon.store, daemon.now_ns())) {
                tracing::warn!(%why, "the store could not be measured today");
            }
            measured = Some(today);
        }
    }
}

/// Follows what another process writes into a store that is only read here. Returns why it no longer can: a reader of
/// old data would not know.
pub(super) async fn follow(daemon: Arc<Daemon>) -> annals::Error {
    let mut failures = 0;
    loop {
        tokio::time::sleep(FOLLOW_INTERVAL).await;
        match tokio::task::block_in_place(|| daemon.refresh()) {
            Ok(()) => failures = 0,
            // The other process may be replacing files.
            Err(_) if failures < FOLLOW_FAILURES_MAX => failures += 1,
            Err(why) => return why,
        }
        tokio::task::block_in_place(|| daemon.close_idle_tenants());
    }
}

/// Drops the runs that a policy does not keep, at the start and then on schedule.
pub(super) async fn retain(daemon: Arc<Daemon>, schedule: RetentionSchedule) {
    let samples = schedule.policy.sample != RunShare::ALL;
    if samples {
        // From here on, ended runs are tracked for sampling; the sweep handles earlier ones.
        tokio::task::block_in_place(|| sample(&daemon, &schedule));
    }
    loop {
        tokio::task::block_in_place(|| retain_once(&daemon, &schedule));
        let next = tokio::time::Instant::now() + schedule.every;
        while samples && tokio::time::Instant::now() + SAMPLE_INTERVAL < next {
            tokio::time::sleep(SAMPLE_INTERVAL).await;
            tokio::task::block_in_place(|| sample(&daemon, &schedule));
        }
        tokio::time::sleep_until(next).await;
    }
}

/// Drops runs that have ended since the last call and that sampling excludes. Each is in the ledger under the
/// sampling rule.
fn sample(daemon: &Daemon, schedule: &RetentionSchedule) {
    daemon.settle_memory();
    match daemon.store.sample_ended(&schedule.policy) {
        Ok(0) => {}
        Ok(runs) => tracing::info!(runs, "runs sampled out"),
        Err(why) => tracing::warn!(%why, "sampling failed; ended runs are sampled at the next sweep"),
    }
}

/// One sweep. It is recorded as an operator's action if it dropped runs or failed.
fn retain_once(daemon: &Daemon, schedule: &RetentionSchedule) {
    // What follows the drops must not fail for lack of the room that they make.
    let _reserve = daemon.store.use_reserve();
    // The time is checked first: the record written below would make the clock look valid.
    let sweep = || {
        let mut report = daemon.store.retain(daemon.store.plan_retention(&schedule.policy, None)?)?;
        report.memories = delete_expired_memories(&daemon.store, &schedule.policy, report.at_ns, false)?;
        annals::Result::Ok(report)
    };
    // Sampling must not drop a run before its outcome is in memory.
    daemon.settle_memory();
    let swept = sweep();
    let failed = swept.as_ref().err().map(ToString::to_string);
    let runs = swept.as_ref().map_or(0, |report| report.dropped().runs.saturating_sub(report.held));
    let memories = swept.as_ref().map_or(0, |report| report.memories);
    match &failed {
        Some(why) => tracing::warn!(why, "a scheduled sweep failed"),
        None => tracing::info!(runs, memories, "scheduled sweep"),
    }
    if runs > 0 || memories > 0 || failed.is_some() {
        let done = format!("{runs} runs dropped, {memories} memories deleted");
        let words = ["STORE.RETAIN".to_owned(), done].map(String::into_bytes);
        let kept = daemon.operations.record("schedule", "", &words, failed.as_deref(), daemon.now_ns());
        // A store that cannot be written reports it to its writers.
        let _ = kept.and_then(annals::Ticket::wait);
    }
}

/// Adds checkpoints to a folder, at the start and then on schedule, if the store has grown.
pub(super) async fn keep_witnesses(daemon: Arc<Daemon>, schedule: WitnessSchedule) {
    let mut kept: Option<(Seqno, PathBuf, Checkpoint)> = None;
    loop {
        let seqno = daemon.store.seqno();
        if kept.as_ref().is_none_or(|(last, ..)| *last != seqno) {
            let made = tokio::task::block_in_place(|| {
                // What was done to the store while no daemon served it, or to the folder since.
                if !kept.as_ref().is_some_and(|(_, file, last)| is_kept_witness(file, last)) {
                    let found = contradicted_witness(&schedule.folder, &daemon.store);
                    if let Some(why) = found.map_err(|error| error.to_string())? {
                        return Err(why);
                    }
                }
                let checkpoint = daemon.store.checkpoint().map_err(|error| error.to_string())?;
                let file = write_witness(&schedule.folder, &checkpoint, None);
                Ok((seqno, file.map_err(|error| error.to_string())?, checkpoint))
            });
            match made {
                Ok(made) => {
                    tracing::info!(file = %made.1.display(), "kept a checkpoint");
                    kept = Some(made);
                }
                Err(why) => tracing::error!(
                    folder = %schedule.folder.display(),
                    why,
                    "no checkpoint was kept: later changes may not be noticed"
                ),
            }
        }
        tokio::time::sleep(schedule.every).await;
    }
}

/// Makes backups in a folder, at the start and then on schedule. Each is recorded as an operator's action.
pub(super) async fn keep_backups(daemon: Arc<Daemon>, schedule: BackupSchedule) {
    loop {
        let next = tokio::time::Instant::now() + schedule.every;
        tokio::task::block_in_place(|| back_up_once(&daemon, &schedule));
        tokio::time::sleep_until(next).await;
    }
}

/// One backup of the schedule.
fn back_up_once(daemon: &Daemon, schedule: &BackupSchedule) {
    let (folder, now_ns) = (&schedule.folder, daemon.now_ns());
    let mut noted = Ok(());
    // `annals forget` names the places that may still hold a run.
    let mut note = |path: &Path| noted = note_place(&daemon.store, path, Store::note_backup);
    let made = keep_backup(&daemon.store, folder, schedule.keep, Sharing::Shared, now_ns, &mut note);
    let failed = match made {
        Ok(KeptBackup { path, removed, left, .. }) => {
            for (old, error) in left {
                tracing::warn!(backup = %old.display(), %error, "an old backup could not be removed");
            }
            tracing::info!(backup = %path.display(), removed = removed.len(), "made a backup");
            for old in &removed {
                noted = noted.and(note_place(&daemon.store, old, Store::remove_backup_note));
            }
            noted.err().map(|error| error.to_string())
        }
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = &failed {
        tracing::warn!(folder = %folder.display(), why, "a scheduled backup failed");
    }
    let words = ["STORE.BACKUP".to_owned(), folder.display().to_string()].map(String::into_bytes);
    let kept = daemon.operations.record("schedule", "", &words, failed.as_deref(), now_ns);
    // A store that cannot be written reports it to its writers.
    let _ = kept.and_then(annals::Ticket::wait);
}

/// Notes a place of a backup, or removes its note.
fn note_place(
    store: &Store,
    path: &Path,
    change: fn(&Store, &str) -> annals::Result<()>,
) -> annals::Result<()> {
    let place = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    change(store, &place.to_string_lossy())
}

/// Deletes what is over in a namespace: keys, entries in memory, cached answers.
async fn sweep_one(tenant: &Tenant) {
    let mut after = None;
    loop {
        let swept = tokio::task::block_in_place(|| tenant.databases.sweep(after.as_ref(), SWEPT_MAX));
        let (next, settled) = match swept {
            Ok(swept) => swept,
            Err(why) => {
                tracing::warn!(%why, namespace = tenant.name, "keys that are over stay");
                break;
            }
        };
        if let Some(settled) = settled
            && let Ok(Err(why)) = settled.await
        {
            tracing::warn!(why, namespace = tenant.name, "keys that are over stay until a later sweep");
        }
        if next.is_none() {
            break;
        }
        after = next;
        tokio::time::sleep(PAUSE).await;
    }
    loop {
        match tokio::task::block_in_place(|| sweep_memory_and_answers(tenant)) {
            Ok(true) => tokio::time::sleep(PAUSE).await,
            Ok(false) => break,
            Err(why) => {
                tracing::warn!(%why, namespace = tenant.name, "memories or cached answers that are over stay");
                break;
            }
        }
    }
}

/// Returns whether there may be more.
pub(super) fn sweep_memory_and_answers(tenant: &Tenant) -> annals::Result<bool> {
    let now_ns = tenant.databases.now_ns();
    let now_ms = now_ns / 1_000_000;
    // Nothing ends by a clock that is not trusted. A store that cannot be written reports it to its writers.
    if !tenant.space.is_due(now_ns, now_ns) || tenant.space.store().check_writer().is_err() {
        return Ok(false);
    }
    let mut is_more = false;
    if tenant.space.has_due(DeadlineKind::Memory, now_ms)? {
        is_more |= tenant.memory()?.delete_due(now_ms, SWEPT_MAX)?.1;
    }
    if tenant.space.has_due(DeadlineKind::Answer, now_ms)? {
        is_more |= delete_due_answers(&tenant.space, now_ms, SWEPT_MAX)?.1;
    }
    Ok(is_more)
}
