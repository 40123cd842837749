//! Requests with something odd at a place drawn at random: an answer or an error of the client's, on every route, never a panic
//! or an error of the server. The fuzz target `request` goes as far as the wire types; this goes on to the runner's door.
//!
//! `PUNA_MUTATION_SECONDS=60 cargo test -p puna-server odd_values` runs as long, from another beginning.

use std::path::Path;
use std::time::Instant;

use serde_json::Map;

use super::*;

/// Requests of an ordinary run.
const ORDINARY: u64 = 1000;

/// The seeds of the fuzz target, and which route takes them.
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

/// Marsaglia's xorshift: the same requests in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n.max(1)
    }
}

/// Leaves out what this model, or the fake of it, refuses.
fn plain(value: &mut Value) {
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
            map.values_mut().for_each(plain);
        }
        Value::Array(list) => {
            list.retain(|item| !item["type"].as_str().is_some_and(|kind| kind.contains("image")));
            list.iter_mut().for_each(plain);
        }
        Value::Bool(raw) => *raw = false,
        _ => {}
    }
}

fn seeds() -> Vec<(&'static str, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/request");
    let read = |(name, path): (&str, &'static str)| {
        // The first byte is the fuzzer's choice of a type.
        let bytes = std::fs::read(folder.join(name)).unwrap();
        (path, serde_json::from_slice(&bytes[1..]).unwrap())
    };
    let mut seeds: Vec<(&'static str, Value)> = ROUTES.into_iter().map(read).collect();
    for at in 0..6 {
        let (path, mut value) = seeds[at].clone();
        plain(&mut value);
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

/// Values that are seldom what was expected.
fn odd(dice: &mut Dice) -> Value {
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
    all[dice.below(all.len())].clone()
}

/// Paths of all values inside of one.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    let mut inside = |key: &str, value| {
        let place = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
        found.push(place.clone());
        places(value, &place, found);
    };
    match value {
        Value::Array(list) => list.iter().enumerate().for_each(|(i, v)| inside(&i.to_string(), v)),
        Value::Object(map) => map.iter().for_each(|(key, v)| inside(key, v)),
        _ => {}
    }
}

/// Changes one place: to something odd, to what stands elsewhere, to nothing, or to several of it.
fn mutate(body: &mut Value, all: &[(&'static str, Value)], dice: &mut Dice) {
    let mut found = Vec::new();
    places(body, "", &mut found);
    let Some(place) = found.get(dice.below(found.len())).cloned() else { return };
    let (parent, key) = place.rsplit_once('/').unwrap();
    let how = dice.below(6);
    if how == 0 {
        if let Some(Value::Object(map)) = body.pointer_mut(parent) {
            map.remove(key);
        }
        return;
    }
    let elsewhere = &all[dice.below(all.len())].1;
    let mut others = Vec::new();
    places(elsewhere, "", &mut others);
    let other = others.get(dice.below(others.len())).and_then(|at| elsewhere.pointer(at));
    if how == 1 {
        // A field of another request.
        let name =
            others[dice.below(others.len())].rsplit('/').next().unwrap_or_default().to_owned();
        let value = other.cloned().unwrap_or_default();
        if let Some(map) = body.as_object_mut() {
            map.insert(name, value);
        }
        return;
    }
    let Some(target) = body.pointer_mut(&place) else { return };
    *target = match (how, other) {
        (2, Some(other)) => other.clone(),
        (3, _) => Value::Array(vec![target.clone(); 1 + dice.below(3)]),
        _ => odd(dice),
    };
}

/// Keeps answers short, where their limit is not of a wrong type.
fn limit(path: &str, map: &mut Map<String, Value>) {
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
async fn odd_values_anywhere_are_answered_or_refused() {
    let seconds: Option<u64> =
        std::env::var("PUNA_MUTATION_SECONDS").ok().and_then(|text| text.parse().ok());
    let (b, seeds, start) = (Bench::new(), seeds(), Instant::now());
    let mut dice = Dice(seconds.map_or(7, |_| std::process::id().into()) | 1);
    let mut statuses = std::collections::BTreeMap::<u16, u64>::new();
    let mut count = 0;
    while seconds.map_or(count < ORDINARY, |seconds| start.elapsed() < Duration::from_secs(seconds))
    {
        count += 1;
        let (path, seed) = &seeds[dice.below(seeds.len())];
        let mut body = seed.clone();
        for _ in 0..dice.below(4) {
            mutate(&mut body, &seeds, &mut dice);
        }
        if let Some(map) = body.as_object_mut() {
            map.insert("model".into(), json!("cria"));
            // A model that leaves after each request takes most of the time.
            match dice.below(8) {
                0 => drop(map.insert("keep_alive".into(), odd(&mut dice))),
                1 => {}
                _ => drop(map.remove("keep_alive")),
            }
            limit(path, map);
        }
        let (text, stays) = (body.to_string(), body.get("keep_alive").is_some());
        let answer = b.post(path, body).await;
        if stays || dice.below(16) == 0 {
            // How long models stay is told too.
            assert_eq!(b.get("/api/ps").await.status, 200, "{path} {text}");
        }
        let status = answer.status.as_u16();
        *statuses.entry(status).or_default() += 1;
        // What is not there says so.
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
