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
