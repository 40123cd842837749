//! Mixtures of experts.

use puna_quant::TensorType;

use super::adapters::{Updates, scaled_problem, updated_graph};
use super::elementwise::GLUS;
use super::matmul::{product_tolerance, type_name};
use super::moe_reference::Experts;
use super::problem::{Placement, Problem};
use super::{Case, Tolerance};
use crate::adapter_updates::ExpertLoraUpdates;
use crate::ops::{Gating, Glu, Groups, MoeSpec};
use crate::values::WeightId;

/// Parameters of a mixture.
#[derive(Debug, Clone)]
struct Options {
    /// Short description in the name of the case.
    label: String,
    rows: usize,
    /// Columns of input and result.
    width: usize,
    /// Hidden columns of an expert.
    hidden: usize,
    /// Types of gate and up, and of down.
    types: [TensorType; 2],
    experts: usize,
    top_k: usize,
    gating: Gating,
    normalize: bool,
    scale: f32,
    groups: Option<Groups>,
    glu: Glu,
    experts_per_matrix: usize,
    weighs_input: bool,
    is_joined: bool,
    has_biases: bool,
    has_selection_bias: bool,
    has_factors: bool,
    is_by_token: bool,
    has_updates: bool,
    /// Mean and bound of the deviation of router logits.
    logits: (f32, f32),
}

fn base() -> Options {
    Options {
        label: "plain".into(),
        rows: 9,
        width: 64,
        hidden: 96,
        types: [TensorType::F32; 2],
        experts: 8,
        top_k: 3,
        gating: Gating::Softmax,
        normalize: false,
        scale: 1.0,
        groups: None,
        glu: Glu::Silu,
        experts_per_matrix: 1,
        weighs_input: false,
        is_joined: false,
        has_biases: false,
        has_selection_bias: false,
        has_factors: false,
        is_by_token: false,
        has_updates: false,
        logits: (0.0, 3.0),
    }
}

fn labelled(label: &str, options: Options) -> Options {
    Options { label: label.into(), ..options }
}

/// Every type, gating function, activation and option.
pub(super) fn cases() -> Vec<Case> {
    let mut all = types();
    all.extend(gatings());
    all.extend(activations());
    all.extend(options());
    all.into_iter().map(case).collect()
}

/// Types of matrices whose blocks fit the widths here, with few and many rows.
fn types() -> Vec<Options> {
    use TensorType::*;
    let same = [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4].map(|ty| [ty; 2]);
    let types = same.into_iter().chain([[Q4_0, Q8_0], [Q8_0, F16], [F16, Q8_0]]);
    let rows = |types| [1, 5, 40].map(|rows| Options { types, rows, ..base() });
    let wide = [[Q4_K, Q4_K], [Q4_K, Q6_K], [IQ4_XS, Q5_K]].into_iter().flat_map(|types| {
        [1, 30].map(|rows| Options {
            types,
            rows,
            width: 256,
            hidden: 256,
            experts: 4,
            top_k: 2,
            ..base()
        })
    });
    types.flat_map(rows).chain(wide).collect()
}

fn gatings() -> Vec<Options> {
    let gatings = [
        ("softmax", Gating::Softmax, (0.0, 3.0)),
        ("softmax_of_chosen", Gating::SoftmaxOfSelected, (0.0, 3.0)),
        ("sigmoid", Gating::Sigmoid, (0.0, 3.0)),
        ("sqrt_softplus", Gating::SqrtSoftplus, (0.0, 3.0)),
        ("sparse_mixer", Gating::SparseMixer, (2.0, 0.06)),
    ];
    let options = |(name, gating, logits)| {
        [false, true].map(|normalize| {
            let label = format!("gating={name} normalize={normalize}");
            labelled(&label, Options { gating, logits, normalize, scale: 1.5, rows: 40, ..base() })
        })
    };
    gatings.into_iter().flat_map(options).collect()
}

fn activations() -> Vec<Options> {
    let options = |(name, glu): (&str, Glu)| {
        labelled(&format!("glu={name}"), Options { glu, types: [TensorType::F16; 2], ..base() })
    };
    GLUS.into_iter().map(options).collect()
}

fn options() -> Vec<Options> {
    let groups = Some(Groups { count: 4, top_k: 2 });
    let q8 = [TensorType::Q8_0; 2];
    let sigmoid = Options { gating: Gating::Sigmoid, ..base() };
    vec![
        labelled("groups_of_softmax", Options { groups, rows: 40, ..base() }),
        labelled("groups", Options { groups, rows: 40, ..sigmoid.clone() }),
        labelled(
            "selection_bias",
            Options { has_selection_bias: true, groups, rows: 40, ..sigmoid.clone() },
        ),
        labelled("factors", Options { has_factors: true, normalize: true, ..sigmoid.clone() }),
        labelled("by_token", Options { is_by_token: true, rows: 40, ..sigmoid.clone() }),
        labelled("weighs_input", Options { weighs_input: true, ..sigmoid.clone() }),
        labelled("weighs_input", Options { weighs_input: true, types: q8, top_k: 1, ..sigmoid }),
        labelled("biases", Options { has_biases: true, ..base() }),
        labelled("biases", Options { has_biases: true, types: q8, rows: 40, ..base() }),
        labelled("joined", Options { is_joined: true, ..base() }),
        labelled("joined", Options { is_joined: true, types: q8, rows: 40, ..base() }),
        labelled("low_rank", Options { has_updates: true, ..base() }),
        labelled("low_rank", Options { has_updates: true, types: q8, rows: 40, ..base() }),
        labelled("sharing", Options { experts_per_matrix: 2, types: q8, ..base() }),
        labelled("many_experts", Options { experts: 64, top_k: 8, rows: 70, types: q8, ..base() }),
        labelled("all_experts", Options { experts: 4, top_k: 4, rows: 5, ..base() }),
    ]
}

