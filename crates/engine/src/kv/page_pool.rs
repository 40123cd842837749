//! KV pages and the prefix tree.
//!
//! A page holds the keys and values of [`PAGE_TOKENS`] consecutive tokens. Computed pages stay in a
//! radix tree over token ids after their sequence has ended, one tree for each [`PrefixTreeKey`]. A
//! node is a page; its children are the pages that followed it. A new sequence walks the tree along
//! its prompt and computes only the rest. It sees the nodes of its [`CacheScope`] only, shares full
//! pages and copies the matching beginning of the next page. When pages run out, the least recently
//! used leaf is evicted, usually in constant time.

use std::collections::BTreeMap;

use super::lru_list::LruList;
use super::node::{
    CacheCopy, CacheScope, Match, Node, NodeId, PAGE_TOKENS, Page, Parent, PrefixTreeKey,
};
use super::state_slots::StateSlots;
use super::window_pages::WindowPages;
use crate::request::CacheNamespace;

/// All pages: free, in the tree, or private to a running sequence.
#[derive(Debug)]
pub struct PagePool {
    free: Vec<u32>,
    total: usize,
    nodes: Vec<Option<Node>>,
    /// Unused indices of `nodes`.
    free_node_ids: Vec<usize>,
    /// Nodes without a pin. Of the nodes of a path, the last one is used least recently.
    unpinned: LruList,
    pub(super) roots: BTreeMap<PrefixTreeKey, Vec<NodeId>>,
    pub(super) slots: StateSlots,
    pub(super) window_pages: WindowPages,
    /// Copies that are not made yet, in order.
    copies: Vec<CacheCopy>,
}

impl PagePool {
    /// Makes `total` free pages and an empty tree.
    pub fn new(total: usize) -> Self {
        let free = (0..total as u32).rev().collect();
        Self {
            free,
            total,
            nodes: Vec::new(),
            free_node_ids: Vec::new(),
            unpinned: LruList::default(),
            roots: BTreeMap::new(),
            slots: StateSlots::default(),
            window_pages: WindowPages::default(),
            copies: Vec::new(),
        }
    }

    /// Records a copy for the executor.
    pub fn record_copy(&mut self, copy: CacheCopy) {
        self.copies.push(copy);
    }

    /// Copies to make in this order, before the next step of the model: a later copy, or a step,
    /// can overwrite the source of an earlier one.
    pub fn take_copies(&mut self) -> Vec<CacheCopy> {
        std::mem::take(&mut self.copies)
    }

    /// Number of all pages: free, cached and in use.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Number of pages in use or cached.
    pub fn in_use(&self) -> usize {
        self.total - self.free.len()
    }

    /// Number of pages that running sequences use.
    pub fn pinned(&self) -> usize {
        self.in_use() - self.unpinned.len()
    }

