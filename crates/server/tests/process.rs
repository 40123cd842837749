//! A real server with real runner processes and the embedded model: behaviour when one of them
//! dies.
//!
//! The test program is its own runner and file worker: the arguments `runner` and `worker` make it
//! one.

#[path = "process/workers.rs"]
mod workers;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use puna_api::ollama::{ChatRequest, GenerateRequest, Message};
use puna_api::{Client, ClientError, KeepAlive};
use puna_server::{Config, SandboxMode};
use serde_json::json;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("runner") => {
            if let Err(error) = puna_server::runner::main(&args[2..]) {
                eprintln!("{error}");
                std::process::exit(1);
            }
        }
        Some("worker") => {
            if let Err(error) = puna_server::file_worker::main() {
                eprintln!("{error}");
                std::process::exit(1);
            }
        }
        Some("server") => serve(&args[2]),
        #[cfg(target_os = "linux")]
        Some("escape") => escape(&args[2], &args[3]),
        #[cfg(target_os = "linux")]
        Some("escape-worker") => workers::escape(&args[2], &args[3]),
        _ => tests(&args[1..]),
    }
}

/// Runs a server on a free port, prints the port, and serves until it is killed.
fn serve(models: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap().port());
        let mut config = Config::with_models(std::path::Path::new(models));
        let sandbox = std::env::var("PUNA_SANDBOX").unwrap_or_default();
        config.sandbox = SandboxMode::from_name(&sandbox).unwrap_or_default();
        let mut terminated =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
        let end = async {
            terminated.recv().await;
        };
        puna_server::serve(config, listener, end).await.unwrap();
    });
}

/// Variable of the server that its runners must not have.
const SECRET_VARIABLE: &str = "PUNA_REMOTE_KEYS";

