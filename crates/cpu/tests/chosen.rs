//! Attention to selected positions, and their selection.

use crate::kit::{backend, numbers, table_of};
use puna_cpu::{CpuBackend, kernels};
use puna_graph::*;

/// Rows of tables: positions of the longest text, and beginnings of others.
const ROWS: usize = 640;
const PAGE: usize = 64;

/// A step of a sequence that has `cached_tokens` tokens and pages in no order.
fn step(cached_tokens: usize, tokens: &[u32], positions: Vec<u32>) -> StepInput {
    let count = (cached_tokens + tokens.len()).div_ceil(PAGE) as u32;
    let pages = (0..count).map(|page| page ^ 1).collect();
    let segments = vec![Segment { rows: tokens.len(), cached_tokens, pages, ..Segment::default() }];
    let outputs = (0..tokens.len() as u32).collect();
    StepInput { tokens: tokens.to_vec(), positions, segments, outputs, ..StepInput::default() }
}

/// Positions `0 .. len`, so many a step.
fn steps(len: usize, each: usize) -> impl Iterator<Item = (usize, Vec<u32>)> {
    (0..len).step_by(each).map(move |cached_tokens| {
        (cached_tokens, (cached_tokens as u32..(cached_tokens + each).min(len) as u32).collect())
    })
}

