//! KV pages and recurrent state of a sequence: taken from the prefix tree when it starts, and given
//! to the tree when it ends.

use puna_graph::{Segment, SegmentWindowPages};

use super::node::{CacheCopy, CacheScope, Match, NodeId, PAGE_TOKENS, Page, Parent};
use super::page_pool::PagePool;
use crate::request::CacheNamespace;

/// Smallest distance between state checkpoints in a prompt, in tokens.
const MIN_CHECKPOINT_DISTANCE: usize = 8 * PAGE_TOKENS;
/// Approximate number of state checkpoints in a long prompt.
const CHECKPOINTS_PER_PROMPT: usize = 8;

/// KV pages of a sequence: shared pages of the prefix tree first, then private pages. And its
/// recurrent state, if the model has recurrent layers.
#[derive(Debug, Default)]
pub struct SequencePages {
    /// Pinned full pages of the prefix tree.
    path: Vec<NodeId>,
    /// Private pages, in order.
    private: Vec<Page>,
    /// Index in `path` of the first window page in use. The windows of the next token do not reach
    /// earlier pages.
    first_window_page: usize,
    /// Positions where other sequences are likely to continue: end of the prompt, and divergence
    /// from the tree. Window pages that their next tokens see are evicted last.
    likely_branch_positions: [usize; 2],
    /// Cached pages that the sequence finds and adds.
    scope: CacheScope,
    /// Slot of the recurrent state after all computed tokens.
    state: Option<u32>,
    /// State checkpoints with their positions, until their page is in the tree.
    checkpoints: Vec<(usize, u32)>,
    /// Position up to which the tree has pages of the prompt but no state or window pages. Other
    /// sequences will diverge here, too.
    divergence: usize,
}

impl SequencePages {
    /// Cached pages that the sequence finds and adds.
    pub fn scope(&self) -> &CacheScope {
        &self.scope
    }

