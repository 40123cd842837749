//! Pulls by Hugging Face's file listing, and pulls of files by URL.

use puna_gguf::{Gguf, Writer};
use puna_quant::TensorType;
use puna_store::ModelName;

use super::*;
use crate::FileUrl;
use crate::client::hosts::{Credentials, Host, Secret};

/// A model in two files, as llama.cpp splits it.
fn split() -> [Bytes; 2] {
    [0u32, 1].map(|number| {
        let mut writer = Writer::new();
        if number == 0 {
            writer.set("general.architecture", "llama").set("general.file_type", 0u32);
            writer.set("llama.context_length", 64u32).set("llama.embedding_length", 2u32);
        }
        writer
            .set("split.no", number as u16)
            .set("split.count", 2u16)
            .set("split.tensors.count", 2i32);
        writer.tensor(&format!("blk.{number}.attn_norm.weight"), TensorType::F32, &[2]).unwrap();
        writer.to_vec([&[number as u8; 8][..]]).unwrap().into()
    })
}

fn whole() -> Bytes {
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama").set("general.file_type", 0u32);
    writer.set("llama.context_length", 64u32).set("llama.embedding_length", 2u32);
    writer.tensor("output_norm.weight", TensorType::F32, &[2]).unwrap();
    writer.to_vec([&[0u8; 8][..]]).unwrap().into()
}

