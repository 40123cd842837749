//! Joins the parts of a split GGUF file.

use std::io::Write;

use puna_gguf::{Gguf, GgufError, Writer};

use super::NamedFile;
use crate::error::StoreError;
use crate::progress::{Progress, ProgressFn, ProgressThrottle};

/// Stand-in for a digest in progress messages.
const JOINING_DIGEST: &str = "4444444444444444444";

/// Metadata keys that only parts have.
const SPLIT_KEYS: [&str; 3] = ["split.no", "split.count", "split.tensors.count"];

pub(super) fn run(
    parts: &[NamedFile],
    out: &mut dyn Write,
    progress: ProgressFn<'_>,
) -> Result<(), StoreError> {
    let first = parts.first().ok_or_else(|| StoreError::Split("it has no parts".to_owned()))?;
    let gguf = Gguf::open(&first.path).map_err(|error| name_parts(error, parts))?;
    let mut metadata = gguf.metadata().clone();
    for key in SPLIT_KEYS {
        metadata.remove(key);
    }
    let mut writer = Writer::with_metadata(metadata);
    for tensor in gguf.tensors() {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape)?;
    }
    let mut body = writer.start(out)?;
    let (mut done, mut throttle) = (0, ProgressThrottle::new());
    for tensor in gguf.tensors() {
        body.write(gguf.data(tensor))?;
        done += tensor.size;
        let total = gguf.tensor_bytes();
        if throttle.is_due(done >= total) {
            progress(Progress::bytes("joining parts", JOINING_DIGEST, done, total));
        }
    }
    body.finish()?;
    Ok(())
}

/// Replaces paths in a message by the names that the user knows.
fn name_parts(error: GgufError, parts: &[NamedFile]) -> StoreError {
    let message = error.to_string();
    let named = parts.iter().fold(message.clone(), |text, part| {
        text.replace(&part.path.display().to_string(), &part.name)
    });
    match error {
        GgufError::Io { .. } => error.into(),
        _ if named == message => error.into(),
        _ => StoreError::Split(named),
    }
}
