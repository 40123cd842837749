//! Nemotron 51B, Super and Ultra (DeciLM): a Llama pruned by architecture search. A layer may have
//! a linear map instead of attention, or no attention at all, and may lack its feed-forward
//! network.
//! GGUF: `general.architecture = "deci"`; layers without KV heads have the linear map, layers
//! without any heads have no attention.

use puna_graph::*;

use crate::architecture::{Architecture, LoadOptions, LoadedArchitecture, ModelShape};
use crate::blocks::{Mlp, Qkv};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;

struct Deci {
    n_embd: usize,
    table: WeightId,
    rope: RopeId,
    layers: Vec<Layer>,
    norm: Norm,
    head: Linear,
}

struct Layer {
    mixer: Option<(Norm, DeciMixer)>,
    ffn: Option<(Norm, Mlp)>,
}

enum DeciMixer {
    Attention(Box<Attention>),
    Linear(Linear),
}

struct Attention {
    qkv: Qkv,
    spec: AttentionSpec,
    /// Index among the layers with attention, which alone have a cache layer.
    cache_layer: usize,
    wo: Linear,
}

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let eps = keys.rms_eps()?;
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Norm)?;
    let scale = keys.factor("attention.scale")?.unwrap_or(1.0 / (hp.key_dim as f32).sqrt());
    let table = w.tensor("token_embd.weight", &[hp.n_embd, hp.n_vocab])?;
    let (mut layers, mut cache) = (Vec::with_capacity(hp.n_layer), Vec::new());
    for i in 0..hp.n_layer {
        let b = format!("blk.{i}");
        let mixer = match (hp.heads[i], hp.kv_heads[i]) {
            (0, _) => None,
            (_, 0) => Some(DeciMixer::Linear(w.linear(
                &format!("{b}.attn_output"),
                hp.n_embd,
                hp.n_embd,
            )?)),
            (heads, kv_heads) if heads % kv_heads == 0 => {
                let spec = AttentionSpec { scale, ..hp.attention(i) };
                let cache_layer = cache.len();
                cache.push(spec.cache_layer());
                let qkv = Qkv::load(w, &b, hp.n_embd, hp.qkv_widths(i))?;
                let wo = w.linear(&format!("{b}.attn_output"), heads * hp.value_dim, hp.n_embd)?;
                Some(DeciMixer::Attention(Box::new(Attention { qkv, spec, cache_layer, wo })))
            }
            (heads, kv_heads) => {
                let reason = "query heads must be a multiple of the KV heads";
                let (key, value) = (
                    keys.name("attention.head_count"),
                    format!("{heads} with {kv_heads} KV heads"),
                );
                return Err(ModelError::KeyValue { key, value, reason });
            }
        };
        let mut norm = |part: &str| w.norm(&format!("{b}.{part}"), hp.n_embd, eps);
        let mixer = match mixer {
            Some(mixer) => Some((norm("attn_norm")?, mixer)),
            None => None,
        };
        let ffn = match hp.ff(i) {
            0 => None,
            ff => Some((norm("ffn_norm")?, Mlp::load(w, &b, hp.n_embd, ff, Glu::Silu)?)),
        };
        layers.push(Layer { mixer, ffn });
    }
    if cache.is_empty() {
        let (key, value) = (keys.name("attention.head_count_kv"), "0 in every layer".into());
        return Err(ModelError::KeyValue {
            key,
            value,
            reason: "at least one layer needs attention",
        });
    }
    let norm = w.norm("output_norm", hp.n_embd, eps)?;
    let head = w.output_head(table, hp.n_embd, hp.n_vocab)?;
    let arch = Box::new(Deci { n_embd: hp.n_embd, table, rope, layers, norm, head });
    Ok(LoadedArchitecture { arch, cache, shape: ModelShape::decoder(&hp) })
}

impl DeciMixer {
    fn forward(&self, g: &mut Graph, h: ValueId, rope: RopeId) -> ValueId {
        match self {
            Self::Linear(linear) => g.linear("attn_out", linear, h),
            Self::Attention(a) => {
                let [q, k, v] = a.qkv.project(g, h);
                let q = g.rope("Qcur_rope", q, a.spec.key_dim, rope);
                let k = g.rope("Kcur_rope", k, a.spec.key_dim, rope);
                let read = g.attention("kqv_out", a.cache_layer, [q, k, v], a.spec);
                g.linear("attn_out", &a.wo, read)
            }
        }
    }
}

impl Architecture for Deci {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        let mut x = g.embed("inp_embd", self.table, self.n_embd, Index::Token);
        let last = self.layers.iter().rposition(|l| l.mixer.is_some());
        for (i, l) in self.layers.iter().enumerate() {
            g.set_layer(Some(i));
            if let Some((norm, mixer)) = &l.mixer {
                let h = g.rms_norm("attn_norm", norm, x);
                let mut a = mixer.forward(g, h, self.rope);
                if outputs_only && last == Some(i) {
                    (a, x) = (g.gather_outputs(a), g.gather_outputs(x));
                }
                x = g.add("ffn_inp", x, a);
            }
            if let Some((norm, ffn)) = &l.ffn {
                let h = g.rms_norm("ffn_norm", norm, x);
                let f = ffn.forward(g, h);
                x = g.add("l_out", x, f);
            }
            x = g.add_control_vectors(i, x);
        }
        g.set_layer(None);
        g.rms_norm("result_norm", &self.norm, x)
    }

    fn logits(&self, g: &mut Graph, hidden: ValueId) -> ValueId {
        g.linear("result_output", &self.head, hidden)
    }
}
