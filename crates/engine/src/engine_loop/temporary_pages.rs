//! Pages and a state outside of the prefix tree, for texts that take a few steps: embeddings and draft models.

use puna_graph::{RecentPages, Segment};

use super::EngineLoop;
use crate::pages::{PAGE_TOKENS, Page, Windows};

/// Pages and state of a text outside of the tree.
#[derive(Debug, Default)]
pub struct TemporaryPages {
    pub pages: Vec<u32>,
    /// Window pages, used as a ring.
    pub recent: Vec<u32>,
    /// Slot of the recurrent state, if the model has recurrent layers.
    pub state: Option<u32>,
}

impl TemporaryPages {
    /// The segment of a step that continues the text after `past` tokens.
    pub fn segment(
        &self,
        windows: &Windows,
        first_row: usize,
        rows: usize,
        past: usize,
    ) -> Segment {
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

impl EngineLoop {
    /// Takes pages and a state slot for a text of `tokens` tokens. Returns `None` if there are not enough.
    pub fn take_temporary_pages(&mut self, tokens: usize) -> Option<TemporaryPages> {
        let mut borrowed = TemporaryPages::default();
        while borrowed.pages.len() * PAGE_TOKENS < tokens {
            match self.pages.take_full_page() {
                Some(page) => borrowed.pages.push(page),
                None => {
                    self.release_temporary_pages(borrowed);
                    return None;
                }
            }
        }
        if self.pages.has_window_pages() {
            let most =
                self.pages.windows().pages(self.num_batch.min(tokens)).min(borrowed.pages.len());
            borrowed.recent.extend((0..most).map_while(|_| self.pages.take_window_page()));
            if borrowed.recent.len() < most {
                self.release_temporary_pages(borrowed);
                return None;
            }
        }
        if self.pages.has_states() {
            borrowed.state = self.has_a_state_left().then(|| self.pages.take_state()).flatten();
            if borrowed.state.is_none() {
                self.release_temporary_pages(borrowed);
                return None;
            }
        }
        Some(borrowed)
    }

    /// Releases what [`EngineLoop::take_temporary_pages`] took.
    pub fn release_temporary_pages(&mut self, borrowed: TemporaryPages) {
        borrowed
            .pages
            .into_iter()
            .for_each(|full| self.pages.release_page(Page { full, window: None }));
        borrowed.recent.into_iter().for_each(|page| self.pages.release_window_page(page));
        borrowed.state.into_iter().for_each(|slot| self.pages.release_state(slot));
    }
}
