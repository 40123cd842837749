//! Learned positions of patches, made for a picture's size.

use super::patches::{ClassToken, NormalizedPicture, PatchLayout, TowerInputError};
use crate::error::ModelError;
use crate::weights::Weights;

/// How a table of n × n positions becomes one of another size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resize {
    /// Pictures have the size of the table.
    Never,
    /// Bilinear; the edges of both tables coincide.
    Bilinear,
    /// Bilinear; the corners of both tables coincide (`align_corners`).
    BilinearCorners,
    /// Bicubic with a = −0.75; the edges of both tables coincide, and the table continues beyond
    /// its edges with its outer values (`grid_sample`).
    Bicubic,
    /// Bilinear; the edges of both tables coincide, and positions of a smaller table are means over
    /// all positions that they cover (`antialias`).
    Antialiased,
    /// The nearest position before, of as many positions as the table has in a side.
    Buckets,
    /// A table of columns and a table of rows, which do not change; a patch has the sum of both.
    SumOfAxes,
}

/// Tensor of the positions.
const NAME: &str = "v.position_embd.weight";
/// Parameter of bicubic interpolation, that of PyTorch.
const CUBIC: f32 = -0.75;

/// A table `[columns, class + n · n]`, or two tables `[columns, n]`.
#[derive(Debug, Clone)]
pub(super) struct PositionTable {
    rows: Vec<f32>,
    cols: usize,
    /// Positions of a side.
    side: usize,
    resize: Resize,
    /// Row of the class token, with its position.
    class: Option<Vec<f32>>,
}

impl PositionTable {
    /// Reads `v.position_embd.weight` and, if the layout has a class token, `v.class_embd`.
    pub fn load(
        w: &Weights<'_>,
        cols: usize,
        layout: &PatchLayout,
        resize: Resize,
    ) -> Result<Self, ModelError> {
        let count = w.rows(NAME).ok_or_else(|| ModelError::MissingTensor { name: NAME.into() })?;
        let mut rows = w.numbers(NAME, count * cols)?.unwrap_or_default();
        let class = match layout.class {
            ClassToken::None => None,
            ClassToken::First | ClassToken::Last => {
                let class = w
                    .numbers("v.class_embd", cols)?
                    .ok_or_else(|| ModelError::MissingTensor { name: "v.class_embd".into() })?;
                let position: Vec<f32> = match layout.class {
                    ClassToken::Last => rows.split_off(rows.len().saturating_sub(cols)),
                    _ => rows.drain(..cols.min(rows.len())).collect(),
                };
                Some(class.iter().zip(position).map(|(class, at)| class + at).collect())
            }
        };
        let positions = rows.len() / cols.max(1);
        let side = positions.isqrt();
        if side == 0 || side * side != positions {
            return Err(ModelError::TensorShape {
                name: NAME.into(),
                found: vec![cols, count],
                expected: vec![cols, side * side + usize::from(class.is_some())],
            });
        }
        Ok(Self { rows, cols, side, resize, class })
    }

    /// Reads `v.position_embd.weight`, `[cols, n, 2]`: a table of the columns of a picture and a
    /// table of its rows.
    pub fn load_axes(w: &Weights<'_>, cols: usize) -> Result<Self, ModelError> {
        let side = w.rows_of(NAME)?;
        let missing = || ModelError::MissingTensor { name: NAME.into() };
        let rows = w.numbers(NAME, 2 * side * cols)?.ok_or_else(missing)?;
        Ok(Self { rows, cols, side, resize: Resize::SumOfAxes, class: None })
    }

    /// Sets what the patch embedding adds to each row but must not add to the class token.
    pub fn without_class_bias(mut self, bias: &[f32]) -> Self {
        if let Some(class) = &mut self.class {
            class.iter_mut().zip(bias).for_each(|(class, bias)| *class -= bias);
        }
        self
    }

    /// Appends a row for each patch of a picture, in the order of the layout.
    ///
    /// # Errors
    /// [`TowerInputError::FixedSize`].
    pub fn add_rows(
        &self,
        layout: &PatchLayout,
        picture: &NormalizedPicture<'_>,
        to: &mut Vec<f32>,
    ) -> Result<(), TowerInputError> {
        let grid = [picture.height, picture.width].map(|side| side / layout.patch);
        let has_table_size = grid == [self.side; 2];
        if self.resize == Resize::Never && !has_table_size {
            let NormalizedPicture { width, height, .. } = *picture;
            return Err(TowerInputError::FixedSize {
                width,
                height,
                side: self.side * layout.patch,
            });
        }
        if self.resize == Resize::SumOfAxes {
            return self.add_sums(layout, picture, to);
        }
        if layout.class == ClassToken::First {
            to.extend(self.class.iter().flatten());
        }
        let tokens = grid.map(|side| side / layout.merge);
        for [y, x] in layout.order(tokens) {
            if has_table_size {
                to.extend_from_slice(self.row(y, x));
                continue;
            }
            let [down, across] = [(y, grid[0]), (x, grid[1])].map(|(at, of)| self.taps(at, of));
            let start = to.len();
            to.resize(start + self.cols, 0.0);
            for (row, weight) in &down {
                for (column, factor) in &across {
                    let weight = weight * factor;
                    let sums = to[start..].iter_mut().zip(self.row(*row, *column));
                    sums.for_each(|(sum, x)| *sum += weight * x);
                }
            }
        }
        if layout.class == ClassToken::Last {
            to.extend(self.class.iter().flatten());
        }
        to.extend(std::iter::repeat_n(0.0, layout.queries * self.cols));
        Ok(())
    }

