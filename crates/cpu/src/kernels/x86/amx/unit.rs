//! The instructions of a matrix unit: the processor's own, and a copy of them in plain code.

use std::arch::asm;

/// Eight tiles of 16 lines of 64 bytes, numbered 0 to 7.
///
/// # Safety
/// For all methods: the processor has AMX with bf16 and int8 and the process may use it, where the unit is [`Hardware`];
/// pointers are valid for 16 lines of 64 bytes, each `stride` bytes after the one before.
pub(super) trait Unit: Sized + 'static {
    /// Sets the unit up for this thread, until the value is dropped. A thread has one at a time.
    unsafe fn configure() -> Self;
    /// Tile `T` = 0.
    unsafe fn zero<const T: usize>(&mut self);
    /// Tile `T` = memory.
    unsafe fn load<const T: usize>(&mut self, p: *const u8, stride: usize);
    /// Memory = tile `T`.
    unsafe fn store<const T: usize>(&self, p: *mut u8, stride: usize);
    /// `C[m][n] += Σ_k A[m][k] · B[k/2][n][k%2]`: 16 × 16 f32, 16 × 32 bf16, 16 lines of 16 pairs of bf16.
    unsafe fn dot_bf16<const C: usize, const A: usize, const B: usize>(&mut self);
    /// `C[m][n] += Σ_k A[m][k] · B[k/4][n][k%4]`: 16 × 16 i32, 16 × 64 i8, 16 lines of 16 fours of i8.
    unsafe fn dot_i8<const C: usize, const A: usize, const B: usize>(&mut self);
}

/// The processor's tiles. They are configured while this lives: never across a wait, for the system would have to save
/// 8 KiB whenever the thread is switched.
pub(super) struct Hardware(());

/// What `ldtilecfg` takes: palette 1, eight tiles of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    zeros: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: Config = Config {
    palette: 1,
    start_row: 0,
    zeros: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

// Tiles are no registers that the compiler assigns, so that they keep their content from one block to the next. All blocks
// are volatile, which keeps their order.
// SAFETY of the blocks below: the trait's contract gives the features and the bytes at each pointer.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Unit for Hardware {
    #[inline(always)]
    unsafe fn configure() -> Self {
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, preserves_flags, readonly));
        }
        Self(())
    }
    #[inline(always)]
    unsafe fn zero<const T: usize>(&mut self) {
        unsafe { asm!("tilezero tmm{t}", t = const T, options(nostack, preserves_flags, nomem)) }
    }
    #[inline(always)]
    unsafe fn load<const T: usize>(&mut self, p: *const u8, stride: usize) {
        unsafe {
            asm!("tileloadd tmm{t}, [{p} + {stride}*1]", t = const T, p = in(reg) p, stride = in(reg) stride,
                options(nostack, preserves_flags, readonly));
        }
    }
    #[inline(always)]
    unsafe fn store<const T: usize>(&self, p: *mut u8, stride: usize) {
        unsafe {
            asm!("tilestored [{p} + {stride}*1], tmm{t}", t = const T, p = in(reg) p, stride = in(reg) stride,
                options(nostack, preserves_flags));
        }
    }
    #[inline(always)]
    unsafe fn dot_bf16<const C: usize, const A: usize, const B: usize>(&mut self) {
        unsafe {
            asm!("tdpbf16ps tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                options(nostack, preserves_flags, nomem));
        }
    }
    #[inline(always)]
    unsafe fn dot_i8<const C: usize, const A: usize, const B: usize>(&mut self) {
        unsafe {
            asm!("tdpbssd tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                options(nostack, preserves_flags, nomem));
        }
    }
}

impl Drop for Hardware {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: there is a value only where the instruction is.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) }
    }
}

/// Tiles in memory, with the arithmetic of the processor's manual to the bit.
#[cfg(any(test, feature = "emulated-amx"))]
pub(super) struct Emulated {
    tiles: [[u32; 256]; 8],
}

#[cfg(any(test, feature = "emulated-amx"))]
impl Unit for Emulated {
    #[inline(always)]
    unsafe fn configure() -> Self {
        Self { tiles: [[0; 256]; 8] }
    }
    #[inline(always)]
    unsafe fn zero<const T: usize>(&mut self) {
        self.tiles[T] = [0; 256];
    }
    #[inline(always)]
    unsafe fn load<const T: usize>(&mut self, p: *const u8, stride: usize) {
        for (i, line) in self.tiles[T].as_chunks_mut::<16>().0.iter_mut().enumerate() {
            // SAFETY: the caller's lines.
            *line = unsafe { p.add(i * stride).cast::<[u32; 16]>().read_unaligned() };
        }
    }
    #[inline(always)]
    unsafe fn store<const T: usize>(&self, p: *mut u8, stride: usize) {
        for (i, line) in self.tiles[T].as_chunks::<16>().0.iter().enumerate() {
            // SAFETY: the caller's lines.
            unsafe { p.add(i * stride).cast::<[u32; 16]>().write_unaligned(*line) };
        }
    }
    #[inline(always)]
    unsafe fn dot_bf16<const C: usize, const A: usize, const B: usize>(&mut self) {
        let (a, b) = (self.tiles[A], self.tiles[B]);
        for m in 0..16 {
            // Values of even and of odd numbers are summed apart, from zero, in the order of k.
            let mut sums = [[0.0f32; 16]; 2];
            for k in 0..16 {
                let pair = a[16 * m + k];
                for n in 0..16 {
                    let other = b[16 * k + n];
                    sums[0][n] = flush(low(pair).mul_add(low(other), sums[0][n]));
                    sums[1][n] = flush(high(pair).mul_add(high(other), sums[1][n]));
                }
            }
            for (n, (even, odd)) in sums[0].iter().zip(&sums[1]).enumerate() {
                let c = &mut self.tiles[C][16 * m + n];
                let sum = flush(even + odd);
                *c = flush(flush(f32::from_bits(*c)) + sum).to_bits();
            }
        }
    }
    #[inline(always)]
    unsafe fn dot_i8<const C: usize, const A: usize, const B: usize>(&mut self) {
        let (a, b) = (self.tiles[A], self.tiles[B]);
        for m in 0..16 {
            for k in 0..16 {
                let four = a[16 * m + k].to_le_bytes();
                for n in 0..16 {
                    let products = four.iter().zip(b[16 * k + n].to_le_bytes());
                    let sum: i32 = products.map(|(&x, y)| i32::from(x as i8) * i32::from(y as i8)).sum();
                    let c = &mut self.tiles[C][16 * m + n];
                    *c = c.wrapping_add(sum as u32);
                }
            }
        }
    }
}

/// The first bf16 of a pair; denormals are zero.
#[cfg(any(test, feature = "emulated-amx"))]
#[inline(always)]
fn low(pair: u32) -> f32 {
    flush(f32::from_bits(pair << 16))
}

/// The second bf16 of a pair; denormals are zero.
#[cfg(any(test, feature = "emulated-amx"))]
#[inline(always)]
fn high(pair: u32) -> f32 {
    flush(f32::from_bits(pair & 0xffff_0000))
}

#[cfg(any(test, feature = "emulated-amx"))]
#[inline(always)]
fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { f32::from_bits(x.to_bits() & 0x8000_0000) } else { x }
}
