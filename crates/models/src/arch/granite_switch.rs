//! Granite Switch: a granite that has adapters in it, each with a token of its own. From that token on, every product of a layer has the
//! adapter's two thin ones beside it. Which adapter that is, tokens learn by attention: one head, to which only such tokens matter.
//! GGUF: `general.architecture = "graniteswitch"`.

use puna_graph::*;

use crate::decoder::{AnyNorm, Block, Decoder, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::model::{Architecture, LoadOptions, Loaded, Shape};
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// More adapters, or columns of one, than any file has; and all numbers of adapters are exact in every type of cache, through which
/// they are told.
const MOST: usize = 256;

/// The adapters of a file. Number zero is what tokens have before they meet one.
struct Adapters {
    /// With number zero.
    count: usize,
    rank: usize,
    /// By tokens: which adapter it switches to, or none.
    switches: Vec<Option<usize>>,
    /// By tokens: whose vector it has.
    vectors: Vec<u32>,
}

impl Adapters {
    fn read(keys: &Keys<'_>, hp: &Hparams) -> Result<Self, ModelError> {
        let [number, rank] = ["adapters.count", "adapters.lora_rank"].map(|key| bounded(keys, key));
        let (number, rank) = (number?, rank?);
        let tokens = Self::tokens(keys, "adapters.token_ids_activate", number, hp.n_vocab)?;
        let instead = Self::tokens(keys, "adapters.token_ids_substitute", number, hp.n_vocab)?;
        let (mut switches, mut vectors) =
            (vec![None; hp.n_vocab], Vec::from_iter(0..hp.n_vocab as u32));
        for (i, (&token, &instead)) in tokens.iter().zip(&instead).enumerate() {
            (switches[token as usize], vectors[token as usize]) = (Some(i + 1), instead);
        }
        Ok(Self { count: number + 1, rank, switches, vectors })
    }

    /// A token for each adapter.
    fn tokens(
        keys: &Keys<'_>,
        key: &str,
        number: usize,
        n_vocab: usize,
    ) -> Result<Vec<u32>, ModelError> {
        let key = keys.name(key);
        let tokens = keys.meta().u32s(&key)?.unwrap_or_default();
        if tokens.len() != number {
            let value = format!("{} tokens", tokens.len());
            return Err(ModelError::KeyValue {
                key,
                value,
                reason: "there must be one for each adapter",
            });
        }
        match tokens.iter().find(|&&token| token as usize >= n_vocab) {
            Some(token) => {
                let (value, reason) = (token.to_string(), "the vocabulary has no such token");
                Err(ModelError::KeyValue { key, value, reason })
            }
            None => Ok(tokens),
        }
    }
}

fn bounded(keys: &Keys<'_>, key: &str) -> Result<usize, ModelError> {
    let count = keys.count(key)?;
    if count > MOST {
        let (key, value) = (keys.name(key), count.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "must be at most 4096" });
    }
    Ok(count)
}

/// The head by which tokens learn which adapter they have.
struct Router {
    /// Of each token: how much it matters, and the number of its adapter.
    signals: WeightId,
    /// The same query for all: one, and zeros behind it.
    query: WeightId,
    /// From the signals to key and value: one of them, and zeros behind it.
    lanes: [Linear; 2],
    /// From the number that was read to how near it is to each adapter's.
    nearness: Linear,
    attention: AttentionSpec,
    /// Of the cache, behind those of all layers.
    layer: usize,
}

impl Router {
    fn new(w: &mut Weights<'_>, hp: &Hparams, adapters: &Adapters, gain: f32) -> Self {
        let attention =
            AttentionSpec { scale: 1.0, ..AttentionSpec::causal(1, 1, hp.key_dim, hp.value_dim) };
        let signal = |switch: &Option<usize>| match switch {
            Some(number) => [gain, *number as f32],
            None => [-gain, 0.0],
        };
        let signals: Vec<f32> = adapters.switches.iter().flat_map(signal).collect();
        // The first column of `dim`, from the `i`-th of two.
        let mut lane = |name: &str, dim: usize, i: usize| {
            let mut numbers = vec![0.0; 2 * dim];
            numbers[i] = 1.0;
            Linear { w: w.constant(name, &[2, dim], &numbers), scale: 1.0, bias: None, out: dim }
        };
        let lanes = [lane("router_key", hp.key_dim, 0), lane("router_value", hp.value_dim, 1)];
        let mut query = vec![0.0; hp.key_dim];
        query[0] = 1.0;
        // The square of the distance but for that of the number itself, the other way round. What lies between two belongs to the upper
        // one.
        let numbers = (0..adapters.count).map(|number| number as f32);
        let slopes: Vec<f32> = numbers.clone().map(|number| 2.0 * number).collect();
        let biases: Vec<f32> = numbers.map(|number| number * (1.0 / 2048.0 - number)).collect();
        let nearness = Linear {
            w: w.constant("router_nearness", &[1, adapters.count], &slopes),
            scale: 1.0,
            bias: Some(w.constant("router_nearness_bias", &[adapters.count], &biases)),
            out: adapters.count,
        };
        Self {
            signals: w.constant("router_signals", &[2, hp.n_vocab], &signals),
            query: w.constant("router_query", &[hp.key_dim, 1], &query),
            lanes,
            nearness,
            attention,
            layer: hp.n_layer,
        }
    }

