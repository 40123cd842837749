//! One test: prompts or generated tokens, at some depth, for some sequences at once; or a batch of texts to embed.

use std::time::Instant;

use anyhow::Result;
use puna_engine::{Evaluator, Feed, Outputs};
use puna_graph::OpTime;

use super::busy::Busy;
use super::plan::Plan;

/// Tokens of a step.
pub const BATCH: usize = 512;

/// What is measured. Either `prompt` or `generate` is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Test {
    /// Tokens of a prompt; of the longest text, for embeddings.
    pub prompt: usize,
    pub generate: usize,
    pub depth: usize,
    /// Sequences at once; texts of a batch, for embeddings.
    pub sequences: usize,
    pub embed: bool,
    /// Threads that another process keeps busy meanwhile.
    pub busy: usize,
}

impl Test {
    /// `pp512`, `tg128` or `embed256`.
    pub fn kind(&self) -> String {
        match self {
            Self { embed: true, prompt, .. } => format!("embed{prompt}"),
            Self { prompt: 0, generate, .. } => format!("tg{generate}"),
            Self { prompt, .. } => format!("pp{prompt}"),
        }
    }

    /// The kind, with depth, sequences and neighbours where they are not the usual ones.
    pub fn name(&self) -> String {
        let depth = if self.depth > 0 { format!(" @ d{}", self.depth) } else { String::new() };
        let sequences =
            if self.sequences > 1 { format!(" × {}", self.sequences) } else { String::new() };
        let busy = if self.busy > 0 { format!(", {} busy", self.busy) } else { String::new() };
        format!("{}{depth}{sequences}{busy}", self.kind())
    }
}

/// The outcome of a test.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    pub test: Test,
    /// Tokens per second of each repetition, all sequences together.
    pub runs: Vec<f64>,
    /// Weights and cache that a token had read for it.
    pub bytes_per_token: f64,
    /// Multiply-adds that a token took.
    pub macs_per_token: f64,
    /// For embeddings, one over the mean length.
    pub texts_per_token: f64,
    /// Beside a busy process: tokens per second without it.
    pub quiet: Option<f64>,
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
        median(&self.runs)
    }

    /// Half the distance between the slowest and the fastest repetition.
    pub fn spread(&self) -> f64 {
        let (min, max) =
            self.runs.iter().fold((f64::MAX, f64::MIN), |(lo, hi), &x| (lo.min(x), hi.max(x)));
        if self.runs.is_empty() { 0.0 } else { (max - min) / 2.0 }
    }
}

/// The middle one, or the mean of the two in the middle; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// What one round of a test costs.
pub struct Cost {
    pub tokens: usize,
    pub times: Vec<OpTime>,
}

/// Repeats `once`; then again beside a busy process, if the plan has one.
pub fn repeat(
    test: &Test,
    plan: &Plan,
    cost: &Cost,
    mut once: impl FnMut() -> Result<()>,
) -> Result<Vec<Measured>> {
    let mut runs = || -> Result<Vec<f64>> {
        let run = |_| {
            let start = Instant::now();
            once()?;
            Ok(cost.tokens as f64 / start.elapsed().as_secs_f64())
        };
        (0..plan.repetitions).map(run).collect()
    };
    let per_token = |total: u64| total as f64 / cost.tokens as f64;
    let quiet = Measured {
        test: *test,
        runs: runs()?,
        bytes_per_token: per_token(cost.times.iter().map(|t| t.bytes).sum()),
        macs_per_token: per_token(cost.times.iter().map(|t| t.macs).sum()),
        texts_per_token: if test.embed { per_token(test.sequences as u64) } else { 0.0 },
        quiet: None,
        ops: if plan.with_ops { shares(&cost.times) } else { Vec::new() },
    };
    let Some(threads) = plan.busy else { return Ok(vec![quiet]) };
    let neighbour = Busy::start(threads)?;
    let busy = Measured {
        test: Test { busy: threads, ..*test },
        runs: runs()?,
        quiet: Some(quiet.tokens_per_second()),
        ops: Vec::new(),
        ..quiet.clone()
    };
    drop(neighbour);
    Ok(vec![quiet, busy])
}

