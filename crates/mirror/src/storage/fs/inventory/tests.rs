use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use puna_store::Store;

use super::*;
use crate::error::MirrorError;
use crate::storage::collection_rules::BLOB_GRACE_PERIOD;
use crate::types::manifest::{Manifest, OCI_MANIFEST};
use crate::types::manifest_list::tests::list_of;
use crate::types::repository::Reference;
use crate::types::stored_object::ConditionalRemoval;

#[test]
fn only_paths_of_the_registry_are_known() {
    let hex = Digest::of(b"x").hex();
    let known = |path: &str| is_known(&path.split('/').collect::<Vec<_>>());
    for path in [
        "lock".to_owned(),
        format!("blobs/sha256-{hex}"),
        format!("blobs/sha256-{hex}.copy"),
        format!("data/{}", "0f".repeat(16)),
        "uploads/x.json".into(),
        format!("brought/a+b/{hex}-7"),
        format!("repositories/a+b/manifests/{hex}"),
        "repositories/hub=5000+a+b/tags/v1".into(),
        format!("repositories/a/lists/{hex}/{hex}"),
        format!("trash/1/sha256-{hex}"),
    ] {
        assert!(known(&path), "{path}");
    }
    for path in [
        "blobs".to_owned(),
        "blobs/x".into(),
        "manifests-v3/x".into(),
        format!("blobs/sha256-{hex}/x"),
        format!("repositories/a b/manifests/{hex}"),
        "repositories/a/manifests/x".into(),
        format!("repositories/a/other/{hex}"),
        "uploads/x/y".into(),
        "data/x".into(),
    ] {
        assert!(!known(&path), "{path}");
    }
    for path in ["trash", "repositories/a+b/lists", "sizes/a"] {
        assert!(is_known_folder(&path.split('/').collect::<Vec<_>>()), "{path}");
    }
    for path in ["manifests-v3", "repositories/a+b/other", "uploads/x", "repositories/a b"] {
        assert!(!is_known_folder(&path.split('/').collect::<Vec<_>>()), "{path}");
    }
}

/// A registry with a manifest tagged `v1`, and an unreferenced blob.
struct TestRegistry {
    dir: tempfile::TempDir,
    registry: RegistryDir,
    manifest: Manifest,
    unused: Digest,
}

impl TestRegistry {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = RegistryDir::new(Arc::new(Store::open(dir.path()).unwrap()));
        // Independent of the free space on the test machine.
        registry.has_room = |_| true;
        fs::create_dir_all(registry.blobs()).unwrap();
        let put = |bytes: &[u8]| {
            let digest = Digest::of(bytes);
            fs::write(registry.blob(&digest), bytes).unwrap();
            let file = fs::File::options().append(true).open(registry.blob(&digest)).unwrap();
            file.set_modified(SystemTime::now() - 2 * BLOB_GRACE_PERIOD).unwrap();
            digest
        };
        let (kept, unused) = (put(b"kept"), put(b"unused"));
        let text = format!(
            r#"{{"mediaType":"{OCI_MANIFEST}","layers":[{{"mediaType":"x","digest":"{kept}","size":4}}]}}"#
        );
        let manifest = Manifest::parse(text.into_bytes().into(), None).unwrap();
        registry.put_manifest(&name(), &Reference::Tag("v1".into()), &manifest).unwrap();
        let test = Self { dir, registry, manifest, unused };
        test.age(&kept);
        test
    }

    fn age(&self, digest: &Digest) {
        let file = fs::File::options().append(true).open(self.registry.blob(digest)).unwrap();
        file.set_modified(SystemTime::now() - 2 * BLOB_GRACE_PERIOD).unwrap();
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join("puna-registry").join(path)
    }

    /// The removal of the tag by retention.
    fn to_conditional(&self) -> ConditionalRemoval {
        let written = |path: PathBuf| registry_dir::modified_time(&path);
        ConditionalRemoval {
            name: name(),
            tag: Some("v1".into()),
            digest: self.manifest.digest,
            is_model: false,
            tag_written: written(self.registry.tags(&name()).join("v1")),
            with_manifest: true,
            manifest_written: written(
                self.registry.manifests(&name()).join(self.manifest.digest.hex()),
            ),
        }
    }

    /// Checks that neither garbage collection nor retention removes anything.
    fn keeps_all(&self, why: &str) {
        let reason = self.registry.inventory().unwrap_err();
        assert!(reason.contains(why), "{reason}");
        assert_eq!(self.registry.sweep(), Ok((0, 0)), "{why}");
        assert_eq!(
            self.registry.remove_unchanged(&[self.to_conditional()]),
            Ok(vec![Ok(false)]),
            "{why}"
        );
        let refused = self.registry.remove_blob(&self.unused);
        assert!(matches!(refused, Err(MirrorError::Denied(_))), "{why}: {refused:?}");
        assert!(
            self.registry.blob(&self.unused).is_file() && !self.path("trash").exists(),
            "{why}"
        );
    }

    fn trash(&self) -> Vec<String> {
        let days = registry_dir::file_names(&self.path("trash")).unwrap();
        let mut all: Vec<String> = days
            .iter()
            .flat_map(|day| registry_dir::file_names(&self.path("trash").join(day)).unwrap())
            .collect();
        all.sort();
        all
    }
}

