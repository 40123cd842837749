//! The ternary formats: 256 weights −d, 0 or d.

use puna_quant::TensorType;

use super::kquants::k_format;
use super::last_half;
use crate::kernels::generic::quant::{Codes, Format, Quant};

k_format!(TQ2_0, 66, 32, Codes::Offset(1),
scales(p) => (S::w_splat(last_half::<S>(p.add(64))), S::w_splat(0.0)),
codes(p, j) => {
    let shift = 4 * (j % 2) as i32;
    S::fields(S::twice(p.add(32 * (j / 2))), shift, shift + 2, 3)
});

k_format!(TQ1_0, 54, 32, Codes::Offset(1),
scales(p) => (S::w_splat(last_half::<S>(p.add(52))), S::w_splat(0.0)),
codes(p, j) => {
    let mut codes = [0u8; 64];
    trits(p, j, &mut codes);
    S::load64(codes.as_ptr())
});

/// Digits of base 3 of weights `64 · j…`: five in each of 48 bytes, four in each of the last four.
#[inline(always)]
unsafe fn trits(p: *const u8, j: usize, codes: &mut [u8; 64]) {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    // SAFETY: the caller's block has 52 bytes of digits.
    unsafe {
        let mut run = |to: usize, from: usize, n: usize, digit: usize| {
            for i in 0..n {
                let rest = (*p.add(from + i)).wrapping_mul(POWERS[digit]);
                codes[to + i] = ((u16::from(rest) * 3) >> 8) as u8;
            }
        };
        match j {
            0 => (run(0, 0, 32, 0), run(32, 0, 32, 1)),
            1 => (run(0, 0, 32, 2), run(32, 0, 32, 3)),
            2 => {
                run(0, 0, 32, 4);
                (run(32, 32, 16, 0), run(48, 32, 16, 1))
            }
            _ => {
                run(0, 32, 16, 2);
                run(16, 32, 16, 3);
                run(32, 32, 16, 4);
                run(48, 48, 4, 0);
                run(52, 48, 4, 1);
                (run(56, 48, 4, 2), run(60, 48, 4, 3))
            }
        };
    }
}
