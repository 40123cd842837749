//! A model with adapters gives the same results as the model with the updates merged into its
//! weights.

use crate::kit;

use std::path::Path;
use std::sync::Arc;

use crate::kit::{Entry, Runner, feed, older_latent, rewritten};
use puna_gguf::{Gguf, TensorView, Value, View, Writer};
use puna_graph::AdapterScales;
use puna_models::{Adapter, AdapterError, LoadOptions, Model, ModelError};
use puna_quant::TensorType;

/// Entries that run at every kernel level: with experts, fused projections, separate heads, shared
/// keys and values, and quantized weights.
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

/// Pseudo-random numbers of about this size, rounded to a tensor of type `ty`.
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

/// Whether the rows of the tensor belong to tokens.
fn is_table(name: &str) -> bool {
    name.ends_with("token_embd.weight")
}

/// Update of a tensor: `lora_a`, `lora_b`.
struct Pair {
    of: String,
    ty: TensorType,
    halves: [(Vec<u8>, Matrix); 2],
    scale: f32,
}

/// Tensors with several dimensions that are not matrices.
const NO_MATRICES: [&str; 13] = [
    "altup_",
    "attn_compressor_ape",
    "attn_k_norm",
    "attn_q_norm",
    "attn_rel_b",
    "conv",
    "ffn_gate_tid2eid",
    "indexer_compressor_ape",
    "posnet",
    "ssm_norm",
    "time_mix_first",
    "time_mix_lerp_fused",
    "vis_",
];

/// Matrices in files that the graph does not multiply with (layers that read other layers' keys),
/// stacks that are split, and the n-gram table, of which a token reads several rows.
const UNUSED: [&str; 18] = [
    "arwkv7 blk.0.time_mix_v1.weight",
    "arwkv7 blk.0.time_mix_v2.weight",
    "gemma3n blk.20.attn_k.weight",
    "gemma3n blk.20.attn_v.weight",
    "gemma3n blk.21.attn_k.weight",
    "gemma3n blk.21.attn_v.weight",
    "glm5-next blk.4.indexer.attn_k.weight",
    "glm5-next blk.4.indexer.attn_q_b.weight",
    "glm5-next blk.4.indexer.proj.weight",
    "glm5-next blk.4.indexer_compressor_gate.weight",
    "llama-embed output.weight",
    "qwen4exp per_layer_token_embd.weight",
    "rwkv6 blk.0.time_mix_w2.weight",
    "rwkv6 blk.1.time_mix_w2.weight",
    "rwkv6qwen2 blk.0.time_mix_w2.weight",
    "rwkv6qwen2 blk.1.time_mix_w2.weight",
    "rwkv7 blk.0.time_mix_v1.weight",
    "rwkv7 blk.0.time_mix_v2.weight",
];

/// Updates of every `step`-th matrix of a file, starting at `first`.
fn pairs(base: &View, steps: (usize, usize), alpha: Option<f32>) -> Vec<Pair> {
    let is_matrix =
        |name: &str| name.ends_with(".weight") && !NO_MATRICES.iter().any(|no| name.contains(no));
    let matrices = base.tensors().filter(|t| t.shape.len() > 1 && is_matrix(t.name));
    let all = matrices.enumerate().map(|(i, tensor)| {
        let packed = if tensor.shape[0] % 32 == 0 { TensorType::Q8_0 } else { TensorType::F32 };
        (tensor, [TensorType::F32, TensorType::F16, packed, TensorType::BF16][i % 4])
    });
    pairs_of(all, steps, alpha)
}

