//! Measures values per second on one thread for every type: `cargo run --release -p puna-quant
//! --example speed [TYPE…]`.

use std::time::{Duration, Instant};

use puna_quant::{TensorType, dequantizer, quantize, requires_importance};

const ROW_VALUES: usize = 4096;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let row: Vec<f32> =
        (0..ROW_VALUES).map(|i| ((i * 7919 % 4093) as f32 / 4093.0 - 0.5).powi(3)).collect();
    let importance: Vec<f32> = (0..ROW_VALUES).map(|i| 0.5 + (i % 7) as f32 / 4.0).collect();
    println!("{:8} {:>16} {:>16} {:>16}", "type", "dequantize M/s", "quantize M/s", "weighted M/s");
    for ty in
        TensorType::all().filter(|ty| wanted.is_empty() || wanted.iter().any(|w| ty.name() == w))
    {
        let Some(dequantize) = dequantizer(ty) else { continue };
        let mut packed = vec![0; ty.row_bytes(ROW_VALUES).expect("whole blocks")];
        let mut run =
            |importance| rate(|| drop(quantize(ty, &row, ROW_VALUES, importance, &mut packed)));
        let plain = if requires_importance(ty) { 0.0 } else { run(None) };
        let weighted = run(Some(&importance[..]));
        let mut values = vec![0.0; ROW_VALUES];
        let back = rate(|| dequantize(&packed, std::hint::black_box(&mut values)));
        println!("{:8} {back:16.0} {plain:16.1} {weighted:16.1}", ty.name());
    }
}

/// Millions of values per second of a function that processes one row.
fn rate(mut job: impl FnMut()) -> f64 {
    job();
    let (start, mut rows) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_millis(200) {
        job();
        rows += 1;
    }
    (rows * ROW_VALUES) as f64 / start.elapsed().as_secs_f64() / 1e6
}
