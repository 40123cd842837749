//! Encoders, which see the whole of a text at once and make vectors of it.

use super::super::config::Json;
use super::super::keys::{Keys, Shape};
use super::super::rules::{Form, Rule, Sizes, aside, one};
use super::super::weights::{PARAMETRIZED, Weights};
use super::{Alike, Family, PLAIN, Words, gemma, llama};
use crate::error::StoreError;

const EMBEDDINGS: [Rule; 7] = [
    one("embeddings.word_embeddings", "token_embd"),
    one("embeddings.token_type_embeddings", "token_types"),
    one("emb_ln", "token_embd_norm"),
    one("embeddings.LayerNorm", "token_embd_norm"),
    aside("pooler.dense"),
    aside("embeddings.position_ids"),
    one("embeddings.position_embeddings", "position_embd"),
];
const NOMIC_LAYER: [Rule; 11] = [
    one("attn.Wqkv", "attn_qkv"),
    one("attn.out_proj", "attn_output"),
    one("norm1", "attn_output_norm"),
    one("norm2", "layer_output_norm"),
    one("mlp.fc11", "ffn_up"),
    one("mlp.fc12", "ffn_gate"),
    one("mlp.fc1", "ffn_up"),
    one("mlp.fc2", "ffn_down"),
    one("mlp.router.layer", "ffn_gate_inp"),
    one("mlp.experts.mlp.w1", "ffn_up_exps").form(Form::Stacked),
    one("mlp.experts.mlp.w2", "ffn_down_exps").form(Form::StackedTurned),
];
/// What adds to experts, which the network of files does without.
const NOMIC_BIAS: [Rule; 1] = [aside("mlp.experts.bias")];

/// An encoder like most of them.
const ENCODER: Family = Family {
    root: "",
    words: Words::Encoder,
    alike: Alike::Nothing,
    takes_adapters: false,
    ..PLAIN
};

pub(super) const NOMIC_BERT: Family = Family {
    architecture: "nomic-bert",
    classes: &["NomicBertModel"],
    layers: "encoder.layers.",
    whole: &[&EMBEDDINGS],
    layer: &[&NOMIC_LAYER, &NOMIC_BIAS],
    fits: |config| !has_experts(config),
    shape: |config| {
        let mut shape = Shape::usual(config)?;
        // Trained on shorter texts than its positions have room for.
        let trained = config.opt_count("max_trained_positions")?.unwrap_or(2048);
        shape.context = match (shape.context, trained) {
            (2048, 2048) => 512,
            (positions, trained) => positions.min(trained),
        };
        Ok(shape)
    },
    keys: |keys| {
        keys.encoder_sizes();
        keys.norms()?;
        keys.rope_of(Some(10000.0))?;
        keys.set("attention.causal", false);
        Ok(())
    },
    ..ENCODER
};

pub(super) const NOMIC_BERT_MOE: Family = Family {
    architecture: "nomic-bert-moe",
    fits: has_experts,
    keys: |keys| {
        (NOMIC_BERT.keys)(keys)?;
        keys.set("expert_count", keys.shape.sizes.experts);
        keys.count("moe_every_n_layers", &["moe_every_n_layers"])?;
        keys.count("expert_used_count", &["moe_top_k"])
    },
    ..NOMIC_BERT
};

fn has_experts(config: &Json) -> bool {
    config
        .value("moe_every_n_layers")
        .and_then(serde_json::Value::as_u64)
        .is_some_and(|every| every > 0)
}

const JINA_LAYER: [Rule; 17] = [
    one("attention.self.query", "attn_q"),
    one("attention.self.key", "attn_k"),
    one("attention.self.value", "attn_v"),
    one("attention.self.layer_norm_q", "attn_q_norm"),
    one("attention.self.layer_norm_k", "attn_k_norm"),
    one("attention.output.dense", "attn_output"),
    one("attention.output.LayerNorm", "attn_output_norm"),
    one("mlp.layernorm", "layer_output_norm"),
    one("layer_norm_1", "attn_norm_2"),
    one("layer_norm_2", "layer_output_norm"),
    one("mlp.gated_layers", "ffn_up"),
    one("mlp.up_gated_layer", "ffn_up"),
    one("mlp.gated_layers_v", "ffn_up"),
    one("mlp.gated_layers_w", "ffn_gate"),
    one("mlp.wo", "ffn_down"),
    one("mlp.down_layer", "ffn_down"),
    aside("attention.self.alibi"),
];

