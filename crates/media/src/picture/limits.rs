//! Limits for pictures from strangers, checked against the header before decoding.

use super::error::PictureError;
use super::header::PictureHeader;
use super::pixels::{CHANNELS, Size};
use crate::format::MediaFormat;

/// Largest file, picture and decoder memory that [`decode_picture`](super::decode_picture) accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PictureLimits {
    /// Largest file in bytes.
    pub max_file_bytes: u64,
    /// Largest number of pixels of a picture, and of a frame of an animation.
    pub max_pixels: u64,
    /// Largest width and largest height in pixels.
    pub max_side: u32,
    /// Most memory that decoding one picture takes at a time, in bytes.
    pub max_decoder_bytes: u64,
}

impl Default for PictureLimits {
    /// 64 MiB, 100 megapixels, 32,768 pixels for each side and 1 GiB of memory.
    fn default() -> Self {
        Self {
            max_file_bytes: 64 << 20,
            max_pixels: 100_000_000,
            max_side: 1 << 15,
            max_decoder_bytes: 1 << 30,
        }
    }
}

impl PictureLimits {
    /// Rejects files that are empty or too large.
    pub(crate) fn check_file(&self, data: &[u8]) -> Result<(), PictureError> {
        let (bytes, limit) = (data.len() as u64, self.max_file_bytes);
        match bytes {
            0 => Err(PictureError::Empty),
            _ if bytes > limit => Err(PictureError::FileTooLarge { bytes, limit }),
            _ => Ok(()),
        }
    }

    /// Rejects a picture or frame without pixels, with too many, or with too long a side.
    pub(crate) fn check_size(&self, format: MediaFormat, size: Size) -> Result<(), PictureError> {
        if size.is_empty() {
            return Err(PictureError::ZeroSize { format, size });
        }
        if size.pixels() > self.max_pixels {
            return Err(PictureError::TooManyPixels { format, size, limit: self.max_pixels });
        }
        if size.width.max(size.height) > self.max_side {
            return Err(PictureError::SideTooLong { format, size, limit: self.max_side });
        }
        Ok(())
    }

    /// Rejects a picture by the claims of its header.
    pub(crate) fn check_header(&self, header: &PictureHeader) -> Result<(), PictureError> {
        let PictureHeader { format, size, .. } = *header;
        self.check_size(format, size)?;
        if header.fewest_bytes > header.data_bytes {
            let (fewest, found) = (header.fewest_bytes, header.data_bytes);
            return Err(PictureError::TooLittleData { format, size, fewest, found });
        }
        // A turned picture is a copy.
        let turned = size.bytes(2 * CHANNELS as u64);
        let bytes =
            header.decoder_bytes.max(if header.orientation.swaps_sides() { turned } else { 0 });
        if bytes > self.max_decoder_bytes {
            let limit = self.max_decoder_bytes;
            return Err(PictureError::TooMuchMemory { format, size, bytes, limit });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::orientation::Orientation;
    use super::*;

    fn header(width: u32, height: u32) -> PictureHeader {
        PictureHeader {
            format: MediaFormat::Png,
            size: Size::new(width, height),
            fewest_bytes: 10,
            data_bytes: 10,
            decoder_bytes: 1 << 30,
            orientation: Orientation::default(),
        }
    }

    #[test]
    fn limits_are_inclusive() {
        let limits = PictureLimits::default();
        assert_eq!(limits.check_header(&header(10_000, 10_000)), Ok(()));
        assert_eq!(limits.check_header(&header(32_768, 1)), Ok(()));
        assert_eq!(limits.check_file(&[0]), Ok(()));
    }

    #[test]
    fn every_limit_has_an_error_with_both_numbers() {
        let limits = PictureLimits { max_file_bytes: 3, ..PictureLimits::default() };
        let (format, rejected) =
            (MediaFormat::Png, |header| limits.check_header(&header).unwrap_err());
        assert_eq!(limits.check_file(&[]), Err(PictureError::Empty));
        assert_eq!(
            limits.check_file(&[0; 4]),
            Err(PictureError::FileTooLarge { bytes: 4, limit: 3 })
        );
        let size = Size::new(10_001, 10_000);
        assert_eq!(
            rejected(header(10_001, 10_000)),
            PictureError::TooManyPixels { format, size, limit: 100_000_000 }
        );
        let size = Size::new(1, 65_535);
        assert_eq!(
            rejected(header(1, 65_535)),
            PictureError::SideTooLong { format, size, limit: 32_768 }
        );
        let size = Size::new(0, 5);
        assert_eq!(rejected(header(0, 5)), PictureError::ZeroSize { format, size });
        let size = Size::new(5, 5);
        assert_eq!(
            rejected(PictureHeader { data_bytes: 9, ..header(5, 5) }),
            PictureError::TooLittleData { format, size, fewest: 10, found: 9 }
        );
        let (bytes, limit) = ((1 << 30) + 1, 1 << 30);
        assert_eq!(
            rejected(PictureHeader { decoder_bytes: bytes, ..header(5, 5) }),
            PictureError::TooMuchMemory { format, size, bytes, limit }
        );
    }
}
