//! The instructions of a matrix unit: the processor's own, and a copy of them in plain code.

use std::arch::asm;

/// Eight tiles of 16 lines of 64 bytes, numbered 0 to 7.
///
/// # Safety
/// For all methods: the processor has AMX with bf16 and int8 and the process may use it, where the
/// unit is [`Hardware`]; pointers are valid for 16 lines of 64 bytes, each `stride` bytes after the
/// one before.
pub(super) trait Unit: Sized + 'static {
    /// Sets the unit up for this thread, until the value is dropped. A thread has one at a time.
    unsafe fn configure() -> Self;
    /// Tile `T` = 0.
    unsafe fn zero<const T: usize>(&mut self);
    /// Tile `T` = memory.
    unsafe fn load<const T: usize>(&mut self, p: *const u8, stride: usize);
    /// Memory = tile `T`.
    unsafe fn store<const T: usize>(&self, p: *mut u8, stride: usize);
    /// `C[m][n] += Σ_k A[m][k] · B[k/2][n][k%2]`: 16 × 16 f32, 16 × 32 bf16, 16 lines of 16 pairs
    /// of bf16.
    unsafe fn dot_bf16<const C: usize, const A: usize, const B: usize>(&mut self);
    /// `C[m][n] += Σ_k A[m][k] · B[k/4][n][k%4]`: 16 × 16 i32, 16 × 64 i8, 16 lines of 16 fours of
    /// i8.
    unsafe fn dot_i8<const C: usize, const A: usize, const B: usize>(&mut self);
}

/// The processor's tiles. They are configured while this lives: never across a wait, for the system
/// would have to save 8 KiB whenever the thread is switched.
pub(super) struct Hardware(());

/// Configuration for `ldtilecfg`: palette 1, eight tiles of 16 rows of 64 bytes.
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

// Tiles are no registers that the compiler assigns, so that they keep their content from one block
// to the next. All blocks are volatile, which keeps their order. SAFETY of the blocks below: the
// trait's contract gives the features and the bytes at each pointer.
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
#[cfg(any(test, feature = "emulated"))]
pub(super) struct Emulated {
    tiles: [[u32; 256]; 8],
}

#[cfg(any(test, feature = "emulated"))]
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
                    let sum: i32 =
                        products.map(|(&x, y)| i32::from(x as i8) * i32::from(y as i8)).sum();
                    let c = &mut self.tiles[C][16 * m + n];
                    *c = c.wrapping_add(sum as u32);
                }
            }
        }
    }
}

/// The first bf16 of a pair; denormals are zero.
#[cfg(any(test, feature = "emulated"))]
#[inline(always)]
fn low(pair: u32) -> f32 {
    flush(f32::from_bits(pair << 16))
}

/// The second bf16 of a pair; denormals are zero.
#[cfg(any(test, feature = "emulated"))]
#[inline(always)]
fn high(pair: u32) -> f32 {
    flush(f32::from_bits(pair & 0xffff_0000))
}

#[cfg(any(test, feature = "emulated"))]
#[inline(always)]
fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { f32::from_bits(x.to_bits() & 0x8000_0000) } else { x }
}

#[cfg(test)]
mod tests {
    use std::arch::naked_asm;

    use super::*;

