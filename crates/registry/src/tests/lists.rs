//! Pulls of manifest lists.

use serde_json::Value;

use super::*;

/// A registry with a manifest list.
#[derive(Clone, Default)]
pub(crate) struct ListRegistry {
    pub(crate) list: Bytes,
    /// Manifests by digest.
    pub(crate) manifests: HashMap<String, Bytes>,
    blobs: HashMap<String, Bytes>,
    /// Manifest for clients that do not accept manifest lists.
    default: Option<Bytes>,
}

/// Runner and format of each model in a list.
pub(crate) const RUNNERS: [(&str, &str); 3] =
    [("mlx", "safetensors"), ("ggml", "gguf"), ("llamacpp", "gguf")];

/// A model for a runner, with its own weights and a shared template.
pub(crate) fn model_for(runner: &str) -> Model {
    let seed = runner.bytes().map(u64::from).sum();
    let kind = if runner == "mlx" { "application/vnd.ollama.image.tensor" } else { media::MODEL };
    Model::of(&[
        (kind, noise(2 << 20, seed).into()),
        (media::TEMPLATE, Bytes::from_static(b"{{ .Prompt }}")),
        (media::CONFIG, Bytes::from(format!("{{\"runner\":\"{runner}\"}}"))),
    ])
}

fn reference(manifest: &Bytes, runner: &str, format: &str) -> Value {
    json!({"mediaType": media::MANIFEST, "digest": Digest::of(manifest).to_string(), "runner": runner, "format": format})
}

fn list_of(children: &[Value]) -> Bytes {
    let list = json!({"schemaVersion": 2, "mediaType": media::MANIFEST_LIST, "manifests": children, "unknown": 1});
    list.to_string().into()
}

impl ListRegistry {
    /// A list with references to a model for each runner.
    pub(crate) fn of(runners: &[(&str, &str)]) -> Self {
        let models: Vec<Model> = runners.iter().map(|(runner, _)| model_for(runner)).collect();
        let children =
            runners.iter().zip(&models).map(|((r, f), model)| reference(&model.manifest, r, f));
        let list = list_of(&children.collect::<Vec<_>>());
        Self { list, ..Self::default() }.with(&models)
    }

    fn with(mut self, models: &[Model]) -> Self {
        for model in models {
            self.manifests.insert(Digest::of(&model.manifest).to_string(), model.manifest.clone());
            self.blobs.extend(model.blobs.clone());
        }
        self
    }

    pub(crate) fn answer(&self, seen: &SeenRequest) -> Response {
        let id = seen.path.rsplit('/').next().unwrap_or_default();
        if !seen.path.contains("/manifests/") {
            return match self.blobs.get(id) {
                Some(blob) => ranged(blob, seen),
                None => status(404, ""),
            };
        }
        let knows_lists = seen.header("accept").contains(media::MANIFEST_LIST);
        let found = match (&self.default, id.starts_with("sha256:")) {
            (_, true) => self.manifests.get(id),
            (Some(default), false) if !knows_lists => Some(default),
            _ => Some(&self.list),
        };
        match found {
            Some(bytes) => status(200, bytes.clone()),
            None => status(404, r#"{"errors":[{"code":"MANIFEST_UNKNOWN"}]}"#),
        }
    }

    pub(crate) async fn serve(&self) -> Server {
        let served = self.clone();
        Server::start(move |seen| served.answer(&seen)).await
    }
}

pub(crate) fn only(runner: &str) -> Options {
    Options { runner: Some(runner.into()), ..Options::default() }
}

pub(crate) fn all() -> Options {
    Options { all_runners: true, ..Options::default() }
}

impl Bench {
    async fn pull_these(&self, name: &str, options: Options) -> Vec<Progress> {
        let (done, lines) = self.pull_with(name, options).await;
        done.unwrap();
        lines
    }

