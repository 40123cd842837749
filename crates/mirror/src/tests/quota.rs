//! Quotas count everything that a namespace has in the storage, in every driver.

use std::path::Path;

use puna_store::NewModel;

use super::*;
use crate::S3Storage;
use crate::quota::namespace_index::{NamespaceIndex, QuotaUsage};
use crate::storage::s3::faulty_service::FaultyService;
use crate::types::storage_usage::StorageUsage;

/// Where a mirror keeps its data, so that it can be opened again.
enum TestStorage {
    Directory(tempfile::TempDir),
    Bucket(FaultyService),
}

impl TestStorage {
    fn all() -> [Self; 2] {
        [Self::Directory(tempfile::tempdir().unwrap()), Self::Bucket(FaultyService::default())]
    }

    /// Starts a mirror; a second call starts another process of the same data.
    fn start(&self, quotas: Vec<Quota>) -> TestServer {
        let storage = match self {
            Self::Directory(dir) => {
                FileStorage::new(Arc::new(Store::open(dir.path()).unwrap())).into()
            }
            Self::Bucket(service) => Arc::<S3Storage>::new(service.storage()).into(),
        };
        start_with_storage(storage, tempfile::tempdir().unwrap(), quotas)
    }

    /// Bytes and objects of a directory without locks; `None` for a bucket.
    fn on_disk(&self) -> Option<StorageUsage> {
        let Self::Directory(dir) = self else { return None };
        let mut files = std::collections::HashMap::new();
        visit(dir.path(), &mut |path, len| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let is_lock = name == "lock" || name.ends_with(".lock");
            // Files of the store that are no models, and the usage log of all namespaces.
            let is_other = path.iter().any(|word| word == "puna-tmp" || word == "history");
            if !is_lock && !is_other {
                // A blob may have several hard links.
                let key =
                    if name.starts_with("sha256-") { name } else { path.display().to_string() };
                files.insert(key, len);
            }
        });
        Some(StorageUsage::of_blobs(&files))
    }
}

fn visit(dir: &Path, visit_file: &mut dyn FnMut(&Path, u64)) {
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => visit(&entry.path(), visit_file),
            false => visit_file(&entry.path(), entry.path().symlink_metadata().unwrap().len()),
        }
    }
}

impl TestServer {
    async fn put_manifest(&self, path: &str, text: String) -> (u16, String) {
        let kind = (header::CONTENT_TYPE, OCI_MANIFEST);
        let (status, _, said) =
            self.ask_with("PUT", &format!("/v2/{path}"), kind, Body::from(text)).await;
        (status, String::from_utf8_lossy(&said).into_owned())
    }

    /// Usage of the namespace `team` after the caches have expired.
    async fn usage(&self) -> StorageUsage {
        self.mirror.namespace_index().record_change();
        let all = self.mirror.namespace_index().quota_usage().await.unwrap();
        let of_team = |usage: QuotaUsage| (usage.namespace == "team").then_some(usage.used);
        all.into_iter().find_map(of_team).unwrap_or_default()
    }
}

/// A manifest without blobs of about `len` bytes. Different `n` give different manifests.
fn padded(n: usize, len: usize) -> String {
    format!(
        r#"{{"mediaType":"{OCI_MANIFEST}","layers":[],"annotations":{{"n":"{n}","x":"{}"}}}}"#,
        "a".repeat(len)
    )
}

