//! Pushing and pulling manifest lists, with both storage drivers.

use axum::http::{HeaderMap, HeaderValue};
use puna_store::{ModelName, media};
use serde_json::{Value, json};

use super::*;
use crate::S3Storage;
use crate::types::manifest_list::tests::{child, inline, list_of, reference};

/// `Accept` header of Ollama before 0.40.
const OLD_CLIENT: &str = media::MANIFEST;
/// `Accept` header of a client that accepts lists.
const NEW_CLIENT: &str = "application/vnd.ollama.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// Mirrors with file storage and with S3 storage.
fn both() -> [TestServer; 2] {
    let bucket = Arc::new(S3Storage::in_memory()).into();
    [start_mirror(Vec::new()), start_with_storage(bucket, tempfile::tempdir().unwrap(), Vec::new())]
}

impl TestServer {
    async fn put(&self, path: &str, kind: &str, text: &str) -> (u16, String) {
        let body = Body::from(text.to_owned());
        let (status, _, said) =
            self.ask_with("PUT", path, (header::CONTENT_TYPE, kind), body).await;
        (status, String::from_utf8_lossy(&said).into_owned())
    }

    async fn get(&self, path: &str, accept: &str) -> (u16, HeaderMap, Bytes) {
        self.ask_with("GET", path, (header::ACCEPT, accept), Body::empty()).await
    }

    /// Pushes the manifest of a child by digest and returns its text.
    async fn child(&self, name: &str, weights: &[u8]) -> String {
        self.blob(name, weights).await;
        let text = child(weights).to_string();
        let path = format!("/v2/{name}/manifests/{}", Digest::of(text.as_bytes()));
        let (status, said) = self.put(&path, media::MANIFEST, &text).await;
        assert_eq!(status, 201, "{said}");
        text
    }

    /// Pushes a list of two references with the tag `latest`. Returns the list and the children.
    async fn list(&self, name: &str) -> (String, [String; 2]) {
        let children = [self.child(name, b"of ggml").await, self.child(name, b"of llamacpp").await];
        let list = list_of(&[
            reference(&children[0], "ggml", "gguf"),
            reference(&children[1], "llamacpp", "gguf"),
        ]);
        let path = format!("/v2/{name}/manifests/latest");
        let (status, said) = self.put(&path, media::MANIFEST_LIST, &list).await;
        assert_eq!(status, 201, "{said}");
        (list, children)
    }

    async fn has(&self, path: &str) -> bool {
        self.ask("HEAD", path, Body::empty()).await.0 == 200
    }
}

fn digest_of(text: &str) -> String {
    Digest::of(text.as_bytes()).to_string()
}

/// Checks the response for a tag that points to a list.
fn check((status, headers, body): &(u16, HeaderMap, Bytes), kind: &str, text: &str) {
    let of = |name: &str| headers[name].to_str().unwrap();
    assert_eq!((*status, of("content-type"), of("vary")), (200, kind, "Accept"));
    assert_eq!((of("docker-content-digest"), &body[..]), (&*digest_of(text), text.as_bytes()));
}

#[tokio::test]
async fn clients_get_the_list_or_its_default_child() {
    for server in both() {
        let (list, [ggml, llamacpp]) = server.list("library/m").await;
        let path = "/v2/library/m/manifests/latest";
        check(&server.get(path, NEW_CLIENT).await, media::MANIFEST_LIST, &list);
        for accept in [OLD_CLIENT, "*/*", "application/*", ""] {
            check(&server.get(path, accept).await, media::MANIFEST, &llamacpp);
        }
        // Ollama 0.17 does not name the type of lists. A client without `Accept` accepts none.
        check(&server.ask("GET", path, Body::empty()).await, media::MANIFEST, &llamacpp);
        for (accept, text) in [(NEW_CLIENT, &list), (OLD_CLIENT, &llamacpp)] {
            let head = server.ask_with("HEAD", path, (header::ACCEPT, accept), Body::empty()).await;
            assert_eq!(head.1[header::CONTENT_LENGTH], text.len().to_string());
            assert_eq!(
                (head.0, head.1["docker-content-digest"].to_str().unwrap()),
                (200, &*digest_of(text))
            );
        }
        // Requests by digest are not negotiated.
        for text in [&list, &ggml, &llamacpp] {
            let found = server
                .get(&format!("/v2/library/m/manifests/{}", digest_of(text)), OLD_CLIENT)
                .await;
            assert_eq!((found.0, &found.2[..]), (200, text.as_bytes()));
            assert!(!found.1.contains_key(header::VARY));
        }
        let known = (header::IF_NONE_MATCH, &*format!("\"{}\"", digest_of(&llamacpp)));
        let (status, headers, _) = server.ask_with("GET", path, known, Body::empty()).await;
        assert_eq!((status, &headers[header::VARY]), (304, &HeaderValue::from_static("Accept")));
    }
}

