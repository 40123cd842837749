//! Kernels on fixed data, one call after the other, for counting their instructions under
//! callgrind.
//!
//! Every case runs once to warm up (scratch memory is taken then) and once inside
//! [`measured_region`], by which the counter is switched on and off; the name of the case is
//! printed. `benches/instructions` at the root of the project runs it and compares the counts with
//! recorded ones.

use std::hint::black_box;

use puna_kernels::{
    ActKind, Acts, AttendTile, DeltaStep, KV_TILE, KvLayout, KvRows, KvType, Level, OutMut,
    PoolStep, Q8Rows, RunningSoftmax, ScanStep, ScoreTile, Scratch, Tap, WeightRows, Wkv7Step,
    WkvStep, level, levels,
};
use puna_quant::TensorType;

/// Values a row: several blocks of every format.
const K: usize = 1024;
/// Weight rows of a case.
const ROWS: usize = 32;
/// Rows of activations by regime.
const REGIMES: [(&str, usize); 3] = [("stream", 1), ("eight", 8), ("panel", 48)];
const FORMATS: [TensorType; 9] = {
    use TensorType::*;
    [F16, Q8_0, Q4_0, Q4_1, Q5_0, Q4_K, Q6_K, IQ4_XS, MXFP4]
};
/// Values of a head.
const DIM: usize = 128;

fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let chosen: Vec<&Level> = match names.is_empty() {
        true => levels().to_vec(),
        // A level that this machine, or the counter, does not have says nothing.
        false => names.iter().filter_map(|name| level(name).ok()).collect(),
    };
    for level in chosen {
        for ty in FORMATS {
            linear(level, ty);
        }
        // The portable level is only a reference: its attention, vector and recurrent functions
        // call the system's library.
        if level.name != "portable" {
            attention(level);
            vectors(level);
            recurrent(level);
        }
    }
}

/// The counted region: callgrind counts the calls inside this function, which it finds by name.
#[inline(never)]
fn measured_region(work: &mut dyn FnMut()) {
    work();
    black_box(());
}

fn case(name: &str, work: &mut dyn FnMut()) {
    work();
    measured_region(work);
    println!("{name}");
}

fn linear(level: &Level, ty: TensorType) {
    let Some(kernel) = (level.linear)(ty) else { return };
    let row_bytes = ty.row_bytes(K).expect("whole blocks");
    let data = weights(ROWS * row_bytes);
    let mut scratch = Scratch::default();
    let functions = [kernel.stream, kernel.stream, kernel.panel];
    for ((regime, rows), run) in REGIMES.into_iter().zip(functions) {
        let n = rows * K;
        let x = values(n);
        let (mut codes, mut scales, mut sums) = (vec![0; n], vec![0.0; n / 32], vec![0; n / 16]);
        (level.vector.quantize_q8)(&x, &mut codes, &mut scales, &mut sums);
        let acts = match kernel.acts {
            ActKind::F32 => Acts::F32 { rows, k: K, x: &x },
            _ => Acts::Q8(Q8Rows { rows, k: K, codes: &codes, scales: &scales, sums: &sums }),
        };
        let mut out = vec![0.0; rows * ROWS];
        case(&format!("{} linear {} {regime}", level.name, ty.name()), &mut || {
            let w = WeightRows { ty, rows: ROWS, k: K, data: &data };
            run(w, acts, OutMut::new(&mut out, ROWS, rows, ROWS), &mut scratch);
        });
        black_box(&out);
    }
}

/// A KV tile of cached positions under the queries of a group of heads, and under a block of
/// tokens.
fn attention(level: &Level) {
    let mut scratch = Scratch::default();
    for ty in [KvType::F16, KvType::Q8_0] {
        let layout = KvLayout::Columns;
        let mut data = vec![0; ty.row_bytes(DIM) * KV_TILE];
        for row in data.chunks_exact_mut(ty.row_bytes(DIM)) {
            (level.vector.store_kv)(ty, &values(DIM), row);
        }
        let rows = |layout| {
            let stride = if layout == KvLayout::Rows {
                ty.row_bytes(DIM)
            } else {
                ty.row_bytes(ty.block_values()) * KV_TILE
            };
            KvRows { ty, layout, rows: KV_TILE, stride, dim: DIM, data: &data }
        };
        for heads in [4, 64] {
            let (q, visible) = (values(heads * DIM), vec![(0, KV_TILE); heads]);
            let (keys, values, next) = (rows(layout), rows(KvLayout::Rows), &[][..]);
            let tile = AttendTile {
                q: &q,
                keys,
                values,
                visible: &visible,
                alibi: &[],
                position_bias: &[],
                next,
                softcap: None,
            };
            let (mut max, mut sum, mut acc) =
                (vec![0.0; heads], vec![0.0; heads], vec![0.0; heads * DIM]);
            case(&format!("{} attend {} {heads}", level.name, ty.name()), &mut || {
                max.fill(f32::NEG_INFINITY);
                sum.fill(0.0);
                acc.fill(0.0);
                let mut state = RunningSoftmax { max: &mut max, sum: &mut sum, acc: &mut acc };
                (level.vector.attend)(&tile, &mut state, &mut scratch);
            });
            black_box(&acc);
        }
        let (q, weights) = (values(32 * DIM), values(32));
        let mut sums = vec![0.0; KV_TILE];
        case(&format!("{} score {} 32", level.name, ty.name()), &mut || {
            let tile = ScoreTile {
                q: &q,
                keys: rows(layout),
                weights: &weights,
                heads_per_sum: 32,
                relu: true,
            };
            (level.vector.score)(&tile, &mut sums, &mut scratch);
        });
        black_box(&sums);
    }
}

