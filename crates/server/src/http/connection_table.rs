//! Table of open connections: no client can occupy all of them.
//!
//! Each connection belongs to a client: its address, then its API key once a request has one. A
//! client has at most half of the table. If a client or the table is full, the longest idle
//! connection of the client with the most connections is closed. Without an idle one, the new
//! connection is refused. A connection is idle while it has no request in progress.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use puna_mirror::{SharedTable, TableLimit};
use tokio::sync::Notify;

use super::client::Client;
use crate::util::lock::lock;

/// Maximum number of connections, however many files the process may open.
const MAX_CONNECTIONS: usize = 16 << 10;

/// Least and greatest number of file descriptors that connections leave to models, files and other
/// servers.
const RESERVED_FILES: (usize, usize) = (48, 4096);

/// Description of [`ConnectionTable`].
pub(crate) static CONNECTIONS: SharedTable = SharedTable {
    name: "connections",
    holders: &["puna_server::http::connection_table::TableInner"],
    limits: &[
        TableLimit::Rule(
            "files that the process may open, less a quarter (at least 48, at most 4,096)",
        ),
        TableLimit::Entries(MAX_CONNECTIONS),
    ],
    shares: &[TableLimit::Rule("half")],
    when_full: "the longest idle connection of the client with the most is closed; then 503 with `Retry-After`",
    test: "a_full_table_closes_an_idle_connection_of_the_client_with_most",
};

/// Open connections. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ConnectionTable(Arc<TableInner>);

struct TableInner {
    capacity: usize,
    state: Mutex<TableState>,
}

#[derive(Default)]
struct TableState {
    open: HashMap<u64, OpenConnection>,
    /// Number of connections of each client.
    counts: HashMap<ConnectionClient, usize>,
    next_id: u64,
}

/// Client of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ConnectionClient {
    Address(u64),
    Key(u64),
}

struct OpenConnection {
    owner: ConnectionClient,
    /// Requests in progress.
    active_requests: usize,
    idle_since: Instant,
    in_handshake: bool,
    close: Arc<Notify>,
}

/// The table or the client's share of it is full, and no connection is idle.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConnectionsExhausted;

impl ConnectionTable {
    /// A table for a process that may open `files` files.
    pub(crate) fn for_open_files(files: u64) -> Self {
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        let reserved = (files / 4).clamp(RESERVED_FILES.0, RESERVED_FILES.1);
        Self::with_capacity(files.saturating_sub(reserved).clamp(2, MAX_CONNECTIONS))
    }

    fn with_capacity(capacity: usize) -> Self {
        Self(Arc::new(TableInner { capacity, state: Mutex::default() }))
    }

    /// Maximum number of connections of one client.
    fn share(&self) -> usize {
        self.0.capacity.div_ceil(2)
    }

    /// Whether at least half of the table is in use.
    pub(crate) fn is_under_pressure(&self) -> bool {
        lock(&self.0.state).open.len() >= self.0.capacity / 2
    }

    /// Adds a connection, and closes an idle one if there is no place.
    ///
    /// # Errors
    /// No connection that may be closed is idle.
    pub(crate) fn admit(&self, address: IpAddr) -> Result<ConnectionSlot, ConnectionsExhausted> {
        let owner = ConnectionClient::Address(Client::number_at(address));
        let mut state = lock(&self.0.state);
        self.enforce_client_limit(&mut state, owner)?;
        if state.open.len() >= self.0.capacity && !state.close_idle(None) {
            return Err(ConnectionsExhausted);
        }
        let id = state.next_id;
        state.next_id += 1;
        let close = Arc::new(Notify::new());
        let connection = OpenConnection {
            owner,
            active_requests: 0,
            idle_since: Instant::now(),
            in_handshake: false,
            close: close.clone(),
        };
        state.open.insert(id, connection);
        *state.counts.entry(owner).or_default() += 1;
        Ok(ConnectionSlot(Arc::new(SlotInner { id, table: self.clone(), close })))
    }

    /// Closes an idle connection of a client that has its maximum of connections.
    fn enforce_client_limit(
        &self,
        state: &mut TableState,
        owner: ConnectionClient,
    ) -> Result<(), ConnectionsExhausted> {
        let count = state.counts.get(&owner).copied().unwrap_or(0);
        if count >= self.share() && !state.close_idle(Some(owner)) {
            return Err(ConnectionsExhausted);
        }
        Ok(())
    }

    /// Closes the longest idle connection. Returns whether there was one.
    pub(crate) fn close_oldest_idle(&self) -> bool {
        lock(&self.0.state).close_idle(None)
    }

    /// Closes the connection that has been in its TLS handshake for longest, if that is at least
    /// `min`.
    pub(crate) fn close_oldest_handshake(&self, min: Duration) {
        lock(&self.0.state).close_oldest_handshake(None, min);
    }
}

