//! Encoders with bidirectional attention, for embeddings.

use super::default_family::DEFAULT;
use super::{gemma, llama};
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity, VocabularyKind};
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::rules::{Dimensions, SourceLayout, TensorRule, ignore, rename};
use crate::source::{Config, PARAMETRIZATIONS, Weights};

const EMBEDDINGS: [TensorRule; 7] = [
    rename("embeddings.word_embeddings", "token_embd"),
    rename("embeddings.token_type_embeddings", "token_types"),
    rename("emb_ln", "token_embd_norm"),
    rename("embeddings.LayerNorm", "token_embd_norm"),
    ignore("pooler.dense"),
    ignore("embeddings.position_ids"),
    rename("embeddings.position_embeddings", "position_embd"),
];
const NOMIC_LAYER: [TensorRule; 11] = [
    rename("attn.Wqkv", "attn_qkv"),
    rename("attn.out_proj", "attn_output"),
    rename("norm1", "attn_output_norm"),
    rename("norm2", "layer_output_norm"),
    rename("mlp.fc11", "ffn_up"),
    rename("mlp.fc12", "ffn_gate"),
    rename("mlp.fc1", "ffn_up"),
    rename("mlp.fc2", "ffn_down"),
    rename("mlp.router.layer", "ffn_gate_inp"),
    rename("mlp.experts.mlp.w1", "ffn_up_exps").with_layout(SourceLayout::StackedExperts),
    rename("mlp.experts.mlp.w2", "ffn_down_exps")
        .with_layout(SourceLayout::StackedExpertsTransposed),
];
/// Biases of experts, which the GGUF architecture does not have.
const NOMIC_BIAS: [TensorRule; 1] = [ignore("mlp.experts.bias")];

/// Defaults of encoders.
const ENCODER: Family = Family {
    root_prefix: "",
    vocabulary: VocabularyKind::Encoder,
    layer_uniformity: LayerUniformity::Arbitrary,
    supports_adapters: false,
    ..DEFAULT
};

pub(super) const NOMIC_BERT: Family = Family {
    architecture: "nomic-bert",
    classes: &["NomicBertModel"],
    layer_prefix: "encoder.layers.",
    global_rules: &[&EMBEDDINGS],
    layer_rules: &[&NOMIC_LAYER, &NOMIC_BIAS],
    matches: |config| !has_experts(config),
    hyper_parameters: |config| {
        let mut params = HyperParameters::from_config(config)?;
        // The model was trained on shorter texts than it has positions for.
        let trained = config.opt_count("max_trained_positions")?.unwrap_or(2048);
        params.context_length = match (params.context_length, trained) {
            (2048, 2048) => 512,
            (positions, trained) => positions.min(trained),
        };
        Ok(params)
    },
    write_metadata: |metadata| {
        metadata.write_encoder_sizes();
        metadata.write_norm_epsilons()?;
        metadata.write_rope_with_base(Some(10000.0))?;
        metadata.set("attention.causal", false);
        Ok(())
    },
    ..ENCODER
};

pub(super) const NOMIC_BERT_MOE: Family = Family {
    architecture: "nomic-bert-moe",
    matches: has_experts,
    write_metadata: |metadata| {
        (NOMIC_BERT.write_metadata)(metadata)?;
        metadata.set("expert_count", metadata.params.dims.experts);
        metadata.set_count("moe_every_n_layers", &["moe_every_n_layers"])?;
        metadata.set_count("expert_used_count", &["moe_top_k"])
    },
    ..NOMIC_BERT
};

fn has_experts(config: &Config) -> bool {
    config
        .value("moe_every_n_layers")
        .and_then(serde_json::Value::as_u64)
        .is_some_and(|every| every > 0)
}

const JINA_LAYER: [TensorRule; 17] = [
    rename("attention.self.query", "attn_q"),
    rename("attention.self.key", "attn_k"),
    rename("attention.self.value", "attn_v"),
    rename("attention.self.layer_norm_q", "attn_q_norm"),
    rename("attention.self.layer_norm_k", "attn_k_norm"),
    rename("attention.output.dense", "attn_output"),
    rename("attention.output.LayerNorm", "attn_output_norm"),
    rename("mlp.layernorm", "layer_output_norm"),
    rename("layer_norm_1", "attn_norm_2"),
    rename("layer_norm_2", "layer_output_norm"),
    rename("mlp.gated_layers", "ffn_up"),
    rename("mlp.up_gated_layer", "ffn_up"),
    rename("mlp.gated_layers_v", "ffn_up"),
    rename("mlp.gated_layers_w", "ffn_gate"),
    rename("mlp.wo", "ffn_down"),
    rename("mlp.down_layer", "ffn_down"),
    ignore("attention.self.alibi"),
];

