//! The server on real sockets with a fake engine: clients that do not read, and shutdown.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;

use crate::config::Config;
use crate::runner::launch::{Launcher, RunnerProcess};
use crate::runner::protocol::{LoadSpec, MemoryParts};
use crate::runner::runner_model::LoadError;
use crate::runner::tests::{Fake, FakeLauncher};

const LIMIT: Duration = Duration::from_millis(500);

/// Starts a server and returns its address.
async fn server(models: &std::path::Path) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let launcher = Arc::new(FakeLauncher(Arc::default()));
    tokio::spawn(crate::serve_with(
        Config::with_models(models),
        listener,
        std::future::pending(),
        launcher,
    ));
    address
}

/// Response read by a client that reads only after sending everything, as many do. Errors are those
/// of sending.
async fn send_then_read(
    address: std::net::SocketAddr,
    head: &str,
    filler: usize,
    tail: &str,
) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(head.as_bytes()).await?;
    let piece = vec![b'x'; 16 << 10];
    for _ in 0..filler / piece.len() {
        stream.write_all(&piece).await?;
        tokio::task::yield_now().await;
    }
    stream.write_all(tail.as_bytes()).await?;
    // The response or a reset has arrived after this time.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut answer = vec![0; 64 << 10];
    let length = stream.read(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

#[tokio::test]
async fn an_early_error_reaches_clients_that_still_send() {
    let models = tempfile::tempdir().unwrap();
    let address = server(models.path()).await;
    let size = 8 << 20;
    let sized = format!("Content-Length: {size}\r\n");
    for (line, more, status) in [
        // Sends without waiting for `100 Continue`.
        ("POST /api/blobs/sha256:00", format!("Expect: 100-continue\r\n{sized}"), "400"),
        ("POST /nowhere", format!("Expect: 100-continue\r\n{sized}"), "404"),
        ("POST /api/blobs/sha256:00", sized.clone(), "400"),
        ("POST /api/chat", "Content-Length: 1000000000\r\n".to_owned(), "413"),
        ("POST /nowhere", format!("Connection: close\r\n{sized}"), "404"),
        ("GARBAGE", sized.clone(), "400"),
    ] {
        let head = format!("{line} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n");
        let answer = send_then_read(address, &head, size, "")
            .await
            .unwrap_or_else(|e| panic!("{line} {more}: {e}"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{line} {more}: {answer}");
    }
}

#[tokio::test]
async fn a_request_without_one_valid_host_is_refused() {
    let models = tempfile::tempdir().unwrap();
    let address = server(models.path()).await;
    for (start, status) in [
        ("HTTP/1.1\r\n", "400"),
        ("HTTP/1.0\r\n", "200"),
        ("HTTP/1.1\r\nHost:\r\n", "200"),
        ("HTTP/1.1\r\nHost: localhost:11434\r\n", "200"),
        ("HTTP/1.1\r\nHost: localhost, evil.test\r\n", "400"),
        ("HTTP/1.1\r\nHost: localhost:evil\r\n", "400"),
        ("HTTP/1.1\r\nHost: evil.local\r\n", "403"),
        ("HTTP/1.1\r\nHost: metadata.internal\r\n", "403"),
        ("HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost:3000\r\n", "200"),
        ("HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost:evil\r\n", "403"),
    ] {
        let head = format!("GET /api/version {start}\r\n");
        let answer = send_then_read(address, &head, 0, "").await.unwrap();
        assert!(answer.contains(&format!(" {status} ")), "{head}{answer}");
    }
}

#[tokio::test]
async fn configured_hosts_are_accepted() {
    let models = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let launcher = Arc::new(FakeLauncher(Arc::default()));
    let mut config = Config::with_models(models.path());
    config.allowed_hosts = vec!["host.docker.internal".into()];
    tokio::spawn(crate::serve_with(config, listener, std::future::pending(), launcher));
    for (host, status) in [("host.docker.internal:11434", "200"), ("other.internal", "403")] {
        let head = format!("GET /api/version HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let answer = send_then_read(address, &head, 0, "").await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {answer}");
    }
}

#[tokio::test]
async fn a_request_with_two_hosts_is_refused() {
    let models = tempfile::tempdir().unwrap();
    let address = server(models.path()).await;
    for second in ["localhost", "evil.test"] {
        let head =
            format!("GET /api/version HTTP/1.1\r\nHost: localhost\r\nHost: {second}\r\n\r\n");
        let answer = send_then_read(address, &head, 0, "").await.unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 400 ") && answer.ends_with("too many Host headers"),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn conflicting_hosts_and_origins_are_rejected() {
    let models = tempfile::tempdir().unwrap();
    let address = server(models.path()).await;
    let page = "Origin: http://localhost\r\n";
    for (target, headers, status) in [
        ("http://evil.test/api/version", "", "403"),
        ("http://localhost/api/version", "", "200"),
        ("/api/version", page, "200"),
        ("/api/version", &format!("{page}Origin: http://evil.test\r\n"), "403"),
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        let answer = send_then_read(address, &head, 0, "").await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{head}{answer}");
    }
}

#[tokio::test]
async fn oversized_headers_are_rejected_with_a_readable_error() {
    let models = tempfile::tempdir().unwrap();
    let address = server(models.path()).await;
    let start = "GET / HTTP/1.1\r\nHost: localhost\r\n";
    let many: String = (0..5000).map(|i| format!("X-{i}: y\r\n")).collect();
    for (head, filler, tail) in [
        (format!("{start}X: "), 8 << 20, "\r\n\r\n"),
        (format!("{start}{many}"), 0, "\r\n"),
        ("GET /".to_owned(), 8 << 20, " HTTP/1.1\r\n\r\n"),
    ] {
        let answer = send_then_read(address, &head, filler, tail).await.unwrap();
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(
            ["400", "414", "431"].contains(&status),
            "{}: {answer}",
            &head[..40.min(head.len())]
        );
    }
    assert!(send_then_read(address, start, 0, "\r\n").await.unwrap().starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn an_incomplete_request_head_times_out() {
    let models = tempfile::tempdir().unwrap();
    let address = server(models.path()).await;
    let mut clients = Vec::new();
    for sent in [
        "",
        "G",
        "GET / HTTP/1.1\r\nHost: localhost\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ] {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(sent.as_bytes()).await.unwrap();
        clients.push(client);
    }
    // A client that drips bytes times out as well.
    let mut dripping = TcpStream::connect(address).await.unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) && dripping.write_all(b"G").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(start.elapsed() < Duration::from_secs(5), "it may drip for ever");
    for mut client in clients {
        let mut answer = Vec::new();
        let ended =
            tokio::time::timeout(Duration::from_secs(5), client.read_to_end(&mut answer)).await;
        ended.expect("it is closed").unwrap();
    }
}

/// A server with small socket buffers, and a client like it that has requested an endless response.
async fn endless_answer(fake: &Arc<Fake>, models: &std::path::Path) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(8 << 10).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(8).unwrap();
    let address = listener.local_addr().unwrap();
    let config = Config { write_timeout: Some(LIMIT), ..Config::with_models(models) };
    let launcher = Arc::new(FakeLauncher(fake.clone()));
    tokio::spawn(crate::serve_with(config, listener, std::future::pending(), launcher));
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(8 << 10).unwrap();
    let mut client = socket.connect(address).await.unwrap();
    let body = r#"{"model": "cria", "raw": true, "prompt": "hi", "options": {"num_predict": 1000000, "num_ctx": 100000}}"#;
    let head = format!(
        "POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.write_all((head + body).as_bytes()).await.unwrap();
    let mut first = [0; 12];
    client.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stops_reading_loses_its_sequence() {
    let (fake, models) = (Arc::<Fake>::default(), tempfile::tempdir().unwrap());
    let client = endless_answer(&fake, models.path()).await;
    let start = Instant::now();
    while fake.works.load(Ordering::Relaxed) > 0 {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "it generates for somebody who does not read"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(start.elapsed() > LIMIT, "a pause is no reason yet");
    drop(client);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_slowly_keeps_its_sequence() {
    let (fake, models) = (Arc::<Fake>::default(), tempfile::tempdir().unwrap());
    let mut client = endless_answer(&fake, models.path()).await;
    // The time to fill all buffers, then three limits.
    let mut buffer = vec![0; 8 << 10];
    let start = Instant::now();
    while start.elapsed() < 5 * LIMIT {
        assert!(client.read(&mut buffer).await.unwrap() > 0, "it was cut off");
        tokio::time::sleep(LIMIT / 10).await;
    }
    assert!(fake.works.load(Ordering::Relaxed) > 0);
}

/// The futures awaited at shutdown become ready in random order; many rounds cover all orders.
#[tokio::test]
async fn a_server_ends_cleanly_with_and_without_connections() {
    let (fake, models) = (Arc::<Fake>::default(), tempfile::tempdir().unwrap());
    for round in 0..32 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (end, ended) = oneshot::channel::<()>();
        let launcher = Arc::new(FakeLauncher(fake.clone()));
        let config = Config::with_models(models.path());
        let server = tokio::spawn(crate::serve_with(
            config,
            listener,
            async { drop(ended.await) },
            launcher,
        ));
        let mut client = None;
        if round % 2 == 1 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
            let mut first = [0; 12];
            stream.read_exact(&mut first).await.unwrap();
            client = Some(stream);
        }
        end.send(()).unwrap();
        server.await.expect("no panic").unwrap();
        drop(client);
    }
}

/// The server ends with the reason when its model manager panics, instead of rejecting everything.
#[tokio::test]
async fn a_server_without_its_model_manager_ends_with_the_reason() {
    struct Panics;
    impl Launcher for Panics {
        fn plan(&self, _: &LoadSpec) -> Result<MemoryParts, LoadError> {
            Err(LoadError::default())
        }

        fn launch(&self) -> std::io::Result<RunnerProcess> {
            panic!("no runner at all");
        }
    }
    let models = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let config = Config::with_models(models.path());
    let server =
        tokio::spawn(crate::serve_with(config, listener, std::future::pending(), Arc::new(Panics)));
    let mut client = TcpStream::connect(address).await.unwrap();
    let body = r#"{"model": "cria", "prompt": "hi"}"#;
    let head = format!(
        "POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.write_all((head + body).as_bytes()).await.unwrap();
    let ended =
        tokio::time::timeout(Duration::from_secs(10), server).await.expect("it ends").unwrap();
    let reason = ended.unwrap_err().to_string();
    assert!(reason.contains("no runner at all"), "{reason}");
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
}

/// An unresponsive server in two roles: a registry that never answers, and a remote server that
/// starts a response and stalls. Also returns the heads of the requests as they arrive.
async fn unresponsive_server()
-> (std::net::SocketAddr, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let (sender, requests) = tokio::sync::mpsc::unbounded_channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let sender = sender.clone();
            tokio::spawn(async move {
                let mut request = vec![0; 64 << 10];
                let length = stream.read(&mut request).await.unwrap_or(0);
                let _ = sender.send(String::from_utf8_lossy(&request[..length]).into_owned());
                if request[..length].starts_with(b"POST /api/chat") {
                    let line =
                        r#"{"message": {"role": "assistant", "content": "so"}, "done": false}"#;
                    let answer = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{line}\n");
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
                std::future::pending::<()>().await;
            });
        }
    });
    (address, requests)
}

/// Sends a request; its response ends with the connection.
async fn ask(address: std::net::SocketAddr, path: &str, body: serde_json::Value) -> TcpStream {
    let mut client = TcpStream::connect(address).await.unwrap();
    let (body, mut head) =
        (body.to_string(), format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n"));
    head += &format!("Connection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    client.write_all((head + &body).as_bytes()).await.unwrap();
    client
}

async fn rest(mut client: TcpStream) -> String {
    let mut text = String::new();
    let read = client.read_to_string(&mut text);
    tokio::time::timeout(Duration::from_secs(20), read).await.expect("an end").unwrap();
    text
}

#[tokio::test]
async fn responses_without_a_runner_end_with_a_shutdown_error() {
    let models = tempfile::tempdir().unwrap();
    let (other, mut requests) = unresponsive_server().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let config =
        Config { remotes: vec![format!("http://{other}")], ..Config::with_models(models.path()) };
    let (end, ended) = oneshot::channel::<()>();
    let launcher = Arc::new(FakeLauncher(Arc::default()));
    let server =
        tokio::spawn(crate::serve_with(config, listener, async { drop(ended.await) }, launcher));
    let create =
        json!({"model": "far", "from": "big", "remote_host": format!("http://{other}/api")});
    let made = rest(ask(address, "/api/create", create).await).await;
    assert!(made.contains(r#"{"status":"success"}"#), "{made}");
    let pull = json!({"model": format!("{other}/me/m"), "insecure": true, "stream": true});
    let chat = json!({"model": "far", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "stream": true});
    let cases = [
        ("/api/pull", pull, "pulling manifest", r#"{"error":"the server is shutting down"}"#),
        ("/api/chat", chat.clone(), "so", r#"{"error":"the server is shutting down"}"#),
        (
            "/v1/chat/completions",
            chat.clone(),
            "so",
            r#"data: {"error":{"message":"the server is shutting down""#,
        ),
        ("/v1/messages", chat, "so", "event: error\ndata: {\"type\":\"error\""),
    ];
    let mut asked = Vec::new();
    for (path, body, begins, ends) in cases {
        let (mut client, mut text) = (ask(address, path, body).await, Vec::new());
        while !String::from_utf8_lossy(&text).contains(begins) {
            let mut piece = [0; 1024];
            let length = client.read(&mut piece).await.unwrap();
            assert!(length > 0, "{path}: {}", String::from_utf8_lossy(&text));
            text.extend_from_slice(&piece[..length]);
        }
        asked.push((path, client, ends));
    }
    let whole = json!({"model": format!("{other}/me/whole"), "insecure": true, "stream": false});
    let whole = ask(address, "/api/pull", whole).await;
    // The server has read the request once it asks the registry.
    while !requests.recv().await.unwrap().contains("/me/whole/") {}
    end.send(()).unwrap();
    for (path, client, ends) in asked {
        let last = rest(client).await;
        assert!(
            last.contains(ends) && last.contains("the server is shutting down"),
            "{path}: {last}"
        );
    }
    let whole = rest(whole).await;
    assert!(
        whole.starts_with("HTTP/1.1 503 ") && whole.contains("the server is shutting down"),
        "{whole}"
    );
    server.await.unwrap().unwrap();
}
