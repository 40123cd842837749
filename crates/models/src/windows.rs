//! Layers with a sliding window among layers that see everything.

use puna_graph::Mask;

use crate::error::ModelError;
use crate::hparams::Keys;

/// Which layers see a window of positions, and how wide it is.
pub struct Windows {
    /// Positions, `None` where no layer has a window.
    width: Option<u32>,
    /// Whether a layer slides, by the file or by the architecture's pattern.
    sliding: Vec<bool>,
}

impl Windows {
    /// Windows of the width that the file must name, in the layers that slide.
    pub fn read(keys: &Keys<'_>, sliding: Vec<bool>) -> Result<Self, ModelError> {
        Ok(Self::new(keys.count("attention.sliding_window")?, sliding))
    }

    /// The same, but where the file names no width, or zero, no layer has a window.
    pub fn read_optional(keys: &Keys<'_>, sliding: Vec<bool>) -> Result<Self, ModelError> {
        let width = keys.opt_count("attention.sliding_window")?.filter(|&width| width > 0);
        Ok(Self { width: width.map(|width| width as u32), sliding })
    }

    /// Windows of `width` positions in the layers that slide.
    pub fn new(width: usize, sliding: Vec<bool>) -> Self {
        Self { width: Some(width as u32), sliding }
    }

    /// Whether the file has windows.
    pub fn exist(&self) -> bool {
        self.width.is_some()
    }

    /// Whether layer `i` has a window.
    pub fn slides(&self, i: usize) -> bool {
        self.of(i).is_some()
    }

    /// What a token sees in layer `i` of a decoder.
    pub fn mask(&self, i: usize) -> Mask {
        self.of(i).map_or(Mask::Causal, Mask::Window)
    }

    /// What a token sees in layer `i` of an encoder: half a window to either side.
    pub fn mask_around(&self, i: usize) -> Mask {
        self.of(i).map_or(Mask::Full, |width| Mask::Around(width / 2))
    }

    fn of(&self, i: usize) -> Option<u32> {
        self.width.filter(|_| self.sliding[i])
    }
}
