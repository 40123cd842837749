//! Levels of AArch64.

mod dotprod;
mod neon;
mod neon_packed;

use super::Level;

/// Appends the levels that this processor runs, best last.
pub(super) fn add_levels(found: &mut Vec<&'static Level>) {
    // NEON is part of every AArch64 target that Rust's standard library supports.
    found.push(&neon::LEVEL);
    if std::arch::is_aarch64_feature_detected!("dotprod") {
        found.push(&dotprod::LEVEL);
    }
}
