//! EAGLE-3 (Li et al., 2025): a companion of one layer that drafts from the inputs of three target
//! layers. It reads the embedding of a token and the state of the token before, and has a KV cache
//! layer of its own.
//! GGUF: `general.architecture = "eagle3"`.

use puna_graph::*;

use crate::blocks::Mlp;
use crate::companion::{
    self, Companion, DraftCache, DraftMethod, Drafter, TargetParts, TargetRequirements,
};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;

struct Eagle3 {
    n_embd: usize,
    /// Norm of the concatenated target features.
    fused_norm: Option<Norm>,
    fused: Linear,
    /// Own token embeddings; `None` to use the target's.
    table: Option<WeightId>,
    /// Norm of the token embedding.
    token_norm: Norm,
    /// Norm of the state.
    state_norm: Norm,
    /// Whether the residual stream starts with the normed state.
    stream_is_normed: bool,
    qkv: [Linear; 3],
    rope: RopeId,
    attention: AttentionSpec,
    wo: Linear,
    ffn_norm: Norm,
    ffn: Mlp,
    norm: Norm,
    /// Own output matrix; `None` for that of the target.
    head: Option<Linear>,
}

/// Input of the layer.
struct DraftInput {
    stream: ValueId,
    /// Normed token embedding and normed state, concatenated.
    both: ValueId,
}

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<Companion, ModelError> {
    let hp = Hparams::read_draft(keys)?;
    let eps = keys.rms_eps()?;
    let n = hp.n_embd;
    if hp.n_layer != 1 {
        let (key, value) = (keys.name("block_count"), hp.n_layer.to_string());
        return Err(ModelError::KeyValue {
            key,
            value,
            reason: "an EAGLE-3 draft model has one layer",
        });
    }
    let width = keys.hidden_size("target_hidden_size")?;
    let inputs = keys.target_layers()?;
    if inputs.len() != 3 {
        let (key, value) = (keys.name("target_layers"), format!("{} entries", inputs.len()));
        return Err(ModelError::KeyValue {
            key,
            value,
            reason: "an EAGLE-3 draft model reads three layers",
        });
    }
    let read = inputs.len() * width;
    let tokens = w.draft_tokens("d2t", hp.n_vocab)?;
    let rope = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let [q, k, v] = hp.qkv_widths(0);
    let eagle = Eagle3 {
        n_embd: n,
        fused_norm: keys
            .flag("norm_before_fc")?
            .then(|| w.norm("enc.output_norm", read, eps))
            .transpose()?,
        fused: w.linear("fc", read, n)?,
        table: w.opt("token_embd.weight", &[n, hp.n_vocab])?,
        token_norm: w.norm("blk.0.attn_norm", n, eps)?,
        state_norm: w.norm("blk.0.attn_norm_2", n, eps)?,
        stream_is_normed: keys.flag("norm_before_residual")?,
        qkv: [
            w.linear("blk.0.attn_q", 2 * n, q)?,
            w.linear("blk.0.attn_k", 2 * n, k)?,
            w.linear("blk.0.attn_v", 2 * n, v)?,
        ],
        rope: w.factored_rope(&rope, RopeKind::Norm)?,
        attention: AttentionSpec { mask: Mask::DecoderCausal, ..hp.attention(0) },
        wo: w.linear("blk.0.attn_output", hp.heads[0] * hp.value_dim, n)?,
        ffn_norm: w.norm("blk.0.ffn_norm", n, eps)?,
        ffn: Mlp::load(w, "blk.0", n, hp.ff(0), Glu::Silu)?,
        norm: w.norm("output_norm", n, eps)?,
        head: w.draft_head(tokens.as_deref(), n, hp.n_vocab)?,
    };
    let shared_width = eagle.table.is_none() || eagle.head.is_none();
    Ok(Companion {
        requirements: TargetRequirements {
            width,
            n_vocab: hp.n_vocab,
            shared_width: shared_width.then_some(n),
            tapped_layers: inputs,
            ..TargetRequirements::default()
        },
        cache: vec![eagle.attention.cache_layer()],
        method: DraftMethod::Chain { state_dim: n, cache: DraftCache::Own },
        drafter: Box::new(eagle),
        tokens,
    })
}

impl Eagle3 {
    /// Input of a step: tokens, and the states of the tokens before them.
    fn draft_input(&self, g: &mut Graph, target: &TargetParts) -> DraftInput {
        let token = g.embed("inp_embd", target.token_table(self.table), self.n_embd, Index::Token);
        let token = g.rms_norm("embd_norm", &self.token_norm, token);
        let state = g.input_rows("inp_g_embeddings", self.n_embd);
        let normed = g.rms_norm("g_norm", &self.state_norm, state);
        let both = g.concat("concat_embd", token, normed);
        DraftInput { stream: if self.stream_is_normed { normed } else { state }, both }
    }

    fn keys_and_values(&self, g: &mut Graph, both: ValueId) -> [ValueId; 2] {
        let [_, k, v] = &self.qkv;
        let (k, v) = (g.linear("Kcur", k, both), g.linear("Vcur", v, both));
        [g.rope("Kcur_rope", k, self.attention.key_dim, self.rope), v]
    }
}

impl Drafter for Eagle3 {
    fn tap_target(
        &self,
        g: &mut Graph,
        _hidden: ValueId,
        inputs: &[ValueId],
        _target: &TargetParts,
    ) {
        let mut all = companion::concat_features(g, "inp_embd", inputs);
        if let Some(norm) = &self.fused_norm {
            all = g.rms_norm("enc_input_norm", norm, all);
        }
        let state = g.linear("fc_out", &self.fused, all);
        g.add_extra_output(state);
    }

    fn prefill(&self, g: &mut Graph, target: &TargetParts) -> Option<ValueId> {
        let DraftInput { both, .. } = self.draft_input(g, target);
        let kept = self.keys_and_values(g, both);
        Some(g.store_kv("kept", target.first_cache_layer, kept, self.attention))
    }

    fn draft(&self, g: &mut Graph, target: &TargetParts) -> ValueId {
        let DraftInput { stream, both } = self.draft_input(g, target);
        let q = g.linear("Qcur", &self.qkv[0], both);
        let [k, v] = self.keys_and_values(g, both);
        let q = g.rope("Qcur_rope", q, self.attention.key_dim, self.rope);
        let a = g.attention("kqv_out", target.first_cache_layer, [q, k, v], self.attention);
        let a = g.linear("attn_out", &self.wo, a);
        let x = g.add("ffn_inp", stream, a);
        let h = g.rms_norm("post_attn_norm", &self.ffn_norm, x);
        let f = self.ffn.forward(g, h);
        let x = g.add("eagle3_prenorm", x, f);
        g.add_extra_output(x);
        let x = g.rms_norm("result_norm", &self.norm, x);
        g.linear("result_output", target.output_head(self.head.as_ref()), x)
    }
}
