//! Pictures: decoding, resampling, target sizes and normalization.

mod bmp;
mod color;
mod decode;
mod decoder;
mod error;
mod gif;
mod header;
mod jpeg;
mod limits;
mod normalize;
mod orientation;
mod pixels;
mod placement;
mod png;
mod resize;
pub mod size_rules;
mod tags;
mod tiff;
pub mod tiles;
mod webp;
mod weights;

pub use decode::{decode_picture, picture_size};
pub use error::PictureError;
pub use limits::PictureLimits;
pub use normalize::Normalization;
pub use pixels::{Picture, Size};
pub use placement::Placement;
pub use resize::resize;
pub use weights::Filter;
