//! Hyper-connections by gates (Qwen, 2026): several residual streams in the place of one. Each part of a layer reads the mean of all streams,
//! each feature of each by a gate of its own, which a thin pair of matrices makes of all of them; what the part gives is added to
//! each stream by a weight that depends on the token, too. These norms are the only ones of the stream.

use puna_graph::*;

use crate::error::ModelError;
use crate::hparams::Keys;
use crate::hybrid::{Part, Residual, Stream};
use crate::hyper;
use crate::ngram_embedding::Grams;
use crate::weights::Weights;

/// What a model's gates have in common.
#[derive(Debug, Clone, Copy)]
pub struct GateForm {
    /// How many streams there are.
    pub streams: usize,
    /// Features of a stream.
    pub n_embd: usize,
    /// Columns between the two matrices of gates.
    rank: usize,
    /// Of norms.
    eps: f32,
}

impl GateForm {
    /// `hyper_connection.{count,low_rank}`.
    pub fn read(keys: &Keys<'_>, n_embd: usize, eps: f32) -> Result<Self, ModelError> {
        let (streams, rank) = (hyper::count(keys)?, keys.count("hyper_connection.low_rank")?);
        Ok(Self { streams, n_embd, rank, eps })
    }

    /// Columns of all streams together.
    pub fn width(&self) -> usize {
        self.streams * self.n_embd
    }

    /// The norm `NAME` of each stream by itself, with weights of its own.
    pub fn norm(&self, w: &mut Weights<'_>, name: &str) -> Result<Norm, ModelError> {
        let w = Some(w.tensor(&format!("{name}.weight"), &[self.width()])?);
        Ok(Norm { w, b: None, dim: self.n_embd, eps: self.eps })
    }

    /// Products of all streams over their number. A scale of the matrix would leave out what an adapter adds to it.
    fn shared(&self, g: &mut Graph, name: &'static str, w: &Linear, streams: ValueId) -> ValueId {
        let all = g.linear(name, w, streams);
        g.scale(name, all, 1.0 / self.streams as f32)
    }
}

/// How streams are read.
struct Gates {
    form: GateForm,
    norm: Norm,
    down: Linear,
    up: Linear,
}

impl Gates {
    /// `NAME_{norm,down,up}`.
    fn load(w: &mut Weights<'_>, name: &str, form: GateForm) -> Result<Self, ModelError> {
        Ok(Self {
            form,
            norm: form.norm(w, &format!("{name}_norm"))?,
            down: w.linear(&format!("{name}_down"), form.width(), form.rank)?,
            up: w.linear(&format!("{name}_up"), form.rank, form.width())?,
        })
    }

    /// One stream of all, and what `beside` makes of their norms.
    fn read(
        &self,
        g: &mut Graph,
        streams: ValueId,
        beside: Option<&Linear>,
    ) -> (ValueId, Option<ValueId>) {
        let normed = g.rms_norm("hc_norm", &self.norm, streams);
        let thin = self.form.shared(g, "hc_gate_low", &self.down, normed);
        let beside = beside.map(|beside| self.form.shared(g, "hc_inject", beside, normed));
        let thin = g.activate("hc_gate_low_act", Activation::Silu, thin);
        let gates = g.linear("hc_gate", &self.up, thin);
        let gates = g.activate("hc_gate_act", Activation::Sigmoid, gates);
        let gated = g.mul("hc_gated", normed, gates);
        (hyper::mean(g, gated, self.form.streams), beside)
    }
}

/// How a part of a layer is connected to the streams.
struct Link {
    gates: Gates,
    /// By how much each stream takes what the part gives.
    inject: Linear,
}

impl Link {
    fn load(w: &mut Weights<'_>, name: &str, form: GateForm) -> Result<Self, ModelError> {
        let inject = w.linear(&format!("{name}_inject"), form.width(), form.streams)?;
        Ok(Self { gates: Gates::load(w, name, form)?, inject })
    }
}

/// The streams of a model.
pub struct GatedStreams {
    form: GateForm,
    links: Vec<[Link; 2]>,
    end: Gates,
    /// What n-grams say to all streams, and before which layer.
    grams: Option<(usize, Grams)>,
}

impl GatedStreams {
    /// Those of `layers` layers, with `hc_attn_*` and `hc_ffn_*` in each, that become one by `output_hc_*`.
    pub fn load(
        w: &mut Weights<'_>,
        layers: usize,
        form: GateForm,
        grams: Option<(usize, Grams)>,
    ) -> Result<Self, ModelError> {
        let mut link = |i: usize| {
            let mut part = |of: &str| Link::load(w, &format!("blk.{i}.hc_{of}"), form);
            Ok::<_, ModelError>([part("attn")?, part("ffn")?])
        };
        let links = (0..layers).map(&mut link).collect::<Result<_, _>>()?;
        Ok(Self { form, links, end: Gates::load(w, "output_hc", form)?, grams })
    }
}

impl Residual for GatedStreams {
    fn enter(&self, g: &mut Graph, x: ValueId) -> ValueId {
        hyper::copies(g, x, self.form.streams)
    }

    fn read(&self, g: &mut Graph, stream: &mut Stream, (layer, part): (usize, Part)) -> ValueId {
        if let Some((at, grams)) = &self.grams
            && (*at, Part::Mixer) == (layer, part)
        {
            stream.x = grams.tell(g, stream.x);
        }
        let link = &self.links[layer][usize::from(part == Part::FeedForward)];
        let (read, by) = link.gates.read(g, stream.x, Some(&link.inject));
        // From zero to two, so that a part whose weights say nothing is just added.
        stream.kept = by
            .map(|by| {
                let by = g.activate("hc_inject_act", Activation::Sigmoid, by);
                g.scale("hc_inject_scaled", by, 2.0)
            })
            .into_iter()
            .collect();
        read
    }

    fn join(&self, g: &mut Graph, stream: &mut Stream, (_, part): (usize, Part), given: ValueId) {
        let name = if part == Part::Mixer { "ffn_inp" } else { "l_out" };
        stream.x =
            g.write_streams(name, stream.x, given, StreamWrite { by: stream.kept[0], mix: None });
        stream.kept.clear();
    }

    fn leave(&self, g: &mut Graph, stream: Stream) -> ValueId {
        self.end.read(g, stream.x, None).0
    }
}
