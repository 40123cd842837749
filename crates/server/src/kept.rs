//! Responses that later requests can go on from: in memory, the newest of them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use puna_api::native::Message;
use serde_json::Value;

use crate::http::Owner;
use crate::lock::lock;

/// Responses that are kept at most.
const MAX_COUNT: usize = 1024;

/// Bytes that they may take together.
const MAX_BYTES: usize = if cfg!(test) { 64 << 10 } else { 64 << 20 };

/// A response, and the conversation up to and with it.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Whose it is; nobody else gets it.
    pub(crate) owner: Owner,
    pub(crate) response: Value,
    pub(crate) messages: Vec<Message>,
    /// The bytes of the pieces in which each of its items came.
    pub(crate) pieces: Vec<Vec<usize>>,
    /// The numbers of its stream's events that were only signs of life.
    pub(crate) heartbeats: Vec<u64>,
}

impl Kept {
    /// The ids of its items, in their order.
    fn item_ids(&self) -> impl Iterator<Item = Option<&str>> {
        let items = self.response["output"].as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().map(|item| item["id"].as_str())
    }

    fn bytes(&self) -> usize {
        let call = |call: &puna_api::native::ToolCall| {
            call.id.len() + call.function.name.len() + size(&call.function.arguments.clone().into())
        };
        let message = |m: &Message| {
            let images: usize = m.images.iter().map(|image| image.bytes().len()).sum();
            let texts =
                m.content.len() + m.thinking.len() + m.tool_name.len() + m.tool_call_id.len();
            size_of::<Message>() + texts + images + m.tool_calls.iter().map(call).sum::<usize>()
        };
        // Each item is found by its id, too.
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

/// Bytes that a JSON value takes in memory, roughly.
fn size(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::String(text) => text.len(),
            Value::Array(list) => list.iter().map(size).sum(),
            // A key, its place and its hash.
            Value::Object(map) => map.iter().map(|(key, value)| 40 + key.len() + size(value)).sum(),
            _ => 0,
        }
}

/// The kept responses by id.
#[derive(Default)]
pub(crate) struct Responses(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    known: HashMap<String, (Arc<Kept>, usize)>,
    /// Where items are: in which response, and at which place.
    items: HashMap<String, (String, usize)>,
    /// The oldest first; some may be gone already.
    order: VecDeque<String>,
    bytes: usize,
}

impl Responses {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }

    pub(crate) fn get(&self, id: &str, owner: Owner) -> Option<Arc<Kept>> {
        let kept = self.lock().known.get(id).map(|(kept, _)| kept.clone());
        kept.filter(|kept| kept.owner == owner)
    }

    /// An item of any of an owner's kept responses.
    pub(crate) fn item(&self, id: &str, owner: Owner) -> Option<Value> {
        let inner = self.lock();
        let (response, at) = inner.items.get(id)?;
        let (kept, _) = inner.known.get(response).filter(|(kept, _)| kept.owner == owner)?;
        let kept = kept.clone();
        let at = *at;
        drop(inner);
        kept.response["output"].get(at).cloned()
    }

    /// Keeps a response; the oldest ones make room. One that is too large by itself is not kept: `false`.
    pub(crate) fn put(&self, id: &str, kept: Kept) -> bool {
        let bytes = kept.bytes();
        if bytes > MAX_BYTES {
            tracing::debug!(id, bytes, "a response is too large to be kept");
            return false;
        }
        let mut inner = self.lock();
        while inner.known.len() >= MAX_COUNT || inner.bytes + bytes > MAX_BYTES {
            let Some(oldest) = inner.order.pop_front() else { break };
            inner.forget(&oldest);
        }
        inner.bytes += bytes;
        inner.order.push_back(id.to_owned());
        for (at, item) in kept.item_ids().enumerate() {
            if let Some(item) = item {
                inner.items.insert(item.to_owned(), (id.to_owned(), at));
            }
        }
        inner.known.insert(id.to_owned(), (Arc::new(kept), bytes));
        true
    }

    /// Forgets a response; `false` if there was none of this owner's.
    pub(crate) fn delete(&self, id: &str, owner: Owner) -> bool {
        let mut inner = self.lock();
        if inner.known.get(id).is_none_or(|(kept, _)| kept.owner != owner) {
            return false;
        }
        inner.order.retain(|known| known != id);
        inner.forget(id)
    }
}

impl Inner {
    fn forget(&mut self, id: &str) -> bool {
        let Some((kept, bytes)) = self.known.remove(id) else { return false };
        for item in kept.item_ids().flatten() {
            self.items.remove(item);
        }
        self.bytes -= bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Owner = Owner(None);

    fn kept(length: usize) -> Kept {
        Kept {
            owner: Owner(None),
            response: Value::Null,
            messages: vec![Message::text("user", "x".repeat(length))],
            pieces: Vec::new(),
            heartbeats: Vec::new(),
        }
    }

    #[test]
    fn nobody_gets_what_another_key_has_kept() {
        let responses = Responses::default();
        let (ann, bob) = (Owner(Some(1)), Owner(Some(2)));
        responses.put("a", Kept { owner: ann, ..kept(1) });
        for stranger in [bob, NOBODY] {
            assert!(responses.get("a", stranger).is_none() && !responses.delete("a", stranger));
        }
        assert!(responses.get("a", ann).is_some() && responses.delete("a", ann));
    }

    #[test]
    fn items_are_found_as_long_as_their_response_is_kept_and_by_its_owner_alone() {
        let responses = Responses::default();
        let ann = Owner(Some(1));
        let item = |i: usize| serde_json::json!({"id": format!("item{i}"), "n": i});
        for i in 0..1100 {
            let response =
                serde_json::json!({"output": [{"type": "odd"}, item(i), item(i + 10_000)]});
            assert!(responses.put(&format!("r{i}"), Kept { owner: ann, response, ..kept(0) }));
        }
        let inner = responses.lock();
        let kept = inner.known.len();
        assert_eq!(inner.items.len(), 2 * kept);
        drop(inner);
        assert_eq!(responses.item("item11099", ann), Some(item(11_099)));
        assert_eq!(responses.item("item1099", NOBODY), None);
        assert_eq!(responses.item("item0", ann), None, "it has made room");
        assert!(responses.delete("r1099", ann));
        assert_eq!(responses.item("item1099", ann), None);
        assert_eq!(responses.lock().items.len(), 2 * (kept - 1));
    }

    #[test]
    fn the_oldest_make_room_by_count_and_by_size() {
        let responses = Responses::default();
        (0..20).for_each(|i| assert!(responses.put(&format!("r{i}"), kept(8 << 10))));
        let left: Vec<_> =
            (0..20).filter(|i| responses.get(&format!("r{i}"), NOBODY).is_some()).collect();
        assert_eq!(
            left,
            (13..20).collect::<Vec<_>>(),
            "seven of eight KiB and a little fit into 64"
        );
        assert!(!responses.put("large", kept(MAX_BYTES)));
        assert!(responses.get("large", NOBODY).is_none() && responses.get("r19", NOBODY).is_some());
        assert!(responses.delete("r19", NOBODY) && !responses.delete("r19", NOBODY));
        (0..2000).for_each(|i| assert!(responses.put(&format!("s{i}"), kept(0))));
        let inner = responses.lock();
        assert!(inner.known.len() <= MAX_COUNT && inner.bytes <= MAX_BYTES);
        assert_eq!(inner.known.len(), inner.order.len());
    }
}
