//! Estimate of the time of decode steps: a fixed part, which reads the weights, and a part for each
//! row. The engine loop measures; this module reads no clock.

/// Factor by which each step multiplies the weights of earlier measurements.
const DECAY: f64 = 0.97;
/// Time of each further row before any measurement, as a fraction of the time of a step of one row.
const DEFAULT_ROW_COST_FRACTION: f64 = 0.1;
/// Minimum standard deviation of the numbers of rows for which the time of a row is computed, as a
/// fraction of their mean. If the numbers are nearly equal, noise dominates the slope of the line.
const MIN_DEVIATION: f64 = 0.12;
/// Minimum variance of the numbers of rows, in rows².
const MIN_VARIANCE: f64 = 0.3;
/// One of this many decode steps has few rows, so that the time of a row is measured even if the
/// number of sequences never changes.
const PROBE_INTERVAL: u64 = 16;
/// Largest accepted time of a step relative to the estimate. Other load causes longer times.
const MAX_RELATIVE_TIME: f64 = 3.0;

/// Least-squares line through the times of decode steps by number of rows. Older steps count less.
#[derive(Debug, Clone, Copy)]
pub struct DecodeCost {
    // Sums over the steps, each weighted by `DECAY` to the power of its age.
    sum_weight: f64,
    sum_rows: f64,
    sum_seconds: f64,
    sum_rows_squared: f64,
    sum_rows_by_seconds: f64,
    /// Time of each further row as a fraction of the time of a step of one row: 0 to 1.
    row_cost_fraction: f64,
    steps: u64,
}

impl Default for DecodeCost {
    fn default() -> Self {
        Self {
            sum_weight: 0.0,
            sum_rows: 0.0,
            sum_seconds: 0.0,
            sum_rows_squared: 0.0,
            sum_rows_by_seconds: 0.0,
            row_cost_fraction: DEFAULT_ROW_COST_FRACTION,
            steps: 0,
        }
    }
}

impl DecodeCost {
    /// Adds the measurement of a step.
    pub fn record(&mut self, rows: usize, seconds: f64) {
        let seconds = match self.seconds(rows) {
            Some(expected) => seconds.min(MAX_RELATIVE_TIME * expected),
            None => seconds,
        };
        self.steps += 1;
        let rows = rows as f64;
        for (sum, value) in [
            (&mut self.sum_weight, 1.0),
            (&mut self.sum_rows, rows),
            (&mut self.sum_seconds, seconds),
            (&mut self.sum_rows_squared, rows * rows),
            (&mut self.sum_rows_by_seconds, rows * seconds),
        ] {
            *sum = DECAY * *sum + value;
        }
        let mean = self.sum_rows / self.sum_weight;
        let variance = self.sum_rows_squared / self.sum_weight - mean * mean;
        if variance >= MIN_VARIANCE.max((MIN_DEVIATION * mean).powi(2)) {
            let slope = (self.sum_rows_by_seconds
                - self.sum_rows * self.sum_seconds / self.sum_weight)
                / (variance * self.sum_weight);
            let one_row_seconds =
                (self.sum_seconds + slope * (self.sum_weight - self.sum_rows)) / self.sum_weight;
            let has_fixed_part = one_row_seconds > slope;
            self.row_cost_fraction =
                if has_fixed_part { (slope / one_row_seconds).max(0.0) } else { 1.0 };
        }
    }

    /// Whether the next step should have few rows.
    pub fn is_probe_due(&self) -> bool {
        self.steps % PROBE_INTERVAL == PROBE_INTERVAL - 1
    }

    /// Time of a step relative to a step of one row.
    pub fn relative_time(&self, rows: usize) -> f64 {
        1.0 + self.row_cost_fraction * (rows.max(1) - 1) as f64
    }

    /// Seconds of a step; `None` before any measurement.
    pub fn seconds(&self, rows: usize) -> Option<f64> {
        let mean_rows = (self.sum_rows / self.sum_weight).max(1.0);
        let mean_relative_time = 1.0 + self.row_cost_fraction * (mean_rows - 1.0);
        let mean_seconds = self.sum_seconds / self.sum_weight;
        (self.sum_weight > 0.0)
            .then(|| mean_seconds * self.relative_time(rows) / mean_relative_time)
    }

    /// Largest number of rows for which a step takes at most `relative_time` times as long as a
    /// step of one row.
    pub fn rows_within(&self, relative_time: f64) -> usize {
        // The cast saturates, and it converts NaN (0 / 0) to 0.
        (((relative_time - 1.0).max(0.0) / self.row_cost_fraction) as usize).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(steps: &[(usize, f64)]) -> DecodeCost {
        let mut cost = DecodeCost::default();
        steps.iter().cycle().take(100).for_each(|&(rows, seconds)| cost.record(rows, seconds));
        cost
    }

    #[test]
    fn the_line_goes_through_the_measured_steps() {
        let cost = measured(&[(1, 0.010), (11, 0.020), (21, 0.030)]);
        assert!((cost.relative_time(11) - 2.0).abs() < 0.01, "{cost:?}");
        assert!((cost.seconds(31).unwrap() - 0.040).abs() < 0.001, "{cost:?}");
        assert_eq!(cost.rows_within(2.05), 11);
    }

    #[test]
    fn without_measurements_of_several_sizes_the_last_share_of_a_row_stays() {
        assert_eq!(DecodeCost::default().rows_within(2.0), 11);
        let mut cost = measured(&[(1, 0.010), (3, 0.020)]);
        (0..1000).for_each(|_| cost.record(3, 0.020));
        assert!((cost.relative_time(3) - 2.0).abs() < 0.01, "{cost:?}");
        assert!((cost.seconds(3).unwrap() - 0.020).abs() < 0.001, "{cost:?}");
    }

    #[test]
    fn steps_of_nearly_equal_size_tell_nothing() {
        let mut cost = measured(&[(1, 0.010), (31, 0.310)]);
        let noise = [(58, 0.62), (60, 0.58), (61, 0.63), (59, 0.57)];
        noise.iter().cycle().take(1000).for_each(|&(rows, seconds)| cost.record(rows, seconds));
        assert!(cost.rows_within(2.0) <= 4, "{cost:?}");
    }

    #[test]
    fn rows_that_cost_nothing_or_everything_stay_within_bounds() {
        let free = measured(&[(1, 0.010), (9, 0.010)]);
        assert!(free.rows_within(2.0) > 1_000_000, "{free:?}");
        let shrinking = measured(&[(1, 0.010), (9, 0.005)]);
        assert!(shrinking.relative_time(100) >= 1.0, "{shrinking:?}");
        let linear = measured(&[(1, 0.001), (9, 0.010)]);
        assert_eq!(linear.rows_within(4.0), 4);
    }

    #[test]
    fn one_slow_step_changes_little() {
        let mut cost = measured(&[(1, 0.010), (11, 0.020)]);
        cost.record(11, 10.0);
        assert!(cost.relative_time(11) < 3.0, "{cost:?}");
    }
}
