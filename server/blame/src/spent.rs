//! What one fork took.

use annals::RunReader;
use annals_policy::exchange::ExchangeMetadata;
use annals_policy::providers::Prices;
use annals_proxy::{RerunReport, run_usage};

use crate::document::Spent;

/// What a fork took that has just ended, without the fork itself.
pub(crate) fn spent_by(report: &RerunReport) -> Spent {
    let cost = report.recorded.cost;
    Spent {
        calls: report.live_calls.into(),
        dollars: cost.dollars,
        unpriced: cost.unpriced,
        ..Spent::default()
    }
}

/// What a fork took, by what the store has of it; a call whose answer did not come counts as a call.
pub(crate) fn spent_in(fork: &RunReader, prices: &Prices) -> annals::Result<Spent> {
    let info = fork.info();
    let mut calls = 0;
    for seq in info.parent.as_ref().map_or(0, |point| point.shared) + 1..=info.frames {
        let metadata = fork.frame_info(seq)?.metadata;
        let exchange = serde_json::from_slice::<ExchangeMetadata>(&metadata);
        calls += u64::from(exchange.is_ok_and(|exchange| !exchange.volatile.local));
    }
    let cost = run_usage(fork, prices).cost;
    Ok(Spent { calls, dollars: cost.dollars, unpriced: cost.unpriced, ..Spent::default() })
}
