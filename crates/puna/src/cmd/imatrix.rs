//! `puna imatrix`: how much each column of each matrix is used, while a model reads a text.

use std::io::{BufWriter, Write};

use anyhow::{Context, Result, bail};
use puna_engine::{Feed, Outputs};
use puna_store::{ImatrixRow, write_imatrix};
use puna_tokenizer::Encode;

use crate::cli::ImatrixArgs;
use crate::local::{Compute, ModelFile, Output};
use crate::{out, usage};

/// Rows that are computed at a time.
const ROWS: usize = 128;

pub fn run(args: &ImatrixArgs) -> Result<()> {
    if args.ctx == 0 {
        return Err(usage::wrong("--ctx must be at least 1"));
    }
    let file = ModelFile::open(&args.model)?;
    let tokenizer = file.tokenizer()?;
    let bytes = std::fs::read(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let tokens = tokenizer.encode(&text, Encode { add_special: true, parse_special: false });
    let chunks = (tokens.len() / args.ctx).min(args.chunks.unwrap_or(usize::MAX));
    if chunks == 0 {
        bail!("{} has {} tokens; a chunk needs {} (--ctx)", args.file.display(), tokens.len(), args.ctx);
    }
    // Begun first: a folder that cannot be written is no reason to compute for an hour.
    let output = Output::create(&args.output)?;
    let compute = Compute {
        num_ctx: Some(args.ctx),
        observe: true,
        ..Compute::new(args.threads, args.kernels.clone())?
    };
    let mut evaluator = compute.evaluator(&file)?;
    let info = evaluator.info().clone();
    if !info.can_generate {
        bail!("{} makes embeddings; importance is measured on models that generate text", file.shown);
    }
    if info.n_ctx < args.ctx {
        bail!("{} was trained with a context of {}; use --ctx {}", file.shown, info.n_ctx_train, info.n_ctx);
    }
    let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
    for (number, chunk) in tokens.chunks_exact(args.ctx).take(chunks).enumerate() {
        let mut ids = chunk.to_vec();
        if let Some(bos) = bos {
            // Every chunk begins like a text.
            ids[0] = bos;
        }
        evaluator.truncate(0, 0);
        for tokens in ids.chunks(ROWS) {
            evaluator.logits(&[Feed { sequence: 0, tokens, outputs: Outputs::All }])?;
        }
        out::note(format_args!("[{}/{chunks}]", number + 1));
    }
    let observed = evaluator.backend().observed();
    let wanted = |name: &str| name.starts_with("blk.") || (args.process_output && name == "output.weight");
    let rows: Vec<ImatrixRow> = observed
        .into_iter()
        .filter(|seen| wanted(&seen.name) && seen.name.ends_with(".weight"))
        .map(|seen| ImatrixRow { tensor: seen.name, squares: seen.squares, counts: seen.counts })
        .collect();
    let unused = |row: &ImatrixRow| row.counts.iter().filter(|&&count| count == 0).count();
    for row in rows.iter().filter(|row| unused(row) > 0) {
        let (unused, all) = (unused(row), row.counts.len());
        out::note(format_args!(
            "{}: {unused} of {all} experts were not used; a longer text reaches more",
            row.tensor
        ));
    }
    let mut writer = BufWriter::new(output.file());
    let dataset = args.file.file_name().unwrap_or_default().to_string_lossy();
    write_imatrix(&mut writer, &rows, &dataset, (chunks as u32, args.ctx as u32))?;
    writer.flush().with_context(|| format!("cannot write {}", args.output.display()))?;
    drop(writer);
    output.finish()
}
