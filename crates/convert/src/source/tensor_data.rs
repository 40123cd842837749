//! Location of a tensor's values: plain in one file, packed in bytes, or in shards of several
//! devices.
//!
//! ```text
//! packed    byte [r, c] of [n, m]: 2 bits each, the lowest first, of the values [r, c],
//!           [n + r, c], [2n + r, c], [3n + r, c] of [4n, m]; the bits are the value plus one
//! ```

use std::sync::LazyLock;

use half::{bf16, f16};
use puna_gguf::escape_for_message;

use super::safetensors::{Dtype, SafeTensors, TensorEntry};
use crate::error::ConvertError;

/// Values of a tensor in one or more files.
#[derive(Clone)]
pub(crate) struct TensorData<'a> {
    shards: Vec<(&'a SafeTensors, &'a TensorEntry)>,
    assembly: Assembly,
}

/// How shards form the tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Assembly {
    /// One shard.
    Single,
    /// One shard with four values a byte.
    PackedTernary,
    /// Shards are concatenated by rows.
    Rows,
    /// Shards are concatenated by columns.
    Columns,
}

impl<'a> TensorData<'a> {
    pub(crate) fn new(file: &'a SafeTensors, entry: &'a TensorEntry) -> Self {
        Self { shards: vec![(file, entry)], assembly: Assembly::Single }
    }

    /// The entry of the first shard.
    pub(crate) fn first(&self) -> &'a TensorEntry {
        self.shards[0].1
    }

    /// The device number in a file name of the form `…-TP-NNN.safetensors`.
    fn device_number(file: &SafeTensors) -> Option<u32> {
        let (_, rest) = file.name().rsplit_once("-TP-")?;
        rest.strip_suffix(".safetensors")?.parse().ok()
    }

    /// Adds a tensor of the same name. Returns false unless all of its files are of devices.
    pub(crate) fn add_shard(&mut self, file: &'a SafeTensors, entry: &'a TensorEntry) -> bool {
        let is_part = |file| Self::device_number(file).is_some();
        let is_further = is_part(file) && self.shards.iter().all(|(other, _)| is_part(other));
        self.shards.push((file, entry));
        is_further
    }

    /// Joins the shards of all devices and returns the entry of the whole tensor; `None` if it has
    /// no shards.
    pub(crate) fn join_shards(
        &mut self,
        by_columns: bool,
    ) -> Result<Option<TensorEntry>, ConvertError> {
        if let [(file, _)] = self.shards[..]
            && Self::device_number(file).is_none()
        {
            return Ok(None);
        }
        self.shards.sort_by_key(|(file, _)| Self::device_number(file));
        self.check_devices()?;
        let first = self.first();
        let mut joined = first.clone();
        let axis = usize::from(by_columns);
        for (_, part) in &self.shards {
            let mut shape = part.shape.clone();
            if let (Some(size), Some(want)) = (shape.get_mut(axis), first.shape.get(axis)) {
                *size = *want;
            }
            if part.shape.len() != 2 || shape != first.shape || part.dtype != first.dtype {
                let (found, want) = (part.shape.clone(), first.shape.clone());
                return Err(ConvertError::TensorShape { name: part.name.clone(), found, want });
            }
        }
        joined.shape[axis] = self.shards.iter().map(|(_, part)| part.shape[axis]).sum();
        joined.size = self.shards.iter().map(|(_, part)| part.size).sum();
        self.assembly = if by_columns { Assembly::Columns } else { Assembly::Rows };
        Ok(Some(joined))
    }

    /// Checks that each device has one shard, and that there are at least two. A missing last shard
    /// shows only in the tensor's size, which the family checks.
    fn check_devices(&self) -> Result<(), ConvertError> {
        let name = escape_for_message(&self.first().name);
        let error =
            |reason| Err(ConvertError::Safetensors { file: "the folder".to_owned(), reason });
        let devices: Vec<u32> =
            self.shards.iter().filter_map(|(file, _)| Self::device_number(file)).collect();
        if let Some(pair) = devices.windows(2).find(|pair| pair[0] == pair[1]) {
            return error(format!(
                "tensor {name} occurs twice among the files of device {}",
                pair[0]
            ));
        }
        match (0u32..)
            .zip(0..devices.len().max(2))
            .find(|(number, at)| devices.get(*at) != Some(number))
        {
            Some((number, _)) => {
                error(format!("the shard of device {number} of tensor {name} is missing"))
            }
            None => Ok(()),
        }
    }

    /// Treats a matrix of bytes as packed ternary values, and returns the entry of the unpacked
    /// matrix.
    pub(crate) fn unpack(&mut self) -> Option<TensorEntry> {
        let entry = self.first();
        let [rows, columns] = entry.shape[..] else { return None };
        if entry.dtype != Dtype::U8 || self.assembly != Assembly::Single {
            return None;
        }
        let (rows, size) = (rows.checked_mul(4)?, entry.size.checked_mul(4)?);
        self.assembly = Assembly::PackedTernary;
        Some(TensorEntry { shape: vec![rows, columns], size, ..entry.clone() })
    }

    pub(crate) fn is_packed_ternary(&self) -> bool {
        self.assembly == Assembly::PackedTernary
    }

    /// Whether the values are plain in one file.
    pub(crate) fn is_single(&self) -> bool {
        self.assembly == Assembly::Single
    }

    /// Reads bytes of the first file, beginning at an element.
    pub(crate) fn bytes(&self, element: u64, out: &mut [u8]) -> Result<(), ConvertError> {
        let (file, entry) = self.shards[0];
        file.read_at(entry, element * entry.dtype.size(), out)
    }

    /// Reads `count` values, beginning at `from`.
    pub(crate) fn floats(&self, mut from: u64, count: u64) -> Result<Vec<f32>, ConvertError> {
        if self.assembly == Assembly::Single {
            return read_shard(self.shards[0], from, count);
        }
        let end = from.saturating_add(count);
        let mut values = Vec::new();
        while from < end {
            let (shard, within, run) = self.locate(from).ok_or_else(|| self.out_of_range(end))?;
            let count = run.min(end - from);
            if self.assembly == Assembly::PackedTernary {
                let mut bytes = vec![0; count as usize];
                self.bytes(within, &mut bytes)?;
                values.extend(bytes.iter().map(|byte| f32::from(byte >> (2 * shard) & 3) - 1.0));
            } else {
                values.extend(read_shard(self.shards[shard], within, count)?);
            }
            from += count;
        }
        Ok(values)
    }

    /// Finds an element: its shard (or pair of bits), its index there, and the number of elements
    /// that follow in sequence.
    fn locate(&self, element: u64) -> Option<(usize, u64, u64)> {
        let find = |mut at: u64, sizes: &mut dyn Iterator<Item = u64>| {
            for (shard, size) in sizes.enumerate() {
                if at < size {
                    return Some((shard, at, size - at));
                }
                at -= size;
            }
            None
        };
        let shards = || self.shards.iter().map(|(_, entry)| entry);
        match self.assembly {
            Assembly::Single | Assembly::Rows => {
                find(element, &mut shards().map(|entry| entry.elements()))
            }
            Assembly::PackedTernary => find(element, &mut [self.first().size; 4].into_iter()),
            Assembly::Columns => {
                let width = |entry: &TensorEntry| entry.shape.get(1).copied().unwrap_or(0);
                let columns = shards().map(|entry| width(entry)).sum::<u64>();
                let row = element.checked_div(columns)?;
                let (shard, at, run) =
                    find(element % columns, &mut shards().map(|entry| width(entry)))?;
                let (_, entry) = self.shards[shard];
                Some((shard, row * width(entry) + at, run)).filter(|_| row < entry.shape[0])
            }
        }
    }

    fn out_of_range(&self, end: u64) -> ConvertError {
        let (name, found) = (self.first().name.clone(), self.first().shape.clone());
        ConvertError::TensorShape { name, found, want: vec![end] }
    }
}

