//! Tests of create requests that are rejected, and of their messages.

use std::fs;

use puna_gguf::Writer;
use puna_quant::TensorType;

use super::{Kit, from_files, from_model};
use crate::{CreateRequest, ModelRef, Modelfile, StoreError, plan_local};

/// A request for a remote model.
fn remote() -> CreateRequest {
    CreateRequest { remote_host: Some("http://h:1/v1".into()), ..from_model("big") }
}

#[test]
fn local_options_for_a_remote_model_are_rejected_by_name() {
    let kit = Kit::new();
    kit.create("far", &remote()).unwrap();
    // The blob of this digest does not exist.
    let digest = format!("sha256:{}", "ab".repeat(32));
    let adapted = |from: CreateRequest| CreateRequest {
        adapters: [("a.gguf".into(), digest.clone())].into(),
        ..from
    };
    let quantized = |from: CreateRequest| CreateRequest { quantize: Some("Q4_0".into()), ..from };
    let drafted = |from: CreateRequest| CreateRequest {
        draft_files: [("d.gguf".into(), digest.clone())].into(),
        ..from
    };
    for from in [remote(), from_model("far"), from_model("http://h:1/v1/big")] {
        let refused = |request: CreateRequest| kit.create("made", &request).unwrap_err();
        let leave = |what: &str| {
            let reason = format!("a remote model cannot have {what}");
            StoreError::BadRemote(reason)
        };
        assert_eq!(refused(adapted(from.clone())), leave("adapters"));
        assert_eq!(refused(quantized(adapted(from.clone()))), leave("adapters and quantize"));
        assert_eq!(refused(quantized(from.clone())), leave("quantize"));
        let parser = CreateRequest { parser: Some("qwen3".into()), ..from.clone() };
        assert_eq!(refused(parser), leave("parser"));
        assert_eq!(refused(drafted(from)), StoreError::DraftRemote);
    }
    let spoken = CreateRequest { system: Some("Be brief.".into()), ..from_model("far") };
    kit.create("brief", &spoken).unwrap();
}

#[test]
fn a_modelfile_of_a_remote_model_reads_no_file() {
    let kit = Kit::new();
    // Reading this file would report that it contains no weights.
    fs::write(kit.dir.path().join("a.safetensors"), "no weights").unwrap();
    for (line, what) in [
        ("ADAPTER", "a remote model cannot have adapters"),
        ("DRAFT", "DRAFT cannot be used with remote models"),
    ] {
        let text = format!("FROM http://h:1/v1/big\n{line} a.safetensors\n");
        let mut read = false;
        let modelfile = Modelfile::parse(&text).unwrap();
        let refused =
            plan_local(&modelfile, kit.dir.path(), None, &mut |_| read = true).unwrap_err();
        assert!(refused.to_string().contains(what), "{refused}");
        assert!(!read, "{line}");
    }
}

#[test]
fn a_projector_without_a_model_is_rejected() {
    let kit = Kit::new();
    let mut writer = Writer::new();
    writer.set("general.architecture", "clip").set("general.type", "mmproj");
    writer.tensor("v.patch_embd.weight", TensorType::F32, &[2]).unwrap();
    let projector = kit.store.add_blob(&writer.to_vec([&[0u8; 8][..]]).unwrap()).unwrap().digest;
    let refused = kit.create("m", &from_files(&[("mmproj.gguf", projector)])).unwrap_err();
    assert_eq!(refused, StoreError::ProjectorWithoutModel);
    assert!(refused.is_bad_request());
}

#[test]
fn a_split_part_that_contradicts_its_file_name_is_reported_by_that_name() {
    let kit = Kit::new();
    let part = |number: u16| {
        let mut writer = Writer::new();
        writer
            .set("general.architecture", "llama")
            .set("split.no", number)
            .set("split.count", 2u16);
        writer.set("split.tensors.count", 2i32);
        writer.tensor(&format!("t{number}"), TensorType::F32, &[2]).unwrap();
        kit.store.add_blob(&writer.to_vec([&[0u8; 8][..]]).unwrap()).unwrap().digest
    };
    let (first, third) = (part(0), part(3));
    let files = [("m-00001-of-00002.gguf", first), ("m-00002-of-00002.gguf", third)];
    let refused = kit.create("m", &from_files(&files)).unwrap_err().to_string();
    assert!(refused.starts_with("split GGUF: m-00002-of-00002.gguf: `split.no` is 3"), "{refused}");
    assert!(!refused.contains("puna-tmp"), "{refused}");
}

#[test]
fn an_invalid_address_reports_the_valid_forms() {
    for text in ["http://127.0.0.1:9999/name", "http://host", "http://host:1/name:tag"] {
        let refused = ModelRef::parse(text).unwrap_err().to_string();
        assert!(
            refused.contains("http://HOST/v1/MODEL") && refused.contains("http://HOST/api/MODEL"),
            "{refused}"
        );
    }
    assert!(
        ModelRef::parse("https://host").unwrap_err().to_string().contains("https://HOST/v1/MODEL")
    );
    assert!(ModelRef::parse("http://host:1/me/name").is_ok());
}
