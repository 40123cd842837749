//! Asynchronous client of the native dialect.

mod stream;

pub use stream::Stream;

use bytes::Bytes;
use futures_util::Stream as FuturesStream;
use reqwest::redirect::Policy;
use reqwest::{Body, Method, RequestBuilder, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Address;
use crate::ollama::{
    ChatRequest, ChatResponse, CopyRequest, CreateRequest, DeleteRequest, DeleteResponse,
    DetokenizeRequest, DetokenizeResponse, DownloadsResponse, EmbedRequest, EmbedResponse,
    EmbeddingsRequest, EmbeddingsResponse, ErrorBody, GenerateRequest, GenerateResponse,
    ListResponse, ProcessResponse, Progress, PruneRequest, PruneResponse, PullRequest, ShowRequest,
    ShowResponse, TokenizeRequest, TokenizeResponse, VerifyRequest, VersionResponse,
};
use crate::tls;

/// Error responses that are not JSON are shown up to this size in bytes.
const MAX_PLAIN_ERROR_BYTES: usize = 512;

/// Largest number of redirects that a request follows.
const MAX_REDIRECTS: usize = 10;

/// Why a request failed.
#[derive(Debug)]
pub enum ClientError {
    /// No server listens at the address.
    Unreachable {
        /// Address of the server.
        base: String,
        /// Cause of the failed connection.
        cause: String,
    },
    /// The server does not speak TLS, or its certificate is not trusted.
    Tls {
        /// Address of the server.
        base: String,
        /// Cause and remedy.
        cause: String,
    },
    /// The server redirects to another origin, or too often.
    Redirect(String),
    /// The connection broke.
    Transport(String),
    /// The server returned an error.
    Status {
        /// HTTP status; 0 if the error came inside a stream.
        status: u16,
        /// Message of the server.
        message: String,
    },
    /// The response does not follow the API.
    InvalidResponse(String),
}

impl std::error::Error for ClientError {}

impl std::fmt::Display for ClientError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable { base, cause } => write!(f, "no server answers at {base}: {cause}"),
            Self::Tls { base, cause } => write!(f, "cannot connect to {base} with TLS: {cause}"),
            Self::Redirect(cause) => f.write_str(cause),
            Self::Transport(cause) => write!(f, "the connection to the server failed: {cause}"),
            Self::Status { message, .. } => f.write_str(message),
            Self::InvalidResponse(what) => write!(f, "invalid response from the server: {what}"),
        }
    }
}

/// Client of one server. It is cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    key: Option<String>,
}

impl Client {
    /// Makes a client of the server at `base`, such as `http://127.0.0.1:11434`.
    pub fn new(base: impl Into<String>) -> Self {
        // No timeout, since loading a model and generating may take long. No proxy, since the
        // server is on this machine or configured by name.
        let http = reqwest::Client::builder().no_proxy().tls_backend_preconfigured(tls::config());
        let http = http.redirect(same_origin_redirects());
        // This configuration cannot fail on any machine.
        let http =
            http.build().unwrap_or_else(|e| unreachable!("the client's settings are wrong: {e}"));
        let base: String = base.into();
        Self { http, base: base.trim_end_matches('/').to_owned(), key: None }
    }

    /// Makes a client of the server that the environment names: `PUNA_HOST` or `OLLAMA_HOST` in any
    /// form that [`Address`] parses, else this machine. The key comes from `PUNA_API_KEY` or
    /// `OLLAMA_API_KEY`.
    pub fn from_env() -> Self {
        let variable = |names: [&str; 2]| {
            names
                .iter()
                .filter_map(|name| std::env::var(name).ok())
                .find(|value| !value.trim().is_empty())
        };
        let host = variable(["PUNA_HOST", "OLLAMA_HOST"]).unwrap_or_default();
        Self::new(Address::parse(host.trim()).0.url())
            .with_key(variable(["PUNA_API_KEY", "OLLAMA_API_KEY"]))
    }

    /// Sets an API key.
    pub fn with_key(self, key: Option<String>) -> Self {
        Self { key, ..self }
    }

    /// Address of the server.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Gets `/`. Returns its text.
    pub async fn root(&self) -> Result<String, ClientError> {
        let response = self.send::<()>(Method::GET, "/", None).await?;
        response.text().await.map_err(transport_error)
    }

    /// Gets the version of the server.
    pub async fn version(&self) -> Result<VersionResponse, ClientError> {
        self.json::<(), _>(Method::GET, "/api/version", None).await
    }

    /// Lists stored models.
    pub async fn list(&self) -> Result<ListResponse, ClientError> {
        self.json::<(), _>(Method::GET, "/api/tags", None).await
    }

