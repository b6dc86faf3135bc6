//! Dot products: the second of the engine's two modules where unsafe code is allowed, for the processor's
//! wide instructions.
//!
//! [`dot`] gives the same bits on every processor. It has sixteen lanes, each a chain of fused multiply-adds
//! over every sixteenth product, and adds them up in one fixed order. So scores, and which of them pass a
//! threshold, do not depend on the machine. [`dot_bytes`] is exact anyway.
//!
//! Invariant: a kernel is used only if the processor has its instructions. Vectors of unequal lengths count
//! up to the shorter length.
#![expect(
    unsafe_code,
    reason = "the processor's vector instructions are unsafe functions; this file holds nothing else"
)]

use std::borrow::Cow;

/// Products that are summed in parallel.
pub const LANES: usize = 16;

/// The kernels for this processor.
struct Kernels {
    dot: fn(&[f32], &[f32]) -> f32,
    dot_bytes: fn(&[i8], &[i8]) -> i32,
}

/// The standard library detects the processor's features once in each process.
fn kernels() -> Kernels {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni")
        {
            return Kernels { dot: x86::dot_512, dot_bytes: x86::dot_bytes_vnni };
        }
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            return Kernels { dot: x86::dot_512, dot_bytes: x86::dot_bytes_512 };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Kernels { dot: x86::dot_256, dot_bytes: x86::dot_bytes_256 };
        }
    }
    Kernels { dot: dot_portable, dot_bytes: dot_bytes_portable }
}

/// The dot product of two vectors, in the order that the module describes.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    (kernels().dot)(a, b)
}

/// The dot product of two vectors of bytes, exact up to 131,071 dimensions.
pub fn dot_bytes(a: &[i8], b: &[i8]) -> i32 {
    (kernels().dot_bytes)(a, b)
}

fn dot_portable(a: &[f32], b: &[f32]) -> f32 {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let (wide_a, rest_a) = a.as_chunks::<LANES>();
    let (wide_b, rest_b) = b.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for (a, b) in wide_a.iter().zip(wide_b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane = a.mul_add(*b, *lane);
        }
    }
    sum_lanes(lanes, rest_a, rest_b)
}

