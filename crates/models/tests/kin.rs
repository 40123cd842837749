//! Models without a reference of their own. Some architectures have the graph of another with other
//! constants: the other's file under the new name gives the same logits. Options have a known
//! effect.

use crate::kit;

use std::sync::Arc;

use crate::kit::{Entry, Matrix, feed, mismatch, older_latent, rewritten, values};
use puna_gguf::{Gguf, Metadata, View};
use puna_graph::{CacheLayer, Mask};
use puna_models::{LoadOptions, Model};

#[test]
fn related_architectures_give_the_same_logits() {
    let keep = |_: &mut Metadata| {};
    let twice = |metadata: &mut Metadata| {
        let width = metadata.u32("qwen.feed_forward_length").unwrap();
        metadata.set("qwen.feed_forward_length", 2 * width);
    };
    let check = |of: &str, name: &str, change: &dyn Fn(&mut Metadata)| {
        let entry = rewritten(&Entry::load(of), name, change, &[]);
        let rows = feed(&entry, "portable", "sevens");
        std::fs::remove_file(&entry.file).unwrap();
        assert_eq!(mismatch(&entry, &rows, true), None, "{name} as {of}");
    };
    check("llama", "internlm2", &keep);
    check("llama", "xverse", &keep);
    check("llama", "baichuan", &keep);
    check("qwen2", "exaone", &keep);
    check("qwen2", "qwen", &twice);
    check("gpt2", "starcoder", &keep);
    check("stablelm", "orion", &keep);
    check("deepseek", "bailingmoe", &keep);
}

#[test]
fn a_model_of_audio_codes_masks_all_other_tokens() {
    let plain = Entry::load("qwen3tts");
    let (n_vocab, codes) = (plain.want[0].len(), 100);
    let table = values(&Gguf::open(&plain.file).unwrap(), "token_embd.weight").unwrap();
    let width = table.len() / n_vocab;
    let last = table[(n_vocab - codes) * width..].to_vec();
    let matrix = ("output.weight".to_owned(), [width, codes], last);
    let entry = rewritten(&plain, "qwen3tts", &|_| {}, &[matrix]);
    for how in ["whole", "one", "batch"] {
        let mut rows = feed(&entry, "portable", how);
        for row in &mut rows {
            assert!(
                row[..n_vocab - codes].iter().all(|&logit| logit == f32::NEG_INFINITY),
                "{how}"
            );
            row.drain(..n_vocab - codes);
        }
        let want = plain.want.iter().map(|row| row[n_vocab - codes..].to_vec()).collect();
        let of_codes = Entry { want, ..Entry::load("qwen3tts") };
        assert_eq!(mismatch(&of_codes, &rows, true), None, "{how}");
    }
    std::fs::remove_file(&entry.file).unwrap();
}

/// Embedding models that are decoders set this key; the references are llama.cpp's for the file
/// with the key.
#[test]
fn a_decoder_with_causal_false_attends_bidirectionally() {
    for name in ["qwen2", "gpt2", "deepseek2-lite"] {
        let text =
            std::fs::read_to_string(kit::zoo().join(format!("../causal/{name}.json"))).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let architecture = json["architecture"].as_str().unwrap().to_owned();
        let key = |metadata: &mut Metadata| {
            metadata.set(&format!("{architecture}.attention.causal"), false)
        };
        let file = rewritten(&Entry::load(name), &architecture, &key, &[]).file;
        let entry = Entry { file, ..Entry::new(name, json) };
        for how in ["whole", "batch"] {
            assert_eq!(
                mismatch(&entry, &feed(&entry, "portable", how), true),
                None,
                "{name}, {how}"
            );
        }
        let view = View::new(Arc::new(Gguf::open(&entry.file).unwrap())).unwrap();
        let model = Model::load(&view, LoadOptions::default()).unwrap();
        assert!(
            !model.shape().causal && !model.shape().has_logits && model.cache_layers().is_empty()
        );
        std::fs::remove_file(&entry.file).unwrap();
    }
}