    /// Lists loaded models.
    pub async fn ps(&self) -> Result<ProcessResponse, ClientError> {
        self.json::<(), _>(Method::GET, "/api/ps", None).await
    }

    /// Gets the details of a model.
    pub async fn show(&self, request: &ShowRequest) -> Result<ShowResponse, ClientError> {
        self.json(Method::POST, "/api/show", Some(request)).await
    }

    /// Gets `/v1/models/NAME`, which includes the context length of a request without options.
    pub async fn model(&self, name: &str) -> Result<crate::openai::Model, ClientError> {
        self.json::<(), _>(Method::GET, &format!("/v1/models/{name}"), None).await
    }

    /// Generates text. Streams it unless `stream` is false.
    pub async fn generate(
        &self,
        request: &GenerateRequest,
    ) -> Result<Stream<GenerateResponse>, ClientError> {
        self.stream("/api/generate", request).await
    }

    /// Answers a conversation. Streams the answer unless `stream` is false.
    pub async fn chat(&self, request: &ChatRequest) -> Result<Stream<ChatResponse>, ClientError> {
        self.stream("/api/chat", request).await
    }

    /// Generates text and returns it in one object, whatever `stream` says.
    pub async fn generate_whole(
        &self,
        request: &GenerateRequest,
    ) -> Result<GenerateResponse, ClientError> {
        let request = GenerateRequest { stream: Some(false), ..request.clone() };
        self.json(Method::POST, "/api/generate", Some(&request)).await
    }

    /// Answers a conversation in one object, whatever `stream` says.
    pub async fn chat_whole(&self, request: &ChatRequest) -> Result<ChatResponse, ClientError> {
        let request = ChatRequest { stream: Some(false), ..request.clone() };
        self.json(Method::POST, "/api/chat", Some(&request)).await
    }

    /// Computes embeddings of texts.
    pub async fn embed(&self, request: &EmbedRequest) -> Result<EmbedResponse, ClientError> {
        self.json(Method::POST, "/api/embed", Some(request)).await
    }

    /// Computes the embedding of one text with the older API, which does not normalize it.
    pub async fn embeddings(
        &self,
        request: &EmbeddingsRequest,
    ) -> Result<EmbeddingsResponse, ClientError> {
        self.json(Method::POST, "/api/embeddings", Some(request)).await
    }

    /// Tokenizes a text (Puna servers only).
    pub async fn tokenize(
        &self,
        request: &TokenizeRequest,
    ) -> Result<TokenizeResponse, ClientError> {
        self.json(Method::POST, "/api/tokenize", Some(request)).await
    }

    /// Returns the text of tokens (Puna servers only).
    pub async fn detokenize(
        &self,
        request: &DetokenizeRequest,
    ) -> Result<DetokenizeResponse, ClientError> {
        self.json(Method::POST, "/api/detokenize", Some(request)).await
    }

    /// Creates a model and reports progress.
    pub async fn create(&self, request: &CreateRequest) -> Result<Stream<Progress>, ClientError> {
        self.stream("/api/create", request).await
    }

    /// Pulls a model and reports progress.
    pub async fn pull(&self, request: &PullRequest) -> Result<Stream<Progress>, ClientError> {
        self.stream("/api/pull", request).await
    }

    /// Pushes a model to the registry of its name and reports progress.
    pub async fn push(&self, request: &PullRequest) -> Result<Stream<Progress>, ClientError> {
        self.stream("/api/push", request).await
    }

    /// Verifies the digests of stored models (Puna servers only). Reports progress, and damage as
    /// an error.
    pub async fn verify(&self, request: &VerifyRequest) -> Result<Stream<Progress>, ClientError> {
        self.stream("/api/verify", request).await
    }

    /// Removes unused blobs (Puna servers only).
    pub async fn prune(&self, request: &PruneRequest) -> Result<PruneResponse, ClientError> {
        self.json(Method::POST, "/api/prune", Some(request)).await
    }

    /// Lists unfinished pulls (Puna servers only).
    pub async fn downloads(&self) -> Result<DownloadsResponse, ClientError> {
        self.json(Method::GET, "/api/downloads", None::<&()>).await
    }

    /// Copies a model to another name.
    pub async fn copy(&self, source: &str, destination: &str) -> Result<(), ClientError> {
        let request = CopyRequest { source: source.into(), destination: destination.into() };
        self.send(Method::POST, "/api/copy", Some(&request)).await.map(drop)
    }

    /// Deletes a model. A warning tells why its space was not freed.
    pub async fn delete(&self, model: &str) -> Result<Option<String>, ClientError> {
        let request = DeleteRequest { model: model.into(), name: String::new() };
        let http_response = self.send(Method::DELETE, "/api/delete", Some(&request)).await?;
        // Other servers return no body.
        let response: DeleteResponse = http_response.json().await.unwrap_or_default();
        Ok(Some(response.warning).filter(|warning| !warning.is_empty()))
    }