    /// The runner of the chosen child, and the runners of all stored children. Checks that the
    /// latter's blobs are complete.
    fn runners(&self, name: &str, list: &Bytes) -> (String, Vec<String>) {
        let (entry, bytes) =
            self.store.manifest_bytes(&ModelRef::parse(name).unwrap().name).unwrap();
        assert_eq!(
            (entry.digest, &bytes[..]),
            (Digest::of(list), &list[..]),
            "the list is the name's identity"
        );
        for layer in entry.blobs() {
            self.store.verify_blob(&layer.digest).unwrap();
        }
        assert_eq!(self.store.pulls().unwrap(), [], "a finished pull is not noted");
        let children = &entry.list.as_ref().unwrap().children;
        let present = children.iter().filter(|stored| stored.manifest.is_some());
        (entry.runner.clone(), present.map(|stored| stored.child.runner.clone()).collect())
    }

    /// All files of the store with their contents, except locks and records.
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let mut open: Vec<_> =
            ["blobs", "manifests", "manifests-v2"].map(|dir| self.root().join(dir)).into();
        let mut files = Vec::new();
        while let Some(dir) = open.pop() {
            for entry in std::fs::read_dir(dir).into_iter().flatten() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => open.push(path),
                    false => {
                        files.push((path.display().to_string(), std::fs::read(&path).unwrap()))
                    }
                }
            }
        }
        files.sort();
        files
    }
}

#[tokio::test]
async fn the_child_that_runs_on_this_machine_is_pulled_and_the_list_is_stored() {
    let registry = ListRegistry::of(&RUNNERS);
    let server = registry.serve().await;
    let bench = Bench::new();
    let lines = bench.pull_ok(&server.model()).await;
    assert_eq!(
        bench.runners(&server.model(), &registry.list),
        ("llamacpp".into(), vec!["llamacpp".into()])
    );
    let statuses: Vec<&str> = lines.iter().map(|line| line.status.as_str()).collect();
    assert_eq!(statuses[..2], ["pulling manifest", "pulling manifest for llamacpp"]);
    assert!(
        statuses.ends_with(&["verifying sha256 digest", "writing manifest", "success"]),
        "{statuses:?}"
    );
    let seen = server.seen();
    let digest = Digest::of(&model_for("llamacpp").manifest);
    assert_eq!(seen[1].path, format!("/v2/test/m/manifests/{digest}"));
    assert!(!seen[1].header("accept").contains(media::MANIFEST_LIST), "a child is no list");
    // Only the list is fetched again.
    bench.pull_ok(&server.model()).await;
    assert_eq!(server.seen().len(), seen.len() + 1);
    assert_eq!(server.seen().last().unwrap().path, "/v2/test/m/manifests/latest");
}

#[tokio::test]
async fn the_request_accepts_manifest_lists() {
    let mut registry = ListRegistry::of(&RUNNERS);
    registry.default = Some(model_for("ggml").manifest);
    let server = registry.serve().await;
    let bench = Bench::new();
    bench.pull_ok(&server.model()).await;
    assert_eq!(bench.runners(&server.model(), &registry.list).0, "llamacpp");
    // A registry without manifest lists answers with a plain manifest, which may name its runner.
    let mut plain: Value = serde_json::from_slice(&model_for("ggml").manifest).unwrap();
    plain["runner"] = "ggml".into();
    registry.list = plain.to_string().into();
    let server = registry.serve().await;
    bench.pull_these(&server.model(), only("GGML")).await;
    let entry = bench.store.get(&ModelRef::parse(&server.model()).unwrap().name).unwrap();
    assert_eq!((entry.list, entry.digest), (None, Digest::of(&registry.list)));
    let error = bench.pull_with(&server.model(), only("mlx")).await.0.unwrap_err().to_string();
    assert!(error.contains("no compatible manifest found for runners: mlx"), "{error}");
}

