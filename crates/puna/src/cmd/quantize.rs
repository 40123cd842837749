//! `puna quantize`: a GGUF file in another type.

use std::fs::File;
use std::io::BufWriter;

use anyhow::{Context, Result, bail};
use puna_api::native::Progress;
use puna_store::{FileType, Imatrix, QuantizeOptions, requantize};

use crate::cli::QuantizeArgs;
use crate::local::ModelFile;
use crate::progress::Display;

pub fn run(args: &QuantizeArgs) -> Result<()> {
    let Some(target) = FileType::from_name(&args.kind) else {
        bail!("unknown type {}; known are {}", args.kind, FileType::names().join(", "));
    };
    let file = ModelFile::open(&args.input)?;
    let shown = args.output.display();
    if file.gguf.paths().any(|path| same_file(path, &args.output)) {
        bail!("{shown} is the file that is read");
    }
    let imatrix = args.imatrix.as_ref().map(|path| Imatrix::open(path)).transpose()?;
    // A half-written model must not look like a whole one: it gets its name at the end.
    let folder =
        args.output.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(std::path::Path::new("."));
    let temp = tempfile::NamedTempFile::new_in(folder)
        .with_context(|| format!("cannot write in {}", folder.display()))?;
    let mut display = Display::new();
    let status = format!("quantizing to {}", target.name());
    let options = QuantizeOptions { threads: args.threads.unwrap_or(0), imatrix: imatrix.as_ref() };
    let mut out = BufWriter::with_capacity(1 << 20, temp.as_file());
    requantize(&file.gguf, target, &options, &mut out, &mut |completed, total| {
        display.show(&Progress { status: status.clone(), total, completed, ..Progress::default() });
    })
    .with_context(|| format!("cannot quantize {}", file.shown))?;
    display.done();
    drop(out);
    temp.as_file().sync_all().with_context(|| format!("cannot write {shown}"))?;
    readable(temp.as_file());
    temp.persist(&args.output).with_context(|| format!("cannot write {shown}"))?;
    Ok(())
}

/// Temporary files are for their owner alone, models are for everybody who may read the folder.
fn readable(file: &File) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let _ = file.set_permissions(std::fs::Permissions::from_mode(0o644));
    }
    #[cfg(not(unix))]
    let _ = file;
}

fn same_file(a: &std::path::Path, b: &std::path::Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}
