//! Tests of draft models: creating models with them and printing their Modelfiles.

use super::{Kit, from_files, from_model, name};
use crate::manifest::media;
use crate::{CreateRequest, Digest, Modelfile, StoreError, plan_local};

fn with_draft(request: CreateRequest, digest: Digest) -> CreateRequest {
    let draft_files = [("d.gguf".to_owned(), digest.to_string())].into();
    CreateRequest { draft_files, ..request }
}

#[test]
fn a_draft_model_is_a_layer_that_show_prints_and_other_models_inherit() {
    let kit = Kit::new();
    let (model, draft) = (kit.upload(1), kit.upload(2));
    kit.create("m", &with_draft(from_files(&[("m.gguf", model.digest)]), draft.digest)).unwrap();
    let entry = kit.store.get(&name("m")).unwrap();
    let types: Vec<_> = entry.manifest.layers.iter().map(|l| l.media_type.as_str()).collect();
    assert_eq!(types, [media::MODEL, media::DRAFT]);
    let made = kit.store.resolve(&name("m")).unwrap();
    assert_eq!(made.draft, Some(kit.store.blob_path(&draft.digest)));
    let printed = made.modelfile(None, &Default::default()).to_string();
    assert!(
        printed.contains(&format!("DRAFT {}", kit.store.blob_path(&draft.digest).display())),
        "{printed}"
    );

    kit.create("child", &from_model("m")).unwrap();
    assert_eq!(kit.store.resolve(&name("child")).unwrap().draft, made.draft);
    // A new draft model replaces the old one.
    let other = kit.upload(3);
    kit.create("child", &with_draft(from_model("m"), other.digest)).unwrap();
    let child = kit.store.get(&name("child")).unwrap();
    let drafts: Vec<_> = child.manifest.all(media::DRAFT).map(|l| l.digest).collect();
    assert_eq!(drafts, [other.digest]);
}

#[test]
fn the_printed_modelfile_of_a_model_with_a_draft_recreates_it() {
    let kit = Kit::new();
    let (model, draft) = (kit.upload(1), kit.upload(2));
    kit.create("m", &with_draft(from_files(&[("m.gguf", model.digest)]), draft.digest)).unwrap();
    let printed =
        kit.store.resolve(&name("m")).unwrap().modelfile(None, &Default::default()).to_string();
    let modelfile = Modelfile::parse(&printed).unwrap();
    let plan = plan_local(&modelfile, kit.dir.path(), None, &mut |_| {}).unwrap();
    let digests: Vec<_> = plan.request.draft_files.values().cloned().collect();
    assert_eq!(digests, [draft.digest.to_string()]);
    kit.create("again", &plan.request).unwrap();
    assert!(kit.store.resolve(&name("again")).unwrap().draft.is_some());
}

#[test]
fn a_draft_must_exist_and_differ_from_the_model() {
    let kit = Kit::new();
    std::fs::write(kit.dir.path().join("m.gguf"), super::gguf(1)).unwrap();
    let plan = |text: &str| {
        let modelfile = Modelfile::parse(text).unwrap();
        plan_local(&modelfile, kit.dir.path(), None, &mut |_| {}).map_err(|e| e.to_string())
    };
    let same = plan("FROM ./m.gguf\nDRAFT ./m.gguf").unwrap_err();
    assert!(same.starts_with("DRAFT must not reference the same local path as FROM: "), "{same}");
    assert!(plan("FROM ./m.gguf\nDRAFT ./none.gguf").is_err());
    assert!(plan("FROM ./m.gguf\nDRAFT none").is_err(), "a name is no file");
}

#[test]
fn a_draft_is_one_generating_model_and_is_quantized_separately() {
    let kit = Kit::new();
    let zoo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo");
    let add = |file: &str| kit.store.add_file(&zoo.join(file)).unwrap().digest;
    let model = kit.upload(1);
    let request = || from_files(&[("m.gguf", model.digest)]);
    let encoder = kit.create("m", &with_draft(request(), add("bert-mean.gguf")));
    assert!(matches!(encoder, Err(StoreError::NotADraft { .. })), "{encoder:?}");
    let mut two = with_draft(request(), kit.upload(2).digest);
    two.draft_files.insert("e.gguf".into(), kit.upload(3).digest.to_string());
    assert_eq!(kit.create("m", &two), Err(StoreError::SeveralDrafts { files: 2 }));
    let remote = CreateRequest { remote_host: Some("https://x".into()), ..two };
    assert_eq!(kit.create("m", &remote), Err(StoreError::DraftRemote));
    let quantize = CreateRequest { draft_quantize: Some("q8_0".into()), ..request() };
    assert_eq!(kit.create("m", &quantize), Err(StoreError::DraftQuantize));

    let f16 = add("llama-f16.gguf");
    let request =
        CreateRequest { draft_quantize: Some("q8_0".into()), ..with_draft(request(), f16) };
    kit.create("m", &request).unwrap();
    let made = kit.store.resolve(&name("m")).unwrap();
    assert_eq!(made.weights_digest, model.digest);
    assert_ne!(made.draft, Some(kit.store.blob_path(&f16)));
    let entry = kit.store.get(&name("m")).unwrap();
    assert_eq!(entry.manifest.all(media::DRAFT).count(), 1);
}
