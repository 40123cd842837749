//! Deterministic numbers for inputs and weights.

/// Pseudo-random numbers: xorshift64* (Vigna, 2016).
pub(super) struct Random(u64);

impl Random {
    /// The same seed gives the same numbers on every machine.
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number from -1 to 1, a multiple of 2⁻²³.
    pub fn uniform(&mut self) -> f32 {
        (self.draw() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    /// `n` numbers from -1 to 1.
    pub fn numbers(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.uniform()).collect()
    }
}
