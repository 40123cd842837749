//! Resampling has the bits of Pillow.
//!
//! `make_vectors.py` made `resize.json` with Pillow 12. Version 13 resamples columns first where
//! that takes fewer operations, which changes some values by 1.

use puna_media::{Filter, resize};
use serde::Deserialize;

use crate::common::{draw, read_image, sha256};

#[derive(Deserialize)]
struct Vectors {
    source: String,
    cases: Vec<ResizeCase>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResizeCase {
    formula: String,
    size: (u32, u32),
    salt: i64,
    target: (u32, u32),
    filter: String,
    sha256: String,
    /// The values of a small result.
    pixels: Option<Vec<u8>>,
}

#[test]
fn every_result_is_that_of_pillow() {
    let vectors: Vectors = serde_json::from_slice(&read_image("resize.json")).unwrap();
    assert!(vectors.source.starts_with("Pillow 12."), "{}", vectors.source);
    assert_eq!(vectors.cases.len(), 477);
    let mut failures = Vec::new();
    for case in &vectors.cases {
        let picture = draw(&case.formula, case.size.0, case.size.1, case.salt);
        let resized = resize(&picture, case.target.0, case.target.1, filter(&case.filter));
        assert_eq!((resized.width(), resized.height()), case.target);
        let name = format!("{:?} to {:?}, {}", case.size, case.target, case.filter);
        if let Some(pixels) = &case.pixels {
            assert_eq!(resized.data(), pixels, "{name}");
        }
        if sha256(resized.data()) != case.sha256 {
            failures.push(name);
        }
    }
    assert!(failures.is_empty(), "other results: {failures:#?}");
}

pub fn filter(name: &str) -> Filter {
    match name {
        "bilinear" => Filter::Bilinear,
        "bicubic" => Filter::Bicubic,
        "lanczos" => Filter::Lanczos,
        _ => panic!("unknown filter {name}"),
    }
}
