//! `puna imatrix`: measures how strongly each column of each weight matrix is used while a model
//! reads a text.

use std::io::{BufWriter, Write};

use anyhow::{Context, Result, bail};
use puna_engine::{Evaluator, Outputs, SequenceInput};
use puna_store::{ImatrixRow, write_imatrix};
use puna_tokenizer::{EncodeOptions, Tokenizer};

use crate::cli::ImatrixArgs;
use crate::local::{Compute, ModelFile, OutputFile};
use crate::out;

/// Rows per step.
const ROWS: usize = 128;

pub fn run(args: &ImatrixArgs) -> Result<()> {
    let file = ModelFile::open(&args.model)?;
    let tokenizer = file.tokenizer()?;
    let chunks = chunks(args, &tokenizer)?;
    // The output is created first, so that a folder without write permission fails before an hour
    // of computation.
    let output = OutputFile::create(&args.output)?;
    let mut evaluator = evaluator(args, &file)?;
    for (number, ids) in chunks.iter().enumerate() {
        evaluator.truncate(0, 0);
        for tokens in ids.chunks(ROWS) {
            evaluator.logits(&[SequenceInput { sequence: 0, tokens, outputs: Outputs::All }])?;
        }
        out::note(format_args!("[{}/{}]", number + 1, chunks.len()));
    }
    let rows = rows(&mut evaluator, args.process_output);
    warn_unused_experts(&rows);
    let mut writer = BufWriter::new(output.file());
    let dataset = args.file.file_name().unwrap_or_default().to_string_lossy();
    write_imatrix(&mut writer, &rows, &dataset, (chunks.len() as u32, args.ctx as u32))?;
    writer.flush().with_context(|| format!("cannot write {}", args.output.display()))?;
    drop(writer);
    output.finish()
}

/// Splits the text into pieces of as many tokens as the context holds.
fn chunks(args: &ImatrixArgs, tokenizer: &Tokenizer) -> Result<Vec<Vec<u32>>> {
    let bytes = std::fs::read(&args.file)
        .with_context(|| format!("cannot read {}", args.file.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let tokens = tokenizer.encode(&text, EncodeOptions { add_special: true, parse_special: false });
    let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
    let chunk = |tokens: &[u32]| {
        let mut ids = tokens.to_vec();
        if let Some(bos) = bos {
            // Every chunk begins with the begin-of-sequence token.
            ids[0] = bos;
        }
        ids
    };
    let wanted = args.chunks.unwrap_or(usize::MAX);
    let chunks: Vec<_> = tokens.chunks_exact(args.ctx).take(wanted).map(chunk).collect();
    if chunks.is_empty() {
        bail!(
            "{} has {} tokens; a chunk needs {} (--ctx)",
            args.file.display(),
            tokens.len(),
            args.ctx
        );
    }
    Ok(chunks)
}

/// Loads a model that continues text, and enables the observation of its matrix inputs.
fn evaluator(args: &ImatrixArgs, file: &ModelFile) -> Result<Evaluator> {
    let compute = Compute {
        num_ctx: Some(args.ctx),
        observe: true,
        ..Compute::new(args.threads, args.kernels.clone())?
    };
    let evaluator = compute.evaluator(file)?;
    let info = evaluator.info();
    if !info.can_generate {
        bail!(
            "{} is an embedding model: an importance matrix needs a model that generates text",
            file.display_name
        );
    }
    if info.start.is_some() {
        bail!(
            "{} is an encoder–decoder model: an importance matrix needs a decoder-only model",
            file.display_name
        );
    }
    if info.n_ctx < args.ctx {
        bail!(
            "{} was trained with a context of {}; use --ctx {}",
            file.display_name,
            info.n_ctx_train,
            info.n_ctx
        );
    }
    Ok(evaluator)
}

/// Observed columns of the matrices that are quantized.
fn rows(evaluator: &mut Evaluator, with_output: bool) -> Vec<ImatrixRow> {
    let wanted = |name: &str| name.starts_with("blk.") || (with_output && name == "output.weight");
    let seen = evaluator.backend().activation_stats().into_iter();
    seen.filter(|seen| wanted(&seen.name) && seen.name.ends_with(".weight"))
        .map(|seen| ImatrixRow { tensor: seen.name, squares: seen.squares, counts: seen.counts })
        .collect()
}

/// Prints the experts that the router selected for no token.
fn warn_unused_experts(rows: &[ImatrixRow]) {
    for row in rows {
        let (unused, all) =
            (row.counts.iter().filter(|&&count| count == 0).count(), row.counts.len());
        if unused > 0 {
            out::note(format_args!(
                "{}: {unused} of {all} experts were not used; use a longer text",
                row.tensor
            ));
        }
    }
}
