//! What operations speak of: values, weights, rows, rotary tables.

/// A value of a graph: an operation's result or a window of columns of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(crate) u32);

impl ValueId {
    /// The position in the graph's list of values.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A weight of the model: its position in the list of tensors that the backend adopted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

impl WeightId {
    /// The position in the model's list of tensors.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A rotary table of the model: its position in the list of [`Rope`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RopeId(pub u32);

/// What a value's rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One row for each token of the step.
    Tokens,
    /// One row for each token whose result is wanted.
    Outputs,
}

/// Which row of a table a token takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Index {
    /// Its id.
    Token,
    /// What this list (I32) has for its id.
    Instead(WeightId),
    /// Its position in the sequence.
    Position,
    /// Always this one.
    Fixed(u32),
}

/// How features are paired for rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeKind {
    /// Neighbours: (2j, 2j+1).
    Norm,
    /// Halves: (j, j + n/2).
    Neox,
}

/// A rotary embedding: feature pair j of a token at position p turns by `p · frequencies[j]` and is scaled.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// How features are paired.
    pub kind: RopeKind,
    /// Radians a position, one for each pair; the first `2 · frequencies.len()` features of a head turn.
    pub frequencies: Vec<f32>,
    /// Multiplies cosine and sine.
    pub magnitude: f32,
    /// Turns by a position so much farther before the token's own; before the first by that.
    pub behind: u32,
    /// Whether it turns the other way.
    pub is_back: bool,
}