pub(super) const JINA_BERT_V2: Family = Family {
    architecture: "jina-bert-v2",
    classes: &["JinaBertModel", "JinaBertForMaskedLM"],
    layers: "encoder.layer.",
    whole: &[&EMBEDDINGS],
    layer: &[&JINA_LAYER],
    odd: Some(|_, weights, _| {
        weights.rename(|name| name.strip_prefix("bert.").unwrap_or(name).to_owned())?;
        weights.leave(|name| name.starts_with("cls."));
        Ok(())
    }),
    keys: |keys| {
        keys.encoder_sizes();
        keys.set("attention.layer_norm_epsilon", keys.config.float("layer_norm_eps", 1e-12)?);
        keys.set("attention.causal", false);
        Ok(())
    },
    ..ENCODER
};

const JINA3_LAYER: [Rule; 6] = [
    one("mixer.Wqkv", "attn_qkv"),
    one("mixer.out_proj", "attn_output"),
    one("norm1", "attn_output_norm"),
    one("norm2", "layer_output_norm"),
    one("mlp.fc1", "ffn_up"),
    one("mlp.fc2", "ffn_down"),
];

/// The model alone, without what adapts it to tasks.
pub(super) const JINA_BERT_V3: Family = Family {
    architecture: "jina-bert-v3",
    classes: &["XLMRobertaModel"],
    fits: |config| config.strings("lora_adaptations").is_some_and(|tasks| !tasks.is_empty()),
    root: "roberta.",
    layers: "encoder.layers.",
    whole: &[&EMBEDDINGS],
    layer: &[&JINA3_LAYER],
    odd: Some(|_, weights, _| {
        weights.leave(|name| name.contains(PARAMETRIZED));
        Ok(())
    }),
    shape: |config| {
        let mut shape = Shape::usual(config)?;
        // Positions count from behind the one of padding.
        let padding = config.opt_number("pad_token_id")?.unwrap_or(1);
        let context = shape.context.checked_sub(padding.saturating_add(1)).filter(|&n| n > 0);
        let wrong = || config.wrong("max_position_embeddings", "more than the number of padding");
        shape.context = context.ok_or_else(wrong)?;
        Ok(shape)
    },
    keys: |keys| {
        keys.encoder_sizes();
        keys.set("attention.layer_norm_epsilon", keys.config.float("layer_norm_eps", 1e-12)?);
        keys.rope_of(Some(10000.0))?;
        keys.set("attention.causal", false);
        Ok(())
    },
    ..ENCODER
};

const MODERN_WHOLE: [Rule; 3] = [
    one("embeddings.tok_embeddings", "token_embd"),
    one("embeddings.norm", "token_embd_norm"),
    one("final_norm", "output_norm"),
];
const MODERN_LAYER: [Rule; 6] = [
    one("attn_norm", "attn_norm"),
    one("attn.Wqkv", "attn_qkv"),
    one("attn.Wo", "attn_output"),
    one("mlp_norm", "ffn_norm"),
    one("mlp.Wi", "ffn_up"),
    one("mlp.Wo", "ffn_down"),
];

