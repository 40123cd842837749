//! Large pages of memory, where the system has them.

/// Bytes of a large page, on every system that has such.
pub const HUGE_PAGE: usize = 2 << 20;

/// Asks the system for large pages: buffers that are walked in strides of a few KiB miss the translation cache otherwise. A
/// hint; what is not whole pages stays as it is. Best before memory is touched.
#[cfg(target_os = "linux")]
pub fn advise_huge(start: *mut u8, bytes: usize) {
    let skip = start.align_offset(HUGE_PAGE);
    let whole = bytes.saturating_sub(skip) / HUGE_PAGE * HUGE_PAGE;
    if whole > 0 {
        // SAFETY: the range lies inside the caller's buffer, whose content the advice does not change.
        unsafe { libc::madvise(start.wrapping_add(skip).cast(), whole, libc::MADV_HUGEPAGE) };
    }
}

/// Elsewhere large pages are given without being asked for, or not at all.
#[cfg(not(target_os = "linux"))]
pub fn advise_huge(_start: *mut u8, _bytes: usize) {}
