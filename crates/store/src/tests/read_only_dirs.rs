//! Tests of read-only folders of models.

use std::fs;
use std::time::{Duration, Instant};

use super::*;
use crate::unresponsive_dirs::READ_ONLY_DIR_TIMEOUT;
use crate::unresponsive_dirs::tests::hung;
use crate::{Layer, Manifest, StoreLocation, media};

/// A store with its own folder, one in another folder, and a store that reads both.
fn shared() -> (Kit, Kit, Store) {
    let (share, own) = (Kit::new(), Kit::new());
    let store = Store::open(own.root()).unwrap().with_read_only_dirs([share.root()]);
    (share, own, store)
}

#[test]
fn models_of_read_only_folders_are_found_and_resolved() {
    let (share, own, store) = shared();
    let theirs = share.model("theirs", 1);
    own.model("mine", 2);
    let listed =
        |model: &str| store.list().unwrap().into_iter().find(|e| e.name == name(model)).unwrap();
    assert_eq!(listed("theirs").location, StoreLocation::ReadOnly(share.root()));
    assert_eq!(listed("mine").location, StoreLocation::Own);
    let model = store.resolve(&name("Theirs")).unwrap();
    assert_eq!(model.weights_digest, theirs);
    assert!(store.has_blob(&theirs) && store.verify_blob(&theirs).is_ok());
}

#[test]
fn a_model_of_the_own_folder_hides_a_read_only_one_of_its_name() {
    let (share, own, store) = shared();
    share.model("both", 1);
    let mine = own.model("Both", 2);
    let both: Vec<_> =
        store.list().unwrap().into_iter().filter(|e| e.name.same(&name("both"))).collect();
    assert_eq!(both.len(), 1);
    assert_eq!(
        (both[0].name.clone(), both[0].location.clone()),
        (name("Both"), StoreLocation::Own)
    );
    assert_eq!(store.resolve(&name("both")).unwrap().weights_digest, mine);
}

#[test]
fn read_only_folders_are_never_written() {
    let (share, own, store) = shared();
    let theirs = share.model("theirs", 1);
    let before = tree(&share.root());
    let refused = store.delete(&name("theirs")).unwrap_err();
    assert!(refused.to_string().contains(&share.root().display().to_string()), "{refused}");
    store.copy(&name("theirs"), &name("copy")).unwrap();
    let request = CreateRequest { system: Some("Hi.".into()), ..from_model("theirs") };
    store.create(&name("child"), &request, &CreateHooks::default(), &mut |_| ()).unwrap();
    // An existing blob is not stored again.
    store.add_blob(&gguf(1)).unwrap();
    assert!(!own.root().join("blobs").join(theirs.file_name()).exists());
    for model in ["copy", "child"] {
        assert_eq!(store.resolve(&name(model)).unwrap().weights_digest, theirs);
        store.delete(&name(model)).unwrap();
    }
    store.prune(crate::PruneOptions::default()).unwrap();
    assert_eq!(tree(&share.root()), before);
    assert!(store.resolve(&name("theirs")).is_ok());
}

#[test]
fn missing_and_broken_read_only_folders_are_skipped() {
    let own = Kit::new();
    own.model("mine", 1);
    let broken = own.dir.path().join("broken");
    fs::create_dir_all(broken.join("manifests/h/n/m")).unwrap();
    fs::write(broken.join("manifests/h/n/m/t"), "no manifest").unwrap();
    let store =
        Store::open(own.root()).unwrap().with_read_only_dirs([own.dir.path().join("away"), broken]);
    let listed = store.listing().unwrap();
    let (entries, warnings) = (&listed.entries, &listed.errors);
    assert_eq!((entries.iter().filter(|e| !e.is_embedded()).count(), warnings.len()), (1, 0));
    assert!(store.resolve(&name("mine")).is_ok());
    let blob = store.add_blob(b"unused").unwrap();
    assert!(store.has_blob(&blob.digest));
}

#[test]
fn a_damaged_blob_of_a_read_only_folder_is_stored_again_locally() {
    let (share, own, store) = shared();
    let digest = share.model("theirs", 1);
    fs::write(share.root().join("blobs").join(digest.file_name()), b"cut").unwrap();
    let stored = store
        .blob_writer()
        .and_then(|mut w| w.write(&gguf(1)).and_then(|()| w.finish(Some(&digest))));
    assert!(stored.unwrap().is_new);
    assert!(store.verify_blob(&digest).is_ok() && own.store.has_blob(&digest));
    let layer = Layer::new(media::MODEL, digest, gguf(1).len() as u64);
    let manifest = Manifest { config: None, layers: vec![layer] };
    store.store_manifest(&name("mine"), &manifest.to_bytes(), false, &mut || ()).unwrap();
    assert!(store.resolve(&name("mine")).is_ok());
}

/// Every file below a folder, with its content and time.
fn tree(root: &std::path::Path) -> Vec<(PathBuf, Vec<u8>, std::time::SystemTime)> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let time = fs::metadata(&path).unwrap().modified().unwrap();
                    found.push((path.clone(), fs::read(&path).unwrap(), time));
                }
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_broken_model_of_a_read_only_folder_and_its_parents_are_not_removed() {
    let (share, own, store) = shared();
    let file = share.root().join("manifests/registry.ollama.ai/library/cut/latest");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, r#"{"layers":[{"#).unwrap();
    own.model("mine", 1);
    let refused = store.delete(&name("cut"));
    assert_eq!(
        refused,
        Err(crate::StoreError::ReadOnly { name: name("cut").to_string(), folder: share.root() })
    );
    assert!(file.is_file());
    assert!(matches!(own.store.delete(&name("cut")), Err(crate::StoreError::NotFound(_))));
}

#[test]
fn lookups_skip_an_unresponsive_folder() {
    let [own, gone] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let far = ModelName::parse("far").unwrap();
    let there = Store::open(gone.path()).unwrap();
    let blob = there.add_blob(b"far").unwrap();
    let manifest = Manifest {
        config: None,
        layers: vec![Layer::new(media::TEMPLATE, blob.digest, blob.size)],
    };
    there.store_manifest(&far, &manifest.to_bytes(), true, &mut || ()).unwrap();
    let store = Store::open(own.path()).unwrap().with_read_only_dirs([gone.path().to_owned()]);
    let silent = Err(StoreError::Unresponsive { folder: gone.path().to_owned() });
    hung().push(gone.path().to_owned());
    assert!(!store.has_blob(&blob.digest), "the first one waits");
    let begun = Instant::now();
    for _ in 0..20 {
        assert_eq!(store.find(&far), Ok(None));
        assert_eq!(store.get(&far), silent);
        assert!(!store.has_blob(&Digest::of(b"far")));
    }
    assert!(begun.elapsed() < READ_ONLY_DIR_TIMEOUT, "{:?}", begun.elapsed());
    hung().retain(|path| path != gone.path());
    while store.unresponsive.contains(gone.path()) {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(store.get(&far).is_ok() && store.has_blob(&blob.digest));
    // The folder stops answering before a lookup of a name.
    hung().push(gone.path().to_owned());
    assert_eq!(store.get(&far), silent);
    hung().retain(|path| path != gone.path());
}
