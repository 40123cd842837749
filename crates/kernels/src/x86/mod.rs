//! Levels of x86-64.
//!
//! # Safety
//! An `unsafe fn` of a level requires the processor's features of that level. Implementations of
//! traits have the contract of their trait. Functions that take pointers state the bytes.

mod amx;
mod avx2;
mod avx2_packed;
mod avx2_vectors;
mod avx512;
mod avxvnni;
mod bf16;
mod dots;
mod fields;
mod vnni;

pub use amx::peaks as tile_peaks;

use super::Level;

/// Appends the levels that this processor runs, best last.
pub(super) fn add_levels(found: &mut Vec<&'static Level>) {
    if avx2::available() {
        found.push(&avx2::LEVEL);
        if avxvnni::available() {
            found.push(&avxvnni::LEVEL);
        }
    }
    if avx2::available() && avx512::available() {
        found.push(&avx512::LEVEL);
        if vnni::available() {
            found.push(&vnni::LEVEL);
            if amx::available() {
                found.push(&amx::LEVEL);
            }
        }
    }
}

/// Levels of other processors that this one can stand in for: `avxvnni-evex` and `amx-emulated`.
#[cfg(any(test, feature = "emulated"))]
pub(super) fn emulated() -> Vec<&'static Level> {
    let vnni = avx2::available() && avxvnni::evex::available();
    let mut found = Vec::from_iter(vnni.then_some(&avxvnni::evex::LEVEL));
    let vectors = avx2::available() && avx512::available() && vnni::available();
    found.extend(vectors.then(amx::emulated).flatten());
    found
}
