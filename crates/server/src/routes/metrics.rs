//! `GET /metrics`: what the server has done and does, in the text form of Prometheus.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::app::App;
use crate::manager::{RunnerTotals, RunnersSnapshot};
use crate::metrics::{Counter, Histogram, ModelMetrics, Outcome, ServerMetrics};
use crate::prometheus::{self, COUNTER, GAUGE, MetricsText};
use crate::runner::protocol::Pulse;
use crate::scheduler::UnloadReason;
use crate::version::VERSION;

pub(super) async fn metrics(State(app): State<App>) -> Response {
    let runners = app.models().runners().await;
    let mut text = text(app.metrics(), &runners);
    if let Some(mirror) = app.mirror() {
        match mirror.metrics().await {
            Ok(more) => text += &more,
            Err(error) => tracing::warn!(%error, "the registry's figures cannot be had"),
        }
    }
    ([(header::CONTENT_TYPE, prometheus::CONTENT_TYPE)], text).into_response()
}

fn text(figures: &ServerMetrics, runners: &RunnersSnapshot) -> String {
    let mut out = MetricsText::default();
    out.family("puna_build_info", GAUGE, "The version of the server; always 1.");
    out.sample("", &[("version", VERSION)], 1);
    out.family(
        "puna_http_requests_total",
        COUNTER,
        "Requests by route, method and status of the answer.",
    );
    for (answered, count) in figures.response_counts() {
        let status = answered.status.to_string();
        out.sample(
            "",
            &[("route", answered.route), ("method", answered.method), ("status", &status)],
            count,
        );
    }
    out.family("puna_queue_length", GAUGE, "Requests that wait for a model to be loaded.");
    out.sample("", &[], runners.waiting);
    out.family("puna_queue_refused_total", COUNTER, "Requests that found the queue full.");
    out.sample("", &[], figures.refused.get());
    requests(&mut out, figures);
    runners_counts(&mut out, runners);
    runners_now(&mut out, runners);
    out.finish()
}

/// What is counted by the requested model.
fn requests(out: &mut MetricsText, figures: &ServerMetrics) {
    let models = figures.models();
    out.family("puna_model_requests_total", COUNTER, "Requests to models that ended, by outcome.");
    for (model, of) in &models {
        for outcome in Outcome::ALL {
            out.sample(
                "",
                &[("model", model), ("outcome", outcome.name())],
                of.outcome_count(outcome),
            );
        }
    }
    for (name, help, count) in COUNTS {
        out.family(name, COUNTER, help);
        models.iter().for_each(|(model, of)| out.sample("", &[("model", model)], count(of).get()));
    }
    out.family("puna_model_unloads_total", COUNTER, "Models told to leave memory, by reason.");
    for (model, of) in &models {
        for why in UnloadReason::ALL {
            out.sample("", &[("model", model), ("reason", why.name())], of.unload_count(why));
        }
    }
    for (name, help, histogram) in TIMES {
        out.family(name, "histogram", help);
        models.iter().for_each(|(model, of)| out.histogram(model, histogram(of)));
    }
}

/// Something that is counted of a model.
type Of<T> = fn(&ModelMetrics) -> &T;

const COUNTS: [(&str, &str, Of<Counter>); 4] = [
    (
        "puna_cached_prompt_tokens_total",
        "Prompt tokens of finished generations that were found in the cache.",
        |of| &of.cached_tokens,
    ),
    ("puna_embedded_tokens_total", "Tokens of texts that became vectors or scores.", |of| {
        &of.embedded_tokens
    }),
    (
        "puna_model_load_failures_total",
        "Requests that failed because the model could not be loaded.",
        |of| &of.failed_loads,
    ),
    ("puna_runner_crashes_total", "Runners of loaded models that ended unexpectedly.", |of| {
        &of.crashes
    }),
];

const TIMES: [(&str, &str, Of<Histogram>); 5] = [
    ("puna_model_wait_seconds", "From a request until its model is in memory.", |of| {
        &of.model_wait
    }),
    (
        "puna_queue_wait_seconds",
        "From a model being in memory until a request's prompt is begun with.",
        |of| &of.queue_wait,
    ),
    (
        "puna_time_to_first_token_seconds",
        "From a request to the first token of its answer.",
        |of| &of.first_token,
    ),
    (
        "puna_time_per_token_seconds",
        "From one generated token to the next, the mean of each answer.",
        |of| &of.per_token,
    ),
    ("puna_model_load_seconds", "From the start of a runner until its model is ready.", |of| {
        &of.loads
    }),
];

