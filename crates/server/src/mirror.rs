//! The registry server: standalone as `puna mirror`, or as additional routes of the server.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use puna_mirror::{
    ClientAddress, Denial, FileStorage, InternalError, Keys, Mirror, MirrorError, Permission,
    Principal, PullThrough, RateLimit, RequestPermit, S3Storage, Settings, Storage, UsageLog,
};
pub use puna_mirror::{Removal, RetentionReport, check_namespace};
use puna_store::{ModelName, Store};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::auth::authorizer::Authorizer;
use crate::auth::{Key, Scope};
use crate::config::{Config, MirrorConfig, TrustedProxies};
use crate::error::ServeError;
use crate::http::access_log::LogEntry;
use crate::http::host_check::{HostKind, HostNames, machine_name};
use crate::http::peer::{host, is_local, peer, resolve_client_address};
use crate::http::serve::{ConnectionConfig, RequestHandler, run};
use crate::http::tls::Tls;
use crate::metrics::prometheus;
use crate::models::cleanup;
use crate::models::registry_client_settings;
use crate::util::panic_message::panic_message;
use crate::version::VERSION;

/// Directory below the models directory for blobs on their way from an upstream to object storage.
const STAGING_DIR: &str = "puna-registry/passing";

/// Whether a word is an Ed25519 public key in OpenSSH format.
pub fn is_public_key(word: &str) -> bool {
    puna_registry::parse_public_key(word).is_some()
}

/// The mirror with its access rules. Cheap to clone.
#[derive(Clone)]
pub(crate) struct MirrorService {
    mirror: Mirror,
    authorizer: Arc<Authorizer>,
    host_names: Arc<HostNames>,
    /// Whether it serves the models of the store, rather than a bucket.
    serves_store: bool,
}

impl MirrorService {
    /// Opens the mirror of a store or of object storage.
    ///
    /// # Errors
    /// The bucket does not exist or denies access.
    pub(crate) async fn new(
        store: Arc<Store>,
        client: puna_registry::Registry,
        config: &Config,
        authorizer: Arc<Authorizer>,
    ) -> Result<Self, ServeError> {
        let prunes = !config.no_prune;
        let host_names = HostNames::new(&machine_name(), &config.allowed_hosts).into();
        let config = &config.mirror;
        let settings = Settings {
            anonymous: config.anonymous,
            push: config.push,
            delete: config.delete,
            names: config.names.clone(),
            quotas: config.quotas.clone(),
            retention: config.retention.clone(),
        };
        let driver = Driver::open(&store, &client, config).await?;
        let serves_store = matches!(driver, Driver::Files(_));
        let store = match &driver {
            Driver::Files(_) => store,
            // Upstream blobs pass through a separate store, so that they do not become models of
            // this machine.
            Driver::Bucket(_) => Arc::new(Store::open(store.root().join(STAGING_DIR))?),
        };
        if prunes {
            puna_tasks::spawn(cleanup::clean_up_hourly(store.clone()));
        }
        let keys = Box::new(AuthorizerKeys(authorizer.clone()));
        let history = UsageLog::new()?;
        let mirror = if config.upstreams.hosts.is_empty() {
            Mirror::new(driver.into(), keys, &settings, history)?
        } else {
            let (upstreams, log) = (config.upstreams.clone(), history.clone());
            let pull_through = match driver {
                Driver::Files(files) => PullThrough::new(files, store, client, upstreams, log),
                Driver::Bucket(bucket) => {
                    PullThrough::with_bucket(bucket, store, client, upstreams, log)
                }
            };
            Mirror::with_pull_through(pull_through, keys, &settings, history)?
        };
        let cleaned = mirror.clone();
        puna_tasks::spawn(async move { cleaned.run_maintenance().await });
        Ok(Self { mirror, authorizer, host_names, serves_store })
    }

    /// Whether a `Host` header has one of the configured host names of the mirror.
    pub(crate) fn is_named(&self, host: &str) -> bool {
        self.mirror.is_host_name(host)
    }

    /// Rejects a request for a foreign host when the mirror listens on a loopback address. Only the
    /// host that a browser sets itself counts, because a web page may add forwarding headers.
    fn check_host(&self, request: &Request) -> Result<(), MirrorError> {
        if request.headers().get_all(header::HOST).iter().count() > 1 {
            return Err(Denial::SeveralHosts.into());
        }
        let host = host(request);
        match self.host_names.classify(host) == HostKind::Foreign && !self.is_named(host) {
            true => Err(Denial::ForeignMirrorHost.into()),
            false => Ok(()),
        }
    }

