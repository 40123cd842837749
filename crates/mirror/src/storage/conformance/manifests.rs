//! Behaviour of a [`ManifestStore`](crate::storage::ManifestStore).

use std::collections::HashSet;

use futures_util::future::join_all;
use puna_store::media;

use super::*;
use crate::storage::conditional_removal;
use crate::types::manifest_list::tests::{child, inline, list_of, reference};

fn by_digest(manifest: &Manifest) -> Reference {
    Reference::Digest(manifest.digest)
}

async fn find(storage: &Storage, name: &Repository, reference: &Reference) -> Option<Manifest> {
    storage.manifests.manifest(name, reference).await.unwrap()
}

async fn put(storage: &Storage, name: &Repository, of: &Reference, manifest: &Manifest) {
    storage.manifests.put_manifest(name, of, manifest.clone()).await.unwrap();
}

/// Status and code with which a manifest is rejected.
async fn rejection(storage: &Storage, name: &Repository, manifest: &Manifest) -> (u16, String) {
    let put = storage.manifests.put_manifest(name, &tag("rejected"), manifest.clone()).await;
    let (status, code) = put.unwrap_err().code();
    assert_eq!(find(storage, name, &tag("rejected")).await, None);
    (status, code.to_owned())
}

pub(super) async fn a_manifest_is_served_by_tag_and_digest(test: &Fixture) {
    let (storage, name) = (&test.storage, named("team/thing"));
    push(storage, &name, b"weights").await;
    // Unusual spaces are kept.
    let text = String::from_utf8(image_of(b"weights").bytes.to_vec()).unwrap();
    let manifest = parse(&text.replace(',', " ,\n "));
    put(storage, &name, &tag("v1"), &manifest).await;
    for storage in [storage, &test.other] {
        for reference in [tag("v1"), by_digest(&manifest)] {
            let found = find(storage, &name, &reference).await.unwrap();
            assert_eq!((&found.bytes, &found), (&manifest.bytes, &manifest));
        }
        assert_eq!(find(storage, &named("team/other"), &by_digest(&manifest)).await, None);
    }
    put(storage, &named("team/other"), &by_digest(&manifest), &manifest).await;
    let found = find(&test.other, &named("team/other"), &by_digest(&manifest)).await;
    assert_eq!(found, Some(manifest));
    assert_eq!(find(&test.other, &named("team/other"), &tag("v1")).await, None);
}

pub(super) async fn a_model_is_served_as_it_was_pushed(test: &Fixture) {
    let (storage, name) = (&test.storage, named("team/model"));
    push(storage, &name, b"weights").await;
    let manifest = parse(&child(b"weights").to_string());
    put(storage, &name, &tag("v1"), &manifest).await;
    for reference in [tag("v1"), by_digest(&manifest)] {
        let found = find(&test.other, &name, &reference).await.unwrap();
        assert_eq!(
            (found.bytes, found.media_type.as_str()),
            (manifest.bytes.clone(), media::MANIFEST)
        );
    }
    assert_eq!(storage.manifests.tags(&name).await.unwrap().unwrap(), ["v1"]);
    let entries = storage.inventory.tag_entries().await.unwrap();
    let entries: Vec<_> =
        entries.iter().map(|of| (&of.name, &*of.tag, of.digest, of.size)).collect();
    assert_eq!(entries, [(&name, "v1", manifest.digest, 7)]);
    assert_eq!(read(&test.other, Digest::of(b"weights"), 0..7).await, b"weights");
    assert_eq!(storage.manifests.remove_manifest(&name, &tag("v1")).await, Ok(true));
    assert_eq!(find(&test.other, &name, &tag("v1")).await, None);
}

pub(super) async fn missing_items_are_absent(test: &Fixture) {
    let (storage, name, digest) = (&test.storage, named("team/thing"), Digest::of(b"none"));
    for reference in [tag("v1"), Reference::Digest(digest)] {
        assert_eq!(find(storage, &name, &reference).await, None);
        assert_eq!(storage.manifests.remove_manifest(&name, &reference).await, Ok(false));
    }
    assert_eq!(storage.manifests.tags(&name).await, Ok(None));
    assert_eq!(storage.manifests.referrers(&name, digest).await, Ok(Vec::new()));
    assert_eq!(storage.manifests.lists_containing(&name, digest).await, Ok(Vec::new()));
    assert!(!has_blob(storage, digest).await);
    assert_eq!(storage.blobs.remove_blob(digest).await, Ok(false));
    assert_eq!(storage.inventory.repositories().await, Ok(Vec::new()));
    assert_eq!(storage.inventory.tag_entries().await, Ok(Vec::new()));
    storage.inventory.collect_garbage().await.unwrap();
    assert_eq!(test.paths().await, [""; 0]);
}

