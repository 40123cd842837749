//! Damaged companion draft models and companions of other targets: each is rejected with an error
//! that names the problem.

use crate::kit;

use crate::kit::pair::{changed, draft, reference, refused, view};
use crate::kit::zoo;
use puna_gguf::{Metadata, View};
use puna_models::{LoadOptions, Model, ModelError, StepKind};

/// Draft models, and the tensors that each may lack.
const DRAFTS: [(&str, &[&str]); 8] = [
    ("gemma4-assistant", &["rope_freqs"]),
    ("eagle3", &[]),
    ("eagle3-shared", &[]),
    // These tensors tell the two kinds of files apart.
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
fn a_missing_draft_tensor_is_named() {
    for (name, optional) in DRAFTS {
        let (model, file) = (model_of(name), draft(name));
        let tensors: Vec<String> =
            file.gguf().tensors().iter().map(|tensor| tensor.name.to_string()).collect();
        assert!(tensors.len() > 8, "{name}");
        for tensor in &tensors {
            let without = changed(name, &|_| {}, &|other| other == tensor);
            let loaded = load(&model, &without);
            if tensor.split('.').any(|part| optional.contains(&part)) || tensor == "d2t" {
                // The list alone makes a smaller vocabulary.
                assert!(loaded.is_ok() || tensor == "d2t", "{name} without {tensor}: {loaded:?}");
                continue;
            }
            let error = loaded.expect_err(tensor);
            if error.contains("it uses the model's embeddings") {
                // Its own embeddings are narrower than the target's.
                assert_eq!((name, &tensor[..]), ("eagle3", "token_embd.weight"));
                continue;
            }
            let stem = tensor.trim_end_matches(".weight");
            // Without the gate tensor, both halves are expected in one tensor.
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

/// Loads a model with a draft model and records all its steps; returns the error message.
fn load(model: &str, draft: &View) -> Result<(), String> {
    let model = view(&zoo().join(format!("{model}.gguf")));
    let model = Model::load_with_draft(&model, &[], LoadOptions::default(), Some(draft));
    let model = model.map_err(|error| error.to_string())?;
    for want in
        [StepKind::Logits, StepKind::Draft, StepKind::DraftPrefill, StepKind::TransitionLogits]
    {
        assert!(
            model.graph(want).is_some()
                || matches!(want, StepKind::DraftPrefill | StepKind::TransitionLogits)
        );
    }
    Ok(())
}

#[test]
fn invalid_numbers_are_rejected_or_recorded_without_a_panic() {
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

/// Error for a draft model with changed keys, loaded with its own target.
fn refused_with(name: &str, change: &dyn Fn(&mut Metadata)) -> String {
    refused(&model_of(name), &changed(name, change, &|_| false)).to_string()
}

#[test]
fn invalid_draft_keys_are_named() {
    let assert_contains = |name, key: &str, change: &dyn Fn(&mut Metadata)| {
        let error = refused_with(name, change);
        assert!(error.contains(key), "{name}: {error}");
    };
    for key in
        ["embedding_length_out", "attention.sliding_window_pattern", "attention.key_length_swa"]
    {
        let key = format!("gemma4-assistant.{key}");
        assert_contains("gemma4-assistant", &key, &|meta| drop(meta.remove(&key)));
    }
    assert_contains("eagle3", "eagle3.target_layers", &|meta| {
        meta.set("eagle3.target_layers", vec![1u32, 2])
    });
    assert_contains("eagle3", "eagle3.target_layers", &|meta| {
        drop(meta.remove("eagle3.target_layers"))
    });
    assert_contains("eagle3", "eagle3.target_hidden_size", &|meta| {
        drop(meta.remove("eagle3.target_hidden_size"))
    });
    assert_contains("eagle3", "eagle3.block_count", &|meta| meta.set("eagle3.block_count", 2u32));
    assert_contains("dflash", "dflash.target_layers", &|meta| {
        meta.set("dflash.target_layers", Vec::<u32>::new())
    });
    assert_contains("dflash", "mask_token_id", &|meta| {
        drop(meta.remove("tokenizer.ggml.mask_token_id"))
    });
    assert_contains("dflash", "mask_token_id", &|meta| {
        meta.set("tokenizer.ggml.mask_token_id", 384u32)
    });
    assert_contains("dflash", "dflash.block_size", &|meta| meta.set("dflash.block_size", 1u32));
    assert_contains("dspark", "dflash.block_size", &|meta| drop(meta.remove("dflash.block_size")));
    assert_contains("dflash", "hidden_activation", &|meta| {
        meta.set("dflash.hidden_activation", "relu")
    });
    assert_contains("dflash-window", "sliding_window_pattern", &|meta| {
        meta.set("dflash.attention.sliding_window_pattern", vec![true]);
    });
    assert_contains("dflash2", "conv_group_size", &|meta| meta.set("dflash.conv_group_size", 5u32));
    assert_contains("dflash", "residual streams", &|meta| {
        meta.set("dflash.hyper_connection.count", 4u32)
    });
}

#[test]
fn missing_target_layers_and_other_targets_are_rejected_with_numbers() {
    for (name, key) in [("eagle3", "eagle3.target_layers"), ("dflash", "dflash.target_layers")] {
        for layer in [0u32, 7, u32::MAX] {
            let error = refused_with(name, &|meta| meta.set(key, vec![1u32, 3, layer]));
            assert!(
                error.contains(&format!("input of layer {layer}, but the model has layers 1 to 6")),
                "{error}"
            );
        }
        // The output of the last layer can be tapped, too.
        let last = changed(name, &|meta| meta.set(key, vec![1u32, 3, 6]), &|_| false);
        assert_eq!(load("gemma4", &last), Ok(()));
        let difference = |model: &str| match refused(model, &draft(name)) {
            ModelError::Companion { difference, .. } => difference,
            other => panic!("{model}: {other}"),
        };
        assert!(difference("gemma2").contains("32 features"), "{}", difference("gemma2"));
        assert!(difference("gemma3").contains("384 entries"), "{}", difference("gemma3"));
    }
    // A width of its own without own embeddings.
    let error =
        refused("gemma4", &changed("eagle3", &|_| {}, &|tensor| tensor == "token_embd.weight"));
    assert!(error.to_string().contains("embeddings with 24 features"), "{error}");
}

#[test]
fn an_invalid_draft_vocabulary_is_rejected() {
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
