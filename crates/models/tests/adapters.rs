//! Adapters beside a model's weights give what the model gives with the changes folded into its weights.

mod kit;

use std::path::Path;
use std::sync::Arc;

use kit::{Entry, feed};
use puna_gguf::{Gguf, Value, View, Writer};
use puna_models::{Adapter, AdapterError, LoadOptions, Model, ModelError};
use puna_quant::TensorType;

/// Entries of every architecture, with mixtures, fused projections, heads of their own and none, and packed weights.
const ENTRIES: [&str; 13] = [
    "llama",
    "llama-moe",
    "llama-q4_k_m",
    "llama-tied-bias",
    "phi3",
    "qwen2-tied",
    "qwen3-bf16",
    "qwen3moe",
    "gemma2",
    "gemma3",
    "gpt-oss",
    "gpt-oss-mxfp4",
    "bert-mean",
];

/// A matrix as f32.
struct Matrix {
    shape: Vec<u64>,
    data: Vec<f32>,
}

/// Numbers that look random, about as large as `size`, as a tensor of this type has them.
fn numbers(seed: u64, shape: &[u64], size: f32, ty: TensorType) -> (Vec<u8>, Matrix) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let wanted: Vec<f32> = (0..shape.iter().product()).map(|_| 1.7 * size * next()).collect();
    let row = shape[0] as usize;
    let mut bytes = vec![0; wanted.len() / row * ty.row_bytes(row).unwrap()];
    puna_quant::quantize(ty, &wanted, row, None, &mut bytes).unwrap();
    let mut data = vec![0.0; wanted.len()];
    puna_quant::dequantize(ty, &bytes, &mut data).unwrap();
    (bytes, Matrix { shape: shape.to_vec(), data })
}

/// A change of one tensor: `lora_a`, `lora_b`.
struct Pair {
    of: String,
    ty: TensorType,
    halves: [(Vec<u8>, Matrix); 2],
    scale: f32,
}

/// Changes of a file's matrices: every `step`-th, from `first` on.
fn pairs(base: &View, (first, step): (usize, usize), alpha: Option<f32>) -> Vec<Pair> {
    let matrices = base.tensors().filter(|t| t.shape.len() > 1 && t.name.ends_with(".weight"));
    let pair = |(i, tensor): (usize, puna_gguf::TensorView<'_>)| {
        let packed = if tensor.shape[0] % 32 == 0 { TensorType::Q8_0 } else { TensorType::F32 };
        let ty = [TensorType::F32, TensorType::F16, packed, TensorType::BF16][i % 4];
        // Blocks of a packed type are rows of `lora_b`.
        let rank = if ty == TensorType::Q8_0 { 32 } else { 1 + i as u64 % 5 };
        let (input, output) = (tensor.shape[0], tensor.shape[1]);
        let mut shapes = match tensor.name {
            "token_embd.weight" => [vec![rank, output], vec![rank, input]],
            _ => [vec![input, rank], vec![rank, output]],
        };
        shapes.iter_mut().for_each(|shape| shape.extend(tensor.shape.get(2)));
        let (seed, size) = (1 + i as u64 * 2, 0.3 / (input as f32).sqrt());
        let a = numbers(seed, &shapes[0], size, ty);
        let b = numbers(seed + 1, &shapes[1], 1.0, ty);
        let scale = alpha.map_or(1.0, |alpha| alpha / rank as f32);
        Pair { of: tensor.name.to_owned(), ty, halves: [a, b], scale }
    };
    matrices.enumerate().skip(first).step_by(step).map(pair).collect()
}

fn adapter(name: &str, base: &View, pairs: &[Pair], alpha: Option<f32>) -> Adapter {
    let mut writer = Writer::new();
    writer.set("general.architecture", base.metadata().architecture().unwrap());
    writer.set("general.type", "adapter").set("adapter.type", "lora");
    if let Some(alpha) = alpha {
        writer.set("adapter.lora.alpha", alpha);
    }
    for pair in pairs {
        for (half, (_, matrix)) in ["lora_a", "lora_b"].iter().zip(&pair.halves) {
            writer.tensor(&format!("{}.{half}", pair.of), pair.ty, &matrix.shape).unwrap();
        }
    }
    let data = pairs.iter().flat_map(|pair| &pair.halves).map(|(bytes, _)| &bytes[..]);
    let bytes = writer.to_vec(data).unwrap();
    Adapter::new(name, Arc::new(Gguf::from_bytes(bytes).unwrap()))
}

