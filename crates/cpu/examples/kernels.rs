//! Speed of the kernels on one thread: GB/s of weights and G multiply-adds/s for each format and
//! regime.
//!
//! ```text
//! cargo run --release -p puna-cpu --example kernels -- \
//!     [LEVEL] [FORMAT,FORMAT…|all|attention|vector]
//! ```
//! Without arguments: the best level, the usual formats. The first lines are the machine's own
//! limits, found in the same run: reading memory, and the peak of the level's multiply-add
//! instruction.

use std::hint::black_box;
use std::time::{Duration, Instant};

use puna_cpu::kernels::{
    ActKind, Acts, AttendTile, KV_TILE, KvLayout, KvRows, KvType, Level, OutMut, Q8Rows,
    RunningSoftmax, Scratch, WeightRows, best, level,
};
use puna_quant::TensorType;

/// Weights that no cache holds.
const MEMORY: usize = 96 << 20;
const K: usize = 2048;

fn main() {
    let mut args = std::env::args().skip(1);
    let level = args.next().map_or(best(), |name| level(&name).unwrap_or_else(|e| panic!("{e}")));
    let what = args.next().unwrap_or_default();
    println!("level {}, one thread, rows of {K} values", level.name);
    let limits = puna_cpu::probe::machine_peaks(1, level.name).expect("a level of this machine");
    println!("reading memory: {:.1} GB/s", limits.read_gbs);
    #[cfg(target_arch = "x86_64")]
    x86::print_peaks();
    match what.as_str() {
        "attention" => return attention(level),
        "vector" => return vector(level),
        _ => {}
    }
    let usual = "F32,F16,BF16,Q8_0,Q4_0,Q4_1,Q5_0,Q4_K,Q5_K,Q6_K,IQ4_XS,MXFP4";
    let types: Vec<TensorType> = match what.as_str() {
        "all" => TensorType::all().filter(|&ty| (level.linear)(ty).is_some()).collect(),
        list => {
            let list = if list.is_empty() { usual } else { list };
            list.split(',')
                .map(|name| TensorType::from_name(name).expect("a format's name"))
                .collect()
        }
    };
    println!(
        "{:8} {:>12} {:>12} {:>12} {:>12} {:>12}   G multiply-adds/s",
        "", "stream 1", "2", "4", "8", "16"
    );
    print!("{:8} {:>12} {:>12} {:>12} {:>12} {:>12} ", "", "GB/s", "G/s", "G/s", "G/s", "G/s");
    let batches = [8, 16, 32, 64, 128, 512];
    batches.iter().for_each(|m| print!("{:>8}", format!("{m} rows")));
    println!();
    for ty in types {
        linear(level, ty, &batches);
    }
}

/// Rate of `work`, in units a second: the fastest tenth of the pieces done in 0.15 s. Pieces are
/// shorter than a turn of the scheduler, so that a machine that is not idle disturbs only some of
/// them. `work` gets the number of the piece.
fn rate(units: f64, mut work: impl FnMut(usize)) -> f64 {
    let start = Instant::now();
    let mut times = Vec::new();
    while start.elapsed() < Duration::from_millis(150) || times.len() < 10 {
        let one = Instant::now();
        work(times.len());
        times.push(one.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    units / times[times.len() / 10]
}

/// Random bytes that are harmless as scales of every format.
fn random_weights(ty: TensorType, bytes: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut data = vec![0u8; bytes];
    for word in data.as_chunks_mut::<8>().0 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        // Exponents of binary16, bfloat16 and f32 stay small: no infinities, no NaN.
        *word = (x & 0xbfbf_bfbf_bfbf_bfbf).to_le_bytes();
    }
    let _ = ty;
    data
}

struct Activations {
    x: Vec<f32>,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i16>,
}

impl Activations {
    fn new(level: &Level, rows: usize) -> Self {
        let n = rows * K;
        let x: Vec<f32> = (0..n).map(|i| ((i * 7919 % 1000) as f32 - 500.0) / 300.0).collect();
        let (mut codes, mut scales, mut sums) = (vec![0; n], vec![0.0; n / 32], vec![0; n / 16]);
        (level.vector.quantize_q8)(&x, &mut codes, &mut scales, &mut sums);
        Self { x, codes, scales, sums }
    }

    fn acts(&self, kind: ActKind, rows: usize) -> Acts<'_> {
        match kind {
            ActKind::F32 => Acts::F32 { rows, k: K, x: &self.x },
            ActKind::Q8 => {
                let Self { codes, scales, sums, .. } = self;
                Acts::Q8(Q8Rows { rows, k: K, codes, scales, sums })
            }
        }
    }
}

