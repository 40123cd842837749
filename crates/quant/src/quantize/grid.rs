//! Chooses rows of a codebook for `N` values at a given scale.

use super::simd;

/// Sums for the least-squares scale of chosen rows.
#[derive(Clone, Copy, Default)]
pub(super) struct FitSums {
    /// Σ w·x·v over the values, where `v` are the levels of the rows.
    pub(super) lx: f32,
    /// Σ w·v².
    pub(super) l2: f32,
}

impl FitSums {
    /// Squared error at a scale, without the term Σ w·x², which does not depend on the choice.
    pub(super) fn error(&self, scale: f32) -> f32 {
        scale * scale * self.l2 - 2.0 * scale * self.lx
    }
}

/// A codebook, with candidate rows for every tuple of rounded values.
pub(super) struct Grid<const N: usize> {
    /// Level values of the rows.
    rows: Vec<[f32; N]>,
    /// Rounding boundaries between the levels.
    midpoints: Vec<f32>,
    /// Start of each tuple's rows in `near`: `near[start[t]..start[t + 1]]`. A tuple is a number in
    /// base "number of levels", with the first value lowest. A tuple that equals a row has this row
    /// only.
    start: Vec<u32>,
    near: Vec<u16>,
    /// Number of rows of each tuple at the smallest distance. These rows come first.
    nearest: Vec<u16>,
}

/// Number of candidate rows that a search compares.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum SearchEffort {
    /// Rows at the smallest distance from the rounded values.
    Quick,
    /// All candidate rows.
    Thorough,
}

impl<const N: usize> Grid<N> {
    /// Makes a grid from packed level indices. Tuples that are not rows get the rows at the
    /// `distances` smallest distances. A step between adjacent levels has distance 1.
    ///
    /// Compares every tuple with every row, which takes 10 to 100 million steps. So do it once, and
    /// only if needed.
    pub(super) fn new(packed: &[u16], levels: &[f32], distances: usize) -> Self {
        let bits = levels.len().next_power_of_two().ilog2() as usize;
        let codes: Vec<[u8; N]> = packed
            .iter()
            .map(|row| std::array::from_fn(|j| (row >> (bits * j)) as u8 & ((1 << bits) - 1)))
            .collect();
        let rows = codes.iter().map(|row| row.map(|code| levels[usize::from(code)])).collect();
        let midpoints = levels.windows(2).map(|pair| 0.5 * (pair[0] + pair[1])).collect();
        let (mut start, mut near, mut nearest) = (vec![0], Vec::new(), Vec::new());
        let mut squared = vec![0_u8; codes.len()];
        for tuple in 0..levels.len().pow(N as u32) {
            let point: [u8; N] =
                std::array::from_fn(|j| (tuple / levels.len().pow(j as u32) % levels.len()) as u8);
            // At most 4 · 7² or 8 · 2².
            for (squared, row) in squared.iter_mut().zip(&codes) {
                *squared = (0..N).map(|j| row[j].abs_diff(point[j]).pow(2)).sum();
            }
            for (i, distance) in smallest_distances(&squared, distances).enumerate() {
                near.extend(
                    (0..codes.len()).filter(|&row| squared[row] == distance).map(|row| row as u16),
                );
                if i == 0 {
                    nearest.push((near.len() - start[tuple] as usize) as u16);
                }
            }
            start.push(near.len() as u32);
        }
        Self { rows, midpoints, start, near, nearest }
    }

    /// For each `N` values of a group, chooses the row with the least weighted error. Row levels
    /// are shifted by `shift` and multiplied by `scale`.
    pub(super) fn choose(
        &self,
        x: &[[f32; N]],
        w: &[[f32; N]],
        scale: f32,
        shift: f32,
        effort: SearchEffort,
    ) -> GroupChoice {
        simd::run(RowSearch { grid: self, x, w, scale, shift, effort })
    }

