//! Arithmetic on rows of f32.
//!
//! Lengths are checked by the wrappers; each body relies on slices of equal length (`w` and `b` may
//! be empty).

use super::Simd;
use crate::portable::q8_scale;

// Loops are macros, not functions that take closures: a closure has no target features. Its
// intrinsics would become calls wherever the compiler does not inline the closure in time.

/// `$full` at each whole vector of `$n` values, `$rest` at each value after the last.
macro_rules! each {
    ($S:ty, $n:expr, $i:ident, $full:expr, $rest:expr) => {
        let (n, mut $i) = ($n, 0);
        while $i + <$S>::LANES <= n {
            $full;
            $i += <$S>::LANES;
        }
        while $i < n {
            $rest;
            $i += 1;
        }
    };
}

/// `$x = $f($v)` for each vector of a slice, the last one padded with zeros; `$full` is whether it
/// is whole.
macro_rules! map {
    ($S:ty, $x:expr, $v:ident, $i:ident, $full:ident => $f:expr) => {
        let mut $i = 0;
        while $i < $x.len() {
            let $full = $i + <$S>::LANES <= $x.len();
            let $v = load_padded::<$S>($x, $i, $full);
            let result = $f;
            if $full {
                <$S>::store($x.as_mut_ptr().add($i), result);
            } else {
                let mut padded = [0.0f32; 16];
                <$S>::store(padded.as_mut_ptr(), result);
                let rest = $x.len() - $i;
                $x[$i..].copy_from_slice(&padded[..rest]);
            }
            $i += <$S>::LANES;
        }
    };
}

/// `Σ x - mean`, or its squares, with four chains.
#[inline(always)]
unsafe fn sum_of<S: Simd, const SQUARES: bool>(x: &[f32], mean: f32) -> f32 {
    // SAFETY: every load lies inside `x`; features by the module's contract.
    unsafe {
        let m = S::splat(mean);
        let mut sums = [S::splat(0.0); 4];
        let (mut i, mut chain) = (0, 0);
        while i + S::LANES <= x.len() {
            let d = S::sub(S::load(x.as_ptr().add(i)), m);
            sums[chain] = if SQUARES { S::fma(d, d, sums[chain]) } else { S::add(d, sums[chain]) };
            i += S::LANES;
            chain = (chain + 1) % 4;
        }
        let mut total = S::sum(S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3])));
        for x in &x[i..] {
            total += if SQUARES { (x - mean) * (x - mean) } else { x - mean };
        }
        total
    }
}

#[inline(always)]
pub(crate) unsafe fn rms_norm<S: Simd>(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
    // SAFETY: the slices have equal lengths (or `w` is empty); features by the module's contract.
    unsafe {
        let scale = 1.0 / (sum_of::<S, true>(x, 0.0) / x.len() as f32 + eps).sqrt();
        let (s, y) = (S::splat(scale), y.as_mut_ptr());
        if w.is_empty() {
            each!(
                S,
                x.len(),
                i,
                S::store(y.add(i), S::mul(S::load(x.as_ptr().add(i)), s)),
                *y.add(i) = x[i] * scale
            );
        } else {
            each!(
                S,
                x.len(),
                i,
                {
                    let scaled = S::mul(S::load(x.as_ptr().add(i)), s);
                    S::store(y.add(i), S::mul(scaled, S::load(w.as_ptr().add(i))));
                },
                *y.add(i) = x[i] * scale * w[i]
            );
        }
    }
}

