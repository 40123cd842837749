//! Nonces of signed requests, which are remembered against replay. Each key has its own share, so
//! that a key with many signed requests does not prevent requests of other keys.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::error::{AuthenticationError, LimitReached, MirrorError, SignatureProblem};
use crate::locks::lock;
use crate::types::shared_table::{SharedTable, TableLimit};

/// Largest number of remembered nonces of one key.
pub(super) const MAX_NONCES_PER_KEY: usize = 5000;
/// Largest length of a nonce in bytes.
const MAX_NONCE_BYTES: usize = 128;

/// Description of [`Nonces`].
pub(crate) static NONCES: SharedTable = SharedTable {
    name: "mirror: nonces of signed requests of 10 minutes",
    holders: &["puna_mirror::auth::nonces::Nonces"],
    limits: &[TableLimit::Rule("keys that exist")],
    shares: &[TableLimit::Entries(MAX_NONCES_PER_KEY)],
    when_full: "429 for this key",
    test: "a_key_that_fills_its_share_does_not_affect_others",
};

/// Nonces by the name of their key.
#[derive(Default)]
pub(super) struct Nonces(Mutex<HashMap<String, KeyNonces>>);

/// Nonces of one key, and when each was used.
#[derive(Default)]
struct KeyNonces {
    used: HashMap<String, Instant>,
    last: Option<Instant>,
}

impl Nonces {
    /// Fails if a nonce of a key is invalid or was used before.
    pub(super) fn check(&self, key: &str, nonce: &str) -> Result<(), MirrorError> {
        let problem = match nonce.len() {
            0 => SignatureProblem::NoNonce,
            1..=MAX_NONCE_BYTES => {
                let nonces = lock(&self.0);
                match nonces.get(key).is_some_and(|of_key| of_key.used.contains_key(nonce)) {
                    true => SignatureProblem::Reused,
                    false => return Ok(()),
                }
            }
            _ => SignatureProblem::LongNonce { max: MAX_NONCE_BYTES },
        };
        Err(AuthenticationError::Signature(problem).into())
    }

    /// Records a nonce of a key. Fails if it was used before, or if the key has used its share.
    /// Nonces are remembered until their timestamp is too old.
    pub(super) fn record(
        &self,
        key: &str,
        nonce: &str,
        remembered: Duration,
    ) -> Result<(), MirrorError> {
        let mut nonces = lock(&self.0);
        // Entries of keys that sign nothing more, such as removed ones.
        nonces.retain(|_, of_key| of_key.last.is_some_and(|last| last.elapsed() < remembered));
        let of_key = nonces.entry(key.to_owned()).or_default();
        if of_key.used.len() >= MAX_NONCES_PER_KEY {
            of_key.used.retain(|_, at| at.elapsed() < remembered);
        }
        if of_key.used.get(nonce).is_some_and(|at| at.elapsed() < remembered) {
            return Err(AuthenticationError::Signature(SignatureProblem::Reused).into());
        }
        if of_key.used.len() >= MAX_NONCES_PER_KEY {
            let (max, minutes) = (MAX_NONCES_PER_KEY, remembered.as_secs() / 60);
            return Err(LimitReached::SignedRequests { max, minutes }.into());
        }
        let now = Instant::now();
        of_key.used.insert(nonce.to_owned(), now);
        of_key.last = Some(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than the test.
    const HOUR: Duration = Duration::from_secs(60 * 60);

    #[test]
    fn a_key_that_fills_its_share_does_not_affect_others() {
        let nonces = Nonces::default();
        for n in 0..MAX_NONCES_PER_KEY {
            nonces.record("a", &n.to_string(), HOUR).unwrap();
        }
        let full = nonces.record("a", "new", HOUR).unwrap_err();
        assert_eq!(full.code(), (429, "TOOMANYREQUESTS"), "{full}");
        // A nonce that was used is still rejected.
        for again in [nonces.check("a", "7"), nonces.record("a", "7", HOUR)] {
            assert!(again.unwrap_err().to_string().contains("was used before"));
        }
        nonces.check("b", "7").unwrap();
        nonces.record("b", "7", HOUR).unwrap();
        // Expired nonces free their places.
        nonces.record("a", "new", Duration::ZERO).unwrap();
        assert_eq!(lock(&nonces.0).len(), 1, "keys without nonces are removed");
    }

    #[test]
    fn invalid_nonces_are_rejected() {
        let nonces = Nonces::default();
        for (nonce, why) in
            [(String::new(), "has no nonce"), ("x".repeat(129), "longer than 128 bytes")]
        {
            let invalid = nonces.check("a", &nonce).unwrap_err();
            assert!(invalid.to_string().contains(why), "{invalid}");
        }
    }
}
