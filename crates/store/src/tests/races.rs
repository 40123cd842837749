//! Tests of concurrent work on one store.

use super::{Kit, from_files, name};
use crate::{CreateRequest, StoreError};

/// A request for a model made from another one, with a system message that other models share.
fn child(system: &str) -> CreateRequest {
    CreateRequest {
        from: Some("base".into()),
        system: Some(system.into()),
        ..CreateRequest::default()
    }
}

#[test]
fn shared_layers_survive_the_removal_of_one_model() {
    let kit = Kit::new();
    kit.model("base", 1);
    std::thread::scope(|scope| {
        for worker in 0..6 {
            let kit = &kit;
            scope.spawn(move || {
                for _ in 0..60 {
                    let own = format!("m{worker}");
                    kit.create(&own, &child("the same for all")).unwrap();
                    kit.store.copy(&name(&own), &name(&format!("copy{worker}"))).unwrap();
                    kit.store.resolve(&name(&own)).unwrap();
                    kit.store.delete(&name(&own)).unwrap();
                    kit.store.resolve(&name(&format!("copy{worker}"))).unwrap();
                    kit.store.delete(&name(&format!("copy{worker}"))).unwrap();
                }
            });
        }
    });
    // No blob is pinned any more.
    kit.create("last", &child("the same for all")).unwrap();
    let before = kit.blob_count();
    kit.store.delete(&name("last")).unwrap();
    assert!(kit.blob_count() < before, "a blob is still pinned");
    assert_eq!(kit.names(), ["base:latest", "cria:latest"]);
}

#[test]
fn a_model_removed_during_a_lookup_is_not_found() {
    let kit = Kit::new();
    kit.model("base", 1);
    let gone = |error: StoreError| assert!(matches!(error, StoreError::NotFound(_)), "{error}");
    std::thread::scope(|scope| {
        let kit = &kit;
        for _ in 0..2 {
            scope.spawn(move || {
                for n in 0..120 {
                    kit.create("m", &child(&format!("text {n}"))).unwrap();
                    let _ = kit.store.delete(&name("m")).map_err(gone);
                }
            });
        }
        for worker in 0..3 {
            scope.spawn(move || {
                for _ in 0..200 {
                    let _ = kit.store.resolve(&name("m")).map_err(gone);
                    let _ = kit.store.copy(&name("m"), &name(&format!("c{worker}"))).map_err(gone);
                    let from = CreateRequest { from: Some("m".into()), ..CreateRequest::default() };
                    let _ = kit.create(&format!("d{worker}"), &from).map_err(gone);
                }
            });
        }
    });
    // Copied models are complete.
    for entry in kit.store.list().unwrap() {
        kit.store.resolve_entry(&entry).unwrap();
    }
}

#[test]
fn an_incomplete_model_cannot_be_copied() {
    let kit = Kit::new();
    let weights = kit.model("m", 1);
    std::fs::remove_file(kit.store.blob_path(&weights)).unwrap();
    let incomplete =
        |error: StoreError| assert!(matches!(error, StoreError::Incomplete { .. }), "{error}");
    incomplete(kit.store.copy(&name("m"), &name("n")).unwrap_err());
    incomplete(
        kit.create("n", &CreateRequest { from: Some("m".into()), ..CreateRequest::default() })
            .unwrap_err(),
    );
    assert!(!kit.store.pins.lock().contains(&weights));
    let upload = kit.upload(1).digest;
    kit.create("n", &from_files(&[("m.gguf", upload)])).unwrap();
    kit.store.resolve(&name("m")).unwrap();
}

#[test]
fn blobs_that_another_process_may_use_survive_the_removal_of_a_model() {
    let kit = Kit::new();
    // This store has its own pins and work, like another process.
    let other = crate::Store::open(kit.root()).unwrap();
    let weights = kit.model("base", 1);
    let work = other.begin_work();
    assert!(other.pin_blob(&weights, super::gguf(1).len() as u64));
    kit.store.delete(&name("base")).unwrap();
    assert!(kit.store.has_blob(&weights), "an import of another process needs it");
    drop(work);
    // No other process is working, and the work of this process does not need the blob.
    kit.model("base", 1);
    let _own = kit.store.begin_work();
    kit.store.delete(&name("base")).unwrap();
    assert!(!kit.store.has_blob(&weights));
}
