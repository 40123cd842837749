//! Rotary embeddings.

use super::problem::{Placement, Problem};
use super::schedule::Schedule;
use super::{Case, Tolerance};
use crate::backend::AXES;
use crate::values::{Rope, RopeKind};

/// A rotary embedding of one shape.
#[derive(Debug, Clone, Copy)]
struct RopeShape {
    kind: RopeKind,
    rows: usize,
    heads: usize,
    head_dim: usize,
    /// First rotated dimension of a head.
    start: usize,
    /// Rotated pairs of a head.
    pairs: usize,
    first_position: usize,
    magnitude: f32,
    /// Positions that are subtracted from a token's own.
    position_offset: u32,
    is_inverse: bool,
    /// Whether pairs rotate by positions on several axes.
    has_axes: bool,
    placement: Placement,
}

/// Rotary embeddings of whole heads and of parts of heads, near and far.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [RopeKind::Norm, RopeKind::Neox] {
        let base = RopeShape {
            kind,
            rows: 9,
            heads: 3,
            head_dim: 64,
            start: 0,
            pairs: 32,
            first_position: 0,
            magnitude: 1.0,
            position_offset: 0,
            is_inverse: false,
            has_axes: false,
            placement: Placement::Whole,
        };
        let shapes = [
            base,
            RopeShape { rows: 1, first_position: 17, ..base },
            RopeShape { rows: 70, heads: 1, head_dim: 128, pairs: 64, ..base },
            RopeShape { head_dim: 80, pairs: 10, ..base },
            RopeShape { head_dim: 96, start: 64, pairs: 16, ..base },
            RopeShape { head_dim: 31, start: 1, pairs: 15, ..base },
            RopeShape { first_position: 100_000, ..base },
            RopeShape { magnitude: 1.19, ..base },
            RopeShape { position_offset: 4, ..base },
            RopeShape { is_inverse: true, magnitude: 0.8, first_position: 50, ..base },
            RopeShape { has_axes: true, rows: 30, ..base },
            RopeShape { has_axes: true, position_offset: 2, start: 8, pairs: 20, ..base },
        ];
        cases.extend(shapes.into_iter().flat_map(|shape| {
            Placement::ALL.map(|placement| case(RopeShape { placement, ..shape }))
        }));
    }
    cases
}

fn case(shape: RopeShape) -> Case {
    let RopeShape { kind, rows, heads, head_dim, start, pairs, first_position, .. } = shape;
    let RopeShape { magnitude, position_offset, is_inverse, has_axes, placement, .. } = shape;
    let kind_name = if kind == RopeKind::Norm { "norm" } else { "neox" };
    let name = format!(
        "rope kind={kind_name} rows={rows} heads={heads} head_dim={head_dim} start={start} \
         pairs={pairs} first_position={first_position} magnitude={magnitude} behind={position_offset} \
         inverse={is_inverse} axes={has_axes} input={}",
        placement.name()
    );
    Case::new(name, Tolerance::F32, move || {
        let mut p = Problem::new(Schedule::one_step(rows).with_first_position(first_position));
        let frequency = |pair: usize| 10_000f32.powf(-(pair as f32) / pairs as f32);
        let frequencies: Vec<f32> = (0..pairs).map(frequency).collect();
        // The axes alternate, with one pair in five on the first one.
        let axis = |pair: usize| if pair.is_multiple_of(5) { 0 } else { 1 + (pair % 2) as u8 };
        let axes = if has_axes { (0..pairs).map(axis).collect() } else { Vec::new() };
        let rope = Rope { kind, frequencies, magnitude, axes, position_offset, is_inverse };
        if has_axes {
            p.axis_positions = Some(axis_positions);
        }
        let table = p.rope(rope.clone());
        let x = p.input_in(placement, heads * head_dim, |x| x);
        let out = p.graph.rope_from("out", x.id, (head_dim, start), table);
        p.expect(out, |span| {
            let row = |i: usize| {
                let position = span.first_position + i;
                rotated_row(&rope, position, (head_dim, start), x.row(span.tokens[i]))
            };
            span.indices().map(row).collect()
        });
        p
    })
}

/// Positions of a row on the axes: as in a picture with seven columns.
fn axis_positions(position: u32) -> [u32; AXES] {
    [position / 3, position / 7, position % 7]
}

/// A row whose heads are rotated for a position.
fn rotated_row(
    rope: &Rope,
    position: usize,
    (head_dim, start): (usize, usize),
    row: &[f32],
) -> Vec<f64> {
    let pairs = rope.frequencies.len();
    let magnitude = f64::from(rope.magnitude);
    let direction = if rope.is_inverse { -1.0 } else { 1.0 };
    let mut out: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
    for head in out.chunks_exact_mut(head_dim) {
        for (pair, &frequency) in rope.frequencies.iter().enumerate() {
            let [a, b] = match rope.kind {
                RopeKind::Norm => [start + 2 * pair, start + 2 * pair + 1],
                RopeKind::Neox => [start + pair, start + pairs + pair],
            };
            let position = match rope.axes.get(pair) {
                Some(&axis) => axis_positions(position as u32)[usize::from(axis)],
                None => position as u32,
            };
            let position = f64::from(position.saturating_sub(rope.position_offset));
            let (sin, cos) = (direction * position * f64::from(frequency)).sin_cos();
            (head[a], head[b]) = (
                magnitude * (head[a] * cos - head[b] * sin),
                magnitude * (head[a] * sin + head[b] * cos),
            );
        }
    }
    out
}
