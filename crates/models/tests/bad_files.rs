//! Files that parse but are no model: each is refused with an error that names the key or the tensor.

use std::path::Path;
use std::sync::Arc;

use puna_gguf::{Gguf, Metadata, Value, View, Writer};
use puna_models::{LoadOptions, Model, ModelError};
use puna_quant::TensorType;

fn source(name: &str) -> Gguf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/data/zoo/{name}.gguf"));
    Gguf::open(&path).unwrap()
}

/// The error of loading a copy of a zoo file with other metadata and without some tensors.
fn refused(name: &str, change: impl Fn(&mut Metadata), drop: &str) -> String {
    let source = source(name);
    let mut metadata = source.metadata().clone();
    change(&mut metadata);
    let mut writer = Writer::with_metadata(metadata);
    let mut data = Vec::new();
    for tensor in source.tensors().iter().filter(|t| &*t.name != drop) {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape).unwrap();
        data.push(source.data(tensor));
    }
    let bytes = writer.to_vec(data).unwrap();
    let view = View::new(Arc::new(Gguf::from_bytes(bytes).unwrap())).unwrap();
    match Model::load(&view, LoadOptions::default()) {
        Ok(_) => panic!("{name} was taken without {drop}"),
        Err(error) => error.to_string(),
    }
}

fn with(key: &str, value: impl Into<Value> + Clone) -> impl Fn(&mut Metadata) {
    let key = key.to_owned();
    move |metadata| metadata.set(&key, value.clone())
}

#[test]
fn an_unknown_architecture_is_named_with_the_known_ones() {
    let text = refused("llama", with("general.architecture", "quantum"), "");
    assert!(text.starts_with("unknown architecture `quantum`; this version knows afmoe, apertus"), "{text}");
}

#[test]
fn names_of_any_length_and_kind_are_safe_to_show() {
    let name = format!("\x1b[2J{}", "y".repeat(100_000));
    for (of, key) in [
        ("llama", "general.architecture"),
        ("llama", "llama.rope.scaling.type"),
        ("modern-bert", "modern-bert.hidden_activation"),
    ] {
        let text = refused(of, with(key, name.as_str()), "");
        assert!(text.contains("`\\u{1b}[2Jyyy"), "{text:.200}");
        assert!(text.len() < 4000, "{key}: {}", text.len());
    }
}

#[test]
fn numbers_that_are_none_are_named_with_their_key() {
    for (name, key) in [
        ("llama", "attention.scale"),
        ("command-r", "logit_scale"),
        ("granite", "attention.scale"),
        ("gemma2", "final_logit_softcapping"),
        ("llama-rope-yarn", "rope.scaling.yarn_beta_fast"),
        ("llama-rope-yarn", "rope.scaling.attn_factor"),
        ("grovemoe", "expert_group_scale"),
        ("minimax-01", "residual_scale"),
        ("deepseek3", "attention.temperature_scale"),
    ] {
        let source = source(name);
        let key = format!("{}.{key}", source.metadata().architecture().unwrap());
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let text = refused(name, with(&key, value), "");
            assert_eq!(text, format!("key `{key}` is {value}: must be a number, and not infinite"));
        }
    }
    let text = refused("step35", with("step35.swiglu_clamp_exp", vec![f32::NAN; 8]), "");
    assert_eq!(text, "key `step35.swiglu_clamp_exp` is NaN in layer 0: must be a number, and not infinite");
}

