//! Tests of creating models with file workers that fail.

use std::io;

use super::*;
use crate::file_worker::FileWorkerLauncher;
use crate::runner::launch::RunnerProcess;
use crate::runner::protocol::{LoadSpec, MemoryParts};
use crate::runner::runner_model::LoadError;

/// A launcher with file workers that run a shell script.
struct ScriptLauncher {
    runners: FakeLauncher,
    script: String,
}

impl Launcher for ScriptLauncher {
    fn launch(&self) -> io::Result<RunnerProcess> {
        self.runners.launch()
    }

    fn plan(&self, spec: &LoadSpec) -> Result<MemoryParts, LoadError> {
        self.runners.plan(spec)
    }

    fn file_worker(&self) -> Option<FileWorkerLauncher> {
        Some(FileWorkerLauncher::of_script(&self.script))
    }
}

fn server(script: impl Into<String>) -> TestServer {
    let fake = Arc::<Fake>::default();
    let runners = FakeLauncher(fake.clone());
    let launcher = Arc::new(ScriptLauncher { runners, script: script.into() });
    TestApp::with_launcher(|_| {}, |_| {}, fake, launcher).serve(None)
}

/// Names of all blobs and temporary files of the store.
fn stored_files(server: &TestServer) -> Vec<String> {
    let folders = ["blobs", "puna-tmp"].map(|name| server._models.path().join(name));
    let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let files = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    files.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

async fn upload(server: &TestServer, name: &str) -> String {
    let zoo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo");
    let bytes = std::fs::read(zoo.join(name)).unwrap();
    let digest = format!("sha256:{}", puna_store::Digest::of(&bytes).hex());
    let request = Request::post(format!("/api/blobs/{digest}")).body(Body::from(bytes)).unwrap();
    assert_eq!(server.send(request).await.status, 201);
    digest
}

#[tokio::test]
async fn a_killed_worker_fails_its_create_alone_and_leaves_no_file() {
    // The worker sends four bytes of the output and dies in the middle of a frame.
    let script = r"printf '\001\004\000\000\000GGUF\001\004\000\000\000G' >&0; kill -9 $$";
    let server = server(script);
    let digest = upload(&server, "llama-f16.gguf").await;
    let before = stored_files(&server);
    let convert = json!({"model": "small", "files": {"a.safetensors": digest}, "stream": false});
    let answer = server.post("/api/create", convert).await;
    assert_eq!(answer.status, 500, "{}", answer.body);
    let error = answer.json()["error"].as_str().unwrap().to_owned();
    let start = "cannot convert the model: the process that reads the files stopped unexpectedly (signal: 9, killed";
    assert!(error.starts_with(start) && error.ends_with("then retry"), "{error}");
    assert_eq!(stored_files(&server), before);
    let tags = server.get("/api/tags").await.json();
    assert_eq!(tags["models"].as_array().unwrap().len(), 1, "{tags}");
}

#[tokio::test]
async fn every_check_of_a_create_names_its_stage_when_its_worker_dies() {
    let server = server("echo 'thread main panicked at 1:1: broken' >&2; exit 101");
    let digest = upload(&server, "llama-f16.gguf").await;
    let files = json!({"model": "m", "files": {"a.gguf": digest.clone()}, "stream": false});
    let template = json!({"model": "m", "from": "cria", "template": "{{ .Prompt }}",
        "stream": false});
    let imatrix = json!({"model": "m", "from": "cria", "quantize": "q8_0", "imatrix": digest,
        "stream": false});
    for (request, stage) in [
        (files, "cannot check the model: "),
        (template, "cannot check the template: "),
        (imatrix, "cannot check the importance matrix: "),
    ] {
        let answer = server.post("/api/create", request).await;
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        let reason = "(exit status 101: thread main panicked at 1:1: broken)";
        assert!(error.contains(stage) && error.contains(reason), "{error}");
    }
}

#[tokio::test]
async fn a_worker_sends_no_control_sequences_to_clients() {
    let status =
        r#"{"Progress":{"status":"\u001b[2Jx","digest":null,"total":null,"completed":null}}"#;
    let length = status.len();
    assert!(length < 128, "{length}");
    let header = format!("printf '\\000\\{length:03o}\\000\\000\\000' >&0;");
    let script = format!("{header} printf %s '{status}' >&0; exit 4");
    let server = server(script);
    let digest = upload(&server, "llama-f16.gguf").await;
    let convert = json!({"model": "small", "files": {"a.safetensors": digest}});
    let lines = server.post("/api/create", convert).await.lines();
    let statuses: Vec<_> = lines.iter().filter_map(|line| line["status"].as_str()).collect();
    assert!(statuses.contains(&"\u{fffd}[2Jx"), "{lines:?}");
    let error = lines.last().unwrap()["error"].as_str().unwrap();
    assert!(error.contains("(exit status 4)"), "{error}");
}
