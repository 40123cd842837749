//! Weights by name: every tensor is looked up with the shape that the keys imply.

use std::sync::Arc;

use puna_gguf::{SharedBytes, TensorView, View};
use puna_graph::{Bytes, Linear, Norm, Rope, RopeId, RopeKind, Weight, WeightId};
use puna_quant::TensorType;

use crate::error::ModelError;
use crate::rope::RopeKeys;

/// Range of the file's mapping.
pub(crate) struct MappedBytes(pub SharedBytes);

impl Bytes for MappedBytes {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Rows of a tensor that form a weight, so that an update of the tensor can be applied to the
/// weight: rows `first..first + rows` of every `each` rows.
#[derive(Debug, Clone)]
pub(crate) struct WeightSlice {
    /// Name of the tensor.
    pub of: String,
    /// Weight that consists of these rows.
    pub weight: WeightId,
    pub first: usize,
    pub rows: usize,
    pub each: usize,
    /// Whether each matrix is transposed.
    pub is_transposed: bool,
    /// Columns of a head after the multiplied ones, which the product copies unchanged.
    pub passthrough: usize,
}

/// Collects the tensors, rotary tables and states that an architecture uses.
pub struct Weights<'a> {
    view: &'a View,
    /// Index of the file's first tensor. Earlier tensors belong to another file with independent
    /// names.
    first: usize,
    pub(crate) tensors: Vec<Weight>,
    /// Weights that consist of parts of a tensor.
    pub(crate) slices: Vec<WeightSlice>,
    pub(crate) ropes: Vec<Rope>,
    /// Number of values of each recurrent state of a sequence.
    pub(crate) states: Vec<usize>,
}

/// Largest accepted number of values of a recurrent state: 1 GiB of f32.
const MAX_STATE_VALUES: usize = 1 << 28;

impl<'a> Weights<'a> {
    /// Weights of a file.
    pub fn new(view: &'a View) -> Self {
        Self::after(view, Vec::new(), Vec::new())
    }

    /// Weights of a file after the tensors and rotary tables of another one, for graphs that use
    /// both.
    pub(crate) fn after(view: &'a View, tensors: Vec<Weight>, ropes: Vec<Rope>) -> Self {
        Self { view, first: tensors.len(), tensors, slices: Vec::new(), ropes, states: Vec::new() }
    }

