//! The exact binomial test.

/// `P(X >= hits)` for `X` binomial with `trials` and probability `base`: the p-value of "this step flips no
/// more often than the program does by itself" (R. A. Fisher's exact one-sided test; C. J. Clopper and E. S.
/// Pearson, Biometrika 26, 1934). The terms are summed in logarithms, so no trial count overflows.
#[must_use]
pub fn binomial_tail(hits: u32, trials: u32, base: f64) -> f64 {
    if hits == 0 {
        return 1.0;
    }
    if hits > trials || base <= 0.0 {
        return 0.0;
    }
    if base >= 1.0 {
        return 1.0;
    }
    let (log_p, log_q) = (base.ln(), (1.0 - base).ln());
    // ln C(n, k), built up from C(n, 0).
    let mut log_choose = 0.0;
    let mut tail = 0.0;
    for k in 0..=trials {
        if k > 0 {
            log_choose += f64::from(trials - k + 1).ln() - f64::from(k).ln();
        }
        if k >= hits {
            tail += (log_choose + f64::from(k) * log_p + f64::from(trials - k) * log_q).exp();
        }
    }
    tail.min(1.0)
}
