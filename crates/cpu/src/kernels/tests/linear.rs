//! Products of every level and format against the portable ones.

use puna_quant::TensorType;

use super::data::{Random, Rounded, half_fields, others, weights};
use crate::kernels::{ActKind, Level, LinearFn, OutMut, Scratch, WeightRows, is_weight_type, levels};

fn run(f: LinearFn, w: WeightRows<'_>, acts: crate::kernels::Acts<'_>) -> Vec<f32> {
    let rows = acts.rows();
    // One column more than is written, to see that it stays.
    let stride = w.rows + 1;
    let mut out = vec![f32::NAN; rows * stride];
    f(w, acts, OutMut::new(&mut out, stride, rows, w.rows), &mut Scratch::default());
    for row in out.chunks_mut(stride) {
        assert!(row[w.rows].is_nan(), "wrote past the columns");
    }
    (0..rows).flat_map(|t| out[t * stride..][..w.rows].to_vec()).collect()
}

/// Products with rounded activations may differ from those with the same values in f32 only by rounding of sums:
/// 2⁻²⁰ of `Σ (|w| + offset) · |x|`, the offset being what a level adds to codes to make them unsigned.
fn compare(level: &Level, ty: TensorType, rows: usize, k: usize, tokens: &[usize], random: &mut Random) {
    let data = weights(ty, rows, k, random);
    // Misaligned on purpose, and no byte after the last row.
    let mut shifted = vec![0; data.len() + 1];
    shifted[1..].copy_from_slice(&data);
    let w = WeightRows { ty, rows, k, data: &shifted[1..] };
    let kernel = (level.linear)(ty).unwrap();
    let oracle = (levels()[0].linear)(ty).unwrap();
    let mut values = vec![0.0; rows * k];
    puna_quant::dequantize(ty, &data, &mut values).unwrap();
    for &m in tokens {
        let exact = random.normals(m * k);
        let (x, acts_exact);
        match kernel.acts {
            ActKind::F32 => {
                x = Rounded { rows: m, k, exact, codes: vec![], scales: vec![], sums: vec![] };
                acts_exact = x.exact.clone();
            }
            ActKind::Q8 => {
                x = Rounded::new(m, k, exact);
                acts_exact = x.rounded();
            }
        }
        let expected = run(oracle.stream, w, crate::kernels::Acts::F32 { rows: m, k, x: &acts_exact });
        for (regime, f) in [("stream", kernel.stream), ("batch", kernel.batch), ("panel", kernel.panel)] {
            let acts = if kernel.acts == ActKind::F32 { x.f32() } else { x.q8() };
            let got = run(f, w, acts);
            for (i, (got, want)) in got.iter().zip(&expected).enumerate() {
                let (t, r) = (i / rows, i % rows);
                let row = &values[r * k..][..k];
                let largest = row.iter().fold(0.0f32, |m, w| m.max(w.abs()));
                let scale: f32 =
                    row.iter().zip(&acts_exact[t * k..]).map(|(w, x)| (w.abs() + largest) * x.abs()).sum();
                assert!(
                    (got - want).abs() <= 1e-6 * scale + 1e-30,
                    "{} {ty} {regime}: {m} tokens, {rows} rows of {k}, product ({t}, {r}) is {got}, not {want} (scale {scale})",
                    level.name
                );
            }
        }
    }
}

/// The formats that a level has.
fn formats(level: &Level) -> impl Iterator<Item = TensorType> {
    TensorType::all().filter(|&ty| (level.linear)(ty).is_some())
}

#[test]
fn every_level_has_a_kernel_for_every_weight_format() {
    for level in levels() {
        for ty in TensorType::all() {
            assert_eq!((level.linear)(ty).is_some(), is_weight_type(ty), "{} {ty}", level.name);
        }
    }
}

#[test]
fn products_agree_for_one_to_forty_rows_and_tokens() {
    let mut random = Random(11);
    for level in others() {
        for ty in formats(level) {
            let block = ty.block_values().max(32);
            for rows in [1, 2, 15, 16, 17, 40] {
                compare(level, ty, rows, block * 2, &[1, 2, 3, 4, 5, 13, 33], &mut random);
            }
        }
    }
}

#[test]
fn products_agree_for_one_to_many_blocks() {
    let mut random = Random(12);
    for level in others() {
        for ty in formats(level) {
            let block = ty.block_values().max(32);
            for blocks in [1, 3, 5, 9, 2560 / block + 1] {
                compare(level, ty, 19, block * blocks, &[1, 4, 7, 26], &mut random);
            }
        }
    }
}

#[test]
fn float_rows_may_have_any_length() {
    let mut random = Random(13);
    for level in others() {
        for ty in [TensorType::F32, TensorType::F16, TensorType::BF16] {
            for k in [1, 7, 33, 255, 257, 600] {
                compare(level, ty, 18, k, &[1, 3, 4, 29], &mut random);
            }
        }
    }
}

