//! Multi-head latent attention (DeepSeek-AI, 2024): a token is cached as one short vector, from which keys and values of all heads
//! would come. They are never made: a head's query is turned to meet the vector itself, and what a head has read of the
//! vectors is turned into its values. So it is attention of all query heads to one key head whose values lie in its keys.

use std::sync::{Arc, OnceLock};

use puna_gguf::SharedBytes;
use puna_graph::*;
use puna_quant::TensorType;
use puna_quant::float::{f32_to_bf16, f32_to_f16};

use crate::decoder::{AnyNorm, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::weights::{Cut, Weights};

/// More features than any head or vector has, to bound what a file can ask for.
const MAX_DIM: usize = 1 << 16;

/// Sizes of latent attention.
#[derive(Debug, Clone, Copy)]
pub struct LatentForm {
    /// Features through which queries come, where they do not come from the stream at once.
    pub query_rank: Option<usize>,
    /// Features of the vector that stands for keys and values.
    pub rank: usize,
    /// Features of a query or key head that do not turn.
    pub still: usize,
    /// Features behind those that turn with the position; all heads have one key for them.
    pub turned: usize,
    /// Features of a value head.
    pub value_dim: usize,
}

impl LatentForm {
    /// Reads the keys. Files made before the vector was cached have no keys with `_mla` at their end, and say the heads' sizes
    /// in place of the cache's.
    pub fn read(keys: &Keys<'_>, hp: &Hparams, w: &Weights<'_>) -> Result<Self, ModelError> {
        let rank = keys.count("attention.kv_lora_rank")?;
        let key_dim = keys.count_or("attention.key_length_mla", hp.key_dim)?;
        let value_dim = keys.count_or("attention.value_length_mla", hp.value_dim)?;
        // None may be said to turn, but not nothing.
        let turned = match keys.opt_count("rope.dimension_count")? {
            Some(0) => 0,
            _ => keys.count("rope.dimension_count")?,
        };
        let query_rank = match keys.opt_count("attention.q_lora_rank")?.unwrap_or(0) {
            0 if w.has("blk.0.attn_q_a.weight") => Some(keys.count("attention.q_lora_rank")?),
            rank => Some(rank).filter(|&rank| rank > 0),
        };
        let form = Self { query_rank, rank, still: key_dim.saturating_sub(turned), turned, value_dim };
        form.checked(keys, "")
    }

    /// The same for layers with a window, of which files have sizes of their own.
    pub fn read_local(self, keys: &Keys<'_>) -> Result<Self, ModelError> {
        let rank = keys.count("attention.kv_lora_rank_swa")?;
        let key_dim = keys.count("attention.key_length_mla_swa")?;
        let value_dim = keys.count("attention.value_length_mla_swa")?;
        let still = key_dim.saturating_sub(self.turned);
        Self { rank, still, value_dim, ..self }.checked(keys, "_swa")
    }

    /// Refuses sizes that no head or vector has; keys of the others than the queries' end like this.
    fn checked(self, keys: &Keys<'_>, end: &str) -> Result<Self, ModelError> {
        if self.still == 0 {
            let (key, value) = (keys.name("rope.dimension_count"), format!("{} of a head", self.turned));
            return Err(ModelError::KeyValue { key, value, reason: "part of a head must not turn" });
        }
        let sizes = [
            (format!("kv_lora_rank{end}"), self.rank),
            ("q_lora_rank".to_owned(), self.query_rank.unwrap_or(0)),
            (format!("key_length_mla{end}"), self.key_dim()),
            (format!("value_length_mla{end}"), self.value_dim),
        ];
        if let Some((key, size)) = sizes.into_iter().find(|&(_, size)| size > MAX_DIM) {
            let (key, value) = (keys.name(&format!("attention.{key}")), size.to_string());
            return Err(ModelError::KeyValue { key, value, reason: "must be at most 65536" });
        }
        Ok(self)
    }

    /// Features of a query or key head before its still ones are turned to meet the vector.
    pub fn key_dim(&self) -> usize {
        self.still + self.turned
    }

    /// Attention of so many heads to the cached vectors.
    pub fn attention(&self, heads: usize) -> AttentionSpec {
        let scale = 1.0 / (self.key_dim() as f32).sqrt();
        let plain = AttentionSpec::causal(heads, 1, self.rank + self.turned, self.rank);
        AttentionSpec { scale, values_in_keys: true, ..plain }
    }
}

/// Makes queries, and the vector of a token.
#[derive(Debug, Clone, Copy)]
pub struct Latent {
    form: LatentForm,
    query: Query,
    down: Linear,
    norm: AnyNorm,
    /// Of the features that turn of the vector's, where files have it.
    key_norm: Option<AnyNorm>,
    /// From a head's still features to a query of vectors.
    key_up: HeadLinear,
    /// How the features behind the still ones turn, if they do.
    rope: Option<RopeId>,
}

#[derive(Debug, Clone, Copy)]
enum Query {
    Whole(Linear),
    Thin(Linear, AnyNorm, Linear),
}

impl Latent {
    /// Loads `attn_q` or `attn_q_a`, `attn_q_a_norm`, `attn_q_b`; `attn_kv_a_mqa`, `attn_kv_a_norm`, perhaps `attn_k_norm`; and
    /// `attn_k_b` and `attn_v_b`, or in older files both as `attn_kv_b`. Also returns the way from the vector to the values of each head.
    pub fn load(
        w: &mut Weights<'_>,
        block: &str,
        (n_embd, heads): (usize, usize),
        (form, norm, rope): (LatentForm, NormKind, Option<RopeId>),
    ) -> Result<(Self, HeadLinear), ModelError> {
        let name = |part: &str| format!("{block}.attn_{part}");
        let queries = heads * form.key_dim();
        let query = match form.query_rank {
            None => Query::Whole(w.linear(&name("q"), n_embd, queries)?),
            Some(rank) => Query::Thin(
                w.linear(&name("q_a"), n_embd, rank)?,
                norm.load(w, &name("q_a_norm"), &[rank])?,
                w.linear(&name("q_b"), rank, queries)?,
            ),
        };
        let down = w.linear(&name("kv_a_mqa"), n_embd, form.rank + form.turned)?;
        let key_norm = norm.load_opt(w, &name("k_norm"), &[form.turned])?;
        let norm = norm.load(w, &name("kv_a_norm"), &[form.rank])?;
        let [key_up, value_up] = ways_of_heads(w, block, heads, &form)?;
        Ok((Self { form, query, down, norm, key_norm, key_up, rope }, value_up))
    }

    /// What queries are made of: `x`, or a short vector.
    pub fn source(&self, g: &mut Graph, x: ValueId) -> ValueId {
        let Query::Thin(down, norm, _) = &self.query else { return x };
        let thin = g.linear("q", down, x);
        norm.apply(g, "q_normed", thin)
    }

    /// Query, key and value of `x`, the key holding the value.
    pub fn project(&self, g: &mut Graph, x: ValueId) -> [ValueId; 3] {
        let source = self.source(g, x);
        self.project_from(g, x, source)
    }

    /// The same where [`Self::source`] of it is known.
    pub fn project_from(&self, g: &mut Graph, x: ValueId, source: ValueId) -> [ValueId; 3] {
        let LatentForm { rank, turned, still, .. } = self.form;
        let (Query::Whole(q) | Query::Thin(_, _, q)) = &self.query;
        let q = g.linear("q", q, source);
        let kv = g.linear("kv_cmpr_pe", &self.down, x);
        let q = self.rope.map_or(q, |rope| g.rope_from("q_pe", q, (still + turned, still), rope));
        let q = g.linear_of_heads("Qcur", &self.key_up, q);
        let vector = g.slice(kv, 0, rank);
        let vector = self.norm.apply(g, "kv_cmpr", vector);
        if turned == 0 {
            return [q, vector, vector];
        }
        let key = g.slice(kv, rank, turned);
        let key = self.key_norm.as_ref().map_or(key, |norm| norm.apply(g, "k_pe_normed", key));
        let key = self.rope.map_or(key, |rope| g.rope("k_pe", key, turned, rope));
        let k = g.concat("Kcur", vector, key);
        [q, k, k]
    }
}

/// `attn_k_b` and `attn_v_b`.
fn ways_of_heads(
    w: &mut Weights<'_>,
    block: &str,
    heads: usize,
    form: &LatentForm,
) -> Result<[HeadLinear; 2], ModelError> {
    let LatentForm { rank, still, turned, value_dim, .. } = *form;
    let name = |part: &str| format!("{block}.attn_{part}.weight");
    let parts = [("k_b", Half::Keys), ("v_b", Half::Values)].map(|(part, half)| (name(part), half));
    let both = name("kv_b");
    let is_old = parts.iter().all(|(name, _)| !w.has(name)) && w.has(&both);
    let mut way = |(name, half): (String, Half)| {
        let (input, out) = half.shape(form);
        let (shape, is_turned) = ([input, out, heads], half == Half::Keys);
        let rest = if is_turned { turned } else { 0 };
        if !is_old {
            return Ok(HeadLinear { w: w.of_heads(&name, &shape, rest)?, input, out, heads });
        }
        let each = still + value_dim;
        let weight = w.made(&name, &shape, (&both, &[rank, heads * each]), |source, ty| {
            let made = OnceLock::new();
            (half.ty(ty), Arc::new(Made { source, ty, form: *form, heads, half, made }))
        })?;
        let (first, rows) = if is_turned { (0, still) } else { (still, value_dim) };
        w.cuts.push(Cut { of: both.clone(), weight, first, rows, each, is_turned, rest });
        Ok::<_, ModelError>(HeadLinear { w: weight, input, out, heads })
    };
    let [keys, values] = parts;
    Ok([way(keys)?, way(values)?])
}

/// What lies together in `attn_kv_b`, whose rows are for each head those of its keys, then those of its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Keys,
    Values,
}

