//! Window pages: pages of layers with a sliding window or chunks of positions.
//!
//! A running sequence pins the window pages that its next token sees. Earlier window pages stay
//! with their nodes until they are evicted, for sequences that continue there. So the tree can have
//! tokens without window pages, and a cached prefix ends where all window pages that the next token
//! sees are present.

use super::lru_list::LruList;
use super::node::{Match, NodeId, PAGE_TOKENS, WindowPage};
use super::page_pool::PagePool;
use super::windows::Windows;

/// Windows of layers, free window pages, and nodes with evictable window pages.
#[derive(Debug, Default)]
pub(super) struct WindowPages {
    pub windows: Windows,
    pub free: Vec<u32>,
    pub total: usize,
    /// Nodes with an unpinned window page.
    pub idle: LruList,
    /// Nodes with an unpinned window page that is evicted last.
    pub idle_evict_last: LruList,
}

impl WindowPages {
    /// Number of unpinned window pages.
    pub fn idle_count(&self) -> usize {
        self.idle.len() + self.idle_evict_last.len()
    }
}

impl PagePool {
    /// Adds `total` window pages for a model with these windows.
    #[must_use]
    pub fn with_window_pages(mut self, windows: Windows, total: usize) -> Self {
        let free = if windows.is_empty() { Vec::new() } else { (0..total as u32).rev().collect() };
        self.window_pages =
            WindowPages { total: free.len(), windows, free, ..WindowPages::default() };
        self
    }

    /// Whether the model has layers with a window.
    pub fn has_window_pages(&self) -> bool {
        !self.window_pages.windows.is_empty()
    }

    /// Windows of layers.
    pub fn windows(&self) -> &Windows {
        &self.window_pages.windows
    }

    /// Numbers of window pages: all, in use or cached, and pinned.
    pub fn window_page_counts(&self) -> [usize; 3] {
        let pages = &self.window_pages;
        let in_use = pages.total - pages.free.len();
        [pages.total, in_use, in_use - pages.idle_count()]
    }

    /// Number of window pages that a sequence with these cached nodes can take without preemption.
    pub fn window_pages_available(&self, path: &[NodeId]) -> usize {
        let is_idle =
            |id: &&NodeId| self.node(**id).window.as_ref().is_some_and(|w| w.pin_count == 0);
        let unpinned_in_path = path.iter().filter(is_idle).count();
        self.window_pages.free.len() + self.window_pages.idle_count() - unpinned_in_path
    }

    /// Takes a window page; evicts one if needed: the least recently used one without
    /// `evict_last`, else the least recently used.
    pub fn take_window_page(&mut self) -> Option<u32> {
        let pages = &mut self.window_pages;
        if let Some(page) = pages.free.pop() {
            return Some(page);
        }
        let oldest = pages.idle.pop().or_else(|| pages.idle_evict_last.pop())?;
        self.node_mut(NodeId(oldest)).window.take().map(|window| window.page)
    }

    /// Releases a window page.
    pub fn release_window_page(&mut self, page: u32) {
        self.window_pages.free.push(page);
    }

    /// Gives a node a window page. If it has one already, releases the page.
    pub(super) fn set_window_page(&mut self, id: NodeId, page: u32) {
        match &mut self.node_mut(id).window {
            Some(_) => self.release_window_page(page),
            none => {
                *none = Some(WindowPage { page, pin_count: 0, evict_last: false });
                self.window_pages.idle.push(id.0);
            }
        }
    }

    /// Releases the unpinned window page that was taken from a node.
    pub(super) fn drop_window_page(&mut self, id: NodeId, window: Option<WindowPage>) {
        if let Some(window) = window {
            self.window_pages.idle.remove(id.0);
            self.window_pages.idle_evict_last.remove(id.0);
            self.release_window_page(window.page);
        }
    }

    /// Window page of a node, if present.
    pub fn window_page(&self, id: NodeId) -> Option<u32> {
        self.node(id).window.as_ref().map(|window| window.page)
    }

    /// Pins the window pages of these nodes for one more sequence.
    pub fn pin_window_pages(&mut self, nodes: &[NodeId]) {
        for &id in nodes {
            if let Some(window) = &mut self.node_mut(id).window {
                window.pin_count += 1;
                self.window_pages.idle.remove(id.0);
                self.window_pages.idle_evict_last.remove(id.0);
            }
        }
    }

