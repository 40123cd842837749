//! Vector kernels of every level against the portable ones.

use puna_kernels::{
    AlibiBias, AttendTile, KV_TILE, KvLayout, KvRows, KvType, Level, RunningSoftmax, ScoreTile,
    Scratch, levels,
};

use super::data::{Random, others};

const LENGTHS: [usize; 12] = [1, 3, 7, 8, 15, 16, 17, 31, 64, 100, 257, 2048];

pub(super) fn portable() -> &'static Level {
    levels()[0]
}

/// Panics unless `a` is near `b`: `bound` relative to each value plus `floor`.
#[track_caller]
pub(super) fn near(a: &[f32], b: &[f32], bound: f32, floor: f32, what: &str) {
    assert_eq!(a.len(), b.len());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(
            (a - b).abs() <= bound * b.abs() + floor || a == b,
            "{what}: value {i} is {a}, not {b}"
        );
    }
}

#[test]
fn norms_agree_at_every_length() {
    let mut random = Random(1);
    for level in others() {
        for n in LENGTHS {
            let (x, w, b) = (random.normals(n), random.normals(n), random.normals(n));
            for w in [&w[..], &[]] {
                let (mut y, mut z) = (vec![0.0; n], vec![0.0; n]);
                (portable().vector.rms_norm)(&x, w, 1e-5, &mut y);
                (level.vector.rms_norm)(&x, w, 1e-5, &mut z);
                near(&z, &y, 2e-6, 0.0, level.name);
                for b in [&b[..], &[]] {
                    (portable().vector.layer_norm)(&x, w, b, 1e-5, &mut y);
                    (level.vector.layer_norm)(&x, w, b, 1e-5, &mut z);
                    near(&z, &y, 2e-6, 2e-5, level.name);
                }
            }
        }
    }
}

#[test]
fn glu_and_gelu_agree_for_small_and_large_inputs() {
    let mut random = Random(2);
    for level in others() {
        for n in LENGTHS {
            let mut x: Vec<f32> = random.normals(n).into_iter().map(|x| x * 4.0).collect();
            x[0] = 200.0;
            x[n / 2] = -200.0;
            let up = random.normals(n);
            for (a, b) in [
                (level.vector.swiglu, portable().vector.swiglu),
                (level.vector.geglu, portable().vector.geglu),
            ] {
                let (mut y, mut z) = (x.clone(), x.clone());
                b(&mut y, &up);
                a(&mut z, &up);
                near(&z, &y, 1e-6, 1e-6, level.name);
            }
            let (mut y, mut z) = (x.clone(), x.clone());
            (portable().vector.gelu)(&mut y);
            (level.vector.gelu)(&mut z);
            near(&z, &y, 1e-6, 1e-6, level.name);
        }
    }
}

