//! Levels of AArch64.
//!
//! # Safety
//! An `unsafe fn` of a level requires the processor's features of that level. Implementations of
//! traits have the contract of their trait. Functions that take pointers state the bytes.

// Loops over registers of a row read best by number.
#![allow(clippy::needless_range_loop)]

mod dotprod;
mod dots;
mod i8mm;
mod neon;
mod neon_packed;

use super::Level;

/// Appends the levels that this processor runs, best last.
pub(super) fn add_levels(found: &mut Vec<&'static Level>) {
    // NEON is part of every AArch64 target that Rust's standard library supports.
    found.push(&neon::LEVEL);
    if std::arch::is_aarch64_feature_detected!("dotprod") {
        found.push(&dotprod::LEVEL);
        if i8mm::available() {
            found.push(&i8mm::LEVEL);
        }
    }
}
