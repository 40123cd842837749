//! One test: prompts or generated tokens, at some depth, for some sequences at once.

use std::time::Instant;

use anyhow::Result;
use puna_engine::{Evaluator, Feed, Outputs};
use puna_graph::OpTime;

/// Tokens of a step.
const BATCH: usize = 512;

/// What is measured. Either `prompt` or `generate` is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    pub prompt: usize,
    pub generate: usize,
    pub depth: usize,
    pub sequences: usize,
}

impl Test {
    /// `pp512` or `tg128`.
    pub fn kind(&self) -> String {
        if self.prompt > 0 { format!("pp{}", self.prompt) } else { format!("tg{}", self.generate) }
    }

    /// The kind, with depth and sequences where they are not the usual ones.
    pub fn name(&self) -> String {
        let depth = if self.depth > 0 { format!(" @ d{}", self.depth) } else { String::new() };
        let sequences = if self.sequences > 1 { format!(" × {}", self.sequences) } else { String::new() };
        format!("{}{depth}{sequences}", self.kind())
    }

    /// Tokens that one repetition counts.
    fn tokens(&self) -> usize {
        (self.prompt + self.generate) * self.sequences
    }
}

/// The outcome of a test.
#[derive(Debug, Clone)]
pub struct Measured {
    pub test: Test,
    /// Tokens per second of each repetition, all sequences together.
    pub runs: Vec<f64>,
    /// Weights and cache that a token had read for it.
    pub bytes_per_token: f64,
    /// Multiply-adds that a token took.
    pub macs_per_token: f64,
    /// By operation, most time first; empty unless asked for.
    pub ops: Vec<Share>,
}

/// An operation's part of the time.
#[derive(Debug, Clone)]
pub struct Share {
    pub op: &'static str,
    pub share: f64,
    pub gbs: f64,
    pub gmacs: f64,
}

impl Measured {
    /// The median.
    pub fn tokens_per_second(&self) -> f64 {
        let mut sorted = self.runs.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => 0.0,
            n if n % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        }
    }

    /// Half the distance between the slowest and the fastest repetition.
    pub fn spread(&self) -> f64 {
        let (min, max) = self.runs.iter().fold((f64::MAX, f64::MIN), |(lo, hi), &x| (lo.min(x), hi.max(x)));
        if self.runs.is_empty() { 0.0 } else { (max - min) / 2.0 }
    }
}

/// Runs a test: once to warm up and to count bytes and multiply-adds, then the timed repetitions.
pub fn run(evaluator: &mut Evaluator, test: &Test, repetitions: usize, with_ops: bool) -> Result<Measured> {
    let n_vocab = evaluator.info().n_vocab as u32;
    for sequence in 0..test.sequences {
        evaluator.truncate(sequence, 0);
        for piece in tokens(test.depth, sequence, n_vocab).chunks(BATCH) {
            evaluator.logits(&[Feed { sequence, tokens: piece, outputs: Outputs::None }])?;
        }
    }
    evaluator.measure(true);
    once(evaluator, test, n_vocab)?;
    let times = evaluator.measured();
    evaluator.measure(false);
    let mut runs = Vec::new();
    for _ in 0..repetitions {
        rewind(evaluator, test);
        let start = Instant::now();
        once(evaluator, test, n_vocab)?;
        runs.push(test.tokens() as f64 / start.elapsed().as_secs_f64());
    }
    rewind(evaluator, test);
    let per_token = |total: u64| total as f64 / test.tokens() as f64;
    Ok(Measured {
        test: *test,
        runs,
        bytes_per_token: per_token(times.iter().map(|t| t.bytes).sum()),
        macs_per_token: per_token(times.iter().map(|t| t.macs).sum()),
        ops: if with_ops { shares(&times) } else { Vec::new() },
    })
}

fn rewind(evaluator: &mut Evaluator, test: &Test) {
    (0..test.sequences).for_each(|sequence| evaluator.truncate(sequence, test.depth));
}

fn once(evaluator: &mut Evaluator, test: &Test, n_vocab: u32) -> Result<()> {
    let texts: Vec<Vec<u32>> =
        (0..test.sequences).map(|s| tokens(test.prompt + test.generate, s + 7, n_vocab)).collect();
    // A prompt goes in steps of up to 512 tokens over all sequences, generated tokens one by one.
    let step = if test.generate > 0 { 1 } else { (BATCH / test.sequences).max(1) };
    let length = test.prompt + test.generate;
    for at in (0..length).step_by(step) {
        let end = (at + step).min(length);
        let outputs = if test.generate > 0 || end == length { Outputs::Last } else { Outputs::None };
        let feed = |(sequence, text)| Feed { sequence, tokens: text, outputs };
        let pieces = texts.iter().map(|text| &text[at..end]);
        let feeds: Vec<Feed<'_>> = pieces.enumerate().map(feed).collect();
        evaluator.logits(&feeds)?;
    }
    Ok(())
}

/// Tokens that stand for a text: the same in every run.
fn tokens(count: usize, seed: usize, n_vocab: u32) -> Vec<u32> {
    let mut state = seed as u64 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % n_vocab.max(1)
    };
    (0..count).map(|_| next()).collect()
}

fn shares(times: &[OpTime]) -> Vec<Share> {
    let total: f64 = times.iter().map(|t| t.seconds).sum();
    let share = |t: &OpTime| Share {
        op: t.op,
        share: t.seconds / total,
        gbs: t.bytes as f64 / t.seconds / 1e9,
        gmacs: t.macs as f64 / t.seconds / 1e9,
    };
    let mut shares: Vec<Share> = times.iter().filter(|t| t.seconds > 0.0).map(share).collect();
    shares.sort_by(|a, b| b.share.total_cmp(&a.share));
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_reported_and_names_are_those_of_llama_bench() {
        let test = Test { prompt: 512, generate: 0, depth: 0, sequences: 1 };
        let (bytes_per_token, macs_per_token, ops) = (0.0, 0.0, Vec::new());
        let mut measured = Measured { test, runs: vec![3.0, 9.0, 1.0], bytes_per_token, macs_per_token, ops };
        assert_eq!((measured.tokens_per_second(), measured.spread()), (3.0, 4.0));
        measured.runs.push(5.0);
        assert_eq!(measured.tokens_per_second(), 4.0);
        assert_eq!(test.name(), "pp512");
        assert_eq!(Test { prompt: 0, generate: 128, depth: 4096, sequences: 8 }.name(), "tg128 @ d4096 × 8");
    }
}
