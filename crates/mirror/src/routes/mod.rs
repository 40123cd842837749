//! The protocol: requests to what the library is asked for, and its answers to headers and bodies.

mod blobs;
mod lists;
mod manifests;
mod page;
mod uploads;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http_body_util::BodyExt;
use puna_store::{Digest, ModelName};
use serde_json::json;

use crate::access::{Access, Begun, Holder, Keys, Right, TOKEN_TIME};
use crate::error::MirrorError;
use crate::figures::{Figure, Figures};
use crate::history::{DAY, History};
use crate::library::{Asker, Library};
use crate::lock::{Turn, Turns};
use crate::name::{Reference, Repository};
use crate::path::{PAGE, Target, query, unescaped};
use crate::place::{Local, text};
use crate::retention::{Retained, Rule, retain};
use crate::settings::Settings;
use crate::stock::Stock;
use crate::via::Me;

use page::Pulls;

pub use page::Caller;

/// What every answer of a registry says it is.
const VERSION: (HeaderName, HeaderValue) = (
    HeaderName::from_static("docker-distribution-api-version"),
    HeaderValue::from_static("registry/2.0"),
);

/// How often what nobody needs is removed.
const TIDY: Duration = Duration::from_secs(60 * 60);

/// How long work that is done again and again rests after a panic.
const RECOVERY: Duration = Duration::from_secs(60);

/// How long after its start a mirror removes for the first time what no rule keeps. Then it does so daily.
const SETTLE: Duration = Duration::from_secs(5 * 60);

pub(crate) const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

/// A registry. Cheap to clone.
#[derive(Clone)]
pub struct Mirror(Arc<Inner>);

struct Inner {
    library: Arc<dyn Library>,
    access: Access,
    delete: bool,
    pulls: Pulls,
    stock: Stock,
    figures: Figures,
    me: Me,
    history: History,
    retention: Vec<Rule>,
    /// At the manifests of a repository.
    turns: Turns<String>,
}

/// What a handler answers.
type Answered = Result<Response, MirrorError>;

