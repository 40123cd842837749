//! Media decoding and preprocessing: from the bytes of a picture to the pixels of a vision model.
//!
//! [`decode_picture`] recognises the format by content, checks the header against
//! [`PictureLimits`], and returns an upright [`Picture`] of 8-bit RGB. [`resize`] resamples it
//! exactly as Pillow does. [`size_rules`] has the target sizes of model families, [`Placement`]
//! puts a picture on a canvas, and [`Normalization`] makes the numbers that an encoder gets.
//!
//! The crate knows no model and no engine. The runner calls it for media in requests, and the
//! vision towers call it with the sizes, filters and colors of their family.
//!
//! Everything about pictures is in `picture/`. [`MediaFormat`] also names the formats of sounds and
//! videos, so that an error can tell them apart; a decoder of sounds belongs in a folder `sound/`.
//!
//! There is no `unsafe`.

#![forbid(unsafe_code)]

mod byte_reader;
mod format;
mod picture;

pub use format::{MediaFormat, MediaType};
pub use picture::{
    Filter, Normalization, Picture, PictureError, PictureLimits, Placement, Size, decode_picture,
    picture_size, resize, size_rules, tiles,
};