pub(super) async fn manifests_with_missing_blobs_are_rejected(test: &Fixture) {
    let (storage, name) = (&test.storage, named("team/thing"));
    push(storage, &name, b"weights").await;
    let missing = image_of(b"nothing");
    let put = storage.manifests.put_manifest(&name, &tag("v1"), missing).await;
    assert_eq!(put, Err(MirrorError::ManifestBlobUnknown(Digest::of(b"nothing"))));
    assert_eq!(find(storage, &name, &tag("v1")).await, None);
    assert_eq!(storage.manifests.tags(&name).await, Ok(None));
    assert!(has_blob(storage, Digest::of(b"weights")).await);
}

pub(super) async fn every_process_serves_the_same_manifests_and_tags(test: &Fixture) {
    let (one, other, name) = (&test.storage, &test.other, named("team/thing"));
    let manifest = push_image(one, &name, "v1", b"weights").await;
    for storage in [one, other] {
        assert_eq!(find(storage, &name, &tag("v1")).await.as_ref(), Some(&manifest));
        assert_eq!(storage.manifests.tags(&name).await.unwrap().unwrap(), ["v1"]);
        assert_eq!(storage.inventory.repositories().await.unwrap(), vec![name.clone()]);
        assert_eq!(storage.inventory.tag_entries().await.unwrap()[0].digest, manifest.digest);
        let error = storage.blobs.remove_blob(Digest::of(b"weights")).await.unwrap_err();
        assert_eq!(error.code(), (403, "DENIED"));
    }
    // A moved tag is moved for all processes at once.
    let next = push_image(other, &name, "v1", b"other weights").await;
    assert_eq!(one.inventory.tag_entries().await.unwrap()[0].digest, next.digest);
    assert_eq!(find(one, &name, &tag("v1")).await.as_ref(), Some(&next));
    assert!(other.manifests.remove_manifest(&name, &by_digest(&next)).await.unwrap());
    assert_eq!(find(one, &name, &tag("v1")).await, None);
    assert!(one.manifests.remove_manifest(&name, &by_digest(&manifest)).await.unwrap());
    assert_eq!(other.manifests.tags(&name).await.unwrap(), None);
    assert!(other.blobs.remove_blob(Digest::of(b"weights")).await.unwrap());
    assert!(!has_blob(one, Digest::of(b"weights")).await);
}

pub(super) async fn removing_a_tag_keeps_its_manifest(test: &Fixture) {
    let (storage, name) = (&test.storage, named("team/thing"));
    let manifest = push_image(storage, &name, "v1", b"weights").await;
    put(storage, &name, &tag("v2"), &manifest).await;
    let mut tags = storage.manifests.tags(&name).await.unwrap().unwrap();
    tags.sort();
    assert_eq!(tags, ["v1", "v2"]);
    for (removed, left) in [("v1", &["v2"][..]), ("v2", &[])] {
        assert_eq!(storage.manifests.remove_manifest(&name, &tag(removed)).await, Ok(true));
        assert_eq!(storage.manifests.remove_manifest(&name, &tag(removed)).await, Ok(false));
        assert_eq!(storage.manifests.tags(&name).await.unwrap().unwrap(), left);
        assert!(find(&test.other, &name, &by_digest(&manifest)).await.is_some());
    }
    put(storage, &name, &tag("v3"), &manifest).await;
    let removed = storage.manifests.remove_manifest(&name, &by_digest(&manifest)).await;
    assert_eq!(removed, Ok(true));
    assert_eq!(find(&test.other, &name, &tag("v3")).await, None);
    assert_eq!(storage.manifests.tags(&name).await, Ok(None), "its tags go with it");
}

