//! Benchmark of embeddings: batches of texts of mixed lengths, computed as the server does.

use std::sync::mpsc::channel;

use anyhow::{Context, Result, bail};
use puna_engine::{Engine, EngineOptions, Outputs, SequenceInput};
use puna_gguf::View;

use super::measure::{self, RoundCost, Test, TestResult, tokens};
use super::memory::{Resident, resident};
use super::plan::Plan;
use crate::local::ModelFile;

/// Length of the shortest text in tokens.
const MIN_TEXT_TOKENS: usize = 8;

/// Lengths of `count` texts from 8 tokens to `longest`: evenly spaced on a logarithmic scale, in
/// mixed order.
pub fn lengths(count: usize, longest: usize) -> Vec<usize> {
    let shortest = MIN_TEXT_TOKENS.min(longest);
    let ratio = longest as f64 / shortest.max(1) as f64;
    // A step without a common factor with most counts mixes long and short texts.
    let step = if count.is_multiple_of(37) { 1 } else { 37 };
    let part = |i: usize| (i * step % count) as f64 / (count.max(2) - 1) as f64;
    (0..count).map(|i| (shortest as f64 * ratio.powf(part(i))).round() as usize).collect()
}

/// The texts of a test as tokens.
fn texts(test: &Test, n_vocab: usize) -> Vec<Vec<u32>> {
    let lengths = lengths(test.sequences, test.prompt);
    lengths.iter().enumerate().map(|(i, &n)| tokens(n, i + 7, n_vocab as u32)).collect()
}

/// Runs a test: once through the evaluator to count, once to warm up, then timed. Memory is that of
/// the loaded model.
pub fn run(
    file: &ModelFile,
    test: &Test,
    plan: &Plan,
) -> Result<(Vec<TestResult>, Option<Resident>)> {
    let options = EngineOptions {
        num_ctx: plan.compute.num_ctx,
        num_batch: plan.compute.num_batch,
        cache_k: plan.compute.cache_k,
        cache_v: plan.compute.cache_v,
        max_sequences: Some(plan.compute.sequences),
        ..EngineOptions::default()
    };
    let view = View::new(file.gguf.clone())?;
    let engine = Engine::open(view, Box::new(plan.compute.backend()?), &options);
    let engine = engine.with_context(|| file.display_name.clone())?;
    let texts = texts(test, engine.info().n_vocab);
    let cost = count(file, &texts, plan)?;
    once(&engine, &texts)?;
    let measured = measure::repeat(test, plan, &cost, || once(&engine, &texts))?;
    // Texts leave no entries in the KV cache.
    Ok((measured, resident(file.gguf.paths(), 0)))
}

fn once(engine: &Engine, texts: &[Vec<u32>]) -> Result<()> {
    let (sender, receiver) = channel();
    let done = Box::new(move |vectors| {
        // The receiver waits for the answer, so the send cannot fail.
        let _ = sender.send(vectors);
    });
    engine.embed(0, texts.to_vec(), done)?;
    let vectors = receiver.recv().context("the engine has stopped")??;
    if vectors.len() != texts.len() {
        bail!("{} texts have {} embeddings", texts.len(), vectors.len());
    }
    Ok(())
}

/// Bytes and multiply-adds of a batch, with as many texts per step as fit.
fn count(file: &ModelFile, texts: &[Vec<u32>], plan: &Plan) -> Result<RoundCost> {
    let mut evaluator = plan.compute.evaluator(file)?;
    evaluator.measure(true);
    let mut left = texts;
    while !left.is_empty() {
        let mut rows = 0;
        let fits = |text: &&Vec<u32>| {
            rows += text.len();
            rows <= plan.compute.num_batch
        };
        let (step, rest) = left.split_at(left.iter().take_while(fits).count().max(1));
        (0..step.len()).for_each(|sequence| evaluator.truncate(sequence, 0));
        let feed = |(sequence, tokens)| SequenceInput { sequence, tokens, outputs: Outputs::Last };
        let inputs: Vec<SequenceInput<'_>> =
            step.iter().map(Vec::as_slice).enumerate().map(feed).collect();
        evaluator.hidden(&inputs)?;
        left = rest;
    }
    Ok(RoundCost { tokens: texts.iter().map(Vec::len).sum(), times: evaluator.op_times() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_lengths_are_mixed() {
        let found = lengths(64, 256);
        let mut sorted = found.clone();
        sorted.sort_unstable();
        assert_eq!((sorted[0], sorted[63], found.len()), (8, 256, 64));
        assert!(found != sorted && sorted[31].abs_diff(45) < 3, "{sorted:?}");
        assert_eq!(lengths(1, 5), [5]);
        assert_eq!(lengths(2, 4), [4, 4]);
    }
}