type Test = (&'static str, fn(&Server));

const TESTS: &[Test] = &[
    ("the_embedded_model_answers_and_is_listed", the_embedded_model_answers_and_is_listed),
    (
        "a_killed_runner_costs_its_requests_an_error_and_nothing_else",
        a_killed_runner_costs_its_requests_an_error_and_nothing_else,
    ),
    (
        "metrics_of_the_engine_are_those_of_the_answers",
        metrics_of_the_engine_are_those_of_the_answers,
    ),
    (
        "a_draft_model_is_loaded_beside_the_model_and_changes_no_answer",
        a_draft_model_is_loaded_beside_the_model_and_changes_no_answer,
    ),
    ("a_client_that_leaves_lets_its_runner_rest", a_client_that_leaves_lets_its_runner_rest),
    (
        "texts_to_tokenize_are_bounded_and_a_client_that_leaves_ends_their_tokenizing",
        texts_to_tokenize_are_bounded_and_a_client_that_leaves_ends_their_tokenizing,
    ),
    (
        "idle_connections_of_one_address_lock_no_other_client_out",
        idle_connections_of_one_address_lock_no_other_client_out,
    ),
    ("an_unloaded_model_leaves_no_process", an_unloaded_model_leaves_no_process),
    ("runners_end_with_their_server", runners_end_with_their_server),
    ("a_server_that_is_told_to_end_says_so", a_server_that_is_told_to_end_says_so),
    ("half_a_request_does_not_hold_the_end_up", half_a_request_does_not_hold_the_end_up),
    (
        "a_blob_that_is_there_is_answered_to_clients_that_send_it_all",
        a_blob_that_is_there_is_answered_to_clients_that_send_it_all,
    ),
    ("a_taken_port_says_by_whom", a_taken_port_says_by_whom),
    #[cfg(target_os = "linux")]
    ("no_escape_from_the_sandbox_succeeds", no_escape_from_the_sandbox_succeeds),
    #[cfg(target_os = "linux")]
    ("models_answer_inside_the_sandbox", models_answer_inside_the_sandbox),
    #[cfg(target_os = "linux")]
    (
        "a_sandbox_that_is_off_is_shown_and_one_that_is_required_holds",
        a_sandbox_that_is_off_is_shown_and_one_that_is_required_holds,
    ),
    ("workers_have_the_results_of_this_process", workers::workers_have_the_results_of_this_process),
    (
        "models_are_created_by_workers_with_progress",
        workers::models_are_created_by_workers_with_progress,
    ),
    #[cfg(target_os = "linux")]
    ("a_worker_ends_with_its_parent", workers::a_worker_ends_with_its_parent),
];

/// Runs the tests with one of the words in their names. It supports `--list` and the harness
/// options that test runners need.
fn tests(words: &[String]) {
    let asks = |option: &str| words.iter().any(|w| w == option);
    if asks("--list") {
        // Test runners list again for ignored tests: there are none.
        let listed = if asks("--ignored") { &[] } else { TESTS };
        return listed.iter().for_each(|(name, _)| println!("{name}: test"));
    }
    let exact = asks("--exact");
    let words: Vec<_> = words.iter().filter(|w| !w.starts_with('-')).collect();
    let is_meant = |name: &str, word: &str| if exact { name == word } else { name.contains(word) };
    let wanted = |name: &str| words.is_empty() || words.iter().any(|w| is_meant(name, w));
    for (name, test) in TESTS.iter().filter(|(name, _)| wanted(name)) {
        test(&Server::start());
        println!("test {name} ... ok");
    }
}

struct Server {
    child: std::cell::RefCell<Child>,
    port: u16,
    runtime: tokio::runtime::Runtime,
    client: Client,
    _models: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let models = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        command.arg("server").arg(models.path());
        Self::start_with(models, command)
    }

    /// Starts a server that may open this number of files at most.
    fn with_open_files(max: usize) -> Self {
        let models = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("ulimit -n {max} && exec \"$0\" \"$@\""));
        command.arg(std::env::current_exe().unwrap()).arg("server").arg(models.path());
        Self::start_with(models, command)
    }

    /// Starts a server with a value of the setting `sandbox`.
    #[cfg(target_os = "linux")]
    fn with_sandbox(mode: SandboxMode) -> Self {
        let models = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("server").arg(models.path()).env("PUNA_SANDBOX", mode.name());
        Self::start_with(models, command)
    }

    fn start_with(models: tempfile::TempDir, mut command: Command) -> Self {
        command.env(SECRET_VARIABLE, "gpu.example:8000=secret");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        let port = line.trim().parse().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let client = Client::new(format!("http://127.0.0.1:{port}"));
        Self { child: child.into(), port, runtime, client, _models: models }
    }

    /// Child processes of the server.
    fn runners(&self) -> Vec<u32> {
        children_of(self.child.borrow().id())
    }

    /// Starts a chat, reads the first piece, calls `then`, and reads the rest.
    fn chat(&self, num_predict: i64, then: impl FnOnce()) -> Result<String, ClientError> {
        self.runtime.block_on(async {
            let mut stream = self.client.chat(&request(num_predict)).await?;
            let mut text = all_of(stream.next().await.unwrap()?.message);
            then();
            while let Some(line) = stream.next().await {
                text.push_str(&all_of(line?.message));
            }
            Ok(text)
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut child = self.child.borrow_mut();
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn request(num_predict: i64) -> ChatRequest {
    // `ignore_eos` makes a small model generate up to the token limit.
    let options =
        json!({"temperature": 1.0, "seed": 1, "ignore_eos": true, "num_predict": num_predict});
    ChatRequest {
        model: "cria".into(),
        messages: vec![Message::text("user", "What is the capital of France?")],
        options: options.as_object().cloned(),
        ..ChatRequest::default()
    }
}

fn children_of(parent: u32) -> Vec<u32> {
    let ids = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|e| e.unwrap().file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let fields: Vec<_> =
            stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
        // Not a zombie, and of this parent.
        fields.len() > 1 && fields[0] != "Z" && fields[1].parse() == Ok(parent)
    })
    .collect()
}

fn kill(id: u32) {
    assert!(Command::new("kill").args(["-9", &id.to_string()]).status().unwrap().success());
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn processor_time(id: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn the_embedded_model_answers_and_is_listed(server: &Server) {
    let (list, answer) = server.runtime.block_on(async {
        let options = json!({"temperature": 0.0, "num_predict": 24});
        let request = ChatRequest {
            stream: Some(false),
            options: options.as_object().cloned(),
            ..request(0)
        };
        let mut stream = server.client.chat(&request).await.unwrap();
        (server.client.list().await.unwrap(), stream.next().await.unwrap().unwrap())
    });
    assert_eq!(list.models[0].name, "cria:latest");
    assert!(answer.message.content.contains("Paris"), "{}", answer.message.content);
    assert!(answer.done && answer.metrics.eval_count > 0 && answer.metrics.prompt_eval_count > 0);
}

/// Value of a sample of `/metrics`.
fn metric(server: &Server, sample: &str) -> Option<f64> {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
    let text = std::io::read_to_string(stream).unwrap();
    let line =
        text.lines().find(|line| line.rsplit_once(' ').is_some_and(|(head, _)| head == sample))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

fn metrics_of_the_engine_are_those_of_the_answers(server: &Server) {
    let of = |name: &str| {
        metric(server, &format!("puna_{name}{{model=\"cria:latest\"}}")).unwrap_or(-1.0)
    };
    let (mut computed, mut cached, mut generated) = (0, 0, 0);
    for _ in 0..2 {
        let request = ChatRequest { stream: Some(false), ..request(8) };
        let answer = server.runtime.block_on(async {
            let mut stream = server.client.chat(&request).await.unwrap();
            stream.next().await.unwrap().unwrap()
        });
        let metrics = answer.metrics;
        computed += metrics.prompt_eval_count - metrics.prompt_eval_cached_count;
        cached += metrics.prompt_eval_cached_count;
        generated += metrics.eval_count;
        assert_eq!(of("prompt_tokens_total"), computed as f64, "at once");
        assert_eq!(of("cached_prompt_tokens_total"), cached as f64);
        assert_eq!(of("generated_tokens_total"), generated as f64);
    }
    assert!(cached > 0, "the second prompt was the first one's");
    wait_until("a sign of life", || of("steps_total") > 0.0);
    assert_eq!((of("running_sequences"), of("waiting_sequences")), (0.0, 0.0));
    let pages = |by: &str| {
        metric(server, &format!("puna_kv_pages_in_use{{model=\"cria:latest\",by=\"{by}\"}}"))
    };
    let (running, kept) = (pages("running").unwrap(), pages("cache").unwrap());
    assert!(
        running == 0.0 && kept > 0.0 && kept <= of("kv_pages"),
        "{running} {kept} {}",
        of("kv_pages")
    );
    assert_eq!(of("generated_tokens_total"), generated as f64, "nor is anything counted twice");
}

fn a_draft_model_is_loaded_beside_the_model_and_changes_no_answer(server: &Server) {
    let ask = |speculate: &str| {
        let request = request(40);
        let mut options = request.options.clone().unwrap();
        options.insert("speculate".into(), speculate.into());
        server.runtime.block_on(async {
            let request = ChatRequest { options: Some(options), ..request };
            let mut stream = server.client.chat(&request).await?;
            let (mut text, mut metrics) = (String::new(), Default::default());
            while let Some(line) = stream.next().await {
                let line = line?;
                metrics = line.metrics;
                text.push_str(&all_of(line.message));
            }
            Ok::<_, ClientError>((text, metrics))
        })
    };
    let memory = || server.runtime.block_on(server.client.ps()).unwrap().models[0].size;
    // The second request finds the prompt in the cache, like the third.
    ask("off").unwrap();
    let (plain, _) = ask("off").unwrap();
    let before = memory();
    // The model is its own draft model.
    ask("cria").unwrap();
    let (guessed, _) = ask("cria").unwrap();
    assert_eq!(guessed, plain);
    assert!(memory() > before, "the draft model takes memory");
    let missing = ask("nobody").unwrap_err();
    let missing = missing.to_string();
    assert!(
        missing.contains("draft model 'nobody' not found") && missing.contains("ngram"),
        "{missing}"
    );
    assert_eq!(ask("OFF").unwrap().0, plain);
}

fn a_killed_runner_costs_its_requests_an_error_and_nothing_else(server: &Server) {
    let failed = server.chat(100_000, || server.runners().iter().for_each(|id| kill(*id)));
    let message = failed.unwrap_err().to_string();
    assert!(
        message.starts_with("model runner has unexpectedly stopped")
            && message.contains("signal: 9"),
        "{message}"
    );
    assert!(!server.chat(5, || {}).unwrap().is_empty());
}

/// Sends a request and returns the connection.
fn sent(port: u16, path: &str, body: &serde_json::Value) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    stream
}

fn answer_to(port: u16, path: &str, body: &serde_json::Value) -> String {
    let mut answer = String::new();
    sent(port, path, body).read_to_string(&mut answer).unwrap();
    answer
}

/// Value of a line of `/proc/PID/status`, in KiB.
#[cfg(target_os = "linux")]
fn memory_kib(pid: u32, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let value = status.lines().find_map(|text| text.strip_prefix(line)).unwrap();
    value.split_whitespace().next().unwrap().parse().unwrap()
}

fn texts_to_tokenize_are_bounded_and_a_client_that_leaves_ends_their_tokenizing(server: &Server) {
    const MOST: usize = 8 << 20;
    let tokenize = |text: &str| json!({"model": "cria", "text": text});
    assert!(answer_to(server.port, "/api/tokenize", &tokenize("hi")).starts_with("HTTP/1.1 200 "));
    let runner = server.runners()[0];

    let text = "a".repeat(MOST);
    let begun = processor_time(runner);
    let stream = sent(server.port, "/api/tokenize", &tokenize(&text));
    wait_until("the runner tokenizes", || processor_time(runner) - begun > 5);
    drop(stream);
    std::thread::sleep(Duration::from_millis(100));
    let left = processor_time(runner);
    std::thread::sleep(Duration::from_millis(300));
    assert!(processor_time(runner) - left <= 2, "the runner works for a client that has left");

    #[cfg(target_os = "linux")]
    {
        let before = memory_kib(runner, "VmHWM:");
        let answer = answer_to(server.port, "/api/tokenize", &tokenize(&text));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{}", &answer[..200.min(answer.len())]);
        let after = memory_kib(runner, "VmHWM:");
        assert!(after - before < 96 << 10, "{} KiB", after - before);
    }

    let answer = answer_to(server.port, "/api/tokenize", &tokenize(&format!("{text}a")));
    assert!(
        answer.starts_with("HTTP/1.1 413 ") && answer.contains("the limit is 8388608"),
        "{answer}"
    );
    // A text that cannot fit the context is refused without tokenizing it.
    let start = Instant::now();
    let chat = json!({"model": "cria", "messages": [{"role": "user", "content": &text}]});
    let answer = answer_to(server.port, "/v1/chat/completions", &chat);
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// Status line of `GET /api/version`, sent from an address of this machine.
fn version_status(server: &Server, from: &str) -> String {
    let answer = server.runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        let to = format!("127.0.0.1:{}", server.port).parse().unwrap();
        let exchange = async {
            let mut stream = socket.connect(to).await?;
            let request =
                "GET /api/version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await?;
            let mut answer = String::new();
            tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        tokio::time::timeout(Duration::from_secs(5), exchange).await
    });
    let answer = answer.expect("an answer in time").expect("a connection");
    answer.lines().next().unwrap_or_default().to_owned()
}

fn idle_connections_of_one_address_lock_no_other_client_out(_: &Server) {
    let server = Server::with_open_files(128);
    let mut idle = Vec::new();
    // A request in progress survives the flood.
    let answer = server.chat(20, || {
        idle.extend((0..400).map(|i| {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            // Half of them send a part of a request.
            if i % 2 == 0 {
                let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: ");
            }
            stream
        }));
    });
    assert!(!answer.unwrap().is_empty());
    for from in ["127.0.0.1", "127.0.0.2"] {
        if cfg!(target_os = "linux") || from == "127.0.0.1" {
            assert_eq!(version_status(&server, from), "HTTP/1.1 200 OK", "{from}");
        }
    }
    drop(idle);
}

fn a_client_that_leaves_lets_its_runner_rest(server: &Server) {
    server.runtime.block_on(async {
        let mut stream = server.client.chat(&request(100_000)).await.unwrap();
        stream.next().await.unwrap().unwrap();
    });
    let runner = server.runners()[0];
    wait_until("the runner rests", || {
        let before = processor_time(runner);
        std::thread::sleep(Duration::from_millis(300));
        processor_time(runner) - before <= 1
    });
}

fn an_unloaded_model_leaves_no_process(server: &Server) {
    server.runtime.block_on(async {
        let run = async |num_batch: u32, keep_alive: Option<KeepAlive>| {
            let options = json!({"num_batch": num_batch}).as_object().cloned();
            let load = GenerateRequest {
                model: "cria".into(),
                options,
                keep_alive,
                ..GenerateRequest::default()
            };
            server.client.generate(&load).await.unwrap().next().await.unwrap().unwrap()
        };
        run(64, None).await;
        let first = server.runners();
        run(128, None).await;
        let second = server.runners();
        assert!(
            first.len() == 1 && second.len() == 1 && first != second,
            "another size of steps is another process"
        );
        run(128, Some(KeepAlive::For(Duration::ZERO))).await;
        wait_until("the runner ends", || server.runners().is_empty());
        assert!(server.client.ps().await.unwrap().models.is_empty());
    });
}

fn runners_end_with_their_server(server: &Server) {
    server.runtime.block_on(async {
        let load = GenerateRequest { model: "cria".into(), ..GenerateRequest::default() };
        server.client.generate(&load).await.unwrap().next().await.unwrap().unwrap();
    });
    let runner = server.runners()[0];
    kill(server.child.borrow().id());
    wait_until("the runner ends", || !std::path::Path::new(&format!("/proc/{runner}")).exists());
}

fn terminate(id: u32) {
    assert!(Command::new("kill").args(["-15", &id.to_string()]).status().unwrap().success());
}

fn a_server_that_is_told_to_end_says_so(server: &Server) {
    let id = server.child.borrow().id();
    let ended = server.chat(1_000_000, || terminate(id));
    assert_eq!(ended.unwrap_err().to_string(), "the server is shutting down");
    assert!(server.child.borrow_mut().wait().unwrap().success());
}

fn half_a_request_does_not_hold_the_end_up(server: &Server) {
    use std::io::Write;
    let connect = || std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let (_nothing, mut head, mut body) = (connect(), connect(), connect());
    head.write_all(b"POST /api/chat HTTP/1.1\r\nHost: loc").unwrap();
    body.write_all(b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
        .unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let start = Instant::now();
    terminate(server.child.borrow().id());
    assert!(server.child.borrow_mut().wait().unwrap().success());
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

fn a_blob_that_is_there_is_answered_to_clients_that_send_it_all(server: &Server) {
    use std::io::{Read, Write};
    let blob = vec![7; 24 << 20];
    let digest = "sha256:".to_owned() + &puna_store::Digest::of(&blob).hex();
    let upload = || {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        let head = format!(
            "POST /api/blobs/{digest} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            blob.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&blob).expect("all of it is taken");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.lines().next().unwrap().to_owned()
    };
    assert_eq!(upload(), "HTTP/1.1 201 Created");
    assert_eq!(upload(), "HTTP/1.1 200 OK");
}

fn a_taken_port_says_by_whom(server: &Server) {
    let address = puna_server::Address::parse(&format!("127.0.0.1:{}", server.port)).0;
    let error = server
        .runtime
        .block_on(puna_server::listen(&address, "OLLAMA_HOST"))
        .unwrap_err()
        .to_string();
    let itself = format!("Puna {} is running there already", puna_server::VERSION);
    assert!(error.contains(&itself), "{error}");
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = puna_server::Address::parse(&other.local_addr().unwrap().to_string()).0;
    let error = server
        .runtime
        .block_on(puna_server::listen(&address, "OLLAMA_HOST"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("a program that does not speak HTTP is running there already"),
        "{error}"
    );
}

/// Reasoning and answer.
fn all_of(message: Message) -> String {
    message.thinking + &message.content
}

/// Attempts to leave the sandbox from inside, on the main thread and on a later one. Prints one
/// line for each attempt: its name and `denied` or what it achieved.
#[cfg(target_os = "linux")]
fn escape(model: &str, secret: &str) {
    use puna_server::runner::{protocol::LoadSpec, sandbox};
    let spec = LoadSpec {
        weights: Some(model.into()),
        adapters: Vec::new(),
        options: Default::default(),
        kv_cache_type: "f16".into(),
        kernels: None,
        threads: None,
    };
    // Inside, the process cannot ask for it.
    let parent = std::os::unix::process::parent_id();
    let start = Instant::now();
    let sandbox = sandbox::enter(SandboxMode::Auto, &spec.paths(), &[]);
    println!("time {}", start.elapsed().as_micros());
    print_attempts(&sandbox.report, model, secret, parent);
}

/// Prints the outcome of each attempt, on the first thread and on a later one.
#[cfg(target_os = "linux")]
fn print_attempts(
    report: &puna_server::runner::sandbox::SandboxReport,
    model: &str,
    secret: &str,
    parent: u32,
) {
    println!("active {report}");
    println!("missing {}", report.missing.join(", "));
    let (model, secret) = (model.to_owned(), secret.to_owned());
    let attempts = move |thread: &str| {
        for (name, result) in attempts(&model, &secret, parent) {
            let outcome = match result {
                Ok(()) => "succeeded".to_owned(),
                Err(error) => format!("denied: {error}"),
            };
            println!("{thread} {name} {outcome}");
        }
    };
    attempts("main");
    std::thread::spawn(move || attempts("later")).join().unwrap();
}

#[cfg(target_os = "linux")]
fn attempts(model: &str, secret: &str, parent: u32) -> Vec<(&'static str, std::io::Result<()>)> {
    use std::fs::{self, File};
    use std::io;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::{UnixDatagram, UnixStream};
    let beside = format!("{secret}.new");
    let own_file = format!("{model}.new");
    let memory = format!("/proc/{parent}/mem");
    let environment = format!("/proc/{parent}/environ");
    vec![
        ("reads_its_model", fs::read(model).map(drop)),
        ("reads_its_cgroup", fs::read("/proc/self/cgroup").map(drop)),
        ("starts_a_thread", std::thread::Builder::new().spawn(|| ()).map(|t| t.join().unwrap())),
        ("read_a_key", fs::read(secret).map(drop)),
        ("read_passwords", fs::read("/etc/passwd").map(drop)),
        ("read_the_environment", fs::read("/proc/self/environ").map(drop)),
        ("read_the_server_environment", fs::read(&environment).map(drop)),
        ("read_the_server_memory", File::open(&memory).map(drop)),
        ("list_a_folder", fs::read_dir("/tmp").map(drop)),
        ("write_a_file", fs::write(&beside, "x")),
        ("write_beside_the_model", fs::write(&own_file, "x")),
        ("write_the_model", File::options().write(true).open(model).map(drop)),
        ("truncate_the_model", File::options().write(true).truncate(true).open(model).map(drop)),
        ("remove_a_file", fs::remove_file(secret)),
        ("rename_a_file", fs::rename(secret, &beside)),
        ("link_a_file", std::os::unix::fs::symlink(secret, &beside)),
        ("make_a_folder", fs::create_dir(&beside)),
        ("change_permissions", {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(secret, fs::Permissions::from_mode(0o777))
        }),
        ("connect", TcpStream::connect("127.0.0.1:9").map(drop)),
        ("listen", TcpListener::bind("127.0.0.1:0").map(drop)),
        ("send_a_datagram", UdpSocket::bind("127.0.0.1:0").map(drop)),
        ("open_a_socket", UnixDatagram::unbound().map(drop)),
        ("pair_of_sockets", UnixStream::pair().map(drop)),
        ("exec", Command::new("/bin/true").status().map(drop)),
        ("exec_itself", Command::new("/proc/self/exe").arg("--list").status().map(drop)),
        ("trace_the_server", system_call(libc::SYS_ptrace, [16, parent as usize, 0, 0])),
        ("let_itself_be_traced", system_call(libc::SYS_ptrace, [0, 0, 0, 0])),
        ("kill_the_server", system_call(libc::SYS_kill, [parent as usize, 0, 0, 0])),
        (
            "become_dumpable",
            system_call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, 1, 0, 0]),
        ),
        (
            "allow_core_dumps",
            system_call(libc::SYS_prlimit64, [0, 4, [1u64; 2].as_ptr() as usize, 0]),
        ),
        ("fork", system_call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0])),
        ("map_code", system_call(libc::SYS_mmap, [0, 4096, 7, 0x22])),
        ("io_uring", system_call(libc::SYS_io_uring_setup, [1, 0, 0, 0])),
    ]
    .into_iter()
    .map(|(name, result): (_, io::Result<()>)| (name, result))
    .collect()
}

/// Makes a system call that no safe function offers.
#[cfg(target_os = "linux")]
fn system_call(number: libc::c_long, arguments: [usize; 4]) -> std::io::Result<()> {
    let [a, b, c, d] = arguments;
    // SAFETY: the callers pass no pointer but that of a live array of two numbers, which the kernel
    // only reads. A call that succeeds fails the test and changes only this short-lived process.
    match unsafe { libc::syscall(number, a, b, c, d, -1i64, 0usize) } {
        -1 => Err(std::io::Error::last_os_error()),
        0 if number == libc::SYS_clone => std::process::exit(0),
        _ => Ok(()),
    }
}

#[cfg(target_os = "linux")]
fn no_escape_from_the_sandbox_succeeds(server: &Server) {
    check_that_no_escape_succeeds(run_escape);
    let text = check_that_no_escape_succeeds(workers::run_escape);
    assert!(text.is_none_or(|text| text.contains("active landlock, seccomp")));
    assert!(server.runners().is_empty());
}

/// Runs attempts to escape in a process. Returns its output, or `None` if the kernel offers no
/// protection.
#[cfg(target_os = "linux")]
fn check_that_no_escape_succeeds(
    run: fn(&std::path::Path, &std::path::Path) -> std::process::Output,
) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    let secret = folder.path().join("keys.toml");
    std::fs::copy(zoo_file(), &model).unwrap();
    std::fs::write(&secret, "secret").unwrap();
    let output = run(&model, &secret);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}{errors}");
    if !text.contains("landlock") || !text.contains("seccomp") {
        // Without both, a kernel gives no protection to test; the server warns.
        println!("the kernel offers less: {text}");
        return None;
    }
    let mut attempts = 0;
    for line in text.lines().filter(|line| line.starts_with("main ") || line.starts_with("later "))
    {
        let allowed = ["reads_its_model", "reads_its_cgroup", "starts_a_thread"];
        let name = line.split(' ').nth(1).unwrap();
        let wanted = if allowed.contains(&name) { "succeeded" } else { "denied: " };
        assert!(line.contains(wanted), "{line}\n{text}{errors}");
        // Another reason than the sandbox would prove nothing.
        let by_sandbox = ["os error 1)", "os error 13)", "succeeded"];
        assert!(by_sandbox.iter().any(|reason| line.contains(reason)), "{line}");
        attempts += 1;
    }
    assert!(attempts > 60, "{attempts}: {text}");
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "secret");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    // Printed for the record; a busy machine takes longer.
    let time = text.lines().find_map(|line| line.strip_prefix("time "));
    time.iter().for_each(|time| println!("entering the sandbox took {time} microseconds"));
    Some(text)
}

