//! Attention behind a long context, with threads and the paged cache but without a model: GB/s of
//! cache, G multiply-adds/s, and the time of a step.
//!
//! ```text
//! cargo run --release -p puna-cpu --example depth -- \
//!     [LEVEL] [THREADS] [DEPTH,…] [ROWS,…] [CACHE TYPE,…] [HEADS/KV HEADS/VALUES]
//! ```
//! Without arguments: the best level, two threads, 4096 positions, 1 and 512 rows, f16, 32/8/64.

use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_cpu::{Config, CpuBackend};
use puna_graph::{
    AttentionSpec, Backend, CacheLayer, CacheSpec, Capacity, Graph, Index, KvType, Mask, Plan,
    Segment, StepInput, Weight, WeightId,
};
use puna_quant::TensorType;

/// Layers of attention in a step.
const LAYERS: usize = 16;
/// Tokens per page.
const PAGE: usize = 64;
/// Rows of a step that fills the cache.
const FILL: usize = 512;
const VOCABULARY: usize = 512;

#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    dim: usize,
}

impl Shape {
    fn cols(self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.dim
    }

    /// Attention of some layers over parts of one embedding, summed.
    fn graph(self, mask: Mask) -> Graph {
        let mut g = Graph::new();
        let x = g.embed("embd", WeightId(0), self.cols(), Index::Token);
        let (q, k) = (self.heads * self.dim, self.kv_heads * self.dim);
        let qkv = [(0, q), (q, k), (q + k, k)].map(|(start, cols)| g.slice(x, start, cols));
        let (heads, kv_heads, dim) = (self.heads, self.kv_heads, self.dim);
        let spec = AttentionSpec { mask, ..AttentionSpec::causal(heads, kv_heads, dim, dim) };
        let mut sum = g.attention("attn", 0, qkv, spec);
        for layer in 1..LAYERS {
            let next = g.attention("attn", layer, qkv, spec);
            sum = g.add("sum", sum, next);
        }
        let last = g.gather_outputs(sum);
        g.set_result(last);
        g
    }

    /// Random values of the scale of a normalized vector's.
    fn embedding(self) -> Weight {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        let mut value = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            ((x >> 40) as f32 / (1 << 24) as f32 - 0.5) * 4.0
        };
        let data: Vec<u8> =
            (0..self.cols() * VOCABULARY).flat_map(|_| value().to_le_bytes()).collect();
        let shape = vec![self.cols(), VOCABULARY];
        Weight { name: "embd".into(), ty: TensorType::F32, shape, data: Arc::new(data) }
    }
}

fn input(cached_tokens: usize, rows: usize, pages: usize) -> StepInput {
    let positions = cached_tokens..cached_tokens + rows;
    StepInput {
        tokens: positions.clone().map(|p| (p * 37 % VOCABULARY) as u32).collect(),
        positions: positions.map(|p| p as u32).collect(),
        segments: vec![Segment {
            rows,
            cached_tokens,
            pages: (0..pages as u32).collect(),
            ..Segment::default()
        }],
        outputs: vec![rows as u32 - 1],
        ..StepInput::default()
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize, default: &str| args.get(i).map_or(default.to_owned(), Clone::clone);
    let numbers = |i: usize, default: &str, by: char| -> Vec<usize> {
        arg(i, default).split(by).map(|n| n.parse().expect("a number")).collect()
    };
    let threads: usize = arg(1, "2").parse().expect("a number of threads");
    let (depths, rows) = (numbers(2, "4096", ','), numbers(3, "1,512", ','));
    let &[heads, kv_heads, dim] = &numbers(5, "32/8/64", '/')[..] else {
        panic!("HEADS/KV HEADS/VALUES")
    };
    let shape = Shape { heads, kv_heads, dim };
    let kernels = args.first().cloned();
    println!("{LAYERS} layers of {heads} heads of {dim}, {kv_heads} KV heads; {threads} threads");
    println!(
        "{:6} {:>6} {:>5} {:>10} {:>8} {:>26}",
        "cache", "depth", "rows", "ms a step", "GB/s", "G multiply-adds/s"
    );
    for name in arg(4, "f16").split(',') {
        let ty = KvType::ALL
            .into_iter()
            .find(|ty| ty.name() == name)
            .expect("f32, f16, bf16, q8_0 or q4_0");
        let config = Config {
            threads: Some(threads),
            kernels: kernels.clone(),
            deterministic: false,
            capped: false,
        };
        let mut backend = CpuBackend::new(&config).expect("a backend");
        let max = depths.iter().max().expect("a depth") + rows.iter().max().expect("rows") + FILL;
        let pages = max.div_ceil(PAGE);
        backend.load_weights(vec![shape.embedding()], Vec::new()).expect("weights");
        let (key_dim, value_dim, mask) = (dim, dim, Mask::Causal);
        let layer = CacheLayer { kv_heads, key_dim, value_dim, values_in_keys: false, mask };
        let (layers, key_type, value_type) = (vec![layer; LAYERS], ty, ty);
        let spec =
            CacheSpec { layers, key_type, value_type, page_tokens: PAGE, pages, window_pages: 0 };
        backend.create_cache(spec).expect("a cache");
        let plan = |mask, tokens| Plan::new(shape.graph(mask), Capacity { tokens, outputs: 1 });
        let fill = backend.compile(plan(Mask::Window(1), FILL)).expect("a program");
        for cached_tokens in (0..max - FILL).step_by(FILL) {
            backend.run(fill, &input(cached_tokens, FILL, pages));
        }
        for &rows in &rows {
            let program = backend.compile(plan(Mask::Causal, rows)).expect("a program");
            for &depth in &depths {
                let input = input(depth, rows, pages);
                let (mut times, start) = (Vec::new(), Instant::now());
                while start.elapsed() < Duration::from_secs(2) || times.len() < 3 {
                    backend.measure(true);
                    backend.run(program, &input);
                    let of = |op: &str| {
                        backend.op_times().into_iter().find(|t| t.op == op).expect("measured")
                    };
                    times.push((of("attention").seconds, of("attention")));
                }
                times.sort_by(|a, b| a.0.total_cmp(&b.0));
                let (seconds, op) = &times[times.len() / 4];
                let per = |n: u64| n as f64 / seconds / 1e9;
                println!(
                    "{name:6} {depth:>6} {rows:>5} {:>10.2} {:>8.1} {:>26.1}",
                    1e3 * seconds,
                    per(op.bytes),
                    per(op.macs)
                );
            }
        }
    }
}
