//! Tests of the client against a scripted server, and of the types against recorded responses of
//! Ollama.

use std::time::Duration;

use puna_api::ollama::{
    ChatRequest, ChatResponse, EmbedResponse, EmbeddingsResponse, GenerateRequest,
    GenerateResponse, ListResponse, ProcessResponse, Progress, ShowResponse, VersionResponse,
};
use puna_api::{Client, ClientError};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const LINES: &str = "{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"Grüße\"},\"done\":false}\n\
                     \n{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"!\"},\"done\":true,\"done_reason\":\"stop\"}";

/// A server that reads one request, writes `answer` in pieces of `step` bytes, and closes. Returns
/// its address and the request.
async fn server(answer: Vec<u8>, step: usize) -> (String, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let asked = tokio::spawn(async move {
        let (mut peer, _) = listener.accept().await.unwrap();
        let request = read_request(&mut peer).await;
        peer.set_nodelay(true).unwrap();
        for piece in answer.chunks(step) {
            // The client may have closed the connection already.
            if peer.write_all(piece).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        request
    });
    (base, asked)
}

async fn read_request(peer: &mut tokio::net::TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        if let Some(end) = text.find("\r\n\r\n") {
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
            if bytes.len() >= end + 4 + length.map_or(0, |n| n.parse().unwrap()) {
                return String::from_utf8(bytes).unwrap();
            }
        }
        let mut piece = [0; 4096];
        let count = peer.read(&mut piece).await.unwrap();
        assert_ne!(count, 0, "the client hung up in the middle of its request");
        bytes.extend_from_slice(&piece[..count]);
    }
}

