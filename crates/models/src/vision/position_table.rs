//! Learned positions of patches, made for a picture's size.

use super::patches::{ClassToken, NormalizedPicture, PatchLayout};
use crate::error::ModelError;
use crate::weights::Weights;

/// How a table of n × n positions becomes one of another size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resize {
    /// Pictures have the size of the table.
    Never,
    /// Bilinear; the corners of both tables coincide (`align_corners`).
    BilinearCorners,
}

/// A table `[columns, class + n · n]`.
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
        const NAME: &str = "v.position_embd.weight";
        let count = w.rows(NAME).ok_or_else(|| ModelError::MissingTensor { name: NAME.into() })?;
        let mut rows = w.numbers(NAME, count * cols)?.unwrap_or_default();
        let class = match layout.class {
            ClassToken::None => None,
            ClassToken::First => {
                let class = w
                    .numbers("v.class_embd", cols)?
                    .ok_or_else(|| ModelError::MissingTensor { name: "v.class_embd".into() })?;
                let position: Vec<f32> = rows.drain(..cols.min(rows.len())).collect();
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

    /// Sets what the patch embedding adds to each row but must not add to the class token.
    pub fn without_class_bias(mut self, bias: &[f32]) -> Self {
        if let Some(class) = &mut self.class {
            class.iter_mut().zip(bias).for_each(|(class, bias)| *class -= bias);
        }
        self
    }

    /// Appends a row for each patch of a picture, in the order of the layout.
    pub fn add_rows(
        &self,
        layout: &PatchLayout,
        picture: &NormalizedPicture<'_>,
        to: &mut Vec<f32>,
    ) {
        to.extend(self.class.iter().flatten());
        let grid = [picture.height, picture.width].map(|side| side / layout.patch);
        let tokens = grid.map(|side| side / layout.merge);
        for [y, x] in layout.order(tokens) {
            if grid == [self.side; 2] || self.resize == Resize::Never {
                to.extend_from_slice(self.row(y.min(self.side - 1), x.min(self.side - 1)));
                continue;
            }
            let [(top, down), (left, right)] =
                [(y, grid[0]), (x, grid[1])].map(|(at, of)| self.neighbours(at, of));
            for column in 0..self.cols {
                let at = |y: usize, x: usize| self.row(y, x)[column];
                let line = |y: usize| at(y, left) * (1.0 - right.1) + at(y, right.0) * right.1;
                to.push(line(top) * (1.0 - down.1) + line(down.0) * down.1);
            }
        }
    }

    fn row(&self, y: usize, x: usize) -> &[f32] {
        &self.rows[(y * self.side + x) * self.cols..][..self.cols]
    }

    /// Position in the table of patch `at` of `of`: the position before it, and the next one with
    /// its weight.
    fn neighbours(&self, at: usize, of: usize) -> (usize, (usize, f32)) {
        let last = (self.side - 1) as f32;
        let exact = if of > 1 { at as f32 * (last / (of - 1) as f32) } else { 0.0 };
        let before = (exact as usize).min(self.side - 1);
        (before, ((before + 1).min(self.side - 1), exact - before as f32))
    }
}
