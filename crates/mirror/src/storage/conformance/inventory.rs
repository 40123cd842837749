//! Behaviour of an [`ObjectInventory`](crate::storage::ObjectInventory).

use futures_util::future::join_all;

use super::*;
use crate::storage::note_store::NoteStore;
use crate::storage::{InventoryScope, conditional_removal};
use crate::types::storage_usage::{NamespaceUsages, StorageUsage};
use crate::types::stored_object::Owner;

/// Repository and manifest of each stored object; `None` for a pushed blob.
async fn objects(storage: &Storage, scope: InventoryScope) -> Vec<(String, Option<Digest>)> {
    let objects = storage.inventory.stored_objects(scope).await.unwrap();
    let mut objects: Vec<_> =
        objects.into_iter().map(|object| (object.name.to_string(), object.manifest)).collect();
    objects.sort();
    objects
}

async fn note_names(notes: &dyn NoteStore) -> Vec<String> {
    let mut names: Vec<String> =
        notes.list().await.unwrap().into_iter().map(|note| note.name).collect();
    names.sort();
    names
}

pub(super) async fn listings_agree_with_what_was_put(test: &Fixture) {
    let (storage, name, other) = (&test.storage, named("team/a"), named("team/b"));
    let first = push_image(storage, &name, "v1", b"weights").await;
    storage.manifests.put_manifest(&name, &tag("v2"), first.clone()).await.unwrap();
    let second = push_image(storage, &other, "v1", b"other weights").await;
    push(storage, &other, b"brought alone").await;
    let mut entries = test.other.inventory.tag_entries().await.unwrap();
    entries.sort_by_key(|entry| (entry.name.to_string(), entry.tag.clone()));
    let listed: Vec<_> =
        entries.iter().map(|of| (of.name.as_str(), &*of.tag, of.digest, of.size)).collect();
    let expected = [
        ("team/a", "v1", first.digest, 7),
        ("team/a", "v2", first.digest, 7),
        ("team/b", "v1", second.digest, 13),
    ];
    assert_eq!(listed, expected);
    for entry in &entries {
        assert_eq!((entry.owner, entry.completed), (Owner::Registry, None));
        assert!(entry.written.is_some());
    }
    let mut repositories = test.other.inventory.repositories().await.unwrap();
    repositories.sort();
    assert_eq!(repositories, [name, other]);
    let object = |name: &str, manifest| (name.to_owned(), manifest);
    let expected = [
        object("team/a", None),
        object("team/a", Some(first.digest)),
        object("team/b", None),
        object("team/b", None),
        object("team/b", Some(second.digest)),
    ];
    assert_eq!(objects(&test.other, InventoryScope::All).await, expected);
    for object in storage.inventory.stored_objects(InventoryScope::All).await.unwrap() {
        assert!(!object.is_model && object.children.is_empty() && object.subject.is_none());
        assert_eq!(object.manifest.is_some(), object.written.is_some());
        for (digest, size) in object.blobs {
            assert_eq!(storage.blobs.blob(digest).await.unwrap().unwrap().size(), size);
        }
    }
}

pub(super) async fn listings_cover_only_their_scope(test: &Fixture) {
    let (storage, name) = (&test.storage, named("Team/thing"));
    let manifest = push_image(storage, &name, "v1", b"weights").await;
    // An unreadable manifest of another namespace.
    let broken = format!("repositories/other+x/manifests/{}", Digest::of(b"x").hex());
    test.plant(&broken, "no manifest").await;
    assert!(storage.inventory.stored_objects(InventoryScope::All).await.is_err());
    let expected =
        [("Team/thing".to_owned(), None), ("Team/thing".to_owned(), Some(manifest.digest))];
    for scope in [InventoryScope::Namespace("team".into()), InventoryScope::Repository(name)] {
        assert_eq!(objects(storage, scope).await, expected);
    }
    for scope in [
        InventoryScope::Namespace("thing".into()),
        InventoryScope::Namespace("tea".into()),
        InventoryScope::Repository(named("Team/thin")),
    ] {
        assert_eq!(objects(storage, scope).await, []);
    }
}