pub(super) async fn concurrent_puts_of_a_tag_leave_one_of_them(test: &Fixture) {
    let (name, v1) = (named("team/thing"), tag("v1"));
    let contents: Vec<String> = (0..8).map(|n| format!("weights {n}")).collect();
    let mut manifests = Vec::new();
    for content in &contents {
        push(&test.storage, &name, content.as_bytes()).await;
        manifests.push(image_of(content.as_bytes()));
    }
    let storages = [&test.storage, &test.other].into_iter().cycle();
    let puts = storages
        .zip(&manifests)
        .map(|(storage, manifest)| storage.manifests.put_manifest(&name, &v1, manifest.clone()));
    for put in join_all(puts).await {
        assert_eq!(put, Ok(None));
    }
    let found = find(&test.storage, &name, &v1).await.unwrap();
    assert!(manifests.contains(&found));
    assert_eq!(find(&test.other, &name, &v1).await, Some(found));
    assert_eq!(test.storage.manifests.tags(&name).await.unwrap().unwrap(), ["v1"]);
    for manifest in &manifests {
        assert!(find(&test.storage, &name, &by_digest(manifest)).await.is_some());
    }
}

pub(super) async fn manifests_changed_by_other_programs_are_not_served(test: &Fixture) {
    let (name, manifest) = (named("team/thing"), image_of(b"weights"));
    let path = format!("repositories/team+thing/manifests/{}", manifest.digest.hex());
    test.plant(&path, r#"{"layers":[]}"#).await;
    assert_eq!(find(&test.storage, &name, &by_digest(&manifest)).await, None);
}

pub(super) async fn referrers_are_listed_by_subject(test: &Fixture) {
    let (storage, name) = (&test.storage, named("team/thing"));
    // The subject need not exist.
    let subject = Digest::of(b"subject");
    push(storage, &name, b"signature").await;
    let referrers = ["first", "second"].map(|note| {
        let text = String::from_utf8(image_of(b"signature").bytes.to_vec()).unwrap();
        let subject = format!(r#"{{"mediaType":"{OCI_MANIFEST}","digest":"{subject}","size":1}}"#);
        let more = format!(r#","subject":{subject},"annotations":{{"note":"{note}"}}}}"#);
        parse(&format!("{}{more}", text.strip_suffix('}').unwrap()))
    });
    for manifest in &referrers {
        put(storage, &name, &by_digest(manifest), manifest).await;
    }
    let listed = async |name: &Repository| {
        let found = test.other.manifests.referrers(name, subject).await.unwrap();
        found.into_iter().map(|of| (of.digest, of.size)).collect::<HashSet<_>>()
    };
    let expected = |manifests: &[Manifest]| -> HashSet<_> {
        manifests.iter().map(|of| (of.digest, of.bytes.len() as u64)).collect()
    };
    assert_eq!(listed(&name).await, expected(&referrers));
    assert_eq!(listed(&named("team/other")).await, expected(&[]));
    storage.manifests.remove_manifest(&name, &by_digest(&referrers[0])).await.unwrap();
    assert_eq!(listed(&name).await, expected(&referrers[1..]));
}

pub(super) async fn lists_with_missing_children_are_rejected(test: &Fixture) {
    let (storage, name) = (&test.storage, named("team/m"));
    push(storage, &name, b"weights").await;
    let child = child(b"weights").to_string();
    let text = list_of(&[reference(&child, "llamacpp", "gguf")]);
    let list = parse(&text);
    let missing = (400, "MANIFEST_BLOB_UNKNOWN".to_owned());
    assert_eq!(rejection(storage, &name, &list).await, missing);
    let lacks_blob = parse(&list_of(&[inline(b"nothing", "llamacpp")]));
    assert_eq!(rejection(storage, &name, &lacks_blob).await, missing);
    let child = parse(&child);
    put(storage, &name, &by_digest(&child), &child).await;
    put(storage, &name, &tag("latest"), &list).await;
    assert_eq!(find(&test.other, &name, &tag("latest")).await.unwrap().bytes, list.bytes);
    let nested = parse(&list_of(&[reference(&text, "mlx", "safetensors")]));
    assert_eq!(rejection(storage, &name, &nested).await, (400, "MANIFEST_INVALID".to_owned()));
    // Children of another repository do not count.
    assert_eq!(rejection(storage, &named("team/other"), &list).await, missing);
}

pub(super) async fn children_of_lists_cannot_be_removed(test: &Fixture) {
    let (storage, name) = (&test.storage, named("team/m"));
    for content in [&b"weights"[..], b"whole"] {
        push(storage, &name, content).await;
    }
    let text = child(b"weights").to_string();
    let child = parse(&text);
    put(storage, &name, &by_digest(&child), &child).await;
    let list = parse(&list_of(&[inline(b"whole", "llamacpp"), reference(&text, "ggml", "gguf")]));
    put(storage, &name, &tag("latest"), &list).await;
    for digest in &list.children {
        let lists = test.other.manifests.lists_containing(&name, *digest).await;
        assert_eq!(lists, Ok(vec![list.digest]));
        let of = Reference::Digest(*digest);
        assert_eq!(find(&test.other, &name, &of).await.unwrap().digest, *digest);
    }
    let error = storage.manifests.remove_manifest(&name, &by_digest(&child)).await.unwrap_err();
    assert_eq!(error.code(), (403, "DENIED"), "{error}");
    let error = storage.blobs.remove_blob(Digest::of(b"whole")).await.unwrap_err();
    assert_eq!(error.code(), (403, "DENIED"), "{error}");
    for manifest in [&list, &child] {
        assert_eq!(storage.manifests.remove_manifest(&name, &by_digest(manifest)).await, Ok(true));
        assert_eq!(find(&test.other, &name, &by_digest(manifest)).await, None);
    }
    let inline_child = Reference::Digest(list.children[0]);
    assert_eq!(find(&test.other, &name, &inline_child).await, None);
    assert_eq!(storage.manifests.lists_containing(&name, child.digest).await, Ok(Vec::new()));
}

pub(super) async fn lists_of_upstreams_may_lack_their_children(test: &Fixture) {
    let (storage, name) = (&test.storage, named("team/m"));
    let children = [reference("none", "mlx", "safetensors"), inline(b"whole", "llamacpp")];
    let list = parse(&list_of(&children));
    storage.manifests.put_upstream_list(&name, "latest", list.clone()).await.unwrap();
    for reference in [tag("latest"), by_digest(&list)] {
        assert_eq!(find(&test.other, &name, &reference).await.as_ref(), Some(&list));
    }
    assert_eq!(storage.manifests.tags(&name).await.unwrap().unwrap(), ["latest"]);
    for (digest, is_present) in list.children.iter().zip([false, true]) {
        let lists = test.other.manifests.lists_containing(&name, *digest).await;
        assert_eq!(lists, Ok(vec![list.digest]));
        let found = find(&test.other, &name, &Reference::Digest(*digest)).await;
        assert_eq!(found.is_some(), is_present);
    }
    assert_eq!(storage.manifests.remove_manifest(&name, &by_digest(&list)).await, Ok(true));
    assert_eq!(storage.manifests.lists_containing(&name, list.children[0]).await, Ok(Vec::new()));
    assert_eq!(test.other.manifests.tags(&name).await, Ok(None));
}

pub(super) async fn a_tag_is_removed_only_if_unchanged(test: &Fixture) {
    let (one, other, name) = (&test.storage, &test.other, named("team/thing"));
    let old = push_image(one, &name, "v1", b"old weights").await;
    put(one, &name, &tag("v2"), &old).await;
    let removal = async |tag: Option<&str>| {
        conditional_removal(&*one.inventory, &name, tag, old.digest).await
    };
    let first = removal(Some("v1")).await;
    let new = push_image(other, &name, "v1", b"new weights").await;
    let bare = removal(None).await;
    let none = one.manifests.remove_unchanged(vec![first, bare]).await.unwrap();
    assert_eq!(none, [Ok(false), Ok(false)], "the one has moved, v2 stands for the other");
    let last = removal(Some("v2")).await;
    let (a, b) = tokio::join!(
        one.manifests.remove_unchanged(vec![last.clone()]),
        other.manifests.remove_unchanged(vec![last])
    );
    assert!([a.unwrap(), b.unwrap()].concat().contains(&Ok(true)));
    assert_eq!(find(one, &name, &by_digest(&old)).await, None);
    assert_eq!(find(other, &name, &tag("v1")).await, Some(new));
    assert_eq!(one.manifests.tags(&name).await.unwrap().unwrap(), ["v1"]);
}
