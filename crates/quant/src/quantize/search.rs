//! Searches for the scale (and minimum) with which small integers represent values best.
//!
//! All sums are f32 in element order, since the k-quants must have the same bits as the output of
//! other tools.

use super::simd;

/// Groups with a largest magnitude below this are stored as zeros.
pub(super) const ALMOST_ZERO: f32 = 1e-15;

/// Nearest integer, ties to even. Correct for magnitudes up to 2^22, and callers divide values into
/// this range. Larger values give an unspecified integer, which callers clamp.
#[inline(always)]
pub(super) fn nearest(x: f32) -> i32 {
    // Adding 1.5 · 2^23 leaves the integer in the low 23 bits of the significand.
    ((x + 12_582_912.0).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// Nearest integer, ties to even, clamped to `low` and `high`, which are integers of magnitude
/// below 2^22.
#[inline(always)]
fn round_clamped(x: f32, low: f32, high: f32) -> f32 {
    // Each comparison compiles to one instruction. NaN becomes `low`.
    let x = if x > low { x } else { low };
    let x = if x < high { x } else { high };
    x + 12_582_912.0 - 12_582_912.0
}

/// Nearest integer, ties away from zero.
#[inline(always)]
pub(super) fn nearest_away(x: f32) -> i32 {
    // The largest number below one half. With one half, 0.49999997 would round up to 1.
    (x + 0.499_999_97_f32.copysign(x)) as i32
}

/// The value of largest magnitude with its sign; the first one on ties. 0 for an empty or all-zero
/// slice.
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

/// Weights of a group in a weighted search: importance times √(σ² + x²), so that outliers have
/// influence without dominating.
#[inline(always)]
pub(super) fn weights<const N: usize>(
    x: &[f32; N],
    importance: &[f32; N],
    sigma2: f32,
) -> [f32; N] {
    std::array::from_fn(|i| importance[i] * (sigma2 + x[i] * x[i]).sqrt())
}

/// Parameters of [`affine`]: steps `rmin, rmin + rdelta, …` around the number of levels, and
/// squared or absolute error.
#[derive(Clone, Copy)]
pub(super) struct AffineSearch {
    pub(super) levels: u8,
    pub(super) rmin: f32,
    pub(super) rdelta: f32,
    pub(super) steps: i32,
    pub(super) absolute: bool,
}

/// Fit `x ≈ scale · code − min` for `G` groups of values, with codes `0..=levels` and `min ≥ 0`.
pub(super) struct AffineFit<const G: usize> {
    pub(super) scales: [f32; G],
    pub(super) mins: [f32; G],
    /// Parameters of the rounding. See [`AffineFit::codes`].
    inverses: [f32; G],
    offsets: [f32; G],
    levels: f32,
}

impl<const G: usize> AffineFit<G> {
    /// Codes that the fit of a group used.
    pub(super) fn codes<const N: usize>(&self, group: usize, x: &[f32; N]) -> [u8; N] {
        x.map(|x| {
            round_clamped(self.inverses[group] * (x - self.offsets[group]), 0.0, self.levels) as u8
        })
    }
}

/// Fits scale and minimum for each of `G` groups of `N` values. For each step, rounds to codes and
/// computes the least-squares line through them. Each group uses one vector lane.
pub(super) fn affine<const N: usize, const G: usize>(
    x: &[[f32; N]],
    w: &[[f32; N]],
    search: AffineSearch,
) -> AffineFit<G> {
    let (x, w) = (transposed(x), transposed(w));
    simd::run(AffineJob::<N, G> { x: &x, w: &w, search })
}

/// `N` values of `G` groups, with the groups adjacent.
type Lanes<const N: usize, const G: usize> = [[f32; G]; N];

#[inline(always)]
fn transposed<const N: usize, const G: usize>(groups: &[[f32; N]]) -> Lanes<N, G> {
    std::array::from_fn(|i| std::array::from_fn(|g| groups[g][i]))
}

struct AffineJob<'a, const N: usize, const G: usize> {
    x: &'a Lanes<N, G>,
    w: &'a Lanes<N, G>,
    search: AffineSearch,
}

impl<const N: usize, const G: usize> simd::Job for AffineJob<'_, N, G> {
    type Output = AffineFit<G>;

    #[inline(always)]
    fn run(self) -> AffineFit<G> {
        let (x, w, levels) = (self.x, self.w, f32::from(self.search.levels));
        let (mut min, mut max, mut sum_w, mut sum_x) = (x[0], x[0], w[0], [0.0; G]);
        for g in 0..G {
            sum_x[g] = w[0][g] * x[0][g];
        }
        for i in 1..N {
            for g in 0..G {
                min[g] = if x[i][g] < min[g] { x[i][g] } else { min[g] };
                max[g] = if x[i][g] > max[g] { x[i][g] } else { max[g] };
                sum_w[g] += w[i][g];
                sum_x[g] += w[i][g] * x[i][g];
            }
        }
        min = min.map(|m| if m > 0.0 { 0.0 } else { m });
        let lowest = min;
        let mut tried = [[0.0; G]; N];
        let mut inverses: [f32; G] = std::array::from_fn(|g| levels / (max[g] - min[g]));
        let mut offsets = min;
        let mut scales = inverses.map(|inverse| 1.0 / inverse);
        self.round(&inverses, &min, &mut tried);
        let mut best = self.error(&scales, &min, &tried);
        for step in 0..=self.search.steps {
            let numerator = self.search.rmin + self.search.rdelta * step as f32 + levels;
            let inverse: [f32; G] = std::array::from_fn(|g| numerator / (max[g] - min[g]));
            self.round(&inverse, &min, &mut tried);
            let (lines, solvable) = self.lines(&tried, &sum_w, &sum_x);
            let error = self.error(&lines.0, &lines.1, &tried);
            for g in 0..G {
                let better = solvable[g] & (error[g] < best[g]);
                best[g] = if better { error[g] } else { best[g] };
                inverses[g] = if better { inverse[g] } else { inverses[g] };
                offsets[g] = if better { min[g] } else { offsets[g] };
                scales[g] = if better { lines.0[g] } else { scales[g] };
                min[g] = if better { lines.1[g] } else { min[g] };
            }
        }
        // Groups of one non-positive value: the value is the minimum, and all codes are zero.
        for g in 0..G {
            if max[g] <= lowest[g] {
                (scales[g], min[g], inverses[g], offsets[g]) = (0.0, lowest[g], 0.0, 0.0);
            }
        }
        AffineFit { scales, mins: min.map(|m| -m), inverses, offsets, levels }
    }
}

