//! Memory planner: assigns a range of one arena to each value and reuses memory as early as
//! possible.

use crate::graph::Graph;
use crate::values::{Rows, ValueId};

/// Alignment of offsets in f32, so that rows start on cache lines.
const ALIGN: usize = 16;

/// Largest step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Capacity {
    /// Tokens per step.
    pub tokens: usize,
    /// Tokens for which the step returns logits.
    pub outputs: usize,
}

impl Capacity {
    /// Smallest size class for a step: powers of two, so that few plans are made.
    pub fn class(tokens: usize, outputs: usize) -> Self {
        Self { tokens: tokens.next_power_of_two(), outputs: outputs.next_power_of_two() }
    }

    /// Number of rows of a value.
    pub fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.tokens,
            Rows::Outputs => self.outputs,
        }
    }
}

/// Range of a value in the arena, in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaRange {
    /// Meaning of the rows.
    pub rows: Rows,
    /// Number of columns.
    pub cols: usize,
    /// Index of the first element.
    pub start: usize,
    /// Distance of rows.
    pub stride: usize,
}

impl ArenaRange {
    /// Whether rows are contiguous.
    pub fn is_contiguous(&self) -> bool {
        self.cols == self.stride
    }
}

/// A graph with the ranges of all values.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The graph.
    pub graph: Graph,
    /// Largest step.
    pub capacity: Capacity,
    /// Size of the arena in f32.
    pub arena: usize,
    starts: Vec<usize>,
}

impl Plan {
    /// Plans a graph for steps up to `capacity`.
    pub fn new(graph: Graph, capacity: Capacity) -> Self {
        let owner = share_in_place(&graph);
        let last_use = last_uses(&graph, &owner);
        let mut arena = Arena::default();
        let mut starts = vec![usize::MAX; graph.storages().len()];
        for (at, node) in graph.nodes().iter().enumerate() {
            let storage = owner[graph.value(node.out).storage];
            if starts[storage] == usize::MAX {
                let shape = graph.storages()[storage];
                starts[storage] = arena.take(capacity.rows(shape.rows) * shape.cols);
            }
            for (dead, &last) in last_use.iter().enumerate() {
                if last == at && owner[dead] == dead && starts[dead] != usize::MAX {
                    let shape = graph.storages()[dead];
                    arena.give_back(starts[dead], capacity.rows(shape.rows) * shape.cols);
                }
            }
        }
        for storage in 0..starts.len() {
            starts[storage] = starts[owner[storage]];
        }
        Self { graph, capacity, arena: arena.size, starts }
    }

    /// Range of a value.
    pub fn arena_range(&self, id: ValueId) -> ArenaRange {
        let value = self.graph.value(id);
        let stride = self.graph.storages()[value.storage].cols;
        ArenaRange {
            rows: value.rows,
            cols: value.cols,
            start: self.starts[value.storage] + value.offset,
            stride,
        }
    }
}

/// For each storage, the storage with its memory: its own, or an input that it overwrites.
fn share_in_place(graph: &Graph) -> Vec<usize> {
    let mut owner: Vec<usize> = (0..graph.storages().len()).collect();
    for (at, node) in graph.nodes().iter().enumerate() {
        let Some(input) = node.op.in_place_input() else { continue };
        let (from, to) = (graph.value(input), graph.value(node.out));
        let whole = from.offset == 0 && graph.storages()[from.storage].cols == to.cols;
        let read_later = graph.nodes()[at + 1..]
            .iter()
            .any(|n| n.op.inputs().any(|v| owner[graph.value(v).storage] == owner[from.storage]));
        let read_twice =
            node.op.inputs().filter(|v| graph.value(*v).storage == from.storage).count() > 1;
        let is_kept = graph.is_kept(from.storage, &owner);
        if whole && from.rows == to.rows && !read_later && !read_twice && !is_kept {
            owner[to.storage] = owner[from.storage];
        }
    }
    owner
}

/// For each owning storage, the index of the last node that reads or writes it; `usize::MAX` for
/// results.
fn last_uses(graph: &Graph, owner: &[usize]) -> Vec<usize> {
    let mut last = vec![0; owner.len()];
    for (at, node) in graph.nodes().iter().enumerate() {
        for value in node.op.inputs().chain([node.out]) {
            last[owner[graph.value(value).storage]] = at;
        }
    }
    for value in graph.result().into_iter().chain(graph.extra_outputs().iter().copied()) {
        last[owner[graph.value(value).storage]] = usize::MAX;
    }
    last
}

/// Best-fit allocation over a list of holes.
#[derive(Default)]
struct Arena {
    size: usize,
    /// Start and length of each hole, by start.
    holes: Vec<(usize, usize)>,
}

