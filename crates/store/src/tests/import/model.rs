//! A zoo file taken apart: its tensors as numbers, which the way back to a folder turns, joins and renames.

use std::collections::BTreeMap;

use puna_gguf::Gguf;

use super::kit::{Stored, bytes, values};

/// Dimensions, slowest first, and numbers.
pub(super) type Numbers = (Vec<u64>, Vec<f32>);

pub(super) struct Model<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) arch: String,
    pub(super) layers: usize,
    tensors: BTreeMap<String, Numbers>,
    /// What has its name in the folder.
    out: Vec<Stored>,
}

impl<'a> Model<'a> {
    pub(super) fn of(gguf: &'a Gguf) -> Self {
        let arch = gguf.metadata().architecture().unwrap().to_owned();
        let tensors = gguf.tensors().iter().filter(|tensor| !tensor.name.starts_with("rope_"));
        let tensors = tensors.map(|tensor| {
            let shape = tensor.shape.iter().rev().copied().collect();
            (tensor.name.to_string(), (shape, values(gguf, tensor)))
        });
        let layers = gguf.metadata().u32(&format!("{arch}.block_count")).unwrap() as usize;
        Self { gguf, arch, layers, tensors: tensors.collect(), out: Vec::new() }
    }

    pub(super) fn number(&self, key: &str) -> usize {
        self.gguf.metadata().u32(&format!("{}.{key}", self.arch)).unwrap() as usize
    }

    pub(super) fn heads(&self) -> usize {
        self.number("attention.head_count")
    }

    pub(super) fn kv_heads(&self) -> usize {
        self.number("attention.head_count_kv")
    }

    /// Takes a tensor of a layer, where it is there.
    pub(super) fn take(&mut self, layer: usize, part: &str) -> Option<Numbers> {
        self.tensors.remove(&format!("blk.{layer}.{part}"))
    }

    /// Takes a tensor that is of no layer.
    pub(super) fn take_whole(&mut self, name: &str) -> Option<Numbers> {
        self.tensors.remove(name)
    }

    /// Puts a tensor of a layer back under its name here.
    pub(super) fn back(&mut self, layer: usize, part: &str, numbers: Numbers) {
        assert!(self.tensors.insert(format!("blk.{layer}.{part}"), numbers).is_none());
    }

    /// Changes tensors of all layers that have them, weights and biases.
    pub(super) fn each(&mut self, parts: &[&str], change: &dyn Fn(Numbers) -> Numbers) {
        for (layer, part) in
            (0..self.layers).flat_map(|layer| parts.iter().map(move |part| (layer, part)))
        {
            for end in ["weight", "bias"] {
                let name = format!("{part}.{end}");
                if let Some(numbers) = self.take(layer, &name) {
                    self.back(layer, &name, change(numbers));
                }
            }
        }
    }

    /// Changes tensors by their names.
    pub(super) fn all(&mut self, change: &dyn Fn(&str, &mut Numbers)) {
        self.tensors.iter_mut().for_each(|(name, numbers)| change(name, numbers));
    }

    /// Calls a part of those layers another name that lack a further one.
    pub(super) fn move_where(&mut self, part: &str, lacks: &str, to: &str) {
        for layer in 0..self.layers {
            if self.tensors.contains_key(&format!("blk.{layer}.{lacks}.weight")) {
                continue;
            }
            if let Some(numbers) = self.take(layer, &format!("{part}.weight")) {
                self.back(layer, &format!("{to}.weight"), numbers);
            }
        }
    }

    /// Inputs before outputs.
    pub(super) fn turn(&mut self, parts: &[&str]) {
        self.each(parts, &turned);
    }

    /// Halves of heads together again.
    pub(super) fn unpair(&mut self) {
        for (part, heads) in [("attn_q", self.heads()), ("attn_k", self.kv_heads())] {
            self.each(&[part], &|(shape, numbers)| {
                let rows = shape[0] as usize;
                (shape, super::plain::halves(&numbers, rows, heads))
            });
        }
    }

    /// All tensors of some parts, one behind the other by rows, as one part of every layer that has them.
    pub(super) fn join(&mut self, parts: &[&str], to: &str) {
        for layer in 0..self.layers {
            for end in ["weight", "bias"] {
                let all: Vec<Numbers> = parts
                    .iter()
                    .filter_map(|part| self.take(layer, &format!("{part}.{end}")))
                    .collect();
                if all.len() == parts.len() {
                    self.back(layer, &format!("{to}.{end}"), behind(all));
                }
            }
        }
    }

    /// Cuts the rows of a stack of matrices into halves.
    pub(super) fn experts_of_both(&mut self, part: &str, halves: [&str; 2]) {
        for layer in 0..self.layers {
            let Some(both) = self.take(layer, &format!("{part}.weight")) else { continue };
            for (half, name) in halves.into_iter().enumerate() {
                self.back(layer, &format!("{name}.weight"), piece(&both, half, 2));
            }
        }
    }

