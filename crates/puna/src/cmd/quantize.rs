//! `puna quantize`: converts a GGUF file to another block format.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use puna_api::ollama::Progress;
use puna_gguf::Gguf;
use puna_store::{
    FileJob, FileType, JobExecutor, QuantizeJob, embedded, file_type_name, same_file,
};

use crate::cli::QuantizeArgs;
use crate::local::{ModelFile, OutputFile};
use crate::progress::ProgressDisplay;
use crate::{out, usage};

pub fn run(args: &QuantizeArgs) -> Result<()> {
    let Some(target) = FileType::from_name(&args.kind) else {
        let known = FileType::names().join(", ");
        return Err(usage::error(format!("unknown type {}: use one of {known}", args.kind)));
    };
    let file = ModelFile::open(&args.input)?;
    let outputs = outputs(args, file.gguf.part_count());
    for output in &outputs {
        if file.gguf.paths().any(|path| same_file(path, output)) {
            bail!("{} is the input file: use another output file", output.display());
        }
    }
    if let Some(from) = quantized_type(&file.gguf) {
        out::note(format_args!(
            "warning: the model is quantized already ({from}), which loses quality again: use a file in F16, BF16 or F32 if possible"
        ));
    }
    let worker = crate::env::file_worker()?;
    if let Some(path) = &args.imatrix {
        let check = FileJob::CheckImatrix { path: path.clone() };
        worker.execute(&check, &mut io::sink(), &mut |_| {})?;
    }
    let source = SourceFile::new(&file)?;
    let mut display = ProgressDisplay::new();
    let mut made = Vec::new();
    for (part, output) in outputs.iter().enumerate() {
        let whole = OutputFile::create(output)?;
        let mut out = BufWriter::with_capacity(1 << 20, whole.file());
        let mut status = format!("quantizing to {}", target.name());
        if outputs.len() > 1 {
            status.push_str(&format!(", file {} of {}", part + 1, outputs.len()));
        }
        let job = FileJob::Quantize(QuantizeJob {
            source: source.path.clone(),
            part: (outputs.len() > 1).then_some(part),
            target: target.name().to_owned(),
            imatrix: args.imatrix.clone(),
            threads: args.threads.unwrap_or(0),
            status,
        });
        let done = worker.execute(&job, &mut out, &mut |line| show(&mut display, line));
        done.with_context(|| format!("cannot quantize {}", file.display_name))?;
        out.flush().with_context(|| format!("cannot write {}", output.display()))?;
        drop(out);
        made.push(whole);
    }
    display.done();
    made.into_iter().try_for_each(OutputFile::finish)
}

/// Shows byte counts as a bar. Lines without counts name tensors with another type than the file.
fn show(display: &mut ProgressDisplay, line: puna_store::Progress) {
    match (line.completed, line.total) {
        (Some(completed), Some(total)) => {
            let status = line.status;
            display.show(&Progress { status, total, completed, ..Progress::default() });
        }
        _ => out::note(line.status),
    }
}

/// The file to quantize.
struct SourceFile {
    path: PathBuf,
    /// Copy of a model that has no file.
    _copy: Option<tempfile::NamedTempFile>,
}

impl SourceFile {
    fn new(file: &ModelFile) -> Result<Self> {
        if let Some(path) = &file.path {
            return Ok(Self { path: path.clone(), _copy: None });
        }
        let write = || {
            let mut copy = tempfile::NamedTempFile::new()?;
            copy.write_all(embedded::weights())?;
            io::Result::Ok(copy)
        };
        let copy = write().context("cannot write a temporary file")?;
        Ok(Self { path: copy.path().to_owned(), _copy: Some(copy) })
    }
}

/// File type of a file that is quantized already; `None` if all its weights are floats.
fn quantized_type(gguf: &Gguf) -> Option<String> {
    let packed = gguf.tensors().iter().filter(|tensor| tensor.ty.is_quantized());
    let largest = packed.max_by_key(|tensor| tensor.size)?.ty;
    let said = gguf.metadata().opt_u32("general.file_type").ok().flatten().map(file_type_name);
    Some(said.filter(|name| *name != "unknown").unwrap_or(largest.name()).to_owned())
}

/// Paths of the output files.
fn outputs(args: &QuantizeArgs, parts: usize) -> Vec<PathBuf> {
    if !args.keep_split || parts < 2 {
        return vec![args.output.clone()];
    }
    let stem = match args.output.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf")) {
        true => args.output.with_extension(""),
        false => args.output.clone(),
    };
    let stem = stem.into_os_string();
    let part = |number: usize| {
        let mut name = stem.clone();
        name.push(format!("-{number:05}-of-{parts:05}.gguf"));
        PathBuf::from(name)
    };
    (1..=parts).map(part).collect()
}
