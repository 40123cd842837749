//! State checkpoints: copies of recurrent states at some positions of the prefix tree.
//!
//! Unlike keys and values, a recurrent state cannot be truncated. So the tree keeps checkpoints at
//! some positions, and a cached prefix ends at the last of them. A running sequence has one state
//! slot; all other slots hold checkpoints, of which the least recently used is evicted first.

use super::node::{CacheScope, Match, NodeId, PAGE_TOKENS, StateCheckpoint};
use super::page_pool::PagePool;
use super::state_slots::StateSlots;

impl PagePool {
    /// Adds state slots.
    #[must_use]
    pub fn with_states(mut self, slots: usize) -> Self {
        self.slots = StateSlots::new(slots);
        self
    }

    /// Whether the model has recurrent layers.
    pub fn has_states(&self) -> bool {
        self.slots.total > 0
    }

    /// Number of slots that are free or hold a checkpoint.
    pub fn states_available(&self) -> usize {
        self.slots.free.len() + self.slots.checkpoints.len()
    }

    /// Takes a slot; evicts the least recently used checkpoint if needed. `None` if running
    /// sequences use all slots.
    pub fn take_state(&mut self) -> Option<u32> {
        if let Some(slot) = self.slots.free.pop() {
            return Some(slot);
        }
        let slot = self.slots.checkpoints.pop()?;
        let node = self.slots.nodes[slot];
        self.node_mut(node).checkpoints.retain(|checkpoint| checkpoint.slot as usize != slot);
        Some(slot as u32)
    }

    /// Releases a slot.
    pub fn release_state(&mut self, slot: u32) {
        self.slots.release(slot);
    }

    /// Adds a checkpoint after `tokens` tokens of a node's page. If there is one already, releases
    /// the slot.
    pub fn store_checkpoint(&mut self, id: NodeId, tokens: usize, slot: u32) {
        let checkpoints = &mut self.node_mut(id).checkpoints;
        match checkpoints.iter().find(|checkpoint| checkpoint.tokens == tokens) {
            Some(&StateCheckpoint { slot: existing, .. }) => {
                self.touch_checkpoint(existing);
                self.slots.release(slot);
            }
            None => {
                checkpoints.push(StateCheckpoint { tokens, slot });
                self.slots.nodes[slot as usize] = id;
                self.slots.checkpoints.push(slot as usize);
            }
        }
    }

    /// Marks a checkpoint as used.
    pub fn touch_checkpoint(&mut self, slot: u32) {
        self.slots.checkpoints.touch(slot as usize);
    }

    /// Finds the prefix of `tokens` up to the last checkpoint. A sibling of the longest match can
    /// have a later checkpoint.
    pub(super) fn find_with_checkpoint(&self, scope: &CacheScope, tokens: &[u32]) -> Match {
        let (mut path, mut found) = (Vec::new(), None);
        let (mut children, mut rest) =
            (self.roots.get(&scope.key).map_or(&[][..], |roots| roots), tokens);
        loop {
            let visible = self.nodes_in_namespace(children, scope.namespace_of_page(path.len()));
            let common = visible.map(|id| (id, self.common_prefix_len(id, rest)));
            let states = common
                .clone()
                .filter_map(|(id, common)| Some((id, self.last_checkpoint(id, common)?)));
            if let Some((id, checkpoint)) = states.max_by_key(|(_, checkpoint)| checkpoint.tokens) {
                found = Some((path.len(), id, checkpoint));
            }
            let Some((id, _)) = { common }.find(|(_, common)| *common == PAGE_TOKENS) else {
                break;
            };
            path.push(id);
            (children, rest) = (&self.node(id).children, &rest[PAGE_TOKENS..]);
        }
        found.map_or_else(Match::default, |(depth, id, checkpoint)| {
            path.truncate(depth);
            match_up_to_checkpoint(path, id, checkpoint)
        })
    }

    /// Shortens a cached prefix to its last checkpoint.
    pub(super) fn truncate_to_checkpoint(&self, found: Match) -> Match {
        let Match { mut path, partial, .. } = found;
        if let Some((id, checkpoint)) =
            partial.and_then(|(id, max)| Some((id, self.last_checkpoint(id, max)?)))
        {
            return match_up_to_checkpoint(path, id, checkpoint);
        }
        while let Some(id) = path.pop() {
            if let Some(checkpoint) = self.last_checkpoint(id, PAGE_TOKENS) {
                return match_up_to_checkpoint(path, id, checkpoint);
            }
        }
        Match::default()
    }

    /// Last checkpoint of a node at or before position `max` of its page.
    fn last_checkpoint(&self, id: NodeId, max: usize) -> Option<StateCheckpoint> {
        let checkpoint =
            self.node(id).checkpoints.iter().filter(|checkpoint| checkpoint.tokens <= max);
        checkpoint.max_by_key(|checkpoint| checkpoint.tokens).copied()
    }
}

/// Cached prefix up to a checkpoint of the node after `path`.
fn match_up_to_checkpoint(mut path: Vec<NodeId>, id: NodeId, checkpoint: StateCheckpoint) -> Match {
    let partial = if checkpoint.tokens == PAGE_TOKENS {
        path.push(id);
        None
    } else {
        Some((id, checkpoint.tokens))
    };
    Match { path, partial, state: Some(checkpoint.slot), matched_tokens: 0 }
}

