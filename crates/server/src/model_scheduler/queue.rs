//! Queue of requests that wait for a model, fair between clients.
//!
//! The served unit is one model load. The client with the fewest loads is next, so that a client
//! with many requests for many models does not delay others. Within a client the oldest request is
//! first.

use std::time::Instant;

use puna_mirror::{SharedTable, TableLimit};

use super::{LoadOptions, Request, RequestId};
use crate::util::service_counts::ServiceCounts;

/// Description of [`Queue`].
pub(crate) static WAITING_REQUESTS: SharedTable = SharedTable {
    name: "requests that wait for a model",
    holders: &["puna_server::model_scheduler::queue::Queue"],
    limits: &[TableLimit::Rule("`max_queue`")],
    shares: &[TableLimit::Rule("a client with fewer displaces one with more")],
    when_full: "503 with `Retry-After`",
    test: "a_full_queue_displaces_a_request_of_the_busiest_client_for_a_new_client",
};

/// A waiting request.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    pub(super) request: Request,
    pub(super) since: Instant,
    /// Reduced options to load with, after the requested ones ran out of memory.
    pub(super) reduced: Option<LoadOptions>,
    /// Whether its model was too large to overtake another request that waits for memory.
    pub(super) cannot_overtake: bool,
}

/// Waiting requests in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Vec<WaitingRequest>,
    service: ServiceCounts,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn push(&mut self, now: Instant, request: Request) {
        self.service
            .add_waiting_client(request.client, self.waiting.iter().map(|w| w.request.client));
        self.waiting.push(WaitingRequest {
            request,
            since: now,
            reduced: None,
            cannot_overtake: false,
        });
    }

    /// Counts one load for a client.
    pub(super) fn record_service(&mut self, client: u64) {
        self.service.record(client, 1);
    }

    /// Waiting requests, the next one first.
    pub(super) fn service_order(&self) -> Vec<RequestId> {
        let mut order: Vec<_> = self
            .waiting
            .iter()
            .map(|w| (self.service.count(w.request.client), w.request.id))
            .collect();
        // The sort is stable: requests with equal counts keep their order of arrival.
        order.sort_by_key(|(count, _)| *count);
        order.into_iter().map(|(_, id)| id).collect()
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&WaitingRequest> {
        self.waiting.iter().find(|w| w.request.id == id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &WaitingRequest> {
        self.waiting.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut WaitingRequest> {
        self.waiting.iter_mut()
    }

    pub(super) fn remove(&mut self, id: RequestId) -> Option<WaitingRequest> {
        let at = self.waiting.iter().position(|w| w.request.id == id)?;
        Some(self.waiting.remove(at))
    }

    /// Removes and returns matching requests in order of arrival.
    pub(super) fn remove_if(
        &mut self,
        matches: impl FnMut(&mut WaitingRequest) -> bool,
    ) -> Vec<WaitingRequest> {
        self.waiting.extract_if(.., matches).collect()
    }

    /// Finds the request to reject so that one of `client` can wait in a full queue: the newest
    /// request of the client with the most, if that client keeps at least as many. Never returns
    /// `except`.
    pub(super) fn request_to_displace(
        &self,
        client: u64,
        except: Option<RequestId>,
    ) -> Option<RequestId> {
        let waits = |client| self.waiting.iter().filter(|w| w.request.client == client).count();
        let others = self.waiting.iter().filter(|w| Some(w.request.id) != except);
        // `max_by_key` returns the last of equal elements, which is the newest.
        let max = others.max_by_key(|w| waits(w.request.client))?;
        (waits(max.request.client) > waits(client) + 1).then_some(max.request.id)
    }
}
