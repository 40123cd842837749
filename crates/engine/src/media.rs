//! Media in a sequence: rows of a tower in the place of tokens.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use puna_graph::{AXES, Segment, StepInput};
use puna_models::TowerPicture;

/// Token id of the rows of media in the steps of an [`crate::Evaluator`].
pub const NO_TOKEN: u32 = StepInput::NO_TOKEN;

/// Number, positions and visibility of the rows of a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediumLayout {
    /// Number of rows, each in the place of a token.
    pub rows: usize,
    /// Columns of a picture whose rows of tokens have coordinates of their own, in models with
    /// several axes of positions (M-RoPE).
    pub columns: Option<usize>,
    /// Whether the rows see each other, in the layers that the model has for it.
    pub sees_itself: bool,
}

impl MediumLayout {
    /// Coordinates of a row (time, height, width) of a medium whose first row has position `first`.
    fn axis_position(&self, first: u32, row: usize) -> [u32; AXES] {
        match self.columns {
            None => [first + row as u32; AXES],
            Some(columns) => {
                [first, first + (row / columns) as u32, first + (row % columns) as u32]
            }
        }
    }

    /// Number of positions until the token behind the medium.
    pub(crate) fn extent(&self) -> usize {
        let side = |columns: usize| columns.max(self.rows.div_ceil(columns));
        self.columns.map_or(self.rows, side)
    }
}

/// A medium in a sequence.
#[derive(Debug, Clone)]
pub struct PlacedMedium {
    /// Index of its first row in the sequence.
    pub first: usize,
    /// Positions and visibility.
    pub layout: MediumLayout,
    /// The rows, one after the other; `None` until the tower has made them.
    pub rows: Option<Arc<Vec<f32>>>,
    /// Hash of the content, and the picture that the tower reads.
    pub source: Option<(u128, Arc<TowerPicture>)>,
}

impl PlacedMedium {
    fn indices(&self) -> Range<usize> {
        self.first..self.first + self.layout.rows
    }
}

/// First number of a medium; smaller ones are tokens.
const FIRST_MEDIUM: u32 = 1 << 31;
/// Largest number of contents that keep their number. A content beyond gets another number later,
/// so its cached prefixes are not found.
const MAX_NUMBERS: usize = 1 << 16;

/// Numbers of media in the place of tokens. Equal contents have equal numbers, so that the prefix
/// tree finds prompts with the same media.
#[derive(Debug, Default)]
pub struct MediaNumbers {
    known: HashMap<u128, u32>,
    count: u32,
}

impl MediaNumbers {
    /// The number of a content.
    pub fn number(&mut self, content: u128) -> u32 {
        if self.known.len() >= MAX_NUMBERS {
            self.known.clear();
        }
        let count = &mut self.count;
        *self.known.entry(content).or_insert_with(|| {
            *count = (*count + 1) % (FIRST_MEDIUM - 1);
            FIRST_MEDIUM + *count
        })
    }
}

/// The token id in a step: none for a row of a medium.
pub fn step_token(token: u32) -> u32 {
    if token >= FIRST_MEDIUM { StepInput::NO_TOKEN } else { token }
}

/// The media of a sequence, in order.
#[derive(Debug, Clone, Default)]
pub struct SequenceMedia(Vec<PlacedMedium>);

impl SequenceMedia {
    /// Adds a medium behind the others.
    pub fn push(&mut self, medium: PlacedMedium) {
        self.0.push(medium);
    }

