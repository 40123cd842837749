//! Responses for `previous_response_id`: the newest ones, in memory.
//!
//! When the store is full, the client with the largest share loses its oldest response. So a client
//! keeps its responses as long as it uses no more than an equal share, whatever others store. A
//! client may be several owners: without keys, all addresses of an IPv6 network are one client.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use puna_api::ollama::Message;
use puna_mirror::{SharedTable, TableLimit};
use serde_json::Value;

use crate::http::Owner;
use crate::util::lock::lock;

/// Maximum number of stored responses.
const MAX_COUNT: usize = 1024;

/// Maximum total bytes of stored responses.
const MAX_BYTES: usize = if cfg!(test) { 64 << 10 } else { 64 << 20 };

/// A response with its conversation, including the response itself.
#[derive(Debug)]
pub(crate) struct StoredResponse {
    /// Owner of the request; others have no access.
    pub(crate) owner: Owner,
    /// Number of the client whose share it uses.
    pub(crate) client: u64,
    pub(crate) response: Value,
    pub(crate) messages: Vec<Message>,
    /// Byte lengths of the streamed pieces of each item.
    pub(crate) pieces: Vec<Vec<usize>>,
    /// Sequence numbers of stream events that were only heartbeats.
    pub(crate) heartbeats: Vec<u64>,
}

impl StoredResponse {
    /// Identifiers of its output items, in order.
    fn item_ids(&self) -> impl Iterator<Item = Option<&str>> {
        let items = self.response["output"].as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().map(|item| item["id"].as_str())
    }

    fn bytes(&self) -> usize {
        let call = |call: &puna_api::ollama::ToolCall| {
            call.id.len() + call.function.name.len() + size(&call.function.arguments.clone().into())
        };
        let message = |m: &Message| {
            let images: usize = m.images.iter().map(|image| image.bytes().len()).sum();
            let texts =
                m.content.len() + m.thinking.len() + m.tool_name.len() + m.tool_call_id.len();
            size_of::<Message>() + texts + images + m.tool_calls.iter().map(call).sum::<usize>()
        };
        // The index entry of an item takes memory too.
        let items = self.item_ids().flatten().map(|id| 96 + id.len()).sum::<usize>();
        let piece = |of_item: &Vec<usize>| size_of_val(of_item) + size_of_val(of_item.as_slice());
        let pieces = self.pieces.iter().map(piece).sum::<usize>();
        items
            + pieces
            + size_of_val(self.heartbeats.as_slice())
            + size(&self.response)
            + self.messages.iter().map(message).sum::<usize>()
    }
}

/// Approximate bytes of a JSON value in memory.
fn size(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::String(text) => text.len(),
            Value::Array(list) => list.iter().map(size).sum(),
            // Overhead of a key and its hash table entry.
            Value::Object(map) => map.iter().map(|(key, value)| 40 + key.len() + size(value)).sum(),
            _ => 0,
        }
}

/// Description of [`ResponseStore`].
pub(crate) static STORED_RESPONSES: SharedTable = SharedTable {
    name: "stored responses",
    holders: &["puna_server::api::openai::responses::store::ResponseStore"],
    limits: &[TableLimit::Entries(MAX_COUNT), TableLimit::Bytes(MAX_BYTES)],
    shares: &[TableLimit::Rule("equal shares")],
    when_full: "the client with the most loses its oldest",
    test: "a_client_who_fills_the_store_evicts_nothing_of_another",
};

/// Stored responses by identifier.
#[derive(Default)]
pub(crate) struct ResponseStore(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    responses: HashMap<String, (Arc<StoredResponse>, usize)>,
    /// Index of items: identifier of the response and position in its output.
    items: HashMap<String, (String, usize)>,
    /// Shares by client number.
    shares: HashMap<u64, ClientShare>,
    bytes: usize,
}

/// Responses of one client.
#[derive(Default)]
struct ClientShare {
    /// Identifiers, oldest first.
    order: VecDeque<String>,
    bytes: usize,
}

