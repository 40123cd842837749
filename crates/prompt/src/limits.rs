//! What a template may cost. Templates come from model files, so they are hostile until proven otherwise: every loop
//! iteration, node and copied byte is paid from a budget, and nesting is counted before it is entered.

use std::fmt;

/// Longest template source that is read, in bytes. The longest known real template has 25 KB.
pub const SOURCE_BYTES_MAX: usize = 1 << 20;
/// Deepest nesting of blocks and brackets in a source.
pub(crate) const DEPTH_MAX: usize = 100;
/// Deepest nesting of blocks, expressions and calls while it runs; fits a stack of 2 MiB in a debug build.
pub(crate) const RUN_DEPTH_MAX: usize = 300;
/// Steps of one rendering: nodes visited, loop turns, and one for every 16 bytes copied, compared or searched.
const STEPS_MAX: u64 = 5_000_000;
/// Longest prompt, and longest single text value, in bytes.
pub(crate) const TEXT_BYTES_MAX: usize = 32 << 20;

/// A bound that a template ran into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bound {
    /// The source is longer than [`SOURCE_BYTES_MAX`].
    Source,
    /// More steps than one rendering may take.
    Steps,
    /// A text longer than a prompt may be.
    Text,
    /// Blocks, brackets or calls nested too deep.
    Depth,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Source => write!(f, "its source is longer than {SOURCE_BYTES_MAX} bytes"),
            Bound::Steps => write!(f, "it took more than {STEPS_MAX} steps"),
            Bound::Text => write!(f, "it made a text longer than {TEXT_BYTES_MAX} bytes"),
            Bound::Depth => write!(
                f,
                "it nests too deep (more than {DEPTH_MAX} levels in its text, {RUN_DEPTH_MAX} while it runs)"
            ),
        }
    }
}

/// What is left for one rendering.
#[derive(Debug)]
pub(crate) struct Budget {
    steps: u64,
    depth: usize,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Budget { steps: STEPS_MAX, depth: 0 }
    }

    /// One that pays for all there is: for what no template decides.
    pub(crate) fn endless() -> Self {
        Budget { steps: u64::MAX, depth: 0 }
    }

    /// Pays for `n` steps.
    pub(crate) fn steps(&mut self, n: u64) -> Result<(), Bound> {
        match self.steps.checked_sub(n) {
            Some(left) => {
                self.steps = left;
                Ok(())
            }
            None => {
                self.steps = 0;
                Err(Bound::Steps)
            }
        }
    }

    /// Pays for reading `bytes` bytes: comparing, hashing, searching, copying what is cut afterwards.
    pub(crate) fn read(&mut self, bytes: usize) -> Result<(), Bound> {
        self.steps(bytes as u64 / 16)
    }

    /// Pays for making a text of `bytes` bytes; call it before the text is made.
    pub(crate) fn text(&mut self, bytes: usize) -> Result<(), Bound> {
        if bytes > TEXT_BYTES_MAX {
            return Err(Bound::Text);
        }
        self.steps(1 + bytes as u64 / 16)
    }

    /// Goes one level deeper; pair with [`Budget::leave`].
    pub(crate) fn enter(&mut self) -> Result<(), Bound> {
        if self.depth >= RUN_DEPTH_MAX {
            return Err(Bound::Depth);
        }
        self.depth += 1;
        self.steps(1)
    }

    pub(crate) fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }
}
