//! Sparse attention: selection of positions, attention to lists of blocks, attention to pooled
//! rows.

use super::attention_reference::{AttentionInputs, Seen, attend_head, cache_tolerance, visible};
use super::problem::{Input, Matrix, Placement, Problem};
use super::schedule::{Action, Schedule, Span};
use super::{Case, Tolerance};
use crate::attention::AttentionSpec;
use crate::kv::{CacheLayer, KvType};
use crate::mask::Mask;
use crate::pooled::Pooled;
use crate::selected_positions::SelectedPositions;
use crate::top_k_positions::TopKPositionsSpec;

/// Selections, attention to lists, and attention to pooled rows.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = selections();
    cases.extend(lists());
    for ty in KvType::ALL {
        cases.extend([false, true].map(|is_sparse| pooled(ty, is_sparse)));
    }
    cases
}

fn selections() -> Vec<Case> {
    let plain = TopKPositionsSpec {
        heads: 5,
        dim: 32,
        relu: true,
        mask: Mask::Causal,
        near: 0,
        selected: SelectedPositions { lists: 1, count: 11, block: 1 },
    };
    let blocks = TopKPositionsSpec {
        heads: 2,
        dim: 13,
        relu: false,
        mask: Mask::Causal,
        near: 0,
        selected: SelectedPositions { lists: 2, count: 4, block: 7 },
    };
    let pooled = TopKPositionsSpec { mask: Mask::Pooled(4), near: 2, ..plain };
    let specs = [
        (plain, true),
        (blocks, false),
        (TopKPositionsSpec { near: 1, ..blocks }, false),
        (TopKPositionsSpec { near: 3, ..blocks }, false),
        (pooled, true),
    ];
    let mut cases = Vec::new();
    for (spec, is_weighted) in specs {
        for ty in [KvType::F32, KvType::F16, KvType::Bf16] {
            cases.extend([200, 7, 1].map(|each| top_k(spec, is_weighted, ty, each)));
        }
    }
    cases
}

/// Steps of one sequence of `len` tokens, `each` tokens per step.
fn even_steps(len: usize, each: usize) -> Schedule {
    let steps: Vec<[(usize, usize); 1]> =
        (0..len).step_by(each).map(|cached_tokens| [(0, each.min(len - cached_tokens))]).collect();
    Schedule::steps(&steps.iter().map(|step| &step[..]).collect::<Vec<_>>())
}

/// Selection from inputs that are small whole numbers: scores are exact, and many are equal.
fn top_k(spec: TopKPositionsSpec, is_weighted: bool, ty: KvType, each: usize) -> Case {
    let TopKPositionsSpec { heads, dim, mask, near, selected, .. } = spec;
    let SelectedPositions { lists, count, block } = selected;
    let mask = format!("{mask:?}").to_lowercase();
    let name = format!(
        "top_k_positions type={ty} rows={each} heads={heads} width={dim} mask={mask} \
         near={near} lists={lists} count={count} block={block}"
    );
    Case::new(name, Tolerance::EXACT, move || {
        let mut p = Problem::new(even_steps(200, each));
        p.kv_types = [ty; 2];
        let whole = |x: f32| (2.4 * x).round();
        let mut input = |cols| p.input_in(Placement::Whole, cols, whole);
        let (q, k, weights) = (input(heads * dim), input(dim), input(heads));
        let layer = p.cache_layer(spec.cache_layer());
        let by = is_weighted.then_some(weights.id);
        let out = p.graph.top_k_positions("out", layer, [q.id, k.id], by, spec);
        p.expect_bits(out, |span| {
            let weights = is_weighted.then_some(&weights);
            span.indices().map(|i| selected_row(&spec, span, i, &q, &k, weights)).collect()
        });
        p
    })
}

/// The lists of the token at index `i`; undefined if it sees no more rows than a list holds.
fn selected_row(
    spec: &TopKPositionsSpec,
    span: &Span,
    i: usize,
    q: &Input,
    k: &Input,
    weights: Option<&Input>,
) -> Vec<Option<u32>> {
    let SelectedPositions { lists, count, block } = spec.selected;
    let each = spec.mask.pooled();
    let seen = (i + 1) / each;
    if seen <= spec.selected.capacity() {
        return vec![None; spec.selected.cols()];
    }
    let token = span.tokens[i];
    let heads = spec.heads / lists;
    let score = |list: usize, row: usize| {
        let key = k.row(span.tokens[(row + 1) * each - 1]);
        let of_head = |head: usize| {
            let q = &q.row(token)[head * spec.dim..][..spec.dim];
            let product: f64 = q.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
            let product = if spec.relu { product.max(0.0) } else { product };
            weights.map_or(1.0, |weights| f64::from(weights.row(token)[head])) * product
        };
        (list * heads..(list + 1) * heads).map(of_head).sum::<f64>()
    };
    let of_list = |list: usize| {
        let blocks = seen.div_ceil(block);
        let best = |number: usize| {
            let rows = number * block..seen.min((number + 1) * block);
            let best = rows.map(|row| score(list, row)).fold(f64::NEG_INFINITY, f64::max);
            if number + spec.near >= blocks { f64::INFINITY } else { best }
        };
        let mut ranked: Vec<(f64, u32)> = (0..blocks).map(|n| (best(n), n as u32)).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut numbers: Vec<u32> = ranked[..count].iter().map(|ranked| ranked.1).collect();
        numbers.sort_unstable();
        numbers.into_iter().map(Some)
    };
    (0..lists).flat_map(of_list).collect()
}