    /// How near each token is to having each of the adapters.
    fn record(&self, g: &mut Graph) -> ValueId {
        let signals = g.embed("router_signals", self.signals, 2, Index::Token);
        let q = g.embed("router_query", self.query, self.attention.key_dim, Index::Fixed(0));
        let k = g.linear("router_key", &self.lanes[0], signals);
        let v = g.linear("router_value", &self.lanes[1], signals);
        let read = g.attention("router_out", self.layer, [q, k, v], self.attention);
        let dim = self.attention.value_dim;
        let number = g.pick("adapter_number", read, 0, 1, dim);
        g.linear("adapter_ids", &self.nearness, number)
    }
}

/// LoRA updates of all adapters beside a matrix product; each token uses the update of its adapter.
struct SwitchedLora(MoeSpec);

impl SwitchedLora {
    fn load(
        b: &mut Block<'_, '_>,
        part: &str,
        (input, out): (usize, usize),
        adapters: &Adapters,
    ) -> Result<Self, ModelError> {
        let Adapters { count, rank, .. } = *adapters;
        let down = b.tensor(&format!("{part}.lora_a"), &[input, rank, count])?;
        let up = b.tensor(&format!("{part}.lora_b"), &[rank, out, count])?;
        Ok(Self(MoeSpec {
            experts: count,
            used: 1,
            gating: Gating::SoftmaxOfChosen,
            normalise: false,
            scale: 1.0,
            factors: None,
            selection_bias: None,
            by_token: None,
            groups: None,
            weighs_input: false,
            glu: Glu::Alone,
            hidden: rank,
            out,
            sharing: 1,
            gate: down,
            up: down,
            is_joined: false,
            down: up,
            gate_bias: None,
            up_bias: None,
            down_bias: None,
            changes: ExpertChanges::default(),
        }))
    }

    /// What `to` is with the change that `x` makes.
    fn add(&self, g: &mut Graph, to: ValueId, x: ValueId, adapter: ValueId) -> ValueId {
        let change = g.moe("adapter", self.0.clone(), x, adapter);
        g.add("adapted", to, change)
    }
}

/// A product with those of adapters beside it.
struct Switched(Linear, SwitchedLora);

impl Switched {
    fn load(
        b: &mut Block<'_, '_>,
        part: &str,
        (input, out): (usize, usize),
        adapters: &Adapters,
    ) -> Result<Self, ModelError> {
        Ok(Self(b.linear(part, input, out)?, SwitchedLora::load(b, part, (input, out), adapters)?))
    }

    fn apply(&self, g: &mut Graph, name: &'static str, x: ValueId, adapter: ValueId) -> ValueId {
        let y = g.linear(name, &self.0, x);
        self.1.add(g, y, x, adapter)
    }
}

struct Layer {
    attn_norm: AnyNorm,
    qkv: Linear,
    /// Beside the parts of that for query, key and value.
    thin: [SwitchedLora; 3],
    widths: [usize; 3],
    rope: Option<RopeId>,
    attention: AttentionSpec,
    wo: Switched,
    ffn_norm: AnyNorm,
    gate: Switched,
    up: Switched,
    down: Switched,
}

