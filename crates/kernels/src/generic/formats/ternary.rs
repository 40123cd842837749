//! The ternary formats: 256 weights −d, 0 or d.

use puna_quant::TensorType;

use super::kquants::{SUB_BLOCKS_OF_2BIT, k_format};
use super::{last_half, u32_at, u64_at};
use crate::generic::quant::{Codes, Format, QuantSimd, transposed};

k_format!(TQ2_0, 66, 32, Codes::Offset(1),
scales(p) => (S::w_splat(last_half::<S>(p.add(64))), S::w_splat(0.0)),
codes(p, j) => {
    let shift = 4 * (j % 2) as i32;
    S::fields(S::broadcast32(p.add(32 * (j / 2))), shift, shift + 2, 3)
},
by_sub_blocks(p, SUB_BLOCKS_OF_2BIT) => S::unpack_2bit_by_lane(S::load64(p)));

/// Powers of three, each for `each` of 64 bytes.
const fn powers<const N: usize>(each: [(u8, usize); N]) -> [u8; 64] {
    let mut to = [0; 64];
    let (mut i, mut at) = (0, 0);
    while i < N {
        let mut n = 0;
        while n < each[i].1 {
            to[at] = each[i].0;
            at += 1;
            n += 1;
        }
        i += 1;
    }
    assert!(at == 64);
    to
}

/// Of each group of 64 weights.
static POWERS: [[u8; 64]; 4] = [
    powers([(1, 32), (3, 32)]),
    powers([(9, 32), (27, 32)]),
    powers([(81, 32), (1, 16), (3, 16)]),
    powers([(9, 16), (27, 16), (81, 16), (1, 4), (3, 4), (9, 4), (27, 4)]),
];

// Digits of base 3, the highest first, of numbers that a byte holds as `256 · n / 243`, rounded up:
// five digits of 32 bytes, then of 16 bytes, then four of four bytes.
k_format!(TQ1_0, 54, 32, Codes::Offset(1),
scales(p) => (S::w_splat(last_half::<S>(p.add(52))), S::w_splat(0.0)),
all_codes(p) => {
    let (first, last) = (S::broadcast32(p), u64::from(u32_at(p.add(48))) * 0x1_0000_0001);
    let [a, b] = [u64_at(p.add(32)), u64_at(p.add(40))];
    [
        S::digits(first, &POWERS[0]),
        S::digits(first, &POWERS[1]),
        S::digits(S::pieces(p, [0, 16, 32, 32]), &POWERS[2]),
        S::digits(S::from_u64s([a, b, a, b, a, b, last, last]), &POWERS[3]),
    ]
});
