//! BMP: 1 to 32 bits for a pixel, with palettes and run-length encoding.

use std::io::Cursor;

use image::codecs::bmp::BmpDecoder;

use super::decoder::{CheckedFile, header_ends};
use super::error::PictureError;
use super::header::PictureHeader;
use super::limits::PictureLimits;
use super::orientation::Orientation;
use super::pixels::{Picture, Size};
use crate::byte_reader::ByteReader;
use crate::format::MediaFormat;

const FORMAT: MediaFormat = MediaFormat::Bmp;
/// Bytes of the file header before the bitmap header.
const FILE_HEADER_BYTES: usize = 14;
/// Size of the oldest bitmap header, which has sides of 16 bits.
const CORE_HEADER_BYTES: u32 = 12;
/// Bytes of a decoded pixel (RGB or RGBA).
const PIXEL_BYTES: u64 = 4;
/// Most pixels that a byte of run-length encoded data stands for: a run has two bytes.
const MAX_RUN_RATIO: u64 = 128;

/// Reads the bitmap header.
pub(crate) fn read_header(
    data: &[u8],
    limits: &PictureLimits,
) -> Result<PictureHeader, PictureError> {
    let bitmap = parse(data).ok_or_else(|| header_ends(FORMAT, data))?;
    let size = bitmap.size;
    limits.check_size(FORMAT, size)?;
    let fewest_bytes = match bitmap.compression {
        1 | 2 => size.pixels().div_ceil(MAX_RUN_RATIO),
        // Uncompressed rows are multiples of four bytes.
        _ => u64::from(size.height) * (u64::from(size.width) * bitmap.bits).div_ceil(32) * 4,
    };
    Ok(PictureHeader {
        format: FORMAT,
        size,
        fewest_bytes,
        data_bytes: data.len() as u64,
        decoder_bytes: size.bytes(PIXEL_BYTES),
        orientation: Orientation::default(),
    })
}

/// The fields of a bitmap header.
struct Bitmap {
    size: Size,
    /// Bits of a pixel.
    bits: u64,
    /// 0 for none, 1 and 2 for run lengths, 3 for none with bit masks.
    compression: u32,
}

fn parse(data: &[u8]) -> Option<Bitmap> {
    let mut reader = ByteReader::new(data);
    reader.take(FILE_HEADER_BYTES)?;
    if reader.u32_le()? == CORE_HEADER_BYTES {
        let size = Size::new(reader.u16_le()?.into(), reader.u16_le()?.into());
        let (_planes, bits) = (reader.u16_le()?, reader.u16_le()?);
        return Some(Bitmap { size, bits: bits.into(), compression: 0 });
    }
    // A negative height means that the first row is the top one.
    let (width, height) = (reader.u32_le()?, reader.u32_le()?.cast_signed().unsigned_abs());
    let (_planes, bits) = (reader.u16_le()?, reader.u16_le()?);
    let compression = reader.u32_le()?;
    Some(Bitmap { size: Size::new(width, height), bits: bits.into(), compression })
}

/// Decodes a file with a checked header.
pub(crate) fn decode(file: &CheckedFile) -> Result<Picture, PictureError> {
    file.decode_with(|| BmpDecoder::new(Cursor::new(file.data)))
}
