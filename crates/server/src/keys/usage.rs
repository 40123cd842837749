//! What keys are doing now, for those that have a limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::Key;

use crate::lock::lock;

/// Counts of every key, by name.
#[derive(Debug, Clone, Default)]
pub struct Usage(Arc<Mutex<HashMap<String, Counts>>>);

#[derive(Debug)]
struct Counts {
    /// Requests that are being answered.
    running: u32,
    /// Requests that may begin at once; it grows with time up to a minute's worth.
    allowance: f64,
    seen: Instant,
}

/// A limit was reached.
#[derive(Debug, PartialEq)]
pub enum Exceeded {
    /// Too many at once.
    Concurrent(u32),
    /// Too many a minute; and how many seconds to wait.
    Rate(u32, u64),
}

/// A request that is being answered, until it is dropped.
#[derive(Debug)]
pub struct Permit {
    usage: Usage,
    name: String,
}

impl Usage {
    /// Begins a request at a time.
    ///
    /// # Errors
    /// The limit that was reached.
    pub fn begin(&self, key: &Key, now: Instant) -> Result<Permit, Exceeded> {
        let mut all = lock(&self.0);
        let rate = key.requests_per_minute.map(f64::from);
        let new = || Counts { running: 0, allowance: rate.unwrap_or(0.0), seen: now };
        let counts = all.entry(key.name.clone()).or_insert_with(new);
        if let Some(most) = key.concurrent.filter(|most| counts.running >= *most) {
            return Err(Exceeded::Concurrent(most));
        }
        if let Some(rate) = rate {
            let grown = now.saturating_duration_since(counts.seen).as_secs_f64() * rate / 60.0;
            counts.allowance = (counts.allowance + grown).min(rate);
            counts.seen = now;
            if counts.allowance < 1.0 {
                let wait = ((1.0 - counts.allowance) * 60.0 / rate).ceil().max(1.0);
                return Err(Exceeded::Rate(rate as u32, wait.min(3600.0) as u64));
            }
            counts.allowance -= 1.0;
        }
        counts.running += 1;
        Ok(Permit { usage: self.clone(), name: key.name.clone() })
    }
}

impl Permit {
    /// The name of the key.
    pub fn key(&self) -> &str {
        &self.name
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut all = lock(&self.usage.0);
        if let Some(counts) = all.get_mut(&self.name) {
            counts.running = counts.running.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(requests_per_minute: Option<u32>, concurrent: Option<u32>) -> Key {
        let (name, hash, created) = ("a".into(), String::new(), String::new());
        let (public, namespaces) = (None, Vec::new());
        Key { name, hash, scopes: Vec::new(), created, requests_per_minute, concurrent, public, namespaces }
    }

    #[test]
    fn a_minutes_worth_may_come_at_once_and_then_as_time_goes_by() {
        let (usage, start) = (Usage::default(), Instant::now());
        let begin = |seconds: f64| usage.begin(&key(Some(3), None), start + Duration::from_secs_f64(seconds));
        for _ in 0..3 {
            begin(0.0).unwrap();
        }
        assert_eq!(begin(0.0).unwrap_err(), Exceeded::Rate(3, 20));
        assert_eq!(begin(15.0).unwrap_err(), Exceeded::Rate(3, 5));
        begin(20.5).unwrap();
        assert!(begin(21.0).is_err());
        // A long rest is worth no more than a minute.
        for _ in 0..3 {
            begin(10_000.0).unwrap();
        }
        assert!(begin(10_000.0).is_err());
    }

    #[test]
    fn no_more_than_the_limit_run_at_once() {
        let (usage, now) = (Usage::default(), Instant::now());
        let limited = key(None, Some(2));
        let (first, _second) = (usage.begin(&limited, now).unwrap(), usage.begin(&limited, now).unwrap());
        assert_eq!(usage.begin(&limited, now).unwrap_err(), Exceeded::Concurrent(2));
        drop(first);
        usage.begin(&limited, now).unwrap();
        usage.begin(&key(Some(0), None), now).unwrap_err();
    }
}
