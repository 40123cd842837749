//! Measures grammars: `masks VOCABULARY.gguf`. Any model file works; a vocabulary of 128,000 tokens
//! is representative.
//!
//! Prints the time to prepare a vocabulary, to compile each kind of constraint, and to compute the
//! mask of a token.

use std::path::Path;
use std::time::{Duration, Instant};

use puna_gguf::Gguf;
use puna_sampler::{Constraint, GrammarCompiler, GrammarToken};
use puna_tokenizer::{EncodeOptions, Tokenizer};
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("give the path of a GGUF file")?;
    let tokenizer = Tokenizer::from_metadata(Gguf::open(Path::new(&path))?.metadata())?;
    let start = Instant::now();
    let spelling = |id| {
        let is_text = !tokenizer.is_control(id) && !tokenizer.is_eog(id);
        GrammarToken {
            bytes: if is_text { tokenizer.piece(id) } else { tokenizer.text(id) },
            is_text,
        }
    };
    let count = tokenizer.vocab_size();
    let grammars = GrammarCompiler::new((0..count as u32).map(spelling), tokenizer.eog())?;
    println!("{count} tokens: prepared in {:.0?}", start.elapsed());
    println!(
        "{:24} {:>10} {:>8} {:>10} {:>10} {:>10}",
        "", "compiled", "tokens", "median", "99 %", "most"
    );
    for (name, constraint, text) in cases() {
        let start = Instant::now();
        let mut grammar = grammars.compile(&constraint)?;
        let compiled = start.elapsed();
        let mut logits = vec![0.0; count];
        let mut times: Vec<Duration> = Vec::new();
        for token in
            tokenizer.encode(&text, EncodeOptions { add_special: false, parse_special: false })
        {
            let start = Instant::now();
            grammar.mask(&mut logits)?;
            grammar.accept(token)?;
            grammar.prepare();
            times.push(start.elapsed());
        }
        times.sort();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        println!(
            "{name:24} {compiled:>10.1?} {:>8} {:>10.1?} {:>10.1?} {:>10.1?}",
            times.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    Ok(())
}

fn cases() -> Vec<(&'static str, Constraint, String)> {
    let items: Vec<_> = (0..40)
        .map(|i| json!({"id": i, "name": format!("harbour number {i}, \u{e4}\u{f6} and more"), "depth": i as f64 / 3.0, "open": i % 2 == 0, "tags": ["a", "longer tag"]}))
        .collect();
    let text = serde_json::to_string(&json!({ "items": items })).unwrap_or_default();
    let schema = json!({
        "type": "object",
        "properties": {"items": {"type": "array", "items": {
            "type": "object",
            "properties": {
                "id": {"type": "integer"},
                "name": {"type": "string", "maxLength": 200},
                "depth": {"type": "number"},
                "open": {"type": "boolean"},
                "tags": {"type": "array", "items": {"enum": ["a", "b", "longer tag"]}},
            },
            "required": ["id", "name", "depth", "open", "tags"],
        }}},
        "required": ["items"],
    });
    let sentence = "The harbour is deep and wide, and ships come in at high tide. ".repeat(20);
    let gbnf = "root ::= expr\nexpr ::= term ([-+*/] term)*\nterm ::= [0-9]+ | \"(\" expr \")\"";
    vec![
        ("any JSON object", Constraint::Json, text.clone()),
        ("schema", Constraint::schema(schema), text),
        ("regular expression", Constraint::Regex("([A-Z][a-z, ]+\\. )*".into()), sentence),
        (
            "GBNF, arithmetic",
            Constraint::Gbnf(gbnf.into()),
            "(12+3)*4-(5/(6+7))".repeat(20).replace(")(", ")*("),
        ),
    ]
}
