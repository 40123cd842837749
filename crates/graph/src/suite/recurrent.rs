//! Operations of recurrent layers, with states from step to step.

use std::sync::Arc;

use super::problem::{Input, Placement, Problem};
use super::recurrent_reference::{delta, ngram_rows, pool, retention, scan, wkv, wkv7};
use super::schedule::{Event, Schedule};
use super::{Case, Tolerance};
use crate::recurrent::{
    DecayKind, DeltaSpec, NgramEmbeddingSpec, NgramHead, PoolSpec, Recurrence, RetentionSpec,
    ScanSpec, Wkv7Spec, WkvSpec,
};

/// Error of states, which accumulate the rounding of many tokens.
const STATE: Tolerance = Tolerance::any(1e-10);

/// Steps of a case with states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Steps {
    /// A prompt, tokens one by one, some tokens.
    Prompt,
    /// Sequences that begin in different steps.
    Batch,
    /// Sequences that continue from copies of the states of another.
    Fork,
}

impl Steps {
    /// All of them.
    pub const ALL: [Steps; 3] = [Steps::Prompt, Steps::Batch, Steps::Fork];

    /// Name in the name of a case.
    pub fn name(self) -> &'static str {
        match self {
            Steps::Prompt => "prompt",
            Steps::Batch => "batch",
            Steps::Fork => "fork",
        }
    }

    /// The steps.
    pub fn schedule(self) -> Schedule {
        match self {
            Steps::Prompt => Schedule::steps(&[&[(0, 25)], &[(0, 1)], &[(0, 1)], &[(0, 6)]]),
            Steps::Batch => Schedule::steps(&[
                &[(1, 1)],
                &[(0, 9), (1, 2)],
                &[(1, 1), (0, 1), (2, 12)],
                &[(0, 2), (2, 1), (1, 7)],
            ]),
            Steps::Fork => Schedule::new(vec![
                Event::Step(vec![(0, 10)]),
                Event::Fork { from: 0, to: 1 },
                Event::Step(vec![(1, 3), (0, 1)]),
                Event::Fork { from: 1, to: 2 },
                Event::Step(vec![(0, 2), (1, 1), (2, 5)]),
            ]),
        }
    }
}

/// Every recurrence with every kind of steps.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for steps in Steps::ALL {
        // Heads, dimension of a head, dimension of the state, groups, whether each state value
        // decays alone.
        let scans = [(4, 64, 16, 2, false), (6, 40, 24, 1, false), (150, 1, 16, 1, true)];
        cases.extend(scans.map(|shape| scan_case(steps, shape)));
        cases.extend(delta_shapes().map(|shape| delta_case(steps, shape)));
        for (heads, kv_heads, dim, has_bonus) in
            [(3, 3, 64, true), (4, 2, 32, false), (2, 2, 40, true)]
        {
            cases.push(wkv_case(steps, (heads, kv_heads, dim), has_bonus));
        }
        cases.extend([(2, 64), (3, 40)].map(|shape| wkv7_case(steps, shape)));
        cases.extend([(4, 64), (3, 40)].map(|shape| retention_case(steps, shape)));
        for (dim, overlaps, has_gate, has_bias) in
            [(40, false, false, false), (200, false, true, true), (70, true, true, true)]
        {
            cases.push(pool_case(steps, (dim, 4), overlaps, [has_gate, has_bias]));
        }
        cases.push(gram_case(steps));
    }
    cases
}

fn scan_case(
    steps: Steps,
    (heads, head_dim, state_dim, groups, is_by_value): (usize, usize, usize, usize, bool),
) -> Case {
    let shape = format!("heads={heads} head_dim={head_dim} state_dim={state_dim} groups={groups}");
    let name = format!("scan steps={} {shape} by_value={is_by_value}", steps.name());
    Case::new(name, STATE, move || {
        let mut p = Problem::new(steps.schedule());
        let a_shape = if is_by_value { vec![state_dim, heads] } else { vec![heads] };
        let rates = p.random.numbers(a_shape.iter().product());
        let rates: Vec<f32> = rates.iter().map(|x| -1.1 - x).collect();
        let a = p.tensor(puna_quant::TensorType::F32, &a_shape, &rates);
        let (d, dt_bias) = (p.floats(&[heads]), p.floats(&[heads]));
        let (x, dt) = (p.input(heads * head_dim), p.wide_input(heads, 2.0));
        let (b, c) = (p.input(groups * state_dim), p.input(groups * state_dim));
        let mut spec = ScanSpec {
            state: 0,
            heads,
            head_dim,
            state_dim,
            groups,
            a: a.id,
            d: d.id,
            dt_bias: Some(dt_bias.id),
        };
        spec.state = p.state(spec.values());
        let recurrence = Recurrence::Scan { x: x.id, dt: dt.id, b: b.id, c: c.id, spec };
        let out = p.graph.recur("out", recurrence);
        p.expect(out, |span| scan(&spec, span, [&x, &dt, &b, &c], [&a, &d, &dt_bias]));
        p
    })
}

