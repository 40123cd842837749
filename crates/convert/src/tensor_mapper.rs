//! Maps tensors of the folder to tensors of the GGUF file by the rules of a family: renames,
//! splits, reorders rows, and stacks numbered tensors.

use puna_quant::TensorType;

use crate::error::ConvertError;
use crate::family::TensorMapper;
use crate::output::{
    OutputTensor, RowMapping, RowOrder, TensorContent, TensorRows, ValueTransform,
};
use crate::rules::{Dimensions, RowSlice, SourceLayout, TensorRule};
use crate::source::{Dtype, SourceTensor, Weights};

/// Matrices that stay F32, as norms and vectors do: routers, position tables, small matrices of
/// recurrent layers, hyper-connections and indexers.
const F32_TENSORS: [&str; 26] = [
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

/// A target name, and the row ranges that it consists of: number of rows and their order.
pub(crate) type TargetRows = (String, Vec<(u64, RowOrder)>);

impl TensorMapper<'_> {
    /// Adds the tensors that a source tensor becomes by a rule.
    pub(crate) fn map_tensor<'a>(
        &self,
        rule: &TensorRule,
        layer: Option<u32>,
        suffix: &str,
        tensor: &SourceTensor<'a>,
        outputs: &mut Vec<OutputTensor<'a>>,
    ) -> Result<(), ConvertError> {
        let Some(first) = rule.target_names(suffix).into_iter().next() else { return Ok(()) };
        let layout = TensorLayout::of(rule, &first, tensor, self.dims)?;
        let targets =
            self.map_rows(rule, suffix, layout.rows)?.ok_or_else(|| layout.shape_error(tensor))?;
        for (name, parts) in targets {
            outputs.push(self.output(layer, &name, &layout, tensor, parts)?);
        }
        Ok(())
    }

    /// The target tensors of a source tensor with `rows` rows. Returns `None` if the rule's split
    /// does not cover the rows exactly.
    pub(crate) fn map_rows(
        &self,
        rule: &TensorRule,
        suffix: &str,
        rows: u64,
    ) -> Result<Option<Vec<TargetRows>>, ConvertError> {
        let names = rule.target_names(suffix);
        let Some(slices) = rule.row_slices(rows, self.dims) else { return Ok(None) };
        let mut targets: Vec<TargetRows> =
            names.iter().map(|name| (name.clone(), Vec::new())).collect();
        for (at, RowSlice { rows, mapping }) in slices.into_iter().enumerate() {
            let at = if names.len() == 1 { 0 } else { at };
            if let Some((name, parts)) = targets.get_mut(at) {
                parts.push((rows, self.row_order(name, rule.layout, mapping, rows)?));
            }
        }
        Ok(Some(targets))
    }

    /// Order of a target's rows. Queries and keys are interleaved for families with
    /// `interleaves_rope_pairs`.
    fn row_order(
        &self,
        name: &str,
        layout: SourceLayout,
        mapping: RowMapping,
        rows: u64,
    ) -> Result<RowOrder, ConvertError> {
        let order = RowOrder::of(mapping);
        // Per-head norms have one column a head, so they are interleaved by columns.
        let norms =
            ["attn_q_norm.", "attn_k_norm."].iter().filter(|_| layout == SourceLayout::ColumnWise);
        let is_rotated =
            ["attn_q.", "attn_k."].iter().chain(norms).any(|prefix| name.starts_with(prefix));
        if !self.family.interleaves_rope_pairs || !is_rotated {
            return Ok(order);
        }
        let head_dim = u64::from(self.dims.head_dim);
        if head_dim == 0 || !head_dim.is_multiple_of(2) || !rows.is_multiple_of(head_dim) {
            let (found, want) = (vec![rows], vec![rows / head_dim.max(1), head_dim]);
            return Err(ConvertError::TensorShape { name: name.to_owned(), found, want });
        }
        Ok(order.preceded_by(RowMapping::InterleaveHalves { head_dim }))
    }

    fn output<'a>(
        &self,
        layer: Option<u32>,
        name: &str,
        layout: &TensorLayout,
        tensor: &SourceTensor<'a>,
        parts: Vec<(u64, RowOrder)>,
    ) -> Result<OutputTensor<'a>, ConvertError> {
        let rows: u64 = parts.iter().map(|(rows, _)| rows).sum();
        let shape: Vec<u64> =
            layout.stack.iter().copied().chain([rows]).chain(layout.columns).collect();
        let transform = (self.family.value_transform)(self.config, name)?;
        let matrices: u64 = layout.stack.iter().product();
        let content = match &parts[..] {
            [(count, order)] if layout.is_transposed => {
                let tensor = tensor.clone();
                TensorContent::Transposed {
                    tensor,
                    source_rows: layout.columns.unwrap_or(1),
                    columns_taken: *count,
                    column_order: *order,
                    matrix_order: RowOrder::SAME,
                    transform,
                }
            }
            // A vector in its own order is read as one row.
            [(_, RowOrder::SAME)] if layout.columns.is_none() => {
                let parts = vec![TensorRows {
                    tensor: tensor.clone(),
                    rows: matrices,
                    order: RowOrder::SAME,
                }];
                TensorContent::Rows { parts, columns: rows, transform }
            }
            _ => {
                let part = |(rows, order)| TensorRows {
                    tensor: tensor.clone(),
                    rows: rows * matrices,
                    order,
                };
                let columns = layout.columns.unwrap_or(1);
                TensorContent::Rows {
                    parts: parts.into_iter().map(part).collect(),
                    columns,
                    transform,
                }
            }
        };
        Ok(OutputTensor {
            name: self.full_name(layer, name),
            ty: self.tensor_type(name, &shape),
            shape,
            content,
        })
    }

    /// Name in the file, with the layer's prefix.
    pub(crate) fn full_name(&self, layer: Option<u32>, name: &str) -> String {
        layer.map_or_else(
            || name.to_owned(),
            |layer| format!("{}{layer}.{name}", self.family.gguf_layer_prefix),
        )
    }

    /// A tensor that consists of several ranges of rows of one source tensor. Dimensions of size
    /// one are removed.
    pub(crate) fn gather_rows<'a>(
        &self,
        layer: u32,
        name: &str,
        tensor: &SourceTensor<'a>,
        parts: &[(u64, RowOrder)],
    ) -> Result<OutputTensor<'a>, ConvertError> {
        let rows = parts.iter().map(|(rows, _)| rows).sum();
        let shape: Vec<u64> = tensor.entry.shape.iter().copied().filter(|&n| n != 1).collect();
        let shape: Vec<u64> = [rows].into_iter().chain(shape.into_iter().skip(1)).collect();
        let columns = shape.iter().skip(1).product();
        let part = |&(rows, order)| TensorRows { tensor: tensor.clone(), rows, order };
        let transform = (self.family.value_transform)(self.config, name)?;
        let content =
            TensorContent::Rows { parts: parts.iter().map(part).collect(), columns, transform };
        Ok(OutputTensor {
            name: self.full_name(Some(layer), name),
            ty: self.tensor_type(name, &shape),
            shape,
            content,
        })
    }

    /// F32 for vectors, norms and the tensors of [`F32_TENSORS`], else the type of matrices.
    pub(crate) fn tensor_type(&self, name: &str, shape: &[u64]) -> TensorType {
        let is_exact =
            shape.len() < 2 || !name.ends_with(".weight") || name.ends_with("_norm.weight");
        if is_exact || F32_TENSORS.contains(&name) { TensorType::F32 } else { self.matrix_type }
    }
}

