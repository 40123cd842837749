//! `puna bench`: tokens per second, beside what the machine can do at most.

mod compare;
mod measure;
mod plot;

use anyhow::{Context, Result, bail};
use puna_cpu::probe::{self, Limits};
use serde_json::{Value, json};

use crate::cli::BenchArgs;
use crate::cmd::debug::kv_type;
use crate::local::{Compute, ModelFile};
use crate::{format, out, usage};
use measure::{Measured, Test};

pub fn run(args: &BenchArgs) -> Result<()> {
    let tests = tests(args)?;
    let baseline = args.compare.as_ref().map(|path| compare::read(path)).transpose()?;
    let file = ModelFile::open(&args.model)?;
    let longest = tests.iter().map(|test| test.depth + test.prompt + test.generate).max().unwrap_or(1);
    let compute = Compute {
        cache_k: kv_type(&args.cache_type_k)?,
        cache_v: kv_type(&args.cache_type_v)?,
        num_ctx: Some(longest.max(512)),
        sequences: tests.iter().map(|test| test.sequences).max().unwrap_or(1),
        ..Compute::new(args.threads, None)
    };
    let mut evaluator = compute.evaluator(&file)?;
    if !evaluator.info().can_generate {
        bail!("{} makes embeddings and generates nothing", file.shown);
    }
    if evaluator.info().n_ctx < longest {
        bail!("{longest} tokens are more than the context of {}", evaluator.info().n_ctx);
    }
    let machine = evaluator.backend().describe();
    eprintln!(
        "probing the machine: {}, {} threads, kernels {}",
        machine.device, machine.threads, machine.kernels
    );
    let before = probe::limits(machine.threads, &machine.kernels)?;
    let mut results = Vec::new();
    for test in &tests {
        eprintln!("{}", test.name());
        results.push(measure::run(&mut evaluator, test, args.repetitions, args.ops)?);
    }
    // Others may have been busy at one end of the run: the machine can do what it did at its better one.
    let limits = before.best(probe::limits(machine.threads, &machine.kernels)?);
    if let Some(path) = &args.plot {
        let svg = plot::svg(&file.shown, &results);
        std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let ratios: Vec<Option<f64>> = results.iter().map(|r| baseline.as_ref()?.ratio(r)).collect();
    if args.json {
        return out::json(&json!({
            "machine": {
                "cpu": machine.device, "threads": machine.threads, "kernels": machine.kernels,
                "read_gbs": limits.read_gbs, "int8_gmacs": limits.int8_gmacs, "bf16_gmacs": limits.bf16_gmacs,
            },
            "model": {
                "path": file.shown, "architecture": evaluator.info().architecture,
                "parameters": evaluator.info().parameters, "bytes": file.gguf.tensor_bytes(),
                "file_type": puna_store::Facts::of(&file.gguf).file_type,
                "cache_type_k": args.cache_type_k, "cache_type_v": args.cache_type_v,
            },
            "results": results.iter().zip(&ratios).map(|(r, ratio)| result_json(r, *ratio, limits)).collect::<Vec<_>>(),
        }));
    }
    out::text(&text(&machine, limits, &results, &ratios))
}

/// Every combination that was asked for: prompts and generations, at every depth and number of sequences.
fn tests(args: &BenchArgs) -> Result<Vec<Test>> {
    let mut tests = Vec::new();
    for &depth in &args.depth {
        for &sequences in &args.sequences {
            for &prompt in args.n_prompt.iter().filter(|n| **n > 0) {
                tests.push(Test { prompt, generate: 0, depth, sequences });
            }
            for &generate in args.n_gen.iter().filter(|n| **n > 0) {
                tests.push(Test { prompt: 0, generate, depth, sequences });
            }
        }
    }
    if tests.is_empty() {
        return Err(usage::wrong("nothing to measure: give -p or -n a number above 0"));
    }
    Ok(tests)
}

/// The limit that binds a test, and the share of it that was reached.
fn limit(measured: &Measured, limits: Limits) -> (&'static str, f64) {
    let tokens = measured.tokens_per_second();
    let bandwidth = measured.bytes_per_token * tokens / 1e9 / limits.read_gbs;
    // The best that the level's units could do.
    let compute = measured.macs_per_token * tokens / 1e9 / limits.int8_gmacs.max(limits.bf16_gmacs);
    if bandwidth >= compute { ("bandwidth", bandwidth) } else { ("compute", compute) }
}

fn result_json(measured: &Measured, ratio: Option<f64>, limits: Limits) -> Value {
    let (limit, share) = limit(measured, limits);
    let mut value = json!({
        "test": measured.test.name(), "n_prompt": measured.test.prompt, "n_gen": measured.test.generate,
        "depth": measured.test.depth, "sequences": measured.test.sequences,
        "tokens_per_second": measured.tokens_per_second(), "runs": measured.runs,
        "limit": limit, "limit_share": share,
        "bytes_per_token": measured.bytes_per_token, "macs_per_token": measured.macs_per_token,
    });
    if !measured.ops.is_empty() {
        value["ops"] = measured
            .ops
            .iter()
            .map(|op| json!({"op": op.op, "share": op.share, "gbs": op.gbs, "gmacs": op.gmacs}))
            .collect();
    }
    if let Some(ratio) = ratio {
        value["ratio"] = json!(ratio);
    }
    value
}

fn text(
    machine: &puna_graph::Description,
    limits: Limits,
    results: &[Measured],
    ratios: &[Option<f64>],
) -> String {
    let mut out = format!(
        "{}, {} threads, kernels {}\nreads {:.1} GB/s; multiply-adds: {:.0} G/s in 8 bits, {:.0} G/s in bf16\n\n",
        machine.device,
        machine.threads,
        machine.kernels,
        limits.read_gbs,
        limits.int8_gmacs,
        limits.bf16_gmacs
    );
    let compared = ratios.iter().any(Option::is_some);
    let mut headings = vec!["TEST", "DEPTH", "SEQUENCES", "TOKENS/S", "LIMIT", "SHARE"];
    if compared {
        headings.push("RATIO");
    }
    let rows: Vec<Vec<String>> = results
        .iter()
        .zip(ratios)
        .map(|(r, ratio)| {
            let (limit, share) = limit(r, limits);
            let mut row = vec![
                r.test.kind(),
                r.test.depth.to_string(),
                r.test.sequences.to_string(),
                format!("{:.2} ± {:.2}", r.tokens_per_second(), r.spread()),
                limit.into(),
                format!("{:.0} %", share * 100.0),
            ];
            if compared {
                row.push(ratio.map_or_else(|| "-".into(), |x| format!("{x:.2}×")));
            }
            row
        })
        .collect();
    out.push_str(&format::table(&headings, &rows));
    for result in results.iter().filter(|r| !r.ops.is_empty()) {
        out.push_str(&format!("\n{}\n", result.test.name()));
        let rows: Vec<Vec<String>> = result
            .ops
            .iter()
            .map(|op| {
                vec![
                    op.op.to_string(),
                    format!("{:.1} %", op.share * 100.0),
                    format!("{:.1}", op.gbs),
                    format!("{:.1}", op.gmacs),
                ]
            })
            .collect();
        out.push_str(&format::table(&["OPERATION", "TIME", "GB/S", "G MULTIPLY-ADDS/S"], &rows));
    }
    out
}
