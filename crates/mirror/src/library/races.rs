//! Somebody pushes while somebody else removes: neither sees half of what the other one does.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use puna_store::{Digest, Store};

use super::StoreLibrary;
use super::folder::Folder;
use crate::error::MirrorError;
use crate::holding::Doomed;
use crate::library::Library;
use crate::library::store::GRACE;
use crate::manifest::{Manifest, OCI_MANIFEST};
use crate::name::{Reference, Repository};

/// How long somebody who is not held up by a lock would take at most, many times over.
const SOON: Duration = Duration::from_millis(300);

struct Bench {
    _dir: tempfile::TempDir,
    folder: Folder,
}

fn named(name: &str) -> Repository {
    Repository::parse(name).unwrap()
}

fn tag() -> Reference {
    Reference::Tag("t".into())
}

fn manifest(blob: &[u8], note: &str) -> Manifest {
    let (digest, size) = (Digest::of(blob), blob.len());
    let text = format!(
        r#"{{"mediaType":"{OCI_MANIFEST}","annotations":{{"note":"{note}"}},"layers":[{{"mediaType":"x","digest":"{digest}","size":{size}}}]}}"#
    );
    Manifest::parse(text.into_bytes().into(), None).unwrap()
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(Arc::new(Store::open(dir.path()).unwrap()));
        fs::create_dir_all(folder.blobs()).unwrap();
        Self { _dir: dir, folder }
    }

    /// A blob that was pushed so long ago that it stays for a manifest alone.
    fn old_blob(&self, bytes: &[u8]) -> Digest {
        let digest = Digest::of(bytes);
        fs::write(self.folder.blob(&digest), bytes).unwrap();
        self.age(&digest);
        digest
    }

    fn age(&self, digest: &Digest) {
        let file = File::options().append(true).open(self.folder.blob(digest)).unwrap();
        file.set_modified(SystemTime::now() - 2 * GRACE).unwrap();
    }

    /// Whether all is there that a tag stands for.
    fn is_whole(&self, name: &Repository) -> bool {
        let found = self.folder.manifest(name, &tag()).unwrap();
        found.is_some_and(|found| {
            found.blobs.iter().all(|blob| self.folder.blob(&blob.digest).is_file())
        })
    }
}

/// A file at which whoever reads it stops until it is let go on.
struct Obstacle {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Obstacle {
    fn new(path: PathBuf, bytes: Vec<u8>) -> Self {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        Self { path, bytes }
    }

    /// Waits until somebody stands before it, who goes on when this is called.
    fn reached(&self) -> impl FnOnce() {
        let mut pipe = File::options().write(true).open(&self.path).unwrap();
        let bytes = self.bytes.clone();
        move || pipe.write_all(&bytes).unwrap()
    }

    /// Lets nobody stop here any more.
    fn remove(self) {
        fs::remove_file(self.path).unwrap();
    }
}

/// Has somebody at it who reads what is needed push a manifest meanwhile.
fn pushed_while<T: Send>(
    bench: &Bench,
    obstacle: &Obstacle,
    remove: impl FnOnce() -> T + Send,
    (name, pushed): (&Repository, &Manifest),
) -> (T, Result<(), MirrorError>) {
    thread::scope(|scope| {
        let removing = scope.spawn(remove);
        let go_on = obstacle.reached();
        let pushing = scope.spawn(|| bench.folder.put_manifest(name, &tag(), pushed).map(drop));
        let begun = std::time::Instant::now();
        while !pushing.is_finished() && begun.elapsed() < SOON {
            thread::sleep(Duration::from_millis(5));
        }
        go_on();
        (removing.join().unwrap(), pushing.join().unwrap())
    })
}

#[test]
fn a_blob_that_is_just_cleared_away_is_not_taken_for_one_that_is_there() {
    let bench = Bench::new();
    let blob = bench.old_blob(b"weights of a model");
    let (name, other) = (named("a/b"), manifest(b"of the obstacle", ""));
    let obstacle = bench.folder.manifests(&named("x/y")).join(other.digest.hex());
    let obstacle = Obstacle::new(obstacle, other.bytes.to_vec());
    let sweep = || bench.folder.sweep().unwrap();
    let pushed = (&name, &manifest(b"weights of a model", ""));
    let (swept, put) = pushed_while(&bench, &obstacle, sweep, pushed);
    obstacle.remove();
    assert_eq!(swept, (1, 18), "nothing needed it when that was looked at");
    assert_eq!(put, Err(MirrorError::ManifestBlobUnknown(blob)));
    assert!(!bench.is_whole(&name));
}

#[test]
fn what_is_pushed_again_while_a_rule_removes_it_is_there_afterwards() {
    let bench = Bench::new();
    bench.old_blob(b"weights of a model");
    let (name, pushed) = (named("a/b"), manifest(b"weights of a model", ""));
    bench.folder.put_manifest(&name, &tag(), &pushed).unwrap();
    let held = bench.folder.kept_of(&name).unwrap();
    let doomed = Doomed {
        name: name.clone(),
        tag: Some("t".into()),
        digest: pushed.digest,
        is_model: false,
        tag_written: written(&bench.folder.tags(&name).join("t")),
        with_manifest: true,
        manifest_written: held[0].written,
    };
    // Another tag, which is read when the one that goes has gone, and before its manifest does.
    let obstacle = bench.folder.tags(&name).join("z");
    let obstacle = Obstacle::new(obstacle, Digest::of(b"another").to_string().into_bytes());
    let retire = || bench.folder.retire(&[doomed]).unwrap();
    let (retired, put) = pushed_while(&bench, &obstacle, retire, (&name, &pushed));
    obstacle.remove();
    assert_eq!((retired, put), (vec![Ok(true)], Ok(())));
    assert!(bench.is_whole(&name));
}

fn written(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

#[tokio::test]
async fn a_mounted_blob_waits_for_its_manifest_whatever_goes_meanwhile() {
    let bench = Bench::new();
    let library = StoreLibrary::new(bench.folder.store.clone());
    let (theirs, mine) = (named("a/theirs"), named("b/mine"));
    let blob = bench.old_blob(b"weights of a model");
    let first = manifest(b"weights of a model", "theirs");
    bench.folder.put_manifest(&theirs, &tag(), &first).unwrap();
    bench.age(&blob);
    assert!(library.mount(&mine, blob).await.unwrap());
    assert!(library.remove_manifest(&theirs, &Reference::Digest(first.digest)).await.unwrap());
    library.tidy().await.unwrap();
    library.put_manifest(&mine, &tag(), manifest(b"weights of a model", "mine")).await.unwrap();
    assert!(bench.is_whole(&mine));
    assert!(!library.mount(&mine, Digest::of(b"another")).await.unwrap());
}

#[tokio::test]
async fn a_mounted_blob_of_a_model_outlives_the_model() {
    let bench = Bench::new();
    let library = StoreLibrary::new(bench.folder.store.clone());
    let blob = bench.folder.store.add_blob(b"weights of a model").unwrap().digest;
    let mine = named("b/mine");
    assert!(library.mount(&mine, blob).await.unwrap());
    fs::remove_file(bench.folder.store.blob_path(&blob)).unwrap();
    library.put_manifest(&mine, &tag(), manifest(b"weights of a model", "mine")).await.unwrap();
    assert!(bench.is_whole(&mine));
}
