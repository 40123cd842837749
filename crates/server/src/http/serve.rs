//! Listening, and what is said when somebody else listens already.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use super::client::Client;
use super::door::{Door, Peer};
use super::ending::Ending;
use super::patient::Patient;
use super::tls::{MAX_HANDSHAKES, PLAIN, Tls};
use crate::config::Address;

/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 1000 } else { 30_000 });

/// How often connections that cannot be accepted are worth a line in the log.
const COMPLAIN: Duration = Duration::from_secs(10);

/// How long running requests may go on after the end was asked for.
const GRACE: Duration = Duration::from_secs(5);

/// How long the error may take that ends the others.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long the last bytes of an answer may take to the system.
const FLUSH: Duration = Duration::from_millis(100);

/// The server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody else has the port.
    #[error("listen tcp {address}: bind: address already in use: {by} is running there already{hint}")]
    InUse {
        /// The address.
        address: String,
        /// Who.
        by: String,
        /// The way out.
        hint: String,
    },
    /// Another reason.
    #[error("listen tcp {address}: bind: {error}")]
    Other {
        /// The address.
        address: String,
        /// The reason.
        error: io::Error,
    },
}

/// Opens the server's address.
pub async fn listen(address: &Address) -> Result<TcpListener, ListenError> {
    let authority = address.authority();
    match TcpListener::bind(&authority).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let (by, hint) = who(address).await;
            Err(ListenError::InUse { address: authority, by, hint })
        }
        Err(error) => Err(ListenError::Other { address: authority, error }),
    }
}

/// Who listens at an address.
async fn who(address: &Address) -> (String, String) {
    let elsewhere = ": stop it, or set OLLAMA_HOST to another address (such as 127.0.0.1:11500)".to_owned();
    let root = ask(address, "/").await.unwrap_or_default();
    let version = ask(address, "/api/version").await.unwrap_or_default();
    let version: puna_api::native::VersionResponse = serde_json::from_str(&version).unwrap_or_default();
    if !version.puna.is_empty() {
        return (format!("Puna {}", version.puna), ": it can be used as it is, or stopped first".into());
    }
    if root.starts_with(PLAIN) {
        return ("a Puna with TLS".into(), ": it can be used at https://, or stopped first".into());
    }
    if root.starts_with("Ollama is running") {
        return (format!("Ollama {}", version.version).trim_end().to_owned(), elsewhere);
    }
    let what = if root.is_empty() { "a program that does not speak HTTP" } else { "another HTTP server" };
    (what.to_owned(), elsewhere)
}

/// The body that a server answers to a GET, if it does so soon.
async fn ask(address: &Address, path: &str) -> Option<String> {
    let url = address.url();
    let target = url.split("://").nth(1)?.split('/').next()?.to_owned();
    let exchange = async {
        let mut stream = TcpStream::connect(&target).await.ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.take(64 << 10).read_to_end(&mut answer).await.ok()?;
        Some(String::from_utf8_lossy(&answer).split_once("\r\n\r\n")?.1.to_owned())
    };
    timeout(Duration::from_secs(2), exchange).await.ok().flatten()
}

/// How connections are answered.
pub(crate) struct Manner {
    /// The door of the routes.
    pub(crate) door: Door,
    /// With TLS, by this certificate.
    pub(crate) tls: Option<Arc<Tls>>,
    /// A client that takes nothing of its answer for so long loses it; `None` is for ever.
    pub(crate) write_timeout: Option<Duration>,
}

/// Answers connections until `end` is ready; running requests then have a few seconds, until `last` tells those that are
/// left why they end. At each `reload` keys and certificate are looked at.
pub(crate) async fn run(
    listener: TcpListener,
    manner: Manner,
    mut reload: mpsc::Receiver<()>,
    end: impl Future<Output = ()>,
    last: impl Future<Output = ()>,
) {
    let graceful = GracefulShutdown::new();
    let ending = Ending::new();
    let places = manner.tls.as_ref().map(|_| Arc::new(Semaphore::new(MAX_HANDSHAKES)));
    let mut complained: Option<Instant> = None;
    tokio::pin!(end);
    loop {
        let accepted = tokio::select! {
            () = &mut end => break,
            Some(()) = reload.recv() => {
                tracing::info!("asked to read keys and certificate again");
                manner.door.reload();
                manner.tls.iter().for_each(|tls| tls.reload());
                continue;
            }
            accepted = accept(&listener, places.as_ref()) => accepted,
        };
        match accepted {
            Ok((stream, peer, place)) => {
                // Pieces of an answer are small and must not wait for each other.
                let _ = stream.set_nodelay(true);
                let answers = Answers {
                    peer,
                    door: manner.door.clone(),
                    watcher: graceful.watcher(),
                    ending: ending.clone(),
                };
                tokio::spawn(connection(stream, place, manner.tls.clone(), manner.write_timeout, answers));
            }
            Err(error) => {
                // Out of file handles, mostly: others have to end first. The log needs to hear it once in a while only.
                if complained.is_none_or(|at| at.elapsed() > COMPLAIN) {
                    tracing::warn!(%error, "a connection could not be accepted");
                    complained = Some(Instant::now());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    ending.begin();
    let closed = graceful.shutdown();
    tokio::pin!(closed);
    // Connections without a request, or with half a one, are not waited for.
    let idle = tokio::select! {
        // Done: it must not be asked again.
        () = &mut closed => return last.await,
        idle = timeout(GRACE, ending.idle()) => idle,
    };
    if idle.is_err() {
        tracing::warn!("requests that did not end in time are broken off");
    }
    last.await;
    let _ = timeout(LAST_WORDS, ending.idle()).await;
    let _ = timeout(FLUSH, closed).await;
}

/// The next connection, once there is a place for its handshake if it needs one.
async fn accept(
    listener: &TcpListener,
    places: Option<&Arc<Semaphore>>,
) -> io::Result<(TcpStream, SocketAddr, Option<OwnedSemaphorePermit>)> {
    let place = match places {
        Some(places) => Arc::clone(places).acquire_owned().await.ok(),
        None => None,
    };
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, place))
}

async fn connection(
    stream: TcpStream,
    place: Option<OwnedSemaphorePermit>,
    tls: Option<Arc<Tls>>,
    write_timeout: Option<Duration>,
    answers: Answers,
) {
    match tls {
        None => answers.to(Patient::new(stream, write_timeout)).await,
        Some(tls) => {
            let stream = tls.accept(stream, write_timeout).await;
            drop(place);
            if let Some(stream) = stream {
                answers.to(stream).await;
            }
        }
    }
}

/// What answers the requests of a connection.
struct Answers {
    peer: SocketAddr,
    door: Door,
    watcher: Watcher,
    ending: Ending,
}

impl Answers {
    async fn to(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Self { peer, door, watcher, ending } = self;
        let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let (door, ending) = (door.clone(), ending.clone());
            async move {
                let counted = ending.count();
                let mut request = ending.request(request);
                request.extensions_mut().insert(Client::at(peer.ip()));
                request.extensions_mut().insert(Peer(peer.ip()));
                let response = door.answer(request).await;
                Ok::<_, std::convert::Infallible>(counted.until_sent(response))
            }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(256 << 10)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%peer, %error, "a connection ended");
        }
    }
}