/// What runners have done, also those that are gone.
fn runners_counts(out: &mut MetricsText, runners: &RunnersSnapshot) {
    type Values = fn(&RunnerTotals) -> Vec<(&'static str, u64)>;
    let counts: [(&str, &str, &str, Values); 6] = [
        ("puna_prompt_tokens_total", "Prompt tokens computed, without cached ones.", "", |of| {
            vec![("", of.counts.prompt_tokens)]
        }),
        ("puna_generated_tokens_total", "Tokens generated.", "", |of| {
            vec![("", of.counts.generated_tokens)]
        }),
        (
            "puna_draft_tokens_total",
            "Tokens guessed ahead and checked, by source.",
            "source",
            |of| vec![("ngram", of.counts.guesses.ngram), ("model", of.counts.guesses.model)],
        ),
        (
            "puna_draft_accepted_tokens_total",
            "Guessed tokens that came true, by source.",
            "source",
            |of| {
                vec![
                    ("ngram", of.counts.guesses.ngram_accepted),
                    ("model", of.counts.guesses.model_accepted),
                ]
            },
        ),
        ("puna_steps_total", "Steps of models, each for all sequences of a batch.", "", |of| {
            vec![("", of.counts.steps)]
        }),
        ("puna_preemptions_total", "Sequences sent back to wait for want of pages.", "", |of| {
            vec![("", of.counts.preempted)]
        }),
    ];
    for (name, help, label, values) in counts {
        out.family(name, COUNTER, help);
        for (model, of) in &runners.models {
            values(of)
                .into_iter()
                .for_each(|(value_of, n)| out.model_sample(model, label, value_of, n));
        }
    }
}

/// What runners are doing.
fn runners_now(out: &mut MetricsText, runners: &RunnersSnapshot) {
    type Values = fn(&Pulse) -> Vec<(&'static str, u64)>;
    let gauges: [(&str, &str, &str, Values); 7] = [
        ("puna_running_sequences", "Sequences that share the steps of a model.", "", |p| {
            vec![("", p.running)]
        }),
        (
            "puna_waiting_sequences",
            "Sequences and texts that wait in line for a loaded model.",
            "",
            |p| vec![("", p.waiting)],
        ),
        ("puna_kv_pages", "Pages of keys and values that a model has.", "", |p| {
            vec![("", p.pages)]
        }),
        (
            "puna_kv_pages_in_use",
            "Pages that hold something: for running sequences, or cached.",
            "by",
            |p| {
                vec![
                    ("running", p.pages_held),
                    ("cache", p.pages_in_use.saturating_sub(p.pages_held)),
                ]
            },
        ),
        (
            "puna_kv_recent_pages",
            "Pages of layers with a sliding window that a model has.",
            "",
            |p| vec![("", p.recent_pages[0])],
        ),
        ("puna_kv_recent_pages_in_use", "Those of them that hold something.", "by", |p| {
            let [_, in_use, held] = p.recent_pages;
            vec![("running", held), ("cache", in_use.saturating_sub(held))]
        }),
        ("puna_memory_bytes", "Memory of a model as planned, by purpose.", "part", |p| {
            let memory = &p.memory;
            let parts =
                [("weights", memory.weights), ("kv", memory.kv), ("scratch", memory.scratch)];
            parts.into_iter().chain([("draft", memory.draft), ("other", memory.other)]).collect()
        }),
    ];
    for (name, help, label, values) in gauges {
        out.family(name, GAUGE, help);
        for (model, of) in &runners.models {
            // Two versions of a name may be in memory, while one of them leaves.
            let Some(mut sums) = of.current.first().map(values) else { continue };
            for pulse in &of.current[1..] {
                sums.iter_mut().zip(values(pulse)).for_each(|(sum, (_, n))| sum.1 += n);
            }
            sums.into_iter().for_each(|(value_of, n)| out.model_sample(model, label, value_of, n));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::protocol::{Counts, MemoryParts};
    use crate::speculate::DraftCounts;

    fn runners(model: &str) -> RunnersSnapshot {
        let guesses = DraftCounts { ngram: 9, ngram_accepted: 7, model: 5, model_accepted: 2 };
        let counts =
            Counts { prompt_tokens: 100, generated_tokens: 50, guesses, steps: 40, preempted: 1 };
        let memory = MemoryParts { weights: 10, draft: 3, ..MemoryParts::default() };
        let pulse = Pulse {
            memory,
            running: 3,
            waiting: 2,
            pages: 64,
            pages_in_use: 20,
            pages_held: 12,
            recent_pages: [30, 9, 4],
            ..Pulse::default()
        };
        let of = RunnerTotals { counts, current: vec![pulse] };
        RunnersSnapshot { waiting: 4, models: [(model.to_owned(), of)].into() }
    }

    fn assert_lines(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|l| l == *line), "{line} in\n{text}");
        }
    }

    #[test]
    fn every_model_has_the_figures_of_its_runners() {
        let text = text(&ServerMetrics::default(), &runners("a\"b:latest"));
        assert_lines(
            &text,
            &[
                "# TYPE puna_draft_tokens_total counter",
                "puna_queue_length 4",
                "puna_prompt_tokens_total{model=\"a\\\"b:latest\"} 100",
                "puna_generated_tokens_total{model=\"a\\\"b:latest\"} 50",
                "puna_draft_tokens_total{model=\"a\\\"b:latest\",source=\"ngram\"} 9",
                "puna_draft_accepted_tokens_total{model=\"a\\\"b:latest\",source=\"model\"} 2",
                "puna_steps_total{model=\"a\\\"b:latest\"} 40",
                "puna_preemptions_total{model=\"a\\\"b:latest\"} 1",
                "puna_memory_bytes{model=\"a\\\"b:latest\",part=\"draft\"} 3",
                "puna_running_sequences{model=\"a\\\"b:latest\"} 3",
                "puna_waiting_sequences{model=\"a\\\"b:latest\"} 2",
                "puna_kv_pages{model=\"a\\\"b:latest\"} 64",
                "puna_kv_pages_in_use{model=\"a\\\"b:latest\",by=\"running\"} 12",
                "puna_kv_pages_in_use{model=\"a\\\"b:latest\",by=\"cache\"} 8",
                "puna_kv_recent_pages{model=\"a\\\"b:latest\"} 30",
                "puna_kv_recent_pages_in_use{model=\"a\\\"b:latest\",by=\"running\"} 4",
                "puna_kv_recent_pages_in_use{model=\"a\\\"b:latest\",by=\"cache\"} 5",
            ],
        );
    }

    #[test]
    fn a_model_that_is_gone_keeps_its_counts_and_loses_its_gauges() {
        let mut runners = runners("m:latest");
        runners.models.get_mut("m:latest").unwrap().current.clear();
        let text = text(&ServerMetrics::default(), &runners);
        assert_lines(&text, &["puna_generated_tokens_total{model=\"m:latest\"} 50"]);
        assert!(!text.contains("puna_kv_pages{"), "{text}");
    }

    #[test]
    fn the_gauges_of_two_runners_of_a_name_are_added() {
        let mut runners = runners("m:latest");
        let of = runners.models.get_mut("m:latest").unwrap();
        of.current.push(of.current[0]);
        let text = text(&ServerMetrics::default(), &runners);
        assert_lines(&text, &["puna_kv_pages_in_use{model=\"m:latest\",by=\"cache\"} 16"]);
    }

    #[test]
    fn times_are_in_buckets_that_add_up() {
        let figures = ServerMetrics::default();
        let of = figures.model("m:latest");
        [20, 30, 400_000]
            .into_iter()
            .for_each(|ms| of.loads.observe(std::time::Duration::from_millis(ms)));
        of.record_unload(UnloadReason::Room);
        of.crashes.add(2);
        let text = text(&figures, &RunnersSnapshot::default());
        assert_lines(
            &text,
            &[
                "# TYPE puna_model_load_seconds histogram",
                "puna_model_load_seconds_bucket{model=\"m:latest\",le=\"0.01\"} 0",
                "puna_model_load_seconds_bucket{model=\"m:latest\",le=\"0.025\"} 1",
                "puna_model_load_seconds_bucket{model=\"m:latest\",le=\"1\"} 2",
                "puna_model_load_seconds_bucket{model=\"m:latest\",le=\"+Inf\"} 3",
                "puna_model_load_seconds_sum{model=\"m:latest\"} 400.05",
                "puna_model_load_seconds_count{model=\"m:latest\"} 3",
                "puna_model_unloads_total{model=\"m:latest\",reason=\"room\"} 1",
                "puna_runner_crashes_total{model=\"m:latest\"} 2",
            ],
        );
    }
}
