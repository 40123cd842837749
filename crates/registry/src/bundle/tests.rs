use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use puna_store::{CreateRequest, Digest, Hooks, ModelName, media};
use serde_json::{Value, json};

use super::*;
use crate::tests::{Bench, gguf};
use crate::{Format, RegistryError, Settings, tar, write_bundle};

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
    bench.store.create(&name(called), &request, &Hooks::default(), &mut |_| ()).unwrap();
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

/// An archive of files.
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

/// The files of an archive, by name.
fn files(bundle: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut archive = tar::Archive::new(bundle);
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
    serde_json::from_slice(&files.iter().find(|(name, _)| name == INDEX).unwrap().1).unwrap()
}

/// The same bundle with another list.
fn with_index(bundle: &[u8], index: &Value) -> Vec<u8> {
    let index = index.to_string().into_bytes();
    let files = files(bundle);
    let files: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(name, bytes)| {
            (name.as_str(), if name == INDEX { index.as_slice() } else { bytes.as_slice() })
        })
        .collect();
    archive(&files)
}

#[test]
fn models_travel_whole_and_share_what_they_share() {
    let bench = Bench::new();
    store(&bench, "one", "the system of one");
    store(&bench, "me/two:q4", "the system of two");
    let bundle = bundle_of(&bench, &["one", "me/two:q4"], Format::Ollama);
    let blobs = files(&bundle).iter().filter(|(name, _)| name.starts_with(BLOBS)).count();
    // Manifest and system of each, weights and config of both.
    assert_eq!(blobs, 6);
    let there = Bench::new();
    assert_eq!(import(&there, &bundle, None).unwrap(), ["one:latest", "me/two:q4"]);
    for text in ["one", "me/two:q4"] {
        assert_eq!(
            there.store.get(&name(text)).unwrap().digest,
            bench.store.get(&name(text)).unwrap().digest
        );
        assert_eq!(there.store.resolve(&name(text)).unwrap().facts.architecture, "llama");
    }
    // The manifests stay as blobs, too, since they are those of names.
    there.assert_files(6);
    // Again, compressed, into a store that has it all.
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&bundle).unwrap();
    assert_eq!(import(&there, &packed.finish().unwrap(), None).unwrap().len(), 2);
    there.assert_files(6);
}

#[test]
fn a_store_that_is_only_read_is_exported() {
    let bench = Bench::new();
    store(&bench, "one", "a system");
    // Whoever would write finds a file in the place of its folder, also as a user who may write everywhere.
    let folder = bench.root().join("puna-tmp");
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, "").unwrap();
    let bundle = bundle_of(&bench, &["one"], Format::Ollama);
    assert_eq!(import(&Bench::new(), &bundle, None).unwrap(), ["one:latest"]);
}

#[test]
fn other_packagings_travel_too() {
    for format in [Format::Docker, Format::ModelPack] {
        let bench = Bench::new();
        store(&bench, "one", "a system");
        let bundle = bundle_of(&bench, &["one"], format);
        // What was made for the bundle is gone.
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
fn a_bundle_that_is_cut_anywhere_leaves_nothing() {
    let bench = Bench::new();
    store(&bench, "one", "a system");
    let bundle = bundle_of(&bench, &["one"], Format::Ollama);
    for end in (0..bundle.len() - 1024).step_by(256) {
        let text = refused(&bundle[..end], None);
        assert!(
            ["it is cut off", "it has no oci-layout", "it lacks"]
                .iter()
                .any(|part| text.contains(part)),
            "{text}"
        );
    }
}

#[test]
fn damage_and_lies_are_named() {
    let bench = Bench::new();
    store(&bench, "one", "a system");
    let bundle = bundle_of(&bench, &["one"], Format::Ollama);
    let weights =
        bench.store.get(&name("one")).unwrap().manifest.last(media::MODEL).unwrap().digest;
    let mut damaged = files(&bundle);
    damaged.iter_mut().find(|(name, _)| *name == blob_name(&weights)).unwrap().1[9] ^= 1;
    let damaged: Vec<(&str, &[u8])> =
        damaged.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect();
    let text = refused(&archive(&damaged), None);
    assert!(text.contains(&format!("its blob {} is damaged", weights.short())), "{text}");
    let lacking: Vec<_> =
        damaged.iter().copied().filter(|(name, _)| *name != blob_name(&weights)).collect();
    let text = refused(&archive(&lacking), None);
    assert!(
        text.contains(&format!("it lacks the blob {} of one:latest", weights.short())),
        "{text}"
    );

    let mut index = index_of(&bundle);
    for (called, part) in
        [("latest", "has no name"), ("../x:y", "is called \"../x:y\""), ("a b:c", "is called")]
    {
        index["manifests"][0]["annotations"] = json!({REF_NAME: called});
        let text = refused(&with_index(&bundle, &index), None);
        assert!(text.contains(part) && text.contains("--name"), "{text}");
    }
    assert_eq!(
        import(&Bench::new(), &with_index(&bundle, &index), Some("mine")).unwrap(),
        ["mine:latest"]
    );
    index["manifests"] = json!([]);
    assert!(refused(&with_index(&bundle, &index), None).contains("has no models"));
    index["manifests"] = json!([{"digest": Digest::of(b"x").to_string(), "size": 1, "annotations": {REF_NAME: "a:b"}}]);
    assert!(refused(&with_index(&bundle, &index), None).contains("it lacks the manifest"));

    assert!(refused(b"", None).contains("has no oci-layout"));
    assert!(refused(&b"no archive ".repeat(100), None).contains("no tar archive"));
    assert!(
        refused(&archive(&[(LAYOUT, br#"{"imageLayoutVersion": "2.0"}"#)]), None)
            .contains("version \"2.0\"")
    );
    assert!(refused(&archive(&[(INDEX, b"[]")]), None).contains("its index.json"));
    let mut bomb = Vec::new();
    tar::write_header(&mut bomb, INDEX, 5 << 40).unwrap();
    assert!(refused(&bomb, None).contains("its index.json has 5497558138880 bytes"));
}

#[test]
fn two_models_of_one_name_are_refused() {
    let bench = Bench::new();
    store(&bench, "one", "the system of one");
    store(&bench, "two", "the system of two");
    let bundle = bundle_of(&bench, &["one", "two"], Format::Ollama);
    let mut index = index_of(&bundle);
    index["manifests"][1]["annotations"][REF_NAME] = "ONE:latest".into();
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
fn lists_of_lists_lead_to_the_model() {
    let bench = Bench::new();
    store(&bench, "one", "a system");
    let bundle = bundle_of(&bench, &["one"], Format::Ollama);
    let mut index = index_of(&bundle);
    let nested =
        json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": index["manifests"]})
            .to_string();
    let digest = Digest::of(nested.as_bytes());
    index["manifests"][0]["digest"] = digest.to_string().into();
    index["manifests"][0]["annotations"] =
        json!({IMAGE_NAME: "docker.io/ai/one:latest", REF_NAME: "latest"});
    let bundle = with_index(&bundle, &index);
    let mut files = files(&bundle);
    files.push((blob_name(&digest), nested.into_bytes()));
    let files: Vec<(&str, &[u8])> = files.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect();
    let there = Bench::new();
    assert_eq!(import(&there, &archive(&files), None).unwrap(), ["ai/one:latest"]);
    // The manifest stays as a blob, since it is a name's, and the list does not.
    there.assert_files(4);
}

#[test]
fn what_is_damaged_here_is_not_taken_along() {
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