/// Updates of every `step`-th tensor in these types, starting at `first`.
fn pairs_of<'a>(
    all: impl Iterator<Item = (TensorView<'a>, TensorType)>,
    (first, step): (usize, usize),
    alpha: Option<f32>,
) -> Vec<Pair> {
    let pair = |(i, (tensor, ty)): (usize, (TensorView<'_>, TensorType))| {
        // The rows of `lora_b` are blocks of a quantized type.
        let rank = if ty == TensorType::Q8_0 { 32 } else { 1 + i as u64 % 5 };
        let (input, output) = (tensor.shape[0], tensor.shape[1]);
        let mut shapes = match is_table(tensor.name) {
            true => [vec![rank, output], vec![rank, input]],
            false => [vec![input, rank], vec![rank, output]],
        };
        shapes.iter_mut().for_each(|shape| shape.extend(tensor.shape.get(2)));
        let (seed, size) = (1 + i as u64 * 2, 0.3 / (input as f32).sqrt());
        let a = numbers(seed, &shapes[0], size, ty);
        let b = numbers(seed + 1, &shapes[1], 1.0, ty);
        let scale = alpha.map_or(1.0, |alpha| alpha / rank as f32);
        Pair { of: tensor.name.to_owned(), ty, halves: [a, b], scale }
    };
    all.enumerate().skip(first).step_by(step).map(pair).collect()
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

/// Adds `scale · b · a` to each expert of `w`. The product with `w` is multiplied by `factor`, the
/// update is not.
fn fold(w: &mut Matrix, pair: &Pair, factor: f32) {
    let [(_, a), (_, b)] = &pair.halves;
    let (input, output) = (w.shape[0] as usize, w.shape[1] as usize);
    let rank = b.shape[0] as usize;
    for (expert, w) in w.data.chunks_exact_mut(input * output).enumerate() {
        let (a, b) = (&a.data[expert * input * rank..], &b.data[expert * output * rank..]);
        for (at, w) in w.iter_mut().enumerate() {
            let (o, i) = (at / input, at % input);
            let term = |r: usize| match is_table(&pair.of) {
                true => f64::from(a[o * rank + r]) * f64::from(b[i * rank + r]),
                false => f64::from(a[r * input + i]) * f64::from(b[o * rank + r]),
            };
            let change = (0..rank).map(term).sum::<f64>() * f64::from(pair.scale / factor);
            *w = (f64::from(*w) + change) as f32;
        }
    }
}

/// The model with all updates merged into its weights.
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
        let mut w =
            Matrix { shape: tensor.shape.to_vec(), data: vec![0.0; tensor.elements() as usize] };
        puna_quant::dequantize(tensor.ty, &tensor.bytes(), &mut w.data).unwrap();
        let factor =
            base.tensor(&tensor.name.replace(".weight", ".scale")).filter(|t| t.elements() == 1);
        let factor = factor.map_or(1.0, |t| f32::from_le_bytes(t.bytes()[..4].try_into().unwrap()));
        mine.iter().for_each(|pair| fold(&mut w, pair, factor));
        data.push(w.data.iter().flat_map(|x| x.to_le_bytes()).collect());
    }
    std::fs::write(path, writer.to_vec(data.iter().map(|d| &d[..])).unwrap()).unwrap();
}

/// Largest distance and root mean square distance, in standard deviations of the entry's results.
fn distance(entry: &Entry, got: &[Vec<f32>], want: &[Vec<f32>]) -> (f64, f64) {
    let std = entry.number("logits_std").or(entry.number("embeddings_std")).unwrap();
    assert_eq!(got.len(), want.len());
    let errors = got.iter().flatten().zip(want.iter().flatten());
    let errors: Vec<f64> =
        errors.map(|(g, w)| (f64::from(*g) - f64::from(*w)).abs() / std).collect();
    let worst =
        errors.iter().fold(0.0, |a: f64, &b| if b.is_nan() { f64::INFINITY } else { a.max(b) });
    (worst, (errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64).sqrt())
}

