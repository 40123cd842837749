//! Sends requests with an invalid value at a random position. Every route must answer or report a
//! client error, never panic or report a server error. The fuzz target `request` covers the request
//! types; this test also covers the runner's interface.
//!
//! `PUNA_MUTATION_SECONDS=60 cargo test -p puna-server invalid_values` runs for 60 s with another
//! random seed.

use std::path::Path;
use std::time::Instant;

use serde_json::Map;

use super::*;

/// Number of requests without `PUNA_MUTATION_SECONDS`.
const DEFAULT_REQUESTS: u64 = 1000;

/// Seed files of the fuzz target, and the route of each.
const ROUTES: [(&str, &str); 8] = [
    ("chat", "/api/chat"),
    ("generate", "/api/generate"),
    ("openai", "/v1/chat/completions"),
    ("completion", "/v1/completions"),
    ("responses", "/v1/responses"),
    ("anthropic", "/v1/messages"),
    ("embed", "/api/embed"),
    ("embeddings", "/api/embeddings"),
];

/// Random numbers by Marsaglia's xorshift, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n.max(1)
    }
}

/// Removes fields that the model or the fake engine refuses.
fn remove_unsupported(value: &mut Value) {
    const REFUSED: [&str; 8] = [
        "images",
        "suffix",
        "format",
        "response_format",
        "text",
        "tool_choice",
        "previous_response_id",
        "template",
    ];
    match value {
        Value::Object(map) => {
            map.retain(|key, value| {
                !REFUSED.contains(&key.as_str()) || (key == "text" && value.is_string())
            });
            map.values_mut().for_each(remove_unsupported);
        }
        Value::Array(list) => {
            list.retain(|item| !item["type"].as_str().is_some_and(|kind| kind.contains("image")));
            list.iter_mut().for_each(remove_unsupported);
        }
        Value::Bool(raw) => *raw = false,
        _ => {}
    }
}