impl<const N: usize, const G: usize> AffineJob<'_, N, G> {
    #[inline(always)]
    fn round(&self, inverse: &[f32; G], min: &[f32; G], codes: &mut Lanes<N, G>) {
        let levels = f32::from(self.search.levels);
        for (codes, x) in codes.iter_mut().zip(self.x) {
            for g in 0..G {
                codes[g] = round_clamped(inverse[g] * (x[g] - min[g]), 0.0, levels);
            }
        }
    }

    /// Weighted error of the lines `scale · code + min`.
    #[inline(always)]
    fn error(&self, scale: &[f32; G], min: &[f32; G], codes: &Lanes<N, G>) -> [f32; G] {
        let mut sum = [0.0; G];
        for ((codes, x), w) in codes.iter().zip(self.x).zip(self.w) {
            for g in 0..G {
                let diff = scale[g] * codes[g] + min[g] - x[g];
                sum[g] += w[g] * if self.search.absolute { diff.abs() } else { diff * diff };
            }
        }
        sum
    }

    /// Scales and minima of the least-squares lines, and whether each line exists. Positive minima
    /// become zero.
    #[inline(always)]
    fn lines(
        &self,
        codes: &Lanes<N, G>,
        sum_w: &[f32; G],
        sum_x: &[f32; G],
    ) -> (([f32; G], [f32; G]), [bool; G]) {
        // One sum per loop, since the compiler mixes the lanes of several sums.
        let (mut sum_l, mut sum_ll, mut sum_xl) = ([0.0; G], [0.0; G], [0.0; G]);
        for (w, l) in self.w.iter().zip(codes) {
            for g in 0..G {
                sum_l[g] += w[g] * l[g];
            }
        }
        for (w, l) in self.w.iter().zip(codes) {
            for g in 0..G {
                sum_ll[g] += w[g] * l[g] * l[g];
            }
        }
        for ((w, l), x) in self.w.iter().zip(codes).zip(self.x) {
            for g in 0..G {
                sum_xl[g] += w[g] * l[g] * x[g];
            }
        }
        let (mut scale, mut min, mut solvable) = ([0.0; G], [0.0; G], [false; G]);
        for g in 0..G {
            let determinant = sum_w[g] * sum_ll[g] - sum_l[g] * sum_l[g];
            let through_zero = sum_xl[g] / sum_ll[g];
            scale[g] = (sum_w[g] * sum_xl[g] - sum_x[g] * sum_l[g]) / determinant;
            min[g] = (sum_ll[g] * sum_x[g] - sum_l[g] * sum_xl[g]) / determinant;
            scale[g] = if min[g] > 0.0 { through_zero } else { scale[g] };
            min[g] = if min[g] > 0.0 { 0.0 } else { min[g] };
            solvable[g] = determinant > 0.0;
        }
        ((scale, min), solvable)
    }
}

