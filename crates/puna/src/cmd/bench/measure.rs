//! Runs one test: prompt processing or generation at a depth, for several sequences at once; or a
//! batch of texts to embed.

use std::time::Instant;

use anyhow::Result;
use puna_engine::{Evaluator, Outputs, SequenceInput};
use puna_graph::OpTime;

use super::busy::BusyProcess;
use super::plan::Plan;

/// Tokens per step.
pub const STEP_TOKENS: usize = 512;

/// Parameters of a test. Either `prompt` or `generate` is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Test {
    /// Tokens of the prompt; for embeddings, of the longest text.
    pub prompt: usize,
    pub generate: usize,
    pub depth: usize,
    /// Concurrent sequences; for embeddings, texts of a batch.
    pub sequences: usize,
    pub embed: bool,
    /// Threads that another process keeps busy during the test.
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

    /// The kind, with depth, sequences and busy threads if these are not the defaults.
    pub fn name(&self) -> String {
        let depth = if self.depth > 0 { format!(" @ d{}", self.depth) } else { String::new() };
        let sequences =
            if self.sequences > 1 { format!(" × {}", self.sequences) } else { String::new() };
        let busy = if self.busy > 0 { format!(", {} busy", self.busy) } else { String::new() };
        format!("{}{depth}{sequences}{busy}", self.kind())
    }
}

/// Result of a test.
#[derive(Debug, Clone, Default)]
pub struct TestResult {
    pub test: Test,
    /// Tokens per second of each repetition, for all sequences together.
    pub runs: Vec<f64>,
    /// Bytes of weights and KV cache read per token.
    pub bytes_per_token: f64,
    /// Multiply-adds per token.
    pub macs_per_token: f64,
    /// For embeddings, the inverse of the mean length.
    pub texts_per_token: f64,
    /// For a test next to a busy process: tokens per second without that process.
    pub undisturbed: Option<f64>,
    /// Time shares of operations, in descending order; empty unless requested.
    pub ops: Vec<OpShare>,
}

/// Share of an operation in the computing time.
#[derive(Debug, Clone)]
pub struct OpShare {
    pub op: &'static str,
    pub share: f64,
    pub gbs: f64,
    pub gmacs: f64,
}

impl TestResult {
    /// Median of the repetitions.
    pub fn tokens_per_second(&self) -> f64 {
        median(&self.runs)
    }

    /// Half the range of the repetitions.
    pub fn spread(&self) -> f64 {
        let (min, max) =
            self.runs.iter().fold((f64::MAX, f64::MIN), |(lo, hi), &x| (lo.min(x), hi.max(x)));
        if self.runs.is_empty() { 0.0 } else { (max - min) / 2.0 }
    }
}

/// Median: the middle value, or the mean of the two middle ones; 0 without values.
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

/// Tokens and operations of one repetition of a test.
pub struct RoundCost {
    pub tokens: usize,
    pub times: Vec<OpTime>,
}

/// Repeats `once`, and again next to a busy process if the plan has one.
pub fn repeat(
    test: &Test,
    plan: &Plan,
    cost: &RoundCost,
    mut once: impl FnMut() -> Result<()>,
) -> Result<Vec<TestResult>> {
    let mut runs = || -> Result<Vec<f64>> {
        let run = |_| {
            let start = Instant::now();
            once()?;
            Ok(cost.tokens as f64 / start.elapsed().as_secs_f64())
        };
        (0..plan.repetitions).map(run).collect()
    };
    let per_token = |total: u64| total as f64 / cost.tokens as f64;
    let quiet = TestResult {
        test: *test,
        runs: runs()?,
        bytes_per_token: per_token(cost.times.iter().map(|t| t.bytes).sum()),
        macs_per_token: per_token(cost.times.iter().map(|t| t.macs).sum()),
        texts_per_token: if test.embed { per_token(test.sequences as u64) } else { 0.0 },
        undisturbed: None,
        ops: if plan.with_ops { shares(&cost.times) } else { Vec::new() },
    };
    let Some(threads) = plan.busy else { return Ok(vec![quiet]) };
    let neighbour = BusyProcess::start(threads)?;
    let busy = TestResult {
        test: Test { busy: threads, ..*test },
        runs: runs()?,
        undisturbed: Some(quiet.tokens_per_second()),
        ops: Vec::new(),
        ..quiet.clone()
    };
    drop(neighbour);
    Ok(vec![quiet, busy])
}

