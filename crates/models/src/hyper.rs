//! Hyper-connections (Zhu et al., 2024): several residual streams instead of one. Each part of a
//! layer reads a weighted sum of the streams and adds its output to each stream with a weight. Some
//! models also mix the streams by a doubly stochastic matrix (Xie et al., 2025). All weights depend
//! on the token: a small projection of its streams computes them.

use puna_graph::*;

use crate::error::ModelError;
use crate::hparams::Keys;
use crate::residual::{LayerPart, ResidualConnections, ResidualStream};
use crate::weights::Weights;

/// Options that all hyper-connections of a model share.
#[derive(Debug, Clone, Copy)]
pub struct HyperConnectionSpec {
    /// Number of streams.
    pub streams: usize,
    /// Epsilon of the norm before the projection.
    pub eps: f32,
    /// Added to read weights, see [`StreamSpec`].
    pub floor: f32,
    /// Factor of write weights, see [`StreamSpec`].
    pub magnitude: f32,
    /// Added to write weights, see [`StreamSpec`].
    pub write_floor: f32,
    /// Sinkhorn iterations that make the mixing matrix doubly stochastic; `None` if streams are not
    /// mixed.
    pub sinkhorn_iterations: Option<usize>,
}

/// Largest accepted number of iterations; matrices of a few streams converge much sooner.
const MAX_SINKHORN_ITERATIONS: usize = 100;

impl HyperConnectionSpec {
    /// Reads `hyper_connection.{count,epsilon}`: streams are not mixed, and write weights are at
    /// most 1.
    pub fn read(keys: &Keys<'_>, eps: f32) -> Result<Self, ModelError> {
        let streams = count(keys)?;
        let floor = keys.meta().opt_f32(&keys.name("hyper_connection.epsilon"))?.unwrap_or(0.0);
        if !floor.is_finite() || floor < 0.0 {
            let (key, value) = (keys.name("hyper_connection.epsilon"), floor.to_string());
            return Err(ModelError::KeyValue {
                key,
                value,
                reason: "must be a small number, at least 0",
            });
        }
        Ok(Self {
            streams,
            eps,
            floor,
            magnitude: 1.0,
            write_floor: 0.0,
            sinkhorn_iterations: None,
        })
    }

    /// Reads `hyper_connection.sinkhorn_iterations` as well: streams are mixed, and write weights
    /// are at most 2.
    pub fn read_mixing(keys: &Keys<'_>, eps: f32) -> Result<Self, ModelError> {
        let sinkhorn_iterations = keys.count("hyper_connection.sinkhorn_iterations")?;
        if sinkhorn_iterations > MAX_SINKHORN_ITERATIONS {
            let (key, value) = (
                keys.name("hyper_connection.sinkhorn_iterations"),
                sinkhorn_iterations.to_string(),
            );
            return Err(ModelError::KeyValue { key, value, reason: "must be at most 100" });
        }
        Ok(Self {
            magnitude: 2.0,
            sinkhorn_iterations: Some(sinkhorn_iterations),
            ..Self::read(keys, eps)?
        })
    }
}

/// Reads `hyper_connection.count`.
pub fn count(keys: &Keys<'_>) -> Result<usize, ModelError> {
    let count = keys.count("hyper_connection.count")?;
    if !(2..=StreamSpec::MAX_STREAMS).contains(&count) {
        let (key, value) = (keys.name("hyper_connection.count"), count.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "must be between 2 and 16" });
    }
    Ok(count)
}

/// Connection of a part of a layer, or of the output, to the streams.
#[derive(Debug, Clone)]
pub struct HyperConnection {
    /// Norm of all streams together, without weights.
    norm: Norm,
    /// Projection from the normed streams to the numbers that the weights are computed from.
    project: Linear,
    spec: StreamSpec,
}

impl HyperConnection {
    /// Loads `NAME_{fn,base,scale}` of a part of a layer.
    fn load(
        w: &mut Weights<'_>,
        name: &str,
        n_embd: usize,
        spec: &HyperConnectionSpec,
    ) -> Result<Self, ModelError> {
        Self::load_kinds(
            w,
            name,
            n_embd,
            spec,
            if spec.sinkhorn_iterations.is_some() { 3 } else { 2 },
        )
    }

    /// Loads `output_hc_{fn,base,scale}`, which only reads the streams.
    fn load_end(
        w: &mut Weights<'_>,
        n_embd: usize,
        spec: &HyperConnectionSpec,
    ) -> Result<Self, ModelError> {
        Self::load_kinds(w, "output_hc", n_embd, spec, 1)
    }

    fn load_kinds(
        w: &mut Weights<'_>,
        name: &str,
        n_embd: usize,
        spec: &HyperConnectionSpec,
        kinds: usize,
    ) -> Result<Self, ModelError> {
        let HyperConnectionSpec {
            streams,
            eps,
            floor,
            magnitude,
            write_floor,
            sinkhorn_iterations,
        } = *spec;
        let (dim, numbers) = (streams * n_embd, StreamSpec::numbers(streams, kinds));
        let project = w.linear(&format!("{name}_fn"), dim, numbers)?;
        let scales = w.vector(&format!("{name}_scale.weight"), kinds)?;
        let base = w.vector(&format!("{name}_base.weight"), numbers)?;
        let rounds = sinkhorn_iterations.unwrap_or(0);
        let spec = StreamSpec { streams, scales, base, floor, magnitude, write_floor, rounds };
        Ok(Self { norm: Norm { w: None, b: None, dim, eps }, project, spec })
    }