/// A stand-in for Hugging Face that has no registry API, and lists one file per page.
async fn hub(files: Vec<(&'static str, Bytes)>) -> Server {
    hub_without(files, Arc::default()).await
}

/// The same; one file cannot be downloaded at the moment.
async fn hub_without(
    files: Vec<(&'static str, Bytes)>,
    missing: Arc<Mutex<Option<&'static str>>>,
) -> Server {
    let commit = "0123456789abcdef0123456789abcdef01234567";
    Server::start(move |seen| {
        if seen.header("authorization") != "Bearer hf_secret" {
            return status(404, "Repository not found");
        }
        let path = seen.path.as_str();
        if path.starts_with("/v2/") {
            return status(400, r#"{"error":"The specified repository contains sharded GGUF."}"#);
        }
        if path == "/api/models/test/m/refs" {
            let refs = json!({"tags": [], "branches": [{"name": "main", "ref": "refs/heads/main", "targetCommit": commit}]});
            return status(200, refs.to_string());
        }
        if path == format!("/api/models/test/m/tree/{commit}") {
            let page: usize = seen.query.split("cursor=").nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
            assert!(seen.query.starts_with("recursive=true"));
            let (name, bytes) = &files[page];
            let hex = Digest::of(bytes).hex();
            let list = json!([
                {"type": "directory", "path": "Q4", "oid": "x", "size": 0},
                {"type": "file", "path": "README.md", "oid": "y", "size": 10},
                {"type": "file", "path": name, "oid": "z", "size": bytes.len(), "lfs": {"oid": hex, "size": bytes.len(), "pointerSize": 1}},
            ]);
            let mut response = status(200, list.to_string());
            if page + 1 < files.len() {
                let next = format!("<http://{}{path}?recursive=true&cursor={}>; rel=\"next\"", seen.header("host"), page + 1);
                response.headers_mut().insert("Link", next.parse().unwrap());
            }
            return response;
        }
        let file = path.strip_prefix(&format!("/test/m/resolve/{commit}/"));
        match file.and_then(|file| files.iter().find(|(name, _)| *name == file)) {
            Some((name, _)) if *missing.lock().unwrap() == Some(*name) => status(501, "not now"),
            Some((_, bytes)) => ranged(bytes, &seen),
            None => status(404, ""),
        }
    })
    .await
}

fn bench(server: &Server) -> Bench {
    let token = Credentials::Token(Secret::Text("hf_secret".into()));
    let host = Host { http: true, hub: true, credentials: Some(token), ..Host::default() };
    Bench::with(|settings| settings.hosts.set(&server.host, host))
}

#[tokio::test]
async fn a_split_model_is_pulled_by_the_listing_and_merged() {
    let [first, second] = split();
    let files = vec![
        ("Q4/m-Q4_0-00001-of-00002.gguf", first),
        ("Q4/m-Q4_0-00002-of-00002.gguf", second),
        ("m-Q8_0.gguf", whole()),
    ];
    let server = hub(files).await;
    let bench = bench(&server);
    let name = format!("{}:Q4_0", server.model());
    let lines = bench.pull_ok(&name).await;
    let done = lines.iter().filter(|line| line.total > 0 && line.completed == line.total);
    assert_eq!(
        done.filter_map(|line| line.digest).collect::<std::collections::HashSet<_>>().len(),
        2
    );
    let entry = bench.store.get(&ModelRef::parse(&name).unwrap().name).unwrap();
    let weights = entry.manifest.last(media::MODEL).unwrap().digest;
    let gguf = Gguf::open(&bench.store.blob_path(&weights)).unwrap();
    assert_eq!(gguf.tensors().len(), 2);
    // Weights, config and the record of the sources. The split files are removed.
    bench.assert_files(3);
    let before = server.seen().iter().filter(|seen| seen.path.contains("/resolve/")).count();
    bench.pull_ok(&name).await;
    let after = server.seen().iter().filter(|seen| seen.path.contains("/resolve/")).count();
    assert_eq!(before, after, "what has not changed is not fetched again");

    let text = bench.pull_err(&format!("{}:IQ1_S", server.model())).await;
    assert!(
        text.contains("no file for the tag \"IQ1_S\"") && text.contains("m-Q8_0.gguf"),
        "{text}"
    );
}

#[tokio::test]
async fn without_the_token_the_listing_is_not_found() {
    let server = hub(vec![("m-Q8_0.gguf", whole())]).await;
    let host = Host { hub: true, ..Host::default() };
    let bench = Bench::with(|settings| settings.hosts.set(&server.host, host));
    assert_eq!(bench.pull_err(&server.model()).await, "pull model manifest: file does not exist");
}

#[tokio::test]
async fn a_wrong_digest_in_the_listing_is_detected() {
    let server = Server::start(move |seen| match seen.path.as_str() {
        path if path.starts_with("/v2/") => status(400, "sharded"),
        "/api/models/test/m/refs" => {
            status(200, r#"{"branches":[{"name":"main","targetCommit":"abc"}]}"#)
        }
        "/api/models/test/m/tree/abc" => {
            let lfs = json!({"oid": Digest::of(b"other").hex(), "size": whole().len()});
            status(200, json!([{"type": "file", "path": "../m.gguf", "lfs": lfs}, {"type": "file", "path": "m.gguf", "lfs": lfs}]).to_string())
        }
        _ => ranged(&whole(), &seen),
    })
    .await;
    let host = Host { hub: true, ..Host::default() };
    let bench = Bench::with(|settings| settings.hosts.set(&server.host, host));
    let text = bench.pull_err(&server.model()).await;
    assert!(text.starts_with("digest mismatch"), "{text}");
    assert!(server.seen().iter().all(|seen| !seen.path.contains("..")));
}

impl Bench {
    async fn pull_file(&self, url: &str) -> Result<ModelName, RegistryError> {
        let file = FileUrl::parse(url).unwrap().unwrap();
        let (report, mut lines) = mpsc::channel(1000);
        let done = self.registry.pull_file(&self.store, &file, &Options::default(), report).await;
        while lines.recv().await.is_some() {}
        done.map(|()| file.name().clone())
    }
}

#[tokio::test]
async fn a_file_by_url_becomes_a_model_with_and_without_a_digest() {
    let server = Server::start(|seen| match seen.path.as_str() {
        "/models/tiny-F32.gguf" => {
            let mut response = ranged(&whole(), &seen);
            response.headers_mut().insert("ETag", "\"v1\"".parse().unwrap());
            response
        }
        _ => status(404, ""),
    })
    .await;
    let url = format!("http://{}/models/tiny-F32.gguf", server.host);
    let digest = Digest::of(&whole());
    for address in [url.clone(), format!("{url}#sha256={}", digest.hex())] {
        let bench = Bench::new();
        let name = bench.pull_file(&address).await.unwrap();
        assert_eq!(name.to_string(), "tiny-F32:latest");
        let entry = bench.store.get(&name).unwrap();
        assert_eq!(entry.manifest.last(media::MODEL).unwrap().digest, digest);
        bench.assert_files(3);
        let before = server.seen().len();
        bench.pull_file(&address).await.unwrap();
        assert_eq!(server.seen().len(), before + 1, "one question tells that nothing has changed");
    }
    let wrong = format!("{url}#sha256={}", "ab".repeat(32));
    let error = Bench::new().pull_file(&wrong).await.unwrap_err().to_string();
    assert!(error.starts_with("digest mismatch"), "{error}");
    let missing = format!("http://{}/none.gguf", server.host);
    assert_eq!(Bench::new().pull_file(&missing).await.unwrap_err(), RegistryError::NotFound);
}

#[tokio::test]
async fn an_interrupted_listed_model_is_recorded_under_its_name() {
    const SECOND: &str = "m-Q4_0-00002-of-00002.gguf";
    let [first, second] = split();
    let (here, all) = (first.len() as u64, (first.len() + second.len()) as u64);
    let missing = Arc::new(Mutex::new(Some(SECOND)));
    let server =
        hub_without(vec![("m-Q4_0-00001-of-00002.gguf", first), (SECOND, second)], missing.clone())
            .await;
    let bench = bench(&server);
    let name = format!("{}:Q4_0", server.model());
    bench.pull_err(&name).await;
    let [pull] = &bench.store.pulls().unwrap()[..] else { panic!("one pull") };
    assert_eq!(pull.name, ModelRef::parse(&name).unwrap().name);
    assert_eq!((pull.completed, pull.total), (here, all));
    *missing.lock().unwrap() = None;
    bench.pull_ok(&name).await;
    assert_eq!(bench.store.pulls().unwrap(), []);
}

#[tokio::test]
async fn an_interrupted_file_is_recorded_under_the_models_name() {
    let whole_size = whole().len() as u64;
    let server = Server::start(move |seen| match seen.header("range") {
        "bytes=0-0" => ranged(&whole(), &seen),
        _ => status(501, "not now"),
    })
    .await;
    let bench = Bench::new();
    let url = format!("http://{}/tiny.gguf", server.host);
    bench.pull_file(&url).await.unwrap_err();
    let [pull] = &bench.store.pulls().unwrap()[..] else { panic!("one pull") };
    assert_eq!((pull.name.to_string().as_str(), pull.total), ("tiny:latest", whole_size));
}