#[tokio::test]
async fn a_list_counts_once_with_the_distinct_blobs_of_its_children() {
    for server in both() {
        let name = "library/m";
        let weights = [&b"weights of one"[..], b"weights of the other", b"shared"];
        for bytes in weights {
            server.blob(name, bytes).await;
        }
        let shared = child(weights[2])["layers"][0].clone();
        let mut whole = inline(weights[0], "llamacpp");
        let mut other = child(weights[1]);
        for manifest in [&mut whole, &mut other] {
            manifest["layers"].as_array_mut().unwrap().push(shared.clone());
        }
        let other = other.to_string();
        let path = format!("/v2/{name}/manifests/{}", digest_of(&other));
        assert_eq!(server.put(&path, media::MANIFEST, &other).await.0, 201);
        let list = list_of(&[whole, reference(&other, "mlx", "safetensors")]);
        let put =
            server.put(&format!("/v2/{name}/manifests/latest"), media::MANIFEST_LIST, &list).await;
        assert_eq!(put.0, 201, "{}", put.1);
        let shown = server.mirror.storage().inventory.tag_entries().await.unwrap();
        let sum: usize = weights.iter().map(|bytes| bytes.len()).sum();
        assert_eq!(shown.iter().map(|shown| shown.size).collect::<Vec<_>>(), [sum as u64]);
        assert_eq!(shown[0].digest, Digest::of(list.as_bytes()));
        let tags = server.ask("GET", "/v2/library/m/tags/list", Body::empty()).await.2;
        assert_eq!(serde_json::from_slice::<Value>(&tags).unwrap()["tags"], json!(["latest"]));
        let page = server.ask("GET", "/mirror", Body::empty()).await.2;
        assert!(String::from_utf8_lossy(&page).contains(&format!("{sum} B")));
    }
}

#[tokio::test]
async fn inline_children_are_served_by_digest_and_keep_their_blobs() {
    for server in both() {
        let (name, blob) = ("library/m", Digest::of(b"weights"));
        let list = list_of(&[inline(b"weights", "llamacpp")]);
        let path = format!("/v2/{name}/manifests/latest");
        let (status, said) = server.put(&path, media::MANIFEST_LIST, &list).await;
        assert!(status == 400 && said.contains("MANIFEST_BLOB_UNKNOWN"), "{said}");
        server.blob(name, b"weights").await;
        assert_eq!(server.put(&path, media::MANIFEST_LIST, &list).await.0, 201);
        let child = server.get(&path, OLD_CLIENT).await;
        assert_eq!(
            (child.0, &child.1[header::CONTENT_TYPE]),
            (200, &HeaderValue::from_static(media::MANIFEST))
        );
        let by_digest = format!("/v2/{name}/manifests/{}", Digest::of(&child.2));
        assert_eq!(child.1["docker-content-digest"], Digest::of(&child.2).to_string());
        assert_eq!(server.get(&by_digest, "*/*").await.2, child.2);
        let (status, code, said) =
            server.refusal("DELETE", &format!("/v2/{name}/blobs/{blob}"), Body::empty()).await;
        assert_eq!((status, code.as_str()), (403, "DENIED"), "{said}");
        assert!(server.has(&format!("/v2/{name}/blobs/{blob}")).await);
        let list = format!("/v2/{name}/manifests/{}", digest_of(&list));
        assert_eq!(server.ask("DELETE", &list, Body::empty()).await.0, 202);
        assert!(!server.has(&by_digest).await && !server.has(&path).await);
        let gone = server.ask("DELETE", &format!("/v2/{name}/blobs/{blob}"), Body::empty()).await;
        assert_eq!(gone.0, 202);
    }
}

#[tokio::test]
async fn lists_with_missing_children_are_rejected() {
    for server in both() {
        let (list, [ggml, llamacpp]) = server.list("library/m").await;
        let path = "/v2/library/m/manifests/other";
        let missing =
            list_of(&[reference(&ggml, "ggml", "gguf"), reference("none", "mlx", "safetensors")]);
        let nested =
            list_of(&[reference(&ggml, "ggml", "gguf"), reference(&list, "mlx", "safetensors")]);
        let twice =
            list_of(&[reference(&ggml, "ggml", "gguf"), reference(&llamacpp, "GGML", "gguf")]);
        for (text, code, reason) in [
            (&missing, "MANIFEST_BLOB_UNKNOWN", "child 2 for mlx"),
            (&nested, "MANIFEST_INVALID", "is a list itself"),
            (&twice, "MANIFEST_INVALID", "two children for the runner"),
            (&list_of(&[]), "MANIFEST_INVALID", "no children"),
        ] {
            let (status, said) = server.put(path, media::MANIFEST_LIST, text).await;
            assert!(status == 400 && said.contains(code) && said.contains(reason), "{said}");
        }
        assert!(!server.has(path).await);
        // Children of another repository do not count.
        server.blob("library/x", b"of ggml").await;
        let (status, _) =
            server.put("/v2/library/x/manifests/latest", media::MANIFEST_LIST, &list).await;
        assert_eq!(status, 400);
        check(
            &server.get("/v2/library/m/manifests/latest", NEW_CLIENT).await,
            media::MANIFEST_LIST,
            &list,
        );
    }
}

