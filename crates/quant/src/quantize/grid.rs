//! Choosing rows of a codebook for `N` values at a given scale.

/// A row chosen for some values, and what a scale is fitted with.
#[derive(Clone, Copy, Default)]
pub(super) struct Choice {
    pub(super) row: u16,
    /// Σ w·x·v over the values, `v` being the row's levels.
    pub(super) lx: f32,
    /// Σ w·v².
    pub(super) l2: f32,
}

impl Choice {
    /// The squared error at a scale, up to the part that no choice changes.
    pub(super) fn error(&self, scale: f32) -> f32 {
        scale * scale * self.l2 - 2.0 * scale * self.lx
    }
}

/// A codebook with, for every tuple of rounded values, the rows worth comparing.
pub(super) struct Grid<const N: usize> {
    /// Level values of the rows.
    rows: Vec<[f32; N]>,
    /// Between which levels rounding changes over.
    midpoints: Vec<f32>,
    /// Place of tuple `t`'s rows in `near`: `near[start[t]..start[t + 1]]`. A tuple is a number to the base of the
    /// number of levels, first value lowest. A tuple that is a row itself has only that one.
    start: Vec<u32>,
    near: Vec<u16>,
}

impl<const N: usize> Grid<N> {
    /// A grid from packed level indices. Tuples outside it get the rows at the `distances` smallest distances, where
    /// a step between neighbouring levels counts as one.
    ///
    /// Compares every tuple with every row: some 10 to 100 million steps, so do it once and only when needed.
    pub(super) fn new(packed: &[u16], levels: &[f32], distances: usize) -> Self {
        let bits = levels.len().next_power_of_two().ilog2() as usize;
        let codes: Vec<[u8; N]> = packed
            .iter()
            .map(|row| std::array::from_fn(|j| (row >> (bits * j)) as u8 & ((1 << bits) - 1)))
            .collect();
        let rows = codes.iter().map(|row| row.map(|code| levels[usize::from(code)])).collect();
        let midpoints = levels.windows(2).map(|pair| 0.5 * (pair[0] + pair[1])).collect();
        let (mut start, mut near) = (vec![0], Vec::new());
        let mut squared = vec![0_u8; codes.len()];
        for tuple in 0..levels.len().pow(N as u32) {
            let place: [u8; N] =
                std::array::from_fn(|j| (tuple / levels.len().pow(j as u32) % levels.len()) as u8);
            // At most 4 · 7² or 8 · 2².
            for (squared, row) in squared.iter_mut().zip(&codes) {
                *squared = (0..N).map(|j| row[j].abs_diff(place[j]).pow(2)).sum();
            }
            let limit = distance_limit(&squared, distances);
            near.extend((0..codes.len()).filter(|&i| squared[i] <= limit).map(|i| i as u16));
            start.push(near.len() as u32);
        }
        Self { rows, midpoints, start, near }
    }

