//! Files that parse but are not models: each is rejected with an error that names the key or the
//! tensor.

mod attention;
#[path = "../kit/files.rs"]
mod files;
mod numbers;
mod streams;
mod tensors;

use files::{refused, source, with};
use puna_gguf::Metadata;

#[test]
fn an_unknown_architecture_is_named_with_the_known_ones() {
    let text = refused("llama", with("general.architecture", "quantum"), "");
    assert!(
        text.starts_with("unknown architecture `quantum`; this version supports afmoe, apertus"),
        "{text}"
    );
}

#[test]
fn a_missing_tensor_is_named() {
    let keep = |_: &mut Metadata| {};
    assert_eq!(
        refused("llama", keep, "blk.1.ffn_down.weight"),
        "tensor `blk.1.ffn_down.weight` is missing"
    );
    assert_eq!(
        refused("llama", keep, "token_embd.weight"),
        "tensor `token_embd.weight` is missing"
    );
}

#[test]
fn invalid_numbers_are_named_with_their_key() {
    for (key, value) in [
        ("llama.block_count", 0u32),
        ("llama.block_count", 513),
        ("llama.embedding_length", 0),
        ("llama.context_length", 0),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.key_length", 1 << 20),
        ("llama.rope.dimension_count", 7),
    ] {
        let text = refused("llama", with(key, value), "");
        assert!(text.contains(key) || text.contains("head_count"), "{key} = {value}: {text}");
    }
    for value in [0.0f32, -1.0, f32::NAN, f32::INFINITY] {
        let text = refused("llama", with("llama.attention.layer_norm_rms_epsilon", value), "");
        assert!(text.starts_with("key `llama.attention.layer_norm_rms_epsilon` is"), "{text}");
        let text = refused("llama", with("llama.rope.freq_base", value), "");
        assert!(text.contains("base"), "{text}");
    }
}

#[test]
fn a_key_of_another_type_is_named_with_both_types() {
    let text = refused("llama", with("llama.block_count", "two"), "");
    assert!(text.contains("llama.block_count"), "{text}");
}

#[test]
fn a_top_k_above_the_number_of_experts_is_rejected() {
    let text = refused("llama-moe", with("llama.expert_used_count", 1000u32), "");
    assert!(text.contains("expert_used_count"), "{text}");
}

#[test]
fn invalid_expert_routing_is_rejected() {
    for (key, value) in
        [("expert_group_count", 3u32), ("expert_group_used_count", 9), ("expert_gating_func", 9)]
    {
        let key = format!("bailingmoe2.{key}");
        let text = refused("bailingmoe2", with(&key, value), "");
        assert!(text.starts_with("key `bailingmoe2.expert_g"), "{key}: {text}");
    }
    let keep = |_: &mut Metadata| {};
    let text = refused("qwen2moe", keep, "blk.1.ffn_up_shexp.weight");
    assert!(text.contains("`blk.1.ffn_up_shexp.weight`"), "{text}");
}

