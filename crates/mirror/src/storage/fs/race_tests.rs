//! Concurrent pushes and removals: neither sees a half-finished change of the other.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use puna_store::{Digest, Store};

use super::FileStorage;
use super::registry_dir::RegistryDir;
use crate::error::MirrorError;
use crate::storage::collection_rules::BLOB_GRACE_PERIOD;
use crate::storage::{BlobStore, ManifestStore, ObjectInventory};
use crate::types::manifest::{Manifest, OCI_MANIFEST};
use crate::types::repository::{Reference, Repository};
use crate::types::stored_object::ConditionalRemoval;

/// Many times longer than an operation takes that waits for no lock.
const SOON: Duration = Duration::from_millis(300);

struct TestRegistry {
    _dir: tempfile::TempDir,
    registry: RegistryDir,
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

impl TestRegistry {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let registry = RegistryDir::new(Arc::new(Store::open(dir.path()).unwrap()));
        fs::create_dir_all(registry.blobs()).unwrap();
        Self { _dir: dir, registry }
    }

    /// A pushed blob older than its grace period.
    fn old_blob(&self, bytes: &[u8]) -> Digest {
        let digest = Digest::of(bytes);
        fs::write(self.registry.blob(&digest), bytes).unwrap();
        self.age(&digest);
        digest
    }

    fn age(&self, digest: &Digest) {
        let file = File::options().append(true).open(self.registry.blob(digest)).unwrap();
        file.set_modified(SystemTime::now() - 2 * BLOB_GRACE_PERIOD).unwrap();
    }

    /// Whether the manifest and blobs of a tag exist.
    fn is_whole(&self, name: &Repository) -> bool {
        let found = self.registry.manifest(name, &tag()).unwrap();
        found.is_some_and(|found| {
            found.blobs.iter().all(|blob| self.registry.blob(&blob.digest).is_file())
        })
    }
}

/// A named pipe in place of a file, which blocks its readers until the test continues.
struct BlockingPipe {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl BlockingPipe {
    fn new(path: PathBuf, bytes: Vec<u8>) -> Self {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        Self { path, bytes }
    }

    /// Waits until a reader blocks. Calling the result lets it continue.
    fn wait_for_reader(&self) -> impl FnOnce() {
        let mut pipe = File::options().write(true).open(&self.path).unwrap();
        let bytes = self.bytes.clone();
        move || pipe.write_all(&bytes).unwrap()
    }

    /// Removes the pipe.
    fn remove(self) {
        fs::remove_file(self.path).unwrap();
    }
}

/// Pushes a manifest while another thread that reads the manifests is blocked.
fn pushed_while<T: Send>(
    test: &TestRegistry,
    pipe: &BlockingPipe,
    remove: impl FnOnce() -> T + Send,
    (name, pushed): (&Repository, &Manifest),
) -> (T, Result<(), MirrorError>) {
    thread::scope(|scope| {
        let removing = scope.spawn(remove);
        let go_on = pipe.wait_for_reader();
        let pushing = scope.spawn(|| test.registry.put_manifest(name, &tag(), pushed).map(drop));
        let begun = std::time::Instant::now();
        while !pushing.is_finished() && begun.elapsed() < SOON {
            thread::sleep(Duration::from_millis(5));
        }
        go_on();
        (removing.join().unwrap(), pushing.join().unwrap())
    })
}

#[test]
fn blobs_being_removed_do_not_count_as_stored() {
    let test = TestRegistry::new();
    let blob = test.old_blob(b"weights of a model");
    let (name, other) = (named("a/b"), manifest(b"of the pipe", ""));
    let pipe = test.registry.manifests(&named("x/y")).join(other.digest.hex());
    let pipe = BlockingPipe::new(pipe, other.bytes.to_vec());
    let sweep = || test.registry.sweep().unwrap();
    let pushed = (&name, &manifest(b"weights of a model", ""));
    let (swept, put) = pushed_while(&test, &pipe, sweep, pushed);
    pipe.remove();
    assert_eq!(swept, (1, 18), "nothing needed it when that was looked at");
    assert_eq!(put, Err(MirrorError::ManifestBlobUnknown(blob)));
    assert!(!test.is_whole(&name));
}

#[test]
fn manifests_pushed_during_retention_survive() {
    let test = TestRegistry::new();
    test.old_blob(b"weights of a model");
    let (name, pushed) = (named("a/b"), manifest(b"weights of a model", ""));
    test.registry.put_manifest(&name, &tag(), &pushed).unwrap();
    let held = test.registry.stored_manifests_of(&name).unwrap();
    let removals = ConditionalRemoval {
        name: name.clone(),
        tag: Some("t".into()),
        digest: pushed.digest,
        is_model: false,
        tag_written: modified_time(&test.registry.tags(&name).join("t")),
        with_manifest: true,
        manifest_written: held[0].written,
    };
    // Another tag, which is read after the removed tag is gone and before its manifest is removed.
    let pipe = test.registry.tags(&name).join("z");
    let pipe = BlockingPipe::new(pipe, Digest::of(b"another").to_string().into_bytes());
    let retire = || test.registry.remove_unchanged(&[removals]).unwrap();
    let (retired, put) = pushed_while(&test, &pipe, retire, (&name, &pushed));
    pipe.remove();
    assert_eq!((retired, put), (vec![Ok(true)], Ok(())));
    assert!(test.is_whole(&name));
}

fn modified_time(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

#[tokio::test]
async fn mounted_blobs_stay_until_their_manifest_arrives() {
    let test = TestRegistry::new();
    let storage = FileStorage::new(test.registry.store.clone());
    let (theirs, mine) = (named("a/theirs"), named("b/mine"));
    let blob = test.old_blob(b"weights of a model");
    let first = manifest(b"weights of a model", "theirs");
    test.registry.put_manifest(&theirs, &tag(), &first).unwrap();
    test.age(&blob);
    assert!(storage.mount(&mine, blob).await.unwrap());
    assert!(storage.remove_manifest(&theirs, &Reference::Digest(first.digest)).await.unwrap());
    storage.collect_garbage().await.unwrap();
    storage.put_manifest(&mine, &tag(), manifest(b"weights of a model", "mine")).await.unwrap();
    assert!(test.is_whole(&mine));
    assert!(!storage.mount(&mine, Digest::of(b"another")).await.unwrap());
}

#[tokio::test]
async fn mounted_blobs_outlive_their_model() {
    let test = TestRegistry::new();
    let storage = FileStorage::new(test.registry.store.clone());
    let blob = test.registry.store.add_blob(b"weights of a model").unwrap().digest;
    let mine = named("b/mine");
    assert!(storage.mount(&mine, blob).await.unwrap());
    fs::remove_file(test.registry.store.blob_path(&blob)).unwrap();
    storage.put_manifest(&mine, &tag(), manifest(b"weights of a model", "mine")).await.unwrap();
    assert!(test.is_whole(&mine));
}
