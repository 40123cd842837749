//! Lists of positions that sparse attention selects.

/// Shape of the lists of selected blocks of positions, which an indexer writes and an attention
/// reads.
///
/// A value holds the lists of a token in consecutive columns. Each column has the bits of a block
/// number ([`Self::entry`]), in ascending order, then [`Self::NONE`]. If a list can hold all
/// positions that a token sees, the token attends to all of them; its lists are neither written nor
/// read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SelectedPositions {
    /// Lists per token: one for all heads, or one for each KV head.
    pub lists: usize,
    /// Length of a list in blocks.
    pub count: usize,
    /// Positions per block; block 0 begins at position 0.
    pub block: usize,
}

impl SelectedPositions {
    /// Entry behind the last block of a list that is not full.
    pub const NONE: u32 = u32::MAX;

    /// Stores a block number in a value, bit by bit.
    pub fn entry(number: u32) -> f32 {
        f32::from_bits(number)
    }

    /// Columns of the value that holds the lists.
    pub fn cols(&self) -> usize {
        self.lists * self.count
    }

    /// Positions that a list can hold. With at most this many positions, attention is dense.
    pub fn capacity(&self) -> usize {
        self.count.saturating_mul(self.block)
    }
}