/// Shape under which a source tensor is read.
struct TensorLayout {
    /// Dimensions before the rows.
    stack: Vec<u64>,
    /// Rows of each matrix, or values of each vector.
    rows: u64,
    /// Values of a row; `None` for vectors.
    columns: Option<u64>,
    is_transposed: bool,
}

impl TensorLayout {
    fn of(
        rule: &TensorRule,
        name: &str,
        tensor: &SourceTensor<'_>,
        dims: &Dimensions,
    ) -> Result<Self, ConvertError> {
        let shape = match rule.layout {
            SourceLayout::Squeezed | SourceLayout::SqueezedToRank4 => {
                tensor.entry.shape.iter().copied().filter(|&n| n != 1).collect()
            }
            SourceLayout::Flattened => vec![tensor.entry.elements()],
            _ => tensor.entry.shape.clone(),
        };
        let shape = &shape[..];
        let is_vector = shape.len() < 2 || name.ends_with(".bias");
        let is_transposed = !is_vector
            && matches!(
                rule.layout,
                SourceLayout::Transposed | SourceLayout::StackedExpertsTransposed
            );
        let is_stacked = matches!(
            rule.layout,
            SourceLayout::StackedExperts | SourceLayout::StackedExpertsTransposed
        );
        let groups = u64::from(dims.groups.max(1));
        let layout = match *shape {
            [rows] if rule.layout == SourceLayout::ColumnVector => {
                Self { stack: vec![], rows, columns: Some(1), is_transposed }
            }
            [all] if rule.layout == SourceLayout::GroupRows => {
                let columns = all / groups;
                let layout =
                    Self { stack: vec![], rows: groups, columns: Some(columns), is_transposed };
                if columns * groups != all {
                    return Err(layout.shape_error(tensor));
                }
                layout
            }
            [rows, columns] if rule.layout == SourceLayout::SqueezedToRank4 => {
                Self { stack: vec![1, rows], rows: 1, columns: Some(columns), is_transposed }
            }
            [] => Self { stack: vec![], rows: 1, columns: None, is_transposed },
            [ref stack @ .., rows] if is_vector => {
                Self { stack: stack.to_vec(), rows, columns: None, is_transposed }
            }
            [rows, columns] if rule.layout == SourceLayout::ColumnWise => {
                Self { stack: vec![rows], rows: columns, columns: None, is_transposed }
            }
            [rows, columns] if is_stacked => {
                let experts = u64::from(dims.experts.max(1));
                let each = rows / experts;
                let (each_rows, columns) =
                    if is_transposed { (columns, each) } else { (each, columns) };
                let layout = Self {
                    stack: vec![experts],
                    rows: each_rows,
                    columns: Some(columns),
                    is_transposed,
                };
                if each * experts != rows {
                    return Err(layout.shape_error(tensor));
                }
                layout
            }
            [ref stack @ .., inputs, outputs] if is_transposed => {
                Self { stack: stack.to_vec(), rows: outputs, columns: Some(inputs), is_transposed }
            }
            [ref stack @ .., rows, columns] => {
                Self { stack: stack.to_vec(), rows, columns: Some(columns), is_transposed }
            }
            [rows] => Self { stack: vec![], rows, columns: None, is_transposed },
        };
        Ok(layout)
    }

