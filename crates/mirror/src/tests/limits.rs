//! Limits on what one client may use.

use std::sync::Mutex;

use axum::http::StatusCode;
use axum::response::Response;

use super::*;
use crate::locks::lock;
use crate::uploads::admission::{MAX_UPLOADS, MAX_UPLOADS_PER_OWNER};
use crate::{ClientAddress, Keys, RateLimit, RequestPermit};

/// Opens an upload from an address. Returns the status.
async fn begins(mirror: &Mirror, from: &str) -> u16 {
    let request = Request::post("/v2/a/b/blobs/uploads/").header(header::HOST, "mirror");
    let request = request.extension(ClientAddress(from.to_owned())).body(Body::empty()).unwrap();
    mirror.answer(request).await.status().as_u16()
}

#[tokio::test]
async fn no_client_can_block_the_uploads_of_others() {
    let server = start_mirror(Vec::new());
    for _ in 0..MAX_UPLOADS_PER_OWNER {
        assert_eq!(begins(&server.mirror, "2001:db8::1").await, 202);
    }
    assert_eq!(
        begins(&server.mirror, "2001:db8::ffff").await,
        429,
        "one has as many addresses as he likes"
    );
    // The limit also holds after a restart.
    let server = start_in_dir(server.dir, Vec::new());
    assert_eq!(begins(&server.mirror, "2001:db8::1").await, 429);
    for _ in MAX_UPLOADS_PER_OWNER..MAX_UPLOADS {
        assert_eq!(begins(&server.mirror, "192.0.2.1").await, 202);
    }
    // At the total limit, the owner with most uploads loses one.
    for _ in 0..2 {
        assert_eq!(begins(&server.mirror, "192.0.2.2").await, 202);
    }
    let left = std::fs::read_dir(server.dir.path().join("puna-registry/uploads")).unwrap();
    assert_eq!(left.count(), 2 * MAX_UPLOADS, "bytes and a note each");
}

#[tokio::test]
async fn uploads_without_bytes_expire_soon() {
    let server = start_mirror(Vec::new());
    let (empty, begun) = (server.upload("a/b").await, server.upload("a/b").await);
    assert_eq!(server.part(&begun, b"bytes").await, 202);
    let uploads = server.dir.path().join("puna-registry/uploads");
    let before = std::time::SystemTime::now() - Duration::from_secs(11 * 60);
    for path in [&empty, &begun] {
        let file = std::fs::File::options()
            .write(true)
            .open(uploads.join(path.rsplit('/').next().unwrap()));
        file.unwrap().set_modified(before).unwrap();
    }
    server.mirror.storage().inventory.collect_garbage().await.unwrap();
    assert_eq!((server.is_open(&empty).await, server.is_open(&begun).await), (false, true));
}

/// Key of a request, and the object that it transfers a part of.
type Counting = (String, Option<String>);

/// API keys with the single key `k`, which records its requests and limits how many run.
#[derive(Clone)]
struct Counted {
    begun: Arc<Mutex<Vec<Counting>>>,
    running: Arc<()>,
}

impl Keys for Counted {
    fn has_keys(&self) -> bool {
        true
    }
    fn by_name(&self, name: &str) -> Option<Principal> {
        (name == "k").then(|| Principal {
            name: "k".into(),
            permission: Permission::Admin,
            namespaces: Vec::new(),
        })
    }
    fn by_secret(&self, secret: &str) -> Option<Principal> {
        self.by_name(secret.strip_prefix("secret-")?)
    }
    fn by_public(&self, _: &[u8]) -> Option<Principal> {
        None
    }
    fn begin_request(
        &self,
        name: &str,
        part_of: Option<&str>,
    ) -> Result<Option<RequestPermit>, RateLimit> {
        if Arc::strong_count(&self.running) > 3 {
            return Err(RateLimit { message: "too many at once".into(), retry_after: 7 });
        }
        lock(&self.begun).push((name.to_owned(), part_of.map(str::to_owned)));
        Ok(Some(Box::new(self.running.clone())))
    }
}

#[tokio::test]
async fn requests_count_to_their_key_until_the_response_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let storage = || FileStorage::new(Arc::new(Store::open(dir.path()).unwrap())).into();
    let open = Mirror::new(
        storage(),
        Box::new(NoKeys),
        &Settings { push: true, ..Settings::default() },
        UsageLog::new().unwrap(),
    );
    let (mirror, dir_of) = (open.unwrap(), tempfile::tempdir().unwrap());
    let blob = TestServer { dir: dir_of, mirror }.blob("a/b", &[7; 1000]).await;
    let keys = Counted { begun: Arc::default(), running: Arc::new(()) };
    let settings = Settings::default();
    let mirror =
        Mirror::new(storage(), Box::new(keys.clone()), &settings, UsageLog::new().unwrap())
            .unwrap();
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
    // A signed blob URL contains no credentials, and its requests count to its key.
    let part = ask(&address, None, Some("bytes=0-9")).await;
    assert_eq!(part.status(), StatusCode::PARTIAL_CONTENT);
    let owner = || "k".to_owned();
    assert_eq!(*lock(&keys.begun), [(owner(), None), (owner(), Some(blob.to_string()))]);
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

#[tokio::test]
async fn token_requests_count_to_the_limits_of_their_key() {
    let dir = tempfile::tempdir().unwrap();
    let storage = FileStorage::new(Arc::new(Store::open(dir.path()).unwrap())).into();
    let keys = Counted { begun: Arc::default(), running: Arc::new(()) };
    let (settings, usage_log) = (Settings::default(), UsageLog::new().unwrap());
    let mirror = Mirror::new(storage, Box::new(keys.clone()), &settings, usage_log).unwrap();
    let token = async || -> Response {
        let request = Request::get("/v2/token").header(header::HOST, "mirror");
        let request = request.header(header::AUTHORIZATION, "Bearer secret-k");
        mirror.answer(request.body(Body::empty()).unwrap()).await
    };
    let running = [token().await, token().await];
    assert!(running.iter().all(|response| response.status() == StatusCode::OK));
    assert_eq!(*lock(&keys.begun), vec![("k".to_owned(), None); 2]);
    let refused = token().await;
    let retry_after = &refused.headers()[header::RETRY_AFTER];
    assert_eq!((refused.status().as_u16(), retry_after), (429, &"7".parse().unwrap()));
    drop(running);
    assert_eq!(token().await.status(), StatusCode::OK);
}

#[tokio::test]
async fn all_loopback_addresses_are_one_client() {
    let server = start_mirror(Vec::new());
    for n in 0..MAX_UPLOADS_PER_OWNER {
        assert_eq!(begins(&server.mirror, &format!("127.0.0.{}", n + 1)).await, 202);
    }
    assert_eq!(begins(&server.mirror, "::1").await, 429);
    assert_eq!(begins(&server.mirror, "192.0.2.1").await, 202);
}
