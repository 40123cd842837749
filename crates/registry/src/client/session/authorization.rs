//! Gets `Authorization` values: user and password, a configured token, or a token from a token
//! server.

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Body, Method, Response, Url};

use super::{RequestSpec, Session, sensitive};
use crate::auth::challenge::{
    self, Challenge, Challenges, MAX_TOKEN_RESPONSE_BYTES, TokenIdentity,
};
use crate::auth::docker_config;
use crate::auth::identity::Identity;
use crate::blocking::blocking;
use crate::client::hosts::{Credentials, Secret};
use crate::display::{authority, single_line};
use crate::error::{RegistryError, SetupProblem, WithheldCredentials};

/// Client id at token servers.
const CLIENT_ID: &str = "puna";
/// Largest part of a token server's message that is shown, in characters.
const MAX_SERVER_MESSAGE_CHARS: usize = 300;

/// Error of a refused token or login. It includes the server's message if the body has the usual
/// JSON form.
pub(crate) fn token_refused_error(body: &str) -> RegistryError {
    #[derive(serde::Deserialize)]
    struct ErrorBody {
        errors: Vec<ErrorEntry>,
    }
    #[derive(serde::Deserialize)]
    struct ErrorEntry {
        message: String,
    }
    let body_text = serde_json::from_str::<ErrorBody>(body)
        .ok()
        .and_then(|body_text| body_text.errors.into_iter().next());
    match body_text.filter(|problem| !problem.message.is_empty()) {
        Some(problem) => RegistryError::TokenRefused {
            message: single_line(&problem.message, MAX_SERVER_MESSAGE_CHARS),
        },
        None => RegistryError::Unauthorized,
    }
}

/// Adds the public key to the error of a registry that does not know it. Other reasons, such as a
/// wrong clock, stay as they are.
fn with_public_key(
    error: RegistryError,
    host: String,
    key_file: String,
    identity: &Identity,
) -> RegistryError {
    let message = match error {
        RegistryError::Unauthorized => None,
        RegistryError::TokenRefused { message } if message.to_lowercase().contains("key") => {
            Some(message)
        }
        other => return other,
    };
    let public_key = format!("ssh-ed25519 {}", identity.public());
    RegistryError::KeyRefused { host, message, key_file, public_key }
}

impl Session {
    /// Gets a new `Authorization` value for the challenges of a response.
    pub(crate) async fn request_authorization(
        &self,
        challenges: &Challenges,
    ) -> Result<String, RegistryError> {
        if let Some(reason) = self.endpoint().withheld_credentials() {
            return self.authorize_anonymously(challenges, reason).await;
        }
        let (credentials, problem) = self.credentials().await?;
        let proof = self.authorization_for(credentials, challenges).await;
        // If the login fails, the error tells why stored credentials could not be read.
        proof.map_err(|error| match (error, problem) {
            (
                RegistryError::NoPassword { host } | RegistryError::NoChallenge { host },
                Some(problem),
            ) => RegistryError::NoCredentials { host, problem },
            (RegistryError::Unauthorized, Some(message)) => RegistryError::TokenRefused { message },
            (error, _) => error,
        })
    }

    /// Gets an anonymous token where stored credentials must not be sent.
    async fn authorize_anonymously(
        &self,
        challenges: &Challenges,
        reason: WithheldCredentials,
    ) -> Result<String, RegistryError> {
        let host = self.endpoint().host.clone();
        let withheld = RegistryError::CredentialsWithheld { host, reason };
        let Some(challenge) = &challenges.bearer else { return Err(withheld) };
        match self.anonymous_token(challenge).await {
            Err(
                RegistryError::Unauthorized
                | RegistryError::TokenRefused { .. }
                | RegistryError::Status { code: 400..=499, .. },
            ) => Err(withheld),
            token => token,
        }
    }

    async fn anonymous_token(&self, challenge: &Challenge) -> Result<String, RegistryError> {
        let anonymous = TokenIdentity::Anonymous(self.endpoint().settings.token_host.as_deref());
        let url = challenge.unsigned_token_url(&self.endpoint().root, anonymous)?;
        self.bearer_from_response(self.request_token(&url, None).await?).await
    }

    /// Checks that a token server may receive stored credentials. The registry itself may: its
    /// endpoint was checked before.
    fn check_token_server(&self, url: &Url) -> Result<(), RegistryError> {
        let host = authority(url);
        let settings = self.settings().hosts.get(&host);
        let is_allowed = url.scheme() == "https"
            || self.is_registry_origin(url)
            || settings.is_some_and(|host| host.http);
        let reason = || WithheldCredentials::Unencrypted { host: host.clone() };
        match is_allowed {
            true => Ok(()),
            false => Err(RegistryError::CredentialsWithheld { reason: reason(), host }),
        }
    }

    async fn authorization_for(
        &self,
        credentials: Option<Credentials>,
        challenges: &Challenges,
    ) -> Result<String, RegistryError> {
        match (credentials, &challenges.bearer) {
            (Some(Credentials::Token(secret)), _) => {
                Ok(format!("Bearer {}", self.read_secret(&secret).await?))
            }
            (Some(Credentials::Basic { user, password }), Some(challenge)) => {
                let url = challenge
                    .unsigned_token_url(&self.endpoint().root, TokenIdentity::User(&user))?;
                self.check_token_server(&url)?;
                let password = self.read_secret(&password).await?;
                self.bearer_from_response(
                    self.request_token(
                        &url,
                        Some(&challenge::basic_authorization(&user, &password)),
                    )
                    .await?,
                )
                .await
            }
            // The credentials are meant for this registry, even if it offers no known scheme.
            (Some(Credentials::Basic { user, password }), None) => {
                Ok(challenge::basic_authorization(&user, &self.read_secret(&password).await?))
            }
            (Some(Credentials::Refresh(secret)), Some(challenge)) => {
                self.exchange_refresh_token(challenge, &secret).await
            }
            (_, Some(challenge)) => self.authorize_without_credentials(challenge).await,
            (_, None) if challenges.basic => {
                Err(RegistryError::NoPassword { host: self.endpoint().host.clone() })
            }
            (_, None) => Err(RegistryError::NoChallenge { host: self.endpoint().host.clone() }),
        }
    }