#[test]
fn embeddings_pass_the_projections_of_the_file() {
    let plain = Entry::load("gemma-embedding");
    let n = plain.want[0].len();
    // One matrix duplicates the columns, the other adds both halves.
    let both = |row: usize, column: usize| f32::from(u8::from(row % n == column % n));
    let wide: Vec<f32> = (0..2 * n * n).map(|i| both(i / n, i % n)).collect();
    let thin: Vec<f32> = (0..2 * n * n).map(|i| both(i / (2 * n), i % (2 * n))).collect();
    let tensors: [Matrix; 2] =
        [("dense_2.weight".into(), [n, 2 * n], wide), ("dense_3.weight".into(), [2 * n, n], thin)];
    let keys = |metadata: &mut Metadata| {
        for key in ["dense_2_feat_out", "dense_3_feat_in"] {
            metadata.set(&format!("gemma-embedding.{key}"), 2 * n as u32);
        }
    };
    let projected = rewritten(&plain, "gemma-embedding", &keys, &tensors);
    let rows = feed(&projected, "portable", "whole");
    std::fs::remove_file(&projected.file).unwrap();
    let halves: Vec<Vec<f32>> =
        rows.iter().map(|row| row.iter().map(|x| x / 2.0).collect()).collect();
    assert_eq!(mismatch(&plain, &halves, true), None);
}

#[test]
fn early_qwen3_next_files_fuse_query_key_value_and_gate_of_each_head() {
    let entry = Entry::load("qwen3next");
    let file = Gguf::open(&entry.file).unwrap();
    let count = |key: &str| file.metadata().u32(&format!("qwen3next.{key}")).unwrap() as usize;
    let (n, heads, inner) =
        (count("embedding_length"), count("ssm.group_count"), count("ssm.inner_size"));
    let (dim, values) = (count("ssm.state_size"), inner / heads);
    let mut tensors = Vec::<Matrix>::new();
    for block in 0..count("block_count") {
        let name = |part: &str| format!("blk.{block}.{part}.weight");
        let (Some(qkv), true) =
            (kit::values(&file, &name("attn_qkv")), file.tensor(&name("ssm_out")).is_some())
        else {
            continue;
        };
        let gate = kit::values(&file, &name("attn_gate")).unwrap();
        let rows =
            |all: &[f32], from: usize, count: usize| all[from * n..(from + count) * n].to_vec();
        let of_head = |head: usize| {
            let parts = [
                rows(&qkv, head * dim, dim),
                rows(&qkv, (heads + head) * dim, dim),
                rows(&qkv, 2 * heads * dim + head * values, values),
                rows(&gate, head * values, values),
            ];
            parts.concat()
        };
        let joined: Vec<f32> = (0..heads).flat_map(of_head).collect();
        tensors.push((name("ssm_in"), [n, joined.len() / n], joined));
        tensors.extend(["attn_qkv", "attn_gate"].map(|part| (name(part), [0; 2], Vec::new())));
    }
    assert!(!tensors.is_empty(), "there are layers of this kind");
    let first = rewritten(&entry, "qwen3next", &|_| {}, &tensors);
    let rows = feed(&first, "portable", "sevens");
    std::fs::remove_file(&first.file).unwrap();
    assert_eq!(mismatch(&entry, &rows, true), None);
}

#[test]
fn per_layer_lists_may_have_entries_for_prediction_blocks() {
    let entry = Entry::load("nemotron-h-moe");
    let change = |metadata: &mut Metadata| {
        let name = |key: &str| format!("nemotron_h_moe.{key}");
        let blocks = metadata.u32(&name("block_count")).unwrap();
        for key in ["attention.head_count_kv", "feed_forward_length"] {
            let mut all = metadata.u32_per_layer(&name(key), blocks as usize).unwrap().unwrap();
            all.push(1);
            metadata.set(&name(key), all);
        }
        // Files of Puzzle have a number of experts per token for each layer.
        let used = metadata.u32(&name("expert_used_count")).unwrap();
        metadata.set(&name("expert_used_count"), vec![used; blocks as usize + 1]);
        metadata.set(&name("block_count"), blocks + 1);
        metadata.set(&name("nextn_predict_layers"), 1u32);
    };
    let with_prediction = rewritten(&entry, "nemotron_h_moe", &change, &[]);
    let rows = feed(&with_prediction, "portable", "sevens");
    std::fs::remove_file(&with_prediction.file).unwrap();
    assert_eq!(mismatch(&entry, &rows, true), None);
}