#[test]
fn missing_parts_of_single_architectures_are_named() {
    let keep = |_: &mut Metadata| {};
    for (name, tensor) in [
        ("gpt2", "position_embd.weight"),
        ("bloom", "token_embd_norm.weight"),
        ("olmo2", "blk.0.post_ffw_norm.weight"),
        ("cohere2", "blk.1.attn_norm.weight"),
        ("afmoe", "blk.0.attn_gate.weight"),
        ("hunyuan-dense", "blk.1.attn_k_norm.weight"),
        ("nomic-bert", "blk.1.ffn_down.weight"),
        ("jina-bert-v2", "token_embd_norm.weight"),
        ("modern-bert", "blk.1.attn_norm.weight"),
        ("t5encoder", "enc.blk.0.attn_rel_b.weight"),
        ("t5encoder", "enc.output_norm.weight"),
        ("t5", "enc.blk.1.attn_q.weight"),
        ("t5", "dec.blk.2.cross_attn_v.weight"),
        ("t5", "dec.blk.0.attn_rel_b.weight"),
        ("t5", "dec.output_norm.weight"),
        ("chameleon", "blk.1.attn_q_norm.weight"),
        ("cogvlm", "blk.1.attn_output.weight"),
        ("grovemoe", "blk.1.ffn_up_chexps.weight"),
        ("graniteswitch", "blk.1.ffn_down.lora_b"),
        ("graniteswitch", "blk.0.attn_k.lora_a"),
        ("mamba", "blk.1.ssm_dt.bias"),
        ("mamba2", "blk.0.ssm_dt.bias"),
        ("jamba", "blk.2.attn_k.weight"),
        ("falcon-h1", "blk.1.ssm_a"),
        ("nemotron-h-moe", "blk.1.ffn_up_shexp.weight"),
        ("lfm2", "token_embd_norm.weight"),
        ("qwen3next", "blk.0.ssm_ba.weight"),
        ("qwen35", "blk.2.ssm_alpha.weight"),
        ("rwkv6", "blk.0.time_mix_w2.weight"),
        ("rwkv6qwen2", "blk.1.time_mix_decay_w1.weight"),
        ("rwkv7", "blk.1.time_mix_v0.weight"),
        ("arwkv7", "blk.0.time_mix_r_k.weight"),
        ("plamo2", "blk.0.ssm_dt_norm"),
        ("minimax-01", "blk.2.attn_norm_2.weight"),
        ("kimi-k3", "blk.0.ssm_g.weight"),
        ("kimi-k3", "blk.1.attn_res_score.weight"),
        ("kimi-k3", "output_res_score.weight"),
        ("kimi-k3", "blk.2.ffn_routed_up.weight"),
        ("bailingmoe3", "blk.0.ssm_f_a.weight"),
        ("bailingmoe3", "blk.1.attn_gate.weight"),
        ("glm5-next", "blk.0.ssm_g_b.weight"),
        ("glm5-next", "blk.1.hc_ffn_fn.weight"),
        ("glm5-next", "blk.3.indexer_compressor_ape.weight"),
    ] {
        assert_eq!(refused(name, keep, tensor), format!("tensor `{tensor}` is missing"), "{name}");
    }
    let text = refused("apertus", with("xielu.beta", "soft"), "");
    assert!(text.contains("xielu.beta"), "{text}");
    let text = refused("llama4", |meta| drop(meta.remove("llama4.interleave_moe_layer_step")), "");
    assert!(text.contains("llama4.interleave_moe_layer_step"), "{text}");
    let text = refused("minimax-01", |meta| drop(meta.remove("minimax-01.residual_scale")), "");
    assert!(text.contains("minimax-01.residual_scale"), "{text}");
    let text = refused("modern-bert", with("modern-bert.hidden_activation", "swish"), "");
    assert!(text.starts_with("key `modern-bert.hidden_activation` is `swish`"), "{text}");
    for count in [0u32, 3, 257] {
        let text =
            refused("t5encoder", with("t5encoder.attention.relative_buckets_count", count), "");
        assert!(text.starts_with("key `t5encoder.attention.relative_buckets_count` is"), "{text}");
    }
}

#[test]
fn invalid_limits_are_named() {
    for (name, key) in [
        ("kimi-k3", "kda.gate_lower_bound"),
        ("bailingmoe3", "kda.gate_lower_bound"),
        ("kimi-k3", "activation.situ_beta"),
    ] {
        let key = format!("{name}.{key}");
        let sign = if key.ends_with("beta") { -1.0 } else { 1.0 };
        for value in [0.0f32, 2.0 * sign, f32::NAN, sign * f32::INFINITY] {
            let text = refused(name, with(&key, value), "");
            assert!(text.starts_with(&format!("key `{key}` is")), "{value}: {text}");
        }
    }
    for key in ["kimi-k3.activation.situ_beta", "kimi-k3.activation.situ_linear_beta"] {
        let text = refused("kimi-k3", |meta| drop(meta.remove(key)), "");
        assert!(text.starts_with(&format!("key `{key}` is absent")), "{text}");
    }
    for (key, value) in [("kpool", 4u32), ("kpool", 1), ("top_k", 8)] {
        let text =
            refused("glm5-next", with(&format!("glm5-next.attention.indexer.{key}"), value), "");
        assert!(text.starts_with("key `glm5-next.attention.indexer.kpool` is"), "{key}: {text}");
    }
    let text =
        refused("glm5-next", with("glm5-next.attention.indexer.kpool_select_tail", false), "");
    assert!(text.starts_with("key `glm5-next.attention.indexer.kpool_select_tail` is"), "{text}");
    let text = refused("bailingmoe3", with("bailingmoe3.kda.safe_gate", false), "");
    assert!(text.starts_with("key `bailingmoe3.kda.gate_lower_bound` is"), "{text}");
}

