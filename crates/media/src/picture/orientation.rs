//! The orientation that cameras record (EXIF tag 274), and its application to pixels.

use super::pixels::{CHANNELS, Picture, Size};

/// Side of the squares in which pixels change rows and columns: both sides stay in the cache.
const BLOCK: usize = 32;

/// How a stored picture is brought upright: rows and columns are exchanged first, then reversed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Orientation {
    transpose: bool,
    mirror_columns: bool,
    mirror_rows: bool,
}

impl Orientation {
    /// The orientation for an EXIF value of 1 to 8; every other value means upright.
    pub fn from_exif(value: u32) -> Self {
        let (transpose, mirror_columns, mirror_rows) = match value {
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => (false, false, false),
        };
        Self { transpose, mirror_columns, mirror_rows }
    }

    /// Whether width and height change places.
    pub fn swaps_sides(self) -> bool {
        self.transpose
    }

    /// The size of the upright picture for the stored size `stored`.
    pub fn upright_size(self, stored: Size) -> Size {
        if self.transpose { Size::new(stored.height, stored.width) } else { stored }
    }

    /// Brings a stored picture upright.
    pub fn apply(self, stored: Picture) -> Picture {
        let upright = if self.transpose { transpose(&stored) } else { stored };
        let (size, row_bytes) = (upright.size(), upright.row_bytes());
        let mut data = upright.into_data();
        if self.mirror_columns {
            data.chunks_exact_mut(row_bytes).for_each(reverse_pixels);
        }
        if self.mirror_rows {
            reverse_rows(&mut data, row_bytes);
        }
        Picture::from_rgb(size, data).expect("the number of pixels stays the same")
    }
}

/// Exchanges rows and columns.
fn transpose(stored: &Picture) -> Picture {
    let (width, height) = (stored.width() as usize, stored.height() as usize);
    let source = stored.data();
    let mut data = vec![0; source.len()];
    for top in (0..width).step_by(BLOCK) {
        for left in (0..height).step_by(BLOCK) {
            for y in top..width.min(top + BLOCK) {
                let right = height.min(left + BLOCK);
                let row =
                    &mut data[(y * height + left) * CHANNELS..(y * height + right) * CHANNELS];
                for (x, pixel) in row.chunks_exact_mut(CHANNELS).enumerate() {
                    let at = ((left + x) * width + y) * CHANNELS;
                    pixel.copy_from_slice(&source[at..at + CHANNELS]);
                }
            }
        }
    }
    Picture::from_rgb(Size::new(stored.height(), stored.width()), data).expect("as many pixels")
}

/// Reverses the order of the pixels of a row.
fn reverse_pixels(row: &mut [u8]) {
    let half = row.len() / CHANNELS / 2 * CHANNELS;
    let (left, right) = row.split_at_mut(half);
    for (a, b) in left.chunks_exact_mut(CHANNELS).zip(right.rchunks_exact_mut(CHANNELS)) {
        a.swap_with_slice(b);
    }
}

/// Reverses the order of the rows.
fn reverse_rows(data: &mut [u8], row_bytes: usize) {
    let half = data.len() / row_bytes / 2 * row_bytes;
    let (top, bottom) = data.split_at_mut(half);
    for (a, b) in top.chunks_exact_mut(row_bytes).zip(bottom.rchunks_exact_mut(row_bytes)) {
        a.swap_with_slice(b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture of 3 by 2 pixels with the red values 1 to 6.
    fn numbered() -> Picture {
        let data = (1..=6).flat_map(|red| [red, 0, 0]).collect();
        Picture::from_rgb(Size::new(3, 2), data).unwrap()
    }

    fn reds(picture: &Picture) -> Vec<u8> {
        picture.data().iter().step_by(3).copied().collect()
    }

    #[test]
    fn all_values_bring_the_picture_upright() {
        for (value, width, expected) in [
            (0, 3, [1, 2, 3, 4, 5, 6]),
            (1, 3, [1, 2, 3, 4, 5, 6]),
            (2, 3, [3, 2, 1, 6, 5, 4]),
            (3, 3, [6, 5, 4, 3, 2, 1]),
            (4, 3, [4, 5, 6, 1, 2, 3]),
            (5, 2, [1, 4, 2, 5, 3, 6]),
            (6, 2, [4, 1, 5, 2, 6, 3]),
            (7, 2, [6, 3, 5, 2, 4, 1]),
            (8, 2, [3, 6, 2, 5, 1, 4]),
            (9, 3, [1, 2, 3, 4, 5, 6]),
            (99, 3, [1, 2, 3, 4, 5, 6]),
        ] {
            let orientation = Orientation::from_exif(value);
            let upright = orientation.apply(numbered());
            assert_eq!(upright.width(), width, "{value}");
            assert_eq!(upright.size(), orientation.upright_size(Size::new(3, 2)), "{value}");
            assert_eq!(reds(&upright), expected, "{value}");
        }
    }

    #[test]
    fn large_pictures_are_transposed_in_blocks() {
        let (width, height) = (71_u32, 40_u32);
        let data: Vec<u8> = (0..width * height * 3).map(|i| (i * 7 % 251) as u8).collect();
        let stored = Picture::from_rgb(Size::new(width, height), data).unwrap();
        let turned = transpose(&stored);
        for (x, y) in [(0, 0), (70, 39), (33, 31), (32, 32), (5, 39)] {
            let (from, to) = ((y * width + x) as usize * 3, (x * height + y) as usize * 3);
            assert_eq!(stored.data()[from..from + 3], turned.data()[to..to + 3]);
        }
        assert_eq!(transpose(&turned), stored);
    }
}
