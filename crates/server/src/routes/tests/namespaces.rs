//! Every route of the table and of the registry, called with API keys that are limited to a
//! namespace.

use puna_mirror::{Grant, Permission, REGISTRY_ROUTES, RegistryRoute, Resource};

use super::*;
use crate::auth::caller::ModelAccess;
use crate::auth::{KeyFile, RouteRequirement, Scope};
use crate::routes::table::Route;

const SECRET: &str = "ANNA-PRIVATE-SYSTEM";

/// A server and mirror with the models `anna/secret` and `bob/own`, and the keys of an
/// administrator, of bob, and of a reader.
struct SharedServer {
    server: TestServer,
    admin: String,
    bob: String,
    reader: String,
}

impl SharedServer {
    async fn new() -> Self {
        let (mut admin, mut bob, mut reader) = (String::new(), String::new(), String::new());
        let server = TestServer::with_mirror(|config| {
            config.mirror.delete = true;
            config.mirror.anonymous = false;
            KeyFile::change(&config.keys, |file| {
                admin = file.add("admin", vec![Scope::Admin])?;
                bob = file.add("bob", vec![Scope::Models, Scope::Inference])?;
                file.keys[1].namespaces = vec!["bob".into()];
                reader = file.add("reader", vec![Scope::Inference])?;
                Ok::<_, crate::auth::KeyError>(())
            })
            .unwrap();
        })
        .await;
        let shared = Self { server, admin, bob, reader };
        for name in ["anna/secret", "bob/own"] {
            let body = json!({"model": name, "from": "cria", "system": SECRET, "stream": false});
            let made = shared.call(&shared.admin, "POST", "/api/create", &body).await;
            assert_eq!(made.status, 200, "{}", made.body);
        }
        shared
    }

    async fn call(&self, key: &str, method: &str, path: &str, body: &Value) -> TestResponse {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("x-api-key", key).header("x-request-id", "test");
        self.server.send(request.body(Body::from(body.to_string())).unwrap()).await
    }

    /// Calls a route of the registry for a repository. `content` is what the digest stands for.
    async fn call_registry(
        &self,
        key: &str,
        route: &RegistryRoute,
        method: &str,
        name: &str,
        content: &str,
    ) -> TestResponse {
        let digest = puna_store::Digest::of(content.as_bytes()).to_string();
        let path = route.path.replace("{name}", name).replace("{reference}", "latest");
        let path = path.replace("{digest}", &digest).replace("{upload}", &"0f".repeat(16));
        self.call(key, method, &path, &json!({})).await
    }

    /// Calls a route for a model, whatever the route calls its fields.
    async fn call_route(
        &self,
        key: &str,
        route: &Route,
        method: &str,
        model: &str,
    ) -> TestResponse {
        let path = route.path.replace("{*model}", model).replace("{digest}", "sha256:00");
        let path = path.replace(['{', '}'], "");
        let body = json!({
            "model": model, "name": model, "source": "bob/own", "destination": model, "from": "bob/own",
            "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi", "query": "hi",
            "documents": ["hi"], "text": "hi", "tokens": [1], "max_tokens": 5, "options": {"num_predict": 5},
            "stream": false,
        });
        self.call(key, method, &path, &body).await
    }
}

