//! Real models against exact results: the portable level agrees with them, and every other level
//! stays as close to the exact distribution as llama.cpp does.
//!
//! `PUNA_TEST_MODELS` is the folder of the files; without them the tests print a line and pass. The
//! whole text is read, since llama.cpp's divergence is measured on the whole text, and its parts
//! differ more than the two engines do.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use puna_cpu::{Config, CpuBackend};
use puna_engine::{EngineOptions, Evaluator, Outputs, SequenceInput};
use puna_gguf::{Gguf, View};
use serde_json::Value;

const STEP: usize = 128;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn model(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("PUNA_TEST_MODELS")
        .map_or_else(|| root().join(".cache/models"), PathBuf::from);
    let path = folder.join(name);
    if !path.exists() {
        eprintln!("SKIPPED: {name} is not in {}", folder.display());
        return None;
    }
    Some(path)
}

fn evaluator(path: &Path, level: &str) -> Evaluator {
    let view = View::new(Arc::new(Gguf::open(path).unwrap())).unwrap();
    let backend = CpuBackend::new(&Config {
        threads: None,
        kernels: Some(level.into()),
        ..Config::default()
    })
    .unwrap();
    let options =
        EngineOptions { num_ctx: Some(1024), max_sequences: Some(1), ..EngineOptions::default() };
    Evaluator::open(&view, Box::new(backend), &options).unwrap()
}

/// Results of `f` for each number below `n`, computed on all processors.
fn each<T: Send>(n: usize, f: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (numbers, f) = ((0..n).collect::<Vec<usize>>(), &f);
    std::thread::scope(|scope| {
        let parts = numbers.chunks(n.div_ceil(threads).max(1));
        let workers: Vec<_> = parts
            .map(|part| scope.spawn(move || part.iter().map(|&i| f(i)).collect::<Vec<T>>()))
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    })
}

/// A distribution over the vocabulary, by its logits.
#[derive(Clone, Copy)]
struct Distribution<'a> {
    logits: &'a [f32],
    /// Logarithm of the sum of the logits' exponentials.
    log_sum: f64,
}

impl<'a> Distribution<'a> {
    fn new(logits: &'a [f32]) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&l| f64::from((l - max).exp())).sum();
        Self { logits, log_sum: f64::from(max) + sum.ln() }
    }

    fn log_probability(&self, token: usize) -> f64 {
        f64::from(self.logits[token]) - self.log_sum
    }

    fn argmax(&self) -> usize {
        let row = self.logits;
        (0..row.len()).reduce(|a, b| if row[b] > row[a] { b } else { a }).unwrap()
    }

    /// Kullback-Leibler divergence of `other` from this, in nats.
    fn divergence(&self, other: &Self) -> f64 {
        let log_sum = self.log_sum as f32;
        let terms = self.logits.iter().zip(other.logits).map(|(&own, &other)| {
            let weight = f64::from((own - log_sum).exp());
            weight * (f64::from(own) - f64::from(other))
        });
        terms.sum::<f64>() + other.log_sum - self.log_sum
    }
}

/// Differences between a level's results and the exact results.
#[derive(Default)]
struct Score {
    /// The portable level's log-likelihood of the same tokens.
    base_log_likelihood: f64,
    positions: usize,
    agree: usize,
    kl: Vec<f64>,
    /// Sum of the log-probabilities of the text's tokens, and their number.
    log_likelihood: f64,
    predicted: usize,
}

impl Score {
    /// Adds the rows of some positions. `base` has the rows of the base level and is empty for that
    /// level. `exact` has the likeliest tokens of the exact results, `next` the next tokens of the
    /// text.
    fn add(
        &mut self,
        rows: &[Distribution],
        base: &[Distribution],
        exact: &[usize],
        next: &[usize],
    ) {
        self.positions += rows.len();
        self.agree +=
            each(rows.len(), |i| usize::from(rows[i].argmax() == exact[i])).iter().sum::<usize>();
        self.kl.extend(each(base.len(), |i| base[i].divergence(&rows[i])));
        for (row, &token) in rows.iter().zip(next) {
            self.log_likelihood += row.log_probability(token);
            self.predicted += 1;
        }
        self.base_log_likelihood +=
            base.iter().zip(next).map(|(row, &token)| row.log_probability(token)).sum::<f64>();
    }

    fn perplexity(&self) -> f64 {
        (-self.log_likelihood / self.predicted as f64).exp()
    }

    /// Perplexity of the portable level for the same tokens.
    fn base_perplexity(&self) -> f64 {
        (-self.base_log_likelihood / self.predicted as f64).exp()
    }

    fn kl_mean(&self) -> f64 {
        self.kl.iter().sum::<f64>() / self.kl.len() as f64
    }

    fn kl_p99(&mut self) -> f64 {
        self.kl.sort_by(f64::total_cmp);
        self.kl[(self.kl.len() * 99) / 100]
    }
}

/// Levels in plain code are a hundred times slower, so they get only the first piece of the text.
fn is_emulated(level: &str) -> bool {
    puna_cpu::kernels::emulated().iter().any(|emulated| emulated.name == level)
}

