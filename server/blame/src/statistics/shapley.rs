//! A step's share of an outcome.

use serde::{Deserialize, Serialize};

use super::wilson::{Interval, Z_95, wilson};

/// The estimated Shapley value of one step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ShapleyEstimate {
    /// The mean of the step's marginal contributions over the sampled orders.
    pub value: f64,
    /// Its 95% interval.
    pub interval: Interval,
    /// Orders in which both coalitions were valid.
    pub orders: u32,
}

/// The Shapley value of a step from sampled orders (J. Castro, D. Gómez and J. Tejada, Computers & Operations
/// Research 36, 2009, 1726-1730): in each order, the outcome with the step and those before it, minus the
/// outcome with those before it. Outcomes are 0 or 1, so a contribution is -1, 0 or 1, and the value is
/// `P(+1) - P(-1)`.
///
/// The interval is R. G. Newcombe's hybrid score interval of a difference (Statistics in Medicine 17, 1998,
/// method 10 without a correlation), from the Wilson intervals of the two shares:
/// `d - sqrt((p-l₁)² + (u₂-q)²)` to `d + sqrt((u₁-p)² + (q-l₂)²)`. The two shares exclude each other, so they
/// are negatively correlated, and the ends are taken at most one Wilson width wider. It has a width also if
/// all contributions were equal, where an interval from the sample's variance has none.
#[must_use]
pub fn shapley_interval(gains: u32, losses: u32, orders: u32) -> ShapleyEstimate {
    if orders == 0 {
        return ShapleyEstimate { value: 0.0, interval: Interval { low: -1.0, high: 1.0 }, orders };
    }
    let n = f64::from(orders);
    let (p, q) = (f64::from(gains) / n, f64::from(losses) / n);
    let (of_gains, of_losses) = (wilson(gains, orders, Z_95), wilson(losses, orders, Z_95));
    let value = p - q;
    // The covariance of two shares of one sample is -pq/n; it widens the difference.
    let correlation = -((p * q) / ((1.0 - p) * (1.0 - q)).max(f64::EPSILON)).sqrt().min(1.0);
    let ends = |a: f64, b: f64| (a * a + b * b - 2.0 * correlation * a * b).max(0.0).sqrt();
    let interval = Interval {
        low: (value - ends(p - of_gains.low, of_losses.high - q)).max(-1.0),
        high: (value + ends(of_gains.high - p, q - of_losses.low)).min(1.0),
    };
    ShapleyEstimate { value, interval, orders }
}
