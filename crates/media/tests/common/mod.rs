//! Recorded data, drawn pictures and hashes.

use std::fs;
use std::path::PathBuf;

use puna_media::{Picture, Size};

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

/// A picture drawn by a formula, which the generators of the recorded data use too.
pub fn draw(formula: &str, width: u32, height: u32, salt: i64) -> Picture {
    let pixel = match formula {
        "ramps" => ramps,
        "rings" => rings,
        _ => panic!("unknown formula {formula}"),
    };
    let (w, h) = (i64::from(width), i64::from(height));
    let rows = (0..h).flat_map(|y| (0..w).map(move |x| (x, y)));
    let data = rows.flat_map(|(x, y)| pixel(x, y, w, h, salt)).map(|value| value as u8).collect();
    Picture::from_rgb(Size::new(width, height), data).unwrap()
}

/// Three ramps, with squares of 8 pixels in blue.
fn ramps(x: i64, y: i64, w: i64, h: i64, salt: i64) -> [i64; 3] {
    let red = x * 255 / (w - 1).max(1);
    let blue = if (x / 8 + y / 8) % 2 == 0 { (x * 3 + y * 5 + salt) % 256 } else { 255 - red };
    [red, y * 255 / (h - 1).max(1), blue]
}

/// Rings and bars with sharp edges.
fn rings(x: i64, y: i64, w: i64, h: i64, salt: i64) -> [i64; 3] {
    let distance = (2 * x - w).pow(2) + (2 * y - h).pow(2);
    let red = if distance / (200 + salt) % 2 == 0 { 255 } else { 20 };
    let blue = if (x + y + salt) % 13 < 4 { 255 } else { x * y % 200 };
    [red, distance / 64 % 256, blue]
}
