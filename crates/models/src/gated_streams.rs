//! Gated hyper-connections (Qwen, 2026): several residual streams instead of one. Each part of a
//! layer reads the mean of the streams, in which a low-rank gate weighs each feature of each
//! stream. Each stream adds the output times a weight that depends on the token. The norms of these
//! connections are the only ones of the stream.

use puna_graph::*;

use crate::error::ModelError;
use crate::hparams::Keys;
use crate::hyper;
use crate::ngram_embedding::NgramEmbedding;
use crate::residual::{LayerPart, ResidualConnections, ResidualStream};
use crate::weights::Weights;

/// Dimensions that all connections of a model share.
#[derive(Debug, Clone, Copy)]
pub struct StreamGateSizes {
    /// Number of streams.
    pub streams: usize,
    /// Dimensions of a stream.
    pub n_embd: usize,
    /// Rank of the gates.
    rank: usize,
    /// Epsilon of the norms.
    eps: f32,
}

impl StreamGateSizes {
    /// Reads `hyper_connection.{count,low_rank}`.
    pub fn read(keys: &Keys<'_>, n_embd: usize, eps: f32) -> Result<Self, ModelError> {
        let (streams, rank) = (hyper::count(keys)?, keys.count("hyper_connection.low_rank")?);
        Ok(Self { streams, n_embd, rank, eps })
    }

    /// Dimensions of all streams together.
    pub fn width(&self) -> usize {
        self.streams * self.n_embd
    }

    /// Norm `NAME` of each stream with own weights.
    pub fn norm(&self, w: &mut Weights<'_>, name: &str) -> Result<Norm, ModelError> {
        let w = Some(w.tensor(&format!("{name}.weight"), &[self.width()])?);
        Ok(Norm { w, b: None, dim: self.n_embd, eps: self.eps })
    }

    /// Product of all streams, divided by their number. A scale in the matrix would not apply to
    /// the update of an adapter.
    fn shared(&self, g: &mut Graph, name: &'static str, w: &Linear, streams: ValueId) -> ValueId {
        let all = g.linear(name, w, streams);
        g.scale(name, all, 1.0 / self.streams as f32)
    }
}

/// Gates of reading the streams.
struct StreamGates {
    sizes: StreamGateSizes,
    norm: Norm,
    down: Linear,
    up: Linear,
}

impl StreamGates {
    /// Loads `NAME_{norm,down,up}`.
    fn load(w: &mut Weights<'_>, name: &str, sizes: StreamGateSizes) -> Result<Self, ModelError> {
        Ok(Self {
            sizes,
            norm: sizes.norm(w, &format!("{name}_norm"))?,
            down: w.linear(&format!("{name}_down"), sizes.width(), sizes.rank)?,
            up: w.linear(&format!("{name}_up"), sizes.rank, sizes.width())?,
        })
    }

    /// Gated mean of the streams, and the output of `injection` for their norms.
    fn read(
        &self,
        g: &mut Graph,
        streams: ValueId,
        injection: Option<&Linear>,
    ) -> (ValueId, Option<ValueId>) {
        let normed = g.rms_norm("hc_norm", &self.norm, streams);
        let low_rank = self.sizes.shared(g, "hc_gate_low", &self.down, normed);
        let injection =
            injection.map(|injection| self.sizes.shared(g, "hc_inject", injection, normed));
        let low_rank = g.activate("hc_gate_low_act", Activation::Silu, low_rank);
        let gates = g.linear("hc_gate", &self.up, low_rank);
        let gates = g.activate("hc_gate_act", Activation::Sigmoid, gates);
        let gated = g.mul("hc_gated", normed, gates);
        (hyper::mean(g, gated, self.sizes.streams), injection)
    }
}

/// Connection of a part of a layer to the streams.
struct GatedConnection {
    gates: StreamGates,
    /// Projection to the weight with which each stream adds the output.
    inject: Linear,
}

impl GatedConnection {
    fn load(w: &mut Weights<'_>, name: &str, sizes: StreamGateSizes) -> Result<Self, ModelError> {
        let inject = w.linear(&format!("{name}_inject"), sizes.width(), sizes.streams)?;
        Ok(Self { gates: StreamGates::load(w, name, sizes)?, inject })
    }
}

/// Gated residual streams of a model.
pub struct GatedStreams {
    sizes: StreamGateSizes,
    connections: Vec<[GatedConnection; 2]>,
    end: StreamGates,
    /// N-gram embedding, and the index of the layer before which it is added.
    ngrams: Option<(usize, NgramEmbedding)>,
}

impl GatedStreams {
    /// Loads the connections `hc_attn_*` and `hc_ffn_*` of all layers, and `output_hc_*` that
    /// merges the streams.
    pub fn load(
        w: &mut Weights<'_>,
        layers: usize,
        sizes: StreamGateSizes,
        ngrams: Option<(usize, NgramEmbedding)>,
    ) -> Result<Self, ModelError> {
        let mut connection = |i: usize| {
            let mut part = |of: &str| GatedConnection::load(w, &format!("blk.{i}.hc_{of}"), sizes);
            Ok::<_, ModelError>([part("attn")?, part("ffn")?])
        };
        let connections = (0..layers).map(&mut connection).collect::<Result<_, _>>()?;
        Ok(Self { sizes, connections, end: StreamGates::load(w, "output_hc", sizes)?, ngrams })
    }
}

impl ResidualConnections for GatedStreams {
    fn begin(&self, g: &mut Graph, x: ValueId) -> ValueId {
        hyper::repeat(g, x, self.sizes.streams)
    }

    fn read(
        &self,
        g: &mut Graph,
        stream: &mut ResidualStream,
        (layer, part): (usize, LayerPart),
    ) -> ValueId {
        if let Some((at, ngrams)) = &self.ngrams
            && (*at, LayerPart::Mixer) == (layer, part)
        {
            stream.x = ngrams.add_to_streams(g, stream.x);
        }
        let connection = &self.connections[layer][usize::from(part == LayerPart::FeedForward)];
        let (read, by) = connection.gates.read(g, stream.x, Some(&connection.inject));
        // The weight is in (0, 2): zero projections give weight 1, a plain residual addition.
        stream.saved = by
            .map(|by| {
                let by = g.activate("hc_inject_act", Activation::Sigmoid, by);
                g.scale("hc_inject_scaled", by, 2.0)
            })
            .into_iter()
            .collect();
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
        stream.x = g.write_streams(
            name,
            stream.x,
            output,
            StreamWrite { weights: stream.saved[0], mix: None },
        );
        stream.saved.clear();
    }

    fn end(&self, g: &mut Graph, stream: ResidualStream) -> ValueId {
        self.end.read(g, stream.x, None).0
    }
}
