//! A file that claims more than it has costs no memory in proportion to the claim. One test only: it counts what the
//! whole process allocates.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::{Raw, minimal};
use puna_gguf::Gguf;

/// The system's allocator, with an account of the largest sum of live bytes.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(LIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most that opening `file` takes beyond its own bytes and the aligned copy of them.
fn peak_of(file: Vec<u8>) -> usize {
    let own = 2 * file.len() + 64;
    let before = LIVE.load(Relaxed) - file.len();
    PEAK.store(0, Relaxed);
    drop(Gguf::from_bytes(file));
    PEAK.load(Relaxed).saturating_sub(before + own)
}

#[test]
fn huge_claims_cost_no_memory() {
    let minimal = minimal();
    let mut worst = 0;
    // Every 64-bit, every 32-bit field made huge: whatever is a count or a length among them claims too much.
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

    // A megabyte of zeros behind counts as large as it allows: nothing is taken in advance.
    let mut file = Raw::new(43_690, 0).into_bytes();
    file.resize(1 << 20, 0);
    let peak = peak_of(file);
    assert!(peak < 4096, "{peak} bytes for tensors that are not there");
    let mut file = Raw::new(0, 65_536).into_bytes();
    file.resize(1 << 20, 0);
    let peak = peak_of(file);
    assert!(peak < 4096, "{peak} bytes for keys that are not there");
    let mut file =
        Raw::new(0, 1).kv(b"list", 9, &[8, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0]).into_bytes();
    file.resize(2 << 20, 0);
    let peak = peak_of(file);
    assert!(peak < 4096, "{peak} bytes for a list of strings that stays in the file");
}
