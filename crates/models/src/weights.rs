//! Weights by name: every tensor is asked for with the shape that the keys imply.

use std::sync::Arc;

use puna_gguf::{SharedBytes, TensorView, View};
use puna_graph::{Bytes, Linear, Norm, Rope, RopeId, RopeKind, Weight, WeightId};
use puna_quant::TensorType;

use crate::error::ModelError;
use crate::rope::RopeKeys;

/// A window of the file's mapping.
pub(crate) struct Mapped(pub SharedBytes);

impl Bytes for Mapped {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Rows of a tensor that a weight is made of, for what changes the tensor: `rows` from `first` on of every `each`, one matrix after the
/// other.
#[derive(Debug, Clone)]
pub(crate) struct Cut {
    /// The tensor.
    pub of: String,
    /// What is made of it.
    pub weight: WeightId,
    pub first: usize,
    pub rows: usize,
    pub each: usize,
    /// Whether rows and columns of each matrix have changed places.
    pub is_turned: bool,
    /// Columns of a head behind those that are multiplied, which its product hands on.
    pub rest: usize,
}

/// Collects the tensors and rotary tables that an architecture uses.
pub struct Weights<'a> {
    view: &'a View,
    /// The file's first one: those before it are another file's, whose names are its own.
    first: usize,
    pub(crate) tensors: Vec<Weight>,
    /// Of what several of them are made.
    pub(crate) cuts: Vec<Cut>,
    pub(crate) ropes: Vec<Rope>,
    /// Values of each recurrent state of a sequence.
    pub(crate) states: Vec<usize>,
}

/// Values of a recurrent state at most: 1 GiB.
const STATE_VALUES: usize = 1 << 28;

impl<'a> Weights<'a> {
    /// Weights of a file.
    pub fn new(view: &'a View) -> Self {
        Self::behind(view, Vec::new(), Vec::new())
    }

    /// The same behind the tensors and rotary tables of another file, for graphs that use both.
    pub(crate) fn behind(view: &'a View, tensors: Vec<Weight>, ropes: Vec<Rope>) -> Self {
        Self { view, first: tensors.len(), tensors, cuts: Vec::new(), ropes, states: Vec::new() }
    }