    fn shape_error(&self, tensor: &SourceTensor<'_>) -> ConvertError {
        let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
        let want = self.stack.iter().copied().chain([self.rows]).chain(self.columns).collect();
        ConvertError::TensorShape { name, found, want }
    }
}

/// Maps groups of tensors of a layer that become one tensor: numbered experts, norms of heads,
/// MXFP4 blocks with their scales.
pub(crate) fn map_layer_groups<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    layer: u32,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    let prefix = format!("{}{layer}.", mapper.family.layer_prefix);
    for rule in mapper.family.layer_rules.iter().copied().flatten() {
        if rule.is_numbered() {
            stack_numbered(mapper, weights, rule, layer, outputs)?;
            continue;
        }
        let name = format!("{prefix}{}", rule.source);
        let Some(blocks) = weights.take(&format!("{name}_blocks")) else { continue };
        let scales_name = format!("{name}_scales");
        let scales =
            weights.take(&scales_name).ok_or(ConvertError::TensorMissing { name: scales_name })?;
        let names = rule.target_names(".weight");
        let step = names.len() as u64;
        for (name, first) in names.iter().zip(0..) {
            outputs.push(mxfp4_of_stack(
                mapper.full_name(Some(layer), name),
                &blocks,
                &scales,
                step,
                first,
            )?);
        }
    }
    Ok(())
}

/// Stacks the numbered tensors of a rule.
fn stack_numbered<'a>(
    mapper: &TensorMapper<'_>,
    weights: &mut Weights<'a>,
    rule: &TensorRule,
    layer: u32,
    outputs: &mut Vec<OutputTensor<'a>>,
) -> Result<(), ConvertError> {
    for suffix in [".weight", ".bias"] {
        let name_of = |number: usize| {
            let source = rule.source.replace("{}", &number.to_string());
            format!("{}{layer}.{source}{suffix}", mapper.family.layer_prefix)
        };
        let mut tensors: Vec<SourceTensor<'a>> = Vec::new();
        while let Some(tensor) = weights.take(&name_of(tensors.len())) {
            tensors.push(tensor);
        }
        let Some(first) = tensors.first() else { continue };
        let name = rule.target_names(suffix).into_iter().next().unwrap_or_default();
        if name.contains("_exps.") && tensors.len() != mapper.dims.experts as usize {
            let name = format!("{}{}", mapper.family.root_prefix, name_of(tensors.len()));
            return Err(ConvertError::TensorMissing { name });
        }
        if first.entry.dtype == Dtype::I8 {
            let scale = |number: usize| name_of(number).replace(suffix, ".scale");
            outputs.push(mxfp4_of_experts(
                mapper.full_name(Some(layer), &name),
                weights,
                tensors,
                scale,
            )?);
            continue;
        }
        let each = first.entry.shape.clone();
        let columns = each.last().copied().unwrap_or(1);
        let rows = each.iter().product::<u64>() / columns.max(1);
        if let Some(other) = tensors.iter().find(|tensor| tensor.entry.shape != each) {
            let (name, found) = (other.entry.name.clone(), other.entry.shape.clone());
            return Err(ConvertError::TensorShape { name, found, want: each });
        }
        let shape = [&[tensors.len() as u64], &each[..]].concat();
        let parts = tensors
            .into_iter()
            .map(|tensor| TensorRows { tensor, rows, order: RowOrder::SAME })
            .collect();
        let content = TensorContent::Rows { parts, columns, transform: ValueTransform::None };
        let ty = mapper.tensor_type(&name, &shape);
        outputs.push(OutputTensor {
            name: mapper.full_name(Some(layer), &name),
            ty,
            shape,
            content,
        });
    }
    Ok(())
}

