//! Round trips through quantization: errors, hostile values, rejected input.

use proptest::prelude::*;
use puna_quant::{
    QuantError, TensorType, dequantize, dequantizer, quantize, requires_importance, validate,
};

/// Types that [`quantize`] supports.
fn quantizable() -> impl Iterator<Item = TensorType> {
    use TensorType::*;
    TensorType::all().filter(|ty| !matches!(ty, I8 | I16 | I32 | I64 | F64))
}

fn packed_size(ty: TensorType, values: usize) -> Vec<u8> {
    vec![0xaa; ty.row_bytes(values).expect("whole blocks")]
}

/// Quantizes one row, with uniform weights if the type requires some, and dequantizes it.
fn round_trip(ty: TensorType, row: &[f32]) -> Result<Vec<f32>, QuantError> {
    let mut packed = packed_size(ty, row.len());
    let weights = vec![1.0; row.len()];
    quantize(ty, row, row.len(), requires_importance(ty).then_some(&weights), &mut packed)?;
    validate(ty, &packed).expect("what a quantizer makes is valid");
    let mut back = vec![f32::NAN; row.len()];
    dequantize(ty, &packed, &mut back).expect("whole blocks");
    Ok(back)
}

fn rms(values: impl ExactSizeIterator<Item = f32>) -> f64 {
    let n = values.len() as f64;
    (values.map(|v| f64::from(v).powi(2)).sum::<f64>() / n).sqrt()
}

/// Largest rms error for evenly distributed values, relative to their rms: about the type's
/// resolution.
fn relative_limit(ty: TensorType) -> f64 {
    use TensorType::*;
    match ty {
        F32 => 0.0,
        F16 => 4e-4,
        BF16 => 3e-3,
        Q8_0 | Q8_1 | Q8_K => 5e-3,
        Q6_K => 0.015,
        Q5_0 | Q5_1 | Q5_K => 0.04,
        Q4_0 | Q4_1 | Q4_K | IQ4_NL | IQ4_XS => 0.08,
        MXFP4 | NVFP4 => 0.16,
        Q3_K | IQ3_S => 0.18,
        IQ3_XXS => 0.22,
        Q2_K | IQ2_XXS | IQ2_XS | IQ2_S => 0.4,
        Q1_0 | Q2_0 | TQ1_0 | TQ2_0 | IQ1_S | IQ1_M => 0.6,
        I8 | I16 | I32 | I64 | F64 => unreachable!("no quantizer"),
    }
}

#[test]
fn integer_types_have_no_dequantizer_and_f64_has_no_quantizer() {
    use TensorType::*;
    for ty in [I8, I16, I32, I64] {
        assert_eq!(dequantize(ty, &[0; 8], &mut [0.0]), Err(QuantError::NoFloats { ty }));
        assert!(dequantizer(ty).is_none());
    }
    assert_eq!(
        quantize(F64, &[1.0], 1, None, &mut [0; 8]),
        Err(QuantError::NoQuantizer { ty: F64 })
    );
    let mut y = [0.0];
    dequantize(F64, &(-0.1_f64).to_le_bytes(), &mut y).expect("one value");
    assert_eq!(y, [-0.1]);
}

#[test]
fn mismatched_lengths_are_refused_by_name() {
    let ty = TensorType::Q4_K;
    let bytes = QuantError::Bytes { ty, values: 256, expected: 144, bytes: 143 };
    assert_eq!(dequantize(ty, &[0; 143], &mut [0.0; 256]), Err(bytes.clone()));
    assert_eq!(bytes.to_string(), "256 values of type Q4_K need 144 bytes, got 143");
    let partial = QuantError::PartialBlock { ty, values: 32, block: 256 };
    assert_eq!(dequantize(ty, &[0; 18], &mut [0.0; 32]), Err(partial.clone()));
    assert_eq!(quantize(ty, &[0.0; 32], 32, None, &mut [0; 18]), Err(partial));
    assert_eq!(
        quantize(TensorType::Q8_0, &[0.0; 96], 64, None, &mut [0; 102]),
        Err(QuantError::PartialRow { values: 96, row: 64 })
    );
    assert_eq!(
        quantize(ty, &[0.0; 256], 0, None, &mut [0; 144]),
        Err(QuantError::PartialBlock { ty, values: 0, block: 256 })
    );
    assert_eq!(
        validate(ty, &[0; 145]),
        Err(QuantError::PartialBytes { ty, bytes: 145, block: 144 })
    );
    assert_eq!(quantize(ty, &[], 256, None, &mut []), Ok(()));
}

