//! Tests of complete responses through [`Mirror::answer`].

mod limits;
mod manifest_lists;
mod metrics;
mod quota;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream;
use http_body_util::BodyExt;
use puna_store::{Digest, Store};

use crate::quota::namespace_index::NamespaceIndex;
use crate::types::manifest::OCI_MANIFEST;
use crate::{
    DEFAULT_QUOTA_OBJECTS, FileStorage, InventoryScope, Mirror, NoKeys, Permission, Principal,
    Quota, Repository, Settings, Storage, UsageLog,
};

struct TestServer {
    dir: tempfile::TempDir,
    mirror: Mirror,
}

/// A mirror that accepts anonymous pushes.
fn start_mirror(quotas: Vec<Quota>) -> TestServer {
    start_in_dir(tempfile::tempdir().unwrap(), quotas)
}

/// A mirror of an existing directory.
fn start_in_dir(dir: tempfile::TempDir, quotas: Vec<Quota>) -> TestServer {
    start_with_store(Arc::new(Store::open(dir.path()).unwrap()), dir, quotas)
}

/// A mirror of a store.
fn start_with_store(store: Arc<Store>, dir: tempfile::TempDir, quotas: Vec<Quota>) -> TestServer {
    start_with_storage(FileStorage::new(store).into(), dir, quotas)
}

/// A mirror of a storage.
fn start_with_storage(storage: Storage, dir: tempfile::TempDir, quotas: Vec<Quota>) -> TestServer {
    let settings = Settings { push: true, delete: true, quotas, ..Settings::default() };
    let usage_log = UsageLog::new().unwrap();
    TestServer {
        mirror: Mirror::new(storage, Box::new(NoKeys), &settings, usage_log).unwrap(),
        dir,
    }
}

impl TestServer {
    async fn ask(&self, method: &str, path: &str, body: Body) -> (u16, HeaderMap, Bytes) {
        self.ask_with(method, path, (header::TRANSFER_ENCODING, "chunked"), body).await
    }

    async fn ask_with(
        &self,
        method: &str,
        path: &str,
        (name, value): (header::HeaderName, &str),
        body: Body,
    ) -> (u16, HeaderMap, Bytes) {
        let request = Request::builder().method(method).uri(path).header(header::HOST, "mirror");
        let request = request.header(name, value).body(body).unwrap();
        let (head, body) = self.mirror.answer(request).await.into_parts();
        (head.status.as_u16(), head.headers, body.collect().await.unwrap().to_bytes())
    }

    /// Sends a part with a stated length. Returns the status.
    async fn part(&self, path: &str, bytes: &[u8]) -> u16 {
        let len = (header::CONTENT_LENGTH, &*bytes.len().to_string());
        self.ask_with("PATCH", path, len, Body::from(bytes.to_vec())).await.0
    }

    /// Finishes an upload without another part. Returns the status.
    async fn end(&self, path: &str, whole: &[u8]) -> u16 {
        let path = format!("{path}?digest={}", Digest::of(whole));
        self.ask_with("PUT", &path, (header::CONTENT_LENGTH, "0"), Body::empty()).await.0
    }

    async fn is_open(&self, path: &str) -> bool {
        self.ask("GET", path, Body::empty()).await.0 == 204
    }

    /// Status, code and message of an error response.
    async fn refusal(&self, method: &str, path: &str, body: Body) -> (u16, String, String) {
        let (status, _, body) = self.ask(method, path, body).await;
        let said: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let said = |field: &str| said["errors"][0][field].as_str().unwrap().to_owned();
        (status, said("code"), said("message"))
    }

    /// Pushes a blob in one request.
    async fn blob(&self, name: &str, bytes: &[u8]) -> Digest {
        let path = self.upload(name).await;
        assert_eq!(self.part(&path, bytes).await, 202);
        assert_eq!(self.end(&path, bytes).await, 201);
        Digest::of(bytes)
    }

    /// Opens an upload and returns its path.
    async fn upload(&self, name: &str) -> String {
        let (status, headers, _) =
            self.ask("POST", &format!("/v2/{name}/blobs/uploads/"), Body::empty()).await;
        assert_eq!(status, 202);
        headers[header::LOCATION]
            .to_str()
            .unwrap()
            .strip_prefix("http://mirror")
            .unwrap()
            .to_owned()
    }
}