impl TableState {
    /// Closes the longest idle connection of a client, or of the client with the most connections
    /// that has one. Returns whether there was one.
    fn close_idle(&mut self, owner: Option<ConnectionClient>) -> bool {
        let idle = self.open.iter().filter(|(_, open)| {
            open.active_requests == 0 && owner.is_none_or(|owner| open.owner == owner)
        });
        let count = |open: &OpenConnection| self.counts.get(&open.owner).copied().unwrap_or(0);
        let chosen = idle.min_by_key(|(_, open)| (usize::MAX - count(open), open.idle_since));
        let id = chosen.map(|(id, _)| *id);
        id.inspect(|id| self.close(*id)).is_some()
    }

    /// Closes the longest handshake of a client, or of all, if it has lasted `min`.
    fn close_oldest_handshake(&mut self, owner: Option<ConnectionClient>, min: Duration) {
        let handshakes = self.handshakes(owner);
        let oldest = handshakes.min_by_key(|(_, open)| open.idle_since);
        let oldest = oldest.filter(|(_, open)| open.idle_since.elapsed() >= min);
        if let Some(id) = oldest.map(|(id, _)| *id) {
            self.close(id);
        }
    }

    /// Connections of a client, or of all, that are in their TLS handshake.
    fn handshakes(
        &self,
        owner: Option<ConnectionClient>,
    ) -> impl Iterator<Item = (&u64, &OpenConnection)> {
        let is_of = move |open: &OpenConnection| owner.is_none_or(|owner| open.owner == owner);
        self.open.iter().filter(move |(_, open)| open.in_handshake && is_of(open))
    }

    fn close(&mut self, id: u64) {
        if let Some(open) = self.remove(id) {
            open.close.notify_one();
        }
    }

    fn remove(&mut self, id: u64) -> Option<OpenConnection> {
        let open = self.open.remove(&id)?;
        self.release(open.owner);
        Some(open)
    }

    fn release(&mut self, owner: ConnectionClient) {
        if let Some(count) = self.counts.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&owner);
            }
        }
    }
}

/// Place of a connection in the table. The last clone frees it.
#[derive(Clone)]
pub(crate) struct ConnectionSlot(Arc<SlotInner>);

struct SlotInner {
    id: u64,
    table: ConnectionTable,
    close: Arc<Notify>,
}

impl Drop for SlotInner {
    fn drop(&mut self) {
        lock(&self.table.0.state).remove(self.id);
    }
}

impl ConnectionSlot {
    /// Waits until the table closes the connection.
    pub(crate) async fn closed(&self) {
        self.0.close.notified().await;
    }

    /// Begins the TLS handshake of the connection, if its client has fewer than `share` in
    /// progress. Otherwise closes the client's longest handshake if it has lasted `min`, and
    /// returns false.
    pub(crate) fn begin_handshake(&self, share: usize, min: Duration) -> bool {
        let mut state = lock(&self.0.table.0.state);
        let Some(owner) = state.open.get(&self.0.id).map(|open| open.owner) else { return false };
        if state.handshakes(Some(owner)).count() >= share {
            state.close_oldest_handshake(Some(owner), min);
            return false;
        }
        if let Some(open) = state.open.get_mut(&self.0.id) {
            (open.in_handshake, open.idle_since) = (true, Instant::now());
        }
        true
    }

    /// Marks the TLS handshake of the connection as complete.
    pub(crate) fn finish_handshake(&self) {
        if let Some(open) = lock(&self.0.table.0.state).open.get_mut(&self.0.id) {
            open.in_handshake = false;
        }
    }

    /// Counts a request in progress, until the result is dropped. `None` if the table has closed
    /// the connection.
    pub(crate) fn begin_request(&self) -> Option<ActiveConnection> {
        let mut state = lock(&self.0.table.0.state);
        state.open.get_mut(&self.0.id)?.active_requests += 1;
        Some(ActiveConnection(self.clone()))
    }

    /// Counts the connection for an API key from now on.
    ///
    /// # Errors
    /// The key's share is full, and none of its connections is idle.
    pub(crate) fn assign_key(&self, key: u64) -> Result<(), ConnectionsExhausted> {
        let owner = ConnectionClient::Key(key);
        let mut state = lock(&self.0.table.0.state);
        match state.open.get(&self.0.id).map(|open| open.owner) {
            Some(before) if before != owner => {
                self.0.table.enforce_client_limit(&mut state, owner)?;
                state.release(before);
                *state.counts.entry(owner).or_default() += 1;
            }
            _ => return Ok(()),
        }
        if let Some(open) = state.open.get_mut(&self.0.id) {
            open.owner = owner;
        }
        Ok(())
    }
}

/// Request in progress on a connection.
pub(crate) struct ActiveConnection(ConnectionSlot);