/// Reads values of one shard.
fn read_shard(
    (file, entry): (&SafeTensors, &TensorEntry),
    from: u64,
    count: u64,
) -> Result<Vec<f32>, ConvertError> {
    let mut bytes = vec![0; (count * entry.dtype.size()) as usize];
    file.read_at(entry, from * entry.dtype.size(), &mut bytes)?;
    decode(&bytes, entry.dtype).ok_or_else(|| bad_type(entry))
}

pub(crate) fn bad_type(entry: &TensorEntry) -> ConvertError {
    ConvertError::TensorType { name: entry.name.clone(), found: format!("{:?}", entry.dtype) }
}

/// Decodes whole elements; `None` for types that are not used for weights.
fn decode(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    let words = || bytes.as_chunks::<2>().0.iter().map(|word| u16::from_le_bytes(*word));
    Some(match dtype {
        Dtype::F32 => {
            bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
        }
        Dtype::F16 => words().map(|bits| f16::from_bits(bits).to_f32()).collect(),
        Dtype::BF16 => words().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
        Dtype::F8_E4M3 => bytes.iter().map(|&byte| E4M3_TO_F32[byte as usize]).collect(),
        // Scales of MXFP4: powers of two.
        Dtype::F8_E8M0 => bytes.iter().map(|&byte| e8m0_to_f32(byte)).collect(),
        Dtype::F8_E5M2 => {
            bytes.iter().map(|&byte| f16::from_bits(u16::from(byte) << 8).to_f32()).collect()
        }
        _ => return None,
    })
}

/// Value of an 8-bit exponent.
fn e8m0_to_f32(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}

/// Values of FP8 E4M3: four bits of exponent, three of mantissa, no infinities.
static E4M3_TO_F32: LazyLock<[f32; 256]> = LazyLock::new(|| {
    std::array::from_fn(|byte| {
        let (exponent, mantissa) = ((byte >> 3) & 15, (byte & 7) as f32);
        let size = match (exponent, byte & 7) {
            (15, 7) => f32::NAN,
            (0, _) => mantissa / 512.0,
            _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent as i32 - 7),
        };
        if byte & 0x80 == 0 { size } else { -size }
    })
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fp8_values_match_their_definition() {
        for (byte, value) in [
            (0x00, 0.0),
            (0x01, 1.0 / 512.0),
            (0x08, 1.0 / 64.0),
            (0x38, 1.0),
            (0x7e, 448.0),
            (0xc0, -2.0),
        ] {
            assert_eq!(E4M3_TO_F32[byte], value, "{byte:02x}");
        }
        assert!(E4M3_TO_F32[0x7f].is_nan() && E4M3_TO_F32[0xff].is_nan());
        assert_eq!(decode(&[0x3c, 0x7b], Dtype::F8_E5M2), Some(vec![1.0, 57344.0]));
        let powers = decode(&[0, 1, 126, 127, 130], Dtype::F8_E8M0).unwrap();
        assert_eq!(powers, [-127, -126, -1, 0, 3].map(|n| 2f32.powi(n)));
        assert!(e8m0_to_f32(255).is_nan());
    }
}
