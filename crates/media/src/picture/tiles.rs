//! Tiles: parts of a large picture that an encoder reads one by one.

use std::num::NonZeroU32;

use super::pixels::{Picture, Size};
use super::size_rules::{PixelRange, ceil_pad, smart_resize, stretch};
use super::weights::Filter;

/// A part of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PicturePart {
    /// A tile of a grid. Rows and columns count from 1.
    Tile {
        /// Row of the tile.
        row: u32,
        /// Column of the tile.
        column: u32,
        /// Number of columns.
        columns: u32,
    },
    /// The whole picture.
    Whole,
}

/// The candidate that keeps the most pixels of a picture. Of equal ones it is the candidate with
/// the smallest padding, and of these the first. `None` without candidates.
pub fn best_candidate(picture: Size, candidates: impl Iterator<Item = Size>) -> Option<Size> {
    let rating = |candidate: Size| {
        let scale = (candidate.width as f32 / picture.width as f32)
            .min(candidate.height as f32 / picture.height as f32);
        let side = |side: u32| (side as f32 * scale) as u64;
        let scaled = side(picture.width).saturating_mul(side(picture.height));
        let kept = scaled.min(picture.pixels());
        (kept, candidate.pixels().saturating_sub(kept))
    };
    candidates.fold(None, |best: Option<Size>, next| {
        let is_better = best.is_none_or(|best| {
            let (best, next) = (rating(best), rating(next));
            next.0 > best.0 || next.0 == best.0 && next.1 < best.1
        });
        if is_better { Some(next) } else { best }
    })
}

/// Sizes of up to `max` columns and rows of tiles with this side, of which `fits` accepts the
/// number of columns and rows. Narrow sizes are first.
pub fn grid_sizes(
    side: NonZeroU32,
    max: u32,
    fits: impl Fn(u32, u32) -> bool,
) -> impl Iterator<Item = Size> {
    let all = (1..=max).flat_map(move |columns| (1..=max).map(move |rows| (columns, rows)));
    let side = side.get();
    all.filter(move |&(columns, rows)| fits(columns, rows)).map(move |(columns, rows)| {
        Size::new(columns.saturating_mul(side), rows.saturating_mul(side))
    })
}

/// Cuts a picture into square tiles, row by row. Sides that are no multiple of `side` lose the
/// rest.
pub fn cut(picture: &Picture, side: NonZeroU32) -> Vec<(PicturePart, Picture)> {
    let side = side.get();
    let (columns, rows) = (picture.width() / side, picture.height() / side);
    let all = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    all.filter_map(|(row, column)| {
        let tile = picture.crop(column * side, row * side, Size::square(side))?;
        Some((PicturePart::Tile { row: row + 1, column: column + 1, columns }, tile))
    })
    .collect()
}

/// Tiles of a picture in the best of some sizes, then the whole picture, stretched to a tile. A
/// picture that is not larger than a tile has no tiles.
pub fn tiles_and_whole(
    picture: &Picture,
    side: NonZeroU32,
    filter: Filter,
    candidates: impl Iterator<Item = Size>,
) -> Vec<(PicturePart, Picture)> {
    let size = picture.size();
    let tile = Size::square(side.get());
    let is_small = size.width <= side.get() && size.height <= side.get();
    let best = best_candidate(size, candidates).filter(|_| !is_small);
    let mut parts = best.map_or_else(Vec::new, |best| {
        cut(&ceil_pad(size, best).apply(picture, filter, [0; 3]), side)
    });
    parts.push((PicturePart::Whole, stretch(tile).apply(picture, filter, [0; 3])));
    parts
}

/// Tiles and the whole picture of Idefics 3: the longer side becomes `edge` pixels, then both sides
/// whole numbers of tiles.
pub fn tiles_of_longest_edge(
    picture: &Picture,
    edge: NonZeroU32,
    side: NonZeroU32,
    filter: Filter,
) -> Vec<(PicturePart, Picture)> {
    let resized = stretch(even_size(picture.size(), edge)).apply(picture, filter, [0; 3]);
    let tiles = |pixels: u32| pixels.div_ceil(side.get()).saturating_mul(side.get());
    let size = Size::new(tiles(resized.width()), tiles(resized.height()));
    let grid = stretch(size).apply(&resized, filter, [0; 3]);
    let whole = stretch(Size::square(side.get())).apply(&grid, filter, [0; 3]);
    let mut parts = cut(&grid, side);
    parts.push((PicturePart::Whole, whole));
    parts
}

