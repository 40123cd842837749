//! Kernels of recurrent layers of every level against the portable ones.

use puna_kernels::{DeltaStep, Level, PoolStep, ScanStep, Tap, Wkv7Step, WkvStep, levels};

use super::data::{Random, others};
use super::vector::{near, portable};

const COLUMNS: [usize; 9] = [1, 3, 8, 12, 16, 24, 64, 77, 128];
const ROWS: [usize; 4] = [1, 8, 16, 128];

#[test]
fn convolutions_agree_with_and_without_bias_and_activation() {
    let mut random = Random(1);
    for (n, taps) in COLUMNS.into_iter().flat_map(|n| [(n, 2), (n, 3), (n, 4)]) {
        let rows: Vec<[Vec<f32>; 2]> =
            (0..taps).map(|_| [random.normals(n), random.normals(n)]).collect();
        let taps: Vec<Tap<'_>> = rows.iter().map(|[x, w]| Tap { x, w }).collect();
        let bias = random.normals(n);
        for (bias, silu) in [(&bias[..], true), (&[], false)] {
            let (mut expected, mut got) = (vec![0.0; n], vec![0.0; n]);
            (portable().vector.recurrent.conv)(&taps, bias, silu, &mut expected);
            for level in others() {
                (level.vector.recurrent.conv)(&taps, bias, silu, &mut got);
                near(&got, &expected, 1e-5, 1e-5, level.name);
            }
        }
    }
}

/// The state and the result that a level computes.
type Outcome = (Vec<f32>, Vec<f32>);

/// Panics unless all levels agree with the portable one on `step`, which takes columns of the state
/// from one on, and how many; and unless columns have the same bits alone and beside others that
/// fill vectors.
fn agree(rows: usize, cols: usize, state: &[f32], step: impl Fn(&Level, &mut [f32], &mut [f32])) {
    let run = |level: &Level| -> Outcome {
        let (mut state, mut y) = (state.to_vec(), vec![0.0; cols]);
        step(level, &mut state, &mut y);
        (state, y)
    };
    let expected = run(portable());
    for level in others() {
        let (state, y) = run(level);
        let what = format!("{}, {rows} rows of {cols} columns", level.name);
        near(&state, &expected.0, 1e-5, 1e-4, &what);
        near(&y, &expected.1, 1e-5, 2e-3, &what);
    }
}

#[test]
fn scans_agree_with_steps_per_head_and_per_column() {
    let mut random = Random(2);
    for (rows, cols) in ROWS.into_iter().flat_map(|rows| COLUMNS.map(|cols| (rows, cols))) {
        let [state, a] = [(); 2].map(|()| random.normals(rows * cols));
        let [x, dt, d] = [(); 3].map(|()| random.normals(cols));
        let [b, c] = [(); 2].map(|()| random.normals(rows));
        let a: Vec<f32> = a.into_iter().map(|a| -a.abs()).collect();
        let dt: Vec<f32> = dt.into_iter().map(f32::abs).collect();
        for [a, dt, d] in [[&a[..], &dt, &d], [&a[..1], &dt[..1], &d[..1]]] {
            agree(rows, cols, &state, |level, state, y| {
                (level.vector.recurrent.scan)(ScanStep { state, x: &x, dt, a, b: &b, c: &c, d, y });
            });
        }
    }
}

/// `x` with length one.
fn unit(x: Vec<f32>) -> Vec<f32> {
    let length = x.iter().map(|x| x * x).sum::<f32>().sqrt();
    x.into_iter().map(|x| x / length).collect()
}

#[test]
fn the_delta_rule_agrees_with_one_decay_and_with_one_per_row() {
    let mut random = Random(3);
    for (rows, cols) in ROWS.into_iter().flat_map(|rows| COLUMNS.map(|cols| (rows, cols))) {
        let state = random.normals(rows * cols);
        let [q, k] = [(); 2].map(|()| unit(random.normals(rows)));
        let v = random.normals(cols);
        let decay: Vec<f32> = random.normals(rows).into_iter().map(|x| (-x.abs()).exp()).collect();
        for decay in [&decay[..], &decay[..1]] {
            agree(rows, cols, &state, |level, state, y| {
                let step = DeltaStep { state, decay, q: &q, k: &k, v: &v, beta: 0.7, y };
                (level.vector.recurrent.delta)(step);
            });
        }
    }
}

