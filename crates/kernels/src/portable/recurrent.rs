//! Recurrent layers, as defined.

use crate::{DeltaStep, PoolStep, RecurrentKernels, ScanStep, Tap, Wkv7Step, WkvStep};

pub(super) const KERNELS: RecurrentKernels =
    RecurrentKernels { conv, scan, delta, wkv, wkv7, pool };

/// See [`RecurrentKernels::conv`].
fn conv(taps: &[Tap<'_>], bias: &[f32], silu: bool, y: &mut [f32]) {
    for (i, y) in y.iter_mut().enumerate() {
        let sum =
            bias.get(i).copied().unwrap_or(0.0) + taps.iter().map(|t| t.x[i] * t.w[i]).sum::<f32>();
        *y = if silu { sum / (1.0 + (-sum).exp()) } else { sum };
    }
}

/// The only element, or the `i`-th of several.
fn one_or(x: &[f32], i: usize) -> f32 {
    if x.len() == 1 { x[0] } else { x[i] }
}

/// See [`RecurrentKernels::scan`].
fn scan(step: ScanStep<'_>) {
    step.check();
    let ScanStep { state, x, dt, a, b, c, d, y } = step;
    let cols = x.len();
    for (i, y) in y.iter_mut().enumerate() {
        *y = one_or(d, i) * x[i];
        for (n, (b, c)) in b.iter().zip(c).enumerate() {
            let (at, dt) = (n * cols + i, one_or(dt, i));
            state[at] = (dt * one_or(a, at)).exp() * state[at] + dt * x[i] * b;
            *y += state[at] * c;
        }
    }
}

/// See [`RecurrentKernels::delta`].
fn delta(step: DeltaStep<'_>) {
    step.check();
    let DeltaStep { state, decay, q, k, v, beta, y } = step;
    let cols = v.len();
    for (n, row) in state.chunks_exact_mut(cols).enumerate() {
        row.iter_mut().for_each(|s| *s *= one_or(decay, n));
    }
    for (i, y) in y.iter_mut().enumerate() {
        let stored: f32 = k.iter().enumerate().map(|(n, k)| state[n * cols + i] * k).sum();
        let update = beta * (v[i] - stored);
        *y = 0.0;
        for (n, (q, k)) in q.iter().zip(k).enumerate() {
            state[n * cols + i] += k * update;
            *y += state[n * cols + i] * q;
        }
    }
}

/// See [`RecurrentKernels::wkv`].
fn wkv(step: WkvStep<'_>) {
    step.check();
    let WkvStep { state, decay, r, own, k, v, y } = step;
    let cols = v.len();
    for (i, y) in y.iter_mut().enumerate() {
        *y = own * v[i];
        for n in 0..k.len() {
            let s = &mut state[n * cols + i];
            *y += r[n] * *s;
            *s = decay[n] * *s + k[n] * v[i];
        }
    }
}

/// See [`RecurrentKernels::wkv7`].
fn wkv7(step: Wkv7Step<'_>) {
    step.check();
    let Wkv7Step { state, decay, removal_key, forget, r, k, v, y } = step;
    let cols = v.len();
    for (i, y) in y.iter_mut().enumerate() {
        let found: f32 =
            removal_key.iter().enumerate().map(|(n, key)| state[n * cols + i] * key).sum();
        *y = 0.0;
        for n in 0..k.len() {
            let s = &mut state[n * cols + i];
            *s = decay[n] * *s - forget[n] * found + k[n] * v[i];
            *y += r[n] * *s;
        }
    }
}

/// See [`RecurrentKernels::pool`].
fn pool(step: PoolStep<'_>) {
    step.check();
    let PoolStep { max, sum, acc, x, gate, bias } = step;
    for i in 0..x.len() {
        let score = gate[i] + bias[i];
        let largest = max[i].max(score);
        let (left, weight) = ((max[i] - largest).exp(), (score - largest).exp());
        max[i] = largest;
        sum[i] = sum[i] * left + weight;
        acc[i] = acc[i] * left + weight * x[i];
    }
}