pub(super) const JINA_BERT_V2: Family = Family {
    architecture: "jina-bert-v2",
    classes: &["JinaBertModel", "JinaBertForMaskedLM"],
    layer_prefix: "encoder.layer.",
    global_rules: &[&EMBEDDINGS],
    layer_rules: &[&JINA_LAYER],
    custom_tensors: Some(|_, weights, _| {
        weights.rename(|name| name.strip_prefix("bert.").unwrap_or(name).to_owned())?;
        weights.discard(|name| name.starts_with("cls."));
        Ok(())
    }),
    write_metadata: |metadata| {
        metadata.write_encoder_sizes();
        metadata.set(
            "attention.layer_norm_epsilon",
            metadata.config.float_or("layer_norm_eps", 1e-12)?,
        );
        metadata.set("attention.causal", false);
        Ok(())
    },
    ..ENCODER
};

const JINA3_LAYER: [TensorRule; 6] = [
    rename("mixer.Wqkv", "attn_qkv"),
    rename("mixer.out_proj", "attn_output"),
    rename("norm1", "attn_output_norm"),
    rename("norm2", "layer_output_norm"),
    rename("mlp.fc1", "ffn_up"),
    rename("mlp.fc2", "ffn_down"),
];

/// The base model without its task adapters.
pub(super) const JINA_BERT_V3: Family = Family {
    architecture: "jina-bert-v3",
    classes: &["XLMRobertaModel"],
    matches: |config| config.strings("lora_adaptations").is_some_and(|tasks| !tasks.is_empty()),
    root_prefix: "roberta.",
    layer_prefix: "encoder.layers.",
    global_rules: &[&EMBEDDINGS],
    layer_rules: &[&JINA3_LAYER],
    custom_tensors: Some(|_, weights, _| {
        weights.discard(|name| name.contains(PARAMETRIZATIONS));
        Ok(())
    }),
    hyper_parameters: |config| {
        let mut params = HyperParameters::from_config(config)?;
        // The position of the padding token is the last before that of the first token.
        let padding = config.opt_count_or_zero("pad_token_id")?.unwrap_or(1);
        let context =
            params.context_length.checked_sub(padding.saturating_add(1)).filter(|&n| n > 0);
        let wrong = || config.invalid("max_position_embeddings", "greater than the padding id");
        params.context_length = context.ok_or_else(wrong)?;
        Ok(params)
    },
    write_metadata: |metadata| {
        metadata.write_encoder_sizes();
        metadata.set(
            "attention.layer_norm_epsilon",
            metadata.config.float_or("layer_norm_eps", 1e-12)?,
        );
        metadata.write_rope_with_base(Some(10000.0))?;
        metadata.set("attention.causal", false);
        Ok(())
    },
    ..ENCODER
};

const MODERN_GLOBAL: [TensorRule; 3] = [
    rename("embeddings.tok_embeddings", "token_embd"),
    rename("embeddings.norm", "token_embd_norm"),
    rename("final_norm", "output_norm"),
];
const MODERN_LAYER: [TensorRule; 6] = [
    rename("attn_norm", "attn_norm"),
    rename("attn.Wqkv", "attn_qkv"),
    rename("attn.Wo", "attn_output"),
    rename("mlp_norm", "ffn_norm"),
    rename("mlp.Wi", "ffn_up"),
    rename("mlp.Wo", "ffn_down"),
];

pub(super) const MODERN_BERT: Family = Family {
    architecture: "modern-bert",
    classes: &["ModernBertModel", "ModernBertForMaskedLM"],
    root_prefix: "model.",
    global_rules: &[&MODERN_GLOBAL],
    layer_rules: &[&MODERN_LAYER],
    vocabulary: VocabularyKind::Standard,
    custom_tensors: Some(|_, weights, _| {
        // The head of masked language modelling.
        weights.discard(|name| name.starts_with("head.") || name.starts_with("decoder."));
        Ok(())
    }),
    write_metadata: |metadata| {
        let config = metadata.config;
        metadata.write_encoder_sizes();
        metadata.write_norm_epsilons()?;
        if config.first_float(&["layer_norm_eps"])?.is_none() {
            metadata.set("attention.layer_norm_epsilon", config.float_or("norm_eps", 1e-5)?);
        }
        metadata.write_rope_with_base(Some(160_000.0))?;
        metadata.set_count("attention.sliding_window", &["local_attention"])?;
        metadata
            .set_opt_count("attention.sliding_window_pattern", &["global_attn_every_n_layers"])?;
        metadata.write_vocab_size();
        if let Some(activation) = config.text("hidden_activation") {
            metadata.set("hidden_activation", activation);
        }
        metadata.set_add_special_tokens(true);
        write_encoder_metadata(metadata)
    },
    ..ENCODER
};

