//! What texts have that are no sequences: pages and a state outside the tree, for a few steps.

use puna_graph::{RecentPages, Segment};

use super::Driver;
use crate::pages::{PAGE_TOKENS, Page, Windows};

/// What a sequence outside the tree has.
#[derive(Debug, Default)]
pub struct Borrowed {
    pub pages: Vec<u32>,
    /// Recent pages, which take turns.
    pub recent: Vec<u32>,
    /// Slot of its recurrent state, where the model has such.
    pub state: Option<u32>,
}

impl Borrowed {
    /// The part of a step that continues it after `past` tokens.
    pub fn segment(&self, windows: &Windows, first_row: usize, rows: usize, past: usize) -> Segment {
        let (pages, state) = (self.pages.clone(), self.state.unwrap_or(0));
        let mut recent = RecentPages::default();
        if !self.recent.is_empty() {
            recent.first = windows.first_seen(past) / PAGE_TOKENS;
            let numbers = recent.first..(past + rows).div_ceil(PAGE_TOKENS);
            recent.pages = numbers.map(|number| self.recent[number % self.recent.len()]).collect();
        }
        Segment { first_row, rows, past, pages, recent, encoded: 0, state }
    }
}

impl Driver {
    /// Pages for a sequence outside the tree, and a slot for its state; `None` when there are not enough.
    pub fn borrow_pages(&mut self, tokens: usize) -> Option<Borrowed> {
        let mut borrowed = Borrowed::default();
        while borrowed.pages.len() * PAGE_TOKENS < tokens {
            match self.pages.take_lasting() {
                Some(page) => borrowed.pages.push(page),
                None => {
                    self.return_pages(borrowed);
                    return None;
                }
            }
        }
        if self.pages.has_recent() {
            let most = self.pages.windows().pages(self.num_batch.min(tokens)).min(borrowed.pages.len());
            borrowed.recent.extend((0..most).map_while(|_| self.pages.take_recent()));
            if borrowed.recent.len() < most {
                self.return_pages(borrowed);
                return None;
            }
        }
        if self.pages.has_states() {
            borrowed.state = self.has_a_state_left().then(|| self.pages.take_state()).flatten();
            if borrowed.state.is_none() {
                self.return_pages(borrowed);
                return None;
            }
        }
        Some(borrowed)
    }

    /// Gives back what [`Driver::borrow_pages`] took.
    pub fn return_pages(&mut self, borrowed: Borrowed) {
        borrowed.pages.into_iter().for_each(|all| self.pages.give_back(Page { all, recent: None }));
        borrowed.recent.into_iter().for_each(|page| self.pages.give_back_recent(page));
        borrowed.state.into_iter().for_each(|slot| self.pages.give_back_state(slot));
    }
}
