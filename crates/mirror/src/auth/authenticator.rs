//! Authenticates requests and decides what they may do: anonymous clients, API keys, and tokens
//! that were issued for a key.
//!
//! Ollama clients prove their identity with an Ed25519 key: they sign the URL of the token
//! endpoint. Tools of container registries fetch a token with a name and a password. The password
//! is an API key, which is also valid as a bearer token itself. A token names its key and its
//! expiry. The permissions of the key are looked up on each use.

use std::time::{Duration, Instant, SystemTime};

use axum::http::header;
use axum::http::request::Parts;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use puna_registry::{EMPTY_BODY_HASH, parse_public_key};
use puna_store::Digest;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, UnparsedPublicKey};

use super::nonces::Nonces;
use super::permissions::{Keys, Permission, Principal, RequestPermit};
use crate::error::{AuthenticationError, Denial, InternalError, MirrorError, SignatureProblem};
use crate::http::base_url::{self, HostNames, LocalRequest, header_text};
use crate::http::target::{Target, query_value};
use crate::settings::Settings;
use crate::types::repository::Repository;

/// Lifetime of a token.
pub(crate) const TOKEN_LIFETIME: Duration = Duration::from_secs(5 * 60);
/// Lifetime of a signed blob URL. Ollama's client uses one URL for all ranges and retries.
const BLOB_URL_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
/// Largest accepted difference between the clocks of client and server, in seconds.
const MAX_CLOCK_SKEW_SECONDS: u64 = 5 * 60;
/// How long a nonce is remembered against replay.
const NONCE_LIFETIME: Duration = Duration::from_secs(2 * MAX_CLOCK_SKEW_SECONDS);

/// Checks the credentials of requests.
pub(crate) struct Authenticator {
    keys: Box<dyn Keys>,
    /// Whether clients without a key may read although keys exist.
    anonymous: bool,
    /// Whether remote clients may push while no keys exist.
    push: bool,
    /// Hosts that a signature may be made for. If empty, any host is accepted.
    host_names: HostNames,
    /// Key that signs tokens. It is random for each run, so tokens of an earlier run are invalid.
    secret: hmac::Key,
    /// Origin of the expiry times in tokens, so that a change of the system clock does not matter.
    started_at: Instant,
    nonces: Nonces,
}

impl Authenticator {
    pub(crate) fn new(keys: Box<dyn Keys>, settings: &Settings) -> Result<Self, MirrorError> {
        let secret = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let secret = secret.map_err(|_| InternalError::NoRandomNumbers)?;
        let Settings { anonymous, push, .. } = *settings;
        let (host_names, started_at, nonces) =
            (HostNames::new(settings.names.clone()), Instant::now(), Nonces::default());
        Ok(Self { keys, anonymous, push, host_names, secret, started_at, nonces })
    }

    /// Decides whether a request may do something. Returns its principal, or `None` for an
    /// anonymous request.
    pub(crate) fn authorize(
        &self,
        head: &Parts,
        permission: Permission,
        name: Option<&Repository>,
        blob: Option<&Digest>,
    ) -> Result<Option<Principal>, MirrorError> {
        if !self.keys.has_keys() {
            return match permission == Permission::Read
                || self.push
                || head.extensions.get::<LocalRequest>().is_some()
            {
                true => Ok(None),
                false => Err(Denial::PushWithoutKeys.into()),
            };
        }
        if permission == Permission::Read
            && blob.is_some_and(|blob| self.blob_url_key(head, blob).is_some())
        {
            return Ok(None);
        }
        match self.authenticate(head) {
            Some(principal) if principal.is_allowed(permission, name) => Ok(Some(principal)),
            Some(principal) => {
                let (key, repository) = (principal.name, name.cloned());
                Err(Denial::KeyPermission { key, repository }.into())
            }
            None if permission == Permission::Read && self.anonymous => Ok(None),
            None => Err(AuthenticationError::NoCredentials.into()),
        }
    }