pub(super) const MODERN_BERT: Family = Family {
    architecture: "modern-bert",
    classes: &["ModernBertModel", "ModernBertForMaskedLM"],
    root: "model.",
    whole: &[&MODERN_WHOLE],
    layer: &[&MODERN_LAYER],
    words: Words::Usual,
    odd: Some(|_, weights, _| {
        // What guesses hidden words.
        weights.leave(|name| name.starts_with("head.") || name.starts_with("decoder."));
        Ok(())
    }),
    keys: |keys| {
        let config = keys.config;
        keys.encoder_sizes();
        keys.norms()?;
        if config.first_float(&["layer_norm_eps"])?.is_none() {
            keys.set("attention.layer_norm_epsilon", config.float("norm_eps", 1e-5)?);
        }
        keys.rope_of(Some(160_000.0))?;
        keys.count("attention.sliding_window", &["local_attention"])?;
        keys.count_if("attention.sliding_window_pattern", &["global_attn_every_n_layers"])?;
        keys.set_rows();
        if let Some(activation) = config.text("hidden_activation") {
            keys.set("hidden_activation", activation);
        }
        keys.around(true);
        encoder(keys)
    },
    ..ENCODER
};

pub(super) const EUROBERT: Family = Family {
    architecture: "eurobert",
    classes: &["EuroBertModel"],
    whole: PLAIN.whole,
    root: "model.",
    words: Words::Usual,
    alike: Alike::All,
    keys: |keys| {
        keys.usual()?;
        keys.around(false);
        encoder(keys)
    },
    ..ENCODER
};

/// What encoders with rotary positions write.
fn encoder(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.set("attention.causal", false);
    keys.set("rope.scaling.type", "none");
    match keys.config.text("classifier_pooling") {
        Some("mean") => keys.set("classifier.pooling_type", 1u32),
        Some("cls") => keys.set("classifier.pooling_type", 2u32),
        _ => {}
    }
    Ok(())
}

const NEO_WHOLE: [Rule; 3] =
    [one("encoder", "token_embd"), one("layer_norm", "enc.output_norm.weight"), aside("decoder")];
const NEO_LAYER: [Rule; 6] = [
    one("attention_norm", "attn_norm"),
    one("qkv", "attn_qkv"),
    one("wo", "attn_output"),
    one("ffn_norm", "ffn_norm"),
    one("ffn.w12", "ffn_up"),
    one("ffn.w3", "ffn_down"),
];

pub(super) const NEO_BERT: Family = Family {
    architecture: "neo-bert",
    classes: &["NeoBERT", "NeoBERTLMHead"],
    root: "model.",
    layers: "transformer_encoder.",
    whole: &[&NEO_WHOLE],
    layer: &[&NEO_LAYER],
    shape: |config| {
        // Two thirds of what is said, since there is a gate.
        let inner = u64::from(config.count("intermediate_size")?) * 2 / 3;
        Shape::of(config, config.one_of(&["max_position_embeddings", "max_length"])?, inner as u32)
    },
    keys: |keys| {
        keys.encoder_sizes();
        keys.set("attention.layer_norm_rms_epsilon", keys.config.float("norm_eps", 1e-6)?);
        keys.set("rope.freq_base", 10000.0f32);
        keys.set("pooling_type", 2u32);
        keys.set_whole("tokenizer.ggml.token_type_count", 1u32);
        encoder(keys)
    },
    ..ENCODER
};

const DISTIL_WHOLE: [Rule; 3] = [
    one("embeddings.word_embeddings", "token_embd"),
    one("embeddings.position_embeddings", "position_embd"),
    one("embeddings.LayerNorm", "token_embd_norm"),
];
const DISTIL_LAYER: [Rule; 8] = [
    one("attention.q_lin", "attn_q"),
    one("attention.k_lin", "attn_k"),
    one("attention.v_lin", "attn_v"),
    one("attention.out_lin", "attn_output"),
    one("sa_layer_norm", "attn_output_norm"),
    one("ffn.lin1", "ffn_up"),
    one("ffn.lin2", "ffn_down"),
    one("output_layer_norm", "layer_output_norm"),
];

