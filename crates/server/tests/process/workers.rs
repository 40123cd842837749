//! Tests of file workers: processes for jobs on untrusted files.

use std::path::PathBuf;
use std::time::Instant;

use puna_api::ollama::Progress;
use puna_server::SandboxMode;
use puna_server::file_worker::FileWorkerLauncher;
use puna_store::{Digest, FileJob, JobExecutor, NamedFile, QuantizeJob, StoreError};
use serde_json::json;

use super::Server;

fn zoo(name: &str) -> PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo").join(name)
}

fn quantize(source: PathBuf) -> FileJob {
    FileJob::Quantize(QuantizeJob {
        source,
        part: None,
        target: "Q4_0".into(),
        imatrix: None,
        threads: 2,
        status: "quantizing".into(),
    })
}

/// Output, messages and result of a job.
type JobOutcome = (Vec<u8>, Vec<puna_store::Progress>, Result<(), StoreError>);

/// Runs a job.
type RunJob<'a> = &'a dyn Fn(&mut Vec<u8>, puna_store::ProgressFn<'_>) -> Result<(), StoreError>;

/// Runs a job by a worker and in this process.
fn run_both(job: &FileJob) -> [JobOutcome; 2] {
    let worker = FileWorkerLauncher::this_program(0, SandboxMode::Auto).unwrap();
    let run = |execute: RunJob<'_>| {
        let (mut out, mut lines) = (Vec::new(), Vec::new());
        let result = execute(&mut out, &mut |line| lines.push(line));
        (out, lines, result)
    };
    [
        run(&|out, progress| worker.execute(job, out, progress)),
        run(&|out, progress| job.run(out, progress)),
    ]
}

/// A safetensors file with matrices of zeros.
fn safetensors(matrices: &[(&str, [u64; 2])]) -> Vec<u8> {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in matrices {
        let start = end;
        end += 4 * shape[0] * shape[1];
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]});
        header.insert((*name).to_owned(), entry);
    }
    let header = json!(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + end as usize, 0);
    bytes
}

/// A job that converts a small LoRA adapter for a model of the zoo.
fn adapter_job(folder: &std::path::Path) -> FileJob {
    let base = "base_model.model.model.layers.0.self_attn.v_proj.lora_";
    let (a, b) = (format!("{base}A.weight"), format!("{base}B.weight"));
    let config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 8});
    let model = zoo("llama.gguf");
    let gguf = puna_gguf::Gguf::open(&model).unwrap();
    let shape = gguf.tensor("blk.0.attn_v.weight").unwrap().shape.clone();
    let weights = safetensors(&[(&a, [2, shape[0]]), (&b, [shape[1], 2])]);
    let files = [
        ("adapter_config.json", config.to_string().into_bytes()),
        ("adapter_model.safetensors", weights),
    ];
    let file = |(name, content): (&str, Vec<u8>)| {
        let path = folder.join(name);
        std::fs::write(&path, content).unwrap();
        NamedFile { name: name.into(), path }
    };
    FileJob::ConvertAdapter { files: files.map(file).into(), model }
}

pub(super) fn workers_have_the_results_of_this_process(_: &Server) {
    let folder = tempfile::tempdir().unwrap();
    for job in [quantize(zoo("llama-f16.gguf")), adapter_job(folder.path())] {
        let [(by_worker, lines, result), (here, expected_lines, expected)] = run_both(&job);
        assert_eq!((result, expected), (Ok(()), Ok(())), "{job:?}");
        assert!(here.starts_with(b"GGUF") && by_worker == here, "{job:?}");
        assert_eq!(lines.last(), expected_lines.last());
        let last = lines.last().map(|line| (line.completed, line.total));
        assert!(last.is_none_or(|(completed, total)| completed == total && total > Some(0)));
    }
    // Errors keep their text and their class.
    let absent = folder.path().join("absent.gguf");
    let folder_file = NamedFile { name: "model.safetensors".into(), path: zoo("llama.gguf") };
    for job in [FileJob::Convert { files: vec![folder_file] }, quantize(absent)] {
        let [(_, _, by_worker), (_, _, here)] = run_both(&job);
        let (by_worker, here) = (by_worker.unwrap_err(), here.unwrap_err());
        assert_eq!(by_worker.to_string(), here.to_string());
        assert_eq!(by_worker.is_bad_request(), here.is_bad_request(), "{here}");
    }
    // Printed for the record; a busy machine takes longer.
    let worker = FileWorkerLauncher::this_program(0, SandboxMode::Auto).unwrap();
    let job = FileJob::Convert { files: Vec::new() };
    let times = (0..9).map(|_| {
        let start = Instant::now();
        worker.execute(&job, &mut std::io::sink(), &mut |_| {}).unwrap_err();
        start.elapsed()
    });
    println!("a job without work took {:?}", times.min().unwrap());
}