/// Runs [`escape`] in a process of its own.
#[cfg(target_os = "linux")]
fn run_escape(model: &std::path::Path, secret: &std::path::Path) -> std::process::Output {
    let program = std::env::current_exe().unwrap();
    Command::new(program).arg("escape").args([model, secret]).output().unwrap()
}

/// Each thread of a runner is in the sandbox while models answer: the embedded one, and one of a
/// file behind a link.
#[cfg(target_os = "linux")]
fn models_answer_inside_the_sandbox(server: &Server) {
    assert!(!server.chat(8, || {}).unwrap().is_empty());
    assert_sandboxed(server, "cria:latest");
    let folder = server._models.path();
    let bytes = std::fs::read(zoo_file()).unwrap();
    let hex = puna_store::Digest::of(&bytes).hex();
    let elsewhere = tempfile::tempdir().unwrap();
    let target = elsewhere.path().join("target.gguf");
    std::fs::write(&target, &bytes).unwrap();
    std::fs::create_dir_all(folder.join("blobs")).unwrap();
    std::os::unix::fs::symlink(&target, folder.join(format!("blobs/sha256-{hex}"))).unwrap();
    let text = server.runtime.block_on(async {
        let files = json!({"model.gguf": format!("sha256:{hex}")});
        let create = json!({"model": "linked", "files": files, "stream": false});
        let create = serde_json::from_value(create).unwrap();
        let mut progress = server.client.create(&create).await.unwrap();
        while let Some(line) = progress.next().await {
            line.unwrap();
        }
        let options = json!({"num_predict": 4, "temperature": 0.0, "ignore_eos": true});
        let generate = GenerateRequest {
            model: "linked".into(),
            prompt: "a b".into(),
            raw: true,
            options: options.as_object().cloned(),
            stream: Some(false),
            ..GenerateRequest::default()
        };
        server.client.generate(&generate).await.unwrap().next().await.unwrap().unwrap()
    });
    assert!(text.done && text.metrics.eval_count > 0, "{text:?}");
    assert_sandboxed(server, "linked:latest");
}

