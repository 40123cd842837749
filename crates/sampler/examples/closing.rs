//! Measures the cost per token of tracking the shortest end: `cargo run --release -p puna-sampler
//! --example closing`.
//!
//! Follows an answer to a small schema and one to an object of 200 properties, over a vocabulary of
//! 100,000 tokens, without and with the shortest end. *Draw* is the time that the engine waits for:
//! the mask, and the check that the token leaves enough tokens for an end. *Advance* runs on
//! another thread while the model computes the next step.

use std::time::{Duration, Instant};

use puna_sampler::{Constraint, GrammarCompiler, GrammarToken};
use serde_json::{Map, Value, json};

/// Number of tokens of the vocabulary.
const TOKENS: usize = 100_000;
/// Token limit of the answer. It exceeds the answer's length, so that the end is computed but never
/// used.
const LIMIT: usize = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words = vocabulary();
    let end = words.len() as u32;
    let texts = words.iter().map(|bytes| GrammarToken { bytes, is_text: true });
    let ends = GrammarToken { bytes: b"<end>", is_text: false };
    let grammars = GrammarCompiler::new(texts.chain([ends]), &[end])?;
    println!(
        "{:16} {:5} {:>9} {:>7} {:>12} {:>10} {:>15} {:>13}",
        "schema",
        "whole",
        "compiled",
        "tokens",
        "draw median",
        "draw 99 %",
        "advance median",
        "advance 99 %"
    );
    for (name, schema, text) in cases() {
        let constraint = Constraint::schema(schema);
        let tokens = tokens(&words, text.as_bytes());
        for is_whole in [false, true] {
            let start = Instant::now();
            let grammar = match is_whole {
                true => grammars.compile_with_end(&constraint),
                false => grammars.compile(&constraint),
            };
            let (mut grammar, compiled) = (grammar?, start.elapsed());
            let mut logits = vec![0.0; words.len() + 1];
            let (mut draws, mut advances) = (Vec::new(), Vec::new());
            for (drawn, token) in tokens.iter().enumerate() {
                let start = Instant::now();
                grammar.mask(&mut logits)?;
                assert!(grammar.can_end_within(*token, LIMIT - drawn));
                draws.push(start.elapsed());
                let start = Instant::now();
                grammar.accept(*token)?;
                grammar.prepare();
                advances.push(start.elapsed());
            }
            let [[draw, draw_most], [advance, advance_most]] = [draws, advances].map(quantiles);
            println!(
                "{name:16} {is_whole:5} {compiled:>9.1?} {:>7} {draw:>12.1?} {draw_most:>10.1?} {advance:>15.1?} {advance_most:>13.1?}",
                tokens.len()
            );
        }
    }
    Ok(())
}

/// Median and 99th percentile.
fn quantiles(mut times: Vec<Duration>) -> [Duration; 2] {
    times.sort_unstable();
    [0.5, 0.99].map(|share| times[((times.len() - 1) as f64 * share) as usize])
}

/// All single bytes, common pieces of JSON, numbers, and words of letters.
fn vocabulary() -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    words.extend(
        ["{\"", "\":", "\": ", "\",", ", ", "\", \"", "},", "\"}", "true", "null"]
            .map(|word| word.into()),
    );
    words.extend((10..1000).map(|number: u32| number.to_string().into_bytes()));
    let letters =
        |number: usize| (0..4).map(move |place| b'a' + (number / 26_usize.pow(place) % 26) as u8);
    let further = (0..).map(|number| match number % 2 {
        0 => letters(number / 2 * 7).collect(),
        _ => std::iter::once(b' ').chain(letters(number / 2 * 7)).collect(),
    });
    let missing = TOKENS - words.len();
    words.extend(further.take(missing));
    words
}

/// Tokenizes a text greedily, longest token first.
fn tokens(words: &[Vec<u8>], mut text: &[u8]) -> Vec<u32> {
    let mut tokens = Vec::new();
    while !text.is_empty() {
        let fitting = words.iter().enumerate().filter(|(_, word)| text.starts_with(word));
        let Some((token, word)) = fitting.max_by_key(|(_, word)| word.len()) else { break };
        tokens.push(token as u32);
        text = &text[word.len()..];
    }
    tokens
}

fn cases() -> [(&'static str, Value, String); 2] {
    let small = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["name", "age", "tags"],
    });
    let tags = vec!["a harbour that is deep and wide"; 60];
    let answer = json!({"name": "a name of some length", "age": 31, "tags": tags});
    let kinds = ["string", "integer", "boolean", "number"];
    let properties: Map<String, Value> =
        (0..200).map(|n| (format!("property_{n}"), json!({"type": kinds[n % 4]}))).collect();
    let values = [json!("some text of the property"), json!(123_456), json!(true), json!(2.5)];
    let wide: Map<String, Value> =
        (0..200).map(|n| (format!("property_{n}"), values[n % 4].clone())).collect();
    let required: Vec<&String> = properties.keys().step_by(2).collect();
    let schema = json!({"type": "object", "properties": properties, "required": required});
    [
        ("small", small, answer.to_string()),
        ("200 properties", schema, Value::Object(wide).to_string()),
    ]
}