    /// Appends the sums of both tables for each patch.
    fn add_sums(
        &self,
        layout: &PatchLayout,
        picture: &NormalizedPicture<'_>,
        to: &mut Vec<f32>,
    ) -> Result<(), TowerInputError> {
        let NormalizedPicture { width, height, .. } = *picture;
        if width.max(height) > self.side * layout.patch {
            let side = self.side * layout.patch;
            return Err(TowerInputError::TooLarge { width, height, side });
        }
        let (by_column, by_row) = self.rows.split_at(self.side * self.cols);
        for [y, x] in layout.order(layout.tokens(width, height)?) {
            let pairs = by_column[x * self.cols..].iter().zip(&by_row[y * self.cols..]);
            to.extend(pairs.take(self.cols).map(|(a, b)| a + b));
        }
        Ok(())
    }

    fn row(&self, y: usize, x: usize) -> &[f32] {
        &self.rows[(y * self.side + x) * self.cols..][..self.cols]
    }

    /// Positions under the triangle around the center of patch `at` of `of`. The triangle is as
    /// wide as two patches, and at least as two positions.
    fn covered(&self, at: usize, of: usize) -> Vec<(usize, f32)> {
        let scale = self.side as f32 / of as f32;
        let width = scale.max(1.0);
        let center = (at as f32 + 0.5) * scale;
        let first = (center - width + 0.5).max(0.0) as usize;
        let end = ((center + width + 0.5) as usize).min(self.side);
        let weight = |i: usize| (1.0 - ((i as f32 - center + 0.5) / width).abs()).max(0.0);
        let sum: f32 = (first..end).map(weight).sum();
        (first..end).map(|i| (i, weight(i) / sum)).collect()
    }

    /// Positions of the table that patch `at` of `of` is made of, with their weights.
    fn taps(&self, at: usize, of: usize) -> Vec<(usize, f32)> {
        let last = self.side - 1;
        if self.resize == Resize::Buckets {
            let place = at as f32 / of as f32;
            let starts = (1..self.side).map(|i| (i as f64 / self.side as f64) as f32);
            return vec![(starts.take_while(|start| *start <= place).count(), 1.0)];
        }
        if self.resize == Resize::Antialiased {
            return self.covered(at, of);
        }
        let exact = match self.resize {
            Resize::Bilinear | Resize::Bicubic => {
                (at as f32 + 0.5) / of as f32 * self.side as f32 - 0.5
            }
            _ if of > 1 => at as f32 * (last as f32 / (of - 1) as f32),
            _ => 0.0,
        };
        let (before, t) = (exact.floor(), exact - exact.floor());
        let inside = |offset: f32| (before + offset).clamp(0.0, last as f32) as usize;
        match self.resize {
            Resize::Bicubic => {
                [-1.0, 0.0, 1.0, 2.0].map(|o| (inside(o), cubic_weight((t - o).abs()))).into()
            }
            _ => vec![(inside(0.0), 1.0 - t), (inside(1.0), t)],
        }
    }
}

/// Weight of a value at this distance (Keys, 1981).
fn cubic_weight(distance: f32) -> f32 {
    let (a, d) = (CUBIC, distance);
    match d {
        0.0..=1.0 => ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0,
        1.0..=2.0 => ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taps(side: usize, resize: Resize, at: usize, of: usize) -> Vec<(usize, f32)> {
        let table = PositionTable { rows: Vec::new(), cols: 1, side, resize, class: None };
        table.taps(at, of)
    }

    #[test]
    fn positions_of_a_smaller_table_are_means_over_what_they_cover() {
        // The weights of PyTorch's `antialias`.
        let [full, part] = [0.75, 0.25].map(|weight| weight / 1.75);
        let first = taps(6, Resize::Antialiased, 0, 3);
        assert_eq!(first, [(0, full), (1, full), (2, part)]);
        for (side, of) in [(6, 3), (27, 2), (8, 18), (5, 5), (1, 4)] {
            for at in 0..of {
                let all = taps(side, Resize::Antialiased, at, of);
                let sum: f32 = all.iter().map(|(_, weight)| weight).sum();
                assert!((sum - 1.0).abs() < 1e-6, "{side} {of} {at}");
                assert!(all.iter().all(|(position, _)| *position < side), "{side} {of} {at}");
            }
        }
    }

    #[test]
    fn larger_tables_interpolate_between_two_positions() {
        for resize in [Resize::Bilinear, Resize::Antialiased] {
            let near = taps(2, resize, 1, 4);
            assert_eq!(near, [(0, 0.75), (1, 0.25)], "{resize:?}");
        }
        assert_eq!(taps(3, Resize::BilinearCorners, 1, 5), [(0, 0.5), (1, 0.5)]);
    }

    #[test]
    fn buckets_take_the_position_at_or_before_a_patch() {
        let bucket = |at, of| taps(70, Resize::Buckets, at, of)[0].0;
        assert_eq!([0, 1, 4].map(|at| bucket(at, 5)), [0, 14, 56]);
        assert_eq!([bucket(69, 70), bucket(3, 7), bucket(99, 100)], [69, 30, 69]);
    }
}
