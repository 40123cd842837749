//! KV pages and the prefix tree.
//!
//! A page holds the keys and values of [`PAGE_TOKENS`] consecutive tokens. Computed pages stay in a radix tree over token ids after their
//! sequence has ended, one tree for each [`PrefixTreeKey`]. A node is a page; its children are the pages that followed it. A new
//! sequence walks the tree along its prompt and computes only the rest. It shares full pages and copies the matching beginning of
//! the next page. When pages run out, the least recently used leaf is evicted.

mod states;
mod window_pages;

use std::collections::BTreeMap;
use std::sync::Arc;

use puna_graph::AdapterScales;

use states::{Slots, StateCheckpoint};
use window_pages::Recent;
pub use window_pages::Windows;

/// Tokens per page.
pub const PAGE_TOKENS: usize = 64;

/// A node of the prefix tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeId(usize);

/// A page: memory for the keys and values of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Page of layers without a window.
    pub all: u32,
    /// Window page, if the model has layers with a window and it is not released.
    pub recent: Option<u32>,
}

#[derive(Debug)]
struct Node {
    page: u32,
    recent: Option<window_pages::RecentPage>,
    /// Tokens of the page; only leaves can have less than a full page.
    tokens: Vec<u32>,
    /// Page before, or root.
    parent: Parent,
    children: Vec<NodeId>,
    /// State checkpoints within the page.
    checkpoints: Vec<StateCheckpoint>,
    /// Number of running sequences that pin the page.
    users: usize,
    last_used: u64,
}

/// Everything that keys and values depend on besides tokens; each key has its own tree.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrefixTreeKey {
    /// Adapter scales.
    pub adapter_scales: AdapterScales,
    /// The whole prompt, if an encoder has read it, since its result for the first token depends on the last; else empty.
    pub read: Arc<[u32]>,
}

impl From<AdapterScales> for PrefixTreeKey {
    fn from(adapter_scales: AdapterScales) -> Self {
        Self { adapter_scales, ..Self::default() }
    }
}

/// Parent of a page in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parent {
    /// The page before.
    Node(NodeId),
    /// Root of the tree with this key.
    Root(PrefixTreeKey),
}

/// All pages: free, in the tree, or private to a running sequence.
#[derive(Debug)]
pub struct Pages {
    free: Vec<u32>,
    total: usize,
    nodes: Vec<Option<Node>>,
    empty: Vec<usize>,
    roots: BTreeMap<PrefixTreeKey, Vec<NodeId>>,
    clock: u64,
    slots: Slots,
    recent: Recent,
}

/// Cached prefix of a prompt.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Full pages, in order.
    pub path: Vec<NodeId>,
    /// Page whose first tokens continue the prompt, and their number.
    pub partial: Option<(NodeId, usize)>,
    /// State checkpoint after these tokens, if the model has recurrent layers.
    pub state: Option<u32>,
    /// Tokens in the tree, including tokens without the state or window pages to continue from; 0 if the model has neither.
    pub seen: usize,
}

impl Match {
    /// Length of the prefix in tokens.
    pub fn tokens(&self) -> usize {
        self.path.len() * PAGE_TOKENS + self.partial.map_or(0, |(_, tokens)| tokens)
    }
}

impl Pages {
    /// Makes `total` free pages and an empty tree.
    pub fn new(total: usize) -> Self {
        let free = (0..total as u32).rev().collect();
        Self {
            free,
            total,
            nodes: Vec::new(),
            empty: Vec::new(),
            roots: BTreeMap::new(),
            clock: 0,
            slots: Slots::default(),
            recent: Recent::default(),
        }
    }

    /// Number of pages.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Number of pages in use or cached.
    pub fn in_use(&self) -> usize {
        self.total - self.free.len()
    }

    /// Number of pages that running sequences use.
    pub fn held(&self) -> usize {
        self.in_use() - self.idle()
    }

    /// Number of pages of the tree without a pin.
    fn idle(&self) -> usize {
        self.nodes.iter().flatten().filter(|n| n.users == 0).count()
    }

