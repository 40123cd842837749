//! `puna bench`: tokens per second, beside what the machine can do at most.

mod busy;
mod compare;
mod embed;
mod measure;
mod memory;
mod plan;
mod plot;
mod report;
mod start;

pub use busy::spin;

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use puna_cpu::probe::{self, Limits};
use puna_engine::{Evaluator, PAGE_TOKENS};
use puna_graph::Backend;
use serde_json::json;

use crate::cli::BenchArgs;
use crate::local::ModelFile;
use crate::out;
use compare::Baseline;
use measure::Measured;
use memory::Resident;
use plan::Plan;
use report::{Compared, Report};

pub fn run(args: &BenchArgs) -> Result<()> {
    let baselines: Vec<Baseline> =
        args.compare.iter().map(|path| compare::read(path)).collect::<Result<_>>()?;
    let file = ModelFile::open(&args.model)?;
    for baseline in &baselines {
        if let Some(other) = baseline.only_other_model(&file.shown) {
            out::note(format_args!(
                "{} has results of {other}: compared as if of this model",
                baseline.name
            ));
        }
    }
    let plan = Plan::new(args, &file)?;
    // Before minutes of measuring, not after them.
    if let Some(path) = &args.plot {
        check_chart(path)?;
    }
    if args.start && file.path.is_none() {
        bail!("{} is a part of this program: --start needs a file", file.shown);
    }
    let machine = plan.compute.backend()?.describe();
    out::note(format_args!("probing the machine: {}", report::machine(&machine)));
    let before = probe::limits(machine.threads, &machine.kernels)?;
    let (measured, resident) =
        if plan.embeds() { embeddings(&file, &plan)? } else { steps(&file, &plan)? };
    // Others may have been busy at one end of the run: the machine can do what it did at its better one.
    let limits: Limits = before.best(probe::limits(machine.threads, &machine.kernels)?);
    let report = Report {
        model: &file.shown,
        facts: facts(args, &file),
        limits,
        cores: std::thread::available_parallelism().map_or(machine.threads, usize::from),
        machine,
        results: measured.into_iter().map(|m| compared(m, &baselines, &file)).collect(),
        memory: args.memory.then_some(resident),
        starts: if args.start { starts(args, &file)? } else { Vec::new() },
    };
    if let Some(path) = &args.plot {
        let svg = plot::svg(&report);
        std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json { out::json(&report.json()) } else { out::text(&report.text()) }
}

/// Refuses a place where no chart can be written, or where something else would be lost.
fn check_chart(path: &Path) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => bail!("{}: it is not a regular file", cannot()),
        Ok(found) if found.len() > 0 => {
            let mut start = Vec::new();
            std::fs::File::open(path)
                .with_context(cannot)?
                .take(4)
                .read_to_end(&mut start)
                .with_context(cannot)?;
            if start != b"<svg" {
                bail!("{}: there is a file that is no chart", cannot());
            }
            std::fs::OpenOptions::new().write(true).open(path).map(drop).with_context(cannot)
        }
        Ok(_) => std::fs::OpenOptions::new().write(true).open(path).map(drop).with_context(cannot),
        Err(_) => {
            // Made and removed again: nothing empty stays if the measuring is broken off.
            std::fs::File::create_new(path).with_context(cannot)?;
            std::fs::remove_file(path).with_context(cannot)
        }
    }
}

/// Prompts and generation, fed by hand.
fn steps(file: &ModelFile, plan: &Plan) -> Result<(Vec<Measured>, Option<Resident>)> {
    let mut evaluator = plan.compute.evaluator(file)?;
    if evaluator.info().unmasking.is_some()
        && plan.tests.iter().any(|t| t.generate > 0 || t.depth > 0)
    {
        bail!(
            "{} fills masked places of whole texts: its steps are prompts; use -n 0 and -d 0",
            file.shown
        );
    }
    let mut results = Vec::new();
    for test in &plan.tests {
        out::note(test.name());
        results.extend(measure::run(&mut evaluator, test, plan)?);
    }
    let resident = memory::resident(file.gguf.paths(), cache_bytes(&evaluator, plan));
    Ok((results, resident))
}

/// Batches of texts, through the engine's own queue.
fn embeddings(file: &ModelFile, plan: &Plan) -> Result<(Vec<Measured>, Option<Resident>)> {
    let (mut results, mut resident) = (Vec::new(), None);
    for test in &plan.tests {
        out::note(test.name());
        let (measured, memory) = embed::run(file, test, plan)?;
        results.extend(measured);
        resident = memory;
    }
    Ok((results, resident))
}

/// Bytes of the cache that the tests have written: the pages of the longest one of each sequence.
fn cache_bytes(evaluator: &Evaluator, plan: &Plan) -> u64 {
    let pages_each = evaluator.info().n_ctx.div_ceil(PAGE_TOKENS);
    // There is one page to spare.
    let page = evaluator.memory().cache / (pages_each * plan.compute.sequences + 1) as u64;
    let written = |sequence: usize| {
        let tests = plan.tests.iter().filter(|test| test.sequences > sequence);
        let longest = tests.map(|test| test.depth + test.prompt + test.generate).max().unwrap_or(0);
        longest.div_ceil(PAGE_TOKENS) as u64
    };
    page * (0..plan.compute.sequences).map(written).sum::<u64>()
}

fn starts(args: &BenchArgs, file: &ModelFile) -> Result<Vec<f64>> {
    let path = file.path.as_ref().context("--start needs a file")?;
    out::note("process start to first output");
    start::seconds(path, args.repetitions)
}

fn compared(measured: Measured, baselines: &[Baseline], file: &ModelFile) -> Compared {
    let other = |b: &Baseline| (b.name.clone(), b.speed(&measured.test, &file.shown));
    Compared { others: baselines.iter().map(other).collect(), measured }
}

fn facts(args: &BenchArgs, file: &ModelFile) -> serde_json::Value {
    json!({
        "path": file.shown, "architecture": file.view.metadata().architecture().ok(),
        "parameters": file.gguf.parameter_count(), "bytes": file.gguf.tensor_bytes(),
        "file_type": puna_store::Facts::of(&file.gguf).file_type,
        "cache_type_k": args.cache_type_k, "cache_type_v": args.cache_type_v,
    })
}
