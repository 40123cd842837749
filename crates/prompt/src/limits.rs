//! Resource limits of templates. Templates come from model files and are untrusted. A budget is
//! charged for every loop iteration, node and copied byte, and nesting is counted before it is
//! entered.

use std::fmt;

/// Longest accepted template source, in bytes. The longest known real template has 25 KB.
pub const MAX_SOURCE_BYTES: usize = 1 << 20;
/// Deepest nesting of blocks and brackets in a source, in levels.
pub(crate) const MAX_DEPTH: usize = 100;
/// Deepest nesting of blocks, expressions and calls at run time, in levels. It fits a stack of 2
/// MiB in a debug build.
pub(crate) const MAX_RUN_DEPTH: usize = 300;
/// Steps of one rendering: nodes visited, loop iterations, and one for every 16 bytes copied,
/// compared or searched.
const MAX_STEPS: u64 = 5_000_000;
/// Longest prompt and longest single string, in bytes.
pub(crate) const MAX_TEXT_BYTES: usize = 32 << 20;

/// A resource limit that a template exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TemplateLimit {
    /// The source is longer than [`MAX_SOURCE_BYTES`].
    Source,
    /// More steps than allowed in one rendering.
    Steps,
    /// A text longer than the longest prompt.
    Text,
    /// Blocks, brackets or calls are nested too deep.
    Depth,
}

impl fmt::Display for TemplateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TemplateLimit::Source => {
                write!(f, "its source is longer than {MAX_SOURCE_BYTES} bytes")
            }
            TemplateLimit::Steps => write!(f, "it took more than {MAX_STEPS} steps"),
            TemplateLimit::Text => write!(f, "its output is longer than {MAX_TEXT_BYTES} bytes"),
            TemplateLimit::Depth => write!(
                f,
                "it is nested too deeply (more than {MAX_DEPTH} levels in its source, or {MAX_RUN_DEPTH} at run time)"
            ),
        }
    }
}

/// Remaining steps and current nesting of one rendering.
#[derive(Debug)]
pub(crate) struct Budget {
    steps_left: u64,
    depth: usize,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Budget { steps_left: MAX_STEPS, depth: 0 }
    }

    /// A budget without limit of steps, for work that no template controls.
    pub(crate) fn unlimited() -> Self {
        Budget { steps_left: u64::MAX, depth: 0 }
    }

    /// Charges `n` steps.
    pub(crate) fn charge_steps(&mut self, n: u64) -> Result<(), TemplateLimit> {
        match self.steps_left.checked_sub(n) {
            Some(left) => {
                self.steps_left = left;
                Ok(())
            }
            None => {
                self.steps_left = 0;
                Err(TemplateLimit::Steps)
            }
        }
    }

    /// Charges the reading of `bytes` bytes: comparing, hashing, searching, or copying text that is
    /// cut later.
    pub(crate) fn charge_read(&mut self, bytes: usize) -> Result<(), TemplateLimit> {
        self.charge_steps(bytes as u64 / 16)
    }

    /// Charges the creation of a text of `bytes` bytes. Call it before creating the text.
    pub(crate) fn charge_text(&mut self, bytes: usize) -> Result<(), TemplateLimit> {
        if bytes > MAX_TEXT_BYTES {
            return Err(TemplateLimit::Text);
        }
        self.charge_steps(1 + bytes as u64 / 16)
    }

    /// Enters one level of nesting. Pair it with [`Budget::leave`].
    pub(crate) fn enter(&mut self) -> Result<(), TemplateLimit> {
        if self.depth >= MAX_RUN_DEPTH {
            return Err(TemplateLimit::Depth);
        }
        self.depth += 1;
        self.charge_steps(1)
    }

    pub(crate) fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }
}
