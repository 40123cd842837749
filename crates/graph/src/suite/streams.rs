//! Residual streams of hyper-connections, and attention over the depth of the network.

use super::elementwise::{doubles, sigmoid};
use super::problem::{Placement, Problem};
use super::schedule::Schedule;
use super::{Case, Tolerance};
use crate::streams::{StreamSpec, StreamWrite};

/// Weights, reads, writes and gates of streams, and depth attention.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for rows in [1, 7, 33] {
        // Few rounds show each of them; after many rounds a matrix is nearly the same without one.
        for shape in [(4, 3, 1), (4, 3, 2), (4, 3, 20), (2, 2, 20), (4, 1, 20), (16, 3, 3)] {
            cases.extend(Placement::ALL.map(|placement| weights(rows, shape, placement)));
        }
        for (streams, features) in [(1, 64), (4, 33), (4, 200), (16, 70)] {
            cases.push(read(rows, (streams, features)));
            cases.extend([false, true].map(|mixes| write(rows, (streams, features), mixes)));
            cases.push(similarity(rows, (streams, features)));
        }
        cases.extend([(1, 40), (3, 33), (7, 256)].map(|shape| depth_attention(rows, shape)));
    }
    cases
}

fn weights(
    rows: usize,
    (streams, kinds, rounds): (usize, usize, usize),
    placement: Placement,
) -> Case {
    let shape = format!("rows={rows} streams={streams} kinds={kinds} rounds={rounds}");
    let name = format!("stream_weights {shape} input={}", placement.name());
    Case::new(name, Tolerance::F32, move || {
        let mut p = Problem::new(Schedule::one_step(rows));
        let numbers = StreamSpec::numbers(streams, kinds);
        let spec = StreamSpec {
            streams,
            scales: [0.5, 2.0, 1.5][..kinds].to_vec(),
            base: p.random.numbers(numbers),
            floor: 0.01,
            magnitude: 2.0,
            write_floor: 0.25,
            rounds,
        };
        let x = p.input_in(placement, numbers, |x| 2.0 * x);
        let out = p.graph.stream_weights("out", spec.clone(), x.id);
        p.expect_rows(out, |token| weights_of(&spec, &doubles(x.row(token))));
        p
    })
}

/// Weights of a token from its numbers.
fn weights_of(spec: &StreamSpec, numbers: &[f64]) -> Vec<f64> {
    let n = spec.streams;
    let scaled: Vec<f64> = numbers
        .iter()
        .zip(&spec.base)
        .enumerate()
        .map(|(i, (x, &base))| f64::from(spec.scales[(i / n).min(2)]) * x + f64::from(base))
        .collect();
    let [floor, magnitude, write_floor] =
        [spec.floor, spec.magnitude, spec.write_floor].map(f64::from);
    let weight = |(i, &x): (usize, &f64)| match i / n {
        0 => sigmoid(x) + floor,
        1 => magnitude * sigmoid(x) + write_floor,
        _ => x,
    };
    let mut all: Vec<f64> = scaled.iter().enumerate().map(weight).collect();
    if spec.scales.len() < 3 {
        return all;
    }
    let mix = all.split_off(2 * n);
    let softmax = |row: &[f64]| {
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        row.iter().map(|x| x.exp() / sum + floor).collect::<Vec<f64>>()
    };
    let mut mix: Vec<Vec<f64>> = mix.chunks(n).map(softmax).collect();
    for round in 0..spec.rounds {
        if round > 0 {
            for row in &mut mix {
                let sum = row.iter().sum::<f64>() + floor;
                row.iter_mut().for_each(|x| *x /= sum);
            }
        }
        for column in 0..n {
            let sum = mix.iter().map(|row| row[column]).sum::<f64>() + floor;
            mix.iter_mut().for_each(|row| row[column] /= sum);
        }
    }
    [all, mix.concat()].concat()
}