#[test]
fn the_key_that_is_wrong_is_named_and_not_what_follows_from_it() {
    for (name, key) in [
        ("llama", "rope.freq_base"),
        ("gemma3", "rope.freq_base_swa"),
        ("deepseek4", "attention.compress_rope_freq_base"),
    ] {
        let key = format!("{name}.{key}");
        for value in [0.0f32, -1.0] {
            let text = refused(name, with(&key, value), "");
            assert_eq!(text, format!("key `{key}` is {value}: the base of frequencies must be positive"));
        }
    }
    // The file says no size of heads.
    let text = refused("gpt2", with("gpt2.attention.head_count", 255u32), "");
    assert!(text.starts_with("key `gpt2.attention.head_count` is 255: there are more heads than"), "{text}");
    let text = refused("afmoe", with("afmoe.attention.value_length", 65_537u32), "");
    assert!(text.starts_with("key `afmoe.attention.value_length` is 65537: "), "{text}");
    let text = refused("granitehybrid", with("granitehybrid.attention.head_count", 1u32), "");
    assert!(
        text.ends_with("its `attention.head_count` is no multiple of its `attention.head_count_kv`"),
        "{text}"
    );
    for name in ["llama", "gptneox"] {
        let key = format!("{name}.feed_forward_length");
        let text = refused(name, |meta| drop(meta.remove(&key)), "");
        let file = format!("key `{key}` is absent or 0, and the file has `blk.0.ffn_up.weight`");
        assert!(text.starts_with(&file), "{text}");
    }
    let keep = |_: &mut Metadata| {};
    assert_eq!(refused("llama", keep, "blk.1.ffn_gate.weight"), "tensor `blk.1.ffn_gate.weight` is missing");
    let text = refused("llama-moe", |meta| drop(meta.remove("llama.feed_forward_length")), "");
    assert!(text.ends_with(": one of them is absent or zero"), "{text}");
}

#[test]
fn a_rotary_table_that_cannot_be_one_is_named() {
    const TABLE: &str = "rope_freqs.weight";
    let with_table = |ty: TensorType, bytes: &[u8], len: u64| {
        let source = source("llama");
        let mut writer = Writer::with_metadata(source.metadata().clone());
        let mut data = Vec::new();
        for tensor in source.tensors() {
            writer.tensor(&tensor.name, tensor.ty, &tensor.shape).unwrap();
            data.push(source.data(tensor));
        }
        writer.tensor(TABLE, ty, &[len]).unwrap();
        data.push(bytes);
        let view = View::new(Arc::new(Gguf::from_bytes(writer.to_vec(data).unwrap()).unwrap())).unwrap();
        Model::load(&view, LoadOptions::default()).map(|_| ()).map_err(|error| error.to_string())
    };
    let of = |factors: &[f32]| {
        let bytes: Vec<u8> = factors.iter().flat_map(|x| x.to_le_bytes()).collect();
        with_table(TensorType::F32, &bytes, factors.len() as u64)
    };
    // Heads of 12 features.
    assert_eq!(of(&[1.0; 6]), Ok(()));
    for wrong in [1, 5, 7, 12] {
        let text = of(&vec![1.0; wrong]).unwrap_err();
        assert_eq!(text, format!("tensor `{TABLE}` has shape [{wrong}]; the keys of the file say [6]"));
    }
    for factor in [0.0, f32::NAN] {
        let text = of(&[1.0, 1.0, factor, 1.0, 1.0, 1.0]).unwrap_err();
        let want =
            format!("the factor {factor} of `{TABLE}` is not supported: frequencies cannot be divided by it");
        assert_eq!(text, want);
    }
    // Any type of numbers, and none of anything else.
    assert_eq!(with_table(TensorType::F16, &[0, 0x3c].repeat(6), 6), Ok(()));
    let text = with_table(TensorType::I32, &[1; 24], 6).unwrap_err();
    assert!(text.starts_with(&format!("tensor `{TABLE}` has type I32")), "{text}");
}

#[test]
fn a_missing_tensor_is_named() {
    let keep = |_: &mut Metadata| {};
    assert_eq!(refused("llama", keep, "blk.1.ffn_down.weight"), "tensor `blk.1.ffn_down.weight` is missing");
    assert_eq!(refused("llama", keep, "token_embd.weight"), "tensor `token_embd.weight` is missing");
}

