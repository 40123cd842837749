//! Median of the newest measurements.

/// The newest measurements.
#[derive(Debug, Clone, Default)]
pub struct RollingMedian {
    values: Vec<f64>,
    oldest: usize,
}

impl RollingMedian {
    /// Adds a measurement. More than `window` replace the oldest one.
    pub fn push(&mut self, value: f64, window: usize) {
        if self.values.len() < window {
            self.values.push(value);
        } else {
            self.values[self.oldest % window] = value;
            self.oldest += 1;
        }
    }

    /// The median, the lower one of two: outliers of timings are too long, never too short.
    pub fn median(&self) -> Option<f64> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len().saturating_sub(1) / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_outlier_does_not_move_the_rolling_median() {
        let mut timings = RollingMedian::default();
        assert_eq!(timings.median(), None);
        timings.push(4.0, 3);
        timings.push(9.0, 3);
        assert_eq!(timings.median(), Some(4.0));
        [1.0, 2.0, 100.0, 3.0].into_iter().for_each(|v| timings.push(v, 3));
        assert_eq!(timings.median(), Some(3.0));
    }
}
