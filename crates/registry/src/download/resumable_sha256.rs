//! SHA-256 with a state that can be saved and resumed, so that a resumed download does not read
//! verified bytes again.
//!
//! `ring` and `sha2`'s own hasher do not expose their state. This module splits the input into
//! blocks and adds the padding. `sha2` compresses the blocks, with the processor's SHA
//! instructions.

use puna_store::Digest;
use serde::{Deserialize, Serialize};
use sha2::block_api::compress256;

/// Block size in bytes.
const BLOCK_BYTES: usize = 64;
/// Initial hash value: fractional parts of the square roots of the first eight primes (FIPS 180-4).
const INITIAL_STATE: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// SHA-256 of the bytes so far.
#[derive(Debug, Clone)]
pub struct ResumableSha256 {
    state: [u32; 8],
    bytes: u64,
    partial_block: Vec<u8>,
}

/// Saved hash state of the first `at` bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sha256State {
    /// Number of hashed bytes.
    pub at: u64,
    /// Number that identifies the file in its file system.
    pub file: u64,
    state: [u32; 8],
}

impl Default for ResumableSha256 {
    fn default() -> Self {
        Self { state: INITIAL_STATE, bytes: 0, partial_block: Vec::with_capacity(BLOCK_BYTES) }
    }
}

impl ResumableSha256 {
    /// Continues from a saved state.
    pub fn resume(saved: &Sha256State) -> Self {
        Self { state: saved.state, bytes: saved.at, partial_block: Vec::with_capacity(BLOCK_BYTES) }
    }

    /// Saves the state. `None`: the hashed bytes are not a multiple of the block size.
    pub fn save(&self, file: u64) -> Option<Sha256State> {
        self.partial_block.is_empty().then_some(Sha256State {
            at: self.bytes,
            file,
            state: self.state,
        })
    }

    /// Adds bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        if !self.partial_block.is_empty() {
            let (head, tail) =
                bytes.split_at(bytes.len().min(BLOCK_BYTES - self.partial_block.len()));
            self.partial_block.extend_from_slice(head);
            bytes = tail;
            let (blocks, _) = self.partial_block.as_chunks::<BLOCK_BYTES>();
            if !blocks.is_empty() {
                compress256(&mut self.state, blocks);
                self.partial_block.clear();
            }
        }
        let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        compress256(&mut self.state, blocks);
        self.partial_block.extend_from_slice(rest);
    }

    /// The digest of all bytes.
    pub fn finish(mut self) -> Digest {
        let bits = self.bytes.wrapping_mul(8);
        self.partial_block.push(0x80);
        let length_at = if self.partial_block.len() <= BLOCK_BYTES - 8 {
            BLOCK_BYTES - 8
        } else {
            2 * BLOCK_BYTES - 8
        };
        self.partial_block.resize(length_at, 0);
        self.partial_block.extend_from_slice(&bits.to_be_bytes());
        let (blocks, _) = self.partial_block.as_chunks::<BLOCK_BYTES>();
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
    fn digests_equal_sha_256_for_any_chunking() {
        for length in [0, 1, 54, 55, 56, 57, 63, 64, 65, 119, 120, 127, 128, 1000, 100_003] {
            let bytes = noise(length, 3);
            for cut in [1, 7, 63, 64, 65, 4096] {
                let mut hasher = ResumableSha256::default();
                bytes.chunks(cut).for_each(|piece| hasher.update(piece));
                assert_eq!(hasher.finish(), Digest::of(&bytes), "{length} in pieces of {cut}");
            }
        }
    }

    #[test]
    fn hashing_continues_from_a_saved_state() {
        let bytes = noise(10_000, 4);
        let mut hasher = ResumableSha256::default();
        hasher.update(&bytes[..100]);
        assert_eq!(hasher.save(7), None, "in the middle of a block");
        hasher.update(&bytes[100..6400]);
        let saved = hasher.save(7).unwrap();
        let text = serde_json::to_string(&saved).unwrap();
        let read: Sha256State = serde_json::from_str(&text).unwrap();
        assert_eq!((read.at, read.file), (6400, 7));
        let mut hasher = ResumableSha256::resume(&read);
        hasher.update(&bytes[6400..]);
        assert_eq!(hasher.finish(), Digest::of(&bytes));
    }
}
