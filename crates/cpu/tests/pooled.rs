//! Attention to a window and, beside it, to rows that stand for several tokens each.

use std::sync::Arc;

use puna_cpu::{Config, CpuBackend, kernels};
use puna_graph::*;
use puna_quant::TensorType;

const HEADS: usize = 20;
const DIM: usize = 64;
const WINDOW: usize = 70;
/// Tokens that a row stands for.
const EACH: usize = 3;
const STEPS: [usize; 5] = [150, 1, 7, 1, 41];
const ROWS: usize = 200;

/// Numbers in no order, from -1 to 1.
fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
}

fn table(cols: usize, rows: usize, seed: usize) -> Weight {
    let data: Vec<u8> = numbers(cols * rows, seed).iter().flat_map(|x| x.to_le_bytes()).collect();
    let name = format!("table {seed}");
    Weight { name, ty: TensorType::F32, shape: vec![cols, rows], data: Arc::new(data) }
}

/// What attention reads at all of `steps`.
fn attended(level: &str, threads: usize, ty: KvType, steps: &[usize]) -> Vec<f32> {
    let (mask, sinks) = (Mask::Window(WINDOW as u32), Some(WeightId(3)));
    let plain = AttentionSpec::causal(HEADS, 1, DIM, DIM);
    let spec = AttentionSpec { mask, sinks, values_in_keys: true, ..plain };
    let mut g = Graph::new();
    let q = g.embed("q", WeightId(0), HEADS * DIM, Index::Token);
    let k = g.embed("k", WeightId(1), DIM, Index::Token);
    let rows = g.embed("rows", WeightId(2), DIM, Index::Token);
    let pooled = Pooled { layer: 1, mask: Mask::Pooled(EACH as u32), rows, selected: None };
    let out = g.attention_and_pooled("out", 0, [q, k], pooled, spec);
    g.set_result(out);
    let config =
        Config { kernels: Some(level.into()), threads: Some(threads), ..Config::default() };
    let mut backend = CpuBackend::new(&config).unwrap();
    let weights = vec![
        table(HEADS * DIM, ROWS, 1),
        table(DIM, ROWS, 2),
        table(DIM, ROWS, 3),
        table(HEADS, 1, 4),
    ];
    backend.load_weights(weights, Vec::new()).unwrap();
    let near = spec.cache_layer();
    let layers = vec![near, CacheLayer { mask: pooled.mask, ..near }];
    let (page_tokens, pages, window_pages) = (64, 4, 4);
    let cache =
        CacheSpec { layers, key_type: ty, value_type: ty, page_tokens, pages, window_pages };
    // Of 64 tokens 22 blocks can end in a page.
    assert_eq!(
        [cache.window_page_bytes(), cache.page_bytes()],
        [64, 22].map(|rows| rows * ty.row_bytes(DIM))
    );
    backend.create_cache(cache).unwrap();
    let program = backend.compile(Plan::new(g, Capacity { tokens: 256, outputs: 256 })).unwrap();
    let (mut cached_tokens, mut read) = (0, Vec::new());
    for &rows in steps {
        let positions: Vec<u32> = (cached_tokens..cached_tokens + rows).map(|p| p as u32).collect();
        let window_pages = SegmentWindowPages { first: 0, pages: vec![1, 3, 0, 2] };
        let segment = Segment {
            rows,
            cached_tokens,
            pages: vec![3, 0, 2, 1],
            window_pages,
            ..Segment::default()
        };
        let (segments, outputs) = (vec![segment], (0..rows as u32).collect());
        let input = StepInput {
            tokens: positions.clone(),
            positions,
            segments,
            outputs,
            ..StepInput::default()
        };
        backend.run(program, &input);
        read.extend_from_slice(backend.result());
        cached_tokens += rows;
    }
    read
}

/// The same, as defined.
fn expected() -> Vec<f32> {
    let (q, keys, rows) =
        (numbers(ROWS * HEADS * DIM, 1), numbers(ROWS * DIM, 2), numbers(ROWS * DIM, 3));
    let sinks = numbers(HEADS, 4);
    let mut all = Vec::new();
    for position in 0..ROWS {
        let near = (position + 1).saturating_sub(WINDOW)..position + 1;
        let near = near.map(|token| &keys[token * DIM..][..DIM]);
        let far = (EACH - 1..=position).step_by(EACH).map(|token| &rows[token * DIM..][..DIM]);
        let seen: Vec<&[f32]> = near.chain(far).collect();
        for (head, sink) in sinks.iter().enumerate() {
            let q = &q[(position * HEADS + head) * DIM..][..DIM];
            let score = |k: &&[f32]| {
                q.iter().zip(*k).map(|(q, k)| q * k).sum::<f32>() / (DIM as f32).sqrt()
            };
            let weights: Vec<f32> = seen.iter().map(|k| score(k).exp()).collect();
            let sum: f32 = weights.iter().sum::<f32>() + sink.exp();
            all.extend(
                (0..DIM)
                    .map(|d| seen.iter().zip(&weights).map(|(v, w)| v[d] * w).sum::<f32>() / sum),
            );
        }
    }
    all
}

#[test]
fn one_softmax_covers_the_window_and_all_pooled_rows() {
    let want = expected();
    for level in kernels::levels() {
        for (ty, bound) in [(KvType::F32, 1e-4), (KvType::F16, 2e-3), (KvType::Q8_0, 3e-2)] {
            let got = attended(level.name, 2, ty, &STEPS);
            let worst =
                got.iter().zip(&want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
            assert!(got.len() == want.len() && worst < bound, "{} {ty}: {worst}", level.name);
        }
    }
}

#[test]
fn thread_count_and_chunk_size_change_no_bit() {
    let bits = |read: Vec<f32>| read.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
    for level in kernels::levels() {
        for ty in KvType::ALL {
            let want = bits(attended(level.name, 1, ty, &STEPS));
            assert!(
                want.iter().all(|&x| f32::from_bits(x).is_finite()) && want.iter().any(|&x| x != 0)
            );
            for (threads, steps) in [(2, &STEPS[..]), (5, &STEPS), (2, &[ROWS]), (3, &[64, 64, 72])]
            {
                let got = bits(attended(level.name, threads, ty, steps));
                assert!(got == want, "{} {ty}, {threads} threads, {steps:?}", level.name);
            }
        }
    }
}
