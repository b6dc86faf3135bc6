//! Many tests at once.

/// The q-values of p-values: the smallest rate of false discoveries at which each test is called significant
/// (Y. Benjamini and Y. Hochberg, JRSS B 57, 1995, 289-300): with the p-values in ascending order,
/// `q(i) = min over j >= i of p(j) · m / j`, at most 1. The order of the input is kept.
#[must_use]
pub fn benjamini_hochberg(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let count = f64::from(u32::try_from(p_values.len()).unwrap_or(u32::MAX));
    let mut q_values = vec![1.0; p_values.len()];
    let mut least = 1.0_f64;
    for (rank, place) in (1_u32..).zip(order).collect::<Vec<_>>().into_iter().rev() {
        least = least.min(p_values[place] * count / f64::from(rank));
        q_values[place] = least;
    }
    q_values
}
