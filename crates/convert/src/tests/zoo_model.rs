//! The tensors of a zoo file as f32, which tests transpose, join and rename to make a folder.

use std::collections::BTreeMap;

use puna_gguf::Gguf;

use super::fixtures::{StoredTensor, bytes, values};

/// Dimensions, slowest first, and values.
pub(super) type TensorValues = (Vec<u64>, Vec<f32>);

pub(super) struct ZooModel<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) arch: String,
    pub(super) layers: usize,
    tensors: BTreeMap<String, TensorValues>,
    /// Tensors that already have their name in the folder.
    out: Vec<StoredTensor>,
}

impl<'a> ZooModel<'a> {
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

    /// Takes a tensor of a layer, if it exists.
    pub(super) fn take(&mut self, layer: usize, part: &str) -> Option<TensorValues> {
        self.tensors.remove(&format!("blk.{layer}.{part}"))
    }

    /// Takes a tensor outside of layers.
    pub(super) fn take_whole(&mut self, name: &str) -> Option<TensorValues> {
        self.tensors.remove(name)
    }

    /// Puts a tensor of a layer back under a GGUF name.
    pub(super) fn put_back(&mut self, layer: usize, part: &str, numbers: TensorValues) {
        assert!(self.tensors.insert(format!("blk.{layer}.{part}"), numbers).is_none());
    }

    /// Changes weights and biases of some tensors in all layers.
    pub(super) fn for_parts(
        &mut self,
        parts: &[&str],
        change: &dyn Fn(TensorValues) -> TensorValues,
    ) {
        for (layer, part) in
            (0..self.layers).flat_map(|layer| parts.iter().map(move |part| (layer, part)))
        {
            for end in ["weight", "bias"] {
                let name = format!("{part}.{end}");
                if let Some(numbers) = self.take(layer, &name) {
                    self.put_back(layer, &name, change(numbers));
                }
            }
        }
    }

    /// Changes all tensors, with their names.
    pub(super) fn for_all(&mut self, change: &dyn Fn(&str, &mut TensorValues)) {
        self.tensors.iter_mut().for_each(|(name, numbers)| change(name, numbers));
    }

    /// Renames a tensor in layers that lack another tensor.
    pub(super) fn rename_in_layers_without(&mut self, part: &str, lacks: &str, to: &str) {
        for layer in 0..self.layers {
            if self.tensors.contains_key(&format!("blk.{layer}.{lacks}.weight")) {
                continue;
            }
            if let Some(numbers) = self.take(layer, &format!("{part}.weight")) {
                self.put_back(layer, &format!("{to}.weight"), numbers);
            }
        }
    }

    /// Transposes to dimensions inputs, outputs.
    pub(super) fn transpose(&mut self, parts: &[&str]) {
        self.for_parts(parts, &transposed);
    }

    /// Moves the rows of rotary pairs half a head apart.
    pub(super) fn deinterleave_rope_pairs(&mut self) {
        for (part, heads) in [("attn_q", self.heads()), ("attn_k", self.kv_heads())] {
            self.for_parts(&[part], &|(shape, numbers)| {
                let rows = shape[0] as usize;
                (shape, super::llama_like::deinterleaved(&numbers, rows, heads))
            });
        }
    }

    /// Concatenates tensors by rows, in every layer that has all of them.
    pub(super) fn join_rows(&mut self, parts: &[&str], to: &str) {
        for layer in 0..self.layers {
            for end in ["weight", "bias"] {
                let all: Vec<TensorValues> = parts
                    .iter()
                    .filter_map(|part| self.take(layer, &format!("{part}.{end}")))
                    .collect();
                if all.len() == parts.len() {
                    self.put_back(layer, &format!("{to}.{end}"), concatenated(all));
                }
            }
        }
    }

    /// Splits the rows of stacked matrices into two tensors.
    pub(super) fn split_fused_experts(&mut self, part: &str, halves: [&str; 2]) {
        for layer in 0..self.layers {
            let Some(both) = self.take(layer, &format!("{part}.weight")) else { continue };
            for (half, name) in halves.into_iter().enumerate() {
                self.put_back(layer, &format!("{name}.weight"), piece(&both, half, 2));
            }
        }
    }

    /// Reorders rows of all queries, keys and values to those of each KV head.
    pub(super) fn group_by_key_head(&mut self, part: &str, kv_heads: usize) {
        let group = self.heads() / kv_heads;
        self.for_parts(&[part], &|(shape, numbers)| {
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

    /// Splits stacked experts into separate tensors; `{}` in the source name is the expert's
    /// number.
    pub(super) fn experts(&mut self, root: &str, names: &[(&str, &str)]) {
        for (layer, (part, source)) in
            (0..self.layers).flat_map(|layer| names.iter().map(move |name| (layer, name)))
        {
            let Some((shape, numbers)) = self.take(layer, &format!("{part}.weight")) else {
                continue;
            };
            let each = numbers.len() / shape[0] as usize;
            for (number, numbers) in numbers.chunks_exact(each).enumerate() {
                let source = source.replace("{}", &number.to_string());
                self.put(
                    format!("{root}{layer}.{source}.weight"),
                    (shape[1..].to_vec(), numbers.to_vec()),
                );
            }
        }
    }

    pub(super) fn put(&mut self, name: String, (shape, numbers): TensorValues) {
        self.out.push((name, "F32", shape, bytes(&numbers, "F32")));
    }

    /// Renames the remaining tensors to those of a folder: first outside of layers, then in layers.
    /// Names are without suffix, or with it if the suffix differs.
    pub(super) fn into_folder_tensors(
        mut self,
        whole: &[(&str, &str)],
        root: &str,
        names: &[(&str, &str)],
    ) -> Vec<StoredTensor> {
        for (name, numbers) in std::mem::take(&mut self.tensors) {
            let (layer, part) =
                match name.strip_prefix("blk.").map(|rest| rest.split_once('.').unwrap()) {
                    Some((layer, part)) => (Some(layer), part),
                    None => (None, &*name),
                };
            let names = if layer.is_some() { names } else { whole };
            let (stem, end) = part.rsplit_once('.').unwrap_or((part, ""));
            let source = names.iter().find_map(|(target, source)| match () {
                () if *target == part => Some((*source).to_owned()),
                () if *target == stem && !end.is_empty() => Some(format!("{source}.{end}")),
                () => None,
            });
            let source = source.unwrap_or_else(|| panic!("{}: {name}", self.arch));
            let layer = layer.map(|layer| format!("{root}{layer}.")).unwrap_or_default();
            self.put(layer + &source, numbers);
        }
        self.out
    }
}

/// Transposed matrices; vectors stay unchanged.
pub(super) fn transposed((shape, numbers): TensorValues) -> TensorValues {
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

/// Concatenates tensors by rows, for each matrix of a stack.
fn concatenated(all: Vec<TensorValues>) -> TensorValues {
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

/// One of several equal row ranges of every matrix.
pub(super) fn piece((shape, numbers): &TensorValues, at: usize, count: usize) -> TensorValues {
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
