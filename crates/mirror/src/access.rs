//! Who may do what: everybody, holders of keys, and who shows a token that was made for such a holder.
//!
//! Ollama's clients prove who they are with an Ed25519 key: they sign the address of the token that they are told to fetch.
//! Tools of container registries fetch it with a name and password; the password is an API key, which may also be shown as
//! a bearer token itself. A token says whose it is and until when: what its holder may do is looked up when it is used.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use axum::http::header;
use axum::http::request::Parts;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use puna_registry::{NO_BODY, public_key};
use puna_store::Digest;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, UnparsedPublicKey};

use crate::error::MirrorError;
use crate::lock::lock;
use crate::name::Repository;
use crate::path::{Target, query};
use crate::pattern::is_in;
use crate::place::{self, Local, Names, text};
use crate::settings::Settings;

/// How long a token holds.
pub(crate) const TOKEN_TIME: Duration = Duration::from_secs(5 * 60);
/// How long the address of a blob holds: Ollama's client uses it for all parts and attempts.
const ADDRESS_TIME: Duration = Duration::from_secs(24 * 60 * 60);
/// How far clocks may be apart.
const SKEW: u64 = 5 * 60;
/// Signed requests that are remembered, so that nobody sends them again.
const MAX_NONCES: usize = 20_000;
/// Bytes of a nonce at most.
const MAX_NONCE: usize = 128;

/// What somebody wants to do. Who may do more may do less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Pull and look.
    Read,
    /// Push.
    Write,
    /// Remove.
    Admin,
}

/// Who has a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// His name.
    pub name: String,
    /// What he may do.
    pub right: Right,
    /// In which namespaces: `name`, or `name*`. None means all of them.
    pub namespaces: Vec<String>,
}

impl Holder {
    /// Whether he may do something; with all repositories, where none is said.
    pub fn may(&self, right: Right, name: Option<&Repository>) -> bool {
        let within = || match name {
            None => right == Right::Read,
            Some(name) => self.may_see(name.namespace()),
        };
        self.right >= right && (self.namespaces.is_empty() || within())
    }

    /// Whether a namespace is one of those that he has to do with.
    pub(crate) fn may_see(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|own| is_in(namespace, own))
    }
}

/// A request that counts to a key, until it is dropped.
pub type Begun = Box<dyn Any + Send + Sync>;

/// A key has a limit, and it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// What is told.
    pub said: String,
    /// Seconds after which to come again.
    pub retry_after: u64,
}

/// The keys there are.
pub trait Keys: Send + Sync + 'static {
    /// Whether there are any.
    fn any(&self) -> bool;
    /// The holder of a name.
    fn by_name(&self, name: &str) -> Option<Holder>;
    /// The holder of an API key.
    fn by_secret(&self, secret: &str) -> Option<Holder>;
    /// The holder of the Ed25519 key with this public half.
    fn by_public(&self, key: &[u8]) -> Option<Holder>;
    /// Begins a request of a holder, which may be one of several that bring one thing in parts.
    ///
    /// # Errors
    /// He has more of them than he may have.
    fn begin(&self, name: &str, part_of: Option<&str>) -> Result<Option<Begun>, Limit>;
}

/// Nobody has one.
pub struct NoKeys;

impl Keys for NoKeys {
    fn any(&self) -> bool {
        false
    }
    fn by_name(&self, _: &str) -> Option<Holder> {
        None
    }
    fn by_secret(&self, _: &str) -> Option<Holder> {
        None
    }
    fn by_public(&self, _: &[u8]) -> Option<Holder> {
        None
    }
    fn begin(&self, _: &str, _: Option<&str>) -> Result<Option<Begun>, Limit> {
        Ok(None)
    }
}

/// Judges requests.
pub(crate) struct Access {
    keys: Box<dyn Keys>,
    /// Whether everybody may read, where there are keys.
    anonymous: bool,
    /// Whether everybody may push, where there are none.
    push: bool,
    /// The hosts that signatures may be for; any, where there are none.
    names: Names,
    /// What tokens are signed with; tokens of an earlier run are worth nothing.
    secret: hmac::Key,
    /// What their time is counted from, so that they hold as long when the clock is put right.
    begun: Instant,
    nonces: Mutex<HashMap<String, Instant>>,
}

