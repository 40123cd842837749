//! PNG: all color types and depths, interlaced, with transparency. Of an animation, the still
//! picture.

use std::io::Cursor;

use image::Limits;
use image::codecs::png::PngDecoder;

use super::color::conversion_bytes;
use super::decoder::{CheckedFile, header_ends};
use super::error::PictureError;
use super::header::PictureHeader;
use super::limits::PictureLimits;
use super::pixels::{Picture, Size};
use super::tags::exif_orientation;
use crate::byte_reader::ByteReader;
use crate::format::MediaFormat;

const FORMAT: MediaFormat = MediaFormat::Png;
/// Bytes of the signature before the first chunk.
const SIGNATURE_BYTES: usize = 8;
/// Most bytes that one compressed byte of a zlib stream stands for.
const MAX_DEFLATE_RATIO: u64 = 1032;
/// Checksum of the end chunk, which the decoder does not read.
const END_CHECKSUM: &[u8] = &[0xae, 0x42, 0x60, 0x82];
/// Memory for rows, color profiles and texts, in bytes; they are no part of the pixels.
const MAX_METADATA_BYTES: u64 = 64 << 20;

/// The fields of the header chunk that say how large the decoded samples are.
struct ImageHeader {
    size: Size,
    channels: u64,
    /// Bits of a stored sample.
    depth: u64,
    palette: bool,
}

impl ImageHeader {
    fn parse(chunk: &[u8]) -> Option<Self> {
        let mut reader = ByteReader::new(chunk);
        let size = Size::new(reader.u32_be()?, reader.u32_be()?);
        let (depth, color_type) = (reader.u8()?, reader.u8()?);
        let channels = match color_type {
            0 | 3 => 1,
            2 => 3,
            4 => 2,
            6 => 4,
            _ => return None,
        };
        let depth = matches!(depth, 1 | 2 | 4 | 8 | 16).then_some(u64::from(depth))?;
        Some(Self { size, channels, depth, palette: color_type == 3 })
    }

    /// Fewest bytes of a zlib stream for all rows, without their filter bytes.
    fn fewest_bytes(&self) -> u64 {
        let row = (u64::from(self.size.width) * self.channels * self.depth).div_ceil(8);
        (row * u64::from(self.size.height)).div_ceil(MAX_DEFLATE_RATIO)
    }

    /// Memory for the samples that the decoder returns, with an alpha channel for transparency.
    fn decoder_bytes(&self, transparency: bool) -> u64 {
        let colors = if self.palette { 3 } else { self.channels };
        let channels = (colors + u64::from(transparency)).min(4);
        conversion_bytes(self.size.pixels(), channels, self.depth.div_ceil(8))
    }
}

/// Walks through the chunks up to the end chunk.
pub(crate) fn read_header(
    data: &[u8],
    limits: &PictureLimits,
) -> Result<PictureHeader, PictureError> {
    let ends = || header_ends(FORMAT, data);
    let mut reader = ByteReader::new(data);
    reader.take(SIGNATURE_BYTES).ok_or_else(ends)?;
    let (kind, chunk) = next_chunk(&mut reader, data)?;
    let image = Some(chunk).filter(|_| kind == b"IHDR").and_then(ImageHeader::parse);
    let image = image.ok_or_else(|| PictureError::damaged(FORMAT, "its header chunk is broken"))?;
    // A size beyond the limits is reported even if the rest of the file is missing.
    limits.check_size(FORMAT, image.size)?;
    let (mut exif, mut transparency, mut data_bytes) = (None, false, 0);
    loop {
        let (kind, chunk) = next_chunk(&mut reader, data)?;
        match kind {
            b"IDAT" => data_bytes += chunk.len() as u64,
            b"eXIf" => exif = exif.or(Some(chunk)),
            b"tRNS" => transparency = true,
            b"IEND" => break,
            _ => {}
        }
    }
    Ok(PictureHeader {
        format: FORMAT,
        size: image.size,
        fewest_bytes: image.fewest_bytes(),
        data_bytes,
        decoder_bytes: image.decoder_bytes(transparency),
        orientation: exif.map(exif_orientation).unwrap_or_default(),
    })
}

/// Reads the type and content of the next chunk. The decoder compares the other checksums.
fn next_chunk<'a>(
    reader: &mut ByteReader<'a>,
    data: &[u8],
) -> Result<(&'a [u8; 4], &'a [u8]), PictureError> {
    let ends = || header_ends(FORMAT, data);
    let position = reader.position();
    let length = reader.u32_be().ok_or_else(ends)?;
    let kind: &[u8; 4] = reader.take(4).and_then(|kind| kind.try_into().ok()).ok_or_else(ends)?;
    if !kind.iter().all(u8::is_ascii_alphabetic) {
        let reason = format!("the chunk at byte {position} has no valid type");
        return Err(PictureError::damaged(FORMAT, reason));
    }
    let chunk = reader.take(length as usize).ok_or_else(ends)?;
    let checksum = reader.take(4).ok_or_else(ends)?;
    if kind == b"IEND" && checksum != END_CHECKSUM {
        return Err(PictureError::damaged(FORMAT, "the checksum of its end chunk is wrong"));
    }
    Ok((kind, chunk))
}

/// Decodes a file with a checked header.
pub(crate) fn decode(file: &CheckedFile) -> Result<Picture, PictureError> {
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(MAX_METADATA_BYTES);
    file.decode_with(|| PngDecoder::with_limits(Cursor::new(file.data), limits))
}