fn seeds() -> Vec<(&'static str, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/request");
    let read = |(name, path): (&str, &'static str)| {
        // The first byte selects the type for the fuzzer.
        let bytes = std::fs::read(folder.join(name)).unwrap();
        (path, serde_json::from_slice(&bytes[1..]).unwrap())
    };
    let mut seeds: Vec<(&'static str, Value)> = ROUTES.into_iter().map(read).collect();
    for at in 0..6 {
        let (path, mut value) = seeds[at].clone();
        remove_unsupported(&mut value);
        seeds.push((path, value));
    }
    seeds
        .push(("/v1/rerank", json!({"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1})));
    seeds.push(("/api/tokenize", json!({"text": "a b", "add_special": true})));
    seeds.push(("/api/detokenize", json!({"tokens": [1, 2, 3]})));
    seeds.push(("/v1/messages/count_tokens", seeds[5].1.clone()));
    seeds.push(("/v1/responses/input_tokens", seeds[4].1.clone()));
    seeds
}

/// Returns a value that is seldom valid.
fn invalid_value(random: &mut Random) -> Value {
    let all = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(i64::MAX),
        json!(9_223_372_036_000_000_000_u64),
        json!(1e11),
        json!(1.8e19),
        json!(1e308),
        json!(0.1),
        json!(""),
        json!("x"),
        json!("\u{0}\u{feff}\u{1f600}"),
        json!("data:image/png;base64,!"),
        json!("f".repeat(5000)),
        json!([]),
        json!([[], null, {"type": "text"}]),
        json!({}),
        json!({"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}),
        json!({"type": "function", "function": {"name": ""}}),
        (0..40).fold(json!(1), |inner, _| json!([inner])),
    ];
    all[random.below(all.len())].clone()
}

/// Collects the JSON pointers of all values inside `value`.
fn collect_pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    let mut inside = |key: &str, value| {
        let place = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
        found.push(place.clone());
        collect_pointers(value, &place, found);
    };
    match value {
        Value::Array(list) => list.iter().enumerate().for_each(|(i, v)| inside(&i.to_string(), v)),
        Value::Object(map) => map.iter().for_each(|(key, v)| inside(key, v)),
        _ => {}
    }
}

/// Changes one position: replaces the value by an invalid one or by one from another request,
/// removes it, or repeats it.
fn mutate(body: &mut Value, all: &[(&'static str, Value)], random: &mut Random) {
    let mut found = Vec::new();
    collect_pointers(body, "", &mut found);
    let Some(place) = found.get(random.below(found.len())).cloned() else { return };
    let (parent, key) = place.rsplit_once('/').unwrap();
    let how = random.below(6);
    if how == 0 {
        if let Some(Value::Object(map)) = body.pointer_mut(parent) {
            map.remove(key);
        }
        return;
    }
    let elsewhere = &all[random.below(all.len())].1;
    let mut others = Vec::new();
    collect_pointers(elsewhere, "", &mut others);
    let other = others.get(random.below(others.len())).and_then(|at| elsewhere.pointer(at));
    if how == 1 {
        // The field's name comes from another request.
        let name =
            others[random.below(others.len())].rsplit('/').next().unwrap_or_default().to_owned();
        let value = other.cloned().unwrap_or_default();
        if let Some(map) = body.as_object_mut() {
            map.insert(name, value);
        }
        return;
    }
    let Some(target) = body.pointer_mut(&place) else { return };
    *target = match (how, other) {
        (2, Some(other)) => other.clone(),
        (3, _) => Value::Array(vec![target.clone(); 1 + random.below(3)]),
        _ => invalid_value(random),
    };
}

/// Limits the length of the output, unless the limit has a wrong type.
fn limit_output(path: &str, map: &mut Map<String, Value>) {
    let short = |map: &mut Map<String, Value>, field: &str| {
        if map.get(field).is_none_or(|given| given.is_number() || given.is_null()) {
            map.insert(field.into(), json!(3));
        }
    };
    if path.starts_with("/v1") {
        ["max_tokens", "max_completion_tokens", "max_output_tokens"]
            .into_iter()
            .for_each(|field| short(map, field));
    } else if let Some(options) = map.entry("options").or_insert_with(|| json!({})).as_object_mut()
    {
        short(options, "num_predict");
    }
}

#[tokio::test]
async fn invalid_values_anywhere_are_answered_or_refused() {
    let seconds: Option<u64> =
        std::env::var("PUNA_MUTATION_SECONDS").ok().and_then(|text| text.parse().ok());
    let (server, seeds, start) = (TestServer::new(), seeds(), Instant::now());
    let mut random = Random(seconds.map_or(7, |_| std::process::id().into()) | 1);
    let mut statuses = std::collections::BTreeMap::<u16, u64>::new();
    let mut count = 0;
    while seconds
        .map_or(count < DEFAULT_REQUESTS, |seconds| start.elapsed() < Duration::from_secs(seconds))
    {
        count += 1;
        let (path, seed) = &seeds[random.below(seeds.len())];
        let mut body = seed.clone();
        for _ in 0..random.below(4) {
            mutate(&mut body, &seeds, &mut random);
        }
        if let Some(map) = body.as_object_mut() {
            map.insert("model".into(), json!("cria"));
            // Unloading the model after each request takes most of the time, so it is rare.
            match random.below(8) {
                0 => drop(map.insert("keep_alive".into(), invalid_value(&mut random))),
                1 => {}
                _ => drop(map.remove("keep_alive")),
            }
            limit_output(path, map);
        }
        let (text, stays) = (body.to_string(), body.get("keep_alive").is_some());
        let answer = server.post(path, body).await;
        if stays || random.below(16) == 0 {
            // `/api/ps` shows the `keep_alive` of the request.
            assert_eq!(server.get("/api/ps").await.status, 200, "{path} {text}");
        }
        let status = answer.status.as_u16();
        *statuses.entry(status).or_default() += 1;
        // Only features that are not implemented may answer 501.
        assert!(status < 500 || status == 501, "{path} {text}: {status} {}", answer.body);
        if status >= 400 {
            assert!(
                serde_json::from_str::<Value>(&answer.body).is_ok(),
                "{path} {text}: {}",
                answer.body
            );
        }
    }
    eprintln!("{count} requests: {statuses:?}");
    assert!(statuses.get(&200).is_some_and(|n| *n > count / 10), "{statuses:?}");
    assert!(statuses.get(&400).is_some_and(|n| *n > count / 10), "{statuses:?}");
}