fn linear(level: &Level, ty: TensorType, batches: &[usize]) {
    let kernel = (level.linear)(ty).expect("a weight format");
    let row_bytes = ty.row_bytes(K).expect("whole blocks");
    let rows = MEMORY / row_bytes / 64 * 64;
    let data = random_weights(ty, rows * row_bytes);
    let acts = Activations::new(level, *batches.iter().max().expect("some"));
    let mut scratch = Scratch::default();
    print!("{:8}", ty.name());
    for m in [1, 2, 4, 8, 16] {
        // 2 MiB a piece.
        let piece = ((2 << 20) / row_bytes).min(rows);
        let mut out = vec![0.0; m * piece];
        let gbs = rate((piece * row_bytes) as f64 / 1e9, |i| {
            let from = i % (rows / piece) * piece;
            let w = WeightRows {
                ty,
                rows: piece,
                k: K,
                data: &data[from * row_bytes..][..piece * row_bytes],
            };
            let acts = acts.acts(kernel.acts, m);
            (kernel.stream)(w, acts, OutMut::new(&mut out, piece, m, piece), &mut scratch);
        });
        let gmacs = gbs * (K * m) as f64 / row_bytes as f64;
        print!(" {:>12.1}", if m == 1 { gbs } else { gmacs });
    }
    print!(" ");
    // Pieces of 64 rows, as the pool would give them.
    for &m in batches {
        let mut out = vec![0.0; m * 64];
        let gmacs = rate((64 * K * m) as f64 / 1e9, |i| {
            let from = i % (rows / 64) * 64;
            let w = WeightRows {
                ty,
                rows: 64,
                k: K,
                data: &data[from * row_bytes..][..64 * row_bytes],
            };
            let acts = acts.acts(kernel.acts, m);
            (kernel.panel)(w, acts, OutMut::new(&mut out, 64, m, 64), &mut scratch);
        });
        print!("{gmacs:>8.0}");
    }
    println!();
}

fn attention(level: &Level) {
    println!(
        "attention over a cache of 32 MiB in pages of 64 positions: GB/s of cache and G multiply-adds/s"
    );
    println!(
        "{:6} {:>5} {:>12} {:>12} {:>12} {:>12}",
        "type", "rows", "64: GB/s", "G/s", "128: GB/s", "G/s"
    );
    for ty in KvType::ALL {
        let layout = KvLayout::Columns;
        for g in [1, 4, 8, 16, 32, 64] {
            print!("{:6} {g:>5}", ty.name());
            for dim in [64, 128] {
                let page = KV_TILE * ty.row_bytes(dim);
                let pages = (16 << 20) / page;
                let data = random_weights(TensorType::F16, 2 * pages * page);
                let q = vec![0.5 / (dim as f32).sqrt(); g * dim];
                let visible = vec![(0, KV_TILE); g];
                let mut sums = vec![0.0; g * (dim + 2)];
                let mut scratch = Scratch::default();
                let run = |i: usize| {
                    let rows = |layout, at: usize| KvRows {
                        ty,
                        layout,
                        rows: KV_TILE,
                        stride: if layout == KvLayout::Rows {
                            ty.row_bytes(dim)
                        } else {
                            ty.row_bytes(ty.block_values()) * KV_TILE
                        },
                        dim,
                        data: &data[at * page..][..page],
                    };
                    let (max, rest) = sums.split_at_mut(g);
                    let (sum, acc) = rest.split_at_mut(g);
                    let mut state = RunningSoftmax { max, sum, acc };
                    for at in 0..8 {
                        let at = (8 * i + at) % pages;
                        let (keys, values) = (rows(layout, at), rows(KvLayout::Rows, pages + at));
                        let after = (at + 1) % pages;
                        let next = rows(layout, after).data;
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
                        (level.vector.attend)(&tile, &mut state, &mut scratch);
                    }
                };
                let runs = rate(8.0, run);
                let (gbs, macs) =
                    (2.0 * runs * page as f64 / 1e9, 2.0 * runs * (KV_TILE * dim * g) as f64 / 1e9);
                print!(" {gbs:>12.1} {macs:>12.1}");
            }
            println!();
        }
    }
}