impl Drop for ActiveConnection {
    fn drop(&mut self) {
        let slot = &self.0.0;
        if let Some(open) = lock(&slot.table.0.state).open.get_mut(&slot.id) {
            open.active_requests -= 1;
            open.idle_since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn is_closed(slot: &ConnectionSlot) -> bool {
        slot.closed().now_or_never().is_some()
    }

    #[test]
    fn connections_leave_files_to_others() {
        let capacity = |files| ConnectionTable::for_open_files(files).0.capacity;
        assert_eq!([128, 1024, 4096].map(capacity), [80, 768, 3072]);
        assert_eq!([0, u64::MAX].map(capacity), [2, MAX_CONNECTIONS]);
    }

    #[test]
    fn a_client_with_its_share_loses_its_oldest_idle_connection() {
        let table = ConnectionTable::with_capacity(8);
        let other = table.admit(address(2)).unwrap();
        let first: Vec<_> = (0..4).map(|_| table.admit(address(1)).unwrap()).collect();
        let busy = first[0].begin_request().unwrap();
        let _fifth = table.admit(address(1)).unwrap();
        let closed: Vec<bool> = first.iter().map(is_closed).collect();
        assert_eq!(closed, [false, true, false, false]);
        assert!(!is_closed(&other) && first[1].begin_request().is_none());
        drop(busy);
        // The connection that was busy is idle for the shortest time now.
        let _sixth = table.admit(address(1)).unwrap();
        assert!(is_closed(&first[2]) && !is_closed(&first[0]));
    }

    #[test]
    fn a_full_table_closes_an_idle_connection_of_the_client_with_most() {
        let table = ConnectionTable::with_capacity(6);
        let old = table.admit(address(9)).unwrap();
        let many: Vec<_> = (0..3).map(|_| table.admit(address(1)).unwrap()).collect();
        let _two: Vec<_> = (0..2).map(|_| table.admit(address(2)).unwrap()).collect();
        assert!(table.is_under_pressure());
        let new = table.admit(address(3)).unwrap();
        assert!(is_closed(&many[0]) && !is_closed(&many[1]) && !is_closed(&old));
        assert!(!is_closed(&new));
    }

    #[test]
    fn busy_connections_are_not_closed_and_the_next_one_is_refused() {
        let table = ConnectionTable::with_capacity(4);
        let slots: Vec<_> = [1, 1, 2, 2].map(|last| table.admit(address(last)).unwrap()).into();
        let active: Vec<_> = slots.iter().map(|slot| slot.begin_request().unwrap()).collect();
        assert_eq!(table.admit(address(1)).err(), Some(ConnectionsExhausted));
        assert_eq!(table.admit(address(3)).err(), Some(ConnectionsExhausted));
        assert!(!table.close_oldest_idle() && !slots.iter().any(is_closed));
        drop((active, slots));
        assert!(table.admit(address(1)).is_ok() && !table.is_under_pressure());
        assert!(lock(&table.0.state).counts.is_empty());
    }

    #[test]
    fn connections_with_a_key_count_for_the_key() {
        let table = ConnectionTable::with_capacity(4);
        let first: Vec<_> = [1, 2].map(|last| table.admit(address(last)).unwrap()).into();
        first.iter().for_each(|slot| slot.assign_key(7).unwrap());
        let third = table.admit(address(3)).unwrap();
        let active: Vec<_> =
            first.iter().chain([&third]).map(|slot| slot.begin_request().unwrap()).collect();
        assert_eq!(third.assign_key(7), Err(ConnectionsExhausted));
        drop(active);
        assert_eq!(third.assign_key(7), Ok(()));
        assert!(is_closed(&first[0]) && !is_closed(&first[1]));
        assert_eq!(lock(&table.0.state).counts, HashMap::from([(ConnectionClient::Key(7), 2)]));
    }

    #[test]
    fn a_stalled_handshake_is_closed() {
        let table = ConnectionTable::with_capacity(8);
        let slots: Vec<_> = (0..3).map(|_| table.admit(address(1)).unwrap()).collect();
        assert!(slots[1..].iter().all(|slot| slot.begin_handshake(8, Duration::ZERO)));
        table.close_oldest_handshake(Duration::from_secs(60));
        assert!(!slots.iter().any(is_closed));
        table.close_oldest_handshake(Duration::ZERO);
        assert_eq!(slots.iter().map(is_closed).collect::<Vec<_>>(), [false, true, false]);
        slots[2].finish_handshake();
        table.close_oldest_handshake(Duration::ZERO);
        assert!(!is_closed(&slots[2]));
    }

    #[test]
    fn handshakes_of_one_client_leave_half_of_the_slots_to_another() {
        let table = ConnectionTable::with_capacity(16);
        let first: Vec<_> = (0..5).map(|_| table.admit(address(1)).unwrap()).collect();
        let begin = |slot: &ConnectionSlot, min| slot.begin_handshake(4, min);
        let long = Duration::from_secs(60);
        assert!(first[..4].iter().all(|slot| begin(slot, long)));
        assert!(!begin(&first[4], long) && !first.iter().any(is_closed));
        let other = table.admit(address(2)).unwrap();
        assert!(begin(&other, long));
        // A stalled handshake gives way to the next one of the same client only.
        assert!(!begin(&first[4], Duration::ZERO) && is_closed(&first[0]));
        assert!(begin(&first[4], long) && !is_closed(&other));
        first[1].finish_handshake();
        let sixth = table.admit(address(1)).unwrap();
        assert!(begin(&sixth, long) && !begin(&first[0], long));
    }
}