impl ClientShare {
    /// Part of the store in use, by count or by size, in 1/2^20. `count` and `bytes` are added.
    fn usage(&self, count: usize, bytes: usize) -> usize {
        let part = |used: usize, total: usize| (used << 20) / total;
        part(self.order.len() + count, MAX_COUNT).max(part(self.bytes + bytes, MAX_BYTES))
    }
}

impl ResponseStore {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }

    pub(crate) fn get(&self, id: &str, owner: Owner) -> Option<Arc<StoredResponse>> {
        let stored = self.lock().responses.get(id).map(|(stored, _)| stored.clone());
        stored.filter(|stored| stored.owner == owner)
    }

    /// Finds an output item in any stored response of an owner.
    pub(crate) fn item(&self, id: &str, owner: Owner) -> Option<Value> {
        let inner = self.lock();
        let (response, at) = inner.items.get(id)?;
        let (stored, _) =
            inner.responses.get(response).filter(|(stored, _)| stored.owner == owner)?;
        let stored = stored.clone();
        let at = *at;
        drop(inner);
        stored.response["output"].get(at).cloned()
    }

    /// Stores a response and evicts others to make room. Returns `false` if it is too
    /// large on its own.
    pub(crate) fn put(&self, id: &str, stored: StoredResponse) -> bool {
        let bytes = stored.bytes();
        if bytes > MAX_BYTES {
            tracing::debug!(id, bytes, "response too large to store");
            return false;
        }
        let mut inner = self.lock();
        while inner.responses.len() >= MAX_COUNT || inner.bytes + bytes > MAX_BYTES {
            let Some(oldest) = inner.next_to_evict(stored.client, bytes) else { break };
            inner.remove(&oldest);
        }
        inner.bytes += bytes;
        let share = inner.shares.entry(stored.client).or_default();
        share.bytes += bytes;
        share.order.push_back(id.to_owned());
        for (at, item) in stored.item_ids().enumerate() {
            if let Some(item) = item {
                inner.items.insert(item.to_owned(), (id.to_owned(), at));
            }
        }
        inner.responses.insert(id.to_owned(), (Arc::new(stored), bytes));
        true
    }

    /// Deletes a response. Returns `false` if the owner has none with this identifier.
    pub(crate) fn delete(&self, id: &str, owner: Owner) -> bool {
        let mut inner = self.lock();
        if inner.responses.get(id).is_none_or(|(stored, _)| stored.owner != owner) {
            return false;
        }
        inner.remove(id)
    }
}

impl Inner {
    /// Oldest response of the client with the largest share, where `client` is about to store
    /// `bytes` more. Of equal shares it is that of `client`.
    fn next_to_evict(&self, client: u64, bytes: usize) -> Option<String> {
        let share = |(other, share): &(&u64, &ClientShare)| match **other == client {
            true => (share.usage(1, bytes), true),
            false => (share.usage(0, 0), false),
        };
        let stored = self.shares.iter().filter(|(_, share)| !share.order.is_empty());
        let (_, largest) = stored.max_by_key(share)?;
        largest.order.front().cloned()
    }

