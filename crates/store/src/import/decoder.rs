//! Decoders: what tensors of Hugging Face's names are called in a GGUF file and how their rows change places. One table
//! serves all families; where they differ, [`Family`] says so.

use std::collections::BTreeSet;
use std::io::Write;

use puna_gguf::Writer;
use puna_quant::TensorType;

use super::config::Json;
use super::family::{Expert, Family, Shape};
use super::plan::{Content, Order, Output, Part};
use super::safetensors::Dtype;
use super::vocabulary::Vocabulary;
use super::weights::{Tensor, Weights};
use super::{Folder, ImportError, Report, bert, plan};
use crate::error::StoreError;

/// Parts of a layer: the name there, the name here.
const LAYER: [(&str, &str); 31] = [
    ("input_layernorm.weight", "attn_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.q_proj.bias", "attn_q.bias"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.k_proj.bias", "attn_k.bias"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.v_proj.bias", "attn_v.bias"),
    ("self_attn.qkv_proj.weight", "attn_qkv.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("self_attn.o_proj.bias", "attn_output.bias"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("self_attn.sinks", "attn_sinks.weight"),
    ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.gate_proj.bias", "ffn_gate.bias"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.up_proj.bias", "ffn_up.bias"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    ("mlp.down_proj.bias", "ffn_down.bias"),
    ("mlp.gate_up_proj.weight", "ffn_up.weight"),
    ("mlp.gate.weight", "ffn_gate_inp.weight"),
    ("block_sparse_moe.gate.weight", "ffn_gate_inp.weight"),
    ("mlp.router.weight", "ffn_gate_inp.weight"),
    ("mlp.router.bias", "ffn_gate_inp.bias"),
    ("mlp.experts.down_proj_bias", "ffn_down_exps.bias"),
    ("mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"),
    ("mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"),
    ("mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"),
    ("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"),
];

/// Outside of the layers.
const WHOLE: [(&str, &str); 3] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
];

/// Sizes that tensors are checked against and cut by.
pub(super) struct Sizes {
    pub(super) layers: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) experts: u32,
}

/// Numbers in `general.file_type`.
const FILE_TYPES: [(TensorType, u32); 2] = [(TensorType::F16, 1), (TensorType::BF16, 32)];
/// … of files whose experts are MXFP4.
const FILE_TYPE_MXFP4: u32 = 38;

/// Writes the file of a folder; `bare` are names without `model.` in front.
pub(super) fn convert(
    folder: &Folder<'_>,
    config: Json,
    family: &Family,
    bare: bool,
    out: &mut dyn Write,
    report: Report<'_>,
) -> Result<(), StoreError> {
    let files = folder.safetensors()?;
    let mut weights = Weights::of(&files, &config, bare)?;
    let shape = Shape::read(&config, family)?;
    let table = "model.embed_tokens.weight";
    let rows = weights.iter().find(|(name, _)| *name == table).map(|(_, tensor)| tensor.entry.shape.clone());
    let rows = rows.ok_or_else(|| ImportError::TensorMissing { name: table.to_owned() })?;
    let rows = rows.first().copied().unwrap_or(0);
    let vocabulary = Vocabulary::read(folder, &config, family.bare_start, rows)?;
    // Sixteen bits of the kind that the folder has; what has fewer keeps its range in BF16.
    let is_brain = |tensor: &Tensor<'_>| tensor.is_matrix() && tensor.entry.dtype == Dtype::BF16;
    let brain = weights.has_scales || weights.iter().any(|(_, tensor)| is_brain(tensor));
    let matrices = if brain { TensorType::BF16 } else { TensorType::F16 };

    let mut writer = Writer::new();
    writer.set("general.architecture", family.architecture).set("general.type", "model");
    let name = config.text("_name_or_path").and_then(|path| path.rsplit('/').next());
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        writer.set("general.name", name);
    }
    let mut extras = shape.write(&config, family, &mut writer, rows)?;
    let mut outputs = outputs(family, &mut weights, &shape.sizes, matrices)?;
    plan::settle(&mut outputs, report)?;
    let file_type = FILE_TYPES.iter().find(|(ty, _)| *ty == matrices).map_or(0, |row| row.1);
    let has_mxfp4 = outputs.iter().any(|output| output.ty == TensorType::MXFP4);
    writer.set("general.file_type", if has_mxfp4 { FILE_TYPE_MXFP4 } else { file_type });
    writer.set("general.quantization_version", 2u32);
    if folder.has("modules.json") {
        let (pooling, normalize) = bert::pooling(folder)?;
        writer.set(&format!("{}.pooling_type", family.architecture), pooling);
        writer.set(&format!("{}.normalize_embeddings", family.architecture), normalize);
    }
    vocabulary.write(family.architecture, &mut writer);
    extras.append(&mut outputs);
    plan::write(writer, &extras, out, report)
}