#[tokio::test]
async fn inline_children_need_no_request() {
    let model = model_for("llamacpp");
    let mut inline: Value = serde_json::from_slice(&model.manifest).unwrap();
    inline["runner"] = "llamacpp".into();
    inline["format"] = "gguf".into();
    let mlx = model_for("mlx");
    let list = list_of(&[reference(&mlx.manifest, "mlx", "safetensors"), inline]);
    let registry = ListRegistry { list, ..ListRegistry::default() }.with(&[model]);
    let server = registry.serve().await;
    let bench = Bench::new();
    bench.pull_ok(&server.model()).await;
    assert_eq!(bench.runners(&server.model(), &registry.list).0, "llamacpp");
    assert_eq!(server.seen().iter().filter(|seen| seen.path.contains("/manifests/")).count(), 1);
}

#[tokio::test]
async fn further_runners_are_added_to_the_same_list() {
    let registry = ListRegistry::of(&RUNNERS);
    let server = registry.serve().await;
    let (name, bench) = (server.model(), Bench::new());
    bench.pull_these(&name, only("GGML")).await;
    assert_eq!(bench.runners(&name, &registry.list), ("ggml".into(), vec!["ggml".into()]));
    bench.pull_ok(&name).await;
    assert_eq!(bench.runners(&name, &registry.list).1, ["ggml", "llamacpp"]);
    let before = server.blob_requests().len();
    let lines = bench.pull_these(&name, all()).await;
    let (runner, present) = bench.runners(&name, &registry.list);
    assert_eq!(
        (runner.as_str(), present),
        ("llamacpp", ["mlx", "ggml", "llamacpp"].map(String::from).to_vec())
    );
    let of_mlx: Vec<String> = model_for("mlx").blobs.into_keys().collect();
    let requested = server.blob_requests().split_off(before);
    assert!(requested.iter().all(|seen| of_mlx.iter().any(|digest| seen.path.ends_with(digest))));
    assert!(lines.iter().any(|line| line.status == "pulling manifest for mlx"));
    let error = bench.pull_with(&name, only("other")).await.0.unwrap_err().to_string();
    assert!(
        error.contains("runners: other") && error.contains("mlx (safetensors), ggml (gguf)"),
        "{error}"
    );
}

#[tokio::test]
async fn a_list_without_a_usable_child_is_pulled_only_by_its_runner() {
    let registry = ListRegistry::of(&RUNNERS[..1]);
    let server = registry.serve().await;
    let bench = Bench::new();
    let error = bench.pull_err(&server.model()).await;
    assert!(error.contains("cannot run") && error.contains("mlx (safetensors)"), "{error}");
    assert!(server.blob_requests().is_empty());
    bench.pull_these(&server.model(), only("mlx")).await;
    assert_eq!(bench.runners(&server.model(), &registry.list).0, "mlx");
    // A child that claims to be a GGUF file but has tensor layers is refused.
    let list = list_of(&[reference(&model_for("mlx").manifest, "ggml", "gguf")]);
    let server = ListRegistry { list, ..registry }.serve().await;
    assert!(bench.pull_err(&server.model()).await.contains("it has tensor layers"));
}

#[tokio::test]
async fn an_interrupted_pull_of_a_list_is_listed_and_resumes() {
    let registry = ListRegistry::of(&RUNNERS);
    let (served, weights) = (registry.clone(), model_for("ggml").weights.to_string());
    let failing = Arc::new(Mutex::new(true));
    let fails = failing.clone();
    let server =
        Server::start(move |seen| match *fails.lock().unwrap() && seen.path.ends_with(&weights) {
            true => status(403, "not now"),
            false => served.answer(&seen),
        })
        .await;
    let (name, bench) = (server.model(), Bench::new());
    assert!(bench.pull_with(&name, all()).await.0.is_err());
    let pulls = bench.store.pulls().unwrap();
    let total = registry.blobs.values().map(|blob| blob.len() as u64).sum::<u64>();
    assert_eq!(pulls.iter().map(|pull| pull.total).collect::<Vec<_>>(), [total]);
    assert!(pulls[0].completed > 2 << 20, "what has arrived counts");
    assert!(bench.store.find(&pulls[0].name).unwrap().is_none());
    *failing.lock().unwrap() = false;
    let before = server.blob_requests().len();
    bench.pull_these(&name, all()).await;
    assert_eq!(bench.runners(&name, &registry.list).1.len(), 3);
    let mlx = model_for("mlx").weights.to_string();
    assert!(server.blob_requests()[before..].iter().all(|seen| !seen.path.ends_with(&mlx)));
}

