//! Tests of crashes at every disk write: each model is then the old one or the new one, never a
//! mix.

use super::{Kit, from_files, from_model, name};
use crate::files::crash_after;
use crate::{CreateRequest, Digest, Store, StoreError};

/// Runs `work` with a crash after 0, 1, 2 … disk writes until it succeeds. `check` inspects the
/// store as a new process finds it, and returns whether the work took effect.
fn at_every_step(prepare: fn(&Kit), work: fn(&Store) -> bool, check: fn(&Store) -> bool) {
    let mut effects = Vec::new();
    for steps in 0.. {
        let kit = Kit::new();
        prepare(&kit);
        let store = Store::open(kit.root()).unwrap();
        crash_after(Some(steps));
        let done = work(&store);
        crash_after(None);
        let fresh = Store::open(kit.root()).unwrap();
        effects.push(check(&fresh));
        every_model_is_whole(&fresh);
        // A second attempt succeeds after the crash.
        assert!(work(&fresh) || effects[steps], "after {steps} steps");
        every_model_is_whole(&fresh);
        if done {
            assert!(effects[steps]);
            assert!(steps > 3, "the simulation saw only {steps} steps");
            return;
        }
    }
}

fn every_model_is_whole(store: &Store) {
    for entry in store.list().unwrap().iter().filter(|entry| !entry.is_embedded()) {
        store.resolve_entry(entry).unwrap();
        for layer in entry.manifest.blobs() {
            assert_eq!(store.verify_blob(&layer.digest), Ok(layer.size));
        }
    }
}

fn create(store: &Store, model: &str, request: &CreateRequest) -> bool {
    store.create(&name(model), request, &crate::CreateHooks::default(), &mut |_| {}).is_ok()
}

#[test]
fn a_crash_while_a_model_is_created_leaves_no_model_or_a_complete_one() {
    at_every_step(
        |_| {},
        |store| {
            let Ok(blob) = store.add_blob(&super::gguf(1)) else { return false };
            create(store, "m", &from_files(&[("m.gguf", blob.digest)]))
        },
        |store| store.find(&name("m")).unwrap().is_some(),
    );
}

#[test]
fn a_crash_while_a_model_is_replaced_leaves_the_old_or_the_new_one() {
    at_every_step(
        |kit| {
            kit.model("base", 1);
            assert!(create(
                &kit.store,
                "m",
                &CreateRequest { system: Some("old".into()), ..from_model("base") }
            ));
        },
        |store| {
            create(store, "m", &CreateRequest { system: Some("new".into()), ..from_model("base") })
        },
        |store| {
            let system = store.resolve(&name("m")).unwrap().system.unwrap();
            assert!(["old", "new"].contains(&system.as_str()));
            system == "new"
        },
    );
}

#[test]
fn a_crash_while_a_model_is_deleted_leaves_other_models_complete() {
    at_every_step(
        |kit| {
            kit.model("m", 1);
            assert!(create(
                &kit.store,
                "other",
                &CreateRequest { system: Some("s".into()), ..from_model("m") }
            ));
        },
        |store| {
            !matches!(store.delete(&name("m")), Err(StoreError::Io { .. }))
                && store.copy(&name("other"), &name("third")).is_ok()
        },
        |store| {
            store.find(&name("m")).unwrap().is_none()
                && store.find(&name("third")).unwrap().is_some()
        },
    );
}

#[test]
fn leftovers_of_a_crash_are_removed_later() {
    let kit = Kit::new();
    crash_after(Some(3));
    assert!(kit.store.add_blob(b"some content").is_err());
    crash_after(None);
    let temp = kit.root().join("puna-tmp");
    let mut entries = std::fs::read_dir(&temp).unwrap().map(|entry| entry.unwrap().path());
    let left = entries.find(|path| path.is_file()).unwrap();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
    std::fs::File::options().append(true).open(&left).unwrap().set_modified(old).unwrap();
    assert_eq!(kit.store.prune(crate::PruneOptions::default()).unwrap().removed.len(), 1);
    assert!(!left.exists() && !kit.store.has_blob(&Digest::of(b"some content")));
}
