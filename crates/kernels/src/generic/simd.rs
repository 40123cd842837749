//! The vector type of a level.

use super::sweep::OutBlock;
use crate::OutMut;

/// Operations on a vector of f32.
///
/// # Safety
/// This holds for every method: the processor has the features that the implementing type is named
/// after; pointers are valid for the bytes named at the method, at any alignment. Implementations
/// must not touch other bytes.
pub(crate) trait Simd: Copy + 'static {
    /// f32 lanes of one vector: 4, 8 or 16.
    const LANES: usize;
    /// Rows of a register tile: rows of four sum vectors that fit into registers besides four input
    /// vectors and one broadcast. 2, 4 or 6.
    const TILE_ROWS: usize;
    /// Vectors of weight rows in a panel with f32 sums: 1 or 2.
    const F32_PANEL_VECTORS: usize;
    /// Activation rows that a panel with f32 sums multiplies at once: 6, 12 or 24.
    const F32_PANEL_TOKENS: usize;

    /// A vector of `LANES` f32.
    type F: Copy;

    /// A vector with `x` in all lanes.
    unsafe fn splat(x: f32) -> Self::F;
    /// Loads `LANES` f32 from `p`.
    unsafe fn load(p: *const f32) -> Self::F;
    /// Stores `LANES` f32 to `p`.
    unsafe fn store(p: *mut f32, v: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Minimum; `b` where a lane is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// Maximum; `b` where a lane is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn abs(a: Self::F) -> Self::F;
    /// Rounds to the nearest integer, ties to even.
    unsafe fn round(a: Self::F) -> Self::F;
    /// `2^n` of integral lanes in −126…127.
    unsafe fn pow2(n: Self::F) -> Self::F;
    /// `a` where `x < bound`, else `b` (also where `x` is NaN).
    unsafe fn select_below(x: Self::F, bound: Self::F, a: Self::F, b: Self::F) -> Self::F;
    /// `a · 2^n` for integral lanes n in −126…127; undefined for others.
    #[inline(always)]
    unsafe fn scale_pow2(a: Self::F, n: Self::F) -> Self::F {
        // SAFETY: the contract of the trait.
        unsafe { Self::mul(a, Self::pow2(n)) }
    }
    /// Whether any lane of `x` is above `bound`.
    #[inline(always)]
    unsafe fn any_above(x: Self::F, bound: f32) -> bool {
        // SAFETY: the contract of the trait.
        unsafe { Self::hmax(x) > bound }
    }
    /// Sum of the lanes.
    unsafe fn sum(a: Self::F) -> f32;
    /// Largest lane.
    unsafe fn hmax(a: Self::F) -> f32;

    /// Loads `LANES` binary16 from `p`.
    unsafe fn load_f16(p: *const u8) -> Self::F;
    /// Loads `LANES` bfloat16 from `p`.
    unsafe fn load_bf16(p: *const u8) -> Self::F;
    /// Loads `LANES` i8 from `p`.
    unsafe fn load_i8(p: *const u8) -> Self::F;
    /// Loads the low (or high) 4 bits of `LANES` bytes from `p`, minus 8.
    unsafe fn load_nibbles(p: *const u8, high: bool) -> Self::F;
    /// Stores `LANES` binary16 to `p`, rounded to nearest, ties to even.
    unsafe fn store_f16(p: *mut u8, v: Self::F);
    /// Stores `LANES` i8 to `p`; lanes are integers in −128…127.
    unsafe fn store_i8(p: *mut i8, v: Self::F);

    /// Transposes `LANES × LANES` f32 from `LANES` vectors (the first array entries) to rows at
    /// `dst`.
    unsafe fn transpose(rows: &[Self::F; 16], dst: *mut f32);

    /// Converts one binary16 to f32.
    unsafe fn half(bits: u16) -> f32;
    /// [`super::panel::sweep`] of f32, compiled once for a level.
    unsafe fn sweep_f32(
        panel: &[f32],
        packed: &[f32],
        len: usize,
        tokens: usize,
        out: &mut OutMut<'_>,
        block: OutBlock,
    );
    /// Prefetches the cache line at `p` into the first-level cache; `p` may point anywhere.
    unsafe fn prefetch(p: *const u8);
    /// Prefetches into the second-level cache. The first level tracks few outstanding lines, so
    /// prefetching into it cannot use the full memory bandwidth.
    unsafe fn prefetch_far(p: *const u8);
}