pub(super) const EUROBERT: Family = Family {
    architecture: "eurobert",
    classes: &["EuroBertModel"],
    global_rules: DEFAULT.global_rules,
    root_prefix: "model.",
    vocabulary: VocabularyKind::Standard,
    layer_uniformity: LayerUniformity::Identical,
    write_metadata: |metadata| {
        metadata.write_common()?;
        metadata.set_add_special_tokens(false);
        write_encoder_metadata(metadata)
    },
    ..ENCODER
};

/// Writes the keys of encoders with rotary embedding.
fn write_encoder_metadata(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    metadata.set("attention.causal", false);
    metadata.set("rope.scaling.type", "none");
    match metadata.config.text("classifier_pooling") {
        Some("mean") => metadata.set("classifier.pooling_type", 1u32),
        Some("cls") => metadata.set("classifier.pooling_type", 2u32),
        _ => {}
    }
    Ok(())
}

const NEO_GLOBAL: [TensorRule; 3] = [
    rename("encoder", "token_embd"),
    rename("layer_norm", "enc.output_norm.weight"),
    ignore("decoder"),
];
const NEO_LAYER: [TensorRule; 6] = [
    rename("attention_norm", "attn_norm"),
    rename("qkv", "attn_qkv"),
    rename("wo", "attn_output"),
    rename("ffn_norm", "ffn_norm"),
    rename("ffn.w12", "ffn_up"),
    rename("ffn.w3", "ffn_down"),
];

pub(super) const NEO_BERT: Family = Family {
    architecture: "neo-bert",
    classes: &["NeoBERT", "NeoBERTLMHead"],
    root_prefix: "model.",
    layer_prefix: "transformer_encoder.",
    global_rules: &[&NEO_GLOBAL],
    layer_rules: &[&NEO_LAYER],
    hyper_parameters: |config| {
        // Two thirds of the configured width, because of the gate.
        let inner = u64::from(config.count("intermediate_size")?) * 2 / 3;
        HyperParameters::with_sizes(
            config,
            config.first_required_count(&["max_position_embeddings", "max_length"])?,
            inner as u32,
        )
    },
    write_metadata: |metadata| {
        metadata.write_encoder_sizes();
        metadata
            .set("attention.layer_norm_rms_epsilon", metadata.config.float_or("norm_eps", 1e-6)?);
        metadata.set("rope.freq_base", 10000.0f32);
        metadata.set("pooling_type", 2u32);
        metadata.set_global("tokenizer.ggml.token_type_count", 1u32);
        write_encoder_metadata(metadata)
    },
    ..ENCODER
};

const DISTIL_GLOBAL: [TensorRule; 3] = [
    rename("embeddings.word_embeddings", "token_embd"),
    rename("embeddings.position_embeddings", "position_embd"),
    rename("embeddings.LayerNorm", "token_embd_norm"),
];
const DISTIL_LAYER: [TensorRule; 8] = [
    rename("attention.q_lin", "attn_q"),
    rename("attention.k_lin", "attn_k"),
    rename("attention.v_lin", "attn_v"),
    rename("attention.out_lin", "attn_output"),
    rename("sa_layer_norm", "attn_output_norm"),
    rename("ffn.lin1", "ffn_up"),
    rename("ffn.lin2", "ffn_down"),
    rename("output_layer_norm", "layer_output_norm"),
];