/// Shape of a delta rule.
#[derive(Debug, Clone, Copy)]
struct DeltaShape {
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    tiled: bool,
    runs: (usize, usize),
    /// Whether each state row decays alone.
    is_by_row: bool,
    decay_kind: DecayKind,
}

fn delta_shapes() -> [DeltaShape; 5] {
    let base = DeltaShape {
        key_heads: 2,
        value_heads: 4,
        key_dim: 64,
        value_dim: 48,
        tiled: false,
        runs: (4, 4),
        is_by_row: false,
        decay_kind: DecayKind::Unbounded,
    };
    let bounded = |sign| DecayKind::Bounded { min: -5.0, sign };
    [
        base,
        DeltaShape { tiled: true, runs: (2, 5), ..base },
        DeltaShape { is_by_row: true, key_dim: 32, value_dim: 32, key_heads: 4, ..base },
        DeltaShape { is_by_row: true, decay_kind: bounded(1.0), ..base },
        DeltaShape { decay_kind: bounded(-1.0), key_dim: 40, value_dim: 33, ..base },
    ]
}

fn delta_case(steps: Steps, shape: DeltaShape) -> Case {
    let DeltaShape { key_heads, value_heads, key_dim, value_dim, tiled, runs, .. } = shape;
    let kind = format!("{:?}", shape.decay_kind).to_lowercase();
    let name = format!(
        "delta steps={} heads={key_heads}/{value_heads} dims={key_dim}/{value_dim} tiled={tiled} \
         runs={}/{} by_row={} decay={kind}",
        steps.name(),
        runs.0,
        runs.1,
        shape.is_by_row
    );
    Case::new(name, STATE, move || {
        let mut p = Problem::new(steps.schedule());
        let rates: Vec<f32> = p.random.numbers(value_heads).iter().map(|x| -1.1 - x).collect();
        let a = p.tensor(puna_quant::TensorType::F32, &[value_heads], &rates);
        let rows = value_heads * key_dim;
        let dt_bias = p.floats(&[if shape.is_by_row { rows } else { value_heads }]);
        let mut spec = DeltaSpec {
            state: 0,
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            tiled,
            runs,
            scales: [0.5, 1.0 / (key_dim as f32).sqrt()],
            decay_kind: shape.decay_kind,
            a: a.id,
            dt_bias: dt_bias.id,
        };
        spec.state = p.state(spec.values());
        let columns = spec.column(value_heads - 1) + 1;
        let (q, k) = (p.input(key_heads * key_dim), p.input(key_heads * key_dim));
        let v = p.input(value_heads * value_dim);
        let decay = p.wide_input(if shape.is_by_row { rows } else { columns }, 2.0);
        let beta = p.wide_input(columns, 2.0);
        let out = p.graph.recur(
            "out",
            Recurrence::Delta { q: q.id, k: k.id, v: v.id, decay: decay.id, beta: beta.id, spec },
        );
        p.expect(out, |span| delta(&spec, span, [&q, &k, &v, &decay, &beta], [&a, &dt_bias]));
        p
    })
}

fn wkv_case(steps: Steps, (heads, kv_heads, dim): (usize, usize, usize), has_bonus: bool) -> Case {
    let shape = format!("heads={heads}/{kv_heads} dim={dim} bonus={has_bonus}");
    Case::new(format!("wkv steps={} {shape}", steps.name()), STATE, move || {
        let mut p = Problem::new(steps.schedule());
        let bonus = has_bonus.then(|| p.floats(&[heads * dim]));
        let (r, k) = (p.input(heads * dim), p.input(kv_heads * dim));
        let v = p.input(kv_heads * dim);
        let decay = p.input_in(Placement::Whole, heads * dim, |x| 2.0 * x - 1.5);
        let mut spec =
            WkvSpec { state: 0, heads, kv_heads, dim, bonus: bonus.as_ref().map(|bonus| bonus.id) };
        spec.state = p.state(spec.values());
        let recurrence = Recurrence::Wkv { r: r.id, k: k.id, v: v.id, decay: decay.id, spec };
        let out = p.graph.recur("out", recurrence);
        p.expect(out, |span| wkv(&spec, span, [&r, &k, &v, &decay], bonus.as_ref()));
        p
    })
}