#[inline(always)]
pub(crate) unsafe fn layer_norm<S: Simd>(x: &[f32], w: &[f32], b: &[f32], eps: f32, y: &mut [f32]) {
    // SAFETY: the slices have equal lengths (or are empty); features by the module's contract.
    unsafe {
        let n = x.len() as f32;
        let mean = sum_of::<S, false>(x, 0.0) / n;
        let scale = 1.0 / (sum_of::<S, true>(x, mean) / n + eps).sqrt();
        let (m, s, y) = (S::splat(mean), S::splat(scale), y.as_mut_ptr());
        each!(
            S,
            x.len(),
            i,
            {
                let d = S::mul(S::sub(S::load(x.as_ptr().add(i)), m), s);
                let w = if w.is_empty() { S::splat(1.0) } else { S::load(w.as_ptr().add(i)) };
                let b = if b.is_empty() { S::splat(0.0) } else { S::load(b.as_ptr().add(i)) };
                S::store(y.add(i), S::fma(d, w, b));
            },
            {
                let w = if w.is_empty() { 1.0 } else { w[i] };
                let b = if b.is_empty() { 0.0 } else { b[i] };
                *y.add(i) = (x[i] - mean) * scale * w + b;
            }
        );
    }
}

#[inline(always)]
pub(crate) unsafe fn add<S: Simd>(y: &mut [f32], x: &[f32]) {
    // SAFETY: equal lengths; features by the module's contract.
    unsafe {
        let (n, y) = (y.len(), y.as_mut_ptr());
        each!(
            S,
            n,
            i,
            S::store(y.add(i), S::add(S::load(y.add(i)), S::load(x.as_ptr().add(i)))),
            *y.add(i) += x[i]
        );
    }
}

/// `y *= factor`.
#[inline(always)]
pub(crate) unsafe fn scale<S: Simd>(y: &mut [f32], factor: f32) {
    // SAFETY: loads and stores lie inside of the slice; features by the module's contract.
    unsafe {
        let (n, f, y) = (y.len(), S::splat(factor), y.as_mut_ptr());
        each!(S, n, i, S::store(y.add(i), S::mul(S::load(y.add(i)), f)), *y.add(i) *= factor);
    }
}

#[inline(always)]
pub(crate) unsafe fn max<S: Simd>(x: &[f32]) -> f32 {
    // SAFETY: loads lie inside `x`; features by the module's contract.
    unsafe {
        let mut largest = S::splat(f32::NEG_INFINITY);
        let mut rest = f32::NEG_INFINITY;
        each!(
            S,
            x.len(),
            i,
            largest = S::max(S::load(x.as_ptr().add(i)), largest),
            rest = rest.max(x[i])
        );
        rest.max(S::hmax(largest))
    }
}

/// e^x to about 1 unit in the last place; below −87.3 zero, above 88.7 infinity, NaN stays.
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    // SAFETY: features by the module's contract.
    unsafe {
        // Outside of these bounds the result is zero or infinity; `max` and `min` keep NaN in their
        // second place.
        let clamped = S::min(S::splat(89.0), S::max(S::splat(-88.0), x));
        let n = S::round(S::mul(clamped, S::splat(std::f32::consts::LOG2_E)));
        let p = exp_fraction::<S>(clamped, n);
        // 2^128 is no f32: scale by half the power twice over.
        let half = S::round(S::mul(n, S::splat(0.5)));
        let (a, b) = (S::pow2(half), S::pow2(S::sub(n, half)));
        let scaled = S::mul(S::mul(p, a), b);
        S::select_below(x, S::splat(-87.336_55), S::splat(0.0), scaled)
    }
}

/// `e^x / 2^n` for the n nearest to `x / ln 2`.
#[inline(always)]
unsafe fn exp_fraction<S: Simd>(x: S::F, n: S::F) -> S::F {
    // SAFETY: features by the module's contract.
    unsafe {
        // r = x − n·ln 2 in two steps, the first exact; |r| ≤ ln 2 / 2.
        let r = S::fma(n, S::splat(-0.693_359_4), x);
        let r = S::fma(n, S::splat(2.121_944_4e-4), r);
        // e^r = 1 + r + r² (1/2 + r/6 + …), with the minimax coefficients of the Cephes library's
        // expf.
        let p = S::fma(S::splat(1.987_569_1e-4), r, S::splat(1.398_199_9e-3));
        let p = S::fma(p, r, S::splat(8.333_452e-3));
        let p = S::fma(p, r, S::splat(4.166_579_6e-2));
        let p = S::fma(p, r, S::splat(1.666_666_5e-1));
        let p = S::fma(p, r, S::splat(0.5));
        let p = S::fma(S::mul(r, r), p, r);
        S::add(p, S::splat(1.0))
    }
}

