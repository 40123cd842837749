//! Pictures: decoding within limits, and resampling.

mod bmp;
mod color;
mod decode;
mod decoder;
mod error;
mod gif;
mod header;
mod jpeg;
mod limits;
mod orientation;
mod pixels;
mod png;
mod resize;
mod tags;
mod tiff;
mod webp;
mod weights;

pub use decode::{decode_picture, picture_size};
pub use error::PictureError;
pub use limits::PictureLimits;
pub use pixels::{Picture, Size};
pub use resize::resize;
pub use weights::Filter;
