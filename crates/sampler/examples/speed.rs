//! Time of one sampled token over a vocabulary of 262,144, for common settings:
//! `cargo run --release -p puna-sampler --example speed`.

use std::time::{Duration, Instant};

use puna_sampler::{Params, Sampler, log_probs};

const N_VOCAB: usize = 262_144;
const STEPS: usize = 100;

fn main() {
    let base = Params { seed: 1, ..Params::default() };
    let settings = [
        ("default", base.clone()),
        ("greedy", Params { temperature: 0.0, ..base.clone() }),
        (
            "default with penalties",
            Params { repeat_penalty: 1.1, presence_penalty: 0.5, ..base.clone() },
        ),
        (
            "top_k 0, top_p 1, min_p 0.05",
            Params { top_k: 0, top_p: 1.0, min_p: 0.05, ..base.clone() },
        ),
        ("top_k 0, top_p 0.9", Params { top_k: 0, ..base.clone() }),
        ("temperature only", Params { top_k: 0, top_p: 1.0, ..base.clone() }),
        ("mirostat 2", Params { mirostat: 2, ..base.clone() }),
        ("DRY and XTC", Params { dry_multiplier: 0.8, xtc_probability: 0.5, ..base }),
    ];
    let logits = bell_curve();
    for (name, params) in settings {
        let mut sampler = Sampler::new(&params, N_VOCAB);
        report(name, || {
            let mut step = logits.clone();
            let start = Instant::now();
            let token = sampler.sample(&mut step);
            sampler.accept(token);
            start.elapsed()
        });
    }
    report("log_probs, top 20", || {
        let start = Instant::now();
        std::hint::black_box(log_probs(&logits, 7, 20));
        start.elapsed()
    });
}

fn report(name: &str, mut step: impl FnMut() -> Duration) {
    let mut times: Vec<Duration> = (0..STEPS).map(|_| step()).collect();
    times.sort_unstable();
    println!("{name:32} median {:>9.1?}  best {:>9.1?}", times[STEPS / 2], times[0]);
}

/// Logits that resemble a model's: nearly normal, with a few tokens far above the rest.
fn bell_curve() -> Vec<f32> {
    let mut bits = 88_172_645_463_325_252_u64;
    let mut uniform = move || {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        (bits >> 40) as f32 / (1 << 24) as f32
    };
    let mut logits: Vec<f32> =
        (0..N_VOCAB).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect();
    for i in 0..50 {
        logits[i * 5003] = 14.0 - i as f32 * 0.2;
    }
    logits
}
