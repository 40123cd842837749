//! What keys are doing now, for those that have a limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::Key;

use crate::lock::lock;

/// Counts of every key, by name.
#[derive(Debug, Clone, Default)]
pub struct Usage(Arc<Mutex<HashMap<String, Counts>>>);

/// Requests that bring one thing in parts and count as one, also of those at once.
const PARTS: u32 = 64;
/// Things in parts that are remembered of a key.
const MAX_WHOLES: usize = 1024;
/// How long one is after its last part.
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Counts {
    /// Requests that are being answered, without those for parts.
    running: u32,
    /// What is brought in parts, by name.
    wholes: HashMap<String, Whole>,
    /// Requests that may begin at once; it grows with time up to a minute's worth.
    allowance: f64,
    seen: Instant,
}

/// Something that is brought in parts: a blob in ranges, an upload.
#[derive(Debug)]
struct Whole {
    /// Requests for parts that are being answered.
    running: u32,
    /// More of them that may begin.
    left: u32,
    seen: Instant,
}

impl Counts {
    /// Requests that are being answered, as they count.
    fn places(&self) -> u32 {
        let wholes = self.wholes.values().map(|whole| whole.running.div_ceil(PARTS));
        wholes.fold(self.running, u32::saturating_add)
    }

    /// Whether there is room for one more thing in parts.
    fn has_room(&mut self, now: Instant) -> bool {
        if self.wholes.len() >= MAX_WHOLES {
            let is_old = |whole: &Whole| now.saturating_duration_since(whole.seen) > MINUTE;
            self.wholes.retain(|_, whole| whole.running > 0 || !is_old(whole));
        }
        self.wholes.len() < MAX_WHOLES
    }

    /// Takes a request from what the rate allows.
    fn take(&mut self, rate: f64, now: Instant) -> Result<(), Exceeded> {
        let grown = now.saturating_duration_since(self.seen).as_secs_f64() * rate / 60.0;
        self.allowance = (self.allowance + grown).min(rate);
        self.seen = now;
        if self.allowance < 1.0 {
            let wait = ((1.0 - self.allowance) * 60.0 / rate).ceil().max(1.0);
            return Err(Exceeded::Rate(rate as u32, wait.min(3600.0) as u64));
        }
        self.allowance -= 1.0;
        Ok(())
    }
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
    part_of: Option<String>,
}

impl Usage {
    /// Begins a request at a time, which may be one of several that bring one thing in parts: [`PARTS`] of these count as one.
    ///
    /// # Errors
    /// The limit that was reached.
    pub fn begin(
        &self,
        key: &Key,
        part_of: Option<&str>,
        now: Instant,
    ) -> Result<Permit, Exceeded> {
        let mut all = lock(&self.0);
        let rate = key.requests_per_minute.map(f64::from);
        let new = || Counts {
            running: 0,
            wholes: HashMap::new(),
            allowance: rate.unwrap_or(0.0),
            seen: now,
        };
        let counts = all.entry(key.name.clone()).or_insert_with(new);
        let part_of = part_of.filter(|of| counts.wholes.contains_key(*of) || counts.has_room(now));
        let whole = part_of.and_then(|of| counts.wholes.get(of));
        let (running, left) = whole.map_or((0, 0), |whole| (whole.running, whole.left));
        if let Some(most) = key.concurrent
            && running % PARTS == 0
            && counts.places() >= most
        {
            return Err(Exceeded::Concurrent(most));
        }
        if let Some(rate) = rate.filter(|_| left == 0) {
            counts.take(rate, now)?;
        }
        match part_of {
            None => counts.running += 1,
            Some(of) => {
                let left = if left == 0 { PARTS - 1 } else { left - 1 };
                counts
                    .wholes
                    .insert(of.to_owned(), Whole { running: running + 1, left, seen: now });
            }
        }
        Ok(Permit {
            usage: self.clone(),
            name: key.name.clone(),
            part_of: part_of.map(str::to_owned),
        })
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
        let Some(counts) = all.get_mut(&self.name) else { return };
        match &self.part_of {
            None => counts.running = counts.running.saturating_sub(1),
            Some(of) => {
                if let Some(whole) = counts.wholes.get_mut(of) {
                    whole.running = whole.running.saturating_sub(1);
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
            namespaces,
        }
    }

    #[test]
    fn a_minutes_worth_may_come_at_once_and_then_as_time_goes_by() {
        let (usage, start) = (Usage::default(), Instant::now());
        let begin = |seconds: f64| {
            usage.begin(&key(Some(3), None), None, start + Duration::from_secs_f64(seconds))
        };
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
        let (first, _second) =
            (usage.begin(&limited, None, now).unwrap(), usage.begin(&limited, None, now).unwrap());
        assert_eq!(usage.begin(&limited, None, now).unwrap_err(), Exceeded::Concurrent(2));
        drop(first);
        usage.begin(&limited, None, now).unwrap();
        usage.begin(&key(Some(0), None), None, now).unwrap_err();
    }

    #[test]
    fn parts_of_one_thing_count_as_one_up_to_a_number_of_them() {
        let (usage, now) = (Usage::default(), Instant::now());
        let limited = key(Some(3), Some(2));
        let begin = |of: Option<&str>| usage.begin(&limited, of, now);
        let first: Vec<_> = (0..PARTS).map(|_| begin(Some("x")).unwrap()).collect();
        let second = begin(Some("x")).unwrap();
        assert_eq!(begin(None).unwrap_err(), Exceeded::Concurrent(2));
        assert_eq!(begin(Some("y")).unwrap_err(), Exceeded::Concurrent(2));
        drop(first);
        let other = begin(Some("y")).unwrap();
        drop((second, other));
        assert!(matches!(begin(None).unwrap_err(), Exceeded::Rate(3, _)));
        assert_eq!(begin(Some("z")).unwrap_err(), Exceeded::Rate(3, 20));
        for _ in 1..PARTS {
            begin(Some("y")).unwrap();
        }
        assert!(begin(Some("y")).is_err());
    }

    #[test]
    fn of_many_things_in_parts_so_many_are_remembered() {
        let (usage, now) = (Usage::default(), Instant::now());
        for n in 0..2 * MAX_WHOLES {
            usage.begin(&key(None, None), Some(&n.to_string()), now).unwrap();
        }
        assert_eq!(lock(&usage.0)["a"].wholes.len(), MAX_WHOLES);
        usage.begin(&key(None, None), Some("x"), now + 2 * MINUTE).unwrap();
        assert_eq!(lock(&usage.0)["a"].wholes.len(), 1);
    }
}
