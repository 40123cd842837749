//! Hyper-connections (Zhu et al., 2024): several residual streams in consecutive columns of a value. A sublayer reads a weighted sum
//! of the streams, and its result is added to each stream with weights that depend on the token.

use crate::graph::Graph;
use crate::ops::Op;
use crate::values::ValueId;

/// From projected numbers to the weights of a token. There are up to three kinds of numbers: a read weight per stream, a write weight
/// per stream, and a mixing matrix of streams × streams. Models can have only the first kinds.
///
/// With `x = scale · number + base` (one `scale` per kind): read weights are `σ(x) + floor`, write weights `magnitude · σ(x) + write_floor`.
/// Mixing weights are the row-wise softmax plus `floor`, normalised by `rounds` alternating divisions of columns and rows by their sums plus
/// `floor` (Sinkhorn and Knopp, 1967).
#[derive(Debug, Clone, PartialEq)]
pub struct StreamSpec {
    /// Number of streams.
    pub streams: usize,
    /// Scale of each kind of numbers.
    pub scales: Vec<f32>,
    /// Base of each number.
    pub base: Vec<f32>,
    /// See above.
    pub floor: f32,
    /// See above.
    pub magnitude: f32,
    /// See above.
    pub write_floor: f32,
    /// Number of column normalisations, with row normalisations between them.
    pub rounds: usize,
}

impl StreamSpec {
    /// Limit of streams.
    pub const MAX_STREAMS: usize = 16;

    /// Count of numbers for `kinds` kinds.
    pub fn numbers(streams: usize, kinds: usize) -> usize {
        streams * kinds.min(2) + if kinds > 2 { streams * streams } else { 0 }
    }
}

/// Write and mixing weights of a sublayer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamWrite {
    /// Write weight of each stream, one column each.
    pub by: ValueId,
    /// Mixing matrix; `None` leaves the streams as they are.
    pub mix: Option<ValueId>,
}

impl Graph {
    /// Weights of each token from its numbers.
    pub fn stream_weights(&mut self, name: &'static str, spec: StreamSpec, x: ValueId) -> ValueId {
        let numbers = StreamSpec::numbers(spec.streams, spec.scales.len());
        assert!(spec.base.len() == numbers && self.value(x).cols == numbers);
        self.push_like(name, Op::StreamWeights { x, spec: Box::new(spec) }, x)
    }

    /// Weighted sum of the streams.
    pub fn read_streams(&mut self, name: &'static str, streams: ValueId, by: ValueId) -> ValueId {
        let (of, count) = (self.value(streams), self.value(by).cols);
        assert!(of.cols.is_multiple_of(count) && of.rows == self.value(by).rows);
        self.push(name, Op::ReadStreams { streams, by }, of.rows, of.cols / count)
    }

    /// Gate of each stream by the similarity of `a` and `b`, see [`Op::StreamSimilarityGate`].
    pub fn stream_similarity_gate(
        &mut self,
        name: &'static str,
        a: ValueId,
        b: ValueId,
        streams: usize,
    ) -> ValueId {
        let (of, other) = (self.value(a), self.value(b));
        assert!(of.cols.is_multiple_of(streams) && of.cols == other.cols && of.rows == other.rows);
        self.push(name, Op::StreamSimilarityGate { a, b, streams }, of.rows, streams)
    }

    /// Streams after a sublayer with the result `part`.
    pub fn write_streams(
        &mut self,
        name: &'static str,
        streams: ValueId,
        part: ValueId,
        StreamWrite { by, mix }: StreamWrite,
    ) -> ValueId {
        let cols = |x| self.value(x).cols;
        let count = cols(by);
        assert!(count <= StreamSpec::MAX_STREAMS && cols(streams) == count * cols(part));
        assert!(mix.is_none_or(|mix| cols(mix) == count * count));
        self.push_like(name, Op::WriteStreams { streams, part, by, mix }, streams)
    }
}
