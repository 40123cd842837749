//! Pushes of manifest lists.

use super::lists::{ListRegistry, RUNNERS, all, model_for, only};
use super::*;
use crate::{Format, write_bundle};

/// A registry that accepts blobs and manifests in one request.
#[derive(Clone, Default)]
struct UploadRegistry(Arc<Mutex<HashMap<String, (String, Bytes)>>>);

impl UploadRegistry {
    fn answer(&self, seen: &SeenRequest) -> Response {
        let id = seen.path.rsplit('/').next().unwrap().to_owned();
        let mut taken = self.0.lock().unwrap();
        match (seen.method.as_str(), seen.path.contains("/uploads/")) {
            ("HEAD", _) => status(if taken.contains_key(&id) { 200 } else { 404 }, ""),
            ("POST", _) => Response::builder()
                .status(202)
                .header("Location", "/v2/up/uploads/1")
                .body(Body::empty())
                .unwrap(),
            ("PATCH", _) => {
                taken.insert("upload".into(), (String::new(), seen.body.clone()));
                let answer = Response::builder().status(202).header("Location", "/v2/up/uploads/1");
                answer
                    .header("Range", format!("0-{}", seen.body.len() - 1))
                    .body(Body::empty())
                    .unwrap()
            }
            ("PUT", true) => {
                let (_, body) = taken.remove("upload").unwrap();
                taken.insert(Digest::of(&body).to_string(), (String::new(), body));
                status(201, "")
            }
            ("PUT", false) => {
                taken.insert(id, (seen.header("content-type").to_owned(), seen.body.clone()));
                status(201, "")
            }
            _ => status(405, ""),
        }
    }

    fn has(&self, digest: &Digest) -> bool {
        self.0.lock().unwrap().contains_key(&digest.to_string())
    }
}

/// A store with children of a list, a registry, and the model's name there.
async fn push_setup(options: Options) -> (ListRegistry, Bench, UploadRegistry, Server, String) {
    let registry = ListRegistry::of(&RUNNERS);
    let source = registry.serve().await;
    let bench = Bench::new();
    bench.pull_with(&source.model(), options).await.0.unwrap();
    let registry_state = UploadRegistry::default();
    let served = registry_state.clone();
    let target = Server::start(move |seen| served.answer(&seen)).await;
    let name = format!("{}/me/m:v1", target.host);
    let of = |name: &str| ModelRef::parse(name).unwrap().name;
    bench.store.copy(&of(&source.model()), &of(&name)).unwrap();
    (registry, bench, registry_state, target, name)
}

#[tokio::test]
async fn a_list_is_pushed_unchanged_and_last() {
    let (registry, bench, registry_state, target, name) = push_setup(all()).await;
    let (done, lines) = bench.push(&name).await;
    done.unwrap();
    let (kind, list) = registry_state.0.lock().unwrap()["v1"].clone();
    assert_eq!((kind.as_str(), list), (media::MANIFEST_LIST, registry.list.clone()));
    for (digest, manifest) in &registry.manifests {
        assert_eq!(
            registry_state.0.lock().unwrap()[digest],
            (media::MANIFEST.to_owned(), manifest.clone())
        );
    }
    for (runner, _) in RUNNERS {
        assert!(lines.iter().any(|line| line.status == format!("pushing manifest for {runner}")));
        assert!(registry_state.has(&model_for(runner).weights));
    }
    let puts: Vec<String> = target
        .seen()
        .into_iter()
        .filter(|seen| seen.method == "PUT")
        .map(|seen| seen.path)
        .collect();
    assert!(puts.last().unwrap().ends_with("/manifests/v1"));
}

#[tokio::test]
async fn children_that_are_not_stored_must_be_at_the_registry() {
    let (registry, bench, registry_state, target, name) = push_setup(only("ggml")).await;
    let error = bench.push(&name).await.0.unwrap_err().to_string();
    assert!(
        error.contains("child 1 for mlx") && error.contains("puna pull --all-runners"),
        "{error}"
    );
    assert!(target.seen().iter().all(|seen| seen.method == "HEAD"), "nothing is sent");
    for runner in ["mlx", "llamacpp"] {
        let manifest = model_for(runner).manifest;
        registry_state
            .0
            .lock()
            .unwrap()
            .insert(Digest::of(&manifest).to_string(), (String::new(), manifest));
    }
    bench.push(&name).await.0.unwrap();
    assert_eq!(registry_state.0.lock().unwrap()["v1"].1, registry.list);
    assert!(
        registry_state.has(&model_for("ggml").weights)
            && !registry_state.has(&model_for("llamacpp").weights)
    );
}

#[tokio::test]
async fn other_formats_and_bundles_use_the_selected_child() {
    let (_, bench, _, _, name) = push_setup(all()).await;
    let name = ModelRef::parse(&name).unwrap().name;
    let mut bundle = Vec::new();
    write_bundle(
        &bench.store,
        std::slice::from_ref(&name),
        Format::Ollama,
        &mut bundle,
        &mut |_, _| {},
    )
    .unwrap();
    let there = Bench::new();
    there.registry.read_bundle(&there.store, &bundle[..], Some(&name), false, &mut |_| {}).unwrap();
    let entry = there.store.get(&name).unwrap();
    assert_eq!((entry.digest, entry.list), (Digest::of(&model_for("llamacpp").manifest), None));
}
