//! KV pages and recurrent state of a sequence: taken from the prefix tree when it starts, and given
//! to the tree when it ends.

use puna_graph::{Segment, SegmentWindowPages};

use super::node::{CacheCopy, Match, NodeId, PAGE_TOKENS, Page, Parent, PrefixTreeKey};
use super::page_pool::Pages;

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
    own: Vec<Page>,
    /// Index in `path` of the first window page in use. The windows of the next token do not reach
    /// earlier pages.
    first_window_page: usize,
    /// Positions where other sequences are likely to continue: end of the prompt, and divergence
    /// from the tree. Window pages that they see are evicted last.
    places: [usize; 2],
    /// Root of the prefix tree: everything that the pages depend on besides tokens.
    origin: PrefixTreeKey,
    /// Slot of the recurrent state after all computed tokens.
    state: Option<u32>,
    /// State checkpoints with their positions, until their page is in the tree.
    checkpoints: Vec<(usize, u32)>,
    /// Position up to which the tree has pages of the prompt but no state or window pages. Other
    /// sequences will diverge here, too.
    divergence: usize,
}

impl SequencePages {
    /// Finds the cached prefix of `tokens`. Returns its pages and its length in tokens.
    ///
    /// Full pages are shared. If a page matches only in part, its beginning is copied
    /// ([`Pages::take_copies`]): from the tree, or from a running sequence among `others` that has
    /// just computed it. A model with recurrent layers needs a free state slot. The input of an
    /// encoder is found as a whole or not at all.
    pub fn find<'a>(
        pages: &mut Pages,
        origin: &PrefixTreeKey,
        tokens: &[u32],
        others: impl Iterator<Item = (&'a Self, &'a [u32])>,
    ) -> (Self, usize) {
        let found = pages.find(origin, tokens);
        if pages.has_states() {
            return Self::with_state(pages, (origin, tokens), found, others);
        }
        let mut computed = found.path.len() * PAGE_TOKENS;
        // The private page of a running sequence, if it matches further than the tree.
        let least = found.partial.map_or(0, |(_, tokens)| tokens);
        let alike = others.filter(|(held, _)| held.origin == *origin && held.path == found.path);
        let unfinished = alike.filter_map(|(held, theirs)| {
            let common =
                theirs.get(computed..)?.iter().zip(&tokens[computed..]).take_while(|(a, b)| a == b);
            Some((*held.own.first()?, common.take(PAGE_TOKENS).count()))
        });
        let unfinished =
            unfinished.max_by_key(|(_, tokens)| *tokens).filter(|(_, tokens)| *tokens > least);
        let more = unfinished.map_or(least, |(_, tokens)| tokens);
        if computed + more < origin.read.len() {
            return (Self::pin_path(pages, Vec::new(), 0, origin), 0);
        }
        let mut held = Self::pin_path(pages, found.path, computed + more, origin);
        held.places = [tokens.len(), found.seen / PAGE_TOKENS * PAGE_TOKENS];
        let copied = match (unfinished, found.partial) {
            (Some((theirs, _)), _) => held.copy(pages, theirs),
            (None, Some((node, _))) => held.copy_node(pages, node),
            (None, None) => true,
        };
        if copied {
            computed += more;
        } else if pages.has_window_pages() || computed < origin.read.len() {
            // Without this page, windows would lack positions, or the encoder's input would be
            // incomplete.
            return (held.discard(pages), 0);
        }
        (held, computed)
    }

    /// Pins a path of the tree for a sequence that continues after `tokens` tokens.
    fn pin_path(
        pages: &mut Pages,
        path: Vec<NodeId>,
        tokens: usize,
        origin: &PrefixTreeKey,
    ) -> Self {
        pages.retain(&path);
        let seen = pages.seen_of(&path, tokens);
        pages.pin_window_pages(seen);
        let first_window_page = path.len() - seen.len();
        Self { path, first_window_page, origin: origin.clone(), ..Self::default() }
    }

    /// Releases all pages and returns an empty value.
    fn discard(mut self, pages: &mut Pages) -> Self {
        self.own.drain(..).for_each(|page| pages.release_page(page));
        self.leave_path(pages);
        self
    }

    /// Unpins the pages of the tree.
    fn leave_path(&mut self, pages: &mut Pages) {
        let path = std::mem::take(&mut self.path);
        path[self.first_window_page..].iter().for_each(|&node| pages.unpin_window_page(node, true));
        self.first_window_page = 0;
        pages.release(&path);
    }

    /// [`SequencePages::find`] for models with recurrent layers: the prefix ends at a state
    /// checkpoint.
    fn with_state<'a>(
        pages: &mut Pages,
        (origin, tokens): (&PrefixTreeKey, &[u32]),
        found: Match,
        others: impl Iterator<Item = (&'a Self, &'a [u32])>,
    ) -> (Self, usize) {
        let divergence = found.seen / PAGE_TOKENS * PAGE_TOKENS;
        // A checkpoint of a running sequence at a later position, in a page that is not full yet.
        let copies = others.flat_map(|(held, theirs)| {
            held.checkpoints.iter().map(move |copy| (held, theirs, *copy))
        });
        let theirs = copies
            .filter(|(held, ..)| held.origin == *origin)
            .filter(|(held, theirs, (at, _))| {
                let further = *at > found.tokens() && at / PAGE_TOKENS == held.path.len();
                let same =
                    theirs.len() >= *at && tokens.len() >= *at && theirs[..*at] == tokens[..*at];
                further && same && pages.sees_all(&held.path, *at)
            })
            .max_by_key(|(.., (at, _))| *at);
        let (path, from, computed) = match theirs {
            Some((held, _, (at, slot))) => (held.path.clone(), Some(slot), at),
            None => (found.path.clone(), found.state, found.tokens()),
        };
        let mut held = Self::pin_path(pages, path, computed, origin);
        (held.divergence, held.places) = (divergence, [tokens.len(), divergence]);
        let partial = match (theirs, found.partial) {
            _ if computed.is_multiple_of(PAGE_TOKENS) => true,
            (Some((theirs, ..)), _) => {
                theirs.own.first().is_some_and(|&page| held.copy(pages, page))
            }
            (None, Some((node, _))) => held.copy_node(pages, node),
            (None, None) => true,
        };
        from.iter().for_each(|&from| pages.touch_state(from));
        held.state = pages.take_state();
        if let (true, Some(from), Some(to)) = (partial, from, held.state) {
            // If no other slot was free, the checkpoint itself was taken.
            if from != to {
                pages.record_copy(CacheCopy::State { from, to });
            }
            return (held, computed);
        }
        // A state is useless without all pages before it.
        (held.discard(pages), 0)
    }

    /// Appends a private copy of a page. Returns `false` if no page is free.
    fn copy(&mut self, pages: &mut Pages, from: Page) -> bool {
        let Some(page) = pages.take() else { return false };
        pages.record_copy(CacheCopy::Page { from, to: page });
        self.own.push(page);
        true
    }

    /// Appends a private copy of a node's page. Pins the node during the copy, so that taking a
    /// page does not evict it.
    fn copy_node(&mut self, pages: &mut Pages, node: NodeId) -> bool {
        let has_window_pages = pages.window_page(node).is_some();
        pages.retain(&[node]);
        pages.pin_window_pages(&[node]);
        let copied = self.copy(pages, pages.page(node));
        if has_window_pages {
            pages.unpin_window_page(node, true);
        }
        pages.release(&[node]);
        copied
    }

    /// The segment of a step that continues the sequence after `cached_tokens` tokens.
    pub fn segment(
        &self,
        pages: &Pages,
        first_row: usize,
        rows: usize,
        cached_tokens: usize,
    ) -> Segment {
        let shared = |from: usize| self.path[from..].iter().map(|&id| pages.page(id));
        let own = || self.own.iter().copied();
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
            encoder_tokens: self.origin.read.len(),
            state: self.state.unwrap_or(0),
        }
    }

    /// Number of window pages in use.
    pub fn window_pages(&self) -> usize {
        self.path.len() - self.first_window_page + self.own.len()
    }

    /// Capacity of the pages in tokens.
    pub fn room(&self) -> usize {
        (self.path.len() + self.own.len()) * PAGE_TOKENS
    }

    /// Takes pages until the capacity is `tokens`. Returns `false` if no page is free.
    pub fn grow(&mut self, pages: &mut Pages, tokens: usize) -> bool {
        while self.room() < tokens {
            match pages.take() {
                Some(page) => self.own.push(page),
                None => return false,
            }
        }
        true
    }

    /// Releases private pages that `tokens` tokens do not need.
    pub fn shrink(&mut self, pages: &mut Pages, tokens: usize) {
        while self.room() >= tokens + PAGE_TOKENS
            && let Some(page) = self.own.pop()
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
        let places = [(computed / apart + 1) * apart, self.divergence, tokens.saturating_sub(1)];
        places.into_iter().filter(|&at| at > computed).min().unwrap_or(usize::MAX)
    }

    /// Makes a state checkpoint after `computed` tokens, if a slot is free.
    pub fn add_checkpoint(&mut self, pages: &mut Pages, computed: usize) {
        let Some(from) = self.state else { return };
        let Some(slot) = pages.take_state() else { return };
        pages.record_copy(CacheCopy::State { from, to: slot });
        self.checkpoints.push((computed, slot));
    }

    /// Releases the checkpoints that are not in the tree yet, so that another sequence gets a slot.
    pub fn drop_checkpoints(&mut self, pages: &mut Pages) {
        self.checkpoints.drain(..).for_each(|(_, slot)| pages.release_state(slot));
    }

    /// Moves full private pages to the tree, where other sequences find them at once. `computed`
    /// are the computed tokens; rejected draft tokens behind them are not published.
    pub fn publish(&mut self, pages: &mut Pages, computed: &[u32]) {
        while !self.own.is_empty() && computed.len() >= (self.path.len() + 1) * PAGE_TOKENS {
            let start = self.path.len() * PAGE_TOKENS;
            let tokens = &computed[start..start + PAGE_TOKENS];
            let node = pages.insert(&self.last(), self.own.remove(0), tokens);
            pages.retain(&[node]);
            pages.pin_window_pages(&[node]);
            self.path.push(node);
            self.store_checkpoints(pages, node, start);
        }
        self.slide_window(pages, computed.len());
    }

    /// Unpins window pages that the next tokens do not see. A draft model may compute the latest
    /// token again.
    fn slide_window(&mut self, pages: &mut Pages, computed: usize) {
        let ahead = pages.seen_of(&self.path, computed.saturating_sub(1)).len();
        while pages.has_window_pages() && self.first_window_page < self.path.len() - ahead {
            let from = self.first_window_page * PAGE_TOKENS;
            // One page more, for sequences that diverge a little earlier.
            let sees = |place: usize| {
                from < place && pages.windows().first_seen(place) < from + 2 * PAGE_TOKENS
            };
            let valued = self.places.iter().any(|&place| sees(place));
            pages.unpin_window_page(self.path[self.first_window_page], valued);
            self.first_window_page += 1;
        }
    }

    /// Parent of the private pages in the tree.
    fn last(&self) -> Parent {
        self.path.last().map_or_else(|| Parent::Root(self.origin.clone()), |&id| Parent::Node(id))
    }

    /// Moves the checkpoints in a node's page, which begins after `start` tokens, to the node.
    fn store_checkpoints(&mut self, pages: &mut Pages, node: NodeId, start: usize) {
        self.checkpoints.retain(|&(at, slot)| {
            let is_here = at > start && at <= start + PAGE_TOKENS;
            if is_here {
                pages.keep_state(node, at - start, slot);
            }
            !is_here
        });
    }

    /// Moves all pages and the state to the tree.
    pub fn release(mut self, pages: &mut Pages, computed: &[u32]) {
        self.publish(pages, computed);
        let start = (self.path.len() * PAGE_TOKENS).min(computed.len());
        let rest = &computed[start..];
        let mut last = self.path.last().map(|&node| (node, PAGE_TOKENS));
        let parent = self.last();
        for (i, page) in std::mem::take(&mut self.own).into_iter().enumerate() {
            if i == 0 && !rest.is_empty() {
                let node = pages.insert(&parent, page, rest);
                pages.keep_window_page_longer(node);
                self.store_checkpoints(pages, node, start);
                last = Some((node, rest.len()));
            } else {
                pages.release_page(page);
            }
        }
        match (self.state.take(), last) {
            (Some(slot), Some((node, tokens))) if !computed.is_empty() => {
                pages.keep_state(node, tokens, slot)
            }
            (Some(slot), _) => pages.release_state(slot),
            (None, _) => {}
        }
        self.drop_checkpoints(pages);
        self.leave_path(pages);
    }
}
