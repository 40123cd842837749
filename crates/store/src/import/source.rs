//! Where the values of a tensor lie: in a file as they are, packed in bytes, or in the files of several devices, which have a part of
//! it each.
//!
//! ```text
//! packed    byte [r, c] of [n, m]: 2 bits each, the lowest first, of the values [r, c], [n + r, c], [2n + r, c], [3n + r, c] of
//!           [4n, m]; they are the value and one
//! ```

use std::sync::LazyLock;

use half::{bf16, f16};

use super::ImportError;
use super::safetensors::{Dtype, SafeTensors, TensorEntry};

/// Values in files.
#[derive(Clone)]
pub(super) struct Source<'a> {
    pieces: Vec<(&'a SafeTensors, &'a TensorEntry)>,
    form: Form,
}

/// How the pieces make the whole.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// There is one.
    Whole,
    /// There is one, each byte of which holds four values.
    Packed,
    /// The rows of one behind those of the other.
    Rows,
    /// In each row the columns of one behind those of the other.
    Columns,
}

impl<'a> Source<'a> {
    pub(super) fn of(file: &'a SafeTensors, entry: &'a TensorEntry) -> Self {
        Self { pieces: vec![(file, entry)], form: Form::Whole }
    }

    /// What the first file has.
    pub(super) fn first(&self) -> &'a TensorEntry {
        self.pieces[0].1
    }

    /// The device whose part it is, where it is one of several.
    fn device(file: &SafeTensors) -> Option<u32> {
        let (_, rest) = file.name().rsplit_once("-TP-")?;
        rest.strip_suffix(".safetensors")?.parse().ok()
    }

    /// Adds a tensor of the same name, which only the file of another device may have.
    pub(super) fn add(&mut self, file: &'a SafeTensors, entry: &'a TensorEntry) -> bool {
        let is_part = |file| Self::device(file).is_some();
        let is_further = is_part(file) && self.pieces.iter().all(|(other, _)| is_part(other));
        self.pieces.push((file, entry));
        is_further
    }

    /// Puts the parts of all devices together, and says what they are as one.
    pub(super) fn join(&mut self, by_columns: bool) -> Result<Option<TensorEntry>, ImportError> {
        if let [(file, _)] = self.pieces[..]
            && Self::device(file).is_none()
        {
            return Ok(None);
        }
        self.pieces.sort_by_key(|(file, _)| Self::device(file));
        self.check_devices()?;
        let first = self.first();
        let mut whole = first.clone();
        let along = usize::from(by_columns);
        for (_, part) in &self.pieces {
            let mut shape = part.shape.clone();
            if let (Some(one), Some(want)) = (shape.get_mut(along), first.shape.get(along)) {
                *one = *want;
            }
            if part.shape.len() != 2 || shape != first.shape || part.dtype != first.dtype {
                let (found, want) = (part.shape.clone(), first.shape.clone());
                return Err(ImportError::TensorShape { name: part.name.clone(), found, want });
            }
        }
        whole.shape[along] = self.pieces.iter().map(|(_, part)| part.shape[along]).sum();
        whole.size = self.pieces.iter().map(|(_, part)| part.size).sum();
        self.form = if by_columns { Form::Columns } else { Form::Rows };
        Ok(Some(whole))
    }

    /// Each device has its part once, and there are several: one would have no part, but the whole. Whether one is missing behind the last
    /// that is there, the family has to say by the size of the whole.
    fn check_devices(&self) -> Result<(), ImportError> {
        let name = crate::name::shown(&self.first().name);
        let wrong =
            |reason| Err(ImportError::Safetensors { file: "the folder".to_owned(), reason });
        let devices: Vec<u32> =
            self.pieces.iter().filter_map(|(file, _)| Self::device(file)).collect();
        if let Some(pair) = devices.windows(2).find(|pair| pair[0] == pair[1]) {
            return wrong(format!(
                "tensor {name} occurs twice among the files of device {}",
                pair[0]
            ));
        }
        match (0u32..)
            .zip(0..devices.len().max(2))
            .find(|(number, at)| devices.get(*at) != Some(number))
        {
            Some((number, _)) => {
                wrong(format!("the part of device {number} of tensor {name} is missing"))
            }
            None => Ok(()),
        }
    }

    /// Shows a matrix of bytes as the values that they hold, and says what it then is.
    pub(super) fn unpack(&mut self) -> Option<TensorEntry> {
        let entry = self.first();
        let [rows, columns] = entry.shape[..] else { return None };
        if entry.dtype != Dtype::U8 || self.form != Form::Whole {
            return None;
        }
        let (rows, size) = (rows.checked_mul(4)?, entry.size.checked_mul(4)?);
        self.form = Form::Packed;
        Some(TensorEntry { shape: vec![rows, columns], size, ..entry.clone() })
    }

    pub(super) fn is_packed(&self) -> bool {
        self.form == Form::Packed
    }

    /// Whether the bytes of one file stand for themselves.
    pub(super) fn is_whole(&self) -> bool {
        self.form == Form::Whole
    }

    /// Bytes of the first file from the place of an element on.
    pub(super) fn bytes(&self, element: u64, out: &mut [u8]) -> Result<(), ImportError> {
        let (file, entry) = self.pieces[0];
        file.read_at(entry, element * entry.dtype.size(), out)
    }

    /// So many values from one on.
    pub(super) fn floats(&self, mut from: u64, count: u64) -> Result<Vec<f32>, ImportError> {
        if self.form == Form::Whole {
            return piece(self.pieces[0], from, count);
        }
        let end = from.saturating_add(count);
        let mut values = Vec::new();
        while from < end {
            let (at, within, run) = self.run(from).ok_or_else(|| self.past(end))?;
            let count = run.min(end - from);
            if self.form == Form::Packed {
                let mut bytes = vec![0; count as usize];
                self.bytes(within, &mut bytes)?;
                values.extend(bytes.iter().map(|byte| f32::from(byte >> (2 * at) & 3) - 1.0));
            } else {
                values.extend(piece(self.pieces[at], within, count)?);
            }
            from += count;
        }
        Ok(values)
    }

    /// The piece, or the bits, in which a value lies, its place there, and how many follow it there.
    fn run(&self, element: u64) -> Option<(usize, u64, u64)> {
        let find = |mut at: u64, sizes: &mut dyn Iterator<Item = u64>| {
            for (piece, size) in sizes.enumerate() {
                if at < size {
                    return Some((piece, at, size - at));
                }
                at -= size;
            }
            None
        };
        let pieces = || self.pieces.iter().map(|(_, entry)| entry);
        match self.form {
            Form::Whole | Form::Rows => find(element, &mut pieces().map(|entry| entry.elements())),
            Form::Packed => find(element, &mut [self.first().size; 4].into_iter()),
            Form::Columns => {
                let width = |entry: &TensorEntry| entry.shape.get(1).copied().unwrap_or(0);
                let columns = pieces().map(|entry| width(entry)).sum::<u64>();
                let row = element.checked_div(columns)?;
                let (piece, at, run) =
                    find(element % columns, &mut pieces().map(|entry| width(entry)))?;
                let (_, entry) = self.pieces[piece];
                Some((piece, row * width(entry) + at, run)).filter(|_| row < entry.shape[0])
            }
        }
    }

    fn past(&self, end: u64) -> ImportError {
        let (name, found) = (self.first().name.clone(), self.first().shape.clone());
        ImportError::TensorShape { name, found, want: vec![end] }
    }
}

