//! Pixels as the numbers that a vision encoder gets.

use super::pixels::{CHANNELS, Picture};

/// Mean and standard deviation of each channel, for values from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalization {
    /// Subtracted from red, green and blue.
    pub mean: [f32; CHANNELS],
    /// Divides the difference.
    pub std: [f32; CHANNELS],
}

impl Normalization {
    /// Computes `(value / 255 - mean) / std` in f32 for each value.
    ///
    /// The result is planar: all rows of red, then of green, then of blue.
    pub fn apply(&self, picture: &Picture) -> Vec<f32> {
        let mut planes = Vec::with_capacity(picture.data().len());
        for channel in 0..CHANNELS {
            let table = self.table(channel);
            let values = picture.data().iter().skip(channel).step_by(CHANNELS);
            planes.extend(values.map(|&value| table[usize::from(value)]));
        }
        planes
    }

    /// The number of each value of a channel.
    fn table(&self, channel: usize) -> [f32; 256] {
        std::array::from_fn(|value| (value as f32 / 255.0 - self.mean[channel]) / self.std[channel])
    }
}

#[cfg(test)]
mod tests {
    use super::super::pixels::Size;
    use super::*;

    #[test]
    fn planes_are_separate_and_normalized() {
        let picture = Picture::from_rgb(Size::new(2, 1), vec![0, 51, 255, 255, 102, 0]).unwrap();
        let normalization = Normalization { mean: [0.5, 0.0, 1.0], std: [0.5, 1.0, 2.0] };
        assert_eq!(normalization.apply(&picture), [-1.0, 1.0, 0.2, 0.4, 0.0, -0.5]);
    }
}