#[tokio::test]
async fn a_confined_key_learns_nothing_of_other_namespaces_on_any_route() {
    let shared = SharedServer::new().await;
    let SharedServer { bob, admin, .. } = &shared;
    let mut rules = Vec::new();
    for route in routes::all() {
        let RouteRequirement::Requires(scope, models) = route.requirement else { continue };
        if models == ModelAccess::Server {
            for method in route.methods {
                let denied = shared.call_route(bob, &route, method, "bob/own").await;
                assert_eq!(denied.status, 403, "{method} {}", route.path);
            }
            continue;
        }
        for method in route.methods.iter().filter(|method| **method != "HEAD") {
            let name = format!("{method} {}", route.path);
            let stored = shared.call_route(bob, &route, method, "anna/secret").await;
            let absent = shared.call_route(bob, &route, method, "anna/absent").await;
            // The same answer, up to the name, whether or not the model exists.
            let text = |body: &str| body.replace("secret", "absent");
            assert_eq!(stored.status, absent.status, "{name}: {} {}", stored.body, absent.body);
            let answers_alike = matches!(models, ModelAccess::Use | ModelAccess::Change);
            if answers_alike {
                assert_eq!(text(&stored.body), absent.body, "{name}");
            }
            assert!(!stored.body.contains(SECRET), "{name}: {}", stored.body);
            match models {
                ModelAccess::Use => assert_eq!(stored.status.as_u16() / 100, 4, "{name}"),
                ModelAccess::Change => assert_eq!(stored.status, 403, "{name}: {}", stored.body),
                ModelAccess::List => assert!(!stored.body.contains("anna"), "{name}"),
                ModelAccess::None | ModelAccess::Server => {}
            }
            rules.push((scope, models));
        }
    }
    for wanted in [
        (Scope::Inference, ModelAccess::Use),
        (Scope::Inference, ModelAccess::List),
        (Scope::Models, ModelAccess::Change),
    ] {
        assert!(rules.contains(&wanted), "no route has {wanted:?}");
    }
    // Nothing has changed, and the administrator sees it.
    let shown = shared.call(admin, "POST", "/api/show", &json!({"model": "anna/secret"})).await;
    assert_eq!(shown.json()["system"], SECRET);
    let listed = shared.call(admin, "GET", "/v1/models", &Value::Null).await;
    assert!(listed.body.contains("anna/secret"), "{}", listed.body);
}

