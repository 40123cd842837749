//! Weights of the resampling filters, as whole numbers.

use std::f64::consts::PI;

/// Bits behind the binary point of a weight: 32, less 8 of a value and 2 for sums beyond its range.
pub(crate) const PRECISION_BITS: u32 = 32 - 8 - 2;

/// A resampling filter, with the definition and the name that Pillow uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Filter {
    /// A triangle of radius 1.
    Bilinear,
    /// A cubic of radius 2 with the parameter -0.5.
    Bicubic,
    /// A windowed sinc of radius 3.
    Lanczos,
}

impl Filter {
    /// Distance in source pixels at which the filter ends, if the picture is not made smaller.
    fn radius(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    /// The weight at a distance.
    fn weight(self, distance: f64) -> f64 {
        let x = distance.abs();
        match self {
            Self::Bilinear => (1.0 - x).max(0.0),
            Self::Bicubic => cubic(x),
            Self::Lanczos if x < 3.0 => sinc(x) * sinc(x / 3.0),
            Self::Lanczos => 0.0,
        }
    }
}

/// The cubic convolution with the parameter -0.5, for `x` of at least 0.
fn cubic(x: f64) -> f64 {
    /// The slope at a distance of 1.
    const A: f64 = -0.5;
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) }
}

/// The weights of every target pixel of a row or column.
pub(crate) struct WeightTable {
    windows: Vec<Window>,
    weights: Vec<i32>,
}

/// The source pixels that a target pixel is made of, and the place of their weights.
#[derive(Clone, Copy)]
struct Window {
    first: usize,
    length: usize,
    weights: usize,
}

impl WeightTable {
    /// Computes the weights for a side that changes from `source` to `target` pixels.
    ///
    /// Rounding and the order of operations are Pillow's: other ones change results by 1.
    pub fn new(source: u32, target: u32, filter: Filter) -> Self {
        let scale = f64::from(source) / f64::from(target);
        let filter_scale = scale.max(1.0);
        let support = filter.radius() * filter_scale;
        let inverse = 1.0 / filter_scale;
        let mut table = Self { windows: Vec::with_capacity(target as usize), weights: Vec::new() };
        let mut values = Vec::new();
        for x in 0..target {
            let center = (f64::from(x) + 0.5) * scale;
            // Conversion to an integer cuts off the fraction, and negative numbers become 0.
            let first = (center - support + 0.5) as u32;
            let last = ((center + support + 0.5) as u32).min(source);
            values.clear();
            values.extend(
                (first..last)
                    .map(|pixel| filter.weight((f64::from(pixel) - center + 0.5) * inverse)),
            );
            table.push(first as usize, &values);
        }
        table
    }

    /// Appends the window of the next target pixel, with weights of the sum 1.
    fn push(&mut self, first: usize, values: &[f64]) {
        let sum: f64 = values.iter().sum();
        let window = Window { first, length: values.len(), weights: self.weights.len() };
        self.windows.push(window);
        self.weights.extend(values.iter().map(|&value| {
            let weight = if sum == 0.0 { value } else { value / sum };
            let fixed = weight * f64::from(1 << PRECISION_BITS);
            (if weight < 0.0 { fixed - 0.5 } else { fixed + 0.5 }) as i32
        }));
    }

    /// The first source pixel of a target pixel, and the weights from there on.
    pub fn window(&self, target: usize) -> (usize, &[i32]) {
        let Window { first, length, weights } = self.windows[target];
        (first, &self.weights[weights..weights + length])
    }

    /// Number of target pixels.
    pub fn len(&self) -> usize {
        self.windows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_the_size_averages_with_a_triangle() {
        let table = WeightTable::new(4, 2, Filter::Bilinear);
        // Distances of 0.25 and 0.75 radii: weights of 3/7, 3/7 and 1/7.
        let (first, weights) = table.window(0);
        assert_eq!((first, weights.len()), (0, 3));
        assert_eq!(weights, [1_797_559, 1_797_559, 599_186]);
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn weights_of_all_windows_have_the_sum_one() {
        for filter in [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos] {
            for (source, target) in [(1, 1), (1, 9), (9, 1), (7, 5), (5, 7), (65_535, 3), (3, 999)]
            {
                let table = WeightTable::new(source, target, filter);
                for x in 0..table.len() {
                    let (first, weights) = table.window(x);
                    let sum: i64 = weights.iter().copied().map(i64::from).sum();
                    let error = (sum - (1 << PRECISION_BITS)).unsigned_abs();
                    assert!(error <= weights.len() as u64, "{filter:?} {source} {target} {x}");
                    assert!(!weights.is_empty() && first + weights.len() <= source as usize);
                }
            }
        }
    }

    #[test]
    fn filters_are_one_at_their_center_and_zero_at_their_ends() {
        for filter in [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos] {
            assert_eq!(filter.weight(0.0), 1.0);
            assert_eq!(filter.weight(filter.radius()), 0.0);
            assert_eq!(filter.weight(-0.3), filter.weight(0.3));
        }
    }
}
