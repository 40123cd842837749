//! Rows of small steps have the bits that they have alone: what verification rests on.

use std::path::Path;
use std::sync::Arc;

use puna_cpu::{Config, CpuBackend};
use puna_gguf::{Gguf, View};

use crate::{EngineOptions, Evaluator, Feed, Outputs};

/// Logits of the tokens behind the first `depth`, fed so many at a time; `None` for models that have none or no such
/// context, and where the backend promises nothing for so many rows.
fn logits(path: &Path, level: &str, tokens: &[u32], depth: usize, rows: usize) -> Option<Vec<u32>> {
    let view = View::new(Arc::new(Gguf::open(path).unwrap())).unwrap();
    let backend = CpuBackend::new(&Config { threads: Some(2), kernels: Some(level.into()) }).unwrap();
    let options = EngineOptions { num_ctx: Some(1024), max_sequences: 1, ..EngineOptions::default() };
    let mut evaluator = Evaluator::open(&view, Box::new(backend), &options).unwrap();
    let info = evaluator.info();
    if !info.can_generate || info.n_ctx < tokens.len() || rows > evaluator.backend().exact_rows() {
        return None;
    }
    let feed = |tokens, outputs| [Feed { sequence: 0, tokens, outputs }];
    evaluator.logits(&feed(&tokens[..depth], Outputs::None)).unwrap();
    let mut all = Vec::new();
    for step in tokens[depth..].chunks(rows) {
        all.extend(evaluator.logits(&feed(step, Outputs::All)).unwrap().iter().map(|x| x.to_bits()));
    }
    Some(all)
}

#[test]
fn rows_of_small_steps_have_the_bits_that_they_have_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files: Vec<_> =
        std::fs::read_dir(root.join("tests/data/zoo")).unwrap().flatten().collect::<Vec<_>>();
    files.retain(|entry| entry.path().extension().is_some_and(|e| e == "gguf"));
    let mut files: Vec<_> = files.into_iter().map(|entry| entry.path()).collect();
    files.push(root.join("models/cria/cria-q8_0.gguf"));
    let (mut different, mut compared) = (Vec::new(), 0);
    for (path, level) in
        files.iter().flat_map(|f| puna_cpu::kernels::levels().iter().map(move |l| (f, l.name)))
    {
        for depth in [30, 300] {
            let tokens: Vec<u32> = (0..depth as u32 + 16).map(|i| 5 + (i * i + 3 * i) % 200).collect();
            let Some(alone) = logits(path, level, &tokens, depth, 1) else { continue };
            for rows in [2, 3, 4, 8, 16] {
                let Some(together) = logits(path, level, &tokens, depth, rows) else { break };
                compared += 1;
                if alone != together {
                    let name = path.file_stem().unwrap().to_string_lossy();
                    different.push(format!("{name}, {level}, {rows} rows at depth {depth}"));
                }
            }
        }
    }
    assert!(
        compared > 50 && different.is_empty(),
        "{compared} compared, {} different:\n{}",
        different.len(),
        different.join("\n")
    );
}