    /// Whether the file has a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.view.tensor(name).is_some()
    }

    /// Rows of a matrix in the file.
    pub fn rows(&self, name: &str) -> Option<usize> {
        self.view.tensor(name).and_then(|tensor| tensor.shape.get(1).map(|&rows| rows as usize))
    }

    /// Rows of a mandatory matrix.
    pub fn rows_of(&self, name: &str) -> Result<usize, ModelError> {
        self.rows(name).ok_or_else(|| ModelError::MissingTensor { name: name.into() })
    }

    /// Last dimension of a tensor in the file.
    pub fn outer_size(&self, name: &str) -> Option<usize> {
        self.view.tensor(name).and_then(|tensor| tensor.shape.last().map(|&size| size as usize))
    }

    /// Columns of a matrix in the file.
    pub fn columns(&self, name: &str) -> Option<usize> {
        self.view
            .tensor(name)
            .and_then(|tensor| tensor.shape.first().map(|&columns| columns as usize))
    }

    /// Optional tensor of this shape, fastest dimension first.
    pub fn opt(&mut self, name: &str, shape: &[usize]) -> Result<Option<WeightId>, ModelError> {
        let Some(tensor) = self.checked(name, shape)? else { return Ok(None) };
        if let Some(at) = self.tensors[self.first..].iter().position(|t| t.name == name) {
            return Ok(Some(WeightId((self.first + at) as u32)));
        }
        let data = Arc::new(MappedBytes(tensor.shared()));
        Ok(Some(self.add(Weight { name: name.into(), ty: tensor.ty, shape: shape.to_vec(), data })))
    }

    /// Matrix `[input, output]` of a tensor with another shape, such as a convolution, and its
    /// optional bias.
    pub fn reshaped_linear(
        &mut self,
        [weight, bias]: [&str; 2],
        stored: &[usize],
        shape: [usize; 2],
    ) -> Result<Linear, ModelError> {
        let missing = || ModelError::MissingTensor { name: weight.into() };
        let tensor = self.checked(weight, stored)?.ok_or_else(missing)?;
        let data = Arc::new(MappedBytes(tensor.shared()));
        let w = Weight { name: weight.into(), ty: tensor.ty, shape: shape.to_vec(), data };
        let (w, bias) = (self.add(w), self.opt(bias, &shape[1..])?);
        Ok(Linear { w, scale: 1.0, bias, out: shape[1] })
    }

    /// Constant tensor of this shape, which is not in the file.
    pub fn constant(&mut self, name: &str, shape: &[usize], numbers: &[f32]) -> WeightId {
        assert_eq!(shape.iter().product::<usize>(), numbers.len());
        let data: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.add(Weight {
            name: name.into(),
            ty: TensorType::F32,
            shape: shape.to_vec(),
            data: Arc::new(data),
        })
    }

    /// Constant list of indices, which is not in the file.
    pub fn list(&mut self, name: &str, entries: &[u32]) -> WeightId {
        let data: Vec<u8> = entries.iter().flat_map(|x| x.to_le_bytes()).collect();
        let (ty, shape) = (TensorType::I32, vec![entries.len()]);
        self.add(Weight { name: name.into(), ty, shape, data: Arc::new(data) })
    }

    fn add(&mut self, weight: Weight) -> WeightId {
        self.tensors.push(weight);
        WeightId(self.tensors.len() as u32 - 1)
    }

    /// Optional tensor, checked for shape and for a type that holds weights.
    fn checked(&self, name: &str, shape: &[usize]) -> Result<Option<TensorView<'a>>, ModelError> {
        let Some(tensor) = self.view.tensor(name) else { return Ok(None) };
        let found: Vec<usize> = tensor.shape.iter().map(|&n| n as usize).collect();
        let trimmed = &found[..found.iter().rposition(|&n| n != 1).map_or(0, |last| last + 1)];
        let expected = &shape[..shape.iter().rposition(|&n| n != 1).map_or(0, |last| last + 1)];
        if trimmed != expected {
            return Err(ModelError::TensorShape {
                name: name.into(),
                found,
                expected: shape.to_vec(),
            });
        }
        if found.contains(&0) {
            let what = format!("tensor `{name}` of shape {found:?}");
            return Err(ModelError::Unsupported { what, reason: "it has no elements" });
        }
        if puna_quant::dequantizer(tensor.ty).is_none() {
            return Err(ModelError::TensorType { name: name.into(), ty: tensor.ty });
        }
        Ok(Some(tensor))
    }

    /// Mandatory tensor of this shape.
    pub fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<WeightId, ModelError> {
        self.opt(name, shape)?.ok_or_else(|| ModelError::MissingTensor { name: name.into() })
    }

    /// Checks that the key of a tensor's width is present and positive.
    pub fn require_width(&self, key: &str, width: usize, name: &str) -> Result<(), ModelError> {
        if width > 0 {
            return Ok(());
        }
        let key = format!("{}.{key}", self.view.metadata().architecture()?);
        let value = format!("absent or 0, and the file has `{name}`");
        Err(ModelError::KeyValue { key, value, reason: "it must have the width of this tensor" })
    }

    /// Matrices per head, `NAME [input, output, heads]`; their products copy `passthrough` further
    /// columns of each head.
    pub fn per_head(
        &mut self,
        name: &str,
        shape: &[usize; 3],
        passthrough: usize,
    ) -> Result<WeightId, ModelError> {
        let scale = name.replace(".weight", ".scale");
        if self.has(&scale) {
            let reason = "convert these tensors to a format without it";
            return Err(ModelError::Unsupported { what: format!("`{scale}`"), reason });
        }
        let weight = self.tensor(name, shape)?;
        self.record_slice(name, weight, shape[1], passthrough);
        Ok(weight)
    }

    /// [`Self::per_head`], also from a single matrix `[input, output · heads]`.
    pub fn per_head_or_stacked(
        &mut self,
        name: &str,
        shape: &[usize; 3],
    ) -> Result<WeightId, ModelError> {
        let &[input, output, heads] = shape;
        if self.rows(name).is_none_or(|rows| rows == output) {
            return self.per_head(name, shape, 0);
        }
        let missing = || ModelError::MissingTensor { name: name.into() };
        let tensor = self.checked(name, &[input, output * heads])?.ok_or_else(missing)?;
        let data = Arc::new(MappedBytes(tensor.shared()));
        let weight =
            self.add(Weight { name: name.into(), ty: tensor.ty, shape: shape.to_vec(), data });
        self.record_slice(name, weight, output, 0);
        Ok(weight)
    }

    /// Records that a weight is a whole tensor with matrices of `rows` rows.
    fn record_slice(&mut self, of: &str, weight: WeightId, rows: usize, passthrough: usize) {
        if self.slices.iter().any(|slice| slice.weight == weight) {
            return;
        }
        let of = of.to_owned();
        self.slices.push(WeightSlice {
            of,
            weight,
            first: 0,
            rows,
            each: rows,
            is_transposed: false,
            passthrough,
        });
    }

    /// Splits a tensor of shape `stack` along its last dimension.
    pub fn split_stack(
        &mut self,
        name: &str,
        stack: &[usize],
    ) -> Result<Vec<WeightId>, ModelError> {
        let missing = || ModelError::MissingTensor { name: name.into() };
        let tensor = self.checked(name, stack)?.ok_or_else(missing)?;
        let Some((&parts, shape)) = stack.split_last() else { return Ok(Vec::new()) };
        let all = tensor.shared();
        let each = all.len() / parts;
        let part = |part: usize| {
            let data =
                Arc::new(MappedBytes(all.slice(part * each, (part + 1) * each).into_aligned()));
            let name = format!("{name}[{part}]");
            self.add(Weight { name, ty: tensor.ty, shape: shape.to_vec(), data })
        };
        Ok((0..parts).map(part).collect())
    }

    /// Gate and up halves, `[input, output, experts]` each, if the view presents two tensors of the
    /// file as this fused tensor.
    pub fn halves(
        &mut self,
        name: &str,
        shape: [usize; 3],
    ) -> Result<Option<[WeightId; 2]>, ModelError> {
        let both = [shape[0], 2 * shape[1], shape[2]];
        let Some(halves) =
            self.checked(name, &both)?.and_then(|tensor| tensor.interleaved_sources())
        else {
            return Ok(None);
        };
        let halves = halves.map(|half| {
            let data = Arc::new(MappedBytes(self.view.gguf().shared(half)));
            self.add(Weight {
                name: half.name.to_string(),
                ty: half.ty,
                shape: shape.to_vec(),
                data,
            })
        });
        let (rows, each) = (shape[1], both[1]);
        for (weight, first) in halves.into_iter().zip([0, rows]) {
            let of = name.to_owned();
            self.slices.push(WeightSlice {
                of,
                weight,
                first,
                rows,
                each,
                is_transposed: false,
                passthrough: 0,
            });
        }
        Ok(Some(halves))
    }

    /// Tensor `name` derived from the tensor `source`; `make` gets the data and type of the source.
    pub fn derive(
        &mut self,
        name: &str,
        shape: &[usize],
        (source, source_shape): (&str, &[usize]),
        make: impl FnOnce(SharedBytes, TensorType) -> (TensorType, Arc<dyn Bytes>),
    ) -> Result<WeightId, ModelError> {
        let missing = || ModelError::MissingTensor { name: source.into() };
        let tensor = self.checked(source, source_shape)?.ok_or_else(missing)?;
        let (ty, data) = make(tensor.shared(), tensor.ty);
        Ok(self.add(Weight { name: name.into(), ty, shape: shape.to_vec(), data }))
    }

    /// Optional matrix `NAME.weight [input, output]` with an optional `NAME.bias`.
    pub fn opt_linear(
        &mut self,
        name: &str,
        input: usize,
        output: usize,
    ) -> Result<Option<Linear>, ModelError> {
        let Some(w) = self.opt(&format!("{name}.weight"), &[input, output])? else {
            return Ok(None);
        };
        let bias = self.opt(&format!("{name}.bias"), &[output])?;
        let scale = self.numbers(&format!("{name}.scale"), 1)?.map_or(1.0, |s| s[0]);
        Ok(Some(Linear { w, scale, bias, out: output }))
    }

    /// Mandatory matrix `NAME.weight [input, output]` with an optional `NAME.bias`.
    pub fn linear(
        &mut self,
        name: &str,
        input: usize,
        output: usize,
    ) -> Result<Linear, ModelError> {
        let missing = || ModelError::MissingTensor { name: format!("{name}.weight") };
        self.opt_linear(name, input, output)?.ok_or_else(missing)
    }

    /// Mandatory norm `NAME.weight [dim]` with an optional `NAME.bias`.
    pub fn norm(&mut self, name: &str, dim: usize, eps: f32) -> Result<Norm, ModelError> {
        let missing = || ModelError::MissingTensor { name: format!("{name}.weight") };
        self.opt_norm(name, &[dim], eps)?.ok_or_else(missing)
    }

    /// Optional norm over the first dimension of `shape`: `NAME.weight` with an optional
    /// `NAME.bias`.
    pub fn opt_norm(
        &mut self,
        name: &str,
        shape: &[usize],
        eps: f32,
    ) -> Result<Option<Norm>, ModelError> {
        let Some(w) = self.opt(&format!("{name}.weight"), shape)? else { return Ok(None) };
        let b = self.opt(&format!("{name}.bias"), shape)?;
        Ok(Some(Norm { w: Some(w), b, dim: shape[0], eps }))
    }

    /// Output matrix: `output.weight`, or else the token embeddings.
    pub fn output_head(
        &mut self,
        table: WeightId,
        n_embd: usize,
        n_vocab: usize,
    ) -> Result<Linear, ModelError> {
        Ok(match self.opt_linear("output", n_embd, n_vocab)? {
            Some(head) => head,
            None => Linear { w: table, scale: 1.0, bias: None, out: n_vocab },
        })
    }

    /// Tensor of 32-bit integers below `end`, of this shape.
    pub fn indices(
        &mut self,
        name: &str,
        shape: &[usize],
        end: usize,
    ) -> Result<WeightId, ModelError> {
        let missing = || ModelError::MissingTensor { name: name.into() };
        let tensor = self.view.tensor(name).ok_or_else(missing)?;
        let found: Vec<usize> = tensor.shape.iter().map(|&n| n as usize).collect();
        if found != shape {
            return Err(ModelError::TensorShape {
                name: name.into(),
                found,
                expected: shape.to_vec(),
            });
        }
        if tensor.ty != TensorType::I32 {
            return Err(ModelError::TensorType { name: name.into(), ty: tensor.ty });
        }
        let bytes = tensor.bytes();
        let mut indices =
            bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        if let Some(other) = indices.find(|&i| usize::try_from(i).map_or(true, |i| i >= end)) {
            let what = format!("entry {other} of `{name}`");
            return Err(ModelError::Unsupported { what, reason: "it is out of range" });
        }
        let data = Arc::new(MappedBytes(tensor.shared()));
        Ok(self.add(Weight { name: name.into(), ty: tensor.ty, shape: shape.to_vec(), data }))
    }

    /// Optional list of the tokens of a smaller draft vocabulary: 64-bit integers below `end`.
    pub fn draft_tokens(&self, name: &str, end: usize) -> Result<Option<Vec<u32>>, ModelError> {
        let Some(tensor) = self.view.tensor(name) else { return Ok(None) };
        if tensor.ty != TensorType::I64 {
            let what = format!("`{name}` of type {}", tensor.ty);
            return Err(ModelError::Unsupported { what, reason: "its type must be I64" });
        }
        if tensor.shape.len() != 1 || tensor.shape[0] == 0 || tensor.shape[0] > end as u64 {
            let what = format!("`{name}` of shape {:?}", tensor.shape);
            let reason = "it must be a list of at most as many tokens as the vocabulary has";
            return Err(ModelError::Unsupported { what, reason });
        }
        let number = |bytes: &[u8]| {
            let number = u64::from_le_bytes(bytes.try_into().unwrap_or([u8::MAX; 8]));
            u32::try_from(number).ok().filter(|&token| (token as usize) < end).ok_or(number)
        };
        let tokens = tensor.bytes().chunks_exact(8).map(number).collect::<Result<_, _>>();
        tokens.map(Some).map_err(|number| ModelError::Unsupported {
            what: format!("entry {} of `{name}`", number.cast_signed()),
            reason: "it is out of range",
        })
    }

    /// Optional output matrix of a draft model with the vocabulary `tokens`, or with the whole
    /// vocabulary.
    ///
    /// # Errors
    /// `tokens` is present without the matrix, or the matrix has another number of rows.
    pub fn draft_head(
        &mut self,
        tokens: Option<&[u32]>,
        n_embd: usize,
        n_vocab: usize,
    ) -> Result<Option<Linear>, ModelError> {
        let entries = tokens.map_or(n_vocab, <[u32]>::len);
        match (tokens, self.rows("output.weight")) {
            (Some(_), None) => Err(ModelError::MissingTensor { name: "output.weight".into() }),
            (Some(_), Some(rows)) if rows != entries => {
                let what =
                    format!("`d2t` with {entries} tokens and `output.weight` with {rows} rows");
                Err(ModelError::Unsupported { what, reason: "they must have the same length" })
            }
            _ => self.opt_linear("output", n_embd, entries),
        }
    }

    /// Values of an optional small tensor, for constants in the graph.
    pub fn numbers(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(tensor) = self.view.tensor(name) else { return Ok(None) };
        let found: Vec<usize> = tensor.shape.iter().map(|&n| n as usize).collect();
        if found.iter().product::<usize>() != len {
            return Err(ModelError::TensorShape { name: name.into(), found, expected: vec![len] });
        }
        let mut numbers = vec![0.0; len];
        let done = puna_quant::dequantize(tensor.ty, &tensor.bytes(), &mut numbers);
        done.map_err(|_| ModelError::TensorType { name: name.into(), ty: tensor.ty })?;
        Ok(Some(numbers))
    }

    /// Values of a mandatory small tensor.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        self.checked(name, &[len])?;
        self.numbers(name, len)?.ok_or_else(|| ModelError::MissingTensor { name: name.into() })
    }

    /// Optional divisors of the rotary frequencies.
    pub fn rope_factors(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>, ModelError> {
        let factors = self.numbers(name, len)?;
        match factors.iter().flatten().find(|&&factor| factor.is_nan() || factor == 0.0) {
            None => Ok(factors),
            Some(factor) => {
                let what = format!("factor {factor} of `{name}`");
                Err(ModelError::Unsupported { what, reason: "it must be a number other than 0" })
            }
        }
    }

    /// Rotary table; the optional tensor `rope_freqs.weight` divides the frequencies.
    pub fn factored_rope(&mut self, keys: &RopeKeys, kind: RopeKind) -> Result<RopeId, ModelError> {
        let factors = self.rope_factors("rope_freqs.weight", keys.dims / 2)?;
        Ok(self.rope(keys.table(kind, factors.as_deref())))
    }

    /// LongRoPE table: contexts longer than the original one use the long factors, others the short
    /// ones.
    pub fn long_rope(
        &mut self,
        keys: &RopeKeys,
        kind: RopeKind,
        n_ctx: usize,
    ) -> Result<RopeId, ModelError> {
        let which = if n_ctx > keys.original { "long" } else { "short" };
        let factors = self.rope_factors(&format!("rope_factors_{which}.weight"), keys.dims / 2)?;
        Ok(self.rope(keys.table(kind, factors.as_deref())))
    }

    /// Adds a recurrent state of `rows` × `cols` values; `name` is the tensor that has this shape.
    pub fn state(&mut self, name: &str, rows: usize, cols: usize) -> Result<usize, ModelError> {
        let values = rows.checked_mul(cols).filter(|&values| values <= MAX_STATE_VALUES);
        let Some(values) = values else {
            let what = format!("a recurrent state of {rows} × {cols} values (`{name}`)");
            return Err(ModelError::Unsupported { what, reason: "it is too large" });
        };
        self.states.push(values);
        Ok(self.states.len() - 1)
    }

    /// Adds a rotary table, or returns the id of an equal one.
    pub fn rope(&mut self, rope: Rope) -> RopeId {
        let at = self.ropes.iter().position(|known| *known == rope).unwrap_or_else(|| {
            self.ropes.push(rope);
            self.ropes.len() - 1
        });
        RopeId(at as u32)
    }
}
