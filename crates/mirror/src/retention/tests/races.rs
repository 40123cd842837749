//! Retention during concurrent pushes, pulls and removals, and its speed with many items.

use super::*;
use crate::retention::run::{RetentionReport, remove_batch};
use crate::storage::conditional_removal;
use crate::types::manifest::OCI_INDEX;
use crate::types::stored_object::ConditionalRemoval;

/// Pushes a model in Ollama's format, which becomes a model of the store.
async fn push_model(test: &TestStorage, name: &Repository, tag: &str, content: &str) -> Manifest {
    let blob = test.upload(name, content).await;
    let layer = format!(
        r#"{{"mediaType":"application/vnd.ollama.image.model","digest":"{blob}","size":{}}}"#,
        content.len()
    );
    let text = format!(
        r#"{{"schemaVersion":2,"mediaType":"{}","layers":[{layer}]}}"#,
        puna_store::media::MANIFEST
    );
    let manifest = Manifest::parse(text.into_bytes().into(), None).unwrap();
    put(test, name, Some(tag), &manifest).await;
    manifest
}

/// Stores a manifest as the HTTP handler does.
async fn put(test: &TestStorage, name: &Repository, tag: Option<&str>, manifest: &Manifest) {
    let of = tag.map_or(Reference::Digest(manifest.digest), |tag| Reference::Tag(tag.to_owned()));
    let replaced = test.storage.manifests.put_manifest(name, &of, manifest.clone()).await.unwrap();
    let notes = test.storage.inventory.usage_notes();
    test.usage_log
        .record_arrival_after_sync(
            notes,
            name,
            &of,
            manifest.digest,
            ChangeSource::Push,
            replaced.as_ref(),
        )
        .await;
}

async fn remove_unchanged(test: &TestStorage, removal: ConditionalRemoval) -> bool {
    test.storage.manifests.remove_unchanged(vec![removal]).await.unwrap().remove(0).unwrap()
}

#[tokio::test]
async fn tags_pushed_again_since_planning_stay() {
    let dir = tempfile::tempdir().unwrap();
    let time = today();
    // Two processes.
    let (one, other) = (TestStorage::open(dir.path(), &time), TestStorage::open(dir.path(), &time));
    let (images, models) = (named("team/deep/thing"), named("team/model"));
    let image = one.push(&images, "v1", "an image").await;
    let model = push_model(&one, &models, "v1", "a model").await;
    let bare = one.push(&images, "gone", "a manifest alone").await;
    one.storage.manifests.remove_manifest(&images, &Reference::Tag("gone".into())).await.unwrap();
    for (name, tag, manifest) in
        [(&images, Some("v1"), &image), (&models, Some("v1"), &model), (&images, None, &bare)]
    {
        let removals =
            conditional_removal(&*one.storage.inventory, name, tag, manifest.digest).await;
        std::thread::sleep(Duration::from_millis(20));
        put(&other, name, tag, manifest).await;
        assert!(!remove_unchanged(&one, removals).await, "{tag:?} of {name}");
        let of =
            tag.map_or(Reference::Digest(manifest.digest), |tag| Reference::Tag(tag.to_owned()));
        assert_eq!(
            one.storage.manifests.manifest(name, &of).await.unwrap().as_ref(),
            Some(manifest)
        );
        // With its current state it is removed.
        let removals =
            conditional_removal(&*one.storage.inventory, name, tag, manifest.digest).await;
        assert!(remove_unchanged(&one, removals.clone()).await, "{tag:?} of {name}");
        assert!(!remove_unchanged(&one, removals).await, "it is gone");
        assert_eq!(
            one.storage
                .manifests
                .manifest(name, &Reference::Digest(manifest.digest))
                .await
                .unwrap(),
            None
        );
    }
}

