//! Tests of `GET /metrics`.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Samples by name and labels.
type Samples = BTreeMap<(String, BTreeMap<String, String>), f64>;

/// Parses the text format of Prometheus; panics where a strict parser would refuse it.
fn parse(text: &str) -> Samples {
    assert!(text.ends_with('\n'));
    let (mut samples, mut families, mut lines) =
        (Samples::new(), BTreeSet::new(), text.lines().peekable());
    while let Some(line) = lines.next() {
        let (family, help) = line
            .strip_prefix("# HELP ")
            .unwrap_or_else(|| panic!("{line}"))
            .split_once(' ')
            .unwrap();
        assert!(is_name(family) && !help.is_empty() && !help.contains('\\'), "{line}");
        assert!(families.insert(family), "{family} comes twice");
        let of_type = lines.next().unwrap().strip_prefix("# TYPE ").unwrap();
        let (named, kind) = of_type.split_once(' ').unwrap();
        assert_eq!(named, family);
        assert_eq!(kind == "counter", family.ends_with("_total"), "{family} is a {kind}");
        let mut own = Samples::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let (name, labels, value) = sample(line);
            let suffixes: &[&str] =
                if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(
                suffixes.iter().any(|suffix| name == format!("{family}{suffix}")),
                "{line} in {family}"
            );
            assert!(value >= 0.0 && value.is_finite(), "{line}");
            assert!(own.insert((name, labels), value).is_none(), "{line} comes twice");
        }
        match kind {
            "histogram" => check_histograms(family, &own),
            "counter" | "gauge" => {}
            _ => panic!("{of_type}"),
        }
        samples.append(&mut own);
    }
    samples
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let (head, value) = line.rsplit_once(' ').unwrap();
    let value = value.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
    let (name, rest) = head.split_once('{').unwrap_or((head, "}"));
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    let mut rest = rest.strip_suffix('}').unwrap_or_else(|| panic!("{line}"));
    while !rest.is_empty() {
        let (label, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
        let (mut of, mut chars) = (String::new(), value.chars());
        loop {
            match chars.next().unwrap_or_else(|| panic!("{line}")) {
                '"' => break,
                '\\' => of.push(match chars.next() {
                    Some('n') => '\n',
                    Some(c @ ('\\' | '"')) => c,
                    other => panic!("{other:?} in {line}"),
                }),
                c => of.push(c),
            }
        }
        assert!(is_name(label) && labels.insert(label.to_owned(), of).is_none(), "{line}");
        rest = chars.as_str();
        assert!(rest.is_empty() || rest.starts_with(','), "{line}");
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    (name.to_owned(), labels, value)
}

fn check_histograms(family: &str, samples: &Samples) {
    let mut buckets = BTreeMap::<_, Vec<(f64, f64)>>::new();
    for ((name, labels), value) in samples.iter().filter(|((name, _), _)| name.ends_with("_bucket"))
    {
        let mut labels = labels.clone();
        let bound = labels.remove("le").unwrap_or_else(|| panic!("{name} without le"));
        let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() };
        buckets.entry(labels).or_default().push((bound, *value));
    }
    assert_eq!(samples.keys().filter(|(name, _)| name.ends_with("_sum")).count(), buckets.len());
    for (labels, mut buckets) in buckets {
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{family} {labels:?}: {buckets:?}");
        let last = *buckets.last().unwrap();
        assert_eq!(last, (f64::INFINITY, samples[&(format!("{family}_count"), labels)]));
    }
}

impl TestServer {
    async fn metrics(&self) -> Samples {
        let answer = self.get("/metrics").await;
        assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
        parse(&answer.body)
    }