/// The number of a layer and the rest of the name.
pub(super) fn layer_of(name: &str) -> Option<(u32, &str)> {
    let (number, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

/// The name in a GGUF file of a tensor that is not part of a stack of experts.
pub(super) fn gguf_name(family: &Family, name: &str) -> Option<String> {
    if let Some((_, to)) = WHOLE.iter().find(|(from, _)| *from == name) {
        return Some((*to).to_owned());
    }
    let (layer, rest) = layer_of(name)?;
    if rest == "post_attention_layernorm.weight" {
        return Some(format!("blk.{layer}.{}.weight", family.second_norm));
    }
    let (_, to) = LAYER.iter().find(|(from, _)| *from == rest)?;
    Some(format!("blk.{layer}.{to}"))
}

/// How the rows of a tensor change places.
pub(super) fn order_of(family: &Family, gguf: &str, rows: u64, sizes: &Sizes) -> Result<Order, ImportError> {
    let heads = match gguf.rsplit('.').nth(1) {
        Some("attn_q") if family.pairs => sizes.heads,
        Some("attn_k") if family.pairs => sizes.kv_heads,
        _ => return Ok(Order::Same),
    };
    let head = rows / u64::from(heads.max(1));
    if head == 0 || !head.is_multiple_of(2) || head * u64::from(heads) != rows {
        let name = gguf.to_owned();
        return Err(ImportError::TensorShape { name, found: vec![rows], want: vec![u64::from(heads), 2] });
    }
    Ok(Order::Paired { head })
}

/// The tensors of the file, in its order.
pub(super) fn outputs<'a>(
    family: &Family,
    weights: &mut Weights<'a>,
    sizes: &Sizes,
    matrices: TensorType,
) -> Result<Vec<Output<'a>>, StoreError> {
    // Every layer has tensors: a claimed number beyond those there are is refused before anything grows with it.
    if sizes.layers as usize > weights.len() {
        let name = format!("model.layers.{}.*", sizes.layers - 1);
        return Err(ImportError::TensorMissing { name }.into());
    }
    let mut outputs = Vec::new();
    let names: Vec<String> = weights.names().cloned().collect();
    for layer in 0..sizes.layers {
        stacks(weights, layer, sizes, matrices, &mut outputs)?;
    }
    for name in names {
        let beyond = layer_of(&name).is_some_and(|(layer, _)| layer >= sizes.layers);
        let Some(tensor) = weights.take(&name) else { continue };
        if beyond || (name == "lm_head.weight" && family.tied) {
            continue;
        }
        let Some(gguf) = gguf_name(family, &name) else {
            return Err(ImportError::TensorUnknown { name: crate::name::shown(&tensor.entry.name) }.into());
        };
        outputs.push(one(family, gguf, tensor, sizes, matrices)?);
    }
    check_whole(family, &outputs, sizes.layers)?;
    plan::sort(&mut outputs);
    Ok(outputs)
}

/// Every layer has what the first one has, and what stands around the layers is there.
fn check_whole(family: &Family, outputs: &[Output<'_>], layers: u32) -> Result<(), ImportError> {
    let norm = format!("{}.weight", family.norm);
    let names: BTreeSet<&str> = outputs.iter().map(|output| output.name.as_str()).collect();
    let first = names.iter().filter_map(|name| name.strip_prefix("blk.0."));
    let first: Vec<&str> = first.chain([norm.as_str()]).collect();
    let of = |layer| first.iter().map(move |part| format!("blk.{layer}.{part}"));
    let whole = ["token_embd.weight", "output_norm.weight"].map(str::to_owned);
    match whole.into_iter().chain((0..layers).flat_map(of)).find(|name| !names.contains(name.as_str())) {
        Some(name) => Err(ImportError::TensorMissing { name }),
        None => Ok(()),
    }
}

fn one<'a>(
    family: &Family,
    gguf: String,
    tensor: Tensor<'a>,
    sizes: &Sizes,
    matrices: TensorType,
) -> Result<Output<'a>, StoreError> {
    let ty = type_of(&gguf, &tensor, matrices);
    let shape = tensor.entry.shape.clone();
    let rows = shape.first().copied().unwrap_or(1);
    let order = order_of(family, &gguf, rows, sizes)?;
    let is_norm = gguf.ends_with("norm.weight");
    let output = Output::rows(gguf, ty, shape, tensor, order);
    Ok(if is_norm { output.plus(family.norm_offset) } else { output })
}

/// Vectors, norms and routers stay exact.
fn type_of(gguf: &str, tensor: &Tensor<'_>, matrices: TensorType) -> TensorType {
    let exact = !tensor.is_matrix() || !gguf.ends_with(".weight");
    let exact = exact
        || ["_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight"]
            .iter()
            .any(|end| gguf.ends_with(end));
    if exact { TensorType::F32 } else { matrices }
}

