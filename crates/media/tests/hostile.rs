//! Hostile files end in an error that names the limit and the numbers, before memory is allocated.
//!
//! Errors of headers come from [`picture_size`] too, which never starts a decoder.

use std::time::{Duration, Instant};

use puna_media::{PictureError, PictureLimits, Size, decode_picture, picture_size};

use crate::cases::all_cases;
use crate::common::read_image;

/// Mutations of each recorded file.
const MUTATIONS: u64 = 2000;

/// The error that the header alone gives; decoding gives the same one.
fn header_error(data: &[u8]) -> PictureError {
    let limits = PictureLimits::default();
    let error = picture_size(data, &limits).unwrap_err();
    assert_eq!(decode_picture(data, &limits).unwrap_err(), error);
    error
}

/// Recorded files of a decodable format, small enough to try each of their bytes.
fn small_files() -> impl Iterator<Item = (String, Vec<u8>)> {
    let files = all_cases().into_iter().map(|case| {
        let data = read_image(&case.file);
        (case.file, data)
    });
    files.filter(|(_, data)| !data.is_empty() && data.len() < 10_000)
}

#[test]
fn every_truncated_file_is_an_error() {
    let limits = PictureLimits::default();
    let mut files = 0;
    for (name, data) in small_files() {
        let Ok(whole) = decode_picture(&data, &limits) else { continue };
        // Bytes behind the end of the picture may be missing.
        if name == "more/padded.jpg" {
            continue;
        }
        files += 1;
        for length in 0..data.len() {
            let decoded = decode_picture(&data[..length], &limits);
            let error = decoded.map(|picture| format!("{picture:?} of {whole:?}"));
            let error = error.expect_err(&format!("{length} bytes of {name}"));
            let codes = ["empty", "truncated", "unknown_format", "broken"];
            assert!(codes.contains(&error.code()), "{length} bytes of {name}: {error}");
        }
    }
    assert_eq!(files, 66);
}

#[test]
fn mutated_files_never_panic_or_exceed_limits() {
    // Small limits keep the time of each file short.
    let limits = PictureLimits {
        max_pixels: 1 << 18,
        max_decoder_bytes: 16 << 20,
        ..PictureLimits::default()
    };
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let (mut decoded, mut rejected) = (0, 0);
    for (name, data) in small_files() {
        for number in 0..MUTATIONS {
            let mut mutated = data.clone();
            for _ in 0..1 + number % 4 {
                let at = (next() % mutated.len() as u64) as usize;
                mutated[at] = match next() % 4 {
                    0 => 0,
                    1 => 0xff,
                    2 => mutated[at] ^ (1 << (next() % 8)),
                    _ => next() as u8,
                };
            }
            if number % 8 == 7 {
                mutated.truncate((next() % mutated.len() as u64) as usize);
            }
            match decode_picture(&mutated, &limits) {
                Ok(picture) => {
                    assert!(picture.size().pixels() <= limits.max_pixels);
                    decoded += 1;
                }
                Err(error) => {
                    assert!(!error.to_string().contains("the decoder fails"), "{name} {number}");
                    rejected += 1;
                }
            }
        }
    }
    assert!(decoded > 1000 && rejected > 1000, "{decoded} decoded, {rejected} rejected");
}