fn with_cache(mut backend: CpuBackend, layer: CacheLayer, ty: KvType, tokens: usize) -> CpuBackend {
    let pages = tokens.div_ceil(PAGE) + 1;
    let (layers, page_tokens, window_pages) = (vec![layer], PAGE, 0);
    let spec = CacheSpec { layers, key_type: ty, value_type: ty, page_tokens, pages, window_pages };
    backend.create_cache(spec).unwrap();
    backend
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// An attention with the lists of each position.
struct Case {
    spec: AttentionSpec,
    selected: SelectedPositions,
    /// Which blocks a list of a token has.
    has: fn(token: usize, list: usize, block: usize) -> bool,
}

impl Case {
    /// The blocks of a list, ascending: the last ones of those that the case names.
    fn list(&self, token: usize, list: usize) -> Vec<usize> {
        let mut blocks: Vec<usize> = (0..=token / self.selected.block)
            .filter(|&block| (self.has)(token, list, block))
            .collect();
        blocks.drain(..blocks.len().saturating_sub(self.selected.count));
        blocks
    }

    /// Positions that a KV head of a token sees.
    fn seen(&self, token: usize, kv_head: usize) -> Vec<u32> {
        if token < self.selected.capacity() {
            return (0..=token as u32).collect();
        }
        let blocks = self.list(token, if self.selected.lists == 1 { 0 } else { kv_head });
        let each = self.selected.block;
        let positions = blocks.into_iter().flat_map(|block| block * each..(block + 1) * each);
        positions.filter(|&position| position <= token).map(|position| position as u32).collect()
    }

    /// Queries by position, keys and values by token.
    fn inputs(&self, g: &mut Graph) -> [ValueId; 3] {
        let spec = &self.spec;
        let q = g.embed("q", WeightId(0), spec.heads * spec.key_dim, Index::Position);
        let k = g.embed("k", WeightId(1), spec.kv_heads * spec.key_dim, Index::Token);
        let v = g.embed("v", WeightId(2), spec.kv_heads * spec.value_dim, Index::Token);
        [q, k, if spec.values_in_keys { k } else { v }]
    }

    fn backend(&self, level: &str, threads: usize, ty: KvType) -> CpuBackend {
        let Self { spec, selected, .. } = self;
        let table = |cols: usize, seed| table_of(cols, &numbers(cols * ROWS, seed));
        let lists =
            (0..ROWS).flat_map(|token| (0..selected.lists).map(move |list| self.list(token, list)));
        let entries: Vec<f32> = lists
            .flat_map(|list| {
                let numbers = list
                    .into_iter()
                    .map(|block| block as u32)
                    .chain(std::iter::repeat(SelectedPositions::NONE));
                numbers.take(selected.count).map(SelectedPositions::entry).collect::<Vec<_>>()
            })
            .collect();
        let weights = vec![
            table(spec.heads * spec.key_dim, 1),
            table(spec.kv_heads * spec.key_dim, 2),
            table(spec.kv_heads * spec.value_dim, 3),
            table_of(selected.cols(), &entries),
        ];
        with_cache(backend(level, threads, weights), spec.cache_layer(), ty, ROWS)
    }

    /// Attention result of each position, for `each` positions per step.
    fn attended(&self, level: &str, threads: usize, ty: KvType, each: usize) -> Vec<u32> {
        let mut g = Graph::new();
        let inputs = self.inputs(&mut g);
        let lists = g.embed("lists", WeightId(3), self.selected.cols(), Index::Position);
        let out = g.sparse_attention("out", 0, inputs, (lists, self.selected), self.spec);
        g.set_result(out);
        let mut backend = self.backend(level, threads, ty);
        let program =
            backend.compile(Plan::new(g, Capacity { tokens: ROWS, outputs: ROWS })).unwrap();
        let mut all = Vec::new();
        for (cached_tokens, tokens) in steps(ROWS, each) {
            backend.run(program, &step(cached_tokens, &tokens, tokens.clone()));
            all.extend(bits(backend.result()));
        }
        all
    }

    /// Attention of a KV head's queries at `token`, in a text of the visible positions only.
    fn alone(
        &self,
        backend: &mut CpuBackend,
        program: ProgramId,
        token: usize,
        kv_head: usize,
    ) -> Vec<u32> {
        let seen = self.seen(token, kv_head);
        backend.run(program, &step(0, &seen, vec![token as u32; seen.len()]));
        let cols = self.spec.heads * self.spec.value_dim;
        let each = cols / self.spec.kv_heads;
        let last = &backend.result()[(seen.len() - 1) * cols..];
        bits(&last[kv_head * each..][..each])
    }
}

fn cases() -> [Case; 4] {
    let within = AttentionSpec { values_in_keys: true, ..AttentionSpec::causal(4, 1, 96, 64) };
    let shared = AttentionSpec { softcap: Some(3.0), ..AttentionSpec::causal(6, 2, 32, 64) };
    let scattered =
        |token: usize, list: usize, block: usize| (token * 31 + block * 17 + list) % 8 != 3;
    let few = |token: usize, list: usize, block: usize| {
        (token + block * 5 + list * 3).is_multiple_of(7) || block == 0
    };
    [
        // More than a span of them, and few.
        Case {
            spec: within,
            selected: SelectedPositions { lists: 1, count: 530, block: 1 },
            has: scattered,
        },
        Case {
            spec: within,
            selected: SelectedPositions { lists: 1, count: 9, block: 1 },
            has: few,
        },
        // A list for each KV head, whose last block is not whole; whole runs of positions.
        Case {
            spec: shared,
            selected: SelectedPositions { lists: 2, count: 40, block: 3 },
            has: scattered,
        },
        Case {
            spec: shared,
            selected: SelectedPositions { lists: 1, count: 3, block: 128 },
            has: few,
        },
    ]
}

#[test]
fn sparse_attention_equals_attention_over_the_selected_positions_alone() {
    for case in cases() {
        for ty in KvType::ALL {
            for level in kernels::levels() {
                let got = case.attended(level.name, 2, ty, ROWS);
                let mut g = Graph::new();
                let inputs = case.inputs(&mut g);
                let out = g.attention("out", 0, inputs, case.spec);
                g.set_result(out);
                let mut backend = case.backend(level.name, 1, ty);
                let program = backend
                    .compile(Plan::new(g, Capacity { tokens: ROWS, outputs: ROWS }))
                    .unwrap();
                let (cols, heads) = (case.spec.heads * case.spec.value_dim, case.spec.kv_heads);
                let room = case.selected.capacity();
                for token in [0, room / 2, room - 1, room, room + 1, ROWS - 2, ROWS - 1] {
                    for kv_head in 0..heads {
                        let want = case.alone(&mut backend, program, token, kv_head);
                        let each = cols / heads;
                        let got = &got[token * cols + kv_head * each..][..each];
                        let what = format!(
                            "{} {ty} {:?}: token {token}, head {kv_head}",
                            level.name, case.selected
                        );
                        assert!(got == want, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn thread_count_and_step_size_change_no_bit() {
    for case in cases() {
        for ty in [KvType::F16, KvType::Q8_0] {
            for level in kernels::levels() {
                let want = case.attended(level.name, 1, ty, ROWS);
                for (threads, each) in [(2, ROWS), (5, 97), (3, 1)] {
                    let got = case.attended(level.name, threads, ty, each);
                    let what = format!("{threads} threads, {each} a step");
                    assert!(got == want, "{} {ty} {:?}, {what}", level.name, case.selected);
                }
            }
        }
    }
}

/// Queries, keys and weights that are small whole numbers: scores are exact, and many are equal.
struct Choice {
    spec: TopKPositionsSpec,
    weighed: bool,
    q: Vec<f32>,
    k: Vec<f32>,
    weights: Vec<f32>,
}

impl Choice {
    fn new(spec: TopKPositionsSpec, weighed: bool, rows: usize) -> Self {
        let whole =
            |n: usize, seed| numbers(n, seed).into_iter().map(|x| (x * 2.4).round()).collect();
        let q = whole(rows * spec.heads * spec.dim, 1);
        Self {
            spec,
            weighed,
            q,
            k: whole(rows * spec.dim, 2),
            weights: whole(rows * spec.heads, 3),
        }
    }

    fn rows(&self) -> usize {
        self.k.len() / self.spec.dim
    }

    /// Selected positions of each position, for `each` positions per step.
    fn lists(&self, level: &str, threads: usize, ty: KvType, each: usize) -> Vec<u32> {
        let TopKPositionsSpec { heads, dim, selected, .. } = self.spec;
        let mut g = Graph::new();
        let q = g.embed("q", WeightId(0), heads * dim, Index::Token);
        let k = g.embed("k", WeightId(1), dim, Index::Token);
        let weights = g.embed("weights", WeightId(2), heads, Index::Token);
        let lists =
            g.top_k_positions("lists", 0, [q, k], self.weighed.then_some(weights), self.spec);
        g.set_result(lists);
        let weights = vec![
            table_of(heads * dim, &self.q),
            table_of(dim, &self.k),
            table_of(heads, &self.weights),
        ];
        let mut backend =
            with_cache(backend(level, threads, weights), self.spec.cache_layer(), ty, self.rows());
        let program =
            backend.compile(Plan::new(g, Capacity { tokens: each, outputs: each })).unwrap();
        let mut all = Vec::new();
        for (cached_tokens, tokens) in steps(self.rows(), each) {
            backend.run(program, &step(cached_tokens, &tokens, tokens.clone()));
            let fits = selected.capacity().saturating_sub(cached_tokens).min(tokens.len());
            all.extend(bits(&backend.result()[fits * selected.cols()..]));
        }
        all
    }
}

#[test]
fn several_tasks_select_the_positions_that_one_task_selects() {
    let selected = SelectedPositions { lists: 1, count: 4000, block: 1 };
    let choice = Choice::new(
        TopKPositionsSpec { heads: 3, dim: 32, relu: true, mask: Mask::Causal, near: 2, selected },
        true,
        4150,
    );
    for ty in [KvType::F16, KvType::Q4_0] {
        let level = kernels::levels().last().unwrap().name;
        let want = choice.lists(level, 1, ty, 4150);
        assert_eq!(want.len(), 150 * 4000);
        // A step of few tokens cuts what each of them looks at.
        assert!(choice.lists(level, 4, ty, 5) == want, "{ty}");
    }
}
