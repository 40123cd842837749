//! `puna debug logits`: raw logits of given tokens, fed in whole, in chunks or one by one.

use anyhow::{Result, bail};
use puna_engine::{Outputs, SequenceInput};
use puna_graph::KvType;
use serde_json::{Value, json};

use crate::cli::{ComputeArgs, LogitsArgs};
use crate::local::{Compute, ModelFile};
use crate::{out, usage};

pub fn run(args: &LogitsArgs) -> Result<()> {
    if args.backend != "cpu" {
        return Err(usage::error(format!("unknown backend `{}`: use cpu", args.backend)));
    }
    let tokens = &args.tokens;
    let positions = positions(&args.positions, tokens.len())?;
    let chunk = match args.split.as_str() {
        "whole" => tokens.len(),
        "one" => 1,
        number => number.parse().ok().filter(|n| *n > 0).ok_or_else(|| {
            usage::error(format!(
                "--split must be whole, one or a number of tokens, not `{number}`"
            ))
        })?,
    };
    let copies = args.parallel.unwrap_or(1);
    let others = if args.parallel.is_some() { copies } else { 0 };
    let file = ModelFile::open(&args.model)?;
    let compute =
        Compute { num_ctx: args.num_ctx, sequences: copies + others, ..compute(&args.compute)? };
    let mut evaluator = compute.evaluator(&file)?;
    let info = evaluator.info().clone();
    if info.start.is_some() {
        bail!(
            "{} is an encoder–decoder model, which has no logits for prompt tokens",
            file.display_name
        );
    }
    // An encoder reads the whole text in one step.
    let chunk = if info.causal { chunk } else { tokens.len() };
    let sequences = sequences(tokens, copies, others);
    let mut rows = Vec::new();
    for start in (0..tokens.len()).step_by(chunk) {
        let end = (start + chunk).min(tokens.len());
        let feed = |(sequence, tokens)| SequenceInput { sequence, tokens, outputs: Outputs::All };
        let pieces = sequences.iter().map(|tokens| &tokens[start..end]);
        let feeds: Vec<SequenceInput<'_>> = pieces.enumerate().map(feed).collect();
        let (result, columns) = match info.can_generate {
            true => (evaluator.logits(&feeds)?, info.n_vocab),
            false => (evaluator.hidden(&feeds)?, info.n_embd),
        };
        // The rows of the first copy are first in the result.
        rows.extend(result.chunks_exact(columns).take(end - start).map(<[f32]>::to_vec));
    }
    let picked: Vec<&Vec<f32>> = positions.iter().map(|&p| &rows[p]).collect();
    let key = if info.can_generate { "logits" } else { "embeddings" };
    if args.json {
        let picked: Vec<Value> =
            picked.iter().map(|row| row.iter().map(|x| number(*x)).collect()).collect();
        return out::json(&json!({
            "architecture": info.architecture, "n_vocab": info.n_vocab, "positions": positions, key: picked,
        }));
    }
    let mut text = String::new();
    for (position, row) in positions.iter().zip(picked) {
        let mut best: Vec<usize> = (0..row.len()).collect();
        best.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        let top: Vec<String> =
            best.iter().take(5).map(|&id| format!("{id}: {:.4}", row[id])).collect();
        text.push_str(&format!("position {position}: {}\n", top.join("  ")));
    }
    out::text(&text)
}

/// The copies, followed by as many sequences with other tokens.
fn sequences(tokens: &[u32], copies: usize, others: usize) -> Vec<Vec<u32>> {
    let turned = |by: usize| {
        tokens.iter().cycle().skip(by % tokens.len()).take(tokens.len()).copied().collect()
    };
    (0..copies).map(|_| tokens.to_vec()).chain((1..=others).map(turned)).collect()
}

fn positions(text: &str, tokens: usize) -> Result<Vec<usize>> {
    match text {
        "all" => Ok((0..tokens).collect()),
        "last" => Ok(vec![tokens - 1]),
        list => list
            .split(',')
            .map(|item| {
                let position: usize = item.trim().parse().map_err(|_| {
                    usage::error(format!(
                        "--positions must be all, last or a list of numbers, not `{list}`"
                    ))
                })?;
                if position >= tokens {
                    return Err(usage::error(format!(
                        "position {position} is beyond the {tokens} tokens"
                    )));
                }
                Ok(position)
            })
            .collect(),
    }
}

/// Settings of the computation for one sequence.
pub(super) fn compute(args: &ComputeArgs) -> Result<Compute> {
    Ok(Compute {
        cache_k: kv_type(&args.cache_type_k)?,
        cache_v: kv_type(&args.cache_type_v)?,
        ..Compute::new(args.threads, args.kernels.clone())?
    })
}

pub fn kv_type(name: &str) -> Result<KvType> {
    name.parse::<KvType>().map_err(|error| usage::error(error.to_string()))
}

/// A number in JSON; a text for infinity and NaN.
pub(super) fn number(x: f32) -> Value {
    if x.is_finite() { json!(x) } else { Value::String(x.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_names_or_numbers_within_the_text() {
        assert_eq!(positions("all", 3).unwrap(), [0, 1, 2]);
        assert_eq!(positions("last", 3).unwrap(), [2]);
        assert_eq!(positions("2,0", 3).unwrap(), [2, 0]);
        assert!(positions("3", 3).unwrap_err().to_string().contains("beyond the 3 tokens"));
        assert!(positions("x", 3).is_err());
    }

    #[test]
    fn additional_sequences_differ_from_the_copies() {
        assert_eq!(sequences(&[1, 2, 3], 2, 2), [[1, 2, 3], [1, 2, 3], [2, 3, 1], [3, 1, 2]]);
    }
}
