//! The mix of tensor types in each file type.

use puna_gguf::TensorInfo;
use puna_quant::TensorType::{self, *};

use super::{Counters, ModelFacts, layer};
use crate::requantize::FileType;

/// The type that the file type `target` prescribes for a tensor. Counters advance with the tensors
/// that they count.
pub(super) fn type_in_mix(
    tensor: &TensorInfo,
    target: FileType,
    facts: &ModelFacts,
    has_imatrix: bool,
    counters: &mut Counters,
) -> TensorType {
    let (name, file, base) = (&*tensor.name, target.name(), target.base());
    let rules = MixRules { file, base, facts, has_imatrix };
    if facts.is_output(name) {
        return rules.output();
    }
    if base == MXFP4 {
        // Only stacks of experts get MXFP4.
        return if tensor.shape.get(2).is_some_and(|&n| n > 1) { MXFP4 } else { Q8_0 };
    }
    if matches!(name, "token_embd.weight" | "per_layer_token_embd.weight") {
        return rules.token_embedding();
    }
    let has = |part: &str| name.contains(part);
    let count = |counter: &mut u32| {
        let running = *counter;
        *counter += 1;
        if facts.experts > 1 { layer(name).unwrap_or(running) } else { running }
    };
    if has("attn_v.weight") || has("attn_qkv.weight") || has("attn_kv_b.weight") {
        rules.attn_v(count(&mut counters.attn_v))
    } else if has("attn_k.weight") {
        rules.attn_k()
    } else if has("attn_q.weight") {
        rules.attn_q()
    } else if has("ffn_down") {
        rules.ffn_down(count(&mut counters.ffn_down))
    } else if has("attn_output.weight") {
        rules.attn_output()
    } else if has("ffn_gate") {
        rules.ffn_gate_or_up(count(&mut counters.ffn_gate))
    } else if has("ffn_up") {
        rules.ffn_gate_or_up(count(&mut counters.ffn_up))
    } else {
        base
    }
}

/// Values that the rules for all tensors of a file depend on.
struct MixRules<'a> {
    /// Name of the file type.
    file: &'static str,
    /// The type of tensors without a rule.
    base: TensorType,
    facts: &'a ModelFacts,
    has_imatrix: bool,
}

