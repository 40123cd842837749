//! WebP: lossy and lossless, with transparency. Of an animation, the first frame.

use std::io::Cursor;

use image::codecs::webp::WebPDecoder;

use super::decoder::{CheckedFile, header_ends};
use super::error::PictureError;
use super::header::PictureHeader;
use super::limits::PictureLimits;
use super::pixels::{Picture, Size};
use super::tags::exif_orientation;
use crate::byte_reader::ByteReader;
use crate::format::MediaFormat;

const FORMAT: MediaFormat = MediaFormat::WebP;
/// Bytes of memory for each pixel: a frame of RGBA and the result.
const PIXEL_BYTES: u64 = 4 + 4;
/// Bytes of memory for each pixel of an animation, which has a canvas of RGBA, too.
const ANIMATION_PIXEL_BYTES: u64 = 4 + 4 + 4;
/// Side of the blocks of a lossy stream. Each of them has at least two bits, for its modes.
const BLOCK_SIDE: u32 = 16;
/// Pixels for which no data is expected: a lossless stream of one color has no bits for its pixels,
/// and a frame of an animation may be smaller than the canvas.
const FREE_PIXELS: u64 = 16_000_000;
/// Most other pixels that a byte stands for.
const MAX_RATIO: u64 = 8192;
/// Bytes of a frame header before the chunks of the frame.
const FRAME_HEADER_BYTES: usize = 16;

/// The sizes that the chunks of a file state.
#[derive(Default)]
struct Chunks<'a> {
    canvas: Option<Size>,
    exif: Option<&'a [u8]>,
    /// Size of the first frame in its header, if the file is an animation.
    frame: Option<Size>,
    stream: Option<Stream>,
}

/// The first compressed picture of a file.
#[derive(Clone, Copy)]
struct Stream {
    size: Size,
    lossless: bool,
}

impl Stream {
    /// Fewest bytes that hold a picture of this size.
    fn fewest_bytes(self) -> u64 {
        let Size { width, height } = self.size;
        let blocks = Size::new(width.div_ceil(BLOCK_SIDE), height.div_ceil(BLOCK_SIDE)).pixels();
        if self.lossless { fewest_bytes_of_one_color(self.size) } else { blocks * 2 / 8 }
    }
}

/// Fewest bytes that a picture of one color may have.
fn fewest_bytes_of_one_color(size: Size) -> u64 {
    size.pixels().saturating_sub(FREE_PIXELS) / MAX_RATIO
}

/// Walks through the chunks of the file.
pub(crate) fn read_header(
    data: &[u8],
    limits: &PictureLimits,
) -> Result<PictureHeader, PictureError> {
    let ends = || header_ends(FORMAT, data);
    let mut reader = ByteReader::new(data);
    reader.take(4).ok_or_else(ends)?;
    let length = reader.u32_le().ok_or_else(ends)? as usize;
    // The size of the file counts from its own end. An odd one has a padding byte.
    let content = data.get(8..).and_then(|rest| rest.get(4..length)).ok_or_else(ends)?;
    let chunks = read_chunks(content).ok_or_else(ends)?;
    let stream = chunks.stream;
    let stream = stream.ok_or_else(|| PictureError::damaged(FORMAT, "it has no picture data"))?;
    let size = chunks.canvas.unwrap_or(stream.size);
    limits.check_size(FORMAT, size)?;
    limits.check_size(FORMAT, stream.size)?;
    let expected = chunks.frame.unwrap_or(size);
    if expected != stream.size {
        let found = stream.size;
        let reason = format!("a header claims {expected} pixels and the stream {found}");
        return Err(PictureError::damaged(FORMAT, reason));
    }
    let (pixel_bytes, canvas_bytes) = match chunks.frame {
        Some(_) => (ANIMATION_PIXEL_BYTES, fewest_bytes_of_one_color(size)),
        None => (PIXEL_BYTES, 0),
    };
    Ok(PictureHeader {
        format: FORMAT,
        size,
        fewest_bytes: stream.fewest_bytes().max(canvas_bytes),
        data_bytes: content.len() as u64,
        decoder_bytes: size.bytes(pixel_bytes),
        orientation: chunks.exif.map(exif_orientation).unwrap_or_default(),
    })
}

/// Reads the chunks of a file; `None` if one of them is cut off.
fn read_chunks(content: &[u8]) -> Option<Chunks<'_>> {
    let mut reader = ByteReader::new(content);
    let mut chunks = Chunks::default();
    while reader.position() < content.len() {
        let (kind, chunk) = next_chunk(&mut reader, content)?;
        match kind {
            b"VP8X" => chunks.canvas = chunks.canvas.or(extended_size(chunk)),
            b"EXIF" => chunks.exif = chunks.exif.or(Some(chunk)),
            b"ANMF" if chunks.stream.is_none() => {
                chunks.frame = frame_size(chunk);
                let mut frame = ByteReader::new(chunk);
                frame.take(FRAME_HEADER_BYTES)?;
                while chunks.stream.is_none() && frame.position() < chunk.len() {
                    let (kind, chunk) = next_chunk(&mut frame, chunk)?;
                    chunks.stream = read_stream(kind, chunk);
                }
            }
            kind => chunks.stream = chunks.stream.or_else(|| read_stream(kind, chunk)),
        }
    }
    Some(chunks)
}

/// Reads a chunk and its padding byte, which may be missing at the end.
fn next_chunk<'a>(reader: &mut ByteReader<'a>, content: &[u8]) -> Option<(&'a [u8; 4], &'a [u8])> {
    let kind = reader.take(4)?.try_into().ok()?;
    let length = reader.u32_le()? as usize;
    let chunk = reader.take(length)?;
    if length % 2 == 1 && reader.position() < content.len() {
        reader.take(1)?;
    }
    Some((kind, chunk))
}

/// The canvas of an extended file.
fn extended_size(chunk: &[u8]) -> Option<Size> {
    let mut reader = ByteReader::new(chunk);
    reader.take(4)?;
    Some(Size::new(reader.u24_le()? + 1, reader.u24_le()? + 1))
}

/// The size of a frame of an animation.
fn frame_size(chunk: &[u8]) -> Option<Size> {
    let mut reader = ByteReader::new(chunk);
    reader.take(6)?;
    Some(Size::new(reader.u24_le()? + 1, reader.u24_le()? + 1))
}

/// The compressed stream in a chunk; `None` for other chunks.
fn read_stream(kind: &[u8; 4], chunk: &[u8]) -> Option<Stream> {
    /// The lower 14 bits of a number.
    const SIZE_BITS: u32 = 0x3fff;
    let mut reader = ByteReader::new(chunk);
    match kind {
        b"VP8 " => {
            reader.take(6)?;
            let (width, height) = (reader.u16_le()?, reader.u16_le()?);
            let size = Size::new(u32::from(width) & SIZE_BITS, u32::from(height) & SIZE_BITS);
            Some(Stream { size, lossless: false })
        }
        b"VP8L" => {
            reader.take(1)?;
            let bits = reader.u32_le()?;
            let size = Size::new((bits & SIZE_BITS) + 1, (bits >> 14 & SIZE_BITS) + 1);
            Some(Stream { size, lossless: true })
        }
        _ => None,
    }
}

/// Decodes a file with a checked header.
pub(crate) fn decode(file: &CheckedFile) -> Result<Picture, PictureError> {
    file.decode_with(|| WebPDecoder::new(Cursor::new(file.data)))
}
