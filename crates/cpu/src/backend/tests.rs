//! A small model on a simulated machine with limits that change between steps.

use std::sync::Arc;
use std::time::Duration;

use puna_graph::{
    AttentionSpec, CacheLayer, Capacity, Glu, Graph, Index, KvType, Linear, Mask, Segment, WeightId,
};
use puna_quant::TensorType;

use super::*;
use crate::ops::attention::AttentionTasks;
use crate::topology::simulated::{machine, set_quota};

const DIM: usize = 416;
/// Two query heads for each of 13 KV heads: a token's task takes several KV heads, and the last
/// task fewer.
const HEADS: usize = 26;
const HEAD: usize = DIM / HEADS;
const VOCABULARY: usize = 300;
/// Tokens of the first step: enough for several splits of attention.
const PROMPT: usize = 600;

/// Blocks of 32 pseudo-random codes with one scale.
fn weight(cols: usize, rows: usize) -> Weight {
    let mut state = (cols * rows) as u32;
    let mut code = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let scale = half::f16::from_f32(0.001).to_le_bytes();
    let block = |_| scale.into_iter().chain((0..32).map(|_| code())).collect::<Vec<_>>();
    let data: Vec<u8> = (0..cols * rows / 32).flat_map(block).collect();
    let shape = vec![cols, rows];
    Weight { name: format!("{cols} to {rows}"), ty: TensorType::Q8_0, shape, data: Arc::new(data) }
}

fn spec() -> AttentionSpec {
    AttentionSpec { scale: 0.125, ..AttentionSpec::causal(HEADS, HEADS / 2, HEAD, HEAD) }
}

fn graph() -> Graph {
    let mut g = Graph::new();
    let linear = |w, out| Linear { w: WeightId(w), scale: 1.0, bias: None, out };
    let x = g.embed("embd", WeightId(0), DIM, Index::Token);
    let qkv = g.linear("qkv", &linear(1, 2 * DIM), x);
    let parts = [(0, DIM), (DIM, DIM / 2), (DIM + DIM / 2, DIM / 2)];
    let qkv = parts.map(|(start, cols)| g.slice(qkv, start, cols));
    let attended = g.attention("attn", 0, qkv, spec());
    let x = g.add("residual", x, attended);
    let both = g.linear("gate_up", &linear(2, 4 * DIM), x);
    let (gate, up) = (g.slice(both, 0, 2 * DIM), g.slice(both, 2 * DIM, 2 * DIM));
    let hidden = g.glu("glu", Glu::Silu, gate, up);
    let down = g.linear("down", &linear(3, DIM), hidden);
    let x = g.add("out", x, down);
    let last = g.gather_outputs(x);
    let logits = g.linear("logits", &linear(4, VOCABULARY), last);
    g.set_result(logits);
    g
}

struct Model {
    backend: CpuBackend,
    /// Programs for a prompt and for one token.
    programs: [ProgramId; 2],
    cached_tokens: usize,
}

impl Model {
    fn new(system: System, threads: Option<usize>, level: &'static Level) -> Self {
        let mut backend = CpuBackend::on(
            system,
            threads.map_or(ThreadCount::Automatic, ThreadCount::Exactly),
            level,
        )
        .unwrap();
        let shapes =
            [(DIM, VOCABULARY), (DIM, 2 * DIM), (DIM, 4 * DIM), (2 * DIM, DIM), (DIM, VOCABULARY)];
        backend
            .load_weights(shapes.map(|(cols, rows)| weight(cols, rows)).into(), Vec::new())
            .unwrap();
        let layer = CacheLayer {
            kv_heads: HEADS / 2,
            key_dim: HEAD,
            value_dim: HEAD,
            values_in_keys: false,
            mask: Mask::Causal,
        };
        let (key_type, value_type) = (KvType::F16, KvType::F16);
        let cache = CacheSpec {
            layers: vec![layer],
            key_type,
            value_type,
            page_tokens: 64,
            pages: 16,
            window_pages: 0,
        };
        backend.create_cache(cache).unwrap();
        let programs = [PROMPT, 1].map(|tokens| {
            backend.compile(Plan::new(graph(), Capacity { tokens, outputs: 1 })).unwrap()
        });
        Self { backend, programs, cached_tokens: 0 }
    }