    #[inline(always)]
    fn choose_row(
        &self,
        x: &[f32; N],
        w: &[f32; N],
        scale: f32,
        shift: f32,
        effort: SearchEffort,
    ) -> (u16, FitSums) {
        let mut codes = [0_u32; N];
        for midpoint in &self.midpoints {
            let boundary = scale * (midpoint + shift);
            for j in 0..N {
                codes[j] += u32::from(x[j] > boundary);
            }
        }
        let base = self.midpoints.len() as u32 + 1;
        let tuple = codes.iter().rev().fold(0, |tuple, code| tuple * base + code) as usize;
        let mut near = &self.near[self.start[tuple] as usize..self.start[tuple + 1] as usize];
        if effort == SearchEffort::Quick {
            near = &near[..usize::from(self.nearest[tuple])];
        }
        let mut best = near[0];
        if near.len() > 1 {
            let mut min = f32::INFINITY;
            for &row in near {
                let levels = &self.rows[usize::from(row)];
                let mut error = [0.0; N];
                for j in 0..N {
                    let diff = scale * (levels[j] + shift) - x[j];
                    error[j] = w[j] * diff * diff;
                }
                let error = sum(error);
                if error < min {
                    (min, best) = (error, row);
                }
            }
        }
        let levels = &self.rows[usize::from(best)];
        let (mut lx, mut l2) = ([0.0; N], [0.0; N]);
        for j in 0..N {
            let weighted = w[j] * (levels[j] + shift);
            lx[j] = weighted * x[j];
            l2[j] = weighted * (levels[j] + shift);
        }
        (best, FitSums { lx: sum(lx), l2: sum(l2) })
    }
}

/// The `count` smallest distinct distances in ascending order. If 0 occurs, only 0.
fn smallest_distances(squared: &[u8], count: usize) -> impl Iterator<Item = u8> {
    let mut present = [false; 256];
    for &distance in squared {
        present[usize::from(distance)] = true;
    }
    let count = if present[0] { 1 } else { count };
    (0..=255).filter(move |&d| present[usize::from(d)]).take(count)
}

/// Pairwise sum, which vectorizes.
#[inline(always)]
fn sum<const N: usize>(mut values: [f32; N]) -> f32 {
    let mut len = N / 2;
    while len > 0 {
        for j in 0..len {
            values[j] += values[j + len];
        }
        len /= 2;
    }
    values[0]
}

/// Up to eight chosen rows for a group of values with a common scale.
#[derive(Clone, Copy, Default)]
pub(super) struct GroupChoice {
    pub(super) rows: [u16; 8],
    pub(super) sums: FitSums,
}

impl GroupChoice {
    #[inline(always)]
    fn add(&mut self, index: usize, (row, sums): (u16, FitSums)) {
        self.rows[index] = row;
        self.sums.lx += sums.lx;
        self.sums.l2 += sums.l2;
    }
}

struct RowSearch<'a, const N: usize> {
    grid: &'a Grid<N>,
    x: &'a [[f32; N]],
    w: &'a [[f32; N]],
    scale: f32,
    shift: f32,
    effort: SearchEffort,
}

impl<const N: usize> simd::Job for RowSearch<'_, N> {
    type Output = GroupChoice;

    #[inline(always)]
    fn run(self) -> GroupChoice {
        let mut group = GroupChoice::default();
        for (i, (x, w)) in self.x.iter().zip(self.w).enumerate() {
            group.add(i, self.grid.choose_row(x, w, self.scale, self.shift, self.effort));
        }
        group
    }
}

/// A block with groups of the values `d · (2·scale + 1) · level`.
pub(super) struct BlockFit<const S: usize> {
    /// Bits of a binary16 number.
    pub(super) d: [u8; 2],
    pub(super) scales: [u8; S],
    pub(super) groups: [GroupChoice; S],
}

/// Parameters of the search for a group's scale.
pub(super) struct ScaleSearch {
    /// Inverse scales to try: `low`, `low + step`, … (`count` of them), divided by the group's
    /// largest magnitude.
    pub(super) low: f32,
    pub(super) step: f32,
    pub(super) count: u32,
    /// Largest scale code, 7 or 15.
    pub(super) codes: u8,
}

/// Fits a block: first a scale per group, then `d` and the scale codes, then the rows again for the
/// resulting scales.
///
/// `largest` has the largest magnitude of each group. `choose` chooses the rows of a group for a
/// scale.
pub(super) fn fit_block<const S: usize>(
    search: &ScaleSearch,
    largest: [f32; S],
    choose: impl Fn(usize, f32, SearchEffort) -> GroupChoice,
) -> BlockFit<S> {
    let mut fit = BlockFit { d: [0; 2], scales: [0; S], groups: [GroupChoice::default(); S] };
    let ideal: [f32; S] = std::array::from_fn(|g| {
        group_scale(search, largest[g], |scale, effort| choose(g, scale, effort))
    });
    let max = ideal.iter().fold(0.0_f32, |a, &b| a.max(b));
    let top = f32::from(2 * search.codes + 1);
    let mut d = super::to_f16(max / top).1;
    if d == 0.0 {
        fit.groups = std::array::from_fn(|g| choose(g, 0.0, SearchEffort::Quick));
        return fit;
    }
    for (g, ideal) in ideal.into_iter().enumerate() {
        let code =
            (0.5 * (ideal / d - 1.0)).round_ties_even().clamp(0.0, f32::from(search.codes)) as u8;
        let mut min = f32::INFINITY;
        for code in code.saturating_sub(1)..=(code + 1).min(search.codes) {
            let scale = d * f32::from(2 * code + 1);
            let choice = choose(g, scale, SearchEffort::Thorough);
            let error = choice.sums.error(scale);
            if error < min {
                (min, fit.scales[g], fit.groups[g]) = (error, code, choice);
            }
        }
    }
    // With rows and codes fixed, the best `d` is another least-squares fit.
    let (mut lx, mut l2) = (0.0, 0.0);
    for (code, group) in fit.scales.iter().zip(&fit.groups) {
        let scale = f32::from(2 * code + 1);
        lx += scale * group.sums.lx;
        l2 += scale * scale * group.sums.l2;
    }
    if lx > 0.0 && l2 > 0.0 {
        d = lx / l2;
    }
    fit.d = super::to_f16(d).0;
    fit
}

