//! Products with weight matrices of every type.

use puna_quant::TensorType;

use super::elementwise::doubles;
use super::problem::{Problem, Tensor};
use super::schedule::Schedule;
use super::{Case, Tolerance};
use crate::graph::{Linear, PerHeadLinear};

/// Whether weights can have a type; the others hold integers, activations or f64.
fn is_weight_type(ty: TensorType) -> bool {
    use TensorType::*;
    match ty {
        F32 | F16 | BF16 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q2_K | Q3_K | Q4_K | Q5_K | Q6_K
        | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ1_S | IQ1_M | IQ4_NL | IQ4_XS | TQ1_0
        | TQ2_0 | MXFP4 | NVFP4 | Q1_0 | Q2_0 => true,
        Q8_1 | Q8_K | I8 | I16 | I32 | I64 | F64 => false,
    }
}

/// Every type of weights.
pub(super) fn weight_types() -> impl Iterator<Item = TensorType> {
    TensorType::all().filter(|&ty| is_weight_type(ty))
}

/// Name of a type in the names of cases.
pub(super) fn type_name(ty: TensorType) -> String {
    ty.name().to_lowercase()
}

/// Error of products with weights of a type. Half precision rounds activations to 8 significant
/// bits at least (bf16); block formats allow activations of 8 bits.
pub(super) fn product_tolerance(ty: TensorType) -> Tolerance {
    let reduced = match ty {
        TensorType::F32 => 1e-6,
        TensorType::F16 | TensorType::BF16 => 5e-5,
        _ => 2e-4,
    };
    Tolerance { full: 1e-11, reduced }
}

/// Widths of inputs: odd for floats; for blocks the smallest width, and one beyond 256 values that
/// is no multiple of 512.
fn widths(ty: TensorType) -> Vec<usize> {
    match ty.block_values() {
        1 => vec![33, 257],
        32 => vec![32, 544],
        block => vec![block, 768usize.next_multiple_of(block)],
    }
}

/// Products with one matrix, with several, and with a matrix for each head.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ty in weight_types() {
        for width in widths(ty) {
            cases.extend([1, 2, 7, 19].map(|rows| linear(ty, (rows, width, 21), false)));
        }
        cases.push(linear(ty, (40, widths(ty)[1], 48), true));
    }
    let large = [TensorType::F32, TensorType::F16, TensorType::Q8_0, TensorType::Q4_K];
    cases.extend(large.map(|ty| linear(ty, (130, 2560, 100), false)));
    cases.extend(large.map(|ty| linear(ty, (1, 4096, 260), false)));
    cases.extend([1, 6, 33].map(joined));
    cases.extend([1, 12].map(outputs));
    for ty in [TensorType::F32, TensorType::BF16, TensorType::Q8_0, TensorType::Q4_0] {
        for rows in [1, 9, 300] {
            cases.extend([0, 5].map(|rest| per_head_linear(ty, rows, rest, true)));
        }
        cases.push(per_head_linear(ty, 9, 3, false));
    }
    cases
}

/// `x · wᵀ` for rows of a matrix of `in_dim` columns.
pub(super) fn product(w: &[f32], in_dim: usize, x: &[f64]) -> Vec<f64> {
    let dot = |w: &[f32]| w.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum();
    w.chunks_exact(in_dim).map(dot).collect()
}

fn linear(ty: TensorType, (rows, width, out_dim): (usize, usize, usize), has_bias: bool) -> Case {
    let bias = if has_bias { " bias=true" } else { "" };
    let shape = format!("rows={rows} width={width} out={out_dim}{bias}");
    let name = format!("matmul type={} {shape}", type_name(ty));
    Case::new(name, product_tolerance(ty), move || {
        let mut p = Problem::new(Schedule::one_step(rows));
        let w = p.random_tensor(ty, &[width, out_dim]);
        let bias = has_bias.then(|| p.floats(&[out_dim]));
        let x = p.input(width);
        let scale = if has_bias { 0.75 } else { 1.0 };
        let linear = Linear { w: w.id, scale, bias: bias.as_ref().map(|b| b.id), out: out_dim };
        let out = p.graph.linear("out", &linear, x.id);
        p.expect_rows(out, |token| {
            let y = product(&w.values, width, &doubles(x.row(token)));
            let bias = |i: usize| bias.as_ref().map_or(0.0, |b| f64::from(b.values[i]));
            y.iter().enumerate().map(|(i, y)| f64::from(scale) * y + bias(i)).collect()
        });
        p
    })
}

