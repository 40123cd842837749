//! The pages that a sequence holds, and how they come from the tree and go back to it.

use puna_graph::{Backend, Doses};

use crate::pages::{NodeId, PAGE_TOKENS, Pages, Parent};

/// Pages of a sequence: those shared with the tree, then its own.
#[derive(Debug, Default)]
pub struct Held {
    /// Full pages of the tree, retained.
    path: Vec<NodeId>,
    /// Pages that only this sequence has, in order.
    own: Vec<u32>,
    /// The doses of the adapters that all of them were computed with.
    doses: Doses,
}

impl Held {
    /// What there is of a sequence's `tokens` with these doses of the adapters, and how many tokens that are. The beginning of a page that agrees only so far
    /// is copied: from the tree or, as one of them may just have computed it, from what the `others` hold and have computed.
    pub fn find<'a>(
        pages: &mut Pages,
        backend: &mut dyn Backend,
        doses: &Doses,
        tokens: &[u32],
        others: impl Iterator<Item = (&'a Self, &'a [u32])>,
    ) -> (Self, usize) {
        let found = pages.find(doses, tokens);
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
        let mut held = Self { path: found.path, own: Vec::new(), doses: doses.clone() };
        if let Some((theirs, tokens)) = unfinished {
            if let Some(page) = pages.take() {
                backend.copy_page(theirs, page);
                held.own.push(page);
                computed += tokens;
            }
        } else if let Some((node, tokens)) = found.partial {
            // Retained meanwhile, so that taking a page does not drop it.
            pages.retain(&[node]);
            if let Some(page) = pages.take() {
                backend.copy_page(pages.page(node), page);
                held.own.push(page);
                computed += tokens;
            }
            pages.release(&[node]);
        }
        (held, computed)
    }

    /// Page numbers in order.
    pub fn list(&self, pages: &Pages) -> Vec<u32> {
        self.path.iter().map(|&id| pages.page(id)).chain(self.own.iter().copied()).collect()
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

    /// Puts full pages into the tree, where others find them at once. `computed` are the sequence's tokens as far as they
    /// were computed: what a refused guess left behind them is never seen.
    pub fn publish(&mut self, pages: &mut Pages, computed: &[u32]) {
        while !self.own.is_empty() && computed.len() >= (self.path.len() + 1) * PAGE_TOKENS {
            let start = self.path.len() * PAGE_TOKENS;
            let tokens = &computed[start..start + PAGE_TOKENS];
            let node = pages.insert(&self.last(), self.own.remove(0), tokens);
            pages.retain(&[node]);
            self.path.push(node);
        }
    }

    /// What its own pages follow.
    fn last(&self) -> Parent {
        self.path.last().map_or_else(|| Parent::Root(self.doses.clone()), |&id| Parent::Node(id))
    }

    /// Gives all pages to the tree.
    pub fn release(mut self, pages: &mut Pages, computed: &[u32]) {
        self.publish(pages, computed);
        let rest = &computed[(self.path.len() * PAGE_TOKENS).min(computed.len())..];
        let last = self.last();
        for (i, page) in self.own.into_iter().enumerate() {
            if i == 0 && !rest.is_empty() {
                pages.insert(&last, page, rest);
            } else {
                pages.give_back(page);
            }
        }
        pages.release(&self.path);
    }
}