    /// Answers a request for a registry path.
    pub(crate) async fn answer(&self, mut request: Request) -> Response {
        // A web page opened on this machine sends requests from it, but must not get the rights of
        // a local user.
        if is_local(&request, &self.host_names) && !request.headers().contains_key(header::ORIGIN) {
            request.extensions_mut().insert(puna_mirror::LocalRequest);
        }
        let caller = ClientAddress(peer(&request).to_string());
        request.extensions_mut().insert(caller);
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        match AssertUnwindSafe(self.mirror.answer(request)).catch_unwind().await {
            Ok(response) => response,
            Err(panic) => {
                tracing::error!(%method, path, "registry handler panicked: {}", panic_message(&*panic));
                Mirror::error_response(&InternalError::LoggedPanic.into())
            }
        }
    }

    /// The mirror, if it serves the models of the store. Its quotas count them.
    pub(crate) fn of_store(&self) -> Option<&Mirror> {
        self.serves_store.then_some(&self.mirror)
    }

    /// Records that a model was used on this machine.
    pub(crate) fn record_use(&self, model: &ModelName) {
        self.mirror.record_use(model);
    }

    /// Writes pending state to disk before shutdown.
    pub(crate) async fn flush(&self) {
        self.mirror.flush_usage_log().await;
    }

    /// Metrics of the mirror in Prometheus' text format.
    pub(crate) async fn metrics(&self) -> Result<String, MirrorError> {
        Ok(prometheus::registry_metrics(&self.mirror.all_metrics().await?))
    }

    async fn metrics_standalone(&self, request: Request) -> Response {
        let (head, _) = request.into_parts();
        let metrics = match self.mirror.authorize_metrics(&head) {
            Ok(()) => self.metrics().await,
            Err(refused) => Err(refused),
        };
        match metrics {
            Ok(text) => ([(header::CONTENT_TYPE, prometheus::CONTENT_TYPE)], text).into_response(),
            Err(error) => Mirror::error_response(&error),
        }
    }

    async fn answer_standalone(&self, request: Request) -> Response {
        match request.uri().path() {
            path if Mirror::is_registry_path(path) => self.answer(request).await,
            "/metrics" => self.metrics_standalone(request).await,
            "/health" => plain_text(StatusCode::OK, "ok\n"),
            "/" => Redirect::temporary("/mirror").into_response(),
            _ => plain_text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }
}

/// Storage driver of the mirror.
enum Driver {
    /// The store of this machine.
    Files(Storage),
    /// A bucket.
    Bucket(Arc<S3Storage>),
}

impl Driver {
    /// Opens the driver that the configuration selects.
    async fn open(
        store: &Arc<Store>,
        client: &puna_registry::Registry,
        config: &MirrorConfig,
    ) -> Result<Self, ServeError> {
        Ok(match &config.storage {
            None => Self::Files(FileStorage::new(store.clone()).into()),
            Some(bucket) => Self::Bucket(Arc::new(S3Storage::open(bucket, client).await?)),
        })
    }
}

impl From<Driver> for Storage {
    fn from(driver: Driver) -> Self {
        match driver {
            Driver::Files(storage) => storage,
            Driver::Bucket(bucket) => bucket.into(),
        }
    }
}

/// Removes tags that no rule of `mirror.retention` keeps. A dry run only lists them.
///
/// # Errors
/// The library cannot be read or written.
pub async fn retain(config: &Config, dry_run: bool) -> Result<RetentionReport, ServeError> {
    let store = Arc::new(config.store()?);
    let client = puna_registry::Registry::new(registry_client_settings::settings(config));
    let storage = Storage::from(Driver::open(&store, &client, &config.mirror).await?);
    let history = UsageLog::new()?;
    let retained =
        puna_mirror::apply_retention(&storage, &history, &config.mirror.retention, dry_run).await?;
    if !dry_run {
        storage.inventory.collect_garbage().await?;
    }
    Ok(retained)
}

/// API keys as the mirror uses them: scope `inference` may pull, `models` may push, `admin` may
/// delete.
struct AuthorizerKeys(Arc<Authorizer>);

impl AuthorizerKeys {
    fn find(&self, is: impl Fn(&Key) -> bool) -> Option<Principal> {
        let keys = self.0.keys();
        let key = keys.keys.iter().find(|key| is(key))?;
        let right = if key.may(Scope::Admin) {
            Permission::Admin
        } else if key.may(Scope::Models) {
            Permission::Write
        } else {
            Permission::Read
        };
        Some(Principal {
            name: key.name.clone(),
            permission: right,
            namespaces: key.namespaces.clone(),
        })
    }
}

impl Keys for AuthorizerKeys {
    fn has_keys(&self) -> bool {
        self.0.has_keys()
    }