impl Half {
    /// Columns and rows of a head's matrix.
    fn shape(self, form: &LatentForm) -> (usize, usize) {
        match self {
            Self::Keys => (form.still, form.rank),
            Self::Values => (form.rank, form.value_dim),
        }
    }

    /// How it is kept when it is made from a tensor of type `ty`: blocks of what is turned around would need other scales.
    fn ty(self, ty: TensorType) -> TensorType {
        match (self, ty) {
            (Self::Values, ty) | (Self::Keys, ty @ (TensorType::F32 | TensorType::BF16)) => ty,
            (Self::Keys, _) => TensorType::F16,
        }
    }
}

/// Half of `attn_kv_b`, made when it is first asked for: values as they are, keys with rows and columns exchanged.
struct Made {
    source: SharedBytes,
    ty: TensorType,
    form: LatentForm,
    heads: usize,
    half: Half,
    made: OnceLock<SharedBytes>,
}

impl Bytes for Made {
    fn bytes(&self) -> &[u8] {
        self.made.get_or_init(|| SharedBytes::aligned(&self.make()))
    }

    fn size(&self) -> usize {
        let (columns, rows) = self.half.shape(&self.form);
        let row = self.half.ty(self.ty).row_bytes(columns).unwrap_or(0);
        row * rows * self.heads
    }
}

