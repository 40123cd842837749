//! The registry: alone, as `puna mirror`, or among the routes of the server.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use puna_mirror::{
    Begun, Caller, History, Holder, Keys, Library, Limit, Mirror, MirrorError, ObjectLibrary,
    Right, Settings, StoreLibrary, Through,
};
pub use puna_mirror::{Removal, Retained, check_namespace};
use puna_store::{ModelName, Store};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::config::{Config, MirrorConfig};
use crate::error::ServeError;
use crate::http::hosts::{Host, judge, machine_name};
use crate::http::journal::Entry;
use crate::http::peer::{host, is_local, peer};
use crate::http::serve::{Desk, Manner, run};
use crate::http::tls::Tls;
use crate::keys::guard::Guard;
use crate::keys::{Key, Scope};
use crate::panics::text_of;
use crate::prometheus;
use crate::registry;
use crate::tidy;
use crate::version::VERSION;

/// What clients are told that call a mirror by a name of which it knows nothing.
const FOREIGN: &str = "this mirror listens to its own machine alone, and answers to no other name: add the one that clients use to \
mirror.names, or have the proxy say localhost";

/// The folder, within that of the models, of what is on its way from an upstream into a bucket.
const PASSING: &str = "puna-registry/passing";

/// Whether a word is the public half of an Ed25519 key, as OpenSSH writes it.
pub fn is_public_key(word: &str) -> bool {
    puna_registry::public_key(word).is_some()
}

/// A registry and who may do what with it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Registry {
    mirror: Mirror,
    guard: Arc<Guard>,
    machine: Arc<str>,
}

impl Registry {
    /// The registry of a store, or of a bucket.
    ///
    /// # Errors
    /// The bucket is not there, or not for us.
    pub(crate) async fn new(
        store: Arc<Store>,
        client: puna_registry::Registry,
        config: &Config,
        guard: Arc<Guard>,
    ) -> Result<Self, ServeError> {
        let prunes = !config.no_prune;
        let config = &config.mirror;
        let settings = Settings {
            anonymous: config.anonymous,
            push: config.push,
            delete: config.delete,
            names: config.names.clone(),
            quotas: config.quotas.clone(),
            retention: config.retention.clone(),
        };
        let mut library = library(&store, &client, config).await?;
        let store = match &config.storage {
            None => store,
            // What upstreams have passes through a store of its own, and nothing of it is the machine's model.
            Some(_) => Arc::new(Store::open(store.root().join(PASSING))?),
        };
        if prunes {
            puna_tasks::spawn(tidy::clean_up_hourly(store.clone()));
        }
        let history = History::new()?;
        if !config.upstreams.hosts.is_empty() {
            let upstreams = config.upstreams.clone();
            library = Arc::new(Through::new(library, store, client, upstreams, history.clone()));
        }
        let mirror = Mirror::new(library, Box::new(Holders(guard.clone())), &settings, history)?;
        let tidied = mirror.clone();
        puna_tasks::spawn(async move { tidied.keep_tidy().await });
        Ok(Self { mirror, guard, machine: machine_name().into() })
    }

    /// Whether a `Host` header is one of the names under which clients reach it.
    pub(crate) fn is_named(&self, host: &str) -> bool {
        self.mirror.is_named(host)
    }

    /// Refuses a request that names another host than this machine, where it listens to that alone. Only the host that a browser says by
    /// itself counts: a page may add headers as proxies do.
    fn judge_host(&self, request: &Request) -> Result<(), MirrorError> {
        if request.headers().get_all(header::HOST).iter().count() > 1 {
            return Err(MirrorError::Denied("this request has more than one Host header".into()));
        }
        let host = host(request);
        match judge(host, &self.machine) == Host::Foreign && !self.is_named(host) {
            true => Err(MirrorError::Denied(FOREIGN.into())),
            false => Ok(()),
        }
    }

    /// Answers a request for a path of the registry.
    pub(crate) async fn answer(&self, mut request: Request) -> Response {
        // A page of the network that somebody looks at here speaks as this machine, but not for it.
        if is_local(&request, &self.machine) && !request.headers().contains_key(header::ORIGIN) {
            request.extensions_mut().insert(puna_mirror::Local);
        }
        let caller = Caller(peer(&request).to_string());
        request.extensions_mut().insert(caller);
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        match AssertUnwindSafe(self.mirror.answer(request)).catch_unwind().await {
            Ok(response) => response,
            Err(panic) => {
                tracing::error!(%method, path, "the registry panicked: {}", text_of(&*panic));
                Mirror::refusal(&MirrorError::Internal("a panic, which the log has".into()))
            }
        }
    }

    /// A model was used on this machine.
    pub(crate) fn used(&self, model: &ModelName) {
        self.mirror.used(model);
    }

    /// Writes down what it knows, before the end.
    pub(crate) async fn rest(&self) {
        self.mirror.rest().await;
    }

    /// Its figures, in the text form of Prometheus.
    pub(crate) async fn metrics(&self) -> Result<String, MirrorError> {
        Ok(prometheus::of_registry(&self.mirror.watched().await?))
    }