#[tokio::test]
async fn manifests_count_against_the_quota() {
    for place in TestStorage::all() {
        let server = place.start(vec![quota("team", 100_000, 1000)]);
        let mut statuses = Vec::new();
        for n in 0..4 {
            let path = format!("team/x/manifests/t{n}");
            statuses.push(server.put_manifest(&path, padded(n, 40_000)).await.0);
        }
        assert_eq!(statuses, [201, 201, 413, 413]);
        let (_, said) = server.put_manifest("team/x/manifests/t9", padded(9, 40_000)).await;
        assert!(said.starts_with(r#"{"errors":[{"code":"DENIED""#), "{said}");
        assert!(said.contains("of 100000 bytes used"), "{said}");
        // Nothing of a rejected manifest is stored or counted.
        let used = server.usage().await;
        let expected = 2 * (padded(0, 40_000).len() as u64 + 71);
        assert_eq!(used, StorageUsage { bytes: expected, objects: 4 });
        if let Some(on_disk) = place.on_disk() {
            assert_eq!(on_disk, used);
        }
        // A manifest that is stored already adds nothing, and another tag only itself.
        assert_eq!(server.put_manifest("team/x/manifests/t0", padded(0, 40_000)).await.0, 201);
        assert_eq!(server.put_manifest("team/x/manifests/again", padded(0, 40_000)).await.0, 201);
        assert_eq!(server.usage().await, used.plus(StorageUsage::one(71)));
        // Another namespace is not affected, and a restart counts the same.
        assert_eq!(server.put_manifest("other/x/manifests/t0", padded(0, 40_000)).await.0, 201);
        let server = place.start(vec![quota("team", 100_000, 1000)]);
        assert_eq!(server.usage().await, used.plus(StorageUsage::one(71)));
        assert_eq!(server.put_manifest("team/x/manifests/t4", padded(4, 40_000)).await.0, 413);
        // A deletion frees exactly what it removes.
        let digest = Digest::of(padded(0, 40_000).as_bytes());
        let path = format!("/v2/team/x/manifests/{digest}");
        assert_eq!(server.ask("DELETE", &path, Body::empty()).await.0, 202);
        let half = StorageUsage { bytes: expected / 2, objects: 2 };
        assert_eq!(server.usage().await, half);
        assert_eq!(server.put_manifest("team/x/manifests/t4", padded(4, 40_000)).await.0, 201);
    }
}

#[tokio::test]
async fn concurrent_manifests_share_what_is_left() {
    for place in TestStorage::all() {
        let server = place.start(vec![quota("team", 100_000, 1000)]);
        let puts = (0..8).map(|n| {
            let (server, path) = (&server, format!("team/r{n}/manifests/latest"));
            async move { server.put_manifest(&path, padded(n, 40_000)).await.0 }
        });
        let mut statuses = join_all(puts).await;
        statuses.sort_unstable();
        assert_eq!(statuses, [201, 201, 413, 413, 413, 413, 413, 413]);
        assert!(server.usage().await.bytes <= 100_000);
    }
}

#[tokio::test]
async fn models_of_the_store_count_with_their_manifests() {
    let place = TestStorage::all().into_iter().next().unwrap();
    let server = place.start(vec![quota("team", 10_000, 1000)]);
    let digest = server.blob("team/m", &[7; 5000]).await;
    let text = manifest_of(true, digest, 5000);
    for tag in ["a", "b"] {
        let path = format!("/v2/team/m/manifests/{tag}");
        assert_eq!(server.ask("PUT", &path, Body::from(text.clone())).await.0, 201);
    }
    let used = server.usage().await;
    assert_eq!(Some(used), place.on_disk());
    assert_eq!(used.bytes, 5000 + 2 * text.len() as u64);
}

#[tokio::test]
async fn referrers_count_as_objects() {
    for place in TestStorage::all() {
        let server = place.start(vec![quota("team", 1 << 20, 5)]);
        let subject = Digest::of(b"of anything");
        let of = |n: usize| {
            let text = padded(n, 10)
                .replace("\"layers\"", &format!(r#""subject":{{"digest":"{subject}"}},"layers""#));
            (format!("team/x/manifests/{}", Digest::of(text.as_bytes())), text)
        };
        for n in 0..2 {
            let (path, text) = of(n);
            assert_eq!(server.put_manifest(&path, text).await.0, 201);
        }
        assert_eq!(server.usage().await.objects, 4);
        let (path, text) = of(2);
        let (status, said) = server.put_manifest(&path, text).await;
        assert_eq!(status, 413);
        assert!(said.contains("4 of 5 objects used, 2 more needed"), "{said}");
    }
}

#[tokio::test]
async fn tags_count_as_objects() {
    for place in TestStorage::all() {
        let server = place.start(vec![quota("team", 1 << 20, 4)]);
        let mut statuses = Vec::new();
        for n in 0..5 {
            statuses.push(
                server.put_manifest(&format!("team/x/manifests/t{n}"), padded(0, 10)).await.0,
            );
        }
        assert_eq!(statuses, [201, 201, 201, 413, 413], "a manifest and three tags");
        // A tag that moves to another manifest keeps the old one.
        assert_eq!(server.put_manifest("team/x/manifests/t0", padded(1, 10)).await.0, 413);
        assert_eq!(server.put_manifest("team/x/manifests/t0", padded(0, 10)).await.0, 201);
    }
}

#[tokio::test]
async fn open_uploads_count_with_their_records() {
    for place in TestStorage::all() {
        let quotas = || vec![quota("team", 100_000, 5)];
        let server = place.start(quotas());
        let first = server.upload("team/x").await;
        let second = server.upload("team/y").await;
        let path = "/v2/team/z/blobs/uploads/";
        let (status, code, said) = server.refusal("POST", path, Body::empty()).await;
        assert_eq!((status, code.as_str()), (413, "DENIED"), "{said}");
        assert!(said.contains("4 of 5 objects used, 2 more needed"), "{said}");
        let used = server.usage().await;
        assert!(used.objects == 4 && used.bytes > 100, "{used:?}");
        assert_eq!(server.ask("DELETE", &second, Body::empty()).await.0, 204);
        assert_eq!(server.part(&first, &[1; 60_000]).await, 202);
        if let Some(on_disk) = place.on_disk() {
            assert_eq!(server.usage().await, on_disk);
        }
        // The bytes count after a restart, before the upload is continued.
        let server = place.start(quotas());
        let third = server.upload("team/z").await;
        assert_eq!(server.part(&third, &[2; 60_000]).await, 413);
        assert_eq!(server.put_manifest("team/x/manifests/a", padded(0, 60_000)).await.0, 413);
        assert_eq!(server.end(&first, &[1; 60_000]).await, 201);
        assert_eq!(server.ask("DELETE", &third, Body::empty()).await.0, 204);
        let used = server.usage().await;
        assert_eq!(used, StorageUsage { bytes: 60_000, objects: 2 }, "a blob and its push mark");
    }
}

#[tokio::test]
async fn mounts_count_as_objects() {
    for place in TestStorage::all() {
        let server = place.start(vec![quota("team", 1 << 20, 5)]);
        let digest = server.blob("other/x", b"bytes").await;
        let mount = async |repository: usize| {
            let path = format!("/v2/team/r{repository}/blobs/uploads/?mount={digest}&from=other/x");
            server.ask("POST", &path, Body::empty()).await.0
        };
        let mut statuses = Vec::new();
        for repository in [0, 0, 1, 2, 3, 4] {
            statuses.push(mount(repository).await);
        }
        match place {
            TestStorage::Directory(_) => assert_eq!(statuses, [201, 201, 201, 201, 201, 413]),
            // A mount in a bucket writes nothing.
            TestStorage::Bucket(_) => assert_eq!(statuses, [201; 6]),
        }
        assert!(server.usage().await.objects <= 5);
    }
}

#[tokio::test]
async fn usage_is_exact_after_garbage_collection() {
    for place in TestStorage::all() {
        let server = place.start(vec![quota("team", 100_000, 100)]);
        server.blob("team/x", &[1; 60_000]).await;
        let pushed = server.blob("team/x", &[2; 5_000]).await;
        let open = server.upload("team/x").await;
        assert_eq!(server.part(&open, &[3; 5_000]).await, 202);
        let notes =
            server.mirror.storage().inventory.size_notes(&Repository::parse("team/x").unwrap());
        notes.write("a", Bytes::from_static(&[7; 2_000])).await.unwrap();
        assert!((72_000..73_000).contains(&server.usage().await.bytes));
        assert_eq!(server.put_manifest("team/x/manifests/a", padded(0, 30_000)).await.0, 413);
        // A removed blob no longer counts.
        let path = format!("/v2/team/x/blobs/{pushed}");
        assert_eq!(server.ask("DELETE", &path, Body::empty()).await.0, 202);
        assert!((67_000..68_000).contains(&server.usage().await.bytes));
        match &place {
            TestStorage::Directory(dir) => visit(dir.path(), &mut |path, _| {
                let file = std::fs::File::options().append(true).open(path).unwrap();
                let old = std::time::SystemTime::now() - Duration::from_secs(40 * 24 * 60 * 60);
                file.set_modified(old).unwrap();
            }),
            TestStorage::Bucket(service) => service.age().await,
        }
        server.mirror.storage().inventory.collect_garbage().await.unwrap();
        assert_eq!(server.usage().await, StorageUsage::default());
        assert_eq!(server.put_manifest("team/x/manifests/a", padded(0, 30_000)).await.0, 201);
    }
}

#[tokio::test]
async fn models_and_pulls_of_the_store_count_before_they_are_complete() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path()).unwrap());
    let quota = Quota { namespaces: "team".into(), bytes: 10_000, objects: 100 };
    let storage = FileStorage::new(store.clone()).into();
    let index = NamespaceIndex::new(vec![quota], storage, None);
    let blob = |n: u64, size: u64| (Digest::of(&n.to_le_bytes()), size);
    let new = |name: &str, blobs: &[(Digest, u64)]| NewModel {
        name: name.parse().unwrap(),
        blobs: blobs.to_vec(),
        manifests: vec![100],
    };
    let is_admitted = async |model: NewModel| index.check_model_quota(&model).await.is_ok();
    assert!(is_admitted(new("team/a", &[blob(1, 9000)])).await);
    assert!(!is_admitted(new("team/a", &[blob(1, 9901)])).await);
    assert!(is_admitted(new("other/a", &[blob(1, 99_999)])).await, "it has no quota");
    // A pull that has just begun needs all of its bytes, for its own namespace only.
    store.record_blobs(&"team/a".parse().unwrap(), &[blob(1, 6000)]).unwrap();
    store.record_blobs(&"other/b".parse().unwrap(), &[blob(2, 9000)]).unwrap();
    assert!(!is_admitted(new("team/b", &[blob(3, 4000)])).await);
    assert!(is_admitted(new("team/b", &[blob(3, 3800)])).await);
    assert!(is_admitted(new("team/b", &[blob(1, 6000), blob(3, 3800)])).await, "it counts once");
    // Uploads of `/v2` see the same usage.
    let name = Repository::parse("team/c").unwrap();
    let id = index.begin_upload(&name, "key").await.unwrap();
    let upload = index.reserve_upload(&name, &id).await.unwrap().unwrap();
    assert!(upload.reserve(4000).await.is_err());
    assert!(upload.reserve(3000).await.is_ok());
    assert!(!is_admitted(new("team/b", &[blob(3, 3800)])).await, "the upload counts");
    store.forget_pull(&"team/a".parse().unwrap());
    assert!(is_admitted(new("team/b", &[blob(3, 3800)])).await);
}
