//! The pages that a sequence holds and its recurrent state, and how they come from the tree and go back to it.

use puna_graph::{Backend, RecentPages, Segment};

use crate::pages::{Match, NodeId, Origin, PAGE_TOKENS, Page, Pages, Parent};

/// Between copies of the state that are made while a prompt is read, at least.
const LEAST_APART: usize = 8 * PAGE_TOKENS;
/// Copies that are made of a long prompt's states on the way, about.
const ON_THE_WAY: usize = 8;

/// Pages of a sequence: those shared with the tree, then its own. And its recurrent state, where the model has such.
#[derive(Debug, Default)]
pub struct Held {
    /// Full pages of the tree, retained.
    path: Vec<NodeId>,
    /// Pages that only this sequence has, in order.
    own: Vec<Page>,
    /// From where on in its path it uses recent pages: those before are behind what its next token sees.
    recent_from: usize,
    /// Where texts end and part: what these places see is of value to others.
    places: [usize; 2],
    /// What all of them were computed with.
    origin: Origin,
    /// Slot of its state, that after all tokens that it has computed.
    state: Option<u32>,
    /// Copies of earlier states and after how many tokens they were made, for when their page goes to the tree.
    kept: Vec<(usize, u32)>,
    /// Where the tree knows more of the prompt than there was a state or what it sees for: another will part from there, too.
    parts_at: usize,
}

