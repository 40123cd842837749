//! The deterministic backend: results depend only on the tokens of the sequence.

use std::path::Path;

use puna_cpu::{Config, CpuBackend, kernels};
use puna_engine::{EngineOptions, Evaluator, Outputs, SequenceInput};

use super::file;

/// Opens an evaluator at a kernel level with this number of threads.
fn evaluator(path: &str, level: &str, threads: usize) -> Evaluator {
    let config = Config {
        threads: Some(threads),
        kernels: Some(level.into()),
        deterministic: true,
        capped: false,
    };
    let options =
        EngineOptions { num_ctx: Some(1024), max_sequences: Some(3), ..EngineOptions::default() };
    Evaluator::open(&file(path), Box::new(CpuBackend::new(&config).unwrap()), &options).unwrap()
}

/// Bits of the logits of the last token, computed `chunk` tokens at a time, in steps with `company`
/// other sequences.
fn last(evaluator: &mut Evaluator, tokens: &[u32], chunk: usize, company: usize) -> Vec<u32> {
    let mut logits = Vec::new();
    (0..=company).for_each(|sequence| evaluator.truncate(sequence, 0));
    for tokens in tokens.chunks(chunk) {
        let mut feeds = vec![SequenceInput { sequence: 0, tokens, outputs: Outputs::Last }];
        let other = [7, 8, 9, 10, 11];
        feeds.extend((1..=company).map(|sequence| SequenceInput {
            sequence,
            tokens: &other,
            outputs: Outputs::None,
        }));
        logits = evaluator.logits(&feeds).unwrap().iter().map(|x| x.to_bits()).collect();
    }
    logits
}

#[test]
fn results_are_independent_of_threads_chunks_and_other_sequences() {
    let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo");
    let names = std::fs::read_dir(zoo)
        .unwrap()
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned());
    let mut files: Vec<String> = names
        .filter(|name| name.ends_with(".gguf"))
        .map(|name| format!("tests/data/zoo/{name}"))
        .collect();
    files.sort();
    files.insert(0, "models/cria/cria-q8_0.gguf".into());
    let mut compared = 0;
    for (i, path) in files.iter().enumerate() {
        // The best level runs for all files, the other levels for every fourth.
        let levels = kernels::levels();
        let levels = if i % 4 == 0 { levels } else { &levels[levels.len() - 1..] };
        compared += levels.iter().map(|level| compare(path, level.name)).sum::<usize>();
    }
    assert!(compared > 20, "{compared}");
}

/// Compares the results of one model at one level for several ways of feeding it. Returns the
/// number of comparisons.
fn compare(path: &str, level: &str) -> usize {
    let mut one = evaluator(path, level, 1);
    // The large model exceeds a split of attention.
    let max = if path.contains("cria") { 600 } else { 150 };
    let (context, vocab) = (one.info().n_ctx.min(max), one.info().n_vocab as u32);
    if !one.info().can_generate {
        return 0;
    }
    let tokens: Vec<u32> =
        (0..context as u32 - 1).map(|i| 5 + (i * i + 3 * i) % (vocab - 5).min(200)).collect();
    let expected = last(&mut one, &tokens, 512, 0);
    let feeds = [(3, 512, 0), (2, 33, 2), (1, 7, 1)];
    for (threads, chunk, company) in feeds {
        // Models with bidirectional attention get all tokens at once.
        let chunk = if one.info().causal { chunk } else { tokens.len() };
        let got = last(&mut evaluator(path, level, threads), &tokens, chunk, company);
        assert!(
            got == expected,
            "{path}, {level}: {threads} threads, {chunk} at a time, {company} others"
        );
    }
    feeds.len()
}
