//! Patches of pictures as the rows of a step.
//!
//! The patches of one token follow each other, so that operations on consecutive rows merge them:
//!
//! ```text
//! picture of 4 × 4 patches, 2 × 2 patches a token       rows
//!      0  1 |  4  5
//!      2  3 |  6  7                                     0 1 2 3 | 4 5 6 7 | 8 9 10 11 | 12 …
//!     ------+------
//!      8  9 | 12 13
//!     10 11 | 14 15
//! ```
//!
//! With attention within windows, the tokens of a window follow each other, and windows follow each
//! other row by row. The windows at the right and at the bottom may be smaller.
//!
//! A patch is a row of its pixels: planes red, green and blue, each from the top line down.

use std::ops::Range;

use puna_graph::{RowWindow, Segment, StepInput};

use crate::error::ModelError;
use crate::hparams::Keys;

/// Colour planes of a picture.
const PLANES: usize = 3;
/// Largest side of a patch in pixels, and largest number of patches in a side of a token.
const MAX_SIDE: usize = 1 << 12;

/// A picture with normalized pixels.
#[derive(Debug, Clone, Copy)]
pub struct NormalizedPicture<'a> {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// Planes red, green and blue, each `[height, width]`.
    pub planes: &'a [f32],
}

/// A picture that does not fit the tower.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TowerInputError {
    /// The size is no multiple of the size of a token.
    #[error(
        "a picture of {width}×{height} pixels: the model needs sides that are multiples of {multiple}"
    )]
    Size {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// Pixels of a side of a token.
        multiple: usize,
    },
    /// The tower takes pictures of one size.
    #[error("a picture of {width}×{height} pixels: the model needs {side}×{side}")]
    FixedSize {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// Width and height that the tower takes.
        side: usize,
    },
    /// A side has more patches than the tower has positions for.
    #[error("a picture of {width}×{height} pixels: the model takes sides of at most {side}")]
    TooLarge {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// Largest width and height.
        side: usize,
    },
    /// The number of pixels is not that of the size.
    #[error("a picture of {width}×{height} pixels has {found} values")]
    Pixels {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// Values of all planes.
        found: usize,
    },
}

/// Row of a learned vector that is no part of the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClassToken {
    None,
    /// In front of the patches.
    First,
    /// Behind the patches, which count their rows and columns from 1 then.
    Last,
}

/// Order of the patches of a picture in a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct PatchLayout {
    /// Pixels of a side of a patch.
    pub patch: usize,
    /// Patches of a side of a token.
    pub merge: usize,
    pub class: ClassToken,
    /// Tokens of a side of a window, if the tower has attention within windows.
    pub window: Option<usize>,
    /// Whether the tower takes pixels from -1 to 1, of pictures with pixels from 0 to 1.
    pub has_signed_pixels: bool,
    /// Patches of a side of a block that becomes one row in the middle of the tower; 1 without.
    pub inner_merge: usize,
    /// Rows of learned queries behind the patches. They are the output rows, and all rows see the
    /// patches only.
    pub queries: usize,
}

/// Rows and columns of the tokens of a window.
type Window = [Range<usize>; 2];

impl PatchLayout {
    /// Reads the size of a patch from the file.
    pub fn new(keys: &Keys<'_>, merge: usize, class: ClassToken) -> Result<Self, ModelError> {
        let patch = keys.count("vision.patch_size")?;
        for (key, side) in [("vision.patch_size", patch), ("vision.spatial_merge_size", merge)] {
            if !(1..=MAX_SIDE).contains(&side) {
                let (key, value) = (keys.name(key), side.to_string());
                return Err(ModelError::KeyValue { key, value, reason: "it must be 1 to 4096" });
            }
        }
        let (window, has_signed_pixels, inner_merge, queries) = (None, false, 1, 0);
        Ok(Self { patch, merge, class, window, has_signed_pixels, inner_merge, queries })
    }

    /// Values of a patch.
    pub fn patch_values(&self) -> usize {
        PLANES * self.patch * self.patch
    }

    /// Patches of a token.
    pub fn patches_per_token(&self) -> usize {
        self.merge * self.merge
    }

    /// Rows and columns of tokens of a picture.
    pub fn tokens(&self, width: usize, height: usize) -> Result<[usize; 2], TowerInputError> {
        let multiple = self.patch * self.merge;
        let fits = |side: usize| side > 0 && side.is_multiple_of(multiple);
        match fits(width) && fits(height) {
            true => Ok([height / multiple, width / multiple]),
            false => Err(TowerInputError::Size { width, height, multiple }),
        }
    }

    /// The same layout with windows of this many tokens a side.
    pub fn with_windows(self, side: usize) -> Self {
        Self { window: Some(side.max(1)), ..self }
    }

    /// The windows of a picture of `rows` × `columns` tokens; one window without attention within
    /// windows.
    fn windows(&self, [rows, columns]: [usize; 2]) -> impl Iterator<Item = Window> + use<> {
        let side = self.window.unwrap_or(rows.max(columns).max(1));
        let part = move |first: usize, all: usize| first..all.min(first + side);
        let down = (0..rows).step_by(side).map(move |y| part(y, rows));
        down.flat_map(move |down| {
            (0..columns).step_by(side).map(move |x| [down.clone(), part(x, columns)])
        })
    }

    /// Row and column of each token of a picture in the order of the step.
    pub fn token_order(&self, size: [usize; 2]) -> impl Iterator<Item = [usize; 2]> + use<> {
        self.windows(size)
            .flat_map(|[down, across]| down.flat_map(move |y| across.clone().map(move |x| [y, x])))
    }