#[tokio::test]
async fn a_confined_key_uses_its_own_and_common_models_on_every_route() {
    let shared = SharedServer::new().await;
    for model in ["bob/own", "cria"] {
        for route in routes::all() {
            let RouteRequirement::Requires(_, ModelAccess::Use) = route.requirement else {
                continue;
            };
            let method = route.methods[route.methods.len() - 1];
            let answer = shared.call_route(&shared.bob, &route, method, model).await;
            let status = answer.status.as_u16();
            assert!(status != 403 && status != 404, "{} {model}: {}", route.path, answer.body);
        }
    }
    let tags = shared.call(&shared.bob, "GET", "/api/tags", &Value::Null).await.json();
    let names: Vec<_> = tags["models"].as_array().unwrap().iter().map(|m| &m["name"]).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[tokio::test]
async fn sources_of_other_namespaces_are_neither_copied_nor_pulled() {
    let shared = SharedServer::new().await;
    for name in ["secret", "absent"] {
        let source = format!("anna/{name}");
        let copy = json!({"source": source, "destination": "bob/new"});
        let copied = shared.call(&shared.bob, "POST", "/api/copy", &copy).await;
        assert_eq!((copied.status.as_u16(), copied.body.contains("not found")), (404, true));
        let create = json!({"model": "bob/new", "from": source, "stream": false});
        let created = shared.call(&shared.bob, "POST", "/api/create", &create).await;
        assert_eq!(created.status, 403, "{}", created.body);
        assert!(created.body.contains("may not use"), "{}", created.body);
    }
    // A common model that is not stored would have to be pulled into a common namespace.
    let create = json!({"model": "bob/new", "from": "not-here", "stream": false});
    let created = shared.call(&shared.bob, "POST", "/api/create", &create).await;
    assert_eq!(created.status, 403, "{}", created.body);
    let create = json!({"model": "bob/new", "from": "cria", "stream": false});
    assert_eq!(shared.call(&shared.bob, "POST", "/api/create", &create).await.status, 200);
    let delete = json!({"model": "bob/new"});
    assert_eq!(shared.call(&shared.bob, "DELETE", "/api/delete", &delete).await.status, 200);
    let delete = json!({"model": "cria"});
    assert_eq!(shared.call(&shared.bob, "DELETE", "/api/delete", &delete).await.status, 403);
}

#[tokio::test]
async fn blobs_of_other_namespaces_cannot_be_guessed_or_used() {
    let shared = SharedServer::new().await;
    let secret = format!("sha256:{}", puna_store::Digest::of(SECRET.as_bytes()).hex());
    let path = format!("/api/blobs/{secret}");
    let send = async |key: &str, method: &str, content: &str| {
        let request = Request::builder().method(method).uri(&path).header("x-api-key", key);
        shared.server.send(request.body(Body::from(content.to_owned())).unwrap()).await.status
    };
    assert_eq!(send(&shared.admin, "HEAD", "").await, 200);
    // The models of bob and anna have the same system prompt.
    assert_eq!(send(&shared.bob, "HEAD", "").await, 200);
    let delete = json!({"model": "bob/own"});
    assert_eq!(shared.call(&shared.bob, "DELETE", "/api/delete", &delete).await.status, 200);
    assert_eq!(send(&shared.bob, "HEAD", "").await, 404);
    let create = |files: Value| json!({"model": "bob/new", "files": files, "stream": false});
    let files = create(json!({"model.gguf": secret}));
    let hidden = shared.call(&shared.bob, "POST", "/api/create", &files).await;
    let absent = create(json!({"model.gguf": format!("sha256:{}", "0".repeat(64))}));
    let absent = shared.call(&shared.bob, "POST", "/api/create", &absent).await;
    assert_eq!((hidden.status, absent.status), (StatusCode::BAD_REQUEST, StatusCode::BAD_REQUEST));
    let digest = secret.trim_start_matches("sha256:");
    assert_eq!(hidden.body.replace(digest, &"0".repeat(64)), absent.body);
    // Who has the content may use it, and is answered as for a new blob.
    assert_eq!(send(&shared.bob, "POST", "wrong").await, 400);
    assert_eq!(send(&shared.bob, "HEAD", "").await, 404);
    assert_eq!(send(&shared.bob, "POST", SECRET).await, 201);
    assert_eq!(send(&shared.bob, "HEAD", "").await, 200);
    let uploaded = shared.call(&shared.bob, "POST", "/api/create", &files).await;
    assert!(!uploaded.body.contains("is not in the store"), "{}", uploaded.body);
}

#[tokio::test]
async fn registry_routes_follow_the_rule_for_every_key_and_repository() {
    let shared = SharedServer::new().await;
    let own = ["bob".to_owned()];
    let grant = |permission, namespaces| Grant { permission, namespaces };
    let everywhere = &["bob/own", "anna/secret", "anna/absent", "library/cria"][..];
    // The administrator may delete, so only what is absent.
    let absent = &["bob/absent", "anna/absent", "library/absent"][..];
    for (key, grant, names) in [
        (&shared.admin, grant(Permission::Admin, &[]), absent),
        (&shared.bob, grant(Permission::Write, &own), everywhere),
        (&shared.reader, grant(Permission::Read, &[]), everywhere),
    ] {
        for route in REGISTRY_ROUTES {
            for (method, permission) in route.methods {
                for name in names {
                    let resource = match route.path.contains("{name}") {
                        true => Resource::Namespace(name.split_once('/').unwrap().0),
                        false => Resource::Server,
                    };
                    let may = grant.may(puna_mirror::Action::Registry(*permission), resource);
                    let answer = shared.call_registry(key, route, method, name, "absent").await;
                    let what = format!("{grant:?} {method} {} {name}: {}", route.path, answer.body);
                    assert_ne!(answer.status, 401, "{what}");
                    assert_eq!(answer.status != 403, may, "{} {what}", answer.status);
                }
            }
        }
    }
}

#[tokio::test]
async fn a_confined_key_learns_nothing_of_other_namespaces_on_any_registry_route() {
    let shared = SharedServer::new().await;
    for route in REGISTRY_ROUTES {
        for (method, _) in route.methods {
            let call = async |key: &str, name: &str| {
                shared.call_registry(key, route, method, name, SECRET).await
            };
            let stored = call(&shared.bob, "anna/secret").await;
            let absent = call(&shared.bob, "anna/absent").await;
            let what = format!("{method} {}: {}", route.path, stored.body);
            assert!(!stored.body.contains(SECRET), "{what}");
            if route.path.contains("{name}") {
                let alike = stored.body.replace("secret", "absent");
                assert_eq!((stored.status, alike), (absent.status, absent.body), "{what}");
            } else if route.path != "/v2/token" {
                assert!(!stored.body.contains("anna"), "{what}");
                let anonymous = call("", "anna/secret").await;
                assert_eq!(anonymous.status, 401, "{what}");
            }
        }
    }
    // Bob sees the own model, and the administrator both.
    let listed = shared.call(&shared.bob, "GET", "/v2/_catalog", &Value::Null).await;
    assert_eq!(listed.json()["repositories"], json!(["bob/own"]));
    let listed = shared.call(&shared.admin, "GET", "/v2/_catalog", &Value::Null).await;
    assert!(listed.body.contains("anna/secret"), "{}", listed.body);
}