impl Held {
    /// What there is of a sequence's `tokens` with this origin, and how many tokens that are. The beginning of a page that agrees only
    /// so far is copied: from the tree or, as one of them may just have computed it, from what the `others` hold and have computed.
    /// Where sequences have states, there must be a slot for one. What an encoder has read is found as a whole or not at all.
    pub fn find<'a>(
        pages: &mut Pages,
        backend: &mut dyn Backend,
        origin: &Origin,
        tokens: &[u32],
        others: impl Iterator<Item = (&'a Self, &'a [u32])>,
    ) -> (Self, usize) {
        let found = pages.find(origin, tokens);
        if pages.has_states() {
            return Self::with_state(pages, backend, (origin, tokens), found, others);
        }
        let mut computed = found.path.len() * PAGE_TOKENS;
        // The page that an unfinished one continues with, if it comes to more than the tree has.
        let least = found.partial.map_or(0, |(_, tokens)| tokens);
        let alike = others.filter(|(held, _)| held.origin == *origin && held.path == found.path);
        let unfinished = alike.filter_map(|(held, theirs)| {
            let common = theirs.get(computed..)?.iter().zip(&tokens[computed..]).take_while(|(a, b)| a == b);
            Some((*held.own.first()?, common.take(PAGE_TOKENS).count()))
        });
        let unfinished = unfinished.max_by_key(|(_, tokens)| *tokens).filter(|(_, tokens)| *tokens > least);
        let more = unfinished.map_or(least, |(_, tokens)| tokens);
        if computed + more < origin.read.len() {
            return (Self::on(pages, Vec::new(), 0, origin), 0);
        }
        let mut held = Self::on(pages, found.path, computed + more, origin);
        held.places = [tokens.len(), found.seen / PAGE_TOKENS * PAGE_TOKENS];
        let copied = match (unfinished, found.partial) {
            (Some((theirs, _)), _) => held.copy(pages, backend, theirs),
            (None, Some((node, _))) => held.copy_node(pages, backend, node),
            (None, None) => true,
        };
        if copied {
            computed += more;
        } else if pages.has_recent() || computed < origin.read.len() {
            // Without it, what follows would see further back, or a part of the prompt.
            return (held.let_go(pages), 0);
        }
        (held, computed)
    }

    /// The pages of a path in the tree for a sequence that goes on after so many tokens.
    fn on(pages: &mut Pages, path: Vec<NodeId>, tokens: usize, origin: &Origin) -> Self {
        pages.retain(&path);
        let seen = pages.seen_of(&path, tokens);
        pages.retain_recent(seen);
        let recent_from = path.len() - seen.len();
        Self { path, recent_from, origin: origin.clone(), ..Self::default() }
    }

    /// Gives back all pages, which are of no use; what stays is as empty as at first.
    fn let_go(mut self, pages: &mut Pages) -> Self {
        self.own.drain(..).for_each(|page| pages.give_back(page));
        self.leave_path(pages);
        self
    }

    /// Leaves the tree.
    fn leave_path(&mut self, pages: &mut Pages) {
        let path = std::mem::take(&mut self.path);
        path[self.recent_from..].iter().for_each(|&node| pages.release_recent(node, true));
        self.recent_from = 0;
        pages.release(&path);
    }

    /// The same where sequences have states: as much as there is one for.
    fn with_state<'a>(
        pages: &mut Pages,
        backend: &mut dyn Backend,
        (origin, tokens): (&Origin, &[u32]),
        found: Match,
        others: impl Iterator<Item = (&'a Self, &'a [u32])>,
    ) -> (Self, usize) {
        let parts_at = found.seen / PAGE_TOKENS * PAGE_TOKENS;
        // A copy that a running sequence made of the state after more tokens, in the page that it has not filled yet.
        let copies =
            others.flat_map(|(held, theirs)| held.kept.iter().map(move |copy| (held, theirs, *copy)));
        let theirs = copies
            .filter(|(held, ..)| held.origin == *origin)
            .filter(|(held, theirs, (at, _))| {
                let further = *at > found.tokens() && at / PAGE_TOKENS == held.path.len();
                let same = theirs.len() >= *at && tokens.len() >= *at && theirs[..*at] == tokens[..*at];
                further && same && pages.sees_all(&held.path, *at)
            })
            .max_by_key(|(.., (at, _))| *at);
        let (path, from, computed) = match theirs {
            Some((held, _, (at, slot))) => (held.path.clone(), Some(slot), at),
            None => (found.path.clone(), found.state, found.tokens()),
        };
        let mut held = Self::on(pages, path, computed, origin);
        (held.parts_at, held.places) = (parts_at, [tokens.len(), parts_at]);
        let partial = match (theirs, found.partial) {
            _ if computed.is_multiple_of(PAGE_TOKENS) => true,
            (Some((theirs, ..)), _) => {
                theirs.own.first().is_some_and(|&page| held.copy(pages, backend, page))
            }
            (None, Some((node, _))) => held.copy_node(pages, backend, node),
            (None, None) => true,
        };
        from.iter().for_each(|&from| pages.touch_state(from));
        held.state = pages.take_state();
        if let (true, Some(from), Some(to)) = (partial, from, held.state) {
            // Where there was no other slot the copy itself was taken.
            if from != to {
                backend.copy_state(from, to);
            }
            return (held, computed);
        }
        // The state is of no use without all that is before it.
        (held.let_go(pages), 0)
    }

    /// Goes on with a copy of a page; `false` when there are no more.
    fn copy(&mut self, pages: &mut Pages, backend: &mut dyn Backend, from: Page) -> bool {
        let Some(page) = pages.take() else { return false };
        backend.copy_page(from.all, page.all);
        if let (Some(from), Some(to)) = (from.recent, page.recent) {
            backend.copy_recent_page(from, to);
        }
        self.own.push(page);
        true
    }

    /// The same of a node's page, which is retained meanwhile, so that taking another does not drop it.
    fn copy_node(&mut self, pages: &mut Pages, backend: &mut dyn Backend, node: NodeId) -> bool {
        let has_recent = pages.recent_page(node).is_some();
        pages.retain(&[node]);
        pages.retain_recent(&[node]);
        let copied = self.copy(pages, backend, pages.page(node));
        if has_recent {
            pages.release_recent(node, true);
        }
        pages.release(&[node]);
        copied
    }

    /// The part of a step that continues it after `past` tokens.
    pub fn segment(&self, pages: &Pages, first_row: usize, rows: usize, past: usize) -> Segment {
        let shared = |from: usize| self.path[from..].iter().map(|&id| pages.page(id));
        let own = || self.own.iter().copied();
        let recent = if pages.has_recent() {
            let all = shared(self.recent_from).chain(own());
            all.map(|page| page.recent.expect("recent pages in use stay")).collect()
        } else {
            Vec::new()
        };
        Segment {
            first_row,
            rows,
            past,
            pages: shared(0).chain(own()).map(|page| page.all).collect(),
            recent: RecentPages { first: self.recent_from, pages: recent },
            encoded: self.origin.read.len(),
            state: self.state.unwrap_or(0),
        }
    }

    /// Recent pages that it uses, where the model has such.
    pub fn recent_pages(&self) -> usize {
        self.path.len() - self.recent_from + self.own.len()
    }

    /// Tokens that there is room for.
    pub fn room(&self) -> usize {
        (self.path.len() + self.own.len()) * PAGE_TOKENS
    }

    /// Takes pages until there is room for `tokens` tokens; `false` when there are no more.
    pub fn grow(&mut self, pages: &mut Pages, tokens: usize) -> bool {
        while self.room() < tokens {
            match pages.take() {
                Some(page) => self.own.push(page),
                None => return false,
            }
        }
        true
    }

    /// Gives back pages of its own that are not needed for `tokens` tokens.
    pub fn shrink(&mut self, pages: &mut Pages, tokens: usize) {
        while self.room() >= tokens + PAGE_TOKENS
            && let Some(page) = self.own.pop()
        {
            pages.give_back(page);
        }
    }

    /// Where the next copy of the state of a prompt of `tokens` tokens is to be made, of which `computed` are: at the end but for
    /// the last token, which is always computed anew; where others part; and now and then on the way.
    pub fn next_copy(&self, computed: usize, tokens: usize) -> usize {
        let apart = (tokens / ON_THE_WAY).next_power_of_two().max(LEAST_APART);
        let places = [(computed / apart + 1) * apart, self.parts_at, tokens.saturating_sub(1)];
        places.into_iter().filter(|&at| at > computed).min().unwrap_or(usize::MAX)
    }

    /// Makes a copy of the state after `computed` tokens, if there is a slot to be had.
    pub fn copy_state(&mut self, pages: &mut Pages, backend: &mut dyn Backend, computed: usize) {
        let Some(own) = self.state else { return };
        let Some(slot) = pages.take_state() else { return };
        backend.copy_state(own, slot);
        self.kept.push((computed, slot));
    }

    /// Gives up the copies that are not in the tree yet, for somebody who has no slot.
    pub fn drop_copies(&mut self, pages: &mut Pages) {
        self.kept.drain(..).for_each(|(_, slot)| pages.give_back_state(slot));
    }

    /// Puts full pages into the tree, where others find them at once. `computed` are the sequence's tokens as far as they
    /// were computed: what a refused guess left behind them is never seen.
    pub fn publish(&mut self, pages: &mut Pages, computed: &[u32]) {
        while !self.own.is_empty() && computed.len() >= (self.path.len() + 1) * PAGE_TOKENS {
            let start = self.path.len() * PAGE_TOKENS;
            let tokens = &computed[start..start + PAGE_TOKENS];
            let node = pages.insert(&self.last(), self.own.remove(0), tokens);
            pages.retain(&[node]);
            pages.retain_recent(&[node]);
            self.path.push(node);
            self.keep_copies(pages, node, start);
        }
        self.slide(pages, computed.len());
    }

    /// Lets go of recent pages that lie behind what comes next. A draft model may compute its newest token again.
    fn slide(&mut self, pages: &mut Pages, computed: usize) {
        let ahead = pages.seen_of(&self.path, computed.saturating_sub(1)).len();
        while pages.has_recent() && self.recent_from < self.path.len() - ahead {
            let from = self.recent_from * PAGE_TOKENS;
            // And one page more, for texts that part from this one a little before the place.
            let sees =
                |place: usize| from < place && pages.windows().first_seen(place) < from + 2 * PAGE_TOKENS;
            let valued = self.places.iter().any(|&place| sees(place));
            pages.release_recent(self.path[self.recent_from], valued);
            self.recent_from += 1;
        }
    }

    /// What its own pages follow.
    fn last(&self) -> Parent {
        self.path.last().map_or_else(|| Parent::Root(self.origin.clone()), |&id| Parent::Node(id))
    }

    /// Has a node keep the copies that were made in its page, which begins after `start` tokens.
    fn keep_copies(&mut self, pages: &mut Pages, node: NodeId, start: usize) {
        self.kept.retain(|&(at, slot)| {
            let is_here = at > start && at <= start + PAGE_TOKENS;
            if is_here {
                pages.keep_state(node, at - start, slot);
            }
            !is_here
        });
    }

    /// Gives all pages to the tree, and the state with them.
    pub fn release(mut self, pages: &mut Pages, computed: &[u32]) {
        self.publish(pages, computed);
        let start = (self.path.len() * PAGE_TOKENS).min(computed.len());
        let rest = &computed[start..];
        let mut last = self.path.last().map(|&node| (node, PAGE_TOKENS));
        let parent = self.last();
        for (i, page) in std::mem::take(&mut self.own).into_iter().enumerate() {
            if i == 0 && !rest.is_empty() {
                let node = pages.insert(&parent, page, rest);
                pages.value_recent(node);
                self.keep_copies(pages, node, start);
                last = Some((node, rest.len()));
            } else {
                pages.give_back(page);
            }
        }
        match (self.state.take(), last) {
            (Some(slot), Some((node, tokens))) if !computed.is_empty() => {
                pages.keep_state(node, tokens, slot)
            }
            (Some(slot), _) => pages.give_back_state(slot),
            (None, _) => {}
        }
        self.drop_copies(pages);
        self.leave_path(pages);
    }
}
