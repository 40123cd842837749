//! Authentication: tokens and keys, and the hosts that must not receive them.

use crate::client::hosts::{Credentials, Host, Secret};

use super::*;

/// A 401 response of a registry that demands a token.
fn challenge(realm: &str) -> Response {
    let text = format!(r#"Bearer realm="{realm}",service="puna",scope="repository:test/m:pull""#);
    Response::builder().status(401).header("WWW-Authenticate", text).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn a_signed_request_gets_a_token_for_the_registry() {
    let model = Model::new(3 << 20);
    let served = model.clone();
    let server = Server::start(move |seen| match seen.path.as_str() {
        "/token" => status(200, r#"{"token":"tok123"}"#),
        _ if seen.header("authorization") == "Bearer tok123" => served.answer(&seen),
        _ => challenge(&format!("http://{}/token?account=x", seen.header("host"))),
    })
    .await;
    let bench = trusting(&server.host);
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
    let requested: Vec<_> =
        server.seen().into_iter().filter(|seen| seen.path == "/token").collect();
    assert_eq!(requested.len(), 1, "one token serves the whole pull");
    let requested = &requested[0];
    let (public, signature) = requested.header("authorization").split_once(':').unwrap();
    let kept = std::fs::read_to_string(bench.dir.path().join("id_ed25519.pub")).unwrap();
    assert_eq!(kept, format!("ssh-ed25519 {public}\n"));
    let parameters: Vec<_> =
        requested.query.split('&').map(|p| p.split('=').next().unwrap()).collect();
    assert_eq!(parameters, ["account", "nonce", "scope", "service", "ts"]);
    verify(public, signature, &format!("http://{}/token?{}", server.host, requested.query));
}

/// Verifies a signature with the public key.
fn verify(public: &str, signature: &str, url: &str) {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    let key = &STANDARD.decode(public).unwrap()[19..];
    let body = STANDARD.encode("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    let key = ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, key);
    key.verify(format!("GET,{url},{body}").as_bytes(), &STANDARD.decode(signature).unwrap())
        .unwrap();
}

#[tokio::test]
async fn a_realm_on_another_host_or_port_gets_nothing() {
    let thief = Server::start(|_| status(200, r#"{"token":"t"}"#)).await;
    let realm = format!("http://{}/token", thief.host);
    let server = Server::start(move |_| challenge(&realm)).await;
    let bench = trusting(&server.host);
    let text = bench.pull_err(&server.model()).await;
    let want = format!(
        "pull model manifest: realm host \"{}\" does not match original host \"{}\"",
        thief.host, server.host
    );
    assert_eq!(text, want);
    assert!(thief.seen().is_empty());
}

#[tokio::test]
async fn unknown_authentication_schemes_are_refused() {
    let server = Server::start(|_| {
        let basic =
            Response::builder().status(401).header("WWW-Authenticate", r#"Basic realm="harbor""#);
        basic.body(Body::empty()).unwrap()
    })
    .await;
    let text = trusting(&server.host).pull_err(&server.model()).await;
    let want = format!(
        "pull model manifest: registry {} requires a user name and a password",
        server.host
    );
    assert!(text.starts_with(&want), "{text}");
    let silent = Server::start(|_| status(401, "")).await;
    let text = trusting(&silent.host).pull_err(&silent.model()).await;
    let host = &silent.host;
    assert!(
        text.starts_with(&format!("pull model manifest: registry {host} requires credentials")),
        "{text}"
    );
    for way in [&format!("[registry.hosts.\"{host}\"]"), &format!("docker login {host}")] {
        assert!(text.contains(way), "{text}");
    }
}

#[tokio::test]
async fn a_configured_password_is_used_without_a_known_challenge() {
    let model = Model::new(3000);
    let served = model.clone();
    let server = Server::start(move |seen| match seen.header("authorization") {
        // user:pass
        "Basic dXNlcjpwYXNz" => served.answer(&seen),
        "" => status(401, ""),
        _ => status(401, r#"{"errors":[{"code":"UNAUTHORIZED","message":"user is on holiday"}]}"#),
    })
    .await;
    let bench = with(&server.host, basic("user", "pass"));
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
    let wrong = with(&server.host, basic("user", "wrong")).pull_err(&server.model()).await;
    assert_eq!(wrong, "pull model manifest: unauthorized: access denied: user is on holiday");
}

/// A client with credentials for a host.
fn with(host: &str, credentials: Credentials) -> Bench {
    let host_settings = Host { http: true, credentials: Some(credentials), ..Host::default() };
    Bench::with(|settings| settings.hosts.set(host, host_settings))
}

/// A client that may send its key's signature to a host over plain HTTP.
fn trusting(host: &str) -> Bench {
    Bench::with(|settings| settings.hosts.set(host, Host { http: true, ..Host::default() }))
}

fn basic(user: &str, password: &str) -> Credentials {
    Credentials::Basic { user: user.into(), password: Secret::Text(password.into()) }
}

#[tokio::test]
async fn a_password_is_sent_to_the_registry_and_not_to_the_storage() {
    let model = Model::new(3 << 20);
    let storage = Server::of(&model).await;
    let (served, target) = (model.clone(), storage.host.clone());
    let server = Server::start(move |seen| match seen.header("authorization") {
        // user:pass
        "Basic dXNlcjpwYXNz" if seen.is_blob() => {
            let place = format!("http://{target}{}", seen.path);
            Response::builder().status(307).header("Location", place).body(Body::empty()).unwrap()
        }
        "Basic dXNlcjpwYXNz" => served.answer(&seen),
        _ => Response::builder()
            .status(401)
            .header("WWW-Authenticate", "Negotiate")
            .header("WWW-Authenticate", "Basic realm=office")
            .body(Body::empty())
            .unwrap(),
    })
    .await;
    let bench = with(&server.host, basic("user", "pass"));
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
    assert!(storage.seen().iter().all(|seen| seen.headers.get("authorization").is_none()));
    let wrong = with(&server.host, basic("user", "wrong"));
    assert_eq!(
        wrong.pull_err(&server.model()).await,
        "pull model manifest: unauthorized: access denied"
    );
    assert!(
        !bench.dir.path().join("id_ed25519").exists(),
        "no key is made where none is asked for"
    );
}

#[tokio::test]
async fn a_token_server_on_another_host_gets_credentials_but_no_signature() {
    let model = Model::new(1000);
    let tokens = Server::start(|seen| match seen.header("authorization") {
        "Basic dXNlcjpwYXNz" => status(200, r#"{"access_token":"tok123","token":""}"#),
        "" if seen.method == "POST" => status(200, r#"{"access_token":"tok123"}"#),
        _ => status(401, ""),
    })
    .await;
    let (served, realm) = (model.clone(), format!("http://{}/token", tokens.host));
    let server = Server::start(move |seen| match seen.header("authorization") {
        "Bearer tok123" => served.answer(&seen),
        _ => challenge(&realm),
    })
    .await;
    // A token server without TLS gets credentials only if its own settings allow it.
    for credentials in [basic("user", "pass"), Credentials::Refresh(Secret::Text("x".into()))] {
        let text = with(&server.host, credentials).pull_err(&server.model()).await;
        assert!(text.contains(&tokens.host) && text.contains("over HTTPS only"), "{text}");
    }
    assert!(tokens.seen().is_empty());
    let trusting_tokens = |credentials: Credentials| {
        let host = Host { http: true, credentials: Some(credentials), ..Host::default() };
        Bench::with(|settings| {
            settings.hosts.set(&server.host, host);
            settings.hosts.set(&tokens.host, Host { http: true, ..Host::default() });
        })
    };
    trusting_tokens(basic("user", "pass")).pull_ok(&server.model()).await;
    let refresh = trusting_tokens(Credentials::Refresh(Secret::Text("lasting".into())));
    refresh.pull_ok(&server.model()).await;
    let seen = tokens.seen();
    assert_eq!(seen[0].query, "service=puna&scope=repository%3Atest%2Fm%3Apull&account=user");
    let form = String::from_utf8(seen[1].body.to_vec()).unwrap();
    assert!(
        form.starts_with("grant_type=refresh_token&service=puna&client_id=puna&scope=repository"),
        "{form}"
    );
    assert!(form.ends_with("&refresh_token=lasting"), "{form}");
    assert_eq!(seen.len(), 2);
}

#[tokio::test]
async fn a_configured_token_is_sent_without_a_challenge() {
    let model = Model::new(1000);
    let served = model.clone();
    let server = Server::start(move |seen| match seen.header("authorization") {
        "Bearer hf_secret" => served.answer(&seen),
        _ => status(404, ""),
    })
    .await;
    with(&server.host, Credentials::Token(Secret::Text("hf_secret".into())))
        .pull_ok(&server.model())
        .await;
    let file = with(&server.host, Credentials::Token(Secret::File("/nowhere/token".into())));
    let text = file.pull_err(&server.model()).await;
    assert!(text.contains("/nowhere/token") && text.contains(&server.host), "{text}");
}

#[tokio::test]
async fn a_registry_that_knows_no_keys_gives_an_anonymous_token() {
    let model = Model::new(1000);
    let served = model.clone();
    let server = Server::start(move |seen| match seen.path.as_str() {
        "/token" if seen.headers.get("authorization").is_some() => status(401, "bad authorization"),
        "/token" => status(200, r#"{"token":"anonymous"}"#),
        _ if seen.header("authorization") == "Bearer anonymous" => served.answer(&seen),
        _ => challenge(&format!("http://{}/token", seen.header("host"))),
    })
    .await;
    trusting(&server.host).pull_ok(&server.model()).await;
}

#[tokio::test]
async fn a_rejected_token_is_not_renewed_again() {
    let server = Server::start(|seen| match seen.path.as_str() {
        "/token" => status(200, r#"{"token":"useless"}"#),
        _ => challenge(&format!("http://{}/token", seen.header("host"))),
    })
    .await;
    let text = trusting(&server.host).pull_err(&server.model()).await;
    assert_eq!(text, "pull model manifest: unauthorized: access denied");
    assert_eq!(server.seen().len(), 3);
}

#[tokio::test]
async fn errors_of_token_servers_are_reported() {
    for (answer, want) in [
        ((403, "no".to_owned()), "unauthorized: access denied"),
        ((500, "broken".to_owned()), "500 Internal Server Error: broken"),
        ((200, "<html>".to_owned()), "the response to the token request is invalid"),
        (
            (200, format!("{{\"token\":\"{}\"}}", "x".repeat(1 << 20))),
            "the response has more than 65536 bytes",
        ),
        ((302, String::new()), "302 Found"),
    ] {
        let server = Server::start(move |seen| match seen.path.as_str() {
            "/token" => status(answer.0, answer.1.clone()),
            _ => challenge(&format!("http://{}/token", seen.header("host"))),
        })
        .await;
        let text = trusting(&server.host).pull_err(&server.model()).await;
        assert!(text.contains(want), "{text}");
    }
}

#[tokio::test]
async fn an_expired_token_is_renewed() {
    let model = Model::new(4 << 20);
    let (served, given) = (model.clone(), Mutex::new((0, 0)));
    let server = Server::start(move |seen| {
        let mut given = given.lock().unwrap();
        let (tokens, uses) = &mut *given;
        if seen.path == "/token" {
            (*tokens, *uses) = (*tokens + 1, 0);
            return status(200, format!("{{\"token\":\"t{tokens}\",\"expires_in\":1}}"));
        }
        *uses += 1;
        let good = seen.header("authorization") == format!("Bearer t{tokens}") && *uses <= 2;
        if good {
            served.answer(&seen)
        } else {
            challenge(&format!("http://{}/token", seen.header("host")))
        }
    })
    .await;
    let bench = Bench::with(|settings| {
        settings.streams = 1;
        settings.hosts.set(&server.host, Host { http: true, ..Host::default() });
    });
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
}

#[tokio::test]
async fn a_registry_that_does_not_know_the_key_is_reported_with_the_public_key() {
    for (body, reason) in [
        ("", ""),
        (
            r#"{"errors":[{"code":"UNAUTHORIZED","message":"unknown API key"}]}"#,
            ": unknown API key",
        ),
    ] {
        let server = Server::start(move |seen| match seen.path.as_str() {
            "/token" => status(401, body),
            _ => challenge(&format!("http://{}/token", seen.header("host"))),
        })
        .await;
        let bench = trusting(&server.host);
        let text = bench.pull_err(&server.model()).await;
        let key_file = bench.dir.path().join("id_ed25519");
        let public = std::fs::read_to_string(key_file.with_extension("pub")).unwrap();
        let public: Vec<&str> = public.split_whitespace().take(2).collect();
        let (host, key_file) = (&server.host, key_file.display());
        let want = format!(
            "pull model manifest: unauthorized: access denied{reason}: ask the administrator of {host} to allow \
             the public key of this machine ({key_file}.pub): {}",
            public.join(" ")
        );
        assert_eq!(text, want);
    }
}

#[tokio::test]
async fn a_wrong_clock_is_named() {
    let server = Server::start(|seen| match seen.path.as_str() {
        "/token" if seen.header("authorization").is_empty() => status(401, ""),
        "/token" => status(
            401,
            r#"{"errors":[{"code":"UNAUTHORIZED","message":"the clocks are too far apart"}]}"#,
        ),
        _ => challenge(&format!("http://{}/token", seen.header("host"))),
    })
    .await;
    let text = trusting(&server.host).pull_err(&server.model()).await;
    assert_eq!(
        text,
        "pull model manifest: unauthorized: access denied: the clocks are too far apart"
    );
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
    let bench = trusting(&server.host);
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
    assert!(!storage.seen().is_empty());
    assert!(storage.seen().iter().all(|seen| seen.headers.get("authorization").is_none()));
}

#[tokio::test]
async fn the_storage_host_cannot_demand_authentication() {
    let storage =
        Server::start(|seen| challenge(&format!("http://{}/token", seen.header("host")))).await;
    let (served, target) = (Model::new(1000), storage.host.clone());
    let server = Server::start(move |seen| {
        if !seen.is_blob() {
            return served.answer(&seen);
        }
        let place = format!("http://{target}{}", seen.path);
        Response::builder().status(307).header("Location", place).body(Body::empty()).unwrap()
    })
    .await;
    let text = trusting(&server.host).pull_err(&server.model()).await;
    assert!(text.starts_with("401 Unauthorized"), "{text}");
    assert!(storage.seen().iter().all(|seen| seen.is_blob()));
}

#[tokio::test]
async fn without_a_key_file_a_registry_with_authentication_is_an_error() {
    let server =
        Server::start(|seen| challenge(&format!("http://{}/token", seen.header("host")))).await;
    let bench = Bench::with(|settings| {
        settings.key_file = None;
        settings.hosts.set(&server.host, Host { http: true, ..Host::default() });
    });
    let text = bench.pull_err(&server.model()).await;
    assert!(text.contains("there is no key"), "{text}");
}

#[tokio::test]
async fn secrets_repeated_in_an_error_are_redacted() {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    // A registry and a registry with a token server. Both refuse, and their errors repeat the
    // received secrets.
    for (name, with_realm) in [("basic", false), ("bearer", true)] {
        let server = Server::start(move |seen| {
            let shown = seen.header("authorization").to_owned();
            let inside = shown.strip_prefix("Basic ").and_then(|text| STANDARD.decode(text).ok());
            let inside = String::from_utf8(inside.unwrap_or_default()).unwrap();
            let text = format!("bad proof: {shown} ({inside}, {})", STANDARD.encode("pass word"));
            match shown.as_str() {
                "" if with_realm => challenge(&format!("http://{}/token", seen.header("host"))),
                "" => Response::builder()
                    .status(401)
                    .header("WWW-Authenticate", "Basic realm=x")
                    .body(Body::empty())
                    .unwrap(),
                _ => status(400, text),
            }
        })
        .await;
        let bench = with(&server.host, basic("me", "pass word"));
        let text = bench.pull_err(&server.model()).await;
        assert!(text.contains("bad proof: Basic …"), "{name}: {text}");
        for secret in ["pass word", &STANDARD.encode("pass word"), &STANDARD.encode("me:pass word")]
        {
            assert!(!text.contains(secret), "{name}: {text}");
        }
    }
}
