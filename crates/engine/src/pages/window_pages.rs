//! Pages of layers that only keep what is near: a sliding window, or a chunk of positions.
//!
//! Such layers have pages of their own, as many as windows take. A running sequence uses those that hold what its next token
//! sees; behind that they stay with their nodes as long as nobody needs them, for others that begin there. So the tree
//! may know tokens whose recent pages are gone, and what it has of a prompt ends where all that the next token sees
//! is still there.

use puna_graph::Mask;

use super::{Match, NodeId, PAGE_TOKENS, Pages};

/// What layers see, and the pages that nobody has.
#[derive(Debug, Default)]
pub struct Recent {
    windows: Windows,
    free: Vec<u32>,
    total: usize,
}

/// The recent page of a node.
#[derive(Debug)]
pub struct RecentPage {
    page: u32,
    /// Running sequences whose next tokens see it.
    users: usize,
    last_used: u64,
    /// It holds what the end of a text, or the place where texts part, sees. Others go first.
    valued: bool,
}

/// How far layers see that do not see everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Windows(Vec<Mask>);

impl Windows {
    /// Those of some layers, each named once.
    pub fn new(masks: impl Iterator<Item = Mask>) -> Self {
        let mut windows = Vec::new();
        for mask in masks.filter(|mask| mask.reach().is_some()) {
            if !windows.contains(&mask) {
                windows.push(mask);
            }
        }
        Self(windows)
    }

    /// Whether all layers see everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first position that the token at `position` sees in any of them, and those behind it ever will.
    pub fn first_seen(&self, position: usize) -> usize {
        self.0.iter().map(|mask| mask.first_seen(position)).min().unwrap_or(0)
    }

    /// Pages that a sequence's next `rows` tokens see at most, wherever they are.
    pub fn pages(&self, rows: usize) -> usize {
        let reach = self.0.iter().filter_map(|mask| mask.reach()).max().unwrap_or(0);
        // The token before may be computed again, where it was a guess that did not come true.
        (reach + rows).div_ceil(PAGE_TOKENS) + 1
    }
}

impl Pages {
    /// The same for a model with layers that do not see everything, and so many pages for them.
    #[must_use]
    pub fn with_recent(self, windows: Windows, total: usize) -> Self {
        let free = if windows.is_empty() { Vec::new() } else { (0..total as u32).rev().collect() };
        Self { recent: Recent { total: free.len(), windows, free }, ..self }
    }

    /// Whether some layers do not see everything.
    pub fn has_window_pages(&self) -> bool {
        !self.recent.windows.is_empty()
    }

    /// How far these layers see.
    pub fn windows(&self) -> &Windows {
        &self.recent.windows
    }

    /// Recent pages in all, those that hold something, and those that somebody uses now.
    pub fn window_page_counts(&self) -> [usize; 3] {
        let in_use = self.recent.total - self.recent.free.len();
        [self.recent.total, in_use, in_use - self.idle_recent(self.nodes.iter().flatten())]
    }

