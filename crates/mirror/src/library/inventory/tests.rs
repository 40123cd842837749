use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use puna_store::Store;

use super::*;
use crate::error::MirrorError;
use crate::holding::Doomed;
use crate::library::store::GRACE;
use crate::manifest::OCI_MANIFEST;
use crate::manifest_list::tests::list_of;

#[test]
fn paths_of_a_library_are_known_and_no_others() {
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

#[test]
fn a_reason_is_logged_once_until_something_is_collected() {
    let log = RefusalLog::default();
    assert!(log.is_new("one") && !log.is_new("one") && log.is_new("other"));
    assert_eq!(log.check::<()>(Err("other".into())), None);
    assert_eq!(log.check(Ok(7)), Some(7));
    assert!(log.is_new("other"));
}

/// A folder with a manifest under the tag `v1`, and a blob that nothing needs.
struct Bench {
    dir: tempfile::TempDir,
    folder: Folder,
    manifest: Manifest,
    unused: Digest,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = Folder::new(Arc::new(Store::open(dir.path()).unwrap()));
        // However full the disk of the test is.
        folder.has_room = |_| true;
        fs::create_dir_all(folder.blobs()).unwrap();
        let put = |bytes: &[u8]| {
            let digest = Digest::of(bytes);
            fs::write(folder.blob(&digest), bytes).unwrap();
            let file = fs::File::options().append(true).open(folder.blob(&digest)).unwrap();
            file.set_modified(SystemTime::now() - 2 * GRACE).unwrap();
            digest
        };
        let (kept, unused) = (put(b"kept"), put(b"unused"));
        let text = format!(
            r#"{{"mediaType":"{OCI_MANIFEST}","layers":[{{"mediaType":"x","digest":"{kept}","size":4}}]}}"#
        );
        let manifest = Manifest::parse(text.into_bytes().into(), None).unwrap();
        folder.put_manifest(&name(), &Reference::Tag("v1".into()), &manifest).unwrap();
        let bench = Self { dir, folder, manifest, unused };
        bench.age(&kept);
        bench
    }

    fn age(&self, digest: &Digest) {
        let file = fs::File::options().append(true).open(self.folder.blob(digest)).unwrap();
        file.set_modified(SystemTime::now() - 2 * GRACE).unwrap();
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join("puna-registry").join(path)
    }

    /// What a rule removes.
    fn doomed(&self) -> Doomed {
        let written = |path: PathBuf| folder::written(&path);
        Doomed {
            name: name(),
            tag: Some("v1".into()),
            digest: self.manifest.digest,
            is_model: false,
            tag_written: written(self.folder.tags(&name()).join("v1")),
            with_manifest: true,
            manifest_written: written(
                self.folder.manifests(&name()).join(self.manifest.digest.hex()),
            ),
        }
    }

    /// Checks that neither garbage collection nor retention removes anything.
    fn keeps_all(&self, why: &str) {
        let reason = self.folder.inventory().unwrap_err();
        assert!(reason.contains(why), "{reason}");
        assert_eq!(self.folder.sweep(), Ok((0, 0)), "{why}");
        assert_eq!(self.folder.retire(&[self.doomed()]), Ok(vec![Ok(false)]), "{why}");
        let refused = self.folder.remove_blob(&self.unused);
        assert!(matches!(refused, Err(MirrorError::Denied(_))), "{why}: {refused:?}");
        assert!(self.folder.blob(&self.unused).is_file() && !self.path("trash").exists(), "{why}");
    }

    fn trash(&self) -> Vec<String> {
        let days = folder::names(&self.path("trash")).unwrap();
        let mut all: Vec<String> = days
            .iter()
            .flat_map(|day| folder::names(&self.path("trash").join(day)).unwrap())
            .collect();
        all.sort();
        all
    }
}

fn name() -> Repository {
    Repository::parse("a/b").unwrap()
}

#[test]
fn nothing_goes_as_long_as_something_is_not_understood() {
    let bench = Bench::new();
    let typed = r#"{"mediaType":"application/vnd.other.manifest.v9+json","layers":[]}"#;
    let at =
        |text: &str| format!("repositories/x+y/manifests/{}", Digest::of(text.as_bytes()).hex());
    for (path, text, why) in [
        ("manifests-v3/x".to_owned(), "x", "manifests-v3 is unknown"),
        ("x".to_owned(), "x", "x is unknown"),
        ("blobs/notes.txt".to_owned(), "x", "notes.txt is unknown"),
        ("repositories/a+b/other/x".to_owned(), "x", "other is unknown"),
        (at("no manifest"), "no manifest", "not a manifest"),
        (at("another"), r#"{"layers":[]}"#, "another digest"),
        (at(typed), typed, "unknown media type \"application/vnd.other.manifest.v9+json\""),
        (at(&list_of(&[])), &list_of(&[]), "no children"),
    ] {
        let path = bench.path(&path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        bench.keeps_all(why);
        fs::remove_file(&path).unwrap();
        let is_own =
            ["manifests-v3", "other"].iter().any(|own| path.parent().unwrap().ends_with(own));
        if is_own {
            bench.keeps_all(why);
            fs::remove_dir(path.parent().unwrap()).unwrap();
        }
    }
    #[cfg(unix)]
    {
        let link = bench.path(&at("link"));
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        bench.keeps_all("cannot be read");
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(link.file_name().unwrap(), &link).unwrap();
        bench.keeps_all("cannot be read");
        fs::remove_file(&link).unwrap();
    }
    assert_eq!(bench.folder.sweep(), Ok((1, 6)));
    assert_eq!(bench.trash(), [bench.unused.file_name()]);
}

#[test]
fn nothing_goes_to_the_trash_of_a_full_disk() {
    let mut bench = Bench::new();
    bench.folder.has_room = |_| false;
    assert_eq!(bench.folder.sweep(), Ok((1, 6)));
    assert!(!bench.path("trash").exists() && !bench.folder.blob(&bench.unused).exists());
}

#[test]
fn what_is_removed_lies_in_the_trash_for_a_day() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("passing/manifests-v3")).unwrap();
    assert_eq!(bench.folder.sweep(), Ok((1, 6)));
    assert_eq!(bench.folder.retire(&[bench.doomed()]), Ok(vec![Ok(true)]));
    let manifest = format!("manifest-{}", bench.manifest.digest.hex());
    assert_eq!(bench.trash(), [manifest.clone(), bench.unused.file_name()]);
    assert!(bench.folder.remove_blob(&Digest::of(b"kept")).unwrap());
    assert_eq!(bench.folder.sweep(), Ok((0, 0)));
    assert_eq!(bench.trash().len(), 3);
    let old = SystemTime::now() - GRACE - Duration::from_secs(60);
    let old = bench.path("trash").join(crate::history::seconds(old).to_string());
    fs::create_dir(&old).unwrap();
    fs::write(old.join("sha256-x"), "x").unwrap();
    bench.folder.sweep().unwrap();
    assert!(!old.exists() && bench.trash().len() == 3);
}
