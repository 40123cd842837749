//! Tensors of another type, shape or content than they can have.

use puna_models::ModelError;
use puna_quant::TensorType;

use super::files::{refused, refused_by, source, with};

#[test]
fn a_shape_that_contradicts_the_keys_is_shown_beside_what_they_say() {
    let text = refused("llama", with("llama.embedding_length", 4096u32), "");
    assert!(text.starts_with("tensor `token_embd.weight` has shape ["), "{text}");
}

#[test]
fn a_weight_of_integers_is_refused() {
    let error = refused_by("llama", |tensor| {
        if tensor.name == "blk.0.attn_q.weight" {
            tensor.ty = TensorType::I32;
        }
    });
    assert!(
        matches!(&error, ModelError::TensorType { name, .. } if name == "blk.0.attn_q.weight"),
        "{error}"
    );
}

/// A shared expert is as wide as its up matrix says, but not each part of it as wide as it says itself.
#[test]
fn a_shared_expert_whose_parts_differ_in_width_is_refused() {
    for name in ["qwen2moe", "deepseek3", "kimi-k3", "qwen4exp-blocks"] {
        let width = source(name).tensor("blk.1.ffn_up_shexp.weight").unwrap().shape[1];
        for part in ["gate", "up", "down"] {
            let changed = format!("blk.1.ffn_{part}_shexp.weight");
            let error = refused_by(name, |tensor| {
                if tensor.name == changed {
                    // Rows of the first two, columns of the last.
                    let wide = usize::from(part != "down");
                    tensor.data.truncate(
                        tensor.data.len() / tensor.shape[wide] as usize * (width as usize - 8),
                    );
                    tensor.shape[wide] = width - 8;
                }
            });
            let text = error.to_string();
            // Of the up matrix the width is taken, so that the first of the others is the one that does not fit.
            let named = if part == "up" { "blk.1.ffn_gate_shexp.weight" } else { &changed };
            assert!(text.starts_with(&format!("tensor `{named}` has shape [")), "{name}: {text}");
            assert!(
                text.contains(&format!("{width}")) && text.contains(&format!("{}", width - 8)),
                "{text}"
            );
        }
    }
}

#[test]
fn a_list_of_experts_that_there_are_not_is_refused() {
    const LIST: &str = "blk.0.ffn_gate_tid2eid.weight";
    for (entry, what) in [(6i32, "the entry 6 of"), (-1, "the entry -1 of")] {
        let error = refused_by("deepseek4", |tensor| {
            if tensor.name == LIST {
                tensor.data[40..44].copy_from_slice(&entry.to_le_bytes());
            }
        });
        let text = error.to_string();
        assert!(text.contains(&format!("{what} `{LIST}`")), "{text}");
    }
}