    fn idle_recent<'a>(&self, nodes: impl Iterator<Item = &'a super::Node>) -> usize {
        nodes.filter(|node| node.recent.as_ref().is_some_and(|kept| kept.users == 0)).count()
    }

    /// Recent pages that a sequence could have beside those of these nodes, without taking one from a running sequence.
    pub fn window_pages_available(&self, path: &[NodeId]) -> usize {
        let own = self.idle_recent(path.iter().map(|&id| self.node(id)));
        self.recent.free.len() + self.idle_recent(self.nodes.iter().flatten()) - own
    }

    /// A recent page, dropping another if need be: one that is worth little, of these the one used longest ago.
    pub fn take_window_page(&mut self) -> Option<u32> {
        self.recent.free.pop().or_else(|| {
            let kept = self.nodes.iter_mut().flatten().map(|node| &mut node.recent);
            let idle = kept.filter(|kept| kept.as_ref().is_some_and(|kept| kept.users == 0));
            let first = idle.min_by_key(|kept| kept.as_ref().map(|kept| (kept.valued, kept.last_used)));
            first.and_then(Option::take).map(|kept| kept.page)
        })
    }

    /// Gives back a recent page that was taken.
    pub fn release_window_page(&mut self, page: u32) {
        self.recent.free.push(page);
    }

    /// What a node is to keep of a page that comes into the tree now.
    pub(super) fn kept(&self, page: u32) -> RecentPage {
        RecentPage { page, users: 0, last_used: self.clock, valued: false }
    }

    /// Has a node keep a recent page. Where it has one it stays, and the page is given back.
    pub(super) fn keep_recent(&mut self, id: NodeId, page: u32) {
        let kept = self.kept(page);
        match &mut self.node_mut(id).recent {
            Some(_) => self.release_window_page(page),
            none => *none = Some(kept),
        }
    }

    /// Gives back what a node kept.
    pub(super) fn drop_recent(&mut self, kept: Option<RecentPage>) {
        kept.into_iter().for_each(|kept| self.release_window_page(kept.page));
    }

    /// The recent page of a node, if it is still there.
    pub fn recent_page(&self, id: NodeId) -> Option<u32> {
        self.node(id).recent.as_ref().map(|kept| kept.page)
    }

    /// Marks the recent pages of these nodes as used by one more sequence.
    pub fn pin_window_pages(&mut self, nodes: &[NodeId]) {
        for &id in nodes {
            if let Some(kept) = &mut self.node_mut(id).recent {
                kept.users += 1;
            }
        }
    }

    /// Undoes [`Pages::pin_window_pages`] for a node. Whether it is of value to others only adds to what is known of it.
    pub fn unpin_window_page(&mut self, id: NodeId, valued: bool) {
        self.clock += 1;
        let last_used = self.clock;
        if let Some(kept) = &mut self.node_mut(id).recent {
            kept.users -= 1;
            kept.valued |= valued;
            kept.last_used = last_used;
        }
    }

    /// Notes that others may begin behind a node.
    pub fn keep_window_page_longer(&mut self, id: NodeId) {
        self.pin_window_pages(&[id]);
        self.unpin_window_page(id, true);
    }

    /// The nodes of a path whose recent pages the next token sees, when the path's sequence has so many tokens.
    pub fn seen_of<'a>(&self, path: &'a [NodeId], tokens: usize) -> &'a [NodeId] {
        let first = self.recent.windows.first_seen(tokens) / PAGE_TOKENS;
        &path[first.min(path.len())..]
    }

    /// Whether all recent pages of a path that the next token sees are still there.
    pub fn sees_all(&self, path: &[NodeId], tokens: usize) -> bool {
        !self.has_window_pages()
            || self.seen_of(path, tokens).iter().all(|&id| self.node(id).recent.is_some())
    }

    /// So much of what was found as has all recent pages that the token behind it sees.
    pub(super) fn up_to_what_is_seen(&self, found: Match) -> Match {
        if !self.has_window_pages() {
            return found;
        }
        let Match { mut path, mut partial, state, seen } = found;
        loop {
            let tokens = path.len() * PAGE_TOKENS + partial.map_or(0, |(_, tokens)| tokens);
            let is_there = |id: NodeId| self.node(id).recent.is_some();
            // Others may go on from a page that is begun before what this text sees of it.
            if partial.is_some_and(|(id, _)| !is_there(id)) {
                partial = None;
                continue;
            }
            let kept = self.seen_of(&path, tokens).iter().rev().take_while(|&&id| is_there(id)).count();
            if kept == self.seen_of(&path, tokens).len() {
                return Match { path, partial, state, seen };
            }
            // What lies behind the page that is gone can be of use only with it.
            path.truncate(path.len() - kept - 1);
            partial = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Parent, PrefixTreeKey};
    use super::*;

    /// Pages of a model with a window of so many tokens, `count` of them full and in the tree; and their tokens and nodes.
    fn chain(mask: Mask, count: usize, recent: usize) -> (Pages, Vec<u32>, Vec<NodeId>) {
        let mut pages = Pages::new(count + 2).with_recent(Windows::new([mask].into_iter()), recent);
        let tokens: Vec<u32> = (0..(count * PAGE_TOKENS) as u32).collect();
        let (mut parent, mut nodes) = (Parent::Root(PrefixTreeKey::default()), Vec::new());
        for tokens in tokens.chunks(PAGE_TOKENS) {
            let page = pages.take().unwrap();
            let node = pages.insert(&parent, page, tokens);
            parent = Parent::Node(node);
            nodes.push(node);
        }
        (pages, tokens, nodes)
    }

    fn found(pages: &Pages, tokens: &[u32]) -> usize {
        pages.find(&PrefixTreeKey::default(), tokens).tokens()
    }

    #[test]
    fn a_window_sees_a_few_pages_wherever_it_is() {
        for mask in [Mask::Window(1), Mask::Window(64), Mask::Window(65), Mask::Window(200), Mask::Chunk(100)]
        {
            let windows = Windows::new([mask, Mask::Causal, mask].into_iter());
            for (computed, rows) in (0..700).flat_map(|past| [1, 16, 130].map(|rows| (past, rows))) {
                let first = windows.first_seen(computed) / PAGE_TOKENS;
                let pages = (computed + rows).div_ceil(PAGE_TOKENS) - first;
                assert!(pages <= windows.pages(rows), "{mask:?}, {rows} rows behind {computed}");
            }
        }
        assert!(Windows::new([Mask::Causal].into_iter()).is_empty());
    }

    #[test]
    fn a_prompt_is_known_as_far_as_what_it_sees_is_there() {
        // The page before and the own one.
        let (mut pages, tokens, nodes) = chain(Mask::Window(60), 6, 6);
        assert_eq!(found(&pages, &tokens), 384);
        // That of the page used longest ago, of which what follows sees nothing.
        pages.take_window_page().unwrap();
        assert_eq!(pages.recent_page(nodes[0]), None);
        assert_eq!(found(&pages, &tokens), 384);
        assert_eq!(found(&pages, &tokens[..64]), 0, "the next token would see it");
        assert_eq!(found(&pages, &tokens[..100]), 0);
        assert_eq!(found(&pages, &tokens[..123]), 123, "and none of it from here on");
        // Without the fourth nothing that ends in it or shortly after.
        pages.pin_window_pages(&[nodes[1], nodes[2], nodes[4], nodes[5]]);
        pages.take_window_page().unwrap();
        assert_eq!(pages.recent_page(nodes[3]), None);
        assert_eq!(found(&pages, &tokens[..256]), 192);
        assert_eq!(found(&pages, &tokens[..310]), 192);
        assert_eq!(found(&pages, &tokens[..320]), 320);
    }

    #[test]
    fn at_the_border_of_a_chunk_nothing_is_seen() {
        let (mut pages, tokens, _) = chain(Mask::Chunk(96), 3, 3);
        (0..3).for_each(|_| assert!(pages.take_window_page().is_some()));
        assert_eq!([192, 191, 96, 97, 95].map(|n| found(&pages, &tokens[..n])), [192, 0, 0, 0, 0]);
        assert_eq!(pages.take_window_page(), None);
    }

    #[test]
    fn what_is_worth_little_goes_first_and_what_is_used_stays() {
        let (mut pages, _, nodes) = chain(Mask::Window(60), 4, 4);
        pages.pin_window_pages(&nodes);
        assert_eq!((pages.window_pages_available(&[]), pages.take_window_page()), (0, None));
        assert!(pages.take().is_none(), "there is no page of the other kind alone");
        pages.unpin_window_page(nodes[0], true);
        pages.unpin_window_page(nodes[1], false);
        pages.unpin_window_page(nodes[2], true);
        assert_eq!((pages.window_pages_available(&[]), pages.window_pages_available(&nodes[..2])), (3, 1));
        assert_eq!(pages.window_page_counts(), [4, 4, 1]);
        for gone in [1, 0, 2] {
            let page = pages.recent_page(nodes[gone]);
            assert_eq!((pages.take_window_page(), pages.recent_page(nodes[gone])), (page, None));
        }
        assert_eq!(pages.take_window_page(), None);
    }

    #[test]
    fn a_page_that_was_computed_again_brings_back_what_was_gone() {
        let (mut pages, tokens, nodes) = chain(Mask::Window(60), 2, 3);
        // The free one, and that of the first node.
        let two = [(); 2].map(|()| pages.take_window_page().unwrap());
        two.into_iter().for_each(|page| pages.release_window_page(page));
        assert_eq!(pages.recent_page(nodes[0]), None);
        let again = pages.take().unwrap();
        let root = Parent::Root(PrefixTreeKey::default());
        assert_eq!(pages.insert(&root, again, &tokens[..64]), nodes[0]);
        assert_eq!(pages.recent_page(nodes[0]), again.recent);
        // With one that is there, and with a part of a page, nothing changes.
        for part in [64, 10] {
            let (before, page) = (pages.recent_page(nodes[0]), pages.take().unwrap());
            assert_eq!(pages.insert(&root, page, &tokens[..part]), nodes[0]);
            assert_eq!(pages.recent_page(nodes[0]), before);
        }
        assert_eq!((pages.window_page_counts(), pages.in_use()), ([3, 2, 0], 2));
        // A part of a page does not stand for the whole.
        let all = [(); 3].map(|()| pages.take_window_page().unwrap());
        all.into_iter().for_each(|page| pages.release_window_page(page));
        let page = pages.take().unwrap();
        assert_eq!(pages.insert(&root, page, &tokens[..10]), nodes[0]);
        assert_eq!((pages.recent_page(nodes[0]), pages.window_page_counts()), (None, [3, 0, 0]));
    }
}
