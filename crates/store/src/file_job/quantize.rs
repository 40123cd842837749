//! Quantizes a GGUF file.

use std::io::Write;
use std::path::PathBuf;

use puna_gguf::Gguf;
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::progress::{Progress, ProgressFn, ProgressThrottle};
use crate::requantize::{
    FileType, Imatrix, QuantizeOptions, fallbacks, requantize, requantize_part, unmatched_tensors,
};

/// Stand-in for a digest in progress messages; it is Ollama's.
const QUANTIZING_DIGEST: &str = "0000000000000000000";

/// Quantization of a GGUF file, or of one part of a split file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuantizeJob {
    /// Path of the file; of a split file the first part.
    pub source: PathBuf,
    /// Part to write, from 0; `None` writes all tensors into one file.
    pub part: Option<usize>,
    /// Name of the file type, such as `Q4_K_M`.
    pub target: String,
    /// Path of an importance matrix.
    pub imatrix: Option<PathBuf>,
    /// Number of threads; 0 means one for each core.
    pub threads: usize,
    /// Status text of the progress messages with byte counts.
    pub status: String,
}

impl QuantizeJob {
    /// Runs the job. Before the byte counts, messages without counts name the tensors that get
    /// another type than the file, and those that the importance matrix lacks.
    pub(super) fn run(
        &self,
        out: &mut dyn Write,
        progress: ProgressFn<'_>,
    ) -> Result<(), StoreError> {
        let target = FileType::from_name(&self.target)
            .ok_or_else(|| StoreError::QuantizeType(self.target.to_ascii_uppercase()))?;
        let imatrix = self.imatrix.as_deref().map(Imatrix::open).transpose()?;
        let gguf = Gguf::open(&self.source)?;
        // Each message stands once, before the first part.
        if self.part.unwrap_or(0) == 0 {
            report_exceptions(&gguf, target, imatrix.as_ref(), progress);
        }
        let options = QuantizeOptions { threads: self.threads, imatrix: imatrix.as_ref() };
        let mut throttle = ProgressThrottle::new();
        let mut report = |done: u64, total: u64| {
            if throttle.is_due(done >= total) {
                progress(Progress::bytes(&self.status, QUANTIZING_DIGEST, done, total));
            }
        };
        match self.part {
            None => requantize(&gguf, target, &options, out, &mut report),
            Some(part) => requantize_part(&gguf, part, target, &options, out, &mut report),
        }
    }
}

fn report_exceptions(
    gguf: &Gguf,
    target: FileType,
    imatrix: Option<&Imatrix>,
    progress: ProgressFn<'_>,
) {
    for fallback in fallbacks(gguf, target, imatrix.is_some()) {
        progress(Progress::status(fallback.to_string()));
    }
    if let Some(unmatched) = imatrix.and_then(|matrix| unmatched_tensors(gguf, target, matrix)) {
        progress(Progress::status(unmatched.to_string()));
    }
}
