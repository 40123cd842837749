//! Levels of x86-64.

mod avx2;
mod avx2_packed;
mod avx512;
mod vnni;

use super::Level;

/// Appends the levels that this processor runs, best last.
pub(super) fn add_levels(found: &mut Vec<&'static Level>) {
    if avx2::available() {
        found.push(&avx2::LEVEL);
    }
    if avx2::available() && avx512::available() {
        found.push(&avx512::LEVEL);
        if vnni::available() {
            found.push(&vnni::LEVEL);
        }
    }
}
