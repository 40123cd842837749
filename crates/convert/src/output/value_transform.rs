//! Functions of a tensor's values that conversion applies.

/// Function applied to each value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ValueTransform {
    None,
    Add(f32),
    Scale(f32),
    /// `-exp(x)`: folders store a decay rate as the logarithm of its magnitude.
    NegativeExp,
    /// `exp(x)`.
    Exp,
    /// Multiplies each band of rows by its own factor.
    ScaleBands(RowBands),
    /// Negates the second half of the rows of each head.
    NegateSecondHalves {
        head_dim: u64,
    },
    /// Rounds to the nearest of `-scale`, 0 and `scale`.
    RoundToTernary(f32),
}

/// Factors of five consecutive bands of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RowBands {
    /// First row behind each band except the last.
    pub(crate) ends: [u64; 4],
    pub(crate) factors: [f32; 5],
}

impl RowBands {
    fn factor(&self, row: u64) -> f32 {
        self.factors[self.ends.iter().filter(|&&end| end <= row).count()]
    }
}

impl ValueTransform {
    /// Applies the function to rows of `columns` values; `first_row` is the number of the first.
    pub(super) fn apply(self, values: &mut [f32], first_row: u64, columns: u64) {
        match self {
            ValueTransform::None => {}
            ValueTransform::Add(number) => values.iter_mut().for_each(|x| *x += number),
            ValueTransform::Scale(factor) => values.iter_mut().for_each(|x| *x *= factor),
            ValueTransform::NegativeExp => values.iter_mut().for_each(|x| *x = -x.exp()),
            ValueTransform::Exp => values.iter_mut().for_each(|x| *x = x.exp()),
            ValueTransform::ScaleBands(bands) => {
                scale_rows(values, first_row, columns, |row| bands.factor(row));
            }
            ValueTransform::NegateSecondHalves { head_dim } => {
                let sign = |row| if row % head_dim.max(1) < head_dim / 2 { 1.0 } else { -1.0 };
                scale_rows(values, first_row, columns, sign);
            }
            // Divides by the reciprocal, as the training code does, to get the same rounding.
            ValueTransform::RoundToTernary(scale) => {
                let inverse = 1.0 / scale;
                values.iter_mut().for_each(|x| {
                    *x = (*x * inverse).round_ties_even().clamp(-1.0, 1.0) / inverse;
                });
            }
        }
    }
}

/// Multiplies each row by a factor that depends on its number.
fn scale_rows(values: &mut [f32], first_row: u64, columns: u64, factor: impl Fn(u64) -> f32) {
    let rows = values.chunks_mut(usize::try_from(columns.max(1)).unwrap_or(usize::MAX));
    for (row, values) in (first_row..).zip(rows) {
        let factor = factor(row);
        values.iter_mut().for_each(|x| *x *= factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transforms_compute_the_expected_values() {
        let bands = RowBands { ends: [1, 2, 2, 4], factors: [1.0, 10.0, 0.0, 100.0, 1000.0] };
        let mut values = [1.0; 8];
        ValueTransform::ScaleBands(bands).apply(&mut values, 1, 2);
        assert_eq!(values, [10.0, 10.0, 100.0, 100.0, 100.0, 100.0, 1000.0, 1000.0]);
        let mut values = [0.0, 1.0];
        ValueTransform::NegativeExp.apply(&mut values, 0, 1);
        assert_eq!(values, [-1.0, -std::f32::consts::E]);
        let mut values = [1.0; 5];
        ValueTransform::NegateSecondHalves { head_dim: 4 }.apply(&mut values, 1, 1);
        assert_eq!(values, [1.0, -1.0, -1.0, 1.0, 1.0]);
        let mut values = [0.0, 0.7, -0.8, 5.0, -5.0, 0.25];
        ValueTransform::RoundToTernary(0.5).apply(&mut values, 0, 6);
        assert_eq!(values, [0.0, 0.5, -0.5, 0.5, -0.5, 0.0]);
    }
}