/// [`exp`] of `x ≤ 0`, with the same bits and half as many instructions.
#[inline(always)]
pub(crate) unsafe fn exp_negative<S: Simd>(x: S::F) -> S::F {
    // SAFETY: features by the module's contract.
    unsafe {
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        let scaled = S::scale_pow2(exp_fraction::<S>(x, n), n);
        // Whatever came of -∞ is zero too.
        S::select_below(x, S::splat(-87.336_55), S::splat(0.0), scaled)
    }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
unsafe fn sigmoid<S: Simd>(x: S::F) -> S::F {
    // SAFETY: features by the module's contract.
    unsafe {
        let one = S::splat(1.0);
        S::div(one, S::add(one, exp::<S>(S::sub(S::splat(0.0), x))))
    }
}

#[inline(always)]
pub(crate) unsafe fn silu_vector<S: Simd>(x: S::F) -> S::F {
    // SAFETY: features by the module's contract.
    unsafe { S::mul(x, sigmoid::<S>(x)) }
}

/// `x/2 · (1 + tanh u) = x / (1 + e^-2u)` with `u = √(2/π) · (x + 0.044715 x³)`.
#[inline(always)]
unsafe fn gelu_vector<S: Simd>(x: S::F) -> S::F {
    // SAFETY: features by the module's contract.
    unsafe {
        let x2 = S::mul(x, x);
        let u = S::mul(
            x,
            S::fma(x2, S::splat(2.0 * 0.797_884_6 * 0.044_715), S::splat(2.0 * 0.797_884_6)),
        );
        S::mul(x, sigmoid::<S>(u))
    }
}

/// Loads `y[i…]`; the last vector is padded with zeros.
#[inline(always)]
unsafe fn load_padded<S: Simd>(y: &[f32], i: usize, full: bool) -> S::F {
    // SAFETY: a full vector lies inside `y` by the caller; features by the module's contract.
    unsafe {
        if full {
            return S::load(y.as_ptr().add(i));
        }
        let mut padded = [0.0f32; 16];
        padded[..y.len() - i].copy_from_slice(&y[i..]);
        S::load(padded.as_ptr())
    }
}

#[inline(always)]
pub(crate) unsafe fn swiglu<S: Simd>(gate: &mut [f32], up: &[f32]) {
    // SAFETY: equal lengths; features by the module's contract.
    unsafe {
        map!(S, gate, x, i, full => S::mul(silu_vector::<S>(x), load_padded::<S>(up, i, full)));
    }
}

#[inline(always)]
pub(crate) unsafe fn geglu<S: Simd>(gate: &mut [f32], up: &[f32]) {
    // SAFETY: equal lengths; features by the module's contract.
    unsafe {
        map!(S, gate, x, i, full => S::mul(gelu_vector::<S>(x), load_padded::<S>(up, i, full)));
    }
}

#[inline(always)]
pub(crate) unsafe fn gelu<S: Simd>(x: &mut [f32]) {
    // SAFETY: features by the module's contract.
    unsafe {
        map!(S, x, v, i, full => gelu_vector::<S>(v));
    }
}

/// `x/2 · (1 + erf(x/√2))`; see [`erfc_of_positive`] for the error.
#[inline(always)]
pub(crate) unsafe fn gelu_erf<S: Simd>(x: &mut [f32]) {
    // SAFETY: features by the module's contract.
    unsafe {
        map!(S, x, v, i, full => {
            let half = S::mul(S::splat(0.5), erfc_of_positive::<S>(S::mul(S::abs(v), S::splat(std::f32::consts::FRAC_1_SQRT_2))));
            S::mul(v, S::select_below(v, S::splat(0.0), half, S::sub(S::splat(1.0), half)))
        });
    }
}

/// `1 - erf(x)` for `x ≥ 0` to 1.5e-7 (Abramowitz and Stegun 7.1.26).
#[inline(always)]
unsafe fn erfc_of_positive<S: Simd>(x: S::F) -> S::F {
    // SAFETY: features by the module's contract.
    unsafe {
        let t = S::div(S::splat(1.0), S::fma(S::splat(0.327_591_1), x, S::splat(1.0)));
        let mut series = S::splat(1.061_405_4);
        for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
            series = S::fma(series, t, S::splat(c));
        }
        S::mul(S::mul(series, t), exp_negative::<S>(S::sub(S::splat(0.0), S::mul(x, x))))
    }
}