#[test]
fn numbers_that_make_no_sense_are_named_with_their_key() {
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
fn more_used_experts_than_there_are_is_refused() {
    let text = refused("llama-moe", with("llama.expert_used_count", 1000u32), "");
    assert!(text.contains("expert_used_count"), "{text}");
}

#[test]
fn a_choice_of_experts_that_cannot_be_made_is_refused() {
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
fn what_an_architecture_alone_needs_is_named() {
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
        let text = refused("t5encoder", with("t5encoder.attention.relative_buckets_count", count), "");
        assert!(text.starts_with("key `t5encoder.attention.relative_buckets_count` is"), "{text}");
    }
}

#[test]
fn bounds_that_bound_nothing_are_named() {
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
        let text = refused("glm5-next", with(&format!("glm5-next.attention.indexer.{key}"), value), "");
        assert!(text.starts_with("key `glm5-next.attention.indexer.kpool` is"), "{key}: {text}");
    }
    let text = refused("glm5-next", with("glm5-next.attention.indexer.kpool_select_tail", false), "");
    assert!(text.starts_with("key `glm5-next.attention.indexer.kpool_select_tail` is"), "{text}");
    let text = refused("bailingmoe3", with("bailingmoe3.kda.safe_gate", false), "");
    assert!(text.starts_with("key `bailingmoe3.kda.gate_lower_bound` is"), "{text}");
}

