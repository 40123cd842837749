//! Cached rows of keys and values: store, score, accumulate, as defined.

use puna_quant::float::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

use super::linear::dot;
use crate::{AttendTile, KV_TILE, KvLayout, KvRows, KvType, RunningSoftmax, ScoreTile, Scratch};

/// The values of one cached row.
fn load_kv(ty: KvType, row: &[u8], x: &mut [f32]) {
    assert!(row.len() >= ty.row_bytes(x.len()));
    match ty {
        KvType::F32 => {
            for (x, b) in x.iter_mut().zip(row.as_chunks::<4>().0) {
                *x = f32::from_le_bytes(*b);
            }
        }
        KvType::F16 => {
            for (x, b) in x.iter_mut().zip(row.as_chunks::<2>().0) {
                *x = f16_to_f32(u16::from_le_bytes(*b));
            }
        }
        KvType::Bf16 => {
            for (x, b) in x.iter_mut().zip(row.as_chunks::<2>().0) {
                *x = bf16_to_f32(u16::from_le_bytes(*b));
            }
        }
        KvType::Q8_0 => {
            for (x, b) in x.as_chunks_mut::<32>().0.iter_mut().zip(row.as_chunks::<34>().0) {
                let d = f16_to_f32(u16::from_le_bytes([b[0], b[1]]));
                for (x, &q) in x.iter_mut().zip(&b[2..]) {
                    *x = f32::from(q as i8) * d;
                }
            }
        }
        KvType::Q4_0 => {
            for (x, b) in x.as_chunks_mut::<32>().0.iter_mut().zip(row.as_chunks::<18>().0) {
                let d = f16_to_f32(u16::from_le_bytes([b[0], b[1]]));
                for (j, &q) in b[2..].iter().enumerate() {
                    x[j] = (f32::from(q & 15) - 8.0) * d;
                    x[j + 16] = (f32::from(q >> 4) - 8.0) * d;
                }
            }
        }
    }
}

/// See [`VectorKernels::store_kv`](crate::VectorKernels). Q8_0 and Q4_0 round as the file formats
/// do.
pub(crate) fn store_kv(ty: KvType, x: &[f32], row: &mut [u8]) {
    assert!(x.len().is_multiple_of(ty.block_values()) && row.len() >= ty.row_bytes(x.len()));
    match ty {
        KvType::F32 => {
            for (x, b) in x.iter().zip(row.as_chunks_mut::<4>().0) {
                *b = x.to_le_bytes();
            }
        }
        KvType::F16 => {
            for (x, b) in x.iter().zip(row.as_chunks_mut::<2>().0) {
                *b = f32_to_f16(*x).to_le_bytes();
            }
        }
        KvType::Bf16 => {
            for (x, b) in x.iter().zip(row.as_chunks_mut::<2>().0) {
                *b = f32_to_bf16(*x).to_le_bytes();
            }
        }
        KvType::Q8_0 => {
            for (x, b) in x.as_chunks::<32>().0.iter().zip(row.as_chunks_mut::<34>().0) {
                store_q8_0(x, b);
            }
        }
        KvType::Q4_0 => {
            for (x, b) in x.as_chunks::<32>().0.iter().zip(row.as_chunks_mut::<18>().0) {
                store_q4_0(x, b);
            }
        }
    }
}

