//! `GET /metrics`: figures of the loaded models, in the text form of Prometheus.

use std::fmt::Write;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::app::App;
use crate::manager::Running;

pub(super) async fn metrics(State(app): State<App>) -> Response {
    let mut running = app.models().list().await;
    running.sort_by(|a, b| a.about.name.cmp(&b.about.name));
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text(&running)).into_response()
}

/// A metric: its name, its type, what it is, and its values by label.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    label: &'static str,
    values: fn(&Running) -> Vec<(&'static str, u64)>,
}

const METRICS: [Metric; 5] = [
    Metric {
        name: "puna_prompt_tokens_total",
        kind: "counter",
        help: "Prompt tokens computed since the model was loaded.",
        label: "",
        values: |model| vec![("", model.counts.prompt_tokens)],
    },
    Metric {
        name: "puna_generated_tokens_total",
        kind: "counter",
        help: "Tokens generated since the model was loaded.",
        label: "",
        values: |model| vec![("", model.counts.generated_tokens)],
    },
    Metric {
        name: "puna_draft_tokens_total",
        kind: "counter",
        help: "Tokens guessed ahead and checked since the model was loaded, by source.",
        label: "source",
        values: |model| vec![("ngram", model.counts.guesses.ngram), ("model", model.counts.guesses.model)],
    },
    Metric {
        name: "puna_draft_accepted_tokens_total",
        kind: "counter",
        help: "Guessed tokens that came true since the model was loaded, by source.",
        label: "source",
        values: |model| {
            let guesses = &model.counts.guesses;
            vec![("ngram", guesses.ngram_accepted), ("model", guesses.model_accepted)]
        },
    },
    Metric {
        name: "puna_memory_bytes",
        kind: "gauge",
        help: "Memory of the model as planned, by purpose.",
        label: "part",
        values: |model| {
            let memory = &model.memory;
            let parts = [("weights", memory.weights), ("kv", memory.kv), ("scratch", memory.scratch)];
            parts.into_iter().chain([("draft", memory.draft), ("other", memory.other)]).collect()
        },
    },
];

fn text(running: &[Running]) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    for metric in &METRICS {
        let Metric { name, kind, help, label, values } = metric;
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for model in running {
            for (value_of, value) in values(model) {
                let model = escaped(&model.about.name);
                let _ = match label.is_empty() {
                    true => writeln!(out, "{name}{{model=\"{model}\"}} {value}"),
                    false => writeln!(out, "{name}{{model=\"{model}\",{label}=\"{value_of}\"}} {value}"),
                };
            }
        }
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::About;
    use crate::runner::protocol::{Counts, MemoryParts};
    use crate::speculate::Guesses;

    #[test]
    fn every_loaded_model_has_its_figures() {
        let guesses = Guesses { ngram: 9, ngram_accepted: 7, model: 5, model_accepted: 2 };
        let model = Running {
            about: About { name: "a\"b:latest".into(), ..About::default() },
            size: 1,
            context: 2,
            expires: None,
            memory: MemoryParts { weights: 10, draft: 3, ..MemoryParts::default() },
            counts: Counts { prompt_tokens: 100, generated_tokens: 50, guesses },
        };
        let text = text(&[model]);
        for line in [
            "# TYPE puna_draft_tokens_total counter",
            "puna_generated_tokens_total{model=\"a\\\"b:latest\"} 50",
            "puna_draft_tokens_total{model=\"a\\\"b:latest\",source=\"ngram\"} 9",
            "puna_draft_accepted_tokens_total{model=\"a\\\"b:latest\",source=\"model\"} 2",
            "puna_memory_bytes{model=\"a\\\"b:latest\",part=\"draft\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