impl Made {
    fn make(&self) -> Vec<u8> {
        let LatentForm { still, value_dim, .. } = self.form;
        let each = still + value_dim;
        let row = self.source.len() / (self.heads * each);
        let heads = self.source.chunks_exact(each * row).map(|head| head.split_at(still * row));
        match self.half {
            Half::Values => heads.flat_map(|(_, values)| values).copied().collect(),
            Half::Keys => heads.flat_map(|(keys, _)| self.turned(keys)).collect(),
        }
    }

    /// The rows of a head's keys as columns.
    fn turned(&self, keys: &[u8]) -> Vec<u8> {
        let LatentForm { rank, still, .. } = self.form;
        let mut floats = vec![0.0; rank * still];
        puna_quant::dequantize(self.ty, keys, &mut floats).expect("the tensor's type and size were checked");
        let columns = (0..rank).flat_map(|column| floats[column..].iter().step_by(rank));
        match self.half.ty(self.ty) {
            TensorType::F32 => columns.flat_map(|x| x.to_le_bytes()).collect(),
            TensorType::BF16 => columns.flat_map(|x| f32_to_bf16(*x).to_le_bytes()).collect(),
            _ => columns.flat_map(|x| f32_to_f16(*x).to_le_bytes()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_halves_of_an_older_tensor_are_values_as_they_are_and_keys_turned_around() {
        const HEADS: usize = 3;
        let form = LatentForm { query_rank: None, rank: 64, still: 5, turned: 2, value_dim: 4 };
        let each = form.still + form.value_dim;
        let numbers: Vec<f32> = (0..HEADS * each * form.rank).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
        for ty in [TensorType::F32, TensorType::F16, TensorType::BF16, TensorType::Q8_0] {
            let mut source = vec![0; ty.row_bytes(numbers.len()).unwrap()];
            puna_quant::quantize(ty, &numbers, form.rank, None, &mut source).unwrap();
            let all = floats(ty, &source);
            let half = |half: Half| {
                let (source, made) = (SharedBytes::aligned(&source), OnceLock::new());
                let made = Made { source, ty, form, heads: HEADS, half, made };
                floats(half.ty(ty), made.bytes())
            };
            let (keys, values) = (half(Half::Keys), half(Half::Values));
            for (head, rows) in all.chunks_exact(each * form.rank).enumerate() {
                let (of_keys, of_values) = rows.split_at(form.still * form.rank);
                assert_eq!(&values[head * of_values.len()..][..of_values.len()], of_values, "{ty}");
                for (i, &want) in of_keys.iter().enumerate() {
                    let (row, column) = (i / form.rank, i % form.rank);
                    let got = keys[(head * form.rank + column) * form.still + row];
                    // Scales of blocks are not of 16 bits.
                    let bound = if ty == TensorType::Q8_0 { want.abs() / 1000.0 } else { 0.0 };
                    assert!((got - want).abs() <= bound, "{ty}: {got}, not {want}");
                }
            }
        }
    }

    fn floats(ty: TensorType, bytes: &[u8]) -> Vec<f32> {
        let mut floats = vec![0.0; bytes.len() / ty.row_bytes(32).unwrap() * 32];
        puna_quant::dequantize(ty, bytes, &mut floats).unwrap();
        floats
    }
}
