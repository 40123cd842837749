//! Products of every level and format against the portable ones.

use puna_kernels::{
    AMX_SLICE, ActKind, Acts, Level, LinearFn, LinearKernel, OutMut, Scratch, TILE_ROWS, TileRows,
    WeightRows, is_weight_type, level, levels, slice_len,
};
use puna_quant::TensorType;

use super::data::{
    Guarded, Random, Rounded, all, bf16, half_fields, is_emulated_processor, others, tiles, weights,
};

fn run(f: LinearFn, w: WeightRows<'_>, acts: Acts<'_>) -> Vec<f32> {
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

/// One function of a kernel with activations in one form that it takes.
struct KernelCase<'a> {
    name: &'static str,
    f: LinearFn,
    acts: Acts<'a>,
    /// bf16 that a weight and an activation are rounded to; 0 where they are not.
    parts: usize,
}

fn kernel_cases<'a>(kernel: &LinearKernel, x: &'a Rounded) -> Vec<KernelCase<'a>> {
    let acts = if kernel.acts == ActKind::F32 { x.f32() } else { x.q8() };
    let parts = kernel.bf16_parts;
    let mut cases = vec![
        KernelCase { name: "stream", f: kernel.stream, acts, parts: 0 },
        KernelCase { name: "panel", f: kernel.panel, acts, parts },
    ];
    if kernel.tiles.is_some() {
        cases.push(KernelCase { name: "panel of tiles", f: kernel.panel, acts: x.tiles(), parts });
    }
    cases
}

/// Each value rounded to `parts` bf16, or as it is for 0.
fn rounded(x: &[f32], parts: usize) -> Vec<f32> {
    x.iter().map(|&x| if parts == 0 { x } else { bf16(x, parts) }).collect()
}

