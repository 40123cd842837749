//! `puna detokenize`: converts token ids to text.

use anyhow::{Result, bail};
use serde_json::json;

use crate::cli::DetokenizeArgs;
use crate::local::ModelFile;
use crate::out;

pub fn run(args: &DetokenizeArgs) -> Result<()> {
    let tokenizer = ModelFile::open(&args.model)?.tokenizer()?;
    let size = tokenizer.vocab_size();
    if let Some(bad) = args.tokens.iter().find(|id| **id as usize >= size) {
        bail!("token {bad} is not in the vocabulary, which has {size} entries");
    }
    let text = tokenizer.decode(&args.tokens, args.special);
    if args.json { out::json(&json!({"text": text})) } else { out::line(&text) }
}