    /// Number of pages that a sequence with the cached `path` can take without preemption.
    pub fn available(&self, path: &[NodeId]) -> usize {
        // The pages of the path will be pinned, so they cannot be evicted.
        let own = path.iter().filter(|id| self.node(**id).users == 0).count();
        self.free.len() + self.idle() - own
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.0].as_ref().expect("ids of the tree are live")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0].as_mut().expect("ids of the tree are live")
    }

    /// The page of a node.
    pub fn page(&self, id: NodeId) -> Page {
        Page { all: self.node(id).page, recent: self.recent_page(id) }
    }

    /// Finds the longest cached prefix of `tokens`: with a state checkpoint if the model has recurrent layers, and with all window pages
    /// that the next token sees.
    pub fn find(&self, origin: &PrefixTreeKey, tokens: &[u32]) -> Match {
        let mut found = self.find_pages(origin, tokens);
        if !self.has_states() && !self.has_window_pages() {
            return found;
        }
        let seen = found.tokens();
        if self.has_states() {
            found = self.find_state(origin, tokens);
        }
        loop {
            let before = found.tokens();
            if self.has_states() {
                found = self.up_to_a_state(found);
            }
            found = self.up_to_what_is_seen(found);
            if found.tokens() == before {
                return Match { seen, ..found };
            }
        }
    }

    fn find_pages(&self, origin: &PrefixTreeKey, tokens: &[u32]) -> Match {
        let mut found = Match::default();
        let Some(mut children) = self.roots.get(origin) else { return found };
        let mut rest = tokens;
        loop {
            let common = children.iter().map(|&id| (self.common(id, rest), id));
            let Some((len, id)) = common.max_by_key(|(len, _)| *len) else {
                return found;
            };
            if len < PAGE_TOKENS {
                found.partial = (len > 0).then_some((id, len));
                return found;
            }
            found.path.push(id);
            rest = &rest[PAGE_TOKENS..];
            children = &self.node(id).children;
        }
    }

    /// Length of the common prefix of a node's page and `tokens`.
    fn common(&self, id: NodeId, tokens: &[u32]) -> usize {
        self.node(id).tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count()
    }

    /// Pins the nodes of a path for one more sequence.
    pub fn retain(&mut self, path: &[NodeId]) {
        self.clock += 1;
        let now = self.clock;
        for &id in path {
            let node = self.node_mut(id);
            node.users += 1;
            node.last_used = now;
        }
    }

    /// Undoes [`Pages::retain`].
    pub fn release(&mut self, path: &[NodeId]) {
        self.clock += 1;
        let now = self.clock;
        for &id in path {
            let node = self.node_mut(id);
            node.users -= 1;
            node.last_used = now;
        }
    }

    /// Takes a page; evicts the least recently used one if needed. `None` if all pages are in use.
    pub fn take(&mut self) -> Option<Page> {
        let all = self.take_lasting()?;
        if !self.has_window_pages() {
            return Some(Page { all, recent: None });
        }
        let recent = self.take_window_page();
        if recent.is_none() {
            self.free.push(all);
        }
        recent.map(|recent| Page { all, recent: Some(recent) })
    }

    /// Takes a page without a window page.
    pub fn take_lasting(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            self.evict();
        }
        self.free.pop()
    }

    /// Releases a page.
    pub fn release_page(&mut self, page: Page) {
        self.free.push(page.all);
        page.recent.into_iter().for_each(|recent| self.release_window_page(recent));
    }

    fn evict(&mut self) {
        let leaves = self.nodes.iter().enumerate().filter_map(|(i, n)| n.as_ref().map(|n| (i, n)));
        let idle = leaves.filter(|(_, n)| n.users == 0 && n.children.is_empty());
        let Some(oldest) = idle.min_by_key(|(_, n)| n.last_used).map(|(i, _)| i) else { return };
        let node = self.nodes[oldest].take().expect("just found");
        match node.parent {
            Parent::Node(parent) => self.node_mut(parent).children.retain(|id| id.0 != oldest),
            Parent::Root(origin) => {
                if let Some(roots) = self.roots.get_mut(&origin) {
                    roots.retain(|id| id.0 != oldest);
                    if roots.is_empty() {
                        self.roots.remove(&origin);
                    }
                }
            }
        }
        self.empty.push(oldest);
        self.free.push(node.page);
        self.drop_recent(node.recent);
        node.checkpoints.into_iter().for_each(|kept| self.slots.release_slot(kept.slot));
    }

    /// Inserts a page into the tree below `parent`. If the tree has these tokens already, releases the page and returns the existing
    /// node. The node is not pinned.
    pub fn insert(&mut self, parent: &Parent, page: Page, tokens: &[u32]) -> NodeId {
        debug_assert!(!tokens.is_empty() && tokens.len() <= PAGE_TOKENS);
        self.clock += 1;
        let now = self.clock;
        for id in self.children(parent).to_vec() {
            let known = self.node_mut(id);
            if known.tokens.len() >= tokens.len() && known.tokens[..tokens.len()] == *tokens {
                known.last_used = now;
                self.free.push(page.all);
                // Restores a released window page, if the page is whole.
                match page.recent {
                    Some(recent) if self.node(id).tokens.len() == tokens.len() => {
                        self.keep_recent(id, recent)
                    }
                    recent => {
                        recent.into_iter().for_each(|recent| self.release_window_page(recent))
                    }
                }
                return id;
            }
            // Replaces a shorter leaf that this page extends, unless a sequence pins it.
            if known.users == 0 && known.children.is_empty() && tokens.starts_with(&known.tokens) {
                let old = std::mem::replace(&mut known.page, page.all);
                known.tokens = tokens.to_vec();
                known.last_used = now;
                let recent = known.recent.take();
                self.free.push(old);
                self.drop_recent(recent);
                page.recent.into_iter().for_each(|recent| self.keep_recent(id, recent));
                return id;
            }
        }
        let (tokens, children, checkpoints) = (tokens.to_vec(), Vec::new(), Vec::new());
        let (page, recent) = (page.all, page.recent.map(|recent| self.kept(recent)));
        let node = Node {
            page,
            recent,
            tokens,
            parent: parent.clone(),
            children,
            checkpoints,
            users: 0,
            last_used: now,
        };
        let index = self.empty.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        self.nodes[index] = Some(node);
        match parent {
            Parent::Node(parent) => self.node_mut(*parent).children.push(NodeId(index)),
            Parent::Root(origin) => {
                self.roots.entry(origin.clone()).or_default().push(NodeId(index))
            }
        }
        NodeId(index)
    }

    /// The pages that follow.
    fn children(&self, parent: &Parent) -> &[NodeId] {
        match parent {
            Parent::Node(parent) => &self.node(*parent).children,
            Parent::Root(origin) => self.roots.get(origin).map(Vec::as_slice).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Parent {
        Parent::Root(PrefixTreeKey::default())
    }

    fn full(start: u32) -> Vec<u32> {
        (start..start + PAGE_TOKENS as u32).collect()
    }

    #[test]
    fn a_prompt_finds_the_pages_of_an_earlier_one_and_the_beginning_of_the_next() {
        let mut pages = Pages::new(4);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        let first = pages.insert(&root(), a, &full(0));
        let second = pages.insert(&Parent::Node(first), b, &full(100)[..10]);
        let prompt: Vec<u32> =
            full(0).into_iter().chain(full(100).into_iter().take(7)).chain([999]).collect();
        let found = Match { path: vec![first], partial: Some((second, 7)), ..Match::default() };
        assert_eq!(pages.find(&PrefixTreeKey::default(), &prompt), found);
        assert_eq!(pages.find(&PrefixTreeKey::default(), &[5]), Match::default());
    }

    #[test]
    fn the_leaf_used_longest_ago_makes_room_and_pages_in_use_stay() {
        let mut pages = Pages::new(3);
        let ids: Vec<NodeId> = (0..3)
            .map(|i| {
                let page = pages.take().unwrap();
                pages.insert(&root(), page, &full(i * 1000))
            })
            .collect();
        pages.retain(&[ids[0]]);
        let expected = pages.page(ids[1]);
        assert_eq!(pages.take(), Some(expected));
        assert!(pages.take().is_some());
        assert_eq!(pages.take(), None, "the page that is read stays");
        pages.release(&[ids[0]]);
        assert!(pages.take().is_some());
        assert_eq!(pages.in_use(), 3);
    }

    #[test]
    fn the_same_tokens_are_kept_once() {
        let mut pages = Pages::new(3);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        let first = pages.insert(&root(), a, &full(0));
        assert_eq!(pages.insert(&root(), b, &full(0)), first);
        assert_eq!(pages.in_use(), 1);
    }

    #[test]
    fn what_other_adapters_made_of_the_same_tokens_is_something_else() {
        let mut pages = Pages::new(2);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        let half = PrefixTreeKey::from(AdapterScales::new(&[0.5]));
        let plain = pages.insert(&root(), a, &full(0));
        assert_eq!(pages.find(&half, &full(0)), Match::default());
        let other = pages.insert(&Parent::Root(half.clone()), b, &full(0));
        assert_ne!(plain, other);
        assert_eq!(pages.find(&half, &full(0)).path, [other]);
        assert_eq!(pages.find(&PrefixTreeKey::default(), &full(0)).path, [plain]);
        // Both make room in their turn.
        assert!(pages.take().is_some() && pages.take().is_some());
        assert_eq!(pages.find(&half, &full(0)), Match::default());
        assert!(pages.roots.is_empty());
    }

    #[test]
    fn what_an_encoder_made_of_the_same_beginning_of_another_prompt_is_something_else() {
        let mut pages = Pages::new(2);
        let read =
            |prompt: &[u32]| PrefixTreeKey { read: prompt.into(), ..PrefixTreeKey::default() };
        let prompt: Vec<u32> = full(0).into_iter().chain([500, 501]).collect();
        let page = pages.take().unwrap();
        let first = pages.insert(&Parent::Root(read(&prompt)), page, &full(0));
        assert_eq!(pages.find(&read(&prompt), &prompt).path, [first]);
        assert_eq!(pages.find(&read(&prompt[..65]), &prompt[..65]), Match::default());
        assert_eq!(pages.find(&PrefixTreeKey::default(), &prompt), Match::default());
    }

    #[test]
    fn a_longer_beginning_replaces_a_shorter_one() {
        let mut pages = Pages::new(3);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        let first = pages.insert(&root(), a, &full(0)[..5]);
        assert_eq!(pages.insert(&root(), b, &full(0)[..9]), first);
        assert_eq!((pages.in_use(), pages.page(first)), (1, b));
    }
}
