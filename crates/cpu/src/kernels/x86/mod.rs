//! Levels of x86-64.

mod amx;
mod avx2;
mod avx2_packed;
mod avx512;
mod vnni;

pub(crate) use amx::peaks as tile_peaks;

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
            if amx::available() {
                found.push(&amx::LEVEL);
            }
        }
    }
}

/// The level `amx-emulated`, where the processor has the vector instructions of `amx`.
#[cfg(any(test, feature = "emulated-amx"))]
pub(super) fn emulated_amx() -> Option<&'static Level> {
    let vectors = avx2::available() && avx512::available() && vnni::available();
    vectors.then(amx::emulated).flatten()
}
