//! `GET /metrics`: counters and gauges of the server in the text format of Prometheus.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use puna_mirror::MetricFamily;

use crate::app::App;
use crate::metrics::families;
use crate::metrics::prometheus::{self, MetricsText};
use crate::metrics::{Counter, Histogram, ModelMetrics, Outcome, ServerMetrics};
use crate::model_scheduler::UnloadReason;
use crate::models::manager::{RunnerTotals, RunnersSnapshot};
use crate::runner::protocol::Heartbeat;
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

fn text(server_metrics: &ServerMetrics, runners: &RunnersSnapshot) -> String {
    let mut out = MetricsText::default();
    out.family(&families::BUILD_INFO);
    out.sample("", &[("version", VERSION)], 1);
    out.family(&families::HTTP_REQUESTS);
    for (answered, count) in server_metrics.response_counts() {
        let status = answered.status.to_string();
        out.sample(
            "",
            &[("route", answered.route), ("method", answered.method), ("status", &status)],
            count,
        );
    }
    out.family(&families::QUEUE_LENGTH);
    out.sample("", &[], runners.waiting);
    out.family(&families::QUEUE_REFUSED);
    out.sample("", &[], server_metrics.refused.get());
    requests(&mut out, server_metrics);
    runners_counts(&mut out, runners);
    runners_now(&mut out, runners);
    out.finish()
}

/// Writes the metrics of requests, by requested model.
fn requests(out: &mut MetricsText, server_metrics: &ServerMetrics) {
    let models = server_metrics.models();
    out.family(&families::MODEL_REQUESTS);
    for (model, per_model) in &models {
        for outcome in Outcome::ALL {
            out.model_sample(model, outcome.name(), per_model.outcome_count(outcome));
        }
    }
    for (family, count) in COUNTS {
        out.family(family);
        for (model, per_model) in &models {
            out.model_sample(model, "", count(per_model).get());
        }
    }
    out.family(&families::MODEL_UNLOADS);
    for (model, per_model) in &models {
        for why in UnloadReason::ALL {
            out.model_sample(model, why.name(), per_model.unload_count(why));
        }
    }
    for (family, histogram) in TIMES {
        out.family(family);
        models.iter().for_each(|(model, per_model)| out.histogram(model, histogram(per_model)));
    }
}

/// Function that returns one metric of a model.
type MetricGetter<T> = fn(&ModelMetrics) -> &T;

const COUNTS: [(&MetricFamily, MetricGetter<Counter>); 4] = [
    (&families::CACHED_PROMPT_TOKENS, |per_model| &per_model.cached_tokens),
    (&families::EMBEDDED_TOKENS, |per_model| &per_model.embedded_tokens),
    (&families::MODEL_LOAD_FAILURES, |per_model| &per_model.failed_loads),
    (&families::RUNNER_CRASHES, |per_model| &per_model.crashes),
];

const TIMES: [(&MetricFamily, MetricGetter<Histogram>); 5] = [
    (&families::MODEL_WAIT, |per_model| &per_model.model_wait),
    (&families::QUEUE_WAIT, |per_model| &per_model.queue_wait),
    (&families::TIME_TO_FIRST_TOKEN, |per_model| &per_model.first_token),
    (&families::TIME_PER_TOKEN, |per_model| &per_model.per_token),
    (&families::MODEL_LOAD, |per_model| &per_model.loads),
];