impl Mirror {
    /// A registry of what a library has, which notes in `history` what comes and is pulled.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new(
        library: Arc<dyn Library>,
        keys: Box<dyn Keys>,
        settings: &Settings,
        history: History,
    ) -> Result<Self, MirrorError> {
        let access = Access::new(keys, settings)?;
        let stock = Stock::new(settings.quotas.clone());
        let (delete, pulls) = (settings.delete, Pulls::default());
        let (figures, retention, me) = (Figures::default(), settings.retention.clone(), Me::new()?);
        let turns = Turns::default();
        let inner =
            Inner { library, access, delete, pulls, stock, figures, me, history, retention, turns };
        Ok(Self(Arc::new(inner)))
    }

    pub(crate) fn history(&self) -> &History {
        &self.0.history
    }

    /// A model of the store was used on this machine, which counts as a pull.
    pub fn used(&self, model: &ModelName) {
        if let Some(name) = Repository::of_model(model) {
            self.history().pulled(&name, &Reference::Tag(model.tag().to_owned()));
        }
    }

    pub(crate) fn pulls(&self) -> &Pulls {
        &self.0.pulls
    }

    pub(crate) fn figures(&self) -> &Figures {
        &self.0.figures
    }

    /// What it has done and has, for those who watch it.
    ///
    /// # Errors
    /// The library does not answer.
    pub async fn watched(&self) -> Result<Vec<Figure>, MirrorError> {
        let mut figures = self.figures().all();
        let fetches = self.library().fetches().await;
        figures.extend([
            Figure::counter(
                "puna_mirror_hits_total",
                "Tags of upstreams served as they are here.",
                fetches.hits,
            ),
            Figure::counter(
                "puna_mirror_misses_total",
                "Tags of upstreams that had to be fetched.",
                fetches.misses,
            ),
            Figure::counter(
                "puna_mirror_fetch_failures_total",
                "Models that could not be fetched.",
                fetches.failures,
            ),
            Figure::counter(
                "puna_mirror_fetches_refused_total",
                "Requests for models that mirror.fetch, fetch_limit or fetch_parallel did not let be fetched.",
                fetches.refused,
            ),
            Figure::counter(
                "puna_mirror_fetched_bytes_total",
                "Bytes fetched from upstreams.",
                fetches.bytes,
            ),
            Figure::gauge("puna_mirror_fetching", "Models that are being fetched.", fetches.running),
        ]);
        figures.extend(self.stock().figures(self.library()).await?);
        Ok(figures)
    }

    /// Whether a request may see that.
    ///
    /// # Errors
    /// It may not.
    pub fn may_watch(&self, head: &Parts) -> Result<(), MirrorError> {
        self.access().judge_watcher(head)
    }

    /// Whether a `Host` header is one of the names under which clients reach it.
    pub fn is_named(&self, host: &str) -> bool {
        self.access().is_named(host)
    }

    /// An error in the form of the distribution rules.
    pub fn refusal(error: &MirrorError) -> Response {
        refusal(error)
    }

    /// Waits until nobody else changes manifests of a repository here: between the look at what there is and what is written, nothing
    /// comes.
    async fn turn(&self, name: &Repository) -> Turn {
        self.0.turns.wait(name.to_string().to_ascii_lowercase()).await
    }

    pub(crate) fn stock(&self) -> &Stock {
        &self.0.stock
    }

    /// Whether somebody who asks in a repository may know of a blob that is here.
    async fn sees(
        &self,
        holder: Option<&Holder>,
        name: &Repository,
        digest: Digest,
    ) -> Result<bool, MirrorError> {
        self.stock().sees(self.library(), holder, name, digest).await
    }

    pub(crate) fn access(&self) -> &Access {
        &self.0.access
    }

    pub(crate) fn library(&self) -> &dyn Library {
        &*self.0.library
    }

    /// Notes what is pulled and removes what nobody needs any more, now and then, for ever. Where one of these panics, the others
    /// do not notice.
    pub async fn keep_tidy(&self) {
        tokio::join!(
            going_on("noting what is pulled", RECOVERY, || self
                .history()
                .keep(self.library().notes())),
            going_on("removing what nobody needs", RECOVERY, || self.sweep_hourly()),
            going_on("applying mirror.retention", RECOVERY, || self.retain_daily()),
        );
    }

    /// Writes down what was pulled a moment ago, before the end.
    pub async fn rest(&self) {
        if let Err(error) = self.history().write(self.library().notes()).await {
            tracing::warn!(%error, "when models were last pulled cannot be noted");
        }
    }

    /// Removes what no rule keeps, and the blobs behind it, and what is remembered of what has gone.
    ///
    /// # Errors
    /// The library cannot be read or written.
    async fn retain(&self) -> Result<Retained, MirrorError> {
        let retained = retain(self.library(), self.history(), &self.0.retention, false).await?;
        if !retained.removals.is_empty() {
            self.stock().changed();
            self.figures().retired(retained.removals.len() as u64, retained.bytes());
            self.library().tidy().await?;
        }
        Ok(retained)
    }

    /// Applies the rules, and forgets what is known of things that are gone, also where there is no rule.
    async fn retain_daily(&self) {
        let has_rules = !self.0.retention.is_empty();
        tokio::time::sleep(SETTLE).await;
        loop {
            match self.retain().await {
                Ok(retained) if has_rules => tracing::info!(
                    removed = retained.removals.len(),
                    bytes = retained.bytes(),
                    own = retained.own,
                    "mirror.retention was applied"
                ),
                Ok(_) => {}
                Err(error) if has_rules => {
                    tracing::warn!(%error, "mirror.retention cannot be applied")
                }
                Err(error) => {
                    tracing::warn!(%error, "notes of what is gone cannot be cleared away")
                }
            }
            tokio::time::sleep(Duration::from_secs(DAY)).await;
        }
    }

    async fn sweep_hourly(&self) {
        let mut hours = tokio::time::interval(TIDY);
        loop {
            hours.tick().await;
            if let Err(error) = self.library().tidy().await {
                tracing::warn!(%error, "what nobody needs any more cannot be removed");
            }
        }
    }

    /// Whether a path is one of a registry.
    pub fn has(path: &str) -> bool {
        path == "/v2" || path == PAGE || path.starts_with("/v2/")
    }

    /// Answers a request for a path below `/v2`.
    pub async fn answer(&self, request: Request) -> Response {
        let head = request.method() == Method::HEAD;
        let method = request.method().clone();
        let path = unescaped(request.uri().path());
        let target = path.and_then(|path| Target::parse(&path).ok());
        let answered = match self.0.me.way(request.headers()) {
            Ok(way) => way.answer(self.route(request)).await,
            Err(error) => Err(error),
        };
        let mut response = answered.unwrap_or_else(|error| refusal(&error));
        self.figures().answered(target.as_ref(), &method, response.status());
        if let Some(target) = target.filter(|_| response.status() == StatusCode::METHOD_NOT_ALLOWED)
        {
            let allowed = target.methods().iter().filter(|allowed| **allowed != method.as_str());
            // Whoever may push may give his upload up.
            let may_delete = self.0.delete || matches!(target, Target::Upload(..));
            let allowed = allowed.filter(|allowed| may_delete || **allowed != "DELETE");
            let allowed = value(&allowed.copied().collect::<Vec<_>>().join(", "));
            response.headers_mut().insert(header::ALLOW, allowed);
        }
        let (name, version) = VERSION;
        response.headers_mut().insert(name, version);
        confine(response.headers_mut());
        if head {
            // What there would be to read is in the headers.
            *response.body_mut() = Body::empty();
        }
        response
    }

    async fn route(&self, request: Request) -> Answered {
        let (head, body) = request.into_parts();
        let path = unescaped(head.uri.path()).ok_or(MirrorError::Route)?;
        let (mut target, method) = (Target::parse(&path)?, head.method.clone());
        let reads = method == Method::GET || method == Method::HEAD;
        if let Some(host) = query(head.uri.query(), "ns").filter(|host| reads && !host.is_empty()) {
            target = target.of_registry(&host)?;
        }
        let right = match &target {
            Target::Upload(..) => Right::Write,
            _ if reads => Right::Read,
            _ if method == Method::DELETE => Right::Admin,
            _ => Right::Write,
        };
        let head = &head;
        let holder = match self.admit(head, &target, right) {
            Err(error @ MirrorError::Unauthorized(_)) => {
                let challenge = match target {
                    // Browsers ask for a name and password by themselves.
                    Target::Page => "Basic realm=\"the key is the password\"".to_owned(),
                    _ => self.access().challenge(head, right, target.repository()),
                };
                let mut response = refusal(&error);
                response.headers_mut().insert(header::WWW_AUTHENTICATE, value(&challenge));
                return Ok(response);
            }
            admitted => admitted?,
        };
        let begun = self.access().begin(head, holder.as_ref(), &target)?;
        let answer = self.handle(target, head, body, holder.as_ref()).await?;
        Ok(match begun {
            Some(begun) => held(answer, begun),
            None => answer,
        })
    }

    /// The answer to a request that was let in.
    async fn handle(
        &self,
        target: Target,
        head: &Parts,
        body: Body,
        holder: Option<&Holder>,
    ) -> Answered {
        let method = head.method.clone();
        let reads = method == Method::GET || method == Method::HEAD;
        match (target, method) {
            (Target::Page, _) if reads => self.page(head, holder).await,
            (Target::Token, _) if reads => self.token(head),
            (Target::Ping, _) if reads => Ok(document(StatusCode::OK, &json!({}))),
            (Target::Catalog, _) if reads => self.catalog(head, holder).await,
            (Target::Tags(name), _) if reads => self.tags(name, head).await,
            (Target::Referrers(name, of), _) if reads => self.referrers(name, of, head).await,
            (Target::Manifest(name, of), _) if reads => self.manifest(name, of, head, holder).await,
            (Target::Manifest(name, of), Method::PUT) => {
                self.put_manifest(name, of, head, body, holder).await
            }
            (Target::Manifest(name, of), Method::DELETE) => {
                self.remove_manifest(name, of, head).await
            }
            (Target::Blob(name, of), _) if reads => self.blob(name, of, head, holder).await,
            (Target::Blob(name, of), Method::DELETE) => {
                self.remove_blob(name, of, head, holder).await
            }
            (Target::Uploads(name), Method::POST) => self.begin(name, head, body, holder).await,
            (Target::Upload(name, id), Method::GET) => self.uploaded(name, id, head).await,
            (Target::Upload(name, id), Method::PATCH) => self.append(name, id, head, body).await,
            (Target::Upload(name, id), Method::PUT) => self.finish(name, id, head, body).await,
            (Target::Upload(name, id), Method::DELETE) => self.cancel(name, id).await,
            (_, method) => Err(MirrorError::Unsupported(format!("{method} means nothing here"))),
        }
    }

    /// Judges a request. The token's own address is judged by what it is asked with.
    fn admit(
        &self,
        head: &Parts,
        target: &Target,
        right: Right,
    ) -> Result<Option<Holder>, MirrorError> {
        if right == Right::Admin && !self.0.delete {
            return Err(MirrorError::Unsupported(
                "nothing can be removed from this registry, unless mirror.delete is on".into(),
            ));
        }
        let blob = match target {
            Target::Token => return Ok(None),
            Target::Blob(_, blob) => Some(blob),
            _ => None,
        };
        self.access().judge(head, right, target.repository(), blob)
    }

    fn token(&self, head: &Parts) -> Answered {
        let token = self.access().token(head)?;
        let seconds = TOKEN_TIME.as_secs();
        Ok(document(
            StatusCode::OK,
            &json!({"token": token, "access_token": token, "expires_in": seconds}),
        ))
    }
}

