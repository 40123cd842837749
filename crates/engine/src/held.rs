//! The pages that a sequence holds and its recurrent state, and how they come from the tree and go back to it.

use puna_graph::{Backend, Doses};

use crate::pages::{Match, NodeId, PAGE_TOKENS, Pages, Parent};

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
    own: Vec<u32>,
    /// The doses of the adapters that all of them were computed with.
    doses: Doses,
    /// Slot of its state, that after all tokens that it has computed.
    state: Option<u32>,
    /// Copies of earlier states and after how many tokens they were made, for when their page goes to the tree.
    kept: Vec<(usize, u32)>,
    /// Where the tree knows more of the prompt than there was a state for: another will part from there, too.
    parts_at: usize,
}

impl Held {
    /// What there is of a sequence's `tokens` with these doses of the adapters, and how many tokens that are. The beginning of a page that agrees only so far
    /// is copied: from the tree or, as one of them may just have computed it, from what the `others` hold and have computed.
    /// Where sequences have states, there must be a slot for one.
    pub fn find<'a>(
        pages: &mut Pages,
        backend: &mut dyn Backend,
        doses: &Doses,
        tokens: &[u32],
        others: impl Iterator<Item = (&'a Self, &'a [u32])>,
    ) -> (Self, usize) {
        let found = pages.find(doses, tokens);
        if pages.has_states() {
            return Self::with_state(pages, backend, (doses, tokens), found, others);
        }
        pages.retain(&found.path);
        let mut computed = found.path.len() * PAGE_TOKENS;
        // The page that an unfinished one continues with, if it comes to more than the tree has.
        let least = found.partial.map_or(0, |(_, tokens)| tokens);
        let alike = others.filter(|(held, _)| held.doses == *doses && held.path == found.path);
        let unfinished = alike.filter_map(|(held, theirs)| {
            let common = theirs.get(computed..)?.iter().zip(&tokens[computed..]).take_while(|(a, b)| a == b);
            Some((*held.own.first()?, common.take(PAGE_TOKENS).count()))
        });
        let unfinished = unfinished.max_by_key(|(_, tokens)| *tokens).filter(|(_, tokens)| *tokens > least);
        let mut held = Self { path: found.path, doses: doses.clone(), ..Self::default() };
        if let Some((theirs, tokens)) = unfinished {
            if held.copy(pages, backend, theirs) {
                computed += tokens;
            }
        } else if let Some((node, tokens)) = found.partial
            && held.copy_node(pages, backend, node)
        {
            computed += tokens;
        }
        (held, computed)
    }

    /// The same where sequences have states: as much as there is one for.
    fn with_state<'a>(
        pages: &mut Pages,
        backend: &mut dyn Backend,
        (doses, tokens): (&Doses, &[u32]),
        found: Match,
        others: impl Iterator<Item = (&'a Self, &'a [u32])>,
    ) -> (Self, usize) {
        let parts_at = found.seen / PAGE_TOKENS * PAGE_TOKENS;
        // A copy that a running sequence made of the state after more tokens, in the page that it has not filled yet.
        let copies =
            others.flat_map(|(held, theirs)| held.kept.iter().map(move |copy| (held, theirs, *copy)));
        let theirs = copies
            .filter(|(held, ..)| held.doses == *doses)
            .filter(|(held, theirs, (at, _))| {
                let further = *at > found.tokens() && at / PAGE_TOKENS == held.path.len();
                further && theirs.len() >= *at && tokens.len() >= *at && theirs[..*at] == tokens[..*at]
            })
            .max_by_key(|(.., (at, _))| *at);
        let (path, from, computed) = match theirs {
            Some((held, _, (at, slot))) => (held.path.clone(), Some(slot), at),
            None => (found.path.clone(), found.state, found.tokens()),
        };
        pages.retain(&path);
        let mut held = Self { path, parts_at, doses: doses.clone(), ..Self::default() };
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
        pages.release(&std::mem::take(&mut held.path));
        held.own.drain(..).for_each(|page| pages.give_back(page));
        (held, 0)
    }

    /// Goes on with a copy of a page; `false` when there are no more.
    fn copy(&mut self, pages: &mut Pages, backend: &mut dyn Backend, from: u32) -> bool {
        let Some(page) = pages.take() else { return false };
        backend.copy_page(from, page);
        self.own.push(page);
        true
    }

    /// The same of a node's page, which is retained meanwhile, so that taking another does not drop it.
    fn copy_node(&mut self, pages: &mut Pages, backend: &mut dyn Backend, node: NodeId) -> bool {
        pages.retain(&[node]);
        let copied = self.copy(pages, backend, pages.page(node));
        pages.release(&[node]);
        copied
    }

    /// Page numbers in order.
    pub fn list(&self, pages: &Pages) -> Vec<u32> {
        self.path.iter().map(|&id| pages.page(id)).chain(self.own.iter().copied()).collect()
    }

    /// Slot of the state; zero without one.
    pub fn state(&self) -> u32 {
        self.state.unwrap_or(0)
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
            self.path.push(node);
            self.keep_copies(pages, node, start);
        }
    }

    /// What its own pages follow.
    fn last(&self) -> Parent {
        self.path.last().map_or_else(|| Parent::Root(self.doses.clone()), |&id| Parent::Node(id))
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
        pages.release(&self.path);
    }
}
