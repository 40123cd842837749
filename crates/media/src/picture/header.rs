//! Facts that a picture's header states, read before any memory is allocated for pixels.

use super::orientation::Orientation;
use super::pixels::Size;
use crate::format::MediaFormat;

/// The claims of a header. [`PictureLimits`](super::PictureLimits) checks them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PictureHeader {
    pub format: MediaFormat,
    /// Width and height of the stored picture, before its orientation is applied.
    pub size: Size,
    /// Fewest bytes of picture data from which any file of this kind makes so large a picture.
    pub fewest_bytes: u64,
    /// Bytes of picture data that the file has.
    pub data_bytes: u64,
    /// Most memory that the decoder and the conversion to RGB take at a time, in bytes.
    pub decoder_bytes: u64,
    pub orientation: Orientation,
}