    fn remove(&mut self, id: &str) -> bool {
        let Some((stored, bytes)) = self.responses.remove(id) else { return false };
        for item in stored.item_ids().flatten() {
            self.items.remove(item);
        }
        self.bytes -= bytes;
        if let Some(share) = self.shares.get_mut(&stored.client) {
            share.bytes -= bytes;
            share.order.retain(|other| other != id);
            if share.order.is_empty() {
                self.shares.remove(&stored.client);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Owner = Owner(0);

    fn stored(length: usize) -> StoredResponse {
        StoredResponse {
            owner: NOBODY,
            client: 0,
            response: Value::Null,
            messages: vec![Message::text("user", "x".repeat(length))],
            pieces: Vec::new(),
            heartbeats: Vec::new(),
        }
    }

    #[test]
    fn responses_are_visible_to_their_owner_only() {
        let responses = ResponseStore::default();
        let (ann, bob) = (Owner(1), Owner(2));
        responses.put("a", StoredResponse { owner: ann, ..stored(1) });
        for stranger in [bob, NOBODY] {
            assert!(responses.get("a", stranger).is_none() && !responses.delete("a", stranger));
        }
        assert!(responses.get("a", ann).is_some() && responses.delete("a", ann));
    }

    #[test]
    fn items_are_found_by_their_owner_while_their_response_is_stored() {
        let responses = ResponseStore::default();
        let ann = Owner(1);
        let item = |i: usize| serde_json::json!({"id": format!("item{i}"), "n": i});
        for i in 0..1100 {
            let response =
                serde_json::json!({"output": [{"type": "odd"}, item(i), item(i + 10_000)]});
            assert!(
                responses
                    .put(&format!("r{i}"), StoredResponse { owner: ann, response, ..stored(0) })
            );
        }
        let inner = responses.lock();
        let stored = inner.responses.len();
        assert_eq!(inner.items.len(), 2 * stored);
        drop(inner);
        assert_eq!(responses.item("item11099", ann), Some(item(11_099)));
        assert_eq!(responses.item("item1099", NOBODY), None);
        assert_eq!(responses.item("item0", ann), None, "it was evicted");
        assert!(responses.delete("r1099", ann));
        assert_eq!(responses.item("item1099", ann), None);
        assert_eq!(responses.lock().items.len(), 2 * (stored - 1));
    }

    #[test]
    fn the_oldest_responses_are_evicted_by_count_and_by_size() {
        let responses = ResponseStore::default();
        (0..20).for_each(|i| assert!(responses.put(&format!("r{i}"), stored(8 << 10))));
        let left: Vec<_> =
            (0..20).filter(|i| responses.get(&format!("r{i}"), NOBODY).is_some()).collect();
        assert_eq!(
            left,
            (13..20).collect::<Vec<_>>(),
            "seven of eight KiB and a little fit into 64"
        );
        assert!(!responses.put("large", stored(MAX_BYTES)));
        assert!(responses.get("large", NOBODY).is_none() && responses.get("r19", NOBODY).is_some());
        assert!(responses.delete("r19", NOBODY) && !responses.delete("r19", NOBODY));
        (0..2000).for_each(|i| assert!(responses.put(&format!("s{i}"), stored(0))));
        let inner = responses.lock();
        assert!(inner.responses.len() <= MAX_COUNT && inner.bytes <= MAX_BYTES);
        assert_eq!(inner.responses.len(), inner.shares[&0].order.len());
        assert_eq!(inner.bytes, inner.shares[&0].bytes);
    }

    #[test]
    fn a_client_who_fills_the_store_evicts_nothing_of_another() {
        let responses = ResponseStore::default();
        // Bob has as many addresses as he likes in his network.
        let (ann, bob, addresses) = (Owner(1), Owner(2), std::cell::Cell::new(100));
        let put = |id: &str, who, length| {
            addresses.set(addresses.get() + 1);
            let is_last = id == format!("b{}", 2 * MAX_COUNT - 1);
            let (owner, client) = match who == bob {
                true if is_last => (bob, 2),
                true => (Owner(addresses.get()), 2),
                false => (who, 1),
            };
            assert!(responses.put(id, StoredResponse { owner, client, ..stored(length) }));
        };
        for length in [0, 8 << 10] {
            put("ann's", ann, 1 << 10);
            (0..2 * MAX_COUNT).for_each(|i| put(&format!("b{i}"), bob, length));
            assert!(responses.get("ann's", ann).is_some(), "{length} bytes");
            // A full store has room for the first responses of another owner.
            (0..3).for_each(|i| put(&format!("a{i}"), ann, length));
            assert!((0..3).all(|i| responses.get(&format!("a{i}"), ann).is_some()));
            assert!(responses.get(&format!("b{}", 2 * MAX_COUNT - 1), bob).is_some());
            (0..3).for_each(|i| assert!(responses.delete(&format!("a{i}"), ann)));
            assert!(responses.delete("ann's", ann));
        }
        assert!(!responses.lock().shares.contains_key(&1), "clients without responses are dropped");
    }
}
