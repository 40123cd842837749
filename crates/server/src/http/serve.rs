//! Serves connections until shutdown, then shuts down gracefully.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use puna_mirror::{SharedTable, TableLimit, TlsConnection};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use super::body_workers::BodyWorkers;
use super::client::Client;
use super::connection_table::{ConnectionSlot, ConnectionTable};
use super::file_limit::raise_open_file_limit;
use super::graceful_shutdown::RequestTracker;
use super::host_check::host_header_error;
use super::peer::Peer;
use super::tls::{MAX_HANDSHAKES, Tls};
use super::write_timeout::WriteTimeoutStream;

/// Maximum time for a client to send the head of a request.
const HEADER_READ_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 1000 } else { 30_000 });

/// Maximum time for a client to send the head of a request while many connections are open.
const BUSY_HEADER_READ_TIMEOUT: Duration =
    Duration::from_millis(if cfg!(test) { 500 } else { 5000 });

/// Time that a TLS handshake has while other connections wait for a handshake slot.
const BUSY_HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum TLS handshakes of one client at a time; further ones wait.
pub(crate) const CLIENT_HANDSHAKES: usize = MAX_HANDSHAKES / 2;

/// Description of the TLS handshakes in progress.
pub(crate) static HANDSHAKES: SharedTable = SharedTable {
    name: "TLS handshakes",
    holders: &["puna_server::http::serve::Handshake"],
    limits: &[TableLimit::Entries(MAX_HANDSHAKES)],
    shares: &[TableLimit::Entries(CLIENT_HANDSHAKES)],
    when_full: "further handshakes of the client wait; those that last 500 ms are closed",
    test: "handshakes_of_one_client_leave_half_of_the_slots_to_another",
};

/// Interval between looks for a free handshake slot.
const HANDSHAKE_SLOT_INTERVAL: Duration = Duration::from_millis(20);

