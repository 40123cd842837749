//! Rate limits and concurrency limits of API keys.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use puna_mirror::{SharedTable, TableLimit};

use super::Key;

use crate::util::lock::lock;

/// Description of [`KeyUsage`].
pub(crate) static KEY_REQUESTS: SharedTable = SharedTable {
    name: "requests of a key",
    holders: &["puna_server::auth::rate_limits::KeyUsage"],
    limits: &[TableLimit::Rule("keys that exist")],
    shares: &[TableLimit::Rule("`--requests-per-minute`, `--concurrent`")],
    when_full: "429 with `Retry-After`",
    test: "a_key_at_its_limits_does_not_count_for_another",
};

/// Present usage of all keys, by name.
#[derive(Debug, Clone, Default)]
pub struct KeyUsage(Arc<Mutex<HashMap<String, UsageCounts>>>);

/// Number of requests for parts of one transfer that count as one request, also for the concurrency
/// limit.
const PARTS_PER_REQUEST: u32 = 64;
/// Maximum transfers tracked per key.
const MAX_TRANSFERS: usize = 1024;
/// Time after its last part for which a transfer is tracked.
const TRANSFER_TTL: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct UsageCounts {
    /// Requests in progress, without those for parts of transfers.
    running: u32,
    /// Transfers in parts, by identifier.
    transfers: HashMap<String, Transfer>,
    /// Token bucket: requests that may start now. It grows with time up to one minute's worth.
    available_requests: f64,
    last_seen: Instant,
}

/// A transfer in parts: a blob in ranges, or an upload.
#[derive(Debug)]
struct Transfer {
    /// Requests for parts in progress.
    running: u32,
    /// Further part requests before the next one counts against the rate.
    free_parts: u32,
    last_seen: Instant,
}

impl UsageCounts {
    /// Concurrent requests, with transfers counted in units of [`PARTS_PER_REQUEST`].
    fn concurrent_requests(&self) -> u32 {
        let transfers =
            self.transfers.values().map(|transfer| transfer.running.div_ceil(PARTS_PER_REQUEST));
        transfers.fold(self.running, u32::saturating_add)
    }

    /// Whether one more transfer can be tracked.
    fn can_add_transfer(&mut self, now: Instant) -> bool {
        if self.transfers.len() >= MAX_TRANSFERS {
            let is_old = |transfer: &Transfer| {
                now.saturating_duration_since(transfer.last_seen) > TRANSFER_TTL
            };
            self.transfers.retain(|_, transfer| transfer.running > 0 || !is_old(transfer));
        }
        self.transfers.len() < MAX_TRANSFERS
    }

    /// Takes one request from the token bucket.
    fn take_request(&mut self, rate: f64, now: Instant) -> Result<(), LimitExceeded> {
        let grown = now.saturating_duration_since(self.last_seen).as_secs_f64() * rate / 60.0;
        self.available_requests = (self.available_requests + grown).min(rate);
        self.last_seen = now;
        if self.available_requests < 1.0 {
            let wait = ((1.0 - self.available_requests) * 60.0 / rate).ceil().max(1.0);
            return Err(LimitExceeded::Rate(rate as u32, wait.min(3600.0) as u64));
        }
        self.available_requests -= 1.0;
        Ok(())
    }
}

/// A limit is exceeded.
#[derive(Debug, PartialEq)]
pub enum LimitExceeded {
    /// Maximum concurrent requests.
    Concurrent(u32),
    /// Maximum requests per minute, and seconds until a retry.
    Rate(u32, u64),
}

/// A request in progress, until this is dropped.
#[derive(Debug)]
pub struct RequestPermit {
    usage: KeyUsage,
    name: String,
    transfer_id: Option<String>,
}

impl KeyUsage {
    /// Starts a request at time `now`. [`PARTS_PER_REQUEST`] requests with the same `transfer_id`
    /// count as one.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub fn start_request(
        &self,
        key: &Key,
        transfer_id: Option<&str>,
        now: Instant,
    ) -> Result<RequestPermit, LimitExceeded> {
        let mut all = lock(&self.0);
        let rate = key.requests_per_minute.map(f64::from);
        let new = || UsageCounts {
            running: 0,
            transfers: HashMap::new(),
            available_requests: rate.unwrap_or(0.0),
            last_seen: now,
        };
        let counts = all.entry(key.name.clone()).or_insert_with(new);
        let transfer_id = transfer_id
            .filter(|of| counts.transfers.contains_key(*of) || counts.can_add_transfer(now));
        let transfer = transfer_id.and_then(|of| counts.transfers.get(of));
        let (running, free_parts) =
            transfer.map_or((0, 0), |transfer| (transfer.running, transfer.free_parts));
        if let Some(max) = key.concurrent
            && running % PARTS_PER_REQUEST == 0
            && counts.concurrent_requests() >= max
        {
            return Err(LimitExceeded::Concurrent(max));
        }
        if let Some(rate) = rate.filter(|_| free_parts == 0) {
            counts.take_request(rate, now)?;
        }
        match transfer_id {
            None => counts.running += 1,
            Some(of) => {
                let free_parts =
                    if free_parts == 0 { PARTS_PER_REQUEST - 1 } else { free_parts - 1 };
                counts.transfers.insert(
                    of.to_owned(),
                    Transfer { running: running + 1, free_parts, last_seen: now },
                );
            }
        }
        Ok(RequestPermit {
            usage: self.clone(),
            name: key.name.clone(),
            transfer_id: transfer_id.map(str::to_owned),
        })
    }
}