impl Arena {
    fn take(&mut self, len: usize) -> usize {
        let len = len.next_multiple_of(ALIGN);
        let best = (0..self.holes.len())
            .filter(|&i| self.holes[i].1 >= len)
            .min_by_key(|&i| self.holes[i].1);
        let Some(i) = best else {
            // Extend the hole at the end, if any.
            let start = match self.holes.last() {
                Some(&(start, hole)) if start + hole == self.size => {
                    self.holes.pop();
                    start
                }
                _ => self.size,
            };
            self.size = start + len;
            return start;
        };
        let (start, hole) = self.holes[i];
        if hole == len {
            self.holes.remove(i);
        } else {
            self.holes[i] = (start + len, hole - len);
        }
        start
    }

    fn give_back(&mut self, start: usize, len: usize) {
        let len = len.next_multiple_of(ALIGN);
        let at = self.holes.partition_point(|hole| hole.0 < start);
        self.holes.insert(at, (start, len));
        if at + 1 < self.holes.len() && start + len == self.holes[at + 1].0 {
            self.holes[at].1 += self.holes.remove(at + 1).1;
        }
        if at > 0 && self.holes[at - 1].0 + self.holes[at - 1].1 == start {
            self.holes[at - 1].1 += self.holes.remove(at).1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Linear, Norm};
    use crate::ops::Glu;
    use crate::values::{Index, WeightId};

    const W: WeightId = WeightId(0);

    fn feed_forward(layers: usize) -> Graph {
        let mut g = Graph::new();
        let mut x = g.embed("embd", W, 64, Index::Token);
        for _ in 0..layers {
            let h = g.rms_norm("norm", &Norm { w: Some(W), b: None, dim: 64, eps: 1e-5 }, x);
            let gate_up =
                g.linear("gate_up", &Linear { w: W, scale: 1.0, bias: None, out: 512 }, h);
            let (gate, up) = (g.slice(gate_up, 0, 256), g.slice(gate_up, 256, 256));
            let h = g.glu("glu", Glu::Silu, gate, up);
            let h = g.linear("down", &Linear { w: W, scale: 1.0, bias: None, out: 64 }, h);
            x = g.add("out", x, h);
        }
        g.set_result(x);
        g
    }

    /// Replays the graph over the arena, checking that no live value is overwritten.
    fn assert_no_live_value_is_overwritten(plan: &Plan) {
        let graph = &plan.graph;
        let mut content = vec![None; plan.arena];
        for node in graph.nodes() {
            for input in node.op.inputs() {
                let (range, value) = (plan.arena_range(input), graph.value(input));
                for row in 0..plan.capacity.rows(range.rows) {
                    for col in 0..range.cols {
                        let want = Some((value.storage, row, value.offset + col));
                        assert_eq!(
                            content[range.start + row * range.stride + col],
                            want,
                            "{}",
                            node.name
                        );
                    }
                }
            }
            let (range, value) = (plan.arena_range(node.out), graph.value(node.out));
            for row in 0..plan.capacity.rows(range.rows) {
                for col in 0..range.cols {
                    content[range.start + row * range.stride + col] =
                        Some((value.storage, row, col));
                }
            }
        }
    }

    #[test]
    fn values_with_overlapping_lifetimes_do_not_share_memory() {
        assert_no_live_value_is_overwritten(&Plan::new(
            feed_forward(3),
            Capacity { tokens: 3, outputs: 1 },
        ));
    }

    #[test]
    fn extra_outputs_are_intact_after_the_last_node() {
        let mut g = feed_forward(3);
        // The first layer's stream; the second layer would otherwise overwrite its memory.
        let first = g.nodes().iter().find(|node| node.name == "out").unwrap().out;
        g.add_extra_output(first);
        let plan = Plan::new(g, Capacity { tokens: 3, outputs: 1 });
        assert_no_live_value_is_overwritten(&plan);
        let span = |id| {
            let range = plan.arena_range(id);
            range.start..range.start + (3 - 1) * range.stride + range.cols
        };
        let kept = span(first);
        let after = plan.graph.nodes().iter().skip_while(|node| node.out != first).skip(1);
        let spans: Vec<_> = after.map(|node| span(node.out)).collect();
        assert!(
            !spans.is_empty() && spans.iter().all(|s| s.end <= kept.start || kept.end <= s.start)
        );
    }

    #[test]
    fn memory_does_not_grow_with_the_number_of_layers() {
        let capacity = Capacity { tokens: 8, outputs: 1 };
        let (few, many) =
            (Plan::new(feed_forward(2), capacity), Plan::new(feed_forward(40), capacity));
        assert_eq!(few.arena, many.arena);
    }

    #[test]
    fn capacity_classes_round_up_to_powers_of_two() {
        assert_eq!(Capacity::class(5, 1), Capacity { tokens: 8, outputs: 1 });
        assert_eq!(Capacity::class(512, 3), Capacity { tokens: 512, outputs: 4 });
    }
}
