//! Puts a resized picture on a canvas.

use super::pixels::{Picture, Size};
use super::resize::resize;
use super::weights::Filter;

/// The size of a resized picture and its place on a canvas, in pixels.
///
/// [`size_rules`](super::size_rules) computes placements. The picture must lie on the canvas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Size of the resized picture.
    pub content: Size,
    /// Columns of padding to the left of the picture.
    pub left: u32,
    /// Rows of padding above the picture.
    pub top: u32,
    /// Size of the result.
    pub canvas: Size,
}

impl Placement {
    /// Resizes a picture and pads it with a color.
    ///
    /// # Panics
    ///
    /// If a side of the content is zero, or the content does not lie on the canvas.
    pub fn apply(&self, picture: &Picture, filter: Filter, padding: [u8; 3]) -> Picture {
        let content = resize(picture, self.content.width, self.content.height, filter);
        if self.content == self.canvas {
            return content;
        }
        let mut canvas = Picture::filled(self.canvas, padding);
        canvas.paste(&content, self.left, self.top);
        canvas
    }
}

#[cfg(test)]
mod tests {
    use super::super::size_rules::{ceil_pad, stretch};
    use super::*;

    #[test]
    fn padding_has_its_color() {
        let picture = Picture::filled(Size::new(4, 2), [9, 9, 9]);
        let placement = ceil_pad(picture.size(), Size::square(4));
        let padded = placement.apply(&picture, Filter::Bicubic, [1, 2, 3]);
        assert_eq!(padded.size(), Size::square(4));
        assert_eq!(padded.crop(0, 1, Size::new(4, 2)), Some(picture.clone()));
        assert_eq!(padded.data()[..3], [1, 2, 3]);
        assert_eq!(padded.data()[45..], [1, 2, 3]);
        let stretched = stretch(Size::square(4)).apply(&picture, Filter::Bicubic, [1, 2, 3]);
        assert_eq!(stretched, Picture::filled(Size::square(4), [9, 9, 9]));
    }
}