#[test]
fn gelu_by_the_error_function_agrees_with_its_series() {
    // erf(z) = 2/√π · Σ (-1)^n z^(2n+1) / (n! (2n+1)), in f64 good to 1e-9 up to z = 4.
    let erf = |z: f64| {
        let (mut power, mut sum) = (z, z);
        for n in 1..120 {
            power *= -z * z / f64::from(n);
            sum += power / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    };
    let x: Vec<f32> = (-5600..=5600).map(|i| i as f32 * 0.001).collect();
    for level in others().chain([portable()]) {
        let mut y = x.clone();
        y.extend([-200.0, 200.0, 0.0]);
        (level.vector.gelu_erf)(&mut y);
        for (&x, &y) in x.iter().zip(&y) {
            let want =
                0.5 * f64::from(x) * (1.0 + erf(f64::from(x) * std::f64::consts::FRAC_1_SQRT_2));
            assert!((f64::from(y) - want).abs() < 1e-6, "{}: {x}: {y} for {want}", level.name);
        }
        assert_eq!(y[x.len()..], [0.0, 200.0, 0.0], "{}", level.name);
    }
}

#[test]
fn exp_is_exact_to_two_units_in_the_last_place() {
    for level in others() {
        let mut x: Vec<f32> = (-87_300..=88_700).map(|i| i as f32 * 0.001).collect();
        let exact: Vec<f64> = x.iter().map(|&x| f64::from(x).exp()).collect();
        (level.vector.exp_sum)(&mut x, 0.0);
        for (got, exact) in x.iter().zip(exact) {
            let error = (f64::from(*got) - exact).abs() / exact;
            assert!(error < 2.0 * f64::from(f32::EPSILON), "{}: {got} for {exact}", level.name);
        }
    }
}

#[test]
fn exp_of_masked_values_is_zero_and_sums_agree() {
    let mut random = Random(3);
    for level in others() {
        for n in LENGTHS {
            let mut x = random.normals(n);
            x[n / 2] = f32::NEG_INFINITY;
            let max = (portable().vector.max)(&x);
            assert_eq!((level.vector.max)(&x), max);
            let (mut y, mut z) = (x.clone(), x.clone());
            let a = (portable().vector.exp_sum)(&mut y, max);
            let b = (level.vector.exp_sum)(&mut z, max);
            near(&z, &y, 3e-7, 0.0, level.name);
            near(&[b], &[a], 1e-6, 0.0, level.name);
            let mut masked = vec![f32::NEG_INFINITY; n];
            assert_eq!((level.vector.exp_sum)(&mut masked, f32::NEG_INFINITY), 0.0);
            assert!(masked.iter().all(|&e| e == 0.0));
        }
        assert_eq!((level.vector.max)(&[]), f32::NEG_INFINITY);
    }
}

#[test]
fn adding_is_exact() {
    let mut random = Random(4);
    for level in others() {
        for n in LENGTHS {
            let (mut y, x) = (random.normals(n), random.normals(n));
            let mut z = y.clone();
            (portable().vector.add)(&mut y, &x);
            (level.vector.add)(&mut z, &x);
            assert_eq!(y, z);
        }
    }
}

#[test]
fn activations_round_to_the_same_codes() {
    let mut random = Random(5);
    let mut x = random.normals(32 * 40);
    x[..32].fill(0.0);
    x[32..64].fill(1e-40);
    x[64] = f32::NAN;
    x[96] = f32::INFINITY;
    x[128..160].fill(f32::MAX);
    x[160..192].iter_mut().for_each(|x| *x *= 1e-30);
    x[192] = -1e9;
    let n = x.len();
    let run = |level: &Level| {
        let (mut codes, mut scales, mut sums) = (vec![0; n], vec![0.0f32; n / 32], vec![0; n / 16]);
        (level.vector.quantize_q8)(&x, &mut codes, &mut scales, &mut sums);
        (codes, scales, sums)
    };
    let expected = run(portable());
    assert_eq!(expected.2[20], expected.0[320..336].iter().map(|&c| i16::from(c)).sum::<i16>());
    assert_eq!(expected.0[192], -127);
    assert!((expected.1[6] / (1e9 / 127.0) - 1.0).abs() < 1e-6);
    assert!(expected.1[2].is_nan() && expected.1[3].is_nan());
    for level in others() {
        let (codes, scales, sums) = run(level);
        assert!((codes, sums) == (expected.0.clone(), expected.2.clone()), "{}", level.name);
        for (s, want) in scales.iter().zip(&expected.1) {
            // Sums of 32 products in another order.
            assert!(
                s == want || s.is_nan() && want.is_nan() || (s / want - 1.0).abs() < 1e-6,
                "{}",
                level.name
            );
        }
    }
}

/// A cache of `rows` rows with room between them, at an odd address.
fn cache(ty: KvType, rows: usize, dim: usize, random: &mut Random) -> (Vec<u8>, usize) {
    let stride = ty.row_bytes(dim) + 6;
    let mut data = vec![0xff; rows * stride + 1];
    for i in 0..rows {
        let row = &mut data[1 + i * stride..][..ty.row_bytes(dim)];
        (portable().vector.store_kv)(ty, &random.normals(dim), row);
    }
    // Cut the room after the last row, so that a read past it is a read past the slice.
    data.truncate(1 + (rows - 1) * stride + ty.row_bytes(dim));
    (data.split_off(1), stride)
}

#[test]
fn rows_are_stored_with_the_same_bits() {
    let mut random = Random(6);
    for level in others() {
        for ty in KvType::ALL {
            for dim in [32, 64, 96, 128] {
                let mut x = random.normals(dim);
                x[3] = 1e6;
                x[5] = 1e-7;
                let (mut a, mut b) = (vec![0; ty.row_bytes(dim)], vec![0; ty.row_bytes(dim)]);
                (portable().vector.store_kv)(ty, &x, &mut a);
                (level.vector.store_kv)(ty, &x, &mut b);
                assert_eq!(a, b, "{} {ty:?}", level.name);
            }
        }
    }
}

/// A cache in columns: `[value][position]`, as long as whole KV tiles.
fn columns(ty: KvType, rows: usize, dim: usize, random: &mut Random) -> (Vec<u8>, usize) {
    let block = ty.block_values();
    let (bytes, stride) = (ty.row_bytes(block), ty.row_bytes(block) * KV_TILE + 2);
    // Positions behind the last one are NaN.
    let mut data = vec![0xff; (dim / block - 1) * stride + bytes * KV_TILE];
    for i in 0..rows {
        let mut row = vec![0; ty.row_bytes(dim)];
        (portable().vector.store_kv)(ty, &random.normals(dim), &mut row);
        for (d, value) in row.chunks_exact(bytes).enumerate() {
            let to = &mut data[d * stride..];
            if block == 1 {
                to[i * bytes..][..bytes].copy_from_slice(value);
                continue;
            }
            to[2 * i..][..2].copy_from_slice(&value[..2]);
            value[2..].iter().enumerate().for_each(|(j, code)| to[(2 + j) * KV_TILE + i] = *code);
        }
    }
    (data, stride)
}

/// Running softmaxes of `g` rows that have seen something.
#[derive(Clone, PartialEq, Debug)]
struct Sums {
    max: Vec<f32>,
    sum: Vec<f32>,
    acc: Vec<f32>,
}

impl Sums {
    fn random(g: usize, dim: usize, random: &mut Random) -> Self {
        let mut max = random.normals(g);
        // One row has seen nothing yet.
        max[g / 2] = f32::NEG_INFINITY;
        let mut sums = Self {
            sum: random.normals(g).into_iter().map(f32::abs).collect(),
            acc: random.normals(g * dim),
            max,
        };
        sums.sum[g / 2] = 0.0;
        sums.acc[g / 2 * dim..][..dim].fill(0.0);
        sums
    }

    fn attend(&mut self, level: &Level, tile: &AttendTile<'_>) {
        let mut state =
            RunningSoftmax { max: &mut self.max, sum: &mut self.sum, acc: &mut self.acc };
        (level.vector.attend)(tile, &mut state, &mut Scratch::default());
    }

    /// Row `h` alone.
    fn row(&self, h: usize, dim: usize) -> Self {
        Self {
            max: vec![self.max[h]],
            sum: vec![self.sum[h]],
            acc: self.acc[h * dim..][..dim].to_vec(),
        }
    }
}

/// Calls `check` with KV tiles of every cache type, layout and shape, and with values that are the
/// first of their keys' features.
fn each_tile(random: &mut Random, mut check: impl FnMut(&AttendTile<'_>, &str, &mut Random)) {
    let ways = [(KvLayout::Rows, false), (KvLayout::Columns, false), (KvLayout::Rows, true)];
    for (ty, (layout, within)) in KvType::ALL.into_iter().flat_map(|ty| ways.map(|way| (ty, way))) {
        for (key_dim, value_dim) in [(32, 64), (64, 32), (80, 80), (128, 96), (13, 13), (192, 128)]
        {
            if key_dim % ty.block_values() + value_dim % ty.block_values() > 0
                || within && value_dim > key_dim
            {
                continue;
            }
            for (g, rows) in [
                (1, 1),
                (1, 9),
                (2, 33),
                (3, 5),
                (4, 64),
                (5, 31),
                (7, 64),
                (8, 17),
                (33, 63),
                (49, 40),
            ] {
                let (keys, key_stride) = match layout {
                    KvLayout::Rows => cache(ty, rows, key_dim, random),
                    KvLayout::Columns => columns(ty, rows, key_dim, random),
                };
                let (values, value_stride) = if within {
                    (keys.clone(), key_stride)
                } else {
                    cache(ty, rows, value_dim, random)
                };
                let q: Vec<f32> = random
                    .normals(g * key_dim)
                    .iter()
                    .map(|x| x / (key_dim as f32).sqrt())
                    .collect();
                let mut visible: Vec<(usize, usize)> =
                    (0..g).map(|h| (0, rows - h % rows)).collect();
                visible[0] = (rows / 3, rows);
                // With a query before, in and behind the KV tile.
                let bias = |h: usize| AlibiBias {
                    slope: 0.3 / (h + 1) as f32,
                    from: h as f32 * 7.0 - 10.0,
                };
                let alibi: Vec<AlibiBias> = (0..if g % 2 == 0 { g } else { 0 }).map(bias).collect();
                let position_bias =
                    if g % 3 == 0 { random.normals(g * KV_TILE) } else { Vec::new() };
                visible[g - 1] = if g % 2 == 1 && g > 1 { (0, 0) } else { visible[g - 1] };
                let tile = AttendTile {
                    q: &q,
                    keys: KvRows {
                        ty,
                        layout,
                        rows,
                        stride: key_stride,
                        dim: key_dim,
                        data: &keys,
                    },
                    values: KvRows {
                        ty,
                        layout: KvLayout::Rows,
                        rows,
                        stride: value_stride,
                        dim: value_dim,
                        data: &values,
                    },
                    visible: &visible,
                    alibi: &alibi,
                    position_bias: &position_bias,
                    next: &keys,
                    softcap: (g == 5).then_some(2.0),
                };
                let within = if within { " within" } else { "" };
                let what = format!(
                    "{ty:?} {layout:?}{within} dims {key_dim} {value_dim}, {g} rows, {rows} positions"
                );
                check(&tile, &what, random);
            }
        }
    }
}

#[test]
fn attention_agrees_for_every_cache_type_layout_and_shape() {
    each_tile(&mut Random(7), |tile, what, random| {
        let before = Sums::random(tile.visible.len(), tile.values.dim, random);
        let mut expected = before.clone();
        expected.attend(portable(), tile);
        for level in others() {
            let what = format!("{} {what}", level.name);
            let mut got = before.clone();
            got.attend(level, tile);
            near(&got.max, &expected.max, 1e-5, 1e-5, &what);
            near(&got.sum, &expected.sum, 2e-5, 1e-6, &what);
            near(&got.acc, &expected.acc, 2e-5, 1e-4, &what);
        }
    });
}

#[test]
fn a_query_row_has_the_same_bits_alone_and_in_a_batch() {
    each_tile(&mut Random(8), |tile, what, random| {
        let dim = tile.values.dim;
        let before = Sums::random(tile.visible.len(), dim, random);
        for level in levels() {
            let mut together = before.clone();
            together.attend(level, tile);
            for h in 0..tile.visible.len() {
                let mut alone = before.row(h, dim);
                let q = &tile.q[h * tile.keys.dim..][..tile.keys.dim];
                let alibi = tile.alibi.get(h..=h).unwrap_or_default();
                let position_bias =
                    tile.position_bias.get(h * KV_TILE..(h + 1) * KV_TILE).unwrap_or_default();
                alone.attend(
                    level,
                    &AttendTile { q, visible: &tile.visible[h..=h], alibi, position_bias, ..*tile },
                );
                assert!(alone == together.row(h, dim), "{} {what}: row {h}", level.name);
            }
        }
    });
}

/// Softmax takes its exponentials from `exp_negative`, everything else from `exp`. A key of one
/// value is the score, and row `i` of an identity matrix shows what became of score `i`.
#[test]
fn softmax_and_vector_exponentials_have_the_same_bits() {
    let bound = (-87.336_55f32).to_bits();
    let near_the_bound = (bound - 100..bound + 100).map(f32::from_bits);
    let scores: Vec<f32> =
        (0..=100 << 8).map(|i| i as f32 * -(1.0 / 256.0)).chain(near_the_bound).collect();
    let identity: Vec<f32> =
        (0..KV_TILE * KV_TILE).map(|i| f32::from(u8::from(i % (KV_TILE + 1) == 0))).collect();
    fn row(data: &[f32], dim: usize) -> KvRows<'_> {
        let data = bytemuck::cast_slice(data);
        KvRows {
            ty: KvType::F32,
            layout: KvLayout::Rows,
            rows: KV_TILE,
            stride: 4 * dim,
            dim,
            data,
        }
    }
    for level in others() {
        for scores in scores.chunks(KV_TILE - 2) {
            // The first makes the largest zero.
            let mut exps = [f32::NEG_INFINITY; KV_TILE];
            exps[0] = 0.0;
            exps[1..=scores.len()].copy_from_slice(scores);
            let keys = exps;
            let tile = AttendTile {
                q: &[1.0],
                keys: row(&keys, 1),
                values: row(&identity, KV_TILE),
                visible: &[(0, KV_TILE)],
                alibi: &[],
                position_bias: &[],
                next: &[],
                softcap: None,
            };
            let mut sums =
                Sums { max: vec![f32::NEG_INFINITY], sum: vec![0.0], acc: vec![0.0; KV_TILE] };
            sums.attend(level, &tile);
            (level.vector.exp_sum)(&mut exps, 0.0);
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&sums.acc), bits(&exps), "{}: {scores:?}", level.name);
            assert!((exps[0], exps[KV_TILE - 1]) == (1.0, 0.0));
        }
    }
}

