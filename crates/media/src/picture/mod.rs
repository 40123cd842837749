//! Pictures: decoding within limits.

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
mod tags;
mod tiff;
mod webp;

pub use decode::{decode_picture, picture_size};
pub use error::PictureError;
pub use limits::PictureLimits;
pub use pixels::{Picture, Size};