/// Does work to its end, which it begins anew, after a pause, where it panics.
async fn going_on<F: Future<Output = ()>>(what: &str, pause: Duration, work: impl Fn() -> F) {
    while let Err(panic) = AssertUnwindSafe(work()).catch_unwind().await {
        let error = MirrorError::of_panic(&*panic);
        tracing::error!(what, %error, "it begins anew in a while");
        tokio::time::sleep(pause).await;
    }
}

/// Seconds after which those come again who came too early.
const LATER: u64 = 30;

/// When those come again who came too early.
fn later(error: &MirrorError) -> Option<u64> {
    match error {
        MirrorError::Later(_) | MirrorError::TooMany(_) => Some(LATER),
        MirrorError::Limited(limit) => Some(limit.retry_after),
        _ => None,
    }
}

/// An error in the form of the distribution rules.
fn refusal(error: &MirrorError) -> Response {
    let (status, code) = error.code();
    let (later, told) = (later(error), error.told());
    if status >= 500 && later.is_none() || told != error.to_string() {
        tracing::error!(%error, "a request to the registry failed");
    }
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = document(status, &json!({"errors": [{"code": code, "message": told}]}));
    if let Some(seconds) = later {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    confine(response.headers_mut());
    response
}

/// Keeps a browser from making anything of an answer: what is pushed here comes from the origin of [the page](Target::Page), where
/// administrators say who they are. The page has a policy of its own.
fn confine(headers: &mut HeaderMap) {
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let nothing = HeaderValue::from_static("default-src 'none'; sandbox");
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(nothing);
}

fn document(status: StatusCode, body: &serde_json::Value) -> Response {
    let bytes = body.to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], bytes).into_response()
}

