//! What a session shows a registry: a user and password, a token that is set, or one that a token server gives out.

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Body, Method, Response, Url};

use super::{Ask, Session, sensitive};
use crate::address::{authority, plain};
use crate::auth::{self, Asker, Challenge, Challenges, MAX_TOKEN};
use crate::blocking::blocking;
use crate::docker;
use crate::error::RegistryError;
use crate::hosts::{Credentials, Secret};
use crate::key::Identity;

/// What we are called at servers that exchange tokens.
const CLIENT: &str = "puna";
/// Letters of a token server's words that are shown.
const MAX_SAID: usize = 300;

/// The error of a token server that gives nothing, or of a registry that lets nobody in, with its words where it has some of the usual form.
pub(crate) fn no_token(body: &str) -> RegistryError {
    #[derive(serde::Deserialize)]
    struct Said {
        errors: Vec<Problem>,
    }
    #[derive(serde::Deserialize)]
    struct Problem {
        message: String,
    }
    let said =
        serde_json::from_str::<Said>(body).ok().and_then(|said| said.errors.into_iter().next());
    match said.filter(|problem| !problem.message.is_empty()) {
        Some(problem) => RegistryError::NoToken { said: plain(&problem.message, MAX_SAID) },
        None => RegistryError::Unauthorized,
    }
}

impl Session {
    /// A fresh value for `Authorization`, of the kind that the registry asks for.
    pub(crate) async fn new_proof(&self, asked: &Challenges) -> Result<String, RegistryError> {
        let (credentials, problem) = self.credentials().await?;
        let proof = self.proof_of(credentials, asked).await;
        // Who cannot be let in is told what kept his credentials from being found.
        proof.map_err(|error| match (error, problem) {
            (
                RegistryError::NoPassword { host } | RegistryError::NoChallenge { host },
                Some(problem),
            ) => RegistryError::NoCredentials { host, problem },
            (RegistryError::Unauthorized, Some(said)) => RegistryError::NoToken { said },
            (error, _) => error,
        })
    }

    async fn proof_of(
        &self,
        credentials: Option<Credentials>,
        asked: &Challenges,
    ) -> Result<String, RegistryError> {
        match (credentials, &asked.bearer) {
            (Some(Credentials::Token(secret)), _) => {
                Ok(format!("Bearer {}", self.secret(&secret).await?))
            }
            (Some(Credentials::Basic { user, password }), Some(challenge)) => {
                let password = self.secret(&password).await?;
                let url = challenge.plain_url(&self.endpoint().root, Asker::User(&user))?;
                self.bearer(self.ask_token(&url, Some(&auth::basic(&user, &password))).await?).await
            }
            // Also where nothing is said of how: they are for this registry.
            (Some(Credentials::Basic { user, password }), None) => {
                Ok(auth::basic(&user, &self.secret(&password).await?))
            }
            (Some(Credentials::Refresh(secret)), Some(challenge)) => {
                self.exchange(challenge, &secret).await
            }
            (_, Some(challenge)) => self.prove_without_credentials(challenge).await,
            (_, None) if asked.basic => {
                Err(RegistryError::NoPassword { host: self.endpoint().host.clone() })
            }
            (_, None) => Err(RegistryError::NoChallenge { host: self.endpoint().host.clone() }),
        }
    }

    /// Who we are at this registry, as it is set, or as docker has it; and why docker's word could not be had. A file or program
    /// of others that is broken does not keep us from what needs none of it.
    async fn credentials(&self) -> Result<(Option<Credentials>, Option<String>), RegistryError> {
        if let Some(set) = &self.endpoint().settings.credentials {
            return Ok((Some(set.clone()), None));
        }
        let Some(path) = self.settings().docker_config.clone() else { return Ok((None, None)) };
        let host = self.endpoint().host.clone();
        blocking(move || {
            Ok(match docker::credentials(&path, &host) {
                Ok(found) => (found, None),
                Err(problem) => {
                    tracing::warn!("{problem}: it is left aside");
                    (None, Some(problem))
                }
            })
        })
        .await
    }

