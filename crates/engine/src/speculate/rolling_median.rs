//! The newest few of some measurements.

/// Measurements, of which old ones are forgotten.
#[derive(Debug, Clone, Default)]
pub struct Newest {
    values: Vec<f64>,
    next: usize,
}

impl Newest {
    /// Adds one; of more than `most` the oldest goes.
    pub fn push(&mut self, value: f64, most: usize) {
        if self.values.len() < most {
            self.values.push(value);
        } else {
            self.values[self.next % most] = value;
            self.next += 1;
        }
    }

    /// The median, the lower one of two: what is measured is sometimes far too long, never too short.
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
    fn the_median_is_that_of_the_newest_and_one_outlier_does_not_move_it() {
        let mut newest = Newest::default();
        assert_eq!(newest.median(), None);
        newest.push(4.0, 3);
        newest.push(9.0, 3);
        assert_eq!(newest.median(), Some(4.0));
        [1.0, 2.0, 100.0, 3.0].into_iter().for_each(|v| newest.push(v, 3));
        assert_eq!(newest.median(), Some(3.0));
    }
}