#[tokio::test]
async fn pushes_wait_for_the_lock_of_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let test = TestStorage::open(dir.path(), &today());
    let (images, models) = (named("team/deep/thing"), named("team/model"));
    let image = test.push(&images, "v1", "an image").await;
    let model = push_model(&test, &models, "v1", "a model").await;
    let removals =
        conditional_removal(&*test.storage.inventory, &images, Some("v1"), image.digest).await;
    // Lock that another process holds.
    let theirs = puna_store::lock_file(&dir.path().join("puna-registry/lock")).unwrap();
    let storage = &test.storage;
    let tag = Reference::Tag("v1".into());
    let mut works: Vec<(&str, futures_util::future::BoxFuture<'_, ()>)> = vec![
        (
            "a push",
            Box::pin(async {
                _ = storage.manifests.put_manifest(&images, &tag, image.clone()).await.unwrap()
            }),
        ),
        (
            "a model",
            Box::pin(async {
                _ = storage.manifests.put_manifest(&models, &tag, model.clone()).await.unwrap()
            }),
        ),
        (
            "a removal by a rule",
            Box::pin(async {
                _ = storage.manifests.remove_unchanged(vec![removals]).await.unwrap()
            }),
        ),
        ("clearing away", Box::pin(async { storage.inventory.collect_garbage().await.unwrap() })),
    ];
    for (what, work) in &mut works {
        let done = tokio::time::timeout(Duration::from_millis(60), work.as_mut()).await;
        assert!(done.is_err(), "{what} does not wait");
    }
    drop(theirs);
    for (_, work) in works {
        work.await;
    }
}

#[tokio::test]
async fn children_of_lists_pushed_since_planning_stay() {
    let dir = tempfile::tempdir().unwrap();
    let test = TestStorage::open(dir.path(), &today());
    let name = named("team/thing");
    let child = test.push(&name, "v1", "weights").await;
    let removals =
        conditional_removal(&*test.storage.inventory, &name, Some("v1"), child.digest).await;
    let list = |of: &Manifest| {
        let text = format!(
            r#"{{"mediaType":"{OCI_INDEX}","manifests":[{{"mediaType":"{OCI_MANIFEST}","digest":"{}","size":1}}]}}"#,
            of.digest
        );
        Manifest::parse(text.into_bytes().into(), None).unwrap()
    };
    let (list, outer) = (list(&child), list(&list(&child)));
    put(&test, &name, None, &list).await;
    put(&test, &name, Some("all"), &outer).await;
    let bare = conditional_removal(&*test.storage.inventory, &name, None, list.digest).await;
    let removed = test.storage.manifests.remove_unchanged(vec![removals, bare]).await.unwrap();
    assert_eq!(removed, [Ok(true), Ok(false)], "the tag alone");
    for digest in [child.digest, list.digest, outer.digest] {
        assert!(
            test.storage
                .manifests
                .manifest(&name, &Reference::Digest(digest))
                .await
                .unwrap()
                .is_some()
        );
    }
}

#[tokio::test]
async fn manifests_pushed_by_digest_stay_until_their_list_arrives() {
    let dir = tempfile::tempdir().unwrap();
    let time = today();
    let test = TestStorage::open(dir.path(), &time);
    let name = named("team/thing");
    let child = test.push(&name, "v1", "weights").await;
    test.storage.manifests.remove_manifest(&name, &Reference::Tag("v1".into())).await.unwrap();
    assert_eq!(test.apply_retention(&["team=last:1"], false).await, []);
    test.pass(40);
    put(&test, &name, None, &child).await;
    assert_eq!(test.apply_retention(&["team=last:1"], false).await, [], "it has just come again");
    test.pass(2);
    assert_eq!(test.apply_retention(&["team=last:1"], false).await, [(None, 7)]);
}

