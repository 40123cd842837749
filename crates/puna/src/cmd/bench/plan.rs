//! Converts the command line to a list of tests.

use anyhow::{Result, bail};
use puna_models::{LoadOptions, Model};

use super::measure::{STEP_TOKENS, Test};
use crate::cli::BenchArgs;
use crate::cmd::debug::kv_type;
use crate::local::{Compute, ModelFile};
use crate::usage;

/// Default number of texts in a batch of embeddings.
const DEFAULT_TEXTS: usize = 64;

/// Largest number of concurrent sequences or texts. Above it, a test measures only memory.
const MAX_SEQUENCES: usize = 4096;

/// The tests, and how to run them.
pub struct Plan {
    pub compute: Compute,
    pub tests: Vec<Test>,
    pub repetitions: usize,
    pub with_ops: bool,
    /// Threads of the busy process for which every test runs again.
    pub busy: Option<usize>,
}

impl Plan {
    /// Checks the arguments against the model's limits.
    pub fn new(args: &BenchArgs, file: &ModelFile) -> Result<Self> {
        let model = Model::load(&file.view, LoadOptions::default())?;
        let embed = args.embed || !model.shape().has_logits;
        let n_ctx = model.shape().n_ctx;
        let tests = if embed { embeddings(args, n_ctx) } else { tests(args) };
        if tests.is_empty() && !args.start {
            return Err(usage::error("nothing to measure: set -p or -n above 0"));
        }
        let longest = longest(&tests, n_ctx)?;
        let compute = Compute {
            deterministic: args.deterministic,
            cache_k: kv_type(&args.cache_type_k)?,
            cache_v: kv_type(&args.cache_type_v)?,
            num_ctx: Some(longest.max(STEP_TOKENS)),
            num_batch: STEP_TOKENS,
            sequences: tests.iter().map(|test| test.sequences).max().unwrap_or(1),
            ..Compute::new(args.threads, args.kernels.clone())?
        };
        let (repetitions, with_ops, busy) = (args.repetitions, args.ops, args.busy);
        Ok(Self { compute, tests, repetitions, with_ops, busy })
    }

    /// Whether the tests embed texts.
    pub fn embeds(&self) -> bool {
        self.tests.iter().any(|test| test.embed)
    }
}

/// Tokens of the longest test. Fails if a test exceeds the model's context or the limit of
/// sequences.
fn longest(tests: &[Test], n_ctx: usize) -> Result<usize> {
    let mut longest = 1;
    for test in tests {
        let tokens = test.depth.saturating_add(test.prompt).saturating_add(test.generate);
        if tokens > n_ctx {
            bail!("{} needs more tokens than the context of {n_ctx} (-p, -n and -d)", test.name());
        }
        if test.sequences > MAX_SEQUENCES {
            bail!("{} sequences or texts exceed the limit of {MAX_SEQUENCES} (-b)", test.sequences);
        }
        longest = longest.max(tokens);
    }
    Ok(longest)
}

/// All combinations of the arguments: prompts and generations, at every depth and number of
/// sequences.
fn tests(args: &BenchArgs) -> Vec<Test> {
    let mut tests = Vec::new();
    let sequences = if args.sequences.is_empty() { &[1][..] } else { &args.sequences };
    for &depth in &args.depth {
        for &sequences in sequences {
            let test = Test { depth, sequences, ..Test::default() };
            tests.extend(
                args.n_prompt.iter().filter(|n| **n > 0).map(|&prompt| Test { prompt, ..test }),
            );
            tests.extend(
                args.n_gen.iter().filter(|n| **n > 0).map(|&generate| Test { generate, ..test }),
            );
        }
    }
    tests
}

/// A batch for every number of texts and every longest length, limited to the model's context.
fn embeddings(args: &BenchArgs, n_ctx: usize) -> Vec<Test> {
    let sequences = if args.sequences.is_empty() { &[DEFAULT_TEXTS][..] } else { &args.sequences };
    let mut longest: Vec<usize> =
        args.n_prompt.iter().filter(|n| **n > 0).map(|&n| n.min(n_ctx)).collect();
    longest.dedup();
    let batch = |&sequences| {
        let test = Test { sequences, embed: true, ..Test::default() };
        longest.iter().map(move |&prompt| Test { prompt, ..test }).collect::<Vec<_>>()
    };
    sequences.iter().flat_map(batch).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(line: &str) -> BenchArgs {
        let words = ["puna", "bench", "cria"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            Some(Command::Bench(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    fn names(tests: &[Test]) -> Vec<String> {
        tests.iter().map(Test::name).collect()
    }

    #[test]
    fn lists_are_combined() {
        assert_eq!(names(&super::tests(&args(""))), ["pp512", "tg128"]);
        let found = super::tests(&args("-p 0 -n 32 -d 0,4096 -b 1,8"));
        assert_eq!(names(&found), ["tg32", "tg32 × 8", "tg32 @ d4096", "tg32 @ d4096 × 8"]);
        assert_eq!(super::tests(&args("-p 0 -n 0")), []);
    }

    #[test]
    fn numbers_above_a_limit_name_the_limit() {
        let max = usize::MAX.to_string();
        let found =
            |line: &str| longest(&super::tests(&args(line)), 256).map_err(|e| e.to_string());
        assert_eq!(
            found("-p 200 -n 56 -d 200"),
            Err("pp200 @ d200 needs more tokens than the context of 256 (-p, -n and -d)".into())
        );
        assert_eq!(found("-p 128 -n 56 -d 0,128 -b 4096"), Ok(256));
        for line in [
            format!("-p 8 -n 0 -d {max}"),
            format!("-p {max} -n 0 -d 1"),
            format!("-p 0 -n {max} -d {max}"),
        ] {
            assert!(found(&line).is_err_and(|text| text.contains("the context of 256")), "{line}");
        }
        for line in ["-p 8 -b 4097".to_owned(), format!("-p 8 -b 1,{max}")] {
            assert!(
                found(&line).is_err_and(|text| text.contains("exceed the limit of 4096")),
                "{line}"
            );
        }
        let texts = embeddings(&args(&format!("-b {max}")), 256);
        assert!(longest(&texts, 256).is_err());
    }

    #[test]
    fn texts_are_limited_to_the_context() {
        assert_eq!(names(&embeddings(&args(""), 256)), ["embed256 × 64"]);
        assert_eq!(
            names(&embeddings(&args("-p 64,512 -b 8"), 256)),
            ["embed64 × 8", "embed256 × 8"]
        );
    }
}
