//! Times of decoding and resizing.
//!
//! `cargo test --release -p puna-media speed -- --ignored --nocapture --test-threads 1`

use std::time::Instant;

use puna_media::{Filter, PictureLimits, decode_picture, resize};

use crate::common::draw;

/// Runs of each measurement; the fastest one counts.
const RUNS: usize = 9;

#[test]
#[ignore = "measures"]
fn resize_speed() {
    let picture = draw("rings", 4000, 3000, 0);
    for filter in [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos] {
        for side in [336, 896] {
            let name = format!("{filter:?}, {} to {side}x{side}", picture.size());
            milliseconds(&name, || resize(&picture, side, side, filter));
        }
    }
}

#[test]
#[ignore = "measures the decoding of the files that PUNA_PICTURES names, separated by colons"]
fn decode_speed() {
    let paths = std::env::var_os("PUNA_PICTURES").unwrap_or_default();
    for path in std::env::split_paths(&paths) {
        let data = std::fs::read(&path).unwrap();
        let name = format!("{}, {} bytes", path.display(), data.len());
        milliseconds(&name, || decode_picture(&data, &PictureLimits::default()).unwrap());
    }
}

fn milliseconds<T>(name: &str, work: impl Fn() -> T) {
    let mut fastest = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        work();
        fastest = fastest.min(start.elapsed().as_secs_f64());
    }
    println!("{name}: {:.1} ms", 1e3 * fastest);
}