#[test]
fn missing_and_invalid_importance_weights_are_refused() {
    let (ty, row) = (TensorType::IQ2_XS, [1.0; 512]);
    let mut out = [0; 148];
    assert_eq!(quantize(ty, &row, 256, None, &mut out), Err(QuantError::ImportanceRequired { ty }));
    assert_eq!(
        quantize(ty, &row, 256, Some(&[1.0; 512]), &mut out),
        Err(QuantError::ImportanceLength { found: 512, row: 256 })
    );
    let mut weights = [1.0; 256];
    weights[7] = -1.0;
    assert_eq!(
        quantize(ty, &row, 256, Some(&weights), &mut out),
        Err(QuantError::ImportanceValue { column: 7, value: "-1".into() })
    );
    weights[7] = 0.0;
    assert_eq!(quantize(ty, &row, 256, Some(&weights), &mut out), Ok(()));
}

#[test]
fn non_finite_values_are_refused() {
    for ty in quantizable() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut row = [0.5; 256];
            row[200] = bad;
            let error = round_trip(ty, &row).expect_err("a value that is not finite");
            assert_eq!(error, QuantError::NotFinite { ty, index: 200, value: bad.to_string() });
        }
    }
}

#[test]
fn a_scale_that_overflows_is_refused() {
    use TensorType::*;
    let row = [3e38; 256];
    for ty in quantizable() {
        let result = round_trip(ty, &row);
        match ty {
            F32 | BF16 | Q8_K | MXFP4 | NVFP4 => assert!(result.is_ok(), "{ty}: {result:?}"),
            F16 => assert_eq!(result, Err(QuantError::Invalid { ty, block: 0, field: "value" })),
            _ => {
                let value = 3e38_f32.to_string();
                assert_eq!(result, Err(QuantError::OutOfRange { ty, index: 0, value }));
                // Within the range of some types only.
                let large = round_trip(ty, &[2.5e8; 256]);
                assert!(
                    large.is_ok() == matches!(ty, Q6_K | IQ4_XS)
                        && matches!(large, Ok(_) | Err(QuantError::Invalid { .. })),
                    "{ty}: {large:?}"
                );
            }
        }
    }
}

#[test]
fn zeros_stay_zeros() {
    for ty in quantizable() {
        let back = round_trip(ty, &[0.0; 512]).expect("valid");
        assert!(back.iter().all(|&y| y == 0.0), "{ty}");
    }
}

#[test]
fn columns_with_zero_importance_do_not_harm_the_others() {
    for ty in quantizable() {
        let row: Vec<f32> = (0..256).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
        let weights: Vec<f32> = (0..256).map(|i| (i % 2) as f32).collect();
        let mut packed = packed_size(ty, 256);
        quantize(ty, &row, 256, Some(&weights), &mut packed).expect("a valid row");
        let mut back = vec![0.0; 256];
        dequantize(ty, &packed, &mut back).expect("whole blocks");
        let heard = |i: &usize| i % 2 == 1;
        let error =
            rms((0..256).filter(heard).map(|i| row[i] - back[i]).collect::<Vec<_>>().into_iter());
        assert!(error <= 1.2 * relative_limit(ty) * rms(row.into_iter()), "{ty}: {error}");
    }
}

#[test]
fn rows_are_quantized_independently() {
    for ty in quantizable() {
        let rows: Vec<f32> = (0..1024)
            .map(|i| ((i * 7919 % 1009) as f32 / 1009.0 - 0.4) * (1 + i / 512) as f32)
            .collect();
        let weights: Vec<f32> = (0..512).map(|i| 1.0 + (i % 5) as f32).collect();
        let mut together = packed_size(ty, 1024);
        quantize(ty, &rows, 512, Some(&weights), &mut together).expect("two valid rows");
        let mut apart = packed_size(ty, 1024);
        let half = apart.len() / 2;
        quantize(ty, &rows[..512], 512, Some(&weights), &mut apart[..half]).expect("a valid row");
        quantize(ty, &rows[512..], 512, Some(&weights), &mut apart[half..]).expect("a valid row");
        assert_eq!(together, apart, "{ty}");
    }
}

#[test]
fn validation_finds_every_non_finite_scale() {
    use TensorType::*;
    for (ty, offsets) in [
        (F16, &[0][..]),
        (Q4_0, &[0]),
        (Q4_1, &[0, 2]),
        (Q5_0, &[0]),
        (Q5_1, &[0, 2]),
        (Q8_0, &[0]),
        (Q8_1, &[0, 2]),
        (Q1_0, &[0]),
        (Q2_0, &[0]),
        (IQ4_NL, &[0]),
        (Q2_K, &[80, 82]),
        (Q3_K, &[108]),
        (Q4_K, &[0, 2]),
        (Q5_K, &[0, 2]),
        (Q6_K, &[208]),
        (TQ1_0, &[52]),
        (TQ2_0, &[64]),
        (IQ2_XXS, &[0]),
        (IQ2_XS, &[0]),
        (IQ2_S, &[0]),
        (IQ3_XXS, &[0]),
        (IQ3_S, &[0]),
        (IQ1_S, &[0]),
        (IQ4_XS, &[0]),
    ] {
        let mut data = vec![0x11; 200 * ty.block_bytes()];
        validate(ty, &data).expect("all fields are finite");
        for offset in offsets {
            let at = 150 * ty.block_bytes() + offset;
            for half in [0x7c00_u16, 0xfc00, 0x7e01] {
                data[at..at + 2].copy_from_slice(&half.to_le_bytes());
                let found = validate(ty, &data);
                assert!(
                    matches!(found, Err(QuantError::Invalid { block: 150, .. })),
                    "{ty} at {offset}: {found:?}"
                );
            }
            data[at..at + 2].copy_from_slice(&[0x11; 2]);
        }
    }
}

