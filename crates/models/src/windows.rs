//! Sliding windows in some of a model's layers.

use puna_graph::Mask;

use crate::error::ModelError;
use crate::hparams::Keys;

/// Which layers have a sliding window, and its width.
pub struct Windows {
    /// Width in positions; `None` if no layer has a window.
    width: Option<u32>,
    /// Whether each layer has a window, from the file or the architecture's pattern.
    sliding: Vec<bool>,
}

impl Windows {
    /// Windows in the layers of `sliding`; the key of the width is mandatory.
    pub fn read(keys: &Keys<'_>, sliding: Vec<bool>) -> Result<Self, ModelError> {
        Ok(Self::new(keys.count("attention.sliding_window")?, sliding))
    }

    /// [`Self::read`] with an optional width; without it, or if it is zero, no layer has a window.
    pub fn read_optional(keys: &Keys<'_>, sliding: Vec<bool>) -> Result<Self, ModelError> {
        let width = keys.opt_count("attention.sliding_window")?.filter(|&width| width > 0);
        Ok(Self { width: width.map(|width| width as u32), sliding })
    }

    /// Windows of `width` positions in the layers of `sliding`.
    pub fn new(width: usize, sliding: Vec<bool>) -> Self {
        Self { width: Some(width as u32), sliding }
    }

    /// Whether the model has windows.
    pub fn is_enabled(&self) -> bool {
        self.width.is_some()
    }

    /// Whether layer `i` has a window.
    pub fn has_window(&self, i: usize) -> bool {
        self.of(i).is_some()
    }

    /// Mask of layer `i` of a decoder.
    pub fn mask(&self, i: usize) -> Mask {
        self.of(i).map_or(Mask::Causal, Mask::Window)
    }

    /// Mask of layer `i` of an encoder: half a window on each side.
    pub fn encoder_mask(&self, i: usize) -> Mask {
        self.of(i).map_or(Mask::Full, |width| Mask::SymmetricWindow(width / 2))
    }

    fn of(&self, i: usize) -> Option<u32> {
        self.width.filter(|_| self.sliding[i])
    }
}
