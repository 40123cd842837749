//! Recognises the format of a medium by its content.
//!
//! Names and media types that a client sends play no part. Formats without a decoder are
//! recognised too, so that an error can name them.

use std::fmt;

/// Bytes at the start of a text in which an SVG element is searched.
const SVG_SEARCH_BYTES: usize = 4096;
/// Largest number of brands of an ISO media file that are compared.
const MAX_BRANDS: usize = 32;

/// A file format of pictures, documents, videos or sounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)] // `name` documents each variant.
pub enum MediaFormat {
    Jpeg,
    Png,
    WebP,
    Gif,
    Bmp,
    Tiff,
    Heic,
    Avif,
    JpegXl,
    Jpeg2000,
    Psd,
    Ico,
    OpenExr,
    RadianceHdr,
    Qoi,
    Netpbm,
    Svg,
    Pdf,
    Mp4,
    QuickTime,
    Matroska,
    Avi,
    Wav,
    Mp3,
    Aac,
    Flac,
    Ogg,
    Aiff,
    M4a,
}

/// How people perceive a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MediaType {
    /// A still picture or a short animation.
    Picture,
    /// A drawing or a text with pages.
    Document,
    /// Moving pictures, with or without sound.
    Video,
    /// Speech or music.
    Sound,
}

impl MediaFormat {
    /// Formats that [`decode_picture`](crate::decode_picture) reads, as a list in a sentence.
    pub const DECODABLE: &str = "JPEG, PNG, WebP, GIF, BMP or TIFF";

    /// Recognises the format by the first bytes; `None` if they fit no known format.
    pub fn detect(data: &[u8]) -> Option<Self> {
        by_signature(data)
            .or_else(|| by_riff_type(data))
            .or_else(|| by_iso_brand(data))
            .or_else(|| is_bmp(data).then_some(Self::Bmp))
            .or_else(|| is_svg(data).then_some(Self::Svg))
            .or_else(|| by_audio_frame(data))
    }

    /// The name that people know the format by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
            Self::Gif => "GIF",
            Self::Bmp => "BMP",
            Self::Tiff => "TIFF",
            Self::Heic => "HEIC",
            Self::Avif => "AVIF",
            Self::JpegXl => "JPEG XL",
            Self::Jpeg2000 => "JPEG 2000",
            Self::Psd => "Photoshop (PSD)",
            Self::Ico => "icon (ICO)",
            Self::OpenExr => "OpenEXR",
            Self::RadianceHdr => "Radiance HDR",
            Self::Qoi => "QOI",
            Self::Netpbm => "Netpbm",
            Self::Svg => "SVG",
            Self::Pdf => "PDF",
            Self::Mp4 => "MP4",
            Self::QuickTime => "QuickTime",
            Self::Matroska => "Matroska or WebM",
            Self::Avi => "AVI",
            Self::Wav => "WAV",
            Self::Mp3 => "MP3",
            Self::Aac => "AAC",
            Self::Flac => "FLAC",
            Self::Ogg => "Ogg",
            Self::Aiff => "AIFF",
            Self::M4a => "M4A",
        }
    }

    /// Whether the format holds pictures, documents, videos or sounds.
    pub fn media_type(self) -> MediaType {
        match self {
            Self::Svg | Self::Pdf => MediaType::Document,
            Self::Mp4 | Self::QuickTime | Self::Matroska | Self::Avi => MediaType::Video,
            Self::Wav | Self::Mp3 | Self::Aac | Self::Flac | Self::Ogg | Self::Aiff | Self::M4a => {
                MediaType::Sound
            }
            _ => MediaType::Picture,
        }
    }
}

