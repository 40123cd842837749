//! Recorded data, drawn pictures and hashes.

use std::fs;
use std::path::PathBuf;

/// A file of the recorded pictures.
pub fn image_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/images").join(name)
}

pub fn read_image(name: &str) -> Vec<u8> {
    let path = image_path(name);
    fs::read(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

/// The SHA-256 of some bytes, in hexadecimal digits.
pub fn sha256(data: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, data);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
