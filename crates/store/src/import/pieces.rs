//! Tensors of the file out of those of the folder, by the rules of a family: under another name, cut up, their rows in
//! another order, or many as one.

use puna_quant::TensorType;

use super::ImportError;
use super::config::Json;
use super::families::Family;
use super::plan::{Change, Content, Order, Output, Part, Step};
use super::rules::{Form, Rule, Sizes, Slice};
use super::safetensors::Dtype;
use super::weights::{Tensor, Weights};
use crate::error::StoreError;

/// Weights that stay exact beside norms and vectors: routers, tables of positions, small matrices of states and of what chooses blocks.
const EXACT: [&str; 26] = [
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "position_embd.weight",
    "hc_attn_fn.weight",
    "hc_ffn_fn.weight",
    "output_hc_fn.weight",
    "attn_compressor_ape.weight",
    "indexer_compressor_ape.weight",
    "token_types.weight",
    "ssm_conv1d.weight",
    "ssm_conv1d_q.weight",
    "ssm_conv1d_k.weight",
    "ssm_conv1d_v.weight",
    "shortconv.conv.weight",
    "ple_conv1d.weight",
    "altup_correct_coef.weight",
    "altup_predict_coef.weight",
    "time_mix_first.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "indexer.proj.weight",
    "indexer.q_proj.weight",
    "indexer.k_proj.weight",
];

/// What tensors are made with.
pub(super) struct Cutter<'a> {
    pub(super) family: &'a Family,
    pub(super) config: &'a Json,
    pub(super) sizes: &'a Sizes,
    /// The type of matrices.
    pub(super) matrices: TensorType,
}

/// A name, and how many rows in which orders come one behind the other under it.
pub(super) type Piece = (String, Vec<(u64, Order)>);

