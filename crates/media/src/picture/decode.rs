//! Decodes a picture of any supported format, within limits.
//!
//! A reader for each format walks through the structure of the file first: it finds the size, the
//! orientation and missing data without a decoder. Then the limits are checked, and only then
//! memory for pixels is allocated.

use super::decoder::CheckedFile;
use super::error::PictureError;
use super::header::PictureHeader;
use super::limits::PictureLimits;
use super::pixels::{Picture, Size};
use super::{bmp, gif, jpeg, png, tiff, webp};
use crate::format::MediaFormat;

/// Decodes a picture: upright, transparent pixels over white, the first frame of an animation.
///
/// The content decides the format. Memory and time are bounded by `limits`, whatever the header
/// claims.
///
/// # Errors
///
/// If the data is empty, has no supported format, exceeds a limit, is truncated or damaged.
pub fn decode_picture(data: &[u8], limits: &PictureLimits) -> Result<Picture, PictureError> {
    let header = read_header(data, limits)?;
    let file = CheckedFile { data, header: &header, limits };
    match header.format {
        MediaFormat::Jpeg => jpeg::decode(&file),
        MediaFormat::Png => png::decode(&file),
        MediaFormat::WebP => webp::decode(&file),
        MediaFormat::Gif => gif::decode(&file),
        MediaFormat::Bmp => bmp::decode(&file),
        MediaFormat::Tiff => tiff::decode(&file),
        format => Err(PictureError::UnsupportedFormat { format }),
    }
}

/// Reads the size of the upright picture from the header, without decoding.
///
/// # Errors
///
/// Like [`decode_picture`], except for damage within the compressed data.
pub fn picture_size(data: &[u8], limits: &PictureLimits) -> Result<Size, PictureError> {
    let header = read_header(data, limits)?;
    Ok(header.orientation.upright_size(header.size))
}

/// Reads the header and checks it against the limits.
fn read_header(data: &[u8], limits: &PictureLimits) -> Result<PictureHeader, PictureError> {
    limits.check_file(data)?;
    let format = MediaFormat::detect(data).ok_or_else(|| PictureError::unknown_format(data))?;
    let header = match format {
        MediaFormat::Jpeg => jpeg::read_header(data, limits)?,
        MediaFormat::Png => png::read_header(data, limits)?,
        MediaFormat::WebP => webp::read_header(data, limits)?,
        MediaFormat::Gif => gif::read_header(data, limits)?,
        MediaFormat::Bmp => bmp::read_header(data, limits)?,
        MediaFormat::Tiff => tiff::read_header(data, limits)?,
        format => return Err(PictureError::UnsupportedFormat { format }),
    };
    limits.check_header(&header)?;
    Ok(header)
}
