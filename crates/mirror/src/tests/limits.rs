//! What one client may take of what there is for all.

use std::sync::Mutex;

use axum::http::StatusCode;
use axum::response::Response;

use super::*;
use crate::library::{MAX_EACH, MAX_UPLOADS};
use crate::lock::lock;
use crate::{Begun, Caller, Keys, Limit};

/// The status of a request to begin an upload from an address.
async fn begins(mirror: &Mirror, from: &str) -> u16 {
    let request = Request::post("/v2/a/b/blobs/uploads/").header(header::HOST, "mirror");
    let request = request.extension(Caller(from.to_owned())).body(Body::empty()).unwrap();
    mirror.answer(request).await.status().as_u16()
}

#[tokio::test]
async fn nobody_keeps_others_from_pushing() {
    let bench = bench(Vec::new());
    for _ in 0..MAX_EACH {
        assert_eq!(begins(&bench.mirror, "2001:db8::1").await, 202);
    }
    assert_eq!(
        begins(&bench.mirror, "2001:db8::ffff").await,
        429,
        "one has as many addresses as he likes"
    );
    // Also after a restart.
    let bench = on(bench.dir, Vec::new());
    assert_eq!(begins(&bench.mirror, "2001:db8::1").await, 429);
    for _ in MAX_EACH..MAX_UPLOADS {
        assert_eq!(begins(&bench.mirror, "192.0.2.1").await, 202);
    }
    // All have too many together: the one with most gives way.
    for _ in 0..2 {
        assert_eq!(begins(&bench.mirror, "192.0.2.2").await, 202);
    }
    let left = std::fs::read_dir(bench.dir.path().join("puna-registry/uploads")).unwrap();
    assert_eq!(left.count(), 2 * MAX_UPLOADS, "bytes and a note each");
}

#[tokio::test]
async fn uploads_without_bytes_leave_soon() {
    let bench = bench(Vec::new());
    let (empty, begun) = (bench.upload("a/b").await, bench.upload("a/b").await);
    assert_eq!(bench.part(&begun, b"bytes").await, 202);
    let uploads = bench.dir.path().join("puna-registry/uploads");
    let before = std::time::SystemTime::now() - Duration::from_secs(11 * 60);
    for path in [&empty, &begun] {
        let file = std::fs::File::options()
            .write(true)
            .open(uploads.join(path.rsplit('/').next().unwrap()));
        file.unwrap().set_modified(before).unwrap();
    }
    bench.mirror.library().tidy().await.unwrap();
    assert_eq!((bench.is_open(&empty).await, bench.is_open(&begun).await), (false, true));
}

/// Whose request it was, and a part of what.
type Counting = (String, Option<String>);

/// Of one key, `k`, whose requests are written down, and of which so many may run.
#[derive(Clone)]
struct Counted {
    begun: Arc<Mutex<Vec<Counting>>>,
    running: Arc<()>,
}

impl Keys for Counted {
    fn any(&self) -> bool {
        true
    }
    fn by_name(&self, name: &str) -> Option<Holder> {
        (name == "k").then(|| Holder {
            name: "k".into(),
            right: Right::Admin,
            namespaces: Vec::new(),
        })
    }
    fn by_secret(&self, secret: &str) -> Option<Holder> {
        self.by_name(secret.strip_prefix("secret-")?)
    }
    fn by_public(&self, _: &[u8]) -> Option<Holder> {
        None
    }
    fn begin(&self, name: &str, part_of: Option<&str>) -> Result<Option<Begun>, Limit> {
        if Arc::strong_count(&self.running) > 3 {
            return Err(Limit { said: "too many at once".into(), retry_after: 7 });
        }
        lock(&self.begun).push((name.to_owned(), part_of.map(str::to_owned)));
        Ok(Some(Box::new(self.running.clone())))
    }
}

#[tokio::test]
async fn requests_count_to_their_key_until_their_answers_are_sent() {
    let dir = tempfile::tempdir().unwrap();
    let library = || Arc::new(StoreLibrary::new(Arc::new(Store::open(dir.path()).unwrap())));
    let open = Mirror::new(
        library(),
        Box::new(NoKeys),
        &Settings { push: true, ..Settings::default() },
        History::new().unwrap(),
    );
    let (mirror, dir_of) = (open.unwrap(), tempfile::tempdir().unwrap());
    let blob = Bench { dir: dir_of, mirror }.blob("a/b", &[7; 1000]).await;
    let keys = Counted { begun: Arc::default(), running: Arc::new(()) };
    let settings = Settings::default();
    let mirror =
        Mirror::new(library(), Box::new(keys.clone()), &settings, History::new().unwrap()).unwrap();
    let ask = async |path: &str, key: Option<&str>, range: Option<&str>| -> Response {
        let mut request = Request::get(path).header(header::HOST, "mirror");
        for (name, text) in [(header::AUTHORIZATION, key), (header::RANGE, range)] {
            request = text.into_iter().fold(request, |request, text| request.header(&name, text));
        }
        mirror.answer(request.body(Body::empty()).unwrap()).await
    };
    let (path, key) = (format!("/v2/a/b/blobs/{blob}"), Some("Bearer secret-k"));
    let whole = ask(&path, key, None).await;
    let address = whole.headers()[header::LOCATION].to_str().unwrap().to_owned();
    // Who was told an address shows nothing of his, and it counts to him.
    let part = ask(&address, None, Some("bytes=0-9")).await;
    assert_eq!(part.status(), StatusCode::PARTIAL_CONTENT);
    let whose = || "k".to_owned();
    assert_eq!(*lock(&keys.begun), [(whose(), None), (whose(), Some(blob.to_string()))]);
    for (path, key) in [("/v2/", key), (&*path, key), (&*address, None)] {
        let refused = ask(path, key, None).await;
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()[header::RETRY_AFTER]),
            (429, &"7".parse().unwrap())
        );
        let said = refused.into_body().collect().await.unwrap().to_bytes();
        assert!(said.starts_with(br#"{"errors":[{"code":"TOOMANYREQUESTS""#), "{said:?}");
    }
    assert_eq!(whole.into_body().collect().await.unwrap().to_bytes(), vec![7; 1000]);
    let again = ask("/v2/", key, None).await;
    assert_eq!(
        (again.status().as_u16(), &again.headers()[header::CONTENT_LENGTH]),
        (200, &"2".parse().unwrap())
    );
    assert_eq!(ask("/v2/", None, None).await.status().as_u16(), 401, "who has no key is told so");
    drop(part);
}