fn read(rows: usize, (streams, features): (usize, usize)) -> Case {
    let name = format!("read_streams rows={rows} streams={streams} width={features}");
    Case::new(name, Tolerance::F32, move || {
        let mut p = Problem::new(Schedule::one_step(rows));
        let (all, by) = (p.input(streams * features), p.input(streams));
        let out = p.graph.read_streams("out", all.id, by.id);
        p.expect_rows(out, |token| {
            let (all, by) = (doubles(all.row(token)), doubles(by.row(token)));
            let value = |i: usize| (0..streams).map(|s| by[s] * all[s * features + i]).sum();
            (0..features).map(value).collect()
        });
        p
    })
}

fn write(rows: usize, (streams, features): (usize, usize), mixes: bool) -> Case {
    let name = format!("write_streams rows={rows} streams={streams} width={features} mix={mixes}");
    Case::new(name, Tolerance::F32, move || {
        let mut p = Problem::new(Schedule::one_step(rows));
        let (all, part, by) = (p.input(streams * features), p.input(features), p.input(streams));
        let mix = mixes.then(|| p.input(streams * streams));
        let weights = StreamWrite { weights: by.id, mix: mix.as_ref().map(|mix| mix.id) };
        let out = p.graph.write_streams("out", all.id, part.id, weights);
        p.expect_rows(out, |token| {
            let [all, part, by] = [&all, &part, &by].map(|input| doubles(input.row(token)));
            let mix = mix.as_ref().map(|mix| doubles(mix.row(token)));
            let value = |t: usize, i: usize| {
                let stream = |s: usize| all[s * features + i];
                let kept = match &mix {
                    Some(mix) => {
                        (0..streams).map(|s| mix[s * streams + t] * stream(s)).sum::<f64>()
                    }
                    None => stream(t),
                };
                by[t] * part[i] + kept
            };
            (0..streams * features).map(|at| value(at / features, at % features)).collect()
        });
        p
    })
}

fn similarity(rows: usize, (streams, features): (usize, usize)) -> Case {
    let name = format!("stream_similarity_gate rows={rows} streams={streams} width={features}");
    Case::new(name, Tolerance::F32, move || {
        let mut p = Problem::new(Schedule::one_step(rows));
        let (a, b) = (p.input(streams * features), p.input(streams * features));
        let out = p.graph.stream_similarity_gate("out", a.id, b.id, streams);
        p.expect_rows(out, |token| {
            let (a, b) = (doubles(a.row(token)), doubles(b.row(token)));
            let gate = |(a, b): (&[f64], &[f64])| {
                let product: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                let s = product / (features as f64).sqrt();
                sigmoid(s.signum() * s.abs().max(1e-6).sqrt())
            };
            a.chunks(features).zip(b.chunks(features)).map(gate).collect()
        });
        p
    })
}

fn depth_attention(rows: usize, (depths, features): (usize, usize)) -> Case {
    let name = format!("depth_attention rows={rows} depths={depths} width={features}");
    Case::new(name, Tolerance::F32, move || {
        let mut p = Problem::new(Schedule::one_step(rows));
        let (w, eps) = (p.floats(&[features]), 1e-5);
        let inputs: Vec<_> = (0..depths).map(|_| p.input(features)).collect();
        let ids: Vec<_> = inputs.iter().map(|input| input.id).collect();
        let out = p.graph.depth_attention("out", (w.id, eps), &ids);
        p.expect_rows(out, |token| {
            let places: Vec<Vec<f64>> =
                inputs.iter().map(|input| doubles(input.row(token))).collect();
            let weight = |x: &Vec<f64>| {
                let mean = x.iter().map(|x| x * x).sum::<f64>() / features as f64;
                let product: f64 = x.iter().zip(&w.values).map(|(x, &w)| x * f64::from(w)).sum();
                (product / (mean + f64::from(eps)).sqrt()).exp()
            };
            let weights: Vec<f64> = places.iter().map(weight).collect();
            let sum: f64 = weights.iter().sum();
            let value = |i: usize| places.iter().zip(&weights).map(|(x, w)| x[i] * w).sum::<f64>();
            (0..features).map(|i| value(i) / sum).collect()
        });
        p
    })
}