/// Function that returns the values of a metric by its second label, which is empty for metrics
/// without one.
type LabelledValues<T> = fn(&T) -> Vec<(&'static str, u64)>;

/// Writes the counters of runners, including those that have ended.
fn runners_counts(out: &mut MetricsText, runners: &RunnersSnapshot) {
    let counts: [(&MetricFamily, LabelledValues<RunnerTotals>); 6] = [
        (&families::PROMPT_TOKENS, |per_model| vec![("", per_model.counts.prompt_tokens)]),
        (&families::GENERATED_TOKENS, |per_model| vec![("", per_model.counts.generated_tokens)]),
        (&families::DRAFT_TOKENS, |per_model| {
            let drafts = &per_model.counts.draft_counts;
            vec![("ngram", drafts.ngram), ("model", drafts.model)]
        }),
        (&families::DRAFT_ACCEPTED_TOKENS, |per_model| {
            let drafts = &per_model.counts.draft_counts;
            vec![("ngram", drafts.ngram_accepted), ("model", drafts.model_accepted)]
        }),
        (&families::STEPS, |per_model| vec![("", per_model.counts.steps)]),
        (&families::PREEMPTIONS, |per_model| vec![("", per_model.counts.preempted)]),
    ];
    for (family, values) in counts {
        out.family(family);
        for (model, per_model) in &runners.models {
            values(per_model)
                .into_iter()
                .for_each(|(second, n)| out.model_sample(model, second, n));
        }
    }
}

fn window_pages_in_use(heartbeat: &Heartbeat) -> Vec<(&'static str, u64)> {
    let [_, in_use, running] = heartbeat.window_pages;
    vec![("running", running), ("cache", in_use.saturating_sub(running))]
}

/// Writes the current values of runners.
fn runners_now(out: &mut MetricsText, runners: &RunnersSnapshot) {
    let gauges: [(&MetricFamily, LabelledValues<Heartbeat>); 9] = [
        (&families::RUNNING_SEQUENCES, |p| vec![("", p.running)]),
        (&families::WAITING_SEQUENCES, |p| vec![("", p.waiting)]),
        (&families::KV_PAGES, |p| vec![("", p.pages)]),
        (&families::KV_PAGES_IN_USE, |p| {
            let cached = p.pages_in_use.saturating_sub(p.pages_pinned);
            vec![("running", p.pages_pinned), ("cache", cached)]
        }),
        (&families::KV_WINDOW_PAGES, |p| vec![("", p.window_pages[0])]),
        (&families::KV_WINDOW_PAGES_IN_USE, window_pages_in_use),
        (&families::KV_RECENT_PAGES, |p| vec![("", p.window_pages[0])]),
        (&families::KV_RECENT_PAGES_IN_USE, window_pages_in_use),
        (&families::MEMORY, |p| {
            let memory = &p.memory;
            let parts =
                [("weights", memory.weights), ("kv", memory.kv), ("scratch", memory.scratch)];
            parts.into_iter().chain([("draft", memory.draft), ("other", memory.other)]).collect()
        }),
    ];
    for (family, values) in gauges {
        out.family(family);
        for (model, per_model) in &runners.models {
            // Two versions of a name may be loaded while one of them is being unloaded.
            let Some(mut sums) = per_model.current.first().map(values) else { continue };
            for heartbeat in &per_model.current[1..] {
                sums.iter_mut().zip(values(heartbeat)).for_each(|(sum, (_, n))| sum.1 += n);
            }
            sums.into_iter().for_each(|(second, n)| out.model_sample(model, second, n));
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
            pages_pinned: 12,
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
                "puna_kv_window_pages{model=\"a\\\"b:latest\"} 30",
                "puna_kv_window_pages_in_use{model=\"a\\\"b:latest\",by=\"running\"} 4",
                "puna_kv_window_pages_in_use{model=\"a\\\"b:latest\",by=\"cache\"} 5",
                "puna_kv_recent_pages{model=\"a\\\"b:latest\"} 30",
                "puna_kv_recent_pages_in_use{model=\"a\\\"b:latest\",by=\"running\"} 4",
                "puna_kv_recent_pages_in_use{model=\"a\\\"b:latest\",by=\"cache\"} 5",
            ],
        );
    }

    #[test]
    fn the_answer_has_every_metric_of_the_table() {
        let text = text(&ServerMetrics::default(), &RunnersSnapshot::default());
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let mut types: Vec<_> = types.map(str::to_owned).collect();
        let defined = families::METRIC_FAMILIES.iter();
        let mut want: Vec<_> = defined.map(|f| format!("{} {}", f.name, f.kind.name())).collect();
        types.sort();
        want.sort();
        assert_eq!(types, want);
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
