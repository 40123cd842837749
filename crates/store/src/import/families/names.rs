//! Names that many families share.

use super::super::rules::{Cut, Rule, one, pieces};

/// Outside of the layers.
pub(super) const WHOLE: [Rule; 3] =
    [one("embed_tokens", "token_embd"), one("norm", "output_norm"), one("lm_head", "output")];

/// Attention with its norm before it.
pub(super) const ATTENTION: [Rule; 9] = [
    one("input_layernorm", "attn_norm"),
    one("self_attn.q_proj", "attn_q"),
    one("self_attn.k_proj", "attn_k"),
    one("self_attn.v_proj", "attn_v"),
    one("self_attn.qkv_proj", "attn_qkv"),
    one("self_attn.o_proj", "attn_output"),
    one("self_attn.q_norm", "attn_q_norm"),
    one("self_attn.k_norm", "attn_k_norm"),
    one("self_attn.sinks", "attn_sinks"),
];

/// A feed-forward network with a gate.
pub(super) const GATED: [Rule; 3] = [
    one("mlp.gate_proj", "ffn_gate"),
    one("mlp.up_proj", "ffn_up"),
    one("mlp.down_proj", "ffn_down"),
];

/// The second norm stands before the feed-forward network.
pub(super) const BEFORE: [Rule; 1] = [one("post_attention_layernorm", "ffn_norm")];

/// The norm behind attention is what it is called.
pub(super) const BEHIND: [Rule; 2] = [
    one("post_attention_layernorm", "post_attention_norm"),
    one("post_feedforward_layernorm", "post_ffw_norm"),
];

/// Experts, each by itself or all in one.
pub(super) const EXPERTS: [Rule; 9] = [
    one("mlp.gate", "ffn_gate_inp"),
    one("mlp.experts.{}.gate_proj", "ffn_gate_exps"),
    one("mlp.experts.{}.up_proj", "ffn_up_exps"),
    one("mlp.experts.{}.down_proj", "ffn_down_exps"),
    pieces("mlp.experts.gate_up_proj", Cut::Behind, &["ffn_gate_exps", "ffn_up_exps"]),
    one("mlp.experts.down_proj", "ffn_down_exps"),
    one("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    one("mlp.e_score_correction_bias", "exp_probs_b.bias"),
    one("mlp.gate.expert_bias", "exp_probs_b.bias"),
];

/// Experts that all tokens meet, as one network.
pub(super) const SHARED: [Rule; 3] = [
    one("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    one("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    one("mlp.shared_experts.down_proj", "ffn_down_shexp"),
];

/// Mixtral's experts.
pub(super) const MIXTRAL: [Rule; 4] = [
    one("block_sparse_moe.gate", "ffn_gate_inp"),
    one("block_sparse_moe.experts.{}.w1", "ffn_gate_exps"),
    one("block_sparse_moe.experts.{}.w3", "ffn_up_exps"),
    one("block_sparse_moe.experts.{}.w2", "ffn_down_exps"),
];

/// Gate and up stay in one.
pub(super) const FUSED: [Rule; 2] =
    [one("mlp.gate_up_proj", "ffn_up"), one("mlp.down_proj", "ffn_down")];

/// What old decoders call what is of no layer.
pub(super) const OLD_WHOLE: [Rule; 4] = [
    one("wte", "token_embd"),
    one("wpe", "position_embd"),
    one("ln_f", "output_norm"),
    one("lm_head", "output"),
];

/// What they call the norms of a layer.
pub(super) const OLD_NORMS: [Rule; 2] = [one("ln_1", "attn_norm"), one("ln_2", "ffn_norm")];