/// Weight and bias of a matrix that gives the same result if the norm before it has neither.
fn without_norm(file: &Gguf, name: &str, norm: &str) -> [Matrix; 2] {
    let [weight, factors, shifts] =
        [format!("{name}.weight"), format!("{norm}.weight"), format!("{norm}.bias")]
            .map(|name| values(file, &name).unwrap());
    let (input, rows) = (factors.len(), weight.len() / factors.len());
    let bias = values(file, &format!("{name}.bias")).unwrap_or(vec![0.0; rows]);
    let shift = |row: &[f32]| row.iter().zip(&shifts).map(|(w, s)| w * s).sum::<f32>();
    let bias = weight.chunks_exact(input).zip(bias).map(|(row, b)| b + shift(row)).collect();
    let weight = weight.iter().zip(factors.iter().cycle()).map(|(w, f)| w * f).collect();
    [(format!("{name}.weight"), [input, rows], weight), (format!("{name}.bias"), [rows, 1], bias)]
}

/// Reorders a matrix with heads of `dim` dimensions, of which the first `rotated` are rotated, from
/// split halves to neighbouring pairs.
fn neighbours((name, shape, values): Matrix, dim: usize, rotated: usize) -> Matrix {
    let rows = if shape[1] == 1 { shape[0] } else { shape[1] };
    let all: Vec<&[f32]> = values.chunks_exact(values.len() / rows).collect();
    let from = |i: usize| if i < rotated { i / 2 + i % 2 * (rotated / 2) } else { i };
    let values =
        (0..rows).flat_map(|row| all[row - row % dim + from(row % dim)]).copied().collect();
    (name, shape, values)
}

#[test]
fn olmo_gives_the_logits_of_a_stablelm_with_norms_folded_into_matrices() {
    let entry = Entry::load("stablelm");
    let file = Gguf::open(&entry.file).unwrap();
    let mut tensors = Vec::from(without_norm(&file, "output", "output_norm"));
    for block in ["blk.0", "blk.1"] {
        for part in ["attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"] {
            let norm = format!("{block}.{}_norm", &part[..part.find('_').unwrap()]);
            let both = without_norm(&file, &format!("{block}.{part}"), &norm);
            let turns = ["attn_q", "attn_k"].contains(&part);
            tensors
                .extend(both.map(|matrix| if turns { neighbours(matrix, 12, 6) } else { matrix }));
        }
    }
    let with_bound = |bound: f32| {
        let change = |metadata: &mut Metadata| metadata.set("olmo.attention.clamp_kqv", bound);
        let olmo = rewritten(&entry, "olmo", &change, &tensors);
        let rows = feed(&olmo, "portable", "sevens");
        std::fs::remove_file(&olmo.file).unwrap();
        mismatch(&entry, &rows, true)
    };
    assert_eq!(with_bound(1000.0), None);
    assert!(with_bound(0.1).is_some(), "the bound has an effect");
}