#[tokio::test]
async fn pushing_an_equal_model_leaves_it_to_the_user() {
    let dir = tempfile::tempdir().unwrap();
    let time = today();
    let test = TestStorage::open(dir.path(), &time);
    let name = named("library/m");
    let text = push_model(&test, &name, "his", "his weights").await;
    // The user creates the model, so that no mirror records its arrival.
    let test = TestStorage::open(dir.path(), &time);
    put(&test, &name, Some("his"), &text).await;
    push_model(&test, &name, "ours", "weights").await;
    test.pass(40);
    assert_eq!(
        test.apply_retention(&["library=pulled:30d"], false).await,
        [(Some("ours".to_owned()), 7)]
    );
    assert!(
        test.storage
            .manifests
            .manifest(&name, &Reference::Tag("his".into()))
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn pulls_on_other_mirrors_prevent_removal() {
    let dir = tempfile::tempdir().unwrap();
    let time = today();
    let (one, other) = (TestStorage::open(dir.path(), &time), TestStorage::open(dir.path(), &time));
    let name = named("team/thing");
    for tag in ["a", "b"] {
        one.push(&name, tag, tag).await;
    }
    one.pass(40);
    let judged = apply_retention(&one.storage, &one.usage_log, &rules(&["team=pulled:30d"]), true)
        .await
        .unwrap();
    assert_eq!(judged.removals.len(), 2);
    other.usage_log.record_pull(&name, &Reference::Tag("b".into()));
    other.usage_log.write(other.storage.inventory.usage_notes()).await.unwrap();
    let mut retained = RetentionReport::default();
    remove_batch(&one.storage, &one.usage_log, judged.removals, &mut retained).await.unwrap();
    assert_eq!(retained.removals.iter().map(|r| r.tag.as_deref()).collect::<Vec<_>>(), [Some("a")]);
    assert_eq!(one.storage.manifests.tags(&name).await.unwrap().unwrap(), ["b"]);
}

#[tokio::test]
async fn records_of_missing_items_expire_without_a_rule() {
    let dir = tempfile::tempdir().unwrap();
    let time = today();
    let test = TestStorage::open(dir.path(), &time);
    let name = named("team/thing");
    let kept = test.push(&name, "kept", "weights").await;
    let gone = Reference::Digest(digest("gone"));
    for of in [&gone, &Reference::Tag("kept".into())] {
        test.usage_log.record_pull(&name, of);
    }
    test.pass(2);
    assert_eq!(test.apply_retention(&[], false).await, []);
    assert_eq!(test.usage_log.last_pull(&name, "none", &digest("gone")), None);
    assert!(test.usage_log.last_pull(&name, "kept", &kept.digest).is_some());
    let notes = test.storage.inventory.usage_notes().list().await.unwrap();
    assert_eq!(notes.len(), 1, "and written so");
}

/// Seconds in which retention removes two times `count` tags, less one.
async fn removal_seconds(count: usize) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let test = TestStorage::open(dir.path(), &today());
    let images = named("team/deep/thing");
    for n in 0..count {
        // A file much newer than the clock counts as written by a user.
        test.time.fetch_max(today().load(Relaxed), Relaxed);
        push_model(&test, &named(&format!("team/m{n}")), "v1", &format!("model {n}")).await;
        test.push(&images, &format!("v{n}"), &format!("image {n}")).await;
    }
    test.pass(40);
    let start = std::time::Instant::now();
    let removed = test.apply_retention(&["team*=pulled:30d keep:v7"], false).await.len();
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(removed, 2 * count - 1);
    assert_eq!(test.storage.manifests.tags(&images).await.unwrap().unwrap(), ["v7"]);
    let blobs = std::fs::read_dir(dir.path().join("blobs")).unwrap().count();
    assert_eq!(blobs, 0, "all blobs of the models are removed");
    seconds
}

#[tokio::test]
async fn the_cost_of_retention_is_linear_in_the_removed_tags() {
    let (few, many) = (removal_seconds(30).await, removal_seconds(300).await);
    // Reading all manifests and tags once for each removal would take a hundred times as long.
    assert!(many < 50.0 * few, "{few} s for 30, {many} s for 300");
}
