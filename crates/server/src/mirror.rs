//! The registry: alone, as `puna mirror`, or among the routes of the server.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use puna_mirror::{Mirror, Settings, StoreLibrary};
use puna_store::Store;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::config::{Config, MirrorConfig};
use crate::http::door::{is_local, peer};
use crate::http::hosts::machine_name;
use crate::http::journal::Entry;
use crate::http::serve::{Desk, Manner, run};
use crate::http::tls::Tls;
use crate::keys::guard::Guard;
use crate::panics::text_of;
use crate::{ServeError, VERSION};

/// A registry and who may do what with it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Registry {
    mirror: Mirror,
    guard: Arc<Guard>,
    machine: Arc<str>,
}

impl Registry {
    /// The registry of a store.
    pub(crate) fn new(store: Arc<Store>, config: &MirrorConfig, guard: Arc<Guard>) -> Self {
        let settings = Settings { push: config.push, delete: config.delete };
        let mirror = Mirror::new(Arc::new(StoreLibrary::new(store)), settings);
        Self { mirror, guard, machine: machine_name().into() }
    }

    /// Answers a request for a path of the registry.
    pub(crate) async fn answer(&self, mut request: Request) -> Response {
        if is_local(&request, &self.machine) {
            request.extensions_mut().insert(puna_mirror::Local);
        }
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        match AssertUnwindSafe(self.mirror.answer(request)).catch_unwind().await {
            Ok(response) => response,
            Err(panic) => {
                tracing::error!(%method, path, "the registry panicked: {}", text_of(&*panic));
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }

    async fn answer_alone(&self, request: Request) -> Response {
        match request.uri().path() {
            path if Mirror::has(path) => self.answer(request).await,
            "/health" => text(StatusCode::OK, "ok\n"),
            "/" => text(StatusCode::OK, "Puna's mirror is running: a registry of models, at /v2/\n"),
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }
}

fn text(status: StatusCode, text: &'static str) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain")], Body::from(text)).into_response()
}

/// A registry that answers all requests of a listener.
struct Alone(Registry);

impl Desk for Alone {
    fn answer(&self, request: Request) -> BoxFuture<'static, Response> {
        let registry = self.0.clone();
        Box::pin(async move {
            let entry = Entry::begin(&request, peer(&request));
            entry.follow(registry.answer_alone(request)).await
        })
    }

    fn reload(&self) {
        self.0.guard.reload();
    }
}

/// Serves the store as a registry until `end` is ready, then gives running requests a few seconds.
///
/// # Errors
/// The folder of models cannot be read, or the keys or the certificate cannot be used.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    end: impl Future<Output = ()>,
    reload: mpsc::Receiver<()>,
) -> Result<(), ServeError> {
    let address = listener.local_addr()?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let tls = config.tls.as_ref().map(Tls::new).transpose()?.map(Arc::new);
    let guard = Arc::new(Guard::new(&config.keys)?);
    let store = Arc::new(Store::open(&config.models)?);
    let registry = Registry::new(store, &config.mirror, guard);
    let scheme = if tls.is_some() { "https" } else { "http" };
    tracing::info!(address = %format_args!("{scheme}://{address}"), models = %config.models.display(), version = VERSION, "the mirror is listening");
    let desk = Arc::new(Alone(registry));
    let manner = Manner { desk, tls, write_timeout: config.write_timeout };
    run(listener, manner, reload, end, std::future::ready(())).await;
    Ok(())
}