#[test]
fn missing_parts_of_gemma_4_are_named() {
    let keep = |_: &mut Metadata| {};
    for (name, tensor) in [
        ("gemma4", "per_layer_token_embd.weight"),
        ("gemma4", "per_layer_proj_norm.weight"),
        ("gemma4", "blk.2.attn_k.weight"),
        ("gemma4", "blk.5.post_norm.weight"),
        ("gemma4-moe", "blk.1.pre_ffw_norm_2.weight"),
        ("gemma4-moe", "blk.1.ffn_gate_inp.scale"),
        ("gemma4-moe", "blk.1.ffn_down_exps.weight"),
    ] {
        assert_eq!(refused(name, keep, tensor), format!("tensor `{tensor}` is missing"), "{name}");
    }
    // Without the fused tensor, the two halves are expected.
    let text = refused("gemma4-moe", keep, "blk.1.ffn_gate_up_exps.weight");
    assert_eq!(text, "tensor `blk.1.ffn_gate_exps.weight` is missing");
    for (key, value) in [
        ("attention.shared_kv_layers", 6u32),
        ("attention.shared_kv_layers", 5),
        ("attention.value_length_swa", 4),
        ("attention.key_length_swa", 0),
        ("attention.key_length_swa", 1 << 20),
        ("attention.sliding_window", 0),
        ("rope.dimension_count_swa", 10),
    ] {
        let key = format!("gemma4.{key}");
        let text = refused("gemma4", with(&key, value), "");
        assert!(text.starts_with(&format!("key `{key}` is")), "{key} = {value}: {text}");
    }
}

#[test]
fn missing_parts_of_further_architectures_are_named() {
    let keep = |_: &mut Metadata| {};
    for (name, tensor) in [
        ("minicpm3", "blk.1.attn_kv_b.weight"),
        ("grok", "blk.0.attn_output_norm.weight"),
        ("dbrx", "blk.1.attn_output_norm.weight"),
        ("jais", "blk.1.ffn_gate.weight"),
    ] {
        let text = refused(name, keep, tensor);
        assert!(text.starts_with("tensor `"), "{name} without {tensor}: {text}");
    }
    let sliding = with("deepseek2-ocr.attention.sliding_window", 128u32);
    let text = refused_as("deepseek", "deepseek2-ocr", sliding);
    assert!(
        text.starts_with("`deepseek2-ocr.attention.sliding_window` is not supported"),
        "{text}"
    );
}

#[test]
fn inconsistent_layers_are_named() {
    let source = source("gemma4");
    let layers = source.metadata().u32("gemma4.block_count").unwrap() as usize;
    let key = "gemma4.attention.head_count_kv";
    let mut heads = source.metadata().u32_per_layer(key, layers).unwrap().unwrap();
    let other = 3 - heads[layers - 1];
    heads[layers - 1] = other;
    let text = refused("gemma4", with(key, heads), "");
    assert!(
        text.starts_with(&format!("key `{key}` is {other} in layer {}, ", layers - 1)),
        "{text}"
    );
    let text = refused("qwen3next", with("qwen3next.attention.value_length", 8u32), "");
    assert!(text.contains("`attention.value_length` must equal `attention.key_length`"), "{text}");
    assert!(text.contains("`attention.value_length`"), "{text}");
    for (name, key, value) in [
        ("nanbeige", "nanbeige.num_loops", 257u32),
        ("nanbeige", "nanbeige.num_loops", u32::MAX),
        ("hrm_text", "hrm_text.hrm.l_cycles", 3),
        ("hrm_text", "hrm_text.hrm.layers_per_stack", u32::MAX),
        ("step35", "step35.rope.dimension_count_swa", 7),
        ("mimo2", "mimo2.expert_used_count", 7),
    ] {
        let text = refused(name, with(key, value), "");
        let named = if key.contains(".hrm.") { "hrm_text.block_count" } else { key };
        assert!(text.starts_with(&format!("key `{named}` is")), "{key} = {value}: {text}");
    }
    for name in ["spark2_5", "maple", "mimo2", "step35"] {
        let key = format!("{name}.attention.sliding_window_pattern");
        let text = refused(name, |meta| drop(meta.remove(&key)), "");
        assert!(text.starts_with(&format!("key `{key}` is absent")), "{text}");
    }
}

/// Error of loading a zoo file with another architecture's name and other metadata.
fn refused_as(name: &str, architecture: &str, change: impl Fn(&mut Metadata)) -> String {
    let rename = |meta: &mut Metadata| {
        let of = |key: &str| key.replacen(&format!("{name}."), &format!("{architecture}."), 1);
        let keys: Vec<_> = meta.iter().map(|(key, value)| (of(key), value.clone())).collect();
        keys.into_iter().for_each(|(key, value)| meta.set(&key, value));
        meta.set("general.architecture", architecture);
        change(meta);
    };
    refused(name, rename, "")
}

