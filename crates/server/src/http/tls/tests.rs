//! A TLS server on real sockets, and several kinds of clients.

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpListener;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as ClientStream;

use super::*;
use crate::config::Config;
use crate::runner::tests::FakeLauncher;

/// A server and the directory of its certificate and key.
struct TestServer {
    folder: tempfile::TempDir,
    address: std::net::SocketAddr,
    reload: tokio::sync::mpsc::Sender<()>,
}

/// Writes a new certificate for `localhost` with its key, and returns the certificate to trust.
fn write_pair(folder: &Path) -> CertificateDer<'static> {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let files = files(folder);
    std::fs::write(&files.certificate, cert.pem()).unwrap();
    std::fs::write(&files.key, signing_key.serialize_pem()).unwrap();
    cert.der().clone()
}

fn files(folder: &Path) -> TlsFiles {
    TlsFiles { certificate: folder.join("cert.pem"), key: folder.join("key.pem") }
}

async fn test_server() -> (TestServer, CertificateDer<'static>) {
    let folder = tempfile::tempdir().unwrap();
    let trusted = write_pair(folder.path());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let config = Config { tls: Some(files(folder.path())), ..Config::with_models(folder.path()) };
    let (reload, orders) = tokio::sync::mpsc::channel(1);
    let launcher = Arc::new(FakeLauncher(Arc::default()));
    let app = crate::app::App::new(config, launcher).unwrap();
    tokio::spawn(crate::run_app(app, listener, std::future::pending(), orders));
    (TestServer { folder, address, reload }, trusted)
}

impl TestServer {
    /// Connects as a client that trusts one certificate.
    async fn connect(
        &self,
        trusted: &CertificateDer<'static>,
    ) -> std::io::Result<ClientStream<TcpStream>> {
        self.connect_over(TcpStream::connect(self.address).await?, trusted).await
    }

    /// Performs a handshake on an open connection.
    async fn connect_over(
        &self,
        stream: TcpStream,
        trusted: &CertificateDer<'static>,
    ) -> std::io::Result<ClientStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.clone()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// Requests a reload and waits until the server has started it. The channel holds one message,
    /// so the second one fits once the server has taken the first.
    async fn reload(&self) {
        self.reload.send(()).await.unwrap();
        self.reload.send(()).await.unwrap();
    }

    /// Waits until new connections get the certificate.
    async fn wait_for(&self, certificate: &CertificateDer<'static>) {
        for _ in 0..600 {
            if self.connect(certificate).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the server does not present the new certificate");
    }
}

/// Sends a request and reads the response up to the end of the connection.
async fn ask(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin) -> String {
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn requests_are_answered_over_tls_in_http_1() {
    let (server, trusted) = test_server().await;
    let stream = server.connect(&trusted).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let answer = ask(stream).await;
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("Ollama is running"),
        "{answer}"
    );
}

#[tokio::test]
async fn plain_http_gets_an_error() {
    let (server, _) = test_server().await;
    let answer = ask(TcpStream::connect(server.address).await.unwrap()).await;
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.ends_with(PLAIN_HTTP_ERROR), "{answer}");
    let address = crate::Address::parse(&server.address.to_string()).0;
    let error = crate::listen(&address, "OLLAMA_HOST").await.unwrap_err().to_string();
    assert!(error.contains("a Puna with TLS is running there already"), "{error}");
}

#[tokio::test]
async fn a_new_certificate_is_used_and_a_broken_one_is_not() {
    let (server, first) = test_server().await;
    let open = server.connect(&first).await.unwrap();
    let second = write_pair(server.folder.path());
    server.reload().await;
    server.wait_for(&second).await;
    assert!(server.connect(&first).await.is_err(), "the server presents the old certificate");
    // Open connections continue.
    assert!(ask(open).await.ends_with("Ollama is running"));
    let files = files(server.folder.path());
    let good = std::fs::read(&files.key).unwrap();
    for broken in [&b"nonsense"[..], b"", &good[..good.len() / 2]] {
        std::fs::write(&files.key, broken).unwrap();
        server.reload().await;
        server.connect(&second).await.unwrap();
    }
    std::fs::remove_file(&files.certificate).unwrap();
    server.reload().await;
    server.connect(&second).await.unwrap();
    // The server also reloads on its own.
    let third = write_pair(server.folder.path());
    server.wait_for(&third).await;
}

#[tokio::test]
async fn unfinished_handshakes_time_out_and_others_wait_for_a_slot() {
    let (server, trusted) = test_server().await;
    let start = Instant::now();
    let mut slow = Vec::new();
    for _ in 0..MAX_HANDSHAKES {
        slow.push(TcpStream::connect(server.address).await.unwrap());
    }
    // A started handshake is treated alike.
    slow[0].write_all(&[HANDSHAKE_RECORD, 3, 1]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let answer = ask(server.connect(&trusted).await.unwrap()).await;
    assert!(answer.ends_with("Ollama is running"), "{answer}");
    let waited = start.elapsed();
    assert!(waited >= HANDSHAKE_TIMEOUT && waited < 3 * HANDSHAKE_TIMEOUT, "{waited:?}");
    for mut stream in slow {
        // The client's share is half of the slots, so that half of its handshakes begin later.
        let ended =
            timeout(4 * HANDSHAKE_TIMEOUT, stream.read(&mut [0; 64])).await.expect("it is closed");
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    }
}

#[test]
fn errors_name_the_file_and_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path());
    let error = || Tls::new(&files).err().unwrap().to_string();
    let (certificate, key) =
        (files.certificate.display().to_string(), files.key.display().to_string());
    assert!(
        error().starts_with(&format!("cannot read tls.certificate {certificate}: No such file"))
    );
    write_pair(folder.path());
    let other = tempfile::tempdir().unwrap();
    write_pair(other.path());
    Tls::new(&files).unwrap();

    let good = std::fs::read(&files.key).unwrap();
    let wrong_key = |content: &[u8]| {
        std::fs::write(&files.key, content).unwrap();
        let text = error();
        assert!(text.contains(&format!("tls.key {key}")), "{text}");
        text
    };
    assert!(wrong_key(b"hello").contains("-----BEGIN PRIVATE KEY-----"));
    assert!(wrong_key(&std::fs::read(&files.certificate).unwrap()).contains("no private key"));
    let locked =
        b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    assert!(wrong_key(locked).contains("openssl pkey"));
    assert!(wrong_key(&vec![b'x'; 2 << 20]).contains("larger than 1 MiB"));
    let foreign = std::fs::read(other.path().join("key.pem")).unwrap();
    assert!(
        wrong_key(&foreign).contains(&format!("does not belong to tls.certificate {certificate}"))
    );

    std::fs::write(&files.key, good).unwrap();
    std::fs::write(&files.certificate, "hello").unwrap();
    assert!(error().contains(&format!(
        "cannot use tls.certificate {certificate}: it has no `-----BEGIN CERT"
    )));
    std::fs::write(
        &files.certificate,
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    )
    .unwrap();
    assert!(error().contains(&format!("cannot use tls.certificate {certificate}: ")));
}