impl fmt::Display for MediaFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Formats with a fixed text at the start.
fn by_signature(data: &[u8]) -> Option<MediaFormat> {
    const SIGNATURES: &[(&[u8], MediaFormat)] = &[
        (b"\xff\xd8\xff", MediaFormat::Jpeg),
        (b"\x89PNG\r\n\x1a\n", MediaFormat::Png),
        (b"GIF87a", MediaFormat::Gif),
        (b"GIF89a", MediaFormat::Gif),
        (b"II*\0", MediaFormat::Tiff),
        (b"MM\0*", MediaFormat::Tiff),
        (b"II+\0", MediaFormat::Tiff),
        (b"MM\0+", MediaFormat::Tiff),
        (b"\xff\x0a", MediaFormat::JpegXl),
        (b"\0\0\0\x0cJXL \r\n\x87\n", MediaFormat::JpegXl),
        (b"\0\0\0\x0cjP  \r\n\x87\n", MediaFormat::Jpeg2000),
        (b"\xff\x4f\xff\x51", MediaFormat::Jpeg2000),
        (b"8BPS", MediaFormat::Psd),
        (b"\0\0\x01\0", MediaFormat::Ico),
        (b"\0\0\x02\0", MediaFormat::Ico),
        (b"\x76\x2f\x31\x01", MediaFormat::OpenExr),
        (b"#?RADIANCE", MediaFormat::RadianceHdr),
        (b"qoif", MediaFormat::Qoi),
        (b"%PDF-", MediaFormat::Pdf),
        (b"\x1a\x45\xdf\xa3", MediaFormat::Matroska),
        (b"ID3", MediaFormat::Mp3),
        (b"fLaC", MediaFormat::Flac),
        (b"OggS", MediaFormat::Ogg),
    ];
    if let [b'P', b'1'..=b'7', b' ' | b'\t' | b'\r' | b'\n', ..] = data {
        return Some(MediaFormat::Netpbm);
    }
    SIGNATURES.iter().find(|(start, _)| data.starts_with(start)).map(|&(_, format)| format)
}

/// RIFF and IFF files, which name their content at byte 8.
fn by_riff_type(data: &[u8]) -> Option<MediaFormat> {
    match (data.get(..4)?, data.get(8..12)?) {
        (b"RIFF", b"WEBP") => Some(MediaFormat::WebP),
        (b"RIFF", b"WAVE") => Some(MediaFormat::Wav),
        (b"RIFF", b"AVI ") => Some(MediaFormat::Avi),
        (b"FORM", b"AIFF" | b"AIFC") => Some(MediaFormat::Aiff),
        _ => None,
    }
}

/// ISO media files: the major brand decides, then the compatible brands.
fn by_iso_brand(data: &[u8]) -> Option<MediaFormat> {
    if data.get(4..8)? != b"ftyp" {
        return None;
    }
    let length = u32::from_be_bytes(data.get(..4)?.try_into().ok()?) as usize;
    let major = data.get(8..12)?;
    let end = length.clamp(16, 16 + 4 * MAX_BRANDS).min(data.len());
    let compatible = data.get(16..end).unwrap_or_default().chunks_exact(4);
    let picture = |brand: &[u8]| match brand {
        b"avif" | b"avis" => Some(MediaFormat::Avif),
        b"heic" | b"heix" | b"heim" | b"heis" | b"hevc" | b"hevx" | b"hevm" | b"hevs" => {
            Some(MediaFormat::Heic)
        }
        _ => None,
    };
    let other = match major {
        b"qt  " => MediaFormat::QuickTime,
        b"M4A " | b"M4B " => MediaFormat::M4a,
        // Image files with another codec than AV1 or HEVC.
        b"mif1" | b"msf1" => MediaFormat::Heic,
        _ => MediaFormat::Mp4,
    };
    let of_compatible = || match major {
        b"mif1" | b"msf1" => compatible.clone().find_map(picture),
        _ => None,
    };
    Some(picture(major).or_else(of_compatible).unwrap_or(other))
}

/// A BMP file: the letters BM may also start a text, so the size of its header is compared too.
fn is_bmp(data: &[u8]) -> bool {
    let header_size = data.get(14..18).and_then(|bytes| bytes.try_into().ok());
    data.starts_with(b"BM")
        && matches!(
            header_size.map(u32::from_le_bytes),
            Some(12 | 16 | 40 | 52 | 56 | 64 | 108 | 124)
        )
}

/// A text that has an `<svg` element near its start.
fn is_svg(data: &[u8]) -> bool {
    let text = data.strip_prefix(b"\xef\xbb\xbf").unwrap_or(data).trim_ascii_start();
    let start = &text[..text.len().min(SVG_SEARCH_BYTES)];
    start.starts_with(b"<") && start.windows(4).any(|word| word.eq_ignore_ascii_case(b"<svg"))
}

