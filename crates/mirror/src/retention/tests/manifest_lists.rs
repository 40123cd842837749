//! Retention of manifest lists and their children.

use super::*;
use crate::types::manifest_list::tests::{child, inline, list_of, reference};

#[tokio::test]
async fn children_are_retained_and_removed_with_their_list() {
    let dir = tempfile::tempdir().unwrap();
    let test = TestStorage::open(dir.path(), &today());
    let name = named("team/m");
    let parse = |text: String| Manifest::parse(text.into_bytes().into(), None).unwrap();
    let put = async |tag: Option<&str>, manifest: &Manifest| {
        let of =
            tag.map_or(Reference::Digest(manifest.digest), |tag| Reference::Tag(tag.to_owned()));
        test.storage.manifests.put_manifest(&name, &of, manifest.clone()).await.unwrap();
        test.usage_log.record_arrival(&name, &of, manifest.digest, ChangeSource::Push, None);
    };
    for content in ["own", "shared", "whole"] {
        test.upload(&name, content).await;
    }
    let [own, shared] =
        ["own", "shared"].map(|weights| parse(child(weights.as_bytes()).to_string()));
    let text = |manifest: &Manifest| String::from_utf8(manifest.bytes.to_vec()).unwrap();
    let first = parse(list_of(&[
        inline(b"whole", "llamacpp"),
        reference(&text(&own), "ggml", "gguf"),
        reference(&text(&shared), "mlx", "safetensors"),
    ]));
    let second = parse(list_of(&[reference(&text(&shared), "mlx", "safetensors")]));
    for manifest in [&own, &shared] {
        put(None, manifest).await;
    }
    put(Some("v1"), &first).await;
    put(Some("v2"), &second).await;
    test.usage_log.times(&name, None, own.digest);
    test.pass(40);
    assert_eq!(test.apply_retention(&["team=pulled:30d keep:v*"], false).await, []);
    let gone = test.apply_retention(&["team=pulled:30d keep:v2"], false).await;
    assert_eq!(
        gone,
        [(Some("v1".to_owned()), 5), (None, 3)],
        "the list with its inline child, and a child"
    );
    let is_there = async |digest| {
        test.storage.manifests.manifest(&name, &Reference::Digest(digest)).await.unwrap().is_some()
    };
    for digest in [first.digest, first.children[0], own.digest] {
        assert!(!is_there(digest).await, "{digest}");
    }
    assert!(is_there(second.digest).await && is_there(shared.digest).await);
    let notes = dir.path().join("puna-registry/repositories/team+m/lists");
    let notes: Vec<_> =
        std::fs::read_dir(notes).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(notes, [std::ffi::OsString::from(shared.digest.hex())]);
}