#[cfg(target_os = "linux")]
fn a_sandbox_that_is_off_is_shown_and_one_that_is_required_holds(_: &Server) {
    let sandbox_of = |server: &Server| {
        let listed = server.runtime.block_on(server.client.ps()).unwrap().models;
        listed[0].sandbox.clone().unwrap()
    };
    let server = Server::with_sandbox(SandboxMode::Off);
    assert!(!server.chat(8, || {}).unwrap().is_empty());
    assert_eq!(sandbox_of(&server), "off");
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.runners()[0])).unwrap();
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let privileges =
        |status: &str| status.lines().find(|l| l.starts_with("NoNewPrivs")).map(str::to_owned);
    assert_eq!(privileges(&status), privileges(&own));
    let server = Server::with_sandbox(SandboxMode::Required);
    match server.chat(8, || {}) {
        Ok(_) => {
            let sandbox = sandbox_of(&server);
            assert!(sandbox.contains("landlock") && sandbox.contains("seccomp"), "{sandbox}");
        }
        // A kernel without them.
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains("the sandbox is required"), "{error}");
        }
    }
}

#[cfg(target_os = "linux")]
fn assert_sandboxed(server: &Server, model: &str) {
    let listed = server.runtime.block_on(server.client.ps()).unwrap().models;
    let listed = listed.iter().find(|listed| listed.name == model).unwrap();
    let sandbox = listed.sandbox.clone().unwrap();
    assert!(sandbox.contains("no core dumps") && sandbox.contains("not dumpable"), "{sandbox}");
    for runner in server.runners() {
        let environment = std::fs::read(format!("/proc/{runner}/environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        assert!(!environment.contains(SECRET_VARIABLE), "{environment}");
        for task in std::fs::read_dir(format!("/proc/{runner}/task")).unwrap() {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            assert!(status.contains("NoNewPrivs:\t1"), "{status}");
            assert!(!sandbox.contains("seccomp") || status.contains("Seccomp:\t2"), "{status}");
        }
    }
}

/// A small model file.
#[cfg(target_os = "linux")]
fn zoo_file() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo/llama.gguf")
}