fn wkv7_case(steps: Steps, (heads, dim): (usize, usize)) -> Case {
    Case::new(format!("wkv7 steps={} heads={heads} dim={dim}", steps.name()), STATE, move || {
        let mut p = Problem::new(steps.schedule());
        let bonus = p.floats(&[heads * dim]);
        let cols = heads * dim;
        let [r, k, v, decay, removal_key] = [(); 5].map(|()| p.input(cols));
        let iclr = p.input_in(Placement::Whole, cols, f32::abs);
        let mut spec = Wkv7Spec { state: 0, heads, dim, bonus: bonus.id };
        spec.state = p.state(spec.values());
        let all: [&Input; 6] = [&r, &k, &v, &decay, &removal_key, &iclr];
        let [r, k, v, decay, removal_key, iclr] = all.map(|input| input.id);
        let recurrence = Recurrence::Wkv7 { r, k, v, decay, removal_key, iclr, spec };
        let out = p.graph.recur("out", recurrence);
        p.expect(out, |span| wkv7(&spec, span, all, &bonus));
        p
    })
}

fn retention_case(steps: Steps, (heads, dim): (usize, usize)) -> Case {
    let name = format!("retention steps={} heads={heads} dim={dim}", steps.name());
    Case::new(name, STATE, move || {
        let mut p = Problem::new(steps.schedule());
        let [q, k, v] = [(); 3].map(|()| p.input(heads * dim));
        let mut spec = RetentionSpec { state: 0, heads, dim, rate: 0.9 };
        spec.state = p.state(spec.values());
        let recurrence = Recurrence::Retention { q: q.id, k: k.id, v: v.id, spec };
        let out = p.graph.recur("out", recurrence);
        p.expect(out, |span| retention(&spec, span, [&q, &k, &v]));
        p
    })
}

fn pool_case(
    steps: Steps,
    (dim, block): (usize, usize),
    overlaps: bool,
    [has_gate, has_bias]: [bool; 2],
) -> Case {
    let shape =
        format!("width={dim} block={block} overlaps={overlaps} gate={has_gate} bias={has_bias}");
    Case::new(format!("pool steps={} {shape}", steps.name()), STATE, move || {
        let mut p = Problem::new(steps.schedule());
        let mut spec = PoolSpec { state: 0, block, dim, overlaps, bias: None };
        let bias = has_bias.then(|| p.floats(&[spec.cols(), block]));
        spec.bias = bias.as_ref().map(|bias| bias.id);
        spec.state = p.state(spec.values());
        let x = p.input(spec.cols());
        let gate = has_gate.then(|| p.wide_input(spec.cols(), 4.0));
        let gate_id = gate.as_ref().map(|gate| gate.id);
        let out = p.graph.recur("out", Recurrence::Pool { x: x.id, gate: gate_id, spec });
        p.expect(out, |span| pool(&spec, span, &x, gate.as_ref(), bias.as_ref()));
        p
    })
}

/// N-grams of two and of three ids, with two heads each.
fn gram_case(steps: Steps) -> Case {
    Case::new(format!("grams steps={}", steps.name()), Tolerance::EXACT, move || {
        let mut p = Problem::new(steps.schedule().with_vocabulary(9));
        let heads =
            [(0, 11), (11, 13), (24, 17), (41, 19)].map(|(first, rows)| NgramHead { first, rows });
        let mut spec = NgramEmbeddingSpec {
            state: 0,
            multipliers: vec![3, 5 << 61, 9],
            heads: heads.to_vec(),
            end: 7,
        };
        spec.state = p.state(spec.values());
        let out = p.graph.recur("out", Recurrence::NgramRows { spec: Arc::new(spec.clone()) });
        p.expect_bits(out, |span| ngram_rows(&spec, span));
        p
    })
}
