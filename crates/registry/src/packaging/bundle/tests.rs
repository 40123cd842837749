use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use puna_store::{CreateHooks, CreateRequest, Digest, ModelName, media};
use serde_json::{Value, json};

use super::*;
use crate::packaging::tar;
use crate::tests::{Bench, gguf};
use crate::{Format, RegistryError, Settings, write_bundle};

fn name(text: &str) -> ModelName {
    ModelName::parse(text).unwrap()
}

fn store(bench: &Bench, called: &str, system: &str) {
    let weights = bench.store.add_blob(&gguf(1)).unwrap().digest.to_string();
    let request = CreateRequest {
        files: Some([("model.gguf".to_owned(), weights)].into()),
        system: Some(system.into()),
        ..CreateRequest::default()
    };
    bench.store.create(&name(called), &request, &CreateHooks::default(), &mut |_| ()).unwrap();
}

fn bundle_of(bench: &Bench, names: &[&str], format: Format) -> Vec<u8> {
    let names: Vec<ModelName> = names.iter().map(|text| name(text)).collect();
    let mut out = Vec::new();
    let mut last = (0, 0);
    write_bundle(&bench.store, &names, format, &mut out, &mut |done, all| last = (done, all))
        .unwrap();
    assert!(last.0 == last.1 && last.0 > 0, "{last:?}");
    out
}

fn import(
    bench: &Bench,
    bundle: &[u8],
    wanted: Option<&str>,
) -> Result<Vec<String>, RegistryError> {
    let registry = crate::Registry::new(Settings::default());
    let wanted = wanted.map(name);
    let names = registry.read_bundle(&bench.store, bundle, wanted.as_ref(), false, &mut |_| ())?;
    Ok(names.iter().map(ModelName::to_string).collect())
}

fn refused(bundle: &[u8], wanted: Option<&str>) -> String {
    let bench = Bench::new();
    let text = import(&bench, bundle, wanted).unwrap_err().to_string();
    bench.assert_files(0);
    assert_eq!(bench.store.list().unwrap().iter().filter(|entry| !entry.is_embedded()).count(), 0);
    text
}

/// Makes a tar archive.
fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, bytes) in files {
        tar::write_header(&mut out, name, bytes.len() as u64).unwrap();
        out.extend_from_slice(bytes);
        tar::write_padding(&mut out, bytes.len() as u64).unwrap();
    }
    tar::write_end(&mut out).unwrap();
    out
}

/// The files of an archive by name.
fn files(bundle: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut archive = tar::TarReader::new(bundle);
    let mut files = Vec::new();
    while let Some(entry) = archive.next_file().unwrap() {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut archive, &mut bytes).unwrap();
        files.push((entry.name, bytes));
    }
    files
}

fn index_of(bundle: &[u8]) -> Value {
    let files = files(bundle);
    serde_json::from_slice(&files.iter().find(|(name, _)| name == INDEX_FILE).unwrap().1).unwrap()
}

/// The bundle with another index.
fn with_index(bundle: &[u8], index: &Value) -> Vec<u8> {
    let index = index.to_string().into_bytes();
    let files = files(bundle);
    let files: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(name, bytes)| {
            (name.as_str(), if name == INDEX_FILE { index.as_slice() } else { bytes.as_slice() })
        })
        .collect();
    archive(&files)
}

