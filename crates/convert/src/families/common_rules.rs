//! Tensor rules and value transforms that many families share.

use crate::error::ConvertError;
use crate::output::ValueTransform;
use crate::rules::{RowSplit, TensorRule, rename, split};
use crate::source::Config;

/// Tensors outside of layers.
pub(super) const GLOBAL: [TensorRule; 3] = [
    rename("embed_tokens", "token_embd"),
    rename("norm", "output_norm"),
    rename("lm_head", "output"),
];

/// Attention and the norm before it.
pub(super) const ATTENTION: [TensorRule; 9] = [
    rename("input_layernorm", "attn_norm"),
    rename("self_attn.q_proj", "attn_q"),
    rename("self_attn.k_proj", "attn_k"),
    rename("self_attn.v_proj", "attn_v"),
    rename("self_attn.qkv_proj", "attn_qkv"),
    rename("self_attn.o_proj", "attn_output"),
    rename("self_attn.q_norm", "attn_q_norm"),
    rename("self_attn.k_norm", "attn_k_norm"),
    rename("self_attn.sinks", "attn_sinks"),
];

/// Gated feed-forward network.
pub(super) const GATED_FFN: [TensorRule; 3] = [
    rename("mlp.gate_proj", "ffn_gate"),
    rename("mlp.up_proj", "ffn_up"),
    rename("mlp.down_proj", "ffn_down"),
];

/// The second norm is before the feed-forward network.
pub(super) const PRE_FFN_NORM: [TensorRule; 1] = [rename("post_attention_layernorm", "ffn_norm")];

/// Norms behind attention and behind the feed-forward network.
pub(super) const POST_NORMS: [TensorRule; 2] = [
    rename("post_attention_layernorm", "post_attention_norm"),
    rename("post_feedforward_layernorm", "post_ffw_norm"),
];

/// Experts as separate tensors or stacked.
pub(super) const EXPERTS: [TensorRule; 9] = [
    rename("mlp.gate", "ffn_gate_inp"),
    rename("mlp.experts.{}.gate_proj", "ffn_gate_exps"),
    rename("mlp.experts.{}.up_proj", "ffn_up_exps"),
    rename("mlp.experts.{}.down_proj", "ffn_down_exps"),
    split("mlp.experts.gate_up_proj", RowSplit::EqualParts, &["ffn_gate_exps", "ffn_up_exps"]),
    rename("mlp.experts.down_proj", "ffn_down_exps"),
    rename("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    rename("mlp.e_score_correction_bias", "exp_probs_b.bias"),
    rename("mlp.gate.expert_bias", "exp_probs_b.bias"),
];

/// Shared experts, as one network.
pub(super) const SHARED_EXPERT: [TensorRule; 3] = [
    rename("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    rename("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    rename("mlp.shared_experts.down_proj", "ffn_down_shexp"),
];

/// Experts with Mixtral's names.
pub(super) const MIXTRAL: [TensorRule; 4] = [
    rename("block_sparse_moe.gate", "ffn_gate_inp"),
    rename("block_sparse_moe.experts.{}.w1", "ffn_gate_exps"),
    rename("block_sparse_moe.experts.{}.w3", "ffn_up_exps"),
    rename("block_sparse_moe.experts.{}.w2", "ffn_down_exps"),
];

/// Gate and up projection stay in one matrix.
pub(super) const FUSED_GATE_UP: [TensorRule; 2] =
    [rename("mlp.gate_up_proj", "ffn_up"), rename("mlp.down_proj", "ffn_down")];

/// Tensors outside of layers, with GPT-2's names.
pub(super) const GPT2_GLOBAL: [TensorRule; 4] = [
    rename("wte", "token_embd"),
    rename("wpe", "position_embd"),
    rename("ln_f", "output_norm"),
    rename("lm_head", "output"),
];

/// Norms of a layer, with GPT-2's names.
pub(super) const GPT2_NORMS: [TensorRule; 2] =
    [rename("ln_1", "attn_norm"), rename("ln_2", "ffn_norm")];

/// Adds one to the weights of norms, which the folder stores as the difference from one.
pub(super) fn add_one_to_norms(_: &Config, name: &str) -> Result<ValueTransform, ConvertError> {
    Ok(if name.ends_with("norm.weight") { ValueTransform::Add(1.0) } else { ValueTransform::None })
}