    /// Number of pages that a sequence with the cached `path` can take without preemption.
    pub fn available(&self, path: &[NodeId]) -> usize {
        // The pages of the path will be pinned, so they cannot be evicted.
        let unpinned_in_path = path.iter().filter(|id| self.node(**id).pin_count == 0).count();
        self.free.len() + self.unpinned.len() - unpinned_in_path
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.0].as_ref().expect("ids of the tree are live")
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0].as_mut().expect("ids of the tree are live")
    }

    /// Page of a node with its window page, if present.
    pub fn page(&self, id: NodeId) -> Page {
        Page { full: self.node(id).page, window: self.window_page(id) }
    }

    /// Finds the longest cached prefix of `tokens`: with a state checkpoint if the model has
    /// recurrent layers, and with all window pages that the next token sees.
    pub fn find(&self, scope: &CacheScope, tokens: &[u32]) -> Match {
        let mut found = self.find_pages(scope, tokens);
        if !self.has_states() && !self.has_window_pages() {
            return found;
        }
        let matched_tokens = found.tokens();
        if self.has_states() {
            found = self.find_with_checkpoint(scope, tokens);
        }
        loop {
            let before = found.tokens();
            if self.has_states() {
                found = self.truncate_to_checkpoint(found);
            }
            found = self.truncate_to_window_pages(found);
            if found.tokens() == before {
                return Match { matched_tokens, ..found };
            }
        }
    }

    /// Longest path of full pages along `tokens`, and the page that continues it in part.
    fn find_pages(&self, scope: &CacheScope, tokens: &[u32]) -> Match {
        let mut found = Match::default();
        let Some(mut children) = self.roots.get(&scope.key) else { return found };
        let mut rest = tokens;
        loop {
            let visible =
                self.nodes_in_namespace(children, scope.namespace_of_page(found.path.len()));
            let common = visible.map(|id| (self.common_prefix_len(id, rest), id));
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

    /// The nodes of a namespace among `nodes`.
    pub(super) fn nodes_in_namespace<'a>(
        &'a self,
        nodes: &'a [NodeId],
        namespace: CacheNamespace,
    ) -> impl Iterator<Item = NodeId> + Clone + 'a {
        nodes.iter().copied().filter(move |id| self.node(*id).namespace == namespace)
    }

    /// Length of the common prefix of a node's page and `tokens`.
    pub(super) fn common_prefix_len(&self, id: NodeId, tokens: &[u32]) -> usize {
        self.node(id).tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count()
    }

    /// Pins the nodes of a path for one more sequence.
    pub fn pin(&mut self, path: &[NodeId]) {
        for &id in path {
            self.node_mut(id).pin_count += 1;
            self.unpinned.remove(id.0);
        }
    }

    /// Undoes [`PagePool::pin`].
    pub fn unpin(&mut self, path: &[NodeId]) {
        // The end of a path is evicted before its beginning.
        for &id in path.iter().rev() {
            let node = self.node_mut(id);
            node.pin_count -= 1;
            if node.pin_count == 0 {
                self.unpinned.push(id.0);
            }
        }
    }

    /// Takes a page; evicts the least recently used one if needed. `None` if all pages are in use.
    pub fn take(&mut self) -> Option<Page> {
        let full = self.take_full_page()?;
        if !self.has_window_pages() {
            return Some(Page { full, window: None });
        }
        let window = self.take_window_page();
        if window.is_none() {
            self.free.push(full);
        }
        window.map(|window| Page { full, window: Some(window) })
    }

    /// Takes a page without a window page.
    pub fn take_full_page(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            self.evict();
        }
        self.free.pop()
    }

    /// Returns a private page, and its window page, to the free ones.
    pub fn release_page(&mut self, page: Page) {
        self.free.push(page.full);
        page.window.into_iter().for_each(|window| self.release_window_page(window));
    }

    /// Evicts the least recently used leaf.
    fn evict(&mut self) {
        // The first idle node is a leaf, unless a page was inserted below an idle one.
        let is_leaf = |index: &usize| self.node(NodeId(*index)).children.is_empty();
        let Some(oldest) = self.unpinned.iter().find(is_leaf) else { return };
        let node = self.nodes[oldest].take().expect("entries of the list are live");
        self.unpinned.remove(oldest);
        match node.parent {
            Parent::Node(parent) => self.node_mut(parent).children.retain(|id| id.0 != oldest),
            Parent::Root(key) => {
                if let Some(roots) = self.roots.get_mut(&key) {
                    roots.retain(|id| id.0 != oldest);
                    if roots.is_empty() {
                        self.roots.remove(&key);
                    }
                }
            }
        }
        self.free_node_ids.push(oldest);
        self.free.push(node.page);
        self.drop_window_page(NodeId(oldest), node.window);
        node.checkpoints.into_iter().for_each(|checkpoint| self.slots.release(checkpoint.slot));
    }

    /// Inserts a page of a namespace into the tree below `parent`. If the tree has these tokens in
    /// the namespace already, releases the page and returns the existing node. The node is not
    /// pinned.
    pub fn insert(
        &mut self,
        parent: &Parent,
        namespace: CacheNamespace,
        page: Page,
        tokens: &[u32],
    ) -> NodeId {
        debug_assert!(!tokens.is_empty() && tokens.len() <= PAGE_TOKENS);
        for id in self.nodes_in_namespace(self.children(parent), namespace).collect::<Vec<_>>() {
            let known = self.node_mut(id);
            if known.tokens.len() >= tokens.len() && known.tokens[..tokens.len()] == *tokens {
                self.unpinned.touch(id.0);
                self.free.push(page.full);
                // Restores a released window page, if the page is whole.
                match page.window {
                    Some(window) if self.node(id).tokens.len() == tokens.len() => {
                        self.set_window_page(id, window)
                    }
                    window => {
                        window.into_iter().for_each(|window| self.release_window_page(window))
                    }
                }
                return id;
            }
            // Replaces a shorter leaf that this page extends, unless a sequence pins it.
            if known.pin_count == 0
                && known.children.is_empty()
                && tokens.starts_with(&known.tokens)
            {
                let old = std::mem::replace(&mut known.page, page.full);
                known.tokens = tokens.to_vec();
                let window = known.window.take();
                self.unpinned.touch(id.0);
                self.free.push(old);
                self.drop_window_page(id, window);
                page.window.into_iter().for_each(|window| self.set_window_page(id, window));
                return id;
            }
        }
        let (tokens, children, checkpoints) = (tokens.to_vec(), Vec::new(), Vec::new());
        let node = Node {
            page: page.full,
            namespace,
            window: None,
            tokens,
            parent: parent.clone(),
            children,
            checkpoints,
            pin_count: 0,
        };
        let index = self.free_node_ids.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        self.nodes[index] = Some(node);
        self.unpinned.push(index);
        page.window.into_iter().for_each(|window| self.set_window_page(NodeId(index), window));
        match parent {
            Parent::Node(parent) => self.node_mut(*parent).children.push(NodeId(index)),
            Parent::Root(key) => self.roots.entry(key.clone()).or_default().push(NodeId(index)),
        }
        NodeId(index)
    }

    /// Nodes of the pages after `parent`.
    fn children(&self, parent: &Parent) -> &[NodeId] {
        match parent {
            Parent::Node(parent) => &self.node(*parent).children,
            Parent::Root(key) => self.roots.get(key).map(Vec::as_slice).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use puna_graph::AdapterScales;

    use super::super::sequence_pages::SequencePages;
    use super::*;
    use crate::request::PublicPrefix;

    impl From<PrefixTreeKey> for CacheScope {
        fn from(key: PrefixTreeKey) -> Self {
            Self { key, ..Self::default() }
        }
    }

    fn root() -> Parent {
        Parent::Root(PrefixTreeKey::default())
    }

    fn full(start: u32) -> Vec<u32> {
        (start..start + PAGE_TOKENS as u32).collect()
    }

    #[test]
    fn a_namespace_finds_its_own_pages_and_the_whole_pages_of_the_public_prefix() {
        let scope = |namespace, tokens, text| CacheScope {
            namespace: CacheNamespace(namespace),
            public_prefix: PublicPrefix { tokens, namespace: CacheNamespace(text) },
            ..CacheScope::default()
        };
        // A public prefix of a page and a half, then private tokens.
        let prompt: Vec<u32> = [full(0), full(100), full(200)].concat();
        let mut pages = PagePool::new(8);
        let [ann, bob] = [scope(1, 96, 9), scope(2, 96, 9)];
        let insert = |pages: &mut PagePool, scope: &CacheScope| {
            let (mut sequence, cached) =
                SequencePages::start_from_cache(pages, scope, &prompt, std::iter::empty());
            assert!(sequence.grow(pages, prompt.len()));
            sequence.release(pages, &prompt);
            cached
        };
        assert_eq!(insert(&mut pages, &ann), 0);
        assert_eq!(pages.find(&ann, &prompt).path.len(), 3);
        assert_eq!(pages.find(&bob, &prompt).tokens(), 64);
        assert_eq!(pages.find(&scope(1, 0, 0), &prompt).tokens(), 0, "the page is public");
        assert_eq!(pages.find(&scope(2, 96, 8), &prompt).tokens(), 0, "of another public text");
        // The second namespace adds pages of its own below the shared one.
        assert_eq!((insert(&mut pages, &bob), pages.in_use()), (64, 5));
        assert_eq!((insert(&mut pages, &bob), pages.in_use()), (192, 5));
        assert_eq!(pages.find(&ann, &prompt).path[..1], pages.find(&bob, &prompt).path[..1]);
        assert_ne!(pages.find(&ann, &prompt).path[1], pages.find(&bob, &prompt).path[1]);
    }

    #[test]
    fn a_namespace_finds_no_checkpoint_and_no_unfinished_page_of_another() {
        let scope = |namespace| CacheScope {
            namespace: CacheNamespace(namespace),
            ..CacheScope::default()
        };
        for states in [0, 6] {
            let mut pages = PagePool::new(8).with_states(states);
            let tokens = full(0);
            let (mut running, _) = SequencePages::start_from_cache(
                &mut pages,
                &scope(1),
                &tokens[..40],
                std::iter::empty(),
            );
            assert!(running.grow(&mut pages, 40));
            running.add_checkpoint(&mut pages, 30);
            let mut cached = |namespace| {
                let others = [(&running, &tokens[..40])].into_iter();
                let (found, cached) =
                    SequencePages::start_from_cache(&mut pages, &scope(namespace), &tokens, others);
                found.release(&mut pages, &[]);
                cached
            };
            let own = if states == 0 { 40 } else { 30 };
            assert_eq!([cached(1), cached(2)], [own, 0], "{states} state slots");
            running.release(&mut pages, &tokens[..40]);
            assert_eq!(pages.find(&scope(1), &tokens).tokens(), 40);
            assert_eq!(pages.find(&scope(2), &tokens).tokens(), 0);
        }
    }

    #[test]
    fn a_prompt_finds_the_pages_of_an_earlier_one_and_the_beginning_of_the_next() {
        let mut pages = PagePool::new(4);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        let first = pages.insert(&root(), CacheNamespace(0), a, &full(0));
        let second = pages.insert(&Parent::Node(first), CacheNamespace(0), b, &full(100)[..10]);
        let prompt: Vec<u32> =
            full(0).into_iter().chain(full(100).into_iter().take(7)).chain([999]).collect();
        let found = Match { path: vec![first], partial: Some((second, 7)), ..Match::default() };
        assert_eq!(pages.find(&CacheScope::default(), &prompt), found);
        assert_eq!(pages.find(&CacheScope::default(), &[5]), Match::default());
    }

    #[test]
    fn the_least_recently_used_leaf_is_evicted_and_pinned_pages_stay() {
        let mut pages = PagePool::new(3);
        let ids: Vec<NodeId> = (0..3)
            .map(|i| {
                let page = pages.take().unwrap();
                pages.insert(&root(), CacheNamespace(0), page, &full(i * 1000))
            })
            .collect();
        pages.pin(&[ids[0]]);
        let expected = pages.page(ids[1]);
        assert_eq!(pages.take(), Some(expected));
        assert!(pages.take().is_some());
        assert_eq!(pages.take(), None, "the page that is read stays");
        pages.unpin(&[ids[0]]);
        assert!(pages.take().is_some());
        assert_eq!(pages.in_use(), 3);
    }

    #[test]
    fn the_same_tokens_are_stored_once() {
        let mut pages = PagePool::new(3);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        let first = pages.insert(&root(), CacheNamespace(0), a, &full(0));
        assert_eq!(pages.insert(&root(), CacheNamespace(0), b, &full(0)), first);
        assert_eq!(pages.in_use(), 1);
    }

    #[test]
    fn pages_of_other_adapter_scales_are_not_shared() {
        let mut pages = PagePool::new(2);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        let half = PrefixTreeKey {
            adapter_scales: AdapterScales::new(&[0.5]),
            ..PrefixTreeKey::default()
        };
        let plain = pages.insert(&root(), CacheNamespace(0), a, &full(0));
        assert_eq!(pages.find(&half.clone().into(), &full(0)), Match::default());
        let other = pages.insert(&Parent::Root(half.clone()), CacheNamespace(0), b, &full(0));
        assert_ne!(plain, other);
        assert_eq!(pages.find(&half.clone().into(), &full(0)).path, [other]);
        assert_eq!(pages.find(&CacheScope::default(), &full(0)).path, [plain]);
        // Both make room in their turn.
        assert!(pages.take().is_some() && pages.take().is_some());
        assert_eq!(pages.find(&half.clone().into(), &full(0)), Match::default());
        assert!(pages.roots.is_empty());
    }

    #[test]
    fn pages_of_another_encoder_prompt_are_not_shared() {
        let mut pages = PagePool::new(2);
        let key = |prompt: &[u32]| PrefixTreeKey {
            encoder_input: prompt.into(),
            ..PrefixTreeKey::default()
        };
        let prompt: Vec<u32> = full(0).into_iter().chain([500, 501]).collect();
        let page = pages.take().unwrap();
        let first = pages.insert(&Parent::Root(key(&prompt)), CacheNamespace(0), page, &full(0));
        assert_eq!(pages.find(&key(&prompt).into(), &prompt).path, [first]);
        assert_eq!(pages.find(&key(&prompt[..65]).into(), &prompt[..65]), Match::default());
        assert_eq!(pages.find(&CacheScope::default(), &prompt), Match::default());
    }

    #[test]
    fn a_longer_page_replaces_a_shorter_leaf() {
        let mut pages = PagePool::new(3);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        let first = pages.insert(&root(), CacheNamespace(0), a, &full(0)[..5]);
        assert_eq!(pages.insert(&root(), CacheNamespace(0), b, &full(0)[..9]), first);
        assert_eq!((pages.in_use(), pages.page(first)), (1, b));
    }

    /// Measures evictions in a full tree: `cargo test --release -p puna-engine --lib
    /// eviction_times -- --ignored --nocapture`.
    #[test]
    #[ignore = "measures times and asserts nothing"]
    fn eviction_times() {
        for total in [1_000, 16_000, 64_000] {
            let mut pages = PagePool::new(total);
            let mut parent = root();
            for i in 0..total as u32 {
                // Texts of 32 pages.
                parent = if i % 32 == 0 { root() } else { parent };
                let page = pages.take().unwrap();
                parent =
                    Parent::Node(pages.insert(&parent, CacheNamespace(0), page, &full(i * 64)));
            }
            let start = std::time::Instant::now();
            let evicted = (0..128).filter_map(|_| pages.take()).count();
            let evictions = start.elapsed();
            let start = std::time::Instant::now();
            let counts = (0..128).map(|_| pages.pinned() + pages.available(&[])).sum::<usize>();
            println!(
                "{total} pages: {evicted} evictions {evictions:?}, 128 counts {:?} ({counts})",
                start.elapsed()
            );
        }
    }
}
