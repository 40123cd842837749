//! Body of the GGUF fuzz target, shared with `crates/gguf/tests/fuzz.rs`.

use std::sync::Arc;

use puna_gguf::{Gguf, Value, View, Writer};

/// Parses `data`, reads all its values, writes it and parses the result, which must be equal.
pub fn run(data: &[u8]) {
    let file = match Gguf::from_bytes(data.to_vec()) {
        Ok(file) => file,
        Err(error) => {
            assert!(
                error.code().starts_with("gguf_") && !error.to_string().contains(char::is_control)
            );
            return;
        }
    };
    for (key, value) in file.metadata().iter() {
        look(key, value, &file);
    }
    for tensor in file.tensors() {
        assert_eq!(file.data(tensor).len() as u64, tensor.size);
        assert_eq!(file.tensor(&tensor.name), Some(tensor));
        assert!(tensor.elements() > 0 && tensor.rows() > 0);
    }
    rewrite(&file);
    let view = View::new(Arc::new(file)).expect("a file that opens has a view");
    for tensor in view.tensors() {
        assert_eq!(tensor.bytes().len() as u64, tensor.size());
        assert!(tensor.shared().is_aligned());
    }
}

/// Reads a value with every accessor.
fn look(key: &str, value: &Value, file: &Gguf) {
    let m = file.metadata();
    assert!(m.contains(key));
    let _ = (
        m.architecture(),
        m.u32(key),
        m.u64(key),
        m.f32(key),
        m.bool(key),
        m.str(key),
        m.opt_i32(key),
    );
    let _ =
        (m.u8s(key), m.u32s(key), m.i32s(key), m.f32s(key), m.bools(key), m.u32_per_layer(key, 3));
    let _ = (value.describe(), value.to_string());
    if let Some(array) = value.as_array() {
        let strings = array.strings().map(|strings| strings.count());
        assert!(strings.is_none_or(|count| count == array.len()));
        assert_eq!(array.get(array.len()), None);
        assert_eq!(array.prefix(array.len()).as_bytes(), array.as_bytes());
        assert!(array.prefix(1).len() <= 1);
    }
}

fn rewrite(file: &Gguf) {
    let mut writer = Writer::with_metadata(file.metadata().clone());
    for tensor in file.tensors() {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape).expect("a tensor that was read");
    }
    let data = file.tensors().iter().map(|tensor| file.data(tensor));
    let written = writer.to_vec(data).expect("a file that was read");
    let again = Gguf::from_bytes(written).expect("a file that was written");
    // NaN is not equal to itself, so the debug texts are compared.
    assert_eq!(format!("{:?}", again.metadata()), format!("{:?}", file.metadata()));
    for (new, old) in again.tensors().iter().zip(file.tensors()) {
        assert_eq!(
            (&new.name, new.ty, new.elements(), new.offset),
            (&old.name, old.ty, old.elements(), old.offset)
        );
        assert_eq!(again.data(new), file.data(old));
    }
}
