//! BERT and XLM-RoBERTa encoders: tensor names, metadata, and pooling of sentence-transformers.
//! Matrices become F16, as Ollama writes them; vectors and embeddings of positions and token types
//! stay F32.

use std::collections::BTreeMap;
use std::io::Write;

use puna_gguf::{Value, Writer, escape_for_message};
use puna_quant::TensorType;

use crate::error::ConvertError;
use crate::output::{self, OutputTensor, ProgressReport, RowMapping, RowOrder};
use crate::source::{Config, Dtype, ModelFolder, Weights};
use crate::vocabulary::{Vocabulary, WordPiece};

/// Classes in `config.json` that [`convert`] handles.
pub(crate) const CLASSES: [&str; 7] = [
    "BertModel",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "XLMRobertaModel",
    "XLMRobertaForSequenceClassification",
    "RobertaModel",
    "RobertaForSequenceClassification",
];

/// Value of `general.file_type` for F16 matrices.
const FILE_TYPE_F16: u32 = 1;

/// Sizes of the encoder.
struct EncoderSizes {
    width: u64,
    layers: u32,
    inner: u64,
    heads: u32,
    context: u64,
    types: u64,
    rows: u64,
    /// Number of rows before the first position in the position embedding, for RoBERTa.
    padding: Option<u64>,
}

/// Vocabulary of an encoder.
enum BertVocabulary {
    WordPiece(WordPiece),
    Unigram(Box<Vocabulary>),
}

pub(crate) fn convert(
    folder: &ModelFolder<'_>,
    config: &Config,
    out: &mut dyn Write,
    report: ProgressReport<'_>,
) -> Result<(), ConvertError> {
    let class = config.architecture()?;
    let is_classifier = class.ends_with("ForSequenceClassification");
    if let Some(act) = config.text("hidden_act").filter(|act| !act.starts_with("gelu")) {
        let (file, found) =
            ("config.json".to_owned(), format!("with activation {}", escape_for_message(act)));
        return Err(ConvertError::Architecture { file, found, known: CLASSES.join(", ") });
    }
    let padding = match class.contains("Roberta") {
        // The position of the padding token is the last before that of the first token.
        true => {
            Some(config.value("pad_token_id").and_then(serde_json::Value::as_u64).unwrap_or(1) + 1)
        }
        false => None,
    };
    let shape = EncoderSizes {
        width: config.count("hidden_size")?.into(),
        layers: config.count("num_hidden_layers")?,
        inner: config.count("intermediate_size")?.into(),
        heads: config.count("num_attention_heads")?,
        context: u64::from(config.count("max_position_embeddings")?)
            .checked_sub(padding.unwrap_or(0))
            .filter(|&n| n > 0)
            .ok_or_else(|| {
                config.invalid("max_position_embeddings", "greater than the padding id")
            })?,
        padding,
        types: config.opt_count("type_vocab_size")?.unwrap_or(1).into(),
        rows: config.count("vocab_size")?.into(),
    };
    let files = folder.safetensors()?;
    let mut outputs = outputs(Weights::from_files(&files, config, "")?, &shape, is_classifier)?;
    output::widen_overflowing(&mut outputs, report)?;
    let vocabulary = match padding {
        Some(_) => {
            BertVocabulary::Unigram(Box::new(Vocabulary::read(folder, config, false, shape.rows)?))
        }
        None => BertVocabulary::WordPiece(WordPiece::read(folder, shape.rows as u32)?),
    };

    let mut writer = Writer::new();
    write_keys(&mut writer, folder, config, &shape, is_classifier)?;
    writer.set("tokenizer.ggml.token_type_count", shape.types as u32);
    match vocabulary {
        BertVocabulary::Unigram(vocabulary) => vocabulary.write("bert", &mut writer),
        BertVocabulary::WordPiece(vocabulary) => vocabulary.write(&mut writer),
    }
    output::write_file(writer, &outputs, out, report)
}

