//! The parser reads what the writer writes, and the writer rejects what a reader would reject.

use crate::common;

use proptest::collection::vec;
use proptest::prelude::*;
use puna_gguf::{Gguf, GgufError, Value, Writer};
use puna_quant::TensorType::{self, F32, Q4_0};

#[test]
fn the_minimal_file_is_written_byte_for_byte() {
    let bytes = common::minimal();
    let file = Gguf::from_bytes(bytes.clone()).unwrap();
    let mut writer = Writer::with_metadata(file.metadata().clone());
    for tensor in file.tensors() {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape).unwrap();
    }
    let data = file.tensors().iter().map(|tensor| file.data(tensor));
    assert_eq!(writer.to_vec(data).unwrap(), bytes);
}

#[test]
fn data_may_be_written_in_pieces_but_must_fit() {
    let mut writer = Writer::new();
    writer.tensor("a", F32, &[3]).unwrap().tensor("b", Q4_0, &[32]).unwrap();
    let mut body = writer.clone().start(Vec::new()).unwrap();
    for byte in 0..12u8 {
        assert_eq!(&*body.current().unwrap().name, "a");
        body.write(&[byte]).unwrap();
    }
    assert_eq!(
        body.write(&[0; 19]),
        Err(GgufError::WriteSize { name: "b".into(), found: 19, want: 18 })
    );
    body.write(&[7; 18]).unwrap();
    assert_eq!(body.write(&[]), Err(GgufError::WriteNothingLeft { count: 2 }));
    let file = Gguf::from_bytes(body.finish().unwrap()).unwrap();
    assert_eq!(file.data(file.tensor("a").unwrap()), (0..12).collect::<Vec<u8>>());
    assert_eq!(file.data(file.tensor("b").unwrap()), [7; 18]);

    let mut body = writer.start(Vec::new()).unwrap();
    body.write(&[0; 11]).unwrap();
    assert_eq!(body.finish(), Err(GgufError::WriteIncomplete { name: "a".into() }));
}

#[test]
fn invalid_files_are_not_written() {
    let code = |fill: &dyn Fn(&mut Writer) -> Result<(), GgufError>| {
        let mut writer = Writer::new();
        let mut out = Vec::new();
        let e = fill(&mut writer).and_then(|()| writer.start(&mut out).map(drop)).unwrap_err();
        assert!(out.is_empty());
        e.code()
    };
    let tensor = |name: &'static str, ty: TensorType, shape: &'static [u64]| {
        move |w: &mut Writer| w.tensor(name, ty, shape).map(drop)
    };
    assert_eq!(code(&tensor("", F32, &[1])), "gguf_tensor_name_invalid");
    assert_eq!(code(&tensor("a\n", F32, &[1])), "gguf_tensor_name_invalid");
    let long = "0123456789012345678901234567890123456789012345678901234567890123";
    assert_eq!(code(&tensor(long, F32, &[1])), "gguf_tensor_name_too_long");
    assert_eq!(code(&tensor("a", F32, &[1, 0])), "gguf_tensor_dim_zero");
    assert_eq!(code(&tensor("a", F32, &[1; 5])), "gguf_tensor_dims_invalid");
    assert_eq!(code(&tensor("a", Q4_0, &[33])), "gguf_tensor_row_misaligned");
    assert_eq!(code(&tensor("a", F32, &[1 << 40, 1 << 40])), "gguf_tensor_shape_overflow");
    assert_eq!(
        code(&tensor("a", F32, &[4, (1 << 30) - 1, (1 << 30) + 1])),
        "gguf_data_size_overflow"
    );
    assert_eq!(
        code(&|w| w.tensor("a", F32, &[1])?.tensor("a", F32, &[1]).map(drop)),
        "gguf_tensor_duplicate"
    );
    assert_eq!(
        code(&|w| {
            w.set("", 1u32);
            Ok(())
        }),
        "gguf_key_empty"
    );
    assert_eq!(
        code(&|w| {
            w.set("a\0", 1u32);
            Ok(())
        }),
        "gguf_key_invalid"
    );
    assert_eq!(
        code(&|w| {
            w.set("general.alignment", 33u32);
            Ok(())
        }),
        "gguf_alignment_invalid"
    );
    assert_eq!(
        code(&|w| {
            w.set("general.alignment", 32u64);
            Ok(())
        }),
        "gguf_alignment_type"
    );
    assert_eq!(
        code(&|w| {
            w.set("a", "x".repeat((16 << 20) + 1));
            Ok(())
        }),
        "gguf_string_out_of_file"
    );
}

