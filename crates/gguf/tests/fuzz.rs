//! Runs the body of the fuzz target on mutated seeds, on any toolchain, for about a second.
//! `PUNA_FUZZ_SECONDS` extends it. `fuzz/` has the same target for cargo-fuzz, which is guided by
//! coverage.

use crate::common;

#[path = "../../../fuzz/bodies/gguf_parse.rs"]
mod body;

use std::time::{Duration, Instant};

/// A small random number generator (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % end.max(1)
    }
}

/// Numbers at the borders of types and limits.
const ODD: [u64; 12] = [
    0,
    1,
    9,
    13,
    255,
    65_536,
    1 << 31,
    u32::MAX as u64,
    1 << 40,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// Applies one to four mutations: a changed byte, a special number, a removed, duplicated or copied
/// piece, a truncation.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let len = bytes.len();
        if len < 16 {
            return;
        }
        let at = random.below(len - 8);
        let piece = at..at + 1 + random.below((len - at).min(64));
        match random.below(8) {
            0 => bytes[at] = random.below(256) as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes[at..at + 8].copy_from_slice(&ODD[random.below(12)].to_le_bytes()),
            3 => bytes[at..at + 4].copy_from_slice(&(ODD[random.below(12)] as u32).to_le_bytes()),
            4 => drop(bytes.drain(piece)),
            5 => {
                let copy = bytes[piece.clone()].to_vec();
                bytes.splice(piece.start..piece.start, copy);
            }
            6 => {
                let to = random.below(len - piece.len());
                bytes.copy_within(piece, to);
            }
            _ => bytes.truncate(at),
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![common::minimal()];
    for file in std::fs::read_dir(common::data("compat")).unwrap() {
        let path = file.unwrap().path();
        let small = path.metadata().unwrap().len() < 10_000;
        if small && path.extension().is_some_and(|e| e == "gguf") {
            seeds.push(std::fs::read(path).unwrap());
        }
    }
    seeds
}

#[test]
fn mutated_files_never_panic() {
    let seconds =
        std::env::var("PUNA_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(1.0);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let seeds = seeds();
    assert!(seeds.len() > 15);
    seeds.iter().for_each(|seed| body::run(seed));
    let mut random = Random(0x70756e61);
    let mut runs = 0u64;
    while Instant::now() < end {
        let mut bytes = seeds[random.below(seeds.len())].clone();
        mutate(&mut bytes, &mut random);
        if let Err(panic) = std::panic::catch_unwind(|| body::run(&bytes)) {
            let path = std::env::temp_dir().join("puna-gguf-crash.gguf");
            std::fs::write(&path, &bytes).unwrap();
            eprintln!("run {runs}: the input is in {}", path.display());
            std::panic::resume_unwind(panic);
        }
        runs += 1;
    }
    eprintln!("{runs} mutated files");
    assert!(runs > 100, "only {runs} runs in {seconds} s");
}