/// Runs a prompt or generation test: once to warm up and to count bytes and multiply-adds, then
/// timed.
pub fn run(evaluator: &mut Evaluator, test: &Test, plan: &Plan) -> Result<Vec<TestResult>> {
    let n_vocab = evaluator.info().n_vocab as u32;
    let is_encoded = evaluator.info().start.is_some();
    for sequence in 0..test.sequences {
        evaluator.truncate(sequence, 0);
        if is_encoded && test.depth > 0 {
            let tokens = &tokens(test.depth, sequence, n_vocab);
            evaluator.encode(&[SequenceInput { sequence, tokens, outputs: Outputs::None }])?;
            continue;
        }
        for piece in tokens(test.depth, sequence, n_vocab).chunks(STEP_TOKENS) {
            evaluator.logits(&[SequenceInput {
                sequence,
                tokens: piece,
                outputs: Outputs::None,
            }])?;
        }
    }
    evaluator.measure(true);
    once(evaluator, test, n_vocab)?;
    let times = evaluator.op_times();
    evaluator.measure(false);
    let cost = RoundCost { tokens: (test.prompt + test.generate) * test.sequences, times };
    repeat(test, plan, &cost, || {
        (0..test.sequences).for_each(|sequence| evaluator.truncate(sequence, test.depth));
        once(evaluator, test, n_vocab)
    })
}

fn once(evaluator: &mut Evaluator, test: &Test, n_vocab: u32) -> Result<()> {
    let texts: Vec<Vec<u32>> =
        (0..test.sequences).map(|s| tokens(test.prompt + test.generate, s + 7, n_vocab)).collect();
    // Prompts run in steps of up to 512 tokens over all sequences, generated tokens in steps of one
    // per sequence.
    let step = if test.generate > 0 { 1 } else { (STEP_TOKENS / test.sequences).max(1) };
    let length = test.prompt + test.generate;
    let mut first = 0;
    if evaluator.info().start.is_some() && test.prompt > 0 {
        // An encoder reads a prompt in one step.
        first = test.prompt;
        let feed =
            |(sequence, text)| SequenceInput { sequence, tokens: text, outputs: Outputs::None };
        let prompts = texts.iter().map(|text| &text[..first]);
        evaluator.encode(&prompts.enumerate().map(feed).collect::<Vec<_>>())?;
    }
    for at in (first..length).step_by(step) {
        let end = (at + step).min(length);
        let outputs =
            if test.generate > 0 || end == length { Outputs::Last } else { Outputs::None };
        let feed = |(sequence, text)| SequenceInput { sequence, tokens: text, outputs };
        let pieces = texts.iter().map(|text| &text[at..end]);
        let inputs: Vec<SequenceInput<'_>> = pieces.enumerate().map(feed).collect();
        evaluator.logits(&inputs)?;
    }
    Ok(())
}

/// Pseudo-random tokens that stand for a text; they are the same in every run.
pub fn tokens(count: usize, seed: usize, n_vocab: u32) -> Vec<u32> {
    let mut state = seed as u64 + 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % n_vocab.max(1)
    };
    (0..count).map(|_| next()).collect()
}

fn shares(times: &[OpTime]) -> Vec<OpShare> {
    let total: f64 = times.iter().map(|t| t.seconds).sum();
    let share = |t: &OpTime| OpShare {
        op: t.op,
        share: t.seconds / total,
        gbs: t.bytes as f64 / t.seconds / 1e9,
        gmacs: t.macs as f64 / t.seconds / 1e9,
    };
    let mut shares: Vec<OpShare> = times.iter().filter(|t| t.seconds > 0.0).map(share).collect();
    shares.sort_by(|a, b| b.share.total_cmp(&a.share));
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_reported_and_names_are_those_of_llama_bench() {
        let test = Test { prompt: 512, sequences: 1, ..Test::default() };
        let mut measured = TestResult { test, runs: vec![3.0, 9.0, 1.0], ..TestResult::default() };
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
    fn tests_repeat_next_to_a_busy_process() {
        let times = vec![OpTime { op: "linear", seconds: 1.0, bytes: 40, macs: 80 }];
        let cost = RoundCost { tokens: 20, times };
        let compute = crate::local::Compute::new(Some(1), None).unwrap();
        let plan = Plan { compute, tests: Vec::new(), repetitions: 3, with_ops: true, busy: None };
        let test = Test { generate: 20, sequences: 1, ..Test::default() };
        let mut rounds = 0;
        let mut measure = || {
            rounds += 1;
            Ok(())
        };
        let found = repeat(&test, &plan, &cost, &mut measure).unwrap();
        assert_eq!((found.len(), found[0].runs.len(), found[0].undisturbed), (1, 3, None));
        assert_eq!((found[0].bytes_per_token, found[0].macs_per_token), (2.0, 4.0));
        assert_eq!((found[0].ops[0].share, rounds), (1.0, 3));
    }
}
