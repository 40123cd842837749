//! Recurrent layers: columns are vector lanes, so that reading a state needs no sum across lanes.
//!
//! Lengths are checked by the wrappers. A state's columns are walked a few vectors at a time, so
//! that sums stay in registers; the last columns, fewer than a vector has lanes, are computed one
//! by one.

use super::Simd;
use super::vector::{exp_negative, silu_vector};
use crate::{DeltaStep, PoolStep, ScanStep, Tap, Wkv7Step, WkvStep};

/// Vectors of columns with sums in registers.
const WIDE: usize = 4;

/// `$body` with `$vectors` for each `WIDE` vectors of `$n` columns and each vector after those,
/// `$rest` for each column after the last.
macro_rules! columns {
    ($S:ty, $n:expr, $i:ident, $body:ident ($($arg:expr),*), $rest:expr) => {
        let mut $i = 0;
        while $i + WIDE * <$S>::LANES <= $n {
            $body::<$S, WIDE>($($arg),*, $i);
            $i += WIDE * <$S>::LANES;
        }
        while $i + <$S>::LANES <= $n {
            $body::<$S, 1>($($arg),*, $i);
            $i += <$S>::LANES;
        }
        while $i < $n {
            $rest;
            $i += 1;
        }
    };
}

/// See [`RecurrentKernels::conv`](crate::RecurrentKernels).
#[inline(always)]
pub(crate) unsafe fn conv<S: Simd>(taps: &[Tap<'_>], bias: &[f32], silu: bool, y: &mut [f32]) {
    // SAFETY: rows, weights, bias (unless empty) and result have equal lengths; features by the
    // module's contract.
    unsafe {
        let (n, mut i) = (y.len(), 0);
        while i + S::LANES <= n {
            let mut sum =
                if bias.is_empty() { S::splat(0.0) } else { S::load(bias.as_ptr().add(i)) };
            for tap in taps {
                sum = S::fma(S::load(tap.x.as_ptr().add(i)), S::load(tap.w.as_ptr().add(i)), sum);
            }
            S::store(y.as_mut_ptr().add(i), if silu { silu_vector::<S>(sum) } else { sum });
            i += S::LANES;
        }
        for (i, y) in y.iter_mut().enumerate().skip(i) {
            let sum = taps
                .iter()
                .fold(bias.get(i).copied().unwrap_or(0.0), |sum, t| sum + t.x[i] * t.w[i]);
            *y = if silu { sum / (1.0 + (-sum).exp()) } else { sum };
        }
    }
}

/// See [`RecurrentKernels::scan`](crate::RecurrentKernels).
#[inline(always)]
pub(crate) unsafe fn scan<S: Simd>(mut t: ScanStep<'_>) {
    let n = t.x.len();
    // SAFETY: columns lie inside the slices, since the wrapper checked the lengths; features by the
    // module's contract.
    unsafe {
        if t.dt.len() == 1 && t.a.len() == 1 {
            let decay = (t.dt[0] * t.a[0]).exp();
            columns!(S, n, i, scan_head(&mut t, decay), {
                let written = t.dt[0] * t.x[i];
                let mut sum = one_or(t.d, i) * t.x[i];
                for (k, (b, c)) in t.b.iter().zip(t.c).enumerate() {
                    let s = &mut t.state[k * n + i];
                    *s = decay * *s + written * b;
                    sum += *s * c;
                }
                t.y[i] = sum;
            });
        } else {
            columns!(S, n, i, scan_columns(&mut t), {
                let written = t.dt[i] * t.x[i];
                let mut sum = one_or(t.d, i) * t.x[i];
                for (k, (b, c)) in t.b.iter().zip(t.c).enumerate() {
                    let at = k * n + i;
                    t.state[at] = (t.dt[i] * t.a[at]).exp() * t.state[at] + written * b;
                    sum += t.state[at] * c;
                }
                t.y[i] = sum;
            });
        }
    }
}

fn one_or(x: &[f32], i: usize) -> f32 {
    if x.len() == 1 { x[0] } else { x[i] }
}

/// `d x` of some vectors of columns, and the columns.
#[inline(always)]
unsafe fn passed<S: Simd, const U: usize>(t: &ScanStep<'_>, i: usize) -> ([S::F; U], [S::F; U]) {
    // SAFETY: `U` vectors from column `i` on; features by the module's contract.
    unsafe {
        let (mut x, mut sum) = ([S::splat(0.0); U], [S::splat(0.0); U]);
        for u in 0..U {
            let at = i + u * S::LANES;
            x[u] = S::load(t.x.as_ptr().add(at));
            let d = if t.d.len() == 1 { S::splat(t.d[0]) } else { S::load(t.d.as_ptr().add(at)) };
            sum[u] = S::mul(d, x[u]);
        }
        (x, sum)
    }
}

#[inline(always)]
unsafe fn scan_head<S: Simd, const U: usize>(t: &mut ScanStep<'_>, decay: f32, i: usize) {
    // SAFETY: `U` vectors from column `i` on lie inside of each row; features by the module's
    // contract.
    unsafe {
        let (x, mut sum) = passed::<S, U>(t, i);
        let (n, decay, dt) = (t.x.len(), S::splat(decay), S::splat(t.dt[0]));
        let mut written = x;
        for w in &mut written {
            *w = S::mul(*w, dt);
        }
        let mut row = t.state.as_mut_ptr().add(i);
        for (&b, &c) in t.b.iter().zip(t.c) {
            let (b, c) = (S::splat(b), S::splat(c));
            for u in 0..U {
                let p = row.add(u * S::LANES);
                let s = S::fma(S::load(p), decay, S::mul(written[u], b));
                S::store(p, s);
                sum[u] = S::fma(s, c, sum[u]);
            }
            row = row.wrapping_add(n);
        }
        for (u, sum) in sum.into_iter().enumerate() {
            S::store(t.y.as_mut_ptr().add(i + u * S::LANES), sum);
        }
    }
}

#[inline(always)]
unsafe fn scan_columns<S: Simd, const U: usize>(t: &mut ScanStep<'_>, i: usize) {
    // SAFETY: `U` vectors from column `i` on lie inside of each row; features by the module's
    // contract.
    unsafe {
        let (x, mut sum) = passed::<S, U>(t, i);
        let (mut dt, mut written) = (x, x);
        for u in 0..U {
            dt[u] = S::load(t.dt.as_ptr().add(i + u * S::LANES));
            written[u] = S::mul(x[u], dt[u]);
        }
        for (k, (&b, &c)) in t.b.iter().zip(t.c).enumerate() {
            let (b, c) = (S::splat(b), S::splat(c));
            for u in 0..U {
                let at = k * t.x.len() + i + u * S::LANES;
                let decay = exp_negative::<S>(S::mul(dt[u], S::load(t.a.as_ptr().add(at))));
                let p = t.state.as_mut_ptr().add(at);
                let s = S::fma(S::load(p), decay, S::mul(written[u], b));
                S::store(p, s);
                sum[u] = S::fma(s, c, sum[u]);
            }
        }
        for (u, sum) in sum.into_iter().enumerate() {
            S::store(t.y.as_mut_ptr().add(i + u * S::LANES), sum);
        }
    }
}

/// See [`RecurrentKernels::delta`](crate::RecurrentKernels).
#[inline(always)]
pub(crate) unsafe fn delta<S: Simd>(mut t: DeltaStep<'_>) {
    let n = t.v.len();
    // SAFETY: columns lie inside the slices, since the wrapper checked the lengths; features by the
    // module's contract.
    unsafe {
        columns!(S, n, i, delta_columns(&mut t), {
            let stored = |(k, key): (usize, &f32)| t.state[k * n + i] * (one_or(t.decay, k) * key);
            let stored: f32 = t.k.iter().enumerate().map(stored).sum();
            let (update, mut sum) = (t.beta * (t.v[i] - stored), 0.0);
            for (k, (q, key)) in t.q.iter().zip(t.k).enumerate() {
                let s = &mut t.state[k * n + i];
                *s = one_or(t.decay, k) * *s + key * update;
                sum += *s * q;
            }
            t.y[i] = sum;
        });
    }
}

#[inline(always)]
unsafe fn delta_columns<S: Simd, const U: usize>(t: &mut DeltaStep<'_>, i: usize) {
    // SAFETY: `U` vectors from column `i` on lie inside of each row; features by the module's
    // contract.
    unsafe {
        let n = t.v.len();
        let mut lacks = [S::splat(0.0); U];
        for (k, &key) in t.k.iter().enumerate() {
            let key = S::splat(one_or(t.decay, k) * key);
            for (u, lacks) in lacks.iter_mut().enumerate() {
                let s = S::load(t.state.as_ptr().add(k * n + i + u * S::LANES));
                *lacks = S::fma(s, key, *lacks);
            }
        }
        for (u, lacks) in lacks.iter_mut().enumerate() {
            let v = S::load(t.v.as_ptr().add(i + u * S::LANES));
            *lacks = S::mul(S::splat(t.beta), S::sub(v, *lacks));
        }
        let mut sum = [S::splat(0.0); U];
        for (k, (&q, &key)) in t.q.iter().zip(t.k).enumerate() {
            let (q, key, decay) = (S::splat(q), S::splat(key), S::splat(one_or(t.decay, k)));
            for u in 0..U {
                let p = t.state.as_mut_ptr().add(k * n + i + u * S::LANES);
                let s = S::fma(S::load(p), decay, S::mul(key, lacks[u]));
                S::store(p, s);
                sum[u] = S::fma(s, q, sum[u]);
            }
        }
        for (u, sum) in sum.into_iter().enumerate() {
            S::store(t.y.as_mut_ptr().add(i + u * S::LANES), sum);
        }
    }
}

/// See [`RecurrentKernels::wkv`](crate::RecurrentKernels).
#[inline(always)]
pub(crate) unsafe fn wkv<S: Simd>(mut t: WkvStep<'_>) {
    let n = t.v.len();
    // SAFETY: columns lie inside the slices, since the wrapper checked the lengths; features by the
    // module's contract.
    unsafe {
        columns!(S, n, i, wkv_columns(&mut t), {
            let mut sum = t.own * t.v[i];
            for (k, &key) in t.k.iter().enumerate() {
                let s = &mut t.state[k * n + i];
                sum += t.r[k] * *s;
                *s = t.decay[k] * *s + key * t.v[i];
            }
            t.y[i] = sum;
        });
    }
}

#[inline(always)]
unsafe fn wkv_columns<S: Simd, const U: usize>(t: &mut WkvStep<'_>, i: usize) {
    // SAFETY: `U` vectors from column `i` on lie inside of each row; features by the module's
    // contract.
    unsafe {
        let (n, own) = (t.v.len(), S::splat(t.own));
        let (mut v, mut sum) = ([S::splat(0.0); U], [S::splat(0.0); U]);
        for u in 0..U {
            v[u] = S::load(t.v.as_ptr().add(i + u * S::LANES));
            sum[u] = S::mul(own, v[u]);
        }
        for (k, &key) in t.k.iter().enumerate() {
            let (r, key, decay) = (S::splat(t.r[k]), S::splat(key), S::splat(t.decay[k]));
            for u in 0..U {
                let p = t.state.as_mut_ptr().add(k * n + i + u * S::LANES);
                let s = S::load(p);
                sum[u] = S::fma(r, s, sum[u]);
                S::store(p, S::fma(s, decay, S::mul(key, v[u])));
            }
        }
        for (u, sum) in sum.into_iter().enumerate() {
            S::store(t.y.as_mut_ptr().add(i + u * S::LANES), sum);
        }
    }
}

/// See [`RecurrentKernels::wkv7`](crate::RecurrentKernels).
#[inline(always)]
pub(crate) unsafe fn wkv7<S: Simd>(mut t: Wkv7Step<'_>) {
    let n = t.v.len();
    // SAFETY: columns lie inside the slices, since the wrapper checked the lengths; features by the
    // module's contract.
    unsafe {
        columns!(S, n, i, wkv7_columns(&mut t), {
            let found = t.removal_key.iter().enumerate().map(|(k, key)| t.state[k * n + i] * key);
            let (found, mut sum): (f32, f32) = (found.sum(), 0.0);
            for (k, &key) in t.k.iter().enumerate() {
                let s = &mut t.state[k * n + i];
                *s = t.decay[k] * *s + (key * t.v[i] - t.forget[k] * found);
                sum += t.r[k] * *s;
            }
            t.y[i] = sum;
        });
    }
}

#[inline(always)]
unsafe fn wkv7_columns<S: Simd, const U: usize>(t: &mut Wkv7Step<'_>, i: usize) {
    // SAFETY: `U` vectors from column `i` on lie inside of each row; features by the module's
    // contract.
    unsafe {
        let n = t.v.len();
        let [mut v, mut found, mut sum] = [[S::splat(0.0); U]; 3];
        for (u, v) in v.iter_mut().enumerate() {
            *v = S::load(t.v.as_ptr().add(i + u * S::LANES));
        }
        for (k, &key) in t.removal_key.iter().enumerate() {
            let key = S::splat(key);
            for (u, found) in found.iter_mut().enumerate() {
                *found =
                    S::fma(S::load(t.state.as_ptr().add(k * n + i + u * S::LANES)), key, *found);
            }
        }
        for (k, &key) in t.k.iter().enumerate() {
            let (r, key, decay) = (S::splat(t.r[k]), S::splat(key), S::splat(t.decay[k]));
            let forget = S::splat(-t.forget[k]);
            for u in 0..U {
                let p = t.state.as_mut_ptr().add(k * n + i + u * S::LANES);
                let new = S::fma(forget, found[u], S::mul(key, v[u]));
                let s = S::fma(S::load(p), decay, new);
                S::store(p, s);
                sum[u] = S::fma(r, s, sum[u]);
            }
        }
        for (u, sum) in sum.into_iter().enumerate() {
            S::store(t.y.as_mut_ptr().add(i + u * S::LANES), sum);
        }
    }
}

/// See [`RecurrentKernels::pool`](crate::RecurrentKernels).
#[inline(always)]
pub(crate) unsafe fn pool<S: Simd>(mut t: PoolStep<'_>) {
    let n = t.x.len();
    // SAFETY: columns lie inside the slices, since the wrapper checked the lengths; features by the
    // module's contract.
    unsafe {
        columns!(S, n, i, pool_columns(&mut t), {
            let score = t.gate[i] + t.bias[i];
            let largest = t.max[i].max(score);
            let (left, weight) = ((t.max[i] - largest).exp(), (score - largest).exp());
            t.max[i] = largest;
            t.sum[i] = t.sum[i] * left + weight;
            t.acc[i] = t.acc[i] * left + weight * t.x[i];
        });
    }
}

#[inline(always)]
unsafe fn pool_columns<S: Simd, const U: usize>(t: &mut PoolStep<'_>, i: usize) {
    for i in (i..i + U * S::LANES).step_by(S::LANES) {
        // SAFETY: `U` vectors from the first column on lie inside of each slice; features by the
        // module's contract.
        unsafe {
            let score = S::add(S::load(t.gate.as_ptr().add(i)), S::load(t.bias.as_ptr().add(i)));
            let (max, sum, acc) =
                (t.max.as_mut_ptr().add(i), t.sum.as_mut_ptr().add(i), t.acc.as_mut_ptr().add(i));
            let before = S::load(max);
            let largest = S::max(before, score);
            let left = exp_negative::<S>(S::sub(before, largest));
            let weight = exp_negative::<S>(S::sub(score, largest));
            S::store(max, largest);
            S::store(sum, S::fma(S::load(sum), left, weight));
            let new = S::mul(weight, S::load(t.x.as_ptr().add(i)));
            S::store(acc, S::fma(S::load(acc), left, new));
        }
    }
}
