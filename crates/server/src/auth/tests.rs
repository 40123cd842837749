use axum::http::{HeaderMap, HeaderValue};

use super::authorizer::{Authorizer, others_may_read};
use super::{KeyError, KeyFile, RouteRequirement, Scope};

const HERE: &str = "127.0.0.1";
const ELSEWHERE: &str = "192.168.1.7";

fn headers(name: &'static str, value: &str) -> HeaderMap {
    HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_str(value).unwrap())])
}

fn bearer(key: &str) -> HeaderMap {
    headers("authorization", &format!("Bearer {key}"))
}

/// Requirement of the route of a path.
fn requirement(path: &str) -> RouteRequirement {
    let routes = crate::routes::all();
    routes
        .iter()
        .find(|route| route.path == path)
        .unwrap_or_else(|| panic!("no route {path}"))
        .requirement
}

/// Status of a denied request; 200 otherwise.
fn status(authorizer: &Authorizer, path: &str, headers: &HeaderMap, from: &str) -> u16 {
    authorizer
        .authorize(requirement(path), headers, from == HERE)
        .map_or_else(|refusal| refusal.error.status, |_| 200)
}

#[test]
fn routes_that_change_models_or_show_metrics_require_more_than_inference() {
    let of = |wanted: Option<Scope>| {
        let scope = |access| match access {
            RouteRequirement::Open => None,
            RouteRequirement::Requires(scope, _) => Some(scope),
        };
        let routes = crate::routes::all().into_iter();
        let routes = routes.filter(move |route| scope(route.requirement) == wanted);
        routes.map(|route| route.path).collect::<Vec<_>>()
    };
    assert_eq!(of(None), ["/", "/openapi.json", "/docs", "/health", "/api/version"]);
    assert_eq!(of(Some(Scope::Admin)), ["/metrics"]);
    assert_eq!(
        of(Some(Scope::Models)),
        [
            "/api/create",
            "/api/copy",
            "/api/delete",
            "/api/pull",
            "/api/push",
            "/api/verify",
            "/api/prune",
            "/api/blobs/{digest}"
        ]
    );
}

#[test]
fn concurrent_changes_lose_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new").join("keys.toml");
    std::thread::scope(|scope| {
        for i in 0..8 {
            let path = &path;
            scope.spawn(move || {
                KeyFile::change(path, |file| file.add(&format!("k{i}"), vec![])).unwrap()
            });
        }
    });
    let file = KeyFile::read(&path).unwrap();
    assert_eq!(file.keys.len(), 8);
    // A failed change writes nothing.
    KeyFile::change(&path, |file| file.remove("k1").and(file.remove("nobody"))).unwrap_err();
    assert_eq!(KeyFile::read(&path).unwrap(), file);
}

#[test]
fn an_emptied_file_grants_no_access_but_removing_the_last_key_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.toml");
    KeyFile::change(&path, |file| file.add("one", vec![])).unwrap();
    let authorizer = Authorizer::new(&path).unwrap();
    let status = || {
        authorizer.reload();
        status(&authorizer, "/api/tags", &HeaderMap::new(), HERE)
    };
    for emptied in ["", "# nothing\n", "key = []\n"] {
        std::fs::write(&path, emptied).unwrap();
        assert_eq!(status(), 401, "{emptied:?}");
        let refused = Authorizer::new(&path).err().expect("a server starts").to_string();
        assert!(refused.contains("it contains no key"), "{refused}");
    }
    std::fs::remove_file(&path).unwrap();
    KeyFile::change(&path, |file| file.add("two", vec![])).unwrap();
    assert_eq!(status(), 401);
    KeyFile::change(&path, |file| file.remove("two")).unwrap();
    assert_eq!(status(), 200);
    Authorizer::new(&path).unwrap();
    KeyFile::change(&path, |file| file.add("three", vec![])).unwrap();
    assert_eq!(status(), 401);
}

#[test]
fn keys_are_stored_as_hashes_in_a_file_readable_by_its_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new").join("keys.toml");
    let mut file = KeyFile::read(&path).unwrap();
    let secret = file.add("laptop", vec![Scope::Inference]).unwrap();
    let other = file.add("ci", vec![Scope::Inference, Scope::Models]).unwrap();
    file.keys[1].concurrent = Some(2);
    file.write(&path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        !text.contains(&secret) && !text.contains(&secret[8..]) && text.starts_with('#'),
        "{text}"
    );
    assert_eq!(KeyFile::read(&path).unwrap(), file);
    assert_eq!((secret.len(), secret == other, secret.starts_with("puna-")), (69, false, true));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!others_may_read(&path));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(others_may_read(&path));
    }
    assert_eq!(file.find(&secret).unwrap().name, "laptop");
    assert_eq!(file.find(&other).unwrap().concurrent, Some(2));
    assert!(file.find("").is_none() && file.find(&secret[..68]).is_none());
    file.remove("laptop").unwrap();
    assert!(file.find(&secret).is_none());
}

#[test]
fn key_names_are_unique_and_restricted() {
    let mut file = KeyFile::default();
    file.add("a.b-c_9", vec![]).unwrap();
    assert!(matches!(file.add("a.b-c_9", vec![]), Err(KeyError::Exists(_))));
    for name in ["", "a b", "ä", "a\nb", &"x".repeat(65)] {
        assert!(matches!(file.add(name, vec![]), Err(KeyError::Name(_))), "{name:?}");
    }
    assert!(matches!(file.remove("nobody"), Err(KeyError::Unknown(_))));
}

