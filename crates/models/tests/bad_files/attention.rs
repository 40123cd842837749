//! Latent attention, indexers and pooling.

use puna_gguf::{Metadata, Value};

use super::files::{refused, with};

#[test]
fn missing_parts_of_latent_attention_are_named() {
    let keep = |_: &mut Metadata| {};
    for part in
        ["attn_k_b", "attn_v_b", "attn_kv_a_mqa", "attn_kv_a_norm", "attn_q_a_norm", "attn_q_b"]
    {
        let tensor = format!("blk.1.{part}.weight");
        assert_eq!(refused("deepseek3", keep, &tensor), format!("tensor `{tensor}` is missing"));
    }
    let without = |key: &str| {
        let key = format!("deepseek2.{key}");
        let text = refused("deepseek3", |meta| drop(meta.remove(&key)), "");
        assert!(text.contains(&key), "{key}: {text}");
    };
    without("attention.kv_lora_rank");
    without("attention.q_lora_rank");
    without("rope.dimension_count");
    without("expert_feed_forward_length");
    for (key, value) in [
        ("attention.kv_lora_rank", 1u32 << 20),
        ("attention.q_lora_rank", 1 << 20),
        ("attention.q_lora_rank", 0),
        ("attention.key_length_mla", 0),
        ("attention.value_length_mla", 1 << 20),
        ("rope.dimension_count", 24),
        ("rope.dimension_count", 7),
    ] {
        let key = format!("deepseek2.{key}");
        let text = refused("deepseek3", with(&key, value), "");
        assert!(text.starts_with(&format!("key `{key}` is")), "{key} = {value}: {text}");
    }
    let text = refused("deepseek3", with("deepseek2.attention.temperature_scale", 0.1f32), "");
    assert!(text.contains("deepseek2.attention.temperature_length"), "{text}");
}

#[test]
fn causal_only_layers_cannot_become_an_encoder() {
    for name in ["gemma2", "lfm2", "mamba", "deepseek32", "t5-umt5"] {
        let architecture = if name == "t5-umt5" { "t5" } else { name };
        let key = format!("{architecture}.attention.causal");
        let text = refused(name, with(&key, false), "");
        assert_eq!(
            text,
            format!(
                "key `{key}` is false: this architecture has sliding windows or recurrent states, which are causal"
            )
        );
    }
}

#[test]
fn missing_parts_of_an_indexer_are_named() {
    let keep = |_: &mut Metadata| {};
    for part in ["attn_q_b", "attn_k", "k_norm", "proj"] {
        for (name, layer) in [("deepseek32", 1), ("glm-dsa", 3)] {
            let tensor = format!("blk.{layer}.indexer.{part}.weight");
            assert_eq!(refused(name, keep, &tensor), format!("tensor `{tensor}` is missing"));
        }
    }
    for part in ["head_count", "key_length", "top_k"] {
        let key = format!("deepseek32.attention.indexer.{part}");
        let text = refused("deepseek32", |meta| drop(meta.remove(&key)), "");
        assert!(text.contains(&key), "{key}: {text}");
        for value in [0u32, 1 << 20] {
            let text = refused("deepseek32", with(&key, value), "");
            assert!(text.starts_with(&format!("key `{key}` is {value}: ")), "{text}");
        }
    }
    let key = "deepseek32.attention.indexer.key_length";
    let text = refused("deepseek32", with(key, 6u32), "");
    assert!(text.starts_with(&format!("key `{key}` is 6, of which 8 are rotated: ")), "{text}");
    // If no layer has an indexer, its keys may be missing.
    let keyless = |metadata: &mut Metadata, name: &str| {
        for part in ["head_count", "key_length", "top_k"] {
            assert!(metadata.remove(&format!("{name}.attention.indexer.{part}")).is_some());
        }
    };
    let dense = |metadata: &mut Metadata| {
        keyless(metadata, "deepseek4");
        metadata.set("deepseek4.attention.compress_ratios", vec![0u32, 128, 0]);
    };
    assert_eq!(
        refused("deepseek4", dense, "output_norm.weight"),
        "tensor `output_norm.weight` is missing"
    );
    let dense = |metadata: &mut Metadata| {
        keyless(metadata, "minimax-m3");
        metadata.set("minimax-m3.leading_dense_block_count", 3u32);
    };
    assert_eq!(refused("minimax-m3", dense, ""), "tensor `blk.1.ffn_up.weight` is missing");
    for part in ["q_proj", "k_proj", "q_norm", "k_norm"] {
        let tensor = format!("blk.1.indexer.{part}.weight");
        assert_eq!(refused("minimax-m3", keep, &tensor), format!("tensor `{tensor}` is missing"));
    }
    for (part, value) in [("block_size", 0u32), ("local_blocks", 4), ("head_count", 3)] {
        let key = format!("minimax-m3.attention.indexer.{part}");
        let text = refused("minimax-m3", with(&key, value), "");
        assert!(text.starts_with(&format!("key `{key}` is {value}: ")), "{text}");
    }
    let key = "glm-dsa.attention.indexer.types";
    for (value, found) in [
        (Value::from(vec![false, true, true, true]), "absent in the first layer"),
        (Value::from(false), "absent in the first layer"),
        (Value::from(vec![true; 3]), "3 entries"),
    ] {
        let text = refused("glm-dsa", with(key, value), "");
        assert!(text.starts_with(&format!("key `{key}` is {found}: ")), "{text}");
    }
    // A layer with an indexer needs the indexer's tensors.
    let text = refused("glm-dsa", with(key, vec![true; 4]), "");
    assert_eq!(text, "tensor `blk.1.indexer.attn_q_b.weight` is missing");
}

#[test]
fn missing_parts_of_pooled_attention_are_named() {
    let keep = |_: &mut Metadata| {};
    for tensor in [
        "blk.0.attn_compressor_ape.weight",
        "blk.1.attn_compressor_norm.weight",
        "blk.0.indexer_compressor_gate.weight",
        "blk.0.indexer.proj.weight",
        "blk.2.attn_output_a.weight",
        "blk.0.ffn_gate_tid2eid.weight",
    ] {
        assert_eq!(refused("deepseek4", keep, tensor), format!("tensor `{tensor}` is missing"));
    }
    let wrong = |key: &str, value: Value, reason: &str| {
        let key = format!("deepseek4.attention.{key}");
        let text = refused("deepseek4", with(&key, value), "");
        assert!(text.starts_with(&format!("key `{key}` ")) && text.contains(reason), "{text}");
    };
    wrong("output_group_count", 4u32.into(), "must divide the number of heads");
    wrong("value_length", 16u32.into(), "keys are also the values");
    wrong("compress_ratios", vec![4u32, 128].into(), "");
    wrong("compress_ratios", vec![4u32, 1 << 17, 0].into(), "must be at most 65536");
    wrong("indexer.key_length", 8u32.into(), "must be at least rope.dimension_count");
    let key = "deepseek4.attention.compress_ratios";
    let text = refused("deepseek4", |meta| drop(meta.remove(key)), "");
    assert!(text.starts_with(&format!("key `{key}` is absent")), "{text}");
    // Block sizes that contradict the tensors.
    let text = refused("deepseek4", with(key, vec![4u32, 64, 0]), "");
    assert!(text.contains("blk.1.attn_compressor_ape.weight"), "{text}");
}
