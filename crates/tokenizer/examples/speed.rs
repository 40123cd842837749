//! Measures loading, encoding and decoding with the tokenizer of a file: `cargo run --release -p
//! puna-tokenizer --example speed -- MODEL.gguf TEXT.txt`

use std::time::Instant;

use puna_tokenizer::{EncodeOptions, Tokenizer};

/// Shortest time of several rounds in seconds, and the last result.
fn best<T>(mut work: impl FnMut() -> T) -> (f64, T) {
    let mut min = f64::INFINITY;
    let mut result = work();
    for _ in 0..10 {
        let start = Instant::now();
        result = work();
        min = min.min(start.elapsed().as_secs_f64());
    }
    (min, result)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(text)) = (args.next(), args.next()) else {
        return Err("MODEL.gguf TEXT.txt".into());
    };
    let gguf = puna_gguf::Gguf::open(model.as_ref())?;
    let text = std::fs::read_to_string(text)?;
    let (load, tokenizer) = best(|| Tokenizer::from_metadata(gguf.metadata()));
    let tokenizer = tokenizer?;
    let (encode, ids) = best(|| tokenizer.encode(&text, EncodeOptions::default()));
    let (decode, _) = best(|| tokenizer.decode(&ids, true));
    let rate = |seconds: f64| text.len() as f64 / seconds / 1e6;
    println!("load   {:8.1} ms  {} tokens", load * 1e3, tokenizer.vocab_size());
    println!("encode {:8.1} MB/s  {} bytes to {} tokens", rate(encode), text.len(), ids.len());
    println!("decode {:8.1} MB/s", rate(decode));
    Ok(())
}
