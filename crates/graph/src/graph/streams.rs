//! Operations of hyper-connections.

use super::Graph;
use crate::ops::Op;
use crate::streams::{StreamSpec, StreamWrite};
use crate::values::ValueId;

impl Graph {
    /// Weights of each token from its numbers.
    pub fn stream_weights(&mut self, name: &'static str, spec: StreamSpec, x: ValueId) -> ValueId {
        let numbers = StreamSpec::numbers(spec.streams, spec.scales.len());
        assert!(spec.base.len() == numbers && self.value(x).cols == numbers);
        self.push_like(name, Op::StreamWeights { x, spec: Box::new(spec) }, x)
    }

    /// Weighted sum of the streams.
    pub fn read_streams(
        &mut self,
        name: &'static str,
        streams: ValueId,
        weights: ValueId,
    ) -> ValueId {
        let (of, count) = (self.value(streams), self.value(weights).cols);
        assert!(of.cols.is_multiple_of(count) && of.rows == self.value(weights).rows);
        self.push(name, Op::ReadStreams { streams, weights }, of.rows, of.cols / count)
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

    /// Streams after a sublayer with the result `x`.
    pub fn write_streams(
        &mut self,
        name: &'static str,
        streams: ValueId,
        x: ValueId,
        StreamWrite { weights, mix }: StreamWrite,
    ) -> ValueId {
        let cols = |value| self.value(value).cols;
        let count = cols(weights);
        assert!(count <= StreamSpec::MAX_STREAMS && cols(streams) == count * cols(x));
        assert!(mix.is_none_or(|mix| cols(mix) == count * count));
        self.push_like(name, Op::WriteStreams { streams, x, weights, mix }, streams)
    }
}