    /// Queries, keys and values, all of each, as those of each head of keys together.
    pub(super) fn group(&mut self, part: &str, kv_heads: usize) {
        let group = self.heads() / kv_heads;
        self.each(&[part], &|(shape, numbers)| {
            let rows = shape[0] as usize;
            let (head, columns) = (rows / (kv_heads * (group + 2)), numbers.len() / rows);
            let mut out = Vec::with_capacity(numbers.len());
            for kv in 0..kv_heads {
                let starts = [
                    kv * group * head,
                    (kv_heads * group + kv) * head,
                    (kv_heads * (group + 1) + kv) * head,
                ];
                for (start, rows) in starts.into_iter().zip([group * head, head, head]) {
                    out.extend_from_slice(&numbers[start * columns..(start + rows) * columns]);
                }
            }
            (shape, out)
        });
    }

    /// The matrices of experts, each by itself: `there` has the place of its number.
    pub(super) fn experts(&mut self, root: &str, names: &[(&str, &str)]) {
        for (layer, (part, there)) in
            (0..self.layers).flat_map(|layer| names.iter().map(move |name| (layer, name)))
        {
            let Some((shape, numbers)) = self.take(layer, &format!("{part}.weight")) else {
                continue;
            };
            let each = numbers.len() / shape[0] as usize;
            for (number, numbers) in numbers.chunks_exact(each).enumerate() {
                let there = there.replace("{}", &number.to_string());
                self.put(
                    format!("{root}{layer}.{there}.weight"),
                    (shape[1..].to_vec(), numbers.to_vec()),
                );
            }
        }
    }

    pub(super) fn put(&mut self, name: String, (shape, numbers): Numbers) {
        self.out.push((name, "F32", shape, bytes(&numbers, "F32")));
    }

    /// Gives all tensors that are left their names in the folder: those outside of layers, then those of layers, each the
    /// name here and there without an end, or with one where it has another.
    pub(super) fn named(
        mut self,
        whole: &[(&str, &str)],
        root: &str,
        names: &[(&str, &str)],
    ) -> Vec<Stored> {
        for (name, numbers) in std::mem::take(&mut self.tensors) {
            let (layer, part) =
                match name.strip_prefix("blk.").map(|rest| rest.split_once('.').unwrap()) {
                    Some((layer, part)) => (Some(layer), part),
                    None => (None, &*name),
                };
            let names = if layer.is_some() { names } else { whole };
            let (stem, end) = part.rsplit_once('.').unwrap_or((part, ""));
            let there = names.iter().find_map(|(here, there)| match () {
                () if *here == part => Some((*there).to_owned()),
                () if *here == stem && !end.is_empty() => Some(format!("{there}.{end}")),
                () => None,
            });
            let there = there.unwrap_or_else(|| panic!("{}: {name}", self.arch));
            let layer = layer.map(|layer| format!("{root}{layer}.")).unwrap_or_default();
            self.put(layer + &there, numbers);
        }
        self.out
    }
}

/// Matrices with rows and columns exchanged; a vector stays what it is.
pub(super) fn turned((shape, numbers): Numbers) -> Numbers {
    let [around @ .., rows, columns] = &shape[..] else { return (shape, numbers) };
    let (rows, columns) = (*rows as usize, *columns as usize);
    let mut out = Vec::with_capacity(numbers.len());
    for matrix in numbers.chunks_exact(rows * columns) {
        out.extend(
            (0..columns)
                .flat_map(|column| (0..rows).map(move |row| matrix[row * columns + column])),
        );
    }
    ([around, &[columns as u64, rows as u64]].concat(), out)
}

/// Tensors one behind the other by rows, those of each matrix of a stack together.
fn behind(all: Vec<Numbers>) -> Numbers {
    let shape = all[0].0.clone();
    let (at, matrices) = match shape.len() {
        3 => (1, shape[0] as usize),
        _ => (0, 1),
    };
    let mut out = Vec::new();
    for matrix in 0..matrices {
        for (_, numbers) in &all {
            let each = numbers.len() / matrices;
            out.extend_from_slice(&numbers[matrix * each..][..each]);
        }
    }
    let mut joined = shape;
    joined[at] = all.iter().map(|(shape, _)| shape[at]).sum();
    (joined, out)
}

/// One of several pieces, of the same size, of the rows of every matrix.
pub(super) fn piece((shape, numbers): &Numbers, at: usize, count: usize) -> Numbers {
    let (rows_at, matrices) = if shape.len() == 3 { (1, shape[0] as usize) } else { (0, 1) };
    let each = numbers.len() / matrices;
    let take = each / count;
    let out = numbers
        .chunks_exact(each)
        .flat_map(|matrix| &matrix[at * take..][..take])
        .copied()
        .collect();
    let mut shape = shape.clone();
    shape[rows_at] /= count as u64;
    (shape, out)
}
