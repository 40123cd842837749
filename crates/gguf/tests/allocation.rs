//! Opening a file with huge counts does not allocate memory for them. This must be the only test in
//! its process, since it counts all allocations.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::{RawFile, minimal};
use puna_gguf::Gguf;

/// The system's allocator, which records the peak of live bytes.
struct CountingAllocator;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards every call unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(LIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Peak of memory that opening `file` takes, beyond its bytes and their aligned copy.
fn peak_of(file: Vec<u8>) -> usize {
    let own = 2 * file.len() + 64;
    let before = LIVE.load(Relaxed) - file.len();
    PEAK.store(0, Relaxed);
    drop(Gguf::from_bytes(file));
    PEAK.load(Relaxed).saturating_sub(before + own)
}

#[test]
fn huge_counts_allocate_no_memory() {
    let minimal = minimal();
    let mut worst = 0;
    // Sets every 64-bit and every 32-bit field to a huge number, which includes all counts and
    // lengths.
    for at in 0..minimal.len() - 8 {
        for claim in
            [u64::MAX, 1 << 62, 1 << 40, u64::from(u32::MAX), 1 << 31, 64 << 20, 65_536, 255]
        {
            let mut file = minimal.clone();
            file[at..at + 8].copy_from_slice(&claim.to_le_bytes());
            worst = worst.max(peak_of(file));
            let mut file = minimal.clone();
            file[at..at + 4].copy_from_slice(&(claim as u32).to_le_bytes());
            worst = worst.max(peak_of(file));
        }
    }
    assert!(worst < 4096, "{worst} bytes for a file of {}", minimal.len());

    // A megabyte of zeros after the header permits large counts. Nothing is allocated in advance.
    let mut file = RawFile::new(43_690, 0).into_bytes();
    file.resize(1 << 20, 0);
    let peak = peak_of(file);
    assert!(peak < 4096, "{peak} bytes for tensors that are not there");
    let mut file = RawFile::new(0, 65_536).into_bytes();
    file.resize(1 << 20, 0);
    let peak = peak_of(file);
    assert!(peak < 4096, "{peak} bytes for keys that are not there");
    let mut file =
        RawFile::new(0, 1).kv(b"list", 9, &[8, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0]).into_bytes();
    file.resize(2 << 20, 0);
    let peak = peak_of(file);
    assert!(peak < 4096, "{peak} bytes for a list of strings that stays in the file");
}