/// BERT with half of the layers and without token types.
pub(super) const DISTIL_BERT: Family = Family {
    architecture: "bert",
    classes: &["DistilBertModel", "DistilBertForMaskedLM"],
    root_prefix: "distilbert.",
    layer_prefix: "transformer.layer.",
    global_rules: &[&DISTIL_GLOBAL],
    layer_rules: &[&DISTIL_LAYER],
    custom_tensors: Some(|_, weights, _| {
        // The head of masked language modelling.
        weights.discard(|name| name.starts_with("vocab_"));
        Ok(())
    }),
    write_metadata: |metadata| {
        metadata.write_encoder_sizes();
        metadata.set("attention.layer_norm_epsilon", 1e-12f32);
        metadata.set("attention.causal", false);
        metadata.set_global("tokenizer.ggml.token_type_count", 1u32);
        Ok(())
    },
    ..ENCODER
};

pub(super) const GEMMA_EMBEDDING: Family =
    Family { architecture: "gemma-embedding", classes: &["Gemma3TextModel"], ..gemma::GEMMA3 };

/// Llama with bidirectional attention.
pub(super) const LLAMA_EMBED: Family = Family {
    architecture: "llama-embed",
    classes: &["LlamaBidirectionalModel"],
    supports_adapters: false,
    write_metadata: |metadata| {
        (llama::LLAMA.write_metadata)(metadata)?;
        metadata.set("attention.causal", false);
        Ok(())
    },
    ..llama::LLAMA
};

const T5_GLOBAL: [TensorRule; 2] =
    [rename("shared", "token_embd"), rename("encoder.final_layer_norm", "enc.output_norm.weight")];
const T5_LAYER: [TensorRule; 11] = [
    rename("layer.0.SelfAttention.q", "attn_q"),
    rename("layer.0.SelfAttention.k", "attn_k"),
    rename("layer.0.SelfAttention.v", "attn_v"),
    rename("layer.0.SelfAttention.o", "attn_o"),
    rename("layer.0.SelfAttention.relative_attention_bias", "attn_rel_b"),
    rename("layer.0.layer_norm", "attn_norm"),
    rename("layer.1.DenseReluDense.wi_0", "ffn_gate"),
    rename("layer.1.DenseReluDense.wi_1", "ffn_up"),
    rename("layer.1.DenseReluDense.wi", "ffn_up"),
    rename("layer.1.DenseReluDense.wo", "ffn_down"),
    rename("layer.1.layer_norm", "ffn_norm"),
];

pub(super) const T5_ENCODER: Family = Family {
    architecture: "t5encoder",
    classes: &["T5EncoderModel"],
    layer_prefix: "encoder.block.",
    gguf_layer_prefix: "enc.blk.",
    global_rules: &[&T5_GLOBAL],
    layer_rules: &[&T5_LAYER],
    hyper_parameters: t5_parameters,
    custom_tensors: Some(|_, weights, _| {
        discard_decoder(weights);
        Ok(())
    }),
    write_metadata: write_t5_encoder,
    ..ENCODER
};

/// Hyperparameters of T5's encoder.
pub(super) fn t5_parameters(config: &Config) -> Result<HyperParameters, ConvertError> {
    let heads = config.count("num_heads")?;
    let layers = config.count("num_layers")?;
    let dims = Dimensions {
        layers,
        heads,
        kv_heads: heads,
        head_dim: config.count("d_kv")?,
        ..Dimensions::default()
    };
    let context = config.opt_count("n_positions")?.unwrap_or(512);
    Ok(HyperParameters {
        dims,
        hidden_size: config.count("d_model")?,
        context_length: context,
        feed_forward_length: config.count("d_ff")?,
    })
}

/// Writes the metadata of T5's encoder.
pub(super) fn write_t5_encoder(metadata: &mut MetadataWriter<'_>) -> Result<(), ConvertError> {
    let config = metadata.config;
    metadata.set("context_length", metadata.params.context_length);
    metadata.set("embedding_length", metadata.params.hidden_size);
    metadata.set_count("feed_forward_length", &["d_ff"])?;
    metadata.set_count("block_count", &["num_layers"])?;
    metadata.set("attention.head_count", metadata.params.dims.heads);
    metadata.write_head_sizes();
    let eps = config.float_or("layer_norm_epsilon", 1e-6)?;
    metadata.set("attention.layer_norm_epsilon", eps);
    metadata.set("attention.layer_norm_rms_epsilon", eps);
    metadata.set_count("attention.relative_buckets_count", &["relative_attention_num_buckets"])
}

/// Ignores the decoder and the second copy of the token embedding.
fn discard_decoder(weights: &mut Weights<'_>) {
    weights.discard(|name| name == "encoder.embed_tokens.weight" || name.starts_with("decoder."));
}
