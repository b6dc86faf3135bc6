//! `annals stats`.

use annals::Stats;
use serde_json::{Map, Value, json};

use crate::args::GlobalArgs;
use crate::failure::CliResult;
use crate::output::{CliOutput, bytes, count};

pub(super) fn run(global: &GlobalArgs, out: &mut CliOutput) -> CliResult<()> {
    let costs = super::open_to_read(global)?.stats()?;
    let bytes_by_kind = bytes_by_kind(&costs);
    if out.json {
        let kinds = bytes_by_kind.iter().map(|(kind, bytes)| ((*kind).to_owned(), json!(bytes)));
        let kinds: Map<String, Value> = kinds.collect();
        return out.object(&json!({
            "runs": costs.runs,
            "frames": costs.frames,
            "raw_bytes": costs.raw_bytes,
            "dropped_runs": costs.dropped_runs,
            "dropped_frames": costs.dropped_frames,
            "sampled_out_runs": costs.sampled_out_runs,
            "disk_bytes": costs.disk_bytes,
            "bytes": kinds,
        }));
    }
    let mut rows = vec![
        vec!["runs".to_owned(), count(costs.runs), String::new()],
        vec!["frames".to_owned(), count(costs.frames), String::new()],
        vec!["raw".to_owned(), count(costs.raw_bytes), bytes(costs.raw_bytes)],
        vec!["on disk".to_owned(), count(costs.disk_bytes), ratio(costs.raw_bytes, costs.disk_bytes)],
    ];
    if costs.dropped_runs > 0 {
        let sampled = count(costs.sampled_out_runs);
        rows.push(vec![
            "dropped runs".to_owned(),
            count(costs.dropped_runs),
            format!("{sampled} by sampling"),
        ]);
        rows.push(vec!["  their frames".to_owned(), count(costs.dropped_frames), String::new()]);
    }
    for (kind, number) in bytes_by_kind {
        rows.push(vec![format!("  {}", kind.replace('_', " ")), count(number), bytes(number)]);
    }
    out.table(&["", ">COUNT OR BYTES", ""], rows)
}

/// Bytes by kind, in the order they are shown.
fn bytes_by_kind(stats: &Stats) -> [(&'static str, u64); 11] {
    let bytes = &stats.bytes;
    [
        ("pieces", bytes.pieces),
        ("recipes", bytes.recipes),
        ("frame_records", bytes.frame_records),
        ("run_records", bytes.run_records),
        ("kv_records", bytes.kv_records),
        ("chains_and_ledger", bytes.chains_and_ledger),
        ("tables", bytes.tables),
        ("vectors", bytes.vectors),
        ("log_files", bytes.log_files),
        ("manifest", bytes.manifest),
        ("other", bytes.other),
    ]
}

/// Bytes on disk, and their share of the raw bytes.
pub(super) fn ratio(raw: u64, disk: u64) -> String {
    if disk == 0 || raw == 0 {
        return bytes(disk);
    }
    let tenths = raw.saturating_mul(10) / disk;
    format!("{}, 1/{}.{} of raw", bytes(disk), tenths / 10, tenths % 10)
}