/// `w += scale · b · a`, of each expert.
fn fold(w: &mut Matrix, pair: &Pair) {
    let [(_, a), (_, b)] = &pair.halves;
    let (input, output) = (w.shape[0] as usize, w.shape[1] as usize);
    let rank = b.shape[0] as usize;
    for (expert, w) in w.data.chunks_exact_mut(input * output).enumerate() {
        let (a, b) = (&a.data[expert * input * rank..], &b.data[expert * output * rank..]);
        for (at, w) in w.iter_mut().enumerate() {
            let (o, i) = (at / input, at % input);
            let term = |r: usize| match pair.of.as_str() {
                "token_embd.weight" => f64::from(a[o * rank + r]) * f64::from(b[i * rank + r]),
                _ => f64::from(a[r * input + i]) * f64::from(b[o * rank + r]),
            };
            let change = (0..rank).map(term).sum::<f64>() * f64::from(pair.scale);
            *w = (f64::from(*w) + change) as f32;
        }
    }
}

/// The model with all changes in its weights.
fn folded(base: &View, pairs: &[&Pair], path: &Path) {
    let mut writer = Writer::with_metadata(base.metadata().clone());
    let mut data = Vec::new();
    for tensor in base.tensors() {
        let mine: Vec<_> = pairs.iter().filter(|pair| pair.of == tensor.name).collect();
        let ty = if mine.is_empty() { tensor.ty } else { TensorType::F32 };
        writer.tensor(tensor.name, ty, tensor.shape).unwrap();
        if mine.is_empty() {
            data.push(tensor.bytes().into_owned());
            continue;
        }
        let mut w = Matrix { shape: tensor.shape.to_vec(), data: vec![0.0; tensor.elements() as usize] };
        puna_quant::dequantize(tensor.ty, &tensor.bytes(), &mut w.data).unwrap();
        mine.iter().for_each(|pair| fold(&mut w, pair));
        data.push(w.data.iter().flat_map(|x| x.to_le_bytes()).collect());
    }
    std::fs::write(path, writer.to_vec(data.iter().map(|d| &d[..])).unwrap()).unwrap();
}

/// Largest distance and its root mean square, in standard deviations of the entry's results.
fn distance(entry: &Entry, got: &[Vec<f32>], want: &[Vec<f32>]) -> (f64, f64) {
    let std = entry.number("logits_std").or(entry.number("embeddings_std")).unwrap();
    assert_eq!(got.len(), want.len());
    let errors = got.iter().flatten().zip(want.iter().flatten());
    let errors: Vec<f64> = errors.map(|(g, w)| (f64::from(*g) - f64::from(*w)).abs() / std).collect();
    let worst = errors.iter().fold(0.0, |a: f64, &b| if b.is_nan() { f64::INFINITY } else { a.max(b) });
    (worst, (errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64).sqrt())
}