impl MixRules<'_> {
    fn is_falcon(&self) -> bool {
        self.facts.architecture == "falcon"
    }

    fn has_eight_experts(&self) -> bool {
        self.facts.experts == 8
    }

    /// Whether the file type has about two bits a weight or fewer.
    fn is_very_low(&self) -> bool {
        matches!(self.file, "IQ1_S" | "IQ1_M" | "IQ2_XXS" | "IQ2_XS" | "IQ2_S" | "IQ2_M")
    }

    /// Whether layer `i` is in the first eighth.
    fn is_early(&self, i: u32) -> bool {
        i < self.facts.layers / 8
    }

    /// Whether layer `i` gets more bits: the first and last eighth, and every third layer between.
    fn gets_more_bits(&self, i: u32) -> bool {
        let n = self.facts.layers;
        i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
    }

    /// The output layer.
    fn output(&self) -> TensorType {
        match self.base {
            MXFP4 => Q8_0,
            _ if self.is_falcon() => Q8_0,
            _ if self.is_very_low() || self.file == "IQ3_XXS" => Q5_K,
            Q8_0 => Q8_0,
            _ => Q6_K,
        }
    }

    /// The token embeddings.
    fn token_embedding(&self) -> TensorType {
        match self.file {
            "IQ1_S" | "IQ1_M" | "IQ2_XXS" | "IQ2_XS" => Q2_K,
            "IQ2_S" | "IQ2_M" | "IQ3_XXS" => IQ3_S,
            "TQ1_0" | "TQ2_0" | "Q2_0" => Q4_K,
            _ => self.base,
        }
    }

    fn attn_v(&self, i: u32) -> TensorType {
        if self.has_eight_experts() {
            return Q8_0;
        }
        let chosen = self.values(i);
        if self.facts.is_70b && matches!(chosen, Q3_K | Q4_K) { Q5_K } else { chosen }
    }

    /// Attention values, before the rule for models of 70 billion parameters.
    fn values(&self, i: u32) -> TensorType {
        let wide = self.facts.gqa >= 4;
        let either = |is_first: bool, first, second| if is_first { first } else { second };
        match self.file {
            "Q2_K" => either(wide, Q4_K, Q3_K),
            "Q2_K_S" if wide => Q4_K,
            "Q3_K_M" => either(i < 2, Q5_K, Q4_K),
            "Q3_K_L" => Q5_K,
            "Q4_K_S" if i < 4 => Q5_K,
            "Q4_K_M" | "Q5_K_M" if self.gets_more_bits(i) => Q6_K,
            "IQ4_NL" | "IQ4_XS" if wide => Q5_K,
            "IQ3_XXS" if wide => Q4_K,
            "IQ3_XXS" => either(self.has_imatrix, self.base, IQ3_S),
            "IQ3_XS" | "IQ3_S" if wide => Q4_K,
            "IQ3_M" => Q4_K,
            "IQ2_S" | "IQ2_M" => either(wide || self.facts.experts >= 4, Q4_K, IQ3_S),
            _ if self.is_very_low() => either(wide || self.facts.experts >= 4, Q4_K, Q2_K),
            _ => self.base,
        }
    }

    fn attn_k(&self) -> TensorType {
        match self.has_eight_experts() {
            true if self.is_very_low() => Q4_K,
            true => Q8_0,
            false => self.attn_q(),
        }
    }

    fn attn_q(&self) -> TensorType {
        match self.file {
            "IQ3_XXS" => IQ2_S,
            "IQ3_XS" => IQ3_XXS,
            _ => self.base,
        }
    }

    fn ffn_down(&self, i: u32) -> TensorType {
        let (early, more, falcon) = (self.is_early(i), self.gets_more_bits(i), self.is_falcon());
        let very_early = i < self.facts.layers / 16;
        match self.file {
            "Q4_0" if self.has_imatrix && early => Q4_1,
            "Q5_0" if self.has_imatrix && early => Q5_1,
            "Q2_K" => Q3_K,
            "Q2_K_S" if early => Q4_K,
            "Q3_K_M" if very_early => Q5_K,
            "Q3_K_M" if !falcon || more => Q4_K,
            "Q3_K_L" if falcon => Q4_K,
            "Q3_K_L" => Q5_K,
            "Q4_K_S" if early && !falcon => Q5_K,
            "Q4_K_M" if falcon && very_early => Q6_K,
            "Q4_K_M" if falcon && more => Q5_K,
            "Q4_K_M" if falcon => self.base,
            "Q4_K_M" | "Q5_K_M" if more => Q6_K,
            "IQ4_NL" | "IQ4_XS" if early && !self.has_imatrix => Q5_K,
            "IQ3_XXS" if !self.has_imatrix && early => Q4_K,
            "IQ3_XXS" if !self.has_imatrix => Q3_K,
            "IQ3_M" if early || (self.has_eight_experts() && more) => Q4_K,
            "IQ2_S" | "IQ2_M" if early => IQ3_S,
            _ if self.is_very_low() && early => Q2_K,
            _ => self.base,
        }
    }

    fn attn_output(&self) -> TensorType {
        if self.has_eight_experts() {
            return match self.file {
                "Q2_K" | "IQ3_XXS" | "IQ3_XS" | "IQ3_S" | "IQ3_M" | "Q3_K_S" | "Q3_K_M"
                | "IQ4_NL" | "IQ4_XS" | "Q4_K_S" | "Q4_K_M" => Q5_K,
                _ if self.is_very_low() => Q5_K,
                _ => self.base,
            };
        }
        match self.file {
            "Q2_K" => Q3_K,
            "IQ3_XXS" => IQ3_S,
            "Q3_K_M" | "IQ3_M" => Q4_K,
            "Q3_K_L" if self.is_falcon() => Q4_K,
            "Q3_K_L" => Q5_K,
            "IQ2_S" | "IQ2_M" => IQ3_S,
            "IQ1_S" | "IQ1_M" => IQ2_XXS,
            _ => self.base,
        }
    }

    fn ffn_gate_or_up(&self, i: u32) -> TensorType {
        let is_middle = !self.is_early(i) && i < 7 * self.facts.layers / 8;
        if self.file == "IQ3_XS" && is_middle { IQ3_XXS } else { self.base }
    }
}
