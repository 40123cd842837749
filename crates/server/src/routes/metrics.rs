//! `GET /metrics`: counters and gauges of the server in the text format of Prometheus.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::app::App;
use crate::metrics::prometheus::{self, COUNTER, GAUGE, MetricsText};
use crate::metrics::{Counter, Histogram, ModelMetrics, Outcome, ServerMetrics};
use crate::models::manager::{RunnerTotals, RunnersSnapshot};
use crate::runner::protocol::Heartbeat;
use crate::scheduler::UnloadReason;
use crate::version::VERSION;

pub(super) async fn metrics(State(app): State<App>) -> Response {
    let runners = app.models().runners().await;
    let mut text = text(app.metrics(), &runners);
    if let Some(mirror) = app.mirror() {
        match mirror.metrics().await {
            Ok(more) => text += &more,
            Err(error) => tracing::warn!(%error, "cannot read the metrics of the mirror"),
        }
    }
    ([(header::CONTENT_TYPE, prometheus::CONTENT_TYPE)], text).into_response()
}

fn text(server_metrics: &ServerMetrics, runners: &RunnersSnapshot) -> String {
    let mut out = MetricsText::default();
    out.family("puna_build_info", GAUGE, "Version of the server; always 1.");
    out.sample("", &[("version", VERSION)], 1);
    out.family(
        "puna_http_requests_total",
        COUNTER,
        "Requests by route, method and response status.",
    );
    for (answered, count) in server_metrics.response_counts() {
        let status = answered.status.to_string();
        out.sample(
            "",
            &[("route", answered.route), ("method", answered.method), ("status", &status)],
            count,
        );
    }
    out.family("puna_queue_length", GAUGE, "Requests that wait for a model to be loaded.");
    out.sample("", &[], runners.waiting);
    out.family(
        "puna_queue_refused_total",
        COUNTER,
        "Requests rejected because the queue was full.",
    );
    out.sample("", &[], server_metrics.refused.get());
    requests(&mut out, server_metrics);
    runners_counts(&mut out, runners);
    runners_now(&mut out, runners);
    out.finish()
}

/// Writes the metrics of requests, by requested model.
fn requests(out: &mut MetricsText, server_metrics: &ServerMetrics) {
    let models = server_metrics.models();
    out.family("puna_model_requests_total", COUNTER, "Finished requests to models, by outcome.");
    for (model, per_model) in &models {
        for outcome in Outcome::ALL {
            out.sample(
                "",
                &[("model", model), ("outcome", outcome.name())],
                per_model.outcome_count(outcome),
            );
        }
    }
    for (name, help, count) in COUNTS {
        out.family(name, COUNTER, help);
        models.iter().for_each(|(model, per_model)| {
            out.sample("", &[("model", model)], count(per_model).get())
        });
    }
    out.family("puna_model_unloads_total", COUNTER, "Models unloaded from memory, by reason.");
    for (model, per_model) in &models {
        for why in UnloadReason::ALL {
            out.sample(
                "",
                &[("model", model), ("reason", why.name())],
                per_model.unload_count(why),
            );
        }
    }
    for (name, help, histogram) in TIMES {
        out.family(name, "histogram", help);
        models.iter().for_each(|(model, per_model)| out.histogram(model, histogram(per_model)));
    }
}

/// Function that returns one metric of a model.
type MetricGetter<T> = fn(&ModelMetrics) -> &T;

const COUNTS: [(&str, &str, MetricGetter<Counter>); 4] = [
    (
        "puna_cached_prompt_tokens_total",
        "Prompt tokens of finished generations that were found in the cache.",
        |per_model| &per_model.cached_tokens,
    ),
    ("puna_embedded_tokens_total", "Tokens of embedded or reranked texts.", |per_model| {
        &per_model.embedded_tokens
    }),
    (
        "puna_model_load_failures_total",
        "Requests that failed because the model could not be loaded.",
        |per_model| &per_model.failed_loads,
    ),
    (
        "puna_runner_crashes_total",
        "Runners of loaded models that ended unexpectedly.",
        |per_model| &per_model.crashes,
    ),
];

const TIMES: [(&str, &str, MetricGetter<Histogram>); 5] = [
    ("puna_model_wait_seconds", "From a request until its model is in memory.", |per_model| {
        &per_model.model_wait
    }),
    (
        "puna_queue_wait_seconds",
        "From the model being in memory until the request's prompt is started.",
        |per_model| &per_model.queue_wait,
    ),
    (
        "puna_time_to_first_token_seconds",
        "From a request to the first token of its answer.",
        |per_model| &per_model.first_token,
    ),
    (
        "puna_time_per_token_seconds",
        "Mean time from one generated token to the next, per answer.",
        |per_model| &per_model.per_token,
    ),
    (
        "puna_model_load_seconds",
        "From the start of a runner until its model is ready.",
        |per_model| &per_model.loads,
    ),
];

