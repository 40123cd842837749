//! `puna quantize`: converts a GGUF file to another block format.

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use puna_api::native::Progress;
use puna_gguf::Gguf;
use puna_store::{
    FileType, Imatrix, QuantizeOptions, fallbacks, file_type_name, requantize, requantize_part,
    same_file, unmatched_tensors,
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
    let imatrix = args.imatrix.as_ref().map(|path| Imatrix::open(path)).transpose()?;
    let options = QuantizeOptions { threads: args.threads.unwrap_or(0), imatrix: imatrix.as_ref() };
    for fallback in fallbacks(&file.gguf, target, imatrix.is_some()) {
        out::note(fallback);
    }
    if let Some(unmatched) =
        imatrix.as_ref().and_then(|matrix| unmatched_tensors(&file.gguf, target, matrix))
    {
        out::note(unmatched);
    }
    let mut display = ProgressDisplay::new();
    let mut made = Vec::new();
    for (part, output) in outputs.iter().enumerate() {
        let whole = OutputFile::create(output)?;
        let mut out = BufWriter::with_capacity(1 << 20, whole.file());
        let mut status = format!("quantizing to {}", target.name());
        if outputs.len() > 1 {
            status.push_str(&format!(", file {} of {}", part + 1, outputs.len()));
        }
        let mut progress = |completed, total| {
            display.show(&Progress {
                status: status.clone(),
                total,
                completed,
                ..Progress::default()
            });
        };
        let done = match outputs.len() {
            1 => requantize(&file.gguf, target, &options, &mut out, &mut progress),
            _ => requantize_part(&file.gguf, part, target, &options, &mut out, &mut progress),
        };
        done.with_context(|| format!("cannot quantize {}", file.display_name))?;
        out.flush().with_context(|| format!("cannot write {}", output.display()))?;
        drop(out);
        made.push(whole);
    }
    display.done();
    made.into_iter().try_for_each(OutputFile::finish)
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
