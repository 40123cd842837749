//! Authentication challenges of registries (HTTP 401 with `WWW-Authenticate`).
//!
//! With `Basic`, the registry itself takes a user name and a password. With `Bearer`, it names a
//! token server. A request to that server is signed with the client's key or carries credentials,
//! and returns a token.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use reqwest::Url;
use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};
use ring::rand::{SecureRandom, SystemRandom};
use serde::Deserialize;

use crate::auth::identity::{EMPTY_BODY_HASH, Identity};
use crate::display::{authority, display_url};
use crate::error::{RegistryError, SetupProblem};

/// Largest response of a token server, in bytes.
pub(crate) const MAX_TOKEN_RESPONSE_BYTES: usize = 64 << 10;

/// `Bearer` challenge: parameters of the token request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Challenge {
    pub(crate) realm: String,
    pub(crate) service: String,
    pub(crate) scope: String,
}

/// Response of a token server. Docker's servers use the second name.
#[derive(Deserialize)]
struct TokenResponse {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

/// All authentication schemes that a response offers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Challenges {
    pub(crate) bearer: Option<Challenge>,
    pub(crate) basic: bool,
}

impl Challenges {
    /// Reads the `WWW-Authenticate` headers of a response. There may be several headers, each with
    /// several schemes.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let mut challenges = Self::default();
        for text in headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok())
        {
            challenges.read(text);
        }
        challenges
    }

    /// Reads `Bearer key="value",key=value, Basic …`. Only the first `Bearer` challenge counts;
    /// other schemes are ignored.
    fn read(&mut self, text: &str) {
        let (mut rest, mut current) = (text, None);
        loop {
            rest = rest.trim_start_matches([',', ' ', '\t']);
            let end = rest.find(['=', ',', ' ', '\t']).unwrap_or(rest.len());
            if end == 0 && rest.is_empty() {
                break;
            }
            if !rest[end..].trim_start().starts_with('=') {
                // No `=` follows: the word is a scheme.
                self.set_bearer(current.take());
                let scheme = rest[..end].to_ascii_lowercase();
                self.basic |= scheme == "basic";
                current = (scheme == "bearer").then(Challenge::default);
                rest = &rest[end..];
                continue;
            }
            let Some((key, value, after)) = parse_parameter(rest) else { break };
            if let Some(challenge) = &mut current {
                match key.to_ascii_lowercase().as_str() {
                    "realm" => challenge.realm = value,
                    "service" => challenge.service = value,
                    "scope" => challenge.scope = value,
                    _ => {}
                }
            }
            rest = after;
        }
        self.set_bearer(current);
    }

    fn set_bearer(&mut self, challenge: Option<Challenge>) {
        if self.bearer.is_none() {
            self.bearer = challenge;
        }
    }
}