/// Response to a connection or request for which there is no place.
const EXHAUSTED_ERROR: &str = "503 Service Unavailable: too many connections; try again later";

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

    /// Threads that process large bodies.
    fn body_workers(&self) -> BodyWorkers {
        BodyWorkers::default()
    }
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
    let table = ConnectionTable::for_open_files(raise_open_file_limit());
    let graceful = GracefulShutdown::new();
    let tracker = RequestTracker::new(config.handler.body_workers());
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
            accepted = accept(&listener, handshake_slots.as_ref(), &table) => accepted,
        };
        match accepted {
            Ok((stream, peer, handshake_slot)) => {
                let Ok(slot) = table.admit(peer.ip()) else {
                    tracing::debug!(%peer, "too many connections; connection refused");
                    refuse(&stream, config.tls.is_some());
                    continue;
                };
                // Streamed chunks are small and must not wait for each other.
                let _ = stream.set_nodelay(true);
                let service = ConnectionService {
                    peer,
                    handler: config.handler.clone(),
                    secure: TlsConnection(config.tls.is_some()),
                    watcher: graceful.watcher(),
                    tracker: tracker.clone(),
                    slot,
                    header_timeout: match table.is_under_pressure() {
                        true => BUSY_HEADER_READ_TIMEOUT,
                        false => HEADER_READ_TIMEOUT,
                    },
                };
                let handshake =
                    handshake_slots.as_ref().zip(config.tls.as_ref()).map(|(slots, tls)| {
                        Handshake {
                            tls: tls.clone(),
                            slots: slots.clone(),
                            slot: handshake_slot,
                            table: table.clone(),
                        }
                    });
                puna_tasks::spawn(connection(stream, handshake, config.write_timeout, service));
            }
            Err(error) => {
                // Usually the process is out of file descriptors, so an idle connection is closed.
                // The log gets one line per interval.
                table.close_oldest_idle();
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

/// Answers a connection that is not served. Over TLS it is only closed.
fn refuse(stream: &TcpStream, is_tls: bool) {
    if !is_tls {
        let answer = format!(
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 1\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{EXHAUSTED_ERROR}",
            EXHAUSTED_ERROR.len()
        );
        let _ = stream.try_write(answer.as_bytes());
    }
}

/// Response with a status and a text, after which the connection is closed.
fn closing_response(status: StatusCode, text: &'static str) -> Response {
    let headers = [(header::CONTENT_TYPE, "text/plain"), (header::CONNECTION, "close")];
    (status, headers, text).into_response()
}

/// Response for a request without a place among the connections of its client.
pub(crate) fn exhausted_response() -> Response {
    let mut response = closing_response(StatusCode::SERVICE_UNAVAILABLE, EXHAUSTED_ERROR);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// Waits for a handshake slot. Stalled handshakes are closed for it.
async fn handshake_slot(
    slots: &Arc<Semaphore>,
    table: &ConnectionTable,
) -> Option<OwnedSemaphorePermit> {
    loop {
        let slot = Arc::clone(slots).acquire_owned();
        match timeout(HANDSHAKE_SLOT_INTERVAL, slot).await {
            Ok(slot) => return slot.ok(),
            Err(_) => table.close_oldest_handshake(BUSY_HANDSHAKE_TIMEOUT),
        }
    }
}

/// Accepts the next connection, with TLS after a handshake slot is free.
async fn accept(
    listener: &TcpListener,
    handshake_slots: Option<&Arc<Semaphore>>,
    table: &ConnectionTable,
) -> io::Result<(TcpStream, SocketAddr, Option<OwnedSemaphorePermit>)> {
    let slot = match handshake_slots {
        Some(handshake_slots) => handshake_slot(handshake_slots, table).await,
        None => None,
    };
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, slot))
}

/// What a connection needs for its TLS handshake.
struct Handshake {
    tls: Arc<Tls>,
    slots: Arc<Semaphore>,
    slot: Option<OwnedSemaphorePermit>,
    table: ConnectionTable,
}

impl Handshake {
    /// Performs the handshake, after the client has fewer than its share in progress.
    async fn perform(
        mut self,
        stream: TcpStream,
        write_timeout: Option<Duration>,
        connection: &ConnectionSlot,
    ) -> Option<TlsStream<WriteTimeoutStream<TcpStream>>> {
        while !connection.begin_handshake(CLIENT_HANDSHAKES, BUSY_HANDSHAKE_TIMEOUT) {
            // Connections of other clients use the slot until then.
            self.slot = None;
            tokio::time::sleep(HANDSHAKE_SLOT_INTERVAL).await;
        }
        if self.slot.is_none() {
            self.slot = handshake_slot(&self.slots, &self.table).await;
        }
        let stream = self.tls.accept(stream, write_timeout).await;
        connection.finish_handshake();
        stream
    }
}

async fn connection(
    stream: TcpStream,
    handshake: Option<Handshake>,
    write_timeout: Option<Duration>,
    service: ConnectionService,
) {
    let slot = service.slot.clone();
    let served = async {
        match handshake {
            None => service.serve(WriteTimeoutStream::new(stream, write_timeout)).await,
            Some(handshake) => {
                if let Some(stream) = handshake.perform(stream, write_timeout, &slot).await {
                    service.serve(stream).await;
                }
            }
        }
    };
    tokio::select! {
        () = served => {}
        () = slot.closed() => {}
    }
}

/// Serves the requests of one connection.
struct ConnectionService {
    peer: SocketAddr,
    handler: Arc<dyn RequestHandler>,
    secure: TlsConnection,
    watcher: Watcher,
    tracker: RequestTracker,
    slot: ConnectionSlot,
    header_timeout: Duration,
}

impl ConnectionService {
    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Self { peer, handler, secure, watcher, tracker, slot, header_timeout } = self;
        let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let (handler, tracker, slot) = (handler.clone(), tracker.clone(), slot.clone());
            async move {
                let Some(on_connection) = slot.begin_request() else {
                    // The table has just closed this connection.
                    return Ok(exhausted_response());
                };
                let active = tracker.start_request();
                let mut request = tracker.wrap_request(request, Client::number_at(peer.ip()));
                if let Some(error) = host_header_error(request.version(), request.headers()) {
                    tracing::debug!(%peer, error, "request refused");
                    return Ok(closing_response(StatusCode::BAD_REQUEST, error));
                }
                request.extensions_mut().insert(slot);
                request.extensions_mut().insert(Peer(peer.ip()));
                request.extensions_mut().insert(secure);
                let response = handler.answer(request).await;
                Ok::<_, std::convert::Infallible>(active.attach_to_body(response, on_connection))
            }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(header_timeout)
            .max_buf_size(256 << 10)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%peer, %error, "connection ended with an error");
        }
    }
}