    fn weights(&self, g: &mut Graph, streams: ValueId) -> ValueId {
        let normed = g.rms_norm("hc_normed", &self.norm, streams);
        let numbers = g.linear("hc_mixes", &self.project, normed);
        g.stream_weights("hc_weights", self.spec.clone(), numbers)
    }

    /// Input of the part, and the weights of writing its output.
    pub fn read(&self, g: &mut Graph, streams: ValueId) -> (ValueId, StreamWrite) {
        let (count, weights) = (self.spec.streams, self.weights(g, streams));
        let read_weights = g.slice(weights, 0, count);
        let read = g.read_streams("hc_pre", streams, read_weights);
        let mix = self.spec.scales.get(2).map(|_| g.slice(weights, 2 * count, count * count));
        (read, StreamWrite { weights: g.slice(weights, count, count), mix })
    }

    /// Merges the streams after the last layer.
    fn merge(&self, g: &mut Graph, streams: ValueId) -> ValueId {
        let weights = self.weights(g, streams);
        g.read_streams("hc_head", streams, weights)
    }
}

/// Keeps the output rows of the write weights.
pub fn gather_outputs(g: &mut Graph, write: StreamWrite) -> StreamWrite {
    let weights = g.gather_outputs(write.weights);
    StreamWrite { weights, mix: write.mix.map(|mix| g.gather_outputs(mix)) }
}

/// Adds the output of a part of a layer to `x`; `write` has the weights if there are several
/// streams.
pub fn add(
    g: &mut Graph,
    name: &'static str,
    x: ValueId,
    part: ValueId,
    write: Option<StreamWrite>,
) -> ValueId {
    match write {
        None => g.add(name, x, part),
        Some(write) => g.write_streams(name, x, part, write),
    }
}

/// Residual streams of a model.
pub struct ResidualStreams {
    /// Number of streams.
    pub count: usize,
    /// Connections of each layer's attention (or mixer) and of its feed-forward network.
    pub connections: Vec<[HyperConnection; 2]>,
    /// Connection that merges the streams after the last layer; `None` for their mean.
    pub end: Option<HyperConnection>,
}

impl ResidualStreams {
    /// Loads `hc_attn_*` and `hc_ffn_*` of all layers, and `output_hc_*`, which merges the streams.
    pub fn load(
        w: &mut Weights<'_>,
        n_embd: usize,
        layers: usize,
        spec: &HyperConnectionSpec,
    ) -> Result<Self, ModelError> {
        let end = Some(HyperConnection::load_end(w, n_embd, spec)?);
        Ok(Self { end, ..Self::load_without_end(w, n_embd, layers, spec)? })
    }

    /// [`Self::load`] for models that merge the streams by their mean.
    pub fn load_without_end(
        w: &mut Weights<'_>,
        n_embd: usize,
        layers: usize,
        spec: &HyperConnectionSpec,
    ) -> Result<Self, ModelError> {
        let mut connection = |i: usize| {
            let mut part =
                |of: &str| HyperConnection::load(w, &format!("blk.{i}.hc_{of}"), n_embd, spec);
            Ok::<_, ModelError>([part("attn")?, part("ffn")?])
        };
        let connections = (0..layers).map(&mut connection).collect::<Result<_, _>>()?;
        Ok(Self { count: spec.streams, connections, end: None })
    }

    /// Initial streams: `x` in each.
    pub fn replicate(&self, g: &mut Graph, x: ValueId) -> ValueId {
        repeat(g, x, self.count)
    }

    /// Merges the streams into one.
    pub fn merge(&self, g: &mut Graph, streams: ValueId) -> ValueId {
        if let Some(end) = &self.end {
            return end.merge(g, streams);
        }
        mean(g, streams, self.count)
    }
}

/// Mean of `count` streams.
pub fn mean(g: &mut Graph, streams: ValueId, count: usize) -> ValueId {
    let n_embd = g.value(streams).cols / count;
    let each: Vec<ValueId> = (0..count).map(|s| g.slice(streams, s * n_embd, n_embd)).collect();
    let sum = each[1..].iter().fold(each[0], |sum, &stream| g.add("hc_sum", sum, stream));
    g.scale("hc_mean", sum, 1.0 / count as f32)
}

/// `x` concatenated `count` times.
pub fn repeat(g: &mut Graph, x: ValueId, count: usize) -> ValueId {
    (1..count).fold(x, |streams, _| g.concat("hc_init", streams, x))
}

impl ResidualConnections for ResidualStreams {
    fn begin(&self, g: &mut Graph, x: ValueId) -> ValueId {
        self.replicate(g, x)
    }

    fn read(
        &self,
        g: &mut Graph,
        stream: &mut ResidualStream,
        (layer, part): (usize, LayerPart),
    ) -> ValueId {
        let connection = &self.connections[layer][usize::from(part == LayerPart::FeedForward)];
        let (read, write) = connection.read(g, stream.x);
        stream.saved = [write.weights].into_iter().chain(write.mix).collect();
        read
    }

    fn write(
        &self,
        g: &mut Graph,
        stream: &mut ResidualStream,
        (_, part): (usize, LayerPart),
        output: ValueId,
    ) {
        let name = if part == LayerPart::Mixer { "ffn_inp" } else { "l_out" };
        let write = StreamWrite { weights: stream.saved[0], mix: stream.saved.get(1).copied() };
        stream.x = g.write_streams(name, stream.x, output, write);
        stream.saved.clear();
    }

    fn end(&self, g: &mut Graph, stream: ResidualStream) -> ValueId {
        self.merge(g, stream.x)
    }
}
