//! TLS: the certificate and key of the server, read again when their files change.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{InconsistentKeys, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::patient::Patient;
use crate::config::TlsFiles;
use crate::lock::lock;

/// Bytes of a certificate's or key's file at most.
const MAX_FILE: u64 = 1 << 20;

/// How often the files are looked at again while connections come.
const LOOK: Duration = Duration::from_secs(1);

/// How long a client may take for its part of the handshake.
const HANDSHAKE: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 10_000 });

/// Handshakes at a time; further connections wait in the system's line.
pub(crate) const MAX_HANDSHAKES: usize = if cfg!(test) { 4 } else { 128 };

/// How every message of a handshake begins.
const HANDSHAKE_RECORD: u8 = 22;

/// What is said to clients that speak without TLS; others than clients know this server by its beginning.
pub(crate) const PLAIN: &str = "Puna speaks HTTPS here: put https:// in front of the address";

/// The certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {setting} {}: {reason}", path.display())]
    Unreadable {
        /// The setting that names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// A file has something else in it.
    #[error("{setting} {} is no use: {reason}", path.display())]
    Content {
        /// The setting that names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong, and the way out.
        reason: String,
    },
    /// Two files that have nothing to do with each other.
    #[error(
        "tls.key {} does not belong to tls.certificate {}: take the key that the certificate was made with, and a file whose \
         first certificate is the server's own",
        key.display(),
        certificate.display()
    )]
    Mismatch {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
}

/// Knows the certificate and key.
pub(crate) struct Tls {
    files: TlsFiles,
    known: Mutex<Known>,
}

struct Known {
    config: Arc<ServerConfig>,
    /// The files' state when they were read or complained about last.
    seen: [State; 2],
    looked: Instant,
}

/// What tells that a file was written anew; `None` if it is not there.
type State = Option<(SystemTime, u64)>;

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// They cannot be used.
    pub(crate) fn new(files: &TlsFiles) -> Result<Self, TlsError> {
        let seen = states(files);
        let config = read(files)?;
        warn_of_open_key(&files.key);
        let known = Mutex::new(Known { config, seen, looked: Instant::now() });
        Ok(Self { files: files.clone(), known })
    }

    /// Looks at the files now; new ones that cannot be used leave the old certificate in use.
    pub(crate) fn reload(&self) {
        self.look(&mut lock(&self.known));
    }

    fn config(&self) -> Arc<ServerConfig> {
        let mut known = lock(&self.known);
        if known.looked.elapsed() >= LOOK {
            self.look(&mut known);
        }
        Arc::clone(&known.config)
    }

    fn look(&self, known: &mut Known) {
        known.looked = Instant::now();
        let now = states(&self.files);
        if now == known.seen {
            return;
        }
        known.seen = now;
        match read(&self.files) {
            Ok(config) => {
                known.config = config;
                tracing::info!(certificate = %self.files.certificate.display(), "the certificate was read again");
            }
            Err(error) => {
                tracing::warn!("{error}; the certificate that was read before stays in use")
            }
        }
    }

    /// Comes to terms with a client; `None` if that fails or takes too long, or the client has been told what is wrong.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        write_timeout: Option<Duration>,
    ) -> Option<TlsStream<Patient<TcpStream>>> {
        let handshake = async {
            let mut first = [0];
            if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE_RECORD {
                refuse(stream).await?;
                return Ok(None);
            }
            let accepted =
                TlsAcceptor::from(self.config()).accept(Patient::new(stream, write_timeout)).await;
            accepted.map(Some)
        };
        match timeout(HANDSHAKE, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                // Mostly a client that does not know who has signed the certificate.
                tracing::debug!(%error, "a TLS handshake failed");
                None
            }
            Err(_) => None,
        }
    }
}

/// Answers a request that came without TLS, of which nothing is looked at.
async fn refuse(mut stream: TcpStream) -> std::io::Result<()> {
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{PLAIN}",
        PLAIN.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    // What is not read when the connection closes would take the answer back.
    let mut rest = stream.take(MAX_FILE);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await.map(drop)
}

fn states(files: &TlsFiles) -> [State; 2] {
    [&files.certificate, &files.key].map(|path| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    })
}

/// What connections need of the two files.
fn read(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let certificates = certificates(&files.certificate)?;
    let key = key(&files.key)?;
    let wrong = |setting, path: &Path, reason: String| TlsError::Content {
        setting,
        path: path.to_owned(),
        reason,
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong("tls.certificate", &files.certificate, e.to_string()))?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|e| match e {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => TlsError::Mismatch {
                certificate: files.certificate.clone(),
                key: files.key.clone(),
            },
            rustls::Error::InvalidCertificate(e) => wrong(
                "tls.certificate",
                &files.certificate,
                format!("its first certificate is broken ({e})"),
            ),
            e => wrong(
                "tls.key",
                &files.key,
                format!("{e}: it must be an RSA, ECDSA (P-256, P-384) or Ed25519 key"),
            ),
        })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let content = |reason: String| TlsError::Content {
        setting: "tls.certificate",
        path: path.to_owned(),
        reason,
    };
    let text = text("tls.certificate", path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|e| content(format!("it is no PEM file ({e})")))?;
    if all.is_empty() {
        let reason = "it has no `-----BEGIN CERTIFICATE-----`: it must be the server's certificate in PEM form, followed by those \
                      that lead to the authority";
        return Err(content(reason.into()));
    }
    Ok(all)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = text("tls.key", path)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let has = |part: &str| text.windows(part.len()).any(|window| window == part.as_bytes());
        let reason = if has("ENCRYPTED") {
            "it is locked with a password: `openssl pkey -in LOCKED -out OPEN` makes one without".to_owned()
        } else if has("-----BEGIN ") {
            format!("it has no private key ({error})")
        } else {
            "it has no `-----BEGIN PRIVATE KEY-----`: it must be the certificate's private key in PEM form"
                .into()
        };
        TlsError::Content { setting: "tls.key", path: path.to_owned(), reason }
    })
}

/// A file of sensible size.
fn text(setting: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |reason: String| TlsError::Unreadable { setting, path: path.to_owned(), reason };
    let mut text = Vec::new();
    let file = File::open(path).map_err(|e| failed(e.to_string()))?;
    file.take(MAX_FILE + 1).read_to_end(&mut text).map_err(|e| failed(e.to_string()))?;
    if text.len() as u64 > MAX_FILE {
        return Err(failed("it is larger than 1 MiB".into()));
    }
    Ok(text)
}

/// Says so when everybody on this machine can read the key.
fn warn_of_open_key(path: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if std::fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o007 != 0) {
            tracing::warn!(key = %path.display(), "everybody on this machine can read the TLS key: `chmod 600` it");
        }
    }
    #[cfg(not(unix))]
    let _ = path;
}

#[cfg(test)]
mod tests;
