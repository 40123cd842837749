//! TLS with a certificate and key that are reloaded when their files change.

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

use super::write_timeout::WriteTimeoutStream;
use crate::config::TlsFiles;
use crate::util::lock::lock;

/// Maximum bytes of a certificate or key file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Minimum interval between checks of the files, which connections trigger.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum duration of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 10_000 });

/// Maximum concurrent handshakes; further connections wait in the system's backlog.
pub(crate) const MAX_HANDSHAKES: usize = if cfg!(test) { 4 } else { 128 };

/// First byte of a TLS handshake record.
const HANDSHAKE_RECORD: u8 = 22;

/// Response to plain HTTP requests. Other Puna programs recognize this server by its start.
pub(crate) const PLAIN_HTTP_ERROR: &str =
    "Puna speaks HTTPS here: put https:// in front of the address";

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
    /// A file has invalid content.
    #[error("cannot use {setting} {}: {reason}", path.display())]
    Content {
        /// The setting that names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// The problem and its remedy.
        reason: String,
    },
    /// The key does not belong to the certificate.
    #[error(
        "tls.key {} does not belong to tls.certificate {}: use the key of the certificate, and put the server's certificate first",
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

/// The TLS certificate and key of a server.
pub(crate) struct Tls {
    files: TlsFiles,
    loaded: Mutex<LoadedCertificate>,
}

struct LoadedCertificate {
    config: Arc<ServerConfig>,
    /// Stamps of the files when they were last loaded or reported as broken.
    stamps: [FileStamp; 2],
    checked_at: Instant,
}

/// Modification time and size of a file; `None` if it does not exist.
type FileStamp = Option<(SystemTime, u64)>;

impl Tls {
    /// Loads the files.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn new(files: &TlsFiles) -> Result<Self, TlsError> {
        let stamps = file_stamps(files);
        let config = server_config(files)?;
        warn_of_open_key(&files.key);
        let loaded = Mutex::new(LoadedCertificate { config, stamps, checked_at: Instant::now() });
        Ok(Self { files: files.clone(), loaded })
    }

    /// Checks the files now. If new ones are invalid, the old certificate stays in use.
    pub(crate) fn reload(&self) {
        self.reload_if_changed(&mut lock(&self.loaded));
    }

    fn config(&self) -> Arc<ServerConfig> {
        let mut loaded = lock(&self.loaded);
        if loaded.checked_at.elapsed() >= RELOAD_INTERVAL {
            self.reload_if_changed(&mut loaded);
        }
        Arc::clone(&loaded.config)
    }

    fn reload_if_changed(&self, loaded: &mut LoadedCertificate) {
        loaded.checked_at = Instant::now();
        let now = file_stamps(&self.files);
        if now == loaded.stamps {
            return;
        }
        loaded.stamps = now;
        match server_config(&self.files) {
            Ok(config) => {
                loaded.config = config;
                tracing::info!(certificate = %self.files.certificate.display(), "reloaded the certificate");
            }
            Err(error) => {
                tracing::warn!(%error, "cannot reload the certificate; certificate unchanged")
            }
        }
    }

    /// Performs the handshake. `None` if it fails or times out, or after a plain HTTP request was
    /// answered.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        write_timeout: Option<Duration>,
    ) -> Option<TlsStream<WriteTimeoutStream<TcpStream>>> {
        let handshake = async {
            let mut first = [0];
            if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE_RECORD {
                refuse_plain_http(stream).await?;
                return Ok(None);
            }
            let accepted = TlsAcceptor::from(self.config())
                .accept(WriteTimeoutStream::new(stream, write_timeout))
                .await;
            accepted.map(Some)
        };
        match timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                // Usually the client does not trust the issuer of the certificate.
                tracing::debug!(%error, "TLS handshake failed");
                None
            }
            Err(_) => None,
        }
    }
}

/// Answers a plain HTTP request without parsing it.
async fn refuse_plain_http(mut stream: TcpStream) -> std::io::Result<()> {
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{PLAIN_HTTP_ERROR}",
        PLAIN_HTTP_ERROR.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    // Unread input at close would reset the connection and discard the response.
    let mut rest = stream.take(MAX_FILE_BYTES);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await.map(drop)
}

fn file_stamps(files: &TlsFiles) -> [FileStamp; 2] {
    [&files.certificate, &files.key].map(|path| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    })
}

/// Builds the TLS configuration from the two files.
fn server_config(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
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
                format!("its first certificate is invalid ({e})"),
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
    let text = read_file("tls.certificate", path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|e| content(format!("it is not a PEM file ({e})")))?;
    if all.is_empty() {
        let reason = "it has no `-----BEGIN CERTIFICATE-----`: it must contain the server's certificate in PEM format, then the intermediate certificates";
        return Err(content(reason.into()));
    }
    Ok(all)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = read_file("tls.key", path)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let has = |part: &str| text.windows(part.len()).any(|window| window == part.as_bytes());
        let reason = if has("ENCRYPTED") {
            "it is encrypted with a password: `openssl pkey -in LOCKED -out OPEN` writes one without".to_owned()
        } else if has("-----BEGIN ") {
            format!("it has no private key ({error})")
        } else {
            "it has no `-----BEGIN PRIVATE KEY-----`: it must contain the certificate's private key in PEM format"
                .into()
        };
        TlsError::Content { setting: "tls.key", path: path.to_owned(), reason }
    })
}

/// Reads a file of limited size.
fn read_file(setting: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |reason: String| TlsError::Unreadable { setting, path: path.to_owned(), reason };
    let mut text = Vec::new();
    let file = File::open(path).map_err(|e| failed(e.to_string()))?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text).map_err(|e| failed(e.to_string()))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(failed("it is larger than 1 MiB".into()));
    }
    Ok(text)
}

/// Logs a warning if all users of this machine can read the key.
fn warn_of_open_key(path: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if std::fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o007 != 0) {
            tracing::warn!(key = %path.display(), "all users of this machine can read the TLS key: run `chmod 600` on it");
        }
    }
    #[cfg(not(unix))]
    let _ = path;
}

#[cfg(test)]
mod tests;
