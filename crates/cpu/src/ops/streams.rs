//! Hyper-connections: read and write weights of residual streams, reading and writing the streams.

use puna_graph::{ArenaRange, StreamSpec};

use crate::ops::elementwise::own_row;
use crate::step::{Instruction, Step, ThreadScratch, row_tasks, task_rows};

/// Rows of weights per task. With all normalization rounds, a row takes a few microseconds.
const WEIGHT_ROWS: usize = 8;
/// Columns of the streams that are copied while the streams are overwritten.
const CHUNK: usize = 64;

/// See [`puna_graph::Op::StreamWeights`].
pub struct StreamWeights {
    pub x: ArenaRange,
    pub out: ArenaRange,
    pub spec: StreamSpec,
}

// SAFETY: a task writes rows of the result that are its own, and reads the same rows of the input.
unsafe impl Instruction for StreamWeights {
    fn name(&self) -> &'static str {
        "streams"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        step.rows(self.out.rows).div_ceil(WEIGHT_ROWS)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        for row in task * WEIGHT_ROWS..((task + 1) * WEIGHT_ROWS).min(step.rows(self.out.rows)) {
            // SAFETY: rows belong to one task.
            weigh(&self.spec, unsafe { own_row(step, &self.x, &self.out, row) });
        }
    }
}

/// Turns a token's numbers into its weights, see [`StreamSpec`].
fn weigh(spec: &StreamSpec, numbers: &mut [f32]) {
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    let count = spec.streams;
    let kind = |i: usize| (i / count).min(2);
    for (i, (x, base)) in numbers.iter_mut().zip(&spec.base).enumerate() {
        let number = *x * spec.scales[kind(i)] + base;
        *x = match kind(i) {
            0 => sigmoid(number) + spec.floor,
            1 => spec.magnitude * sigmoid(number) + spec.write_floor,
            _ => number,
        };
    }
    if spec.scales.len() > 2 {
        balance(&mut numbers[2 * count..], spec);
    }
}

/// Normalizes rows and columns of a matrix in turn (Sinkhorn and Knopp, 1967).
fn balance(matrix: &mut [f32], spec: &StreamSpec) {
    let (count, floor) = (spec.streams, spec.floor);
    for row in matrix.chunks_exact_mut(count) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter_mut().for_each(|x| *x = (*x - max).exp());
        let sum: f32 = row.iter().sum();
        row.iter_mut().for_each(|x| *x = *x / sum + floor);
    }
    for round in 0..spec.rounds {
        if round > 0 {
            for row in matrix.chunks_exact_mut(count) {
                let sum = row.iter().sum::<f32>() + floor;
                row.iter_mut().for_each(|x| *x /= sum);
            }
        }
        for column in 0..count {
            let sum = matrix.iter().skip(column).step_by(count).sum::<f32>() + floor;
            matrix.iter_mut().skip(column).step_by(count).for_each(|x| *x /= sum);
        }
    }
}

/// Weighted sum of the streams.
pub struct ReadStreams {
    pub streams: ArenaRange,
    pub weights: ArenaRange,
    pub out: ArenaRange,
}

// SAFETY: a task writes its own rows of the result.
unsafe impl Instruction for ReadStreams {
    fn name(&self) -> &'static str {
        "streams"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        for row in task_rows(task, &self.out, step) {
            // SAFETY: each row belongs to one task; the planner keeps inputs apart from the result.
            let (streams, weights, out) = unsafe {
                let (streams, weights) =
                    (step.arena.row(&self.streams, row), step.arena.row(&self.weights, row));
                (streams, weights, step.arena.row_mut(&self.out, row))
            };
            out.fill(0.0);
            streams
                .chunks_exact(out.len())
                .zip(weights)
                .for_each(|(stream, &weight)| add_scaled(out, stream, weight));
        }
    }
}

/// Gate of each stream by the similarity of two values.
pub struct StreamSimilarityGate {
    pub a: ArenaRange,
    pub b: ArenaRange,
    pub out: ArenaRange,
}