impl Access {
    pub(crate) fn new(keys: Box<dyn Keys>, settings: &Settings) -> Result<Self, MirrorError> {
        let secret = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let secret = secret
            .map_err(|_| MirrorError::Internal("the system gives no random numbers".into()))?;
        let Settings { anonymous, push, .. } = *settings;
        let (names, begun, nonces) =
            (Names::new(settings.names.clone()), Instant::now(), Mutex::default());
        Ok(Self { keys, anonymous, push, names, secret, begun, nonces })
    }

    /// Judges a request. Who it is from is told, where that matters.
    pub(crate) fn judge(
        &self,
        head: &Parts,
        right: Right,
        name: Option<&Repository>,
        blob: Option<&Digest>,
    ) -> Result<Option<Holder>, MirrorError> {
        if !self.keys.any() {
            return match right == Right::Read || self.push || head.extensions.get::<Local>().is_some() {
                true => Ok(None),
                false => Err(MirrorError::Denied(
                    "this registry has no keys, so only its own machine may push: make one there with `puna key add`".into(),
                )),
            };
        }
        if right == Right::Read && blob.is_some_and(|blob| self.told_to(head, blob).is_some()) {
            return Ok(None);
        }
        match self.holder(head) {
            Some(holder) if holder.may(right, name) => Ok(Some(holder)),
            Some(holder) => Err(MirrorError::Denied(format!(
                "the key {:?} may not do this{}",
                holder.name,
                name.map(|name| format!(" with {name}")).unwrap_or_default()
            ))),
            None if right == Right::Read && self.anonymous => Ok(None),
            None => Err(MirrorError::Unauthorized("this registry wants to know who asks".into())),
        }
    }

    /// Judges a request for figures: where there are keys, they are for those who may do everything everywhere.
    pub(crate) fn judge_watcher(&self, head: &Parts) -> Result<(), MirrorError> {
        match self.holder(head) {
            _ if !self.keys.any() => Ok(()),
            Some(holder) if holder.right == Right::Admin && holder.namespaces.is_empty() => Ok(()),
            Some(holder) => Err(MirrorError::Denied(format!(
                "the key {:?} may not see the figures: that takes the scope admin, without namespaces",
                holder.name
            ))),
            None => Err(MirrorError::Unauthorized(
                "these figures are for keys of the scope admin".into(),
            )),
        }
    }

    /// Whom a request is from.
    fn holder(&self, head: &Parts) -> Option<Holder> {
        if let Some(secret) = text(&head.headers, header::HeaderName::from_static("x-api-key")) {
            return self.keys.by_secret(secret.trim());
        }
        let (scheme, rest) = text(&head.headers, header::AUTHORIZATION)?.split_once(' ')?;
        match scheme.to_ascii_lowercase().as_str() {
            "bearer" => match self.named(rest.trim()) {
                Some(name) => self.keys.by_name(&name),
                None => self.keys.by_secret(rest.trim()),
            },
            "basic" => {
                let pair = String::from_utf8(STANDARD.decode(rest.trim()).ok()?).ok()?;
                self.keys.by_secret(pair.split_once(':')?.1)
            }
            _ => None,
        }
    }

    /// What is told to those who must say who they are.
    pub(crate) fn challenge(
        &self,
        head: &Parts,
        right: Right,
        name: Option<&Repository>,
    ) -> String {
        let actions = match right {
            Right::Read => "pull",
            Right::Write => "pull,push",
            Right::Admin => "pull,push,delete",
        };
        let scope = name
            .map_or("registry:catalog:*".to_owned(), |name| format!("repository:{name}:{actions}"));
        format!("Bearer realm=\"{}/v2/token\",service=\"puna\",scope=\"{scope}\"", place::of(head))
    }

    /// A token for whom a request is from.
    pub(crate) fn token(&self, head: &Parts) -> Result<String, MirrorError> {
        let signed =
            text(&head.headers, header::AUTHORIZATION).and_then(|text| text.split_once(':'));
        let holder = match signed.filter(|(key, _)| !key.contains(' ')) {
            Some((key, signature)) => self.signer(head, key, signature)?,
            None => self.holder(head),
        };
        match holder {
            Some(holder) => Ok(self.sign(&holder.name, TOKEN_TIME)),
            // It is worth as much as none.
            None if !head.headers.contains_key(header::AUTHORIZATION)
                && (self.anonymous || !self.keys.any()) =>
            {
                Ok(self.sign("", TOKEN_TIME))
            }
            None => Err(MirrorError::Unauthorized("this key is not known here".into())),
        }
    }