/// Calls `check` with keys of every cache type, layout and shape, and with sums of several rows.
fn each_score(random: &mut Random, mut check: impl FnMut(&ScoreTile<'_>, &str)) {
    for (ty, layout) in
        KvType::ALL.into_iter().flat_map(|ty| [(ty, KvLayout::Rows), (ty, KvLayout::Columns)])
    {
        for dim in [32, 64, 128, 13] {
            if dim % ty.block_values() > 0 {
                continue;
            }
            for (sums, heads_per_sum, rows) in
                [(1, 1, 1), (1, 5, 64), (2, 3, 33), (1, 64, 40), (7, 1, 9)]
            {
                let (data, stride) = match layout {
                    KvLayout::Rows => cache(ty, rows, dim, random),
                    KvLayout::Columns => columns(ty, rows, dim, random),
                };
                let (q, weights) = (
                    random.normals(sums * heads_per_sum * dim),
                    random.normals(sums * heads_per_sum),
                );
                let weights = if sums == 2 { &[][..] } else { &weights[..] };
                let keys = KvRows { ty, layout, rows, stride, dim, data: &data };
                for relu in [true, false] {
                    let tile = ScoreTile { q: &q, keys, weights, heads_per_sum, relu };
                    check(
                        &tile,
                        &format!(
                            "{ty:?} {layout:?} dim {dim}, {sums} of {heads_per_sum}, {rows} positions"
                        ),
                    );
                }
            }
        }
    }
}

/// Of each sum the scores of the tile's positions.
fn scores(level: &Level, tile: &ScoreTile<'_>) -> Vec<f32> {
    let mut all = vec![0.0; tile.q.len() / tile.keys.dim / tile.heads_per_sum * KV_TILE];
    (level.vector.score)(tile, &mut all, &mut Scratch::default());
    all.chunks_exact(KV_TILE).flat_map(|sum| sum[..tile.keys.rows].to_vec()).collect()
}

#[test]
fn scores_agree_for_every_cache_type_layout_and_shape() {
    each_score(&mut Random(9), |tile, what| {
        let expected = scores(portable(), tile);
        assert!(tile.relu || expected.iter().any(|&x| x != 0.0), "{what}");
        for level in others() {
            near(&scores(level, tile), &expected, 2e-5, 2e-4, &format!("{} {what}", level.name));
        }
    });
}

#[test]
fn a_sum_of_scores_has_the_same_bits_alone_and_in_a_batch() {
    each_score(&mut Random(10), |tile, what| {
        let each = tile.heads_per_sum * tile.keys.dim;
        for level in levels() {
            let together = scores(level, tile);
            for (sum, q) in tile.q.chunks_exact(each).enumerate() {
                let weights = tile
                    .weights
                    .get(sum * tile.heads_per_sum..(sum + 1) * tile.heads_per_sum)
                    .unwrap_or_default();
                let alone = scores(level, &ScoreTile { q, weights, ..*tile });
                assert!(
                    alone == together[sum * tile.keys.rows..][..tile.keys.rows],
                    "{} {what}",
                    level.name
                );
            }
        }
    });
}