    /// The credentials for this registry: configured ones, else those that Docker stores. The
    /// second value tells why Docker's could not be read. A broken Docker configuration must not
    /// stop requests that need no credentials.
    async fn credentials(&self) -> Result<(Option<Credentials>, Option<String>), RegistryError> {
        if let Some(set) = &self.endpoint().settings.credentials {
            return Ok((Some(set.clone()), None));
        }
        let Some(path) = self.settings().docker_config.clone() else { return Ok((None, None)) };
        let host = self.endpoint().host.clone();
        blocking(move || {
            Ok(match docker_config::credentials(&path, &host) {
                Ok(found) => (found, None),
                Err(problem) => {
                    tracing::warn!(error = %problem, "cannot read docker's credentials; ignoring them");
                    (None, Some(problem))
                }
            })
        })
        .await
    }

    pub(crate) async fn read_secret(&self, secret: &Secret) -> Result<String, RegistryError> {
        let (secret, host) = (secret.clone(), self.endpoint().host.clone());
        let secret = blocking(move || {
            secret.read().map_err(|reason| RegistryError::Secret { host, reason })
        })
        .await?;
        self.remember_secret(&secret);
        Ok(secret)
    }

    /// Requests a token signed with the client's key, as Ollama's registry expects. If the token
    /// server refuses the key, requests an anonymous token, as public registries expect.
    async fn authorize_without_credentials(
        &self,
        challenge: &Challenge,
    ) -> Result<String, RegistryError> {
        let root = &self.endpoint().root;
        let url = match challenge.new_signed_token_url(root) {
            Ok(url) => url,
            Err(error @ RegistryError::RealmHost { .. }) => {
                return match self.anonymous_token(challenge).await {
                    Err(RegistryError::RealmHost { .. } | RegistryError::RealmScheme { .. }) => {
                        Err(error)
                    }
                    token => token,
                };
            }
            Err(error) => return Err(error),
        };
        let path = self.settings().key_file.clone();
        let path = path.ok_or_else(|| RegistryError::NoKey { host: authority(root) })?;
        let key_file = path.display().to_string();
        let identity = blocking(move || Ok(Identity::read_or_create(&path)?)).await?;
        let signed =
            self.request_token(&url, Some(&challenge::key_authorization(&identity, &url))).await?;
        if !matches!(signed.status().as_u16(), 400 | 401 | 403) {
            return self.bearer_from_response(signed).await;
        }
        let signed_result = self.bearer_from_response(signed).await;
        match self.anonymous_token(challenge).await {
            // The error about the key is more useful than the error of the anonymous request.
            Err(error) => {
                let refused = signed_result.err().unwrap_or(error);
                if self.hides_details() {
                    // The public key and its file are the administrator's.
                    return Err(refused);
                }
                Err(with_public_key(refused, authority(root), key_file, &identity))
            }
            token => token,
        }
    }

    async fn request_token(
        &self,
        url: &Url,
        authorization: Option<&str>,
    ) -> Result<Response, RegistryError> {
        let mut request =
            RequestSpec { follow: false, ..RequestSpec::new(Method::GET, url.clone()) };
        if let Some(authorization) = authorization {
            request.headers.insert(AUTHORIZATION, sensitive(authorization)?);
        }
        self.send_once(&request, url, None).await
    }

    /// Exchanges a refresh token for a bearer token.
    async fn exchange_refresh_token(
        &self,
        challenge: &Challenge,
        secret: &Secret,
    ) -> Result<String, RegistryError> {
        let url = challenge.realm_url(&self.endpoint().root, TokenIdentity::User(""))?;
        self.check_token_server(&url)?;
        let token = self.read_secret(secret).await?;
        let scope = challenge.scopes().join(" ");
        let form = [
            ("grant_type", "refresh_token"),
            ("service", &challenge.service),
            ("client_id", CLIENT_ID),
            ("scope", &scope),
            ("refresh_token", &token),
        ];
        // The URL's query encoding equals the form encoding.
        let mut form_text = Url::parse("http://form/")
            .map_err(|e| SetupProblem::Client { reason: e.to_string() })?;
        form_text.query_pairs_mut().extend_pairs(form);
        let form_text = form_text.query().unwrap_or_default().to_owned();
        self.remember_secret(form_text.rsplit('=').next().unwrap_or_default());
        let body = || Body::from(form_text.clone());
        let request = RequestSpec::new(Method::POST, url.clone()).with_body(&body);
        let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        let sent = tokio::time::timeout(
            self.settings().stall_timeout,
            self.send_once(&request, &url, None),
        )
        .await;
        let stalled = |_| super::stalled_error(&Method::POST, &url, self.settings().stall_timeout);
        self.bearer_from_response(sent.map_err(stalled)??).await
    }

    /// Reads the bearer token of a token server's response.
    async fn bearer_from_response(&self, response: Response) -> Result<String, RegistryError> {
        if !response.status().is_success() {
            return Err(match self.error_from_response(response).await {
                RegistryError::Status { code: 401 | 403, body, .. } => token_refused_error(&body),
                error => error,
            });
        }
        let url = response.url().clone();
        let bytes = self.read(response, MAX_TOKEN_RESPONSE_BYTES).await?;
        Ok(format!("Bearer {}", challenge::parse_token_response(&bytes, &url)?))
    }
}
