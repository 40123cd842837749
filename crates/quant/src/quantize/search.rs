//! Searches for the scale (and minimum) with which a few values are best represented by small integers.
//!
//! All sums are f32 in element order: the results of the k-quants are compared byte for byte with other tools.

/// Groups whose largest magnitude is below this are stored as zeros.
pub(super) const ALMOST_ZERO: f32 = 1e-15;

/// The nearest integer, ties to even. Right for magnitudes up to 2^22, which every use divides down to; anything
/// larger gives some integer, and callers clamp.
#[inline(always)]
pub(super) fn nearest(x: f32) -> i32 {
    // Adding 1.5 · 2^23 leaves the integer in the low 23 bits of the significand.
    ((x + 12_582_912.0).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// The nearest integer, ties away from zero.
#[inline(always)]
pub(super) fn nearest_away(x: f32) -> i32 {
    // The largest number below one half: one half itself would carry 0.49999997 up to 1.
    (x + 0.499_999_97_f32.copysign(x)) as i32
}

/// The value of largest magnitude with its sign, the first one on ties; 0 for an empty or all-zero slice.
#[inline(always)]
pub(super) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0_f32, |a, &b| if b.abs() > a.abs() { b } else { a })
}

/// The largest magnitude.
#[inline(always)]
pub(super) fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |a, b| if b.abs() > a { b.abs() } else { a })
}

/// Σ x², in element order.
#[inline(always)]
pub(super) fn sum_of_squares(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |sum, x| sum + x * x)
}

/// Weights of a group in a weighted search: importance times √(σ² + x²), so that outliers count without ruling.
#[inline(always)]
pub(super) fn weights<const N: usize>(x: &[f32; N], importance: &[f32; N], sigma2: f32) -> [f32; N] {
    std::array::from_fn(|i| importance[i] * (sigma2 + x[i] * x[i]).sqrt())
}

/// How [`affine`] searches: steps `rmin, rmin + rdelta, …` around the number of levels, by squared or absolute error.
pub(super) struct Affine {
    pub(super) levels: i32,
    pub(super) rmin: f32,
    pub(super) rdelta: f32,
    pub(super) steps: i32,
    pub(super) absolute: bool,
}

/// `x ≈ scale · code − min` with codes `0..=levels` and `min ≥ 0`.
pub(super) struct AffineFit<const N: usize> {
    pub(super) scale: f32,
    pub(super) min: f32,
    pub(super) codes: [u8; N],
}

/// Fits scale and minimum: for each step, codes by rounding, then the least-squares line through them.
pub(super) fn affine<const N: usize>(x: &[f32; N], w: &[f32; N], search: &Affine) -> AffineFit<N> {
    let levels = search.levels as f32;
    let max = x.iter().fold(x[0], |a, &b| if b > a { b } else { a });
    let mut min = x.iter().fold(x[0], |a, &b| if b < a { b } else { a });
    let (mut sum_w, mut sum_x) = (w[0], w[0] * x[0]);
    for i in 1..N {
        sum_w += w[i];
        sum_x += w[i] * x[i];
    }
    min = min.min(0.0);
    if max <= min {
        return AffineFit { scale: 0.0, min: -min, codes: [0; N] };
    }
    let round = |inverse: f32, min: f32| -> [u8; N] {
        std::array::from_fn(|i| nearest(inverse * (x[i] - min)).clamp(0, search.levels) as u8)
    };
    let error = |scale: f32, min: f32, codes: &[u8; N]| {
        let mut sum = 0.0;
        for i in 0..N {
            let diff = scale * f32::from(codes[i]) + min - x[i];
            sum += w[i] * if search.absolute { diff.abs() } else { diff * diff };
        }
        sum
    };
    let inverse = levels / (max - min);
    let mut scale = 1.0 / inverse;
    let mut codes = round(inverse, min);
    let mut best = error(scale, min, &codes);
    for step in 0..=search.steps {
        let tried = round((search.rmin + search.rdelta * step as f32 + levels) / (max - min), min);
        let (mut sum_l, mut sum_ll, mut sum_xl) = (0.0, 0.0, 0.0);
        for i in 0..N {
            let l = f32::from(tried[i]);
            sum_l += w[i] * l;
            sum_ll += w[i] * l * l;
            sum_xl += w[i] * l * x[i];
        }
        let determinant = sum_w * sum_ll - sum_l * sum_l;
        if determinant > 0.0 {
            let mut this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
            let mut this_min = (sum_ll * sum_x - sum_l * sum_xl) / determinant;
            if this_min > 0.0 {
                this_min = 0.0;
                this_scale = sum_xl / sum_ll;
            }
            let this_error = error(this_scale, this_min, &tried);
            if this_error < best {
                (best, scale, min, codes) = (this_error, this_scale, this_min, tried);
            }
        }
    }
    AffineFit { scale, min: -min, codes }
}