#[test]
fn a_bundle_contains_complete_models_and_shared_blobs_once() {
    let bench = Bench::new();
    store(&bench, "one", "the system of one");
    store(&bench, "me/two:q4", "the system of two");
    let bundle = bundle_of(&bench, &["one", "me/two:q4"], Format::Ollama);
    let blobs = files(&bundle).iter().filter(|(name, _)| name.starts_with(BLOB_DIR)).count();
    // Manifest and system prompt of each model, and the shared weights and config.
    assert_eq!(blobs, 6);
    let there = Bench::new();
    assert_eq!(import(&there, &bundle, None).unwrap(), ["one:latest", "me/two:q4"]);
    for text in ["one", "me/two:q4"] {
        assert_eq!(
            there.store.get(&name(text)).unwrap().digest,
            bench.store.get(&name(text)).unwrap().digest
        );
        assert_eq!(there.store.resolve(&name(text)).unwrap().gguf_info.architecture, "llama");
    }
    // Manifests stay as blobs, too, since names refer to them.
    there.assert_files(6);
    // The same bundle again, compressed, into a store that has all blobs.
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&bundle).unwrap();
    assert_eq!(import(&there, &packed.finish().unwrap(), None).unwrap().len(), 2);
    there.assert_files(6);
}

#[test]
fn a_read_only_store_is_exported() {
    let bench = Bench::new();
    store(&bench, "one", "a system");
    // A file in the place of the folder makes any write fail, also for a user with all permissions.
    let folder = bench.root().join("puna-tmp");
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, "").unwrap();
    let bundle = bundle_of(&bench, &["one"], Format::Ollama);
    assert_eq!(import(&Bench::new(), &bundle, None).unwrap(), ["one:latest"]);
}

#[test]
fn other_packaging_formats_are_bundled_too() {
    for format in [Format::Docker, Format::ModelPack] {
        let bench = Bench::new();
        store(&bench, "one", "a system");
        let bundle = bundle_of(&bench, &["one"], format);
        // The blobs that were made for the bundle are removed.
        bench.assert_files(3);
        let there = Bench::new();
        assert_eq!(import(&there, &bundle, Some("other:tag")).unwrap(), ["other:tag"]);
        let weights = |bench: &Bench, text: &str| {
            bench.store.get(&name(text)).unwrap().manifest.last(media::MODEL).unwrap().digest
        };
        assert_eq!(weights(&there, "other:tag"), weights(&bench, "one"));
        assert_eq!(
            there.store.resolve(&name("other:tag")).unwrap().system.as_deref(),
            Some("a system")
        );
    }
}

#[test]
fn a_truncated_bundle_stores_nothing() {
    let bench = Bench::new();
    store(&bench, "one", "a system");
    let bundle = bundle_of(&bench, &["one"], Format::Ollama);
    for end in (0..bundle.len() - 1024).step_by(256) {
        let text = refused(&bundle[..end], None);
        assert!(
            ["it is truncated", "it is not a tar archive", "it lacks"]
                .iter()
                .any(|part| text.contains(part)),
            "{text}"
        );
    }
}

