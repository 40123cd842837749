//! Rules by which model families choose the size that a picture is resized to.
//!
//! All functions are exact for sides of 1 to 65,535 pixels. They compute in f32, like the program
//! that made the recorded tensors of the model tests: f64 rounds some sizes differently.

use std::num::NonZeroU32;

use super::pixels::Size;
use super::placement::Placement;

/// Fewest and most pixels that a family accepts after resizing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PixelRange {
    /// Smaller pictures are enlarged.
    pub min: u64,
    /// Larger pictures are made smaller.
    pub max: u64,
}

impl PixelRange {
    /// The range of `min` to `max` tokens, each of which covers a square of `alignment` pixels.
    pub fn of_tokens(min: u32, max: u32, alignment: NonZeroU32) -> Self {
        let token = Size::square(alignment.get());
        Self { min: token.bytes(min.into()), max: token.bytes(max.into()) }
    }
}

/// Fills `target` completely; the aspect ratio changes.
pub fn stretch(target: Size) -> Placement {
    Placement { content: target, left: 0, top: 0, canvas: target }
}

/// Fits the picture into `target` and centers it. Sides and margins are rounded so that the
/// picture is not smaller than its share: sides up, margins down.
pub fn ceil_pad(picture: Size, target: Size) -> Placement {
    fit(picture, target, f32::ceil, |margin| margin / 2)
}

/// Fits the picture into `target` and centers it, with sides and margins rounded to the nearest
/// integer.
pub fn nearest_pad(picture: Size, target: Size) -> Placement {
    fit(picture, target, f32::round, |margin| margin.div_ceil(2))
}

fn fit(
    picture: Size,
    target: Size,
    round: impl Fn(f32) -> f32,
    half: impl Fn(u32) -> u32,
) -> Placement {
    let scale = scale_into(picture, target);
    let side =
        |picture: u32, target: u32| (round(picture as f32 * scale) as u32).clamp(1, target.max(1));
    let content = Size::new(side(picture.width, target.width), side(picture.height, target.height));
    Placement {
        content,
        left: half(target.width.saturating_sub(content.width)),
        top: half(target.height.saturating_sub(content.height)),
        canvas: target,
    }
}

/// The factor by which a picture just fits into `target`.
fn scale_into(picture: Size, target: Size) -> f32 {
    let horizontal = target.width as f32 / picture.width as f32;
    horizontal.min(target.height as f32 / picture.height as f32)
}

/// Rounds both sides to multiples of `alignment`, then brings the number of pixels into `range`
/// with about the same aspect ratio.
///
/// Both sides are at least `alignment`. For extreme aspect ratios this may exceed `range.max`: the
/// caller compares.
pub fn smart_resize(picture: Size, alignment: NonZeroU32, range: PixelRange) -> Size {
    let rounded = Size::new(
        aligned(picture.width as f32, alignment, f32::round),
        aligned(picture.height as f32, alignment, f32::round),
    );
    within_range(picture, rounded, alignment, range)
}

/// Makes the longer side `edge` pixels long, and rounds both sides up to multiples of `alignment`.
pub fn longest_edge(picture: Size, edge: NonZeroU32, alignment: NonZeroU32) -> Size {
    let scale = scale_into(picture, Size::square(edge.get()));
    Size::new(
        aligned(picture.width as f32 * scale, alignment, f32::ceil),
        aligned(picture.height as f32 * scale, alignment, f32::ceil),
    )
}

/// Returns `candidate` if its number of pixels is in `range`, else the size of `picture` scaled
/// into the range and rounded to multiples of `alignment`.
pub fn within_range(
    picture: Size,
    candidate: Size,
    alignment: NonZeroU32,
    range: PixelRange,
) -> Size {
    let (width, height) = (picture.width as f32, picture.height as f32);
    if candidate.pixels() > range.max {
        let divisor = (height * width / range.max.max(1) as f32).sqrt();
        Size::new(
            aligned(width / divisor, alignment, f32::floor),
            aligned(height / divisor, alignment, f32::floor),
        )
    } else if candidate.pixels() < range.min {
        let factor = (range.min as f32 / (height * width)).sqrt();
        Size::new(
            aligned(width * factor, alignment, f32::ceil),
            aligned(height * factor, alignment, f32::ceil),
        )
    } else {
        candidate
    }
}