/// The pieces of the reference's text.
fn pieces(reference: &Value) -> &[Value] {
    reference["chunks"].as_array().unwrap()
}

/// Perplexity of the read text by the log-probabilities that another engine gave its tokens.
fn perplexity_of(reference: &Value, key: &str) -> f64 {
    let pieces = pieces(reference).iter().map(|piece| piece[key].as_array().unwrap());
    let known: Vec<f64> = pieces.flatten().map(|p| p.as_f64().unwrap()).collect();
    (-known.iter().sum::<f64>() / known.len() as f64).exp()
}

/// Scores of each level over the reference's text; the first level is the base of the divergences.
fn scores(path: &Path, reference: &Value, levels: &[&str]) -> Vec<Score> {
    let mut evaluators: Vec<Evaluator> =
        levels.iter().map(|level| evaluator(path, level)).collect();
    let mut scores: Vec<Score> = levels.iter().map(|_| Score::default()).collect();
    for (n, chunk) in pieces(reference).iter().enumerate() {
        let list = |key: &str| {
            chunk[key].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
        };
        let (tokens, exact): (Vec<usize>, Vec<usize>) = (list("tokens"), list("argmax_exact"));
        let ids: Vec<u32> = tokens.iter().map(|&t| t as u32).collect();
        evaluators.iter_mut().for_each(|e| e.truncate(0, 0));
        for start in (0..ids.len()).step_by(STEP) {
            let part = &ids[start..(start + STEP).min(ids.len())];
            let sequence_input = SequenceInput { sequence: 0, tokens: part, outputs: Outputs::All };
            let (exact, next) = (&exact[start..], &tokens[start + 1..]);
            let base = evaluators[0].logits(&[sequence_input]).unwrap().to_vec();
            let base = distributions(&base, part.len());
            scores[0].add(&base, &[], exact, next);
            let others = evaluators.iter_mut().zip(&mut scores).zip(levels).skip(1);
            for ((evaluator, score), _) in others.filter(|(_, level)| n == 0 || !is_emulated(level))
            {
                let rows = distributions(evaluator.logits(&[sequence_input]).unwrap(), part.len());
                score.add(&rows, &base, exact, next);
            }
        }
    }
    scores
}

/// The distributions of `rows` rows of logits.
fn distributions(logits: &[f32], rows: usize) -> Vec<Distribution<'_>> {
    let vocab = logits.len() / rows;
    each(rows, |i| Distribution::new(&logits[i * vocab..][..vocab]))
}

fn check(file: &str, reference: &str) {
    let Some(path) = model(file) else { return };
    let text =
        std::fs::read_to_string(root().join("tests/data/reference").join(reference)).unwrap();
    let reference: Value = serde_json::from_str(&text).unwrap();
    let number = |key: &str| reference["llama_cpp"][key].as_f64().unwrap();
    let levels = puna_cpu::kernels::levels().iter().chain(puna_cpu::kernels::emulated()).copied();
    let levels: Vec<&str> = levels.map(|level| level.name).collect();
    let mut scores = scores(&path, &reference, &levels);
    let mut complaints = Vec::new();
    for (level, score) in levels.iter().zip(&mut scores) {
        let agreement = score.agree as f64 / score.positions as f64;
        let perplexity = score.perplexity();
        if *level == "portable" {
            let exact = perplexity_of(&reference, "logprob_exact");
            eprintln!(
                "{file} portable: arg-max {agreement:.5}, perplexity {perplexity:.4} (exact {exact:.4})"
            );
            if agreement < 0.995 || (perplexity / exact - 1.0).abs() > 0.001 {
                complaints.push(format!(
                    "portable agrees on {agreement}, perplexity {perplexity} not {exact}"
                ));
            }
            continue;
        }
        let (mean, p99) = (score.kl_mean(), score.kl_p99());
        let mean_limit = number("kl_mean");
        // One percent of a single piece is five tokens, too few for a limit, and llama.cpp's
        // perplexity covers more text.
        let (theirs, p99_limit) = match is_emulated(level) {
            false => (perplexity_of(&reference, "logprob_llama_cpp"), number("kl_p99")),
            true => (score.base_perplexity(), f64::INFINITY),
        };
        eprintln!(
            "{file} {level}: KL mean {mean:.6} (llama.cpp {mean_limit}), 99 % {p99:.5} ({p99_limit}), perplexity \
             {perplexity:.4} ({theirs:.4}), arg-max {agreement:.4}"
        );
        if mean > mean_limit || p99 > p99_limit || (perplexity / theirs - 1.0).abs() > 0.005 {
            complaints.push(format!("{level}: KL {mean} and {p99}, perplexity {perplexity}"));
        }
    }
    assert!(complaints.is_empty(), "{file}: {}", complaints.join("; "));
}

#[test]
fn smollm2_is_as_exact_as_it_should_be() {
    check("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2.json");
}

#[test]
fn gemma3_is_as_exact_as_it_should_be() {
    check("gemma-3-270m-q4_k_m.gguf", "gemma3.json");
}