impl Layer {
    fn load(
        b: &mut Block<'_, '_>,
        adapters: &Adapters,
        rope: Option<RopeId>,
        scale: Option<f32>,
    ) -> Result<Self, ModelError> {
        let (n, ff, widths, plain) =
            (b.hp.n_embd, b.hp.ff(b.i), b.hp.widths(b.i), b.hp.attention(b.i));
        let mut thin = |part: &str, out| SwitchedLora::load(b, part, (n, out), adapters);
        Ok(Self {
            thin: [
                thin("attn_q", widths[0])?,
                thin("attn_k", widths[1])?,
                thin("attn_v", widths[2])?,
            ],
            attn_norm: b.norm("attn_norm")?,
            qkv: b.linear("attn_qkv", n, widths.iter().sum())?,
            widths,
            rope,
            attention: AttentionSpec { scale: scale.unwrap_or(plain.scale), ..plain },
            wo: Switched::load(b, "attn_output", (plain.heads * plain.value_dim, n), adapters)?,
            ffn_norm: b.norm("ffn_norm")?,
            gate: Switched::load(b, "ffn_gate", (n, ff), adapters)?,
            up: Switched::load(b, "ffn_up", (n, ff), adapters)?,
            down: Switched::load(b, "ffn_down", (ff, n), adapters)?,
        })
    }

    /// What attention makes of `h`, head after head.
    fn attend(&self, g: &mut Graph, i: usize, h: ValueId, adapter: ValueId) -> ValueId {
        let all = g.linear("wqkv", &self.qkv, h);
        let mut start = 0;
        let [mut q, mut k, v] = [0, 1, 2].map(|part| {
            let own = g.slice(all, start, self.widths[part]);
            start += self.widths[part];
            self.thin[part].add(g, own, h, adapter)
        });
        if let Some(rope) = self.rope {
            q = g.rope("Qcur_rope", q, self.attention.key_dim, rope);
            k = g.rope("Kcur_rope", k, self.attention.key_dim, rope);
        }
        g.attention("kqv_out", i, [q, k, v], self.attention)
    }

    /// The feed-forward part of `h`.
    fn transform(&self, g: &mut Graph, h: ValueId, adapter: ValueId) -> ValueId {
        let gate = self.gate.apply(g, "ffn_gate", h, adapter);
        let up = self.up.apply(g, "ffn_up", h, adapter);
        let hidden = g.glu("ffn_glu", Glu::Silu, gate, up);
        self.down.apply(g, "ffn_out", hidden, adapter)
    }
}

struct GraniteSwitch {
    /// What is before and behind the layers: it has none itself.
    around: Decoder,
    router: Router,
    layers: Vec<Layer>,
}

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let adapters = Adapters::read(keys, &hp)?;
    let gain = keys.opt_f32("adapters.router_gain")?.unwrap_or(15.0);
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Norm)?;
    // "Not finetuned" is how these files say that nothing turns.
    let turns = keys.opt_bool("rope.scaling.finetuned")?.unwrap_or(true);
    let scale = keys.factor("attention.scale")?;
    let layers = crate::decoder::layers(w, &hp, norm, |b| {
        Layer::load(b, &adapters, turns.then_some(rope), scale)
    })?;
    let around = Decoder {
        index: Index::Instead(w.list("adapter_substitutes", &adapters.vectors)),
        embd_scale: keys.factor("embedding_scale")?.unwrap_or(1.0),
        residual_scale: keys.factor("residual_scale")?.unwrap_or(1.0),
        logit_scale: 1.0 / keys.factor("logit_scale")?.unwrap_or(1.0),
        ..Decoder::new(w, &hp, norm, Vec::new())?
    };
    let router = Router::new(w, &hp, &adapters, gain);
    let attentions = layers.iter().map(|layer| &layer.attention).chain([&router.attention]);
    let cache = attentions.map(AttentionSpec::cache_layer).collect();
    Ok(Loaded {
        arch: Box::new(GraniteSwitch { around, router, layers }),
        cache,
        shape: Shape::decoder(&hp),
    })
}

impl Architecture for GraniteSwitch {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        let mut x = self.around.enter(g);
        let mut adapter = self.router.record(g);
        for (i, layer) in self.layers.iter().enumerate() {
            g.set_layer(Some(i));
            let h = layer.attn_norm.apply(g, "attn_norm", x);
            let mut a = layer.attend(g, i, h, adapter);
            if outputs_only && i + 1 == self.layers.len() {
                [x, a, adapter] = [x, a, adapter].map(|value| g.gather_outputs(value));
            }
            let a = layer.wo.apply(g, "attn_out", a, adapter);
            x = self.around.add_scaled(g, "ffn_inp", x, a);
            let h = layer.ffn_norm.apply(g, "ffn_norm", x);
            let f = layer.transform(g, h, adapter);
            x = self.around.add_scaled(g, "l_out", x, f);
            x = g.steer(i, x);
        }
        g.set_layer(None);
        self.around.leave(g, x)
    }

    fn logits(&self, g: &mut Graph, hidden: ValueId) -> ValueId {
        self.around.logits(g, hidden)
    }
}