fn ok(body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

fn refusal(status: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

async fn chat(answer: Vec<u8>, step: usize) -> Result<Vec<String>, ClientError> {
    let (base, _asked) = server(answer, step).await;
    let mut stream = Client::new(base).chat(&ChatRequest::default()).await?;
    let mut pieces = Vec::new();
    while let Some(piece) = stream.next().await {
        pieces.push(piece?.message.content);
    }
    Ok(pieces)
}

#[tokio::test]
async fn a_stream_is_independent_of_its_chunks() {
    for step in 1..=LINES.len() {
        assert_eq!(chat(ok(LINES), step).await.unwrap(), ["Grüße", "!"], "pieces of {step} bytes");
    }
}

#[tokio::test]
async fn an_error_inside_a_stream_is_its_last_item() {
    let body = format!("{LINES}\n{{\"error\":\"the runner died\"}}\n{LINES}");
    match chat(ok(&body), 7).await {
        Err(ClientError::Status { status: 0, message }) => assert_eq!(message, "the runner died"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn errors_carry_the_servers_message() {
    let (base, _asked) =
        server(refusal("404 Not Found", "{\"error\":\"model 'x' not found\"}"), 100).await;
    match Client::new(base).generate_whole(&GenerateRequest::default()).await {
        Err(ClientError::Status { status: 404, message }) => {
            assert_eq!(message, "model 'x' not found")
        }
        other => panic!("{other:?}"),
    }
    let (base, _asked) = server(refusal("502 Bad Gateway", "<html>nginx</html>"), 100).await;
    let error = Client::new(base).version().await.unwrap_err().to_string();
    assert!(error.contains("502") && error.contains("not a Puna or Ollama"), "{error}");
}

#[tokio::test]
async fn an_invalid_line_is_an_error() {
    match chat(ok("{\"done\":fal"), 4).await {
        Err(ClientError::InvalidResponse(what)) => assert!(what.contains("column"), "{what}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_broken_connection_is_an_error() {
    let cut = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{LINES}", LINES.len() + 100);
    assert!(matches!(chat(cut.into_bytes(), 50).await, Err(ClientError::Transport(_))));
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let gone = Client::new(format!("http://{nobody}")).version().await;
    assert!(matches!(gone, Err(ClientError::Unreachable { .. })), "{gone:?}");
}

fn redirect(status: &str, location: &str) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\nLocation: {location}\r\nConnection: close\r\n");
    format!("{head}Content-Length: 0\r\n\r\n").into_bytes()
}

#[tokio::test]
async fn a_redirect_to_another_origin_gets_no_request() {
    for status in ["301 Moved Permanently", "302 Found", "307 Temporary Redirect"] {
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = format!("http://{}", other.local_addr().unwrap());
        let (base, _asked) = server(redirect(status, &format!("{to}/api/generate")), 100).await;
        let request = GenerateRequest { prompt: "secret".into(), ..GenerateRequest::default() };
        let error = Client::new(&base).generate_whole(&request).await.unwrap_err();
        assert!(matches!(error, ClientError::Redirect(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&base) && text.contains(&format!("OLLAMA_HOST={to}")), "{text}");
        let connected = tokio::time::timeout(Duration::from_millis(50), other.accept()).await;
        assert!(connected.is_err(), "{status}");
    }
    // The same host with another scheme is another origin.
    let (base, _asked) =
        server(redirect("308 Permanent Redirect", "https://127.0.0.1/"), 100).await;
    let error = Client::new(base).version().await.unwrap_err();
    assert!(matches!(error, ClientError::Redirect(_)), "{error:?}");
}

#[tokio::test]
async fn a_redirect_to_the_same_origin_is_followed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let asked = tokio::spawn(async move {
        let answers = [redirect("307 Temporary Redirect", "/there"), ok(LINES)];
        let mut requests = Vec::new();
        for answer in answers {
            let (mut peer, _) = listener.accept().await.unwrap();
            requests.push(read_request(&mut peer).await);
            peer.write_all(&answer).await.unwrap();
        }
        requests
    });
    let stream = Client::new(base).chat(&ChatRequest::default()).await.unwrap();
    assert_eq!(stream.last().await.unwrap().message.content, "!");
    assert!(asked.await.unwrap()[1].starts_with("POST /there "));
}

#[tokio::test]
async fn requests_for_whole_answers_send_the_key_and_disable_streaming() {
    let (base, asked) = server(refusal("200 OK", LINES.lines().next().unwrap()), 30).await;
    let request = ChatRequest { model: "m".into(), stream: Some(true), ..ChatRequest::default() };
    let answer =
        Client::new(base).with_key(Some("secret".into())).chat_whole(&request).await.unwrap();
    assert_eq!(answer.message.content, "Grüße");
    let asked = asked.await.unwrap();
    assert!(asked.starts_with("POST /api/chat HTTP/1.1\r\n"), "{asked}");
    assert!(asked.to_ascii_lowercase().contains("authorization: bearer secret\r\n"), "{asked}");
    assert!(asked.contains("\"stream\":false"), "{asked}");
}

#[tokio::test]
async fn dropping_a_stream_cancels_the_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (mut peer, _) = listener.accept().await.unwrap();
        read_request(&mut peer).await;
        let line = LINES.lines().next().unwrap();
        peer.write_all(format!("HTTP/1.1 200 OK\r\n\r\n{line}\n").as_bytes()).await.unwrap();
        // Returns when the client closes the connection.
        peer.read(&mut [0; 1]).await
    });
    let mut stream = Client::new(base).chat(&ChatRequest::default()).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().message.content, "Grüße");
    drop(stream);
    let read = tokio::time::timeout(Duration::from_secs(10), server)
        .await
        .expect("the request goes on")
        .unwrap();
    assert!(!matches!(read, Ok(1..)), "the client said something more");
}

/// Recorded responses of Ollama, by path.
#[test]
fn recorded_responses_are_decoded_without_loss() {
    let cases = include_str!("../../../tests/data/cases/http.jsonl");
    let mut read = 0;
    for case in cases.lines() {
        let case: Value = serde_json::from_str(case).unwrap();
        if case["response"]["status"] != 200 {
            continue;
        }
        let (Some(path), Some(body)) = (case["request"]["path"].as_str(), body(&case["response"]))
        else {
            continue;
        };
        let check: fn(&str) -> Result<(), String> = match path {
            "/api/chat" => check_round_trip::<ChatResponse>,
            "/api/generate" => check_round_trip::<GenerateResponse>,
            "/api/embed" => check_round_trip::<EmbedResponse>,
            "/api/embeddings" => check_round_trip::<EmbeddingsResponse>,
            "/api/tags" => check_round_trip::<ListResponse>,
            "/api/ps" => check_round_trip::<ProcessResponse>,
            "/api/show" => check_round_trip::<ShowResponse>,
            "/api/version" => check_round_trip::<VersionResponse>,
            "/api/create" | "/api/pull" => check_round_trip::<Progress>,
            _ => continue,
        };
        for line in
            body.lines().filter(|line| !line.trim().is_empty() && !line.starts_with("{\"error\""))
        {
            check(line).unwrap_or_else(|e| panic!("{}: {e}", case["id"]));
            read += 1;
        }
    }
    assert!(read > 100, "only {read} answers were found");
}

/// The body of a recorded response: complete, or a sample if times and texts vary.
fn body(response: &Value) -> Option<String> {
    match response.get("body").or_else(|| response.get("sample"))? {
        Value::String(text) if text.starts_with('{') => Some(text.clone()),
        object @ Value::Object(_) => Some(object.to_string()),
        _ => None,
    }
}

/// Decodes and encodes a response. Nothing may be lost.
fn check_round_trip<T: DeserializeOwned + serde::Serialize>(line: &str) -> Result<(), String> {
    let before: Value = serde_json::from_str(line).map_err(|e| format!("{e}: {line}"))?;
    let read: T = serde_json::from_str(line).map_err(|e| format!("{e}: {line}"))?;
    let after = serde_json::to_value(read).map_err(|e| e.to_string())?;
    match first_difference(&before, &after) {
        Some(place) => Err(format!("{place} is lost: {line}")),
        None => Ok(()),
    }
}

/// The first path where `after` lacks or changes a value of `before`. Numbers may lose the last
/// digits of 64 bits.
fn first_difference(before: &Value, after: &Value) -> Option<String> {
    match (before, after) {
        (Value::Object(a), Value::Object(b)) => a.iter().find_map(|(key, value)| {
            let found = b.get(key).unwrap_or(&Value::Null);
            let empty = value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty);
            if empty && found.is_null() {
                None
            } else {
                first_difference(value, found).map(|place| format!("{key}.{place}"))
            }
        }),
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => a
            .iter()
            .zip(b)
            .enumerate()
            .find_map(|(i, (a, b))| first_difference(a, b).map(|place| format!("{i}.{place}"))),
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
            ((a - b).abs() > a.abs() * 1e-6).then(|| format!(" {a} became {b}"))
        }
        _ => (before != after).then(|| format!(" {before} became {after}")),
    }
}