#[test]
fn an_adapted_model_equals_the_model_with_merged_updates() {
    let dir = tempfile::tempdir().unwrap();
    let mut failures = Vec::new();
    // Adapters have BF16 matrices, for which some levels round activations.
    let of_bf16 = Entry::load("qwen3-bf16");
    for name in ENTRIES {
        let plain = Entry::load(name);
        let base = View::new(Arc::new(Gguf::open(&plain.file).unwrap())).unwrap();
        let (one, two) = (pairs(&base, (0, 1), Some(2.0)), pairs(&base, (1, 2), None));
        let adapters =
            vec![adapter("one", &base, &one, Some(2.0)), adapter("two", &base, &two, Some(0.0))];
        let file = dir.path().join(format!("{name}.gguf"));
        folded(&base, &one.iter().chain(&two).collect::<Vec<_>>(), &file);
        let entry = Entry { adapters, ..Entry::load(name) };
        let folded = Entry { file, ..Entry::load(name) };
        let want = feed(&folded, "portable", "whole");
        let (changed, _) = distance(&entry, &feed(&plain, "portable", "whole"), &want);
        assert!(changed > 0.5, "{name}: the changes make a difference of {changed:.1e} only");
        let limit = entry.number("tolerance").unwrap();
        let rough =
            |key: &str| entry.number(key).unwrap_or(limit).max(of_bf16.number(key).unwrap());
        let (rough, rough_rms) = (
            rough("tolerance_quantised_activations"),
            rough("tolerance_quantised_activations_rms"),
        );
        let levels = puna_cpu::kernels::levels().iter().chain(puna_cpu::kernels::emulated());
        for level in ["portable"].into_iter().chain(levels.map(|level| level.name)) {
            for how in ["whole", "one", "batch"] {
                if entry.is_whole() && how == "one" {
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

/// Every matrix of every architecture can have an update.
#[test]
fn every_matrix_of_every_architecture_can_be_adapted() {
    let dir = tempfile::tempdir().unwrap();
    let (mut failures, mut unused) = (Vec::new(), Vec::new());
    let file = kit::zoo().join("../compat/full-gemma4-moe.gguf");
    let apart = Entry { file, ..Entry::load("gemma4-moe") };
    // Sequentially, because their files have the same name.
    let older = [("deepseek2-lite", 4), ("deepseek3", 2)].into_iter();
    let older = older.map(|(name, heads)| older_latent(name, heads));
    let entries = Entry::chosen().into_iter().filter(|entry| !ENTRIES.contains(&&*entry.name));
    for plain in entries.chain([apart]).chain(older) {
        let name = plain.name.clone();
        let base = View::new(Arc::new(Gguf::open(&plain.file).unwrap())).unwrap();
        let mut changes = pairs(&base, (0, 1), Some(0.5));
        let adapters = loop {
            let adapters = vec![adapter("all", &base, &changes, Some(0.5))];
            let Err(error) = Model::load_with_adapters(&base, &adapters, LoadOptions::default())
            else {
                break adapters;
            };
            let ModelError::Adapter { error, .. } = &error else { panic!("{name}: {error}") };
            let AdapterError::Unused { tensor } = &**error else { panic!("{name}: {error}") };
            unused.push(format!("{name} {tensor}"));
            changes.retain(|pair| pair.of != *tensor);
        };
        let file = dir.path().join(format!("{name}.gguf"));
        folded(&base, &changes.iter().collect::<Vec<_>>(), &file);
        let want = feed(&Entry { file: file.clone(), ..Entry::load(&name) }, "portable", "whole");
        let (changed, _) = distance(&plain, &feed(&plain, "portable", "whole"), &want);
        let got = feed(&Entry { adapters, ..plain }, "portable", "whole");
        let (worst, _) = distance(&Entry::load(&name), &got, &want);
        let limit = Entry::load(&name).number("tolerance").unwrap();
        // The error grows with the size of the update.
        if worst > limit * (1.0 + changed) || changed < 0.1 {
            failures.push(format!("{name}: {worst:.1e} of {changed:.1e} (limit {limit:.0e})"));
        }
        std::fs::remove_file(file).unwrap();
    }
    std::fs::remove_file(older_latent("deepseek3", 2).file).unwrap();
    unused.retain(|unused| !UNUSED.contains(&&**unused));
    assert!(unused.is_empty(), "{unused:?} cannot change");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Sequences with different adapter scales share steps; the reference logits come from llama.cpp
/// with a context per mix.
#[test]
fn mixes_of_adapters_match_llama_cpp() {
    for name in ["llama", "gemma4-moe", "gpt-oss", "nemotron-h-moe", "rwkv7", "bert-mean"] {
        let text =
            std::fs::read_to_string(kit::zoo().join(format!("../adapters/{name}.json"))).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let list = |key: &str| json[key].as_array().unwrap().iter();
        let numbers = |list: &serde_json::Value| -> Vec<f64> {
            serde_json::from_value(list.clone()).unwrap()
        };
        let base = View::new(Arc::new(Gguf::open(&Entry::load(name).file).unwrap())).unwrap();
        let changed = || {
            let names = list("changed").map(|name| base.tensor(name.as_str().unwrap()).unwrap());
            names.map(|tensor| (tensor, TensorType::F32))
        };
        let (one, two) =
            (pairs_of(changed(), (0, 1), Some(2.0)), pairs_of(changed(), (1, 2), None));
        let adapters =
            vec![adapter("one", &base, &one, Some(2.0)), adapter("two", &base, &two, None)];
        let entry = Entry { adapters, ..Entry::load(name) };
        let adapter_scales = |mix: &serde_json::Value| {
            AdapterScales::new(
                &numbers(mix).into_iter().map(|scale| scale as f32).collect::<Vec<_>>(),
            )
        };
        let mixes: Vec<AdapterScales> = list("mixes").map(adapter_scales).collect();
        let std = entry.number("logits_std").or(entry.number("embeddings_std")).unwrap();
        let limit = entry.number("tolerance").unwrap();
        for ((got, want), mix) in
            together(&entry, "portable", &mixes).iter().zip(list("rows")).zip(&mixes)
        {
            for (position, want) in list("positions").zip(want.as_array().unwrap()) {
                let got = &got[position.as_u64().unwrap() as usize];
                let errors =
                    got.iter().zip(numbers(want)).map(|(got, want)| (f64::from(*got) - want).abs());
                let worst = errors.fold(0.0, f64::max) / std;
                assert!(
                    worst <= limit,
                    "{name}, {mix:?} at {position}: {worst:.1e} (limit {limit:.0e})"
                );
            }
        }
    }
}

/// Error of an adapter with these keys and tensors for an entry's model.
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
    match Model::load_with_adapters(&base, &[bad], LoadOptions::default()).map(|_| ()) {
        Err(ModelError::Adapter { adapter, error }) => {
            assert_eq!(adapter, "bad");
            *error
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_empty_or_non_finite_adapter_is_rejected() {
    let of = |tensors: &[(&str, &[u64])]| refusal(&[], tensors).to_string();
    let nothing = "it has no pair of tensors `NAME.lora_a` and `NAME.lora_b`";
    assert_eq!(of(&[]), nothing);
    assert_eq!(of(&[("blk.0.attn_norm.weight", &[48])]), nothing);
    let (a, b) = ("blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b");
    let high = of(&[(a, &[48, 49]), (b, &[49, 48])]);
    assert!(high.starts_with(&format!("`{a}` has rank 49, more than")), "{high}");
    // A scale of zero does not remove NaN.
    let bad = |at: usize, value: f32| {
        let mut writer = Writer::new();
        writer.set("general.architecture", "llama").set("general.type", "adapter");
        writer.set("adapter.type", "lora");
        let mut halves = [vec![0.5f32; 96], vec![0.5; 96]];
        halves[at][95] = value;
        for (name, shape) in [(a, [48, 2]), (b, [2, 48])] {
            writer.tensor(name, TensorType::F32, &shape).unwrap();
        }
        let data =
            halves.map(|half| half.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        let bytes = writer.to_vec(data.iter().map(|d| &d[..])).unwrap();
        let adapter = Adapter::new("bad", Arc::new(Gguf::from_bytes(bytes).unwrap()));
        let base = View::new(Arc::new(Gguf::open(&Entry::load("llama").file).unwrap())).unwrap();
        match Model::load_with_adapters(&base, &[adapter], LoadOptions::default()).map(|_| ()) {
            Err(ModelError::Adapter { error, .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    for (at, name) in [(0, a), (1, b)] {
        for value in [f32::NAN, f32::INFINITY] {
            let text = bad(at, value);
            assert!(
                text.starts_with(&format!("the data of tensor `{name}` cannot be used: ")),
                "{text}"
            );
        }
    }
}

#[test]
fn a_mismatched_adapter_is_rejected_with_its_name_and_the_reason() {
    let keys = |key, value: Value| refusal(&[(key, value)], &[]).to_string();
    assert_eq!(
        keys("general.type", "model".into()),
        "`general.type` is `model`; an adapter has `adapter`"
    );
    assert_eq!(
        keys("adapter.type", "ia3".into()),
        "`adapter.type` is `ia3`; an adapter has `lora`"
    );
    let other = keys("general.architecture", "qwen3".into());
    assert_eq!(other, "it is for architecture `qwen3`, but the model has architecture `llama`");
    assert!(
        keys("adapter.lora.alpha", f32::NAN.into()).contains("is NaN: it must be a finite number")
    );
    let tokens: Value = vec![1u32].into();
    assert!(
        keys("adapter.alora.invocation_tokens", tokens).contains("only from certain tokens on")
    );

    let of = |tensors: &[(&str, &[u64])]| refusal(&[], tensors).to_string();
    let q = |end: &str| format!("blk.0.attn_q.weight.lora_{end}");
    let (a, b) = (&*q("a"), &*q("b"));
    // The matrix of the model is 48 × 48.
    assert_eq!(of(&[(a, &[48, 2])]), format!("tensor `{a}` needs `{b}`, which is missing"));
    assert_eq!(of(&[(b, &[2, 48])]), format!("tensor `{b}` needs `{a}`, which is missing"));
    assert_eq!(
        of(&[(a, &[48, 2]), (b, &[3, 48])]),
        format!("`{a}` has rank 2, and `{b}` has rank 3")
    );
    let wide = of(&[(a, &[49, 2]), (b, &[2, 48])]);
    let want = format!(
        "tensor `{a}` has shape [49, 2]; the model's tensor of shape [48, 48] needs [48, 2]"
    );
    assert!(wide.starts_with(&want), "{wide}");
    let experts = of(&[(a, &[48, 2, 4]), (b, &[2, 48, 4])]);
    assert!(experts.starts_with(&format!("tensor `{a}` has shape [48, 2, 4]")), "{experts}");
    let absent =
        of(&[("blk.9.attn_q.weight.lora_a", &[48, 2]), ("blk.9.attn_q.weight.lora_b", &[2, 48])]);
    assert!(absent.starts_with("the model has no tensor `blk.9.attn_q.weight`"), "{absent}");
    assert!(
        of(&[("blk.0.attn_q.weight", &[48, 2])])
            .ends_with("ends neither in `.lora_a` nor in `.lora_b`")
    );
    let norm =
        of(&[("output_norm.weight.lora_a", &[48, 2]), ("output_norm.weight.lora_b", &[2, 1])]);
    assert!(
        norm.starts_with(
            "tensor `output_norm.weight` is not a matrix of the model's multiplications"
        ),
        "{norm}"
    );
}

/// Results of sequences with these adapter scales, all in the same steps of seven tokens each.
fn together(entry: &Entry, level: &str, adapter_scales: &[AdapterScales]) -> Vec<Vec<Vec<f32>>> {
    let mut runner = Runner::new(entry, level);
    runner.adapter_scales = adapter_scales.to_vec();
    let mut rows = vec![Vec::new(); adapter_scales.len()];
    let all = entry.tokens.len();
    let chunk = if entry.is_whole() { all } else { 7 };
    for cached_tokens in (0..all).step_by(chunk) {
        let tokens = &entry.tokens[cached_tokens..(cached_tokens + chunk).min(all)];
        let sequences: Vec<_> =
            (0..adapter_scales.len()).map(|sequence| (sequence, cached_tokens, tokens)).collect();
        let result = runner.step(&sequences);
        rows.iter_mut()
            .zip(result.chunks_exact(tokens.len()))
            .for_each(|(rows, new)| rows.extend_from_slice(new));
    }
    rows
}

#[test]
fn sequences_of_one_step_have_their_own_adapter_scales() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["llama", "llama-moe", "llama-tied-bias", "gpt-oss", "bert-mean"] {
        let plain = Entry::load(name);
        let base = View::new(Arc::new(Gguf::open(&plain.file).unwrap())).unwrap();
        let (one, two) = (pairs(&base, (0, 1), Some(2.0)), pairs(&base, (1, 2), None));
        let adapters =
            vec![adapter("one", &base, &one, Some(2.0)), adapter("two", &base, &two, Some(0.0))];
        let entry = Entry { adapters, ..Entry::load(name) };
        let mixes = [[1.0, 1.0], [0.0, 0.0], [0.5, 0.0], [0.0, -1.5]];
        let adapter_scales = mixes.map(|mix| AdapterScales::new(&mix));
        let scaled = |pairs: &[Pair], factor: f32| -> Vec<Pair> {
            let pair = |p: &Pair| Pair {
                of: p.of.clone(),
                ty: p.ty,
                halves: p.halves.each_ref().map(|(bytes, m)| {
                    (bytes.clone(), Matrix { shape: m.shape.clone(), data: m.data.clone() })
                }),
                scale: p.scale * factor,
            };
            pairs.iter().filter(|_| factor != 0.0).map(pair).collect()
        };
        let limit = entry.number("tolerance").unwrap();
        for ((mix, got), number) in
            mixes.iter().zip(together(&entry, "portable", &adapter_scales)).zip(0..)
        {
            let changes: Vec<Pair> =
                scaled(&one, mix[0]).into_iter().chain(scaled(&two, mix[1])).collect();
            let file = dir.path().join(format!("{name}-{number}.gguf"));
            folded(&base, &changes.iter().collect::<Vec<_>>(), &file);
            let want = feed(&Entry { file, ..Entry::load(name) }, "portable", "whole");
            let (worst, _) = distance(&entry, &got, &want);
            assert!(
                worst <= limit,
                "{name} with adapter_scales {mix:?}: {worst:.1e} (limit {limit:.0e})"
            );
        }
    }
}

/// Control vector with these directions.
fn control_vector(directions: &[(&str, TensorType, &[u64])], size: f32) -> Adapter {
    let mut writer = Writer::new();
    writer.set("general.architecture", "controlvector").set("controlvector.model_hint", "whatever");
    let mut data = Vec::new();
    for (seed, (name, ty, shape)) in (7..).zip(directions) {
        writer.tensor(name, *ty, shape).unwrap();
        data.push(numbers(seed, shape, size, *ty).0);
    }
    let bytes = writer.to_vec(data.iter().map(|d| &d[..])).unwrap();
    Adapter::new("happy", Arc::new(Gguf::from_bytes(bytes).unwrap()))
}

#[test]
fn a_control_vector_equals_a_bias_of_the_last_product_of_a_layer() {
    let factor = -0.5;
    for name in ["llama", "qwen3-bf16", "phi3"] {
        let plain = Entry::load(name);
        let base = View::new(Arc::new(Gguf::open(&plain.file).unwrap())).unwrap();
        let key = |key: &str| {
            base.metadata().u32(&format!("{}.{key}", base.metadata().architecture().unwrap()))
        };
        let (n_embd, last) =
            (u64::from(key("embedding_length").unwrap()), key("block_count").unwrap() - 1);
        assert!(last > 0, "{name} has a layer behind the first");
        let direction = format!("direction.{last}");
        let vector = control_vector(&[(&direction, TensorType::F32, &[n_embd])], 0.5);
        let towards = numbers(7, &[n_embd], 0.5, TensorType::F32).1.data;
        let bias = towards.iter().map(|x| factor * x).collect();
        let architecture = base.metadata().architecture().unwrap().to_owned();
        let matrix = (format!("blk.{last}.ffn_down.bias"), [n_embd as usize, 1], bias);
        let biased = rewritten(&plain, &architecture, &|_| {}, &[matrix]);
        let want = feed(&biased, "portable", "whole");
        let entry = Entry { adapters: vec![vector], ..Entry::load(name) };
        let [got, without] = together(
            &entry,
            "portable",
            &[AdapterScales::new(&[factor]), AdapterScales::new(&[0.0])],
        )
        .try_into()
        .expect("two sequences");
        let limit = entry.number("tolerance").unwrap();
        let (changed, _) = distance(&entry, &without, &want);
        assert!(changed > 0.1, "{name}: the direction makes a difference of {changed:.1e} only");
        let (worst, _) = distance(&entry, &got, &want);
        assert!(worst <= limit, "{name}: {worst:.1e} (limit {limit:.0e})");
        let (worst, _) = distance(&entry, &without, &feed(&plain, "portable", "whole"));
        assert!(worst <= limit, "{name} without it: {worst:.1e} (limit {limit:.0e})");
    }
}

#[test]
fn a_mismatched_control_vector_is_rejected_with_the_reason() {
    let of = |name: &str, ty: TensorType, shape: &[u64]| {
        let base = View::new(Arc::new(Gguf::open(&Entry::load("llama").file).unwrap())).unwrap();
        let directions = if name.is_empty() { vec![] } else { vec![(name, ty, shape)] };
        let vector = control_vector(&directions, 1.0);
        match Model::load_with_adapters(&base, &[vector], LoadOptions::default()).map(|_| ()) {
            Err(ModelError::Adapter { error, .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let f32 = TensorType::F32;
    assert_eq!(of("", f32, &[]), "it has no tensor `direction.N`");
    for name in ["direction.0", "direction.99", "direction.x", "output_norm.weight", "direction.-1"]
    {
        let message = of(name, f32, &[48]);
        assert!(
            message
                .starts_with(&format!("tensor `{name}` is not `direction.N` for a layer N from 1")),
            "{message}"
        );
    }
    assert!(of("direction.1", f32, &[49]).contains("needs [48]"));
    assert!(of("direction.1", f32, &[48, 2]).contains("needs [48]"));
    let mut writer = Writer::new();
    writer.set("general.architecture", "controlvector");
    writer.tensor("direction.1", f32, &[48]).unwrap();
    let bytes = writer.to_vec([&f32::NAN.to_le_bytes().repeat(48)[..]]).unwrap();
    let vector = Adapter::new("bad", Arc::new(Gguf::from_bytes(bytes).unwrap()));
    let base = View::new(Arc::new(Gguf::open(&Entry::load("llama").file).unwrap())).unwrap();
    let error = Model::load_with_adapters(&base, &[vector], LoadOptions::default())
        .map(|_| ())
        .unwrap_err();
    assert!(
        error.to_string().contains("the data of tensor `direction.1` cannot be used"),
        "{error}"
    );
    assert!(
        of("direction.1", TensorType::F16, &[48]).starts_with("tensor `direction.1` has type F16")
    );
}
