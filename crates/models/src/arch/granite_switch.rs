//! Granite Switch: a Granite with embedded LoRA adapters. From an adapter's activation token on,
//! every matrix product of a layer includes the adapter's update. An additional attention head
//! determines each token's adapter: it attends only to activation tokens, and its value is the
//! adapter's number.
//! GGUF: `general.architecture = "graniteswitch"`.

use puna_graph::*;

use crate::architecture::{Architecture, LoadOptions, LoadedArchitecture, ModelShape};
use crate::decoder::{AnyNorm, Decoder, LayerLoader, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// Largest accepted number of adapters, and largest rank. All numbers up to it are exact in every
/// cache type, which stores them as values.
const MAX_ADAPTERS: usize = 256;

/// Adapters of a file. Number 0 means no adapter.
struct Adapters {
    /// Number of adapters, including number 0.
    count: usize,
    rank: usize,
    /// For each token the adapter that it activates.
    switches: Vec<Option<usize>>,
    /// For each token the row of the embeddings that it uses.
    vectors: Vec<u32>,
}

impl Adapters {
    fn read(keys: &Keys<'_>, hp: &Hparams) -> Result<Self, ModelError> {
        let [number, rank] =
            ["adapters.count", "adapters.lora_rank"].map(|key| bounded_count(keys, key));
        let (number, rank) = (number?, rank?);
        let tokens = Self::tokens(keys, "adapters.token_ids_activate", number, hp.n_vocab)?;
        let substitutes = Self::tokens(keys, "adapters.token_ids_substitute", number, hp.n_vocab)?;
        let (mut switches, mut vectors) =
            (vec![None; hp.n_vocab], Vec::from_iter(0..hp.n_vocab as u32));
        for (i, (&token, &substitutes)) in tokens.iter().zip(&substitutes).enumerate() {
            (switches[token as usize], vectors[token as usize]) = (Some(i + 1), substitutes);
        }
        Ok(Self { count: number + 1, rank, switches, vectors })
    }

    /// Token of each adapter.
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
                reason: "must have one token per adapter",
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

fn bounded_count(keys: &Keys<'_>, key: &str) -> Result<usize, ModelError> {
    let count = keys.count(key)?;
    if count > MAX_ADAPTERS {
        let (key, value) = (keys.name(key), count.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "must be at most 4096" });
    }
    Ok(count)
}

/// Attention head that determines the adapter of each token.
struct AdapterRouter {
    /// For each token its score as a key, and its adapter number.
    signals: WeightId,
    /// Query of all tokens: a one, then zeros.
    query: WeightId,
    /// Projections from the signals to key and value: one signal in the first column, then zeros.
    columns: [Linear; 2],
    /// Projection from the attention result to the closeness of each adapter number.
    closeness: Linear,
    attention: AttentionSpec,
    /// Cache layer, after the cache layers of all model layers.
    layer: usize,
}

impl AdapterRouter {
    fn new(w: &mut Weights<'_>, hp: &Hparams, adapters: &Adapters, gain: f32) -> Self {
        let attention =
            AttentionSpec { scale: 1.0, ..AttentionSpec::causal(1, 1, hp.key_dim, hp.value_dim) };
        let signal = |switch: &Option<usize>| match switch {
            Some(number) => [gain, *number as f32],
            None => [-gain, 0.0],
        };
        let signals: Vec<f32> = adapters.switches.iter().flat_map(signal).collect();
        // Projects signal `i` of two to the first of `dim` columns.
        let mut column = |name: &str, dim: usize, i: usize| {
            let mut numbers = vec![0.0; 2 * dim];
            numbers[i] = 1.0;
            Linear { w: w.constant(name, &[2, dim], &numbers), scale: 1.0, bias: None, out: dim }
        };
        let columns =
            [column("router_key", hp.key_dim, 0), column("router_value", hp.value_dim, 1)];
        let mut query = vec![0.0; hp.key_dim];
        query[0] = 1.0;
        // The negative squared distance to each number, without the square of the result, which is
        // the same for all. A small bias rounds up values halfway between two numbers.
        let numbers = (0..adapters.count).map(|number| number as f32);
        let slopes: Vec<f32> = numbers.clone().map(|number| 2.0 * number).collect();
        let biases: Vec<f32> = numbers.map(|number| number * (1.0 / 2048.0 - number)).collect();
        let closeness = Linear {
            w: w.constant("router_nearness", &[1, adapters.count], &slopes),
            scale: 1.0,
            bias: Some(w.constant("router_nearness_bias", &[adapters.count], &biases)),
            out: adapters.count,
        };
        Self {
            signals: w.constant("router_signals", &[2, hp.n_vocab], &signals),
            query: w.constant("router_query", &[hp.key_dim, 1], &query),
            columns,
            closeness,
            attention,
            layer: hp.n_layer,
        }
    }

    /// Closeness of each token to each adapter; the router of [`SwitchedLora`].
    fn record(&self, g: &mut Graph) -> ValueId {
        let signals = g.embed("router_signals", self.signals, 2, Index::Token);
        let q = g.embed("router_query", self.query, self.attention.key_dim, Index::Fixed(0));
        let k = g.linear("router_key", &self.columns[0], signals);
        let v = g.linear("router_value", &self.columns[1], signals);
        let read = g.attention("router_out", self.layer, [q, k, v], self.attention);
        let dim = self.attention.value_dim;
        let number = g.strided_columns("adapter_number", read, 0, 1, dim);
        g.linear("adapter_ids", &self.closeness, number)
    }
}

/// LoRA updates of all adapters beside a matrix product; each token uses the update of its adapter.
struct SwitchedLora(MoeSpec);

impl SwitchedLora {
    fn load(
        b: &mut LayerLoader<'_, '_>,
        part: &str,
        (input, out): (usize, usize),
        adapters: &Adapters,
    ) -> Result<Self, ModelError> {
        let Adapters { count, rank, .. } = *adapters;
        let down = b.tensor(&format!("{part}.lora_a"), &[input, rank, count])?;
        let up = b.tensor(&format!("{part}.lora_b"), &[rank, out, count])?;
        Ok(Self(MoeSpec {
            experts: count,
            top_k: 1,
            gating: Gating::SoftmaxOfSelected,
            normalize: false,
            scale: 1.0,
            factors: None,
            selection_bias: None,
            experts_by_token: None,
            groups: None,
            weighs_input: false,
            glu: Glu::Identity,
            hidden: rank,
            out,
            experts_per_matrix: 1,
            gate: down,
            up: down,
            is_joined: false,
            down: up,
            gate_bias: None,
            up_bias: None,
            down_bias: None,
            lora_updates: ExpertLoraUpdates::default(),
        }))
    }

    /// Adds the update for `x` to `to`.
    fn add(&self, g: &mut Graph, to: ValueId, x: ValueId, adapter: ValueId) -> ValueId {
        let adapted = g.moe("adapter", self.0.clone(), x, adapter);
        g.add("adapted", to, adapted)
    }
}

/// Matrix product plus the updates of the adapters.
struct SwitchedLinear(Linear, SwitchedLora);

impl SwitchedLinear {
    fn load(
        b: &mut LayerLoader<'_, '_>,
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
    /// Updates of query, key and value, which are parts of `qkv`.
    updates: [SwitchedLora; 3],
    widths: [usize; 3],
    rope: Option<RopeId>,
    attention: AttentionSpec,
    wo: SwitchedLinear,
    ffn_norm: AnyNorm,
    gate: SwitchedLinear,
    up: SwitchedLinear,
    down: SwitchedLinear,
}

impl Layer {
    fn load(
        b: &mut LayerLoader<'_, '_>,
        adapters: &Adapters,
        rope: Option<RopeId>,
        scale: Option<f32>,
    ) -> Result<Self, ModelError> {
        let (n, ff, widths, plain) =
            (b.hp.n_embd, b.hp.ff(b.i), b.hp.qkv_widths(b.i), b.hp.attention(b.i));
        let mut updates = |part: &str, out| SwitchedLora::load(b, part, (n, out), adapters);
        Ok(Self {
            updates: [
                updates("attn_q", widths[0])?,
                updates("attn_k", widths[1])?,
                updates("attn_v", widths[2])?,
            ],
            attn_norm: b.norm("attn_norm")?,
            qkv: b.linear("attn_qkv", n, widths.iter().sum())?,
            widths,
            rope,
            attention: AttentionSpec { scale: scale.unwrap_or(plain.scale), ..plain },
            wo: SwitchedLinear::load(
                b,
                "attn_output",
                (plain.heads * plain.value_dim, n),
                adapters,
            )?,
            ffn_norm: b.norm("ffn_norm")?,
            gate: SwitchedLinear::load(b, "ffn_gate", (n, ff), adapters)?,
            up: SwitchedLinear::load(b, "ffn_up", (n, ff), adapters)?,
            down: SwitchedLinear::load(b, "ffn_down", (ff, n), adapters)?,
        })
    }

    /// Attention result of `h`, with the heads concatenated.
    fn attend(&self, g: &mut Graph, i: usize, h: ValueId, adapter: ValueId) -> ValueId {
        let all = g.linear("wqkv", &self.qkv, h);
        let mut start = 0;
        let [mut q, mut k, v] = [0, 1, 2].map(|part| {
            let own = g.slice(all, start, self.widths[part]);
            start += self.widths[part];
            self.updates[part].add(g, own, h, adapter)
        });
        if let Some(rope) = self.rope {
            q = g.rope("Qcur_rope", q, self.attention.key_dim, rope);
            k = g.rope("Kcur_rope", k, self.attention.key_dim, rope);
        }
        g.attention("kqv_out", i, [q, k, v], self.attention)
    }

    /// Output of the feed-forward network for `h`.
    fn transform(&self, g: &mut Graph, h: ValueId, adapter: ValueId) -> ValueId {
        let gate = self.gate.apply(g, "ffn_gate", h, adapter);
        let up = self.up.apply(g, "ffn_up", h, adapter);
        let hidden = g.glu("ffn_glu", Glu::Silu, gate, up);
        self.down.apply(g, "ffn_out", hidden, adapter)
    }
}

struct GraniteSwitch {
    /// Embeddings, last norm and output matrix: a decoder without layers.
    outer: Decoder,
    router: AdapterRouter,
    layers: Vec<Layer>,
}

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let adapters = Adapters::read(keys, &hp)?;
    let gain = keys.opt_f32("adapters.router_gain")?.unwrap_or(15.0);
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Norm)?;
    // In these files, `finetuned = false` means that no layer has rotary embedding.
    let has_rope = keys.opt_bool("rope.scaling.finetuned")?.unwrap_or(true);
    let scale = keys.factor("attention.scale")?;
    let layers = crate::decoder::layers(w, &hp, norm, |b| {
        Layer::load(b, &adapters, has_rope.then_some(rope), scale)
    })?;
    let outer = Decoder {
        index: Index::Remapped(w.list("adapter_substitutes", &adapters.vectors)),
        embd_scale: keys.factor("embedding_scale")?.unwrap_or(1.0),
        residual_scale: keys.factor("residual_scale")?.unwrap_or(1.0),
        logit_scale: 1.0 / keys.factor("logit_scale")?.unwrap_or(1.0),
        ..Decoder::new(w, &hp, norm, Vec::new())?
    };
    let router = AdapterRouter::new(w, &hp, &adapters, gain);
    let attentions = layers.iter().map(|layer| &layer.attention).chain([&router.attention]);
    let cache = attentions.map(AttentionSpec::cache_layer).collect();
    Ok(LoadedArchitecture {
        arch: Box::new(GraniteSwitch { outer, router, layers }),
        cache,
        shape: ModelShape::decoder(&hp),
    })
}

impl Architecture for GraniteSwitch {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        let mut x = self.outer.input_stream(g);
        let mut adapter = self.router.record(g);
        for (i, layer) in self.layers.iter().enumerate() {
            g.set_layer(Some(i));
            let h = layer.attn_norm.apply(g, "attn_norm", x);
            let mut a = layer.attend(g, i, h, adapter);
            if outputs_only && i + 1 == self.layers.len() {
                [x, a, adapter] = [x, a, adapter].map(|value| g.gather_outputs(value));
            }
            let a = layer.wo.apply(g, "attn_out", a, adapter);
            x = self.outer.add_scaled(g, "ffn_inp", x, a);
            let h = layer.ffn_norm.apply(g, "ffn_norm", x);
            let f = layer.transform(g, h, adapter);
            x = self.outer.add_scaled(g, "l_out", x, f);
            x = g.add_control_vectors(i, x);
        }
        g.set_layer(None);
        self.outer.output_hidden(g, x)
    }

    fn logits(&self, g: &mut Graph, hidden: ValueId) -> ValueId {
        self.outer.logits(g, hidden)
    }
}