/// The whole picture and the tiles of MiniCPM-V: both have about the area of a square of `side`
/// pixels, and sides that are multiples of `alignment`. A picture that is not larger than the
/// square has no tiles.
pub fn whole_and_tiles_of_area(
    picture: &Picture,
    side: NonZeroU32,
    alignment: NonZeroU32,
    filter: Filter,
) -> Vec<(PicturePart, Picture)> {
    let size = picture.size();
    let whole = |target| (PicturePart::Whole, stretch(target).apply(picture, filter, [0; 3]));
    if size.width <= side.get() && size.height <= side.get() {
        return vec![whole(Size::square(side.get()))];
    }
    let mut parts = vec![whole(size_of_area(size, side, alignment, false))];
    let Some((columns, rows)) = grid_of_area(size, side) else { return parts };
    let part = |side: u32, count: u32| {
        let units = (side as f32 / count as f32).round() as u32;
        units.max(1)
    };
    let tile = Size::new(part(size.width, columns), part(size.height, rows));
    let tile = size_of_area(tile, side, alignment, true);
    let grid = Size::new(tile.width * columns, tile.height * rows);
    let placed = ceil_pad(size, grid).apply(picture, filter, [0; 3]);
    let all = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    parts.extend(all.filter_map(|(row, column)| {
        let cut = placed.crop(column * tile.width, row * tile.height, tile)?;
        Some((PicturePart::Tile { row: row + 1, column: column + 1, columns }, cut))
    }));
    parts
}

/// Largest number of tiles of MiniCPM-V.
const MAX_AREA_TILES: u32 = 9;

/// Size with the area of a square of `side` pixels and the aspect ratio of a picture. A smaller
/// picture keeps its size unless `enlarges`.
fn size_of_area(picture: Size, side: NonZeroU32, alignment: NonZeroU32, enlarges: bool) -> Size {
    let (mut width, mut height) = (picture.width, picture.height);
    if picture.pixels() > Size::square(side.get()).pixels() || enlarges {
        let aspect = width as f32 / height as f32;
        height = (side.get() as f32 / aspect.sqrt()) as u32;
        width = (height as f32 * aspect) as u32;
    }
    let aligned = |side: u32| {
        let units = (side as f32 / alignment.get() as f32).round() as u32;
        units.max(1).saturating_mul(alignment.get())
    };
    Size::new(aligned(width), aligned(height))
}

/// Columns and rows of the tiles of a picture, with about the number of squares in its area. Of
/// equal aspect ratios it is the first.
fn grid_of_area(picture: Size, side: NonZeroU32) -> Option<(u32, u32)> {
    let square = Size::square(side.get()).pixels();
    let count = picture.pixels().div_ceil(square).min(MAX_AREA_TILES.into()) as u32;
    let counts = [count.saturating_sub(1), count, count + 1];
    let counts = counts.into_iter().filter(|count| (2..=MAX_AREA_TILES).contains(count));
    let grids = counts.flat_map(|count| {
        (1..=count).filter(move |columns| count % columns == 0).map(move |c| (c, count / c))
    });
    let aspect = (picture.width as f32 / picture.height as f32).ln();
    let distance =
        |(columns, rows): (u32, u32)| (aspect - (columns as f32 / rows as f32).ln()).abs();
    grids.fold(None, |best: Option<(u32, u32)>, next| match best {
        Some(best) if distance(best) <= distance(next) => Some(best),
        _ => Some(next),
    })
}

/// Side of a tile of LFM2-VL in pixels.
const ASPECT_SIDE: NonZeroU32 = NonZeroU32::new(512).unwrap();
/// Largest number of tiles of LFM2-VL.
const MAX_ASPECT_TILES: u32 = 10;

/// Tiles of LFM2-VL, then the whole picture within `range`. A picture of at most twice the largest
/// number of pixels has no tiles.
pub fn tiles_of_aspect(
    picture: &Picture,
    alignment: NonZeroU32,
    range: PixelRange,
    filter: Filter,
) -> Vec<(PicturePart, Picture)> {
    let size = picture.size();
    let unit = f64::from(alignment.get());
    let rounded = |side: u32| (f64::from(side) / unit).round_ties_even() * unit;
    let is_large = rounded(size.width) * rounded(size.height) > 2.0 * range.max as f64;
    let grid = if is_large { grid_of_aspect(size) } else { None };
    let mut parts = grid.map_or_else(Vec::new, |(columns, rows)| {
        let side = ASPECT_SIDE.get();
        let placed = ceil_pad(size, Size::new(columns * side, rows * side));
        cut(&placed.apply(picture, filter, [0; 3]), ASPECT_SIDE)
    });
    let whole = stretch(smart_resize(size, alignment, range)).apply(picture, filter, [0; 3]);
    parts.push((PicturePart::Whole, whole));
    parts
}