#[test]
fn invalid_recurrent_sizes_are_named_with_their_key() {
    for (name, key, value) in [
        ("mamba", "mamba.ssm.conv_kernel", 1u32),
        ("mamba", "mamba.ssm.conv_kernel", 65),
        ("mamba", "mamba.ssm.state_size", 0),
        ("mamba2", "mamba2.ssm.time_step_rank", 5),
        ("mamba2", "mamba2.ssm.group_count", 3),
        ("lfm2", "lfm2.shortconv.l_cache", 0),
        ("rwkv6", "rwkv6.wkv.head_size", 7),
        ("rwkv6", "rwkv6.wkv.head_size", 0),
        ("rwkv6qwen2", "rwkv6qwen2.attention.head_count_kv", 3),
        ("rwkv7", "rwkv7.attention.iclr_lora_rank", 0),
        ("rwkv7", "rwkv7.wkv.head_size", 7),
        ("plamo2", "plamo2.ssm.time_step_rank", 5),
    ] {
        let text = refused(name, with(key, value), "");
        assert!(text.starts_with(&format!("key `{key}` is {value}: ")), "{text}");
    }
    let text = refused("qwen35", |meta| drop(meta.remove("qwen35.rope.dimension_sections")), "");
    assert!(text.starts_with("key `qwen35.rope.dimension_sections` is absent"), "{text}");
    let text =
        refused("qwen3next", with("qwen3next.attention.recurrent_layers", vec![true; 3]), "");
    assert!(text.starts_with("key `qwen3next.attention.recurrent_layers` is 3 entries"), "{text}");
    let text = refused("jamba", with("jamba.attention.head_count_kv", vec![0u32, 0, 3, 0]), "");
    assert!(text.starts_with("attention in layer 2 is not supported"), "{text}");
    let text = refused("lfm2", with("lfm2.attention.causal", false), "");
    assert!(text.starts_with("key `lfm2.attention.causal` is false"), "{text}");
    let text = refused("dream", |meta| drop(meta.remove("tokenizer.ggml.mask_token_id")), "");
    assert!(text.contains("`tokenizer.ggml.mask_token_id`"), "{text}");
    let text = refused("rnd1", with("tokenizer.ggml.mask_token_id", 320u32), "");
    assert!(
        text.starts_with("key `tokenizer.ggml.mask_token_id` is 320: the vocabulary"),
        "{text}"
    );
    let text = refused("llada-moe", with("llada-moe.expert_used_count", 100u32), "");
    assert!(text.starts_with("key `llada-moe.expert_used_count` is 100"), "{text}");
    // Keys are compared with the tensors before a state is allocated.
    let text = refused("mamba", with("mamba.ssm.state_size", 1u32 << 31), "");
    assert!(text.contains("`blk.0.ssm_a`"), "{text}");
    let text = refused("mamba2", with("mamba2.ssm.inner_size", 1u32 << 30), "");
    assert!(text.contains("`blk.0.ssm_a`"), "{text}");
}

#[test]
fn invalid_embedded_adapters_are_rejected() {
    let of = |key: &str| format!("graniteswitch.adapters.{key}");
    for (key, value) in [("count", 0u32), ("count", 2), ("count", 4097), ("lora_rank", 5000)] {
        let text = refused("graniteswitch", with(&of(key), value), "");
        assert!(text.starts_with("key `graniteswitch.adapters."), "{key} = {value}: {text}");
    }
    let text = refused("graniteswitch", with(&of("lora_rank"), 6u32), "");
    assert!(text.contains("lora_a") && text.contains('6'), "{text}");
    for key in ["token_ids_activate", "token_ids_substitute"] {
        let text = refused("graniteswitch", with(&of(key), vec![1u32, 2]), "");
        assert!(text.contains(key) && text.contains("2 tokens"), "{text}");
        let text = refused("graniteswitch", with(&of(key), vec![1u32, 320, 2]), "");
        assert!(text.contains(key) && text.contains("no such token"), "{text}");
    }
    let text = refused("grovemoe", with("grovemoe.experts_per_group", 2u32), "");
    assert!(text.starts_with("key `grovemoe.experts_per_group` is 2"), "{text}");
}

#[test]
fn invalid_layer_stacks_are_rejected() {
    for (key, value) in [
        ("decoder_block_count", 0u32),
        ("decoder_block_count", 513),
        ("decoder_start_token_id", 320),
        ("attention.relative_buckets_count", 3),
    ] {
        let key = format!("t5.{key}");
        let text = refused("t5", with(&key, value), "");
        assert!(text.starts_with(&format!("key `{key}` is {value}")), "{text}");
    }
    let text = refused("t5", with("t5.decoder_block_count", 4u32), "");
    assert!(text.contains("`dec.blk.3."), "{text}");
}
