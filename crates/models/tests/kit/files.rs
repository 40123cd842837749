//! Zoo files with something changed.

use std::path::Path;
use std::sync::Arc;

use puna_gguf::{Gguf, Metadata, Value, View, Writer};
use puna_models::{LoadOptions, Model};

/// A zoo file.
pub fn source(name: &str) -> Gguf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/data/zoo/{name}.gguf"));
    Gguf::open(&path).unwrap()
}

/// The error of loading a copy of a zoo file with other metadata and without some tensors.
pub fn refused(name: &str, change: impl Fn(&mut Metadata), drop: &str) -> String {
    let source = source(name);
    let mut metadata = source.metadata().clone();
    change(&mut metadata);
    let mut writer = Writer::with_metadata(metadata);
    let mut data = Vec::new();
    for tensor in source.tensors().iter().filter(|t| &*t.name != drop) {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape).unwrap();
        data.push(source.data(tensor));
    }
    let bytes = writer.to_vec(data).unwrap();
    let view = View::new(Arc::new(Gguf::from_bytes(bytes).unwrap())).unwrap();
    match Model::load(&view, LoadOptions::default()) {
        Ok(_) => panic!("{name} was taken without {drop}"),
        Err(error) => error.to_string(),
    }
}

/// Sets a key.
pub fn with(key: &str, value: impl Into<Value> + Clone) -> impl Fn(&mut Metadata) {
    let key = key.to_owned();
    move |metadata| metadata.set(&key, value.clone())
}
