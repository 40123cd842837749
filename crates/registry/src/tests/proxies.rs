//! Proxies for requests to registries, and settings of individual hosts.

use tokio::io::AsyncReadExt;

use super::*;
use crate::Proxies;
use crate::client::hosts::Host;

/// A host that only the proxy can resolve.
const FAR: &str = "hub.test/test/m";

fn through(http: Option<&str>, https: Option<&str>, direct: &str) -> Bench {
    let [http, https] = [http, https].map(|proxy| proxy.map(str::to_owned));
    Bench::with(|settings| settings.proxies = Proxies { http, https, direct: direct.to_owned() })
}

#[tokio::test]
async fn requests_to_a_registry_use_the_proxy() {
    let model = Model::new(3000);
    let proxy = Server::of(&model).await;
    let bench = through(Some(&format!("http://{}", proxy.host)), None, "other.test");
    bench.pull_ok(FAR).await;
    bench.assert_has(&model, FAR);
    assert!(proxy.seen().iter().all(|seen| seen.header("host") == "hub.test"));
}

#[tokio::test]
async fn no_proxy_hosts_and_loopback_use_no_proxy() {
    let model = Model::new(3000);
    let (proxy, near) = (Server::of(&model).await, Server::of(&model).await);
    for direct in ["hub.test", ".test", "*"] {
        let bench = through(Some(&format!("http://{}", proxy.host)), None, direct);
        // The name does not resolve.
        bench.pull(FAR).await.0.unwrap_err();
        bench.pull_ok(&near.model()).await;
        bench.assert_has(&model, &near.model());
    }
    assert_eq!(proxy.seen().len(), 0);
}

#[tokio::test]
async fn requests_to_a_registry_with_tls_use_a_tunnel() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = format!("http://anna:secret@{}", listener.local_addr().unwrap());
    let bench = through(None, Some(&proxy), "");
    let (report, _lines) = mpsc::channel(100);
    let (registry, store) = (bench.registry.clone(), bench.store.clone());
    let pull = tokio::spawn(async move {
        registry.pull(&store, &ModelRef::parse(FAR).unwrap(), &Options::default(), report).await
    });
    let mut requested = vec![0; 1000];
    let n = listener.accept().await.unwrap().0.read(&mut requested).await.unwrap();
    let requested = String::from_utf8_lossy(&requested[..n]).to_lowercase();
    assert!(requested.starts_with("connect hub.test:443 http/1.1"), "{requested}");
    assert!(requested.contains("proxy-authorization: basic yw5uytpzzwnyzxq="), "{requested}");
    pull.abort();
}

#[tokio::test]
async fn a_proxy_that_cannot_be_used_is_named_without_its_password() {
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let refused =
        |proxy: String| async move { through(Some(&proxy), None, "").pull_err(FAR).await };
    let said = refused(format!("http://anna:secret@{gone}")).await;
    assert!(said.contains(&format!("through the proxy {gone} of HTTP_PROXY")), "{said}");
    assert!(!said.contains("secret") && !said.contains("anna"), "{said}");
    let said = refused("http://anna:secret@no proxy".into()).await;
    assert!(
        said.contains("invalid proxy address \"no proxy\"") && said.contains("set HTTP_PROXY"),
        "{said}"
    );
    assert!(!said.contains("secret"), "{said}");
}

#[tokio::test]
async fn a_hosts_rate_limit_applies_to_that_host_only() {
    let model = Model::new(300_000);
    let (slow, fast) = (Server::of(&model).await, Server::of(&model).await);
    let bench = Bench::with(|settings| {
        let host = Host { limit_rate: Some(200_000), ..Host::default() };
        settings.hosts.set(&slow.host, host);
    });
    let timed = async |server: &Server| {
        let started = std::time::Instant::now();
        bench.pull_ok(&server.model()).await;
        started.elapsed()
    };
    // The unlimited host comes first. The other pull needs a store without its blobs.
    let (fast, slow) = (timed(&fast).await, {
        bench.store.delete(&ModelRef::parse(&fast.model()).unwrap().name).unwrap();
        timed(&slow).await
    });
    assert!(slow > Duration::from_secs(1) && fast < slow, "{slow:?} and {fast:?}");
}
