//! Runs the decoders of the `image` crate within limits, and translates their errors.

use std::error::Error;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image::error::ImageError;
use image::{ImageDecoder, Limits};

use super::color::to_rgb;
use super::error::PictureError;
use super::header::PictureHeader;
use super::limits::PictureLimits;
use super::pixels::{Picture, Size};
use crate::format::MediaFormat;

/// A file and the checked claims of its header.
pub(crate) struct CheckedFile<'a> {
    pub data: &'a [u8],
    pub header: &'a PictureHeader,
    pub limits: &'a PictureLimits,
}

impl CheckedFile<'_> {
    /// Limits for a decoder: it may not take more memory than the header justifies.
    pub fn decoder_limits(&self) -> Limits {
        let mut limits = Limits::no_limits();
        limits.max_image_width = Some(self.header.size.width);
        limits.max_image_height = Some(self.header.size.height);
        limits.max_alloc = Some(self.limits.max_decoder_bytes);
        limits
    }

    /// Decodes with a decoder of the `image` crate.
    pub fn decode_with<D: ImageDecoder>(
        &self,
        open: impl FnOnce() -> Result<D, ImageError>,
    ) -> Result<Picture, PictureError> {
        let format = self.header.format;
        self.guard(|| {
            let mut decoder = open().map_err(|error| self.translate(error))?;
            let (width, height) = decoder.dimensions();
            if Size::new(width, height) != self.header.size {
                let reason = format!("the decoder finds {width}x{height} pixels");
                return Err(PictureError::damaged(format, reason));
            }
            decoder.set_limits(self.decoder_limits()).map_err(|error| self.translate(error))?;
            let (color, bytes) = (decoder.color_type(), decoder.total_bytes());
            let mut samples = self.buffer(bytes)?;
            decoder.read_image(&mut samples).map_err(|error| self.translate(error))?;
            let rgb = to_rgb(samples, color).ok_or_else(|| {
                PictureError::unsupported(format, format!("samples of type {color:?}"))
            })?;
            self.picture(rgb)
        })
    }

    /// A buffer of `bytes` zeros, within the limit for memory.
    pub fn buffer(&self, bytes: u64) -> Result<Vec<u8>, PictureError> {
        let limit = self.limits.max_decoder_bytes;
        let too_much = PictureError::TooMuchMemory {
            format: self.header.format,
            size: self.header.size,
            bytes,
            limit,
        };
        let mut buffer = Vec::new();
        let length = usize::try_from(bytes).ok().filter(|_| bytes <= limit);
        let length = length.filter(|&length| buffer.try_reserve_exact(length).is_ok());
        buffer.resize(length.ok_or(too_much)?, 0);
        Ok(buffer)
    }

    /// The picture of decoded RGB values, brought upright.
    pub fn picture(&self, rgb: Vec<u8>) -> Result<Picture, PictureError> {
        let stored = Picture::from_rgb(self.header.size, rgb);
        let stored = stored.ok_or_else(|| {
            PictureError::damaged(self.header.format, "the decoder returns too few pixels")
        })?;
        Ok(self.header.orientation.apply(stored))
    }

    /// Runs a decoder; a panic in it becomes an error.
    pub fn guard<T>(
        &self,
        decode: impl FnOnce() -> Result<T, PictureError>,
    ) -> Result<T, PictureError> {
        catch_unwind(AssertUnwindSafe(decode))
            .unwrap_or_else(|_| Err(PictureError::damaged(self.header.format, DECODER_PANIC)))
    }

    /// The error for data that ends too early.
    pub fn truncated(&self) -> PictureError {
        PictureError::Truncated { format: self.header.format, bytes: self.data.len() as u64 }
    }

    fn translate(&self, error: ImageError) -> PictureError {
        let PictureHeader { format, size, decoder_bytes, .. } = *self.header;
        match error {
            _ if ends_too_early(&error) => self.truncated(),
            ImageError::Unsupported(error) => {
                PictureError::unsupported(format, unsupported_feature(&error.kind()))
            }
            ImageError::Limits(_) => PictureError::TooMuchMemory {
                format,
                size,
                bytes: decoder_bytes,
                limit: self.limits.max_decoder_bytes,
            },
            ImageError::Decoding(error) => {
                // The source has the decoder's own words, without the name of the format.
                let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                PictureError::damaged(format, reason)
            }
            error => PictureError::damaged(format, error.to_string()),
        }
    }
}

/// The explanation for a panic in a decoder.
pub(crate) const DECODER_PANIC: &str = "the decoder fails on it";

/// Whether an error or one of its sources is the end of the data.
fn ends_too_early(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let end = error.downcast_ref().map(io::Error::kind) == Some(io::ErrorKind::UnexpectedEof);
        if end {
            return true;
        }
        next = error.source();
    }
    false
}

fn unsupported_feature(kind: &image::error::UnsupportedErrorKind) -> String {
    use image::error::UnsupportedErrorKind as Kind;
    match kind {
        Kind::Color(color) => format!("the color type {color:?}"),
        Kind::GenericFeature(feature) => format!("the feature \"{feature}\""),
        _ => "a feature without a decoder".into(),
    }
}

/// The error for a header that ends before its last field.
pub(crate) fn header_ends(format: MediaFormat, data: &[u8]) -> PictureError {
    PictureError::Truncated { format, bytes: data.len() as u64 }
}