/// Adds the last, incomplete row of products, then sums the lanes: halves are added until one is left.
fn sum_lanes(mut lanes: [f32; LANES], rest_a: &[f32], rest_b: &[f32]) -> f32 {
    for ((lane, a), b) in lanes.iter_mut().zip(rest_a).zip(rest_b) {
        *lane = a.mul_add(*b, *lane);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

fn dot_bytes_portable(a: &[i8], b: &[i8]) -> i32 {
    a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
}

/// The floats in little-endian bytes, without a copy if the machine allows it.
pub fn floats_from_bytes(bytes: &[u8]) -> Cow<'_, [f32]> {
    // SAFETY: any four bytes are a number, and these are only read.
    let (before, whole, after) = unsafe { bytes.align_to::<f32>() };
    if cfg!(target_endian = "little") && before.is_empty() && after.is_empty() {
        return Cow::Borrowed(whole);
    }
    let (whole, _) = bytes.as_chunks::<4>();
    Cow::Owned(whole.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// Reinterprets bytes as codes.
pub fn codes_from_bytes(bytes: &[u8]) -> &[i8] {
    // SAFETY: both are one byte, and any byte is a code.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) }
}

/// Prefetches a slice into the cache: it is about to be read.
pub fn prefetch<T>(wanted: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for line in wanted.chunks((64 / size_of::<T>().max(1)).max(1)) {
        // SAFETY: a hint about a place that may be read; it reads nothing and changes nothing.
        unsafe {
            std::arch::x86_64::_mm_prefetch(line.as_ptr().cast(), std::arch::x86_64::_MM_HINT_T0);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = wanted;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256, __m256i, __m512i, _mm_loadu_si128, _mm256_add_epi32, _mm256_cvtepi8_epi16, _mm256_fmadd_ps,
        _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_setzero_ps, _mm256_setzero_si256,
        _mm256_storeu_ps, _mm256_storeu_si256, _mm512_add_epi32, _mm512_cvtepi8_epi16, _mm512_dpbusd_epi32,
        _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_madd_epi16, _mm512_maskz_loadu_epi8,
        _mm512_reduce_add_epi32, _mm512_set1_epi8, _mm512_setzero_ps, _mm512_setzero_si512,
        _mm512_slli_epi32, _mm512_storeu_ps, _mm512_sub_epi32, _mm512_xor_si512,
    };

    use super::{LANES, dot_bytes_portable, sum_lanes};

    pub(crate) fn dot_512(a: &[f32], b: &[f32]) -> f32 {
        // SAFETY: chosen only where the processor has AVX-512F and AVX-512BW.
        unsafe { dot_512_wide(a, b) }
    }

    pub(crate) fn dot_256(a: &[f32], b: &[f32]) -> f32 {
        // SAFETY: chosen only where the processor has AVX2 and FMA.
        unsafe { dot_256_wide(a, b) }
    }

    pub(crate) fn dot_bytes_512(a: &[i8], b: &[i8]) -> i32 {
        // SAFETY: chosen only where the processor has AVX-512F and AVX-512BW.
        unsafe { dot_bytes_512_wide(a, b) }
    }

    pub(crate) fn dot_bytes_vnni(a: &[i8], b: &[i8]) -> i32 {
        // SAFETY: chosen only where the processor has AVX-512F, AVX-512BW and AVX-512VNNI.
        unsafe { dot_bytes_vnni_wide(a, b) }
    }

    pub(crate) fn dot_bytes_256(a: &[i8], b: &[i8]) -> i32 {
        // SAFETY: chosen only where the processor has AVX2.
        unsafe { dot_bytes_256_wide(a, b) }
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    fn dot_512_wide(a: &[f32], b: &[f32]) -> f32 {
        let len = a.len().min(b.len());
        let (wide_a, rest_a) = a[..len].as_chunks::<LANES>();
        let (wide_b, rest_b) = b[..len].as_chunks::<LANES>();
        let mut sum = _mm512_setzero_ps();
        for (a, b) in wide_a.iter().zip(wide_b) {
            // SAFETY: each points at sixteen floats; the loads need no alignment.
            let (a, b) = unsafe { (_mm512_loadu_ps(a.as_ptr()), _mm512_loadu_ps(b.as_ptr())) };
            sum = _mm512_fmadd_ps(a, b, sum);
        }
        let mut lanes = [0.0; LANES];
        // SAFETY: there is room for sixteen floats.
        unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), sum) };
        sum_lanes(lanes, rest_a, rest_b)
    }

    #[target_feature(enable = "avx2,fma")]
    fn dot_256_wide(a: &[f32], b: &[f32]) -> f32 {
        let len = a.len().min(b.len());
        let (wide_a, rest_a) = a[..len].as_chunks::<LANES>();
        let (wide_b, rest_b) = b[..len].as_chunks::<LANES>();
        let (mut low, mut high): (__m256, __m256) = (_mm256_setzero_ps(), _mm256_setzero_ps());
        for (a, b) in wide_a.iter().zip(wide_b) {
            let (a, b) = (a.as_ptr(), b.as_ptr());
            // SAFETY: each points at sixteen floats, of which the second eight begin eight further; the loads
            // need no alignment.
            unsafe {
                low = _mm256_fmadd_ps(_mm256_loadu_ps(a), _mm256_loadu_ps(b), low);
                high = _mm256_fmadd_ps(_mm256_loadu_ps(a.add(8)), _mm256_loadu_ps(b.add(8)), high);
            }
        }
        let mut lanes = [0.0; LANES];
        // SAFETY: there is room for eight floats from the first and from the ninth on.
        unsafe {
            _mm256_storeu_ps(lanes.as_mut_ptr(), low);
            _mm256_storeu_ps(lanes.as_mut_ptr().add(8), high);
        }
        sum_lanes(lanes, rest_a, rest_b)
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    fn dot_bytes_512_wide(a: &[i8], b: &[i8]) -> i32 {
        let len = a.len().min(b.len());
        let (wide_a, rest_a) = a[..len].as_chunks::<32>();
        let (wide_b, rest_b) = b[..len].as_chunks::<32>();
        let mut sum: __m512i = _mm512_setzero_si512();
        for (a, b) in wide_a.iter().zip(wide_b) {
            // SAFETY: each points at 32 bytes; the loads need no alignment.
            let (a, b) =
                unsafe { (_mm256_loadu_si256(a.as_ptr().cast()), _mm256_loadu_si256(b.as_ptr().cast())) };
            sum = _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_cvtepi8_epi16(a), _mm512_cvtepi8_epi16(b)));
        }
        _mm512_reduce_add_epi32(sum) + dot_bytes_portable(rest_a, rest_b)
    }

    /// The instruction takes the bytes of one side as unsigned. So 128 is added to each of them, and 128
    /// times the other side's sum is subtracted again.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    fn dot_bytes_vnni_wide(a: &[i8], b: &[i8]) -> i32 {
        let len = a.len().min(b.len());
        let (wide_a, rest_a) = a[..len].as_chunks::<64>();
        let (wide_b, rest_b) = b[..len].as_chunks::<64>();
        let (raise, one) = (_mm512_set1_epi8(i8::MIN), _mm512_set1_epi8(1));
        let (mut raised, mut sum) = (_mm512_setzero_si512(), _mm512_setzero_si512());
        for (a, b) in wide_a.iter().zip(wide_b) {
            // SAFETY: each points at 64 bytes; the loads need no alignment.
            let (a, b) =
                unsafe { (_mm512_loadu_si512(a.as_ptr().cast()), _mm512_loadu_si512(b.as_ptr().cast())) };
            raised = _mm512_dpbusd_epi32(raised, _mm512_xor_si512(a, raise), b);
            sum = _mm512_dpbusd_epi32(sum, one, b);
        }
        if !rest_a.is_empty() {
            let there = u64::MAX >> (64 - rest_a.len());
            // SAFETY: only bytes that are there are read; the others count as 0.
            let (a, b) = unsafe {
                (
                    _mm512_maskz_loadu_epi8(there, rest_a.as_ptr()),
                    _mm512_maskz_loadu_epi8(there, rest_b.as_ptr()),
                )
            };
            raised = _mm512_dpbusd_epi32(raised, _mm512_xor_si512(a, raise), b);
            sum = _mm512_dpbusd_epi32(sum, one, b);
        }
        _mm512_reduce_add_epi32(_mm512_sub_epi32(raised, _mm512_slli_epi32::<7>(sum)))
    }

    #[target_feature(enable = "avx2")]
    fn dot_bytes_256_wide(a: &[i8], b: &[i8]) -> i32 {
        let len = a.len().min(b.len());
        let (wide_a, rest_a) = a[..len].as_chunks::<16>();
        let (wide_b, rest_b) = b[..len].as_chunks::<16>();
        let mut sum: __m256i = _mm256_setzero_si256();
        for (a, b) in wide_a.iter().zip(wide_b) {
            // SAFETY: each points at sixteen bytes; the loads need no alignment.
            let (a, b) = unsafe { (_mm_loadu_si128(a.as_ptr().cast()), _mm_loadu_si128(b.as_ptr().cast())) };
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_cvtepi8_epi16(a), _mm256_cvtepi8_epi16(b)));
        }
        let mut lanes = [0i32; 8];
        // SAFETY: there is room for eight numbers.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
        lanes.iter().sum::<i32>() + dot_bytes_portable(rest_a, rest_b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(seed: u64, len: usize) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / 8_388_608.0 - 1.0
        };
        (0..len).map(|_| next()).collect()
    }

    /// A kernel that adds in another order would differ in its last bits.
    #[test]
    fn every_kernel_gives_the_same_bits() {
        for len in (0..70).chain([384, 1000, 1536, 4096]) {
            let (a, b) = (numbers(len as u64 + 1, len), numbers(len as u64 + 77, len));
            let expected = dot_portable(&a, &b);
            assert_eq!(dot(&a, &b).to_bits(), expected.to_bits(), "{len}");
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                assert_eq!(x86::dot_256(&a, &b).to_bits(), expected.to_bits(), "{len}");
            }
            let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((f64::from(expected) - exact).abs() < 1e-4 * (len as f64 + 1.0).sqrt(), "{len}");
        }
    }

    /// A file read by position may stand anywhere in memory.
    #[test]
    fn floats_are_read_at_any_alignment() {
        let expected = numbers(3, 20);
        let mut bytes = vec![0u8; 4];
        bytes.extend(expected.iter().flat_map(|number| number.to_le_bytes()));
        for shift in 0..4 {
            bytes.remove(0);
            bytes.push(0);
            let start = 3 - shift;
            assert_eq!(*floats_from_bytes(&bytes[start..start + 80]), expected, "{shift}");
        }
        assert_eq!(*floats_from_bytes(&bytes[..0]), [0.0; 0]);
    }

    #[test]
    fn byte_dot_products_are_exact() {
        for len in (0..70).chain([384, 1000, 4096]) {
            let bytes = |seed| -> Vec<i8> {
                numbers(seed, len).iter().map(|number| (number * 127.0).round() as i8).collect()
            };
            let (a, b) = (bytes(len as u64 + 5), bytes(len as u64 + 9));
            let expected: i64 = a.iter().zip(&b).map(|(a, b)| i64::from(*a) * i64::from(*b)).sum();
            assert_eq!(i64::from(dot_bytes(&a, &b)), expected, "{len}");
            #[cfg(target_arch = "x86_64")]
            {
                if is_x86_feature_detected!("avx2") {
                    assert_eq!(i64::from(x86::dot_bytes_256(&a, &b)), expected, "{len}");
                }
                if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
                    assert_eq!(i64::from(x86::dot_bytes_512(&a, &b)), expected, "{len}");
                }
            }
        }
        assert_eq!(dot_bytes(&[-128; 4096], &[-128; 4096]), 16384 * 4096);
    }
}