    /// Who signed the address that is asked for.
    fn signer(
        &self,
        head: &Parts,
        key: &str,
        signature: &str,
    ) -> Result<Option<Holder>, MirrorError> {
        let refused =
            |why: &str| MirrorError::Unauthorized(format!("the signature of this request {why}"));
        let Some(public) = public_key(key) else {
            return Err(refused("comes with a key that is none"));
        };
        let signature = STANDARD.decode(signature).map_err(|_| refused("is none"))?;
        let asked = |key| query(head.uri.query(), key).unwrap_or_default();
        let place = place::of(head);
        // Whoever got it under another name may be passing on what was meant for him.
        if !self.is_of_here(&place) {
            return Err(refused(&format!(
                "is for {place}, and that is none of the names in mirror.names: whoever runs this registry can add it there"
            )));
        }
        let url = format!("{place}{}", head.uri.path_and_query().map_or("", |path| path.as_str()));
        let message = format!("GET,{url},{NO_BODY}");
        let verified =
            UnparsedPublicKey::new(&ED25519, &public).verify(message.as_bytes(), &signature);
        verified.map_err(|_| {
            refused(&format!("is not one of {url}: is the address another one outside of a proxy?"))
        })?;
        let ts: u64 = asked("ts").parse().map_err(|_| refused("has no time"))?;
        if ts.abs_diff(seconds()) > SKEW {
            return Err(refused(
                "is of another time: the clocks of the two machines are too far apart",
            ));
        }
        // What strangers sign is not remembered: they could fill the memory with it.
        let Some(holder) = self.keys.by_public(&public) else { return Ok(None) };
        self.first_time(&asked("nonce"), Duration::from_secs(2 * SKEW))?;
        Ok(Some(holder))
    }

    /// Whether `scheme://host` is where clients find this registry, as far as that was said.
    fn is_of_here(&self, place: &str) -> bool {
        let (scheme, host) = place.split_once("://").unwrap_or(("", place));
        self.names.is_empty() || self.names.has(Some(scheme), host)
    }

    /// Whether a `Host` header is one of the names under which clients reach it, which says nothing of the scheme.
    pub(crate) fn is_named(&self, host: &str) -> bool {
        self.names.has(None, host)
    }

    /// Refuses a signed request that has come before. That is remembered for a while, after which its time is too old.
    fn first_time(&self, nonce: &str, remembered: Duration) -> Result<(), MirrorError> {
        let refused = |why: &str| {
            Err(MirrorError::Unauthorized(format!("the signature of this request {why}")))
        };
        match nonce.len() {
            0 => return refused("has no nonce"),
            1..=MAX_NONCE => {}
            _ => return refused(&format!("has a nonce of more than {MAX_NONCE} bytes")),
        }
        let mut nonces = lock(&self.nonces);
        nonces.retain(|_, at| at.elapsed() < remembered);
        if nonces.contains_key(nonce) {
            return refused("was used before");
        }
        if nonces.len() >= MAX_NONCES {
            return Err(MirrorError::TooMany(format!(
                "{MAX_NONCES} signed requests came within {} minutes, and no more are told apart: come back later",
                remembered.as_secs() / 60
            )));
        }
        nonces.insert(nonce.to_owned(), Instant::now());
        Ok(())
    }

    /// Counts a request to the key of its holder, or of whoever was told the address that is asked for.
    pub(crate) fn begin(
        &self,
        head: &Parts,
        holder: Option<&Holder>,
        target: &Target,
    ) -> Result<Option<Begun>, MirrorError> {
        let Some(name) = self.payer(head, holder, target) else { return Ok(None) };
        let part_of = match target {
            Target::Blob(_, blob) if head.headers.contains_key(header::RANGE) => {
                Some(blob.to_string())
            }
            Target::Upload(_, id) => Some(id.to_string()),
            _ => None,
        };
        self.keys.begin(&name, part_of.as_deref()).map_err(MirrorError::Limited)
    }

    /// Whom a request counts to.
    pub(crate) fn payer(
        &self,
        head: &Parts,
        holder: Option<&Holder>,
        target: &Target,
    ) -> Option<String> {
        match (holder, target) {
            (Some(holder), _) => Some(holder.name.clone()),
            (None, Target::Blob(_, blob)) => {
                self.told_to(head, blob).filter(|name| !name.is_empty())
            }
            (None, _) => None,
        }
    }

    /// The path of a blob that anybody may read who was told it.
    pub(crate) fn address(&self, name: &Repository, blob: &Digest, payer: Option<&str>) -> String {
        let path = format!("/v2/{name}/blobs/{blob}");
        match self.keys.any() && !self.anonymous {
            true => {
                let of = format!("{blob} {}", payer.unwrap_or_default());
                format!("{path}?token={}", self.sign(&of, ADDRESS_TIME))
            }
            false => path,
        }
    }