    /// Decides whether a request may read the metrics. If keys exist, that takes the scope admin
    /// without namespaces.
    pub(crate) fn authorize_metrics(&self, head: &Parts) -> Result<(), MirrorError> {
        match self.authenticate(head) {
            _ if !self.keys.has_keys() => Ok(()),
            Some(principal)
                if principal.permission == Permission::Admin && principal.namespaces.is_empty() =>
            {
                Ok(())
            }
            Some(principal) => Err(Denial::KeyMetrics { key: principal.name }.into()),
            None => Err(AuthenticationError::NoMetricsKey.into()),
        }
    }

    /// Returns the principal whose key or token a request carries.
    fn authenticate(&self, head: &Parts) -> Option<Principal> {
        if let Some(secret) =
            header_text(&head.headers, header::HeaderName::from_static("x-api-key"))
        {
            return self.keys.by_secret(secret.trim());
        }
        let (scheme, rest) = header_text(&head.headers, header::AUTHORIZATION)?.split_once(' ')?;
        match scheme.to_ascii_lowercase().as_str() {
            "bearer" => match self.verify_token(rest.trim()) {
                Some(name) => self.keys.by_name(&name),
                None => self.keys.by_secret(rest.trim()),
            },
            "basic" => {
                let key_pair = String::from_utf8(STANDARD.decode(rest.trim()).ok()?).ok()?;
                self.keys.by_secret(key_pair.split_once(':')?.1)
            }
            _ => None,
        }
    }

    /// Returns the `WWW-Authenticate` challenge for a request that needs authentication.
    pub(crate) fn challenge(
        &self,
        head: &Parts,
        permission: Permission,
        name: Option<&Repository>,
    ) -> String {
        let actions = match permission {
            Permission::Read => "pull",
            Permission::Write => "pull,push",
            Permission::Admin => "pull,push,delete",
        };
        let scope = name
            .map_or("registry:catalog:*".to_owned(), |name| format!("repository:{name}:{actions}"));
        format!(
            "Bearer realm=\"{}/v2/token\",service=\"puna\",scope=\"{scope}\"",
            base_url::base_url(head)
        )
    }

    /// Issues a token for the principal of a request. The request counts to the limits of the key
    /// until the permit is dropped.
    pub(crate) fn token(
        &self,
        head: &Parts,
    ) -> Result<(String, Option<RequestPermit>), MirrorError> {
        let signed =
            header_text(&head.headers, header::AUTHORIZATION).and_then(|text| text.split_once(':'));
        let signed = signed.filter(|(key, _)| !key.contains(' '));
        let principal = match signed {
            Some((key, signature)) => self.verify_signature(head, key, signature)?,
            None => self.authenticate(head),
        };
        let Some(Principal { name, .. }) = principal else {
            // A token for the empty name grants what an anonymous request may do.
            return match !head.headers.contains_key(header::AUTHORIZATION)
                && (self.anonymous || !self.keys.has_keys())
            {
                true => Ok((self.sign_token("", TOKEN_LIFETIME), None)),
                false => Err(AuthenticationError::UnknownKey.into()),
            };
        };
        // A replayed request does not count to the key, and a rejected one uses up no nonce.
        let nonce = query_value(head.uri.query(), "nonce").unwrap_or_default();
        if signed.is_some() {
            self.nonces.check(&name, &nonce)?;
        }
        let permit = self.keys.begin_request(&name, None).map_err(MirrorError::RateLimited)?;
        if signed.is_some() {
            self.nonces.record(&name, &nonce, NONCE_LIFETIME)?;
        }
        Ok((self.sign_token(&name, TOKEN_LIFETIME), permit))
    }

    /// Verifies the signature of a token request. Returns the principal of the signing key. The
    /// caller checks the nonce, which is remembered for known keys only.
    fn verify_signature(
        &self,
        head: &Parts,
        key: &str,
        signature: &str,
    ) -> Result<Option<Principal>, MirrorError> {
        let invalid = |problem| MirrorError::from(AuthenticationError::Signature(problem));
        let Some(public) = parse_public_key(key) else {
            return Err(invalid(SignatureProblem::InvalidKey));
        };
        let signature = STANDARD.decode(signature);
        let signature = signature.map_err(|_| invalid(SignatureProblem::NotBase64))?;
        let parameter = |key| query_value(head.uri.query(), key).unwrap_or_default();
        let base_url = base_url::base_url(head);
        // A request that was signed for another host may be relayed by that host's operator.
        if !self.is_own_address(&base_url) {
            return Err(invalid(SignatureProblem::ForeignAddress { address: base_url }));
        }
        let url =
            format!("{base_url}{}", head.uri.path_and_query().map_or("", |path| path.as_str()));
        let message = format!("GET,{url},{EMPTY_BODY_HASH}");
        let verified =
            UnparsedPublicKey::new(&ED25519, &public).verify(message.as_bytes(), &signature);
        verified.map_err(|_| invalid(SignatureProblem::Mismatch { url }))?;
        let ts = parameter("ts").parse::<u64>();
        let ts = ts.map_err(|_| invalid(SignatureProblem::NoTimestamp))?;
        if ts.abs_diff(unix_seconds()) > MAX_CLOCK_SKEW_SECONDS {
            return Err(invalid(SignatureProblem::ClockSkew));
        }
        Ok(self.keys.by_public(&public))
    }