/// Stacks MXFP4 experts that are separate tensors: I8 tensors of 16 bytes for each block of 32
/// values, and a tensor of block scales for each.
fn mxfp4_of_experts<'a>(
    name: String,
    weights: &mut Weights<'a>,
    tensors: Vec<SourceTensor<'a>>,
    scale: impl Fn(usize) -> String,
) -> Result<OutputTensor<'a>, ConvertError> {
    let wrong = |tensor: &SourceTensor<'_>, want: Vec<u64>| {
        let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
        ConvertError::TensorShape { name, found, want }
    };
    let shape = tensors[0].entry.shape.clone();
    let [rows, bytes] = shape[..] else { return Err(wrong(&tensors[0], vec![0, 16])) };
    if rows == 0 || bytes == 0 || !bytes.is_multiple_of(16) {
        return Err(wrong(&tensors[0], vec![rows.max(1), bytes.next_multiple_of(16).max(16)]));
    }
    let mut parts = Vec::with_capacity(tensors.len());
    for (number, tensor) in tensors.into_iter().enumerate() {
        let scales_name = scale(number);
        let scales =
            weights.take(&scales_name).ok_or(ConvertError::TensorMissing { name: scales_name })?;
        if tensor.entry.shape != shape {
            return Err(wrong(&tensor, shape));
        }
        if tensor.entry.dtype != Dtype::I8 {
            return Err(tensor.bad_type());
        }
        if !matches!(scales.entry.dtype, Dtype::F8_E8M0 | Dtype::U8) {
            return Err(scales.bad_type());
        }
        if scales.entry.shape != [rows, bytes / 16] {
            return Err(wrong(&scales, vec![rows, bytes / 16]));
        }
        parts.push([tensor, scales]);
    }
    let shape = vec![parts.len() as u64, rows, 2 * bytes];
    Ok(OutputTensor {
        name,
        ty: TensorType::MXFP4,
        shape,
        content: TensorContent::Mxfp4 { parts, rows_per_part: rows, order: RowOrder::SAME },
    })
}

/// Takes rows `first`, `first + step`, … of MXFP4 experts in one tensor: 16 bytes for each block of
/// 32 values, and a tensor of block scales.
fn mxfp4_of_stack<'a>(
    name: String,
    blocks: &SourceTensor<'a>,
    scales: &SourceTensor<'a>,
    step: u64,
    first: u64,
) -> Result<OutputTensor<'a>, ConvertError> {
    let found = blocks.entry.shape.clone();
    let [experts, rows, count, sixteen] = found[..] else {
        let name = blocks.entry.name.clone();
        return Err(ConvertError::TensorShape { name, found, want: vec![0, 0, 0, 16] });
    };
    if !rows.is_multiple_of(step) {
        let (name, want) =
            (blocks.entry.name.clone(), vec![experts, rows.next_multiple_of(step), count, 16]);
        return Err(ConvertError::TensorShape { name, found, want });
    }
    if sixteen != 16 || blocks.entry.dtype != Dtype::U8 || scales.entry.dtype != Dtype::U8 {
        return Err(blocks.bad_type());
    }
    let want = vec![experts, rows, count];
    if scales.entry.shape != want {
        let (name, found) = (scales.entry.name.clone(), scales.entry.shape.clone());
        return Err(ConvertError::TensorShape { name, found, want });
    }
    let order = RowOrder::of(RowMapping::Strided { step, first });
    Ok(OutputTensor {
        name,
        ty: TensorType::MXFP4,
        shape: vec![experts, rows / step, count * 32],
        content: TensorContent::Mxfp4 {
            parts: vec![[blocks.clone(), scales.clone()]],
            rows_per_part: experts * (rows / step),
            order,
        },
    })
}
