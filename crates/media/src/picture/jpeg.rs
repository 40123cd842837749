//! JPEG: baseline and progressive, grey, YCbCr, RGB, CMYK and YCCK.
//!
//! CMYK is read as Adobe's programs write it, with inverted values: no other program writes CMYK.

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;

use super::decoder::{CheckedFile, header_ends};
use super::error::PictureError;
use super::header::PictureHeader;
use super::limits::PictureLimits;
use super::pixels::{CHANNELS, Picture, Size};
use super::tags::exif_orientation;
use crate::byte_reader::ByteReader;
use crate::format::MediaFormat;

const FORMAT: MediaFormat = MediaFormat::Jpeg;
/// Samples of a block, on each side.
const BLOCK_SIDE: u64 = 8;
/// Most scans of a picture. Encoders write about ten; each one visits all blocks.
const MAX_SCANS: usize = 100;

/// Bytes of the markers that the walk through a file distinguishes.
mod marker {
    pub const SOF_BASELINE: u8 = 0xc0;
    pub const SOF_EXTENDED: u8 = 0xc1;
    pub const SOF_PROGRESSIVE: u8 = 0xc2;
    pub const HUFFMAN_TABLES: u8 = 0xc4;
    pub const RESERVED: u8 = 0xc8;
    pub const ARITHMETIC_TABLES: u8 = 0xcc;
    pub const SOF_LAST: u8 = 0xcf;
    pub const RESTART_FIRST: u8 = 0xd0;
    pub const RESTART_LAST: u8 = 0xd7;
    pub const START_OF_IMAGE: u8 = 0xd8;
    pub const END_OF_IMAGE: u8 = 0xd9;
    pub const START_OF_SCAN: u8 = 0xda;
    pub const APP1: u8 = 0xe1;
    pub const TEMPORARY: u8 = 0x01;
}

/// The frame header: size, coding process and components.
#[derive(Debug, Clone)]
struct Frame {
    size: Size,
    progressive: bool,
    /// Horizontal and vertical sampling factor of each component, 1 to 4.
    sampling: Vec<(u64, u64)>,
}

impl Frame {
    /// Number of blocks of all components, in a row or column of whole samples.
    fn blocks(&self) -> u64 {
        let widest = self.sampling.iter().map(|factors| factors.0).max().unwrap_or(1);
        let highest = self.sampling.iter().map(|factors| factors.1).max().unwrap_or(1);
        let (width, height) = (u64::from(self.size.width), u64::from(self.size.height));
        let blocks = |side: u64, factor: u64, largest: u64| {
            (side * factor).div_ceil(largest).div_ceil(BLOCK_SIDE)
        };
        let component = |&(horizontal, vertical)| {
            blocks(width, horizontal, widest) * blocks(height, vertical, highest)
        };
        self.sampling.iter().map(component).sum()
    }

    /// Fewest bytes of entropy-coded data: a code of at least one bit for each block, and a second
    /// one in baseline files.
    fn fewest_bytes(&self) -> u64 {
        let bits_for_block = if self.progressive { 1 } else { 2 };
        (self.blocks() * bits_for_block).div_ceil(8)
    }

    /// Memory of the decoder: the result, and the coefficients of all blocks if there are several
    /// scans. A coefficient has two bytes; the blocks are padded by at most the largest unit.
    fn decoder_bytes(&self, scans: usize) -> u64 {
        let coefficients = if self.progressive || scans > 1 {
            let (width, height) = (u64::from(self.size.width), u64::from(self.size.height));
            let padded = (width + 4 * BLOCK_SIDE) * (height + 4 * BLOCK_SIDE);
            2 * padded * self.sampling.len() as u64
        } else {
            0
        };
        self.size.pixels() * CHANNELS as u64 + coefficients
    }
}