/// An attention to lists of blocks.
#[derive(Debug, Clone, Copy)]
struct ListCase {
    spec: AttentionSpec,
    selected: SelectedPositions,
    ty: KvType,
    /// Number of tokens of the sequence, and tokens per step.
    len: usize,
    each: usize,
}

fn lists() -> Vec<Case> {
    let latent = AttentionSpec { values_in_keys: true, ..AttentionSpec::causal(4, 1, 96, 64) };
    let shared = AttentionSpec { softcap: Some(3.0), ..AttentionSpec::causal(6, 2, 32, 64) };
    let tail = AttentionSpec { sees_tail: true, ..shared };
    let lists = |lists, count, block| SelectedPositions { lists, count, block };
    let mut cases = Vec::new();
    for ty in KvType::ALL {
        let shapes = [
            (latent, lists(1, 9, 1)),
            (shared, lists(2, 20, 3)),
            (shared, lists(1, 2, 64)),
            (tail, lists(1, 3, 16)),
        ];
        for (spec, selected) in shapes {
            cases.extend(
                [300, 97].map(|each| list(ListCase { spec, selected, ty, len: 300, each })),
            );
        }
    }
    let selected = lists(1, 530, 1);
    let long = ListCase { spec: latent, selected, ty: KvType::F16, len: 560, each: 560 };
    cases.push(list(long));
    cases
}

impl ListCase {
    /// Selected blocks of list `list` for the token at index `i`, in ascending order. A formula
    /// selects blocks, and the list keeps the last ones.
    fn blocks(&self, i: usize, list: usize) -> Vec<usize> {
        let is_selected = |block: &usize| (i * 31 + block * 17 + list * 5) % 8 < 5 || *block == 0;
        let block = self.selected.block;
        let end = if self.spec.sees_tail { (i + 1) / block } else { i / block + 1 };
        let mut blocks: Vec<usize> = (0..end).filter(is_selected).collect();
        blocks.drain(..blocks.len().saturating_sub(self.selected.count));
        blocks
    }

    /// Columns of the value that holds the lists of the token at index `i`.
    fn entries(&self, i: usize) -> Vec<f32> {
        let of_list = |list: usize| {
            let blocks = self.blocks(i, list).into_iter().map(|block| block as u32);
            let padded = blocks.chain(std::iter::repeat(SelectedPositions::NONE));
            padded.take(self.selected.count).map(SelectedPositions::entry).collect::<Vec<_>>()
        };
        (0..self.selected.lists).flat_map(of_list).collect()
    }

    /// Indices that the token at index `i` sees in a KV head.
    fn seen(&self, i: usize, kv_head: usize) -> Vec<usize> {
        let SelectedPositions { lists, count, block } = self.selected;
        let tail_len = if self.spec.sees_tail { block - 1 } else { 0 };
        if i < count * block + tail_len {
            return (0..=i).collect();
        }
        let blocks = self.blocks(i, if lists == 1 { 0 } else { kv_head });
        let whole = if self.spec.sees_tail { (i + 1) / block * block } else { i + 1 };
        let selected = blocks.into_iter().flat_map(|number| number * block..(number + 1) * block);
        selected.filter(|&seen| seen < whole).chain(whole..i + 1).collect()
    }
}

/// The index in its sequence of each token id.
fn indices_of_tokens(schedule: &Schedule) -> Vec<usize> {
    let mut indices = vec![0; schedule.vocabulary()];
    for action in schedule.actions() {
        let Action::Step(spans) = action else { continue };
        for span in spans {
            span.indices().for_each(|i| indices[span.tokens[i]] = i);
        }
    }
    indices
}