    pub(crate) async fn secret(&self, secret: &Secret) -> Result<String, RegistryError> {
        let (secret, host) = (secret.clone(), self.endpoint().host.clone());
        let secret = blocking(move || {
            secret.read().map_err(|reason| RegistryError::Secret { host, reason })
        })
        .await?;
        self.guard(&secret);
        Ok(secret)
    }

    /// With our key, as Ollama's registry has it; and where that is not known, as nobody, as public registries have it.
    async fn prove_without_credentials(
        &self,
        challenge: &Challenge,
    ) -> Result<String, RegistryError> {
        let root = &self.endpoint().root;
        let nobody = Asker::Nobody(self.endpoint().settings.token_host.as_deref());
        let url = match challenge.fresh_token_url(root) {
            Ok(url) => url,
            Err(error @ RegistryError::Realm { .. }) => {
                let url = challenge.plain_url(root, nobody).map_err(|_| error)?;
                return self.bearer(self.ask_token(&url, None).await?).await;
            }
            Err(error) => return Err(error),
        };
        let path = self.settings().key.clone();
        let path = path.ok_or_else(|| RegistryError::NoKey { host: authority(root) })?;
        let identity = blocking(move || Ok(Identity::read_or_make(&path)?)).await?;
        let signed = self.ask_token(&url, Some(&auth::authorization(&identity, &url))).await?;
        if !matches!(signed.status().as_u16(), 400 | 401 | 403) {
            return self.bearer(signed).await;
        }
        let refused = self.bearer(signed).await;
        let url = challenge.plain_url(root, nobody)?;
        match self.bearer(self.ask_token(&url, None).await?).await {
            // What is wrong with the key says more than that nobody has none.
            Err(error) => refused.and(Err(error)),
            token => token,
        }
    }

    async fn ask_token(
        &self,
        url: &Url,
        authorization: Option<&str>,
    ) -> Result<Response, RegistryError> {
        let mut ask = Ask { follow: false, ..Ask::new(Method::GET, url.clone()) };
        if let Some(authorization) = authorization {
            ask.headers.insert(AUTHORIZATION, sensitive(authorization)?);
        }
        self.send_once(&ask, url, None).await
    }

    /// Has a token server exchange a lasting token for one of this operation.
    async fn exchange(
        &self,
        challenge: &Challenge,
        secret: &Secret,
    ) -> Result<String, RegistryError> {
        let url = challenge.realm_url(&self.endpoint().root, Asker::User(""))?;
        let token = self.secret(secret).await?;
        let scope = challenge.scopes().join(" ");
        let form = [
            ("grant_type", "refresh_token"),
            ("service", &challenge.service),
            ("client_id", CLIENT),
            ("scope", &scope),
            ("refresh_token", &token),
        ];
        // A query is written as a form is.
        let mut written =
            Url::parse("http://form/").map_err(|e| RegistryError::Setup(e.to_string()))?;
        written.query_pairs_mut().extend_pairs(form);
        let written = written.query().unwrap_or_default().to_owned();
        self.guard(written.rsplit('=').next().unwrap_or_default());
        let body = || Body::from(written.clone());
        let ask = Ask::new(Method::POST, url.clone()).with_body(&body);
        let ask = ask.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        let sent =
            tokio::time::timeout(self.settings().patience, self.send_once(&ask, &url, None)).await;
        let stalled = |_| super::stalled(&Method::POST, &url, self.settings().patience);
        self.bearer(sent.map_err(stalled)??).await
    }

    /// The token of a token server's answer.
    async fn bearer(&self, response: Response) -> Result<String, RegistryError> {
        if !response.status().is_success() {
            return Err(match self.refusal(response).await {
                RegistryError::Status { code: 401 | 403, body, .. } => no_token(&body),
                error => error,
            });
        }
        let url = response.url().clone();
        let bytes = self.read(response, MAX_TOKEN).await?;
        Ok(format!("Bearer {}", auth::token(&bytes, &url)?))
    }
}
