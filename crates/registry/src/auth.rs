//! Proof of who asks: a registry that answers 401 names a token server; a signed request there brings a bearer token.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Url;
use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};
use ring::rand::{SecureRandom, SystemRandom};
use serde::Deserialize;

use crate::address::{authority, shown};
use crate::error::RegistryError;
use crate::key::Identity;

/// Bytes of a token server's answer at most.
pub(crate) const MAX_TOKEN: usize = 64 << 10;

/// Base64 of the hexadecimal digest of no bytes: what is signed of a request without a body.
const NO_BODY: &str =
    "ZTNiMGM0NDI5OGZjMWMxNDlhZmJmNGM4OTk2ZmI5MjQyN2FlNDFlNDY0OWI5MzRjYTQ5NTk5MWI3ODUyYjg1NQ==";

/// What a registry that wants proof says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Challenge {
    pub(crate) realm: String,
    pub(crate) service: String,
    pub(crate) scope: String,
}

/// The token server's answer. Docker's servers use the second name.
#[derive(Deserialize)]
struct TokenAnswer {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

impl Challenge {
    /// The first `Bearer` challenge of an answer.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let texts = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        texts.filter_map(Self::parse).next().unwrap_or_default()
    }

    /// Reads `Bearer key="value",key=value…`; other schemes are none.
    fn parse(text: &str) -> Option<Self> {
        let (scheme, mut rest) = text.trim().split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut challenge = Self::default();
        while let Some((key, value, after)) = parameter(rest) {
            match key.to_ascii_lowercase().as_str() {
                "realm" => challenge.realm = value,
                "service" => challenge.service = value,
                "scope" => challenge.scope = value,
                _ => {}
            }
            rest = after;
        }
        Some(challenge)
    }

    /// Where to ask for a token: the realm, which must be on the registry's own host, since whoever gets the signed
    /// request could use it there.
    pub(crate) fn token_url(&self, registry: &Url, nonce: &str, seconds: u64) -> Result<Url, RegistryError> {
        let realm = Url::parse(&self.realm).ok();
        let of_realm = realm.as_ref().map(authority).unwrap_or_default();
        let host = authority(registry);
        let is_ours = |url: &Url| {
            let port = url.port_or_known_default() == registry.port_or_known_default();
            authority(url) == host || url.host_str() == registry.host_str() && port
        };
        let Some(mut url) = realm.filter(is_ours) else {
            return Err(RegistryError::Realm { realm: of_realm, host });
        };
        if registry.scheme() == "https" && url.scheme() != "https"
            || !matches!(url.scheme(), "http" | "https")
        {
            return Err(RegistryError::RealmScheme { url: shown(&url) });
        }
        let mut query: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let mut add = |key: &str, value: &str| query.push((key.to_owned(), value.to_owned()));
        add("service", &self.service);
        match self.scope.as_str() {
            "" => add("scope", ""),
            scopes => {
                scopes.split(' ').filter(|scope| !scope.is_empty()).for_each(|scope| add("scope", scope))
            }
        }
        add("ts", &seconds.to_string());
        add("nonce", nonce);
        query.sort_by(|a, b| a.0.cmp(&b.0));
        url.set_fragment(None);
        url.query_pairs_mut().clear().extend_pairs(query);
        Ok(url)
    }

    /// The same with a fresh nonce and the time of now.
    pub(crate) fn fresh_token_url(&self, registry: &Url) -> Result<Url, RegistryError> {
        let mut nonce = [0; 16];
        let random = SystemRandom::new().fill(&mut nonce);
        random.map_err(|_| RegistryError::Setup("no random numbers".into()))?;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.token_url(registry, &URL_SAFE_NO_PAD.encode(nonce), seconds)
    }
}

/// The `Authorization` of a request for a token.
pub(crate) fn authorization(identity: &Identity, url: &Url) -> String {
    format!("{}:{}", identity.public(), identity.sign(&format!("GET,{url},{NO_BODY}")))
}

/// The token of a token server's answer, which goes into a header.
pub(crate) fn token(bytes: &[u8], url: &Url) -> Result<String, RegistryError> {
    let fail = |what: &str| RegistryError::Answer { url: shown(url), what: what.to_owned() };
    let answer: TokenAnswer =
        serde_json::from_slice(bytes).map_err(|_| fail("the answer to a request for a token is none"))?;
    let token = if answer.token.is_empty() { answer.access_token } else { answer.token };
    if token.is_empty() {
        return Err(fail("the answer to a request for a token has none"));
    }
    if !token.bytes().all(|c| c.is_ascii_graphic()) {
        return Err(fail("the token has characters that no token has"));
    }
    Ok(token)
}

