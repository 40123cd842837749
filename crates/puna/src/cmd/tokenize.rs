//! `puna tokenize`: prints the token ids and pieces of a text.

use std::io::Read;

use anyhow::{Context, Result};
use puna_tokenizer::EncodeOptions;
use serde_json::json;

use crate::cli::TokenizeArgs;
use crate::local::ModelFile;
use crate::out;

pub fn run(args: &TokenizeArgs) -> Result<()> {
    let tokenizer = ModelFile::open(&args.model)?.tokenizer()?;
    let text = match (&args.text, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => {
            let bytes =
                std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8", path.display()))?
        }
        (None, None) => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
            text
        }
    };
    let opts = EncodeOptions { add_special: !args.no_bos, parse_special: !args.no_special };
    let tokens = tokenizer.encode(&text, opts);
    let pieces: Vec<String> = tokens
        .iter()
        .map(|id| String::from_utf8_lossy(tokenizer.piece(*id)).into_owned())
        .collect();
    if args.json {
        return out::json(&json!({"tokens": tokens, "pieces": pieces}));
    }
    let mut lines = String::new();
    for (id, piece) in tokens.iter().zip(&pieces) {
        lines.push_str(&format!("{id:>7}  {piece:?}\n"));
    }
    out::text(&lines)
}
