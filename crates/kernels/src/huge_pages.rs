//! Huge pages (2 MiB) for large buffers.

/// Bytes of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;

/// Asks the system for huge pages, since a walk in strides of a few KiB would miss the TLB at each
/// step. A hint for the whole huge pages of the range, best given before the memory is touched.
#[cfg(target_os = "linux")]
pub fn advise_huge(start: *mut u8, bytes: usize) {
    let skip = start.align_offset(HUGE_PAGE);
    let whole = bytes.saturating_sub(skip) / HUGE_PAGE * HUGE_PAGE;
    if whole > 0 {
        // SAFETY: the range lies inside the caller's buffer; the advice does not change its
        // content.
        unsafe { libc::madvise(start.wrapping_add(skip).cast(), whole, libc::MADV_HUGEPAGE) };
    }
}

/// Does nothing on other systems.
#[cfg(not(target_os = "linux"))]
pub fn advise_huge(_start: *mut u8, _bytes: usize) {}