    /// Finds the cached prefix of `tokens`. Returns its pages and its length in tokens.
    ///
    /// Full pages are shared. If a page matches only in part, its beginning is copied
    /// ([`PagePool::take_copies`]): from the tree, or from a running sequence among `others` that
    /// has just computed it. A model with recurrent layers needs a free state slot. The input of
    /// an encoder is found as a whole or not at all.
    pub fn start_from_cache<'a>(
        pages: &mut PagePool,
        scope: &CacheScope,
        tokens: &[u32],
        others: impl Iterator<Item = (&'a Self, &'a [u32])>,
    ) -> (Self, usize) {
        let found = pages.find(scope, tokens);
        if pages.has_states() {
            return Self::start_from_checkpoint(pages, (scope, tokens), found, others);
        }
        let mut computed = found.path.len() * PAGE_TOKENS;
        // The private page of a running sequence, if it matches further than the tree.
        let tree_partial_tokens = found.partial.map_or(0, |(_, tokens)| tokens);
        let same_path =
            others.filter(|(other, _)| other.scope.shares_with(scope) && other.path == found.path);
        let unfinished = same_path.filter_map(|(other, other_tokens)| {
            let rest = other_tokens.get(computed..)?.iter().zip(&tokens[computed..]);
            let common = rest.take_while(|(a, b)| a == b);
            Some((*other.private.first()?, common.take(PAGE_TOKENS).count()))
        });
        let unfinished = unfinished
            .max_by_key(|(_, tokens)| *tokens)
            .filter(|(_, tokens)| *tokens > tree_partial_tokens);
        let partial_tokens = unfinished.map_or(tree_partial_tokens, |(_, tokens)| tokens);
        if computed + partial_tokens < scope.key.encoder_input.len() {
            return (Self::pin_path(pages, Vec::new(), 0, scope), 0);
        }
        let mut sequence = Self::pin_path(pages, found.path, computed + partial_tokens, scope);
        sequence.likely_branch_positions =
            [tokens.len(), found.matched_tokens / PAGE_TOKENS * PAGE_TOKENS];
        let copied = match (unfinished, found.partial) {
            (Some((page, _)), _) => sequence.copy(pages, page),
            (None, Some((node, _))) => sequence.copy_node(pages, node),
            (None, None) => true,
        };
        if copied {
            computed += partial_tokens;
        } else if pages.has_window_pages() || computed < scope.key.encoder_input.len() {
            // Without this page, windows would lack positions, or the encoder's input would be
            // incomplete.
            return (sequence.discard(pages), 0);
        }
        (sequence, computed)
    }

    /// Pins a path of the tree for a sequence that continues after `tokens` tokens.
    fn pin_path(
        pages: &mut PagePool,
        path: Vec<NodeId>,
        tokens: usize,
        scope: &CacheScope,
    ) -> Self {
        pages.pin(&path);
        let in_window = pages.pages_in_window(&path, tokens);
        pages.pin_window_pages(in_window);
        let first_window_page = path.len() - in_window.len();
        Self { path, first_window_page, scope: scope.clone(), ..Self::default() }
    }

    /// Releases all pages and returns an empty value.
    fn discard(mut self, pages: &mut PagePool) -> Self {
        self.private.drain(..).for_each(|page| pages.release_page(page));
        self.unpin_path(pages);
        self
    }

    /// Unpins the pages of the tree.
    fn unpin_path(&mut self, pages: &mut PagePool) {
        let path = std::mem::take(&mut self.path);
        path[self.first_window_page..].iter().for_each(|&node| pages.unpin_window_page(node, true));
        self.first_window_page = 0;
        pages.unpin(&path);
    }

    /// [`SequencePages::start_from_cache`] for models with recurrent layers: the prefix ends at a
    /// state checkpoint.
    fn start_from_checkpoint<'a>(
        pages: &mut PagePool,
        (scope, tokens): (&CacheScope, &[u32]),
        found: Match,
        others: impl Iterator<Item = (&'a Self, &'a [u32])>,
    ) -> (Self, usize) {
        let divergence = found.matched_tokens / PAGE_TOKENS * PAGE_TOKENS;
        // A checkpoint of a running sequence at a later position, in a page that is not full yet.
        let checkpoints = others.flat_map(|(other, other_tokens)| {
            other.checkpoints.iter().map(move |checkpoint| (other, other_tokens, *checkpoint))
        });
        let later_checkpoint = checkpoints
            .filter(|(other, ..)| other.scope.shares_with(scope))
            .filter(|(other, other_tokens, (at, _))| {
                let is_later = *at > found.tokens() && at / PAGE_TOKENS == other.path.len();
                let has_same_tokens = other_tokens.len() >= *at
                    && tokens.len() >= *at
                    && other_tokens[..*at] == tokens[..*at];
                is_later && has_same_tokens && pages.has_all_window_pages(&other.path, *at)
            })
            .max_by_key(|(.., (at, _))| *at);
        let (path, from, computed) = match later_checkpoint {
            Some((other, _, (at, slot))) => (other.path.clone(), Some(slot), at),
            None => (found.path.clone(), found.state, found.tokens()),
        };
        let mut sequence = Self::pin_path(pages, path, computed, scope);
        (sequence.divergence, sequence.likely_branch_positions) =
            (divergence, [tokens.len(), divergence]);
        let partial_page_ready = match (later_checkpoint, found.partial) {
            _ if computed.is_multiple_of(PAGE_TOKENS) => true,
            (Some((other, ..)), _) => {
                other.private.first().is_some_and(|&page| sequence.copy(pages, page))
            }
            (None, Some((node, _))) => sequence.copy_node(pages, node),
            (None, None) => true,
        };
        from.iter().for_each(|&from| pages.touch_checkpoint(from));
        sequence.state = pages.take_state();
        if let (true, Some(from), Some(to)) = (partial_page_ready, from, sequence.state) {
            // If no other slot was free, the checkpoint itself was taken.
            if from != to {
                pages.record_copy(CacheCopy::State { from, to });
            }
            return (sequence, computed);
        }
        // A state is useless without all pages before it.
        (sequence.discard(pages), 0)
    }

    /// Appends a private copy of a page. Returns `false` if no page is free.
    fn copy(&mut self, pages: &mut PagePool, from: Page) -> bool {
        let Some(page) = pages.take() else { return false };
        pages.record_copy(CacheCopy::Page { from, to: page });
        self.private.push(page);
        true
    }

    /// Appends a private copy of a node's page. Pins the node during the copy, so that taking a
    /// page does not evict it.
    fn copy_node(&mut self, pages: &mut PagePool, node: NodeId) -> bool {
        let has_window_pages = pages.window_page(node).is_some();
        pages.pin(&[node]);
        pages.pin_window_pages(&[node]);
        let copied = self.copy(pages, pages.page(node));
        if has_window_pages {
            pages.unpin_window_page(node, true);
        }
        pages.unpin(&[node]);
        copied
    }

    /// The segment of a step that continues the sequence after `cached_tokens` tokens.
    pub fn segment(
        &self,
        pages: &PagePool,
        first_row: usize,
        rows: usize,
        cached_tokens: usize,
    ) -> Segment {
        let shared = |from: usize| self.path[from..].iter().map(|&id| pages.page(id));
        let own = || self.private.iter().copied();
        let window_pages = if pages.has_window_pages() {
            let all = shared(self.first_window_page).chain(own());
            all.map(|page| page.window.expect("window pages in use stay")).collect()
        } else {
            Vec::new()
        };
        Segment {
            first_row,
            rows,
            cached_tokens,
            pages: shared(0).chain(own()).map(|page| page.full).collect(),
            window_pages: SegmentWindowPages { first: self.first_window_page, pages: window_pages },
            encoder_tokens: self.scope.key.encoder_input.len(),
            state: self.state.unwrap_or(0),
            ..Segment::default()
        }
    }

    /// Number of window pages in use.
    pub fn window_pages(&self) -> usize {
        self.path.len() - self.first_window_page + self.private.len()
    }

    /// Capacity of the pages in tokens.
    pub fn capacity_tokens(&self) -> usize {
        (self.path.len() + self.private.len()) * PAGE_TOKENS
    }

    /// Takes pages until the capacity is `tokens`. Returns `false` if no page is free.
    pub fn grow(&mut self, pages: &mut PagePool, tokens: usize) -> bool {
        while self.capacity_tokens() < tokens {
            match pages.take() {
                Some(page) => self.private.push(page),
                None => return false,
            }
        }
        true
    }

    /// Releases private pages that `tokens` tokens do not need.
    pub fn shrink(&mut self, pages: &mut PagePool, tokens: usize) {
        while self.capacity_tokens() >= tokens + PAGE_TOKENS
            && let Some(page) = self.private.pop()
        {
            pages.release_page(page);
        }
    }

    /// Position of the next state checkpoint in a prompt of `tokens` tokens, of which `computed`
    /// are computed: at regular distances, at the divergence from the tree, and before the last
    /// token, which is always computed again.
    pub fn next_checkpoint(&self, computed: usize, tokens: usize) -> usize {
        let apart =
            (tokens / CHECKPOINTS_PER_PROMPT).next_power_of_two().max(MIN_CHECKPOINT_DISTANCE);
        let positions = [(computed / apart + 1) * apart, self.divergence, tokens.saturating_sub(1)];
        positions.into_iter().filter(|&at| at > computed).min().unwrap_or(usize::MAX)
    }

    /// Makes a state checkpoint after `computed` tokens, if a slot is free.
    pub fn add_checkpoint(&mut self, pages: &mut PagePool, computed: usize) {
        let Some(from) = self.state else { return };
        let Some(slot) = pages.take_state() else { return };
        pages.record_copy(CacheCopy::State { from, to: slot });
        self.checkpoints.push((computed, slot));
    }

    /// Releases the checkpoints that are not in the tree yet, so that another sequence gets a slot.
    pub fn drop_checkpoints(&mut self, pages: &mut PagePool) {
        self.checkpoints.drain(..).for_each(|(_, slot)| pages.release_state(slot));
    }

    /// Moves full private pages to the tree, where other sequences find them at once. `computed`
    /// are the computed tokens; rejected draft tokens behind them are not published.
    pub fn publish(&mut self, pages: &mut PagePool, computed: &[u32]) {
        while !self.private.is_empty() && computed.len() >= (self.path.len() + 1) * PAGE_TOKENS {
            let start = self.path.len() * PAGE_TOKENS;
            let tokens = &computed[start..start + PAGE_TOKENS];
            let node =
                pages.insert(&self.last(), self.next_namespace(), self.private.remove(0), tokens);
            pages.pin(&[node]);
            pages.pin_window_pages(&[node]);
            self.path.push(node);
            self.store_checkpoints(pages, node, start);
        }
        self.slide_window(pages, computed.len());
    }

    /// Unpins window pages that the next tokens do not see. A draft model may compute the latest
    /// token again.
    fn slide_window(&mut self, pages: &mut PagePool, computed: usize) {
        let in_window = pages.pages_in_window(&self.path, computed.saturating_sub(1)).len();
        while pages.has_window_pages() && self.first_window_page < self.path.len() - in_window {
            let from = self.first_window_page * PAGE_TOKENS;
            // One page more, for sequences that diverge a little earlier.
            let is_seen_from = |position: usize| {
                from < position && pages.windows().first_seen(position) < from + 2 * PAGE_TOKENS
            };
            let evict_last =
                self.likely_branch_positions.iter().any(|&position| is_seen_from(position));
            pages.unpin_window_page(self.path[self.first_window_page], evict_last);
            self.first_window_page += 1;
        }
    }

    /// Parent of the private pages in the tree.
    fn last(&self) -> Parent {
        self.path
            .last()
            .map_or_else(|| Parent::Root(self.scope.key.clone()), |&id| Parent::Node(id))
    }

    /// Namespace of the first private page.
    fn next_namespace(&self) -> CacheNamespace {
        self.scope.namespace_of_page(self.path.len())
    }

    /// Moves the checkpoints in a node's page, which begins after `start` tokens, to the node.
    fn store_checkpoints(&mut self, pages: &mut PagePool, node: NodeId, start: usize) {
        self.checkpoints.retain(|&(at, slot)| {
            let is_here = at > start && at <= start + PAGE_TOKENS;
            if is_here {
                pages.store_checkpoint(node, at - start, slot);
            }
            !is_here
        });
    }

    /// Moves all pages and the state to the tree.
    pub fn release(mut self, pages: &mut PagePool, computed: &[u32]) {
        self.publish(pages, computed);
        let start = (self.path.len() * PAGE_TOKENS).min(computed.len());
        let rest = &computed[start..];
        let mut last = self.path.last().map(|&node| (node, PAGE_TOKENS));
        let (parent, namespace) = (self.last(), self.next_namespace());
        for (i, page) in std::mem::take(&mut self.private).into_iter().enumerate() {
            if i == 0 && !rest.is_empty() {
                let node = pages.insert(&parent, namespace, page, rest);
                pages.evict_window_page_last(node);
                self.store_checkpoints(pages, node, start);
                last = Some((node, rest.len()));
            } else {
                pages.release_page(page);
            }
        }
        match (self.state.take(), last) {
            (Some(slot), Some((node, tokens))) if !computed.is_empty() => {
                pages.store_checkpoint(node, tokens, slot)
            }
            (Some(slot), _) => pages.release_state(slot),
            (None, _) => {}
        }
        self.drop_checkpoints(pages);
        self.unpin_path(pages);
    }
}