fn vector(level: &Level) {
    let v = &level.vector;
    let x: Vec<f32> = (0..K).map(|i| (i as f32 - 1000.0) / 300.0).collect();
    let mut y = x.clone();
    let n = K as f64 / 1e9;
    let show = |name: &str, gs: f64| println!("{name:14} {gs:>8.2} G values/s");
    let (mut codes, mut scales, mut sums) = (vec![0; K], vec![0.0; K / 32], vec![0; K / 16]);
    show(
        "quantize_q8",
        rate(n, |_| (v.quantize_q8)(black_box(&x), &mut codes, &mut scales, &mut sums)),
    );
    show("rms_norm", rate(n, |_| (v.rms_norm)(black_box(&x), &x, 1e-5, &mut y)));
    show("layer_norm", rate(n, |_| (v.layer_norm)(black_box(&x), &x, &x, 1e-5, &mut y)));
    show("add", rate(n, |_| (v.add)(black_box(&mut y), &x)));
    y.copy_from_slice(&x);
    show("swiglu", rate(n, |_| (v.swiglu)(black_box(&mut y), &x)));
    y.copy_from_slice(&x);
    show("geglu", rate(n, |_| (v.geglu)(black_box(&mut y), &x)));
    y.copy_from_slice(&x);
    show("exp_sum", rate(n, |_| _ = black_box((v.exp_sum)(black_box(&mut y), 3.0))));
    show("max", rate(n, |_| _ = black_box((v.max)(black_box(&x)))));
    let mut row = vec![0; KvType::F32.row_bytes(K)];
    for ty in KvType::ALL {
        show(
            &format!("store_kv {}", ty.name()),
            rate(n, |_| (v.store_kv)(ty, black_box(&x), &mut row)),
        );
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::rate;

    /// Rounds of twelve multiply-adds.
    const ROUNDS: usize = 20_000;

    /// Peaks with twelve independent chains in registers.
    pub fn print_peaks() {
        if is_x86_feature_detected!("avx512vnni") {
            // SAFETY: the processor has the features.
            let peak = rate((ROUNDS * 12 * 64) as f64 / 1e9, |_| unsafe { vnni() });
            println!("vpdpbusd zmm peak: {peak:.0} G multiply-adds/s");
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the features.
            let peak = rate((ROUNDS * 12 * 16) as f64 / 1e9, |_| unsafe { fma512() });
            println!("vfmadd zmm peak: {peak:.0} G multiply-adds/s");
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the features.
            let peak = rate((ROUNDS * 12 * 8) as f64 / 1e9, |_| unsafe { fma256() });
            println!("vfmadd ymm peak: {peak:.0} G multiply-adds/s");
        }
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn vnni() {
        let (a, b) = (_mm512_set1_epi32(black_box(3)), _mm512_set1_epi32(black_box(5)));
        let mut acc = [_mm512_setzero_si512(); 12];
        for _ in 0..ROUNDS {
            for acc in &mut acc {
                *acc = _mm512_dpbusd_epi32(*acc, a, b);
            }
        }
        black_box(acc);
    }

    #[target_feature(enable = "avx512f")]
    fn fma512() {
        let (a, b) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(0.25)));
        let mut acc = [_mm512_setzero_ps(); 12];
        for _ in 0..ROUNDS {
            for acc in &mut acc {
                *acc = _mm512_fmadd_ps(*acc, a, b);
            }
        }
        black_box(acc);
    }

    #[target_feature(enable = "avx2,fma")]
    fn fma256() {
        let (a, b) = (_mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(black_box(0.25)));
        let mut acc = [_mm256_setzero_ps(); 12];
        for _ in 0..ROUNDS {
            for acc in &mut acc {
                *acc = _mm256_fmadd_ps(*acc, a, b);
            }
        }
        black_box(acc);
    }
}
