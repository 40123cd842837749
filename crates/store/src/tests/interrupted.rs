//! Tests of crashes at every disk write in a store that Puna shares with Ollama 0.17 and 0.40: no
//! name is lost, and no unreferenced blob stays.

use std::fs;
use std::path::Path;

use super::ollama::{Content, Ollama017, Ollama040, age_blobs, alive};
use super::shared::{DAYS, folder, list_of, manifest_of, on_disk, short};
use crate::files::crash_after;
use crate::{Digest, Store, media};

/// A change of the name `m`.
type Change = fn(&Store) -> bool;

/// Runs a change with a crash after 0, 1, 2 … disk writes until it succeeds. After each crash,
/// every program must be able to load the name `other` and, except after removals, `m`, whatever
/// Ollama 0.17 removes then. Cleaning up leaves no unreferenced blob.
fn at_every_step(is_linked: bool, prepare: fn(&Path), change: Change, removes: bool) {
    for steps in 0.. {
        let dir = folder();
        let root = dir.path();
        if is_linked {
            fs::create_dir_all(root.join("manifests-v2")).unwrap();
        }
        prepare(root);
        let store = Store::open(root).unwrap();
        store
            .store_manifest(&short("other"), &list_of(&store, &[1, 2], 3), false, &mut || ())
            .unwrap();
        let was_there = store.find(&short("m")).unwrap().is_some();
        crash_after(Some(steps));
        let done = change(&store);
        crash_after(None);
        let fresh = Store::open(root).unwrap();
        let must_load = was_there && !removes;
        check_loads(root, &fresh, must_load, steps);
        check_no_unreferenced_blobs(root, steps);
        check_loads(root, &fresh, must_load, steps);
        // The blobs that an older version removes at its start are not those that a name needs.
        Ollama017::new(root).prune().unwrap();
        check_loads(root, &fresh, must_load, steps);
        assert!(
            change(&fresh) || fresh.find(&short("m")).unwrap().is_none(),
            "after {steps} steps"
        );
        check_loads(root, &fresh, must_load, steps);
        if done {
            assert!(steps > 4, "the simulation saw only {steps} steps");
            return;
        }
    }
}

fn check_loads(root: &Path, store: &Store, must_load: bool, steps: usize) {
    let names: &[&str] = if must_load { &["m", "other"] } else { &["other"] };
    for name in names {
        let entry = store
            .get(&short(name))
            .unwrap_or_else(|error| panic!("{name} after {steps} steps: {error}"));
        store
            .resolve_entry(&entry)
            .unwrap_or_else(|error| panic!("{name} after {steps} steps: {error}"));
        assert!(
            Ollama017::new(root).load(name).unwrap().is_some(),
            "0.17: {name} after {steps} steps"
        );
        assert!(
            Ollama040::new(root).load(name, None).unwrap().is_some(),
            "0.40: {name} after {steps} steps"
        );
    }
    assert!(store.listing().unwrap().errors.is_empty(), "after {steps} steps");
}

/// Another process starts a day later and cleans up.
fn check_no_unreferenced_blobs(root: &Path, steps: usize) {
    age_blobs(root, DAYS).unwrap();
    let fresh = Store::open(root).unwrap();
    assert_eq!(fresh.clean_up().unwrap().blocked_by, None, "after {steps} steps");
    fresh.empty_trash(std::time::Duration::ZERO);
    age_blobs(root, DAYS).unwrap();
    fresh.clean_up().unwrap();
    let left: Vec<Digest> = (&on_disk(root) - &alive(root).unwrap()).into_iter().collect();
    assert_eq!(left, [], "after {steps} steps");
}

fn pull(store: &Store) -> bool {
    let made = || -> Result<_, crate::StoreError> {
        let content = Content::sample(9);
        let layer = |kind: &str, bytes: &[u8]| {
            store.add_blob(bytes).map(|blob| crate::Layer::new(kind, blob.digest, blob.size))
        };
        let layers = vec![layer(media::MODEL, &content.weights)?];
        let config = Some(layer(media::CONFIG, content.config.as_bytes())?);
        let manifest = crate::Manifest { config, layers };
        store.store_manifest(&short("m"), &manifest.to_bytes(), false, &mut || ())
    };
    made().is_ok()
}

fn pull_list(store: &Store) -> bool {
    // The blobs come first, as in a pull; this tests writing the name.
    let steps = crate::files::writes_left();
    crash_after(None);
    let list = list_of(store, &[4, 5, 7], 3);
    crash_after(steps);
    store.store_manifest(&short("m"), &list, false, &mut || ()).is_ok()
}

fn copy(store: &Store) -> bool {
    store.copy(&short("other"), &short("m")).is_ok()
}

fn delete(store: &Store) -> bool {
    !matches!(store.delete(&short("m")), Err(crate::StoreError::Io { .. }))
}

fn nothing(_: &Path) {}

fn old_model(root: &Path) {
    let store = Store::open(root).unwrap();
    store.store_manifest(&short("m"), &manifest_of(&store, 3), false, &mut || ()).unwrap();
}

fn old_list(root: &Path) {
    let store = Store::open(root).unwrap();
    store.store_manifest(&short("m"), &list_of(&store, &[3, 6, 8], 7), false, &mut || ()).unwrap();
}

#[test]
fn a_crash_while_a_model_is_pulled_loses_nothing() {
    for is_linked in [true, false] {
        for prepare in [nothing, old_model, old_list] {
            at_every_step(is_linked, prepare, pull, false);
        }
    }
}

#[test]
fn a_crash_while_a_list_is_pulled_loses_nothing() {
    for is_linked in [true, false] {
        for prepare in [nothing, old_model, old_list] {
            at_every_step(is_linked, prepare, pull_list, false);
        }
    }
}

#[test]
fn a_crash_while_a_model_is_copied_loses_nothing() {
    for is_linked in [true, false] {
        for prepare in [nothing, old_model, old_list] {
            at_every_step(is_linked, prepare, copy, false);
        }
    }
}

#[test]
fn a_crash_while_a_model_is_removed_loses_nothing() {
    for is_linked in [true, false] {
        for prepare in [old_model, old_list] {
            at_every_step(is_linked, prepare, delete, true);
        }
    }
}
