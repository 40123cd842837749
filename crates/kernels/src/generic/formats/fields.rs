//! Fields of a few bits as bytes and words, in plain code. Some vector types replace these
//! functions.

/// Location of the row number bits above the lowest eight.
pub(crate) trait HighBits {
    /// Bytes of a unit: 1 or 2.
    const UNIT: usize;
    /// Fields of a unit, lowest first: row numbers in order.
    const EACH: usize;
    /// Bits from one field to the next.
    const STEP: usize;
    /// Bits of a field: 1 to 3.
    const BITS: usize;
}

/// The constants of [`HighBits`] in their order.
pub(crate) struct Above<const UNIT: usize, const EACH: usize, const STEP: usize, const BITS: usize>;

impl<const UNIT: usize, const EACH: usize, const STEP: usize, const BITS: usize> HighBits
    for Above<UNIT, EACH, STEP, BITS>
{
    // The parameters of the type.
    const UNIT: usize = UNIT;
    const EACH: usize = EACH;
    const STEP: usize = STEP;
    const BITS: usize = BITS;
}

/// `N` row numbers: bytes at `low`, and above them the fields at `high`.
///
/// # Safety
/// `low` is valid for `N` bytes, `high` for the units of `N` fields.
#[inline(always)]
pub(crate) unsafe fn indices<H: HighBits, const N: usize>(
    low: *const u8,
    high: *const u8,
) -> [u16; N] {
    std::array::from_fn(|i| {
        // SAFETY: the caller's bytes.
        unsafe {
            let unit = high.add(i / H::EACH * H::UNIT);
            let unit = if H::UNIT == 2 { u16_at(unit) } else { u16::from(*unit) };
            let field = unit >> (i % H::EACH * H::STEP) & ((1 << H::BITS) - 1);
            u16::from(*low.add(i)) | field << 8
        }
    })
}

/// Each byte's lowest seven bits, with their parity above them.
#[inline(always)]
fn with_parity(x: u64) -> u64 {
    let x = x & 0x7f7f_7f7f_7f7f_7f7f;
    let p = x ^ (x >> 4 & 0x0f0f_0f0f_0f0f_0f0f);
    let p = p ^ (p >> 2 & 0x3333_3333_3333_3333);
    let p = (p ^ p >> 1) & 0x0101_0101_0101_0101;
    x | p << 7
}

/// See [`QuantSimd::signs_of_words`](crate::generic::QuantSimd::signs_of_words).
///
/// # Safety
/// Eight words at `p`, `stride` bytes apart.
#[inline(always)]
pub(crate) unsafe fn signs_of_words(p: *const u8, stride: usize) -> [u64; 4] {
    // SAFETY: the caller's words.
    let word = |i: usize| u64::from(unsafe { u32_at(p.add(i * stride)) });
    std::array::from_fn(|i| {
        let x = word(2 * i) | word(2 * i + 1) << 32;
        let field = |l: u32| x << l & 0x0000_007f_0000_007f << (8 * l);
        with_parity(field(0) | field(1) | field(2) | field(3))
    })
}

/// See [`QuantSimd::signs_of_halves`](crate::generic::QuantSimd::signs_of_halves).
///
/// # Safety
/// 32 words of 16 bits at `p`.
#[inline(always)]
pub(crate) unsafe fn signs_of_halves(p: *const u8) -> [u64; 4] {
    // SAFETY: the caller's words.
    let top = |i: usize| u64::from(unsafe { u16_at(p.add(2 * i)) } >> 9);
    std::array::from_fn(|j| with_parity((0..8).fold(0, |x, i| x | top(8 * j + i) << (8 * i))))
}

/// The top four bits of eight words at `p`, `stride` bytes apart, as bytes.
///
/// # Safety
/// The words exist.
#[inline(always)]
pub(crate) unsafe fn tops(p: *const u8, stride: usize) -> u64 {
    // SAFETY: the caller's words.
    (0..8).fold(0, |x, i| x | u64::from(unsafe { u32_at(p.add(i * stride)) } >> 28) << (8 * i))
}

/// Eight 3-bit fields at the bits 0, 3, 6 and 9 of two words as bytes, the fields of the first word
/// first.
#[inline(always)]
pub(crate) fn spread_threes(a: u16, b: u16) -> u64 {
    let x = u64::from(a) | u64::from(b) << 32;
    let field = |l: u32| x << (5 * l) & 0x0000_0007_0000_0007 << (8 * l);
    field(0) | field(1) | field(2) | field(3)
}

/// The lowest byte of each of four words.
#[inline(always)]
pub(crate) fn low_bytes(x: u64) -> u32 {
    let x = x & 0x00ff_00ff_00ff_00ff;
    let x = (x | x >> 8) & 0x0000_ffff_0000_ffff;
    (x | x >> 16) as u32
}

#[inline(always)]
pub(super) unsafe fn u16_at(p: *const u8) -> u16 {
    // SAFETY: the caller's two bytes.
    u16::from_le(unsafe { p.cast::<u16>().read_unaligned() })
}

#[inline(always)]
pub(super) unsafe fn u32_at(p: *const u8) -> u32 {
    // SAFETY: the caller's four bytes.
    u32::from_le(unsafe { p.cast::<u32>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use puna_quant::tables::SIGNS;

    use super::*;

    #[test]
    fn signs_match_the_table() {
        let mut random = 1u32;
        let mut words = [0u32; 16];
        for word in &mut words {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *word = random ^ random >> 15;
        }
        let want = |sevens: [u32; 8]| sevens.map(|i| SIGNS[i as usize & 127]);
        let p = words.as_ptr().cast::<u8>();
        for (stride, step) in [(4, 1), (8, 2)] {
            // SAFETY: eight words at either distance.
            let got = unsafe { signs_of_words(p, stride) };
            for (i, got) in got.iter().enumerate() {
                let seven = |l: usize| words[step * (2 * i + l / 4)] >> (7 * (l % 4));
                assert_eq!(got.to_le_bytes(), want(std::array::from_fn(seven)));
            }
            // SAFETY: as above.
            let tops = unsafe { tops(p, stride) };
            assert_eq!(tops.to_le_bytes(), std::array::from_fn(|i| (words[step * i] >> 28) as u8));
        }
        // SAFETY: 32 words of 16 bits.
        for (j, got) in unsafe { signs_of_halves(p) }.iter().enumerate() {
            let seven = |i: usize| words[4 * j + i / 2] >> (16 * (i % 2) + 9);
            assert_eq!(got.to_le_bytes(), want(std::array::from_fn(seven)));
        }
    }

    #[test]
    fn fields_of_three_bits_become_bytes() {
        let spread = spread_threes(0o7654, 0o3210).to_le_bytes();
        assert_eq!(spread, [4, 5, 6, 7, 0, 1, 2, 3]);
        assert_eq!(low_bytes(0xaa04_bb03_cc02_dd01), 0x0403_0201);
    }
}