/// Fits `x ≈ scale · (code − nmax)` with codes `0..2·nmax` for each of `G` groups of `N` values.
/// The sign of the extreme value gets the extra level.
pub(super) fn symmetric<const N: usize, const G: usize>(
    nmax: u8,
    x: &[[f32; N]],
    w: &[[f32; N]],
) -> SymmetricFit<G> {
    let (lanes, weights) = (transposed(x), transposed(w));
    let extremes = std::array::from_fn(|g| extreme(&x[g]));
    simd::run(SymmetricJob::<N, G> { nmax, x: &lanes, w: &weights, extremes })
}

/// Result of [`symmetric`].
pub(super) struct SymmetricFit<const G: usize> {
    pub(super) scales: [f32; G],
    inverses: [f32; G],
    nmax: f32,
}

impl<const G: usize> SymmetricFit<G> {
    /// Codes that the fit of a group used. All zero for a group of zeros.
    pub(super) fn codes<const N: usize>(&self, group: usize, x: &[f32; N]) -> [u8; N] {
        let (inverse, nmax) = (self.inverses[group], self.nmax);
        if inverse == 0.0 {
            return [0; N];
        }
        x.map(|x| (round_clamped(inverse * x, -nmax, nmax - 1.0) + nmax) as u8)
    }
}

struct SymmetricJob<'a, const N: usize, const G: usize> {
    nmax: u8,
    x: &'a Lanes<N, G>,
    w: &'a Lanes<N, G>,
    extremes: [f32; G],
}

impl<const N: usize, const G: usize> simd::Job for SymmetricJob<'_, N, G> {
    type Output = SymmetricFit<G>;

    #[inline(always)]
    fn run(self) -> SymmetricFit<G> {
        let nmax = f32::from(self.nmax);
        let mut inverses = self.extremes.map(|extreme| -nmax / extreme);
        let (lx, l2) = self.sums(&inverses);
        let mut scales: [f32; G] =
            std::array::from_fn(|g| if l2[g] != 0.0 { lx[g] / l2[g] } else { 0.0 });
        let mut best: [f32; G] = std::array::from_fn(|g| scales[g] * lx[g]);
        for step in (-9..=9).filter(|&step| step != 0) {
            let inverse = self.extremes.map(|extreme| -(nmax + 0.1 * step as f32) / extreme);
            let (lx, l2) = self.sums(&inverse);
            for g in 0..G {
                let better = (l2[g] > 0.0) & (lx[g] * lx[g] > best[g] * l2[g]);
                let scale = lx[g] / l2[g];
                scales[g] = if better { scale } else { scales[g] };
                best[g] = if better { scale * lx[g] } else { best[g] };
                inverses[g] = if better { inverse[g] } else { inverses[g] };
            }
        }
        for g in 0..G {
            if self.extremes[g].abs() < ALMOST_ZERO {
                (scales[g], inverses[g]) = (0.0, 0.0);
            }
        }
        SymmetricFit { scales, inverses, nmax }
    }
}