    fn by_name(&self, name: &str) -> Option<Principal> {
        self.find(|key| key.name == name)
    }

    fn by_secret(&self, secret: &str) -> Option<Principal> {
        let name = self.0.keys().find(secret)?.name.clone();
        self.by_name(&name)
    }

    fn by_public(&self, public: &[u8]) -> Option<Principal> {
        let is =
            |text: &String| puna_registry::parse_public_key(text).is_some_and(|key| key == public);
        self.find(|key| key.public.as_ref().is_some_and(is))
    }

    fn begin_request(
        &self,
        name: &str,
        part_of: Option<&str>,
    ) -> Result<Option<RequestPermit>, RateLimit> {
        let permit = self.0.start_mirror_request(name, part_of)?;
        Ok(permit.map(|permit| Box::new(permit) as RequestPermit))
    }
}

fn plain_text(status: StatusCode, text: &'static str) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain")], Body::from(text)).into_response()
}

/// A mirror that answers all requests of a listener.
struct StandaloneMirror {
    registry: MirrorService,
    /// Whether `Host` headers are checked, which is so on loopback addresses only.
    checks_hosts: bool,
    trusted_proxies: TrustedProxies,
}

impl RequestHandler for StandaloneMirror {
    fn answer(&self, mut request: Request) -> BoxFuture<'static, Response> {
        resolve_client_address(&mut request, &self.trusted_proxies);
        let registry = self.registry.clone();
        let host_check = if self.checks_hosts { registry.check_host(&request) } else { Ok(()) };
        Box::pin(async move {
            let entry = LogEntry::begin(&request, peer(&request));
            let answer = async {
                match host_check {
                    Ok(()) => registry.answer_standalone(request).await,
                    Err(refused) => Mirror::error_response(&refused),
                }
            };
            entry.record(answer).await
        })
    }

    fn reload(&self) {
        self.registry.authorizer.reload();
    }
}

/// Announces a mirror on the local network.
fn announce(address: std::net::SocketAddr, secure: bool) -> Option<puna_registry::Announcement> {
    let name = machine_name();
    if address.ip().is_loopback() {
        tracing::warn!(%address, "mirror.announce is on, but other machines cannot reach this address: set mirror.host");
        return None;
    }
    let announced = puna_registry::announce(&name, address.port(), secure.then_some(name.as_str()));
    announced.inspect_err(|error| tracing::warn!(%error, "cannot announce the mirror")).ok()
}

/// Serves the store as a registry until `end` is ready, then gives running requests a few seconds.
///
/// # Errors
/// The models directory cannot be read, or the keys or the certificate cannot be used.
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
    let authorizer = Arc::new(Authorizer::new(&config.keys)?);
    let store = Arc::new(config.store()?);
    let client = puna_registry::Registry::new(registry_client_settings::settings(&config));
    let registry = MirrorService::new(store, client, &config, authorizer).await?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let library = config.mirror.storage.as_ref().map(ToString::to_string);
    let library = library.unwrap_or_else(|| config.models.display().to_string());
    tracing::info!(address = %format_args!("{scheme}://{address}"), library, version = VERSION, "mirror listening");
    let _announced = config.mirror.announce.then(|| announce(address, tls.is_some())).flatten();
    let mirror = registry.clone();
    let handler = Arc::new(StandaloneMirror {
        registry,
        checks_hosts: address.ip().is_loopback(),
        trusted_proxies: config.trusted_proxies.clone(),
    });
    let config = ConnectionConfig { handler, tls, write_timeout: config.write_timeout };
    run(listener, config, reload, end, std::future::ready(())).await;
    mirror.flush().await;
    Ok(())
}