/// An answer that counts to somebody until it is sent.
fn held(answer: Response, begun: Begun) -> Response {
    let len = answer.body().size_hint().exact();
    let mut answer = answer.map(|body| {
        Body::new(body.map_frame(move |frame| {
            // It goes with the body.
            let _held = &begun;
            frame
        }))
    });
    // What is told of the body's length is lost with that.
    if let Some(len) = len
        && answer.status() != StatusCode::NO_CONTENT
        && answer.status() != StatusCode::NOT_MODIFIED
    {
        answer.headers_mut().entry(header::CONTENT_LENGTH).or_insert(len.into());
    }
    answer
}

/// An answer without a body.
fn bare(status: StatusCode) -> Response {
    let mut response = status.into_response();
    response.headers_mut().insert(header::CONTENT_LENGTH, 0.into());
    response
}

/// A text as a header's value. What goes into headers here is made of names and digests, which fit.
fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

/// Who asks for something that may have to be fetched.
fn asker(head: &Parts, holder: Option<&Holder>) -> Asker {
    match holder.is_some() || head.extensions.get::<Local>().is_some() {
        true => Asker::Known,
        false => Asker::Anybody,
    }
}

/// Whether a client has what an `ETag` stands for.
fn is_known(headers: &HeaderMap, etag: &str) -> bool {
    let tags = text(headers, header::IF_NONE_MATCH).unwrap_or_default().split(',').map(str::trim);
    tags.into_iter().any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
}

/// Refuses a request that is meant for something else than what an `ETag` stands for; without one there is nothing.
fn check_match(headers: &HeaderMap, etag: Option<&str>) -> Result<(), MirrorError> {
    let mut lines = headers.get_all(header::IF_MATCH).iter().peekable();
    if lines.peek().is_none() {
        return Ok(());
    }
    // A weak tag is never the same (RFC 9110, 13.1.1).
    let mut tags =
        lines.filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(',')).map(str::trim);
    match etag.is_some_and(|etag| tags.any(|tag| tag == "*" || tag == etag)) {
        true => Ok(()),
        false => Err(MirrorError::Precondition(etag.unwrap_or("nothing").to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[tokio::test]
    async fn work_that_panics_begins_anew_and_stops_no_other() {
        let (begun, others) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = async || {
            assert!(begun.fetch_add(1, Relaxed) >= 2, "a panic of a test, which is no failure")
        };
        let other = async || {
            while begun.load(Relaxed) < 3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            others.fetch_add(1, Relaxed);
        };
        let pause = Duration::from_millis(5);
        tokio::join!(going_on("one", pause, work), going_on("the other", pause, other));
        assert_eq!((begun.into_inner(), others.into_inner()), (3, 1));
    }
}
