//! How long clients keep a model in memory.
//!
//! Each client has its own time, so that no client unloads a model that another one uses. An idle
//! model is unloaded after the latest time.

use std::collections::HashMap;
use std::time::Instant;

use puna_api::KeepAlive;

/// Maximum clients of a model with a time of their own. Beyond it, the time that ends first is
/// dropped.
const MAX_CLIENTS: usize = 1024;

/// Times of all clients of a model.
#[derive(Debug)]
pub(super) struct ClientKeepAlives {
    /// Time of clients that state none.
    default: KeepAlive,
    clients: HashMap<u64, ClientKeepAlive>,
    /// When the last client gave the model up; `None` before the first use.
    released: Option<Instant>,
}

/// Time of one client.
#[derive(Debug)]
struct ClientKeepAlive {
    keep_alive: KeepAlive,
    last_use: Instant,
}

impl ClientKeepAlive {
    /// End of the time after a use; `None` if it never ends.
    fn end_after(&self, last_use: Instant) -> Option<Instant> {
        match self.keep_alive {
            KeepAlive::For(time) => last_use.checked_add(time),
            KeepAlive::Forever => None,
        }
    }
}

impl ClientKeepAlives {
    pub(super) fn new(default: KeepAlive) -> Self {
        Self { default, clients: HashMap::new(), released: None }
    }

    /// Records the start of a request, which may state a time.
    pub(super) fn start_request(&mut self, now: Instant, client: u64, stated: Option<KeepAlive>) {
        let default = ClientKeepAlive { keep_alive: self.default, last_use: now };
        let own = self.clients.entry(client).or_insert(default);
        own.last_use = now;
        own.keep_alive = stated.unwrap_or(own.keep_alive);
        if self.clients.len() > MAX_CLIENTS {
            let others = self.clients.iter().filter(|(other, _)| **other != client);
            let first = others
                .filter_map(|(other, times)| Some((times.end_after(times.last_use)?, *other)))
                .min();
            first.map(|(_, other)| self.clients.remove(&other));
        }
    }

    /// Records that a client still uses the model, or has just used it.
    pub(super) fn record_use(&mut self, now: Instant, client: u64) {
        if let Some(own) = self.clients.get_mut(&client) {
            own.last_use = now;
        }
    }

    /// Ends the time of one client, or of all.
    pub(super) fn release(&mut self, now: Instant, client: Option<u64>) {
        match client {
            Some(client) => drop(self.clients.remove(&client)),
            None => self.clients.clear(),
        }
        self.released = Some(now);
    }

    /// Whether a client keeps the model without an end.
    pub(super) fn is_endless(&self) -> bool {
        self.clients.values().any(|times| times.keep_alive == KeepAlive::Forever)
    }

    /// When the latest time ends; `None` if it never does, or before the first use.
    pub(super) fn end(&self) -> Option<Instant> {
        self.end_with(|_, times| times.last_use)
    }

    /// As [`Self::end`], if some clients still use the model.
    pub(super) fn end_while_used(
        &self,
        now: Instant,
        is_using: impl Fn(u64) -> bool,
    ) -> Option<Instant> {
        self.end_with(|client, times| if is_using(client) { now } else { times.last_use })
    }

    fn end_with(&self, last_use: impl Fn(u64, &ClientKeepAlive) -> Instant) -> Option<Instant> {
        if self.clients.is_empty() {
            return self.released;
        }
        let end =
            |(client, times): (&u64, &ClientKeepAlive)| times.end_after(last_use(*client, times));
        let ends: Option<Vec<Instant>> = self.clients.iter().map(end).collect();
        ends?.into_iter().max()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn many_clients_do_not_end_an_endless_time() {
        let (now, minute) = (Instant::now(), KeepAlive::For(Duration::from_secs(60)));
        let mut times = ClientKeepAlives::new(minute);
        times.start_request(now, 7, Some(KeepAlive::Forever));
        (100..100 + 2 * MAX_CLIENTS as u64)
            .for_each(|client| times.start_request(now, client, None));
        assert_eq!(times.clients.len(), MAX_CLIENTS);
        assert!(times.is_endless());
    }
}