impl Cutter<'_> {
    /// The tensors that one becomes by a rule.
    pub(super) fn cut<'a>(
        &self,
        rule: &Rule,
        layer: Option<u32>,
        end: &str,
        tensor: &Tensor<'a>,
        outputs: &mut Vec<Output<'a>>,
    ) -> Result<(), StoreError> {
        let Some(first) = rule.names(end).into_iter().next() else { return Ok(()) };
        let lying = Lying::of(rule, &first, tensor, self.sizes)?;
        let pieces = self.pieces(rule, end, lying.rows)?.ok_or_else(|| lying.wrong(tensor))?;
        for (name, parts) in pieces {
            outputs.push(self.output(layer, &name, &lying, tensor, parts)?);
        }
        Ok(())
    }

    /// The names of what so many rows become, with the rows of each; nothing where they do not go up.
    pub(super) fn pieces(
        &self,
        rule: &Rule,
        end: &str,
        rows: u64,
    ) -> Result<Option<Vec<Piece>>, ImportError> {
        let names = rule.names(end);
        let Some(slices) = rule.slices(rows, self.sizes) else { return Ok(None) };
        let mut pieces: Vec<Piece> = names.iter().map(|name| (name.clone(), Vec::new())).collect();
        for (at, Slice { rows, step }) in slices.into_iter().enumerate() {
            let at = if names.len() == 1 { 0 } else { at };
            if let Some((name, parts)) = pieces.get_mut(at) {
                parts.push((rows, self.order(name, rule.form, step, rows)?));
            }
        }
        Ok(Some(pieces))
    }

    /// The rows of a tensor of that name, out of those of a slice.
    fn order(&self, name: &str, form: Form, step: Step, rows: u64) -> Result<Order, ImportError> {
        let order = Order::of(step);
        // Norms with weights for each head have them across.
        let norms = ["attn_q_norm.", "attn_k_norm."].iter().filter(|_| form == Form::Across);
        let turns = ["attn_q.", "attn_k."].iter().chain(norms).any(|turns| name.starts_with(turns));
        if !self.family.pairs || !turns {
            return Ok(order);
        }
        let head = u64::from(self.sizes.head);
        if head == 0 || !head.is_multiple_of(2) || !rows.is_multiple_of(head) {
            let (found, want) = (vec![rows], vec![rows / head.max(1), head]);
            return Err(ImportError::TensorShape { name: name.to_owned(), found, want });
        }
        Ok(order.after(Step::Paired { head }))
    }

    fn output<'a>(
        &self,
        layer: Option<u32>,
        name: &str,
        lying: &Lying,
        tensor: &Tensor<'a>,
        parts: Vec<(u64, Order)>,
    ) -> Result<Output<'a>, StoreError> {
        let rows: u64 = parts.iter().map(|(rows, _)| rows).sum();
        let shape: Vec<u64> =
            lying.around.iter().copied().chain([rows]).chain(lying.columns).collect();
        let change = (self.family.change)(self.config, name)?;
        let matrices: u64 = lying.around.iter().product();
        let content = match &parts[..] {
            [(take, order)] if lying.is_turned => {
                let (tensor, each) = (tensor.clone(), lying.columns.unwrap_or(1));
                Content::Transposed {
                    tensor,
                    each,
                    take: *take,
                    order: *order,
                    matrices: Order::SAME,
                    change,
                }
            }
            // A vector in its own order is read as one row.
            [(_, Order::SAME)] if lying.columns.is_none() => {
                let parts =
                    vec![Part { tensor: tensor.clone(), rows: matrices, order: Order::SAME }];
                Content::Rows { parts, columns: rows, change }
            }
            _ => {
                let part =
                    |(rows, order)| Part { tensor: tensor.clone(), rows: rows * matrices, order };
                let columns = lying.columns.unwrap_or(1);
                Content::Rows { parts: parts.into_iter().map(part).collect(), columns, change }
            }
        };
        Ok(Output { name: self.full(layer, name), ty: self.type_of(name, &shape), shape, content })
    }

    /// The name in the file.
    pub(super) fn full(&self, layer: Option<u32>, name: &str) -> String {
        layer.map_or_else(
            || name.to_owned(),
            |layer| format!("{}{layer}.{name}", self.family.blocks),
        )
    }

    /// Rows of a tensor, those of one part behind those of the other.
    pub(super) fn gathered<'a>(
        &self,
        layer: u32,
        name: &str,
        tensor: &Tensor<'a>,
        parts: &[(u64, Order)],
    ) -> Result<Output<'a>, StoreError> {
        let rows = parts.iter().map(|(rows, _)| rows).sum();
        let shape: Vec<u64> = tensor.entry.shape.iter().copied().filter(|&n| n != 1).collect();
        let shape: Vec<u64> = [rows].into_iter().chain(shape.into_iter().skip(1)).collect();
        let columns = shape.iter().skip(1).product();
        let part = |&(rows, order)| Part { tensor: tensor.clone(), rows, order };
        let change = (self.family.change)(self.config, name)?;
        let content = Content::Rows { parts: parts.iter().map(part).collect(), columns, change };
        Ok(Output {
            name: self.full(Some(layer), name),
            ty: self.type_of(name, &shape),
            shape,
            content,
        })
    }

    /// Vectors, norms and routers stay exact.
    pub(super) fn type_of(&self, name: &str, shape: &[u64]) -> TensorType {
        let exact = shape.len() < 2 || !name.ends_with(".weight") || name.ends_with("_norm.weight");
        if exact || EXACT.contains(&name) { TensorType::F32 } else { self.matrices }
    }
}

/// How a tensor's values lie, and as what they are read.
struct Lying {
    /// Dimensions in front of rows.
    around: Vec<u64>,
    /// Rows of each matrix, or values of each vector.
    rows: u64,
    /// Values of a row, where it is no vector.
    columns: Option<u64>,
    is_turned: bool,
}