#[test]
fn validation_checks_special_scale_fields() {
    use TensorType::*;
    let invalid = |ty, field| Err(QuantError::Invalid { ty, block: 0, field });
    let infinity = f32::INFINITY.to_le_bytes();
    assert_eq!(validate(F32, &infinity), invalid(F32, "value"));
    assert_eq!(validate(F64, &f64::NAN.to_le_bytes()), invalid(F64, "value"));
    assert_eq!(validate(BF16, &[0x80, 0x7f]), invalid(BF16, "value"));
    let mut q8_k = [0; 292];
    q8_k[..4].copy_from_slice(&infinity);
    assert_eq!(validate(Q8_K, &q8_k), invalid(Q8_K, "d"));
    let mut mxfp4 = [0; 17];
    mxfp4[0] = 254;
    assert_eq!(validate(MXFP4, &mxfp4), Ok(()));
    mxfp4[0] = 255;
    assert_eq!(validate(MXFP4, &mxfp4), invalid(MXFP4, "e"));
    assert_eq!(validate(NVFP4, &[0xff; 36]), Ok(()));
    assert_eq!(validate(I32, &[0xff; 36]), Ok(()));
    // The scale of IQ1_M is in the high nibbles of the four scale words, lowest first.
    let mut iq1_m = [0; 56];
    iq1_m[53] = 0xc0;
    iq1_m[55] = 0x70;
    assert_eq!(validate(IQ1_M, &iq1_m), invalid(IQ1_M, "the scale in `scales`"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn errors_stay_within_the_types_resolution(
        row in prop::collection::vec(-1.0_f32..1.0, 512),
        scale in -6_i32..=6,
    ) {
        let row: Vec<f32> = row.iter().map(|x| x * 2_f32.powi(scale)).collect();
        for ty in quantizable() {
            let back = round_trip(ty, &row).expect("valid");
            let error = rms(row.iter().zip(&back).map(|(x, y)| x - y));
            let limit = relative_limit(ty) * rms(row.iter().copied());
            prop_assert!(error <= limit, "{}: {} over {}", ty, error, limit);
        }
    }

    #[test]
    fn powers_of_two_survive_quantization(
        row in prop::collection::vec(-1.0_f32..1.0, 256),
        power in 1_i32..=6,
    ) {
        let scaled: Vec<f32> = row.iter().map(|x| x * 2_f32.powi(power)).collect();
        // NVFP4's scales are too coarse for small values, and so is binary16 for single small
        // values.
        for ty in quantizable().filter(|ty| !matches!(ty, TensorType::NVFP4 | TensorType::F16)) {
            let small = round_trip(ty, &row).expect("valid");
            let large = round_trip(ty, &scaled).expect("valid");
            let expected: Vec<f32> = small.iter().map(|y| y * 2_f32.powi(power)).collect();
            prop_assert_eq!(large, expected, "{}", ty);
        }
    }

    #[test]
    fn arbitrary_finite_values_are_quantized_or_refused(bits in prop::collection::vec(any::<u32>(), 512), shift in 0_u32..8) {
        // From arbitrary floats to rows with similar magnitudes.
        let row: Vec<f32> = bits
            .iter()
            .map(|b| f32::from_bits(b & 0x80ff_ffff | (b >> shift & 0x7f00_0000)))
            .map(|x| if x.is_finite() { x } else { 0.0 })
            .collect();
        let max = row.iter().fold(0.0_f32, |a, x| a.max(x.abs()));
        for ty in quantizable() {
            match round_trip(ty, &row) {
                Ok(back) => prop_assert!(back.iter().all(|y| y.is_finite() && y.abs() <= 4.0 * max.max(1e-6)), "{}", ty),
                Err(e) => prop_assert!(
                    matches!(e, QuantError::Invalid { .. } | QuantError::OutOfRange { .. }),
                    "{}",
                    e
                ),
            }
        }
    }

    #[test]
    fn arbitrary_bytes_dequantize_without_panic(bytes in prop::collection::vec(any::<u8>(), 1200)) {
        for ty in TensorType::all() {
            let blocks = bytes.len() / ty.block_bytes();
            let data = &bytes[..blocks * ty.block_bytes()];
            let mut values = vec![0.0; blocks * ty.block_values()];
            let result = dequantize(ty, data, &mut values);
            prop_assert_eq!(result.is_ok(), dequantizer(ty).is_some());
            let _ = validate(ty, data);
        }
    }
}
