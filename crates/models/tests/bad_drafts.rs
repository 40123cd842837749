//! Damaged files of draft models of one model, and such of other models: refused by the name of what is wrong, and
//! nothing panics.

use crate::kit;

use crate::kit::pair::{changed, draft, reference, refused, view};
use crate::kit::zoo;
use puna_gguf::{Metadata, View};
use puna_models::{LoadOptions, Model, ModelError, Want};

/// Draft models, and what each may lack.
const DRAFTS: [(&str, &[&str]); 8] = [
    ("gemma4-assistant", &["rope_freqs"]),
    ("eagle3", &[]),
    ("eagle3-shared", &[]),
    // Which of both a file is, it says by them.
    ("dspark", &["attn_v", "markov_w1", "conf_proj"]),
    ("dspark-bonus", &["attn_v", "markov_w1", "conf_proj", "token_embd"]),
    ("dflash2", &["attn_v", "selector_hidden", "token_embd", "output", "attn_sinks"]),
    ("dflash", &["attn_v"]),
    (
        "dflash-window",
        &[
            "token_embd",
            "attn_v",
            "attn_sinks",
            "post_attention_norm",
            "post_ffw_norm",
            "layer_output_scale",
        ],
    ),
];

fn model_of(name: &str) -> String {
    reference(name).0["model"].as_str().unwrap().to_owned()
}

#[test]
fn a_file_that_lacks_a_tensor_is_refused_with_its_name() {
    for (name, optional) in DRAFTS {
        let (model, file) = (model_of(name), draft(name));
        let tensors: Vec<String> =
            file.gguf().tensors().iter().map(|tensor| tensor.name.to_string()).collect();
        assert!(tensors.len() > 8, "{name}");
        for tensor in &tensors {
            let without = changed(name, &|_| {}, &|other| other == tensor);
            let loaded = load(&model, &without);
            if tensor.split('.').any(|part| optional.contains(&part)) || tensor == "d2t" {
                // A smaller vocabulary is one by the list alone.
                assert!(loaded.is_ok() || tensor == "d2t", "{name} without {tensor}: {loaded:?}");
                continue;
            }
            let error = loaded.expect_err(tensor);
            if error.contains("it has no embeddings") {
                // Its own are less wide than the model's.
                assert_eq!((name, &tensor[..]), ("eagle3", "token_embd.weight"));
                continue;
            }
            let stem = tensor.trim_end_matches(".weight");
            // Without its gate a unit's two halves are looked for in one tensor.
            let by_the_other = tensor.contains("ffn_gate") && error.contains("ffn_up");
            assert!(error.contains(stem) || by_the_other, "{name} without {tensor}: {error}");
            assert_eq!(
                puna_models::check_companion(&without).unwrap_err().to_string(),
                error,
                "{name}"
            );
        }
    }
}

/// Loads a model with a draft model and records all its steps; why not, if it cannot.
fn load(model: &str, draft: &View) -> Result<(), String> {
    let model = view(&zoo().join(format!("{model}.gguf")));
    let model = Model::load_accompanied(&model, &[], LoadOptions::default(), Some(draft));
    let model = model.map_err(|error| error.to_string())?;
    for want in [Want::Logits, Want::Guess, Want::Follow, Want::Link] {
        assert!(model.graph(want).is_some() || matches!(want, Want::Follow | Want::Link));
    }
    Ok(())
}

#[test]
fn numbers_that_make_no_sense_are_refused_or_recorded_and_nothing_panics() {
    for (name, _) in DRAFTS {
        let (model, file) = (model_of(name), draft(name));
        let prefix = format!("{}.", file.metadata().architecture().unwrap());
        let keys: Vec<String> = file
            .metadata()
            .iter()
            .filter(|(key, _)| key.starts_with(&prefix) || key.ends_with("mask_token_id"))
            .map(|(key, _)| key.to_owned())
            .collect();
        let mut refused = 0;
        for key in &keys {
            for value in [0u32, 1, 3, 7, 1 << 16, u32::MAX] {
                let draft = changed(name, &|meta| meta.set(key, value), &|_| false);
                refused += usize::from(load(&model, &draft).is_err());
            }
        }
        assert!(
            refused > 3 * keys.len() && refused < 6 * keys.len(),
            "{name}: {refused} of {}",
            keys.len()
        );
    }
}

