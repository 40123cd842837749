//! Tests of adapters: creating models with them and printing their Modelfiles.

use super::{Kit, from_files, from_model, name};
use crate::manifest::media;
use crate::{CreateRequest, Digest, Modelfile, StoreError, plan_local};

/// A GGUF file of type `adapter`.
fn adapter(architecture: &str, alpha: f32) -> Vec<u8> {
    let mut writer = puna_gguf::Writer::new();
    writer.set("general.architecture", architecture).set("general.type", "adapter");
    writer.set("adapter.type", "lora").set("adapter.lora.alpha", alpha);
    writer.tensor("a.lora_a", puna_quant::TensorType::F32, &[1]).unwrap();
    writer.to_vec([&[0u8; 4][..]]).unwrap()
}

fn with_adapters(request: CreateRequest, digests: &[Digest]) -> CreateRequest {
    let name = |(i, digest): (usize, &Digest)| (format!("{i}.gguf"), digest.to_string());
    CreateRequest { adapters: digests.iter().enumerate().map(name).collect(), ..request }
}

#[test]
fn adapters_are_layers_that_show_prints_and_other_models_inherit() {
    let kit = Kit::new();
    let model = kit.upload(1).digest;
    let blobs =
        [1.0, 2.0, 3.0].map(|alpha| kit.store.add_blob(&adapter("llama", alpha)).unwrap().digest);
    kit.create("m", &with_adapters(from_files(&[("m.gguf", model)]), &blobs[..2])).unwrap();
    let entry = kit.store.get(&name("m")).unwrap();
    let types: Vec<_> = entry.manifest.layers.iter().map(|l| l.media_type.as_str()).collect();
    assert_eq!(types, [media::MODEL, media::ADAPTER, media::ADAPTER]);
    let made = kit.store.resolve(&name("m")).unwrap();
    assert_eq!(
        made.adapters,
        blobs[..2].iter().map(|d| kit.store.blob_path(d)).collect::<Vec<_>>()
    );

    // The printed Modelfile makes the same model.
    let printed = made.modelfile(None, &Default::default()).to_string();
    let plan = plan_local(&Modelfile::parse(&printed).unwrap(), kit.dir.path(), None, &mut |_| {})
        .unwrap();
    assert_eq!(plan.request.adapters.len(), 2, "{printed}");
    kit.create("again", &plan.request).unwrap();
    assert_eq!(kit.store.resolve(&name("again")).unwrap().adapters.len(), 2);

    // Another adapter follows the existing ones.
    kit.create("child", &with_adapters(from_model("m"), &blobs[2..])).unwrap();
    let child = kit.store.get(&name("child")).unwrap();
    assert_eq!(child.manifest.all(media::ADAPTER).map(|l| l.digest).collect::<Vec<_>>(), blobs);
    // The embedded model takes adapters too. A GGUF adapter among the files of FROM becomes an
    // adapter.
    kit.create("tuned", &with_adapters(from_model("cria"), &blobs[..1])).unwrap();
    kit.create("files", &from_files(&[("m.gguf", model), ("l.gguf", blobs[0])])).unwrap();
    assert_eq!(kit.store.resolve(&name("files")).unwrap().adapters.len(), 1);
}

#[test]
fn an_incompatible_adapter_is_rejected_on_creation() {
    let kit = Kit::new();
    let model = kit.upload(1).digest;
    let other = kit.store.add_blob(&adapter("qwen3", 1.0)).unwrap().digest;
    let refused = |request: &CreateRequest| kit.create("m", request).unwrap_err();
    assert_eq!(
        refused(&with_adapters(from_model("cria"), &[model])),
        StoreError::NotAnAdapter { file: "0.gguf".into() }
    );
    assert_eq!(refused(&from_files(&[("l.gguf", other)])), StoreError::AdapterWithoutModel);
    let error = refused(&with_adapters(from_model("cria"), &[other]));
    assert_eq!(
        error.to_string(),
        "the adapter is for the architecture `qwen3`, but the model has `llama`"
    );
    assert_eq!(kit.names(), ["cria:latest"]);
    let plan = |text: &str| {
        let modelfile = Modelfile::parse(text).unwrap();
        plan_local(&modelfile, kit.dir.path(), None, &mut |_| {}).map_err(|e| e.to_string())
    };
    assert_eq!(
        plan("FROM cria\nADAPTER ./absent.gguf").unwrap_err(),
        "(line 2): ./absent.gguf: no such file"
    );
    assert_eq!(plan("FROM cria\nADAPTER absent").unwrap_err(), "(line 2): absent: no such file");
}