/// Matrices of several types with the same input, which a backend can multiply together.
fn joined(rows: usize) -> Case {
    let types = [TensorType::Q4_K, TensorType::F16, TensorType::Q6_K, TensorType::F32];
    let (width, out_dims) = (256, [40, 17, 24, 8]);
    let name = format!("matmul type=q4_k,f16,q6_k,f32 rows={rows} width={width} joined=true");
    Case::new(name, product_tolerance(TensorType::Q4_K), move || {
        let mut p = Problem::new(Schedule::one_step(rows));
        let weights: Vec<Tensor> = types
            .iter()
            .zip(out_dims)
            .map(|(&ty, out_dim)| p.random_tensor(ty, &[width, out_dim]))
            .collect();
        let x = p.input(width);
        let products: Vec<_> = weights
            .iter()
            .zip(out_dims)
            .map(|(w, out)| {
                p.graph.linear("out", &Linear { w: w.id, scale: 1.0, bias: None, out }, x.id)
            })
            .collect();
        let all = products.into_iter().reduce(|a, b| p.graph.concat("all", a, b));
        p.graph.group_linears_by_input();
        p.expect_rows(all.expect("some products"), |token| {
            let x = doubles(x.row(token));
            weights.iter().flat_map(|w| product(&w.values, width, &x)).collect()
        });
        p
    })
}

/// A product of the rows whose logits are returned.
fn outputs(rows: usize) -> Case {
    let (width, out_dim) = (64, 30);
    let name = format!("matmul type=q8_0 rows={rows} width={width} out={out_dim} value=outputs");
    Case::new(name, product_tolerance(TensorType::Q8_0), move || {
        let mut p = Problem::new(Schedule::one_step(rows));
        p.output_stride = rows.min(3);
        let w = p.random_tensor(TensorType::Q8_0, &[width, out_dim]);
        let x = p.input(width);
        let gathered = p.graph.gather_outputs(x.id);
        let linear = Linear { w: w.id, scale: 1.0, bias: None, out: out_dim };
        let out = p.graph.linear("out", &linear, gathered);
        p.expect_rows(out, |token| product(&w.values, width, &doubles(x.row(token))));
        p
    })
}

/// A matrix for each head, or one for all heads; `rest` further columns of each head pass through.
fn per_head_linear(ty: TensorType, rows: usize, rest: usize, is_per_head: bool) -> Case {
    let (input, out, heads) = (64, 40, 3);
    let shape =
        format!("rows={rows} width={input} rest={rest} heads={heads} per_head={is_per_head}");
    let name = format!("matmul_of_heads type={} {shape}", type_name(ty));
    Case::new(name, product_tolerance(ty), move || {
        let mut p = Problem::new(Schedule::one_step(rows));
        let shape = [input, out, heads];
        let w = p.random_tensor(ty, if is_per_head { &shape } else { &shape[..2] });
        let x = p.input(heads * (input + rest));
        let linear = PerHeadLinear { w: w.id, input, out, heads };
        let y = p.graph.per_head_linear("out", &linear, x.id);
        p.expect_rows(y, |token| {
            let of_head = |(head, x): (usize, &[f32])| {
                let matrix = if is_per_head { head } else { 0 };
                let matrix = &w.values[matrix * input * out..][..input * out];
                [product(matrix, input, &doubles(&x[..input])), doubles(&x[input..])].concat()
            };
            x.row(token).chunks_exact(input + rest).enumerate().flat_map(of_head).collect()
        });
        p
    })
}
