//! TIFF: the first page, grey, RGB or CMYK of 8 or 16 bits, in strips or tiles.

use std::io::Cursor;

use image::codecs::tiff::TiffDecoder;

use super::color::conversion_bytes;
use super::decoder::{CheckedFile, header_ends};
use super::error::PictureError;
use super::header::PictureHeader;
use super::limits::PictureLimits;
use super::pixels::{Picture, Size};
use super::tags::TagDirectory;
use crate::format::MediaFormat;

const FORMAT: MediaFormat = MediaFormat::Tiff;

/// Value of the photometric tag for samples that are indices of a palette.
const PALETTE: u32 = 3;

/// Numbers of the tags that say how large the picture is.
mod tag {
    /// Pixels of a row.
    pub const WIDTH: u16 = 256;
    pub const HEIGHT: u16 = 257;
    pub const BITS_PER_SAMPLE: u16 = 258;
    pub const COMPRESSION: u16 = 259;
    pub const PHOTOMETRIC: u16 = 262;
    pub const SAMPLES_PER_PIXEL: u16 = 277;
    pub const STRIP_BYTES: u16 = 279;
    pub const TILE_BYTES: u16 = 325;
}

/// Reads the first directory.
pub(crate) fn read_header(
    data: &[u8],
    limits: &PictureLimits,
) -> Result<PictureHeader, PictureError> {
    let ends = || header_ends(FORMAT, data);
    if matches!(data.get(..4), Some(b"II+\0" | b"MM\0+")) {
        return Err(PictureError::unsupported(FORMAT, "the BigTIFF structure"));
    }
    let tags = TagDirectory::first(data).ok_or_else(ends)?;
    let (width, height) = (tags.value(tag::WIDTH), tags.value(tag::HEIGHT));
    let size = width.zip(height).map(|(width, height)| Size::new(width, height));
    let size =
        size.ok_or_else(|| PictureError::damaged(FORMAT, "it states no width and height"))?;
    limits.check_size(FORMAT, size)?;
    let lengths = [tag::STRIP_BYTES, tag::TILE_BYTES].into_iter().find(|&tag| tags.contains(tag));
    // The length may be missing in a file with a single strip.
    let stored = lengths.map_or(Some(data.len() as u64), |tag| tags.sum(tag)).ok_or_else(ends)?;
    if stored > data.len() as u64 {
        return Err(ends());
    }
    if tags.value(tag::PHOTOMETRIC) == Some(PALETTE) {
        return Err(PictureError::unsupported(FORMAT, "a color palette"));
    }
    let samples = u64::from(tags.value(tag::SAMPLES_PER_PIXEL).unwrap_or(1));
    let bits = u64::from(tags.max(tag::BITS_PER_SAMPLE).unwrap_or(1));
    let decoded = size.bytes(samples).saturating_mul(bits) / 8;
    // The decoder has a copy of the samples.
    let converted = conversion_bytes(size.pixels(), samples.min(4), bits.div_ceil(8));
    let decoder_bytes = decoded.saturating_add(converted);
    let compression = tags.value(tag::COMPRESSION).unwrap_or(1);
    Ok(PictureHeader {
        format: FORMAT,
        size,
        fewest_bytes: fewest_bytes(compression, decoded, size),
        data_bytes: stored,
        decoder_bytes,
        orientation: tags.orientation(),
    })
}

/// Fewest bytes of strips or tiles that hold `decoded` bytes of samples.
fn fewest_bytes(compression: u32, decoded: u64, size: Size) -> u64 {
    match compression {
        // A row of a fax has at least one bit.
        2..=4 => u64::from(size.height).div_ceil(8),
        // A code of LZW has at least nine bits and names at most 4,096 bytes.
        5 => decoded / (4096 * 8 / 9),
        // A block of JPEG has at least one bit for 64 samples.
        6 | 7 => size.pixels() / (64 * 8),
        8 | 32946 => decoded / 1032,
        // A run of PackBits has two bytes for at most 128.
        32773 => decoded / 64,
        1 => decoded,
        // The decoder rejects other methods.
        _ => 1,
    }
}

/// Decodes a file with a checked header.
pub(crate) fn decode(file: &CheckedFile) -> Result<Picture, PictureError> {
    file.decode_with(|| TiffDecoder::new(Cursor::new(file.data)))
}
