//! Several residual streams in the place of one (hyper-connections, Zhu et al., 2024): they lie side by side in the columns of a value.
//! A part of a layer reads a weighed sum of them, and what it gives is added to each; the weights depend on the token.

use crate::graph::Graph;
use crate::ops::Op;
use crate::values::ValueId;

/// How a token's weights come from numbers that were computed from its streams: first one a stream for reading, then one a stream for
/// writing, then for each stream what it hands on to each. Files may end after any of these three kinds.
///
/// With `x = scale · number + base`, `scale` being that of the kind: a stream is read by `σ(x) + floor` and written to by
/// `magnitude · σ(x) + write_floor`. What a stream hands on is the softmax of its row plus `floor`, of which columns and rows are then
/// divided in turns by their sum plus `floor` (Sinkhorn and Knopp, 1967), so that no stream takes or gives more than the others.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamSpec {
    /// How many streams there are.
    pub streams: usize,
    /// One for each kind of number that there is.
    pub scales: Vec<f32>,
    /// One for each number.
    pub base: Vec<f32>,
    /// See above.
    pub floor: f32,
    /// See above.
    pub magnitude: f32,
    /// See above.
    pub write_floor: f32,
    /// How often columns are divided; rows between.
    pub rounds: usize,
}

impl StreamSpec {
    /// More streams than any model has.
    pub const MAX_STREAMS: usize = 16;

    /// How many numbers of so many kinds there are.
    pub fn numbers(streams: usize, kinds: usize) -> usize {
        streams * kinds.min(2) + if kinds > 2 { streams * streams } else { 0 }
    }
}

/// Columns of the weights that a part of a layer writes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writing {
    /// A column a stream: how much of what the part gave is added to it.
    pub by: ValueId,
    /// For each stream what it hands on to each of them; without, they stay what they are.
    pub mix: Option<ValueId>,
}

impl Graph {
    /// A token's weights from its numbers.
    pub fn stream_weights(&mut self, name: &'static str, spec: StreamSpec, x: ValueId) -> ValueId {
        let numbers = StreamSpec::numbers(spec.streams, spec.scales.len());
        assert!(spec.base.len() == numbers && self.value(x).cols == numbers);
        self.push_like(name, Op::StreamWeights { x, spec: Box::new(spec) }, x)
    }

    /// The sum of all streams, each times its column of `by`.
    pub fn read_streams(&mut self, name: &'static str, streams: ValueId, by: ValueId) -> ValueId {
        let (of, count) = (self.value(streams), self.value(by).cols);
        assert!(of.cols.is_multiple_of(count) && of.rows == self.value(by).rows);
        self.push(name, Op::ReadStreams { streams, by }, of.rows, of.cols / count)
    }

    /// How far each of so many streams of `a` agrees with that of `b`, see [`Op::StreamSimilarityGate`].
    pub fn agree(&mut self, name: &'static str, a: ValueId, b: ValueId, streams: usize) -> ValueId {
        let (of, other) = (self.value(a), self.value(b));
        assert!(of.cols.is_multiple_of(streams) && of.cols == other.cols && of.rows == other.rows);
        self.push(name, Op::StreamSimilarityGate { a, b, streams }, of.rows, streams)
    }

    /// The streams behind a part of a layer that gave `part`.
    pub fn write_streams(
        &mut self,
        name: &'static str,
        streams: ValueId,
        part: ValueId,
        Writing { by, mix }: Writing,
    ) -> ValueId {
        let cols = |x| self.value(x).cols;
        let count = cols(by);
        assert!(count <= StreamSpec::MAX_STREAMS && cols(streams) == count * cols(part));
        assert!(mix.is_none_or(|mix| cols(mix) == count * count));
        self.push_like(name, Op::WriteStreams { streams, part, by, mix }, streams)
    }
}
