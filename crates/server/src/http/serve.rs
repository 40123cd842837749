//! Answering connections until the end, and the end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::response::Response;
use futures_util::future::BoxFuture;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use puna_mirror::Secure;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use super::client::Client;
use super::ending::Ending;
use super::patient::Patient;
use super::peer::Peer;
use super::tls::{MAX_HANDSHAKES, Tls};

/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 1000 } else { 30_000 });

/// How often connections that cannot be accepted are worth a line in the log.
const COMPLAIN: Duration = Duration::from_secs(10);

/// How long running requests may go on after the end was asked for.
const GRACE: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 5000 });

/// How long the error may take that ends the others.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long the last bytes of an answer may take to the system.
const FLUSH: Duration = Duration::from_millis(100);

/// Who answers requests.
pub(crate) trait Desk: Send + Sync {
    /// Answers a request.
    fn answer(&self, request: Request) -> BoxFuture<'static, Response>;

    /// Looks at its files again.
    fn reload(&self);
}

/// How connections are answered.
pub(crate) struct Manner {
    /// Who answers requests.
    pub(crate) desk: Arc<dyn Desk>,
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
                manner.desk.reload();
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
                    desk: manner.desk.clone(),
                    secure: Secure(manner.tls.is_some()),
                    watcher: graceful.watcher(),
                    ending: ending.clone(),
                };
                puna_tasks::spawn(connection(
                    stream,
                    place,
                    manner.tls.clone(),
                    manner.write_timeout,
                    answers,
                ));
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
    finish(graceful, &ending, last).await;
}

/// Gives running requests a few seconds, then tells those that are left why they end.
async fn finish(graceful: GracefulShutdown, ending: &Ending, last: impl Future<Output = ()>) {
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
    desk: Arc<dyn Desk>,
    secure: Secure,
    watcher: Watcher,
    ending: Ending,
}

impl Answers {
    async fn to(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Self { peer, desk, secure, watcher, ending } = self;
        let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let (desk, ending) = (desk.clone(), ending.clone());
            async move {
                let counted = ending.count();
                let mut request = ending.request(request);
                request.extensions_mut().insert(Client::at(peer.ip()));
                request.extensions_mut().insert(Peer(peer.ip()));
                request.extensions_mut().insert(secure);
                let response = desk.answer(request).await;
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
