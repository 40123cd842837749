//! Comparison of results with references.

/// What a step must return, row after row.
#[derive(Debug, Clone)]
pub(super) enum Expected {
    /// Values within a tolerance. The operation does not define values that are NaN here.
    Values(Vec<f64>),
    /// Exact bits of each value; the operation does not define the others.
    Bits(Vec<Option<u32>>),
}

/// Largest error of a row of `cols` values, as normalized mean squared error.
///
/// The error of a row is `Σ (got - want)² / max(Σ want², mean of Σ want² over all rows)`. So one
/// wrong row counts in full among many, and a row near zero does not count relative to its own
/// size. A value that is not finite is an infinite error.
pub(super) fn nmse(got: &[f32], want: &[f64], cols: usize) -> f64 {
    let defined = |row: &[f64]| row.iter().any(|x| !x.is_nan());
    let energy = |row: &[f64]| row.iter().filter(|x| !x.is_nan()).map(|x| x * x).sum::<f64>();
    let rows = || want.chunks_exact(cols).filter(|row| defined(row));
    let mean = rows().map(energy).sum::<f64>() / rows().count().max(1) as f64;
    let error = |(got, want): (&[f32], &[f64])| -> f64 {
        let pairs = got.iter().zip(want).filter(|(_, want)| !want.is_nan());
        pairs.map(|(&got, want)| (f64::from(got) - want).powi(2)).sum()
    };
    let relative = |row: (&[f32], &[f64])| match error(row) {
        0.0 => 0.0,
        error if error.is_finite() => error / energy(row.1).max(mean),
        _ => f64::INFINITY,
    };
    got.chunks_exact(cols).zip(want.chunks_exact(cols)).map(relative).fold(0.0, f64::max)
}

/// Why a result of `cols` columns is wrong; `None` if it is right.
pub(super) fn mismatch(
    got: &[f32],
    want: &Expected,
    cols: usize,
    tolerance: f64,
) -> Option<String> {
    let len = match want {
        Expected::Values(want) => want.len(),
        Expected::Bits(want) => want.len(),
    };
    if got.len() != len {
        return Some(format!("{} values, not {len}", got.len()));
    }
    match want {
        Expected::Values(want) => {
            let error = nmse(got, want, cols);
            (error > tolerance).then(|| format!("nmse {error:.1e} > {tolerance:.0e}"))
        }
        Expected::Bits(want) => {
            let differs =
                |(got, want): (&f32, &Option<u32>)| want.is_some_and(|x| x != got.to_bits());
            let at = got.iter().zip(want).position(differs)?;
            let (row, col) = (at / cols, at % cols);
            let (got, want) = (got[at].to_bits(), want[at].unwrap_or_default());
            Some(format!("row {row}, column {col} has the bits {got:#x}, not {want:#x}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_row_counts_relative_to_the_average_row() {
        let want = [3.0, 4.0, 0.0, 0.0, 0.0, 5.0];
        assert_eq!(nmse(&[3.0, 4.0, 0.0, 0.0, 0.0, 5.0], &want, 2), 0.0);
        // The mean of the squared norms is 50 / 3.
        assert_eq!(nmse(&[3.0, 4.0, 1.0, 0.0, 0.0, 5.0], &want, 2), 3.0 / 50.0);
        assert_eq!(nmse(&[3.0, 4.0, 0.0, 0.0, 0.0, 4.0], &want, 2), 1.0 / 25.0);
    }

    #[test]
    fn undefined_values_do_not_count_and_others_must_be_finite() {
        let want = [f64::NAN, f64::NAN, 1.0, f64::NAN];
        assert_eq!(nmse(&[7.0, f32::NAN, 1.0, 9.0], &want, 2), 0.0);
        assert_eq!(nmse(&[7.0, 7.0, f32::NAN, 9.0], &want, 2), f64::INFINITY);
        assert_eq!(nmse(&[1e-9], &[0.0], 1), f64::INFINITY);
    }

    #[test]
    fn only_defined_bits_are_compared() {
        let want = Expected::Bits(vec![Some(1), None, Some(3)]);
        let bits = |bits: [u32; 3]| bits.map(f32::from_bits);
        assert_eq!(mismatch(&bits([1, 8, 3]), &want, 3, 0.0), None);
        let reason = mismatch(&bits([1, 8, 4]), &want, 3, 0.0).unwrap();
        assert_eq!(reason, "row 0, column 2 has the bits 0x4, not 0x3");
        assert_eq!(mismatch(&[], &want, 3, 0.0).unwrap(), "0 values, not 3");
    }
}