    /// Whose key the address of a blob was told to, where that is what is asked for.
    fn told_to(&self, head: &Parts, blob: &Digest) -> Option<String> {
        let of = self.named(&query(head.uri.query(), "token")?)?;
        let (digest, name) = of.split_once(' ')?;
        (digest == blob.to_string()).then(|| name.to_owned())
    }

    /// A text with its end, and the proof that this was said here.
    fn sign(&self, of: &str, time: Duration) -> String {
        let claim = format!("{}.{of}", self.begun.elapsed().as_secs() + time.as_secs());
        let tag = hmac::sign(&self.secret, claim.as_bytes());
        format!("{}.{}", URL_SAFE_NO_PAD.encode(claim), URL_SAFE_NO_PAD.encode(tag))
    }

    /// What such a text says.
    fn named(&self, token: &str) -> Option<String> {
        let (claim, tag) = token.split_once('.')?;
        let (claim, tag) = (URL_SAFE_NO_PAD.decode(claim).ok()?, URL_SAFE_NO_PAD.decode(tag).ok()?);
        hmac::verify(&self.secret, &claim, &tag).ok()?;
        let claim = String::from_utf8(claim).ok()?;
        let (end, of) = claim.split_once('.')?;
        (end.parse::<u64>().ok()? >= self.begun.elapsed().as_secs()).then(|| of.to_owned())
    }
}

