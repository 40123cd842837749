//! Several residual streams, and n-gram embeddings.

use puna_gguf::{Metadata, Value};

use super::files::{refused, with};

#[test]
fn missing_parts_of_hyper_connections_are_named() {
    let keep = |_: &mut Metadata| {};
    for (name, tensor) in [
        ("hy_v4", "blk.1.hc_attn_fn.weight"),
        ("hy_v4", "blk.2.hc_ffn_base.weight"),
        ("hy_v4", "output_hc_scale.weight"),
        ("hy_v4", "blk.0.attn_sinks.weight"),
        ("hy_v4", "blk.0.attn_gate.weight"),
        ("deepseek4", "blk.0.hc_ffn_scale.weight"),
        ("deepseek4", "output_hc_fn.weight"),
    ] {
        assert_eq!(refused(name, keep, tensor), format!("tensor `{tensor}` is missing"));
    }
    for (name, key, value, reason) in [
        ("hy_v4", "hyper_connection.count", Value::from(1u32), "must be between 2 and 16"),
        ("hy_v4", "hyper_connection.count", Value::from(17u32), "must be between 2 and 16"),
        (
            "hy_v4",
            "hyper_connection.epsilon",
            Value::from(f32::NAN),
            "must be a small number, at least 0",
        ),
        (
            "hy_v4",
            "hyper_connection.magnitude",
            Value::from(f32::INFINITY),
            "must be a finite number",
        ),
        (
            "deepseek4",
            "hyper_connection.sinkhorn_iterations",
            Value::from(101u32),
            "must be at most 100",
        ),
    ] {
        let key = format!("{name}.{key}");
        let text = refused(name, with(&key, value), "");
        assert!(text.starts_with(&format!("key `{key}` is ")) && text.contains(reason), "{text}");
    }
    // Tensors for another number of streams.
    let text = refused("hy_v4", with("hy_v4.hyper_connection.count", 2u32), "");
    assert!(text.starts_with("tensor `output_hc_fn.weight` has shape [120, 3]"), "{text}");
}

#[test]
fn missing_parts_of_gated_streams_and_blocks_are_named() {
    let keep = |_: &mut Metadata| {};
    for tensor in [
        "output_hc_up.weight",
        "blk.0.hc_attn_norm.weight",
        "blk.1.hc_ffn_down.weight",
        "blk.3.hc_attn_inject.weight",
        "blk.1.indexer.q_proj.weight",
        "blk.3.indexer.k_norm.weight",
        "blk.2.ssm_alpha.weight",
        "blk.1.ffn_up_shexp.weight",
    ] {
        assert_eq!(
            refused("qwen4exp-blocks", keep, tensor),
            format!("tensor `{tensor}` is missing")
        );
    }
    for (key, value, reason) in [
        ("hyper_connection.count", Value::from(1u32), "must be between 2 and 16"),
        ("hyper_connection.low_rank", 0u32.into(), "must be positive"),
        (
            "attention.compress_ratios",
            vec![0u32, 8, 0, 8].into(),
            "and divide attention.indexer.top_k",
        ),
        ("attention.compress_ratios", vec![0u32, 1 << 17, 0, 4].into(), "at most 65536"),
        ("attention.compress_ratios", vec![4u32, 4].into(), ""),
        ("attention.indexer.key_length", 6u32.into(), "must be at least rope.dimension_count"),
        ("attention.indexer.top_k", 0u32.into(), "must be positive"),
    ] {
        let key = format!("qwen4exp.{key}");
        let text = refused("qwen4exp-blocks", with(&key, value), "");
        assert!(text.starts_with(&format!("key `{key}` ")) && text.contains(reason), "{text}");
    }
    let key = "qwen4exp.rope.dimension_sections";
    let text = refused("qwen4exp-blocks", |meta| drop(meta.remove(key)), "");
    assert!(text.starts_with(&format!("key `{key}` is absent")), "{text}");
}

#[test]
fn missing_parts_of_n_gram_embeddings_are_named() {
    let keep = |_: &mut Metadata| {};
    for tensor in [
        "per_layer_token_embd.weight",
        "blk.2.ple_key.weight",
        "blk.2.ple_value.weight",
        "blk.2.ple_norm_key.weight",
        "blk.2.ple_norm_query.weight",
        "blk.2.ple_norm_conv.weight",
        "blk.2.ple_conv1d.weight",
    ] {
        assert_eq!(refused("qwen4exp", keep, tensor), format!("tensor `{tensor}` is missing"));
    }
    for part in [
        "ngram_size",
        "heads_per_ngram",
        "conv_kernel",
        "eos_token_id",
        "layer_multipliers",
        "head_offsets",
        "head_vocab_sizes",
    ] {
        let key = format!("qwen4exp.ple.{part}");
        let text = refused("qwen4exp", |meta| drop(meta.remove(&key)), "");
        assert_eq!(text, format!("key `{key}` is missing"));
    }
    let wrong = |key: &str, value: Value, reason: &str| {
        let key = format!("qwen4exp.{key}");
        let text = refused("qwen4exp", with(&key, value), "");
        assert!(text.starts_with(&format!("key `{key}` ")) && text.contains(reason), "{text}");
    };
    wrong("ple.layers", vec![4u32].into(), "is 4: the model has no such layer");
    wrong("ple.layers", vec![0u32, 2].into(), "is a list of 2 entries: only one layer");
    wrong("ple.layers", 2u32.into(), "must be an array");
    for size in [0u32, 1, 9, u32::MAX] {
        wrong("ple.ngram_size", size.into(), "must be");
    }
    for each in [0u32, 22, u32::MAX] {
        wrong(
            "ple.heads_per_ngram",
            each.into(),
            if each == 0 { "must be positive" } else { "must be at most 64" },
        );
    }
    wrong("ple.conv_kernel", 1u32.into(), "must be between 2 and 64");
    wrong(
        "ple.layer_multipliers",
        vec![1u64, 3, 5].into(),
        "a list of 3 entries: must have ple.ngram_size entries",
    );
    wrong("ple.layer_multipliers", vec![-1i64, 3, 5, 7].into(), "integers from 0 to 2^64-1");
    wrong(
        "ple.head_offsets",
        vec![0u64; 7].into(),
        "a list of 7 entries: must have ple.heads_per_ngram ×",
    );
    wrong("ple.head_vocab_sizes", vec![61u64; 5].into(), "a list of 5 entries: must have");
    wrong("ple.head_vocab_sizes", vec![61u64, 67, 0, 73, 79, 83].into(), "is 0: must be positive");
    // 448 rows: the last head ends with row 434.
    wrong(
        "ple.head_offsets",
        vec![0u64, 61, 128, 199, 272, 366].into(),
        "is 366, for 83 rows of 448: must be within the table",
    );
    wrong(
        "ple.head_offsets",
        vec![u64::MAX, 61, 128, 199, 272, 351].into(),
        "must be within the table",
    );
    wrong(
        "ple.head_vocab_sizes",
        vec![61u64, 67, 71, 73, 79, u64::MAX].into(),
        "the table has fewer rows",
    );
    // Sizes that contradict the tensors.
    let text = refused("qwen4exp", with("qwen4exp.embedding_length_per_layer_input", 16u32), "");
    assert!(text.starts_with("tensor `per_layer_token_embd.weight` has shape [8, 448]"), "{text}");
    let text = refused("qwen4exp", with("qwen4exp.ple.conv_kernel", 4u32), "");
    assert!(text.starts_with("tensor `blk.2.ple_conv1d.weight` has shape [3, 144]"), "{text}");
}
