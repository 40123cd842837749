//! What latent attention is made of: values that lie in their keys, and products of heads with
//! matrices of their own.

use std::sync::Arc;

use crate::kit::{backend, numbers, step, table};
use puna_cpu::kernels;
use puna_graph::*;
use puna_quant::TensorType;

const HEADS: usize = 20;
const KEY: usize = 192;
const VALUE: usize = 128;
const STEPS: [usize; 5] = [150, 1, 7, 1, 40];

/// What attention reads at all of [`STEPS`], as bits.
fn attended(level: &str, threads: usize, ty: KvType, values_in_keys: bool) -> Vec<u32> {
    let rows = STEPS.iter().sum();
    let spec = AttentionSpec { values_in_keys, ..AttentionSpec::causal(HEADS, 1, KEY, VALUE) };
    let mut g = Graph::new();
    let q = g.embed("q", WeightId(0), HEADS * KEY, Index::Token);
    let k = g.embed("k", WeightId(1), KEY, Index::Token);
    let v = if values_in_keys { k } else { g.slice(k, 0, VALUE) };
    let out = g.attention("out", 0, [q, k, v], spec);
    g.set_result(out);
    let mut backend =
        backend(level, threads, vec![table(HEADS * KEY, rows, 1).0, table(KEY, rows, 2).0]);
    let layers = vec![spec.cache_layer()];
    let cache = CacheSpec {
        layers,
        key_type: ty,
        value_type: ty,
        page_tokens: 64,
        pages: 4,
        window_pages: 0,
    };
    let values = if values_in_keys { 0 } else { ty.row_bytes(VALUE) };
    assert_eq!(cache.page_bytes(), 64 * (ty.row_bytes(KEY) + values));
    backend.create_cache(cache).unwrap();
    let program = backend.compile(Plan::new(g, Capacity { tokens: 256, outputs: 256 })).unwrap();
    let (mut cached_tokens, mut bits) = (0, Vec::new());
    for rows in STEPS {
        backend.run(program, &step(cached_tokens, rows));
        bits.extend(backend.result().iter().map(|x| x.to_bits()));
        cached_tokens += rows;
    }
    bits
}

#[test]
fn values_within_keys_give_the_same_bits_as_separate_values() {
    for level in kernels::levels() {
        for ty in KvType::ALL {
            let want = attended(level.name, 1, ty, false);
            assert!(
                want.iter().all(|&bits| f32::from_bits(bits).is_finite())
                    && want.iter().any(|&x| x != 0)
            );
            for threads in [1, 2, 5] {
                let got = attended(level.name, threads, ty, true);
                assert!(got == want, "{} {ty}, {threads} threads", level.name);
            }
        }
    }
}

#[test]
fn values_within_keys_must_fill_whole_blocks_of_a_quantized_cache() {
    let spec = AttentionSpec { values_in_keys: true, ..AttentionSpec::causal(4, 1, 64, 48) };
    let layers = vec![spec.cache_layer()];
    let (key_type, value_type) = (KvType::Q8_0, KvType::F16);
    let cache =
        CacheSpec { layers, key_type, value_type, page_tokens: 64, pages: 1, window_pages: 0 };
    let error = backend("portable", 1, Vec::new()).create_cache(cache).unwrap_err();
    assert!(matches!(error, BackendError::CacheType { multiple: 32, dim: 48, .. }), "{error}");
}

/// Heads of [`IN`] columns that are multiplied, and [`REST`] that are not.
const IN: usize = 64;
const OUT: usize = 40;
const REST: usize = 5;
const GROUP: usize = 3;

#[test]
fn each_head_has_its_own_matrix_and_the_remaining_columns_stay() {
    let (x, rows) = table(GROUP * (IN + REST), 300, 3);
    let floats = numbers(GROUP * IN * OUT, 4);
    for ty in [TensorType::F32, TensorType::BF16, TensorType::Q8_0, TensorType::Q4_0] {
        let mut data = vec![0; ty.row_bytes(IN).unwrap() * OUT * GROUP];
        puna_quant::quantize(ty, &floats, IN, None, &mut data).unwrap();
        let mut w = vec![0.0; floats.len()];
        puna_quant::dequantize(ty, &data, &mut w).unwrap();
        let shape = vec![IN, OUT, GROUP];
        let matrices = Weight { name: "heads".into(), ty, shape, data: Arc::new(data) };
        for level in kernels::levels() {
            let mut backend = backend(level.name, 3, vec![x.clone(), matrices.clone()]);
            let program = backend
                .compile(Plan::new(heads(), Capacity { tokens: 300, outputs: 300 }))
                .unwrap();
            // Packed weights meet activations of 8 bits.
            let bound = if level.name == "portable" { 1e-5 } else { 0.01 };
            for count in [1, 9, 300] {
                backend.run(program, &step(0, count));
                assert_eq!(backend.result().len(), count * GROUP * (OUT + REST));
                for (i, got) in backend.result().iter().enumerate() {
                    let (want, size) = expected(i, &rows, &w);
                    let error = (f64::from(*got) - want).abs();
                    let what =
                        format!("{ty} {}, {count} rows: {i} is {got}, not {want}", level.name);
                    assert!(error <= bound * size, "{what}");
                }
            }
        }
    }
}

fn heads() -> Graph {
    let mut g = Graph::new();
    let x = g.embed("x", WeightId(0), GROUP * (IN + REST), Index::Token);
    let l = PerHeadLinear { w: WeightId(1), input: IN, out: OUT, heads: GROUP };
    let out = g.per_head_linear("out", &l, x);
    g.set_result(out);
    g
}

/// Result `i`, and the sum of what is added for it without signs; nothing is added to what follows.
fn expected(i: usize, rows: &[f32], w: &[f32]) -> (f64, f64) {
    let (head, j) = (i / (OUT + REST), i % (OUT + REST));
    let x = &rows[head * (IN + REST)..][..IN + REST];
    if j >= OUT {
        return (f64::from(x[IN + j - OUT]), 0.0);
    }
    let w = &w[(head % GROUP * OUT + j) * IN..][..IN];
    let terms = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
    (terms.clone().sum(), terms.map(f64::abs).sum())
}
