//! Tests of the whole store.

mod adapter;
mod crash;
mod create;
mod draft;
mod interrupted;
mod layout;
mod model_folders;
mod ollama;
mod quantize;
mod races;
mod read_only_dirs;
mod rejected_creates;
mod shared;

use std::collections::BTreeMap;
use std::path::PathBuf;

use puna_gguf::{Value, Writer};
use puna_quant::TensorType;

use crate::{CreateHooks, CreateRequest, Digest, ModelName, NewBlob, Progress, Store, StoreError};

/// Number of temporary files in a store. Records about blobs are in subfolders and do not count.
pub(crate) fn temp_files(root: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(root.join("puna-tmp")).into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().is_file()).count()
}

/// A store in a temporary folder.
struct Kit {
    dir: tempfile::TempDir,
    store: Store,
}

impl Kit {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("models")).unwrap();
        Self { dir, store }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("models")
    }

    /// Uploads a small model.
    fn upload(&self, seed: u32) -> NewBlob {
        self.store.add_blob(&gguf(seed)).unwrap()
    }

    fn create(&self, model: &str, request: &CreateRequest) -> Result<Vec<String>, StoreError> {
        let mut lines = Vec::new();
        let mut progress = |p: Progress| lines.push(p.status);
        self.store
            .create(&name(model), request, &CreateHooks::default(), &mut progress)
            .map(|()| lines)
    }

    /// Creates a model with its own weights.
    fn model(&self, model: &str, seed: u32) -> Digest {
        let blob = self.upload(seed);
        self.create(model, &from_files(&[("m.gguf", blob.digest)])).unwrap();
        blob.digest
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            self.store.list().unwrap().iter().map(|e| e.name.to_string()).collect();
        names.sort();
        names
    }

    fn blob_count(&self) -> usize {
        std::fs::read_dir(self.root().join("blobs")).map_or(0, |dir| dir.count())
    }
}

fn name(text: &str) -> ModelName {
    ModelName::parse(text).unwrap()
}

fn from_files(files: &[(&str, Digest)]) -> CreateRequest {
    let files: BTreeMap<_, _> =
        files.iter().map(|(n, d)| ((*n).to_owned(), d.to_string())).collect();
    CreateRequest { files: Some(files), ..CreateRequest::default() }
}

fn from_model(model: &str) -> CreateRequest {
    CreateRequest { from: Some(model.to_owned()), ..CreateRequest::default() }
}

/// A GGUF file that is unique to the seed.
fn gguf(seed: u32) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama").set("general.file_type", 0u32);
    writer
        .set("llama.context_length", 64u32)
        .set("llama.embedding_length", 2u32)
        .set("test.seed", seed);
    writer.set("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}");
    writer.set("tokenizer.ggml.tokens", Value::strings([&b"<s>"[..], b"</s>"]));
    writer.set("tokenizer.ggml.bos_token_id", 0u32).set("tokenizer.ggml.eos_token_id", 1u32);
    writer.tensor("output_norm.weight", TensorType::F32, &[2]).unwrap();
    writer.to_vec([&[0u8; 8][..]]).unwrap()
}