/// Writes the counters of runners, including those that have ended.
fn runners_counts(out: &mut MetricsText, runners: &RunnersSnapshot) {
    type Values = fn(&RunnerTotals) -> Vec<(&'static str, u64)>;
    let counts: [(&str, &str, &str, Values); 6] = [
        (
            "puna_prompt_tokens_total",
            "Prompt tokens computed, without cached ones.",
            "",
            |per_model| vec![("", per_model.counts.prompt_tokens)],
        ),
        ("puna_generated_tokens_total", "Tokens generated.", "", |per_model| {
            vec![("", per_model.counts.generated_tokens)]
        }),
        (
            "puna_draft_tokens_total",
            "Drafted tokens that were verified, by source.",
            "source",
            |per_model| {
                vec![
                    ("ngram", per_model.counts.draft_counts.ngram),
                    ("model", per_model.counts.draft_counts.model),
                ]
            },
        ),
        (
            "puna_draft_accepted_tokens_total",
            "Drafted tokens that were accepted, by source.",
            "source",
            |per_model| {
                vec![
                    ("ngram", per_model.counts.draft_counts.ngram_accepted),
                    ("model", per_model.counts.draft_counts.model_accepted),
                ]
            },
        ),
        (
            "puna_steps_total",
            "Steps of models; a step computes a batch of sequences.",
            "",
            |per_model| vec![("", per_model.counts.steps)],
        ),
        ("puna_preemptions_total", "Sequences preempted for lack of KV pages.", "", |per_model| {
            vec![("", per_model.counts.preempted)]
        }),
    ];
    for (name, help, label, values) in counts {
        out.family(name, COUNTER, help);
        for (model, per_model) in &runners.models {
            values(per_model)
                .into_iter()
                .for_each(|(value_of, n)| out.model_sample(model, label, value_of, n));
        }
    }
}

/// Writes the current values of runners.
fn runners_now(out: &mut MetricsText, runners: &RunnersSnapshot) {
    type Values = fn(&Heartbeat) -> Vec<(&'static str, u64)>;
    let gauges: [(&str, &str, &str, Values); 7] = [
        ("puna_running_sequences", "Sequences in the batch of a model.", "", |p| {
            vec![("", p.running)]
        }),
        (
            "puna_waiting_sequences",
            "Sequences and texts in the queue of a loaded model.",
            "",
            |p| vec![("", p.waiting)],
        ),
        ("puna_kv_pages", "KV pages of a model.", "", |p| vec![("", p.pages)]),
        (
            "puna_kv_pages_in_use",
            "KV pages in use, by running sequences or by the prefix cache.",
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
            "Window pages of a model (layers with a sliding window).",
            "",
            |p| vec![("", p.window_pages[0])],
        ),
        (
            "puna_kv_recent_pages_in_use",
            "Window pages in use, by running sequences or by the prefix cache.",
            "by",
            |p| {
                let [_, in_use, held] = p.window_pages;
                vec![("running", held), ("cache", in_use.saturating_sub(held))]
            },
        ),
        ("puna_memory_bytes", "Planned memory of a model, by purpose.", "part", |p| {
            let memory = &p.memory;
            let parts =
                [("weights", memory.weights), ("kv", memory.kv), ("scratch", memory.scratch)];
            parts.into_iter().chain([("draft", memory.draft), ("other", memory.other)]).collect()
        }),
    ];
    for (name, help, label, values) in gauges {
        out.family(name, GAUGE, help);
        for (model, per_model) in &runners.models {
            // Two versions of a name may be loaded while one of them is being unloaded.
            let Some(mut sums) = per_model.current.first().map(values) else { continue };
            for heartbeat in &per_model.current[1..] {
                sums.iter_mut().zip(values(heartbeat)).for_each(|(sum, (_, n))| sum.1 += n);
            }
            sums.into_iter().for_each(|(value_of, n)| out.model_sample(model, label, value_of, n));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::speculate::DraftCounts;
    use crate::runner::protocol::{Counts, MemoryParts};

    fn runners(model: &str) -> RunnersSnapshot {
        let draft_counts = DraftCounts { ngram: 9, ngram_accepted: 7, model: 5, model_accepted: 2 };
        let counts = Counts {
            prompt_tokens: 100,
            generated_tokens: 50,
            draft_counts,
            steps: 40,
            preempted: 1,
        };
        let memory = MemoryParts { weights: 10, draft: 3, ..MemoryParts::default() };
        let heartbeat = Heartbeat {
            memory,
            running: 3,
            waiting: 2,
            pages: 64,
            pages_in_use: 20,
            pages_held: 12,
            window_pages: [30, 9, 4],
            ..Heartbeat::default()
        };
        let per_model = RunnerTotals { counts, current: vec![heartbeat] };
        RunnersSnapshot { waiting: 4, models: [(model.to_owned(), per_model)].into() }
    }

    fn assert_lines(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|l| l == *line), "{line} in\n{text}");
        }
    }

    #[test]
    fn each_model_has_the_metrics_of_its_runners() {
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
    fn an_unloaded_model_keeps_its_counters_and_loses_its_gauges() {
        let mut runners = runners("m:latest");
        runners.models.get_mut("m:latest").unwrap().current.clear();
        let text = text(&ServerMetrics::default(), &runners);
        assert_lines(&text, &["puna_generated_tokens_total{model=\"m:latest\"} 50"]);
        assert!(!text.contains("puna_kv_pages{"), "{text}");
    }

    #[test]
    fn gauges_of_two_runners_of_one_model_name_are_added() {
        let mut runners = runners("m:latest");
        let per_model = runners.models.get_mut("m:latest").unwrap();
        per_model.current.push(per_model.current[0]);
        let text = text(&ServerMetrics::default(), &runners);
        assert_lines(&text, &["puna_kv_pages_in_use{model=\"m:latest\",by=\"cache\"} 16"]);
    }

    #[test]
    fn histogram_buckets_are_cumulative() {
        let server_metrics = ServerMetrics::default();
        let per_model = server_metrics.model("m:latest");
        [20, 30, 400_000]
            .into_iter()
            .for_each(|ms| per_model.loads.observe(std::time::Duration::from_millis(ms)));
        per_model.record_unload(UnloadReason::MemoryNeeded);
        per_model.crashes.add(2);
        let text = text(&server_metrics, &RunnersSnapshot::default());
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
