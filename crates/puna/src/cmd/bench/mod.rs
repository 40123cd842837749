//! `puna bench`: measures tokens per second and compares them with the limits of the machine.

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
use puna_cpu::probe::{self, MachinePeaks};
use puna_engine::{Evaluator, PAGE_TOKENS};
use puna_graph::Backend;
use serde_json::json;

use crate::cli::BenchArgs;
use crate::local::ModelFile;
use crate::out;
use compare::Baseline;
use measure::TestResult;
use memory::Resident;
use plan::Plan;
use report::{ComparedResult, Report};

pub fn run(args: &BenchArgs) -> Result<()> {
    let baselines: Vec<Baseline> =
        args.compare.iter().map(|path| compare::read(path)).collect::<Result<_>>()?;
    let file = ModelFile::open(&args.model)?;
    for baseline in &baselines {
        if let Some(other) = baseline.only_other_model(&file.display_name) {
            out::note(format_args!(
                "{} has results of another model ({other}), compared with this model",
                baseline.name
            ));
        }
    }
    let plan = Plan::new(args, &file)?;
    // The path is checked before minutes of measurement and not after them.
    if let Some(path) = &args.plot {
        check_chart(path)?;
    }
    if args.start && file.path.is_none() {
        bail!("{} is embedded in this program: --start needs a file", file.display_name);
    }
    let machine = plan.compute.backend()?.describe();
    out::note(format_args!("probing the machine: {}", report::machine(&machine)));
    let before = probe::machine_peaks(machine.threads, &machine.kernels)?;
    let (measured, resident) =
        if plan.embeds() { embeddings(&file, &plan)? } else { steps(&file, &plan)? };
    // Other processes may have been busy at one end of the run, so the better of both probes
    // counts.
    let limits: MachinePeaks =
        before.best(probe::machine_peaks(machine.threads, &machine.kernels)?);
    let report = Report {
        model: &file.display_name,
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

/// Refuses a path where no chart can be written, or where another file would be overwritten.
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
                bail!("{}: the file exists and is not a chart", cannot());
            }
            std::fs::OpenOptions::new().write(true).open(path).map(drop).with_context(cannot)
        }
        Ok(_) => std::fs::OpenOptions::new().write(true).open(path).map(drop).with_context(cannot),
        Err(_) => {
            // The file is created and removed again, so that an interrupted run leaves no empty
            // file.
            std::fs::File::create_new(path).with_context(cannot)?;
            std::fs::remove_file(path).with_context(cannot)
        }
    }
}

/// Prompt and generation tests, which use the evaluator directly.
fn steps(file: &ModelFile, plan: &Plan) -> Result<(Vec<TestResult>, Option<Resident>)> {
    let mut evaluator = plan.compute.evaluator(file)?;
    if evaluator.info().unmasking.is_some()
        && plan.tests.iter().any(|t| t.generate > 0 || t.depth > 0)
    {
        bail!(
            "{} is a diffusion model, which has only prompt tests: use -n 0 and -d 0",
            file.display_name
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

/// Embedding tests, which use the engine's queue.
fn embeddings(file: &ModelFile, plan: &Plan) -> Result<(Vec<TestResult>, Option<Resident>)> {
    let (mut results, mut resident) = (Vec::new(), None);
    for test in &plan.tests {
        out::note(test.name());
        let (measured, memory) = embed::run(file, test, plan)?;
        results.extend(measured);
        resident = memory;
    }
    Ok((results, resident))
}

/// Bytes of the KV cache that the tests wrote: for each sequence, the pages of its longest test.
fn cache_bytes(evaluator: &Evaluator, plan: &Plan) -> u64 {
    let pages_each = evaluator.info().n_ctx.div_ceil(PAGE_TOKENS);
    // The cache has one spare page.
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

fn compared(measured: TestResult, baselines: &[Baseline], file: &ModelFile) -> ComparedResult {
    let other = |b: &Baseline| (b.name.clone(), b.speed(&measured.test, &file.display_name));
    ComparedResult { others: baselines.iter().map(other).collect(), measured }
}

fn facts(args: &BenchArgs, file: &ModelFile) -> serde_json::Value {
    json!({
        "path": file.display_name, "architecture": file.view.metadata().architecture().ok(),
        "parameters": file.gguf.parameter_count(), "bytes": file.gguf.tensor_bytes(),
        "file_type": puna_store::GgufInfo::of(&file.gguf).file_type,
        "cache_type_k": args.cache_type_k, "cache_type_v": args.cache_type_v,
    })
}