/// Rounds a side to a multiple of `alignment`, at least one of them.
fn aligned(side: f32, alignment: NonZeroU32, round: impl Fn(f32) -> f32) -> u32 {
    let units = round(side / alignment.get() as f32) as u32;
    units.max(1).saturating_mul(alignment.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn nonzero(value: u32) -> NonZeroU32 {
        NonZeroU32::new(value).unwrap()
    }

    /// Sides at which rounding and limits change.
    const SIDES: [u32; 16] =
        [1, 2, 3, 13, 14, 15, 27, 28, 29, 223, 896, 4000, 16_384, 32_768, 65_534, 65_535];

    #[test]
    fn stretching_fills_the_target() {
        let placement = stretch(Size::new(5, 7));
        assert_eq!((placement.content, placement.canvas), (Size::new(5, 7), Size::new(5, 7)));
        assert_eq!((placement.left, placement.top), (0, 0));
    }

    #[test]
    fn padding_centers_the_picture() {
        let target = Size::square(96);
        let placement = ceil_pad(Size::new(100, 64), target);
        assert_eq!(placement.content, Size::new(96, 62));
        assert_eq!((placement.left, placement.top), (0, 17));
        let placement = nearest_pad(Size::new(100, 64), target);
        assert_eq!(placement.content, Size::new(96, 61));
        assert_eq!((placement.left, placement.top), (0, 18));
        assert_eq!(ceil_pad(Size::new(40, 90), target).content, Size::new(43, 96));
    }

    #[test]
    fn padding_never_leaves_the_canvas() {
        for (width, height) in SIDES.iter().flat_map(|&w| SIDES.map(|h| (w, h))) {
            let picture = Size::new(width, height);
            for target in [Size::new(1, 1), Size::new(96, 64), Size::new(65_535, 65_535)] {
                for placement in [ceil_pad(picture, target), nearest_pad(picture, target)] {
                    let Placement { content, left, top, canvas } = placement;
                    assert!(!content.is_empty() && canvas == target, "{picture} {target}");
                    assert!(left + content.width <= target.width, "{picture} {target}");
                    assert!(top + content.height <= target.height, "{picture} {target}");
                }
            }
        }
    }

    #[test]
    fn smart_resize_rounds_to_multiples() {
        let range = PixelRange::of_tokens(8, 4096, nonzero(28));
        let smart = |width, height| smart_resize(Size::new(width, height), nonzero(28), range);
        assert_eq!(smart(170, 88), Size::new(168, 84));
        assert_eq!(smart(84, 84), Size::new(84, 84));
        // 14 is half a unit, which rounds away from zero.
        assert_eq!(smart(280, 98), Size::new(280, 112));
        // A photo of 12 megapixels: at most 4,096 tokens.
        assert_eq!(smart(4000, 3000), Size::new(2044, 1540));
    }

    #[test]
    fn smart_resize_enlarges_small_pictures() {
        let range = PixelRange::of_tokens(8, 4096, nonzero(16));
        assert_eq!(smart_resize(Size::new(30, 20), nonzero(16), range), Size::new(64, 48));
        assert_eq!(smart_resize(Size::new(1, 1), nonzero(16), range), Size::new(48, 48));
    }

    #[test]
    fn the_longest_edge_is_reached() {
        assert_eq!(longest_edge(Size::new(100, 70), nonzero(96), nonzero(16)), Size::new(96, 80));
        assert_eq!(longest_edge(Size::new(45, 90), nonzero(64), nonzero(16)), Size::new(32, 64));
        // In f32, 90 times 96/90 is more than 96, and rounds up to the next multiple.
        assert_eq!(longest_edge(Size::new(41, 90), nonzero(96), nonzero(16)), Size::new(48, 112));
        assert_eq!(
            longest_edge(Size::new(65_535, 1), nonzero(1024), nonzero(28)),
            Size::new(1036, 28)
        );
    }

    #[test]
    fn no_size_is_empty_unaligned_or_overflows() {
        for (width, height) in SIDES.iter().flat_map(|&w| SIDES.map(|h| (w, h))) {
            let picture = Size::new(width, height);
            for alignment in [1, 14, 28, 48, 65_535, u32::MAX].map(nonzero) {
                let multiple = |size: Size| {
                    let unit = alignment.get();
                    let side = |side: u32| side.is_multiple_of(unit) || side == u32::MAX;
                    assert!(!size.is_empty(), "{picture} {alignment}");
                    assert!(side(size.width) && side(size.height), "{picture} {alignment} {size}");
                };
                for range in [
                    PixelRange { min: 0, max: u64::MAX },
                    PixelRange { min: u64::MAX, max: u64::MAX },
                    PixelRange { min: 0, max: 0 },
                    PixelRange::of_tokens(4, 1024, alignment),
                    PixelRange::of_tokens(u32::MAX, u32::MAX, alignment),
                ] {
                    multiple(smart_resize(picture, alignment, range));
                }
                for edge in [1, 1540, u32::MAX].map(nonzero) {
                    multiple(longest_edge(picture, edge, alignment));
                }
            }
        }
    }

    #[test]
    fn results_stay_in_the_range_for_usual_pictures() {
        let (alignment, range) = (nonzero(28), PixelRange::of_tokens(8, 1024, nonzero(28)));
        for (width, height) in [(640, 480), (1920, 1080), (100, 3000), (9000, 9000), (20, 30)] {
            let size = smart_resize(Size::new(width, height), alignment, range);
            assert!((range.min..=range.max).contains(&size.pixels()), "{width}x{height} {size}");
        }
    }
}
