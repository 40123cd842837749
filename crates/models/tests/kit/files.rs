//! Modified copies of zoo files.

use std::path::Path;
use std::sync::Arc;

use puna_gguf::{Gguf, Metadata, TensorInfo, Value, View, Writer};
use puna_models::{LoadOptions, Model, ModelError};
use puna_quant::TensorType;

/// A zoo file.
pub fn source(name: &str) -> Gguf {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/data/zoo/{name}.gguf"));
    Gguf::open(&path).unwrap()
}

/// Tensor of a file to be written.
pub struct Tensor {
    pub name: String,
    pub ty: TensorType,
    pub shape: Vec<u64>,
    pub data: Vec<u8>,
}

/// The tensors of a file.
pub fn tensors(file: &Gguf) -> Vec<Tensor> {
    let tensor = |tensor: &TensorInfo| Tensor {
        name: tensor.name.to_string(),
        ty: tensor.ty,
        shape: tensor.shape.clone(),
        data: file.data(tensor).to_vec(),
    };
    file.tensors().iter().map(tensor).collect()
}

/// Error of loading a copy of a zoo file with other metadata and without some tensors.
pub fn refused(name: &str, change: impl Fn(&mut Metadata), drop: &str) -> String {
    let source = source(name);
    let mut metadata = source.metadata().clone();
    change(&mut metadata);
    let mut tensors = tensors(&source);
    tensors.retain(|tensor| tensor.name != drop);
    match loaded(&metadata, &tensors) {
        Ok(()) => panic!("{name} was taken without {drop}"),
        Err(error) => error.to_string(),
    }
}

/// Error of loading a copy of a zoo file with modified tensors.
pub fn refused_by(name: &str, change: impl Fn(&mut Tensor)) -> ModelError {
    let source = source(name);
    let mut tensors = tensors(&source);
    tensors.iter_mut().for_each(change);
    loaded(source.metadata(), &tensors).expect_err(name)
}

/// Loads a file of this metadata and these tensors.
pub fn loaded(metadata: &Metadata, tensors: &[Tensor]) -> Result<(), ModelError> {
    let mut writer = Writer::with_metadata(metadata.clone());
    for tensor in tensors {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape).unwrap();
    }
    let bytes = writer.to_vec(tensors.iter().map(|tensor| &*tensor.data)).unwrap();
    let view = View::new(Arc::new(Gguf::from_bytes(bytes).unwrap())).unwrap();
    Model::load(&view, LoadOptions::default()).map(drop)
}

/// Sets a key.
pub fn with(key: &str, value: impl Into<Value> + Clone) -> impl Fn(&mut Metadata) {
    let key = key.to_owned();
    move |metadata| metadata.set(&key, value.clone())
}