pub(super) async fn repositories_keep_their_names(test: &Fixture) {
    let names = ["team/a", "team/a/b", "team/a-b.c_d", "Team/Upper", "team1", "hub.x:5000/team/a"];
    for name in names {
        push_image(&test.storage, &named(name), "v1.0_b-c", b"weights").await;
    }
    let mut expected = names.map(named).to_vec();
    expected.sort();
    let mut listed = test.other.inventory.repositories().await.unwrap();
    listed.sort();
    assert_eq!(listed, expected);
    let entries = test.other.inventory.tag_entries().await.unwrap();
    let mut listed: Vec<_> = entries.iter().map(|entry| entry.name.clone()).collect();
    listed.sort();
    assert_eq!(listed, expected);
    assert!(entries.iter().all(|entry| entry.tag == "v1.0_b-c"));
}

pub(super) async fn usage_notes_are_shared_by_processes(test: &Fixture) {
    let (notes, others) =
        (test.storage.inventory.usage_notes(), test.other.inventory.usage_notes());
    notes.write("a-0.json", "one".into()).await.unwrap();
    others.write("b-0.json", "other".into()).await.unwrap();
    assert_eq!(note_names(notes).await, ["a-0.json", "b-0.json"]);
    assert_eq!(others.read("a-0.json").await.unwrap().as_deref(), Some(&b"one"[..]));
    let version =
        || async { notes.list().await.unwrap().into_iter().find(|note| note.name == "a-0.json") };
    let before = version().await.unwrap().version;
    notes.write("a-0.json", "more".into()).await.unwrap();
    assert_ne!(version().await.unwrap().version, before);
    others.remove("a-0.json").await.unwrap();
    assert_eq!(notes.read("a-0.json").await.unwrap(), None);
    others.remove("a-0.json").await.unwrap();
}

pub(super) async fn size_notes_belong_to_a_repository(test: &Fixture) {
    for (name, note) in [("team/a", "1"), ("team/b", "2")] {
        let notes = test.storage.inventory.size_notes(&named(name));
        assert_eq!(note_names(&*notes).await, [""; 0]);
        notes.write(note, "[]".into()).await.unwrap();
    }
    let others = test.other.inventory.size_notes(&named("team/b"));
    assert_eq!(note_names(&*others).await, ["2"]);
    test.storage.inventory.collect_garbage().await.unwrap();
    assert_eq!(note_names(&*others).await, ["2"]);
    test.age().await;
    test.storage.inventory.collect_garbage().await.unwrap();
    assert_eq!(note_names(&*others).await, [""; 0]);
}

pub(super) async fn old_unreferenced_blobs_are_collected(test: &Fixture) {
    let (storage, name) = (&test.storage, named("team/thing"));
    let manifest = push_image(storage, &name, "v1", b"kept").await;
    let (kept, old) = (Digest::of(b"kept"), push(storage, &name, b"old").await);
    storage.inventory.collect_garbage().await.unwrap();
    assert!(has_blob(storage, old).await, "its manifest may be on its way");
    test.age().await;
    let new = push(storage, &name, b"new").await;
    storage.inventory.collect_garbage().await.unwrap();
    let there = [kept, old, new].map(|digest| has_blob(&test.other, digest));
    assert_eq!(join_all(there).await, [true, false, true]);
    assert_eq!(storage.manifests.manifest(&name, &tag("v1")).await, Ok(Some(manifest.clone())));
    let of = Reference::Digest(manifest.digest);
    assert!(storage.manifests.remove_manifest(&name, &of).await.unwrap());
    test.other.inventory.collect_garbage().await.unwrap();
    let there = [kept, new].map(|digest| has_blob(storage, digest));
    assert_eq!(join_all(there).await, [false, true]);
    // The client may push the blob again.
    push(storage, &name, b"old").await;
    assert_eq!(read(storage, old, 0..3).await, b"old");
}