/// BERT with half of its layers, and texts that are not told apart.
pub(super) const DISTIL_BERT: Family = Family {
    architecture: "bert",
    classes: &["DistilBertModel", "DistilBertForMaskedLM"],
    root: "distilbert.",
    layers: "transformer.layer.",
    whole: &[&DISTIL_WHOLE],
    layer: &[&DISTIL_LAYER],
    odd: Some(|_, weights, _| {
        // What guesses hidden words.
        weights.leave(|name| name.starts_with("vocab_"));
        Ok(())
    }),
    keys: |keys| {
        keys.encoder_sizes();
        keys.set("attention.layer_norm_epsilon", 1e-12f32);
        keys.set("attention.causal", false);
        keys.set_whole("tokenizer.ggml.token_type_count", 1u32);
        Ok(())
    },
    ..ENCODER
};

pub(super) const GEMMA_EMBEDDING: Family =
    Family { architecture: "gemma-embedding", classes: &["Gemma3TextModel"], ..gemma::GEMMA3 };

/// Llama that sees the whole of a text.
pub(super) const LLAMA_EMBED: Family = Family {
    architecture: "llama-embed",
    classes: &["LlamaBidirectionalModel"],
    takes_adapters: false,
    keys: |keys| {
        (llama::LLAMA.keys)(keys)?;
        keys.set("attention.causal", false);
        Ok(())
    },
    ..llama::LLAMA
};

const T5_WHOLE: [Rule; 2] =
    [one("shared", "token_embd"), one("encoder.final_layer_norm", "enc.output_norm.weight")];
const T5_LAYER: [Rule; 11] = [
    one("layer.0.SelfAttention.q", "attn_q"),
    one("layer.0.SelfAttention.k", "attn_k"),
    one("layer.0.SelfAttention.v", "attn_v"),
    one("layer.0.SelfAttention.o", "attn_o"),
    one("layer.0.SelfAttention.relative_attention_bias", "attn_rel_b"),
    one("layer.0.layer_norm", "attn_norm"),
    one("layer.1.DenseReluDense.wi_0", "ffn_gate"),
    one("layer.1.DenseReluDense.wi_1", "ffn_up"),
    one("layer.1.DenseReluDense.wi", "ffn_up"),
    one("layer.1.DenseReluDense.wo", "ffn_down"),
    one("layer.1.layer_norm", "ffn_norm"),
];

pub(super) const T5_ENCODER: Family = Family {
    architecture: "t5encoder",
    classes: &["T5EncoderModel"],
    layers: "encoder.block.",
    blocks: "enc.blk.",
    whole: &[&T5_WHOLE],
    layer: &[&T5_LAYER],
    shape: t5_shape,
    odd: Some(|_, weights, _| {
        leave_twin(weights);
        Ok(())
    }),
    keys: t5_keys,
    ..ENCODER
};

/// What a T5's configuration says about its encoder.
pub(super) fn t5_shape(config: &Json) -> Result<Shape, StoreError> {
    let heads = config.count("num_heads")?;
    let layers = config.count("num_layers")?;
    let sizes =
        Sizes { layers, heads, kv_heads: heads, head: config.count("d_kv")?, ..Sizes::default() };
    let context = config.opt_count("n_positions")?.unwrap_or(512);
    Ok(Shape { sizes, width: config.count("d_model")?, context, inner: config.count("d_ff")? })
}

/// The keys of its encoder.
pub(super) fn t5_keys(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    let config = keys.config;
    keys.set("context_length", keys.shape.context);
    keys.set("embedding_length", keys.shape.width);
    keys.count("feed_forward_length", &["d_ff"])?;
    keys.count("block_count", &["num_layers"])?;
    keys.set("attention.head_count", keys.shape.sizes.heads);
    keys.head_sizes();
    let eps = config.float("layer_norm_epsilon", 1e-6)?;
    keys.set("attention.layer_norm_epsilon", eps);
    keys.set("attention.layer_norm_rms_epsilon", eps);
    keys.count("attention.relative_buckets_count", &["relative_attention_num_buckets"])
}

/// The table of tokens may be there twice.
fn leave_twin(weights: &mut Weights<'_>) {
    weights.leave(|name| name == "encoder.embed_tokens.weight" || name.starts_with("decoder."));
}
