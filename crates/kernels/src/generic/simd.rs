//! What a kernel body may ask of a vector type.

use super::panel;
use crate::OutMut;

/// A vector of f32 and what can be done with it.
///
/// # Safety
/// This holds for every method: the processor has the features that the implementing type is named after; pointers are
/// valid for the bytes named at the method, at any alignment. Implementations must not touch other bytes.
pub(crate) trait Simd: Copy + 'static {
    /// f32 lanes of one vector: 4, 8 or 16.
    const LANES: usize;
    /// Rows of four vectors of sums that stay in registers beside four vectors and one broadcast: 2, 4 or 6.
    const TILE_ROWS: usize;
    /// Vectors of weight rows of a panel whose sums are f32: 1 or 2.
    const F32_PANEL_VECTORS: usize;
    /// Activation rows that they meet at once: 6, 12 or 24.
    const F32_PANEL_TOKENS: usize;

    /// A vector of `LANES` f32.
    type F: Copy;

    /// All lanes `x`.
    unsafe fn splat(x: f32) -> Self::F;
    /// `LANES` f32 at `p`.
    unsafe fn load(p: *const f32) -> Self::F;
    /// To `LANES` f32 at `p`.
    unsafe fn store(p: *mut f32, v: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The smaller; `b` where a lane is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// The larger; `b` where a lane is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn abs(a: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    unsafe fn round(a: Self::F) -> Self::F;
    /// `2^n` of integral lanes in −126…127.
    unsafe fn pow2(n: Self::F) -> Self::F;
    /// `a` where `x < bound`, else `b` (also where `x` is NaN).
    unsafe fn select_below(x: Self::F, bound: Self::F, a: Self::F, b: Self::F) -> Self::F;
    /// `a · 2^n` for integral lanes n in −126…127; anything for others.
    #[inline(always)]
    unsafe fn scale_pow2(a: Self::F, n: Self::F) -> Self::F {
        // SAFETY: the contract.
        unsafe { Self::mul(a, Self::pow2(n)) }
    }
    /// Whether any lane of `x` is above `bound`.
    #[inline(always)]
    unsafe fn any_above(x: Self::F, bound: f32) -> bool {
        // SAFETY: the contract.
        unsafe { Self::hmax(x) > bound }
    }
    /// Sum of the lanes.
    unsafe fn sum(a: Self::F) -> f32;
    /// Largest lane.
    unsafe fn hmax(a: Self::F) -> f32;

    /// `LANES` binary16 at `p`.
    unsafe fn load_f16(p: *const u8) -> Self::F;
    /// `LANES` bfloat16 at `p`.
    unsafe fn load_bf16(p: *const u8) -> Self::F;
    /// `LANES` i8 at `p`.
    unsafe fn load_i8(p: *const u8) -> Self::F;
    /// The low (or high) halves of `LANES` bytes at `p`, less 8.
    unsafe fn load_nibbles(p: *const u8, high: bool) -> Self::F;
    /// To `LANES` binary16 at `p`, rounded to nearest, ties to even.
    unsafe fn store_f16(p: *mut u8, v: Self::F);
    /// To `LANES` i8 at `p`; the lanes are integers in −128…127.
    unsafe fn store_i8(p: *mut i8, v: Self::F);

    /// Transposes `LANES × LANES` f32 from `LANES` vectors (the first array entries) to rows at `dst`.
    unsafe fn transpose(rows: &[Self::F; 16], dst: *mut f32);

    /// The f32 of a binary16.
    unsafe fn half(bits: u16) -> f32;
    /// [`panel::sweep`] of f32, compiled once for a level.
    unsafe fn sweep_f32(
        panel: &[f32],
        packed: &[f32],
        len: usize,
        tokens: usize,
        out: &mut OutMut<'_>,
        place: panel::Place,
    );
    /// Asks for the line at `p` to be brought near; `p` may point anywhere.
    unsafe fn prefetch(p: *const u8);
    /// The same, but no nearer than the second level: the first one keeps few lines that are on their way, and so cannot ask
    /// for as much as memory has to give.
    unsafe fn prefetch_far(p: *const u8);
}
