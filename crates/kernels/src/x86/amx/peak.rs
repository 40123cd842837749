//! Peak rate of tiles: a block of 2 × 2 tiles as in the products, operands from the first-level
//! cache.

use super::expand::TILE;
use super::unit::Unit;

/// Tiles of K that are gone through: 32 KiB of operands, what a panel and its tokens take.
const STEPS: usize = 8;
/// Multiply-adds of one round of [`bf16`].
pub(super) const BF16_MACS: u64 = 4 * 16 * 16 * 32;
/// Multiply-adds of one round of [`int8`].
pub(super) const INT8_MACS: u64 = 4 * 16 * 16 * 64;

/// Rounds of four products of bf16; any sum of the results.
///
/// # Safety
/// The processor has what `U` asks for.
pub(super) unsafe fn bf16<U: Unit>(rounds: u32) -> f32 {
    // SAFETY: passed on.
    let line = unsafe { products::<U, true>(rounds, u32::from_le_bytes([0x80, 0x3f, 0x80, 0x3f])) };
    line.into_iter().map(f32::from_bits).sum()
}

/// Rounds of four products of signed bytes; any sum of the results.
///
/// # Safety
/// As for [`bf16`].
pub(super) unsafe fn int8<U: Unit>(rounds: u32) -> f32 {
    // SAFETY: passed on.
    let line = unsafe { products::<U, false>(rounds, u32::from_le_bytes([1; 4])) };
    line.into_iter().map(|sum| sum as i32 as f32).sum()
}

/// Operands full of `value`; returns the first line of the sums.
#[inline(always)]
unsafe fn products<U: Unit, const BF16: bool>(rounds: u32, value: u32) -> [u32; 16] {
    #[repr(C, align(64))]
    struct Aligned([u32; 4 * STEPS * TILE / 4]);
    let operands = Aligned([value; 4 * STEPS * TILE / 4]);
    let p = operands.0.as_ptr().cast::<u8>();
    let mut sums = Aligned([0; 4 * STEPS * TILE / 4]);
    // SAFETY: all tiles lie in the arrays; the rest by the caller's contract.
    unsafe {
        let mut unit = U::configure();
        unit.zero::<0>();
        unit.zero::<1>();
        unit.zero::<2>();
        unit.zero::<3>();
        for round in 0..rounds as usize {
            let p = p.add(round % STEPS * TILE);
            unit.load::<4>(p, 64);
            unit.load::<5>(p.add(STEPS * TILE), 64);
            unit.load::<6>(p.add(2 * STEPS * TILE), 64);
            unit.load::<7>(p.add(3 * STEPS * TILE), 64);
            if BF16 {
                unit.dot_bf16::<0, 4, 6>();
                unit.dot_bf16::<1, 4, 7>();
                unit.dot_bf16::<2, 5, 6>();
                unit.dot_bf16::<3, 5, 7>();
            } else {
                unit.dot_i8::<0, 4, 6>();
                unit.dot_i8::<1, 4, 7>();
                unit.dot_i8::<2, 5, 6>();
                unit.dot_i8::<3, 5, 7>();
            }
        }
        unit.store::<0>(sums.0.as_mut_ptr().cast(), 64);
    }
    std::array::from_fn(|i| sums.0[i])
}

#[cfg(test)]
mod tests {
    use super::super::unit::Emulated;
    use super::*;

    #[test]
    fn a_round_adds_the_declared_number_of_products() {
        // SAFETY: the emulated unit asks for nothing. Four tiles of 16 × 16 sums, of which a line
        // of one is seen.
        let (bf16_sum, int8_sum) = unsafe { (bf16::<Emulated>(5), int8::<Emulated>(5)) };
        assert_eq!(bf16_sum as u64 * 16 * 4, 5 * BF16_MACS);
        assert_eq!(int8_sum as u64 * 16 * 4, 5 * INT8_MACS);
    }
}
