//! Hyper-connections (Zhu et al., 2024): several residual streams in the place of one. Each part of a layer reads a weighed sum of them and
//! is added to each by another weight; some models let streams flow into each other there, too, by a matrix whose rows and columns
//! sum up to one (Xie et al., 2025). All these weights depend on the token: they come of a small projection of its streams.

use puna_graph::*;

use crate::error::ModelError;
use crate::hparams::Keys;
use crate::hybrid::{Part, Residual, Stream};
use crate::weights::Weights;

/// What a model's hyper-connections have in common.
#[derive(Debug, Clone, Copy)]
pub struct HyperForm {
    /// How many streams there are.
    pub streams: usize,
    /// Of the norm of what is projected.
    pub eps: f32,
    /// See [`StreamSpec`].
    pub floor: f32,
    /// Weights of writing: see [`StreamSpec`].
    pub magnitude: f32,
    /// See [`StreamSpec`].
    pub write_floor: f32,
    /// Rounds that balance what streams hand on to each other; without, they do not.
    pub rounds: Option<usize>,
}

/// More rounds than any model needs: matrices of few streams are balanced long before.
const MAX_ROUNDS: usize = 100;

impl HyperForm {
    /// `hyper_connection.{count,epsilon}`: streams that stay apart and are written to by up to one.
    pub fn read(keys: &Keys<'_>, eps: f32) -> Result<Self, ModelError> {
        let streams = count(keys)?;
        let floor = keys.meta().opt_f32(&keys.name("hyper_connection.epsilon"))?.unwrap_or(0.0);
        if !floor.is_finite() || floor < 0.0 {
            let (key, value) = (keys.name("hyper_connection.epsilon"), floor.to_string());
            return Err(ModelError::KeyValue {
                key,
                value,
                reason: "must be a small number, not negative",
            });
        }
        Ok(Self { streams, eps, floor, magnitude: 1.0, write_floor: 0.0, rounds: None })
    }

    /// The same with `hyper_connection.sinkhorn_iterations`: streams that flow into each other and are written to by up to two.
    pub fn read_mixing(keys: &Keys<'_>, eps: f32) -> Result<Self, ModelError> {
        let rounds = keys.count("hyper_connection.sinkhorn_iterations")?;
        if rounds > MAX_ROUNDS {
            let (key, value) =
                (keys.name("hyper_connection.sinkhorn_iterations"), rounds.to_string());
            return Err(ModelError::KeyValue { key, value, reason: "must be at most 100" });
        }
        Ok(Self { magnitude: 2.0, rounds: Some(rounds), ..Self::read(keys, eps)? })
    }
}

/// `hyper_connection.count`.
pub fn count(keys: &Keys<'_>) -> Result<usize, ModelError> {
    let count = keys.count("hyper_connection.count")?;
    if !(2..=StreamSpec::MAX_STREAMS).contains(&count) {
        let (key, value) = (keys.name("hyper_connection.count"), count.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "must be between 2 and 16" });
    }
    Ok(count)
}

/// How a part of a layer, or what comes behind all of them, is connected to the streams.
#[derive(Debug, Clone)]
pub struct Hyper {
    /// Of all streams together, without weights.
    norm: Norm,
    /// From there to numbers that weights are made of.
    project: Linear,
    spec: StreamSpec,
}

impl Hyper {
    /// `NAME_{fn,base,scale}` of a part of a layer.
    fn load(
        w: &mut Weights<'_>,
        name: &str,
        n_embd: usize,
        form: &HyperForm,
    ) -> Result<Self, ModelError> {
        Self::of_kinds(w, name, n_embd, form, if form.rounds.is_some() { 3 } else { 2 })
    }

    /// `output_hc_{fn,base,scale}`: streams are only read.
    fn load_end(w: &mut Weights<'_>, n_embd: usize, form: &HyperForm) -> Result<Self, ModelError> {
        Self::of_kinds(w, "output_hc", n_embd, form, 1)
    }

    fn of_kinds(
        w: &mut Weights<'_>,
        name: &str,
        n_embd: usize,
        form: &HyperForm,
        kinds: usize,
    ) -> Result<Self, ModelError> {
        let HyperForm { streams, eps, floor, magnitude, write_floor, rounds } = *form;
        let (dim, numbers) = (streams * n_embd, StreamSpec::numbers(streams, kinds));
        let project = w.linear(&format!("{name}_fn"), dim, numbers)?;
        let scales = w.vector(&format!("{name}_scale.weight"), kinds)?;
        let base = w.vector(&format!("{name}_base.weight"), numbers)?;
        let rounds = rounds.unwrap_or(0);
        let spec = StreamSpec { streams, scales, base, floor, magnitude, write_floor, rounds };
        Ok(Self { norm: Norm { w: None, b: None, dim, eps }, project, spec })
    }

    fn weights(&self, g: &mut Graph, streams: ValueId) -> ValueId {
        let normed = g.rms_norm("hc_normed", &self.norm, streams);
        let numbers = g.linear("hc_mixes", &self.project, normed);
        g.stream_weights("hc_weights", self.spec.clone(), numbers)
    }