fn list(case: ListCase) -> Case {
    let ListCase { spec, selected, ty, len, each } = case;
    let AttentionSpec { heads, kv_heads, key_dim, value_dim, sees_tail, .. } = spec;
    let SelectedPositions { lists, count, block } = selected;
    let name = format!(
        "sparse_attention types={ty}/{ty} rows={each} heads={heads}/{kv_heads} \
         dims={key_dim}/{value_dim} lists={lists} count={count} block={block} sees_tail={sees_tail}"
    );
    Case::new(name, cache_tolerance([ty; 2]), move || {
        let mut p = Problem::new(even_steps(len, each));
        p.kv_types = [ty; 2];
        let q = p.wide_input(heads * key_dim, 3.0);
        let k = p.input(kv_heads * key_dim);
        let v = if spec.values_in_keys { k.clone() } else { p.input(kv_heads * value_dim) };
        let indices = indices_of_tokens(&p.schedule);
        let values = indices.iter().flat_map(|&i| case.entries(i)).collect();
        let entries = p.input_of(&Matrix { cols: selected.cols(), values });
        let layer = p.cache_layer(spec.cache_layer());
        let ids = [q.id, k.id, v.id];
        let out = p.graph.sparse_attention("out", layer, ids, (entries.id, selected), spec);
        let inputs = AttentionInputs { spec, q, k, v, sinks: None, position_bias: None };
        p.expect(out, |span| {
            span.indices().map(|i| inputs.row(span, i, |i, head| case.seen(i, head))).collect()
        });
        p
    })
}

/// Tokens per pooled row.
const POOLED: usize = 3;
/// Selected pooled rows of a token.
const POOLED_ROWS: SelectedPositions = SelectedPositions { lists: 1, count: 10, block: 1 };

/// Attention with one softmax to a window and to pooled rows: to all of them, or to lists of them.
fn pooled(ty: KvType, is_sparse: bool) -> Case {
    let (heads, dim) = (20, 64);
    let name = format!(
        "attention_and_pooled types={ty}/{ty} heads={heads} width={dim} sparse={is_sparse}"
    );
    Case::new(name, cache_tolerance([ty; 2]), move || {
        let schedule = Schedule::steps(&[&[(0, 150)], &[(0, 1), (1, 10)], &[(0, 7)], &[(0, 41)]]);
        let mut p = Problem::new(schedule);
        p.kv_types = [ty; 2];
        let (window, mask) = (Mask::Window(70), Mask::Pooled(POOLED as u32));
        let sinks = p.floats(&[heads]);
        let plain = AttentionSpec::causal(heads, 1, dim, dim);
        let spec =
            AttentionSpec { mask: window, sinks: Some(sinks.id), values_in_keys: true, ..plain };
        let (q, k, rows) = (p.wide_input(heads * dim, 3.0), p.input(dim), p.input(dim));
        let layer = p.cache_layer(spec.cache_layer());
        let pooled_layer = p.cache_layer(CacheLayer { mask, ..spec.cache_layer() });
        let lists = is_sparse.then(|| {
            let indices = indices_of_tokens(&p.schedule);
            let values = indices.iter().flat_map(|&i| pooled_entries(i)).collect();
            p.input_of(&Matrix { cols: POOLED_ROWS.cols(), values })
        });
        let selected = lists.map(|lists| (lists.id, POOLED_ROWS));
        let pooled = Pooled { layer: pooled_layer, mask, rows: rows.id, selected };
        let out = p.graph.attention_and_pooled("out", layer, [q.id, k.id], pooled, spec);
        p.expect(out, |span| {
            let row = |i: usize| {
                let near = visible(&spec, span, i).map(|j| k.row(span.tokens[j]));
                let far = pooled_seen(i, is_sparse).into_iter();
                let far = far.map(|row| rows.row(span.tokens[(row + 1) * POOLED - 1]));
                let seen: Vec<Seen<'_>> =
                    near.chain(far).map(|key| Seen { key, value: key, bias: 0.0 }).collect();
                let head = |(q, &sink): (&[f32], &f32)| {
                    attend_head(&spec, q, &seen, Some(f64::from(sink)))
                };
                let queries = q.row(span.tokens[i]).chunks_exact(dim);
                queries.zip(&sinks.values).flat_map(head).collect()
            };
            span.indices().map(row).collect()
        });
        p
    })
}

/// Selected pooled rows of the token at index `i`, in ascending order.
fn pooled_list(i: usize) -> Vec<usize> {
    let mut rows: Vec<usize> =
        (0..(i + 1) / POOLED).filter(|row| !(row * 7 + i).is_multiple_of(3)).collect();
    rows.drain(..rows.len().saturating_sub(POOLED_ROWS.count));
    rows
}

fn pooled_entries(i: usize) -> Vec<f32> {
    let rows = pooled_list(i).into_iter().map(|row| row as u32);
    let padded = rows.chain(std::iter::repeat(SelectedPositions::NONE));
    padded.take(POOLED_ROWS.count).map(SelectedPositions::entry).collect()
}

/// Pooled rows that the token at index `i` sees.
fn pooled_seen(i: usize, is_sparse: bool) -> Vec<usize> {
    let seen = (i + 1) / POOLED;
    if is_sparse && seen > POOLED_ROWS.capacity() { pooled_list(i) } else { (0..seen).collect() }
}