/// Why a draft model with other keys is refused beside its own model.
fn refused_with(name: &str, change: &dyn Fn(&mut Metadata)) -> String {
    refused(&model_of(name), &changed(name, change, &|_| false)).to_string()
}

#[test]
fn keys_that_cannot_be_are_refused_by_name() {
    let said = |name, key: &str, change: &dyn Fn(&mut Metadata)| {
        let error = refused_with(name, change);
        assert!(error.contains(key), "{name}: {error}");
    };
    for key in
        ["embedding_length_out", "attention.sliding_window_pattern", "attention.key_length_swa"]
    {
        let key = format!("gemma4-assistant.{key}");
        said("gemma4-assistant", &key, &|meta| drop(meta.remove(&key)));
    }
    said("eagle3", "eagle3.target_layers", &|meta| meta.set("eagle3.target_layers", vec![1u32, 2]));
    said("eagle3", "eagle3.target_layers", &|meta| drop(meta.remove("eagle3.target_layers")));
    said("eagle3", "eagle3.target_hidden_size", &|meta| {
        drop(meta.remove("eagle3.target_hidden_size"))
    });
    said("eagle3", "eagle3.block_count", &|meta| meta.set("eagle3.block_count", 2u32));
    said("dflash", "dflash.target_layers", &|meta| {
        meta.set("dflash.target_layers", Vec::<u32>::new())
    });
    said("dflash", "mask_token_id", &|meta| drop(meta.remove("tokenizer.ggml.mask_token_id")));
    said("dflash", "mask_token_id", &|meta| meta.set("tokenizer.ggml.mask_token_id", 384u32));
    said("dflash", "dflash.block_size", &|meta| meta.set("dflash.block_size", 1u32));
    said("dspark", "dflash.block_size", &|meta| drop(meta.remove("dflash.block_size")));
    said("dflash", "hidden_activation", &|meta| meta.set("dflash.hidden_activation", "relu"));
    said("dflash-window", "sliding_window_pattern", &|meta| {
        meta.set("dflash.attention.sliding_window_pattern", vec![true]);
    });
    said("dflash2", "conv_group_size", &|meta| meta.set("dflash.conv_group_size", 5u32));
    said("dflash", "residual streams", &|meta| meta.set("dflash.hyper_connection.count", 4u32));
}

#[test]
fn layers_that_the_model_does_not_have_and_other_models_are_refused_with_the_numbers() {
    for (name, key) in [("eagle3", "eagle3.target_layers"), ("dflash", "dflash.target_layers")] {
        for layer in [0u32, 7, u32::MAX] {
            let error = refused_with(name, &|meta| meta.set(key, vec![1u32, 3, layer]));
            assert!(
                error.contains(&format!("input of layer {layer}, and those of layers 1 to 6")),
                "{error}"
            );
        }
        // What the last layer hands on is read, too.
        let last = changed(name, &|meta| meta.set(key, vec![1u32, 3, 6]), &|_| false);
        assert_eq!(load("gemma4", &last), Ok(()));
        let difference = |model: &str| match refused(model, &draft(name)) {
            ModelError::Companion { difference, .. } => difference,
            other => panic!("{model}: {other}"),
        };
        assert!(difference("gemma2").contains("32 features"), "{}", difference("gemma2"));
        assert!(difference("gemma3").contains("384 entries"), "{}", difference("gemma3"));
    }
    // An own width without embeddings of its own.
    let error =
        refused("gemma4", &changed("eagle3", &|_| {}, &|tensor| tensor == "token_embd.weight"));
    assert!(error.to_string().contains("24 features of the model's"), "{error}");
}

#[test]
fn a_list_of_tokens_that_the_model_does_not_have_is_refused() {
    let source = draft("eagle3");
    let tensor = source.tensor("d2t").unwrap();
    let bytes = tensor.bytes().to_vec();
    for wrong in [384i64, -1, i64::MAX] {
        let mut list = bytes.clone();
        list[16..24].copy_from_slice(&wrong.to_le_bytes());
        let draft = kit::pair::replaced("eagle3", "d2t", &list);
        let error = refused("gemma4", &draft).to_string();
        assert!(error.contains("`d2t`") && error.contains(&wrong.to_string()), "{error}");
    }
}
