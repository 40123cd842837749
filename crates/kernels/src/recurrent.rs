//! What recurrent layers compute of one token, for some columns whose states nobody else touches.

/// A row and what its values are weighed by.
#[derive(Debug, Clone, Copy)]
pub struct Tap<'a> {
    /// The row.
    pub x: &'a [f32],
    /// As long.
    pub w: &'a [f32],
}

/// A token of a selective scan, for the columns of a head or for columns with a step each.
#[derive(Debug)]
pub struct ScanStep<'a> {
    /// A row of the columns for each of `b`; becomes the next.
    pub state: &'a mut [f32],
    /// The columns.
    pub x: &'a [f32],
    /// One step, or one a column.
    pub dt: &'a [f32],
    /// One number, or as many as the state has.
    pub a: &'a [f32],
    /// What is written of the columns to each row.
    pub b: &'a [f32],
    /// What is read of each row.
    pub c: &'a [f32],
    /// One number, or one a column: what of the columns goes to the result as it is.
    pub d: &'a [f32],
    /// The result: columns.
    pub y: &'a mut [f32],
}

/// A token of the delta rule, for some columns of a head.
#[derive(Debug)]
pub struct DeltaStep<'a> {
    /// A row of the columns for each of `k`; becomes the next.
    pub state: &'a mut [f32],
    /// What is left of the state: one number, or one a row.
    pub decay: &'a [f32],
    /// Query.
    pub q: &'a [f32],
    /// Key.
    pub k: &'a [f32],
    /// Columns.
    pub v: &'a [f32],
    /// How much of the difference is learnt.
    pub beta: f32,
    /// The result: columns.
    pub y: &'a mut [f32],
}

/// A token of RWKV's memory, for some columns of a head.
#[derive(Debug)]
pub struct WkvStep<'a> {
    /// A row of the columns for each of `k`; becomes the next.
    pub state: &'a mut [f32],
    /// What is left of each row.
    pub decay: &'a [f32],
    /// What is read of each row.
    pub r: &'a [f32],
    /// How much is read of the token's own columns.
    pub own: f32,
    /// Key.
    pub k: &'a [f32],
    /// Columns.
    pub v: &'a [f32],
    /// The result: columns.
    pub y: &'a mut [f32],
}

/// A token of the seventh RWKV's memory, for some columns of a head.
#[derive(Debug)]
pub struct Wkv7Step<'a> {
    /// A row of the columns for each of `k`; becomes the next.
    pub state: &'a mut [f32],
    /// What is left of each row.
    pub decay: &'a [f32],
    /// What is looked up of each row.
    pub known: &'a [f32],
    /// How much of what was found each row forgets.
    pub forget: &'a [f32],
    /// What is read of each row.
    pub r: &'a [f32],
    /// Key.
    pub k: &'a [f32],
    /// Columns.
    pub v: &'a [f32],
    /// The result: columns.
    pub y: &'a mut [f32],
}

/// A token of a block that becomes one row, for some columns of it.
#[derive(Debug)]
pub struct PoolStep<'a> {
    /// The largest gates of the block so far; `f32::MIN` before the first.
    pub max: &'a mut [f32],
    /// Sums of weights, over the weight that the largest has.
    pub sum: &'a mut [f32],
    /// Weighed sums of `x`, over the same.
    pub acc: &'a mut [f32],
    /// Columns.
    pub x: &'a [f32],
    /// Gates.
    pub gate: &'a [f32],
    /// Added to them.
    pub bias: &'a [f32],
}

impl ScanStep<'_> {
    /// Panics unless the parts belong together.
    pub(super) fn check(&self) {
        let (rows, cols) = (self.b.len(), self.x.len());
        assert!(self.c.len() == rows && self.y.len() == cols);
        assert!(rows.checked_mul(cols) == Some(self.state.len()));
        let each = self.dt.len() == cols && self.a.len() == self.state.len();
        assert!(each || (self.dt.len(), self.a.len()) == (1, 1));
        assert!(self.d.len() == cols || self.d.len() == 1);
    }
}

impl DeltaStep<'_> {
    /// Panics unless the parts belong together.
    pub(super) fn check(&self) {
        let (rows, cols) = (self.k.len(), self.v.len());
        assert!(self.q.len() == rows && self.y.len() == cols);
        assert!(self.decay.len() == rows || self.decay.len() == 1);
        assert!(rows.checked_mul(cols) == Some(self.state.len()));
    }
}

impl WkvStep<'_> {
    /// Panics unless the parts belong together.
    pub(super) fn check(&self) {
        let (rows, cols) = (self.k.len(), self.v.len());
        assert!([self.r, self.decay].iter().all(|x| x.len() == rows) && self.y.len() == cols);
        assert!(rows.checked_mul(cols) == Some(self.state.len()));
    }
}

impl Wkv7Step<'_> {
    /// Panics unless the parts belong together.
    pub(super) fn check(&self) {
        let (rows, cols) = (self.k.len(), self.v.len());
        let each = [self.decay, self.known, self.forget, self.r];
        assert!(each.iter().all(|x| x.len() == rows) && self.y.len() == cols);
        assert!(rows.checked_mul(cols) == Some(self.state.len()));
    }
}

impl PoolStep<'_> {
    /// Panics unless the parts belong together.
    pub(super) fn check(&self) {
        let n = self.x.len();
        let state = [&self.max, &self.sum, &self.acc];
        assert!(state.iter().all(|x| x.len() == n) && self.gate.len() == n && self.bias.len() == n);
    }
}

/// Arithmetic of recurrent layers. What a column gets does not depend on those beside it.
#[derive(Debug, Clone, Copy)]
pub struct RecurrentKernels {
    /// `y = bias + Σ x ⊙ w` over the taps, or `silu` of that; `bias` may be empty.
    pub conv: fn(taps: &[Tap<'_>], bias: &[f32], silu: bool, y: &mut [f32]),
    /// See [`ScanStep`]: `S ← exp(dt a) S + (dt x) bᵀ`, `y = S c + d x`.
    pub scan: fn(step: ScanStep<'_>),
    /// See [`DeltaStep`]: `S ← decay S`, `S ← S + k (beta (v - Sᵀ k))ᵀ`, `y = Sᵀ q`.
    pub delta: fn(step: DeltaStep<'_>),
    /// See [`WkvStep`]: `y = Sᵀ r + own v`, `S ← decay S + k vᵀ`.
    pub wkv: fn(step: WkvStep<'_>),
    /// See [`Wkv7Step`]: `S ← decay S - forget (Sᵀ known)ᵀ + k vᵀ`, `y = Sᵀ r`.
    pub wkv7: fn(step: Wkv7Step<'_>),
    /// See [`PoolStep`]: `acc / sum` is the softmax of `gate + bias` over the tokens so far, times their `x`.
    pub pool: fn(step: PoolStep<'_>),
}