pub(super) fn models_are_created_by_workers_with_progress(server: &Server) {
    let bytes = std::fs::read(zoo("llama-f16.gguf")).unwrap();
    let digest = Digest::of(&bytes).to_string();
    let create = json!({"model": "small", "files": {"a.gguf": digest}, "quantize": "q4_0"});
    let lines: Vec<Progress> = server.runtime.block_on(async {
        let size = bytes.len() as u64;
        let pieces = futures_util::stream::iter([Ok::<_, std::io::Error>(bytes.into())]);
        server.client.push_blob(&digest, size, pieces).await.unwrap();
        let request = serde_json::from_value(create).unwrap();
        let mut progress = server.client.create(&request).await.unwrap();
        let mut lines = Vec::new();
        while let Some(line) = progress.next().await {
            lines.push(line.unwrap());
        }
        lines
    });
    let bar = lines.iter().rfind(|line| line.status == "quantizing F16 model to Q4_0").unwrap();
    assert!(bar.total > 0 && bar.completed == bar.total, "{lines:?}");
    assert_eq!(lines.last().unwrap().status, "success");
    let mut expected = Vec::new();
    quantize(zoo("llama-f16.gguf")).run(&mut expected, &mut |_| {}).unwrap();
    let blob = server._models.path().join("blobs").join(Digest::of(&expected).file_name());
    assert!(blob.is_file(), "the blob has the bytes of a quantization in this process");
    assert!(server.runners().is_empty(), "a worker ends with its job");
}

/// The task of a worker that reads an importance matrix.
#[cfg(target_os = "linux")]
fn imatrix_task(path: &std::path::Path) -> Vec<u8> {
    let task = json!({"File": {"CheckImatrix": {"path": path}}}).to_string();
    let (version, length) = (1u32.to_le_bytes(), (task.len() as u32).to_le_bytes());
    [&version[..], &length, task.as_bytes()].concat()
}

/// A worker that cannot finish ends when its parent closes the socket.
#[cfg(target_os = "linux")]
pub(super) fn a_worker_ends_with_its_parent(_: &Server) {
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::process::Command;
    let folder = tempfile::tempdir().unwrap();
    // Nobody writes to the pipe, so opening it never returns.
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (mut socket, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    // The sandbox denies pipes.
    command.arg("worker").env("PUNA_SANDBOX", "off").stdin(OwnedFd::from(theirs));
    let mut child = command.spawn().unwrap();
    drop(command);
    socket.write_all(&imatrix_task(&pipe)).unwrap();
    let mut header = [0; 5];
    socket.read_exact(&mut header).unwrap();
    assert_eq!(child.try_wait().unwrap(), None);
    drop(socket);
    super::wait_until("the worker ends", || child.try_wait().unwrap().is_some());
}

/// Attempts to escape from a worker, which has read its task from standard input.
#[cfg(target_os = "linux")]
pub(super) fn escape(model: &str, secret: &str) {
    // Inside, the process cannot ask for it.
    let parent = std::os::unix::process::parent_id();
    puna_server::file_worker::attempt_in_sandbox(|report| {
        super::print_attempts(report, model, secret, parent);
    })
    .unwrap();
}

/// Runs [`escape`] in a process of its own.
#[cfg(target_os = "linux")]
pub(super) fn run_escape(
    model: &std::path::Path,
    secret: &std::path::Path,
) -> std::process::Output {
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    let (mut socket, theirs) = UnixStream::pair().unwrap();
    socket.write_all(&imatrix_task(model)).unwrap();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.arg("escape-worker").args([model, secret]).stdin(OwnedFd::from(theirs));
    let output = command.output().unwrap();
    drop(socket);
    output
}
