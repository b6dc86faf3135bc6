//! Vectors as bytes for fast scans: one byte for each dimension, and a bound of the error.
//!
//! A vector's direction is its codes times its scale, up to its *error*: the length of the difference. So the
//! cosine of two vectors differs from what the codes say by at most `error of one * (1 + error of the other)
//! + error of the other`. A scan that then scores all vectors within that bound exactly loses none.

use crate::kernel::{dot, dot_bytes};

/// A vector's direction in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct VectorCodes {
    pub codes: Vec<i8>,
    pub scale: f32,
    /// Rounded up.
    pub error: f32,
}

/// Encodes a vector that has a direction.
#[expect(
    clippy::cast_possible_truncation,
    reason = "codes are from -127 to 127; the error covers the rounding"
)]
pub fn encode(vector: &[f32]) -> VectorCodes {
    let length = f64::from(dot(vector, vector)).sqrt();
    let greatest = vector.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let scale = (f64::from(greatest) / length / 127.0) as f32;
    let step = f64::from(scale) * length;
    let codes: Vec<i8> =
        vector.iter().map(|x| (f64::from(*x) / step).round().clamp(-127.0, 127.0) as i8).collect();
    let left = vector.iter().zip(&codes).map(|(x, code)| {
        let left = f64::from(*x) / length - f64::from(*code) * f64::from(scale);
        left * left
    });
    let error = (left.sum::<f64>().sqrt() as f32).next_up();
    VectorCodes { codes, scale, error }
}

/// A bound of the rounding error of a computed cosine.
pub fn rounding_bound(dimensions: usize) -> f32 {
    // A lane sums this many products, each rounded, and the lanes are added up in four steps. Doubled to be
    // safe.
    (dimensions as f32 / 16.0 + 16.0) * f32::EPSILON * 2.0
}

/// The cosine by codes.
#[expect(clippy::cast_possible_truncation, reason = "`rounding_bound` covers the rounding to 32 bits")]
pub fn approximate_cosine(a: (&[i8], f32), b: (&[i8], f32)) -> f32 {
    (f64::from(dot_bytes(a.0, b.0)) * f64::from(a.1) * f64::from(b.1)) as f32
}

/// A bound of the difference between [`approximate_cosine`] and the computed cosine of vectors with these
/// errors.
pub fn error_bound(error: f32, other: f32, slack: f32) -> f32 {
    error * (1.0 + other) + other + slack
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nearest::Query;

    #[test]
    fn approximate_cosine_stays_within_its_error_bound() {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / 8_388_608.0 - 1.0
        };
        for dimensions in [1, 2, 3, 16, 17, 100, 384, 1536] {
            for round in 0..60 {
                // Some with one great coordinate, some with nearly equal ones, of any length.
                let mut vector = || -> Vec<f32> {
                    let length = 10f32.powf(8.0 * next());
                    (0..dimensions)
                        .map(|at| {
                            if round % 3 == 0 && at == 0 {
                                length
                            } else {
                                length * (next() + round as f32 / 30.0)
                            }
                        })
                        .collect()
                };
                let (a, b) = (vector(), vector());
                let truth = Query::new(&a).score(&b, dot(&b, &b));
                let (a, b) = (encode(&a), encode(&b));
                let said = approximate_cosine((&a.codes, a.scale), (&b.codes, b.scale));
                let reach = error_bound(a.error, b.error, rounding_bound(dimensions));
                assert!((said - truth).abs() <= reach, "{dimensions} {round}: {said} {truth} {reach}");
                assert!(reach < 0.05 || dimensions < 4, "{dimensions}: {reach}");
            }
        }
    }
}