    /// Waits until the metrics satisfy a condition, and returns them.
    async fn metrics_when(&self, condition: impl Fn(&Samples) -> bool) -> Samples {
        for _ in 0..6000 {
            let samples = self.metrics().await;
            if condition(&samples) {
                return samples;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the metrics do not satisfy the condition: {:?}", self.metrics().await);
    }
}

/// Returns the sample with these labels, if there is one.
fn sample_value(samples: &Samples, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let labels = labels.iter().map(|(k, v)| (String::from(*k), String::from(*v))).collect();
    samples.get(&(name.to_owned(), labels)).copied()
}

fn cria_value(samples: &Samples, name: &str) -> Option<f64> {
    sample_value(samples, name, &[("model", "cria:latest")])
}

fn outcome_count(samples: &Samples, outcome: &str) -> Option<f64> {
    sample_value(
        samples,
        "puna_model_requests_total",
        &[("model", "cria:latest"), ("outcome", outcome)],
    )
}

fn unload_count(samples: &Samples, reason: &str) -> Option<f64> {
    sample_value(
        samples,
        "puna_model_unloads_total",
        &[("model", "cria:latest"), ("reason", reason)],
    )
}

fn response_count(samples: &Samples, route: &str, method: &str, status: &str) -> Option<f64> {
    sample_value(
        samples,
        "puna_http_requests_total",
        &[("route", route), ("method", method), ("status", status)],
    )
}

#[tokio::test]
async fn metrics_of_a_fresh_server_are_wellformed() {
    let samples = TestServer::new().metrics().await;
    assert_eq!(
        sample_value(&samples, "puna_build_info", &[("version", crate::VERSION)]),
        Some(1.0)
    );
    assert_eq!(sample_value(&samples, "puna_queue_length", &[]), Some(0.0));
    assert_eq!(sample_value(&samples, "puna_queue_refused_total", &[]), Some(0.0));
}

#[tokio::test]
async fn a_finished_request_is_counted_at_once_and_its_counts_outlive_its_runner() {
    let server = TestServer::new();
    let usage = server.post("/api/chat", chat(json!({"stream": false}))).await.json();
    let prompt = usage["prompt_eval_count"].as_f64().unwrap();
    let first = server.metrics().await;
    assert_eq!(cria_value(&first, "puna_generated_tokens_total"), Some(5.0));
    assert_eq!(cria_value(&first, "puna_prompt_tokens_total"), Some(prompt));
    assert_eq!(cria_value(&first, "puna_cached_prompt_tokens_total"), Some(0.0));
    assert_eq!(outcome_count(&first, "ok"), Some(1.0));
    for times in ["time_to_first_token", "time_per_token", "model_wait", "queue_wait", "model_load"]
    {
        assert_eq!(
            cria_value(&first, &format!("puna_{times}_seconds_count")),
            Some(1.0),
            "{times}"
        );
    }
    assert_eq!(response_count(&first, "/api/chat", "POST", "200"), Some(1.0));
    assert!(cria_value(&first, "puna_kv_pages").is_some());
    server.post("/api/chat", json!({"model": "cria", "messages": [], "keep_alive": 0})).await;
    let is_unloaded = |metrics: &Samples| cria_value(metrics, "puna_kv_pages").is_none();
    let unloaded = server.metrics_when(is_unloaded).await;
    assert_eq!(cria_value(&unloaded, "puna_generated_tokens_total"), Some(5.0));
    assert_eq!(
        (unload_count(&unloaded, "idle"), unload_count(&unloaded, "room")),
        (Some(1.0), Some(0.0))
    );
    server.post("/api/chat", chat(json!({}))).await;
    let again = server.metrics().await;
    assert_eq!(cria_value(&again, "puna_generated_tokens_total"), Some(10.0));
    assert_eq!(cria_value(&again, "puna_prompt_tokens_total"), Some(2.0 * prompt));
    assert_eq!(cria_value(&again, "puna_model_load_seconds_count"), Some(2.0));
    assert_eq!(cria_value(&again, "puna_runner_crashes_total"), Some(0.0));
}

#[tokio::test]
async fn crashes_failed_loads_reloads_and_errors_are_counted() {
    let server = TestServer::new();
    server.fake.broken.store(true, Ordering::Relaxed);
    server.post("/api/chat", chat(json!({}))).await;
    server.fake.broken.store(false, Ordering::Relaxed);
    let failed = server.metrics().await;
    assert_eq!(cria_value(&failed, "puna_model_load_failures_total"), Some(1.0));
    assert_eq!(cria_value(&failed, "puna_runner_crashes_total"), Some(0.0));
    assert_eq!(
        (outcome_count(&failed, "error"), response_count(&failed, "/api/chat", "POST", "500")),
        (Some(1.0), Some(1.0))
    );

    server.post("/api/chat", chat(json!({"options": {"num_predict": 1, "num_thread": 1}}))).await;
    server.post("/api/chat", chat(json!({"options": {"num_predict": 1, "num_thread": 2}}))).await;
    assert_eq!(unload_count(&server.metrics().await, "reload"), Some(1.0));

    let body = chat(json!({"options": {"num_predict": 1_000_000, "num_thread": 2}}));
    let request = Request::post("/api/chat").body(Body::from(body.to_string())).unwrap();
    let mut body = server.middleware.answer(request).await.into_body();
    body.frame().await.unwrap().unwrap();
    server.fake.crash();
    body.collect().await.unwrap();
    let has_crashed =
        |metrics: &Samples| cria_value(metrics, "puna_runner_crashes_total") == Some(1.0);
    let crashed = server.metrics_when(has_crashed).await;
    assert_eq!(outcome_count(&crashed, "error"), Some(2.0));
    assert_eq!(
        cria_value(&crashed, "puna_generated_tokens_total"),
        Some(2.0),
        "of the two that were finished"
    );
}

#[tokio::test]
async fn disconnected_requests_count_as_cancelled_at_every_stage() {
    let server = TestServer::new();
    let body = chat(json!({"options": {"num_predict": 1_000_000}}));
    let request = || Request::post("/api/chat").body(Body::from(body.to_string())).unwrap();
    let mut answer = server.middleware.answer(request()).await.into_body();
    answer.frame().await.unwrap().unwrap();
    drop(answer);
    assert_eq!(outcome_count(&server.metrics().await, "cancelled"), Some(1.0), "in its answer");
    server.fake.prefill.store(1000, Ordering::Relaxed);
    let left =
        tokio::time::timeout(Duration::from_millis(50), server.middleware.answer(request())).await;
    assert!(left.is_err());
    let samples = server.metrics().await;
    assert_eq!(outcome_count(&samples, "cancelled"), Some(2.0), "before its answer");
    assert_eq!(response_count(&samples, "/api/chat", "POST", "499"), Some(1.0));
    assert_eq!(outcome_count(&samples, "ok"), Some(0.0));
}

#[tokio::test]
async fn unknown_paths_share_one_label_and_wrong_methods_and_hosts_are_counted() {
    let server = TestServer::new();
    for path in ["/nope", "/nope/2", "/metrics%zz", "/V1/models"] {
        server.get(path).await;
    }
    server.with_headers("BREW", "/api/tags", &[]).await;
    server.with_headers("GET", "/api/tags", &[("host", "evil.test")]).await;
    server.get("/v1/models/a/b").await;
    let samples = server.metrics().await;
    assert_eq!(response_count(&samples, "other", "GET", "404"), Some(4.0));
    assert_eq!(response_count(&samples, "/api/tags", "other", "405"), Some(1.0));
    assert_eq!(response_count(&samples, "/api/tags", "GET", "403"), Some(1.0));
    assert_eq!(response_count(&samples, "/v1/models/{*model}", "GET", "404"), Some(1.0));
    assert_eq!(
        response_count(&server.metrics().await, "/metrics", "GET", "200"),
        Some(1.0),
        "the one before"
    );
}
