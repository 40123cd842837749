//! Operands of operations: values, weights, rows, rotary tables.

/// A value of a graph: the result of an operation, or some columns of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(crate) u32);

impl ValueId {
    /// Index in the graph's list of values.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A weight of the model, by its index in the list of tensors that the backend has loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

impl WeightId {
    /// Index in the model's list of tensors.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Rows that the caller provides with a step, by their index in [`crate::StepInput::inputs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InputId(pub u32);

impl InputId {
    /// Index in the list of inputs.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A rotary table of the model, by its index in the list of [`Rope`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RopeId(pub u32);

/// Meaning of the rows of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One row for each token of the step.
    Tokens,
    /// One row for each token for which the step returns logits.
    Outputs,
}

/// Row of an embedding table that a token uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Index {
    /// Row of its token id; zeros for [`crate::StepInput::NO_TOKEN`].
    Token,
    /// Row of its token id; this row for [`crate::StepInput::NO_TOKEN`].
    TokenOr(u32),
    /// Row that this list (I32) gives for its token id; zeros for [`crate::StepInput::NO_TOKEN`].
    Remapped(WeightId),
    /// Row of its position in the sequence.
    Position,
    /// The same row for all tokens.
    Fixed(u32),
}

/// Pairing of dimensions for rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeKind {
    /// Adjacent dimensions: (2j, 2j+1), as in GPT-J.
    Norm,
    /// Halves: (j, j + n/2), as in GPT-NeoX.
    Neox,
}

/// Rotary embedding: rotates pair j of a token at position p by `p · frequencies[j]` and scales it.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Pairing of dimensions.
    pub kind: RopeKind,
    /// Radians per position, one for each pair; the first `2 · frequencies.len()` dimensions of a
    /// head are rotated.
    pub frequencies: Vec<f32>,
    /// Factor of cosine and sine.
    pub magnitude: f32,
    /// Axis of the position that rotates each pair: an index in
    /// [`crate::StepInput::axis_positions`]. Empty if all pairs rotate by the position in the
    /// sequence.
    pub axes: Vec<u8>,
    /// Number that is subtracted from the position of each token, down to position 0.
    pub position_offset: u32,
    /// Whether the rotation is inverse.
    pub is_inverse: bool,
}

impl Rope {
    /// The position by which a token at `position` is rotated.
    pub fn moved(&self, position: u32) -> f64 {
        f64::from(position.saturating_sub(self.position_offset))
    }
}
