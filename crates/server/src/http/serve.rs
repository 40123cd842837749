//! Serves connections until shutdown, then shuts down gracefully.

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
use puna_mirror::TlsConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use super::graceful_shutdown::RequestTracker;
use super::peer::Peer;
use super::tls::{MAX_HANDSHAKES, Tls};
use super::write_timeout::WriteTimeoutStream;

/// Maximum time for a client to send the head of a request.
const HEADER_READ_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 1000 } else { 30_000 });

/// Minimum interval between log warnings about failed accepts.
const ACCEPT_WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// Time that running requests have after shutdown starts.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 5000 });

/// Time to send the error that ends the remaining requests.
const FINAL_ERROR_TIMEOUT: Duration = Duration::from_secs(1);

/// Time to pass the last response bytes to the system.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(100);

/// Answers the requests of a server.
pub(crate) trait RequestHandler: Send + Sync {
    /// Answers a request.
    fn answer(&self, request: Request) -> BoxFuture<'static, Response>;

    /// Checks its files for changes.
    fn reload(&self);
}

/// Configuration of connections.
pub(crate) struct ConnectionConfig {
    /// Answers the requests.
    pub(crate) handler: Arc<dyn RequestHandler>,
    /// Certificate; `None` serves plain HTTP.
    pub(crate) tls: Option<Arc<Tls>>,
    /// Time without progress after which a response is aborted; `None` is no limit.
    pub(crate) write_timeout: Option<Duration>,
}

/// Serves connections until `shutdown` is ready. Running requests then have a few seconds, until
/// `final_step` sends the remaining ones an error. Each `reload` checks keys and certificate.
pub(crate) async fn run(
    listener: TcpListener,
    config: ConnectionConfig,
    mut reload: mpsc::Receiver<()>,
    shutdown: impl Future<Output = ()>,
    final_step: impl Future<Output = ()>,
) {
    let graceful = GracefulShutdown::new();
    let tracker = RequestTracker::new();
    let handshake_slots = config.tls.as_ref().map(|_| Arc::new(Semaphore::new(MAX_HANDSHAKES)));
    let mut warned: Option<Instant> = None;
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            Some(()) = reload.recv() => {
                tracing::info!("reloading keys and certificate");
                config.handler.reload();
                config.tls.iter().for_each(|tls| tls.reload());
                continue;
            }
            accepted = accept(&listener, handshake_slots.as_ref()) => accepted,
        };
        match accepted {
            Ok((stream, peer, slot)) => {
                // Streamed chunks are small and must not wait for each other.
                let _ = stream.set_nodelay(true);
                let service = ConnectionService {
                    peer,
                    handler: config.handler.clone(),
                    secure: TlsConnection(config.tls.is_some()),
                    watcher: graceful.watcher(),
                    tracker: tracker.clone(),
                };
                puna_tasks::spawn(connection(
                    stream,
                    slot,
                    config.tls.clone(),
                    config.write_timeout,
                    service,
                ));
            }
            Err(error) => {
                // Usually the process is out of file descriptors until other connections close. The
                // log gets one line per interval.
                if warned.is_none_or(|at| at.elapsed() > ACCEPT_WARNING_INTERVAL) {
                    tracing::warn!(%error, "cannot accept a connection");
                    warned = Some(Instant::now());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    finish(graceful, &tracker, final_step).await;
}

/// Gives running requests a few seconds, then ends the remaining ones with an error.
async fn finish(
    graceful: GracefulShutdown,
    tracker: &RequestTracker,
    final_step: impl Future<Output = ()>,
) {
    tracker.start_shutdown();
    let closed = graceful.shutdown();
    tokio::pin!(closed);
    // Idle connections and incomplete request heads do not delay shutdown.
    let idle = tokio::select! {
        // A completed future must not be polled again.
        () = &mut closed => return final_step.await,
        idle = timeout(SHUTDOWN_GRACE, tracker.wait_until_idle()) => idle,
    };
    if idle.is_err() {
        tracing::warn!("shutdown timeout reached; aborting the remaining requests");
    }
    final_step.await;
    let _ = timeout(FINAL_ERROR_TIMEOUT, tracker.wait_until_idle()).await;
    let _ = timeout(FLUSH_TIMEOUT, closed).await;
}

/// Accepts the next connection, with TLS after a handshake slot is free.
async fn accept(
    listener: &TcpListener,
    handshake_slots: Option<&Arc<Semaphore>>,
) -> io::Result<(TcpStream, SocketAddr, Option<OwnedSemaphorePermit>)> {
    let slot = match handshake_slots {
        Some(handshake_slots) => Arc::clone(handshake_slots).acquire_owned().await.ok(),
        None => None,
    };
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, slot))
}

async fn connection(
    stream: TcpStream,
    slot: Option<OwnedSemaphorePermit>,
    tls: Option<Arc<Tls>>,
    write_timeout: Option<Duration>,
    service: ConnectionService,
) {
    match tls {
        None => service.serve(WriteTimeoutStream::new(stream, write_timeout)).await,
        Some(tls) => {
            let stream = tls.accept(stream, write_timeout).await;
            drop(slot);
            if let Some(stream) = stream {
                service.serve(stream).await;
            }
        }
    }
}

/// Serves the requests of one connection.
struct ConnectionService {
    peer: SocketAddr,
    handler: Arc<dyn RequestHandler>,
    secure: TlsConnection,
    watcher: Watcher,
    tracker: RequestTracker,
}

impl ConnectionService {
    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Self { peer, handler, secure, watcher, tracker } = self;
        let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let (handler, tracker) = (handler.clone(), tracker.clone());
            async move {
                let active = tracker.start_request();
                let mut request = tracker.wrap_request(request);
                request.extensions_mut().insert(Peer(peer.ip()));
                request.extensions_mut().insert(secure);
                let response = handler.answer(request).await;
                Ok::<_, std::convert::Infallible>(active.attach_to_body(response))
            }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_READ_TIMEOUT)
            .max_buf_size(256 << 10)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%peer, %error, "connection ended with an error");
        }
    }
}
