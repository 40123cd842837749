//! Tests of quantization during creation: importance matrices and messages.

use std::path::Path;

use puna_gguf::Gguf;

use super::{Kit, from_files, from_model, name};
use crate::{CreateHooks, CreateRequest, Digest, ImatrixRow, Progress, StoreError, write_imatrix};

fn zoo(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo").join(name)
}

/// A matrix for all tensors of a file; the first columns have the largest weights.
fn matrix(kit: &Kit, gguf: &Gguf) -> Digest {
    matrix_for(kit, gguf, |_| true)
}

/// A matrix for some tensors of a file.
fn matrix_for(kit: &Kit, gguf: &Gguf, is_known: fn(&str) -> bool) -> Digest {
    let row = |tensor: &puna_gguf::TensorInfo| ImatrixRow {
        tensor: tensor.name.to_string(),
        squares: (0..tensor.shape[0]).map(|i| 8.0 / (1.0 + i as f32)).collect(),
        counts: vec![8],
    };
    let is_row = |t: &&puna_gguf::TensorInfo| t.shape.len() == 2 && is_known(&t.name);
    let rows: Vec<_> = gguf.tensors().iter().filter(is_row).map(row).collect();
    let mut file = Vec::new();
    write_imatrix(&mut file, &rows, "text.txt", (1, 8)).unwrap();
    kit.store.add_blob(&file).unwrap().digest
}

/// The weights of the model that a request creates.
fn made(kit: &Kit, request: &CreateRequest) -> Gguf {
    kit.create("made", request).unwrap();
    Gguf::open(&kit.store.blob_path(&kit.store.resolve(&name("made")).unwrap().weights_digest))
        .unwrap()
}

#[test]
fn an_importance_matrix_reduces_the_error_of_important_weights() {
    let kit = Kit::new();
    let source = Gguf::open(&zoo("llama-f16.gguf")).unwrap();
    let model = kit.store.add_file(&zoo("llama-f16.gguf")).unwrap().digest;
    let digest = matrix(&kit, &source);
    let with = |kind: &str, imatrix: Option<Digest>| CreateRequest {
        quantize: Some(kind.into()),
        imatrix: imatrix.map(|digest| digest.to_string()),
        ..from_files(&[("m.gguf", model)])
    };
    let error = |gguf: &Gguf| -> f64 {
        let values = |gguf: &Gguf| {
            let tensor = gguf.tensor("blk.0.ffn_down.weight").unwrap();
            let mut values = vec![0.0; tensor.elements() as usize];
            puna_quant::dequantize(tensor.ty, gguf.data(tensor), &mut values).unwrap();
            (tensor.shape[0] as usize, values)
        };
        let ((columns, want), (_, found)) = (values(&source), values(gguf));
        let weighted = |(i, (a, b)): (usize, (&f32, &f32))| {
            f64::from(a - b).powi(2) / (1 + i % columns) as f64
        };
        want.iter().zip(&found).enumerate().map(weighted).sum()
    };
    let (plain, guided) =
        (made(&kit, &with("q4_0", None)), made(&kit, &with("q4_0", Some(digest))));
    assert!(error(&guided) < error(&plain), "{} {}", error(&guided), error(&plain));
    let meta = guided.metadata();
    assert_eq!(meta.str("quantize.imatrix.dataset"), Ok("text.txt"));
    assert_eq!(meta.str("quantize.imatrix.file"), Ok(&*digest.file_name()));
    assert!(!plain.metadata().contains("quantize.imatrix.file"));
    // Types that need an importance matrix.
    assert_eq!(
        made(&kit, &with("iq2_xs", Some(digest))).metadata().u32("general.file_type"),
        Ok(20)
    );
    let refused = |request: &CreateRequest| kit.create("bad", request).unwrap_err();
    assert_eq!(refused(&with("iq2_xs", None)), StoreError::QuantizeType("IQ2_XS".into()));
    // The matrix itself stays until the next garbage collection.
    assert_eq!(kit.store.resolve(&name("made")).unwrap().details().quantization_level, "IQ2_XS");
}