#[test]
fn mpt_gives_the_logits_of_a_gpt2_and_of_a_bloom_with_normed_embeddings() {
    let check = |of: &str, change: &dyn Fn(&mut Metadata), tensors: &[Matrix]| {
        let entry = Entry::load(of);
        let mpt = rewritten(&entry, "mpt", change, tensors);
        let rows = feed(&mpt, "portable", "sevens");
        std::fs::remove_file(&mpt.file).unwrap();
        assert_eq!(mismatch(&entry, &rows, true), None, "mpt as {of}");
    };
    check("gpt2", &|_| {}, &[]);

    let file = Gguf::open(&Entry::load("bloom").file).unwrap();
    let table = values(&file, "token_embd.weight").unwrap();
    let factors = values(&file, "token_embd_norm.weight").unwrap();
    let shifts = values(&file, "token_embd_norm.bias").unwrap();
    let (n, eps) =
        (factors.len(), file.metadata().f32("bloom.attention.layer_norm_epsilon").unwrap());
    let normed = table.chunks_exact(n).flat_map(|row| {
        let mean = row.iter().sum::<f32>() / n as f32;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n as f32;
        let scale = 1.0 / (variance + eps).sqrt();
        let norms = factors.iter().zip(&shifts);
        row.iter().zip(norms).map(move |(x, (f, s))| (x - mean) * scale * f + s)
    });
    let (normed, shape) = (normed.collect::<Vec<f32>>(), [n, table.len() / n]);
    let tensors: [Matrix; 2] = [
        ("token_embd.weight".into(), shape, normed),
        ("output.weight".into(), shape, table.clone()),
    ];
    let alibi = |metadata: &mut Metadata| metadata.set("mpt.attention.max_alibi_bias", 8.0f32);
    check("bloom", &alibi, &tensors);
}

#[test]
fn values_come_from_the_key_projection_without_a_value_matrix() {
    let entry = Entry::load("gemma4");
    let file = Gguf::open(&entry.file).unwrap();
    let key = |layer: usize| {
        let tensor = file.tensor(&format!("blk.{layer}.attn_k.weight")).unwrap();
        let shape = [tensor.shape[0] as usize, tensor.shape[1] as usize];
        (shape, values(&file, &tensor.name).unwrap())
    };
    let rows = |values: &dyn Fn(usize) -> Matrix| {
        let matrices: Vec<Matrix> = (0..3).map(values).collect();
        let changed = rewritten(&entry, "gemma4", &|_| {}, &matrices);
        let rows = feed(&changed, "portable", "sevens");
        std::fs::remove_file(&changed.file).unwrap();
        rows
    };
    let name = |layer: usize| format!("blk.{layer}.attn_v.weight");
    let same = rows(&|layer| (name(layer), key(layer).0, key(layer).1));
    let absent = rows(&|layer| (name(layer), [0, 0], Vec::new()));
    assert!(same == absent && mismatch(&entry, &same, true).is_some());
}

#[test]
fn layers_that_share_keys_have_no_cache_layer() {
    let view = View::new(Arc::new(Gguf::open(&Entry::load("gemma4").file).unwrap())).unwrap();
    let model = Model::load(&view, LoadOptions::default()).unwrap();
    let layer = |dim, mask| CacheLayer {
        kv_heads: 1,
        key_dim: dim,
        value_dim: dim,
        values_in_keys: false,
        mask,
    };
    let (near, all) = (Mask::Window(9), Mask::Causal);
    assert_eq!(
        model.cache_layers(),
        [(8, near), (8, near), (16, all)].map(|(dim, mask)| layer(dim, mask))
    );
}

/// A file with separate gate and up halves of experts is presented with one fused tensor; the model
/// reads the halves.
#[test]
fn separate_gate_and_up_experts_are_read_without_a_copy() {
    let file = kit::zoo().join("../compat/full-gemma4-moe.gguf");
    let view = View::new(Arc::new(Gguf::open(&file).unwrap())).unwrap();
    assert!(view.tensor("blk.0.ffn_gate_up_exps.weight").unwrap().is_derived());
    let model = Model::load(&view, LoadOptions::default()).unwrap();
    let has = |name: &str| model.weights().iter().any(|weight| weight.name == name);
    assert!(has("blk.0.ffn_gate_exps.weight") && has("blk.0.ffn_up_exps.weight"));
    assert!(!has("blk.0.ffn_gate_up_exps.weight"));
}