    /// The operands of `Hardware`, as the assembler encodes them, against the encodings of the
    /// manual: the sums in ModRM.reg, A in ModRM.rm, B in VEX.vvvv; tiles in memory by base and
    /// index, the index being the stride.
    #[test]
    fn instructions_are_encoded_as_the_manual_says() {
        macro_rules! bytes {
            ($n:literal, $($line:literal),*) => {{
                #[unsafe(naked)]
                extern "C" fn code() {
                    naked_asm!($($line),*)
                }
                // SAFETY: the function is at least these bytes long; it is read, never called.
                unsafe { std::ptr::read_volatile(code as *const [u8; $n]) }
            }};
        }
        assert_eq!(bytes!(5, "tdpbf16ps tmm0, tmm4, tmm6", "ret"), [0xc4, 0xe2, 0x4a, 0x5c, 0xc4]);
        assert_eq!(bytes!(5, "tdpbssd tmm3, tmm5, tmm7", "ret"), [0xc4, 0xe2, 0x43, 0x5e, 0xdd]);
        assert_eq!(
            bytes!(6, "tileloadd tmm4, [rsi + rax*1]", "ret"),
            [0xc4, 0xe2, 0x7b, 0x4b, 0x24, 0x06]
        );
        assert_eq!(
            bytes!(6, "tilestored [rsi + rax*1], tmm3", "ret"),
            [0xc4, 0xe2, 0x7a, 0x4b, 0x1c, 0x06]
        );
        assert_eq!(bytes!(5, "tilezero tmm2", "ret"), [0xc4, 0xe2, 0x7b, 0x49, 0xd0]);
        assert_eq!(bytes!(5, "ldtilecfg [rdi]", "ret"), [0xc4, 0xe2, 0x78, 0x49, 0x07]);
        assert_eq!(bytes!(5, "tilerelease", "ret"), [0xc4, 0xe2, 0x78, 0x49, 0xc0]);
    }

    #[test]
    fn the_configuration_has_the_layout_of_the_manual() {
        assert_eq!((size_of::<Config>(), align_of::<Config>()), (64, 64));
        // SAFETY: 64 bytes of plain data without padding.
        let bytes = unsafe { std::mem::transmute_copy::<Config, [u8; 64]>(&CONFIG) };
        assert_eq!((bytes[0], bytes[1]), (1, 0), "palette, first row");
        for tile in 0..8 {
            assert_eq!(
                u16::from_le_bytes([bytes[16 + 2 * tile], bytes[17 + 2 * tile]]),
                64,
                "bytes a row"
            );
            assert_eq!(bytes[48 + tile], 16, "rows");
        }
        assert!(
            bytes[2..16].iter().chain(&bytes[32..48]).chain(&bytes[56..]).all(|&b| b == 0),
            "reserved"
        );
    }

    #[test]
    fn the_emulated_unit_flushes_denormals_and_adds_even_and_odd_values_apart() {
        // SAFETY: the emulated unit asks for nothing; tiles are 1 KiB.
        let dot = |a: [f32; 4], b: [f32; 4], c: f32| unsafe {
            let bf16 = |x: f32| x.to_bits() >> 16;
            let mut unit = Emulated::configure();
            unit.tiles[0][0] = c.to_bits();
            for k in 0..2 {
                unit.tiles[4][k] = bf16(a[2 * k]) | bf16(a[2 * k + 1]) << 16;
                unit.tiles[6][16 * k] = bf16(b[2 * k]) | bf16(b[2 * k + 1]) << 16;
            }
            unit.dot_bf16::<0, 4, 6>();
            f32::from_bits(unit.tiles[0][0])
        };
        assert_eq!(dot([1.0, 2.0, 3.0, 4.0], [1.0, 10.0, 100.0, 1000.0], 0.5), 4321.5);
        // In one chain 1 would be lost beside 2^30 before -2^30 comes; apart, even values cancel
        // first.
        let big = 2f32.powi(15);
        assert_eq!(dot([big, 1.0, -big, 0.0], [big, 1.0, big, 0.0], 0.0), 1.0);
        // Rounded to even at each addition: 2^24 + 1 + 1.
        assert_eq!(dot([4096.0, 0.0, 1.0, 0.0], [4096.0, 0.0, 1.0, 0.0], 1.0), 16_777_216.0);
        let denormal = f32::from_bits(0x0040_0000);
        assert_eq!(dot([denormal, 0.0, 0.0, 0.0], [big, 0.0, 0.0, 0.0], 0.0), 0.0);
        assert_eq!(dot([2f32.powi(-70), 0.0, 0.0, 0.0], [2f32.powi(-60), 0.0, 0.0, 0.0], 0.0), 0.0);
    }
}
