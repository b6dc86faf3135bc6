//! Monitoring: liveness, readiness, and metrics for Prometheus.

use std::sync::Arc;

use annals::{
    Stats,
    upkeep::{Activity, SYNC_BOUNDS_NS},
};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::HttpShared;
use super::problem::HttpProblem;
use crate::access::Rights;
use crate::session::{Daemon, DaemonFigures};

pub(super) fn routes(router: Router<Arc<HttpShared>>) -> Router<Arc<HttpShared>> {
    router
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(async |State(shared): State<Arc<HttpShared>>| ready(&shared.daemon)))
        .route(
            "/metrics",
            get(async |State(shared): State<Arc<HttpShared>>, request: Request| {
                metrics(&shared, &request).unwrap_or_else(IntoResponse::into_response)
            }),
        )
}

/// Whether the store accepts writes. Only the log says why not: everybody may ask.
fn ready(daemon: &Daemon) -> Response {
    match daemon.store.check_writer() {
        Ok(()) => "ready\n".into_response(),
        Err(_) => HttpProblem::from_error_text("UNAVAILABLE the store does not take writes").into_response(),
    }
}

fn metrics(shared: &HttpShared, request: &Request) -> Result<Response, HttpProblem> {
    if !shared.session(request)?.has_rights(Rights::OPERATE) {
        return Err(HttpProblem::from_error_text("NOPERM this takes the right operate"));
    }
    let daemon = &shared.daemon;
    let stats = tokio::task::block_in_place(|| daemon.store.stats())?;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(MetricsSnapshot {
        figures: daemon.figures(),
        activity: daemon.store.activity(),
        stats,
    }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)
        .map_err(|_| HttpProblem::from_error_text("BUG figures cannot be written"))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, kind)], text).into_response())
}

/// The metrics at one moment.
#[derive(Debug)]
struct MetricsSnapshot {
    figures: DaemonFigures,
    activity: Activity,
    stats: Stats,
}

impl Collector for MetricsSnapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let Self { figures, activity, stats } = self;
        let counters = [
            ("annals_commands", "Commands done.", figures.commands),
            ("annals_connections_begun", "Connections accepted.", figures.connections_begun),
            ("annals_logins_refused", "Logins with a wrong token.", figures.logins_refused),
            ("annals_slow_turns", "Turns that took longer than slow_ms.", figures.slow),
            ("annals_values_hits", "Reads of keys answered by the cache.", figures.values_hits),
            ("annals_values_misses", "Reads of keys answered by the store.", figures.values_misses),
            ("annals_batches", "Batches written to the log.", activity.batches),
            ("annals_log_bytes", "Bytes written to the log.", activity.bytes),
            (
                "annals_raw_tail_failures",
                "Times that the log's end could not be compressed.",
                activity.raw_tail_failures,
            ),
        ];
        for (name, help, value) in counters {
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(encoder)?;
        }
        let gauges = [
            ("annals_connections", "Connections over RESP.", figures.connections),
            ("annals_open_runs", "Runs being recorded through the daemon.", figures.open_runs),
            ("annals_open_frames", "Frames whose response is not complete.", figures.open_frames),
            ("annals_queue_bytes", "Bytes of batches waiting for the writer.", activity.queued_bytes),
            (
                "annals_raw_tail_bytes",
                "Bytes of bodies that are not compressed yet.",
                activity.raw_tail_bytes,
            ),
            ("annals_runs", "Living runs of the store.", stats.runs),
            ("annals_frames", "Frames of living runs.", stats.frames),
            ("annals_raw_bytes", "Uncompressed bytes of bodies and metadata.", stats.raw_bytes),
            ("annals_disk_bytes", "Bytes of all files of the store.", stats.disk_bytes),
            (
                "annals_piece_bytes",
                "Bytes of the log that hold bodies, compressed or not.",
                stats.bytes.pieces,
            ),
            ("annals_segments", "Files of the log.", stats.segments),
        ];
        for (name, help, value) in gauges {
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder)?;
        }
        let help = "Ratio of uncompressed body bytes to the log bytes that hold them.";
        let held = (stats.bytes.pieces + stats.bytes.recipes).max(1);
        let ratio = encoder.encode_descriptor("annals_dedup_ratio", help, None, MetricType::Gauge)?;
        ConstGauge::new(stats.raw_bytes as f64 / held as f64).encode(ratio)?;
        let help = "Duration of a sync of the log.";
        let mut syncs =
            encoder.encode_descriptor("annals_sync", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        let seconds = |ns: u64| ns as f64 / 1e9;
        let bounds = SYNC_BOUNDS_NS.iter().map(|bound| seconds(*bound)).chain([f64::MAX]);
        let classes: Vec<_> = bounds.zip(activity.sync_classes).collect();
        syncs.encode_histogram::<[(&str, &str); 0]>(seconds(activity.sync_ns), activity.syncs, &classes, None)
    }
}
