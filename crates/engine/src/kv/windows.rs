//! Attention windows of layers.

use puna_graph::Mask;

use super::node::PAGE_TOKENS;

/// Masks of the layers with a window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Windows(Vec<Mask>);

impl Windows {
    /// Collects the distinct masks with a window.
    pub fn new(masks: impl Iterator<Item = Mask>) -> Self {
        let mut windows = Vec::new();
        for mask in masks.filter(|mask| mask.reach().is_some()) {
            if !windows.contains(&mask) {
                windows.push(mask);
            }
        }
        Self(windows)
    }

    /// Whether no layer has a window.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// First position that the token at `position`, or any later token, sees in any of these
    /// layers.
    pub fn first_seen(&self, position: usize) -> usize {
        self.0.iter().map(|mask| mask.first_seen(position)).min().unwrap_or(0)
    }

    /// Largest number of window pages that the next `rows` tokens of a sequence see.
    pub fn pages(&self, rows: usize) -> usize {
        let reach = self.0.iter().filter_map(|mask| mask.reach()).max().unwrap_or(0);
        // The token before may be computed again after a rejected draft.
        (reach + rows).div_ceil(PAGE_TOKENS) + 1
    }
}