    /// Undoes [`PagePool::pin_window_pages`] for a node; `evict_last` makes it evicted last.
    pub fn unpin_window_page(&mut self, id: NodeId, evict_last: bool) {
        let Some(window) = &mut self.node_mut(id).window else { return };
        window.pin_count -= 1;
        window.evict_last |= evict_last;
        match (window.pin_count, window.evict_last) {
            (0, false) => self.window_pages.idle.push(id.0),
            (0, true) => self.window_pages.idle_evict_last.push(id.0),
            _ => {}
        }
    }

    /// Marks the window page of a node as one to evict last.
    pub fn evict_window_page_last(&mut self, id: NodeId) {
        self.pin_window_pages(&[id]);
        self.unpin_window_page(id, true);
    }

    /// Nodes of a path with window pages that the next token of a sequence of `tokens` tokens sees.
    pub fn pages_in_window<'a>(&self, path: &'a [NodeId], tokens: usize) -> &'a [NodeId] {
        let first = self.window_pages.windows.first_seen(tokens) / PAGE_TOKENS;
        &path[first.min(path.len())..]
    }

    /// Whether all window pages of a path that the next token sees are present.
    pub fn has_all_window_pages(&self, path: &[NodeId], tokens: usize) -> bool {
        !self.has_window_pages()
            || self.pages_in_window(path, tokens).iter().all(|&id| self.node(id).window.is_some())
    }

    /// Shortens a cached prefix until all window pages that its next token sees are present.
    pub(super) fn truncate_to_window_pages(&self, found: Match) -> Match {
        if !self.has_window_pages() {
            return found;
        }
        let Match { mut path, mut partial, state, matched_tokens } = found;
        loop {
            let tokens = path.len() * PAGE_TOKENS + partial.map_or(0, |(_, tokens)| tokens);
            let is_there = |id: NodeId| self.node(id).window.is_some();
            // A partial page without a window page is of no use.
            if partial.is_some_and(|(id, _)| !is_there(id)) {
                partial = None;
                continue;
            }
            let present = self
                .pages_in_window(&path, tokens)
                .iter()
                .rev()
                .take_while(|&&id| is_there(id))
                .count();
            if present == self.pages_in_window(&path, tokens).len() {
                return Match { path, partial, state, matched_tokens };
            }
            // The prefix ends before the missing page.
            path.truncate(path.len() - present - 1);
            partial = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use puna_graph::Mask;

    use super::super::node::{CacheScope, Parent, PrefixTreeKey};
    use super::*;
    use crate::request::CacheNamespace;

    /// Pool of a model with layers of this mask, `count` full pages in the tree, and the tokens
    /// and nodes of these pages.
    fn chain(mask: Mask, count: usize, total: usize) -> (PagePool, Vec<u32>, Vec<NodeId>) {
        let mut pages =
            PagePool::new(count + 2).with_window_pages(Windows::new([mask].into_iter()), total);
        let tokens: Vec<u32> = (0..(count * PAGE_TOKENS) as u32).collect();
        let (mut parent, mut nodes) = (Parent::Root(PrefixTreeKey::default()), Vec::new());
        for tokens in tokens.chunks(PAGE_TOKENS) {
            let page = pages.take().unwrap();
            let node = pages.insert(&parent, CacheNamespace(0), page, tokens);
            parent = Parent::Node(node);
            nodes.push(node);
        }
        (pages, tokens, nodes)
    }

    fn found(pages: &PagePool, tokens: &[u32]) -> usize {
        pages.find(&CacheScope::default(), tokens).tokens()
    }

    #[test]
    fn a_window_needs_the_same_few_pages_at_any_position() {
        for mask in [
            Mask::Window(1),
            Mask::Window(64),
            Mask::Window(65),
            Mask::Window(200),
            Mask::Chunk(100),
        ] {
            let windows = Windows::new([mask, Mask::Causal, mask].into_iter());
            for (computed, rows) in
                (0..700).flat_map(|cached_tokens| [1, 16, 130].map(|rows| (cached_tokens, rows)))
            {
                let first = windows.first_seen(computed) / PAGE_TOKENS;
                let pages = (computed + rows).div_ceil(PAGE_TOKENS) - first;
                assert!(pages <= windows.pages(rows), "{mask:?}, {rows} rows behind {computed}");
            }
        }
        assert!(Windows::new([Mask::Causal].into_iter()).is_empty());
    }

    #[test]
    fn a_cached_prefix_ends_where_a_window_page_is_missing() {
        // The page before and the own one.
        let (mut pages, tokens, nodes) = chain(Mask::Window(60), 6, 6);
        assert_eq!(found(&pages, &tokens), 384);
        // That of the page used longest ago, of which what follows sees nothing.
        pages.take_window_page().unwrap();
        assert_eq!(pages.window_page(nodes[0]), None);
        assert_eq!(found(&pages, &tokens), 384);
        assert_eq!(found(&pages, &tokens[..64]), 0, "the next token would see it");
        assert_eq!(found(&pages, &tokens[..100]), 0);
        assert_eq!(found(&pages, &tokens[..123]), 123, "and none of it from here on");
        // Without the fourth nothing that ends in it or shortly after.
        pages.pin_window_pages(&[nodes[1], nodes[2], nodes[4], nodes[5]]);
        pages.take_window_page().unwrap();
        assert_eq!(pages.window_page(nodes[3]), None);
        assert_eq!(found(&pages, &tokens[..256]), 192);
        assert_eq!(found(&pages, &tokens[..310]), 192);
        assert_eq!(found(&pages, &tokens[..320]), 320);
    }

    #[test]
    fn at_the_border_of_a_chunk_no_window_page_is_needed() {
        let (mut pages, tokens, _) = chain(Mask::Chunk(96), 3, 3);
        (0..3).for_each(|_| assert!(pages.take_window_page().is_some()));
        assert_eq!([192, 191, 96, 97, 95].map(|n| found(&pages, &tokens[..n])), [192, 0, 0, 0, 0]);
        assert_eq!(pages.take_window_page(), None);
    }

    #[test]
    fn preferred_window_pages_are_evicted_last_and_pinned_ones_never() {
        let (mut pages, _, nodes) = chain(Mask::Window(60), 4, 4);
        pages.pin_window_pages(&nodes);
        assert_eq!((pages.window_pages_available(&[]), pages.take_window_page()), (0, None));
        assert!(pages.take().is_none(), "there is no page of the other kind alone");
        pages.unpin_window_page(nodes[0], true);
        pages.unpin_window_page(nodes[1], false);
        pages.unpin_window_page(nodes[2], true);
        assert_eq!(
            (pages.window_pages_available(&[]), pages.window_pages_available(&nodes[..2])),
            (3, 1)
        );
        assert_eq!(pages.window_page_counts(), [4, 4, 1]);
        for gone in [1, 0, 2] {
            let page = pages.window_page(nodes[gone]);
            assert_eq!((pages.take_window_page(), pages.window_page(nodes[gone])), (page, None));
        }
        assert_eq!(pages.take_window_page(), None);
    }

    #[test]
    fn a_recomputed_page_restores_an_evicted_window_page() {
        let (mut pages, tokens, nodes) = chain(Mask::Window(60), 2, 3);
        // The free one, and that of the first node.
        let two = [(); 2].map(|()| pages.take_window_page().unwrap());
        two.into_iter().for_each(|page| pages.release_window_page(page));
        assert_eq!(pages.window_page(nodes[0]), None);
        let again = pages.take().unwrap();
        let root = Parent::Root(PrefixTreeKey::default());
        assert_eq!(pages.insert(&root, CacheNamespace(0), again, &tokens[..64]), nodes[0]);
        assert_eq!(pages.window_page(nodes[0]), again.window);
        // A second window page, or a part of a page, changes nothing.
        for part in [64, 10] {
            let (before, page) = (pages.window_page(nodes[0]), pages.take().unwrap());
            assert_eq!(pages.insert(&root, CacheNamespace(0), page, &tokens[..part]), nodes[0]);
            assert_eq!(pages.window_page(nodes[0]), before);
        }
        assert_eq!((pages.window_page_counts(), pages.in_use()), ([3, 2, 0], 2));
        // A part of a page does not stand for the whole.
        let all = [(); 3].map(|()| pages.take_window_page().unwrap());
        all.into_iter().for_each(|page| pages.release_window_page(page));
        let page = pages.take().unwrap();
        assert_eq!(pages.insert(&root, CacheNamespace(0), page, &tokens[..10]), nodes[0]);
        assert_eq!((pages.window_page(nodes[0]), pages.window_page_counts()), (None, [3, 0, 0]));
    }
}