    /// The row nearest to `x` when its levels, moved by `shift`, are multiplied by `scale`; distances are weighted.
    #[inline(always)]
    pub(super) fn choose(&self, x: &[f32; N], w: &[f32; N], scale: f32, shift: f32) -> Choice {
        let mut codes = [0_u32; N];
        for midpoint in &self.midpoints {
            let boundary = scale * (midpoint + shift);
            for j in 0..N {
                codes[j] += u32::from(x[j] > boundary);
            }
        }
        let base = self.midpoints.len() as u32 + 1;
        let tuple = codes.iter().rev().fold(0, |tuple, code| tuple * base + code) as usize;
        let near = &self.near[self.start[tuple] as usize..self.start[tuple + 1] as usize];
        let mut best = near[0];
        if near.len() > 1 {
            let mut least = f32::INFINITY;
            for &row in near {
                let levels = &self.rows[usize::from(row)];
                let mut error = [0.0; N];
                for j in 0..N {
                    let diff = scale * (levels[j] + shift) - x[j];
                    error[j] = w[j] * diff * diff;
                }
                let error = sum(error);
                if error < least {
                    (least, best) = (error, row);
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
        Choice { row: best, lx: sum(lx), l2: sum(l2) }
    }
}

/// The largest of the `count` smallest distinct distances.
fn distance_limit(squared: &[u8], count: usize) -> u8 {
    let mut present = [false; 256];
    for &distance in squared {
        present[usize::from(distance)] = true;
    }
    if present[0] {
        return 0;
    }
    (0..=255).filter(|&d| present[usize::from(d)]).take(count).last().unwrap_or(255)
}

/// A sum in halves, which vectorises.
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

/// Choices for a group of values that share a scale: up to eight rows.
#[derive(Clone, Copy, Default)]
pub(super) struct GroupChoice {
    pub(super) rows: [u16; 8],
    pub(super) sums: Choice,
}

impl GroupChoice {
    pub(super) fn add(&mut self, index: usize, choice: Choice) {
        self.rows[index] = choice.row;
        self.sums.lx += choice.lx;
        self.sums.l2 += choice.l2;
    }
}

/// A block whose groups have the values `d · (2·scale + 1) · level`.
pub(super) struct BlockFit<const S: usize> {
    /// binary16 bits.
    pub(super) d: [u8; 2],
    pub(super) scales: [u8; S],
    pub(super) groups: [GroupChoice; S],
}

/// How the scale of a group is searched.
pub(super) struct ScaleSearch {
    /// Inverse scales tried: `low`, `low + step`, … (`count` of them) over the group's largest magnitude.
    pub(super) low: f32,
    pub(super) step: f32,
    pub(super) count: u32,
    /// The largest scale code, 7 or 15.
    pub(super) codes: u8,
}

/// Fits a block: a scale for each group, then `d` and the scale codes, then the rows again for what these can express.
///
/// `largest` holds the groups' largest magnitudes; `choose` picks the rows of a group for a scale.
pub(super) fn fit_block<const S: usize>(
    search: &ScaleSearch,
    largest: [f32; S],
    choose: impl Fn(usize, f32) -> GroupChoice,
) -> BlockFit<S> {
    let mut fit = BlockFit { d: [0; 2], scales: [0; S], groups: [GroupChoice::default(); S] };
    let wanted: [f32; S] = std::array::from_fn(|g| group_scale(search, largest[g], |scale| choose(g, scale)));
    let max = wanted.iter().fold(0.0_f32, |a, &b| a.max(b));
    let top = f32::from(2 * search.codes + 1);
    let mut d = super::half(max / top).1;
    if d == 0.0 {
        fit.groups = std::array::from_fn(|g| choose(g, 0.0));
        return fit;
    }
    for (g, wanted) in wanted.into_iter().enumerate() {
        let code = (0.5 * (wanted / d - 1.0)).round_ties_even().clamp(0.0, f32::from(search.codes)) as u8;
        let mut least = f32::INFINITY;
        for code in code.saturating_sub(1)..=(code + 1).min(search.codes) {
            let scale = d * f32::from(2 * code + 1);
            let choice = choose(g, scale);
            let error = choice.sums.error(scale);
            if error < least {
                (least, fit.scales[g], fit.groups[g]) = (error, code, choice);
            }
        }
    }
    // With rows and codes fixed, the best `d` is again a least-squares fit.
    let (mut lx, mut l2) = (0.0, 0.0);
    for (code, group) in fit.scales.iter().zip(&fit.groups) {
        let scale = f32::from(2 * code + 1);
        lx += scale * group.sums.lx;
        l2 += scale * scale * group.sums.l2;
    }
    if lx > 0.0 && l2 > 0.0 {
        d = lx / l2;
    }
    fit.d = super::half(d).0;
    fit
}

/// The scale that fits a group best among the tried ones and what follows from them; 0 for a group of zeros.
fn group_scale(search: &ScaleSearch, largest: f32, choose: impl Fn(f32) -> GroupChoice) -> f32 {
    if largest < super::search::ALMOST_ZERO {
        return 0.0;
    }
    let mut fitted = Fitted { scale: 0.0, gain: 0.0 };
    for k in 0..search.count {
        fitted.improve(choose(largest / (search.low + search.step * k as f32)).sums);
    }
    // Rows chosen for the fitted scale fit at least as well; two rounds are all that helps.
    for _ in 0..2 {
        if fitted.scale > 0.0 && !fitted.improve(choose(fitted.scale).sums) {
            break;
        }
    }
    fitted.scale
}

/// The best scale so far and how much of the squared values it explains.
struct Fitted {
    scale: f32,
    gain: f32,
}

impl Fitted {
    /// Takes over the scale that fits some rows best if it explains more.
    fn improve(&mut self, sums: Choice) -> bool {
        let better = sums.lx > 0.0 && sums.l2 > 0.0 && sums.lx * sums.lx > self.gain * sums.l2;
        if better {
            self.scale = sums.lx / sums.l2;
            self.gain = self.scale * sums.lx;
        }
        better
    }
}