#[test]
fn damaged_bundles_are_refused_with_a_reason() {
    let bench = Bench::new();
    store(&bench, "one", "a system");
    let bundle = bundle_of(&bench, &["one"], Format::Ollama);
    let weights =
        bench.store.get(&name("one")).unwrap().manifest.last(media::MODEL).unwrap().digest;
    let mut damaged = files(&bundle);
    damaged.iter_mut().find(|(name, _)| *name == blob_path(&weights)).unwrap().1[9] ^= 1;
    let damaged: Vec<(&str, &[u8])> =
        damaged.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect();
    let text = refused(&archive(&damaged), None);
    assert!(text.contains(&format!("its blob {} is damaged", weights.short())), "{text}");
    let lacking: Vec<_> =
        damaged.iter().copied().filter(|(name, _)| *name != blob_path(&weights)).collect();
    let text = refused(&archive(&lacking), None);
    assert!(
        text.contains(&format!("it lacks the blob {} of one:latest", weights.short())),
        "{text}"
    );

    let mut index = index_of(&bundle);
    for (called, part) in
        [("latest", "has no name"), ("../x:y", "is named \"../x:y\""), ("a b:c", "is named")]
    {
        index["manifests"][0]["annotations"] = json!({REF_NAME_ANNOTATION: called});
        let text = refused(&with_index(&bundle, &index), None);
        assert!(text.contains(part) && text.contains("--name"), "{text}");
    }
    assert_eq!(
        import(&Bench::new(), &with_index(&bundle, &index), Some("mine")).unwrap(),
        ["mine:latest"]
    );
    index["manifests"] = json!([]);
    assert!(refused(&with_index(&bundle, &index), None).contains("has no models"));
    index["manifests"] = json!([{"digest": Digest::of(b"x").to_string(), "size": 1, "annotations": {REF_NAME_ANNOTATION: "a:b"}}]);
    assert!(refused(&with_index(&bundle, &index), None).contains("it lacks the manifest"));

    assert!(refused(b"", None).contains("it lacks oci-layout"));
    assert!(refused(&b"no archive ".repeat(100), None).contains("not a tar archive"));
    assert!(
        refused(&archive(&[(LAYOUT_FILE, br#"{"imageLayoutVersion": "2.0"}"#)]), None)
            .contains("version is \"2.0\"")
    );
    assert!(refused(&archive(&[(INDEX_FILE, b"[]")]), None).contains("its index.json"));
    let mut bomb = Vec::new();
    tar::write_header(&mut bomb, INDEX_FILE, 5 << 40).unwrap();
    assert!(refused(&bomb, None).contains("its index.json is too large: 5497558138880 bytes"));
}

#[test]
fn two_models_of_one_name_are_refused() {
    let bench = Bench::new();
    store(&bench, "one", "the system of one");
    store(&bench, "two", "the system of two");
    let bundle = bundle_of(&bench, &["one", "two"], Format::Ollama);
    let mut index = index_of(&bundle);
    index["manifests"][1]["annotations"][REF_NAME_ANNOTATION] = "ONE:latest".into();
    let text = refused(&with_index(&bundle, &index), None);
    for called in ["one", "two"] {
        let digest = bench.store.get(&name(called)).unwrap().digest;
        assert!(
            text.contains("two models") && text.contains(&digest.short().to_string()),
            "{text}"
        );
    }
    index["manifests"][1]["digest"] = index["manifests"][0]["digest"].clone();
    assert_eq!(import(&Bench::new(), &with_index(&bundle, &index), None).unwrap(), ["one:latest"]);
}

#[test]
fn nested_indexes_lead_to_the_model() {
    let bench = Bench::new();
    store(&bench, "one", "a system");
    let bundle = bundle_of(&bench, &["one"], Format::Ollama);
    let mut index = index_of(&bundle);
    let nested =
        json!({"schemaVersion": 2, "mediaType": INDEX_MEDIA_TYPE, "manifests": index["manifests"]})
            .to_string();
    let digest = Digest::of(nested.as_bytes());
    index["manifests"][0]["digest"] = digest.to_string().into();
    index["manifests"][0]["annotations"] =
        json!({IMAGE_NAME_ANNOTATION: "docker.io/ai/one:latest", REF_NAME_ANNOTATION: "latest"});
    let bundle = with_index(&bundle, &index);
    let mut files = files(&bundle);
    files.push((blob_path(&digest), nested.into_bytes()));
    let files: Vec<(&str, &[u8])> = files.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect();
    let there = Bench::new();
    assert_eq!(import(&there, &archive(&files), None).unwrap(), ["ai/one:latest"]);
    // The manifest stays as a blob, since a name refers to it; the nested index does not.
    there.assert_files(4);
}

#[test]
fn damaged_blobs_are_not_exported() {
    let bench = Bench::new();
    store(&bench, "one", "a system");
    let weights =
        bench.store.get(&name("one")).unwrap().manifest.last(media::MODEL).unwrap().digest;
    let path = bench.store.blob_path(&weights);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[3] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let written =
        write_bundle(&bench.store, &[name("one")], Format::Ollama, &mut Vec::new(), &mut |_, _| ());
    assert!(written.unwrap_err().to_string().starts_with("digest mismatch"));
    let absent =
        write_bundle(&bench.store, &[name("two")], Format::Ollama, &mut Vec::new(), &mut |_, _| ());
    assert!(absent.unwrap_err().to_string().contains("two"));
}
