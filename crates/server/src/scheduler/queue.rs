//! Requests that wait for a model, and whose turn it is.
//!
//! A turn is a load: what a request causes by being the next. Turns go to the client that has had fewest, so that one
//! with many requests for many models holds up nobody else; among the requests of a client the oldest is first.

use std::time::Instant;

use super::{LoadOptions, Request, RequestId};
use crate::turns::Turns;

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: Request,
    pub(super) since: Instant,
    /// What is loaded for it instead, since what it asked for was too much.
    pub(super) reduced: Option<LoadOptions>,
    /// Its model was too large to be loaded while another request waited for room.
    pub(super) stays_behind: bool,
}

/// Those that wait, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Vec<Waiting>,
    turns: Turns,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn push(&mut self, now: Instant, request: Request) {
        self.turns.comes(request.client, self.waiting.iter().map(|w| w.request.client));
        self.waiting.push(Waiting { request, since: now, reduced: None, stays_behind: false });
    }

    /// Counts a turn of a client.
    pub(super) fn had_turn(&mut self, client: u64) {
        self.turns.had(client);
    }

    /// Who waits, the next one first.
    pub(super) fn in_turn(&self) -> Vec<RequestId> {
        let mut order: Vec<_> =
            self.waiting.iter().map(|w| (self.turns.of(w.request.client), w.request.id)).collect();
        // Stable: within the same number of turns the order of arrival stays.
        order.sort_by_key(|(turns, _)| *turns);
        order.into_iter().map(|(_, id)| id).collect()
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Waiting> {
        self.waiting.iter().find(|w| w.request.id == id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Waiting> {
        self.waiting.iter_mut()
    }

    pub(super) fn remove(&mut self, id: RequestId) -> Option<Waiting> {
        let at = self.waiting.iter().position(|w| w.request.id == id)?;
        Some(self.waiting.remove(at))
    }

    /// Takes out those for which that is so, in order of arrival.
    pub(super) fn remove_if(&mut self, is_so: impl FnMut(&mut Waiting) -> bool) -> Vec<Waiting> {
        self.waiting.extract_if(.., is_so).collect()
    }

    /// The request that makes place for one of `client` where no more may wait: the newest of the client that has most,
    /// if that would still have as many. `except` is not sent away.
    pub(super) fn makes_place_for(
        &self,
        client: u64,
        except: Option<RequestId>,
    ) -> Option<RequestId> {
        let waits = |client| self.waiting.iter().filter(|w| w.request.client == client).count();
        let others = self.waiting.iter().filter(|w| Some(w.request.id) != except);
        // The last of equals: the newest.
        let most = others.max_by_key(|w| waits(w.request.client))?;
        (waits(most.request.client) > waits(client) + 1).then_some(most.request.id)
    }
}