    /// Logits of the last token, as bits.
    fn step(&mut self, rows: usize) -> Vec<u32> {
        let positions = self.cached_tokens..self.cached_tokens + rows;
        let input = StepInput {
            tokens: positions.clone().map(|p| (p * 37 % VOCABULARY) as u32).collect(),
            positions: positions.map(|p| p as u32).collect(),
            segments: vec![Segment {
                rows,
                cached_tokens: self.cached_tokens,
                pages: (0..16).collect(),
                ..Segment::default()
            }],
            outputs: vec![rows as u32 - 1],
            ..StepInput::default()
        };
        self.cached_tokens += rows;
        self.backend.run(self.programs[usize::from(rows == 1)], &input);
        self.backend.result().iter().map(|x| x.to_bits()).collect()
    }
}

#[test]
fn the_thread_count_follows_the_cpu_quota_and_changes_no_bit_of_the_results() {
    let (root, system) = machine(2, 2, true);
    for level in puna_kernels::levels() {
        set_quota(&root, "max 100000");
        let mut alone = Model::new(system.clone(), Some(1), level);
        let mut model = Model::new(system.clone(), None, level);
        let quotas =
            [("max", 4), ("100000", 1), ("390000", 3), ("200000", 2), ("50000", 1), ("max", 4)];
        let mut now = Instant::now();
        for (i, (quota, threads)) in quotas.into_iter().enumerate() {
            set_quota(&root, &format!("{quota} 100000"));
            // A step reads the limits too, at the time that it takes.
            now = now.max(Instant::now()) + Duration::from_secs(2);
            model.backend.update_limits(now);
            assert_eq!(model.backend.describe().threads, threads, "{quota}");
            let rows = if i == 0 { PROMPT } else { 1 };
            let (want, got) = (alone.step(rows), model.step(rows));
            assert!(want.iter().any(|&bits| f32::from_bits(bits) != 0.0));
            assert!(want.iter().all(|&bits| f32::from_bits(bits).is_finite()));
            assert_eq!(got, want, "{} threads, level {}, step {i}", threads, level.name);
        }
        assert_eq!(alone.backend.describe().threads, 1);
    }
}

/// A precondition of the test above: with few threads, the tasks of a token take several KV heads,
/// with and without splits; with more threads they take one, and a block of many rows always takes
/// one.
#[test]
fn attention_tasks_of_a_token_cover_several_key_heads_if_threads_are_few() {
    let blocks = |rows, cached_tokens, threads| {
        let segment =
            Segment { rows, cached_tokens, pages: (0..16).collect(), ..Segment::default() };
        AttentionTasks::heads_of_blocks(&spec(), &[segment], threads)
    };
    let pairs =
        |whole: bool| [vec![2; 6], vec![1]].concat().into_iter().map(move |heads| (heads, !whole));
    assert_eq!(blocks(1, PROMPT, 1), pairs(true).collect::<Vec<_>>());
    assert_eq!(blocks(1, PROMPT, 2), pairs(false).flat_map(|block| [block; 2]).collect::<Vec<_>>());
    assert_eq!(blocks(1, PROMPT, 4), vec![(1, true); 26]);
    assert!(blocks(PROMPT, 0, 4).iter().all(|&block| block == (1, false)));
}

#[test]
fn split_scratch_is_planned_once_for_all_sizes() {
    let (_root, system) = machine(2, 2, true);
    let mut model = Model::new(system, Some(4), puna_kernels::best());
    let planned = model.backend.scratch_bytes();
    assert!(planned > 4 << 23, "{planned}");
    let capacity = Capacity { tokens: 2, outputs: 1 };
    model.backend.compile(Plan::new(graph(), capacity)).unwrap();
    assert!(model.backend.scratch_bytes() - planned < 1 << 20);
}
