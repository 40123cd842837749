//! Arithmetic on rows of f32, as defined.

/// See [`VectorKernels::quantize_q8`](crate::VectorKernels).
///
/// `code = round(x · 127 / max|x|)`, ties to even, and the scale that brings `scale · code` closest
/// to x: `Σ x·code / Σ code²`. This removes one of the block's 32 dimensions from the error, so
/// that results are closer to exact ones than with `max|x| / 127`. A block without values above
/// 2⁻¹¹⁹ has scale 0. A block with a NaN or an infinity has the scale NaN, so that the product is
/// NaN.
pub(super) fn quantize_q8(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i16]) {
    let (blocks, rest) = x.as_chunks::<32>();
    assert!(rest.is_empty() && codes.len() == x.len());
    assert!(scales.len() == blocks.len() && sums.len() == blocks.len() * 2);
    let (codes, _) = codes.as_chunks_mut::<32>();
    let (sums, _) = sums.as_chunks_mut::<2>();
    for (((block, codes), scale), sums) in blocks.iter().zip(codes).zip(scales).zip(sums) {
        let largest = block.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let finite = block.iter().all(|x| x.is_finite());
        let (s, inverse) = q8_scale(largest, finite);
        let (mut product, mut square) = (0.0, 0.0);
        for (code, &x) in codes.iter_mut().zip(block) {
            let exact = if finite { x * inverse } else { 0.0 };
            let rounded = exact.round_ties_even();
            *code = rounded as i8;
            product += exact * rounded;
            square += rounded * rounded;
        }
        *scale = if square > 0.0 { s * (product / square) } else { s };
        for (sum, half) in sums.iter_mut().zip(codes.as_chunks::<16>().0) {
            *sum = half.iter().map(|&c| i16::from(c)).sum();
        }
    }
}

/// Scale of a block and the factor that yields its codes, from its largest magnitude.
#[inline(always)]
pub(crate) fn q8_scale(largest: f32, finite: bool) -> (f32, f32) {
    // 2^-119: the factor stays finite.
    const TINY: f32 = 1.504_632_8e-36;
    if !finite {
        (f32::NAN, 0.0)
    } else if largest < TINY {
        (0.0, 0.0)
    } else {
        (largest / 127.0, 127.0 / largest)
    }
}

/// See [`VectorKernels::rms_norm`](crate::VectorKernels).
pub(super) fn rms_norm(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
    assert!(y.len() == x.len() && (w.is_empty() || w.len() == x.len()));
    let mean = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean as f32 + eps).sqrt();
    for (i, (y, &x)) in y.iter_mut().zip(x).enumerate() {
        *y = x * scale * w.get(i).copied().unwrap_or(1.0);
    }
}

/// See [`VectorKernels::layer_norm`](crate::VectorKernels).
pub(super) fn layer_norm(x: &[f32], w: &[f32], b: &[f32], eps: f32, y: &mut [f32]) {
    assert!(
        y.len() == x.len()
            && (w.is_empty() || w.len() == x.len())
            && (b.is_empty() || b.len() == x.len())
    );
    let n = x.len() as f64;
    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
    let (mean, scale) = (mean as f32, 1.0 / (variance as f32 + eps).sqrt());
    for (i, (y, &x)) in y.iter_mut().zip(x).enumerate() {
        let (w, b) = (w.get(i).copied().unwrap_or(1.0), b.get(i).copied().unwrap_or(0.0));
        *y = (x - mean) * scale * w + b;
    }
}

/// See [`VectorKernels::add`](crate::VectorKernels).
pub(super) fn add(y: &mut [f32], x: &[f32]) {
    assert_eq!(y.len(), x.len());
    for (y, x) in y.iter_mut().zip(x) {
        *y += x;
    }
}

/// See [`VectorKernels::swiglu`](crate::VectorKernels).
pub(super) fn swiglu(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    for (g, u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + (-*g).exp()) * u;
    }
}

/// See [`VectorKernels::geglu`](crate::VectorKernels).
pub(super) fn geglu(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    for (g, u) in gate.iter_mut().zip(up) {
        *g = gelu_one(*g) * u;
    }
}

/// See [`VectorKernels::gelu`](crate::VectorKernels).
pub(super) fn gelu(x: &mut [f32]) {
    for x in x {
        *x = gelu_one(*x);
    }
}

/// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.
fn gelu_one(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    0.5 * x * (1.0 + (SQRT_2_OVER_PI * x * (1.0 + 0.044_715 * x * x)).tanh())
}

/// See [`VectorKernels::gelu_erf`](crate::VectorKernels).
pub(super) fn gelu_erf(x: &mut [f32]) {
    for x in x {
        // In the negative tail the sum of one and the error function is the complement, without
        // cancellation.
        let complement = erfc_of_positive(x.abs() * std::f32::consts::FRAC_1_SQRT_2);
        *x *= if *x < 0.0 { 0.5 * complement } else { 1.0 - 0.5 * complement };
    }
}

/// `1 - erf(x)` for `x ≥ 0` to 1.5e-7 (Abramowitz and Stegun 7.1.26).
fn erfc_of_positive(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let series = ((((1.061_405_4 * t - 1.453_152) * t + 1.421_413_7) * t - 0.284_496_74) * t
        + 0.254_829_6)
        * t;
    series * (-x * x).exp()
}

/// See [`VectorKernels::exp_sum`](crate::VectorKernels).
pub(super) fn exp_sum(x: &mut [f32], max: f32) -> f32 {
    let mut sum = 0.0f64;
    for x in x {
        *x = if *x == f32::NEG_INFINITY { 0.0 } else { (*x - max).exp() };
        sum += f64::from(*x);
    }
    sum as f32
}

/// See [`VectorKernels::max`](crate::VectorKernels).
pub(super) fn max(x: &[f32]) -> f32 {
    x.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}