    /// Whether `scheme://host` is one of the configured addresses of this registry; true if none is
    /// configured.
    fn is_own_address(&self, base_url: &str) -> bool {
        let (scheme, host) = base_url.split_once("://").unwrap_or(("", base_url));
        self.host_names.is_empty() || self.host_names.contains(Some(scheme), host)
    }

    /// Whether a `Host` header is one of the configured host names. The scheme is unknown here.
    pub(crate) fn is_host_name(&self, host: &str) -> bool {
        self.host_names.contains(None, host)
    }

    /// Counts a request to the key of its principal, or to the key that a signed blob URL was
    /// issued for.
    pub(crate) fn begin_request(
        &self,
        head: &Parts,
        principal: Option<&Principal>,
        target: &Target,
    ) -> Result<Option<RequestPermit>, MirrorError> {
        let Some(name) = self.accountable_key(head, principal, target) else { return Ok(None) };
        let transfer_id = match target {
            Target::Blob(_, blob) if head.headers.contains_key(header::RANGE) => {
                Some(blob.to_string())
            }
            Target::Upload(_, id) => Some(id.to_string()),
            _ => None,
        };
        self.keys.begin_request(&name, transfer_id.as_deref()).map_err(MirrorError::RateLimited)
    }

    /// Returns the name of the key that a request counts to.
    pub(crate) fn accountable_key(
        &self,
        head: &Parts,
        principal: Option<&Principal>,
        target: &Target,
    ) -> Option<String> {
        match (principal, target) {
            (Some(principal), _) => Some(principal.name.clone()),
            (None, Target::Blob(_, blob)) => {
                self.blob_url_key(head, blob).filter(|name| !name.is_empty())
            }
            (None, _) => None,
        }
    }

    /// Returns the path of a blob, with a token that lets the client read it without a key.
    pub(crate) fn blob_url(
        &self,
        name: &Repository,
        blob: &Digest,
        accountable_key: Option<&str>,
    ) -> String {
        let path = format!("/v2/{name}/blobs/{blob}");
        match self.keys.has_keys() && !self.anonymous {
            true => {
                let subject = format!("{blob} {}", accountable_key.unwrap_or_default());
                format!("{path}?token={}", self.sign_token(&subject, BLOB_URL_LIFETIME))
            }
            false => path,
        }
    }

    /// Returns the key that a signed blob URL was issued for, if the request carries a valid one
    /// and the key still exists.
    fn blob_url_key(&self, head: &Parts, blob: &Digest) -> Option<String> {
        let subject = self.verify_token(&query_value(head.uri.query(), "token")?)?;
        let (digest, name) = subject.split_once(' ')?;
        let is_valid = digest == blob.to_string() && self.keys.by_name(name).is_some();
        is_valid.then(|| name.to_owned())
    }

    /// Returns `subject` with its expiry and an HMAC.
    fn sign_token(&self, subject: &str, time: Duration) -> String {
        let claim = format!("{}.{subject}", self.started_at.elapsed().as_secs() + time.as_secs());
        let tag = hmac::sign(&self.secret, claim.as_bytes());
        format!("{}.{}", URL_SAFE_NO_PAD.encode(claim), URL_SAFE_NO_PAD.encode(tag))
    }