#[inline(always)]
fn store_q8_0(x: &[f32; 32], b: &mut [u8; 34]) {
    let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let d = largest / 127.0;
    let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
    b[..2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
    for (b, x) in b[2..].iter_mut().zip(x) {
        *b = (x * inverse).round() as i8 as u8;
    }
}

#[inline(always)]
fn store_q4_0(x: &[f32; 32], b: &mut [u8; 18]) {
    let extreme = x.iter().fold(0.0f32, |m, &x| if x.abs() > m.abs() { x } else { m });
    let d = extreme / -8.0;
    let inverse = if d != 0.0 { 1.0 / d } else { 0.0 };
    b[..2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
    let code = |x: f32| ((x * inverse + 8.5) as u8).min(15);
    for j in 0..16 {
        b[2 + j] = code(x[j]) | code(x[j + 16]) << 4;
    }
}

/// Reads the values of cached position `i` into `x`, which has [`KvRows::dim`] elements.
pub fn load_position(rows: &KvRows<'_>, i: usize, x: &mut [f32]) {
    match rows.layout {
        KvLayout::Rows => load_kv(rows.ty, &rows.data[i * rows.stride..], x),
        KvLayout::Columns if rows.ty.block_values() > 1 => {
            let values = rows.ty.block_values();
            for (b, x) in x.chunks_exact_mut(values).enumerate() {
                let block = &rows.data[b * rows.stride..];
                let mut row = [0u8; 34];
                let row = &mut row[..rows.ty.row_bytes(values)];
                row[..2].copy_from_slice(&block[2 * i..2 * i + 2]);
                row[2..]
                    .iter_mut()
                    .enumerate()
                    .for_each(|(j, code)| *code = block[(2 + j) * KV_TILE + i]);
                load_kv(rows.ty, row, x);
            }
        }
        KvLayout::Columns => {
            let bytes = rows.ty.row_bytes(1);
            for (d, x) in x.iter_mut().enumerate() {
                load_kv(
                    rows.ty,
                    &rows.data[d * rows.stride + i * bytes..],
                    std::slice::from_mut(x),
                );
            }
        }
    }
}

/// See [`VectorKernels::attend`](crate::VectorKernels).
pub(super) fn attend(tile: &AttendTile<'_>, state: &mut RunningSoftmax<'_>, scratch: &mut Scratch) {
    tile.check(state);
    let (keys, values, g) = (&tile.keys, &tile.values, tile.visible.len());
    let room: &mut [f32] =
        bytemuck::cast_slice_mut(scratch.bytes(4 * (g * KV_TILE + keys.dim.max(values.dim))));
    let (scores, row) = room.split_at_mut(g * KV_TILE);
    for i in 0..keys.rows {
        load_position(keys, i, &mut row[..keys.dim]);
        for (h, q) in q_rows(tile).enumerate() {
            let score = dot(q, &row[..keys.dim]);
            let score = tile.softcap.map_or(score, |cap| cap * (score / cap).tanh());
            let bias =
                tile.alibi.get(h).map_or(0.0, |bias| bias.slope * (i as f32 - bias.from).abs());
            let shift = tile.position_bias.get(h * KV_TILE + i).map_or(0.0, |shift| *shift);
            scores[h * KV_TILE + i] = score - bias + shift;
        }
    }
    for (h, &(from, to)) in tile.visible.iter().enumerate() {
        fold(&mut scores[h * KV_TILE..][..KV_TILE], from, to, h, values.dim, state);
    }
    for i in 0..values.rows {
        load_position(values, i, &mut row[..values.dim]);
        for (h, acc) in state.acc.chunks_exact_mut(values.dim).enumerate() {
            let p = scores[h * KV_TILE + i];
            for (acc, v) in acc.iter_mut().zip(&*row) {
                *acc += p * v;
            }
        }
    }
}

/// See [`VectorKernels::score`](crate::VectorKernels).
pub(super) fn score(tile: &ScoreTile<'_>, sums: &mut [f32], scratch: &mut Scratch) {
    tile.check(sums);
    let dim = tile.keys.dim;
    let row: &mut [f32] = bytemuck::cast_slice_mut(scratch.bytes(4 * dim));
    for i in 0..tile.keys.rows {
        load_position(&tile.keys, i, row);
        for (sum, q) in tile.q.chunks_exact(tile.heads_per_sum * dim).enumerate() {
            let product = |(h, q)| {
                let product = dot(q, row);
                let product = if tile.relu { product.max(0.0) } else { product };
                product * tile.weights.get(sum * tile.heads_per_sum + h).copied().unwrap_or(1.0)
            };
            sums[sum * KV_TILE + i] =
                q.chunks_exact(dim).enumerate().map(product).fold(0.0, |sum, x| sum + x);
        }
    }
}

fn q_rows<'a>(tile: &AttendTile<'a>) -> std::slice::ChunksExact<'a, f32> {
    tile.q.chunks_exact(tile.keys.dim)
}

/// Takes the scores `from .. to` of row `h` into its running softmax; they become probabilities,
/// the others 0.
fn fold(
    scores: &mut [f32],
    from: usize,
    to: usize,
    h: usize,
    dim: usize,
    state: &mut RunningSoftmax<'_>,
) {
    scores[..from].fill(0.0);
    scores[to.max(from)..].fill(0.0);
    if from >= to {
        return;
    }
    let seen = &mut scores[from..to];
    let largest = seen.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if largest == f32::NEG_INFINITY {
        return seen.fill(0.0);
    }
    if largest > state.max[h] {
        let shrink = (state.max[h] - largest).exp();
        state.sum[h] *= shrink;
        state.acc[h * dim..][..dim].iter_mut().for_each(|a| *a *= shrink);
        state.max[h] = largest;
    }
    for x in seen {
        *x = (*x - state.max[h]).exp();
        state.sum[h] += *x;
    }
}
