//! Arguments of a sweep, which multiplies one panel of weights with all packed tokens.

/// Unpacked weights of `PANEL_VECTORS · LANES` rows over a slice of K. Each vector of rows has a
/// plane of codes and a plane of scales and minimums; [`super::qpanel`] has their sizes.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) scales: &'a [f32],
    pub(crate) minimums: &'a [f32],
    /// Values of K: a multiple of 32.
    pub(crate) len: usize,
}

/// Block of the output that one sweep writes.
#[derive(Clone, Copy)]
pub(crate) struct OutBlock {
    /// First token.
    pub(crate) t0: usize,
    /// First weight row.
    pub(crate) r0: usize,
    /// Number of weight rows, at most the rows of the panel.
    pub(crate) cols: usize,
    /// Whether to add to the present values instead of overwriting them.
    pub(crate) add: bool,
}
