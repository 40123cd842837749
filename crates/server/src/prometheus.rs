//! Figures in the text form of Prometheus.

use std::fmt::{Display, Write};

use crate::figures::Histogram;

/// The form's name, as the header of an answer has it.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(crate) const COUNTER: &str = "counter";
pub(crate) const GAUGE: &str = "gauge";

/// Figures of the registry.
pub(crate) fn of_registry(figures: &[puna_mirror::Figure]) -> String {
    let mut out = Text::default();
    for figure in figures {
        out.family(figure.name, figure.kind, figure.help);
        for (labels, value) in &figure.samples {
            let labels: Vec<_> = labels.iter().map(|(label, of)| (*label, of.as_str())).collect();
            out.sample("", &labels, value);
        }
    }
    out.end()
}

/// Figures that are being written. Writing to a string does not fail.
#[derive(Default)]
pub(crate) struct Text {
    text: String,
    /// The name of the present family.
    family: &'static str,
}

impl Text {
    /// Begins a family of figures.
    pub(crate) fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.family = name;
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A value of the present family.
    pub(crate) fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.text, "{}{suffix}", self.family);
        for (i, (label, of)) in labels.iter().enumerate() {
            let _ =
                write!(self.text, "{}{label}=\"{}\"", if i == 0 { '{' } else { ',' }, escaped(of));
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// A value of a model, with another label unless that is empty.
    pub(crate) fn of_model(&mut self, model: &str, label: &str, of: &str, value: u64) {
        let labels = [("model", model), (label, of)];
        self.sample("", if label.is_empty() { &labels[..1] } else { &labels }, value);
    }

    /// The times of a model.
    pub(crate) fn histogram(&mut self, model: &str, histogram: &Histogram) {
        let at_most = histogram.at_most();
        for (bound, count) in &at_most {
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".into() };
            self.sample("_bucket", &[("model", model), ("le", &bound)], count);
        }
        self.sample("_sum", &[("model", model)], histogram.sum());
        self.sample("_count", &[("model", model)], at_most.last().map_or(0, |(_, all)| *all));
    }

    /// The whole text.
    pub(crate) fn end(self) -> String {
        self.text
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
