//! Random numbers of the sampler chain: MT19937 as in C++ `std::mt19937`, with libstdc++'s uniform
//! distributions.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Words of the state.
const N: usize = 624;
/// Distance of the words that are combined, in words.
const M: usize = 397;

/// Mersenne Twister with 32-bit output.
#[derive(Clone)]
pub struct Mt19937 {
    state: Box<[u32; N]>,
    next: usize,
}

impl Mt19937 {
    /// Seeds the generator.
    pub fn new(seed: u32) -> Self {
        let mut state = Box::new([0u32; N]);
        state[0] = seed;
        for i in 1..N {
            let prev = state[i - 1];
            state[i] = 1_812_433_253_u32.wrapping_mul(prev ^ (prev >> 30)).wrapping_add(i as u32);
        }
        Self { state, next: N }
    }

    /// Next 32 random bits.
    pub(crate) fn next_u32(&mut self) -> u32 {
        if self.next == N {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// Uniform in [0, 1), from two outputs. The first output is the low half.
    pub(crate) fn next_f64(&mut self) -> f64 {
        let low = f64::from(self.next_u32());
        let high = f64::from(self.next_u32());
        let u = (low + high * 4_294_967_296.0) / 18_446_744_073_709_551_616.0;
        u.min(1.0_f64.next_down())
    }

    /// Uniform in [0, 1), from one output.
    pub fn next_f32(&mut self) -> f32 {
        (self.next_u32() as f32 / 4_294_967_296.0).min(1.0_f32.next_down())
    }

    fn twist(&mut self) {
        let s = &mut self.state;
        for i in 0..N {
            let y = (s[i] & 0x8000_0000) | (s[(i + 1) % N] & 0x7fff_ffff);
            let odd = if y & 1 == 0 { 0 } else { 0x9908_b0df };
            s[i] = s[(i + M) % N] ^ (y >> 1) ^ odd;
        }
        self.next = 0;
    }
}

/// 32 random bits from the operating system, by way of the standard library's hash keys.
pub(crate) fn random_seed() -> u32 {
    let bits = RandomState::new().build_hasher().finish();
    (bits ^ (bits >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_numbers_of_mt19937() {
        // The C++ standard fixes the 10,000th output for the default seed 5489.
        let mut rng = Mt19937::new(5489);
        let last = (0..10_000).map(|_| rng.next_u32()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    #[test]
    fn doubles_take_two_outputs_and_floats_one_as_in_libstdcxx() {
        let mut rng = Mt19937::new(42);
        assert_eq!([rng.next_u32(), rng.next_u32()], [1_608_637_542, 3_421_126_067]);
        let mut rng = Mt19937::new(42);
        for want in [0.796_542_984_287_846, 0.183_434_787_893_368] {
            assert!((rng.next_f64() - want).abs() < 1e-15);
        }
        assert!((Mt19937::new(42).next_f32() - 0.374_540_12).abs() < 1e-8);
    }
}
