//! Who asks: tokens, keys, and where they must not go.

use super::*;

/// What a registry that wants proof says.
fn challenge(realm: &str) -> Response {
    let text = format!(r#"Bearer realm="{realm}",service="puna",scope="repository:test/m:pull""#);
    Response::builder().status(401).header("WWW-Authenticate", text).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn a_signed_request_brings_a_token_that_opens_the_registry() {
    let model = Model::new(3 << 20);
    let served = model.clone();
    let server = Server::start(move |seen| match seen.path.as_str() {
        "/token" => status(200, r#"{"token":"tok123"}"#),
        _ if seen.header("authorization") == "Bearer tok123" => served.answer(&seen),
        _ => challenge(&format!("http://{}/token?account=x", seen.header("host"))),
    })
    .await;
    let bench = Bench::new();
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
    let asked: Vec<_> = server.seen().into_iter().filter(|seen| seen.path == "/token").collect();
    assert_eq!(asked.len(), 1, "one token serves the whole pull");
    let asked = &asked[0];
    let (public, signature) = asked.header("authorization").split_once(':').unwrap();
    let kept = std::fs::read_to_string(bench.dir.path().join("id_ed25519.pub")).unwrap();
    assert_eq!(kept, format!("ssh-ed25519 {public}\n"));
    let parameters: Vec<_> = asked.query.split('&').map(|p| p.split('=').next().unwrap()).collect();
    assert_eq!(parameters, ["account", "nonce", "scope", "service", "ts"]);
    verify(public, signature, &format!("http://{}/token?{}", server.host, asked.query));
}

/// Checks a signature with the public half alone.
fn verify(public: &str, signature: &str, url: &str) {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    let key = &STANDARD.decode(public).unwrap()[19..];
    let body = STANDARD.encode("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    let key = ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, key);
    key.verify(format!("GET,{url},{body}").as_bytes(), &STANDARD.decode(signature).unwrap()).unwrap();
}

#[tokio::test]
async fn a_realm_on_another_host_or_port_gets_nothing() {
    let thief = Server::start(|_| status(200, r#"{"token":"t"}"#)).await;
    let realm = format!("http://{}/token", thief.host);
    let server = Server::start(move |_| challenge(&realm)).await;
    let bench = Bench::new();
    let text = bench.pull_err(&server.model()).await;
    let want = format!(
        "pull model manifest: realm host \"{}\" does not match original host \"{}\"",
        thief.host, server.host
    );
    assert_eq!(text, want);
    assert!(thief.seen().is_empty());
}

#[tokio::test]
async fn registries_that_want_another_kind_of_proof_are_told_apart() {
    let server = Server::start(|_| {
        let basic = Response::builder().status(401).header("WWW-Authenticate", r#"Basic realm="harbor""#);
        basic.body(Body::empty()).unwrap()
    })
    .await;
    let text = Bench::new().pull_err(&server.model()).await;
    assert_eq!(
        text,
        format!("pull model manifest: realm host \"\" does not match original host \"{}\"", server.host)
    );
}

#[tokio::test]
async fn a_token_that_does_not_help_is_the_end() {
    let server = Server::start(|seen| match seen.path.as_str() {
        "/token" => status(200, r#"{"token":"useless"}"#),
        _ => challenge(&format!("http://{}/token", seen.header("host"))),
    })
    .await;
    let text = Bench::new().pull_err(&server.model()).await;
    assert_eq!(text, "pull model manifest: unauthorized: access denied");
    assert_eq!(server.seen().len(), 3);
}

#[tokio::test]
async fn token_servers_that_refuse_flood_or_babble_are_understood() {
    for (answer, want) in [
        ((403, "no".to_owned()), "unauthorized: access denied"),
        ((500, "broken".to_owned()), "500 Internal Server Error: broken"),
        ((200, "<html>".to_owned()), "the answer to a request for a token is none"),
        ((200, format!("{{\"token\":\"{}\"}}", "x".repeat(1 << 20))), "the answer has more than 65536 bytes"),
        ((302, String::new()), "302 Found"),
    ] {
        let server = Server::start(move |seen| match seen.path.as_str() {
            "/token" => status(answer.0, answer.1.clone()),
            _ => challenge(&format!("http://{}/token", seen.header("host"))),
        })
        .await;
        let text = Bench::new().pull_err(&server.model()).await;
        assert!(text.contains(want), "{text}");
    }
}

#[tokio::test]
async fn a_token_never_follows_a_redirect_to_another_host() {
    let model = Model::new(3 << 20);
    let storage = Server::of(&model).await;
    let (served, target) = (model.clone(), storage.host.clone());
    let server = Server::start(move |seen| match seen.path.as_str() {
        "/token" => status(200, r#"{"token":"tok123"}"#),
        _ if seen.header("authorization") != "Bearer tok123" => {
            challenge(&format!("http://{}/token", seen.header("host")))
        }
        path if seen.is_blob() => {
            let place = format!("http://{target}{path}");
            Response::builder().status(307).header("Location", place).body(Body::empty()).unwrap()
        }
        _ => served.answer(&seen),
    })
    .await;
    let bench = Bench::new();
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
    assert!(!storage.seen().is_empty());
    assert!(storage.seen().iter().all(|seen| seen.headers.get("authorization").is_none()));
}

#[tokio::test]
async fn the_storage_host_cannot_ask_for_proof() {
    let storage = Server::start(|seen| challenge(&format!("http://{}/token", seen.header("host")))).await;
    let (served, target) = (Model::new(1000), storage.host.clone());
    let server = Server::start(move |seen| {
        if !seen.is_blob() {
            return served.answer(&seen);
        }
        let place = format!("http://{target}{}", seen.path);
        Response::builder().status(307).header("Location", place).body(Body::empty()).unwrap()
    })
    .await;
    let text = Bench::new().pull_err(&server.model()).await;
    assert!(text.starts_with("401 Unauthorized"), "{text}");
    assert!(storage.seen().iter().all(|seen| seen.is_blob()));
}

#[tokio::test]
async fn without_a_place_for_a_key_a_locked_registry_says_so() {
    let server = Server::start(|seen| challenge(&format!("http://{}/token", seen.header("host")))).await;
    let bench = Bench::with(|settings| settings.key = None);
    let text = bench.pull_err(&server.model()).await;
    assert!(text.contains("there is no key"), "{text}");
}