#[test]
fn output_errors_are_returned() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let e = Writer::new().start(Full).map(drop).unwrap_err();
    assert!(matches!(e, GgufError::Output { kind: std::io::ErrorKind::StorageFull, .. }), "{e}");
}

/// A scalar, a string or an array.
fn any_value() -> impl Strategy<Value = Value> {
    // Floats without NaN, since NaN is not equal to itself.
    let float = || any::<i32>().prop_map(|v| v as f32 / 8.0);
    let bytes = || vec(any::<u8>(), 0..12);
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        float().prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        float().prop_map(|v| Value::F64(v.into())),
        "\\PC{0,12}".prop_map(Value::from),
        vec(any::<i16>(), 0..9).prop_map(Value::from),
        vec(any::<u64>(), 0..9).prop_map(Value::from),
        vec(float(), 0..9).prop_map(Value::from),
        vec(any::<bool>(), 0..9).prop_map(Value::from),
        vec(bytes(), 0..9).prop_map(Value::strings),
    ]
}

/// A tensor type with a valid small shape.
fn any_tensor() -> impl Strategy<Value = (TensorType, Vec<u64>)> {
    let types: Vec<_> = TensorType::all().collect();
    (prop::sample::select(types), 1u64..3, vec(1u64..4, 0..4)).prop_map(|(ty, blocks, rest)| {
        let row = blocks * ty.block_values() as u64;
        (ty, std::iter::once(row).chain(rest).collect())
    })
}

proptest! {
    #[test]
    fn arbitrary_files_round_trip(
        keys in vec(("[a-z.\\PC]{1,16}", any_value()), 0..12),
        tensors in vec(("[a-z0-9._]{1,40}", any_tensor()), 0..8),
        alignment in 0u32..17,
        seed: u8,
    ) {
        let mut writer = Writer::new();
        writer.set("general.alignment", 1u32 << alignment);
        for (key, value) in &keys {
            writer.set(key, value.clone());
        }
        let metadata = writer.metadata_mut().clone();
        for (index, (name, (ty, shape))) in tensors.iter().enumerate() {
            writer.tensor(&format!("{index}.{name}"), *ty, shape).unwrap();
        }
        let byte = |i: u64| (i as u8).wrapping_mul(31).wrapping_add(seed);
        let data: Vec<Vec<u8>> = writer.tensors().iter().map(|t| (0..t.size).map(byte).collect()).collect();

        let file = Gguf::from_bytes(writer.to_vec(data.iter().map(Vec::as_slice)).unwrap()).unwrap();
        prop_assert_eq!(file.metadata(), &metadata);
        prop_assert_eq!(file.alignment(), 1 << alignment);
        prop_assert_eq!(file.tensors().len(), tensors.len());
        for (index, tensor) in file.tensors().iter().enumerate() {
            let (name, (ty, shape)) = &tensors[index];
            prop_assert_eq!(&*tensor.name, format!("{index}.{name}"));
            prop_assert_eq!((tensor.ty, &tensor.shape), (*ty, shape));
            prop_assert_eq!(file.data(tensor), &data[index][..]);
            prop_assert!(file.shared(tensor).is_aligned());
        }
    }

    #[test]
    fn a_changed_byte_never_panics(at in 0usize..288, byte: u8, cut in 0usize..=288) {
        let mut bytes = common::minimal();
        bytes[at] = byte;
        bytes.truncate(cut);
        if let Ok(file) = Gguf::from_bytes(bytes) {
            file.tensors().iter().for_each(|tensor| drop(file.data(tensor).to_vec()));
        }
    }
}