impl Lying {
    fn of(rule: &Rule, name: &str, tensor: &Tensor<'_>, sizes: &Sizes) -> Result<Self, StoreError> {
        let shape = match rule.form {
            Form::Squeezed | Form::Lifted => {
                tensor.entry.shape.iter().copied().filter(|&n| n != 1).collect()
            }
            Form::Flat => vec![tensor.entry.elements()],
            _ => tensor.entry.shape.clone(),
        };
        let shape = &shape[..];
        let is_vector = shape.len() < 2 || name.ends_with(".bias");
        let is_turned = !is_vector && matches!(rule.form, Form::Turned | Form::StackedTurned);
        let is_stacked = matches!(rule.form, Form::Stacked | Form::StackedTurned);
        let groups = u64::from(sizes.groups.max(1));
        let lying = match *shape {
            [rows] if rule.form == Form::Column => {
                Self { around: vec![], rows, columns: Some(1), is_turned }
            }
            [all] if rule.form == Form::Grouped => {
                let columns = all / groups;
                let lying =
                    Self { around: vec![], rows: groups, columns: Some(columns), is_turned };
                if columns * groups != all {
                    return Err(lying.wrong(tensor).into());
                }
                lying
            }
            [rows, columns] if rule.form == Form::Lifted => {
                Self { around: vec![1, rows], rows: 1, columns: Some(columns), is_turned }
            }
            [] => Self { around: vec![], rows: 1, columns: None, is_turned },
            [ref around @ .., rows] if is_vector => {
                Self { around: around.to_vec(), rows, columns: None, is_turned }
            }
            [rows, columns] if rule.form == Form::Across => {
                Self { around: vec![rows], rows: columns, columns: None, is_turned }
            }
            [rows, columns] if is_stacked => {
                let experts = u64::from(sizes.experts.max(1));
                let each = rows / experts;
                let (rows_here, columns) =
                    if is_turned { (columns, each) } else { (each, columns) };
                let lying = Self {
                    around: vec![experts],
                    rows: rows_here,
                    columns: Some(columns),
                    is_turned,
                };
                if each * experts != rows {
                    return Err(lying.wrong(tensor).into());
                }
                lying
            }
            [ref around @ .., inputs, outputs] if is_turned => {
                Self { around: around.to_vec(), rows: outputs, columns: Some(inputs), is_turned }
            }
            [ref around @ .., rows, columns] => {
                Self { around: around.to_vec(), rows, columns: Some(columns), is_turned }
            }
            [rows] => Self { around: vec![], rows, columns: None, is_turned },
        };
        Ok(lying)
    }

    fn wrong(&self, tensor: &Tensor<'_>) -> ImportError {
        let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
        let want = self.around.iter().copied().chain([self.rows]).chain(self.columns).collect();
        ImportError::TensorShape { name, found, want }
    }
}

/// What becomes one tensor out of many of a layer: the matrices of experts, the norms of heads, packed blocks and their
/// scales.
pub(super) fn collect<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    layer: u32,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let prefix = format!("{}{layer}.", cutter.family.layers);
    for rule in cutter.family.layer.iter().copied().flatten() {
        if rule.is_numbered() {
            numbered(cutter, weights, rule, layer, outputs)?;
            continue;
        }
        let name = format!("{prefix}{}", rule.there);
        let Some(blocks) = weights.take(&format!("{name}_blocks")) else { continue };
        let of = format!("{name}_scales");
        let scales = weights.take(&of).ok_or(ImportError::TensorMissing { name: of })?;
        let names = rule.names(".weight");
        let step = names.len() as u64;
        for (name, first) in names.iter().zip(0..) {
            outputs.push(packed(cutter.full(Some(layer), name), &blocks, &scales, step, first)?);
        }
    }
    Ok(())
}

/// Tensors with numbers, as one.
fn numbered<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    rule: &Rule,
    layer: u32,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    for end in [".weight", ".bias"] {
        let name_of = |number: usize| {
            let there = rule.there.replace("{}", &number.to_string());
            format!("{}{layer}.{there}{end}", cutter.family.layers)
        };
        let mut tensors: Vec<Tensor<'a>> = Vec::new();
        while let Some(tensor) = weights.take(&name_of(tensors.len())) {
            tensors.push(tensor);
        }
        let Some(first) = tensors.first() else { continue };
        let name = rule.names(end).into_iter().next().unwrap_or_default();
        if name.contains("_exps.") && tensors.len() != cutter.sizes.experts as usize {
            let name = format!("{}{}", cutter.family.root, name_of(tensors.len()));
            return Err(ImportError::TensorMissing { name }.into());
        }
        if first.entry.dtype == Dtype::I8 {
            let scale = |number: usize| name_of(number).replace(end, ".scale");
            outputs.push(packed_apart(cutter.full(Some(layer), &name), weights, tensors, scale)?);
            continue;
        }
        let each = first.entry.shape.clone();
        let columns = each.last().copied().unwrap_or(1);
        let rows = each.iter().product::<u64>() / columns.max(1);
        if let Some(other) = tensors.iter().find(|tensor| tensor.entry.shape != each) {
            let (name, found) = (other.entry.name.clone(), other.entry.shape.clone());
            return Err(ImportError::TensorShape { name, found, want: each }.into());
        }
        let shape = [&[tensors.len() as u64], &each[..]].concat();
        let parts =
            tensors.into_iter().map(|tensor| Part { tensor, rows, order: Order::SAME }).collect();
        let content = Content::Rows { parts, columns, change: Change::None };
        let ty = cutter.type_of(&name, &shape);
        outputs.push(Output { name: cutter.full(Some(layer), &name), ty, shape, content });
    }
    Ok(())
}