#[inline(always)]
pub(crate) unsafe fn exp_sum<S: Simd>(x: &mut [f32], max: f32) -> f32 {
    // SAFETY: features by the module's contract; the accesses lie inside `x`.
    unsafe {
        // If the maximum is -∞, so is every value, and -∞ - -∞ would be NaN.
        let m = S::splat(if max == f32::NEG_INFINITY { 0.0 } else { max });
        let mut sum = S::splat(0.0);
        let mut rest = 0.0;
        let n = x.len() - x.len() % S::LANES;
        let (head, tail) = x.split_at_mut(n);
        for i in (0..n).step_by(S::LANES) {
            let p = head.as_mut_ptr().add(i);
            let e = exp::<S>(S::sub(S::load(p), m));
            S::store(p, e);
            sum = S::add(sum, e);
        }
        if !tail.is_empty() {
            map!(S, tail, v, i, full => exp::<S>(S::sub(v, m)));
            rest = tail.iter().sum();
        }
        S::sum(sum) + rest
    }
}

#[inline(always)]
pub(crate) unsafe fn quantize_q8<S: Simd>(
    x: &[f32],
    codes: &mut [i8],
    scales: &mut [f32],
    sums: &mut [i16],
) {
    for (b, scale) in scales.iter_mut().enumerate() {
        // SAFETY: the wrapper checked that every block of 32 has its codes, scale and two sums;
        // features as always.
        unsafe {
            let x = x.as_ptr().add(b * 32);
            let codes = codes.as_mut_ptr().add(b * 32);
            let (mut largest, mut zeros) = (S::splat(0.0), S::splat(0.0));
            for i in (0..32).step_by(S::LANES) {
                let v = S::load(x.add(i));
                largest = S::max(S::abs(v), largest);
                // 0 · v is NaN for NaN and infinities.
                zeros = S::fma(v, S::splat(0.0), zeros);
            }
            let finite = S::sum(zeros) == 0.0;
            let (s, inverse) = q8_scale(S::hmax(largest), finite);
            if s.is_nan() || s == 0.0 {
                *scale = s;
                codes.write_bytes(0, 32);
                sums[2 * b..][..2].fill(0);
                continue;
            }
            let inverse = S::splat(inverse);
            let mut halves = [S::splat(0.0); 2];
            let (mut product, mut square) = (S::splat(0.0), S::splat(0.0));
            for i in (0..32).step_by(S::LANES) {
                let exact = S::mul(S::load(x.add(i)), inverse);
                let q = S::round(exact);
                S::store_i8(codes.add(i), q);
                halves[i / 16] = S::add(halves[i / 16], q);
                product = S::fma(exact, q, product);
                square = S::fma(q, q, square);
            }
            // The largest value has code ±127, so the squares are not zero.
            *scale = s * (S::sum(product) / S::sum(square));
            sums[2 * b] = S::sum(halves[0]) as i16;
            sums[2 * b + 1] = S::sum(halves[1]) as i16;
        }
    }
}
