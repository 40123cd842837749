//! File workers: processes that do jobs on untrusted files in a
//! [sandbox](crate::runner::sandbox) of their own.
//!
//! A file worker is this same program, started with the hidden subcommand `worker` for one job. Its
//! standard input is one end of a private socket pair (`protocol`). It reads the job, enters its
//! sandbox, and sends progress messages, the bytes of the output file, and the result. The parent
//! writes and hashes these bytes, so the worker has no descriptor of a file that it could change.
//!
//! - [`FileWorkerLauncher`] starts a worker for each job; `process` exchanges messages with it.
//! - `task` is the worker's side.

mod process;
mod protocol;
mod task;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use puna_store::{FileJob, FileTemplate, JobExecutor, NamedTemplate, Progress, StoreError};

pub use task::{attempt_in_sandbox, main};

use crate::runner::named_template;
use crate::runner::sandbox::SandboxMode;
use protocol::WorkerTask;

/// Subcommand of the program that makes it a file worker.
const SUBCOMMAND: &str = "worker";

/// Starts a file worker for each job on untrusted files.
#[derive(Debug, Clone)]
pub struct FileWorkerLauncher {
    /// Path of the program.
    program: PathBuf,
    /// Arguments that make the program a file worker.
    args: Vec<String>,
    /// Log level of the processes: 0, 1 (debug) or 2 (trace).
    debug: u8,
    /// Switch of their sandbox.
    sandbox: SandboxMode,
}

/// A job that failed.
#[derive(Debug)]
struct JobError {
    message: String,
    /// Whether the caller's request is at fault.
    is_bad_request: bool,
}

impl From<JobError> for StoreError {
    fn from(JobError { message, is_bad_request }: JobError) -> Self {
        StoreError::Job { message, is_bad_request }
    }
}

impl FileWorkerLauncher {
    /// Returns a launcher of this same program.
    ///
    /// # Errors
    /// The path of the program is unknown.
    pub fn this_program(debug: u8, sandbox: SandboxMode) -> io::Result<Self> {
        Ok(Self::of_program(std::env::current_exe()?, debug, sandbox))
    }

    /// Returns a launcher of a program that has the subcommand `worker`.
    pub(crate) fn of_program(program: PathBuf, debug: u8, sandbox: SandboxMode) -> Self {
        Self { program, args: vec![SUBCOMMAND.to_owned()], debug, sandbox }
    }

    /// Returns a launcher of a shell script, which has the socket as its standard input.
    #[cfg(test)]
    pub(crate) fn of_script(script: &str) -> Self {
        let args = vec!["-c".to_owned(), script.to_owned()];
        Self { program: "/bin/sh".into(), args, debug: 0, sandbox: SandboxMode::Auto }
    }

    /// Checks that a weights file can be loaded with its adapters. Returns the reason if it cannot,
    /// or an optional warning.
    pub(crate) fn check_model(
        &self,
        weights: &Path,
        adapters: &[PathBuf],
    ) -> Result<Option<String>, String> {
        let (weights, adapters) = (weights.to_owned(), adapters.to_owned());
        self.run_task(&WorkerTask::CheckModel { weights, adapters })
    }

    /// Checks that a draft model fits a weights file. Returns the reason if it does not.
    pub(crate) fn check_draft(&self, weights: &Path, draft: &Path) -> Result<(), String> {
        let (weights, draft) = (weights.to_owned(), draft.to_owned());
        self.run_task(&WorkerTask::CheckDraft { weights, draft }).map(drop)
    }

    /// Checks that a text is a valid Go template. Returns the parse error if it is not.
    pub(crate) fn check_template(&self, text: &str) -> Result<(), String> {
        self.run_task(&WorkerTask::CheckTemplate(text.to_owned())).map(drop)
    }

    /// Returns the built-in template that matches the template and the special tokens of a weights
    /// file. A worker that stops finds none.
    pub(crate) fn detect_template(&self, file: &FileTemplate) -> Option<NamedTemplate> {
        let FileTemplate { source, bos, eos } = file.clone();
        match self.run_task(&WorkerTask::DetectTemplate { source, bos, eos }) {
            // The worker names a template; its text comes from this program.
            Ok(name) => named_template(&name?),
            Err(error) => {
                tracing::warn!(%error, "cannot look for a built-in template");
                None
            }
        }
    }

    /// Runs a task that has no output file. Returns its remark, or the reason of its failure.
    fn run_task(&self, task: &WorkerTask) -> Result<Option<String>, String> {
        process::run(self, task, &mut io::sink(), &mut |_| {}).map_err(|error| error.message)
    }
}

impl JobExecutor for FileWorkerLauncher {
    fn execute(
        &self,
        job: &FileJob,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), StoreError> {
        process::run(self, &WorkerTask::File(job.clone()), out, progress)?;
        Ok(())
    }
}