#[cfg(test)]
mod tests {
    use super::super::node::{Parent, PrefixTreeKey};
    use super::*;
    use crate::request::CacheNamespace;

    fn find(pages: &PagePool, tokens: &[u32]) -> Match {
        pages.find(&CacheScope::default(), tokens)
    }

    fn full(start: u32) -> Vec<u32> {
        (start..start + PAGE_TOKENS as u32).collect()
    }

    /// Two full pages and ten tokens of a third, and their nodes.
    fn three_pages() -> (PagePool, Vec<u32>, [NodeId; 3]) {
        let mut pages = PagePool::new(4).with_states(3);
        let tokens = [full(0), full(100), full(200)[..10].to_vec()];
        let mut parent = Parent::Root(PrefixTreeKey::default());
        let nodes = [0, 1, 2].map(|i: usize| {
            let page = pages.take().unwrap();
            let node = pages.insert(&parent, CacheNamespace(0), page, &tokens[i]);
            parent = Parent::Node(node);
            node
        });
        (pages, tokens.concat(), nodes)
    }

    #[test]
    fn a_cached_prefix_ends_at_the_last_checkpoint() {
        let (mut pages, tokens, [first, second, third]) = three_pages();
        assert_eq!(find(&pages, &tokens), Match { matched_tokens: 138, ..Match::default() });
        let slots = [(); 3].map(|()| pages.take_state().unwrap());
        assert_eq!(pages.take_state(), None);
        pages.store_checkpoint(first, 64, slots[0]);
        let found = find(&pages, &tokens);
        assert_eq!(
            (&found.path[..], found.partial, found.state),
            (&[first][..], None, Some(slots[0]))
        );
        pages.store_checkpoint(second, 5, slots[1]);
        let found = find(&pages, &tokens);
        assert_eq!(
            (found.partial, found.state, found.tokens()),
            (Some((second, 5)), Some(slots[1]), 69)
        );
        pages.store_checkpoint(third, 9, slots[2]);
        assert_eq!(find(&pages, &tokens).tokens(), 137);
        // A prompt that diverges before the last checkpoint finds the previous one.
        assert_eq!(find(&pages, &tokens[..136]).tokens(), 69);
        assert_eq!(find(&pages, &tokens[..68]).tokens(), 64);
    }

    #[test]
    fn a_sibling_with_a_later_checkpoint_is_found() {
        let mut pages = PagePool::new(4).with_states(3);
        let root = Parent::Root(PrefixTreeKey::default());
        let add = |pages: &mut PagePool, tokens: &[u32]| {
            let page = pages.take().unwrap();
            pages.insert(&root, CacheNamespace(0), page, tokens)
        };
        // Two texts of the same first thirty tokens, and one of twenty of these.
        let leaf = |common: u32, other: u32| (0..common).chain([other; 4]).collect::<Vec<u32>>();
        let first = add(&mut pages, &leaf(30, 500));
        let second = add(&mut pages, &leaf(30, 600));
        let third = add(&mut pages, &leaf(20, 700));
        let slots = [(); 3].map(|()| pages.take_state().unwrap());
        pages.store_checkpoint(first, 29, slots[0]);
        pages.store_checkpoint(second, 34, slots[1]);
        pages.store_checkpoint(third, 10, slots[2]);
        let prompt = leaf(30, 800);
        let found = find(&pages, &prompt);
        assert_eq!(
            (found.partial, found.state, found.matched_tokens),
            (Some((first, 29)), Some(slots[0]), 30)
        );
        // A shorter prompt finds the checkpoint of the page that diverges earlier.
        assert_eq!(find(&pages, &prompt[..28]).partial, Some((third, 10)));
    }

    #[test]
    fn the_least_recently_used_checkpoint_is_evicted_and_pages_take_theirs_along() {
        let (mut pages, tokens, [first, second, third]) = three_pages();
        for (node, at) in [(first, 64), (second, 64), (third, 3)] {
            let slot = pages.take_state().unwrap();
            pages.store_checkpoint(node, at, slot);
        }
        assert_eq!(pages.states_available(), 3);
        let oldest = find(&pages, &full(0)).state.unwrap();
        pages.touch_checkpoint(oldest);
        // That of the second page.
        pages.take_state().unwrap();
        assert_eq!(find(&pages, &tokens[..128]).tokens(), 64);
        assert_eq!(pages.states_available(), 2);
        // A page that goes takes its copy along.
        pages.take().unwrap();
        pages.take().unwrap();
        assert_eq!(pages.states_available(), 2);
        assert_eq!(find(&pages, &tokens).matched_tokens, 128);
    }

    #[test]
    fn the_same_checkpoint_is_stored_once() {
        let (mut pages, _, [first, ..]) = three_pages();
        for _ in 0..5 {
            let slot = pages.take_state().unwrap();
            pages.store_checkpoint(first, 64, slot);
        }
        assert_eq!((pages.states_available(), pages.slots.free.len()), (3, 2));
    }
}