fn vectors(level: &Level) {
    let (v, x, w) = (&level.vector, values(K), values(K));
    let mut y = x.clone();
    let (mut codes, mut scales, mut sums) = (vec![0; K], vec![0.0; K / 32], vec![0; K / 16]);
    let name = |what: &str| format!("{} {what}", level.name);
    case(&name("quantize_q8"), &mut || (v.quantize_q8)(&x, &mut codes, &mut scales, &mut sums));
    case(&name("rms_norm"), &mut || (v.rms_norm)(&x, &w, 1e-5, &mut y));
    case(&name("swiglu"), &mut || (v.swiglu)(&mut y, &w));
    case(&name("geglu"), &mut || (v.geglu)(&mut y, &w));
    case(&name("exp_sum"), &mut || _ = black_box((v.exp_sum)(&mut y, 3.0)));
    black_box(&y);
}

/// A token of a head of 128 values by 64 columns, of a convolution, and of a block that is pooled.
fn recurrent(level: &Level) {
    // Columns of the state.
    const COLS: usize = 64;
    let kernels = &level.vector.recurrent;
    let (x, w, rows, cols) = (values(K), values(K), values(DIM), values(COLS));
    let mut y = vec![0.0; K];
    let name = |what: &str| format!("{} {what}", level.name);
    let taps = [Tap { x: &x, w: &w }; 4];
    case(&name("conv"), &mut || (kernels.conv)(&taps, &w, true, &mut y));
    let mut state = vec![0.0; DIM * COLS];
    let y = &mut y[..COLS];
    let steps = [0.1; COLS];
    let each = vec![-0.5; DIM * COLS];
    for (what, dt, a, d) in
        [("scan", &[0.1][..], &[-0.5][..], &[1.0][..]), ("scan by column", &steps, &each, &cols)]
    {
        case(&name(what), &mut || {
            let (b, c) = (&rows[..], &rows[..]);
            (kernels.scan)(ScanStep { state: &mut state, x: &cols, dt, a, b, c, d, y });
        });
    }
    case(&name("delta"), &mut || {
        let (q, k) = (&rows[..], &rows[..]);
        (kernels.delta)(DeltaStep {
            state: &mut state,
            decay: &[0.9],
            q,
            k,
            v: &cols,
            beta: 0.01,
            y,
        });
    });
    let decay = vec![0.9; DIM];
    case(&name("wkv"), &mut || {
        let (r, k) = (&rows[..], &rows[..]);
        (kernels.wkv)(WkvStep { state: &mut state, decay: &decay, r, own: 0.5, k, v: &cols, y });
    });
    let key = vec![(1.0 / DIM as f32).sqrt(); DIM];
    case(&name("wkv7"), &mut || {
        let (removal_key, forget, r, k) = (&key[..], &key[..], &rows[..], &rows[..]);
        (kernels.wkv7)(Wkv7Step {
            state: &mut state,
            decay: &decay,
            removal_key,
            forget,
            r,
            k,
            v: &cols,
            y,
        });
    });
    let [mut max, mut sum, mut acc] = [vec![-1.0; K], vec![1.0; K], vec![1.0; K]];
    case(&name("pool"), &mut || {
        let (max, sum, acc) = (&mut max[..], &mut sum[..], &mut acc[..]);
        (kernels.pool)(PoolStep { max, sum, acc, x: &x, gate: &w, bias: &x });
    });
    black_box(&y);
}

/// The same values every time, from -1.7 to 1.7.
fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 % 1000) as f32 - 500.0) / 300.0).collect()
}

/// Bytes that are harmless as scales of every format: exponents stay small.
fn weights(bytes: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x & 0xbf) as u8
    };
    (0..bytes).map(|_| next()).collect()
}