#[test]
fn wkv_agrees_at_every_level() {
    let mut random = Random(4);
    for (rows, cols) in ROWS.into_iter().flat_map(|rows| COLUMNS.map(|cols| (rows, cols))) {
        let state = random.normals(rows * cols);
        let [r, k] = [(); 2].map(|()| random.normals(rows));
        let v = random.normals(cols);
        let decay: Vec<f32> = random.normals(rows).into_iter().map(|x| (-x.abs()).exp()).collect();
        agree(rows, cols, &state, |level, state, y| {
            let step = WkvStep { state, decay: &decay, r: &r, own: -0.8, k: &k, v: &v, y };
            (level.vector.recurrent.wkv)(step);
        });
    }
}

#[test]
fn wkv7_agrees_at_every_level() {
    let mut random = Random(5);
    for (rows, cols) in ROWS.into_iter().flat_map(|rows| COLUMNS.map(|cols| (rows, cols))) {
        let state = random.normals(rows * cols);
        let [r, k, removal_key] = [(); 3].map(|()| unit(random.normals(rows)));
        let v = random.normals(cols);
        let decay: Vec<f32> = random.normals(rows).into_iter().map(|x| (-x.abs()).exp()).collect();
        let forget: Vec<f32> =
            removal_key.iter().zip(&decay).map(|(key, rate)| key * rate).collect();
        agree(rows, cols, &state, |level, state, y| {
            let (removal_key, forget) = (&removal_key, &forget);
            let step =
                Wkv7Step { state, decay: &decay, removal_key, forget, r: &r, k: &k, v: &v, y };
            (level.vector.recurrent.wkv7)(step);
        });
    }
}

#[test]
fn pooling_agrees_for_gates_of_any_spread() {
    let mut random = Random(6);
    for (cols, spread) in
        COLUMNS.into_iter().flat_map(|cols| [(cols, 1.0), (cols, 40.0), (cols, 1e30)])
    {
        let bias = random.normals(cols);
        let tokens: Vec<[Vec<f32>; 2]> = (0..9)
            .map(|_| {
                let gate = random.normals(cols).into_iter().map(|gate| spread * gate).collect();
                [random.normals(cols), gate]
            })
            .collect();
        let empty = [vec![f32::MIN; cols], vec![0.0; 2 * cols]].concat();
        agree(3, cols, &empty, |level, state, y| {
            let (max, rest) = state.split_at_mut(cols);
            let (sum, acc) = rest.split_at_mut(cols);
            for [x, gate] in &tokens {
                let (max, sum, acc) = (&mut *max, &mut *sum, &mut *acc);
                (level.vector.recurrent.pool)(PoolStep { max, sum, acc, x, gate, bias: &bias });
            }
            y.iter_mut().zip(acc.iter().zip(sum.iter())).for_each(|(y, (acc, sum))| *y = acc / sum);
        });
    }
}

/// Computed by hand: a key of length one, written with full strength, is read back, and the rest of
/// the state decays by half.
#[test]
fn the_delta_rule_replaces_the_value_of_a_key() {
    for level in levels() {
        let (mut state, mut y) = (vec![8.0, 2.0, 6.0, 4.0], [0.0; 2]);
        let step = DeltaStep {
            state: &mut state,
            decay: &[0.5],
            q: &[1.0, 0.0],
            k: &[1.0, 0.0],
            v: &[7.0, -1.0],
            beta: 1.0,
            y: &mut y,
        };
        (level.vector.recurrent.delta)(step);
        assert_eq!((&state[..], y), (&[7.0, -1.0, 3.0, 2.0][..], [7.0, -1.0]), "{}", level.name);
    }
}

/// Computed by hand: values under one key decay by half while another key is learnt, and the state
/// is read last.
#[test]
fn wkv7_removes_values_by_a_different_key_than_it_adds() {
    for level in levels() {
        let (mut state, mut y) = (vec![8.0, 2.0, 6.0, 4.0], [0.0; 2]);
        let step = Wkv7Step {
            state: &mut state,
            decay: &[1.0, 0.5],
            removal_key: &[1.0, 0.0],
            forget: &[0.5, 0.0],
            r: &[1.0, 2.0],
            k: &[0.0, 1.0],
            v: &[7.0, -1.0],
            y: &mut y,
        };
        (level.vector.recurrent.wkv7)(step);
        assert_eq!((&state[..], y), (&[4.0, 1.0, 10.0, 1.0][..], [24.0, 3.0]), "{}", level.name);
    }
}
