//! Rows that expire: their counts go with them. Weights, their history and the audit log stay.

use std::ops::Bound;

use annals::Result;
use annals::kv::ScanRange;

use crate::Diagnostics;
use crate::changes::{Changes, Space};
use crate::counts::{self, ObservationTimes, malformed};
use crate::keys::{self, Scope};
use crate::record::{StoredRow, observation_counts, to_json};

/// Rows that expire in one commit.
const ROWS_AT_ONCE: usize = 256;

impl Diagnostics {
    /// Ends the rows whose time is over, as every report and every question does. The caller holds the lock of
    /// changes.
    pub(crate) fn expire_due(&self, now: u64) -> Result<()> {
        loop {
            let due = self.due_rows(now, ROWS_AT_ONCE)?;
            let mut changes = Changes::new(self);
            for (key, session) in &due {
                self.expire_row(&mut changes, session)?;
                changes.delete(Space::Counts, key.clone());
            }
            changes.commit()?;
            if due.len() < ROWS_AT_ONCE {
                return Ok(());
            }
        }
    }

    /// Rows whose time is over: the key that found each, and its session.
    pub(crate) fn due_rows(&self, now: u64, most: usize) -> Result<Vec<(Vec<u8>, String)>> {
        let end = keys::expiry(now.saturating_add(1), "");
        let range = ScanRange::between(Bound::Included(&[keys::EXPIRY]), Bound::Excluded(end.as_slice()));
        let keys = self.keyspaces.counts.scan(range).keys().take(most);
        keys.map(|key| {
            let key = key?;
            let session = key.get(9..).and_then(|id| std::str::from_utf8(id).ok()).map(str::to_owned);
            Ok((key, session.ok_or_else(|| malformed("times of expiry"))?))
        })
        .collect()
    }

    /// Takes a row out of all counts. What stays is that the session was reported.
    fn expire_row(&self, changes: &mut Changes<'_>, session_id: &str) -> Result<()> {
        let Some(bytes) = changes.get(Space::Rows, session_id.as_bytes())? else { return Ok(()) };
        let mut row = StoredRow::decode(&bytes)?;
        let Some(session) = row.session.take() else { return Ok(()) };
        changes.put(Space::Rows, session_id.as_bytes().to_vec(), to_json(&row)?);
        let scopes = Scope::all_of_row(session.org_id.as_deref(), session.project_id.as_deref());
        if let Some(category) = session.failure_category {
            counts::count_failure(changes, &scopes, (category, row.recorded_at), -1)?;
        }
        for id in observation_counts(&session).into_keys() {
            changes.delete(Space::Counts, keys::mention(id, row.recorded_at, session_id));
            for scope in &scopes {
                let before = counts::observation_times(changes, scope, id)?;
                let after = self.times_from_mentions(changes, scope, id)?;
                counts::put_observation_times(changes, scope, id, (before, after));
            }
        }
        Ok(())
    }

    /// An observation's times in a scope, from the rows that name it, newest first.
    fn times_from_mentions(
        &self,
        changes: &Changes<'_>,
        scope: &Scope,
        observation: &str,
    ) -> Result<ObservationTimes> {
        let mut times = ObservationTimes::default();
        let prefix = keys::mentions(observation);
        for found in self.keyspaces.counts.scan(ScanRange::prefix(&prefix).reverse()) {
            let (key, value) = found?;
            if changes.is_deleted(Space::Counts, &key) {
                continue;
            }
            let (is_failed, count, org, project) =
                keys::read_mention(&value).ok_or_else(|| malformed("mentions of observations"))?;
            let time = key.get(prefix.len()..).and_then(|rest| rest.first_chunk::<8>());
            let time = u64::from_be_bytes(*time.ok_or_else(|| malformed("mentions of observations"))?);
            if Scope::all_of_row(org, project).contains(scope) {
                times.add(is_failed, time, count);
            }
            if times.accepted > 0 && times.failed.iter().all(|failed| *failed > 0) {
                break;
            }
        }
        Ok(times)
    }
}
