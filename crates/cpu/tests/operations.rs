//! The operation suite on the CPU backend, at every kernel level.
//!
//! `PUNA_OPERATIONS=TEXT` runs only the cases whose names contain TEXT.

use puna_cpu::{Config, CpuBackend, kernels};
use puna_graph::suite::{self, Precision};

/// Runs the suite at every level of this processor, each level in a thread of its own.
fn run(config: &Config, filter: &str) {
    let levels = kernels::levels().iter().chain(kernels::emulated());
    std::thread::scope(|scope| {
        for level in levels {
            scope.spawn(move || {
                let config = Config { kernels: Some(level.name.into()), ..config.clone() };
                let mut backend = CpuBackend::new(&config).unwrap();
                // The portable level multiplies with f32 activations.
                let precision = match level.name {
                    "portable" => Precision::Full,
                    _ => Precision::Reduced,
                };
                let report = suite::run(&mut backend, precision, filter);
                assert!(report.unsupported.is_empty(), "level {}\n{report}", level.name);
                assert!(report.is_success(), "level {}\n{report}", level.name);
            });
        }
    });
}

#[test]
fn every_level_agrees_with_the_references() {
    let filter = std::env::var("PUNA_OPERATIONS").unwrap_or_default();
    run(&Config { threads: Some(2), ..Config::default() }, &filter);
}

#[test]
fn deterministic_products_agree_with_the_references() {
    let config = Config { threads: Some(3), deterministic: true, ..Config::default() };
    run(&config, "matmul");
    run(&config, "moe");
}

#[test]
fn several_threads_select_the_same_positions() {
    for threads in [1, 3, 5] {
        let config = Config { threads: Some(threads), ..Config::default() };
        run(&config, "top_k_positions");
    }
}