fn case(options: Options) -> Case {
    let [first, second] = options.types;
    let Options { label, rows, width, experts, top_k, .. } = &options;
    let types = format!("{}/{}", type_name(first), type_name(second));
    let name =
        format!("moe types={types} rows={rows} width={width} experts={top_k}/{experts} {label}");
    let [first, second] = [first, second].map(product_tolerance);
    let tolerance = Tolerance {
        full: first.full.max(second.full),
        reduced: 2.0 * first.reduced.max(second.reduced),
    };
    Case::new(name, tolerance, move || problem(&options))
}

fn problem(options: &Options) -> Problem {
    let mut p = scaled_problem(options.rows);
    let experts = weights(&mut p, options);
    if let Some(updates) = &experts.updates {
        let MoeSpec { gate, up, down, .. } = experts.spec;
        let entries = updates.each_ref().map(|updates| updates.entries(None));
        p.graph = updated_graph([gate, up, down].into_iter().zip(entries));
    }
    let x = p.input(options.width);
    let (mean, bound) = options.logits;
    let router = p.input_in(Placement::Whole, options.experts, |x| mean + bound * x);
    let out = p.graph.moe("out", experts.spec.clone(), x.id, router.id);
    p.expect(out, |span| {
        let row = |&token: &usize| experts.row(span, token, x.row(token), router.row(token));
        span.rows().iter().map(row).collect()
    });
    p
}

fn weights(p: &mut Problem, options: &Options) -> Experts {
    let Options { width, hidden, experts, top_k, experts_per_matrix, is_joined, glu, .. } =
        *options;
    let matrices = experts / experts_per_matrix;
    let gate_rows = if is_joined { 2 * hidden } else { hidden };
    let gate = p.random_tensor(options.types[0], &[width, gate_rows, matrices]);
    let is_one_matrix = is_joined || !glu.has_gate();
    let up = match is_one_matrix {
        true => gate.clone(),
        false => p.random_tensor(options.types[0], &[width, hidden, matrices]),
    };
    let down = p.random_tensor(options.types[1], &[hidden, width, matrices]);
    let biases =
        options.has_biases.then(|| [hidden, hidden, width].map(|len| p.floats(&[len, matrices])));
    let selection_bias = options.has_selection_bias.then(|| p.floats(&[experts]));
    let factors = options.has_factors.then(|| p.floats(&[experts]));
    let vocabulary = p.schedule.vocabulary();
    let experts_by_token: Option<Vec<u32>> = options.is_by_token.then(|| {
        let expert = |i: usize| (i / top_k * 3 + i % top_k * 5) % experts;
        (0..vocabulary * top_k).map(|i| expert(i) as u32).collect()
    });
    let by_token_id =
        experts_by_token.as_ref().map(|table| p.integers(&[top_k, vocabulary], table));
    let updates = options.has_updates.then(|| {
        [[width, hidden], [width, hidden], [hidden, width]]
            .map(|[input, out]| Updates::new(p, input, out, &[matrices]))
    });
    let bias = |part: usize| biases.as_ref().map(|biases| biases[part].id);
    let spec = MoeSpec {
        selection_bias: selection_bias.as_ref().map(|bias| bias.id),
        factors: factors.as_ref().map(|factors| factors.id),
        experts_by_token: by_token_id,
        gate_bias: bias(0),
        up_bias: bias(1),
        down_bias: bias(2),
        ..spec(options, [gate.id, up.id, down.id])
    };
    let input = width;
    Experts {
        spec,
        input,
        gate,
        up,
        down,
        biases,
        selection_bias,
        factors,
        experts_by_token,
        updates,
    }
}

/// The specification without optional weights.
fn spec(options: &Options, [gate, up, down]: [WeightId; 3]) -> MoeSpec {
    let &Options { experts, top_k, gating, normalize, scale, groups, .. } = options;
    let &Options { width, hidden, glu, experts_per_matrix, weighs_input, is_joined, .. } = options;
    MoeSpec {
        experts,
        top_k,
        gating,
        normalize,
        scale,
        factors: None,
        selection_bias: None,
        groups,
        experts_by_token: None,
        weighs_input,
        glu,
        hidden,
        out: width,
        experts_per_matrix,
        gate,
        up,
        is_joined,
        down,
        gate_bias: None,
        up_bias: None,
        down_bias: None,
        lora_updates: ExpertLoraUpdates::default(),
    }
}