fn write_keys(
    writer: &mut Writer,
    folder: &ModelFolder<'_>,
    config: &Config,
    shape: &EncoderSizes,
    is_classifier: bool,
) -> Result<(), ConvertError> {
    writer.set("general.architecture", "bert").set("general.type", "model");
    if let Some(name) = config
        .text("_name_or_path")
        .and_then(|path| path.rsplit('/').next())
        .filter(|n| !n.is_empty())
    {
        writer.set("general.name", name);
    }
    writer.set("general.file_type", FILE_TYPE_F16).set("general.quantization_version", 2u32);
    writer
        .set("bert.block_count", shape.layers)
        .set("bert.context_length", shape.context as u32)
        .set("bert.embedding_length", shape.width as u32)
        .set("bert.feed_forward_length", shape.inner as u32)
        .set("bert.attention.head_count", shape.heads)
        .set("bert.attention.layer_norm_epsilon", config.float_or("layer_norm_eps", 1e-12)?)
        .set("bert.attention.causal", false);
    let (pooling, normalize) = if is_classifier { (4u32, false) } else { pooling(folder)? };
    writer.set("bert.pooling_type", pooling).set("bert.normalize_embeddings", normalize);
    if let Some(labels) =
        config.value("id2label").and_then(|labels| labels.as_object()).filter(|_| is_classifier)
    {
        let mut ordered: Vec<(u64, &str)> = Vec::new();
        for (id, label) in labels {
            if let (Ok(id), Some(label)) = (id.parse(), label.as_str()) {
                ordered.push((id, label));
            }
        }
        ordered.sort_unstable();
        writer
            .set("bert.classifier.output_labels", Value::strings(ordered.iter().map(|row| row.1)));
    }
    Ok(())
}

/// Pooling type, and whether embeddings are normalized, from `modules.json` of
/// sentence-transformers. Without that file, sentence-transformers uses the mean, and so does this
/// function.
pub(crate) fn pooling(folder: &ModelFolder<'_>) -> Result<(u32, bool), ConvertError> {
    let Some(modules) = folder.json("modules.json")? else { return Ok((1, true)) };
    let (mut pooling, mut normalize) = (1, false);
    for module in modules.as_array().into_iter().flatten() {
        let kind = module.get("type").and_then(|t| t.as_str()).unwrap_or_default();
        let path = module.get("path").and_then(|p| p.as_str()).unwrap_or_default();
        match kind.rsplit('.').next().unwrap_or_default() {
            "Pooling" => {
                pooling = pooling_of(&Config::read(folder, &format!("{path}/config.json"))?, path)?
            }
            "Normalize" => normalize = true,
            _ => {}
        }
    }
    Ok((pooling, normalize))
}

fn pooling_of(config: &Config, path: &str) -> Result<u32, ConvertError> {
    let modes = [
        ("pooling_mode_mean_tokens", Some(1)),
        ("pooling_mode_cls_token", Some(2)),
        ("pooling_mode_lasttoken", Some(3)),
        ("pooling_mode_max_tokens", None),
        ("pooling_mode_mean_sqrt_len_tokens", None),
        ("pooling_mode_weightedmean_tokens", None),
    ];
    let on: Vec<_> = modes.iter().filter(|(key, _)| config.flag(key) == Some(true)).collect();
    match on[..] {
        [] => Ok(1),
        [(_, Some(kind))] => Ok(*kind),
        [(key, None)] => Err(ConvertError::Pooling {
            file: format!("{path}/config.json"),
            found: (*key).to_owned(),
        }),
        _ => Err(ConvertError::Pooling {
            file: format!("{path}/config.json"),
            found: "a mix of several kinds".into(),
        }),
    }
}

