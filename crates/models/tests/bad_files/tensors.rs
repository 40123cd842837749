//! Tensors of an invalid type, shape or content.

use puna_models::ModelError;
use puna_quant::TensorType;

use super::files::{refused, refused_by, source, with};

#[test]
fn a_wrong_shape_is_reported_with_the_expected_one() {
    let text = refused("llama", with("llama.embedding_length", 4096u32), "");
    assert!(text.starts_with("tensor `token_embd.weight` has shape ["), "{text}");
}

#[test]
fn an_integer_weight_is_rejected() {
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

/// The up matrix of a shared expert determines its width; the other matrices must have the same.
#[test]
fn a_shared_expert_with_inconsistent_width_is_rejected() {
    for name in ["qwen2moe", "deepseek3", "kimi-k3", "qwen4exp-blocks"] {
        let width = source(name).tensor("blk.1.ffn_up_shexp.weight").unwrap().shape[1];
        for part in ["gate", "up", "down"] {
            let changed = format!("blk.1.ffn_{part}_shexp.weight");
            let error = refused_by(name, |tensor| {
                if tensor.name == changed {
                    // Rows of gate and up, columns of down.
                    let wide = usize::from(part != "down");
                    tensor.data.truncate(
                        tensor.data.len() / tensor.shape[wide] as usize * (width as usize - 8),
                    );
                    tensor.shape[wide] = width - 8;
                }
            });
            let text = error.to_string();
            // The width comes from the up matrix, so that the error names the first of the others.
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
fn an_expert_list_out_of_range_is_rejected() {
    const LIST: &str = "blk.0.ffn_gate_tid2eid.weight";
    for (entry, what) in [(6i32, "entry 6 of"), (-1, "entry -1 of")] {
        let error = refused_by("deepseek4", |tensor| {
            if tensor.name == LIST {
                tensor.data[40..44].copy_from_slice(&entry.to_le_bytes());
            }
        });
        let text = error.to_string();
        assert!(text.contains(&format!("{what} `{LIST}`")), "{text}");
    }
}
