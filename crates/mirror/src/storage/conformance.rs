//! Conformance suite: behaviour that all storage drivers share.
//!
//! Each behaviour is a function of a [`Fixture`] and runs once for each driver: the file system
//! driver, the S3 driver on a service in memory, and the pull-through cache in front of the file
//! system driver, for repositories that it does not mirror.

mod blobs;
mod inventory;
mod manifests;
mod uploads;

use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{ObjectStore, ObjectStoreExt};
use puna_registry::Registry;
use puna_store::{DEFAULT_HOST, Digest, Store};

use crate::error::MirrorError;
use crate::pull_through::{PullThrough, Upstreams};
use crate::retention::usage_log::UsageLog;
use crate::storage::s3::faulty_service::FaultyService;
use crate::storage::{FileStorage, Storage, UploadPart};
use crate::types::manifest::{Manifest, OCI_MANIFEST};
use crate::types::repository::{Reference, Repository};

/// Longer than all times after which something expires.
const FORTY_DAYS: Duration = Duration::from_secs(40 * 24 * 60 * 60);
/// Directory of the registry in a store.
const REGISTRY_DIR: &str = "puna-registry";
/// Prefix of the keys in the service.
const PREFIX: &str = "models/";

/// Declares the tests of all drivers.
macro_rules! conformance {
    (@ $driver:ident { $($module:ident { $($behaviour:ident)* })* }) => {
        mod $driver {
            $(mod $module {
                $(#[tokio::test]
                async fn $behaviour() {
                    let fixture = crate::storage::conformance::Fixture::$driver();
                    crate::storage::conformance::$module::$behaviour(&fixture).await;
                })*
            })*
        }
    };
    ($($driver:ident)* => $behaviours:tt) => {
        $(conformance!(@ $driver $behaviours);)*
    };
}

conformance! {
    file_system s3 pull_through => {
        manifests {
            a_manifest_is_served_by_tag_and_digest
            a_model_is_served_as_it_was_pushed
            missing_items_are_absent
            manifests_with_missing_blobs_are_rejected
            every_process_serves_the_same_manifests_and_tags
            removing_a_tag_keeps_its_manifest
            concurrent_puts_of_a_tag_leave_one_of_them
            manifests_changed_by_other_programs_are_not_served
            referrers_are_listed_by_subject
            lists_with_missing_children_are_rejected
            children_of_lists_cannot_be_removed
            lists_of_upstreams_may_lack_their_children
            a_tag_is_removed_only_if_unchanged
        }
        blobs {
            a_blob_is_read_whole_and_in_ranges
            a_repository_references_pushed_blobs_and_those_of_its_manifests
            only_stored_blobs_can_be_mounted
            blobs_in_use_cannot_be_removed
        }
        uploads {
            an_upload_becomes_a_blob_when_its_digest_is_verified
            an_upload_continues_after_a_restart
            an_interrupted_part_can_be_resent_or_continued
            parts_of_another_length_are_rejected
            an_upload_belongs_to_its_repository
            a_digest_mismatch_ends_the_upload
            a_cancelled_upload_leaves_nothing
            two_uploads_of_a_blob_succeed
            concurrent_uploads_stay_within_the_limit
            open_uploads_are_listed_with_their_bytes
        }
        inventory {
            listings_agree_with_what_was_put
            listings_cover_only_their_scope
            repositories_keep_their_names
            everything_but_blobs_is_counted_by_namespace
            usage_notes_are_shared_by_processes
            size_notes_belong_to_a_repository
            old_unreferenced_blobs_are_collected
            expired_uploads_are_collected
            nothing_is_removed_beside_unknown_objects
        }
    }
}

/// A storage under test.
struct Fixture {
    storage: Storage,
    /// The same data as another process sees it.
    other: Storage,
    medium: Medium,
}

/// Where the data of a storage lies.
enum Medium {
    Directory(tempfile::TempDir),
    Service(FaultyService),
}

impl Fixture {
    fn file_system() -> Self {
        Self::in_directory(|store| FileStorage::new(store).into())
    }

    fn s3() -> Self {
        let service = FaultyService::default();
        // Slow writes let concurrent operations interleave.
        let storage = Arc::new(service.storage_with_slow_writes()).into();
        let other = Arc::new(service.storage()).into();
        Self { storage, other, medium: Medium::Service(service) }
    }

    fn pull_through() -> Self {
        Self::in_directory(|store| {
            let (hosts, private) = (vec![DEFAULT_HOST.into()], vec!["team*".into()]);
            let upstreams = Upstreams { hosts, private, ..Upstreams::default() };
            let registry = Registry::new(puna_registry::Settings::default());
            let storage = FileStorage::new(store.clone()).into();
            let usage_log = UsageLog::new().unwrap();
            PullThrough::new(storage, store, registry, upstreams, usage_log).storage()
        })
    }