    /// Whether the server has a blob with the digest `sha256:…`.
    pub async fn has_blob(&self, digest: &str) -> Result<bool, ClientError> {
        let request = self.request(Method::HEAD, &format!("/api/blobs/{digest}"));
        match request.send().await.map_err(|e| self.send_error(e))?.status().as_u16() {
            200 => Ok(true),
            404 => Ok(false),
            status => Err(ClientError::Status {
                status,
                message: format!("the server rejected the digest {digest}"),
            }),
        }
    }

    /// Uploads a blob of `size` bytes with the digest `sha256:…`.
    pub async fn push_blob<S>(&self, digest: &str, size: u64, bytes: S) -> Result<(), ClientError>
    where
        S: FuturesStream<Item = std::io::Result<Bytes>> + Send + 'static,
    {
        let request = self.request(Method::POST, &format!("/api/blobs/{digest}"));
        let request = request.header("Content-Length", size).body(Body::wrap_stream(bytes));
        check_status(request.send().await.map_err(|e| self.send_error(e))?).await.map(drop)
    }

    async fn json<Q: Serialize, A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Q>,
    ) -> Result<A, ClientError> {
        let response = self.send(method, path, body).await?;
        let bytes = response.bytes().await.map_err(body_error)?;
        serde_json::from_slice(&bytes)
            .map_err(|e| ClientError::InvalidResponse(format!("{path}: {e}")))
    }

    async fn stream<Q: Serialize, A>(
        &self,
        path: &str,
        body: &Q,
    ) -> Result<Stream<A>, ClientError> {
        self.send(Method::POST, path, Some(body)).await.map(Stream::new)
    }

    async fn send<Q: Serialize>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Q>,
    ) -> Result<Response, ClientError> {
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.json(body);
        }
        check_status(request.send().await.map_err(|e| self.send_error(e))?).await
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    fn send_error(&self, e: reqwest::Error) -> ClientError {
        if let Some(cause) = tls::tls_problem(&e) {
            return ClientError::Tls { base: self.base.clone(), cause };
        }
        if e.is_redirect() {
            return ClientError::Redirect(root_cause(&e));
        }
        // An invalid address counts as unreachable.
        if e.is_connect() || e.is_builder() {
            ClientError::Unreachable { base: self.base.clone(), cause: root_cause(&e) }
        } else {
            transport_error(e)
        }
    }
}

/// Follows redirects within one origin (scheme, host and port). Another server must not get the
/// prompt.
fn same_origin_redirects() -> Policy {
    Policy::custom(|attempt| {
        let to = attempt.url().origin();
        let Some(from) = attempt.previous().first().map(reqwest::Url::origin) else {
            return attempt.follow();
        };
        let from_text = from.ascii_serialization();
        if from != to {
            let to = to.ascii_serialization();
            return attempt.error(format!(
                "the server at {from_text} redirects to another server, {to}, which gets no request: set OLLAMA_HOST={to} if you trust it"
            ));
        }
        if attempt.previous().len() > MAX_REDIRECTS {
            return attempt.error(format!(
                "the server at {from_text} redirects more than {MAX_REDIRECTS} times: check its configuration"
            ));
        }
        attempt.follow()
    })
}

/// Returns a successful response, or the error of an unsuccessful one.
async fn check_status(response: Response) -> Result<Response, ClientError> {
    let (status, url) = (response.status(), response.url().clone());
    if status.is_success() {
        return Ok(response);
    }
    let bytes = response.bytes().await.unwrap_or_default();
    let message = match serde_json::from_slice::<ErrorBody>(&bytes) {
        Ok(body) => body.error,
        Err(_) if bytes.is_empty() => status.to_string(),
        // An HTML page of a proxy or another program.
        Err(_)
            if bytes.trim_ascii_start().starts_with(b"<")
                || bytes.len() > MAX_PLAIN_ERROR_BYTES =>
        {
            let base = format!("{}://{}", url.scheme(), url.authority());
            format!(
                "the server at {base} is not a Puna or Ollama: it answers {status} with its own page"
            )
        }
        Err(_) => String::from_utf8_lossy(&bytes).trim_end().to_owned(),
    };
    Err(ClientError::Status { status: status.as_u16(), message })
}

fn transport_error(e: reqwest::Error) -> ClientError {
    ClientError::Transport(root_cause(&e))
}

/// Error of a response that ends before its end.
fn body_error(e: reqwest::Error) -> ClientError {
    if e.is_timeout() {
        return transport_error(e);
    }
    ClientError::Transport("the server ended it in the middle of the answer".into())
}

fn root_cause(e: &dyn std::error::Error) -> String {
    let mut cause = e;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}