/// MPEG audio without a tag: the header of its first frame.
fn by_audio_frame(data: &[u8]) -> Option<MediaFormat> {
    let &[0xff, second, third, ..] = data else { return None };
    let (version, layer) = (second >> 3 & 3, second >> 1 & 3);
    if second & 0xf6 == 0xf0 {
        return Some(MediaFormat::Aac);
    }
    let valid = version != 1 && layer != 0 && third >> 4 != 15 && third >> 2 & 3 != 3;
    (second & 0xe0 == 0xe0 && valid).then_some(MediaFormat::Mp3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iso(major: &[u8; 4], compatible: &[&[u8; 4]]) -> Vec<u8> {
        let mut data = (16 + 4 * compatible.len() as u32).to_be_bytes().to_vec();
        data.extend(b"ftyp");
        data.extend(major);
        data.extend([0; 4]);
        data.extend(compatible.iter().copied().flatten());
        data
    }

    #[test]
    fn signatures_name_the_format() {
        for (data, format) in [
            (&b"\xff\xd8\xff\xe0"[..], MediaFormat::Jpeg),
            (b"\x89PNG\r\n\x1a\n....", MediaFormat::Png),
            (b"RIFF....WEBPVP8 ", MediaFormat::WebP),
            (b"RIFF....WAVEfmt ", MediaFormat::Wav),
            (b"RIFF....AVI LIST", MediaFormat::Avi),
            (b"FORM....AIFFCOMM", MediaFormat::Aiff),
            (b"GIF89a", MediaFormat::Gif),
            (b"MM\0*", MediaFormat::Tiff),
            (b"BM\x36\x12\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0", MediaFormat::Bmp),
            (b"\xff\x0a\x10", MediaFormat::JpegXl),
            (b"8BPS\0\x01", MediaFormat::Psd),
            (b"P6\n4 4\n255\n", MediaFormat::Netpbm),
            (b"%PDF-1.7", MediaFormat::Pdf),
            (b"\xef\xbb\xbf\n<?xml version=\"1.0\"?>\n<!-- a --><SVG>", MediaFormat::Svg),
            (b"\x1a\x45\xdf\xa3", MediaFormat::Matroska),
            (b"\xff\xfb\x90\x64", MediaFormat::Mp3),
            (b"ID3\x04", MediaFormat::Mp3),
            (b"\xff\xf1\x50\x80", MediaFormat::Aac),
            (b"fLaC\0\0\0\x22", MediaFormat::Flac),
            (b"OggS\0", MediaFormat::Ogg),
        ] {
            assert_eq!(MediaFormat::detect(data), Some(format), "{}", data.escape_ascii());
        }
    }

    #[test]
    fn brands_name_the_format_of_iso_media_files() {
        for (data, format) in [
            (iso(b"heic", &[b"mif1", b"heic"]), MediaFormat::Heic),
            (iso(b"mif1", &[b"mif1", b"avif", b"miaf"]), MediaFormat::Avif),
            (iso(b"mif1", &[b"mif1", b"heic"]), MediaFormat::Heic),
            (iso(b"avis", &[]), MediaFormat::Avif),
            (iso(b"qt  ", &[b"qt  "]), MediaFormat::QuickTime),
            (iso(b"isom", &[b"isom", b"avc1"]), MediaFormat::Mp4),
            (iso(b"M4A ", &[b"mp42"]), MediaFormat::M4a),
        ] {
            assert_eq!(MediaFormat::detect(&data), Some(format), "{}", data.escape_ascii());
        }
    }

    #[test]
    fn other_bytes_have_no_format() {
        for data in [
            &b""[..],
            b"B",
            b"BMW is a maker of cars and motorcycles",
            b"this is not a picture",
            b"<html><body>svg</body></html>",
            b"\xff",
            b"\xff\xff\xff\xff",
            b"RIFF....ACON",
            b"\0\0\0\x18ftyp",
        ] {
            assert_eq!(MediaFormat::detect(data), None, "{}", data.escape_ascii());
        }
    }

    #[test]
    fn every_format_has_a_media_type() {
        assert_eq!(MediaFormat::Heic.media_type(), MediaType::Picture);
        assert_eq!(MediaFormat::Pdf.media_type(), MediaType::Document);
        assert_eq!(MediaFormat::Matroska.media_type(), MediaType::Video);
        assert_eq!(MediaFormat::M4a.media_type(), MediaType::Sound);
        assert_eq!(MediaFormat::JpegXl.to_string(), "JPEG XL");
    }
}
