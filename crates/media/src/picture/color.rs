//! Converts the samples of decoders to 8-bit RGB.
//!
//! Samples of 16 bits keep their high byte. Transparent pixels are composited over white, grey is
//! copied to all three channels.

use image::ColorType;

use super::pixels::CHANNELS;

/// The color that shows through transparent pixels.
const BACKGROUND: u32 = 255;

/// Converts decoded samples to RGB; `None` if the color type has samples of another kind.
///
/// `samples` holds one value after the other, in the byte order of the machine. The memory of
/// `samples` is used again where the result is not larger.
pub(crate) fn to_rgb(samples: Vec<u8>, color: ColorType) -> Option<Vec<u8>> {
    let (samples, channels) = match color {
        ColorType::L8 | ColorType::La8 | ColorType::Rgb8 | ColorType::Rgba8 => {
            (samples, color.channel_count())
        }
        ColorType::L16 | ColorType::La16 | ColorType::Rgb16 | ColorType::Rgba16 => {
            (high_bytes(samples), color.channel_count())
        }
        _ => return None,
    };
    Some(match channels {
        1 => samples.iter().flat_map(|&grey| [grey; CHANNELS]).collect(),
        2 => {
            samples.chunks_exact(2).flat_map(|s| [over_background(s[0], s[1]); CHANNELS]).collect()
        }
        3 => samples,
        _ => composite(samples),
    })
}

/// Decoder memory for `pixels` pixels of a color type and their conversion to RGB, in bytes.
pub(crate) fn conversion_bytes(pixels: u64, channels: u64, sample_bytes: u64) -> u64 {
    let decoded = pixels.saturating_mul(channels).saturating_mul(sample_bytes);
    // A result that is larger than its samples has memory of its own.
    let result =
        if channels < CHANNELS as u64 { pixels.saturating_mul(CHANNELS as u64) } else { 0 };
    decoded.saturating_add(result)
}

/// Keeps the high byte of each sample of 16 bits.
fn high_bytes(mut samples: Vec<u8>) -> Vec<u8> {
    let count = samples.len() / 2;
    for at in 0..count {
        let sample = u16::from_ne_bytes([samples[2 * at], samples[2 * at + 1]]);
        samples[at] = (sample >> 8) as u8;
    }
    samples.truncate(count);
    samples
}

/// Composites RGBA over the background, in place.
fn composite(mut samples: Vec<u8>) -> Vec<u8> {
    let count = samples.len() / 4;
    for at in 0..count {
        let [red, green, blue, alpha] = [0, 1, 2, 3].map(|channel| samples[4 * at + channel]);
        let pixel = [red, green, blue].map(|value| over_background(value, alpha));
        samples[CHANNELS * at..CHANNELS * (at + 1)].copy_from_slice(&pixel);
    }
    samples.truncate(CHANNELS * count);
    samples
}

/// A value of opacity `alpha` over the background, rounded to the nearest integer.
fn over_background(value: u8, alpha: u8) -> u8 {
    let (value, alpha) = (u32::from(value), u32::from(alpha));
    ((value * alpha + BACKGROUND * (255 - alpha) + 127) / 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native(samples: &[u16]) -> Vec<u8> {
        samples.iter().flat_map(|sample| sample.to_ne_bytes()).collect()
    }

    #[test]
    fn grey_is_copied_and_transparency_shows_white() {
        assert_eq!(to_rgb(vec![7, 9], ColorType::L8).unwrap(), [7, 7, 7, 9, 9, 9]);
        assert_eq!(to_rgb(vec![7, 0, 9, 255], ColorType::La8).unwrap(), [255, 255, 255, 9, 9, 9]);
        assert_eq!(
            to_rgb(vec![1, 2, 3, 255, 4, 5, 6, 0, 0, 100, 255, 128], ColorType::Rgba8).unwrap(),
            [1, 2, 3, 255, 255, 255, 127, 177, 255]
        );
    }

    #[test]
    fn samples_of_16_bits_keep_the_high_byte() {
        let samples = native(&[0x00ff, 0xff00, 0x1280]);
        assert_eq!(to_rgb(samples.clone(), ColorType::Rgb16).unwrap(), [0, 255, 0x12]);
        assert_eq!(to_rgb(samples, ColorType::L16).unwrap(), [0, 0, 0, 255, 255, 255, 18, 18, 18]);
        let samples = native(&[0x1000, 0x2000, 0x3000, 0xff7f]);
        assert_eq!(to_rgb(samples, ColorType::Rgba16).unwrap(), [16, 32, 48]);
        assert_eq!(to_rgb(native(&[0x4000, 0x0000]), ColorType::La16).unwrap(), [255; 3]);
    }

    #[test]
    fn floating_point_samples_are_not_converted() {
        assert_eq!(to_rgb(vec![0; 12], ColorType::Rgb32F), None);
    }

    #[test]
    fn conversion_memory_counts_results_that_grow() {
        assert_eq!(conversion_bytes(10, 1, 1), 40);
        assert_eq!(conversion_bytes(10, 2, 2), 70);
        assert_eq!(conversion_bytes(10, 3, 1), 30);
        assert_eq!(conversion_bytes(10, 4, 2), 80);
    }
}
