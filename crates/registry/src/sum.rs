//! A SHA-256 sum that can be put aside and gone on with, so that what an interrupted download has verified is not read again.
//!
//! `ring` and the hasher of `sha2` keep their state to themselves. What is here is the padding and the cutting into blocks; the
//! mixing of blocks, in which all the time goes, is `sha2`'s, with the processor's instructions for it.

use puna_store::Digest;
use serde::{Deserialize, Serialize};
use sha2::block_api::compress256;

/// Bytes that are mixed in at once.
const BLOCK: usize = 64;
/// The first eight numbers, from the fractional parts of the roots of primes (FIPS 180-4).
const START: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// The sum of bytes so far.
#[derive(Debug, Clone)]
pub struct Sum {
    state: [u32; 8],
    bytes: u64,
    rest: Vec<u8>,
}

/// A sum as it is kept on disk: of the bytes before `at` of this very file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// How many.
    pub at: u64,
    /// What tells the file from another one of its name.
    pub file: u64,
    state: [u32; 8],
}

impl Default for Sum {
    fn default() -> Self {
        Self { state: START, bytes: 0, rest: Vec::with_capacity(BLOCK) }
    }
}

impl Sum {
    /// Goes on where it was put aside.
    pub fn resume(saved: &Saved) -> Self {
        Self { state: saved.state, bytes: saved.at, rest: Vec::with_capacity(BLOCK) }
    }

    /// Puts it aside, which can be done between blocks.
    pub fn save(&self, file: u64) -> Option<Saved> {
        self.rest.is_empty().then_some(Saved { at: self.bytes, file, state: self.state })
    }

    /// Goes on with bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        if !self.rest.is_empty() {
            let (head, tail) = bytes.split_at(bytes.len().min(BLOCK - self.rest.len()));
            self.rest.extend_from_slice(head);
            bytes = tail;
            let (blocks, _) = self.rest.as_chunks::<BLOCK>();
            if !blocks.is_empty() {
                compress256(&mut self.state, blocks);
                self.rest.clear();
            }
        }
        let (blocks, rest) = bytes.as_chunks::<BLOCK>();
        compress256(&mut self.state, blocks);
        self.rest.extend_from_slice(rest);
    }

    /// The digest of all bytes.
    pub fn finish(mut self) -> Digest {
        let bits = self.bytes.wrapping_mul(8);
        self.rest.push(0x80);
        let length_at = if self.rest.len() <= BLOCK - 8 { BLOCK - 8 } else { 2 * BLOCK - 8 };
        self.rest.resize(length_at, 0);
        self.rest.extend_from_slice(&bits.to_be_bytes());
        let (blocks, _) = self.rest.as_chunks::<BLOCK>();
        compress256(&mut self.state, blocks);
        let hex: String = self.state.iter().map(|word| format!("{word:08x}")).collect();
        format!("sha256:{hex}").parse().expect("64 digits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::noise;

    #[test]
    fn sums_are_those_of_sha_256_however_the_bytes_are_cut() {
        for length in [0, 1, 54, 55, 56, 57, 63, 64, 65, 119, 120, 127, 128, 1000, 100_003] {
            let bytes = noise(length, 3);
            for cut in [1, 7, 63, 64, 65, 4096] {
                let mut sum = Sum::default();
                bytes.chunks(cut).for_each(|piece| sum.update(piece));
                assert_eq!(sum.finish(), Digest::of(&bytes), "{length} in pieces of {cut}");
            }
        }
    }

    #[test]
    fn a_sum_goes_on_where_it_was_put_aside() {
        let bytes = noise(10_000, 4);
        let mut sum = Sum::default();
        sum.update(&bytes[..100]);
        assert_eq!(sum.save(7), None, "in the middle of a block");
        sum.update(&bytes[100..6400]);
        let saved = sum.save(7).unwrap();
        let text = serde_json::to_string(&saved).unwrap();
        let read: Saved = serde_json::from_str(&text).unwrap();
        assert_eq!((read.at, read.file), (6400, 7));
        let mut sum = Sum::resume(&read);
        sum.update(&bytes[6400..]);
        assert_eq!(sum.finish(), Digest::of(&bytes));
    }
}