#[test]
fn an_adapted_model_answers_as_the_one_with_the_changes_folded_in() {
    let dir = tempfile::tempdir().unwrap();
    let mut failures = Vec::new();
    // Adapters have matrices of BF16, for which some levels round activations.
    let of_bf16 = Entry::load("qwen3-bf16");
    for name in ENTRIES {
        let plain = Entry::load(name);
        let base = View::new(Arc::new(Gguf::open(&plain.file).unwrap())).unwrap();
        let (one, two) = (pairs(&base, (0, 1), Some(2.0)), pairs(&base, (1, 2), None));
        let adapters = vec![adapter("one", &base, &one, Some(2.0)), adapter("two", &base, &two, Some(0.0))];
        let file = dir.path().join(format!("{name}.gguf"));
        folded(&base, &one.iter().chain(&two).collect::<Vec<_>>(), &file);
        let entry = Entry { adapters, ..Entry::load(name) };
        let folded = Entry { file, ..Entry::load(name) };
        let want = feed(&folded, "portable", "whole");
        let (changed, _) = distance(&entry, &feed(&plain, "portable", "whole"), &want);
        assert!(changed > 0.5, "{name}: the changes make a difference of {changed:.1e} only");
        let limit = entry.number("tolerance").unwrap();
        let rough = |key: &str| entry.number(key).unwrap_or(limit).max(of_bf16.number(key).unwrap());
        let (rough, rough_rms) =
            (rough("tolerance_quantised_activations"), rough("tolerance_quantised_activations_rms"));
        let levels = puna_cpu::kernels::levels().iter().chain(puna_cpu::kernels::emulated());
        for level in ["portable"].into_iter().chain(levels.map(|level| level.name)) {
            for how in ["whole", "one", "batch"] {
                if entry.is_embedding() && how == "one" {
                    continue;
                }
                let (worst, rms) = distance(&entry, &feed(&entry, level, how), &want);
                let (limit, rms_limit) =
                    if level == "portable" { (limit, limit) } else { (rough, rough_rms) };
                if worst > limit || rms > rms_limit {
                    failures.push(format!(
                        "{name} {how} at {level}: {worst:.1e}, rms {rms:.1e} (limit {limit:.0e})"
                    ));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Why a file with these keys and tensors is no adapter for an entry's model.
fn refusal(keys: &[(&str, Value)], tensors: &[(&str, &[u64])]) -> AdapterError {
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama").set("general.type", "adapter");
    writer.set("adapter.type", "lora").set("adapter.lora.alpha", 1.0f32);
    for (key, value) in keys {
        writer.set(key, value.clone());
    }
    let mut data = Vec::new();
    for (name, shape) in tensors {
        writer.tensor(name, TensorType::F32, shape).unwrap();
        data.push(vec![0u8; 4 * shape.iter().product::<u64>() as usize]);
    }
    let bytes = writer.to_vec(data.iter().map(|d| &d[..])).unwrap();
    let bad = Adapter::new("bad", Arc::new(Gguf::from_bytes(bytes).unwrap()));
    let base = View::new(Arc::new(Gguf::open(&Entry::load("llama").file).unwrap())).unwrap();
    match Model::load_adapted(&base, &[bad], LoadOptions::default()).map(|_| ()) {
        Err(ModelError::Adapter { adapter, error }) => {
            assert_eq!(adapter, "bad");
            *error
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_adapter_that_does_not_fit_is_refused_with_its_name_and_what_is_wrong() {
    let keys = |key, value: Value| refusal(&[(key, value)], &[]).to_string();
    assert_eq!(
        keys("general.type", "model".into()),
        "`general.type` is \"model\"; an adapter has \"adapter\""
    );
    assert_eq!(keys("adapter.type", "ia3".into()), "`adapter.type` is \"ia3\"; an adapter has \"lora\"");
    let other = keys("general.architecture", "qwen3".into());
    assert_eq!(other, "it is made for the architecture `qwen3`, and this model's is `llama`");
    assert!(keys("adapter.lora.alpha", f32::NAN.into()).contains("is NaN, which is no number"));
    let tokens: Value = vec![1u32].into();
    assert!(keys("adapter.alora.invocation_tokens", tokens).contains("only from certain tokens on"));

    let of = |tensors: &[(&str, &[u64])]| refusal(&[], tensors).to_string();
    let q = |end: &str| format!("blk.0.attn_q.weight.lora_{end}");
    let (a, b) = (&*q("a"), &*q("b"));
    // The model's is 48 × 48.
    assert_eq!(of(&[(a, &[48, 2])]), format!("tensor `{a}` has no `{b}` beside it"));
    assert_eq!(of(&[(b, &[2, 48])]), format!("tensor `{b}` has no `{a}` beside it"));
    assert_eq!(of(&[(a, &[48, 2]), (b, &[3, 48])]), format!("`{a}` has rank 2, and `{b}` has rank 3"));
    let wide = of(&[(a, &[49, 2]), (b, &[2, 48])]);
    let want = format!("tensor `{a}` has shape [49, 2]; the model's tensor of shape [48, 48] needs [48, 2]");
    assert!(wide.starts_with(&want), "{wide}");
    let experts = of(&[(a, &[48, 2, 4]), (b, &[2, 48, 4])]);
    assert!(experts.starts_with(&format!("tensor `{a}` has shape [48, 2, 4]")), "{experts}");
    let absent = of(&[("blk.9.attn_q.weight.lora_a", &[48, 2]), ("blk.9.attn_q.weight.lora_b", &[2, 48])]);
    assert!(absent.starts_with("the model has no tensor `blk.9.attn_q.weight`"), "{absent}");
    assert!(of(&[("blk.0.attn_q.weight", &[48, 2])]).ends_with("ends neither in `.lora_a` nor in `.lora_b`"));
    let norm = of(&[("output_norm.weight.lora_a", &[48, 2]), ("output_norm.weight.lora_b", &[2, 1])]);
    assert!(
        norm.starts_with("tensor `output_norm.weight` is not one that the model multiplies with"),
        "{norm}"
    );
}
