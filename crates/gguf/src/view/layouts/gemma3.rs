//! Gemma 3 and EmbeddingGemma as published by Ollama. In both layouts norm weights include the
//! added one.

use crate::view::rules::{Condition::*, Constant::*, PublishedLayout, Rule::*};

/// Gemma 3: RoPE bases under other keys, an image encoder in the same file, image tokens beyond the
/// embedding.
pub(super) const CHAT: PublishedLayout = PublishedLayout {
    name: "gemma3 as published by Ollama",
    architecture: "gemma3",
    markers: &[
        Key("gemma3.mm.tokens_per_image"),
        Key("gemma3.rope.global.freq_base"),
        Key("gemma3.rope.local.freq_base"),
        Key("tokenizer.ggml.add_padding_token"),
        Key("tokenizer.ggml.add_unknown_token"),
        TensorPrefix("v."),
        TensorPrefix("mm."),
        NoKey("gemma3.attention.layer_norm_rms_epsilon"),
    ],
    rules: &[
        CopyKey("gemma3.rope.global.freq_base", "gemma3.rope.freq_base"),
        CopyKey("gemma3.rope.local.freq_base", "gemma3.rope.freq_base_swa"),
        Default("gemma3.attention.layer_norm_rms_epsilon", F32(1e-6)),
        Default("gemma3.rope.freq_base", F32(1_000_000.0)),
        Default("gemma3.rope.freq_base_swa", F32(10_000.0)),
        // Sizes with a context of 128K extend it from 16K. Small sizes do not.
        If(
            KeyAtLeast("gemma3.context_length", 131_072),
            &[
                Default("gemma3.rope.scaling.type", Str("linear")),
                Default("gemma3.rope.scaling.factor", F32(8.0)),
            ],
        ),
        Default("tokenizer.chat_template", Str(TURNS)),
        TruncateVocabulary("token_embd.weight"),
        Hide("v."),
        Hide("mm."),
    ],
};

/// EmbeddingGemma: its architecture is named gemma3, and two dense layers after pooling distinguish
/// it.
pub(super) const EMBEDDING: PublishedLayout = PublishedLayout {
    name: "embeddinggemma as published by Ollama",
    architecture: "gemma3",
    markers: &[Tensor("dense.0.weight")],
    rules: &[
        Architecture("gemma-embedding"),
        KeyPrefix("gemma3", "gemma-embedding"),
        Remove("gemma-embedding.attention.causal"),
        Remove("gemma-embedding.attention.sliding_window_pattern"),
        Default("gemma-embedding.rope.freq_base_swa", F32(10_000.0)),
        If(
            All(&[Tensor("dense.0.weight"), Tensor("dense.1.weight")]),
            &[
                SetDim("gemma-embedding.dense_2_feat_in", "dense.0.weight", 0),
                SetDim("gemma-embedding.dense_2_feat_out", "dense.0.weight", 1),
                SetDim("gemma-embedding.dense_3_feat_in", "dense.1.weight", 0),
                SetDim("gemma-embedding.dense_3_feat_out", "dense.1.weight", 1),
            ],
        ),
        Rename("dense.0.weight", "dense_2.weight"),
        Rename("dense.1.weight", "dense_3.weight"),
        Rename("norm.weight", "output_norm.weight"),
    ],
};

/// Gemma's chat format: alternating `user` and `model` turns without a system role.
const TURNS: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
{{- raise_exception('user and assistant must take turns, user first; there is no system role') -}}
{%- endif -%}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
{{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
";