// SAFETY: a task writes its own rows of the result.
unsafe impl Instruction for StreamSimilarityGate {
    fn name(&self) -> &'static str {
        "streams"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.a, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        for row in task_rows(task, &self.a, step) {
            // SAFETY: each row belongs to one task; the planner keeps inputs apart from the result.
            let (a, b, out) = unsafe {
                let (a, b) = (step.arena.row(&self.a, row), step.arena.row(&self.b, row));
                (a, b, step.arena.row_mut(&self.out, row))
            };
            let each = a.len() / out.len();
            let streams = a.chunks_exact(each).zip(b.chunks_exact(each));
            out.iter_mut().zip(streams).for_each(|(out, (a, b))| *out = agreement(a, b));
        }
    }
}

/// See [`puna_graph::Op::StreamSimilarityGate`].
fn agreement(a: &[f32], b: &[f32]) -> f32 {
    // Sums are kept in lanes, so that the compiler vectorizes them.
    let mut lanes = [0.0f32; 8];
    for (a, b) in a.chunks(lanes.len()).zip(b.chunks(lanes.len())) {
        lanes.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    let product = lanes.iter().sum::<f32>() / (a.len() as f32).sqrt();
    let root = if product == 0.0 { 0.0 } else { product.abs().max(1e-6).sqrt().copysign(product) };
    1.0 / (1.0 + (-root).exp())
}

/// `to += weight · from`.
fn add_scaled(to: &mut [f32], from: &[f32], weight: f32) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += weight * from);
}

/// Mixes the streams and adds the result of a sublayer.
pub struct WriteStreams {
    pub streams: ArenaRange,
    pub x: ArenaRange,
    pub weights: ArenaRange,
    pub mix: Option<ArenaRange>,
    pub out: ArenaRange,
}

// SAFETY: a task writes rows of the result that are its own, and reads the same rows of the inputs.
unsafe impl Instruction for WriteStreams {
    fn name(&self) -> &'static str {
        "streams"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        row_tasks(&self.out, step)
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, _: &mut ThreadScratch) {
        for row in task_rows(task, &self.out, step) {
            // SAFETY: rows belong to one task.
            let streams = unsafe { own_row(step, &self.streams, &self.out, row) };
            // SAFETY: each row belongs to one task; the planner keeps these inputs apart from the
            // result.
            let input = |range: &ArenaRange| unsafe { step.arena.row(range, row) };
            write(streams, input(&self.x), input(&self.weights), self.mix.as_ref().map(input));
        }
    }
}