    /// What the part reads, and how it writes.
    pub fn read(&self, g: &mut Graph, streams: ValueId) -> (ValueId, StreamWrite) {
        let (count, weights) = (self.spec.streams, self.weights(g, streams));
        let by = g.slice(weights, 0, count);
        let read = g.read_streams("hc_pre", streams, by);
        let mix = self.spec.scales.get(2).map(|_| g.slice(weights, 2 * count, count * count));
        (read, StreamWrite { by: g.slice(weights, count, count), mix })
    }

    /// What comes behind all layers.
    fn end(&self, g: &mut Graph, streams: ValueId) -> ValueId {
        let weights = self.weights(g, streams);
        g.read_streams("hc_head", streams, weights)
    }
}

/// The rows of the weights of writing whose tokens' results are wanted.
pub fn gather_outputs(g: &mut Graph, writing: StreamWrite) -> StreamWrite {
    let by = g.gather_outputs(writing.by);
    StreamWrite { by, mix: writing.mix.map(|mix| g.gather_outputs(mix)) }
}

/// `x` with what a part of a layer gave.
pub fn add(
    g: &mut Graph,
    name: &'static str,
    x: ValueId,
    part: ValueId,
    writing: Option<StreamWrite>,
) -> ValueId {
    match writing {
        None => g.add(name, x, part),
        Some(writing) => g.write_streams(name, x, part, writing),
    }
}

/// The streams of a model.
pub struct Streams {
    /// How many there are.
    pub count: usize,
    /// How each layer is connected to them: the part where tokens see each other, and the feed-forward part.
    pub links: Vec<[Hyper; 2]>,
    /// How they become one again behind the last layer; without, by their mean.
    pub end: Option<Hyper>,
}

impl Streams {
    /// Those of `layers` layers, with `hc_attn_*` and `hc_ffn_*` in each, that become one by the weights of `output_hc_*`.
    pub fn load(
        w: &mut Weights<'_>,
        n_embd: usize,
        layers: usize,
        form: &HyperForm,
    ) -> Result<Self, ModelError> {
        let end = Some(Hyper::load_end(w, n_embd, form)?);
        Ok(Self { end, ..Self::load_without_end(w, n_embd, layers, form)? })
    }

    /// The same that become one by their mean.
    pub fn load_without_end(
        w: &mut Weights<'_>,
        n_embd: usize,
        layers: usize,
        form: &HyperForm,
    ) -> Result<Self, ModelError> {
        let mut link = |i: usize| {
            let mut part = |of: &str| Hyper::load(w, &format!("blk.{i}.hc_{of}"), n_embd, form);
            Ok::<_, ModelError>([part("attn")?, part("ffn")?])
        };
        let links = (0..layers).map(&mut link).collect::<Result<_, _>>()?;
        Ok(Self { count: form.streams, links, end: None })
    }

    /// All the same at first.
    pub fn begin(&self, g: &mut Graph, x: ValueId) -> ValueId {
        copies(g, x, self.count)
    }

    /// One again.
    pub fn join_all(&self, g: &mut Graph, streams: ValueId) -> ValueId {
        if let Some(end) = &self.end {
            return end.end(g, streams);
        }
        mean(g, streams, self.count)
    }
}

/// The mean of so many streams.
pub fn mean(g: &mut Graph, streams: ValueId, count: usize) -> ValueId {
    let n_embd = g.value(streams).cols / count;
    let each: Vec<ValueId> = (0..count).map(|s| g.slice(streams, s * n_embd, n_embd)).collect();
    let sum = each[1..].iter().fold(each[0], |sum, &stream| g.add("hc_sum", sum, stream));
    g.scale("hc_mean", sum, 1.0 / count as f32)
}

/// So many streams that are all `x`.
pub fn copies(g: &mut Graph, x: ValueId, count: usize) -> ValueId {
    (1..count).fold(x, |streams, _| g.concat("hc_init", streams, x))
}

impl Residual for Streams {
    fn enter(&self, g: &mut Graph, x: ValueId) -> ValueId {
        self.begin(g, x)
    }

    fn read(&self, g: &mut Graph, stream: &mut Stream, (layer, part): (usize, Part)) -> ValueId {
        let link = &self.links[layer][usize::from(part == Part::FeedForward)];
        let (read, writing) = link.read(g, stream.x);
        stream.kept = [writing.by].into_iter().chain(writing.mix).collect();
        read
    }

    fn join(&self, g: &mut Graph, stream: &mut Stream, (_, part): (usize, Part), given: ValueId) {
        let name = if part == Part::Mixer { "ffn_inp" } else { "l_out" };
        let writing = StreamWrite { by: stream.kept[0], mix: stream.kept.get(1).copied() };
        stream.x = g.write_streams(name, stream.x, given, writing);
        stream.kept.clear();
    }

    fn leave(&self, g: &mut Graph, stream: Stream) -> ValueId {
        self.join_all(g, stream.x)
    }
}
