//! Writes the GGUF file: several threads encode chunks of tensors, and the caller's thread writes
//! them in their order.

use std::collections::BTreeSet;
use std::io::Write;
use std::ops::Range;

use puna_gguf::Writer;
use puna_gguf::ordered_tasks::{run_in_order, thread_count};
use puna_quant::TensorType;

use super::tensor::OutputTensor;
use crate::error::ConvertError;

/// Smallest magnitude that F16 rounds to infinity.
const F16_OVERFLOW: f32 = 65520.0;

/// Called with a status text, the number of bytes done, and the total.
pub type ProgressReport<'a> = &'a mut dyn FnMut(&'static str, u64, u64);

/// Status text of the phase that writes the file.
pub const CONVERTING_STATUS: &str = "converting model";
/// Status text of the phase that looks for values beyond the range of F16.
const READING_STATUS: &str = "reading weights";

/// Sorts by layer number; tensors outside of layers come first.
pub(crate) fn sort_by_layer(outputs: &mut [OutputTensor<'_>]) {
    outputs.sort_by_key(|output| {
        let number =
            output.name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok());
        (number.map_or(0, |n: u32| u64::from(n) + 1), output.name.clone())
    });
}

/// Changes F16 tensors with values beyond the range of F16 to F32.
pub(crate) fn widen_overflowing(
    outputs: &mut [OutputTensor<'_>],
    report: ProgressReport<'_>,
) -> Result<(), ConvertError> {
    outputs.iter().try_for_each(OutputTensor::check_width)?;
    let candidates = outputs.iter().enumerate().filter(|(_, output)| output.may_overflow());
    let chunks: Vec<(usize, Range<u64>)> = candidates
        .flat_map(|(number, output)| output.chunks().map(move |rows| (number, rows)))
        .collect();
    let total = chunks.iter().map(|(number, rows)| outputs[*number].source_bytes(rows)).sum();
    let (mut done, mut large) = (0, BTreeSet::new());
    let is_large = |at: usize| -> Result<bool, ConvertError> {
        let (number, rows) = &chunks[at];
        let output = &outputs[*number];
        let values = output.values(rows.start, rows.end, output.columns())?;
        Ok(values.iter().any(|x| x.abs() >= F16_OVERFLOW))
    };
    run_in_order(thread_count(0), chunks.len(), is_large, |at, is_large| {
        let (number, rows) = &chunks[at];
        large.extend(is_large.then_some(*number));
        done += outputs[*number].source_bytes(rows);
        report(READING_STATUS, done, total);
        Ok(())
    })?;
    for number in large {
        outputs[number].ty = TensorType::F32;
    }
    Ok(())
}

/// Writes the file: metadata, then all tensors in their order.
pub(crate) fn write_file(
    mut writer: Writer,
    outputs: &[OutputTensor<'_>],
    out: &mut dyn Write,
    report: ProgressReport<'_>,
) -> Result<(), ConvertError> {
    for output in outputs {
        output.check_width()?;
        let shape: Vec<u64> = output.shape.iter().rev().copied().collect();
        writer.tensor(&output.name, output.ty, &shape)?;
    }
    let total = writer.tensors().iter().map(|tensor| tensor.size).sum();
    let chunks: Vec<(&OutputTensor<'_>, Range<u64>)> =
        outputs.iter().flat_map(|output| output.chunks().map(move |rows| (output, rows))).collect();
    let mut body = writer.start(out)?;
    let mut done = 0;
    let make = |at: usize| {
        let (output, rows) = &chunks[at];
        output.encode(rows.start, rows.end)
    };
    run_in_order(thread_count(0), chunks.len(), make, |_, bytes| {
        body.write(&bytes)?;
        done += bytes.len() as u64;
        report(CONVERTING_STATUS, done, total);
        Ok(())
    })?;
    body.finish()?;
    Ok(())
}