    async fn metrics_alone(&self, request: Request) -> Response {
        let (head, _) = request.into_parts();
        let figures = match self.mirror.may_watch(&head) {
            Ok(()) => self.metrics().await,
            Err(refused) => Err(refused),
        };
        match figures {
            Ok(text) => ([(header::CONTENT_TYPE, prometheus::CONTENT_TYPE)], text).into_response(),
            Err(error) => Mirror::refusal(&error),
        }
    }

    async fn answer_alone(&self, request: Request) -> Response {
        match request.uri().path() {
            path if Mirror::has(path) => self.answer(request).await,
            "/metrics" => self.metrics_alone(request).await,
            "/health" => text(StatusCode::OK, "ok\n"),
            "/" => Redirect::temporary("/mirror").into_response(),
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }
}

/// What a registry keeps, without what others have.
async fn library(
    store: &Arc<Store>,
    client: &puna_registry::Registry,
    config: &MirrorConfig,
) -> Result<Arc<dyn Library>, ServeError> {
    Ok(match &config.storage {
        None => Arc::new(StoreLibrary::new(store.clone())),
        Some(storage) => Arc::new(ObjectLibrary::open(storage, client).await?),
    })
}

/// Removes what no rule of `mirror.retention` keeps; or only says what that would be.
///
/// # Errors
/// The library cannot be read or written.
pub async fn retain(config: &Config, dry_run: bool) -> Result<Retained, ServeError> {
    let store = Arc::new(config.store()?);
    let client = puna_registry::Registry::new(registry::settings(config));
    let library = library(&store, &client, &config.mirror).await?;
    let history = History::new()?;
    let retained =
        puna_mirror::retain(&*library, &history, &config.mirror.retention, dry_run).await?;
    if !dry_run {
        library.tidy().await?;
    }
    Ok(retained)
}

/// The API keys, as the registry sees them: `inference` may pull, `models` push, `admin` remove.
struct Holders(Arc<Guard>);

impl Holders {
    fn find(&self, is: impl Fn(&Key) -> bool) -> Option<Holder> {
        let keys = self.0.keys();
        let key = keys.keys.iter().find(|key| is(key))?;
        let right = if key.may(Scope::Admin) {
            Right::Admin
        } else if key.may(Scope::Models) {
            Right::Write
        } else {
            Right::Read
        };
        Some(Holder { name: key.name.clone(), right, namespaces: key.namespaces.clone() })
    }
}

impl Keys for Holders {
    fn any(&self) -> bool {
        self.0.has_keys()
    }

    fn by_name(&self, name: &str) -> Option<Holder> {
        self.find(|key| key.name == name)
    }

    fn by_secret(&self, secret: &str) -> Option<Holder> {
        let name = self.0.keys().find(secret)?.name.clone();
        self.by_name(&name)
    }

    fn by_public(&self, public: &[u8]) -> Option<Holder> {
        let is = |text: &String| puna_registry::public_key(text).is_some_and(|key| key == public);
        self.find(|key| key.public.as_ref().is_some_and(is))
    }

    fn begin(&self, name: &str, part_of: Option<&str>) -> Result<Option<Begun>, Limit> {
        let begun = self.0.begin(name, part_of)?;
        Ok(begun.map(|permit| Box::new(permit) as Begun))
    }
}

fn text(status: StatusCode, text: &'static str) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain")], Body::from(text)).into_response()
}

/// A registry that answers all requests of a listener.
struct Alone {
    registry: Registry,
    /// Whether `Host` headers are looked at: only on loopback addresses.
    judges_hosts: bool,
}

impl Desk for Alone {
    fn answer(&self, request: Request) -> BoxFuture<'static, Response> {
        let registry = self.registry.clone();
        let judged = if self.judges_hosts { registry.judge_host(&request) } else { Ok(()) };
        Box::pin(async move {
            let entry = Entry::begin(&request, peer(&request));
            let answer = async {
                match judged {
                    Ok(()) => registry.answer_alone(request).await,
                    Err(refused) => Mirror::refusal(&refused),
                }
            };
            entry.follow(answer).await
        })
    }

    fn reload(&self) {
        self.registry.guard.reload();
    }
}

/// Tells the network of a mirror that listens beyond this machine.
fn announce(address: std::net::SocketAddr, secure: bool) -> Option<puna_registry::Announcement> {
    let name = machine_name();
    if address.ip().is_loopback() {
        tracing::warn!(%address, "mirror.announce is on, but nobody else can reach this address: set mirror.host");
        return None;
    }
    let announced = puna_registry::announce(&name, address.port(), secure.then_some(name.as_str()));
    announced.inspect_err(|error| tracing::warn!(%error, "it is not announced")).ok()
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
    let store = Arc::new(config.store()?);
    let client = puna_registry::Registry::new(registry::settings(&config));
    let registry = Registry::new(store, client, &config, guard).await?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let library = config.mirror.storage.as_ref().map(ToString::to_string);
    let library = library.unwrap_or_else(|| config.models.display().to_string());
    tracing::info!(address = %format_args!("{scheme}://{address}"), library, version = VERSION, "the mirror is listening");
    let _announced = config.mirror.announce.then(|| announce(address, tls.is_some())).flatten();
    let known = registry.clone();
    let desk = Arc::new(Alone { registry, judges_hosts: address.ip().is_loopback() });
    let manner = Manner { desk, tls, write_timeout: config.write_timeout };
    run(listener, manner, reload, end, std::future::ready(())).await;
    known.rest().await;
    Ok(())
}