impl RequestPermit {
    /// The name of the key.
    pub fn key(&self) -> &str {
        &self.name
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut all = lock(&self.usage.0);
        let Some(counts) = all.get_mut(&self.name) else { return };
        match &self.transfer_id {
            None => counts.running = counts.running.saturating_sub(1),
            Some(of) => {
                if let Some(transfer) = counts.transfers.get_mut(of) {
                    transfer.running = transfer.running.saturating_sub(1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(requests_per_minute: Option<u32>, concurrent: Option<u32>) -> Key {
        let (name, hash, created) = ("a".into(), String::new(), String::new());
        let (public, namespaces) = (None, Vec::new());
        Key {
            name,
            hash,
            scopes: Vec::new(),
            created,
            requests_per_minute,
            concurrent,
            public,
            group: None,
            namespaces,
        }
    }

    #[test]
    fn a_burst_of_a_minutes_worth_is_allowed_and_refills_with_time() {
        let (usage, start) = (KeyUsage::default(), Instant::now());
        let begin = |seconds: f64| {
            usage.start_request(&key(Some(3), None), None, start + Duration::from_secs_f64(seconds))
        };
        for _ in 0..3 {
            begin(0.0).unwrap();
        }
        assert_eq!(begin(0.0).unwrap_err(), LimitExceeded::Rate(3, 20));
        assert_eq!(begin(15.0).unwrap_err(), LimitExceeded::Rate(3, 5));
        begin(20.5).unwrap();
        assert!(begin(21.0).is_err());
        // A long pause earns at most the requests of one minute.
        for _ in 0..3 {
            begin(10_000.0).unwrap();
        }
        assert!(begin(10_000.0).is_err());
    }

    #[test]
    fn no_more_than_the_limit_run_at_once() {
        let (usage, now) = (KeyUsage::default(), Instant::now());
        let limited = key(None, Some(2));
        let (first, _second) = (
            usage.start_request(&limited, None, now).unwrap(),
            usage.start_request(&limited, None, now).unwrap(),
        );
        assert_eq!(
            usage.start_request(&limited, None, now).unwrap_err(),
            LimitExceeded::Concurrent(2)
        );
        drop(first);
        usage.start_request(&limited, None, now).unwrap();
        usage.start_request(&key(Some(0), None), None, now).unwrap_err();
    }

    #[test]
    fn a_key_at_its_limits_does_not_count_for_another() {
        let (usage, now) = (KeyUsage::default(), Instant::now());
        let limited = key(Some(1), Some(1));
        let other = Key { name: "b".into(), ..key(Some(1), Some(1)) };
        let _running = usage.start_request(&limited, None, now).unwrap();
        usage.start_request(&limited, None, now).unwrap_err();
        usage.start_request(&other, None, now).unwrap();
    }

    #[test]
    fn parts_of_a_transfer_count_as_one_request_up_to_a_number() {
        let (usage, now) = (KeyUsage::default(), Instant::now());
        let limited = key(Some(3), Some(2));
        let begin = |of: Option<&str>| usage.start_request(&limited, of, now);
        let first: Vec<_> = (0..PARTS_PER_REQUEST).map(|_| begin(Some("x")).unwrap()).collect();
        let second = begin(Some("x")).unwrap();
        assert_eq!(begin(None).unwrap_err(), LimitExceeded::Concurrent(2));
        assert_eq!(begin(Some("y")).unwrap_err(), LimitExceeded::Concurrent(2));
        drop(first);
        let other = begin(Some("y")).unwrap();
        drop((second, other));
        assert!(matches!(begin(None).unwrap_err(), LimitExceeded::Rate(3, _)));
        assert_eq!(begin(Some("z")).unwrap_err(), LimitExceeded::Rate(3, 20));
        for _ in 1..PARTS_PER_REQUEST {
            begin(Some("y")).unwrap();
        }
        assert!(begin(Some("y")).is_err());
    }

    #[test]
    fn the_number_of_tracked_transfers_is_limited() {
        let (usage, now) = (KeyUsage::default(), Instant::now());
        for n in 0..2 * MAX_TRANSFERS {
            usage.start_request(&key(None, None), Some(&n.to_string()), now).unwrap();
        }
        assert_eq!(lock(&usage.0)["a"].transfers.len(), MAX_TRANSFERS);
        usage.start_request(&key(None, None), Some("x"), now + 2 * TRANSFER_TTL).unwrap();
        assert_eq!(lock(&usage.0)["a"].transfers.len(), 1);
    }
}