pub(super) async fn expired_uploads_are_collected(test: &Fixture) {
    let (storage, name) = (&test.storage, named("team/thing"));
    let uploads = &storage.uploads;
    let empty = uploads.begin(&name, "").await.unwrap();
    let begun = uploads.begin(&name, "").await.unwrap();
    uploads.append(&name, &begun, part(None, &noise(80_000), true)).await.unwrap();
    storage.inventory.collect_garbage().await.unwrap();
    assert_eq!(uploads.size(&name, &begun).await, Ok(80_000));
    test.age().await;
    let new = uploads.begin(&name, "").await.unwrap();
    storage.inventory.collect_garbage().await.unwrap();
    for id in [&empty, &begun] {
        let error = uploads.size(&name, id).await.unwrap_err();
        assert_eq!(error.code(), (404, "BLOB_UPLOAD_UNKNOWN"), "{error}");
    }
    assert_eq!(uploads.size(&name, &new).await, Ok(0));
}

pub(super) async fn nothing_is_removed_beside_unknown_objects(test: &Fixture) {
    let (storage, name) = (&test.storage, named("team/thing"));
    let manifest = push_image(storage, &name, "v1", b"kept").await;
    let unused = push(storage, &name, b"unused").await;
    test.age().await;
    let removal =
        conditional_removal(&*storage.inventory, &name, Some("v1"), manifest.digest).await;
    test.plant("manifests-v3/x", "of a newer version").await;
    let before = test.paths().await;
    storage.inventory.collect_garbage().await.unwrap();
    let removed = storage.manifests.remove_unchanged(vec![removal]).await;
    assert_eq!(removed, Ok(vec![Ok(false)]));
    let error = storage.blobs.remove_blob(unused).await.unwrap_err();
    assert_eq!(error.code(), (403, "DENIED"), "{error}");
    assert_eq!(test.paths().await, before);
    assert!(has_blob(storage, unused).await);
}

pub(super) async fn everything_but_blobs_is_counted_by_namespace(test: &Fixture) {
    let (storage, name, other) = (&test.storage, named("team/a"), named("team1/b"));
    let usage = async |scope| test.other.inventory.metadata_usage(scope).await.unwrap();
    assert_eq!(usage(InventoryScope::All).await, NamespaceUsages::new());
    let manifest = push_image(storage, &name, "v1", b"weights").await;
    push_image(storage, &other, "v1", b"weights").await;
    let bytes = manifest.bytes.len() as u64 + 71;
    // The manifest, its tag and the push mark of its blob.
    let one = StorageUsage { bytes, objects: 3 };
    let of = |namespace: &str, usage| NamespaceUsages::from([(namespace.to_owned(), usage)]);
    let team = InventoryScope::Namespace("Team".into());
    assert_eq!(usage(team.clone()).await, of("team", one));
    let both = [("team".to_owned(), one), ("team1".to_owned(), one)];
    assert_eq!(usage(InventoryScope::All).await, NamespaceUsages::from(both));
    // A referrer and a size note.
    let text = format!(r#"{{"layers":[],"subject":{{"digest":"{}"}}}}"#, manifest.digest);
    let referrer = parse(&text);
    let reference = Reference::Digest(referrer.digest);
    storage.manifests.put_manifest(&named("Team/c"), &reference, referrer).await.unwrap();
    storage.inventory.size_notes(&name).write("1", "[]".into()).await.unwrap();
    let more = StorageUsage { bytes: text.len() as u64 + 2, objects: 3 };
    assert_eq!(usage(team.clone()).await, of("team", one.plus(more)));
    // Removed items no longer count.
    let reference = Reference::Digest(manifest.digest);
    assert!(storage.manifests.remove_manifest(&name, &reference).await.unwrap());
    let left = more.plus(StorageUsage::one(0));
    assert_eq!(usage(team.clone()).await, of("team", left));
    assert!(storage.blobs.remove_blob(Digest::of(b"weights")).await.is_err(), "in use elsewhere");
    let reference = tag("v1");
    assert!(storage.manifests.remove_manifest(&other, &reference).await.unwrap());
    let manifest = Reference::Digest(manifest.digest);
    assert!(storage.manifests.remove_manifest(&other, &manifest).await.unwrap());
    assert!(storage.blobs.remove_blob(Digest::of(b"weights")).await.unwrap());
    assert_eq!(usage(InventoryScope::All).await, of("team", more), "nor do their push marks");
}
