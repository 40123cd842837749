//! Pages and a state of sequences outside of the prefix tree, which take a few steps: embeddings
//! and draft models.

use puna_graph::{Segment, SegmentWindowPages};

use super::Scheduler;
use crate::kv::{PAGE_TOKENS, Page, Windows};

/// Pages and state of a sequence outside of the prefix tree.
#[derive(Debug, Default)]
pub struct TemporaryPages {
    pub pages: Vec<u32>,
    /// Window pages, used as a ring.
    pub window_pages: Vec<u32>,
    /// Slot of the recurrent state, if the model has recurrent layers.
    pub state: Option<u32>,
}

impl TemporaryPages {
    /// The segment of a step that continues the sequence after `cached_tokens` tokens.
    pub fn segment(
        &self,
        windows: &Windows,
        first_row: usize,
        rows: usize,
        cached_tokens: usize,
    ) -> Segment {
        let (pages, state) = (self.pages.clone(), self.state.unwrap_or(0));
        let mut window_pages = SegmentWindowPages::default();
        if !self.window_pages.is_empty() {
            window_pages.first = windows.first_seen(cached_tokens) / PAGE_TOKENS;
            let numbers = window_pages.first..(cached_tokens + rows).div_ceil(PAGE_TOKENS);
            window_pages.pages =
                numbers.map(|number| self.window_pages[number % self.window_pages.len()]).collect();
        }
        Segment { first_row, rows, cached_tokens, pages, window_pages, state, ..Segment::default() }
    }
}

impl Scheduler {
    /// Takes pages and a state slot for a sequence of `tokens` tokens. Returns `None` if there are
    /// not enough.
    pub fn take_temporary_pages(&mut self, tokens: usize) -> Option<TemporaryPages> {
        self.temporary_sequences += 1;
        let mut taken = TemporaryPages::default();
        if self.fill_temporary_pages(&mut taken, tokens) {
            return Some(taken);
        }
        self.release_temporary_pages(taken);
        None
    }

    /// Takes pages and a state slot. Returns `false` if there are not enough.
    fn fill_temporary_pages(&mut self, taken: &mut TemporaryPages, tokens: usize) -> bool {
        while taken.pages.len() * PAGE_TOKENS < tokens {
            let Some(page) = self.pages.take_full_page() else { return false };
            taken.pages.push(page);
        }
        if self.pages.has_window_pages() {
            let rows = self.limits.num_batch.min(tokens);
            let max = self.pages.windows().pages(rows).min(taken.pages.len());
            taken.window_pages.extend((0..max).map_while(|_| self.pages.take_window_page()));
            if taken.window_pages.len() < max {
                return false;
            }
        }
        if self.pages.has_states() {
            taken.state = self.has_free_state().then(|| self.pages.take_state()).flatten();
            return taken.state.is_some();
        }
        true
    }

    /// Releases what [`Scheduler::take_temporary_pages`] took.
    pub fn release_temporary_pages(&mut self, taken: TemporaryPages) {
        self.temporary_sequences -= 1;
        let pages = taken.pages.into_iter().map(|full| Page { full, window: None });
        pages.for_each(|page| self.pages.release_page(page));
        taken.window_pages.into_iter().for_each(|page| self.pages.release_window_page(page));
        taken.state.into_iter().for_each(|slot| self.pages.release_state(slot));
    }

    /// Whether a sequence outside of the prefix tree holds pages.
    pub fn has_temporary_pages(&self) -> bool {
        self.temporary_sequences > 0
    }

    /// Blocks the admission of sequences while one outside of the prefix tree waits for pages.
    pub fn block_admission(&mut self, blocks: bool) {
        self.blocks_admission = blocks;
    }
}
