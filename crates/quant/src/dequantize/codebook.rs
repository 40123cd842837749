//! Types with codes that index a table: of single values (IQ4), or of rows of four or eight values
//! (IQ1, IQ2, IQ3).

use super::legacy::nibbles;
use super::{f16_field, for_each_block};
use crate::layout::*;
use crate::tables::*;

pub(super) fn iq4_nl(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockIQ4_NL, 32>(src, dst, |b, y| {
        let d = f16_field(b.d);
        for (y, q) in y.iter_mut().zip(nibbles(&b.qs)) {
            *y = d * f32::from(IQ4NL_VALUES[usize::from(q)]);
        }
    });
}

pub(super) fn iq4_xs(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockIQ4_XS, 256>(src, dst, |b, y| {
        let (d, high) = (f16_field(b.d), u16::from_le_bytes(b.scales_h));
        for (g, (y, qs)) in y.as_chunks_mut::<32>().0.iter_mut().zip(b.qs.as_chunks().0).enumerate()
        {
            let scale = nibble(&b.scales_l, g) | ((high >> (2 * g) & 3) as u8) << 4;
            let dl = d * f32::from(scale as i8 - 32);
            for (y, q) in y.iter_mut().zip(nibbles(qs)) {
                *y = dl * f32::from(IQ4NL_VALUES[usize::from(q)]);
            }
        }
    });
}

pub(super) fn iq2_xxs(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockIQ2_XXS, 256>(src, dst, |b, y| {
        let d = f16_field(b.d);
        for (group, y) in b.qs.iter().zip(y.as_chunks_mut::<32>().0) {
            let [i0, i1, i2, i3, w @ ..] = *group;
            let word = u32::from_le_bytes(w);
            let db = d * (0.5 + (word >> 28) as f32) * 0.25;
            for (l, (index, y)) in [i0, i1, i2, i3].into_iter().zip(y.as_chunks_mut().0).enumerate()
            {
                signed(db, IQ2XXS_GRID[usize::from(index)].to_le_bytes(), sign_index(word, l), y);
            }
        }
    });
}

pub(super) fn iq2_xs(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockIQ2_XS, 256>(src, dst, |b, y| {
        let d = f16_field(b.d);
        for (g, (code, y)) in b.qs.iter().zip(y.as_chunks_mut().0).enumerate() {
            let code = u16::from_le_bytes(*code);
            let db = d * (0.5 + f32::from(nibble(&b.scales, g / 2))) * 0.25;
            let row = IQ2XS_GRID[usize::from(code & 511)].to_le_bytes();
            signed(db, row, SIGNS[usize::from(code >> 9)], y);
        }
    });
}

pub(super) fn iq2_s(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockIQ2_S, 256>(src, dst, |b, y| {
        let d = f16_field(b.d);
        for (g, y) in y.as_chunks_mut().0.iter_mut().enumerate() {
            let index = usize::from(b.qs[g]) | usize::from(b.qh[g / 4] >> (g % 4 * 2) & 3) << 8;
            let db = d * (0.5 + f32::from(nibble(&b.scales, g / 2))) * 0.25;
            signed(db, IQ2S_GRID[index].to_le_bytes(), b.signs[g], y);
        }
    });
}

pub(super) fn iq3_xxs(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockIQ3_XXS, 256>(src, dst, |b, y| {
        let d = f16_field(b.d);
        for (g, y) in y.as_chunks_mut().0.iter_mut().enumerate() {
            let word = u32::from_le_bytes(b.sas[g / 4]);
            let db = d * (0.5 + (word >> 28) as f32) * 0.5;
            let row = two_rows([b.qs[2 * g], b.qs[2 * g + 1]].map(|i| IQ3XXS_GRID[usize::from(i)]));
            signed(db, row, sign_index(word, g % 4), y);
        }
    });
}

pub(super) fn iq3_s(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockIQ3_S, 256>(src, dst, |b, y| {
        let d = f16_field(b.d);
        for (g, y) in y.as_chunks_mut().0.iter_mut().enumerate() {
            let db = d * f32::from(1 + 2 * nibble(&b.scales, g / 4));
            let high = b.qh[g / 4];
            let row = two_rows([0, 1].map(|k| {
                let ninth = usize::from(high >> (g % 4 * 2 + k) & 1) << 8;
                IQ3S_GRID[usize::from(b.qs[2 * g + k]) | ninth]
            }));
            signed(db, row, b.signs[g], y);
        }
    });
}

pub(super) fn iq1_s(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockIQ1_S, 256>(src, dst, |b, y| {
        let d = f16_field(b.d);
        for (g, y) in y.as_chunks_mut().0.iter_mut().enumerate() {
            let high = u16::from_le_bytes(b.qh[g / 4]);
            let dl = d * f32::from(2 * (high >> 12 & 7) + 1);
            let index = usize::from(b.qs[g]) | usize::from(high >> (3 * (g % 4)) & 7) << 8;
            shifted(dl, index, high & 0x8000 != 0, y);
        }
    });
}

pub(super) fn iq1_m(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockIQ1_M, 256>(src, dst, |b, y| {
        let d = f16_field(b.d());
        for (g, y) in y.as_chunks_mut().0.iter_mut().enumerate() {
            let scales = u16::from_le_bytes(b.scales[g / 8]);
            let dl = d * f32::from(2 * (scales >> (3 * (g / 2 % 4)) & 7) + 1);
            let high = nibble(&b.qh, g);
            let index = usize::from(b.qs[g]) | usize::from(high & 7) << 8;
            shifted(dl, index, high & 8 != 0, y);
        }
    });
}

/// Nibble `i` of `bytes`, low nibble of a byte first.
#[inline(always)]
fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 2] >> (i % 2 * 4) & 15
}

/// Sign byte of group `l` of 8 values, from a word of four 7-bit sign indices.
#[inline(always)]
fn sign_index(word: u32, l: usize) -> u8 {
    SIGNS[(word >> (7 * l)) as usize & 127]
}

#[inline(always)]
fn two_rows([a, b]: [u32; 2]) -> [u8; 8] {
    (u64::from(a) | u64::from(b) << 32).to_le_bytes()
}

/// Writes the magnitudes times `d`, negated where the sign byte has a set bit.
#[inline(always)]
fn signed(d: f32, row: [u8; 8], signs: u8, y: &mut [f32; 8]) {
    for j in 0..8 {
        let sign = (u32::from(signs) >> j & 1) << 31;
        y[j] = f32::from_bits((d * f32::from(row[j])).to_bits() ^ sign);
    }
}

/// Writes a ternary row, shifted down or up by 1/8, times `d`.
#[inline(always)]
fn shifted(d: f32, index: usize, down: bool, y: &mut [f32; 8]) {
    let delta = if down { -0.125 } else { 0.125 };
    let row = IQ1S_GRID[index].to_le_bytes();
    for j in 0..8 {
        y[j] = d * (f32::from(row[j] as i8) + delta);
    }
}