#[test]
fn many_tokens_cross_the_bounds_of_blocks_of_tokens() {
    let mut random = Random(14);
    for level in others() {
        for ty in [TensorType::F16, TensorType::Q4_K, TensorType::Q8_0, TensorType::Q6_K] {
            compare(level, ty, 17, 512, &[241, 500], &mut random);
        }
    }
}

/// Where every scale is one, weights and activations are integers and so are all sums: any order gives the same bits.
#[test]
fn products_of_integers_are_exact() {
    use TensorType::*;
    let mut random = Random(15);
    for level in levels() {
        for ty in [
            Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, TQ1_0, TQ2_0,
            Q1_0, Q2_0,
        ] {
            let (k, rows, m) = (512, 18, 9);
            let mut data = weights(ty, rows, k, &mut random);
            for block in data.chunks_exact_mut(ty.block_bytes()) {
                for &at in half_fields(ty) {
                    block[at..at + 2].copy_from_slice(&half::f16::ONE.to_le_bytes());
                }
                if ty == MXFP4 {
                    block[0] = 128; // doubled values times one
                }
            }
            // One value of each block is ±127, so that its scale is one; the rest are small: sums stay below 2²⁴.
            let mut exact: Vec<f32> = (0..m * k).map(|_| (random.next() % 5) as f32 - 2.0).collect();
            for block in exact.as_chunks_mut::<32>().0 {
                block[(random.next() % 32) as usize] =
                    if random.next().is_multiple_of(2) { 127.0 } else { -127.0 };
            }
            let mut values = vec![0.0; rows * k];
            puna_quant::dequantize(ty, &data, &mut values).unwrap();
            let x = Rounded::new(m, k, exact);
            let expected: Vec<f32> = (0..m * rows)
                .map(|i| {
                    let (w, x) = (&values[i % rows * k..][..k], &x.exact[i / rows * k..]);
                    w.iter().zip(x).map(|(w, x)| (*w as i64) * (*x as i64)).sum::<i64>() as f32
                })
                .collect();
            let w = WeightRows { ty, rows, k, data: &data };
            let kernel = (level.linear)(ty).unwrap();
            for f in [kernel.stream, kernel.batch, kernel.panel] {
                let acts = if kernel.acts == ActKind::F32 { x.f32() } else { x.q8() };
                assert_eq!(run(f, w, acts), expected, "{} {ty}", level.name);
            }
        }
    }
}

#[test]
fn zero_scales_give_zero_and_broken_ones_no_panic() {
    for level in levels() {
        for ty in formats(level) {
            let k = ty.block_values().max(32) * 3;
            let kernel = (level.linear)(ty).unwrap();
            let x = Rounded::new(7, k, Random(16).normals(7 * k));
            for byte in [0, 0xff, 0x7c, 0x80] {
                let data = vec![byte; 17 * ty.row_bytes(k).unwrap()];
                let w = WeightRows { ty, rows: 17, k, data: &data };
                for f in [kernel.stream, kernel.batch, kernel.panel] {
                    let out = run(f, w, if kernel.acts == ActKind::F32 { x.f32() } else { x.q8() });
                    // MXFP4's smallest scale is 2⁻¹²⁸, not zero: offsets cancel to that rounding.
                    assert!(byte != 0 || out.iter().all(|&y| y.abs() < 1e-30), "{} {ty}", level.name);
                }
            }
        }
    }
}

#[test]
fn a_nan_in_one_row_stays_in_its_products() {
    let mut random = Random(17);
    for level in levels() {
        for ty in formats(level) {
            let k = ty.block_values().max(32) * 2;
            let kernel = (level.linear)(ty).unwrap();
            let data = weights(ty, 20, k, &mut random);
            let mut exact = random.normals(6 * k);
            exact[2 * k + 5] = f32::NAN;
            let x = Rounded::new(6, k, exact);
            let w = WeightRows { ty, rows: 20, k, data: &data };
            for f in [kernel.stream, kernel.batch, kernel.panel] {
                let out = run(f, w, if kernel.acts == ActKind::F32 { x.f32() } else { x.q8() });
                for (i, y) in out.iter().enumerate() {
                    assert_eq!(
                        y.is_nan(),
                        i / 20 == 2,
                        "{} {ty}: product ({}, {})",
                        level.name,
                        i / 20,
                        i % 20
                    );
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "bytes of weights")]
fn weights_that_end_early_are_refused() {
    let kernel = (crate::kernels::best().linear)(TensorType::F16).unwrap();
    let x = Rounded::new(1, 64, vec![1.0; 64]);
    let w = WeightRows { ty: TensorType::F16, rows: 2, k: 64, data: &[0; 255] };
    run(kernel.stream, w, x.f32());
}