#[tokio::test]
async fn a_list_does_not_tell_which_manifests_of_others_are_stored() {
    let registry = ListRegistry::of(&RUNNERS);
    let server = registry.serve().await;
    let mut requests = Vec::new();
    for is_stored in [false, true] {
        let (bench, before) = (Bench::new(), server.seen().len());
        if is_stored {
            registry
                .manifests
                .values()
                .for_each(|text| _ = bench.store.add_manifest(text).unwrap());
        }
        bench.pull_these(&server.model(), super::pull::without_reuse()).await;
        let seen = server.seen().split_off(before).into_iter().map(|seen| seen.path);
        requests.push(seen.filter(|path| path.contains("/manifests/")).collect::<Vec<_>>());
    }
    assert_eq!((requests[0].len(), &requests[0]), (2, &requests[1]));
}

#[tokio::test]
async fn bad_lists_are_refused_with_their_entry_and_nothing_is_removed() {
    let good = ListRegistry::of(&RUNNERS);
    let current = Arc::new(Mutex::new(good.clone()));
    let served = current.clone();
    let server = Server::start(move |seen| served.lock().unwrap().answer(&seen)).await;
    let (name, bench) = (server.model(), Bench::new());
    bench.pull_ok(&name).await;
    let before = bench.files();
    let [mlx, ggml, llamacpp] = RUNNERS.map(|(runner, _)| model_for(runner).manifest);
    let of = |manifest: &Bytes, runner: &str| reference(manifest, runner, "gguf");
    let many: Vec<Value> =
        (0..10_000).map(|n| of(&Bytes::from(n.to_string()), &n.to_string())).collect();
    let nested = list_of(&[of(&ggml, "ggml")]);
    let mut wrong_model: Value = serde_json::from_slice(&ggml).unwrap();
    wrong_model["digest"] = Digest::of(b"another").to_string().into();
    let escaping =
        json!({"mediaType": media::MANIFEST, "digest": "sha256:../../x", "runner": "ggml"});
    let absent = Bytes::from_static(b"absent");
    let swapped = of(&Bytes::from_static(b"swapped"), "ggml");
    let mut with_more = good.clone().manifests;
    with_more.insert(Digest::of(&nested).to_string(), nested.clone());
    with_more.insert(Digest::of(b"swapped").to_string(), ggml.clone());
    for (children, reasons) in [
        (vec![], ["no children", ""]),
        (many, ["10000 children", "at most 64"]),
        (
            vec![of(&absent, "ggml"), of(&llamacpp, "llamacpp")],
            ["child 1 for ggml", "the registry lacks"],
        ),
        (vec![of(&ggml, "ggml"), of(&llamacpp, "GGML")], ["two children for the runner", "ggml"]),
        (
            vec![serde_json::from_slice(&nested).unwrap()],
            ["child 1 of the list is a list itself", ""],
        ),
        (vec![of(&mlx, "mlx"), of(&nested, "ggml")], ["child 2 for ggml", "is a list itself"]),
        (
            vec![of(&mlx, "mlx"), wrong_model],
            ["child 2 of the list has the digest", "but the list says"],
        ),
        (vec![swapped], ["child 1 for ggml", "digest"]),
        (vec![escaping], ["child 1 of the list has the invalid digest", "../../x"]),
    ] {
        let list = list_of(&children);
        *current.lock().unwrap() =
            ListRegistry { list, manifests: with_more.clone(), ..good.clone() };
        let error = bench.pull_with(&name, all()).await.0.unwrap_err().to_string();
        assert!(error.starts_with("pull model manifest: "), "{error}");
        assert!(reasons.iter().all(|reason| error.contains(reason)), "{error}");
        assert!(error.len() < 600, "{error}");
        assert_eq!(bench.files(), before, "{error}");
        assert_eq!(bench.runners(&name, &good.list).0, "llamacpp");
    }
}
