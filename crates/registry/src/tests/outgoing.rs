//! What a caller without administrator rights reaches, and which hosts get stored credentials.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::*;
use crate::client::hosts::{Credentials, Host, Secret};
use crate::{FileUrl, HostPattern, OutgoingAccess, OutgoingPolicy, Resolver};

/// Longest time until a refusal on a busy machine. The attempts at a silent host take longer.
const REFUSAL_TIME: Duration = Duration::from_secs(2);

/// Options of an administrator's request.
fn unlimited() -> Options {
    Options { access: OutgoingAccess::Unlimited, ..Options::default() }
}

/// A client whose policy names the given hosts.
fn limited(named: &[&str]) -> Bench {
    let named = named.iter().flat_map(|host| HostPattern::of_registry(host)).collect();
    Bench::with(|settings| settings.outgoing = Some(OutgoingPolicy::new(named)))
}

/// A port without a listener, and a port that accepts connections and never answers.
async fn closed_and_silent() -> (String, String, tokio::net::TcpListener) {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = closed.local_addr().unwrap().to_string();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    (closed, silent.local_addr().unwrap().to_string(), silent)
}

fn redirect_to(place: &str) -> Response {
    Response::builder().status(307).header("Location", place).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn a_limited_caller_cannot_tell_open_closed_and_silent_ports_apart() {
    let open = Server::start(|_| status(404, "a secret of the network")).await;
    let (closed, silent, _listener) = closed_and_silent().await;
    let bench = limited(&["office.test:5000"]);
    for host in [&open.host, &closed, &silent] {
        let started = Instant::now();
        let (done, lines) = bench.pull(&format!("{host}/test/m")).await;
        assert!(started.elapsed() < REFUSAL_TIME, "{host}: {:?}", started.elapsed());
        assert_eq!(done, Err(RegistryError::Unreachable { host: host.clone() }));
        assert_eq!(lines, []);
        let mirror = Options { mirror: Some(format!("http://{host}")), ..Options::default() };
        let (done, _) = bench.pull_with("office.test:5000/test/m", mirror).await;
        assert_eq!(done, Err(RegistryError::Unreachable { host: host.clone() }));
        let file = FileUrl::parse(&format!("http://{host}/x.gguf")).unwrap().unwrap();
        let (report, _lines) = mpsc::channel(10);
        let done = bench.registry.pull_file(&bench.store, &file, &Options::default(), report).await;
        assert_eq!(done, Err(RegistryError::Unreachable { host: host.clone() }));
        let (report, _lines) = mpsc::channel(10);
        let name = ModelRef::parse(&format!("http://{host}/test/m")).unwrap();
        let pushed = bench.registry.push(&bench.store, &name, &Options::default(), report).await;
        assert_eq!(pushed, Err(RegistryError::Unreachable { host: host.clone() }));
    }
    assert!(open.seen().is_empty());
}

#[tokio::test]
async fn an_administrator_reaches_every_host() {
    let model = Model::new(3000);
    let server = Server::of(&model).await;
    let bench = limited(&[]);
    bench.pull_with(&server.model(), unlimited()).await.0.unwrap();
    bench.assert_has(&model, &server.model());
    let refusing = Server::start(|_| status(400, "the reason")).await;
    let error = bench.pull_with(&refusing.model(), unlimited()).await.0.unwrap_err();
    assert!(error.to_string().contains("the reason"), "{error}");
}

#[tokio::test]
async fn a_limited_caller_reaches_named_hosts_and_not_what_they_redirect_to() {
    let model = Model::new(3000);
    let named = Server::of(&model).await;
    limited(&[&named.host]).pull_ok(&named.model()).await;
    let inside = Server::of(&model).await;
    let (closed, silent, _listener) = closed_and_silent().await;
    for target in [&inside.host, &closed, &silent] {
        // All requests, or those for blobs.
        for all in [true, false] {
            let (served, to) = (model.clone(), target.clone());
            let server = Server::start(move |seen| match all || seen.is_blob() {
                true => redirect_to(&format!("http://{to}{}", seen.path)),
                false => served.answer(&seen),
            })
            .await;
            let started = Instant::now();
            let (done, lines) = limited(&[&server.host]).pull(&server.model()).await;
            assert!(started.elapsed() < REFUSAL_TIME, "{:?}", started.elapsed());
            assert_eq!(done, Err(RegistryError::Unreachable { host: server.host.clone() }));
            assert!(lines.iter().all(|line| !line.status.contains(target.as_str())), "{lines:?}");
        }
    }
    assert!(inside.seen().is_empty());
    // The same redirect serves an administrator.
    let (served, to) = (model.clone(), inside.host.clone());
    let server = Server::start(move |seen| match seen.is_blob() {
        true => redirect_to(&format!("http://{to}{}", seen.path)),
        false => served.answer(&seen),
    })
    .await;
    limited(&[]).pull_with(&server.model(), unlimited()).await.0.unwrap();
}

#[tokio::test]
async fn a_limited_caller_sees_no_text_of_a_response() {
    let secret = "text-of-another-host";
    let answers: [fn(&str) -> Response; 6] = [
        |text| status(400, text.to_owned()),
        |text| status(403, format!(r#"{{"errors":[{{"code":"DENIED","message":"{text}"}}]}}"#)),
        |text| status(200, text.to_owned()),
        |text| status(200, format!(r#"{{"layers":"{text}"}}"#)),
        |text| redirect_to(&format!("ftp://{text}/")),
        |text| {
            let builder = Response::builder().header("Content-Encoding", text);
            builder.body(Body::empty()).unwrap()
        },
    ];
    for (n, answer) in answers.into_iter().enumerate() {
        let server = Server::start(move |_| answer(secret)).await;
        let bench = limited(&[&server.host]);
        let (done, lines) = bench.pull(&server.model()).await;
        let text = format!("{:?} {lines:?}", done.unwrap_err());
        assert!(!text.contains(secret), "{n}: {text}");
        let file = FileUrl::parse(&format!("http://{}/x.gguf", server.host)).unwrap().unwrap();
        let (report, _lines) = mpsc::channel(10);
        let done = bench.registry.pull_file(&bench.store, &file, &Options::default(), report).await;
        if let Err(error) = done {
            assert!(!format!("{error:?}").contains(secret), "{n}: {error}");
        }
    }
}

#[tokio::test]
async fn closed_and_silent_hosts_give_one_error() {
    let (closed, silent, _listener) = closed_and_silent().await;
    for host in [closed, silent] {
        let bench = Bench::with(|settings| {
            settings.outgoing = Some(OutgoingPolicy::new(HostPattern::of_registry(&host)));
            settings.stall_timeout = Duration::from_millis(20);
            settings.retry_delay = Duration::from_millis(1);
            settings.waiting_notice_delay = Duration::from_millis(1);
        });
        let (done, lines) = bench.pull(&format!("{host}/test/m")).await;
        assert_eq!(done, Err(RegistryError::Unreachable { host: host.clone() }));
        let waiting = format!("waiting for {host}");
        for line in lines.iter().filter(|line| line.status.starts_with("waiting")) {
            assert_eq!(line.status, waiting);
        }
    }
}

/// Resolves `rebound.test` to `first` for the first time, and then to `later`.
fn rebinding(first: IpAddr, later: IpAddr) -> (Resolver, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let resolver: Resolver = Arc::new(move |host, _| {
        let found = match (host.as_str(), counted.fetch_add(1, Ordering::Relaxed)) {
            ("rebound.test", 0) => Ok(vec![first]),
            ("rebound.test", _) => Ok(vec![later]),
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        Box::pin(async move { found })
    });
    (resolver, count)
}

#[tokio::test]
async fn a_name_that_becomes_loopback_is_refused() {
    let inside = Server::start(|_| status(200, "secret")).await;
    let port = inside.host.rsplit(':').next().unwrap();
    let (public, loopback) = ([93, 184, 215, 14].into(), [127, 0, 0, 1].into());
    let (resolver, count) = rebinding(public, loopback);
    let bench = Bench::with(|settings| {
        settings.outgoing = Some(OutgoingPolicy::new(Vec::new()).with_resolver(resolver));
    });
    // The check before the pull sees the public address, the check of the request does not.
    let (done, _) = bench.pull(&format!("rebound.test:{port}/test/m")).await;
    assert_eq!(done, Err(RegistryError::Unreachable { host: format!("rebound.test:{port}") }));
    assert_eq!(count.load(Ordering::Relaxed), 2);
    assert!(inside.seen().is_empty());
}

#[tokio::test]
async fn a_connection_goes_to_the_checked_address() {
    let model = Model::new(3000);
    let server = Server::of(&model).await;
    let port: u16 = server.host.rsplit(':').next().unwrap().parse().unwrap();
    let host = format!("rebound.test:{port}");
    // The system cannot resolve this name: a connection succeeds only with the checked address.
    let (resolver, count) = rebinding([127, 0, 0, 1].into(), [127, 0, 0, 1].into());
    let bench = Bench::with(|settings| {
        let policy = OutgoingPolicy::new(HostPattern::of_registry(&host));
        settings.outgoing = Some(policy.with_resolver(resolver));
    });
    let name = format!("{host}/test/m");
    bench.pull_ok(&name).await;
    bench.assert_has(&model, &name);
    assert_eq!(count.load(Ordering::Relaxed), 2, "one check before the pull, one of its session");
}

#[tokio::test]
async fn requests_cannot_have_credentials_sent_in_plain_text() {
    let basic =
        || Credentials::Basic { user: "ci".into(), password: Secret::Text("SECRET".into()) };
    let all = [Some(basic()), Some(Credentials::Token(Secret::Text("SECRET".into()))), None];
    for (n, credentials) in all.into_iter().enumerate() {
        for with_realm in [true, false] {
            let server = Server::start(move |seen| {
                let realm = format!("http://{}/token", seen.header("host"));
                let text = match with_realm {
                    _ if seen.path == "/token" => return status(401, ""),
                    true => format!("Bearer realm=\"{realm}\",service=\"s\",scope=\"x\""),
                    false => "Basic realm=\"x\"".to_owned(),
                };
                let builder = Response::builder().status(401).header("WWW-Authenticate", text);
                builder.body(Body::empty()).unwrap()
            })
            .await;
            let host = Host { credentials: credentials.clone(), ..Host::default() };
            let bench = Bench::with(|settings| settings.hosts.set(&server.host, host));
            let (done, _) = bench.pull_with(&server.model(), unlimited()).await;
            let text = done.unwrap_err().to_string();
            assert!(text.contains("over HTTPS only"), "{n}: {text}");
            assert!(text.contains(&format!("[registry.hosts.\"{}\"]", server.host)), "{text}");
            let file = FileUrl::parse(&format!("http://{}/x.gguf", server.host)).unwrap().unwrap();
            let (report, _lines) = mpsc::channel(10);
            let done = bench.registry.pull_file(&bench.store, &file, &unlimited(), report).await;
            assert!(done.unwrap_err().to_string().contains("over HTTPS only"));
            let sent = server.seen();
            assert!(sent.iter().all(|seen| seen.header("authorization").is_empty()), "{sent:?}");
            assert!(!bench.dir.path().join("id_ed25519").exists());
        }
    }
}

#[tokio::test]
async fn a_mirror_of_the_request_gets_no_credentials() {
    let model = Model::new(3000);
    let origin = Server::of(&model).await;
    for (n, with_realm) in [true, false].into_iter().enumerate() {
        let mirror = Server::start(move |seen| {
            let realm = format!("http://{}/token", seen.header("host"));
            let text = match with_realm {
                _ if seen.path == "/token" => return status(401, ""),
                true => format!("Bearer realm=\"{realm}\",service=\"s\",scope=\"x\""),
                false => "Basic realm=\"x\"".to_owned(),
            };
            let builder = Response::builder().status(401).header("WWW-Authenticate", text);
            builder.body(Body::empty()).unwrap()
        })
        .await;
        let secret = Secret::Text("SECRET".into());
        let credentials = Some(Credentials::Basic { user: "ci".into(), password: secret });
        let host = Host { http: true, credentials, ..Host::default() };
        let bench = Bench::with(|settings| settings.hosts.set(&mirror.host, host));
        let options = Options { mirror: Some(mirror.host.clone()), ..unlimited() };
        // The mirror refuses, and the registry itself has the model.
        bench.pull_with(&origin.model(), options).await.0.unwrap();
        let sent = mirror.seen();
        assert!(!sent.is_empty());
        assert!(sent.iter().all(|seen| seen.header("authorization").is_empty()), "{n}: {sent:?}");
    }
}

#[tokio::test]
async fn a_proxy_resolves_names_for_registries_of_the_configuration_only() {
    let model = Model::new(3000);
    let served = model.clone();
    let proxy = Server::start(move |seen| match seen.header("host") {
        "hub.test" if seen.is_blob() => redirect_to(&format!("http://storage.test{}", seen.path)),
        _ => served.answer(&seen),
    })
    .await;
    let unresolved: Resolver =
        Arc::new(|_, _| Box::pin(async { Err(io::ErrorKind::NotFound.into()) }));
    let policy = OutgoingPolicy::new(HostPattern::of_registry("hub.test"));
    let bench = Bench::with(|settings| {
        settings.proxies.http = Some(format!("http://{}", proxy.host));
        settings.outgoing = Some(policy.with_resolver(unresolved));
    });
    bench.pull_ok("hub.test/test/m").await;
    bench.assert_has(&model, "hub.test/test/m");
    let before = proxy.seen().len();
    let (done, _) = bench.pull("storage.test/test/m").await;
    assert_eq!(done, Err(RegistryError::Unreachable { host: "storage.test".into() }));
    assert_eq!(proxy.seen().len(), before);
}