#[test]
fn what_gemma_4_needs_is_named() {
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
    // Without the one with both, the two halves are asked for.
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
fn what_further_architectures_need_is_named() {
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
    assert!(text.starts_with("`deepseek2-ocr.attention.sliding_window` is not supported"), "{text}");
}

#[test]
fn what_layers_must_have_in_common_is_named() {
    let source = source("gemma4");
    let layers = source.metadata().u32("gemma4.block_count").unwrap() as usize;
    let key = "gemma4.attention.head_count_kv";
    let mut heads = source.metadata().u32_per_layer(key, layers).unwrap().unwrap();
    let other = 3 - heads[layers - 1];
    heads[layers - 1] = other;
    let text = refused("gemma4", with(key, heads), "");
    assert!(text.starts_with(&format!("key `{key}` is {other} in layer {}, ", layers - 1)), "{text}");
    let text = refused("qwen3next", with("qwen3next.attention.value_length", 8u32), "");
    assert!(text.contains("gates of attention are as wide as its keys"), "{text}");
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

/// The error of loading a zoo file under another architecture's name, with other metadata.
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
fn what_latent_attention_needs_is_named() {
    let keep = |_: &mut Metadata| {};
    for part in ["attn_k_b", "attn_v_b", "attn_kv_a_mqa", "attn_kv_a_norm", "attn_q_a_norm", "attn_q_b"] {
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
fn what_an_indexer_needs_is_named() {
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
    assert!(text.starts_with(&format!("key `{key}` is 6, of which 8 turn: ")), "{text}");
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
        (Value::from(vec![false, true, true, true]), "the first layer has none"),
        (Value::from(false), "the first layer has none"),
        (Value::from(vec![true; 3]), "3 entries"),
    ] {
        let text = refused("glm-dsa", with(key, value), "");
        assert!(text.starts_with(&format!("key `{key}` is {found}: ")), "{text}");
    }
    // A layer that chooses needs what it chooses by.
    let text = refused("glm-dsa", with(key, vec![true; 4]), "");
    assert_eq!(text, "tensor `blk.1.indexer.attn_q_b.weight` is missing");
}

#[test]
fn recurrent_parts_that_make_no_sense_are_named_with_their_key() {
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
    let text = refused("qwen3next", with("qwen3next.attention.recurrent_layers", vec![true; 3]), "");
    assert!(text.starts_with("key `qwen3next.attention.recurrent_layers` is 3 entries"), "{text}");
    let text = refused("jamba", with("jamba.attention.head_count_kv", vec![0u32, 0, 3, 0]), "");
    assert!(text.starts_with("attention in layer 2 is not supported"), "{text}");
    let text = refused("lfm2", with("lfm2.attention.causal", false), "");
    assert!(text.starts_with("key `lfm2.attention.causal` is false"), "{text}");
    let text = refused("dream", |meta| drop(meta.remove("tokenizer.ggml.mask_token_id")), "");
    assert!(text.contains("`tokenizer.ggml.mask_token_id`"), "{text}");
    let text = refused("rnd1", with("tokenizer.ggml.mask_token_id", 320u32), "");
    assert!(text.starts_with("key `tokenizer.ggml.mask_token_id` is 320: the vocabulary"), "{text}");
    let text = refused("llada-moe", with("llada-moe.expert_used_count", 100u32), "");
    assert!(text.starts_with("key `llada-moe.expert_used_count` is 100"), "{text}");
    // What the keys say is compared with the tensors before any state is made.
    let text = refused("mamba", with("mamba.ssm.state_size", 1u32 << 31), "");
    assert!(text.contains("`blk.0.ssm_a`"), "{text}");
    let text = refused("mamba2", with("mamba2.ssm.inner_size", 1u32 << 30), "");
    assert!(text.contains("`blk.0.ssm_a`"), "{text}");
}

#[test]
fn a_shape_that_contradicts_the_keys_is_shown_beside_what_they_say() {
    let text = refused("llama", with("llama.embedding_length", 4096u32), "");
    assert!(text.starts_with("tensor `token_embd.weight` has shape ["), "{text}");
}

#[test]
fn a_weight_of_integers_is_refused() {
    let source = source("llama");
    let mut writer = Writer::with_metadata(source.metadata().clone());
    let mut data = Vec::new();
    for tensor in source.tensors() {
        let ty = if &*tensor.name == "blk.0.attn_q.weight" { TensorType::I32 } else { tensor.ty };
        writer.tensor(&tensor.name, ty, &tensor.shape).unwrap();
        data.push(source.data(tensor));
    }
    let view = View::new(Arc::new(Gguf::from_bytes(writer.to_vec(data).unwrap()).unwrap())).unwrap();
    let error = Model::load(&view, LoadOptions::default()).map(|_| ()).unwrap_err();
    assert!(
        matches!(&error, ModelError::TensorType { name, .. } if name == "blk.0.attn_q.weight"),
        "{error}"
    );
}

#[test]
fn what_adapters_in_a_model_cannot_be_is_refused() {
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
fn what_two_stacks_cannot_be_is_refused() {
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

#[test]
fn what_hyper_connections_need_is_named() {
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
        ("hy_v4", "hyper_connection.epsilon", Value::from(f32::NAN), "must be a small number, not negative"),
        ("hy_v4", "hyper_connection.magnitude", Value::from(f32::INFINITY), "must be a number"),
        ("deepseek4", "hyper_connection.sinkhorn_iterations", Value::from(101u32), "must be at most 100"),
    ] {
        let key = format!("{name}.{key}");
        let text = refused(name, with(&key, value), "");
        assert!(text.starts_with(&format!("key `{key}` is ")) && text.contains(reason), "{text}");
    }
    // Numbers of another count of streams.
    let text = refused("hy_v4", with("hy_v4.hyper_connection.count", 2u32), "");
    assert!(text.starts_with("tensor `output_hc_fn.weight` has shape [120, 3]"), "{text}");
}

#[test]
fn what_n_grams_need_is_named() {
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
    wrong("ple.layers", vec![4u32].into(), "is 4: there is no such layer");
    wrong("ple.layers", vec![0u32, 2].into(), "is a list of 2: one layer alone");
    wrong("ple.layers", 2u32.into(), "must be an array");
    for size in [0u32, 1, 9, u32::MAX] {
        wrong("ple.ngram_size", size.into(), "must be");
    }
    for each in [0u32, 22, u32::MAX] {
        wrong(
            "ple.heads_per_ngram",
            each.into(),
            if each == 0 { "must be positive" } else { "at most 64 rows" },
        );
    }
    wrong("ple.conv_kernel", 1u32.into(), "must be between 2 and 64");
    wrong(
        "ple.layer_multipliers",
        vec![1u64, 3, 5].into(),
        "a list of 3: as many are needed as an n-gram has ids",
    );
    wrong("ple.layer_multipliers", vec![-1i64, 3, 5, 7].into(), "integers from 0 to 2^64-1");
    wrong(
        "ple.head_offsets",
        vec![0u64; 7].into(),
        "a list of 7: as many are needed as ple.heads_per_ngram says",
    );
    wrong("ple.head_vocab_sizes", vec![61u64; 5].into(), "a list of 5: as many are needed");
    wrong("ple.head_vocab_sizes", vec![61u64, 67, 0, 73, 79, 83].into(), "is 0: no head");
    // 448 rows: the last head ends with the 434th.
    wrong(
        "ple.head_offsets",
        vec![0u64, 61, 128, 199, 272, 366].into(),
        "is 366, for 83 rows of 448: the table",
    );
    wrong(
        "ple.head_offsets",
        vec![u64::MAX, 61, 128, 199, 272, 351].into(),
        "the table does not reach so far",
    );
    wrong("ple.head_vocab_sizes", vec![61u64, 67, 71, 73, 79, u64::MAX].into(), "the table has fewer rows");
    // Other lengths than tensors have.
    let text = refused("qwen4exp", with("qwen4exp.embedding_length_per_layer_input", 16u32), "");
    assert!(text.starts_with("tensor `per_layer_token_embd.weight` has shape [8, 448]"), "{text}");
    let text = refused("qwen4exp", with("qwen4exp.ple.conv_kernel", 4u32), "");
    assert!(text.starts_with("tensor `blk.2.ple_conv1d.weight` has shape [3, 144]"), "{text}");
}

#[test]
fn what_gated_streams_and_blocks_need_is_named() {
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
        assert_eq!(refused("qwen4exp-blocks", keep, tensor), format!("tensor `{tensor}` is missing"));
    }
    for (key, value, reason) in [
        ("hyper_connection.count", Value::from(1u32), "must be between 2 and 16"),
        ("hyper_connection.low_rank", 0u32.into(), "must be positive"),
        ("attention.compress_ratios", vec![0u32, 8, 0, 8].into(), "is of whole blocks"),
        ("attention.compress_ratios", vec![0u32, 1 << 17, 0, 4].into(), "at most 65536 tokens"),
        ("attention.compress_ratios", vec![4u32, 4].into(), ""),
        ("attention.indexer.key_length", 6u32.into(), "must not be less than rope.dimension_count"),
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
fn what_pooled_attention_needs_is_named() {
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
    wrong("output_group_count", 4u32.into(), "groups of one size");
    wrong("value_length", 16u32.into(), "keys are values");
    wrong("compress_ratios", vec![4u32, 128].into(), "");
    wrong("compress_ratios", vec![4u32, 1 << 17, 0].into(), "a block has at most 65536 tokens");
    wrong("indexer.key_length", 8u32.into(), "must not be less than rope.dimension_count");
    let key = "deepseek4.attention.compress_ratios";
    let text = refused("deepseek4", |meta| drop(meta.remove(key)), "");
    assert!(text.starts_with(&format!("key `{key}` is absent")), "{text}");
    // Blocks of another length than their tensors have.
    let text = refused("deepseek4", with(key, vec![4u32, 64, 0]), "");
    assert!(text.contains("blk.1.attn_compressor_ape.weight"), "{text}");
}

#[test]
fn a_list_of_experts_that_there_are_not_is_refused() {
    const LIST: &str = "blk.0.ffn_gate_tid2eid.weight";
    let source = source("deepseek4");
    for (entry, what) in [(6i32, "the entry 6 of"), (-1, "the entry -1 of")] {
        let mut writer = Writer::with_metadata(source.metadata().clone());
        let mut data = Vec::new();
        for tensor in source.tensors() {
            writer.tensor(&tensor.name, tensor.ty, &tensor.shape).unwrap();
            let mut bytes = source.data(tensor).to_vec();
            if &*tensor.name == LIST {
                bytes[40..44].copy_from_slice(&entry.to_le_bytes());
            }
            data.push(bytes);
        }
        let bytes = writer.to_vec(data.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        let view = View::new(Arc::new(Gguf::from_bytes(bytes).unwrap())).unwrap();
        let Err(error) = Model::load(&view, LoadOptions::default()) else { panic!("{entry} was taken") };
        let text = error.to_string();
        assert!(text.contains(&format!("{what} `{LIST}`")), "{text}");
    }
}