#[tokio::test]
async fn children_of_lists_cannot_be_removed() {
    for server in both() {
        let (list, [ggml, _]) = server.list("library/m").await;
        let of = |text: &str| format!("/v2/library/m/manifests/{}", digest_of(text));
        let (status, code, said) = server.refusal("DELETE", &of(&ggml), Body::empty()).await;
        assert_eq!((status, code.as_str()), (403, "DENIED"));
        assert!(
            said.contains(&digest_of(&list)) && said.contains("remove the list first"),
            "{said}"
        );
        server.mirror.storage().inventory.collect_garbage().await.unwrap();
        assert!(server.has(&of(&ggml)).await);
        // Without the list, the child can be removed.
        assert_eq!(server.ask("DELETE", &of(&list), Body::empty()).await.0, 202);
        assert_eq!(server.ask("DELETE", &of(&ggml), Body::empty()).await.0, 202);
        assert!(!server.has(&of(&ggml)).await);
    }
}

#[tokio::test]
async fn a_pushed_list_is_a_model_of_the_store() {
    let server = start_mirror(Vec::new());
    let (list, children) = server.list("library/m").await;
    let store = Store::open(server.dir.path()).unwrap();
    let name = ModelName::parse("m").unwrap();
    let (entry, bytes) = store.manifest_bytes(&name).unwrap();
    assert_eq!((entry.runner.as_str(), &bytes[..]), ("llamacpp", list.as_bytes()));
    let stored = &entry.list.as_ref().unwrap().children;
    assert!(stored.iter().all(|stored| stored.manifest.is_some()));
    let path = "/v2/library/m/manifests/latest";
    let of = |text: &str| format!("/v2/library/m/manifests/{}", digest_of(text));
    // The store alone can serve the list and its children.
    std::fs::remove_dir_all(server.dir.path().join("puna-registry")).unwrap();
    check(&server.get(path, NEW_CLIENT).await, media::MANIFEST_LIST, &list);
    check(&server.get(path, OLD_CLIENT).await, media::MANIFEST, &children[1]);
    for (child, weights) in children.iter().zip([&b"of ggml"[..], b"of llamacpp"]) {
        assert_eq!(server.get(&of(child), "*/*").await.2, child.as_bytes());
        assert!(server.has(&format!("/v2/library/m/blobs/{}", Digest::of(weights))).await);
        let (status, code, said) = server.refusal("DELETE", &of(child), Body::empty()).await;
        assert!(status == 403 && code == "DENIED" && said.contains(&digest_of(&list)), "{said}");
    }
    let stored_objects =
        server.mirror.storage().inventory.stored_objects(InventoryScope::All).await.unwrap();
    let sizes: Vec<Vec<u64>> = stored_objects
        .iter()
        .map(|held| held.blobs.iter().map(|(_, size)| *size).collect())
        .collect();
    assert_eq!((sizes, stored_objects[0].children.len()), (vec![vec![7, 11]], 2));
    assert_eq!(server.ask("DELETE", path, Body::empty()).await.0, 202);
    assert_eq!(store.find(&name).unwrap(), None);
    assert!(!server.has(path).await && !server.has(&of(&list)).await);
}

#[tokio::test]
async fn lists_without_a_runnable_child_stay_in_the_registry() {
    let server = start_mirror(Vec::new());
    let child = server.child("library/m", b"of mlx").await;
    let list = list_of(&[reference(&child, "mlx", "safetensors")]);
    let path = "/v2/library/m/manifests/latest";
    assert_eq!(server.put(path, media::MANIFEST_LIST, &list).await.0, 201);
    let store = Store::open(server.dir.path()).unwrap();
    assert_eq!(store.find(&ModelName::parse("m").unwrap()).unwrap(), None);
    check(&server.get(path, NEW_CLIENT).await, media::MANIFEST_LIST, &list);
    // A runnable list takes over the tag, and this list takes it back.
    server.list("library/m").await;
    assert!(store.find(&ModelName::parse("m").unwrap()).unwrap().is_some());
    assert_eq!(server.put(path, media::MANIFEST_LIST, &list).await.0, 201);
    check(&server.get(path, NEW_CLIENT).await, media::MANIFEST_LIST, &list);
    assert_eq!(store.find(&ModelName::parse("m").unwrap()).unwrap(), None);
}
