//! Kernels of recurrent layers: each computes one token for some columns of a state matrix `S` of
//! rows × columns. A task owns its columns, so tasks run in parallel.

/// One input row of a convolution and its weights.
#[derive(Debug, Clone, Copy)]
pub struct Tap<'a> {
    /// The row.
    pub x: &'a [f32],
    /// Weight of each value.
    pub w: &'a [f32],
}

/// One token of a selective scan (Mamba), for the columns of a head, or for columns with a step
/// each (Mamba 1).
#[derive(Debug)]
pub struct ScanStep<'a> {
    /// `S`, in: before the token, out: after it. A row for each value of `b`.
    pub state: &'a mut [f32],
    /// Input of each column.
    pub x: &'a [f32],
    /// Step size: one value, or one per column.
    pub dt: &'a [f32],
    /// Decay rate: one value, or one per element of the state.
    pub a: &'a [f32],
    /// Input weight of each row.
    pub b: &'a [f32],
    /// Output weight of each row.
    pub c: &'a [f32],
    /// Skip weight: one value, or one per column.
    pub d: &'a [f32],
    /// Result of each column.
    pub y: &'a mut [f32],
}

/// One token of the gated delta rule (DeltaNet), for some columns of a head.
#[derive(Debug)]
pub struct DeltaStep<'a> {
    /// `S`, in: before the token, out: after it. A row for each value of `k`.
    pub state: &'a mut [f32],
    /// Decay of the state: one value, or one per row.
    pub decay: &'a [f32],
    /// Query.
    pub q: &'a [f32],
    /// Key.
    pub k: &'a [f32],
    /// Value of each column.
    pub v: &'a [f32],
    /// Learning rate of the update.
    pub beta: f32,
    /// Result of each column.
    pub y: &'a mut [f32],
}

/// One token of the RWKV 6 state, for some columns of a head.
#[derive(Debug)]
pub struct WkvStep<'a> {
    /// `S`, in: before the token, out: after it. A row for each value of `k`.
    pub state: &'a mut [f32],
    /// Decay of each row.
    pub decay: &'a [f32],
    /// Receptance: output weight of each row.
    pub r: &'a [f32],
    /// Output weight of the token's own value (time first).
    pub own: f32,
    /// Key.
    pub k: &'a [f32],
    /// Value of each column.
    pub v: &'a [f32],
    /// Result of each column.
    pub y: &'a mut [f32],
}

/// One token of the RWKV 7 state, for some columns of a head.
#[derive(Debug)]
pub struct Wkv7Step<'a> {
    /// `S`, in: before the token, out: after it. A row for each value of `k`.
    pub state: &'a mut [f32],
    /// Decay of each row.
    pub decay: &'a [f32],
    /// Normalized removal key: read weight of each row.
    pub removal_key: &'a [f32],
    /// Part of the value at the removal key that each row forgets.
    pub forget: &'a [f32],
    /// Receptance: output weight of each row.
    pub r: &'a [f32],
    /// Key.
    pub k: &'a [f32],
    /// Value of each column.
    pub v: &'a [f32],
    /// Result of each column.
    pub y: &'a mut [f32],
}

/// One token of a block of tokens that is pooled to one row by a softmax over gates, for some
/// columns.
#[derive(Debug)]
pub struct PoolStep<'a> {
    /// Largest gate of each column so far; `f32::MIN` at first.
    pub max: &'a mut [f32],
    /// Sum of `e^(gate - max)` of each column.
    pub sum: &'a mut [f32],
    /// Sum of `e^(gate - max) · x` of each column.
    pub acc: &'a mut [f32],
    /// Input of each column.
    pub x: &'a [f32],
    /// Gate of each column.
    pub gate: &'a [f32],
    /// Bias of each gate.
    pub bias: &'a [f32],
}

impl ScanStep<'_> {
    /// Panics if the lengths do not match.
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
    /// Panics if the lengths do not match.
    pub(super) fn check(&self) {
        let (rows, cols) = (self.k.len(), self.v.len());
        assert!(self.q.len() == rows && self.y.len() == cols);
        assert!(self.decay.len() == rows || self.decay.len() == 1);
        assert!(rows.checked_mul(cols) == Some(self.state.len()));
    }
}

impl WkvStep<'_> {
    /// Panics if the lengths do not match.
    pub(super) fn check(&self) {
        let (rows, cols) = (self.k.len(), self.v.len());
        assert!([self.r, self.decay].iter().all(|x| x.len() == rows) && self.y.len() == cols);
        assert!(rows.checked_mul(cols) == Some(self.state.len()));
    }
}

impl Wkv7Step<'_> {
    /// Panics if the lengths do not match.
    pub(super) fn check(&self) {
        let (rows, cols) = (self.k.len(), self.v.len());
        let each = [self.decay, self.removal_key, self.forget, self.r];
        assert!(each.iter().all(|x| x.len() == rows) && self.y.len() == cols);
        assert!(rows.checked_mul(cols) == Some(self.state.len()));
    }
}

impl PoolStep<'_> {
    /// Panics if the lengths do not match.
    pub(super) fn check(&self) {
        let n = self.x.len();
        let state = [&self.max, &self.sum, &self.acc];
        assert!(state.iter().all(|x| x.len() == n) && self.gate.len() == n && self.bias.len() == n);
    }
}

/// Kernels of recurrent layers. The result of a column does not depend on other columns of the
/// call.
#[derive(Debug, Clone, Copy)]
pub struct RecurrentKernels {
    /// `y = bias + Σ x ⊙ w` over the taps, or `silu` of that; `bias` may be empty.
    pub conv: fn(taps: &[Tap<'_>], bias: &[f32], silu: bool, y: &mut [f32]),
    /// See [`ScanStep`]: `S ← exp(dt a) S + (dt x) bᵀ`, `y = S c + d x`.
    pub scan: fn(step: ScanStep<'_>),
    /// See [`DeltaStep`]: `S ← decay S`, `S ← S + k (beta (v - Sᵀ k))ᵀ`, `y = Sᵀ q`.
    pub delta: fn(step: DeltaStep<'_>),
    /// See [`WkvStep`]: `y = Sᵀ r + own · v`, `S ← decay S + k vᵀ`.
    pub wkv: fn(step: WkvStep<'_>),
    /// See [`Wkv7Step`]: `S ← decay S - forget (Sᵀ removal_key)ᵀ + k vᵀ`, `y = Sᵀ r`.
    pub wkv7: fn(step: Wkv7Step<'_>),
    /// See [`PoolStep`]: `acc / sum` is the softmax of `gate + bias` over the tokens so far, times
    /// their `x`.
    pub pool: fn(step: PoolStep<'_>),
}
