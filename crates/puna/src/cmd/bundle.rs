//! `puna export` and `puna import`: models as files, for machines without a network.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use puna_api::ollama::Progress;
use puna_gguf::Gguf;
use puna_registry::{Format, Registry, write_bundle};
use puna_server::file_worker::FileWorkerLauncher;
use puna_server::{Config, read_packages_in_worker, registry_settings};
use puna_store::{
    Digest, Hasher, Layer, Model, ModelName, ModelRef, Store, StoreError, Weights, embedded,
};

use crate::cli::{ExportArgs, ImportArgs};
use crate::local::{OutputFile, check_file};
use crate::progress::ProgressDisplay;
use crate::{format, out, usage};

/// Bytes copied between two progress updates.
const PROGRESS_BYTES: u64 = 64 << 20;

/// Writes a bundle, or a model's GGUF files.
pub fn export(args: &ExportArgs) -> Result<()> {
    let references =
        args.models.iter().map(|text| ModelRef::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let store = store_for(&references)?;
    let names: Vec<ModelName> = references.into_iter().map(|reference| reference.name).collect();
    let packaging: Format = args.format.parse().map_err(usage::error)?;
    let end = args.output.extension().unwrap_or_default().to_ascii_lowercase();
    match (end.to_str(), names.as_slice()) {
        _ if args.output == Path::new("-") => export_to_pipe(&store, &names, packaging),
        (Some("tar"), _) => export_bundle(&store, &names, packaging, &args.output),
        (Some("gguf"), _) if packaging != Format::Ollama => {
            Err(usage::error("--format is for FILE.tar only: a GGUF file has only the weights"))
        }
        (Some("gguf"), [name]) => export_files(&store, name, &args.output),
        (Some("gguf"), _) => {
            Err(usage::error("a GGUF file has one model: use FILE.tar for several"))
        }
        _ => Err(usage::error(format!(
            "{}: FILE must end with .tar (complete models) or .gguf (the weights of one)",
            args.output.display()
        ))),
    }
}

/// Opens the store with the runner that the references name as the preferred one.
fn store_for(references: &[ModelRef]) -> Result<Store> {
    let store = crate::env::store()?;
    let mut runners: Vec<&String> =
        references.iter().filter_map(|reference| reference.runner.as_ref()).collect();
    runners.dedup();
    let Some(runner) = runners.pop() else { return Ok(store) };
    if !runners.is_empty() || references.iter().any(|reference| reference.runner.is_none()) {
        return Err(usage::error(
            "cannot export models for different runners together: use the same @runner for all",
        ));
    }
    for reference in references {
        store.get_for(&reference.name, Some(runner))?;
    }
    Ok(store.with_runner(Some(runner.clone())))
}

/// Imports the models of a bundle into the store.
pub fn import(args: &ImportArgs) -> Result<()> {
    let name = args.name.as_deref().map(ModelRef::parse).transpose();
    let name = name.map_err(|error| usage::error(format!("--name: {error}")))?;
    let name = name.map(|reference| reference.name);
    let config = Config::from_env()?;
    let mut settings = registry_settings(&config);
    let worker = FileWorkerLauncher::this_program(config.debug, config.sandbox)?;
    read_packages_in_worker(&mut settings, worker);
    let (store, registry) = (Arc::new(config.store()?), Registry::new(settings));
    let (input, total, shown): (Box<dyn Read>, u64, String) = if args.file == Path::new("-") {
        (Box::new(io::stdin().lock()), 0, "standard input".into())
    } else {
        let shown = args.file.display().to_string();
        if args.file.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf")) {
            bail!(
                "{shown} is not a bundle: use `puna run {shown}`, or `FROM {shown}` in a Modelfile"
            )
        }
        check_file(&args.file)?;
        let file = File::open(&args.file).with_context(|| format!("cannot read {shown}"))?;
        let total = file.metadata().map_or(0, |meta| meta.len());
        (Box::new(file), total, shown)
    };
    let mut display = ProgressDisplay::new();
    let done = Cell::new(0);
    let input = CountingReader { input, done: &done };
    let mut progress = |_| show(&mut display, &format!("importing {shown}"), done.get(), total);
    let names = registry
        .read_bundle(&store, input, name.as_ref(), config.no_prune, &mut progress)
        .with_context(|| shown.clone())?;
    display.done();
    for name in names {
        let size = store.find(&name)?.map_or(0, |entry| entry.size());
        out::line(&format!("imported {name} ({})", format::bytes(size)))?;
    }
    Ok(())
}

/// Counts the bytes read from the file. For a compressed file, they are fewer than its content.
struct CountingReader<'a> {
    input: Box<dyn Read>,
    done: &'a Cell<u64>,
}

impl Read for CountingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(buffer)?;
        self.done.set(self.done.get() + n as u64);
        Ok(n)
    }
}

fn show(display: &mut ProgressDisplay, status: &str, completed: u64, total: u64) {
    display.show(&Progress { status: status.to_owned(), completed, total, ..Progress::default() });
}

