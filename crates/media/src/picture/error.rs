//! Errors of pictures, with a stable code for the API, logs and tests.

use super::pixels::Size;
use crate::format::{MediaFormat, MediaType};

/// Longest explanation of a decoder that a message shows, in characters.
const MAX_REASON_CHARS: usize = 160;
/// Bytes of an unknown format that a message shows.
const SHOWN_START_BYTES: usize = 8;

/// Why a picture cannot be decoded.
///
/// Sizes are width and height in pixels before the orientation is applied. The caller adds the
/// place of the picture in the request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message of a variant documents it and its fields.
pub enum PictureError {
    #[error("the picture is empty (0 bytes): send the bytes of a {} file", MediaFormat::DECODABLE)]
    Empty,
    #[error(
        "the format of the picture is unknown, its data starts with {start}: send a {} file",
        MediaFormat::DECODABLE
    )]
    UnknownFormat { start: String },
    #[error("{}", unsupported_format(*.format))]
    UnsupportedFormat { format: MediaFormat },
    #[error("the {format} picture has {feature}, which is not supported: convert it to PNG")]
    UnsupportedFeature { format: MediaFormat, feature: String },

    #[error("the picture file has {bytes} bytes, the limit is {limit} bytes: send a smaller file")]
    FileTooLarge { bytes: u64, limit: u64 },
    #[error(
        "the {format} picture has {size} = {} pixels, the limit is {limit} pixels: scale it down",
        .size.pixels()
    )]
    TooManyPixels { format: MediaFormat, size: Size, limit: u64 },
    #[error(
        "the {format} picture has {size} pixels, the limit is {limit} pixels for each side: scale it down"
    )]
    SideTooLong { format: MediaFormat, size: Size, limit: u32 },
    #[error(
        "decoding the {format} picture of {size} pixels takes {bytes} bytes of memory, the limit is {limit} bytes: scale it down"
    )]
    TooMuchMemory { format: MediaFormat, size: Size, bytes: u64, limit: u64 },
    #[error("the {format} picture has no pixels ({size}): send a picture of at least 1x1 pixels")]
    ZeroSize { format: MediaFormat, size: Size },

    #[error(
        "the {format} header claims {size} pixels, which take at least {fewest} bytes, but there are {found}: send the whole file"
    )]
    TooLittleData { format: MediaFormat, size: Size, fewest: u64, found: u64 },
    #[error(
        "the {format} picture is truncated, its data ends after {bytes} bytes: send the whole file"
    )]
    Truncated { format: MediaFormat, bytes: u64 },
    #[error("the {format} picture is damaged: {reason}: send an intact file")]
    Damaged { format: MediaFormat, reason: String },
}

impl PictureError {
    /// A stable word for the kind of error: `empty`, `unknown_format`, `unsupported_format`,
    /// `too_large`, `zero_size`, `truncated` or `broken`.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::UnknownFormat { .. } => "unknown_format",
            Self::UnsupportedFormat { .. } | Self::UnsupportedFeature { .. } => {
                "unsupported_format"
            }
            Self::FileTooLarge { .. }
            | Self::TooManyPixels { .. }
            | Self::SideTooLong { .. }
            | Self::TooMuchMemory { .. } => "too_large",
            Self::ZeroSize { .. } => "zero_size",
            Self::TooLittleData { .. } | Self::Truncated { .. } => "truncated",
            Self::Damaged { .. } => "broken",
        }
    }

    /// The error for data of an unknown format.
    pub(crate) fn unknown_format(data: &[u8]) -> Self {
        let start = &data[..data.len().min(SHOWN_START_BYTES)];
        Self::UnknownFormat { start: format!("\"{}\"", start.escape_ascii()) }
    }

    /// The error for data that contradicts its format.
    pub(crate) fn damaged(format: MediaFormat, reason: impl Into<String>) -> Self {
        Self::Damaged { format, reason: printable(&reason.into()) }
    }

    /// The error for a variant of a format that no decoder reads.
    pub(crate) fn unsupported(format: MediaFormat, feature: impl Into<String>) -> Self {
        Self::UnsupportedFeature { format, feature: printable(&feature.into()) }
    }
}

/// The explanation of a decoder as one short line without control characters.
fn printable(reason: &str) -> String {
    let line = reason.trim().trim_end_matches('.');
    let line = line.chars().map(|c| if c.is_control() { ' ' } else { c });
    line.take(MAX_REASON_CHARS).collect()
}

/// The message for a known format without a decoder.
fn unsupported_format(format: MediaFormat) -> String {
    match (format, format.media_type()) {
        (MediaFormat::Pdf, _) => {
            "PDF documents are not supported: convert each page to a PNG or JPEG picture".into()
        }
        (MediaFormat::Svg, _) => {
            "SVG drawings are not supported: convert the drawing to a PNG picture".into()
        }
        (_, MediaType::Video) => format!(
            "a video ({format}) was sent as a picture, videos are not supported: send single frames as JPEG or PNG pictures"
        ),
        (_, MediaType::Sound) => format!(
            "a sound ({format}) was sent as a picture: send a {} file",
            MediaFormat::DECODABLE
        ),
        _ => format!("{format} pictures are not supported: convert the picture to JPEG or PNG"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_format_and_the_remedy() {
        for (format, text) in [
            (
                MediaFormat::Heic,
                "HEIC pictures are not supported: convert the picture to JPEG or PNG",
            ),
            (
                MediaFormat::Pdf,
                "PDF documents are not supported: convert each page to a PNG or JPEG picture",
            ),
            (
                MediaFormat::Mp4,
                "a video (MP4) was sent as a picture, videos are not supported: send single frames as JPEG or PNG pictures",
            ),
            (
                MediaFormat::Wav,
                "a sound (WAV) was sent as a picture: send a JPEG, PNG, WebP, GIF, BMP or TIFF file",
            ),
        ] {
            assert_eq!(PictureError::UnsupportedFormat { format }.to_string(), text);
        }
    }

    #[test]
    fn messages_have_the_numbers() {
        let size = Size::new(20_000, 20_000);
        let error = PictureError::TooManyPixels { format: MediaFormat::Png, size, limit: 100 };
        assert_eq!(
            error.to_string(),
            "the PNG picture has 20000x20000 = 400000000 pixels, the limit is 100 pixels: scale it down"
        );
        assert_eq!(error.code(), "too_large");
    }

    #[test]
    fn explanations_of_decoders_are_one_short_line() {
        let reason = format!("bad\x1b[31m\nchunk {}.", "x".repeat(500));
        let PictureError::Damaged { reason, .. } = PictureError::damaged(MediaFormat::Png, reason)
        else {
            unreachable!()
        };
        assert!(reason.starts_with("bad [31m chunk xxx"));
        assert_eq!(reason.chars().count(), MAX_REASON_CHARS);
        assert_eq!(
            PictureError::unknown_format(b"\0\x1bab").to_string(),
            "the format of the picture is unknown, its data starts with \"\\x00\\x1bab\": send a JPEG, PNG, WebP, GIF, BMP or TIFF file"
        );
    }
}
