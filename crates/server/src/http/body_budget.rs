//! Memory budget for request bodies: one for all clients, with a share for each. The [workers] that
//! process large bodies belong to it.
//!
//! A client holds at most as much as then remains free: half of the budget if it is the only one, a
//! third of it beside a second such client. A client with a single request holds up to
//! [`SINGLE_REQUEST_FACTOR`] times as much, because the largest permitted body must fit. Some of
//! the budget therefore always remains for the next client.
//!
//! [workers]: super::body_workers

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use puna_mirror::{SharedTable, TableLimit};

use super::body_workers::{BodyWorkers, ClientWorkers};
use crate::canonical::ApiError;
use crate::util::lock::lock;

/// Maximum total bytes of all bodies while they are received, decompressed and decoded, and until a
/// runner accepts their task. The largest permitted body fits.
pub(crate) const BODY_BUDGET_BYTES: usize = 640 << 20;

/// Multiple of the remaining budget that the only request of a client may hold.
const SINGLE_REQUEST_FACTOR: usize = 4;

/// Maximum bytes that a client holds with one request while no other client holds any.
pub(crate) const SINGLE_REQUEST_BYTES: usize =
    BODY_BUDGET_BYTES / (SINGLE_REQUEST_FACTOR + 1) * SINGLE_REQUEST_FACTOR;

/// Bytes per request outside the budget, so that small requests succeed while large ones fill it.
const FREE_BYTES_PER_REQUEST: usize = 64 << 10;

/// Description of [`BodyBudget`].
pub(crate) static BODY_MEMORY: SharedTable = SharedTable {
    name: "request bodies in memory",
    holders: &["puna_server::http::body_budget::BodyBudget"],
    limits: &[TableLimit::Bytes(BODY_BUDGET_BYTES)],
    shares: &[
        TableLimit::Rule("as much as then remains free: at most half"),
        TableLimit::BytesOf("one request", SINGLE_REQUEST_BYTES),
    ],
    when_full: "503 with `Retry-After` for this client",
    test: "a_client_with_many_bodies_leaves_half_of_the_budget_to_another",
};

/// The remaining budget. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct BodyBudget {
    usage: Arc<Mutex<BudgetUsage>>,
    workers: BodyWorkers,
}

/// Division of the budget.
#[derive(Debug)]
struct BudgetUsage {
    /// Bytes that no client holds.
    free: usize,
    /// Bytes that each client holds. Clients that hold none have no entry.
    clients: HashMap<u64, usize>,
}

impl Default for BodyBudget {
    fn default() -> Self {
        Self::new(BODY_BUDGET_BYTES)
    }
}

impl BodyBudget {
    /// Creates a budget of this many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let usage = BudgetUsage { free: bytes, clients: HashMap::new() };
        Self { usage: Arc::new(Mutex::new(usage)), workers: BodyWorkers::default() }
    }

    /// Creates the reservation of a new request, initially empty. `client` is the
    /// [client number](super::Client).
    pub(crate) fn reservation(&self, client: u64) -> BodyReservation {
        BodyReservation { budget: self.clone(), client, free: FREE_BYTES_PER_REQUEST, reserved: 0 }
    }

    /// The threads that process large bodies.
    pub(crate) fn workers(&self) -> BodyWorkers {
        self.workers.clone()
    }

    /// Bytes that no client holds.
    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> usize {
        lock(&self.usage).free
    }
}

impl BudgetUsage {
    /// Checks whether a request that holds `reserved` bytes may hold `bytes` more.
    fn check(&self, client: u64, reserved: usize, bytes: usize) -> Result<(), ApiError> {
        if bytes == 0 {
            return Ok(());
        }
        let left = self.free.checked_sub(bytes).ok_or_else(budget_exhausted)?;
        let held = self.clients.get(&client).copied().unwrap_or(0);
        let factor = if held > reserved { 1 } else { SINGLE_REQUEST_FACTOR };
        match held + bytes <= left.saturating_mul(factor) {
            true => Ok(()),
            false => Err(share_exhausted()),
        }
    }

    fn reserve(&mut self, client: u64, bytes: usize) {
        if bytes > 0 {
            self.free -= bytes;
            *self.clients.entry(client).or_default() += bytes;
        }
    }

    fn release(&mut self, client: u64, bytes: usize) {
        self.free += bytes;
        if let Some(held) = self.clients.get_mut(&client) {
            *held -= bytes;
            if *held == 0 {
                self.clients.remove(&client);
            }
        }
    }
}

tokio::task_local! {
    static CURRENT: RequestReservation;
}

/// Reservation of the current request, once its body is decoded.
#[derive(Debug, Default)]
pub(crate) struct RequestReservation(Mutex<Option<BodyReservation>>);

impl RequestReservation {
    /// Awaits a response, then releases the reservation unless it was taken.
    pub(crate) async fn scope<T>(answer: impl Future<Output = T>) -> T {
        CURRENT.scope(Self::default(), answer).await
    }

    /// Like [`RequestReservation::scope`], for a future that continues after its request is no
    /// longer awaited. It takes over the request's reservation.
    pub(crate) fn scope_continued<T>(answer: impl Future<Output = T>) -> impl Future<Output = T> {
        CURRENT.scope(Self(Mutex::new(take_reservation())), answer)
    }
}