/// Runs a test of prompts or generation: once to warm up and to count bytes and multiply-adds, then timed.
pub fn run(evaluator: &mut Evaluator, test: &Test, plan: &Plan) -> Result<Vec<Measured>> {
    let n_vocab = evaluator.info().n_vocab as u32;
    let is_encoded = evaluator.info().start.is_some();
    for sequence in 0..test.sequences {
        evaluator.truncate(sequence, 0);
        if is_encoded && test.depth > 0 {
            let tokens = &tokens(test.depth, sequence, n_vocab);
            evaluator.encode(&[Feed { sequence, tokens, outputs: Outputs::None }])?;
            continue;
        }
        for piece in tokens(test.depth, sequence, n_vocab).chunks(BATCH) {
            evaluator.logits(&[Feed { sequence, tokens: piece, outputs: Outputs::None }])?;
        }
    }
    evaluator.measure(true);
    once(evaluator, test, n_vocab)?;
    let times = evaluator.measured();
    evaluator.measure(false);
    let cost = Cost { tokens: (test.prompt + test.generate) * test.sequences, times };
    repeat(test, plan, &cost, || {
        (0..test.sequences).for_each(|sequence| evaluator.truncate(sequence, test.depth));
        once(evaluator, test, n_vocab)
    })
}

fn once(evaluator: &mut Evaluator, test: &Test, n_vocab: u32) -> Result<()> {
    let texts: Vec<Vec<u32>> =
        (0..test.sequences).map(|s| tokens(test.prompt + test.generate, s + 7, n_vocab)).collect();
    // A prompt goes in steps of up to 512 tokens over all sequences, generated tokens one by one.
    let step = if test.generate > 0 { 1 } else { (BATCH / test.sequences).max(1) };
    let length = test.prompt + test.generate;
    let mut first = 0;
    if evaluator.info().start.is_some() && test.prompt > 0 {
        // An encoder reads prompts as a whole.
        first = test.prompt;
        let feed = |(sequence, text)| Feed { sequence, tokens: text, outputs: Outputs::None };
        let prompts = texts.iter().map(|text| &text[..first]);
        evaluator.encode(&prompts.enumerate().map(feed).collect::<Vec<_>>())?;
    }
    for at in (first..length).step_by(step) {
        let end = (at + step).min(length);
        let outputs =
            if test.generate > 0 || end == length { Outputs::Last } else { Outputs::None };
        let feed = |(sequence, text)| Feed { sequence, tokens: text, outputs };
        let pieces = texts.iter().map(|text| &text[at..end]);
        let feeds: Vec<Feed<'_>> = pieces.enumerate().map(feed).collect();
        evaluator.logits(&feeds)?;
    }
    Ok(())
}

/// Tokens that stand for a text: the same in every run.
pub fn tokens(count: usize, seed: usize, n_vocab: u32) -> Vec<u32> {
    let mut state = seed as u64 + 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
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
        let test = Test { prompt: 512, sequences: 1, ..Test::default() };
        let mut measured = Measured { test, runs: vec![3.0, 9.0, 1.0], ..Measured::default() };
        assert_eq!((measured.tokens_per_second(), measured.spread()), (3.0, 4.0));
        measured.runs.push(5.0);
        assert_eq!(measured.tokens_per_second(), 4.0);
        assert_eq!(median(&[]), 0.0);
        assert_eq!(test.name(), "pp512");
        let deep = Test { generate: 128, depth: 4096, sequences: 8, ..Test::default() };
        assert_eq!(deep.name(), "tg128 @ d4096 × 8");
        assert_eq!(Test { depth: 0, sequences: 1, busy: 2, ..deep }.name(), "tg128, 2 busy");
        assert_eq!(
            Test { prompt: 256, sequences: 64, embed: true, ..Test::default() }.name(),
            "embed256 × 64"
        );
    }

    #[test]
    fn the_same_work_is_measured_alone_and_beside_others() {
        let times = vec![OpTime { op: "linear", seconds: 1.0, bytes: 40, macs: 80 }];
        let cost = Cost { tokens: 20, times };
        let compute = crate::local::Compute::new(Some(1), None).unwrap();
        let plan = Plan { compute, tests: Vec::new(), repetitions: 3, with_ops: true, busy: None };
        let test = Test { generate: 20, sequences: 1, ..Test::default() };
        let mut rounds = 0;
        let mut measure = || {
            rounds += 1;
            Ok(())
        };
        let found = repeat(&test, &plan, &cost, &mut measure).unwrap();
        assert_eq!((found.len(), found[0].runs.len(), found[0].quiet), (1, 3, None));
        assert_eq!((found[0].bytes_per_token, found[0].macs_per_token), (2.0, 4.0));
        assert_eq!((found[0].ops[0].share, rounds), (1.0, 3));
    }
}
