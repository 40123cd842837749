//! The decoded picture and its size.

use std::fmt;

/// Bytes of a pixel: red, green and blue.
pub(crate) const CHANNELS: usize = 3;

/// Width and height in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Size {
    /// Pixels of a row.
    pub width: u32,
    /// Number of rows.
    pub height: u32,
}

impl Size {
    /// A size of `width` by `height` pixels.
    pub const fn new(width: u32, height: u32) -> Self {
        Self { width, height }
    }

    /// A square with sides of `side` pixels.
    pub const fn square(side: u32) -> Self {
        Self::new(side, side)
    }

    /// Number of pixels.
    pub fn pixels(self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Bytes of all pixels, with `pixel_bytes` bytes for each; saturates.
    pub(crate) fn bytes(self, pixel_bytes: u64) -> u64 {
        self.pixels().saturating_mul(pixel_bytes)
    }

    /// Whether a side is zero.
    pub fn is_empty(self) -> bool {
        self.width == 0 || self.height == 0
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

/// A picture of 8-bit RGB without transparency, upright, row by row from the top.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    size: Size,
    data: Vec<u8>,
}

impl Picture {
    /// Makes a picture of its bytes: red, green and blue of each pixel, row by row.
    ///
    /// Returns `None` if a side is zero or `data` has another length than 3 bytes for each pixel.
    pub fn from_rgb(size: Size, data: Vec<u8>) -> Option<Self> {
        let bytes = size.pixels().checked_mul(CHANNELS as u64)?;
        (!size.is_empty() && bytes == data.len() as u64).then_some(Self { size, data })
    }

    /// Makes a picture of one color.
    ///
    /// # Panics
    ///
    /// If a side of `size` is zero.
    pub fn filled(size: Size, color: [u8; CHANNELS]) -> Self {
        assert!(!size.is_empty(), "a picture of {size} pixels");
        let pixels = usize::try_from(size.pixels()).expect("a picture fits into memory");
        Self { size, data: color.repeat(pixels) }
    }

    /// Width and height in pixels; both are at least 1.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Pixels of a row.
    pub fn width(&self) -> u32 {
        self.size.width
    }

    /// Number of rows.
    pub fn height(&self) -> u32 {
        self.size.height
    }

    /// Red, green and blue of each pixel, row by row.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Returns the bytes of [`data`](Self::data) without a copy.
    pub fn into_data(self) -> Vec<u8> {
        self.data
    }

    /// Bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.size.width as usize * CHANNELS
    }

    /// Copies the rectangle with the upper left corner `left`, `top`.
    ///
    /// Returns `None` if the rectangle is empty or not inside the picture.
    pub fn crop(&self, left: u32, top: u32, size: Size) -> Option<Self> {
        let inside = left.checked_add(size.width)? <= self.width()
            && top.checked_add(size.height)? <= self.height();
        if size.is_empty() || !inside {
            return None;
        }
        let (start, length) = (left as usize * CHANNELS, size.width as usize * CHANNELS);
        let rows = self.data.chunks_exact(self.row_bytes());
        let rows = rows.skip(top as usize).take(size.height as usize);
        let data = rows.flat_map(|row| &row[start..start + length]).copied().collect();
        Some(Self { size, data })
    }

    /// Copies `other` into the picture, with its upper left corner at `left`, `top`.
    ///
    /// # Panics
    ///
    /// If `other` does not fit.
    pub(crate) fn paste(&mut self, other: &Self, left: u32, top: u32) {
        let (stride, start) = (self.row_bytes(), left as usize * CHANNELS);
        let rows = self.data.chunks_exact_mut(stride).skip(top as usize);
        assert!(rows.len() >= other.height() as usize, "the pasted picture is too high");
        for (row, source) in rows.zip(other.data.chunks_exact(other.row_bytes())) {
            row[start..start + source.len()].copy_from_slice(source);
        }
    }
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Picture({})", self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(width: u32, height: u32) -> Picture {
        let data = (0..width * height * 3).map(|byte| byte as u8).collect();
        Picture::from_rgb(Size::new(width, height), data).unwrap()
    }

    #[test]
    fn the_length_of_the_data_must_fit() {
        assert_eq!(Picture::from_rgb(Size::new(2, 2), vec![0; 11]), None);
        assert_eq!(Picture::from_rgb(Size::new(0, 2), vec![]), None);
        assert_eq!(Picture::from_rgb(Size::new(u32::MAX, u32::MAX), vec![]), None);
        assert_eq!(numbered(2, 2).size(), Size::square(2));
    }

    #[test]
    fn a_crop_has_the_pixels_of_its_rectangle() {
        let crop = numbered(4, 3).crop(1, 1, Size::new(2, 2)).unwrap();
        assert_eq!(crop.data(), [15, 16, 17, 18, 19, 20, 27, 28, 29, 30, 31, 32]);
        assert_eq!(numbered(4, 3).crop(3, 0, Size::new(2, 1)), None);
        assert_eq!(numbered(4, 3).crop(0, 0, Size::new(0, 1)), None);
        assert_eq!(numbered(4, 3).crop(u32::MAX, 0, Size::new(2, 1)), None);
    }

    #[test]
    fn a_pasted_picture_leaves_the_rest() {
        let mut canvas = Picture::filled(Size::new(3, 2), [9, 8, 7]);
        canvas.paste(&Picture::filled(Size::new(2, 1), [1, 2, 3]), 1, 1);
        assert_eq!(canvas.data()[9..], [9, 8, 7, 1, 2, 3, 1, 2, 3]);
        assert_eq!(canvas.data()[..9], [9, 8, 7, 9, 8, 7, 9, 8, 7]);
    }
}
