//! Observed inputs of products, for importance matrices: compared with sums computed from the file.

use puna_cpu::{Config, CpuBackend};
use puna_engine::{EngineOptions, Evaluator, Outputs, SequenceInput};
use puna_gguf::View;
use puna_graph::ActivationStats;
use puna_quant::dequantize;

use crate::file;

const TOKENS: [u32; 9] = [5, 17, 60, 61, 100, 17, 3, 250, 9];

fn observed(path: &str) -> (View, Vec<ActivationStats>) {
    let view = file(path);
    let backend =
        CpuBackend::new(&Config { threads: Some(2), ..Config::default() }).unwrap().observing();
    let mut evaluator =
        Evaluator::open(&view, Box::new(backend), &EngineOptions::default()).unwrap();
    for tokens in TOKENS.chunks(5) {
        evaluator.logits(&[SequenceInput { sequence: 0, tokens, outputs: Outputs::All }]).unwrap();
    }
    let seen = evaluator.backend().activation_stats();
    (view, seen)
}

fn of<'a>(seen: &'a [ActivationStats], name: &str) -> &'a ActivationStats {
    seen.iter().find(|seen| seen.name == name).unwrap_or_else(|| panic!("{name}"))
}

fn values(view: &View, name: &str) -> Vec<f32> {
    let gguf = view.gguf();
    let tensor = gguf.tensor(name).unwrap();
    let mut values = vec![0.0; tensor.elements() as usize];
    dequantize(tensor.ty, gguf.data(tensor), &mut values).unwrap();
    values
}

/// The first layer's input for each token, computed from the file.
fn normed(view: &View) -> Vec<Vec<f64>> {
    let (table, norm) = (values(view, "token_embd.weight"), values(view, "blk.0.attn_norm.weight"));
    let architecture = view.gguf().metadata().architecture().unwrap();
    let eps = view
        .gguf()
        .metadata()
        .f32(&format!("{architecture}.attention.layer_norm_rms_epsilon"))
        .unwrap();
    let width = norm.len();
    let of = |token: u32| {
        let row = &table[token as usize * width..][..width];
        let mean = row.iter().map(|x| f64::from(x * x)).sum::<f64>() / width as f64;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        row.iter().zip(&norm).map(|(x, w)| f64::from(*x) * scale * f64::from(*w)).collect()
    };
    TOKENS.map(of).into()
}

#[test]
fn the_first_products_read_the_normed_tokens() {
    let (view, seen) = observed("tests/data/zoo/llama.gguf");
    let rows = normed(&view);
    let want =
        (0..rows[0].len()).map(|column| rows.iter().map(|row| row[column].powi(2)).sum::<f64>());
    let query = of(&seen, "blk.0.attn_q.weight");
    assert_eq!(query.counts, [TOKENS.len() as u64]);
    for (found, want) in query.squares.iter().zip(want) {
        assert!((f64::from(*found) - want).abs() <= want * 1e-4, "{found} for {want}");
    }
    assert_eq!(of(&seen, "blk.0.attn_v.weight").squares, query.squares);
    // All tokens count, also in the last layer.
    assert_eq!(of(&seen, "blk.1.ffn_down.weight").counts, query.counts);
    assert!(of(&seen, "blk.1.ffn_down.weight").squares.iter().all(|sum| *sum > 0.0));
}

#[test]
fn per_head_matrices_read_the_columns_of_their_head() {
    let (view, seen) = observed("tests/data/zoo/deepseek2-lite.gguf");
    let key = |key: &str| view.gguf().metadata().u32(&format!("deepseek2.{key}")).unwrap() as usize;
    let (heads, dim) = (key("attention.head_count"), key("attention.key_length_mla"));
    let still = dim - key("rope.dimension_count");
    let found = of(&seen, "blk.0.attn_k_b.weight");
    assert_eq!((found.counts.len(), found.squares.len()), (heads, heads * still));
    assert!(found.counts.iter().all(|&count| count == TOKENS.len() as u64));
    let (query, rows) = (values(&view, "blk.0.attn_q.weight"), normed(&view));
    for (i, found) in found.squares.iter().enumerate() {
        let weights = &query[(i / still * dim + i % still) * rows[0].len()..][..rows[0].len()];
        let of =
            |row: &Vec<f64>| row.iter().zip(weights).map(|(x, w)| x * f64::from(*w)).sum::<f64>();
        let want: f64 = rows.iter().map(|row| of(row).powi(2)).sum();
        assert!((f64::from(*found) - want).abs() <= want * 2e-2 + 1e-4, "{i}: {found} for {want}");
    }
    let values = of(&seen, "blk.0.attn_v_b.weight");
    assert_eq!(
        (values.counts.len(), values.squares.len()),
        (heads, heads * key("attention.kv_lora_rank"))
    );
}

#[test]
fn experts_read_the_inputs_of_their_tokens() {
    let (_, seen) = observed("tests/data/zoo/qwen3moe.gguf");
    let (up, down) =
        (of(&seen, "blk.0.ffn_up_exps.weight"), of(&seen, "blk.0.ffn_down_exps.weight"));
    assert_eq!((up.counts.len(), up.squares.len(), down.squares.len()), (5, 5 * 48, 5 * 24));
    assert_eq!(up.counts, down.counts);
    assert_eq!(up.counts.iter().sum::<u64>(), 2 * TOKENS.len() as u64);
    assert_eq!(
        of(&seen, "blk.0.ffn_gate_exps.weight"),
        &ActivationStats { name: "blk.0.ffn_gate_exps.weight".into(), ..up.clone() }
    );
    // Each token has two experts, so the experts' sums are twice the router's.
    let router = of(&seen, "blk.0.ffn_gate_inp.weight");
    for (column, want) in router.squares.iter().enumerate() {
        let found: f32 = up.squares.iter().skip(column).step_by(48).sum();
        assert!(
            (found - 2.0 * want).abs() <= want * 1e-4,
            "column {column}: {found} for twice {want}"
        );
    }
    for (expert, count) in down.counts.iter().enumerate() {
        let used = down.squares[expert * 24..][..24].iter().any(|sum| *sum > 0.0);
        assert_eq!(used, *count > 0, "expert {expert}");
    }
}
