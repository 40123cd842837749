//! Writes metrics in the text format of Prometheus.

use std::fmt::{Display, Write};

use puna_mirror::MetricFamily;

use crate::metrics::Histogram;

/// `Content-Type` of the format.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Formats the metrics of the mirror.
pub(crate) fn registry_metrics(metrics: &[puna_mirror::Metric]) -> String {
    let mut out = MetricsText::default();
    for metric in metrics {
        out.family(metric.family);
        for (labels, value) in &metric.samples {
            let labels: Vec<_> = labels.iter().map(|(label, of)| (*label, of.as_str())).collect();
            out.sample("", &labels, value);
        }
    }
    out.finish()
}

/// Writer of the text format. Writing to a string cannot fail.
#[derive(Default)]
pub(crate) struct MetricsText {
    text: String,
    /// The current metric family.
    family: Option<&'static MetricFamily>,
}

impl MetricsText {
    /// Starts a metric family.
    pub(crate) fn family(&mut self, family: &'static MetricFamily) {
        self.family = Some(family);
        let MetricFamily { name, kind, help, .. } = family;
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
    }

    /// Writes a sample of the current family.
    pub(crate) fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let Some(family) = self.family else { return };
        // A bucket of a histogram has its bound as an additional label.
        let names = labels.iter().map(|(label, _)| *label).filter(|label| *label != "le");
        debug_assert!(names.eq(family.labels.iter().copied()), "labels of {}", family.name);
        let _ = write!(self.text, "{}{suffix}", family.name);
        for (i, (label, of)) in labels.iter().enumerate() {
            let _ =
                write!(self.text, "{}{label}=\"{}\"", if i == 0 { '{' } else { ',' }, escaped(of));
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// Writes a sample of a model; `second` is the value of the second label of the family, if it
    /// has one.
    pub(crate) fn model_sample(&mut self, model: &str, second: &str, value: u64) {
        let labels = self.family.map_or(&[][..], |family| family.labels);
        let labels: Vec<_> = labels.iter().copied().zip([model, second]).collect();
        self.sample("", &labels, value);
    }

    /// Writes a histogram of a model.
    pub(crate) fn histogram(&mut self, model: &str, histogram: &Histogram) {
        let cumulative_counts = histogram.cumulative_counts();
        for (bound, count) in &cumulative_counts {
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".into() };
            self.sample("_bucket", &[("model", model), ("le", &bound)], count);
        }
        self.sample("_sum", &[("model", model)], histogram.sum());
        self.sample(
            "_count",
            &[("model", model)],
            cumulative_counts.last().map_or(0, |(_, all)| *all),
        );
    }

    /// Returns the text.
    pub(crate) fn finish(self) -> String {
        self.text
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