/// Seconds since 1970.
fn seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::extract::Request;
    use ring::signature::{Ed25519KeyPair, KeyPair};

    use super::*;

    struct Team;

    impl Keys for Team {
        fn any(&self) -> bool {
            true
        }
        fn by_name(&self, name: &str) -> Option<Holder> {
            let right = match name {
                "reader" => Right::Read,
                "writer" => Right::Write,
                _ => return None,
            };
            Some(Holder { name: name.into(), right, namespaces: vec!["team-*".into()] })
        }
        fn by_secret(&self, secret: &str) -> Option<Holder> {
            self.by_name(secret.strip_suffix("-secret")?)
        }
        fn by_public(&self, key: &[u8]) -> Option<Holder> {
            self.by_name("reader").filter(|_| key == pair().public_key().as_ref())
        }
        fn begin(&self, _: &str, _: Option<&str>) -> Result<Option<Begun>, Limit> {
            Ok(None)
        }
    }

    /// The key of the published example: its seed is 00 01 02 … 1f.
    fn pair() -> Ed25519KeyPair {
        let seed: Vec<u8> = (0..32).collect();
        Ed25519KeyPair::from_seed_unchecked(&seed).unwrap()
    }

    fn access() -> Access {
        Access::new(Box::new(Team), &Settings::default()).unwrap()
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
    fn keys_hold_for_their_namespaces_and_no_more_than_they_are_for() {
        let access = access();
        let judge = |authorization: &str, right, of: &str| {
            access
                .judge(&head("/v2/", authorization), right, Some(&name(of)), None)
                .map_err(|e| e.code().0)
        };
        assert_eq!(judge("", Right::Read, "team-a/m").unwrap_err(), 401);
        assert_eq!(judge("Bearer nobody-secret", Right::Read, "team-a/m").unwrap_err(), 401);
        judge("Bearer reader-secret", Right::Read, "team-a/m").unwrap();
        assert_eq!(judge("Bearer reader-secret", Right::Write, "team-a/m").unwrap_err(), 403);
        assert_eq!(judge("Bearer reader-secret", Right::Read, "library/m").unwrap_err(), 403);
        judge(&format!("Basic {}", STANDARD.encode("me:writer-secret")), Right::Write, "TEAM-b/m")
            .unwrap();
        let token = access.token(&head("/v2/token", "Bearer writer-secret")).unwrap();
        judge(&format!("Bearer {token}"), Right::Write, "team-a/m").unwrap();
        assert_eq!(judge(&format!("Bearer {token}x"), Right::Read, "team-a/m").unwrap_err(), 401);
        let others =
            super::tests::access().token(&head("/v2/token", "Bearer writer-secret")).unwrap();
        assert_eq!(judge(&format!("Bearer {others}"), Right::Read, "team-a/m").unwrap_err(), 401);
    }

    #[test]
    fn the_published_signature_is_one_of_another_time() {
        let path = "/v2/token?nonce=AAECAwQFBgcICQoLDA0ODw&scope=repository%3Alibrary%2Fdemo%3Apull&service=puna&ts=1700000000";
        let public = "AAAAC3NzaC1lZDI1NTE5AAAAIAOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4";
        let signature = "vrlKQJ8FF/KBu+b1UKN+plkm+WERFSzRMUCCll2AHU4bT9W4jMni/MJTyO2jflgxfIUD/mxzoFJBVO+gA1VODw==";
        let refused = |path: &str, host: bool| {
            let mut head = head(path, &format!("{public}:{signature}"));
            if host {
                head.headers.insert("host", "other.example".parse().unwrap());
            }
            access().token(&head).unwrap_err().to_string()
        };
        assert!(refused(path, false).contains("another time"), "{}", refused(path, false));
        assert!(refused(path, true).contains("is not one of https://other.example/v2/token"));
        assert!(refused(&path.replace("demo", "other"), false).contains("is not one of"));
    }

    /// A request for a token that is signed for registry.example.
    fn signed() -> Parts {
        let path = format!("/v2/token?nonce=abc&scope=&service=puna&ts={}", seconds());
        let message = format!("GET,https://registry.example{path},{NO_BODY}");
        let before = b"\0\0\0\x0bssh-ed25519\0\0\0\x20";
        let public = STANDARD.encode([&before[..], pair().public_key().as_ref()].concat());
        let signature = STANDARD.encode(pair().sign(message.as_bytes()));
        head(&path, &format!("{public}:{signature}"))
    }

    #[test]
    fn a_signed_request_gives_a_token_once() {
        let access = access();
        let head = signed();
        let token = access.token(&head).unwrap();
        assert_eq!(access.named(&token).as_deref(), Some("reader"));
        assert!(access.token(&head).unwrap_err().to_string().contains("was used before"));
    }

    #[test]
    fn more_signed_requests_than_are_remembered_are_told_to_come_later() {
        let access = access();
        let hour = Duration::from_secs(60 * 60);
        for n in 0..MAX_NONCES {
            access.first_time(&n.to_string(), hour).unwrap();
        }
        let full = access.first_time("new", hour).unwrap_err();
        assert_eq!(full.code(), (429, "TOOMANYREQUESTS"), "{full}");
        // One that was seen is still known.
        let again = access.first_time("7", hour).unwrap_err();
        assert!(again.to_string().contains("was used before"), "{again}");
        // What is old makes room.
        access.first_time("new", Duration::ZERO).unwrap();
        for (nonce, why) in
            [(String::new(), "has no nonce"), ("x".repeat(129), "more than 128 bytes")]
        {
            let refused = access.first_time(&nonce, hour).unwrap_err();
            assert!(refused.to_string().contains(why), "{refused}");
        }
    }

    #[test]
    fn a_signature_for_another_name_opens_nothing() {
        let settings = |names: &[&str]| Settings {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Settings::default()
        };
        let token = |names: &[&str]| {
            let access = Access::new(Box::new(Team), &settings(names)).unwrap();
            access.token(&signed()).map_err(|error| error.to_string())
        };
        for ours in [&[][..], &["registry.example"], &["other.lan:5000", "Registry.Example:443"]] {
            token(ours).unwrap();
        }
        for others in [&["mirror.lan"][..], &["registry.example:5000"], &["registry.example:80"]] {
            let refused = token(others).unwrap_err();
            assert!(
                refused.contains("https://registry.example, and that is none of the names"),
                "{refused}"
            );
        }
    }

    #[test]
    fn the_address_of_a_blob_opens_that_blob_alone() {
        let access = access();
        let (blob, other) = (Digest::of(b"a"), Digest::of(b"b"));
        let address = access.address(&name("team-a/m"), &blob, Some("anna"));
        let judge = |blob| {
            access.judge(&head(&address, ""), Right::Read, Some(&name("team-a/m")), Some(blob))
        };
        judge(&blob).unwrap();
        let asked =
            |blob| access.payer(&head(&address, ""), None, &Target::Blob(name("team-a/m"), blob));
        assert_eq!(
            (asked(blob), asked(other)),
            (Some("anna".to_owned()), None),
            "whose key it counts to"
        );
        assert_eq!(judge(&other).unwrap_err().code().0, 401);
        let pushed =
            access.judge(&head(&address, ""), Right::Write, Some(&name("team-a/m")), Some(&blob));
        assert_eq!(pushed.unwrap_err().code().0, 401);
    }
}