/// Source names of all tensors that the folder must have, with target name and shape (slowest
/// dimension first).
fn expected(
    shape: &EncoderSizes,
    is_classifier: bool,
) -> BTreeMap<String, (String, Option<Vec<u64>>)> {
    let mut all = BTreeMap::new();
    let (d, inner) = (shape.width, shape.inner);
    let mut add = |hf: String, gguf: String, dims: Option<Vec<u64>>| {
        all.insert(hf, (gguf, dims));
    };
    for (hf, gguf, rows) in [
        ("word_embeddings", "token_embd", shape.rows),
        ("position_embeddings", "position_embd", shape.context + shape.padding.unwrap_or(0)),
        ("token_type_embeddings", "token_types", shape.types),
    ] {
        add(format!("embeddings.{hf}.weight"), format!("{gguf}.weight"), Some(vec![rows, d]));
    }
    let mut pair = |hf: String, gguf: String, dims: Option<[u64; 2]>| {
        // A norm has a vector of weights, a linear layer a matrix.
        let bias = dims.map_or(d, |dims| dims[0]);
        add(
            format!("{hf}.weight"),
            format!("{gguf}.weight"),
            Some(dims.map_or(vec![d], |dims| dims.to_vec())),
        );
        add(format!("{hf}.bias"), format!("{gguf}.bias"), Some(vec![bias]));
    };
    pair("embeddings.LayerNorm".into(), "token_embd_norm".into(), None);
    for i in 0..shape.layers {
        for (hf, gguf, dims) in [
            ("attention.self.query", "attn_q", Some([d, d])),
            ("attention.self.key", "attn_k", Some([d, d])),
            ("attention.self.value", "attn_v", Some([d, d])),
            ("attention.output.dense", "attn_output", Some([d, d])),
            ("attention.output.LayerNorm", "attn_output_norm", None),
            ("intermediate.dense", "ffn_up", Some([inner, d])),
            ("output.dense", "ffn_down", Some([d, inner])),
            ("output.LayerNorm", "layer_output_norm", None),
        ] {
            pair(format!("encoder.layer.{i}.{hf}"), format!("blk.{i}.{gguf}"), dims);
        }
    }
    if is_classifier {
        let (dense, output) = match shape.padding {
            Some(_) => ("classifier.dense", "classifier.out_proj"),
            None => ("pooler.dense", "classifier"),
        };
        pair(dense.into(), "cls".into(), Some([d, d]));
        // The number of labels varies.
        add(format!("{output}.weight"), "cls.output.weight".into(), None);
        add(format!("{output}.bias"), "cls.output.bias".into(), None);
    }
    all
}

/// Maps all expected tensors, whose names vary among published folders.
fn outputs<'a>(
    mut weights: Weights<'a>,
    shape: &EncoderSizes,
    is_classifier: bool,
) -> Result<Vec<OutputTensor<'a>>, ConvertError> {
    // Each layer has two tensors of every name. A larger number of layers is rejected before any
    // memory depends on it.
    if shape.layers as usize > weights.len() {
        return Err(ConvertError::TensorMissing {
            name: format!("encoder.layer.{}.*", shape.layers - 1),
        });
    }
    let mut missing = expected(shape, is_classifier);
    let mut outputs = Vec::new();
    let names: Vec<String> = weights.names().cloned().collect();
    for given in names {
        let Some(tensor) = weights.take(&given) else { continue };
        let plain = given.strip_prefix("bert.").or_else(|| given.strip_prefix("roberta."));
        let name = plain.unwrap_or(&given);
        let name = name.replace(".gamma", ".weight").replace(".beta", ".bias");
        let Some((gguf, dims)) = missing.remove(&name) else {
            if is_unused(&name) {
                continue;
            }
            return Err(ConvertError::TensorUnknown { name: escape_for_message(&given) });
        };
        if dims.as_ref().is_some_and(|want| *want != tensor.entry.shape) {
            let (found, want) = (tensor.entry.shape.clone(), dims.unwrap_or_default());
            return Err(ConvertError::TensorShape { name: given, found, want });
        }
        if !matches!(tensor.entry.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            return Err(tensor.bad_type());
        }
        let is_table = matches!(gguf.as_str(), "position_embd.weight" | "token_types.weight");
        let ty = if tensor.is_matrix() && !is_table { TensorType::F16 } else { TensorType::F32 };
        let mut dims = tensor.entry.shape.clone();
        let mut order = RowOrder::SAME;
        if let (Some(first), "position_embd.weight") = (shape.padding, gguf.as_str()) {
            (dims[0], order) = (shape.context, RowOrder::of(RowMapping::Offset { rows: first }));
        }
        outputs.push(OutputTensor::rows(gguf, ty, dims, tensor, order));
    }
    if let Some(name) = missing.into_keys().next() {
        return Err(ConvertError::TensorMissing { name });
    }
    output::sort_by_layer(&mut outputs);
    Ok(outputs)
}

/// Training tensors that an embedding model does not need.
fn is_unused(name: &str) -> bool {
    name.starts_with("cls.predictions.")
        || name.starts_with("cls.seq_relationship.")
        || name.starts_with("pooler.dense.")
        || name.starts_with("lm_head.")
        || name.ends_with("embeddings.position_ids")
}