    /// Whether the file has a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.view.tensor(name).is_some()
    }

    /// Rows of a matrix of the file.
    pub fn rows(&self, name: &str) -> Option<usize> {
        self.view.tensor(name).and_then(|tensor| tensor.shape.get(1).map(|&rows| rows as usize))
    }

    /// Columns of a matrix of the file.
    pub fn columns(&self, name: &str) -> Option<usize> {
        self.view
            .tensor(name)
            .and_then(|tensor| tensor.shape.first().map(|&columns| columns as usize))
    }

    /// A tensor of this shape (fastest dimension first) that may be absent.
    pub fn opt(&mut self, name: &str, shape: &[usize]) -> Result<Option<WeightId>, ModelError> {
        let Some(tensor) = self.checked(name, shape)? else { return Ok(None) };
        if let Some(at) = self.tensors[self.first..].iter().position(|t| t.name == name) {
            return Ok(Some(WeightId((self.first + at) as u32)));
        }
        let data = Arc::new(Mapped(tensor.shared()));
        Ok(Some(self.add(Weight { name: name.into(), ty: tensor.ty, shape: shape.to_vec(), data })))
    }

    /// Numbers that the file does not hold, of this shape.
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

    /// A list that the file does not hold.
    pub fn list(&mut self, name: &str, entries: &[u32]) -> WeightId {
        let data: Vec<u8> = entries.iter().flat_map(|x| x.to_le_bytes()).collect();
        let (ty, shape) = (TensorType::I32, vec![entries.len()]);
        self.add(Weight { name: name.into(), ty, shape, data: Arc::new(data) })
    }

    fn add(&mut self, weight: Weight) -> WeightId {
        self.tensors.push(weight);
        WeightId(self.tensors.len() as u32 - 1)
    }

    /// A tensor of this shape and of a type that holds weights, which may be absent.
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

    /// A tensor of this shape.
    pub fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<WeightId, ModelError> {
        self.opt(name, shape)?.ok_or_else(|| ModelError::MissingTensor { name: name.into() })
    }

    /// Refuses that the key of a tensor's width is absent or zero.
    pub fn needs_width(&self, key: &str, width: usize, name: &str) -> Result<(), ModelError> {
        if width > 0 {
            return Ok(());
        }
        let key = format!("{}.{key}", self.view.metadata().architecture()?);
        let value = format!("absent or 0, and the file has `{name}`");
        Err(ModelError::KeyValue { key, value, reason: "its width is needed" })
    }

    /// Matrices of heads, `NAME [input, output, heads]`, whose products hand on `rest` columns of each head.
    pub fn of_heads(
        &mut self,
        name: &str,
        shape: &[usize; 3],
        rest: usize,
    ) -> Result<WeightId, ModelError> {
        let scale = name.replace(".weight", ".scale");
        if self.has(&scale) {
            let reason = "convert these tensors to a format without it";
            return Err(ModelError::Unsupported { what: format!("`{scale}`"), reason });
        }
        let weight = self.tensor(name, shape)?;
        self.cut(name, weight, shape[1], rest);
        Ok(weight)
    }

    /// The same where a file has all their rows in one matrix, `[input, output · heads]`.
    pub fn heads_in_rows(
        &mut self,
        name: &str,
        shape: &[usize; 3],
    ) -> Result<WeightId, ModelError> {
        let &[input, output, heads] = shape;
        if self.rows(name).is_none_or(|rows| rows == output) {
            return self.of_heads(name, shape, 0);
        }
        let missing = || ModelError::MissingTensor { name: name.into() };
        let tensor = self.checked(name, &[input, output * heads])?.ok_or_else(missing)?;
        let data = Arc::new(Mapped(tensor.shared()));
        let weight =
            self.add(Weight { name: name.into(), ty: tensor.ty, shape: shape.to_vec(), data });
        self.cut(name, weight, output, 0);
        Ok(weight)
    }

    /// Notes that a weight is all of a tensor, matrices of so many rows.
    fn cut(&mut self, of: &str, weight: WeightId, rows: usize, rest: usize) {
        if self.cuts.iter().any(|cut| cut.weight == weight) {
            return;
        }
        let of = of.to_owned();
        self.cuts.push(Cut { of, weight, first: 0, rows, each: rows, is_turned: false, rest });
    }

    /// The matrices, or rows, that a tensor of this shape is a stack of, each on its own.
    pub fn parts(&mut self, name: &str, stack: &[usize]) -> Result<Vec<WeightId>, ModelError> {
        let missing = || ModelError::MissingTensor { name: name.into() };
        let tensor = self.checked(name, stack)?.ok_or_else(missing)?;
        let Some((&parts, shape)) = stack.split_last() else { return Ok(Vec::new()) };
        let all = tensor.shared();
        let each = all.len() / parts;
        let part = |part: usize| {
            let data = Arc::new(Mapped(all.slice(part * each, (part + 1) * each).into_aligned()));
            let name = format!("{name}[{part}]");
            self.add(Weight { name, ty: tensor.ty, shape: shape.to_vec(), data })
        };
        Ok((0..parts).map(part).collect())
    }

    /// The halves of a tensor that is shown as made of them expert by expert, `[input, output, experts]` each, as they are in the file.
    pub fn halves(
        &mut self,
        name: &str,
        shape: [usize; 3],
    ) -> Result<Option<[WeightId; 2]>, ModelError> {
        let both = [shape[0], 2 * shape[1], shape[2]];
        let Some(halves) = self.checked(name, &both)?.and_then(|tensor| tensor.halves()) else {
            return Ok(None);
        };
        let halves = halves.map(|half| {
            let data = Arc::new(Mapped(self.view.gguf().shared(half)));
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
            self.cuts.push(Cut { of, weight, first, rows, each, is_turned: false, rest: 0 });
        }
        Ok(Some(halves))
    }

    /// A tensor that is made of one of the file, whose shape is given beside its name: `make` gets the data and its type.
    pub fn made(
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

    /// A matrix `NAME.weight [input, output]` with an optional `NAME.bias`, that may be absent.
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

    /// A matrix `NAME.weight [input, output]` with an optional `NAME.bias`.
    pub fn linear(
        &mut self,
        name: &str,
        input: usize,
        output: usize,
    ) -> Result<Linear, ModelError> {
        let missing = || ModelError::MissingTensor { name: format!("{name}.weight") };
        self.opt_linear(name, input, output)?.ok_or_else(missing)
    }

    /// A norm `NAME.weight [dim]` with an optional `NAME.bias`.
    pub fn norm(&mut self, name: &str, dim: usize, eps: f32) -> Result<Norm, ModelError> {
        let missing = || ModelError::MissingTensor { name: format!("{name}.weight") };
        self.opt_norm(name, &[dim], eps)?.ok_or_else(missing)
    }

    /// A norm over the first of these dimensions that may be absent: `NAME.weight` with an optional `NAME.bias`.
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

    /// The output matrix: `output.weight`, else the token table.
    pub fn head(
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

    /// A tensor of this shape of 32-bit integers below `end`.
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
            let what = format!("the entry {other} of `{name}`");
            return Err(ModelError::Unsupported {
                what,
                reason: "there is nothing with that number",
            });
        }
        let data = Arc::new(Mapped(tensor.shared()));
        Ok(self.add(Weight { name: name.into(), ty: tensor.ty, shape: shape.to_vec(), data }))
    }

    /// Tokens that the entries of a smaller vocabulary stand for, 64-bit integers below `end`, where the file has such a list.
    pub fn tokens(&self, name: &str, end: usize) -> Result<Option<Vec<u32>>, ModelError> {
        let Some(tensor) = self.view.tensor(name) else { return Ok(None) };
        if tensor.ty != TensorType::I64 {
            let what = format!("`{name}` of type {}", tensor.ty);
            return Err(ModelError::Unsupported {
                what,
                reason: "a list of tokens is of type I64",
            });
        }
        if tensor.shape.len() != 1 || tensor.shape[0] == 0 || tensor.shape[0] > end as u64 {
            let what = format!("`{name}` of shape {:?}", tensor.shape);
            let reason = "it must be a list of no more tokens than the vocabulary has";
            return Err(ModelError::Unsupported { what, reason });
        }
        let number = |bytes: &[u8]| {
            let number = u64::from_le_bytes(bytes.try_into().unwrap_or([u8::MAX; 8]));
            u32::try_from(number).ok().filter(|&token| (token as usize) < end).ok_or(number)
        };
        let tokens = tensor.bytes().chunks_exact(8).map(number).collect::<Result<_, _>>();
        tokens.map(Some).map_err(|number| ModelError::Unsupported {
            what: format!("the entry {} of `{name}`", number.cast_signed()),
            reason: "there is nothing with that number",
        })
    }

    /// The output matrix of a draft model with these tokens, or with all, if the file has one.
    ///
    /// # Errors
    /// There are tokens and no matrix, or one of another height.
    pub fn head_of(
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
                    format!("`d2t` with {entries} tokens beside `output.weight` with {rows} rows");
                Err(ModelError::Unsupported {
                    what,
                    reason: "each row stands for one of the tokens",
                })
            }
            _ => self.opt_linear("output", n_embd, entries),
        }
    }

    /// Numbers of a small tensor, for constants that are needed while the graph is built.
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

    /// The same that must be there.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        self.checked(name, &[len])?;
        self.numbers(name, len)?.ok_or_else(|| ModelError::MissingTensor { name: name.into() })
    }

    /// What frequencies of turning are divided by, where the file has such a tensor.
    pub fn rope_factors(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>, ModelError> {
        let factors = self.numbers(name, len)?;
        match factors.iter().flatten().find(|&&factor| factor.is_nan() || factor == 0.0) {
            None => Ok(factors),
            Some(factor) => {
                let what = format!("the factor {factor} of `{name}`");
                Err(ModelError::Unsupported { what, reason: "frequencies cannot be divided by it" })
            }
        }
    }

    /// The rotary table of these keys, with each frequency divided by its factor in `rope_freqs.weight` where the file has that.
    pub fn factored_rope(&mut self, keys: &RopeKeys, kind: RopeKind) -> Result<RopeId, ModelError> {
        let factors = self.rope_factors("rope_freqs.weight", keys.dims / 2)?;
        Ok(self.rope(keys.table(kind, factors.as_deref())))
    }

    /// The rotary table of these keys. Long contexts turn by other factors than short ones, where the file has them; the context that
    /// was asked for decides.
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

    /// Adds a recurrent state of so many rows and columns; `name` is the tensor whose shape says so.
    pub fn state(&mut self, name: &str, rows: usize, cols: usize) -> Result<usize, ModelError> {
        let values = rows.checked_mul(cols).filter(|&values| values <= STATE_VALUES);
        let Some(values) = values else {
            let what = format!("a recurrent state of {rows} × {cols} values, as `{name}` has it,");
            return Err(ModelError::Unsupported { what, reason: "it is larger than any model's" });
        };
        self.states.push(values);
        Ok(self.states.len() - 1)
    }

    /// Adds a rotary table, or finds the same one.
    pub fn rope(&mut self, rope: Rope) -> RopeId {
        let at = self.ropes.iter().position(|known| *known == rope).unwrap_or_else(|| {
            self.ropes.push(rope);
            self.ropes.len() - 1
        });
        RopeId(at as u32)
    }
}