    /// Forgets the media that end behind the first `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        self.0.retain(|medium| medium.indices().end <= len);
    }

    /// Whether the sequence has no media.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether rows of media are among these.
    pub fn is_in(&self, indices: &Range<usize>) -> bool {
        self.0.iter().any(|medium| intersection(&medium.indices(), indices).is_some())
    }

    /// Coordinates of the token or row at an index.
    fn axis_position(&self, index: usize) -> [u32; AXES] {
        let mut shift = 0;
        for medium in &self.0 {
            if index < medium.first {
                break;
            }
            let first = (medium.first - shift) as u32;
            if index < medium.indices().end {
                return medium.layout.axis_position(first, index - medium.first);
            }
            shift += medium.layout.rows - medium.layout.extent();
        }
        [(index - shift) as u32; AXES]
    }

    /// Adds the coordinates of the rows at these indices to the input of a step.
    pub fn add_axis_positions(&self, indices: Range<usize>, input: &mut StepInput) {
        input.axis_positions.extend(indices.map(|index| self.axis_position(index)));
    }

    /// Adds the rows at these indices to an input of a step of `width` columns: rows of media, and
    /// zeros for tokens.
    pub fn add_rows(&self, indices: Range<usize>, width: usize, rows: &mut Vec<f32>) {
        let first = rows.len();
        rows.resize(first + indices.len() * width, 0.0);
        for medium in &self.0 {
            let common = intersection(&medium.indices(), &indices);
            let (Some(common), Some(values)) = (common, &medium.rows) else { continue };
            let target = first + (common.start - indices.start) * width;
            let source = (common.start - medium.first) * width;
            let len = common.len() * width;
            rows[target..target + len].copy_from_slice(&values[source..source + len]);
        }
    }

    /// Number of the first medium without rows that ends behind the first `computed` tokens.
    pub fn first_missing(&self, computed: usize) -> Option<usize> {
        let is_missing = |medium: &PlacedMedium| medium.rows.is_none();
        self.0.iter().position(|medium| is_missing(medium) && medium.indices().end > computed)
    }

    /// Different pictures without rows that end behind the first `computed` tokens: the next one,
    /// and later ones of the same size, with at most `max_pixels` together.
    pub fn missing(&self, computed: usize, max_pixels: usize) -> Vec<(u128, Arc<TowerPicture>)> {
        let Some(first) = self.first_missing(computed) else { return Vec::new() };
        let mut found: Vec<(u128, Arc<TowerPicture>)> = Vec::new();
        for medium in self.0[first..].iter().filter(|medium| medium.rows.is_none()) {
            let Some((content, picture)) = &medium.source else { continue };
            let size = |picture: &TowerPicture| (picture.width, picture.height);
            let fits = found.first().is_none_or(|(_, first)| {
                let pixels = (found.len() + 1) * picture.width * picture.height;
                size(first) == size(picture) && pixels <= max_pixels
            });
            if fits && found.iter().all(|(known, _)| known != content) {
                found.push((*content, Arc::clone(picture)));
            }
        }
        found
    }

    /// Sets the rows of all media with this content. Their pixels are not needed any more.
    pub fn set_rows(&mut self, content: u128, rows: &Arc<Vec<f32>>) {
        for medium in &mut self.0 {
            if let Some((_, picture)) = medium.source.as_mut().filter(|(own, _)| *own == content) {
                *picture = Arc::default();
                medium.rows = Some(Arc::clone(rows));
            }
        }
    }

    /// Number of the next tokens, at most `count` behind the first `computed` ones, that a step
    /// computes: the rows of media are known, and rows that see each other are in one step. Zero
    /// if the next medium is not known yet.
    pub fn step_tokens(&self, computed: usize, count: usize) -> usize {
        let known = self.first_missing(computed).map(|number| self.0[number].first);
        let end = known.map_or(computed + count, |first| first.min(computed + count));
        let cut = self.0.iter().find(|medium| {
            medium.layout.sees_itself && medium.first < end && end < medium.indices().end
        });
        let end = match cut {
            Some(medium) if medium.first > computed => medium.first,
            Some(medium) => medium.indices().end,
            None => end,
        };
        end.saturating_sub(computed)
    }

    /// Beginning of the medium that the first `tokens` tokens end within.
    pub fn cut_medium(&self, tokens: usize) -> Option<usize> {
        let is_cut =
            |medium: &&PlacedMedium| medium.first < tokens && tokens < medium.indices().end;
        self.0.iter().find(is_cut).map(|medium| medium.first)
    }

    /// Adds the spans of media that see themselves to a segment with these indices.
    pub fn add_spans(&self, indices: &Range<usize>, segment: &mut Segment) {
        let spans = self.0.iter().filter(|medium| medium.layout.sees_itself);
        segment.media_spans.extend(
            spans.map(PlacedMedium::indices).filter(|span| intersection(span, indices).is_some()),
        );
    }
}

fn intersection(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let common = a.start.max(b.start)..a.end.min(b.end);
    (!common.is_empty()).then_some(common)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn medium(first: usize, rows: usize, columns: Option<usize>) -> PlacedMedium {
        let values = (0..rows * 2).map(|value| (100 * first + value) as f32).collect();
        let layout = MediumLayout { rows, columns, sees_itself: true };
        PlacedMedium { first, layout, rows: Some(Arc::new(values)), source: None }
    }

    #[test]
    fn pictures_have_coordinates_and_advance_by_their_longer_side() {
        let mut media = SequenceMedia::default();
        media.push(medium(2, 6, Some(3)));
        media.push(medium(9, 2, None));
        let all: Vec<_> = (0..13).map(|index| media.axis_position(index)).collect();
        let picture = [[2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4]];
        assert_eq!(all[..2], [[0; 3], [1; 3]]);
        assert_eq!(all[2..8], picture);
        assert_eq!(all[8..], [[5; 3], [6; 3], [7; 3], [8; 3], [9; 3]]);
    }

    #[test]
    fn steps_end_before_unknown_media_and_never_within_a_span() {
        let mut media = SequenceMedia::default();
        media.push(medium(4, 6, None));
        media.push(PlacedMedium { rows: None, ..medium(12, 3, None) });
        let steps = |computed| [1, 5, 9, 100].map(|count| media.step_tokens(computed, count));
        assert_eq!(steps(0), [1, 4, 4, 12]);
        assert_eq!(steps(4), [6, 6, 8, 8]);
        assert_eq!(steps(10), [1, 2, 2, 2]);
        assert_eq!(steps(12), [0; 4]);
        assert_eq!(
            [0, 12, 14, 15].map(|at| media.first_missing(at)),
            [Some(1), Some(1), Some(1), None]
        );
        assert_eq!([4, 5, 9, 10].map(|at| media.cut_medium(at)), [None, Some(4), Some(4), None]);
    }

    #[test]
    fn a_chunk_has_its_part_of_the_rows_and_whole_spans() {
        let mut media = SequenceMedia::default();
        media.push(medium(2, 3, None));
        let mut rows = vec![7.0];
        media.add_rows(1..4, 2, &mut rows);
        assert_eq!(rows, [7.0, 0.0, 0.0, 200.0, 201.0, 202.0, 203.0]);
        let mut segment = Segment::default();
        media.add_spans(&(1..6), &mut segment);
        media.add_spans(&(5..6), &mut segment);
        assert_eq!((segment.media_spans.len(), segment.media_spans[0].clone()), (1, 2..5));
        media.truncate(4);
        assert!(!media.is_in(&(0..9)), "a medium is kept as a whole or not at all");
    }
}