    /// Row and column of each patch of a picture in the order of the step, for a picture of
    /// `rows` × `columns` tokens.
    pub fn order(&self, size: [usize; 2]) -> impl Iterator<Item = [usize; 2]> + use<> {
        let (merge, inner) = (self.merge, self.inner_merge);
        let square = |n: usize| (0..n).flat_map(move |y| (0..n).map(move |x| [y, x]));
        self.token_order(size).flat_map(move |[y, x]| {
            square(merge / inner).flat_map(move |[by, bx]| {
                let (y, x) = (y * merge + by * inner, x * merge + bx * inner);
                square(inner).map(move |[dy, dx]| [y + dy, x + dx])
            })
        })
    }

    /// Adds a picture to a step: patches, positions, a segment, and the last patch of each token as
    /// an output row.
    pub fn add(
        &self,
        picture: &NormalizedPicture<'_>,
        input: &mut StepInput,
    ) -> Result<(), TowerInputError> {
        let NormalizedPicture { width, height, planes } = *picture;
        let tokens = self.tokens(width, height)?;
        if planes.len() != PLANES * width * height {
            return Err(TowerInputError::Pixels { width, height, found: planes.len() });
        }
        let first_row = input.tokens.len();
        if self.class == ClassToken::First {
            self.add_class(input, first_row);
        }
        let start = input.tokens.len();
        let offset = usize::from(self.class == ClassToken::Last);
        for at in self.order(tokens) {
            add_row(input, first_row, at.map(|at| at + offset));
            self.add_patch(picture, at, &mut input.inputs[0]);
        }
        let merged = self.rows_per_output();
        let ends = (start + merged - 1..input.tokens.len()).step_by(merged);
        match self.queries {
            0 => input.outputs.extend(ends.map(|row| row as u32)),
            count => self.add_queries(count, input, first_row),
        }
        if self.class == ClassToken::Last {
            self.add_class(input, first_row);
        }
        let rows = input.tokens.len() - first_row;
        let row_windows = self.row_windows(tokens);
        input.segments.push(Segment { first_row, rows, row_windows, ..Segment::default() });
        Ok(())
    }

    /// Adds rows without pixels for queries.
    fn add_queries(&self, count: usize, input: &mut StepInput, first_row: usize) {
        for _ in 0..count {
            input.outputs.push(input.tokens.len() as u32);
            add_row(input, first_row, [0; 2]);
        }
        input.inputs[0].extend(std::iter::repeat_n(0.0, count * self.patch_values()));
    }

    /// Number of rows that become one output row.
    fn rows_per_output(&self) -> usize {
        match self.inner_merge {
            1 => self.patches_per_token(),
            side => side * side,
        }
    }

    /// Rows of each window of a picture; none without attention within windows.
    fn row_windows(&self, tokens: [usize; 2]) -> Vec<RowWindow> {
        let patches = tokens[0] * tokens[1] * self.patches_per_token();
        if self.queries > 0 {
            return vec![RowWindow { rows: 0..patches + self.queries, sees: 0..patches }];
        }
        if self.inner_merge > 1 {
            let side = self.rows_per_output();
            let blocks = (0..patches).step_by(side).map(|first| first..first + side);
            return blocks.map(|rows| RowWindow { sees: rows.clone(), rows }).collect();
        }
        let mut end = 0;
        let windows = self.windows(tokens).filter(|_| self.window.is_some());
        let rows = windows.map(|[down, across]| {
            let start = end;
            end += down.len() * across.len() * self.patches_per_token();
            start..end
        });
        rows.map(|rows| RowWindow { sees: rows.clone(), rows }).collect()
    }

    /// Adds the row of the class token, which has no pixels.
    fn add_class(&self, input: &mut StepInput, first_row: usize) {
        add_row(input, first_row, [0; 2]);
        input.inputs[0].extend(std::iter::repeat_n(0.0, self.patch_values()));
    }

    fn add_patch(
        &self,
        picture: &NormalizedPicture<'_>,
        [row, column]: [usize; 2],
        to: &mut Vec<f32>,
    ) {
        let side = self.patch;
        for plane in picture.planes.chunks_exact(picture.width * picture.height) {
            for line in row * side..(row + 1) * side {
                let start = line * picture.width + column * side;
                let pixels = &plane[start..start + side];
                match self.has_signed_pixels {
                    true => to.extend(pixels.iter().map(|pixel| 2.0 * (pixel - 0.5))),
                    false => to.extend_from_slice(pixels),
                }
            }
        }
    }
}

/// The input of the second graph of a tower, for pictures of `counts` rows with the values `rows`.
/// Groups of `merged` rows become one row.
pub(super) fn merged_input(counts: &[usize], merged: usize, rows: &[f32]) -> StepInput {
    let mut input = StepInput { inputs: vec![rows.to_vec()], ..StepInput::default() };
    for &rows in counts {
        let first_row = input.tokens.len();
        (0..rows).for_each(|_| add_row(&mut input, first_row, [0; 2]));
        let ends = (first_row + merged - 1..input.tokens.len()).step_by(merged);
        input.outputs.extend(ends.map(|row| row as u32));
        input.segments.push(Segment { first_row, rows, ..Segment::default() });
    }
    input
}

/// Adds a row of the segment from `first_row` on, for the patch in this row and column.
fn add_row(input: &mut StepInput, first_row: usize, [y, x]: [usize; 2]) {
    input.positions.push((input.tokens.len() - first_row) as u32);
    input.tokens.push(0);
    input.axis_positions.push([0, y as u32, x as u32]);
}