fn export_to_pipe(store: &Store, names: &[ModelName], packaging: Format) -> Result<()> {
    if io::stdout().is_terminal() {
        return Err(usage::error(
            "cannot write a bundle to a terminal: redirect it to a file or a pipe",
        ));
    }
    let mut out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    bundle(store, names, packaging, &mut out, "exporting")
}

fn export_bundle(store: &Store, names: &[ModelName], packaging: Format, path: &Path) -> Result<()> {
    let output = OutputFile::create(path)?;
    let mut out = BufWriter::with_capacity(1 << 20, output.file());
    bundle(store, names, packaging, &mut out, &format!("exporting to {}", path.display()))
        .with_context(|| path.display().to_string())?;
    drop(out);
    output.finish()
}

fn bundle(
    store: &Store,
    names: &[ModelName],
    packaging: Format,
    out: &mut dyn Write,
    status: &str,
) -> Result<()> {
    let mut display = ProgressDisplay::new();
    let mut progress = |done, total| show(&mut display, status, done, total);
    write_bundle(store, names, packaging, out, &mut progress)?;
    display.done();
    Ok(())
}

/// Writes the weights to `path`, and the model's other GGUF files next to it.
fn export_files(store: &Store, name: &ModelName, path: &Path) -> Result<()> {
    let model = store.resolve(name)?;
    let weights = match &model.weights {
        Weights::File(weights) => weights,
        Weights::Embedded => {
            let output = OutputFile::create(path)?;
            output.file().write_all(embedded::weights()).with_context(|| write_error(path))?;
            return output.finish();
        }
        Weights::Remote => {
            bail!("{name} is a remote model ({}) and has no file", model.config.remote_host)
        }
    };
    let parts = Gguf::open(weights).with_context(|| weights.display().to_string())?.part_count();
    if parts > 1 {
        bail!(
            "cannot export {name} to one file: it refers to a split file with {parts} parts, {}",
            weights.display()
        );
    }
    let mut files = vec![(weights.clone(), path.to_owned())];
    files.extend(companion_files(&model, path));
    let digests = digests(store, name)?;
    // No file gets its final name before all are complete, because a partial set looks like the
    // model.
    let outputs = files.iter().map(|(_, to)| OutputFile::create(to)).collect::<Result<Vec<_>>>()?;
    for ((from, to), output) in files.iter().zip(&outputs) {
        let found = copy(from, to, output)?;
        if let Some(expected) = digests.get(from).filter(|expected| **expected != found) {
            let (from, expected) = (from.display(), *expected);
            return Err(StoreError::DigestMismatch { expected, found }).context(format!(
                "{from} is damaged: `puna verify {name} --repair` fetches it again"
            ));
        }
    }
    outputs.into_iter().try_for_each(OutputFile::finish)?;
    if files.len() == 1 {
        return Ok(());
    }
    for (_, to) in &files {
        out::line(&to.display().to_string())?;
    }
    Ok(())
}

/// The other GGUF files of a model, and their export paths.
fn companion_files(model: &Model, path: &Path) -> Vec<(PathBuf, PathBuf)> {
    let named = |kind: &str, paths: &[PathBuf]| -> Vec<(PathBuf, PathBuf)> {
        let name = |number: usize| match paths.len() {
            1 => path.with_extension(format!("{kind}.gguf")),
            _ => path.with_extension(format!("{kind}-{}.gguf", number + 1)),
        };
        paths.iter().enumerate().map(|(number, from)| (from.clone(), name(number))).collect()
    };
    let draft: Vec<PathBuf> = model.draft.iter().cloned().collect();
    [
        named("projector", &model.projectors),
        named("adapter", &model.adapters),
        named("draft", &draft),
    ]
    .concat()
}

/// Files of a model with their expected digests.
fn digests(store: &Store, name: &ModelName) -> Result<HashMap<PathBuf, Digest>> {
    let entry = store.get(name)?;
    let file = |layer: &Layer| -> Result<_> { Ok((store.layer_file(layer)?, layer.digest)) };
    entry.manifest.layers.iter().map(file).collect()
}

/// Copies a file and returns its digest. File systems with copy-on-write share the data.
fn copy(from: &Path, to: &Path, output: &OutputFile) -> Result<Digest> {
    let unread = || format!("cannot read {}", from.display());
    let mut input = File::open(from).with_context(unread)?;
    let mut again = File::open(from).with_context(unread)?;
    let total = input.metadata().map_or(0, |meta| meta.len());
    let (mut display, mut done) = (ProgressDisplay::new(), 0);
    let (mut hasher, mut buffer) = (Hasher::default(), vec![0; 1 << 20]);
    loop {
        let copied = io::copy(&mut (&mut input).take(PROGRESS_BYTES), &mut output.file());
        match copied.with_context(|| write_error(to))? {
            0 => break,
            copied => done += copied,
        }
        let mut copied = (&mut again).take(PROGRESS_BYTES);
        loop {
            match copied.read(&mut buffer).with_context(unread)? {
                0 => break,
                n => hasher.update(&buffer[..n]),
            }
        }
        show(&mut display, &format!("exporting to {}", to.display()), done, total);
    }
    display.done();
    Ok(hasher.finish())
}

fn write_error(path: &Path) -> String {
    format!("cannot write {}", path.display())
}