#[test]
fn latent_attention_caches_one_compressed_vector_per_token() {
    for name in ["deepseek2-lite", "deepseek3", "glm4-moe-lite"] {
        let view = View::new(Arc::new(Gguf::open(&Entry::load(name).file).unwrap())).unwrap();
        let model = Model::load(&view, LoadOptions::default()).unwrap();
        let layer = CacheLayer {
            kv_heads: 1,
            key_dim: 40,
            value_dim: 32,
            values_in_keys: true,
            mask: Mask::Causal,
        };
        assert_eq!(model.cache_layers(), [layer; 2], "{name}");
    }
}

/// Older files of latent attention have keys and values of heads in one tensor, and head sizes
/// under the keys that now hold the cache's sizes.
#[test]
fn older_latent_attention_files_give_the_same_logits() {
    for (name, heads) in [("deepseek2-lite", 4), ("deepseek3", 2)] {
        let old = older_latent(name, heads);
        let rows = feed(&old, "portable", "sevens");
        std::fs::remove_file(&old.file).unwrap();
        assert_eq!(mismatch(&old, &rows, true), None, "{name}");
    }
}

#[test]
fn chameleon_never_predicts_image_tokens() {
    const VOCAB: usize = 8200;
    let entry = Entry::load("chameleon");
    let file = Gguf::open(&entry.file).unwrap();
    let n = entry_width(&file);
    // The vocabulary size of the published models, with the entry's tokens unchanged.
    let longer = |name: &str| -> Matrix {
        let mut numbers = values(&file, name).unwrap();
        numbers.resize(VOCAB * n, 0.25);
        (name.into(), [n, VOCAB], numbers)
    };
    let keys = |metadata: &mut Metadata| {
        metadata.remove("tokenizer.ggml.tokens");
        metadata.set("chameleon.vocab_size", VOCAB as u32);
    };
    let large = rewritten(
        &entry,
        "chameleon",
        &keys,
        &[longer("token_embd.weight"), longer("output.weight")],
    );
    let rows = feed(&large, "portable", "whole");
    std::fs::remove_file(&large.file).unwrap();
    let (first, want) = (&rows[entry.positions[0]], &entry.want[0]);
    assert_eq!(first.len(), VOCAB);
    assert!(first[4..8196].iter().all(|logit| *logit == f32::MIN));
    for token in 0..4 {
        assert!((f64::from(first[token]) - want[token]).abs() < 1e-3, "{token}");
    }
    assert!(first[8196..].iter().all(|logit| logit.abs() < 100.0));
}

fn entry_width(file: &Gguf) -> usize {
    file.metadata().u32("chameleon.embedding_length").unwrap() as usize
}

#[test]
fn cogvlm_with_shared_keys_uses_the_rope_base_of_the_second_version() {
    let bases = |kv_heads: u32| {
        let file = Gguf::open(&Entry::load("cogvlm").file).unwrap();
        let mut metadata = file.metadata().clone();
        metadata.set("cogvlm.attention.head_count_kv", kv_heads);
        let mut writer = puna_gguf::Writer::with_metadata(metadata);
        let mut data: Vec<&[u8]> = Vec::new();
        for tensor in file.tensors() {
            let mut shape = tensor.shape.to_vec();
            let mut bytes = file.data(tensor);
            if tensor.name.ends_with(".attn_qkv.weight") {
                // Keys and values have as many heads as the queries.
                shape[1] = 48 + 2 * 12 * u64::from(kv_heads);
                bytes = &bytes[..(shape[0] * shape[1] * 4) as usize];
            }
            writer.tensor(&tensor.name, tensor.ty, &shape).unwrap();
            data.push(bytes);
        }
        let view =
            View::new(Arc::new(Gguf::from_bytes(writer.to_vec(data).unwrap()).unwrap())).unwrap();
        let model = Model::load(&view, LoadOptions::default()).unwrap();
        model.ropes()[0].frequencies[1]
    };
    let near = |base: f32| base.powf(-2.0 / 12.0);
    assert!((bases(4) - near(10_000.0)).abs() < 1e-6);
    assert!((bases(2) - near(500_000.0)).abs() < 1e-6);
}