/// The streams of a token after a sublayer with the result `x`.
fn write(streams: &mut [f32], x: &[f32], weights: &[f32], mix: Option<&[f32]>) {
    let n = x.len();
    let Some(mix) = mix else {
        return streams
            .chunks_exact_mut(n)
            .zip(weights)
            .for_each(|(to, &weight)| add_scaled(to, x, weight));
    };
    let mut before = [[0.0; CHUNK]; StreamSpec::MAX_STREAMS];
    let before = &mut before[..weights.len()];
    for at in (0..n).step_by(CHUNK) {
        let len = CHUNK.min(n - at);
        for (stream, before) in streams.chunks_exact(n).zip(before.iter_mut()) {
            before[..len].copy_from_slice(&stream[at..at + len]);
        }
        for (t, (stream, &weight)) in streams.chunks_exact_mut(n).zip(weights).enumerate() {
            let to = &mut stream[at..at + len];
            to.iter_mut().zip(&x[at..]).for_each(|(to, x)| *to = weight * x);
            let mixed = mix.iter().skip(t).step_by(before.len());
            mixed.zip(before.iter()).for_each(|(&weight, before)| add_scaled(to, before, weight));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_agreement_is_the_sigmoid_of_the_signed_root_of_the_product() {
        let a: Vec<f32> = (0..21).map(|i| (i % 5) as f32 - 1.5).collect();
        let b: Vec<f32> = (0..21).map(|i| (i * 7 % 11) as f32 - 4.0).collect();
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        let product = a.iter().zip(&b).map(|(a, b)| a * b).sum::<f32>() / 21f32.sqrt();
        let want = sigmoid(product.abs().sqrt() * product.signum());
        assert!((agreement(&a, &b) - want).abs() < 1e-6);
        let other: Vec<f32> = b.iter().map(|b| -b).collect();
        assert!((agreement(&a, &other) - (1.0 - want)).abs() < 1e-6);
        // Similarities below 10⁻⁶ count as 10⁻⁶, and zero as zero.
        assert_eq!(agreement(&[1e-9], &[1.0]), sigmoid(1e-3));
        assert_eq!(agreement(&[1e-9], &[-1.0]), sigmoid(-1e-3));
        assert_eq!([agreement(&[0.0; 9], &[1.0; 9]), agreement(&[-0.0], &[1.0])], [0.5; 2]);
    }

    fn spec(streams: usize, kinds: usize) -> StreamSpec {
        let numbers = StreamSpec::numbers(streams, kinds);
        StreamSpec {
            streams,
            scales: [0.5, 2.0, 3.0][..kinds].to_vec(),
            base: (0..numbers).map(|i| i as f32 / 8.0 - 1.0).collect(),
            floor: 0.01,
            magnitude: 2.0,
            write_floor: 0.25,
            rounds: 20,
        }
    }

    #[test]
    fn read_and_write_weights_are_sigmoids_of_scaled_values() {
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        let mut numbers = [1.0, -2.0, 0.5, 3.0];
        weigh(&spec(2, 2), &mut numbers);
        let read = [sigmoid(0.5 - 1.0) + 0.01, sigmoid(-1.0 - 0.875) + 0.01];
        let write = [2.0 * sigmoid(1.0 - 0.75) + 0.25, 2.0 * sigmoid(6.0 - 0.625) + 0.25];
        for (got, want) in numbers.iter().zip(read.iter().chain(&write)) {
            assert!((got - want).abs() < 1e-6, "{got}, not {want}");
        }
    }

    #[test]
    fn rows_and_columns_of_the_stream_mix_sum_to_one() {
        let spec = StreamSpec { floor: 1e-6, ..spec(3, 3) };
        let mut numbers: Vec<f32> = (0..15).map(|i| (i * 7 % 5) as f32 / 4.0).collect();
        weigh(&spec, &mut numbers);
        let mix = &numbers[6..];
        for i in 0..3 {
            let (row, column) =
                (mix[3 * i..][..3].iter().sum::<f32>(), mix[i] + mix[3 + i] + mix[6 + i]);
            assert!((row - 1.0).abs() < 1e-3 && (column - 1.0).abs() < 1e-3, "{row} and {column}");
        }
        assert!((mix[0] - mix[1]).abs() > 0.01, "{mix:?}");
    }

    #[test]
    fn each_stream_is_the_mix_of_all_streams_plus_a_weighted_block_output() {
        // Columns of a stream: more than a chunk.
        const N: usize = CHUNK + 3;
        let old: Vec<f32> = (0..2 * N).map(|i| (i * 37 % 11) as f32).collect();
        let part: Vec<f32> = (0..N).map(|i| (i % 5) as f32).collect();
        let (weights, mix) = ([2.0, -1.0], [0.5, 4.0, 8.0, 0.25]);
        let (mut mixed, mut plain) = (old.clone(), old.clone());
        write(&mut mixed, &part, &weights, Some(&mix));
        write(&mut plain, &part, &weights, None);
        for i in 0..N {
            let (a, b, p) = (old[i], old[N + i], part[i]);
            assert_eq!(
                [mixed[i], mixed[N + i]],
                [2.0 * p + 0.5 * a + 8.0 * b, 4.0 * a + 0.25 * b - p]
            );
            assert_eq!([plain[i], plain[N + i]], [a + 2.0 * p, b - p]);
        }
    }
}