/// How a token request authenticates itself. The choice decides which hosts may receive the
/// request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenIdentity<'a> {
    /// Signed with the client's key. Only the registry's own host may receive the signature.
    Key,
    /// With credentials for this registry, as this user. The token server may be on another host.
    User(&'a str),
    /// Without credentials, at the registry's own host or at the configured token host.
    Anonymous(Option<&'a str>),
}

impl Challenge {
    /// The URL of the token server, if the request may be sent there.
    ///
    /// A signed request could be replayed at the registry, so only the registry's own host gets
    /// one. A challenge must not make the client send requests to arbitrary hosts of its network.
    pub(crate) fn realm_url(
        &self,
        registry: &Url,
        identity: TokenIdentity<'_>,
    ) -> Result<Url, RegistryError> {
        let realm = Url::parse(&self.realm).ok();
        let realm_host = realm.as_ref().map(authority).unwrap_or_default();
        let host = authority(registry);
        let is_registry = |url: &Url| {
            let port = url.port_or_known_default() == registry.port_or_known_default();
            authority(url) == host || url.host_str() == registry.host_str() && port
        };
        let is_allowed = |url: &Url| match identity {
            TokenIdentity::User(_) => url.host_str().is_some(),
            TokenIdentity::Anonymous(Some(known)) => {
                authority(url).eq_ignore_ascii_case(known) || is_registry(url)
            }
            TokenIdentity::Key | TokenIdentity::Anonymous(None) => is_registry(url),
        };
        let Some(mut url) = realm.filter(is_allowed) else {
            return Err(RegistryError::RealmHost { realm: realm_host, host });
        };
        if registry.scheme() == "https" && url.scheme() != "https"
            || !matches!(url.scheme(), "http" | "https")
        {
            return Err(RegistryError::RealmScheme { url: display_url(&url) });
        }
        url.set_fragment(None);
        Ok(url)
    }

    /// The requested scopes. Without a scope, the result has one empty scope.
    pub(crate) fn scopes(&self) -> Vec<&str> {
        match self.scope.as_str() {
            "" => vec![""],
            scopes => scopes.split(' ').filter(|scope| !scope.is_empty()).collect(),
        }
    }

    /// The URL of an unsigned token request.
    pub(crate) fn unsigned_token_url(
        &self,
        registry: &Url,
        identity: TokenIdentity<'_>,
    ) -> Result<Url, RegistryError> {
        let mut url = self.realm_url(registry, identity)?;
        {
            let mut query = url.query_pairs_mut();
            if !self.service.is_empty() {
                query.append_pair("service", &self.service);
            }
            for scope in self.scopes().into_iter().filter(|scope| !scope.is_empty()) {
                query.append_pair("scope", scope);
            }
            if let TokenIdentity::User(user) = identity
                && !user.is_empty()
            {
                query.append_pair("account", user);
            }
        }
        Ok(url)
    }

    /// The URL of a signed token request. `seconds` is the Unix time.
    pub(crate) fn signed_token_url(
        &self,
        registry: &Url,
        nonce: &str,
        seconds: u64,
    ) -> Result<Url, RegistryError> {
        let mut url = self.realm_url(registry, TokenIdentity::Key)?;
        let mut query: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let mut add = |key: &str, value: &str| query.push((key.to_owned(), value.to_owned()));
        add("service", &self.service);
        self.scopes().into_iter().for_each(|scope| add("scope", scope));
        add("ts", &seconds.to_string());
        add("nonce", nonce);
        query.sort_by(|a, b| a.0.cmp(&b.0));
        url.query_pairs_mut().clear().extend_pairs(query);
        Ok(url)
    }

    /// The URL of a signed token request with a new nonce and the current time.
    pub(crate) fn new_signed_token_url(&self, registry: &Url) -> Result<Url, RegistryError> {
        let mut nonce = [0; 16];
        let random = SystemRandom::new().fill(&mut nonce);
        random.map_err(|_| SetupProblem::NoRandomNumbers)?;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.signed_token_url(registry, &URL_SAFE_NO_PAD.encode(nonce), seconds)
    }
}

/// Value of `Authorization` for a user and password.
pub(crate) fn basic_authorization(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

/// Value of `Authorization` for a signed token request.
pub(crate) fn key_authorization(key: &Identity, url: &Url) -> String {
    format!("{}:{}", key.public(), key.sign(&format!("GET,{url},{EMPTY_BODY_HASH}")))
}

/// Reads the token in a token server's response. The token must be a valid header value.
pub(crate) fn parse_token_response(bytes: &[u8], url: &Url) -> Result<String, RegistryError> {
    let error = |what: &str| RegistryError::InvalidResponse {
        url: display_url(url),
        what: what.to_owned(),
    };
    let answer: TokenResponse = serde_json::from_slice(bytes)
        .map_err(|_| error("the response to the token request is invalid"))?;
    let token = if answer.token.is_empty() { answer.access_token } else { answer.token };
    if token.is_empty() {
        return Err(error("the response to the token request has no token"));
    }
    if !token.bytes().all(|c| c.is_ascii_graphic()) {
        return Err(error("the token has invalid characters"));
    }
    Ok(token)
}

/// Splits the first `key=value` or `key="value"` from a list. Returns the key, the value and the
/// rest.
fn parse_parameter(text: &str) -> Option<(&str, String, &str)> {
    let text = text.trim_start_matches([',', ' ', '\t']);
    let (key, rest) = text.split_once('=')?;
    if let Some(quoted) = rest.strip_prefix('"') {
        let (mut value, mut escaped) = (String::new(), false);
        for (at, c) in quoted.char_indices() {
            match c {
                _ if escaped => {
                    value.push(c);
                    escaped = false;
                }
                '\\' => escaped = true,
                '"' => return Some((key.trim(), value, &quoted[at + 1..])),
                _ => value.push(c),
            }
        }
        return None;
    }
    let end = rest.find([',', ' ', '\t']).unwrap_or(rest.len());
    Some((key.trim(), rest[..end].to_owned(), &rest[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    fn challenge(realm: &str) -> Challenge {
        Challenge {
            realm: realm.into(),
            service: "puna".into(),
            scope: "repository:library/demo:pull".into(),
        }
    }

    #[test]
    fn the_documented_signature_is_reproduced() {
        let seed: [u8; 32] = std::array::from_fn(|i| i as u8);
        let identity = Identity::from_seed(&seed);
        let public = "AAAAC3NzaC1lZDI1NTE5AAAAIAOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4";
        assert_eq!(identity.public(), public);
        let url = challenge("https://registry.example/v2/token")
            .signed_token_url(
                &url("https://registry.example/"),
                "AAECAwQFBgcICQoLDA0ODw",
                1_700_000_000,
            )
            .unwrap();
        assert_eq!(
            url.as_str(),
            "https://registry.example/v2/token?nonce=AAECAwQFBgcICQoLDA0ODw&scope=repository%3Alibrary%2Fdemo%3Apull&service=puna&ts=1700000000"
        );
        let signature = "vrlKQJ8FF/KBu+b1UKN+plkm+WERFSzRMUCCll2AHU4bT9W4jMni/MJTyO2jflgxfIUD/mxzoFJBVO+gA1VODw==";
        assert_eq!(key_authorization(&identity, &url), format!("{public}:{signature}"));
    }

    #[test]
    fn a_realm_on_another_host_is_refused() {
        let refused = |realm: &str, registry: &str| {
            challenge(realm).signed_token_url(&url(registry), "n", 1).unwrap_err().to_string()
        };
        let text = refused("https://evil.example/token", "https://good.example/");
        assert_eq!(
            text,
            "realm host \"evil.example\" does not match original host \"good.example\""
        );
        assert!(
            refused("http://h:5001/token", "http://h:5000/").starts_with("realm host \"h:5001\"")
        );
        assert!(
            refused("https://good.example@evil.example/t", "https://good.example/")
                .contains("evil.example")
        );
        assert!(refused("", "https://h/").starts_with("realm host \"\""));
        assert!(refused("harbor", "https://h/").starts_with("realm host \"\""));
        assert!(refused("http://h/token", "https://h/").contains("without encryption"));
        assert!(
            challenge("https://h:443/token").signed_token_url(&url("https://h/"), "n", 1).is_ok()
        );
    }

    #[test]
    fn challenges_are_parsed_with_and_without_quotes() {
        let parse = |text: &str| {
            let mut challenges = Challenges::default();
            challenges.read(text);
            challenges
        };
        let text =
            r#"Bearer realm="https://h/t?a=b,c",service="s",scope="repository:a/b:pull,push""#;
        let want = Challenge {
            realm: "https://h/t?a=b,c".into(),
            service: "s".into(),
            scope: "repository:a/b:pull,push".into(),
        };
        assert_eq!(parse(text), Challenges { bearer: Some(want), basic: false });
        let realm = |text: &str| parse(text).bearer.unwrap().realm;
        assert_eq!(realm("bearer realm=https://h/t?x=1&y, service=s"), "https://h/t?x=1&y");
        assert_eq!(realm(r#"Bearer realm="a\"b""#), "a\"b");
        assert_eq!(parse("Basic realm=\"harbor\""), Challenges { bearer: None, basic: true });
        assert_eq!(parse("Bearer realm=\"open").bearer, Some(Challenge::default()));
        assert_eq!(parse("Bearer").bearer, Some(Challenge::default()));
        assert_eq!(parse(""), Challenges::default());
        assert_eq!(parse(" , ,"), Challenges::default());
        let both = parse(
            r#"Negotiate, Basic realm="x y", Bearer realm="https://h/t",service=s,error="e" , Digest a=b"#,
        );
        assert!(both.basic);
        assert_eq!(
            both.bearer.unwrap(),
            Challenge { realm: "https://h/t".into(), service: "s".into(), ..Challenge::default() }
        );
        let mut headers = HeaderMap::new();
        headers.append(WWW_AUTHENTICATE, "Basic realm=a".parse().unwrap());
        headers.append(WWW_AUTHENTICATE, "Bearer realm=https://first/".parse().unwrap());
        headers.append(WWW_AUTHENTICATE, "Bearer realm=https://second/".parse().unwrap());
        let challenges = Challenges::from_headers(&headers);
        assert!(challenges.basic && challenges.bearer.unwrap().realm == "https://first/");
    }

    #[test]
    fn credentials_may_be_sent_to_another_host_but_the_key_may_not() {
        let elsewhere = challenge("https://auth.example/token?x=1");
        let registry = url("https://registry.example/");
        let of =
            |identity| elsewhere.unsigned_token_url(&registry, identity).map(|url| url.to_string());
        let scoped =
            "https://auth.example/token?x=1&service=puna&scope=repository%3Alibrary%2Fdemo%3Apull";
        assert_eq!(of(TokenIdentity::User("me")).unwrap(), format!("{scoped}&account=me"));
        assert_eq!(of(TokenIdentity::Anonymous(Some("auth.example"))).unwrap(), scoped);
        for refused in [
            TokenIdentity::Key,
            TokenIdentity::Anonymous(None),
            TokenIdentity::Anonymous(Some("other.example")),
        ] {
            assert!(
                of(refused).unwrap_err().to_string().starts_with("realm host \"auth.example\"")
            );
        }
        let bare = challenge("http://auth.example/token")
            .unsigned_token_url(&registry, TokenIdentity::User("me"));
        assert!(bare.unwrap_err().to_string().contains("without encryption"));
    }

    #[test]
    fn several_scopes_are_several_parameters_and_a_missing_one_is_empty() {
        let of = |scope: &str| {
            let challenge = Challenge { scope: scope.into(), ..challenge("http://h/t?x=1") };
            challenge
                .signed_token_url(&url("http://h/"), "n", 5)
                .unwrap()
                .query()
                .unwrap()
                .to_owned()
        };
        assert_eq!(of("a b"), "nonce=n&scope=a&scope=b&service=puna&ts=5&x=1");
        assert_eq!(of(""), "nonce=n&scope=&service=puna&ts=5&x=1");
    }

    #[test]
    fn tokens_that_would_break_a_header_are_refused() {
        let of = |text: &str| parse_token_response(text.as_bytes(), &url("http://h/t?sig=secret"));
        assert_eq!(of(r#"{"token":"abc","expires_in":60}"#).unwrap(), "abc");
        assert_eq!(of(r#"{"access_token":"abc"}"#).unwrap(), "abc");
        for bad in ["", "{}", "<html>", r#"{"token":"a\r\nb"}"#, r#"{"token":7}"#] {
            let text = of(bad).unwrap_err().to_string();
            assert!(text.starts_with("http://h/t: ") && !text.contains("secret"), "{bad}: {text}");
        }
    }
}
