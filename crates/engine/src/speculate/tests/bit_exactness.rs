//! Rows of small steps are bit-identical to rows computed alone, which verification requires.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use puna_cpu::{Config, CpuBackend};
use puna_gguf::{Gguf, View};

use crate::{EngineOptions, Evaluator, Outputs, SequenceInput};

fn open(path: &Path, level: &str) -> Evaluator {
    let view = View::new(Arc::new(Gguf::open(path).unwrap())).unwrap();
    let backend = CpuBackend::new(&Config {
        threads: Some(2),
        kernels: Some(level.into()),
        ..Config::default()
    })
    .unwrap();
    let options =
        EngineOptions { num_ctx: Some(512), max_sequences: Some(1), ..EngineOptions::default() };
    Evaluator::open(&view, Box::new(backend), &options).unwrap()
}

/// Logits of the tokens after the first `depth`, which are in the cache, in steps of `rows` tokens.
fn logits(evaluator: &mut Evaluator, tokens: &[u32], depth: usize, rows: usize) -> Vec<u32> {
    evaluator.truncate(0, depth);
    let mut all = Vec::new();
    for step in tokens[depth..].chunks(rows) {
        let sequence_input = SequenceInput { sequence: 0, tokens: step, outputs: Outputs::All };
        all.extend(evaluator.logits(&[sequence_input]).unwrap().iter().map(|x| x.to_bits()));
    }
    all
}

/// Logits of the tokens behind the first `depth`, each verified with drafts that are rejected.
fn with_refused(evaluator: &mut Evaluator, tokens: &[u32], depth: usize, rows: usize) -> Vec<u32> {
    let mut all = Vec::new();
    for (at, &token) in tokens.iter().enumerate().skip(depth) {
        evaluator.truncate(0, at);
        let mut step = vec![token];
        step.extend((1..rows as u32).map(|i| 5 + (token * 7 + i * 31 + at as u32) % 190));
        let sequence_input = SequenceInput { sequence: 0, tokens: &step, outputs: Outputs::All };
        let n_vocab = evaluator.info().n_vocab;
        all.extend(
            evaluator.logits(&[sequence_input]).unwrap()[..n_vocab].iter().map(|x| x.to_bits()),
        );
    }
    all
}

/// What differs between small steps and single rows behind some depth, and how much was compared.
fn differences(path: &Path, level: &str, depth: usize) -> (Vec<String>, usize) {
    let mut evaluator = open(path, level);
    let depth = depth.min(evaluator.info().n_ctx.saturating_sub(24));
    // No drafts are made where a state could not take them back, nor where tokens see what comes
    // after them.
    let info = evaluator.info();
    if !info.can_generate || info.recurrent || info.unmasking.is_some() {
        return (Vec::new(), 0);
    }
    let tokens: Vec<u32> = (0..depth as u32 + 8).map(|i| 5 + (i * i + 3 * i) % 200).collect();
    let past = SequenceInput { sequence: 0, tokens: &tokens[..depth], outputs: Outputs::None };
    evaluator.logits(&[past]).unwrap();
    let alone = logits(&mut evaluator, &tokens, depth, 1);
    let exact = evaluator.backend().max_bit_exact_rows();
    let (mut different, mut compared) = (Vec::new(), 0);
    for rows in [2, 3, 5, 8, 16].into_iter().filter(|rows| *rows <= exact) {
        compared += 1;
        if alone != logits(&mut evaluator, &tokens, depth, rows) {
            let name = path.file_stem().unwrap().to_string_lossy();
            different.push(format!("{name}, {level}, {rows} rows behind {depth}"));
        }
        if alone != with_refused(&mut evaluator, &tokens, depth, rows) {
            let name = path.file_stem().unwrap().to_string_lossy();
            different
                .push(format!("{name}, {level}, {rows} rows behind {depth}, all but one refused"));
        }
    }
    (different, compared)
}

#[test]
fn rows_of_small_steps_are_bit_identical_to_single_rows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files =
        std::fs::read_dir(root.join("tests/data/zoo")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == "gguf")).collect();
    files.push(root.join("models/cria/cria-q8_0.gguf"));
    let (mut all, mut compared) = (Vec::new(), 0);
    for (path, level) in
        files.iter().flat_map(|f| puna_cpu::kernels::levels().iter().map(move |l| (f, l.name)))
    {
        let (different, n) = differences(path, level, if level == "portable" { 40 } else { 290 });
        all.extend(different);
        compared += n;
    }
    let list = all.join("\n");
    assert!(
        compared > 50 && all.is_empty(),
        "{compared} compared, {} different:\n{list}",
        all.len()
    );
}

#[test]
fn rows_of_small_steps_of_real_models_are_bit_identical_to_single_rows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = std::env::var_os("PUNA_TEST_MODELS")
        .map_or_else(|| root.join(".cache/models"), PathBuf::from);
    let best = puna_cpu::kernels::levels().last().unwrap().name;
    for name in ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"] {
        let path = folder.join(name);
        if !path.exists() {
            eprintln!("SKIPPED: {name} is not in {}", folder.display());
            continue;
        }
        for depth in [60, 250] {
            let (different, compared) = differences(&path, best, depth);
            assert!(compared > 0 && different.is_empty(), "{}", different.join("\n"));
        }
    }
}