/// Products with rounded activations may differ from those with the same values in f32 only by
/// rounding of sums: 2⁻²⁰ of `Σ (|w| + offset) · |x|`, the offset being what a level adds to codes
/// to make them unsigned; where values have two parts, the product of the second parts is left out:
/// up to 2⁻¹⁶.
fn compare(
    level: &Level,
    ty: TensorType,
    rows: usize,
    k: usize,
    tokens: &[usize],
    random: &mut Random,
) {
    let data = weights(ty, rows, k, random);
    // Misaligned mostly, and no byte after the last row.
    let guarded = Guarded::new(&data);
    let w = WeightRows { ty, rows, k, data: guarded.bytes() };
    let kernel = (level.linear)(ty).unwrap();
    let oracle = (levels()[0].linear)(TensorType::F32).unwrap();
    let mut values = vec![0.0; rows * k];
    puna_quant::dequantize(ty, &data, &mut values).unwrap();
    for &m in tokens {
        let exact = random.normals(m * k);
        let x = if kernel.acts == ActKind::F32 {
            let tiles = tiles(&exact, m, k);
            Rounded { rows: m, k, exact, codes: vec![], scales: vec![], sums: vec![], tiles }
        } else {
            Rounded::new(m, k, exact)
        };
        for KernelCase { name, f, acts, parts } in kernel_cases(&kernel, &x) {
            let seen = if matches!(acts, Acts::Q8(_)) { x.rounded() } else { x.exact.clone() };
            let (seen, values) = (rounded(&seen, parts), rounded(&values, parts));
            let bytes: Vec<u8> = values.iter().flat_map(|w| w.to_le_bytes()).collect();
            let plain = WeightRows { ty: TensorType::F32, rows, k, data: &bytes };
            let expected = run(oracle.stream, plain, Acts::F32 { rows: m, k, x: &seen });
            let got = run(f, w, acts);
            let tolerance = if parts > 1 { 1.6e-5 } else { 1e-6 };
            for (i, (got, want)) in got.iter().zip(&expected).enumerate() {
                let (t, r) = (i / rows, i % rows);
                let row = &values[r * k..][..k];
                let largest = row.iter().fold(0.0f32, |m, w| m.max(w.abs()));
                let scale: f32 = row
                    .iter()
                    .zip(&seen[t * k..])
                    .map(|(w, x)| (w.abs() + largest) * x.abs())
                    .sum();
                assert!(
                    (got - want).abs() <= tolerance * scale + 1e-30,
                    "{} {ty} {name}: {m} tokens, {rows} rows of {k}, product ({t}, {r}) is {got}, not {want} (scale {scale})",
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

/// Has small shapes, so that Miri can run it in minutes.
#[test]
fn portable_products_of_every_format_equal_f32_products() {
    let (portable, mut random) = (levels()[0], Random(7));
    let (rows, tokens): (_, &[usize]) = if cfg!(miri) { (1, &[1]) } else { (3, &[1, 3]) };
    for ty in formats(portable) {
        compare(portable, ty, rows, 256, tokens, &mut random);
    }
}

#[test]
fn every_level_has_a_kernel_for_every_weight_format() {
    for level in all() {
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

/// Each of up to 17 streamed activation rows has the products that it has alone.
fn alone_as_in_company(level: &Level, ty: TensorType, rows: usize, k: usize, random: &mut Random) {
    const MOST: usize = 17;
    let (data, x) = (weights(ty, rows, k, random), random.normals(MOST * k));
    let w = WeightRows { ty, rows, k, data: &data };
    let kernel = (level.linear)(ty).unwrap();
    let products = |x: &[f32]| {
        let x = Rounded::new(x.len() / k, k, x.to_vec());
        run(kernel.stream, w, if kernel.acts == ActKind::Q8 { x.q8() } else { x.f32() })
    };
    let alone: Vec<_> = x.chunks_exact(k).flat_map(products).collect();
    let counts =
        if is_emulated_processor() { vec![1, 2, 3, 6, 8, MOST] } else { (1..=MOST).collect() };
    for n in counts {
        let together = products(&x[..n * k]);
        for (t, (got, want)) in
            together.chunks_exact(rows).zip(alone.chunks_exact(rows)).enumerate()
        {
            assert!(got == want, "{} {ty}: row {t} of {n}, {k} values", level.name);
        }
    }
}

#[test]
fn streamed_rows_have_the_same_bits_alone_and_in_a_batch() {
    let mut random = Random(19);
    for level in all() {
        for ty in formats(level) {
            alone_as_in_company(level, ty, 5, ty.block_values().max(32) * 3, &mut random);
        }
    }
}

/// So long that weight rows take turns for tiles of any size, the last chunk of 256 not whole where
/// blocks allow.
#[test]
fn long_streamed_rows_have_the_same_bits_in_any_batch() {
    use TensorType::*;
    let mut random = Random(20);
    for level in all() {
        for ty in [Q8_0, Q4_0, Q4_K, Q6_K, IQ4_XS, MXFP4, TQ2_0, Q1_0, TQ1_0, IQ1_M, IQ3_S, IQ2_XS]
        {
            let k = (64 * 256 + 288usize).next_multiple_of(ty.block_values());
            alone_as_in_company(level, ty, 6, k, &mut random);
            if level.name != "portable" {
                compare(level, ty, 6, k, &[1, 2, 4, 8], &mut random);
            }
        }
    }
}

/// Many rows end in the chunk of 256 weights that the data ends in.
#[test]
fn rows_shorter_than_a_chunk_are_read_exactly_to_their_end() {
    let mut random = Random(21);
    for level in others() {
        for ty in formats(level).filter(|ty| ty.block_values() <= 64) {
            for k in [64, 128, 192] {
                compare(level, ty, 33, k, &[1, 3, 20], &mut random);
            }
        }
    }
}

#[test]
fn products_agree_for_one_to_many_blocks() {
    let cases: Vec<_> =
        others().flat_map(|level| formats(level).map(move |ty| (level, ty))).collect();
    // By far the longest of these tests, on processors that are emulated.
    std::thread::scope(|scope| {
        for part in 0..2 {
            let cases = cases.iter().skip(part).step_by(2);
            scope.spawn(move || {
                let mut random = Random(12 + part as u64);
                for &(level, ty) in cases {
                    let block = ty.block_values().max(32);
                    let counts = [1, 3, 5, 9, 2560 / block + 1];
                    for &blocks in &counts[..if is_emulated_processor() { 4 } else { 5 }] {
                        compare(level, ty, 19, block * blocks, &[1, 4, 7, 26], &mut random);
                    }
                }
            });
        }
    });
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
fn products_agree_across_the_bounds_of_token_blocks() {
    let mut random = Random(14);
    for level in others() {
        for ty in [TensorType::F16, TensorType::Q4_K, TensorType::Q8_0, TensorType::Q6_K] {
            let tokens = if is_emulated_processor() { &[241][..] } else { &[241, 500] };
            compare(level, ty, 17, 512, tokens, &mut random);
        }
    }
}

/// If every scale is one, weights, activations and sums are integers, so that any order of
/// additions gives the same bits.
#[test]
fn products_of_integers_are_exact() {
    use TensorType::*;
    let mut random = Random(15);
    for level in all() {
        for ty in [
            Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS,
            TQ1_0, TQ2_0, Q1_0, Q2_0,
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
            // One value of each block is ±127, so that its scale is one; the rest are small: sums
            // stay below 2²⁴.
            let mut exact: Vec<f32> =
                (0..m * k).map(|_| (random.next() % 5) as f32 - 2.0).collect();
            for block in exact.as_chunks_mut::<32>().0 {
                block[(random.next() % 32) as usize] =
                    if random.next().is_multiple_of(2) { 127.0 } else { -127.0 };
            }
            let mut values = vec![0.0; rows * k];
            puna_quant::dequantize(ty, &data, &mut values).unwrap();
            let x = Rounded::new(m, k, exact);
            let w = WeightRows { ty, rows, k, data: &data };
            let kernel = (level.linear)(ty).unwrap();
            for KernelCase { name, f, acts, parts } in kernel_cases(&kernel, &x) {
                let values = rounded(&values, parts);
                let product = |i: usize| {
                    let (w, x) = (&values[i % rows * k..][..k], &x.exact[i / rows * k..]);
                    w.iter().zip(x).map(|(w, x)| (*w as i64) * (*x as i64)).sum::<i64>() as f32
                };
                let expected: Vec<f32> = (0..m * rows).map(product).collect();
                assert_eq!(run(f, w, acts), expected, "{} {ty} {name}", level.name);
            }
        }
    }
}

#[test]
fn zero_scales_give_zero_and_broken_ones_no_panic() {
    for level in all() {
        for ty in formats(level) {
            let k = ty.block_values().max(32) * 3;
            let kernel = (level.linear)(ty).unwrap();
            let x = Rounded::new(7, k, Random(16).normals(7 * k));
            for byte in [0, 0xff, 0x7c, 0x80] {
                let data = vec![byte; 17 * ty.row_bytes(k).unwrap()];
                let w = WeightRows { ty, rows: 17, k, data: &data };
                for KernelCase { f, acts, .. } in kernel_cases(&kernel, &x) {
                    let out = run(f, w, acts);
                    // MXFP4's smallest scale is 2⁻¹²⁸, not zero: offsets cancel to that rounding.
                    assert!(
                        byte != 0 || out.iter().all(|&y| y.abs() < 1e-30),
                        "{} {ty}",
                        level.name
                    );
                }
            }
        }
    }
}

#[test]
fn a_nan_in_one_row_stays_in_its_products() {
    let mut random = Random(17);
    for level in all() {
        for ty in formats(level) {
            let k = ty.block_values().max(32) * 2;
            let kernel = (level.linear)(ty).unwrap();
            let data = weights(ty, 20, k, &mut random);
            let mut exact = random.normals(6 * k);
            exact[2 * k + 5] = f32::NAN;
            let x = Rounded::new(6, k, exact);
            let w = WeightRows { ty, rows: 20, k, data: &data };
            for KernelCase { f, acts, .. } in kernel_cases(&kernel, &x) {
                let out = run(f, w, acts);
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
fn rows_are_interleaved_as_the_layout_says() {
    let mut random = Random(18);
    for level in all() {
        let Some(form) = (level.linear)(TensorType::F16).unwrap().tiles else { continue };
        for (rows, k) in [(1, 7), (5, 32), (16, 256), (17, 300), (40, 545)] {
            let mut x = random.normals(rows * k);
            x[rows * k / 2] = f32::INFINITY;
            let expected = tiles(&x, rows, k);
            for parts in [1, 2] {
                let mut got = vec![0xffff; parts * TileRows::part(rows, k)];
                for slice in 0..k.div_ceil(AMX_SLICE) {
                    for tile in 0..rows.div_ceil(TILE_ROWS) {
                        let (first, len) = (tile * TILE_ROWS, slice_len(k, slice));
                        let count = (rows - first).min(TILE_ROWS);
                        let x = &x[first * k + slice * AMX_SLICE..][..(count - 1) * k + len];
                        let (high, low) = got.split_at_mut(TileRows::part(rows, k));
                        let piece = TileRows::piece(rows, k, tile, slice);
                        let low = if parts > 1 { &mut low[piece.clone()] } else { &mut [] };
                        (form.interleave)(x, k, count, len, &mut high[piece], low);
                    }
                }
                // Infinity results in any NaN.
                let plain = |x: &u16| if half::bf16::from_bits(*x).is_nan() { 0x7fc0 } else { *x };
                let expected: Vec<u16> = expected[..got.len()].iter().map(plain).collect();
                assert_eq!(
                    got.iter().map(plain).collect::<Vec<_>>(),
                    expected,
                    "{rows} rows of {k}, {parts}"
                );
            }
        }
    }
}

/// On processors that have both, an emulated level and the real level give the same bits.
#[test]
fn real_and_emulated_levels_give_the_same_bits() {
    for (name, stand_in) in [("amx", "amx-emulated"), ("avxvnni", "avxvnni-evex")] {
        let (Ok(own), Ok(stand_in)) = (level(name), level(stand_in)) else {
            eprintln!("SKIPPED: this machine lacks {name} or {stand_in}");
            continue;
        };
        let mut random = Random(19);
        for ty in formats(own) {
            let k = ty.block_values().max(32) * 3;
            for (rows, m) in [(18, 5), (50, 20), (70, 40)] {
                let data = weights(ty, rows, k, &mut random);
                let w = WeightRows { ty, rows, k, data: &data };
                let x = Rounded::new(m, k, random.normals(m * k));
                let [got, want] = [own, stand_in].map(|level| {
                    let kernel = (level.linear)(ty).unwrap();
                    kernel_cases(&kernel, &x)
                        .into_iter()
                        .map(|way| run(way.f, w, way.acts))
                        .collect::<Vec<_>>()
                });
                assert_eq!(got, want, "{name} {ty}: {rows} rows of {k}, {m} tokens");
            }
        }
    }
}

#[test]
#[should_panic(expected = "bytes of weights")]
fn weights_that_end_early_are_refused() {
    let kernel = (puna_kernels::best().linear)(TensorType::F16).unwrap();
    let x = Rounded::new(1, 64, vec![1.0; 64]);
    let w = WeightRows { ty: TensorType::F16, rows: 2, k: 64, data: &[0; 255] };
    run(kernel.stream, w, x.f32());
}