/// A body of 10,000-byte pieces without a stated length, and the number of pieces that were read.
fn endless(pieces: usize) -> (Body, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let count = taken.clone();
    let pieces = (0..pieces).map(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok::<_, std::io::Error>(Bytes::from_static(&[7; 10_000]))
    });
    (Body::from_stream(stream::iter(pieces)), taken)
}

#[tokio::test]
async fn uploads_of_unknown_length_end_at_the_quota() {
    let server = start_mirror(team());
    let digest = Digest::of(b"anything");
    for method in ["PATCH", "PUT"] {
        let path = server.upload("team/x").await;
        let asked = if method == "PUT" { format!("{path}?digest={digest}") } else { path.clone() };
        let (body, taken) = endless(1_000_000);
        let (status, code, said) = server.refusal(method, &asked, body).await;
        assert_eq!((status, code.as_str()), (413, "DENIED"), "{said}");
        assert!(said.contains("of 102000 bytes used") && said.contains("110000 more"), "{said}");
        assert_eq!(taken.load(Ordering::Relaxed), 11, "what is behind the limit is not read");
        assert_eq!(server.ask("GET", &path, Body::empty()).await.0, 404);
        let uploads = server.dir.path().join("puna-registry/uploads");
        assert_eq!(std::fs::read_dir(uploads).unwrap().count(), 0, "nothing of it is kept");
    }
    // Parts within the quota are accepted; the next one counts together with them.
    let path = server.upload("team/x").await;
    assert_eq!(server.ask("PATCH", &path, endless(6).0).await.0, 202);
    assert_eq!(server.ask("PATCH", &path, endless(4).0).await.0, 202);
    assert_eq!(server.refusal("PATCH", &path, endless(1).0).await.0, 413);
    let path = server.upload("other/x").await;
    assert_eq!(server.ask("PATCH", &path, endless(500).0).await.0, 202);
}