/// Experts each by itself, packed: sixteen bytes for a block of 32 of a row, and the blocks' scales apart.
fn packed_apart<'a>(
    name: String,
    weights: &mut Weights<'a>,
    tensors: Vec<Tensor<'a>>,
    scale: impl Fn(usize) -> String,
) -> Result<Output<'a>, StoreError> {
    let wrong = |tensor: &Tensor<'_>, want: Vec<u64>| {
        let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
        StoreError::from(ImportError::TensorShape { name, found, want })
    };
    let shape = tensors[0].entry.shape.clone();
    let [rows, bytes] = shape[..] else { return Err(wrong(&tensors[0], vec![0, 16])) };
    if rows == 0 || bytes == 0 || !bytes.is_multiple_of(16) {
        return Err(wrong(&tensors[0], vec![rows.max(1), bytes.next_multiple_of(16).max(16)]));
    }
    let mut parts = Vec::with_capacity(tensors.len());
    for (number, tensor) in tensors.into_iter().enumerate() {
        let of = scale(number);
        let scales = weights.take(&of).ok_or(ImportError::TensorMissing { name: of })?;
        if tensor.entry.shape != shape {
            return Err(wrong(&tensor, shape));
        }
        if tensor.entry.dtype != Dtype::I8 {
            return Err(tensor.bad_type().into());
        }
        if !matches!(scales.entry.dtype, Dtype::F8_E8M0 | Dtype::U8) {
            return Err(scales.bad_type().into());
        }
        if scales.entry.shape != [rows, bytes / 16] {
            return Err(wrong(&scales, vec![rows, bytes / 16]));
        }
        parts.push([tensor, scales]);
    }
    let shape = vec![parts.len() as u64, rows, 2 * bytes];
    Ok(Output {
        name,
        ty: TensorType::MXFP4,
        shape,
        content: Content::Mxfp4 { parts, rows, order: Order::SAME },
    })
}

/// Some rows of experts whose weights come packed: sixteen bytes for a block of 32, and their scales apart.
fn packed<'a>(
    name: String,
    blocks: &Tensor<'a>,
    scales: &Tensor<'a>,
    step: u64,
    first: u64,
) -> Result<Output<'a>, StoreError> {
    let found = blocks.entry.shape.clone();
    let [experts, rows, count, sixteen] = found[..] else {
        let name = blocks.entry.name.clone();
        return Err(ImportError::TensorShape { name, found, want: vec![0, 0, 0, 16] }.into());
    };
    if !rows.is_multiple_of(step) {
        let (name, want) =
            (blocks.entry.name.clone(), vec![experts, rows.next_multiple_of(step), count, 16]);
        return Err(ImportError::TensorShape { name, found, want }.into());
    }
    if sixteen != 16 || blocks.entry.dtype != Dtype::U8 || scales.entry.dtype != Dtype::U8 {
        return Err(blocks.bad_type().into());
    }
    let want = vec![experts, rows, count];
    if scales.entry.shape != want {
        let (name, found) = (scales.entry.name.clone(), scales.entry.shape.clone());
        return Err(ImportError::TensorShape { name, found, want }.into());
    }
    let order = Order::of(Step::Every { step, first });
    Ok(Output {
        name,
        ty: TensorType::MXFP4,
        shape: vec![experts, rows / step, count * 32],
        content: Content::Mxfp4 {
            parts: vec![[blocks.clone(), scales.clone()]],
            rows: experts * (rows / step),
            order,
        },
    })
}
