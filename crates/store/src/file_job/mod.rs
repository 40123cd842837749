//! Jobs that read whole untrusted files: conversion, joining of split files, and quantization.
//!
//! [`FileJob::run`] does a job in this process. A program may run jobs in sandboxed processes
//! instead, with a [`JobExecutor`] in [`CreateHooks`](crate::CreateHooks).

mod join;
mod quantize;

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use puna_convert::{CONVERTING_STATUS, FolderFile, convert, convert_adapter};
use puna_gguf::{Gguf, View};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::progress::{Progress, ProgressFn, ProgressThrottle};
use crate::requantize::Imatrix;

pub use quantize::QuantizeJob;

/// Stand-ins for digests of unfinished blobs in progress messages, by which clients distinguish
/// progress bars.
const CONVERTING_DIGEST: &str = "1111111111111111111";
const READING_DIGEST: &str = "3333333333333333333";

/// A file with the name that its owner knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedFile {
    /// Name within a folder, or name for messages.
    pub name: String,
    /// Path of the content.
    pub path: PathBuf,
}

/// A job on untrusted files. It writes at most one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileJob {
    /// Converts a folder of safetensors to a GGUF file.
    Convert {
        /// The files of the folder.
        files: Vec<NamedFile>,
    },
    /// Converts a LoRA adapter of PEFT to a GGUF file.
    ConvertAdapter {
        /// The files of the adapter's folder.
        files: Vec<NamedFile>,
        /// GGUF file of the model that the adapter is for.
        model: PathBuf,
    },
    /// Joins the parts of a split GGUF file.
    Join {
        /// The parts in their order. Their paths have the names by which GGUF readers find parts.
        parts: Vec<NamedFile>,
    },
    /// Quantizes a GGUF file.
    Quantize(QuantizeJob),
    /// Checks that a file is an importance matrix. It writes nothing.
    CheckImatrix {
        /// Path of the file.
        path: PathBuf,
    },
}

/// Runs jobs, in this process or in another.
pub trait JobExecutor: fmt::Debug + Send + Sync {
    /// Runs a job that writes its file to `out`.
    ///
    /// # Errors
    /// Those of [`FileJob::run`]. The message stays the same in another process, where the error is
    /// [`StoreError::Job`].
    fn execute(
        &self,
        job: &FileJob,
        out: &mut dyn Write,
        progress: ProgressFn<'_>,
    ) -> Result<(), StoreError>;
}

/// Runs jobs in this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct InProcessExecutor;

impl JobExecutor for InProcessExecutor {
    fn execute(
        &self,
        job: &FileJob,
        out: &mut dyn Write,
        progress: ProgressFn<'_>,
    ) -> Result<(), StoreError> {
        job.run(out, progress)
    }
}

impl FileJob {
    /// Runs the job in this process.
    ///
    /// # Errors
    /// A file is invalid or cannot be read, or `out` cannot be written.
    pub fn run(&self, out: &mut dyn Write, progress: ProgressFn<'_>) -> Result<(), StoreError> {
        match self {
            Self::Convert { files } => convert_folder(files, out, progress),
            Self::ConvertAdapter { files, model } => {
                let view = View::new(Arc::new(Gguf::open(model)?))?;
                Ok(convert_adapter(&folder_files(files), view.metadata(), out)?)
            }
            Self::Join { parts } => join::run(parts, out, progress),
            Self::Quantize(job) => job.run(out, progress),
            Self::CheckImatrix { path } => Imatrix::open(path).map(drop),
        }
    }

    /// All files that the job reads. The parts of a split model beside the first are not listed.
    pub fn paths(&self) -> Vec<&Path> {
        match self {
            Self::Convert { files } | Self::Join { parts: files } => paths_of(files).collect(),
            Self::ConvertAdapter { files, model } => {
                paths_of(files).chain([model.as_path()]).collect()
            }
            Self::Quantize(job) => {
                [job.source.as_path()].into_iter().chain(job.imatrix.as_deref()).collect()
            }
            Self::CheckImatrix { path } => vec![path.as_path()],
        }
    }

    /// What the job does, for messages: `cannot ACTION: …`.
    pub fn action(&self) -> &'static str {
        match self {
            Self::Convert { .. } => "convert the model",
            Self::ConvertAdapter { .. } => "convert the adapter",
            Self::Join { .. } => "join the parts of the model",
            Self::Quantize(_) => "quantize the model",
            Self::CheckImatrix { .. } => "check the importance matrix",
        }
    }
}

fn paths_of(files: &[NamedFile]) -> impl Iterator<Item = &Path> {
    files.iter().map(|file| file.path.as_path())
}

fn folder_files(files: &[NamedFile]) -> Vec<FolderFile> {
    let file = |file: &NamedFile| FolderFile { name: file.name.clone(), path: file.path.clone() };
    files.iter().map(file).collect()
}

fn convert_folder(
    files: &[NamedFile],
    out: &mut dyn Write,
    progress: ProgressFn<'_>,
) -> Result<(), StoreError> {
    let mut throttle = ProgressThrottle::new();
    convert(&folder_files(files), out, &mut |status, done, total| {
        if throttle.is_due(done >= total) {
            let digest =
                if status == CONVERTING_STATUS { CONVERTING_DIGEST } else { READING_DIGEST };
            progress(Progress::bytes(status, digest, done, total));
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> NamedFile {
        NamedFile { name: name.into(), path: format!("/store/{name}").into() }
    }

    #[test]
    fn a_job_lists_all_files_that_it_reads() {
        let names = |job: FileJob| -> Vec<String> {
            let name = |path: &&Path| path.file_name().unwrap().to_str().unwrap().to_owned();
            job.paths().iter().map(name).collect()
        };
        let files = vec![file("a"), file("b")];
        assert_eq!(names(FileJob::Convert { files: files.clone() }), ["a", "b"]);
        assert_eq!(names(FileJob::Join { parts: files.clone() }), ["a", "b"]);
        let model = file("m").path;
        assert_eq!(names(FileJob::ConvertAdapter { files, model }), ["a", "b", "m"]);
        assert_eq!(names(FileJob::CheckImatrix { path: file("i").path }), ["i"]);
        let job = QuantizeJob {
            source: file("m").path,
            part: None,
            target: "Q8_0".into(),
            imatrix: Some(file("i").path),
            threads: 0,
            status: "quantizing".into(),
        };
        assert_eq!(names(FileJob::Quantize(job)), ["m", "i"]);
    }
}