impl<const N: usize, const G: usize> SymmetricJob<'_, N, G> {
    /// Σ w·x·code and Σ w·code².
    #[inline(always)]
    fn sums(&self, inverse: &[f32; G]) -> ([f32; G], [f32; G]) {
        let nmax = f32::from(self.nmax);
        let (mut lx, mut l2) = ([0.0; G], [0.0; G]);
        for (x, w) in self.x.iter().zip(self.w) {
            for g in 0..G {
                let l = round_clamped(inverse[g] * x[g], -nmax, nmax - 1.0);
                lx[g] += w[g] * x[g] * l;
                l2[g] += w[g] * l * l;
            }
        }
        (lx, l2)
    }
}

/// Like [`symmetric`], but changes one code at a time, with weights x².
pub(super) fn symmetric_by_descent<const N: usize>(nmax: i32, x: &[f32; N]) -> (f32, [u8; N]) {
    let max = extreme(x);
    if max.abs() < ALMOST_ZERO {
        return (0.0, [0; N]);
    }
    let inverse = -(nmax as f32) / max;
    let mut codes: [i32; N] =
        std::array::from_fn(|i| nearest(inverse * x[i]).clamp(-nmax, nmax - 1));
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

/// Fits `x ≈ scale · code` for non-negative values, with codes `0..=nmax`.
pub(super) fn fit_nonnegative<const N: usize>(
    nmax: i32,
    x: &[f32; N],
    w: &[f32; N],
) -> (f32, [u8; N]) {
    let max = x.iter().fold(0.0_f32, |a, &b| a.max(b));
    if max < ALMOST_ZERO {
        return (0.0, [0; N]);
    }
    let round = |inverse: f32| -> [i32; N] {
        std::array::from_fn(|i| nearest(inverse * x[i]).clamp(0, nmax))
    };
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

#[cfg(test)]
mod tests {
    use super::simd::Job;
    use super::*;

    #[test]
    fn rounding_modes_match_their_names() {
        for (x, even, away) in
            [(0.5, 0, 1), (1.5, 2, 2), (-2.5, -2, -3), (0.499_999_97, 0, 0), (-126.5, -126, -127)]
        {
            assert_eq!((nearest(x), nearest_away(x)), (even, away), "{x}");
        }
        assert_eq!(round_clamped(f32::NAN, -4.0, 3.0), -4.0);
        assert_eq!([-9.0, 2.5, 9.0].map(|x| round_clamped(x, -4.0, 3.0)), [-4.0, 2.0, 3.0]);
    }

    #[test]
    fn searches_are_bit_identical_with_and_without_simd() {
        let row = crate::reference::normal_row(5);
        for block in row.as_chunks::<512>().0 {
            let (x, w) = block.split_at(256);
            let (x, w) = (transposed(x.as_chunks::<32>().0), transposed(w.as_chunks::<32>().0));
            let w: Lanes<32, 8> = w.map(|w: [f32; 8]| w.map(f32::abs));
            let search =
                AffineSearch { levels: 15, rmin: -0.9, rdelta: 0.05, steps: 36, absolute: false };
            let job = || AffineJob { x: &x, w: &w, search };
            let (wide, narrow) = (simd::run(job()), job().run());
            assert_eq!((wide.scales, wide.mins), (narrow.scales, narrow.mins));
            let extremes = std::array::from_fn(|g| extreme(&x.map(|x: [f32; 8]| x[g])));
            let job = || SymmetricJob { nmax: 8, x: &x, w: &w, extremes };
            let (wide, narrow) = (simd::run(job()), job().run());
            assert_eq!((wide.scales, wide.inverses), (narrow.scales, narrow.inverses));
        }
    }
}