#[tokio::test]
async fn pushed_content_is_never_active_in_a_browser() {
    let server = start_mirror(Vec::new());
    let blob = server.blob("a/b", b"<script>").await;
    let page = r#"{"mediaType":"text/html","layers":[],"x":"<script>"}"#;
    let plain = r#"{"layers":[],"x":"<script>"}"#;
    for (kind, body) in [("text/html", page), ("text/html", plain), ("application/json", page)] {
        let kind = (header::CONTENT_TYPE, kind);
        let (status, _, said) =
            server.ask_with("PUT", "/v2/a/b/manifests/x", kind, Body::from(body)).await;
        assert_eq!(status, 400, "{said:?}");
        assert!(said.starts_with(br#"{"errors":[{"code":"MANIFEST_INVALID""#), "{said:?}");
    }
    // A manifest from before media types were checked.
    let kept = server.dir.path().join("puna-registry/repositories/a+b");
    let digest = Digest::of(page.as_bytes());
    for (path, text) in
        [(format!("manifests/{}", digest.hex()), page), ("tags/x".into(), &digest.to_string())]
    {
        let path = kept.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    for (path, status, kind) in [
        ("/v2/", 200, "application/json"),
        ("/v2/a/b/manifests/x", 200, OCI_MANIFEST),
        (&format!("/v2/a/b/blobs/{blob}"), 200, "application/octet-stream"),
        ("/v2/a/b/manifests/none", 404, "application/json"),
    ] {
        let (found, headers, _) = server.ask("GET", path, Body::empty()).await;
        assert_eq!(
            (found, headers[header::CONTENT_TYPE].to_str().unwrap()),
            (status, kind),
            "{path}"
        );
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff", "{path}");
        assert_eq!(
            headers[header::CONTENT_SECURITY_POLICY],
            "default-src 'none'; sandbox",
            "{path}"
        );
    }
    let headers = server.ask("GET", "/mirror", Body::empty()).await.1;
    assert!(headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap().contains("style-src"));
}

#[tokio::test]
async fn unsupported_methods_list_the_allowed_ones() {
    let server = start_mirror(Vec::new());
    let blob = format!("/v2/a/b/blobs/{}", Digest::of(b"x"));
    for (method, path, allowed) in [
        ("POST", "/v2/", "GET, HEAD"),
        ("DELETE", "/v2/_catalog", "GET, HEAD"),
        ("PATCH", "/v2/a/b/manifests/x", "GET, HEAD, PUT, DELETE"),
        ("PUT", &blob, "GET, HEAD, DELETE"),
        ("GET", "/v2/a/b/blobs/uploads/", "POST"),
        ("POST", "/mirror", "GET, HEAD"),
    ] {
        let (status, headers, _) = server.ask(method, path, Body::empty()).await;
        assert_eq!(
            (status, headers[header::ALLOW].to_str().unwrap()),
            (405, allowed),
            "{method} {path}"
        );
    }
    let settings = Settings { push: true, ..Settings::default() };
    let storage = FileStorage::new(Arc::new(Store::open(server.dir.path()).unwrap())).into();
    let mirror =
        Mirror::new(storage, Box::new(NoKeys), &settings, UsageLog::new().unwrap()).unwrap();
    let server = TestServer { mirror, ..server };
    let (status, headers, _) = server.ask("DELETE", "/v2/a/b/manifests/x", Body::empty()).await;
    assert_eq!((status, headers[header::ALLOW].to_str().unwrap()), (405, "GET, HEAD, PUT"));
    // A client may cancel its own upload.
    let upload = server.upload("a/b").await;
    let (status, headers, _) = server.ask("POST", &upload, Body::empty()).await;
    assert_eq!(
        (status, headers[header::ALLOW].to_str().unwrap()),
        (405, "GET, PATCH, PUT, DELETE")
    );
    assert_eq!(server.ask("DELETE", &upload, Body::empty()).await.0, 204);
}

#[tokio::test]
async fn concurrent_conditional_changes_succeed_once() {
    let server = start_mirror(Vec::new());
    let (path, kind) = ("/v2/a/b/manifests/x", (header::CONTENT_TYPE, OCI_MANIFEST));
    let text = |n: usize| format!(r#"{{"layers":[],"annotations":{{"n":"{n}"}}}}"#);
    assert_eq!(server.ask_with("PUT", path, kind, Body::from(text(0))).await.0, 201);
    let seen = format!("\"{}\"", Digest::of(text(0).as_bytes()));
    let change = async |n| {
        let meant = (header::IF_MATCH, &*seen);
        let method = if n == 16 { "DELETE" } else { "PUT" };
        server.ask_with(method, path, meant, Body::from(text(n))).await.0
    };
    let done = join_all((1..=16).map(change)).await;
    let changed = done.iter().filter(|status| **status != 412).count();
    assert_eq!(changed, 1, "{done:?}");
}

#[tokio::test]
async fn if_match_prevents_changes_of_other_content() {
    let server = start_mirror(Vec::new());
    let blob = server.blob("a/b", b"bytes").await;
    let (path, text) = ("/v2/a/b/manifests/x", r#"{"layers":[]}"#);
    let kind = (header::CONTENT_TYPE, OCI_MANIFEST);
    assert_eq!(server.ask_with("PUT", path, kind, Body::from(text)).await.0, 201);
    let (manifest, blob) = (Digest::of(text.as_bytes()), format!("/v2/a/b/blobs/{blob}"));
    let other = format!("\"{}\"", Digest::of(b"another"));
    let cases =
        [("GET", path), ("HEAD", path), ("GET", blob.as_str()), ("HEAD", &blob), ("DELETE", &blob)];
    for (method, path) in cases.into_iter().chain([("PUT", path), ("DELETE", path)]) {
        for tag in [&*other, "x", &format!("W/\"{manifest}\"")] {
            let answer =
                server.ask_with(method, path, (header::IF_MATCH, tag), Body::from(text)).await;
            assert_eq!(answer.0, 412, "{method} {path} {tag}");
        }
    }
    let absent = (header::IF_MATCH, "*");
    assert_eq!(
        server.ask_with("PUT", "/v2/a/b/manifests/y", absent, Body::from(text)).await.0,
        412
    );
    for (method, status) in [("GET", 200), ("PUT", 201), ("DELETE", 202)] {
        let tags = format!("{other}, \"{manifest}\"");
        let answer =
            server.ask_with(method, path, (header::IF_MATCH, &tags), Body::from(text)).await;
        assert_eq!(answer.0, status, "{method}");
    }
}

/// A quota for 100,000 bytes of blobs, with some bytes for manifests and records of uploads.
fn team() -> Vec<Quota> {
    vec![quota("team", 102_000, DEFAULT_QUOTA_OBJECTS)]
}

fn quota(namespaces: &str, bytes: u64, objects: u64) -> Quota {
    Quota { namespaces: namespaces.into(), bytes, objects }
}

/// A part of 70,000 bytes that is interrupted.
fn broken() -> Body {
    let pieces = [Ok(Bytes::from_static(&[7; 70_000])), Err(std::io::Error::other("broken off"))];
    Body::from_stream(stream::iter(pieces))
}

#[tokio::test]
async fn concurrent_uploads_stay_within_the_quota() {
    let server = start_mirror(team());
    let mut paths = Vec::new();
    for _ in 0..8 {
        paths.push(server.upload("team/x").await);
    }
    let contents: Vec<Vec<u8>> = (0..8).map(|n| vec![n; 60_000]).collect();
    let parts = paths.iter().zip(&contents).map(|(path, bytes)| server.part(path, bytes));
    let taken = join_all(parts).await;
    assert_eq!(taken.iter().filter(|status| **status == 202).count(), 1, "{taken:?}");
    // With unannounced pieces, every upload gets some bytes until the quota is used up.
    let parts = paths.iter().map(|path| server.ask("PATCH", path, endless(6).0));
    join_all(parts).await;
    let uploads = server.dir.path().join("puna-registry/uploads");
    let sizes = std::fs::read_dir(uploads).unwrap().map(|entry| entry.unwrap());
    let sizes = sizes.filter(|entry| entry.path().extension().is_none());
    let all: u64 = sizes.map(|entry| entry.metadata().unwrap().len()).sum();
    assert!(all <= 102_000, "{all}");
}

#[tokio::test]
async fn uploads_beyond_the_quota_become_no_blobs() {
    // Pushed while there was no quota.
    let before = start_mirror(Vec::new());
    let contents = [vec![1; 60_000], vec![2; 60_000], vec![3; 60_000]];
    let mut paths = Vec::new();
    for bytes in &contents {
        paths.push(before.upload("team/x").await);
        assert_eq!(before.part(paths.last().unwrap(), bytes).await, 202);
    }
    let server = start_in_dir(before.dir, team());
    let ends = paths.iter().zip(&contents).map(|(path, bytes)| server.end(path, bytes));
    let mut made = join_all(ends).await;
    made.sort_unstable();
    assert_eq!(made, [201, 413, 413]);
    for path in &paths {
        assert!(!server.is_open(path).await, "nothing of it is kept");
    }
    assert_eq!(
        std::fs::read_dir(server.dir.path().join("puna-registry/blobs")).unwrap().count(),
        1
    );
    // A finished upload counts as a blob and no longer as an upload.
    let path = server.upload("team/x").await;
    assert_eq!(server.part(&path, &[4; 40_000]).await, 202);
    assert_eq!(server.end(&path, &[4; 40_000]).await, 201);
    assert_eq!(server.part(&server.upload("team/x").await, &[1; 2000]).await, 413);
}

#[tokio::test]
async fn idle_uploads_are_dropped_to_admit_new_ones() {
    let server = start_mirror(team());
    let left = server.upload("team/x").await;
    assert_ne!(server.ask("PATCH", &left, broken()).await.0, 202);
    // Uploads are dropped neither without effect nor for another namespace.
    assert_eq!(server.part(&server.upload("team/x").await, &[1; 110_000]).await, 413);
    assert_eq!(server.part(&server.upload("other/x").await, &[1; 110_000]).await, 202);
    assert!(server.is_open(&left).await);
    let next = server.upload("team/y").await;
    assert_eq!(server.ask("PATCH", &next, endless(8).0).await.0, 202);
    assert!(!server.is_open(&left).await);
    // An upload whose parts are complete waits a while for the rest.
    let last = server.upload("team/z").await;
    assert_eq!(server.part(&last, &[2; 30_000]).await, 413);
    assert!(server.is_open(&next).await);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(server.part(&last, &[2; 30_000]).await, 202);
    assert!(!server.is_open(&next).await);
    // A cancelled upload uses no quota.
    assert_eq!(server.ask("DELETE", &last, Body::empty()).await.0, 204);
    assert_eq!(server.part(&server.upload("team/x").await, &[3; 100_000]).await, 202);
}

#[tokio::test]
async fn internal_errors_show_no_file_names() {
    let server = start_mirror(Vec::new());
    // A directory in place of a file.
    let tag = server.dir.path().join("puna-registry/repositories/a+b/tags/v1");
    std::fs::create_dir_all(&tag).unwrap();
    let (status, _, said) = server.refusal("GET", "/v2/a/b/manifests/v1", Body::empty()).await;
    assert_eq!(
        (status, said.as_str()),
        (500, "internal error of this registry: its log has the reason")
    );
}

#[tokio::test]
async fn invalid_page_sizes_get_the_specified_error_code() {
    let server = start_mirror(Vec::new());
    for path in ["/v2/_catalog?n=-1", "/v2/_catalog?n=a"] {
        let (status, code, _) = server.refusal("GET", path, Body::empty()).await;
        assert_eq!((status, code.as_str()), (400, "PAGINATION_NUMBER_INVALID"), "{path}");
    }
    assert_eq!(server.ask("GET", "/v2/_catalog?n=0", Body::empty()).await.0, 200);
}

/// Text of an image manifest or, with Ollama's media types, of a model with one layer.
fn manifest_of(is_model: bool, digest: Digest, size: usize) -> String {
    let (of_all, of_layer) = match is_model {
        true => (puna_store::media::MANIFEST, puna_store::media::MODEL),
        false => (OCI_MANIFEST, "application/octet-stream"),
    };
    format!(
        r#"{{"schemaVersion":2,"mediaType":"{of_all}","layers":[{{"mediaType":"{of_layer}","digest":"{digest}","size":{size}}}]}}"#
    )
}

#[tokio::test]
async fn concurrent_manifests_stay_within_the_quota() {
    let server = start_mirror(team());
    let mut texts = Vec::new();
    for n in 0..8 {
        // Pushed to another namespace, so that the quota of the team is unused before the
        // manifests.
        texts.push(manifest_of(n % 2 == 0, server.blob("other/x", &[n; 60_000]).await, 60_000));
    }
    let paths: Vec<_> = (0..8).map(|n| format!("/v2/team/x/manifests/t{n}")).collect();
    let puts = paths
        .iter()
        .zip(&texts)
        .map(|(path, text)| server.ask("PUT", path, Body::from(text.clone())));
    let mut put: Vec<u16> = join_all(puts).await.iter().map(|put| put.0).collect();
    put.sort_unstable();
    assert_eq!(put, [201, 413, 413, 413, 413, 413, 413, 413]);
}

#[tokio::test]
async fn a_rejected_model_leaves_nothing_in_the_store() {
    let server = start_mirror(Vec::new());
    let digest = server.blob("library/x", b"weights").await;
    // The manifest states a wrong size.
    let text = manifest_of(true, digest, 6);
    let (status, code, _) =
        server.refusal("PUT", "/v2/library/x/manifests/latest", Body::from(text)).await;
    assert_eq!((status, code.as_str()), (400, "MANIFEST_INVALID"));
    let stored = server.dir.path().join("blobs").join(digest.file_name());
    assert!(!stored.exists(), "a blob of no model");
    // A missing blob: the present ones are not kept, but those that the store had before are.
    std::fs::write(&stored, b"weights").unwrap();
    let missing = Digest::of(b"nobody's");
    let layer = |digest, size| format!(r#"{{"mediaType":"x","digest":"{digest}","size":{size}}}"#);
    let text = format!(
        r#"{{"mediaType":"{OCI_MANIFEST}","layers":[{},{}]}}"#,
        layer(digest, 7),
        layer(missing, 8)
    );
    std::fs::remove_dir_all(server.dir.path().join("puna-registry/blobs")).unwrap();
    let (status, code, _) = server.refusal("PUT", "/v2/a/b/manifests/v1", Body::from(text)).await;
    assert_eq!((status, code.as_str()), (400, "MANIFEST_BLOB_UNKNOWN"));
    assert!(stored.exists() && !server.dir.path().join("puna-registry/blobs").exists());
}

#[tokio::test]
async fn an_image_hides_a_model_of_a_read_only_directory() {
    let others = tempfile::tempdir().unwrap();
    {
        let there = start_with_store(
            Arc::new(Store::open(others.path()).unwrap()),
            tempfile::tempdir().unwrap(),
            Vec::new(),
        );
        let digest = there.blob("library/x", b"weights").await;
        let text = manifest_of(true, digest, 7);
        assert_eq!(
            there.ask("PUT", "/v2/library/x/manifests/latest", Body::from(text)).await.0,
            201
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap().with_read_only_dirs([others.path().to_owned()]);
    let server = start_with_store(Arc::new(store), dir, Vec::new());
    let path = "/v2/library/x/manifests/latest";
    let model = server.ask("GET", path, Body::empty()).await;
    assert_eq!(model.0, 200);
    // The image is listed among the tags and served by digest.
    let tags = server.ask("GET", "/v2/library/x/tags/list", Body::empty()).await;
    assert_eq!(
        (tags.0, tags.2),
        (200, Bytes::from_static(br#"{"name":"library/x","tags":["latest"]}"#))
    );
    let by_digest = format!("/v2/library/x/manifests/{}", Digest::of(&model.2));
    assert_eq!(server.ask("GET", &by_digest, Body::empty()).await.2, model.2);
    let image = manifest_of(false, server.blob("library/x", b"image").await, 5);
    let (status, _, said) = server.ask("PUT", path, Body::from(image.clone())).await;
    assert_eq!(status, 201, "{said:?}");
    assert_eq!(server.ask("GET", path, Body::empty()).await.2, image);
    let shown = server.mirror.storage().inventory.tag_entries().await.unwrap();
    assert_eq!(shown.len(), 1, "what is hidden is not shown: {shown:?}");
    // Without the image the model is visible again; it cannot be removed here.
    assert_eq!(server.ask("DELETE", path, Body::empty()).await.0, 202);
    assert_eq!(server.ask("GET", path, Body::empty()).await.2, model.2);
    assert_eq!(server.refusal("DELETE", path, Body::empty()).await.0, 403);
}

#[cfg(unix)]
#[tokio::test]
async fn a_blob_pushed_again_keeps_its_file() {
    use std::os::unix::fs::MetadataExt;

    let server = start_mirror(Vec::new());
    let digest = server.blob("library/x", b"weights").await;
    let text = manifest_of(true, digest, 7);
    assert_eq!(server.ask("PUT", "/v2/library/x/manifests/latest", Body::from(text)).await.0, 201);
    let pushed = server.dir.path().join("puna-registry/blobs").join(digest.file_name());
    let stored = server.dir.path().join("blobs").join(digest.file_name());
    let inode = |path| std::fs::metadata(path).unwrap().ino();
    assert_eq!(inode(&pushed), inode(&stored));
    // Older than the grace period, were it not pushed again.
    let old = std::time::SystemTime::now() - Duration::from_secs(30 * 60 * 60);
    std::fs::File::options().append(true).open(&pushed).unwrap().set_modified(old).unwrap();
    server.blob("other/x", b"weights").await;
    assert_eq!(inode(&pushed), inode(&stored), "one file with two names");
    server.mirror.storage().inventory.collect_garbage().await.unwrap();
    assert!(pushed.exists(), "it waits for its manifest as if it had just come");
    assert_eq!(
        std::fs::read_dir(server.dir.path().join("puna-registry/uploads")).unwrap().count(),
        0
    );
    // A damaged blob is replaced.
    std::fs::remove_file(&pushed).unwrap();
    std::fs::write(&pushed, b"WEIGHTS").unwrap();
    server.blob("other/x", b"weights").await;
    assert_eq!(std::fs::read(&pushed).unwrap(), b"weights");
}

#[tokio::test]
async fn mounted_blobs_count_against_the_quota() {
    let server = start_mirror(team());
    let blobs =
        [server.blob("other/x", &[1; 60_000]).await, server.blob("other/x", &[2; 60_000]).await];
    let mount = async |digest| {
        let path = format!("/v2/team/y/blobs/uploads/?mount={digest}&from=other/x");
        server.ask("POST", &path, Body::empty()).await.0
    };
    assert_eq!(mount(blobs[0]).await, 201);
    assert_eq!(mount(blobs[0]).await, 201, "it counts once");
    assert_eq!(mount(blobs[1]).await, 413);
    assert_eq!(mount(Digest::of(b"none")).await, 202);
}

#[tokio::test]
async fn a_quota_check_reads_only_its_namespace() {
    let server = start_mirror(team());
    // An unreadable manifest of another namespace.
    let broken = server.dir.path().join("puna-registry/repositories/other+x/manifests");
    std::fs::create_dir_all(&broken).unwrap();
    std::fs::write(broken.join(Digest::of(b"x").hex()), b"no manifest").unwrap();
    assert!(server.mirror.storage().inventory.stored_objects(InventoryScope::All).await.is_err());
    let digest = server.blob("Team/x", &[1; 60_000]).await;
    let text = manifest_of(false, digest, 60_000);
    assert_eq!(server.ask("PUT", "/v2/team/x/manifests/v1", Body::from(text)).await.0, 201);
    assert_eq!(server.part(&server.upload("TEAM/y").await, &[2; 50_000]).await, 413);
    assert_eq!(server.part(&server.upload("team/y").await, &[2; 40_000]).await, 202);
}

#[tokio::test]
async fn blob_visibility_is_checked_in_the_requested_repository_first() {
    let server = start_mirror(Vec::new());
    let broken = server.dir.path().join("puna-registry/repositories/other+x/manifests");
    std::fs::create_dir_all(&broken).unwrap();
    std::fs::write(broken.join(Digest::of(b"x").hex()), b"no manifest").unwrap();
    let principal = Principal {
        name: "t".into(),
        permission: Permission::Read,
        namespaces: vec!["team".into()],
    };
    // A new index without cached values for each call.
    let sees = async |name: &str, digest| {
        let name = Repository::parse(name).unwrap();
        let index = NamespaceIndex::new(Vec::new(), server.mirror.storage().clone(), None);
        index.can_see_blob(Some(&principal), &name, digest).await
    };
    let digest = server.blob("team/x", b"weights").await;
    assert_eq!(sees("team/x", digest).await, Ok(true), "it was brought there");
    std::fs::remove_dir_all(server.dir.path().join("puna-registry/brought")).unwrap();
    for (name, is_model) in [("team/x", false), ("team/m", true)] {
        let text = manifest_of(is_model, digest, 7);
        assert_eq!(
            server.ask("PUT", &format!("/v2/{name}/manifests/v1"), Body::from(text)).await.0,
            201
        );
        assert_eq!(sees(name, digest).await, Ok(true), "a manifest needs it");
    }
    // A blob that the repository does not reference needs a scan of all repositories, one of which
    // cannot be read.
    assert!(sees("team/y", digest).await.is_err());
    std::fs::remove_dir_all(broken).unwrap();
    assert_eq!(sees("team/y", digest).await, Ok(true));
    assert_eq!(sees("team/y", Digest::of(b"none")).await, Ok(false));
    let others = server.blob("other/x", b"of others").await;
    assert_eq!(sees("team/x", others).await, Ok(false));
}

#[tokio::test]
async fn the_web_page_is_cached() {
    let server = start_mirror(Vec::new());
    let page = async || {
        String::from_utf8(server.ask("GET", "/mirror", Body::empty()).await.2.to_vec()).unwrap()
    };
    let text = manifest_of(false, server.blob("a/b", b"weights").await, 7);
    assert_eq!(server.ask("PUT", "/v2/a/b/manifests/v1", Body::from(text)).await.0, 201);
    assert!(page().await.contains("a/b:v1"));
    // Written as another mirror of the directory does.
    let tags = server.dir.path().join("puna-registry/repositories/a+b/tags");
    std::fs::copy(tags.join("v1"), tags.join("v2")).unwrap();
    let kept = page().await;
    assert!(kept.contains("a/b:v1") && !kept.contains("a/b:v2"));
    // A change by this mirror invalidates the cache.
    assert_eq!(server.ask("DELETE", "/v2/a/b/manifests/v1", Body::empty()).await.0, 202);
    let anew = page().await;
    assert!(!anew.contains("a/b:v1") && anew.contains("a/b:v2"));
}