    /// Verifies a token and returns its subject.
    fn verify_token(&self, token: &str) -> Option<String> {
        let (claim, tag) = token.split_once('.')?;
        let (claim, tag) = (URL_SAFE_NO_PAD.decode(claim).ok()?, URL_SAFE_NO_PAD.decode(tag).ok()?);
        hmac::verify(&self.secret, &claim, &tag).ok()?;
        let claim = String::from_utf8(claim).ok()?;
        let (end, subject) = claim.split_once('.')?;
        (end.parse::<u64>().ok()? >= self.started_at.elapsed().as_secs())
            .then(|| subject.to_owned())
    }
}

/// Seconds since 1970.
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::extract::Request;
    use ring::signature::{Ed25519KeyPair, KeyPair};

    use super::super::permissions::RateLimit;
    use super::*;

    struct TestKeys;

    impl Keys for TestKeys {
        fn has_keys(&self) -> bool {
            true
        }
        fn by_name(&self, name: &str) -> Option<Principal> {
            let permission = match name {
                "reader" => Permission::Read,
                "writer" => Permission::Write,
                _ => return None,
            };
            Some(Principal { name: name.into(), permission, namespaces: vec!["team-*".into()] })
        }
        fn by_secret(&self, secret: &str) -> Option<Principal> {
            self.by_name(secret.strip_suffix("-secret")?)
        }
        fn by_public(&self, key: &[u8]) -> Option<Principal> {
            self.by_name("reader").filter(|_| key == key_pair().public_key().as_ref())
        }
        fn begin_request(
            &self,
            _: &str,
            _: Option<&str>,
        ) -> Result<Option<RequestPermit>, RateLimit> {
            Ok(None)
        }
    }

    /// Key of the published example; its seed is 00 01 02 … 1f.
    fn key_pair() -> Ed25519KeyPair {
        let seed: Vec<u8> = (0..32).collect();
        Ed25519KeyPair::from_seed_unchecked(&seed).unwrap()
    }

    fn authenticator() -> Authenticator {
        Authenticator::new(Box::new(TestKeys), &Settings::default()).unwrap()
    }

    fn head(path: &str, authorization: &str) -> Parts {
        let request = Request::get(path)
            .header("host", "registry.example")
            .header("x-forwarded-proto", "https");
        let request = match authorization {
            "" => request,
            text => request.header("authorization", text),
        };
        request.body(Body::empty()).unwrap().into_parts().0
    }

    fn name(text: &str) -> Repository {
        Repository::parse(text).unwrap()
    }

    #[test]
    fn keys_are_limited_to_their_namespaces_and_permission() {
        let authenticator = authenticator();
        let authorize = |authorization: &str, permission, subject: &str| {
            authenticator
                .authorize(&head("/v2/", authorization), permission, Some(&name(subject)), None)
                .map_err(|e| e.code().0)
        };
        assert_eq!(authorize("", Permission::Read, "team-a/m").unwrap_err(), 401);
        assert_eq!(
            authorize("Bearer nobody-secret", Permission::Read, "team-a/m").unwrap_err(),
            401
        );
        authorize("Bearer reader-secret", Permission::Read, "team-a/m").unwrap();
        assert_eq!(
            authorize("Bearer reader-secret", Permission::Write, "team-a/m").unwrap_err(),
            403
        );
        assert_eq!(
            authorize("Bearer reader-secret", Permission::Read, "library/m").unwrap_err(),
            403
        );
        authorize(
            &format!("Basic {}", STANDARD.encode("me:writer-secret")),
            Permission::Write,
            "TEAM-b/m",
        )
        .unwrap();
        let token = authenticator.token(&head("/v2/token", "Bearer writer-secret")).unwrap().0;
        authorize(&format!("Bearer {token}"), Permission::Write, "team-a/m").unwrap();
        assert_eq!(
            authorize(&format!("Bearer {token}x"), Permission::Read, "team-a/m").unwrap_err(),
            401
        );
        let others = super::tests::authenticator()
            .token(&head("/v2/token", "Bearer writer-secret"))
            .unwrap()
            .0;
        assert_eq!(
            authorize(&format!("Bearer {others}"), Permission::Read, "team-a/m").unwrap_err(),
            401
        );
    }

    #[test]
    fn the_published_example_signature_is_expired() {
        let path = "/v2/token?nonce=AAECAwQFBgcICQoLDA0ODw&scope=repository%3Alibrary%2Fdemo%3Apull&service=puna&ts=1700000000";
        let public = "AAAAC3NzaC1lZDI1NTE5AAAAIAOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4";
        let signature = "vrlKQJ8FF/KBu+b1UKN+plkm+WERFSzRMUCCll2AHU4bT9W4jMni/MJTyO2jflgxfIUD/mxzoFJBVO+gA1VODw==";
        let invalid = |path: &str, host: bool| {
            let mut head = head(path, &format!("{public}:{signature}"));
            if host {
                head.headers.insert("host", "other.example".parse().unwrap());
            }
            authenticator().token(&head).map(|token| token.0).unwrap_err().to_string()
        };
        assert!(invalid(path, false).contains("set the clocks"), "{}", invalid(path, false));
        assert!(invalid(path, true).contains("does not match https://other.example/v2/token"));
        assert!(invalid(&path.replace("demo", "other"), false).contains("does not match"));
    }

    /// A token request that is signed for registry.example.
    fn signed() -> Parts {
        let path = format!("/v2/token?nonce=abc&scope=&service=puna&ts={}", unix_seconds());
        let message = format!("GET,https://registry.example{path},{EMPTY_BODY_HASH}");
        let before = b"\0\0\0\x0bssh-ed25519\0\0\0\x20";
        let public = STANDARD.encode([&before[..], key_pair().public_key().as_ref()].concat());
        let signature = STANDARD.encode(key_pair().sign(message.as_bytes()));
        head(&path, &format!("{public}:{signature}"))
    }

    #[test]
    fn a_signed_request_cannot_be_replayed() {
        let authenticator = authenticator();
        let head = signed();
        let token = authenticator.token(&head).unwrap().0;
        assert_eq!(authenticator.verify_token(&token).as_deref(), Some("reader"));
        let again = authenticator.token(&head).map(|token| token.0).unwrap_err();
        assert!(again.to_string().contains("was used before"), "{again}");
    }

    #[test]
    fn signatures_for_other_hosts_are_rejected() {
        let settings = |host_names: &[&str]| Settings {
            names: host_names.iter().map(|name| (*name).to_owned()).collect(),
            ..Settings::default()
        };
        let token = |host_names: &[&str]| {
            let authenticator =
                Authenticator::new(Box::new(TestKeys), &settings(host_names)).unwrap();
            authenticator.token(&signed()).map(|token| token.0).map_err(|error| error.to_string())
        };
        for ours in [&[][..], &["registry.example"], &["other.lan:5000", "Registry.Example:443"]] {
            token(ours).unwrap();
        }
        for others in [&["mirror.lan"][..], &["registry.example:5000"], &["registry.example:80"]] {
            let invalid = token(others).unwrap_err();
            assert!(
                invalid.contains("https://registry.example, which is not in mirror.names"),
                "{invalid}"
            );
        }
    }

    #[test]
    fn a_blob_url_grants_access_to_that_blob_only() {
        let authenticator = authenticator();
        let (blob, other) = (Digest::of(b"a"), Digest::of(b"b"));
        let blob_url = authenticator.blob_url(&name("team-a/m"), &blob, Some("reader"));
        let authorize = |url: &str, permission, blob| {
            authenticator.authorize(&head(url, ""), permission, Some(&name("team-a/m")), Some(blob))
        };
        authorize(&blob_url, Permission::Read, &blob).unwrap();
        let accountable = |blob| {
            authenticator.accountable_key(
                &head(&blob_url, ""),
                None,
                &Target::Blob(name("team-a/m"), blob),
            )
        };
        assert_eq!(
            (accountable(blob), accountable(other)),
            (Some("reader".to_owned()), None),
            "whose key it counts to"
        );
        assert_eq!(authorize(&blob_url, Permission::Read, &other).unwrap_err().code().0, 401);
        let pushed = authorize(&blob_url, Permission::Write, &blob);
        assert_eq!(pushed.unwrap_err().code().0, 401);
        let of_removed_key = authenticator.blob_url(&name("team-a/m"), &blob, Some("gone"));
        assert_eq!(authorize(&of_removed_key, Permission::Read, &blob).unwrap_err().code().0, 401);
    }
}
