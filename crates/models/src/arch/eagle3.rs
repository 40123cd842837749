//! EAGLE-3 (Li et al., 2025): one layer that guesses from what three layers of its model have read. It reads the embedding of a token
//! beside what was made of the token before, and keeps keys and values of its own.
//! GGUF: `general.architecture = "eagle3"`.

use puna_graph::*;

use crate::blocks::Mlp;
use crate::companion::{self, Companion, Guesser, Guesses, Needs, Seen, Trunk};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;

struct Eagle3 {
    n_embd: usize,
    /// Of the layers' inputs side by side, before they become one state.
    fused_norm: Option<Norm>,
    fused: Linear,
    /// Own embeddings; without, the model's.
    table: Option<WeightId>,
    /// Of the token's embedding.
    token_norm: Norm,
    /// Of the state.
    state_norm: Norm,
    /// Whether the stream begins as the state behind its norm.
    begins_normed: bool,
    qkv: [Linear; 3],
    rope: RopeId,
    attention: AttentionSpec,
    wo: Linear,
    ffn_norm: Norm,
    ffn: Mlp,
    norm: Norm,
    /// Own output matrix; without, the model's.
    head: Option<Linear>,
}

/// What a layer is given.
struct Entered {
    stream: ValueId,
    /// Token and state, both behind their norms.
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
    let tokens = w.tokens("d2t", hp.n_vocab)?;
    let rope = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let [q, k, v] = hp.widths(0);
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
        begins_normed: keys.flag("norm_before_residual")?,
        qkv: [
            w.linear("blk.0.attn_q", 2 * n, q)?,
            w.linear("blk.0.attn_k", 2 * n, k)?,
            w.linear("blk.0.attn_v", 2 * n, v)?,
        ],
        rope: w.factored_rope(&rope, RopeKind::Norm)?,
        attention: AttentionSpec { mask: Mask::Decoded, ..hp.attention(0) },
        wo: w.linear("blk.0.attn_output", hp.heads[0] * hp.value_dim, n)?,
        ffn_norm: w.norm("blk.0.ffn_norm", n, eps)?,
        ffn: Mlp::load(w, "blk.0", n, hp.ff(0), Glu::Silu)?,
        norm: w.norm("output_norm", n, eps)?,
        head: w.head_of(tokens.as_deref(), n, hp.n_vocab)?,
    };
    let shares = eagle.table.is_none() || eagle.head.is_none();
    Ok(Companion {
        needs: Needs {
            width,
            n_vocab: hp.n_vocab,
            shares: shares.then_some(n),
            inputs,
            ..Needs::default()
        },
        cache: vec![eagle.attention.cache_layer()],
        guesses: Guesses::Chain { state: n, sees: Seen::Own },
        guesser: Box::new(eagle),
        tokens,
    })
}

impl Eagle3 {
    /// A step's tokens beside the states that came with those before them.
    fn enter(&self, g: &mut Graph, trunk: &Trunk) -> Entered {
        let token = g.embed("inp_embd", trunk.table_or(self.table), self.n_embd, Index::Token);
        let token = g.rms_norm("embd_norm", &self.token_norm, token);
        let state = g.given("inp_g_embeddings", self.n_embd);
        let normed = g.rms_norm("g_norm", &self.state_norm, state);
        let both = g.concat("concat_embd", token, normed);
        Entered { stream: if self.begins_normed { normed } else { state }, both }
    }

    fn keys_and_values(&self, g: &mut Graph, both: ValueId) -> [ValueId; 2] {
        let [_, k, v] = &self.qkv;
        let (k, v) = (g.linear("Kcur", k, both), g.linear("Vcur", v, both));
        [g.rope("Kcur_rope", k, self.attention.key_dim, self.rope), v]
    }
}

impl Guesser for Eagle3 {
    fn read(&self, g: &mut Graph, _hidden: ValueId, inputs: &[ValueId], _trunk: &Trunk) {
        let mut all = companion::side_by_side(g, "inp_embd", inputs);
        if let Some(norm) = &self.fused_norm {
            all = g.rms_norm("enc_input_norm", norm, all);
        }
        let state = g.linear("fc_out", &self.fused, all);
        g.add_extra_output(state);
    }

    fn follow(&self, g: &mut Graph, trunk: &Trunk) -> Option<ValueId> {
        let Entered { both, .. } = self.enter(g, trunk);
        let kept = self.keys_and_values(g, both);
        Some(g.keep("kept", trunk.own, kept, self.attention))
    }

    fn guess(&self, g: &mut Graph, trunk: &Trunk) -> ValueId {
        let Entered { stream, both } = self.enter(g, trunk);
        let q = g.linear("Qcur", &self.qkv[0], both);
        let [k, v] = self.keys_and_values(g, both);
        let q = g.rope("Qcur_rope", q, self.attention.key_dim, self.rope);
        let a = g.attention("kqv_out", trunk.own, [q, k, v], self.attention);
        let a = g.linear("attn_out", &self.wo, a);
        let x = g.add("ffn_inp", stream, a);
        let h = g.rms_norm("post_attn_norm", &self.ffn_norm, x);
        let f = self.ffn.forward(g, h);
        let x = g.add("eagle3_prenorm", x, f);
        g.add_extra_output(x);
        let x = g.rms_norm("result_norm", &self.norm, x);
        g.linear("result_output", trunk.head_or(self.head.as_ref()), x)
    }
}