/// Sets the reservation of the current request to that of its decoded body.
pub(crate) fn hold_reservation(reservation: BodyReservation) {
    let _ = CURRENT.try_with(|held| *lock(&held.0) = Some(reservation));
}

/// Takes the reservation of the current request, to hold it until a runner accepts the task.
pub(crate) fn take_reservation() -> Option<BodyReservation> {
    CURRENT.try_with(|held| lock(&held.0).take()).ok().flatten()
}

/// Memory reserved by a request until the reservation is dropped.
#[derive(Debug)]
pub(crate) struct BodyReservation {
    budget: BodyBudget,
    client: u64,
    free: usize,
    reserved: usize,
}

impl BodyReservation {
    /// Reserves more bytes, or fails at once. Waiting could deadlock requests that each hold a
    /// part.
    ///
    /// # Errors
    /// Status 503 if the budget or the client's share of it is full.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), ApiError> {
        let free = bytes.min(self.free);
        let bytes = bytes - free;
        let mut usage = lock(&self.budget.usage);
        usage.check(self.client, self.reserved, bytes)?;
        usage.reserve(self.client, bytes);
        self.free -= free;
        self.reserved += bytes;
        Ok(())
    }

    /// The threads that process large bodies, for the client of the request.
    pub(crate) fn workers(&self) -> ClientWorkers {
        self.budget.workers.for_client(self.client)
    }

    /// Releases part of the reservation.
    pub(crate) fn release(&mut self, bytes: usize) {
        let bytes = bytes.min(self.reserved);
        self.reserved -= bytes;
        lock(&self.budget.usage).release(self.client, bytes);
    }

    /// Checks whether this many more bytes are available now.
    ///
    /// # Errors
    /// Status 503 if the budget or the client's share of it is too small.
    pub(crate) fn check_available(&self, bytes: u64) -> Result<(), ApiError> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).saturating_sub(self.free);
        lock(&self.budget.usage).check(self.client, self.reserved, bytes)
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        lock(&self.budget.usage).release(self.client, self.reserved);
    }
}

fn budget_exhausted() -> ApiError {
    ApiError::new(503, "the server is busy with large requests: retry later")
}

fn share_exhausted() -> ApiError {
    let message = "the server is busy with large requests of this client: retry later";
    ApiError::new(503, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB_BYTES: usize = 1 << 20;

    /// Reserves `bytes` beyond the free ones for a new request.
    fn hold(budget: &BodyBudget, client: u64, bytes: usize) -> Result<BodyReservation, ApiError> {
        let mut reservation = budget.reservation(client);
        reservation.reserve(FREE_BYTES_PER_REQUEST + bytes).map(|()| reservation)
    }

    #[test]
    fn a_client_with_many_bodies_leaves_half_of_the_budget_to_another() {
        let budget = BodyBudget::default();
        let many: Vec<_> = (0..1000).map_while(|_| hold(&budget, 1, MIB_BYTES).ok()).collect();
        assert_eq!(many.len(), 320);
        let refused = hold(&budget, 1, MIB_BYTES).unwrap_err();
        assert_eq!((refused.status, refused.message), (503, share_exhausted().message));
        // Small requests of that client succeed, and another client gets what one beside it may.
        assert!(hold(&budget, 1, 0).is_ok());
        assert!(hold(&budget, 2, 250 * MIB_BYTES).is_ok());
        let others: Vec<_> = (0..1000).map_while(|_| hold(&budget, 2, MIB_BYTES).ok()).collect();
        assert_eq!(others.len(), 160);
        let third: Vec<_> = (0..1000).map_while(|_| hold(&budget, 3, MIB_BYTES).ok()).collect();
        assert_eq!(third.len(), 80);
        drop((many, others, third));
        assert!(lock(&budget.usage).clients.is_empty());
        assert_eq!(budget.free_bytes(), BODY_BUDGET_BYTES);
    }

    #[test]
    fn the_largest_body_of_a_client_leaves_room_for_large_ones_of_others() {
        let budget = BodyBudget::default();
        let mut largest = hold(&budget, 1, SINGLE_REQUEST_BYTES).unwrap();
        assert_eq!(largest.reserve(1).unwrap_err().message, share_exhausted().message);
        assert!(hold(&budget, 1, MIB_BYTES).is_err(), "a second one of this client");
        let other = hold(&budget, 2, 100 * MIB_BYTES).unwrap();
        assert!(other.check_available(MIB_BYTES as u64).is_ok());
        assert_eq!(
            hold(&budget, 3, 30 * MIB_BYTES).unwrap_err().message,
            budget_exhausted().message
        );
        assert!(hold(&budget, 3, 20 * MIB_BYTES).is_ok());
        largest.release(SINGLE_REQUEST_BYTES);
        assert!(hold(&budget, 1, 400 * MIB_BYTES).is_ok());
    }

    #[test]
    fn a_refused_reservation_changes_nothing() {
        let budget = BodyBudget::new(MIB_BYTES);
        let mut reservation = budget.reservation(1);
        assert!(reservation.reserve(2 * MIB_BYTES).is_err());
        assert!(reservation.check_available(u64::MAX).is_err());
        assert!(reservation.reserve(FREE_BYTES_PER_REQUEST).is_ok());
        assert_eq!(budget.free_bytes(), MIB_BYTES);
        drop(reservation);
        assert_eq!(budget.free_bytes(), MIB_BYTES);
    }
}
