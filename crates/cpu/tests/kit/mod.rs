//! Backends with tables in the place of a model.
#![allow(dead_code)] // not every test uses all of it

use std::sync::Arc;

use puna_cpu::{Config, CpuBackend};
use puna_graph::*;
use puna_quant::TensorType;

/// Numbers in no order, from -1 to 1.
pub fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
}

pub fn table(cols: usize, rows: usize, seed: usize) -> (Weight, Vec<f32>) {
    let values = numbers(cols * rows, seed);
    (table_of(cols, &values), values)
}

/// Rows of so many columns.
pub fn table_of(cols: usize, values: &[f32]) -> Weight {
    let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let shape = vec![cols, values.len() / cols];
    Weight { name: "table".into(), ty: TensorType::F32, shape, data: Arc::new(data) }
}

pub fn backend(level: &str, threads: usize, weights: Vec<Weight>) -> CpuBackend {
    let config =
        Config { kernels: Some(level.into()), threads: Some(threads), ..Config::default() };
    let mut backend = CpuBackend::new(&config).unwrap();
    backend.load_weights(weights, Vec::new()).unwrap();
    backend
}

/// One step of a sequence that has `cached_tokens` tokens: the tokens are their positions.
pub fn step(cached_tokens: usize, rows: usize) -> StepInput {
    let positions: Vec<u32> = (cached_tokens..cached_tokens + rows).map(|p| p as u32).collect();
    let segments =
        vec![Segment { rows, cached_tokens, pages: vec![3, 0, 2, 1], ..Segment::default() }];
    let outputs = (0..rows as u32).collect();
    StepInput { tokens: positions.clone(), positions, segments, outputs, ..StepInput::default() }
}