fn name() -> Repository {
    Repository::parse("a/b").unwrap()
}

#[test]
fn nothing_is_removed_while_an_entry_is_unknown() {
    let test = TestRegistry::new();
    let typed = r#"{"mediaType":"application/vnd.other.manifest.v9+json","layers":[]}"#;
    let at =
        |text: &str| format!("repositories/x+y/manifests/{}", Digest::of(text.as_bytes()).hex());
    for (path, text, why) in [
        ("manifests-v3/x".to_owned(), "x", "manifests-v3: move it elsewhere"),
        ("x".to_owned(), "x", "x: move it elsewhere"),
        ("blobs/notes.txt".to_owned(), "x", "notes.txt: move it elsewhere"),
        ("repositories/a+b/other/x".to_owned(), "x", "other: move it elsewhere"),
        (at("no manifest"), "no manifest", "not a manifest"),
        (at("another"), r#"{"layers":[]}"#, "does not match its digest"),
        (at(typed), typed, "unknown media type \"application/vnd.other.manifest.v9+json\""),
        (at(&list_of(&[])), &list_of(&[]), "no children"),
    ] {
        let path = test.path(&path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        test.keeps_all(why);
        fs::remove_file(&path).unwrap();
        let is_own =
            ["manifests-v3", "other"].iter().any(|own| path.parent().unwrap().ends_with(own));
        if is_own {
            test.keeps_all(why);
            fs::remove_dir(path.parent().unwrap()).unwrap();
        }
    }
    #[cfg(unix)]
    {
        let link = test.path(&at("link"));
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        test.keeps_all("cannot read");
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(link.file_name().unwrap(), &link).unwrap();
        test.keeps_all("cannot read");
        fs::remove_file(&link).unwrap();
    }
    assert_eq!(test.registry.sweep(), Ok((1, 6)));
    assert_eq!(test.trash(), [test.unused.file_name()]);
}

#[test]
fn nothing_is_trashed_on_a_full_disk() {
    let mut test = TestRegistry::new();
    test.registry.has_room = |_| false;
    assert_eq!(test.registry.sweep(), Ok((1, 6)));
    assert!(!test.path("trash").exists() && !test.registry.blob(&test.unused).exists());
}

#[test]
fn removed_items_stay_in_the_trash_for_a_day() {
    let test = TestRegistry::new();
    fs::create_dir_all(test.path("passing/manifests-v3")).unwrap();
    assert_eq!(test.registry.sweep(), Ok((1, 6)));
    assert_eq!(test.registry.remove_unchanged(&[test.to_conditional()]), Ok(vec![Ok(true)]));
    let manifest = format!("manifest-{}", test.manifest.digest.hex());
    assert_eq!(test.trash(), [manifest.clone(), test.unused.file_name()]);
    assert!(test.registry.remove_blob(&Digest::of(b"kept")).unwrap());
    assert_eq!(test.registry.sweep(), Ok((0, 0)));
    assert_eq!(test.trash().len(), 3);
    let old = SystemTime::now() - BLOB_GRACE_PERIOD - Duration::from_secs(60);
    let old = test.path("trash").join(crate::retention::usage_log::unix_seconds(old).to_string());
    fs::create_dir(&old).unwrap();
    fs::write(old.join("sha256-x"), "x").unwrap();
    test.registry.sweep().unwrap();
    assert!(!old.exists() && test.trash().len() == 3);
}