#[test]
fn sizes_beyond_the_limits_are_rejected_by_the_header() {
    let start = Instant::now();
    let (large, thin) = (Size::square(65_535), Size::new(1, 65_535));
    let (many, nothing) = (Size::square(20_000), Size::new(0, 5));
    for (format, file) in formats() {
        for (size, code, numbers) in [
            (large, "too_large", ["65535x65535 = 4294836225 pixels", "limit is 100000000 pixels"]),
            (many, "too_large", ["20000x20000 = 400000000 pixels", "limit is 100000000 pixels"]),
            (thin, "too_large", ["1x65535 pixels", "limit is 32768 pixels"]),
            (nothing, "zero_size", ["no pixels", "(0x5)"]),
        ] {
            let error = header_error(&file(size));
            assert_eq!(error.code(), code, "{format} {size}: {error}");
            let message = error.to_string();
            assert!(message.contains(format), "{format} {size}: {message}");
            assert!(numbers.iter().all(|&number| message.contains(number)), "{message}");
        }
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[test]
fn headers_that_claim_more_than_the_data_holds_are_rejected() {
    for (format, file) in formats() {
        let error = header_error(&file(Size::new(9_000, 11_000)));
        assert_eq!(error.code(), "truncated", "{format}: {error}");
        assert!(error.to_string().contains("9000x11000 pixels, which take"), "{error}");
    }
}

#[test]
fn a_lossless_webp_may_claim_a_usual_size_without_data() {
    // A stream of one color has no bits for its pixels: the decoder finds the end.
    let webp = |size: Size| {
        let bits = (size.width - 1) | (size.height - 1) << 14;
        riff(&chunk_le(b"VP8L", &[&[0x2f][..], &bits.to_le_bytes()].concat()))
    };
    assert_eq!(header_error(&webp(Size::square(16_384))).code(), "too_large");
    assert_eq!(header_error(&webp(Size::square(9_000))).code(), "truncated");
    let limits = PictureLimits::default();
    assert_eq!(picture_size(&webp(Size::new(64, 48)), &limits), Ok(Size::new(64, 48)));
    let error = decode_picture(&webp(Size::new(64, 48)), &limits).unwrap_err();
    assert!(["truncated", "broken"].contains(&error.code()), "{error}");
}

#[test]
fn frames_that_contradict_their_canvas_are_rejected() {
    let gif = |frame: Size| gif_file(Size::new(48, 32), frame, &[2, 0x4c, 1]);
    let error = header_error(&gif(Size::square(65_535)));
    assert_eq!(error.code(), "too_large", "{error}");
    let error = header_error(&gif(Size::square(9_000)));
    assert_eq!(error.code(), "truncated", "{error}");
    // An animation with a canvas of 8,448 x 8,448 pixels and a frame of one.
    let side = [0xff, 0x20, 0];
    let canvas = chunk_le(b"VP8X", &[&[2, 0, 0, 0][..], &side, &side].concat());
    let frame = [&[0; 16][..], &chunk_le(b"VP8L", &[0x2f, 0, 0, 0, 0, 0])].concat();
    let chunks = [canvas, chunk_le(b"ANIM", &[0; 6]), chunk_le(b"ANMF", &frame)].concat();
    let error = header_error(&riff(&chunks));
    assert_eq!(error.code(), "truncated", "{error}");
    let vp8x = chunk_le(b"VP8X", &[0, 0, 0, 0, 47, 0, 0, 31, 0, 0]);
    let bits = 16_000_u32 | 6_000 << 14;
    let vp8l = chunk_le(b"VP8L", &[&[0x2f][..], &bits.to_le_bytes()].concat());
    let error = header_error(&riff(&[vp8x, vp8l].concat()));
    assert_eq!(
        error.to_string(),
        "the WebP picture is damaged: a header claims 48x32 pixels and the stream 16001x6001: send an intact file"
    );
}

#[test]
fn every_wrong_checksum_of_a_png_is_an_error() {
    let whole = read_image("png-palette.png");
    let mut at = 8;
    let mut chunks = 0;
    while at < whole.len() {
        let length = u32::from_be_bytes(whole[at..at + 4].try_into().unwrap()) as usize;
        let mut broken = whole.clone();
        broken[at + 8 + length] ^= 1;
        let error = decode_picture(&broken, &PictureLimits::default()).unwrap_err();
        assert_eq!(error.code(), "broken", "the chunk at byte {at}: {error}");
        (at, chunks) = (at + 12 + length, chunks + 1);
    }
    assert_eq!(chunks, 4);
}

#[test]
fn every_limit_is_compared_with_the_file() {
    let data = read_image("png-rgb.png");
    let limits = |change: fn(&mut PictureLimits)| {
        let mut limits = PictureLimits::default();
        change(&mut limits);
        decode_picture(&data, &limits)
    };
    assert!(limits(|limits| limits.max_file_bytes = 556).is_ok());
    assert!(limits(|limits| limits.max_pixels = 48 * 32).is_ok());
    assert!(limits(|limits| limits.max_side = 48).is_ok());
    assert!(limits(|limits| limits.max_decoder_bytes = 48 * 32 * 3).is_ok());
    for result in [
        limits(|limits| limits.max_file_bytes = 555),
        limits(|limits| limits.max_pixels = 48 * 32 - 1),
        limits(|limits| limits.max_side = 47),
        limits(|limits| limits.max_decoder_bytes = 48 * 32 * 3 - 1),
    ] {
        assert_eq!(result.unwrap_err().code(), "too_large");
    }
}

/// Makes a file with a valid header for a size, and hardly any data.
type MakeFile = fn(Size) -> Vec<u8>;

/// Formats with headers that can claim every size of the tests.
fn formats() -> [(&'static str, MakeFile); 5] {
    [
        ("PNG", png_file),
        ("JPEG", jpeg_file),
        ("GIF", whole_gif_file),
        ("BMP", bmp_file),
        ("TIFF", tiff_file),
    ]
}

fn png_file(size: Size) -> Vec<u8> {
    let header = [&size.width.to_be_bytes()[..], &size.height.to_be_bytes(), &[1, 0, 0, 0, 0]];
    let chunks = [
        (b"IHDR", header.concat()),
        (b"IDAT", b"\x78\x9c\x63\x60\x00\x00\x00\x02\x00\x01".to_vec()),
    ];
    let chunks = chunks.map(|(kind, data)| {
        let length = data.len() as u32;
        [&length.to_be_bytes()[..], kind, &data, &[0; 4]].concat()
    });
    let end = b"\0\0\0\0IEND\xae\x42\x60\x82";
    [&b"\x89PNG\r\n\x1a\n"[..], &chunks.concat(), end].concat()
}

fn jpeg_file(size: Size) -> Vec<u8> {
    let sides = [size.height, size.width].map(|side| (side as u16).to_be_bytes()).concat();
    let frame = [&[0xff, 0xc2, 0, 11, 8][..], &sides, &[1, 1, 0x11, 0]].concat();
    let scan = [0xff, 0xda, 0, 8, 1, 1, 0, 0, 0, 0, 0x55, 0x55, 0xff, 0xd9];
    [&[0xff, 0xd8][..], &frame, &scan].concat()
}

fn whole_gif_file(size: Size) -> Vec<u8> {
    gif_file(size, Size::square(1), &[2, 0x4c, 1])
}

fn gif_file(canvas: Size, frame: Size, data: &[u8]) -> Vec<u8> {
    let sides =
        |size: Size| [size.width, size.height].map(|side| (side as u16).to_le_bytes()).concat();
    let screen = [&b"GIF89a"[..], &sides(canvas), &[0x80, 0, 0], &[0, 0, 0, 255, 255, 255]];
    let image =
        [&[0x2c, 0, 0, 0, 0][..], &sides(frame), &[0, 2, data.len() as u8], data, &[0, 0x3b]];
    [screen.concat(), image.concat()].concat()
}

fn bmp_file(size: Size) -> Vec<u8> {
    let file = [&b"BM"[..], &[0; 8], &54_u32.to_le_bytes()].concat();
    let sides = [size.width, size.height].map(u32::to_le_bytes).concat();
    let bitmap = [&40_u32.to_le_bytes()[..], &sides, &[1, 0, 24, 0], &[0; 24]].concat();
    [&file[..], &bitmap, &[0; 16]].concat()
}

fn tiff_file(size: Size) -> Vec<u8> {
    let entries = [
        (256, size.width),
        (257, size.height),
        (258, 8),
        (259, 1),
        (262, 1),
        (273, 8),
        (277, 1),
        (278, size.height),
        (279, 16),
    ];
    let mut file = b"II*\0\x08\0\0\0".to_vec();
    file.extend((entries.len() as u16).to_le_bytes());
    for (tag, value) in entries {
        file.extend(
            [&(tag as u16).to_le_bytes()[..], &[4, 0, 1, 0, 0, 0], &value.to_le_bytes()].concat(),
        );
    }
    file.extend([0; 4]);
    file
}

fn chunk_le(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let padding = if data.len() % 2 == 1 { &[0][..] } else { &[] };
    [&kind[..], &(data.len() as u32).to_le_bytes(), data, padding].concat()
}

fn riff(chunks: &[u8]) -> Vec<u8> {
    [&b"RIFF"[..], &(4 + chunks.len() as u32).to_le_bytes(), b"WEBP", chunks].concat()
}