/// Columns and rows of the tiles of LFM2-VL: the grid with the nearest aspect ratio. Of equally
/// near grids a larger one is better if the picture fills more than half of it.
fn grid_of_aspect(picture: Size) -> Option<(u32, u32)> {
    let aspect = f64::from(picture.width) / f64::from(picture.height);
    let distance =
        |(columns, rows): (u32, u32)| (aspect - f64::from(columns) / f64::from(rows)).abs();
    let fills_half = |(columns, rows): (u32, u32)| {
        let tiles = u64::from(columns * rows) * Size::square(ASPECT_SIDE.get()).pixels();
        2 * picture.pixels() > tiles
    };
    let counts = 2..=MAX_ASPECT_TILES;
    let grids = counts.flat_map(|count| {
        (1..=count).filter(move |columns| count % columns == 0).map(move |c| (c, count / c))
    });
    grids.fold(None, |best: Option<(u32, u32)>, next| match best {
        Some(best) if distance(best) < distance(next) => Some(best),
        Some(best) if distance(best) == distance(next) && !fills_half(next) => Some(best),
        _ => Some(next),
    })
}

/// The size with a longer side of `edge` pixels. The shorter side is even.
fn even_size(picture: Size, edge: NonZeroU32) -> Size {
    let aspect = picture.width as f32 / picture.height as f32;
    let edge = edge.get();
    let even = |side: f32| (side as u32).next_multiple_of(2).max(2);
    match picture.width >= picture.height {
        true => Size::new(edge, even(edge as f32 / aspect)),
        false => Size::new(even(edge as f32 * aspect), edge),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(side: u32) -> NonZeroU32 {
        NonZeroU32::new(side).unwrap()
    }

    #[test]
    fn the_candidate_keeps_the_most_pixels_with_the_least_padding() {
        let best = |width, height| {
            let candidates = grid_sizes(side(48), 3, |columns, rows| columns * rows > 1);
            best_candidate(Size::new(width, height), candidates)
        };
        assert_eq!(best(140, 70), Some(Size::new(144, 96)));
        assert_eq!(best(60, 40), Some(Size::new(96, 48)), "it is not made smaller");
        assert_eq!(best(10, 400), Some(Size::new(48, 144)));
        assert_eq!(best_candidate(Size::new(1, 1), std::iter::empty()), None);
    }

    #[test]
    fn tiles_of_lfm2_follow_the_aspect_ratio() {
        let grid = |width, height| grid_of_aspect(Size::new(width, height));
        assert_eq!(grid(1000, 700), Some((3, 2)));
        assert_eq!(grid(700, 1300), Some((1, 2)));
        // The larger grid of the same aspect ratio needs a picture that fills half of it.
        assert_eq!([grid(1200, 600), grid(1600, 800)], [Some((2, 1)), Some((4, 2))]);
        let sides = [1, 2, 511, 513, 65_535];
        for (width, height) in sides.iter().flat_map(|&w| sides.map(|h| (w, h))) {
            let (columns, rows) = grid(width, height).unwrap();
            assert!((2..=MAX_ASPECT_TILES).contains(&(columns * rows)), "{width} {height}");
        }
    }

    #[test]
    fn tiles_come_row_by_row_and_the_whole_picture_last() {
        let picture = Picture::filled(Size::new(65_535, 1), [1, 2, 3]);
        let parts = tiles_of_longest_edge(&picture, side(96), side(48), Filter::Lanczos);
        let expected = [
            PicturePart::Tile { row: 1, column: 1, columns: 2 },
            PicturePart::Tile { row: 1, column: 2, columns: 2 },
            PicturePart::Whole,
        ];
        assert_eq!(parts.iter().map(|(part, _)| *part).collect::<Vec<_>>(), expected);
        assert!(parts.iter().all(|(_, picture)| picture.size() == Size::square(48)));
        let small = Picture::filled(Size::square(48), [0; 3]);
        let candidates = || grid_sizes(side(48), 3, |_, _| true);
        let parts = tiles_and_whole(&small, side(48), Filter::Bicubic, candidates());
        assert_eq!(parts, [(PicturePart::Whole, small)]);
    }
}
