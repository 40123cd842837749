//! Shared helpers of this crate's tests.
#![allow(dead_code)] // each test file uses its part

use std::path::PathBuf;

/// A minimal file with all features: three keys, an F32 tensor `a` of 4 × 2, and a Q4_0 tensor `b`
/// of 32. The readers of llama.cpp and gguf-py accept it.
pub const MINIMAL: &str = "\
474755460300000002000000000000000300000000000000140000000000000067656e6572616c2e6172636869746563\
747572650800000005000000000000006c6c616d61110000000000000067656e6572616c2e616c69676e6d656e740400\
0000200000000600000000000000782e6c6973740900000005000000030000000000000001000000feffffff03000000\
010000000000000061020000000400000000000000020000000000000000000000000000000000000001000000000000\
00620100000020000000000000000200000020000000000000000000000000000000003f0000c03f0000204000006040\
000090400000b0400000d0400000f040003cf0e1d2c3b4a5968778695a4b3c2d1e0f0000000000000000000000000000";

pub fn minimal() -> Vec<u8> {
    let digits: Vec<u8> = MINIMAL.bytes().collect();
    let hex = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(hex).collect()
}

/// The repository's test data.
pub fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(path)
}

/// A file written field by field, with arbitrary errors.
pub struct RawFile(Vec<u8>);

impl RawFile {
    pub fn new(tensors: i64, keys: i64) -> Self {
        let mut raw = RawFile(b"GGUF\x03\0\0\0".to_vec());
        raw.u64(tensors as u64);
        raw.u64(keys as u64);
        raw
    }

    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn string(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub fn kv(mut self, key: &[u8], ty: u32, value: &[u8]) -> Self {
        self.string(key);
        self.kv_value(ty, value)
    }

    pub fn kv_value(mut self, ty: u32, value: &[u8]) -> Self {
        self.u32(ty);
        self.0.extend_from_slice(value);
        self
    }

    pub fn tensor(mut self, name: &[u8], shape: &[u64], ty: u32, offset: u64) -> Self {
        self.string(name);
        self.u32(shape.len() as u32);
        shape.iter().for_each(|&dim| self.u64(dim));
        self.u32(ty);
        self.u64(offset);
        self
    }

    /// Pads to 32 and adds `len` bytes of data.
    pub fn data(mut self, len: usize) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(32) + len, 0);
        self.0
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}