/// Values of one piece.
fn piece(
    (file, entry): (&SafeTensors, &TensorEntry),
    from: u64,
    count: u64,
) -> Result<Vec<f32>, ImportError> {
    let mut bytes = vec![0; (count * entry.dtype.size()) as usize];
    file.read_at(entry, from * entry.dtype.size(), &mut bytes)?;
    floats(&bytes, entry.dtype).ok_or_else(|| bad_type(entry))
}

pub(super) fn bad_type(entry: &TensorEntry) -> ImportError {
    ImportError::TensorType { name: entry.name.clone(), found: format!("{:?}", entry.dtype) }
}

/// Values of bytes that hold whole elements; nothing for types that stand for no weights.
fn floats(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    let words = || bytes.as_chunks::<2>().0.iter().map(|word| u16::from_le_bytes(*word));
    Some(match dtype {
        Dtype::F32 => {
            bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
        }
        Dtype::F16 => words().map(|bits| f16::from_bits(bits).to_f32()).collect(),
        Dtype::BF16 => words().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
        Dtype::F8_E4M3 => bytes.iter().map(|&byte| E4M3[byte as usize]).collect(),
        // Powers of two.
        Dtype::F8_E8M0 => bytes.iter().map(|&byte| power(byte)).collect(),
        Dtype::F8_E5M2 => {
            bytes.iter().map(|&byte| f16::from_bits(u16::from(byte) << 8).to_f32()).collect()
        }
        _ => return None,
    })
}

/// The value of a byte that is an exponent.
fn power(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}

/// Values of bytes with four bits of exponent and three of mantissa, without infinities.
static E4M3: LazyLock<[f32; 256]> = LazyLock::new(|| {
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
    fn eight_bits_have_their_published_values() {
        for (byte, value) in [
            (0x00, 0.0),
            (0x01, 1.0 / 512.0),
            (0x08, 1.0 / 64.0),
            (0x38, 1.0),
            (0x7e, 448.0),
            (0xc0, -2.0),
        ] {
            assert_eq!(E4M3[byte], value, "{byte:02x}");
        }
        assert!(E4M3[0x7f].is_nan() && E4M3[0xff].is_nan());
        assert_eq!(floats(&[0x3c, 0x7b], Dtype::F8_E5M2), Some(vec![1.0, 57344.0]));
        let powers = floats(&[0, 1, 126, 127, 130], Dtype::F8_E8M0).unwrap();
        assert_eq!(powers, [-127, -126, -1, 0, 3].map(|n| 2f32.powi(n)));
        assert!(power(255).is_nan());
    }
}