/// The first `key=value` or `key="value"` of a list, and the rest.
fn parameter(text: &str) -> Option<(&str, String, &str)> {
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
    let (value, after) = rest.split_once(',').unwrap_or((rest, ""));
    Some((key.trim(), value.trim().to_owned(), after))
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
    fn the_published_signature_is_made() {
        let seed: [u8; 32] = std::array::from_fn(|i| i as u8);
        let identity = Identity::from_seed(&seed);
        let public = "AAAAC3NzaC1lZDI1NTE5AAAAIAOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4";
        assert_eq!(identity.public(), public);
        let url = challenge("https://registry.example/v2/token")
            .token_url(&url("https://registry.example/"), "AAECAwQFBgcICQoLDA0ODw", 1_700_000_000)
            .unwrap();
        assert_eq!(
            url.as_str(),
            "https://registry.example/v2/token?nonce=AAECAwQFBgcICQoLDA0ODw&scope=repository%3Alibrary%2Fdemo%3Apull&service=puna&ts=1700000000"
        );
        let signature =
            "vrlKQJ8FF/KBu+b1UKN+plkm+WERFSzRMUCCll2AHU4bT9W4jMni/MJTyO2jflgxfIUD/mxzoFJBVO+gA1VODw==";
        assert_eq!(authorization(&identity, &url), format!("{public}:{signature}"));
    }

    #[test]
    fn a_realm_elsewhere_is_refused() {
        let refused = |realm: &str, registry: &str| {
            challenge(realm).token_url(&url(registry), "n", 1).unwrap_err().to_string()
        };
        let text = refused("https://evil.example/token", "https://good.example/");
        assert_eq!(text, "realm host \"evil.example\" does not match original host \"good.example\"");
        assert!(refused("http://h:5001/token", "http://h:5000/").starts_with("realm host \"h:5001\""));
        assert!(
            refused("https://good.example@evil.example/t", "https://good.example/").contains("evil.example")
        );
        assert!(refused("", "https://h/").starts_with("realm host \"\""));
        assert!(refused("harbor", "https://h/").starts_with("realm host \"\""));
        assert!(refused("http://h/token", "https://h/").contains("without encryption"));
        assert!(challenge("https://h:443/token").token_url(&url("https://h/"), "n", 1).is_ok());
    }

    #[test]
    fn challenges_are_read_quoted_and_bare() {
        let parse = |text: &str| Challenge::parse(text);
        let text = r#"Bearer realm="https://h/t?a=b,c",service="s",scope="repository:a/b:pull,push""#;
        let want = Challenge {
            realm: "https://h/t?a=b,c".into(),
            service: "s".into(),
            scope: "repository:a/b:pull,push".into(),
        };
        assert_eq!(parse(text), Some(want));
        assert_eq!(parse("bearer realm=https://h/t, service=s").unwrap().realm, "https://h/t");
        assert_eq!(parse(r#"Bearer realm="a\"b""#).unwrap().realm, "a\"b");
        assert_eq!(parse("Basic realm=\"harbor\""), None);
        assert_eq!(parse("Bearer realm=\"open").unwrap(), Challenge::default());
        assert_eq!(parse("Bearer"), None);
    }

    #[test]
    fn several_scopes_are_several_parameters_and_a_missing_one_is_empty() {
        let of = |scope: &str| {
            let challenge = Challenge { scope: scope.into(), ..challenge("http://h/t?x=1") };
            challenge.token_url(&url("http://h/"), "n", 5).unwrap().query().unwrap().to_owned()
        };
        assert_eq!(of("a b"), "nonce=n&scope=a&scope=b&service=puna&ts=5&x=1");
        assert_eq!(of(""), "nonce=n&scope=&service=puna&ts=5&x=1");
    }

    #[test]
    fn tokens_that_would_break_a_header_are_refused() {
        let of = |text: &str| token(text.as_bytes(), &url("http://h/t?sig=secret"));
        assert_eq!(of(r#"{"token":"abc","expires_in":60}"#).unwrap(), "abc");
        assert_eq!(of(r#"{"access_token":"abc"}"#).unwrap(), "abc");
        for bad in ["", "{}", "<html>", r#"{"token":"a\r\nb"}"#, r#"{"token":7}"#] {
            let text = of(bad).unwrap_err().to_string();
            assert!(text.starts_with("http://h/t: ") && !text.contains("secret"), "{bad}: {text}");
        }
    }
}
