//! Attacks on hosts of the server's network by a key without admin rights, through every route that
//! makes the server contact a host.

use std::io;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use puna_registry::{Credentials, Host, Resolver, Secret};
use puna_store::Digest;
use tokio::net::TcpListener;

use super::*;
use crate::auth::{KeyFile, Scope};

/// Longest time until a refusal.
const REFUSAL_TIME: Duration = Duration::from_millis(100);
/// Text of the internal host that no caller may see.
const SECRET: &str = "a secret of the network";

/// A server with two keys.
struct KeyedServer {
    server: TestServer,
    /// Key with the scope `models`.
    user: String,
    /// Key with the scope `admin`.
    admin: String,
}

impl KeyedServer {
    fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::with_client(change, |_| {})
    }

    fn with_client(
        change: impl FnOnce(&mut Config),
        change_client: impl FnOnce(&mut puna_registry::Settings),
    ) -> Self {
        let (mut user, mut admin) = (String::new(), String::new());
        let add_keys = |config: &mut Config| {
            change(config);
            let added = KeyFile::change(&config.keys, |file| {
                let user = file.add("user", vec![Scope::Inference, Scope::Models])?;
                Ok::<_, crate::auth::KeyError>((user, file.add("admin", vec![Scope::Admin])?))
            });
            (user, admin) = added.unwrap();
        };
        let server = TestServer::with_client(add_keys, change_client);
        Self { server, user, admin }
    }

    async fn post(&self, key: &str, path: &str, body: &Value) -> TestResponse {
        let request = Request::post(path).header("authorization", format!("Bearer {key}"));
        self.server.send(request.body(Body::from(body.to_string())).unwrap()).await
    }

    /// Sends a request of the key without admin rights. Returns the response, and the shortest time
    /// of three attempts.
    async fn attack(&self, path: &str, body: &Value) -> (TestResponse, Duration) {
        let (mut fastest, mut responses) = (Duration::MAX, Vec::new());
        for _ in 0..3 {
            let started = Instant::now();
            responses.push(self.post(&self.user, path, body).await);
            fastest = fastest.min(started.elapsed());
        }
        (responses.swap_remove(2), fastest)
    }
}

/// Requests that make the server contact `host`, one for each way.
fn doors(host: &str) -> Vec<(&'static str, Value)> {
    let mut doors = Vec::new();
    for stream in [true, false] {
        doors.extend([
            ("/api/pull", json!({"model": format!("http://{host}/a/b"), "stream": stream})),
            (
                "/api/pull",
                json!({"model": format!("{host}/a/b"), "insecure": true, "stream": stream}),
            ),
            ("/api/pull", json!({"model": format!("{host}/a/b"), "stream": stream})),
            (
                "/api/pull",
                json!({"model": "m", "mirror": format!("http://{host}"), "stream": stream}),
            ),
            ("/api/pull", json!({"model": format!("http://{host}/x.gguf"), "stream": stream})),
            ("/api/pull", json!({"model": format!("https://{host}/x.gguf"), "stream": stream})),
            (
                "/api/push",
                json!({"model": format!("{host}/a/b"), "insecure": true, "stream": stream}),
            ),
            (
                "/api/create",
                json!({"model": "mine", "from": format!("http://{host}/a/b"), "stream": stream}),
            ),
            (
                "/api/create",
                json!({"model": "mine", "from": format!("{host}/a/b"), "stream": stream}),
            ),
        ]);
    }
    doors
}

