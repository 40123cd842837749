//! Valid files open with their contents.

use crate::common;

use puna_gguf::{Gguf, GgufError, Value, View};
use puna_quant::TensorType;

#[test]
fn the_minimal_file_opens_with_its_keys_and_tensors() {
    let bytes = common::minimal();
    assert_eq!(bytes.len(), 288);
    let gguf = Gguf::from_bytes(bytes).unwrap();
    assert_eq!((gguf.version(), gguf.alignment(), gguf.file_size()), (3, 32, 288));
    let m = gguf.metadata();
    assert_eq!(m.architecture(), Ok("llama"));
    assert_eq!(m.i32s("x.list"), Ok(Some(vec![1, -2, 3])));
    assert_eq!(m.get("general.alignment"), Some(&Value::U32(32)));
    let [a, b] = gguf.tensors() else { panic!("two tensors") };
    assert_eq!((&*a.name, a.ty, &*a.shape, a.size), ("a", TensorType::F32, &[4, 2][..], 32));
    assert_eq!((&*b.name, b.ty, &*b.shape, b.size), ("b", TensorType::Q4_0, &[32][..], 18));
    let values: Vec<f32> =
        gguf.data(a).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(values, [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5]);
    assert_eq!(gguf.data(b)[..4], [0x00, 0x3c, 0xf0, 0xe1]);
    assert_eq!(gguf.parameter_count(), 8 + 32);
    assert!(gguf.shared(b).is_aligned());
}

#[test]
fn every_zoo_file_opens_and_its_view_needs_no_translation() -> Result<(), GgufError> {
    let mut seen = 0;
    for file in std::fs::read_dir(common::data("zoo")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|e| e != "gguf") {
            continue;
        }
        let gguf = std::sync::Arc::new(Gguf::open(&path)?);
        assert!(!gguf.metadata().architecture()?.is_empty());
        let view = View::new(gguf.clone())?;
        assert_eq!(view.translation(), None, "{}", path.display());
        assert_eq!(view.metadata(), gguf.metadata());
        assert_eq!(view.tensors().len(), gguf.tensors().len());
        for (shown, tensor) in view.tensors().zip(gguf.tensors()) {
            assert_eq!(
                (shown.name, shown.ty, shown.shape),
                (&*tensor.name, tensor.ty, &*tensor.shape)
            );
            assert_eq!(shown.bytes(), gguf.data(tensor));
            assert!(shown.shared().is_aligned());
        }
        seen += 1;
    }
    assert!(seen >= 30, "only {seen} files");
    Ok(())
}