/// The experts of a layer, as one tensor for each of their matrices, in whichever form the folder has them.
fn stacks<'a>(
    weights: &mut Weights<'a>,
    layer: u32,
    sizes: &Sizes,
    matrices: TensorType,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let prefix = format!("model.layers.{layer}");
    for Expert { there, here } in Expert::ALL {
        let name = |expert: u32| format!("{prefix}.{}.weight", there.replace("{}", &expert.to_string()));
        let Some(first) = weights.take(&name(0)) else { continue };
        let shape = first.entry.shape.clone();
        let rows = shape.first().copied().unwrap_or(0);
        let mut parts = vec![Part { tensor: first, rows, order: Order::Same }];
        for expert in 1..sizes.experts {
            let name = name(expert);
            let tensor = weights.take(&name).ok_or(ImportError::TensorMissing { name })?;
            if tensor.entry.shape != shape {
                let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
                return Err(ImportError::TensorShape { name, found, want: shape }.into());
            }
            parts.push(Part { tensor, rows, order: Order::Same });
        }
        outputs.push(Output {
            name: format!("blk.{layer}.{here}.weight"),
            ty: matrices,
            shape: [&[parts.len() as u64], &shape[..]].concat(),
            content: Content::Rows { parts, add: 0.0 },
        });
    }
    fused(weights, &format!("{prefix}.mlp.experts"), layer, matrices, outputs)
}

/// Experts that are stacked already: gate and up one behind the other or in turns.
fn fused<'a>(
    weights: &mut Weights<'a>,
    prefix: &str,
    layer: u32,
    matrices: TensorType,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps.weight");
    // gpt-oss: columns in turns, inputs first, and a bias, which no other family has.
    let bias = weights.take(&format!("{prefix}.gate_up_proj_bias"));
    let in_turns = bias.is_some();
    if let Some(bias) = bias {
        let [experts, both] = dims(&bias)?;
        for (first, part) in [(0, "gate"), (1, "up")] {
            let name = format!("blk.{layer}.ffn_{part}_exps.bias");
            let order = Order::Every { step: 2, first };
            outputs.push(Output::rows(name, TensorType::F32, vec![experts, both / 2], bias.clone(), order));
        }
    }
    for (there, halves) in
        [("gate_up_proj", &[(0, "gate"), (1, "up")][..]), ("down_proj", &[(0, "down")][..])]
    {
        let step = halves.len() as u64;
        if let Some(blocks) = weights.take(&format!("{prefix}.{there}_blocks")) {
            let of = format!("{prefix}.{there}_scales");
            let scales = weights.take(&of).ok_or(ImportError::TensorMissing { name: of })?;
            for &(first, half) in halves {
                outputs.push(packed(name(half), &blocks, &scales, Order::Every { step, first })?);
            }
        } else if let Some(tensor) = weights.take(&format!("{prefix}.{there}")) {
            let [experts, rows, columns] = dims(&tensor)?;
            for &(first, half) in halves {
                outputs.push(if in_turns {
                    let shape = vec![experts, columns / step, rows];
                    let content = Content::Transposed { tensor: tensor.clone(), step, first };
                    Output { name: name(half), ty: matrices, shape, content }
                } else {
                    let take = rows / step;
                    let order = Order::Window { each: rows, from: first * take, take };
                    let shape = vec![experts, take, columns];
                    Output::rows(name(half), matrices, shape, tensor.clone(), order)
                });
            }
        }
    }
    Ok(())
}

/// Some rows of experts whose weights come packed: sixteen bytes for a block of 32, and their scales apart.
fn packed<'a>(
    name: String,
    blocks: &Tensor<'a>,
    scales: &Tensor<'a>,
    order: Order,
) -> Result<Output<'a>, StoreError> {
    let [experts, rows, count, sixteen] = dims(blocks)?;
    if sixteen != 16 || blocks.entry.dtype != Dtype::U8 || scales.entry.dtype != Dtype::U8 {
        return Err(blocks.bad_type().into());
    }
    let want = vec![experts, rows, count];
    if scales.entry.shape != want {
        let (name, found) = (scales.entry.name.clone(), scales.entry.shape.clone());
        return Err(ImportError::TensorShape { name, found, want }.into());
    }
    let step = if let Order::Every { step, .. } = order { step } else { 1 };
    Ok(Output {
        name,
        ty: TensorType::MXFP4,
        shape: vec![experts, rows / step, count * 32],
        content: Content::Mxfp4 { blocks: blocks.clone(), scales: scales.clone(), order },
    })
}

/// The dimensions of a tensor that must have so many.
fn dims<const N: usize>(tensor: &Tensor<'_>) -> Result<[u64; N], ImportError> {
    let found = tensor.entry.shape.clone();
    <[u64; N]>::try_from(&found[..]).map_err(|_| {
        let name = tensor.entry.name.clone();
        ImportError::TensorShape { name, found, want: vec![0; N] }
    })
}