/// Walks through the segments up to the end marker.
pub(crate) fn read_header(
    data: &[u8],
    limits: &PictureLimits,
) -> Result<PictureHeader, PictureError> {
    let ends = || header_ends(FORMAT, data);
    let mut reader = ByteReader::new(data);
    reader.take(2).ok_or_else(ends)?;
    let (mut frame, mut exif, mut scans, mut scan_bytes) = (None, None, 0, 0);
    loop {
        let code = next_marker(&mut reader).ok_or_else(ends)?;
        match code {
            marker::END_OF_IMAGE => break,
            marker::TEMPORARY | marker::RESTART_FIRST..=marker::START_OF_IMAGE => continue,
            _ => {}
        }
        let length = usize::from(reader.u16_be().ok_or_else(ends)?);
        let length = length.checked_sub(2).ok_or_else(|| {
            PictureError::damaged(FORMAT, "a segment is shorter than its length field")
        })?;
        let segment = reader.take(length).ok_or_else(ends)?;
        match code {
            marker::HUFFMAN_TABLES | marker::RESERVED | marker::ARITHMETIC_TABLES => {}
            marker::SOF_BASELINE..=marker::SOF_LAST if frame.is_none() => {
                let found = read_frame(code, segment)?;
                // A size beyond the limits is reported even if the rest of the file is missing.
                limits.check_size(FORMAT, found.size)?;
                frame = Some(found);
            }
            marker::APP1 if exif.is_none() && segment.starts_with(b"Exif\0\0") => {
                exif = Some(segment);
            }
            marker::START_OF_SCAN => {
                scans += 1;
                scan_bytes += skip_scan(&mut reader, data).ok_or_else(ends)?;
            }
            _ => {}
        }
    }
    let frame = frame.filter(|_| scans > 0);
    let frame = frame.ok_or_else(|| PictureError::damaged(FORMAT, "it has no picture data"))?;
    if scans > MAX_SCANS {
        let reason = format!("it has {scans} scans, the limit is {MAX_SCANS}");
        return Err(PictureError::damaged(FORMAT, reason));
    }
    Ok(PictureHeader {
        format: FORMAT,
        size: frame.size,
        fewest_bytes: frame.fewest_bytes(),
        data_bytes: scan_bytes,
        decoder_bytes: frame.decoder_bytes(scans),
        orientation: exif.map(exif_orientation).unwrap_or_default(),
    })
}

/// Reads the code of the next marker, behind fill bytes.
fn next_marker(reader: &mut ByteReader) -> Option<u8> {
    while reader.u8()? != 0xff {}
    loop {
        let code = reader.u8()?;
        if code != 0xff {
            return Some(code);
        }
    }
}

/// Reads a frame header, which the marker `code` starts.
fn read_frame(code: u8, segment: &[u8]) -> Result<Frame, PictureError> {
    let progressive = match code {
        marker::SOF_BASELINE | marker::SOF_EXTENDED => false,
        marker::SOF_PROGRESSIVE => true,
        0xc3 => return Err(PictureError::unsupported(FORMAT, "lossless coding")),
        0xc9..=marker::SOF_LAST => {
            return Err(PictureError::unsupported(FORMAT, "arithmetic coding"));
        }
        _ => return Err(PictureError::unsupported(FORMAT, "hierarchical coding")),
    };
    let frame = parse_frame(progressive, segment);
    let frame = frame.ok_or_else(|| PictureError::damaged(FORMAT, "its frame header is broken"))?;
    match frame {
        (precision, _) if precision != 8 => {
            Err(PictureError::unsupported(FORMAT, format!("samples of {precision} bits")))
        }
        (_, frame) if !matches!(frame.sampling.len(), 1 | 3 | 4) => {
            let components = format!("{} color components", frame.sampling.len());
            Err(PictureError::unsupported(FORMAT, components))
        }
        (_, frame) => Ok(frame),
    }
}

/// Bits of a sample and the frame; `None` if a field is missing or out of range.
fn parse_frame(progressive: bool, segment: &[u8]) -> Option<(u8, Frame)> {
    let mut reader = ByteReader::new(segment);
    let precision = reader.u8()?;
    let (height, width) = (reader.u16_be()?, reader.u16_be()?);
    let components = reader.u8()?;
    let mut sampling = Vec::new();
    for _ in 0..components {
        let [_id, factors, _table] = reader.array()?;
        let (horizontal, vertical) = (u64::from(factors >> 4), u64::from(factors & 15));
        let valid = (1..=4).contains(&horizontal) && (1..=4).contains(&vertical);
        sampling.push(valid.then_some((horizontal, vertical))?);
    }
    let size = Size::new(width.into(), height.into());
    Some((precision, Frame { size, progressive, sampling }))
}

/// Moves to the marker behind entropy-coded data; returns the number of bytes passed.
fn skip_scan(reader: &mut ByteReader, data: &[u8]) -> Option<u64> {
    let scan = &data[reader.position()..];
    let ends = |pair: &[u8]| {
        pair[0] == 0xff
            && !matches!(pair[1], 0 | 0xff | marker::RESTART_FIRST..=marker::RESTART_LAST)
    };
    let length = scan.windows(2).position(ends)?;
    reader.take(length)?;
    Some(length as u64)
}

/// Decodes a file with a checked header.
pub(crate) fn decode(file: &CheckedFile) -> Result<Picture, PictureError> {
    let size = file.header.size;
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(size.width as usize)
        .set_max_height(size.height as usize)
        .jpeg_set_max_scans(MAX_SCANS)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    file.guard(|| {
        let mut rgb = file.buffer(size.pixels() * CHANNELS as u64)?;
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file.data), options);
        decoder.decode_into(&mut rgb).map_err(|error| translate(file, error))?;
        file.picture(rgb)
    })
}

fn translate(file: &CheckedFile, error: DecodeErrors) -> PictureError {
    match error {
        DecodeErrors::ExhaustedData | DecodeErrors::IoErrors(_) => file.truncated(),
        error => PictureError::damaged(FORMAT, error.to_string()),
    }
}
