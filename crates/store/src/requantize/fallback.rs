//! Tensors that get another type than their file type prescribes, and messages about them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use puna_gguf::Gguf;
use puna_quant::TensorType;

use super::{FileType, rules};

/// Tensors that get another type than the file type prescribes, because their rows do not fill its
/// blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeFallback {
    /// The prescribed type.
    pub wanted: TensorType,
    /// The actual type.
    pub got: TensorType,
    /// Values in a row.
    pub row: u64,
    /// Names of the tensors.
    pub tensors: Vec<String>,
}

/// The tensors of a file that get another type than prescribed, grouped by types and row length.
pub fn fallbacks(gguf: &Gguf, target: FileType, has_imatrix: bool) -> Vec<TypeFallback> {
    let mut found: Vec<TypeFallback> = Vec::new();
    for (tensor, choice) in
        gguf.tensors().iter().zip(rules::choose_types(gguf, target, has_imatrix))
    {
        if choice.ty == choice.wanted {
            continue;
        }
        let row = tensor.shape.first().copied().unwrap_or(0);
        let same = |one: &&mut TypeFallback| {
            (one.wanted, one.got, one.row) == (choice.wanted, choice.ty, row)
        };
        match found.iter_mut().find(same) {
            Some(one) => one.tensors.push(tensor.name.to_string()),
            None => found.push(TypeFallback {
                wanted: choice.wanted,
                got: choice.ty,
                row,
                tensors: vec![tensor.name.to_string()],
            }),
        }
    }
    found
}

impl fmt::Display for TypeFallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wanted, got, row, tensors } = self;
        let (count, block) = (tensors.len(), wanted.block_values());
        let rows = if count == 1 { "tensor gets" } else { "tensors get" };
        write!(
            f,
            "{count} {rows} {got} instead of {wanted}: rows of {row} values do not fill blocks of {block}"
        )?;
        let names = tensors.iter().map(String::as_str);
        write!(f, " ({})", short_names(names).join(", "))
    }
}

/// Merges the names of a tensor in several layers into one: `blk.0-29.attn_q.weight`.
pub(super) fn short_names<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut short: Vec<(&str, BTreeSet<u32>)> = Vec::new();
    let mut places = BTreeMap::new();
    for name in names {
        let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let (rest, layer) = match layer.map(|(layer, rest)| (rest, layer.parse::<u32>())) {
            Some((rest, Ok(layer))) => (rest, Some(layer)),
            _ => (name, None),
        };
        let place = *places.entry((rest, layer.is_some())).or_insert_with(|| {
            short.push((rest, BTreeSet::new()));
            short.len() - 1
        });
        short[place].1.extend(layer);
    }
    let name = |(rest, layers): (&str, BTreeSet<u32>)| match layers.is_empty() {
        true => rest.to_owned(),
        false => format!("blk.{}.{rest}", ranges(&layers)),
    };
    short.into_iter().map(name).collect()
}

/// Formats numbers as ranges: `0-3,7`.
fn ranges(numbers: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let range = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of two layers. Most rows have 96 values.
    fn narrow() -> Gguf {
        let mut writer = puna_gguf::Writer::new();
        writer.set("general.architecture", "llama").set("llama.block_count", 2u32);
        let mut data = Vec::new();
        for (name, shape) in [
            ("token_embd.weight", [96, 4]),
            ("blk.0.attn_k.weight", [96, 2]),
            ("blk.0.ffn_down.weight", [256, 2]),
            ("blk.1.attn_k.weight", [96, 2]),
            ("blk.1.attn_q.weight", [40, 2]),
        ] {
            writer.tensor(name, TensorType::F16, &shape).unwrap();
            data.push(vec![0u8; (shape[0] * shape[1] * 2) as usize]);
        }
        Gguf::from_bytes(writer.to_vec(data.iter().map(Vec::as_slice)).unwrap()).unwrap()
    }

    #[test]
    fn tensors_with_unsuitable_row_lengths_are_reported_with_the_reason() {
        let told = |kind: &str| -> Vec<String> {
            let target = FileType::from_name(kind).unwrap();
            fallbacks(&narrow(), target, false).iter().map(TypeFallback::to_string).collect()
        };
        assert_eq!(
            told("Q4_K_M"),
            [
                "1 tensor gets Q8_0 instead of Q6_K: rows of 96 values do not fill blocks of 256 (token_embd.weight)",
                "2 tensors get Q5_0 instead of Q4_K: rows of 96 values do not fill blocks of 256 (blk.0-1.attn_k.weight)",
                "1 tensor gets F16 instead of Q4_K: rows of 40 values do not fill blocks of 256 (blk.1.attn_q.weight)",
            ]
        );
        let rows_of_40 =
            "F16 instead of Q8_0: rows of 40 values do not fill blocks of 32 (blk.1.attn_q.weight)";
        assert_eq!(told("Q8_0"), [format!("1 tensor gets {rows_of_40}")]);
        assert_eq!(told("BF16"), [""; 0]);
    }

    #[test]
    fn layers_are_reported_as_ranges() {
        let names = ["blk.0.a", "b", "blk.1.a", "blk.7.a", "blk.x.a", "a", "blk.3.c", "blk.2.a"];
        assert_eq!(short_names(names.into_iter()), ["blk.0-2,7.a", "b", "blk.x.a", "a", "blk.3.c"]);
    }
}
