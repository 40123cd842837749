//! What is removed while others push, pull and remove; and how long much of it takes.

use super::*;
use crate::holding::Doomed;
use crate::library::seen;
use crate::manifest::OCI_INDEX;
use crate::retention::run::{Retained, remove};

/// A model of Ollama's form, which becomes one of the store.
async fn push_model(desk: &Desk, name: &Repository, tag: &str, content: &str) -> Manifest {
    let blob = desk.upload(name, content).await;
    let layer = format!(
        r#"{{"mediaType":"application/vnd.ollama.image.model","digest":"{blob}","size":{}}}"#,
        content.len()
    );
    let text = format!(
        r#"{{"schemaVersion":2,"mediaType":"{}","layers":[{layer}]}}"#,
        puna_store::media::MANIFEST
    );
    let manifest = Manifest::parse(text.into_bytes().into(), None).unwrap();
    put(desk, name, Some(tag), &manifest).await;
    manifest
}

/// As a request does it.
async fn put(desk: &Desk, name: &Repository, tag: Option<&str>, manifest: &Manifest) {
    let of = tag.map_or(Reference::Digest(manifest.digest), |tag| Reference::Tag(tag.to_owned()));
    let replaced = desk.library.put_manifest(name, &of, manifest.clone()).await.unwrap();
    let notes = desk.library.notes();
    desk.history.came(notes, name, &of, manifest.digest, By::Push, replaced.as_ref()).await;
}

async fn retire(desk: &Desk, doomed: Doomed) -> bool {
    desk.library.retire(vec![doomed]).await.unwrap().remove(0).unwrap()
}

#[tokio::test]
async fn what_was_pushed_again_since_it_was_seen_stays() {
    let dir = tempfile::tempdir().unwrap();
    let time = today();
    // Two processes.
    let (one, other) = (Desk::open(dir.path(), &time), Desk::open(dir.path(), &time));
    let (images, models) = (named("team/deep/thing"), named("team/model"));
    let image = one.push(&images, "v1", "an image").await;
    let model = push_model(&one, &models, "v1", "a model").await;
    let bare = one.push(&images, "gone", "a manifest alone").await;
    one.library.remove_manifest(&images, &Reference::Tag("gone".into())).await.unwrap();
    for (name, tag, manifest) in
        [(&images, Some("v1"), &image), (&models, Some("v1"), &model), (&images, None, &bare)]
    {
        let doomed = seen(&*one.library, name, tag, manifest.digest).await;
        std::thread::sleep(Duration::from_millis(20));
        put(&other, name, tag, manifest).await;
        assert!(!retire(&one, doomed).await, "{tag:?} of {name}");
        let of =
            tag.map_or(Reference::Digest(manifest.digest), |tag| Reference::Tag(tag.to_owned()));
        assert_eq!(one.library.manifest(name, &of).await.unwrap().as_ref(), Some(manifest));
        // As it is seen now it goes.
        let doomed = seen(&*one.library, name, tag, manifest.digest).await;
        assert!(retire(&one, doomed.clone()).await, "{tag:?} of {name}");
        assert!(!retire(&one, doomed).await, "it is gone");
        assert_eq!(
            one.library.manifest(name, &Reference::Digest(manifest.digest)).await.unwrap(),
            None
        );
    }
}