/// Best scale of a group among the tried ones and their refinements. 0 for a group of zeros.
fn group_scale(
    search: &ScaleSearch,
    largest: f32,
    choose: impl Fn(f32, SearchEffort) -> GroupChoice,
) -> f32 {
    if largest < super::search::ALMOST_ZERO {
        return 0.0;
    }
    let mut best = BestScale { scale: 0.0, gain: 0.0 };
    for k in 0..search.count {
        best.improve(
            choose(largest / (search.low + search.step * k as f32), SearchEffort::Quick).sums,
        );
    }
    // Rows chosen for the best scale fit at least as well. More than two rounds do not help.
    for _ in 0..2 {
        if best.scale > 0.0 && !best.improve(choose(best.scale, SearchEffort::Thorough).sums) {
            break;
        }
    }
    best.scale
}

/// Best scale so far, and the part of the squared values that it explains.
struct BestScale {
    scale: f32,
    gain: f32,
}

impl BestScale {
    /// Replaces the scale by the best fit of some rows, if that explains more. Returns whether it
    /// did.
    fn improve(&mut self, sums: FitSums) -> bool {
        let better = sums.lx > 0.0 && sums.l2 > 0.0 && sums.lx * sums.lx > self.gain * sums.l2;
        if better {
            self.scale = sums.lx / sums.l2;
            self.gain = self.scale * sums.lx;
        }
        better
    }
}

#[cfg(test)]
mod tests {
    use super::simd::Job;
    use super::*;
    use crate::codebooks;

    #[test]
    fn tuples_list_their_nearest_rows_first() {
        let grid =
            Grid::<4>::new(&codebooks::IQ3_XXS, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 2);
        for tuple in 0..4096_u32 {
            let point: [f32; 4] = std::array::from_fn(|j| (tuple >> (3 * j) & 7) as f32);
            let distance = |row: &u16| -> f32 {
                grid.rows[usize::from(*row)].iter().zip(point).map(|(a, b)| (a - b) * (a - b)).sum()
            };
            let (start, end) =
                (grid.start[tuple as usize] as usize, grid.start[tuple as usize + 1] as usize);
            let near: Vec<f32> = grid.near[start..end].iter().map(distance).collect();
            let all: Vec<f32> = (0..256).map(|row| distance(&row)).collect();
            let min = all.iter().copied().fold(f32::MAX, f32::min);
            assert!(near.is_sorted() && near[0] == min, "{point:?}");
            let nearest = usize::from(grid.nearest[tuple as usize]);
            assert_eq!(nearest, all.iter().filter(|&&d| d == min).count(), "{point:?}");
            assert!(min > 0.0 || near.len() == 1, "{point:?}");
            assert!(near.len() == nearest || near[nearest] > min, "{point:?}");
        }
    }

    #[test]
    fn row_choices_are_bit_identical_with_and_without_simd() {
        let grid = Grid::<8>::new(&codebooks::IQ2_XXS, &[1.0, 3.125, 5.375], 2);
        let row = crate::reference::normal_row(6);
        let (x, w) = row.split_at(row.len() / 2);
        let w: Vec<f32> = w.iter().map(|w| w.abs()).collect();
        for (x, w) in x.as_chunks::<8>().0.chunks(4).zip(w.as_chunks::<8>().0.chunks(4)) {
            let job = || RowSearch {
                grid: &grid,
                x,
                w,
                scale: 0.4,
                shift: 0.0,
                effort: SearchEffort::Thorough,
            };
            let (wide, narrow) = (simd::run(job()), job().run());
            assert_eq!(wide.rows, narrow.rows);
            assert_eq!((wide.sums.lx, wide.sums.l2), (narrow.sums.lx, narrow.sums.l2));
        }
    }
}
