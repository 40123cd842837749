//! Whole answers, as clients get them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt;
use puna_store::{Digest, Store};

use crate::{History, Mirror, NoKeys, Quota, Settings, StoreLibrary};

struct Bench {
    dir: tempfile::TempDir,
    mirror: Mirror,
}

/// A mirror where everybody may push.
fn bench(quotas: Vec<Quota>) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let library = Arc::new(StoreLibrary::new(Arc::new(Store::open(dir.path()).unwrap())));
    let settings = Settings { push: true, quotas, ..Settings::default() };
    let history = Arc::new(History::new().unwrap());
    Bench { mirror: Mirror::new(library, Box::new(NoKeys), &settings, history).unwrap(), dir }
}

impl Bench {
    async fn ask(&self, method: &str, path: &str, body: Body) -> (u16, HeaderMap, Bytes) {
        let request = Request::builder().method(method).uri(path).header(header::HOST, "mirror");
        let request = request.header(header::TRANSFER_ENCODING, "chunked").body(body).unwrap();
        let (head, body) = self.mirror.answer(request).await.into_parts();
        (head.status.as_u16(), head.headers, body.collect().await.unwrap().to_bytes())
    }

    /// Status, code and message of a refusal.
    async fn refusal(&self, method: &str, path: &str, body: Body) -> (u16, String, String) {
        let (status, _, body) = self.ask(method, path, body).await;
        let said: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let said = |field: &str| said["errors"][0][field].as_str().unwrap().to_owned();
        (status, said("code"), said("message"))
    }

    /// The path of a new upload.
    async fn upload(&self, name: &str) -> String {
        let (status, headers, _) =
            self.ask("POST", &format!("/v2/{name}/blobs/uploads/"), Body::empty()).await;
        assert_eq!(status, 202);
        headers[header::LOCATION].to_str().unwrap().strip_prefix("http://mirror").unwrap().to_owned()
    }
}

/// A body of pieces of 100 bytes that does not say how long it is, and how many of them were taken.
fn endless(pieces: usize) -> (Body, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let count = taken.clone();
    let pieces = (0..pieces).map(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok::<_, std::io::Error>(Bytes::from_static(&[7; 100]))
    });
    (Body::from_stream(stream::iter(pieces)), taken)
}

#[tokio::test]
async fn an_upload_of_unknown_length_ends_where_the_quota_does() {
    let bench = bench(vec![Quota { namespaces: "team".into(), bytes: 1000 }]);
    let digest = Digest::of(b"anything");
    for method in ["PATCH", "PUT"] {
        let path = bench.upload("team/x").await;
        let asked = if method == "PUT" { format!("{path}?digest={digest}") } else { path.clone() };
        let (body, taken) = endless(1_000_000);
        let (status, code, said) = bench.refusal(method, &asked, body).await;
        assert_eq!((status, code.as_str()), (413, "DENIED"), "{said}");
        assert!(said.contains("team may have 1000 bytes") && said.contains("1100 more"), "{said}");
        assert_eq!(taken.load(Ordering::Relaxed), 11, "what is behind the limit is not read");
        assert_eq!(bench.ask("GET", &path, Body::empty()).await.0, 404);
        let uploads = bench.dir.path().join("puna-registry/uploads");
        assert_eq!(std::fs::read_dir(uploads).unwrap().count(), 0, "nothing of it is kept");
    }
    // What fits is taken, in parts too; the next one counts with those before it.
    let path = bench.upload("team/x").await;
    assert_eq!(bench.ask("PATCH", &path, endless(6).0).await.0, 202);
    assert_eq!(bench.ask("PATCH", &path, endless(4).0).await.0, 202);
    assert_eq!(bench.refusal("PATCH", &path, endless(1).0).await.0, 413);
    let path = bench.upload("other/x").await;
    assert_eq!(bench.ask("PATCH", &path, endless(500).0).await.0, 202);
}

#[tokio::test]
async fn failures_here_are_told_without_the_names_of_files() {
    let bench = bench(Vec::new());
    // A folder where a file should be.
    let tag = bench.dir.path().join("puna-registry/repositories/a+b/tags/v1");
    std::fs::create_dir_all(&tag).unwrap();
    let (status, _, said) = bench.refusal("GET", "/v2/a/b/manifests/v1", Body::empty()).await;
    assert_eq!((status, said.as_str()), (500, "this registry failed at it: its log says why"));
}

#[tokio::test]
async fn a_page_of_no_size_is_refused_in_the_words_of_the_rules() {
    let bench = bench(Vec::new());
    for path in ["/v2/_catalog?n=-1", "/v2/_catalog?n=a"] {
        let (status, code, _) = bench.refusal("GET", path, Body::empty()).await;
        assert_eq!((status, code.as_str()), (400, "PAGINATION_NUMBER_INVALID"), "{path}");
    }
    assert_eq!(bench.ask("GET", "/v2/_catalog?n=0", Body::empty()).await.0, 200);
}
