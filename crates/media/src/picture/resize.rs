//! Resampling with the exact results of Pillow's `Image.resize` up to version 12.
//!
//! Rows are resampled first, columns second; each of the two steps rounds to 8 bits. A step that
//! changes no size is left out. Preprocessing of vision models was defined with these results: a
//! picture that differs by one step of brightness has other tokens.
//!
//! Pillow itself starts with the columns of pictures more than 100 times as high as wide. Other
//! programs that follow it do not, and neither does this one.

use super::pixels::{CHANNELS, Picture, Size};
use super::weights::{Filter, PRECISION_BITS, WeightTable};

/// One half in the fixed-point format of the weights.
const HALF: i32 = 1 << (PRECISION_BITS - 1);
/// Memory for resampled rows between the two steps, in bytes. Strips of few columns are slow.
const STRIP_BYTES: usize = 8 << 20;
/// Fewest columns of a strip.
const MIN_STRIP_COLUMNS: usize = 16;

/// Resamples a picture to `width` by `height` pixels.
///
/// Beside the result it takes at most 8 MiB and the tables of weights. The caller bounds the size.
///
/// # Panics
///
/// If `width` or `height` is zero.
pub fn resize(picture: &Picture, width: u32, height: u32, filter: Filter) -> Picture {
    let size = Size::new(width, height);
    assert!(!size.is_empty(), "a picture cannot be resized to {size} pixels");
    let table =
        |source, target| (source != target).then(|| WeightTable::new(source, target, filter));
    let columns = table(picture.width(), width);
    let rows = table(picture.height(), height);
    let data = match (columns, rows) {
        (None, None) => picture.data().to_vec(),
        (Some(columns), None) => resize_rows(picture, &columns),
        (None, Some(rows)) => resize_columns(picture, &rows),
        (Some(columns), Some(rows)) => resize_both(picture, &columns, &rows),
    };
    Picture::from_rgb(size, data).expect("the tables have the target size")
}

/// Resamples every row.
fn resize_rows(picture: &Picture, columns: &WeightTable) -> Vec<u8> {
    let row_bytes = columns.len() * CHANNELS;
    let mut data = vec![0; picture.height() as usize * row_bytes];
    let sources = picture.data().chunks_exact(picture.row_bytes());
    for (source, row) in sources.zip(data.chunks_exact_mut(row_bytes)) {
        resample_row(source, columns, 0, row);
    }
    data
}

/// Resamples every column.
fn resize_columns(picture: &Picture, rows: &WeightTable) -> Vec<u8> {
    let row_bytes = picture.row_bytes();
    let mut data = vec![0; rows.len() * row_bytes];
    let mut sums = vec![0; row_bytes];
    for (y, row) in data.chunks_exact_mut(row_bytes).enumerate() {
        resample_column_pixels(picture.data(), rows.window(y), &mut sums, row);
    }
    data
}

/// Resamples rows, then columns, in strips of columns: the rows between the steps stay small.
fn resize_both(picture: &Picture, columns: &WeightTable, rows: &WeightTable) -> Vec<u8> {
    let (width, height) = (columns.len(), picture.height() as usize);
    let strip_columns =
        (STRIP_BYTES / CHANNELS / height).clamp(MIN_STRIP_COLUMNS, width.max(MIN_STRIP_COLUMNS));
    let mut data = vec![0; rows.len() * width * CHANNELS];
    let mut resampled = vec![0; height * strip_columns.min(width) * CHANNELS];
    let mut sums = vec![0; strip_columns.min(width) * CHANNELS];
    for left in (0..width).step_by(strip_columns) {
        let strip_bytes = strip_columns.min(width - left) * CHANNELS;
        let strip = &mut resampled[..height * strip_bytes];
        let sources = picture.data().chunks_exact(picture.row_bytes());
        for (source, row) in sources.zip(strip.chunks_exact_mut(strip_bytes)) {
            resample_row(source, columns, left, row);
        }
        for (y, row) in data.chunks_exact_mut(width * CHANNELS).enumerate() {
            let row = &mut row[left * CHANNELS..][..strip_bytes];
            resample_column_pixels(strip, rows.window(y), &mut sums[..strip_bytes], row);
        }
    }
    data
}

/// Computes target pixels of a row, from the target column `left` on.
fn resample_row(source: &[u8], columns: &WeightTable, left: usize, row: &mut [u8]) {
    for (x, target) in row.chunks_exact_mut(CHANNELS).enumerate() {
        let (first, weights) = columns.window(left + x);
        let window = &source[first * CHANNELS..][..weights.len() * CHANNELS];
        let (mut red, mut green, mut blue) = (HALF, HALF, HALF);
        for (pixel, &weight) in window.chunks_exact(CHANNELS).zip(weights) {
            red = add_product(red, pixel[0], weight);
            green = add_product(green, pixel[1], weight);
            blue = add_product(blue, pixel[2], weight);
        }
        target.copy_from_slice(&[red, green, blue].map(round));
    }
}

/// Computes a target row from a window of rows, which are as long as the target row.
fn resample_column_pixels(
    rows: &[u8],
    (first, weights): (usize, &[i32]),
    sums: &mut [i32],
    target: &mut [u8],
) {
    let row_bytes = target.len();
    sums.fill(HALF);
    let window = rows[first * row_bytes..].chunks_exact(row_bytes);
    for (row, &weight) in window.zip(weights) {
        for (sum, &value) in sums.iter_mut().zip(row) {
            *sum = add_product(*sum, value, weight);
        }
    }
    for (target, &sum) in target.iter_mut().zip(&*sums) {
        *target = round(sum);
    }
}

/// Adds a weighted value. Sums stay in range, except at the edges of a few extreme enlargements.
fn add_product(sum: i32, value: u8, weight: i32) -> i32 {
    sum.wrapping_add(i32::from(value).wrapping_mul(weight))
}

/// The integer part of a sum, from 0 to 255.
fn round(sum: i32) -> u8 {
    (sum >> PRECISION_BITS).clamp(0, 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_equal_size_is_a_copy() {
        let picture = Picture::from_rgb(Size::new(2, 1), vec![1, 2, 3, 4, 5, 6]).unwrap();
        assert_eq!(resize(&picture, 2, 1, Filter::Lanczos), picture);
    }

    #[test]
    fn one_color_stays_one_color() {
        for filter in [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos] {
            for (from, to) in [((7, 5), (3, 11)), ((1, 1), (40, 2)), ((300, 2), (1, 1))] {
                let picture = Picture::filled(Size::new(from.0, from.1), [0, 128, 255]);
                let resized = resize(&picture, to.0, to.1, filter);
                assert_eq!(resized, Picture::filled(Size::new(to.0, to.1), [0, 128, 255]));
            }
        }
    }

    #[test]
    fn strips_do_not_change_the_result() {
        // So high that a strip has the fewest columns.
        let size = Size::new(50, 200_000);
        let data = (0..size.pixels() * 3).map(|i| (i * i % 253) as u8).collect();
        let picture = Picture::from_rgb(size, data).unwrap();
        let columns = WeightTable::new(50, 41, Filter::Bicubic);
        let between = Size::new(41, 200_000);
        let between = Picture::from_rgb(between, resize_rows(&picture, &columns)).unwrap();
        let expected = resize(&between, 41, 20, Filter::Bicubic);
        assert_eq!(resize(&picture, 41, 20, Filter::Bicubic), expected);
    }

    #[test]
    #[should_panic(expected = "cannot be resized to 0x4 pixels")]
    fn a_side_of_zero_panics() {
        resize(&Picture::filled(Size::square(1), [0; 3]), 0, 4, Filter::Bilinear);
    }
}
