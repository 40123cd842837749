//! Fixed rows for comparing quantizers with other tools.

use crate::{QuantError, TensorType, dequantize, quantize, requires_importance};

/// Number of values in a fixed row.
pub const ROW_LEN: usize = 4096;

/// Error of quantizing and dequantizing the fixed row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantizationError {
    /// Root mean squared difference.
    pub rmse: f64,
    /// Largest absolute difference.
    pub max: f64,
}

/// Quantizes the fixed row to a type and measures the error.
///
/// The row is nearly normal with σ = 1 (row A of the format's reference vectors). Types that
/// require an importance matrix use the reference matrix.
pub fn quantize_error(ty: TensorType) -> Result<QuantizationError, QuantError> {
    let importance = requires_importance(ty).then(importance);
    error_of_row(ty, &normal_row(1), importance.as_deref())
}

/// Error of quantizing one row.
pub(crate) fn error_of_row(
    ty: TensorType,
    row: &[f32],
    importance: Option<&[f32]>,
) -> Result<QuantizationError, QuantError> {
    let values = row.len();
    let bytes = ty.row_bytes(values).ok_or(QuantError::PartialBlock {
        ty,
        values,
        block: ty.block_values(),
    })?;
    let mut packed = vec![0; bytes];
    quantize(ty, row, values, importance, &mut packed)?;
    let mut back = vec![0.0; values];
    dequantize(ty, &packed, &mut back)?;
    let differences = row.iter().zip(&back).map(|(x, y)| f64::from(*x) - f64::from(*y));
    let (sum, max) = differences
        .fold((0.0, 0.0_f64), |(sum, max), diff| (sum + diff * diff, max.max(diff.abs())));
    Ok(QuantizationError { rmse: (sum / values as f64).sqrt(), max })
}

/// Nearly normal numbers that every language can compute exactly: sums of twelve 20-bit draws of
/// splitmix64, shifted and scaled to mean 0 and σ = 1.
pub(crate) fn normal_row(seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut draw = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 44) as i64
    };
    let one = 1 << 20;
    (0..ROW_LEN)
        .map(|_| ((0..12).map(|_| draw()).sum::<i64>() - 6 * one) as f32 / one as f32)
        .collect()
}

/// Reference importance matrix: seven column weights that repeat.
pub(crate) fn importance() -> Vec<f32> {
    (0..ROW_LEN).map(|i| 0.5 + (i % 7) as f32 / 4.0).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn vectors() -> Value {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/quant-vectors.json");
        serde_json::from_slice(&std::fs::read(path).expect("the vectors are in the repository"))
            .expect("JSON")
    }

    fn digest(bytes: &[u8]) -> String {
        let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Row B: 0.02 times normal numbers, with an outlier at every 97th position.
    fn outlier_row() -> Vec<f32> {
        let mut row = normal_row(2);
        for (i, x) in row.iter_mut().enumerate() {
            *x *= 0.02;
            if i % 97 == 0 {
                *x *= 8.0;
            }
        }
        row
    }

    #[test]
    fn fixed_rows_match_the_published_digests() {
        let vectors = vectors();
        for (name, row) in [("A", normal_row(1)), ("B", outlier_row())] {
            let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
            assert_eq!(
                Value::String(digest(&bytes)),
                vectors["rows"][name]["sha256_le_f32"],
                "{name}"
            );
        }
    }

    /// Calls `check` for every type and row with the published values.
    fn each_case(check: impl Fn(TensorType, &str, &[f32], Option<&[f32]>, &Value)) {
        let vectors = vectors();
        let mut cases_seen = 0;
        for (name, entry) in vectors["types"].as_object().expect("types") {
            let ty = TensorType::from_name(name).expect("a known type");
            let Some(cases) = entry["quantizer_rms_4096"].as_object() else { continue };
            for (case, expected) in cases {
                let row = if case.starts_with('A') { normal_row(1) } else { outlier_row() };
                let importance = case.ends_with("rule").then(importance);
                check(ty, case, &row, importance.as_deref(), expected);
                cases_seen += 1;
            }
        }
        assert!(cases_seen >= 90, "only {cases_seen} cases");
    }

    fn is_codebook(ty: TensorType) -> bool {
        ty.name().starts_with("IQ")
    }

    #[test]
    fn non_codebook_types_quantize_to_the_reference_bytes() {
        each_case(|ty, case, row, importance, expected| {
            if !is_codebook(ty) {
                let mut packed = vec![0; ty.row_bytes(ROW_LEN).expect("whole blocks")];
                quantize(ty, row, ROW_LEN, importance, &mut packed).expect("a valid row");
                assert_eq!(Value::String(digest(&packed)), expected["sha256_bytes"], "{ty} {case}");
            }
        });
    }

    #[test]
    fn quantization_error_does_not_exceed_the_reference() {
        each_case(|ty, case, row, importance, expected| {
            let error = error_of_row(ty, row, importance).expect("a valid row");
            let weighted = weighted_rmse(ty, row, importance);
            for (what, ours, theirs) in [
                ("rmse", error.rmse, &expected["rms"]),
                ("weighted rmse", weighted, &expected["wrms"]),
            ] {
                let Some(theirs) = theirs.as_f64() else { continue };
                let limit = if is_codebook(ty) { 1.0 } else { 1.0 + 1e-8 };
                println!("{ty} {case}: {what} {ours:.7} of {theirs:.7}: {:.4}", ours / theirs);
                assert!(ours <= theirs * limit, "{ty} {case}: {what} {ours}, reference {theirs}");
            }
        });
    }

    fn weighted_rmse(ty: TensorType, row: &[f32], importance: Option<&[f32]>) -> f64 {
        let mut packed = vec![0; ty.row_bytes(ROW_LEN).expect("whole blocks")];
        quantize(ty, row, ROW_LEN, importance, &mut packed).expect("a valid row");
        let mut back = vec![0.0; ROW_LEN];
        dequantize(ty, &packed, &mut back).expect("whole blocks");
        let weight = |i: usize| importance.map_or(1.0, |w| f64::from(w[i]));
        let sum: f64 = (0..ROW_LEN).map(|i| weight(i) * f64::from(row[i] - back[i]).powi(2)).sum();
        (sum / (0..ROW_LEN).map(weight).sum::<f64>()).sqrt()
    }

    #[test]
    fn quantize_error_supports_every_float_type() {
        for ty in TensorType::all() {
            match quantize_error(ty) {
                Ok(error) => assert!(error.rmse <= error.max && error.max < 3.0, "{ty}: {error:?}"),
                Err(e) => assert_eq!(e, QuantError::NoQuantizer { ty }),
            }
        }
        assert_eq!(quantize_error(TensorType::F32), Ok(QuantizationError { rmse: 0.0, max: 0.0 }));
    }
}