    fn in_directory(open: impl Fn(Arc<Store>) -> Storage) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let process = || open(Arc::new(Store::open(dir.path()).unwrap()));
        let (storage, other) = (process(), process());
        Self { storage, other, medium: Medium::Directory(dir) }
    }

    /// Writes a file or object as another program would.
    async fn plant(&self, path: &str, text: &str) {
        match &self.medium {
            Medium::Directory(dir) => {
                let path = dir.path().join(REGISTRY_DIR).join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Medium::Service(service) => {
                let key = object_store::path::Path::from(format!("{PREFIX}{path}"));
                service.put(&key, text.to_owned().into()).await.unwrap();
            }
        }
    }

    /// Paths of all files or objects, sorted, without the lock file.
    async fn paths(&self) -> Vec<String> {
        let mut paths = match &self.medium {
            Medium::Directory(dir) => {
                let mut paths = Vec::new();
                visit_files(&dir.path().join(REGISTRY_DIR), "", &mut |_, path| {
                    paths.push(path.to_owned());
                });
                paths
            }
            Medium::Service(service) => {
                let keys = service.list(None).map_ok(|meta| meta.location.to_string());
                let keys: Vec<String> = keys.try_collect().await.unwrap();
                keys.iter().map(|key| key.strip_prefix(PREFIX).unwrap().to_owned()).collect()
            }
        };
        paths.retain(|path| path != "lock");
        paths.sort();
        paths
    }

    /// Makes everything that is stored older than all times after which something expires.
    async fn age(&self) {
        match &self.medium {
            Medium::Directory(dir) => visit_files(dir.path(), "", &mut |file, _| {
                let file = File::options().append(true).open(file).unwrap();
                file.set_modified(SystemTime::now() - FORTY_DAYS).unwrap();
            }),
            Medium::Service(service) => service.age().await,
        }
    }
}

/// Visits the files below a directory, with their paths relative to the first one.
fn visit_files(dir: &Path, prefix: &str, visit: &mut dyn FnMut(&Path, &str)) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.map(Result::unwrap) {
        let path = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        match entry.file_type().unwrap().is_dir() {
            true => visit_files(&entry.path(), &format!("{path}/"), visit),
            false => visit(&entry.path(), &path),
        }
    }
}

fn named(name: &str) -> Repository {
    Repository::parse(name).unwrap()
}

fn tag(tag: &str) -> Reference {
    Reference::Tag(tag.to_owned())
}

/// Bytes without a pattern.
fn noise(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// A part in pieces. It is interrupted after its bytes unless `is_complete` is set.
fn part(at: Option<u64>, bytes: &[u8], is_complete: bool) -> UploadPart {
    let pieces: Vec<_> =
        bytes.chunks(10_000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    let end = (!is_complete).then(|| Err(interruption()));
    UploadPart { at, len: None, body: stream::iter(pieces.into_iter().chain(end)).boxed() }
}

/// Error of a body that a client does not send to its end.
fn interruption() -> MirrorError {
    MirrorError::BodyInterrupted { reason: "the client is gone".into() }
}

/// Pushes a blob.
async fn push(storage: &Storage, name: &Repository, bytes: &[u8]) -> Digest {
    let id = storage.uploads.begin(name, "").await.unwrap();
    storage.uploads.append(name, &id, part(None, bytes, true)).await.unwrap();
    storage.uploads.finish(name, &id, Digest::of(bytes)).await.unwrap();
    Digest::of(bytes)
}

/// Reads a range of a stored blob.
async fn read(storage: &Storage, digest: Digest, range: Range<u64>) -> Vec<u8> {
    let blob = storage.blobs.blob(digest).await.unwrap().expect("the blob is stored");
    let pieces: Vec<Bytes> = blob.read(range).try_collect().await.unwrap();
    pieces.concat()
}

async fn has_blob(storage: &Storage, digest: Digest) -> bool {
    storage.blobs.blob(digest).await.unwrap().is_some()
}

fn parse(text: &str) -> Manifest {
    Manifest::parse(Bytes::copy_from_slice(text.as_bytes()), None).unwrap()
}

/// An image manifest with one layer.
fn image_of(content: &[u8]) -> Manifest {
    let (digest, size) = (Digest::of(content), content.len());
    parse(&format!(
        r#"{{"mediaType":"{OCI_MANIFEST}","layers":[{{"mediaType":"x","digest":"{digest}","size":{size}}}]}}"#
    ))
}

/// Pushes an image with one layer.
async fn push_image(storage: &Storage, name: &Repository, of: &str, content: &[u8]) -> Manifest {
    push(storage, name, content).await;
    let manifest = image_of(content);
    storage.manifests.put_manifest(name, &tag(of), manifest.clone()).await.unwrap();
    manifest
}