/// Fits `x ≈ scale · (code − nmax)` with codes `0..2·nmax`; the extreme value's side gets the extra level.
pub(super) fn symmetric<const N: usize>(nmax: i32, x: &[f32; N], w: &[f32; N]) -> (f32, [u8; N]) {
    let max = extreme(x);
    if max.abs() < ALMOST_ZERO {
        return (0.0, [0; N]);
    }
    let round = |inverse: f32| -> [i32; N] {
        std::array::from_fn(|i| nearest(inverse * x[i]).clamp(-nmax, nmax - 1))
    };
    let sums = |codes: &[i32; N]| {
        let (mut lx, mut l2) = (0.0, 0.0);
        for i in 0..N {
            let l = codes[i] as f32;
            lx += w[i] * x[i] * l;
            l2 += w[i] * l * l;
        }
        (lx, l2)
    };
    let mut codes = round(-(nmax as f32) / max);
    let (lx, l2) = sums(&codes);
    let mut scale = if l2 != 0.0 { lx / l2 } else { 0.0 };
    let mut best = scale * lx;
    for step in (-9..=9).filter(|&step| step != 0) {
        let tried = round(-(nmax as f32 + 0.1 * step as f32) / max);
        let (lx, l2) = sums(&tried);
        if l2 > 0.0 && lx * lx > best * l2 {
            scale = lx / l2;
            best = scale * lx;
            codes = tried;
        }
    }
    (scale, codes.map(|l| (l + nmax) as u8))
}

/// As [`symmetric`], by changing one code at a time, with weights x².
pub(super) fn symmetric_by_descent<const N: usize>(nmax: i32, x: &[f32; N]) -> (f32, [u8; N]) {
    let max = extreme(x);
    if max.abs() < ALMOST_ZERO {
        return (0.0, [0; N]);
    }
    let inverse = -(nmax as f32) / max;
    let mut codes: [i32; N] = std::array::from_fn(|i| nearest(inverse * x[i]).clamp(-nmax, nmax - 1));
    let (mut lx, mut l2) = (0.0, 0.0);
    for i in 0..N {
        let (w, l) = (x[i] * x[i], codes[i] as f32);
        lx += w * x[i] * l;
        l2 += w * l * l;
    }
    for _ in 0..5 {
        let mut changed = false;
        for i in 0..N {
            let (w, l) = (x[i] * x[i], codes[i] as f32);
            let mut without_lx = lx - w * x[i] * l;
            if without_lx > 0.0 {
                let mut without_l2 = l2 - w * l * l;
                let code = nearest(x[i] * without_l2 / without_lx).clamp(-nmax, nmax - 1);
                if code != codes[i] {
                    let l = code as f32;
                    without_lx += w * x[i] * l;
                    without_l2 += w * l * l;
                    if without_l2 > 0.0 && without_lx * without_lx * l2 > lx * lx * without_l2 {
                        (codes[i], lx, l2, changed) = (code, without_lx, without_l2, true);
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    (if l2 > 0.0 { lx / l2 } else { 0.0 }, codes.map(|l| (l + nmax) as u8))
}

/// Fits `x ≈ scale · code` for values that are not negative, with codes `0..=nmax`.
pub(super) fn positive<const N: usize>(nmax: i32, x: &[f32; N], w: &[f32; N]) -> (f32, [u8; N]) {
    let max = x.iter().fold(0.0_f32, |a, &b| a.max(b));
    if max < ALMOST_ZERO {
        return (0.0, [0; N]);
    }
    let round =
        |inverse: f32| -> [i32; N] { std::array::from_fn(|i| nearest(inverse * x[i]).clamp(0, nmax)) };
    let error = |inverse: f32| {
        let (scale, codes) = (1.0 / inverse, round(inverse));
        let mut sum = 0.0;
        for i in 0..N {
            let diff = x[i] - scale * codes[i] as f32;
            sum += w[i] * diff * diff;
        }
        sum
    };
    let mut inverse = nmax as f32 / max;
    let mut best = error(inverse);
    for step in (-4..=4).filter(|&step| step != 0) {
        let tried = (0.1 * step as f32 + nmax as f32) / max;
        let this_error = error(tried);
        if this_error < best {
            (best, inverse) = (this_error, tried);
        }
    }
    let mut codes = round(inverse);
    let (mut lx, mut l2) = (0.0, 0.0);
    for i in 0..N {
        let l = codes[i] as f32;
        lx += w[i] * x[i] * l;
        l2 += w[i] * l * l;
    }
    for _ in 0..5 {
        let mut changed = false;
        for i in 0..N {
            let l = codes[i] as f32;
            let mut without_lx = lx - w[i] * x[i] * l;
            let mut without_l2 = l2 - w[i] * l * l;
            if without_lx > 0.0 && without_l2 > 0.0 {
                let code = nearest(x[i] * without_l2 / without_lx).clamp(0, nmax);
                if code != codes[i] {
                    let l = code as f32;
                    without_lx += w[i] * x[i] * l;
                    without_l2 += w[i] * l * l;
                    if without_lx * without_lx * l2 > lx * lx * without_l2 {
                        (codes[i], lx, l2, changed) = (code, without_lx, without_l2, true);
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    (if l2 > 0.0 { lx / l2 } else { 0.0 }, codes.map(|l| l as u8))
}
