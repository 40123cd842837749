//! Fetching from malicious hosts, simulated on this machine.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use puna_registry::{HostPattern, Resolver};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\nand so on";

fn ok(kind: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn redirect(to: &str) -> Vec<u8> {
    format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n").into_bytes()
}

/// A web server with fixed responses by path. It never answers other paths.
struct TestHost {
    port: u16,
    asked: Arc<AtomicUsize>,
}

impl TestHost {
    async fn new(answers: impl Fn(u16) -> Vec<(&'static str, Vec<u8>)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, asked) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let (answers, count): (HashMap<_, _>, _) =
            (answers(port).into_iter().collect(), asked.clone());
        let answers = Arc::new(answers);
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let (answers, count) = (answers.clone(), count.clone());
                tokio::spawn(async move {
                    let mut request = vec![0; 4096];
                    let n = socket.read(&mut request).await.unwrap_or(0);
                    count.fetch_add(1, Ordering::Relaxed);
                    let head = String::from_utf8_lossy(&request[..n]).to_lowercase();
                    for told in ["cookie", "authorization", "referer"] {
                        assert!(!head.contains(told), "{head}");
                    }
                    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                    match answers.get(path.as_str()) {
                        Some(answer) if path == "/endless" => {
                            while socket.write_all(answer).await.is_ok() {}
                        }
                        Some(answer) => drop(socket.write_all(answer).await),
                        None => std::future::pending().await,
                    }
                });
            }
        });
        Self { port, asked }
    }

    fn request_count(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

/// Resolves names that end in `.test` to this machine; `mixed.test` has a public address too.
fn fetcher(hosts: &[String]) -> ImageFetcher {
    let resolver: Resolver = Arc::new(|host, _| {
        let here: IpAddr = [127, 0, 0, 1].into();
        let found = match host.as_str() {
            "mixed.test" => Ok(vec![[93, 184, 215, 14].into(), here]),
            "nobody.test" => Err(io::ErrorKind::NotFound.into()),
            _ => Ok(vec![here]),
        };
        Box::pin(async move { found })
    });
    let named = hosts.iter().filter_map(|host| HostPattern::of_machine(host)).collect();
    let policy = OutgoingPolicy::new(named).with_resolver(resolver);
    ImageFetcher::with(policy, puna_registry::tls_config().unwrap())
}

async fn fetch(fetcher: &ImageFetcher, url: &str) -> Result<Vec<u8>, ImageUrlError> {
    fetcher.fetch(0, url, 1000).await
}

#[tokio::test]
async fn non_public_addresses_are_rejected() {
    let host = TestHost::new(|_| vec![("/a.png", ok("image/png", PNG))]).await;
    let port = host.port;
    let fetcher = fetcher(&["other.test".into(), "127.0.0.1:1".into()]);
    for address in [
        "127.0.0.1",
        "localhost",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "[::]",
        "10.0.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "[fe80::1]",
        "[fc00::1]",
        "inside.test",
        "mixed.test",
        "nobody.test",
        "inside.test.",
        "１２７.0.0.1",
    ] {
        let error = fetch(&fetcher, &format!("http://{address}:{port}/a.png")).await.unwrap_err();
        assert_eq!(error, ImageUrlError::Unreachable, "{address}");
        assert!(error.to_string().contains("image_hosts"), "{error}");
    }
    assert_eq!(host.request_count(), 0);
}

#[tokio::test]
async fn a_configured_host_is_requested_at_the_checked_address() {
    let host = TestHost::new(|_| vec![("/a.png", ok("image/png; x=y", PNG))]).await;
    let port = host.port;
    for named in [format!("pictures.test:{port}"), "Pictures.test".into()] {
        let fetcher = fetcher(&[named]);
        assert_eq!(
            fetch(&fetcher, &format!("http://PICTURES.test:{port}/a.png")).await.unwrap(),
            PNG
        );
        let other = fetch(&fetcher, &format!("http://127.0.0.1:{port}/a.png")).await;
        assert!(
            matches!(other, Err(ImageUrlError::Unreachable)),
            "named is the host, not its address: {other:?}"
        );
    }
    let elsewhere = fetcher(&[format!("pictures.test:{}", port ^ 1)]);
    assert!(
        fetch(&elsewhere, &format!("http://pictures.test:{port}/a.png")).await.is_err(),
        "another port"
    );
}

#[tokio::test]
async fn redirects_are_limited_and_each_is_checked() {
    let inside = TestHost::new(|_| vec![("/a.png", ok("image/png", PNG))]).await;
    let to = |host: &str| redirect(&format!("http://{host}:{}/a.png", inside.port));
    let answers = [
        ("/literal", to("127.0.0.1")),
        ("/name", to("inside.test")),
        ("/file", redirect("file:///etc/passwd")),
        ("/user", redirect("http://me:word@127.0.0.1/")),
        ("/round", redirect("/round")),
        ("/nowhere", redirect("")),
        ("/one", redirect("two")),
        ("/two", redirect("//door.test/three")),
        ("/gopher", redirect("gopher://x/")),
    ];
    let door = TestHost::new(|port| {
        let mut answers = answers.to_vec();
        answers.push(("/three", ok("image/png", PNG)));
        answers[7].1 = redirect(&format!("//door.test:{port}/three"));
        answers
    })
    .await;
    let fetcher = fetcher(&[format!("door.test:{}", door.port)]);
    let ask =
        async |path: &str| fetch(&fetcher, &format!("http://door.test:{}{path}", door.port)).await;
    for path in ["/literal", "/name"] {
        let answer = ask(path).await;
        assert_eq!(answer, Err(ImageUrlError::Unreachable), "{path}");
    }
    for path in ["/file", "/user", "/gopher"] {
        assert_eq!(ask(path).await, Err(ImageUrlError::Address), "{path}");
    }
    assert_eq!(inside.request_count(), 0);
    let before = door.request_count();
    assert_eq!(ask("/round").await, Err(ImageUrlError::Redirects));
    assert_eq!(door.request_count() - before, MAX_REDIRECTS + 1);
    assert_eq!(ask("/one").await.unwrap(), PNG);
}

#[tokio::test]
async fn other_content_and_large_or_slow_responses_are_rejected() {
    let host = TestHost::new(|_| {
        let endless = b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\n\r\n\x89PNG\r\n\x1a\n".to_vec();
        vec![
            ("/page", ok("text/html", b"<html>")),
            ("/none", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec()),
            ("/lies", ok("image/png", b"root:x:0:0")),
            ("/svg", ok("image/svg+xml", b"<svg/>")),
            ("/endless", endless),
            (
                "/large",
                b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 9999999999\r\n\r\n".to_vec(),
            ),
            (
                "/short",
                b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 99\r\n\r\n\x89PNG\r\n\x1a\n"
                    .to_vec(),
            ),
            ("/gone", b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec()),
            ("/nonsense", b"\0\0\0\0\r\n\r\n".to_vec()),
            ("/jpeg", ok("image/jpeg", b"\xff\xd8\xff\xe0")),
            ("/webp", ok("IMAGE/WebP", b"RIFF\x04\0\0\0WEBP")),
        ]
    })
    .await;
    let fetcher = fetcher(&["h.test".into()]);
    let ask =
        async |path: &str| fetch(&fetcher, &format!("http://h.test:{}{path}", host.port)).await;
    assert_eq!(ask("/page").await, Err(ImageUrlError::Kind("text/html".into())));
    assert_eq!(ask("/svg").await, Err(ImageUrlError::Kind("image/svg+xml".into())));
    assert_eq!(ask("/none").await, Err(ImageUrlError::Kind(String::new())));
    assert_eq!(ask("/lies").await, Err(ImageUrlError::Content));
    assert_eq!(ask("/large").await, Err(ImageUrlError::TooLarge(1000)));
    assert_eq!(ask("/endless").await, Err(ImageUrlError::TooLarge(1000)));
    assert_eq!(ask("/gone").await, Err(ImageUrlError::Status(404)));
    for path in ["/short", "/nonsense"] {
        assert_eq!(ask(path).await, Err(ImageUrlError::Unreachable), "{path}");
    }
    assert_eq!(ask("/silence").await, Err(ImageUrlError::Unreachable));
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let closed = fetch(&fetcher, &format!("http://h.test:{closed}/a.png")).await;
    assert_eq!(closed, Err(ImageUrlError::Unreachable));
    assert!(ask("/jpeg").await.is_ok() && ask("/webp").await.is_ok());
    for url in
        ["ftp://h.test/a", "http://", "http://user@h.test/a", "nonsense", "http://h.test:99999/"]
    {
        assert_eq!(fetch(&fetcher, url).await, Err(ImageUrlError::Address), "{url}");
    }
}

#[tokio::test]
async fn images_replace_their_urls_and_other_urls_remain() {
    let host = TestHost::new(|_| vec![("/a.png", ok("image/png", PNG))]).await;
    let fetcher = fetcher(&["h.test".into()]);
    let (url, data) = (format!("http://h.test:{}/a.png", host.port), puna_api::base64_encode(PNG));
    let inline = format!("data:;base64,{data}");
    let openai = |url: &str| {
        json!([{"type": "text", "text": url}, {"type": "image_url", "image_url": {"url": url}},
            {"type": "image_url", "image_url": url}, {"type": "input_image", "image_url": url}, {"type": "image_url"}, 5])
    };
    let mut content = openai(&url);
    fetcher.fetch_all(0, in_openai(vec![(Author::Other, &mut content)])).await.unwrap();
    let mut want = openai(&inline);
    want[0]["text"] = json!(url);
    assert_eq!(content, want);
    assert!(in_openai(vec![(Author::Other, &mut content)]).is_empty(), "data is no address");
    let read = crate::api::openai::request_image(&inline);
    assert_eq!(read.bytes(), PNG, "the dialect reads what stands there");

    let source = json!({"type": "url", "url": url});
    let messages = |source: &Value| {
        json!([{"type": "image", "source": source}, {"type": "tool_use", "input": {"type": "image", "source": {"type": "url", "url": "x"}}},
            {"type": "tool_result", "content": [{"type": "image", "source": source}]}, {"type": "text", "text": "http://"}])
    };
    let mut content = messages(&source);
    fetcher.fetch_all(0, in_anthropic(vec![(Author::Other, &mut content)])).await.unwrap();
    assert_eq!(content, messages(&json!({"type": "base64", "data": data})));

    // Images of earlier turns are fetched after the images of the newest turn, if possible.
    let mut earlier = json!([{"type": "image_url", "image_url": url}, {"type": "image_url", "image_url": "http://inside.test/"}]);
    let (mut answer, mut newest) = (json!("a"), openai(&url));
    let contents = vec![
        (Author::Other, &mut earlier),
        (Author::Assistant, &mut answer),
        (Author::Other, &mut newest),
    ];
    fetcher.fetch_all(0, in_openai(contents)).await.unwrap();
    assert_eq!(
        (&earlier[0]["image_url"], &earlier[1]["image_url"]),
        (&json!(inline), &json!("http://inside.test/"))
    );
    assert_eq!(newest[1]["image_url"]["url"], inline);

    let mut many = json!(vec![json!({"type": "image_url", "image_url": url}); MAX_IMAGES + 1]);
    let before = host.request_count();
    let failure =
        fetcher.fetch_all(0, in_openai(vec![(Author::Other, &mut many)])).await.unwrap_err();
    assert_eq!((failure.status, host.request_count()), (400, before));
    let mut bad = json!([{"type": "image_url", "image_url": "http://inside.test/?token=a"}]);
    let failure =
        fetcher.fetch_all(0, in_openai(vec![(Author::Other, &mut bad)])).await.unwrap_err();
    assert!(
        failure.message.starts_with("image URL \"http://inside.test/?token=a\" cannot be fetched"),
        "{failure}"
    );
}
