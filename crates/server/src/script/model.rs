//! The model file of the scripted model: vocabulary and template of cria, with a graph of minimal
//! cost.

use puna_gguf::{Gguf, GgufError, Writer};
use puna_store::{CreateHooks, CreateRequest, ModelName, Store, StoreError, embedded};
use serde_json::json;

use super::ScriptError;
use crate::error::ServeError;

/// The name of the scripted model.
pub const MODEL: &str = "script";

/// Width of its single layer and single head. Attention over a prompt of 24,000 tokens takes one to
/// two seconds with it, and eight times as long with cria's width.
const WIDTH: u64 = 32;

/// Stores the scripted model with a context of `window` tokens.
pub(crate) fn install(store: &Store, window: u32) -> Result<(), ServeError> {
    let weights = weights(window).map_err(ScriptError::from)?;
    let digest = store.add_blob(&weights)?.digest.to_string();
    let template = embedded::template();
    let parameters =
        json!({"temperature": 0, "num_ctx": window, "stop": ["<|im_end|>", "<|endoftext|>"]});
    let request = CreateRequest {
        files: Some([("script.gguf".to_owned(), digest)].into()),
        template: Some(template.to_owned()),
        parameters: parameters.as_object().cloned().unwrap_or_default(),
        ..CreateRequest::default()
    };
    let name = ModelName::parse(MODEL).map_err(StoreError::from)?;
    store.create(&name, &request, &CreateHooks::default(), &mut |_| ())?;
    Ok(())
}

/// Writes a model with one narrow layer of zero matrices. Its output is not used.
fn weights(window: u32) -> Result<Vec<u8>, GgufError> {
    let cria = Gguf::from_bytes(embedded::weights())?;
    let (width, metadata) = (WIDTH as u32, cria.metadata().clone());
    let mut file = Writer::with_metadata(metadata);
    file.set("general.name", MODEL)
        .set("general.description", "A model that answers from a script.")
        .set("general.file_type", 0u32)
        .set("llama.block_count", 1u32)
        .set("llama.context_length", window)
        .set("llama.embedding_length", width)
        .set("llama.feed_forward_length", width)
        .set("llama.attention.head_count", 1u32)
        .set("llama.attention.head_count_kv", 1u32)
        .set("llama.attention.key_length", width)
        .set("llama.attention.value_length", width)
        .set("llama.rope.dimension_count", width);
    let floats = cria.tensors().iter().find(|tensor| tensor.shape.len() == 1).map(|norm| norm.ty);
    let vocabulary = cria.tensor("token_embd.weight").and_then(|table| table.shape.get(1).copied());
    for tensor in cria.tensors() {
        if tensor.name.starts_with("blk.") && !tensor.name.starts_with("blk.0.") {
            continue;
        }
        let narrow = |&rows: &u64| if Some(rows) == vocabulary { rows } else { WIDTH };
        let shape: Vec<u64> = tensor.shape.iter().map(narrow).collect();
        file.tensor(&tensor.name, floats.unwrap_or(tensor.ty), &shape)?;
    }
    let zeros: Vec<Vec<u8>> =
        file.tensors().iter().map(|tensor| vec![0; tensor.size as usize]).collect();
    file.to_vec(zeros.iter().map(Vec::as_slice))
}