/// A web server that answers every request with a text, or redirects it to `target`.
async fn host(target: Option<String>) -> (String, Arc<Mutex<Vec<String>>>) {
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let noted = seen.clone();
    let router = axum::Router::new().fallback(move |request: Request<Body>| {
        let authorization = request.headers().get("authorization").cloned();
        noted.lock().unwrap().push(format!("{} {authorization:?}", request.uri()));
        let target = target.as_ref().map(|host| format!("http://{host}{}", request.uri()));
        async move {
            match target {
                Some(target) => axum::http::Response::builder()
                    .status(307)
                    .header("location", target)
                    .body(Body::empty()),
                None => axum::http::Response::builder()
                    .status(401)
                    .header("www-authenticate", "Basic realm=\"x\"")
                    .body(Body::from(SECRET)),
            }
            .unwrap()
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (host, seen)
}

/// A port without a listener, and one that never answers.
async fn closed_and_silent() -> (String, String, TcpListener) {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    (closed.to_string(), silent.local_addr().unwrap().to_string(), silent)
}

#[tokio::test]
async fn no_route_tells_a_user_whether_a_port_is_open() {
    let (open, seen) = host(None).await;
    let (closed, silent, listener) = closed_and_silent().await;
    let keyed = KeyedServer::with(|_| {});
    for (n, (path, body)) in doors(&open).into_iter().enumerate() {
        let (want, fastest) = keyed.attack(path, &body).await;
        assert!(fastest < REFUSAL_TIME, "{path} {body}: {fastest:?}");
        assert_eq!(want.status, StatusCode::FORBIDDEN, "{path} {body}: {}", want.body);
        assert!(want.body.contains("outgoing_hosts") && !want.body.contains(SECRET));
        for other in [&closed, &silent] {
            let (path, body) = doors(other).swap_remove(n);
            let (answer, fastest) = keyed.attack(path, &body).await;
            assert!(fastest < REFUSAL_TIME, "{path} {body}: {fastest:?}");
            assert_eq!(answer.status, want.status, "{path} {body}");
            assert_eq!(answer.body.replace(other.as_str(), &open), want.body, "{path} {body}");
        }
    }
    assert!(seen.lock().unwrap().is_empty(), "{seen:?}");
    let connected = tokio::time::timeout(Duration::from_millis(20), listener.accept()).await;
    assert!(connected.is_err(), "the silent host got a connection");
}

#[tokio::test]
async fn an_administrator_reaches_every_host() {
    let (open, seen) = host(None).await;
    let keyed = KeyedServer::with(|_| {});
    let body = json!({"model": format!("{open}/a/b"), "insecure": true, "stream": false});
    let answer = keyed.post(&keyed.admin, "/api/pull", &body).await;
    assert_eq!(answer.status, 500, "{}", answer.body);
    assert!(answer.body.contains("requires authentication"), "{}", answer.body);
    assert!(!seen.lock().unwrap().is_empty());
    // Without keys, a request from this machine may do the same.
    let (open, seen) = host(None).await;
    let body = json!({"model": format!("{open}/a/b"), "insecure": true, "stream": false});
    TestServer::new().post("/api/pull", body).await;
    assert!(!seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_admin_key_of_some_namespaces_is_limited() {
    let (open, seen) = host(None).await;
    let keyed = KeyedServer::with(|_| {});
    let path = keyed.server._models.path().join("keys.toml");
    KeyFile::change(&path, |file| {
        file.keys.iter_mut().for_each(|key| key.namespaces = vec!["team".into()]);
        Ok::<_, crate::auth::KeyError>(())
    })
    .unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let body = json!({"model": format!("{open}/a/b"), "insecure": true, "stream": false});
    let answer = keyed.post(&keyed.admin, "/api/pull", &body).await;
    assert_eq!(answer.status, 403, "{}", answer.body);
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_named_host_cannot_redirect_a_user_into_the_network() {
    let (open, seen) = host(None).await;
    let (closed, silent, _listener) = closed_and_silent().await;
    let mut answers = Vec::new();
    for target in [open, closed, silent] {
        let (named, asked) = host(Some(target.clone())).await;
        let keyed = KeyedServer::with(|config| config.registry_mirrors = vec![named.clone()]);
        let body = json!({"model": format!("{named}/a/b"), "insecure": true, "stream": false});
        let (answer, fastest) = keyed.attack("/api/pull", &body).await;
        assert!(fastest < REFUSAL_TIME, "{fastest:?}");
        assert_eq!(answer.status, 403, "{}", answer.body);
        assert!(!answer.body.contains(&target) && !asked.lock().unwrap().is_empty());
        answers.push(answer.body.replace(&named, "HOST"));
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert!(seen.lock().unwrap().is_empty(), "{seen:?}");
}

#[tokio::test]
async fn a_name_that_changes_its_address_does_not_reach_the_network() {
    let (open, seen) = host(None).await;
    let port = open.rsplit(':').next().unwrap();
    // Public for the first check of each request, loopback for the second.
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let resolver: Resolver = Arc::new(move |host, _| {
        let address: IpAddr = match counted.fetch_add(1, Ordering::Relaxed) % 2 {
            0 => [93, 184, 215, 14].into(),
            _ => [127, 0, 0, 1].into(),
        };
        let found = match host.as_str() {
            "rebound.test" => Ok(vec![address]),
            "mixed.test" => Ok(vec![[93, 184, 215, 14].into(), [127, 0, 0, 1].into()]),
            "inside.test" => Ok(vec![[10, 0, 0, 1].into()]),
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        Box::pin(async move { found })
    });
    let keyed = KeyedServer::with_client(
        |_| {},
        |settings| {
            settings.outgoing =
                settings.outgoing.take().map(|policy| policy.with_resolver(resolver));
        },
    );
    let mut answers = Vec::new();
    for name in ["mixed.test", "inside.test", "absent.test", "rebound.test"] {
        count.store(0, Ordering::Relaxed);
        let model = format!("http://{name}:{port}/a/b");
        let body = json!({"model": model, "stream": false});
        let answer = keyed.post(&keyed.user, "/api/pull", &body).await;
        assert_eq!(answer.status, 403, "{name}: {}", answer.body);
        answers.push(answer.body.replace(name, "HOST"));
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert!(seen.lock().unwrap().is_empty(), "{seen:?}");
}

#[tokio::test]
async fn a_list_of_outgoing_hosts_limits_users() {
    let (listed, seen) = host(None).await;
    let keyed = KeyedServer::with(|config| config.outgoing_hosts = vec![listed.clone()]);
    let body = json!({"model": "registry.example/a/b", "stream": false});
    let answer = keyed.post(&keyed.user, "/api/pull", &body).await;
    assert_eq!(answer.status, 403, "{}", answer.body);
    let body = json!({"model": format!("{listed}/a/b"), "insecure": true, "stream": false});
    let answer = keyed.post(&keyed.user, "/api/pull", &body).await;
    assert!(answer.status == 500 && !answer.body.contains(SECRET), "{}", answer.body);
    assert!(!seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_repair_does_not_reach_the_host_of_a_models_name() {
    let (open, seen) = host(None).await;
    let keyed = KeyedServer::with(|_| {});
    let name = format!("{open}/a/b");
    let copied = json!({"source": "cria", "destination": name});
    assert_eq!(keyed.post(&keyed.user, "/api/copy", &copied).await.status, 200);
    let manifest = keyed.server._models.path().join("manifests").join(&name).join("latest");
    std::fs::write(&manifest, "{").unwrap();
    let body = json!({"model": name, "repair": true, "insecure": true, "stream": false});
    let answer = keyed.post(&keyed.user, "/api/verify", &body).await;
    assert!(answer.status.is_server_error(), "{}", answer.body);
    assert!(seen.lock().unwrap().is_empty(), "{seen:?}");
    keyed.post(&keyed.admin, "/api/verify", &body).await;
    assert!(!seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_request_cannot_have_a_stored_password_sent_in_plain_text() {
    let (open, seen) = host(None).await;
    let server = TestServer::with(|config| {
        let password = Secret::Text("SECRETPASSWORD1".into());
        let credentials = Some(Credentials::Basic { user: "ci".into(), password });
        config.registry_hosts.set(&open, Host { credentials, ..Host::default() });
    });
    let digest = Digest::of(b"x").hex();
    for (path, body) in [
        ("/api/pull", json!({"model": format!("{open}/a/b"), "insecure": true})),
        ("/api/pull", json!({"model": format!("http://{open}/a/b")})),
        ("/api/pull", json!({"model": format!("http://{open}/x.gguf#sha256={digest}")})),
        (
            "/api/pull",
            json!({"model": "127.0.0.1:9/a/b", "insecure": true, "mirror": format!("http://{open}")}),
        ),
        ("/api/create", json!({"model": "mine", "from": format!("http://{open}/a/b")})),
    ] {
        let answer = server.post(path, body.clone()).await;
        assert!(answer.body.contains("error"), "{path} {body}: {}", answer.body);
    }
    let seen = seen.lock().unwrap();
    assert!(!seen.is_empty() && seen.iter().all(|line| line.ends_with(" None")), "{seen:?}");
}