#[tokio::test]
async fn nobody_writes_a_manifest_while_another_process_looks() {
    let dir = tempfile::tempdir().unwrap();
    let desk = Desk::open(dir.path(), &today());
    let (images, models) = (named("team/deep/thing"), named("team/model"));
    let image = desk.push(&images, "v1", "an image").await;
    let model = push_model(&desk, &models, "v1", "a model").await;
    let doomed = seen(&*desk.library, &images, Some("v1"), image.digest).await;
    // What another process holds.
    let theirs = puna_store::lock_file(&dir.path().join("puna-registry/lock")).unwrap();
    let library = &desk.library;
    let tag = Reference::Tag("v1".into());
    let mut works: Vec<(&str, futures_util::future::BoxFuture<'_, ()>)> = vec![
        (
            "a push",
            Box::pin(async {
                _ = library.put_manifest(&images, &tag, image.clone()).await.unwrap()
            }),
        ),
        (
            "a model",
            Box::pin(async {
                _ = library.put_manifest(&models, &tag, model.clone()).await.unwrap()
            }),
        ),
        (
            "a removal by a rule",
            Box::pin(async { _ = library.retire(vec![doomed]).await.unwrap() }),
        ),
        ("clearing away", Box::pin(async { library.tidy().await.unwrap() })),
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
async fn what_a_list_names_that_came_since_stays() {
    let dir = tempfile::tempdir().unwrap();
    let desk = Desk::open(dir.path(), &today());
    let name = named("team/thing");
    let child = desk.push(&name, "v1", "weights").await;
    let doomed = seen(&*desk.library, &name, Some("v1"), child.digest).await;
    let list = |of: &Manifest| {
        let text = format!(
            r#"{{"mediaType":"{OCI_INDEX}","manifests":[{{"mediaType":"{OCI_MANIFEST}","digest":"{}","size":1}}]}}"#,
            of.digest
        );
        Manifest::parse(text.into_bytes().into(), None).unwrap()
    };
    let (list, outer) = (list(&child), list(&list(&child)));
    put(&desk, &name, None, &list).await;
    put(&desk, &name, Some("all"), &outer).await;
    let bare = seen(&*desk.library, &name, None, list.digest).await;
    let removed = desk.library.retire(vec![doomed, bare]).await.unwrap();
    assert_eq!(removed, [Ok(true), Ok(false)], "the tag alone");
    for digest in [child.digest, list.digest, outer.digest] {
        assert!(desk.library.manifest(&name, &Reference::Digest(digest)).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn what_comes_by_its_digest_stays_until_its_list_comes() {
    let dir = tempfile::tempdir().unwrap();
    let time = today();
    let desk = Desk::open(dir.path(), &time);
    let name = named("team/thing");
    let child = desk.push(&name, "v1", "weights").await;
    desk.library.remove_manifest(&name, &Reference::Tag("v1".into())).await.unwrap();
    assert_eq!(desk.retain(&["team=last:1"], false).await, []);
    desk.pass(40);
    put(&desk, &name, None, &child).await;
    assert_eq!(desk.retain(&["team=last:1"], false).await, [], "it has just come again");
    desk.pass(2);
    assert_eq!(desk.retain(&["team=last:1"], false).await, [(None, 7)]);
}

#[tokio::test]
async fn the_same_pushed_over_a_model_of_the_user_leaves_it_his() {
    let dir = tempfile::tempdir().unwrap();
    let time = today();
    let desk = Desk::open(dir.path(), &time);
    let name = named("library/m");
    let text = push_model(&desk, &name, "his", "his weights").await;
    // As he makes it himself: nobody has noted that it came.
    let desk = Desk::open(dir.path(), &time);
    put(&desk, &name, Some("his"), &text).await;
    push_model(&desk, &name, "ours", "weights").await;
    desk.pass(40);
    assert_eq!(desk.retain(&["library=pulled:30d"], false).await, [(Some("ours".to_owned()), 7)]);
    assert!(desk.library.manifest(&name, &Reference::Tag("his".into())).await.unwrap().is_some());
}

#[tokio::test]
async fn a_pull_elsewhere_that_is_noted_before_the_removal_counts() {
    let dir = tempfile::tempdir().unwrap();
    let time = today();
    let (one, other) = (Desk::open(dir.path(), &time), Desk::open(dir.path(), &time));
    let name = named("team/thing");
    for tag in ["a", "b"] {
        one.push(&name, tag, tag).await;
    }
    one.pass(40);
    let judged =
        retain(&*one.library, &one.history, &rules(&["team=pulled:30d"]), true).await.unwrap();
    assert_eq!(judged.removals.len(), 2);
    other.history.pulled(&name, &Reference::Tag("b".into()));
    other.history.write(other.library.notes()).await.unwrap();
    let mut retained = Retained::default();
    remove(&*one.library, &one.history, judged.removals, &mut retained).await.unwrap();
    assert_eq!(retained.removals.iter().map(|r| r.tag.as_deref()).collect::<Vec<_>>(), [Some("a")]);
    assert_eq!(one.library.tags(&name).await.unwrap().unwrap(), ["b"]);
}

#[tokio::test]
async fn what_is_known_of_things_that_are_gone_is_forgotten_without_a_rule() {
    let dir = tempfile::tempdir().unwrap();
    let time = today();
    let desk = Desk::open(dir.path(), &time);
    let name = named("team/thing");
    let kept = desk.push(&name, "kept", "weights").await;
    let gone = Reference::Digest(digest("gone"));
    for of in [&gone, &Reference::Tag("kept".into())] {
        desk.history.pulled(&name, of);
    }
    desk.pass(2);
    assert_eq!(desk.retain(&[], false).await, []);
    assert_eq!(desk.history.last_pull(&name, "none", &digest("gone")), None);
    assert!(desk.history.last_pull(&name, "kept", &kept.digest).is_some());
    let notes = desk.library.notes().list().await.unwrap();
    assert_eq!(notes.len(), 1, "and written so");
}

#[tokio::test]
async fn hundreds_go_in_a_moment() {
    const MANY: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let desk = Desk::open(dir.path(), &today());
    let images = named("team/deep/thing");
    for n in 0..MANY {
        push_model(&desk, &named(&format!("team/m{n}")), "v1", &format!("model {n}")).await;
        desk.push(&images, &format!("v{n}"), &format!("image {n}")).await;
    }
    desk.pass(40);
    let begun = std::time::Instant::now();
    assert_eq!(desk.retain(&["team*=pulled:30d keep:v7"], false).await.len(), 2 * MANY - 1);
    let took = begun.elapsed();
    assert_eq!(desk.library.tags(&images).await.unwrap().unwrap(), ["v7"]);
    let blobs = std::fs::read_dir(dir.path().join("blobs")).unwrap().count();
    assert_eq!(blobs, 0, "all models are gone, with all that is theirs");
    // Reading all manifests and tags for each of them takes a minute.
    assert!(took < Duration::from_secs(8), "{took:?}");
}