#[test]
fn a_foreign_importance_matrix_is_rejected_before_any_work() {
    let kit = Kit::new();
    let model = kit.store.add_file(&zoo("llama-f16.gguf")).unwrap().digest;
    let other = matrix(&kit, &Gguf::open(&zoo("gemma3.gguf")).unwrap());
    let refused = |imatrix: String, quantize: Option<&str>| {
        let quantize = quantize.map(str::to_owned);
        let request =
            CreateRequest { imatrix: Some(imatrix), quantize, ..from_files(&[("m.gguf", model)]) };
        let error = kit.create("bad", &request).unwrap_err();
        assert!(error.is_bad_request(), "{error}");
        error
    };
    assert_eq!(refused(other.to_string(), None), StoreError::ImatrixWithoutQuantize);
    let absent = Digest::of(b"absent");
    assert_eq!(refused(absent.to_string(), Some("q8_0")), StoreError::BlobMissing(absent));
    assert!(matches!(refused("text.gguf".into(), Some("q8_0")), StoreError::Digest(_)));
    let text = refused(model.to_string(), Some("q8_0")).to_string();
    assert!(text.ends_with("not an importance matrix: it has no tensors named …in_sum2"), "{text}");
    let text = refused(other.to_string(), Some("q8_0")).to_string();
    assert!(text.ends_with("it is for another model"), "{text}");
    assert_eq!(kit.names(), ["cria:latest"]);
}

#[test]
fn tensors_missing_in_a_matrix_are_reported_and_a_foreign_matrix_is_rejected() {
    let kit = Kit::new();
    let source = Gguf::open(&zoo("llama-f16.gguf")).unwrap();
    let model = kit.store.add_file(&zoo("llama-f16.gguf")).unwrap().digest;
    let with = |matrix: Digest| CreateRequest {
        quantize: Some("q4_0".into()),
        imatrix: Some(matrix.to_string()),
        ..from_files(&[("m.gguf", model)])
    };
    let is_told = |line: &String| line.contains("importance matrix") && line.contains("lacks");
    let lines = kit.create("m", &with(matrix(&kit, &source))).unwrap();
    assert!(!lines.iter().any(is_told), "{lines:#?}");
    let some = matrix_for(&kit, &source, |name| name != "blk.0.ffn_down.weight");
    let lines = kit.create("m", &with(some)).unwrap();
    let told = lines.iter().find(|line| is_told(line)).unwrap();
    assert!(told.contains("lacks 1 of ") && told.contains("(blk.0.ffn_down.weight)"), "{told}");
    let none = matrix_for(&kit, &source, |name| name == "token_embd.weight");
    assert!(matches!(kit.create("m", &with(none)), Err(StoreError::ImatrixMismatch { .. })));
}

#[test]
fn long_steps_report_progress() {
    let kit = Kit::new();
    let digest = kit.store.add_file(&zoo("llama-f16.gguf")).unwrap().digest;
    kit.create("whole", &from_files(&[("m.gguf", digest)])).unwrap();
    let mut lines: Vec<Progress> = Vec::new();
    let request = CreateRequest { quantize: Some("q8_0".into()), ..from_model("whole") };
    kit.store
        .create(&name("small"), &request, &CreateHooks::default(), &mut |line| lines.push(line))
        .unwrap();
    let work: Vec<_> =
        lines.iter().filter(|line| line.status == "quantizing F16 model to Q8_0").collect();
    let last = work.last().unwrap();
    assert_eq!((last.completed, last.digest.as_deref()), (last.total, Some("0000000000000000000")));
    assert!(work.is_sorted_by_key(|line| line.completed) && last.total > Some(0), "{work:?}");
}

#[test]
fn tensors_with_another_type_are_reported() {
    let kit = Kit::new();
    let mut writer = puna_gguf::Writer::new();
    writer
        .set("general.architecture", "llama")
        .set("general.file_type", 1u32)
        .set("llama.block_count", 2u32);
    for name in ["token_embd.weight", "blk.0.attn_k.weight", "blk.1.attn_k.weight"] {
        writer.tensor(name, puna_quant::TensorType::F16, &[96, 2]).unwrap();
    }
    let bytes = writer.to_vec([&[0u8; 384][..]; 3]).unwrap();
    let digest = kit.store.add_blob(&bytes).unwrap().digest;
    let request =
        CreateRequest { quantize: Some("q4_k_m".into()), ..from_files(&[("m.gguf", digest)]) };
    let lines = kit.create("m", &request).unwrap();
    let told = "2 tensors get Q5_0 instead of Q4_K: rows of 96 values do not fill blocks of 256 (blk.0-1.attn_k.weight)";
    assert!(lines.iter().any(|line| line == told), "{lines:#?}");
}
