//! GIF: the first frame, on the canvas of the animation.

use std::io::Cursor;

use image::codecs::gif::GifDecoder;

use super::decoder::{CheckedFile, header_ends};
use super::error::PictureError;
use super::header::PictureHeader;
use super::limits::PictureLimits;
use super::orientation::Orientation;
use super::pixels::{Picture, Size};
use crate::byte_reader::ByteReader;
use crate::format::MediaFormat;

const FORMAT: MediaFormat = MediaFormat::Gif;
/// Bytes of the signature before the logical screen.
const SIGNATURE_BYTES: usize = 6;
/// Most pixels that a byte of compressed data stands for: a code of three bits or more names at
/// most 4,096 pixels.
const MAX_LZW_RATIO: u64 = 4096 * 8 / 3 + 1;
/// Bytes of a decoded pixel (RGBA).
const PIXEL_BYTES: u64 = 4;

/// Codes that begin a block.
mod block {
    /// Some encoders write zeros between blocks.
    pub const PADDING: u8 = 0;
    pub const EXTENSION: u8 = 0x21;
    pub const IMAGE: u8 = 0x2c;
    pub const TRAILER: u8 = 0x3b;
}

/// Walks through the blocks up to the trailer.
pub(crate) fn read_header(
    data: &[u8],
    limits: &PictureLimits,
) -> Result<PictureHeader, PictureError> {
    let ends = || header_ends(FORMAT, data);
    let mut reader = ByteReader::new(data);
    reader.take(SIGNATURE_BYTES).ok_or_else(ends)?;
    let (size, flags) = read_screen(&mut reader).ok_or_else(ends)?;
    // A size beyond the limits is reported even if the rest of the file is missing.
    limits.check_size(FORMAT, size)?;
    skip_palette(&mut reader, flags).ok_or_else(ends)?;
    let mut first_frame = None;
    loop {
        match reader.u8().ok_or_else(ends)? {
            block::PADDING => {}
            block::EXTENSION => {
                reader.u8().ok_or_else(ends)?;
                skip_sub_blocks(&mut reader).ok_or_else(ends)?;
            }
            block::IMAGE => {
                let frame = skip_image(&mut reader).ok_or_else(ends)?;
                first_frame = first_frame.or(Some(frame));
            }
            block::TRAILER => break,
            code if first_frame.is_none() => {
                let reason = format!("a block starts with the unknown code {code}");
                return Err(PictureError::damaged(FORMAT, reason));
            }
            // Data behind the first frame is not decoded.
            _ => break,
        }
    }
    let frame = first_frame.ok_or_else(|| PictureError::damaged(FORMAT, "it has no frame"))?;
    limits.check_size(FORMAT, frame)?;
    Ok(PictureHeader {
        format: FORMAT,
        size,
        fewest_bytes: size.pixels().max(frame.pixels()).div_ceil(MAX_LZW_RATIO),
        data_bytes: data.len() as u64,
        decoder_bytes: size.bytes(PIXEL_BYTES).saturating_add(frame.bytes(PIXEL_BYTES)),
        orientation: Orientation::default(),
    })
}

/// The canvas and the flags of the global palette.
fn read_screen(reader: &mut ByteReader) -> Option<(Size, u8)> {
    let size = Size::new(reader.u16_le()?.into(), reader.u16_le()?.into());
    let [flags, _background, _aspect] = reader.array()?;
    Some((size, flags))
}

/// Passes a palette, if the flags announce one.
fn skip_palette(reader: &mut ByteReader, flags: u8) -> Option<()> {
    let colors = if flags & 0x80 != 0 { 2 << (flags & 7) } else { 0 };
    reader.take(3 * colors).map(|_| ())
}

/// Passes sub-blocks up to an empty one.
fn skip_sub_blocks(reader: &mut ByteReader) -> Option<()> {
    loop {
        let length = reader.u8()?;
        if length == 0 {
            return Some(());
        }
        reader.take(length.into())?;
    }
}

/// Passes a frame and returns its size.
fn skip_image(reader: &mut ByteReader) -> Option<Size> {
    let (_left, _top) = (reader.u16_le()?, reader.u16_le()?);
    let size = Size::new(reader.u16_le()?.into(), reader.u16_le()?.into());
    let flags = reader.u8()?;
    skip_palette(reader, flags)?;
    let _code_size = reader.u8()?;
    skip_sub_blocks(reader)?;
    Some(size)
}

/// Decodes a file with a checked header.
pub(crate) fn decode(file: &CheckedFile) -> Result<Picture, PictureError> {
    file.decode_with(|| GifDecoder::new(Cursor::new(file.data)))
}