#[test]
fn without_keys_all_may_infer_and_only_this_machine_may_change_models() {
    let folder = tempfile::tempdir().unwrap();
    let authorizer = Authorizer::new(&folder.path().join("keys.toml")).unwrap();
    let none = HeaderMap::new();
    for from in [HERE, ELSEWHERE] {
        assert_eq!(status(&authorizer, "/api/chat", &none, from), 200);
        let may_change = from == HERE;
        for path in [
            "/api/create",
            "/api/pull",
            "/api/push",
            "/api/copy",
            "/api/delete",
            "/api/blobs/{digest}",
            "/metrics",
        ] {
            assert_eq!(status(&authorizer, path, &none, from) == 200, may_change, "{from} {path}");
        }
    }
}

#[test]
fn with_keys_every_request_needs_a_valid_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.toml");
    let mut file = KeyFile::default();
    let secrets = Scope::ALL.map(|scope| file.add(scope.name(), vec![scope]).unwrap());
    file.write(&path).unwrap();
    let authorizer = Authorizer::new(&path).unwrap();
    for from in [HERE, ELSEWHERE] {
        for path in ["/", "/health", "/api/version"] {
            assert_eq!(status(&authorizer, path, &HeaderMap::new(), from), 200);
        }
        for path in ["/api/chat", "/v1/messages", "/api/tags", "/api/delete", "/metrics"] {
            assert_eq!(status(&authorizer, path, &HeaderMap::new(), from), 401, "{path}");
            assert_eq!(status(&authorizer, path, &bearer("puna-0"), from), 401, "{path}");
            assert_eq!(
                status(&authorizer, path, &headers("authorization", &secrets[2]), from),
                401,
                "no Bearer"
            );
        }
    }
    let may = |secret: &str| {
        ["/v1/chat/completions", "/api/pull", "/metrics"]
            .map(|path| status(&authorizer, path, &bearer(secret), HERE))
    };
    assert_eq!(may(&secrets[0]), [200, 403, 403]);
    assert_eq!(may(&secrets[1]), [403, 200, 403]);
    assert_eq!(may(&secrets[2]), [200, 200, 200]);
    assert_eq!(status(&authorizer, "/v1/messages", &headers("x-api-key", &secrets[0]), HERE), 200);
    assert_eq!(
        status(
            &authorizer,
            "/api/chat",
            &headers("authorization", &format!("bearer  {} ", secrets[0])),
            HERE
        ),
        200
    );
    let refused =
        authorizer.authorize(requirement("/api/pull"), &bearer(&secrets[0]), true).unwrap_err();
    assert!(
        refused.error.message.contains("\"inference\"")
            && refused.error.message.contains("scope models")
    );
}

#[test]
fn the_first_key_takes_effect_with_the_next_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.toml");
    let authorizer = Authorizer::new(&path).unwrap();
    let mut file = KeyFile::default();
    for name in ["a", "b"] {
        assert_eq!(status(&authorizer, "/api/chat", &HeaderMap::new(), HERE), 200);
        let secret = file.add(name, vec![Scope::Inference]).unwrap();
        file.write(&path).unwrap();
        assert_eq!(status(&authorizer, "/api/chat", &HeaderMap::new(), HERE), 401);
        assert_eq!(status(&authorizer, "/api/chat", &bearer(&secret), HERE), 200);
        file = KeyFile { open: true, ..KeyFile::default() };
        file.write(&path).unwrap();
        authorizer.reload();
    }
}

#[test]
fn keys_are_reloaded_and_a_broken_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.toml");
    let authorizer = Authorizer::new(&path).unwrap();
    let seen = |headers: &HeaderMap| {
        std::thread::sleep(std::time::Duration::from_millis(1100));
        status(&authorizer, "/api/chat", headers, HERE)
    };
    assert_eq!(seen(&HeaderMap::new()), 200);
    let mut file = KeyFile::default();
    let secret = file.add("a", vec![Scope::Inference]).unwrap();
    file.write(&path).unwrap();
    assert_eq!(
        (seen(&HeaderMap::new()), status(&authorizer, "/api/chat", &bearer(&secret), HERE)),
        (401, 200)
    );
    std::fs::write(&path, "[[key]]\nname = 5").unwrap();
    assert_eq!(
        (seen(&HeaderMap::new()), status(&authorizer, "/api/chat", &bearer(&secret), HERE)),
        (401, 200)
    );
    // Nor does a missing file, until it is back.
    std::fs::remove_file(&path).unwrap();
    assert_eq!(
        (seen(&HeaderMap::new()), status(&authorizer, "/api/chat", &bearer(&secret), HERE)),
        (401, 200)
    );
    KeyFile { open: true, ..KeyFile::default() }.write(&path).unwrap();
    assert_eq!(seen(&HeaderMap::new()), 200);
    std::fs::write(&path, "[[key]]\nname = 5").unwrap();
    let error = Authorizer::new(&path).err().unwrap().to_string();
    assert!(error.starts_with("cannot read the key file "), "{error}");
}

#[test]
fn an_exceeded_limit_has_a_retry_after() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.toml");
    let mut file = KeyFile::default();
    let secret = file.add("a", vec![Scope::Inference]).unwrap();
    file.keys[0].concurrent = Some(1);
    file.write(&path).unwrap();
    let authorizer = Authorizer::new(&path).unwrap();
    let authorize = || authorizer.authorize(requirement("/api/chat"), &bearer(&secret), true);
    let first = authorize().unwrap();
    let refused = authorize().unwrap_err();
    assert_eq!((refused.error.status, refused.error.retry_after), (429, Some(1)));
    assert!(refused.error.message.contains("1 concurrent requests"), "{}", refused.error.message);
    drop(first);
    assert!(authorize().unwrap().client.is_some());
}
