//! MD5 (RFC 1321): object stores name uploads in pieces by it. It protects nothing; digests do.

use std::sync::LazyLock;

const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// The whole parts of 2^32 |sin(i + 1)|.
static SINES: LazyLock<[u32; 64]> =
    LazyLock::new(|| std::array::from_fn(|i| (((i + 1) as f64).sin().abs() * 4_294_967_296.0) as u32));

/// A sum in the making.
#[derive(Clone)]
pub(crate) struct Md5 {
    state: [u32; 4],
    block: [u8; 64],
    len: u64,
}

impl Default for Md5 {
    fn default() -> Self {
        Self { state: [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476], block: [0; 64], len: 0 }
    }
}

/// The sum of some bytes.
pub(crate) struct Sum([u8; 16]);

impl Sum {
    pub(crate) fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Md5 {
    pub(crate) fn of(bytes: &[u8]) -> Sum {
        let mut md5 = Self::default();
        md5.update(bytes);
        Sum(md5.finish())
    }

    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let at = (self.len % 64) as usize;
            let n = bytes.len().min(64 - at);
            self.block[at..at + n].copy_from_slice(&bytes[..n]);
            self.len += n as u64;
            bytes = &bytes[n..];
            if self.len.is_multiple_of(64) {
                self.round();
            }
        }
    }

    pub(crate) fn finish(mut self) -> [u8; 16] {
        let bits = self.len.wrapping_mul(8);
        let zeros = (55 + 64 - (self.len % 64)) % 64;
        self.update(&[0x80]);
        self.update(&[0; 64][..zeros as usize]);
        self.update(&bits.to_le_bytes());
        let mut sum = [0; 16];
        for (out, word) in sum.chunks_exact_mut(4).zip(self.state) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        sum
    }

    fn round(&mut self) {
        let word = |i: usize| u32::from_le_bytes(std::array::from_fn(|byte| self.block[4 * i + byte]));
        let words: [u32; 16] = std::array::from_fn(word);
        let sines = &*SINES;
        let [mut a, mut b, mut c, mut d] = self.state;
        for i in 0..64 {
            let (mixed, k) = match i / 16 {
                0 => ((b & c) | (!b & d), i),
                1 => ((d & b) | (!d & c), (5 * i + 1) % 16),
                2 => (b ^ c ^ d, (3 * i + 5) % 16),
                _ => (c ^ (b | !d), (7 * i) % 16),
            };
            let sum = a.wrapping_add(mixed).wrapping_add(sines[i]).wrapping_add(words[k]);
            let turned = b.wrapping_add(sum.rotate_left(SHIFTS[i / 16][i % 4]));
            (a, d, c, b) = (d, c, b, turned);
        }
        for (state, add) in self.state.iter_mut().zip([a, b, c, d]) {
            *state = state.wrapping_add(add);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_of_the_standard_are_made() {
        for (text, want) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("a", "0cc175b9c0f1b6a831c399e269772661"),
            ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
            (
                "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
                "57edf4a22be3c955ac49da2e2107b67a",
            ),
        ] {
            assert_eq!(Md5::of(text.as_bytes()).hex(), want);
        }
        let mut md5 = Md5::default();
        [7, 57, 64, 1].into_iter().for_each(|n| md5.update(&vec![b'x'; n]));
        assert_eq!(Sum(md5.finish()).hex(), Md5::of(&[b'x'; 129]).hex());
    }
}
