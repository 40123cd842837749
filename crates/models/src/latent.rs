//! Multi-head latent attention (MLA; DeepSeek-AI, "DeepSeek-V2", 2024, arXiv:2405.04434).
//!
//! The cache holds one compressed vector `c` of `kv_lora_rank` values per token, and `qk_rope_dim`
//! rotated key values that all heads share. Keys `W_UK c` and values `W_UV c` of the heads are
//! never computed: `W_UK` is absorbed into the query and `W_UV` into the result. So all query heads
//! attend to one KV head, and the first columns of its keys are the values.
//!
//! Tensors of a block: `attn_q` or `attn_q_a`, `attn_q_a_norm`, `attn_q_b`; `attn_kv_a_mqa`,
//! `attn_kv_a_norm`; `attn_k_b`, `attn_v_b`, or in older files both in `attn_kv_b`.

use std::sync::{Arc, OnceLock};

use puna_gguf::SharedBytes;
use puna_graph::*;
use puna_quant::TensorType;
use puna_quant::float::{f32_to_bf16, f32_to_f16};

use crate::decoder::{AnyNorm, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::weights::{WeightSlice, Weights};

/// Limit of all sizes, against hostile files.
const MAX_DIM: usize = 1 << 16;

/// Dimensions of latent attention, named as in DeepSeek's configuration.
#[derive(Debug, Clone, Copy)]
pub struct LatentSizes {
    /// Rank of the low-rank query projection; `None` if queries are projected directly.
    pub q_lora_rank: Option<usize>,
    /// Length of the compressed vector that the cache holds for keys and values.
    pub kv_lora_rank: usize,
    /// Dimensions of a query or key head without rotary embedding.
    pub qk_nope_dim: usize,
    /// Dimensions of a query or key head with rotary embedding, behind the others; all heads share
    /// these key dimensions.
    pub qk_rope_dim: usize,
    /// Dimensions of a value head.
    pub v_head_dim: usize,
}

impl LatentSizes {
    /// Reads the dimensions. Older files have no keys with the suffix `_mla` and give the
    /// dimensions of heads in the plain keys.
    pub fn read(keys: &Keys<'_>, hp: &Hparams, w: &Weights<'_>) -> Result<Self, ModelError> {
        let kv_lora_rank = keys.count("attention.kv_lora_rank")?;
        let key_dim = keys.count_or("attention.key_length_mla", hp.key_dim)?;
        let v_head_dim = keys.count_or("attention.value_length_mla", hp.value_dim)?;
        // Zero is valid (no rotary embedding), but the key must exist.
        let qk_rope_dim = match keys.opt_count("rope.dimension_count")? {
            Some(0) => 0,
            _ => keys.count("rope.dimension_count")?,
        };
        let q_lora_rank = match keys.opt_count("attention.q_lora_rank")?.unwrap_or(0) {
            0 if w.has("blk.0.attn_q_a.weight") => Some(keys.count("attention.q_lora_rank")?),
            rank => Some(rank).filter(|&rank| rank > 0),
        };
        let sizes = Self {
            q_lora_rank,
            kv_lora_rank,
            qk_nope_dim: key_dim.saturating_sub(qk_rope_dim),
            qk_rope_dim,
            v_head_dim,
        };
        sizes.checked(keys, "")
    }

    /// Reads the dimensions of sliding-window layers, from keys with the suffix `_swa`.
    pub fn read_local(self, keys: &Keys<'_>) -> Result<Self, ModelError> {
        let kv_lora_rank = keys.count("attention.kv_lora_rank_swa")?;
        let key_dim = keys.count("attention.key_length_mla_swa")?;
        let v_head_dim = keys.count("attention.value_length_mla_swa")?;
        let qk_nope_dim = key_dim.saturating_sub(self.qk_rope_dim);
        Self { kv_lora_rank, qk_nope_dim, v_head_dim, ..self }.checked(keys, "_swa")
    }

    /// Checks the dimensions; `end` is the suffix of keys, except that of the query rank.
    fn checked(self, keys: &Keys<'_>, end: &str) -> Result<Self, ModelError> {
        if self.qk_nope_dim == 0 {
            let (key, value) =
                (keys.name("rope.dimension_count"), format!("{} of a head", self.qk_rope_dim));
            return Err(ModelError::KeyValue {
                key,
                value,
                reason: "must be less than the size of a head",
            });
        }
        let sizes = [
            (format!("kv_lora_rank{end}"), self.kv_lora_rank),
            ("q_lora_rank".to_owned(), self.q_lora_rank.unwrap_or(0)),
            (format!("key_length_mla{end}"), self.key_dim()),
            (format!("value_length_mla{end}"), self.v_head_dim),
        ];
        if let Some((key, size)) = sizes.into_iter().find(|&(_, size)| size > MAX_DIM) {
            let (key, value) = (keys.name(&format!("attention.{key}")), size.to_string());
            return Err(ModelError::KeyValue { key, value, reason: "must be at most 65536" });
        }
        Ok(self)
    }

    /// Dimensions of a query or key head before absorption.
    pub fn key_dim(&self) -> usize {
        self.qk_nope_dim + self.qk_rope_dim
    }

    /// Attention of `heads` query heads to the cached vectors.
    pub fn attention(&self, heads: usize) -> AttentionSpec {
        let scale = 1.0 / (self.key_dim() as f32).sqrt();
        let plain = AttentionSpec::causal(
            heads,
            1,
            self.kv_lora_rank + self.qk_rope_dim,
            self.kv_lora_rank,
        );
        AttentionSpec { scale, values_in_keys: true, ..plain }
    }
}

/// Projections to queries and to the cached vector.
#[derive(Debug, Clone, Copy)]
pub struct Latent {
    sizes: LatentSizes,
    query: Query,
    down: Linear,
    norm: AnyNorm,
    /// Norm of the rotated key dimensions, if the file has it.
    key_norm: Option<AnyNorm>,
    /// `W_UK` of each head, absorbed into the query.
    key_up: PerHeadLinear,
    /// Rotary embedding of the last dimensions, if any.
    rope: Option<RopeId>,
}

#[derive(Debug, Clone, Copy)]
enum Query {
    Direct(Linear),
    LowRank(Linear, AnyNorm, Linear),
}

impl Latent {
    /// Loads the tensors of a block. Also returns `W_UV`, which the caller applies to the result of
    /// the attention.
    pub fn load(
        w: &mut Weights<'_>,
        block: &str,
        (n_embd, heads): (usize, usize),
        (sizes, norm, rope): (LatentSizes, NormKind, Option<RopeId>),
    ) -> Result<(Self, PerHeadLinear), ModelError> {
        let name = |part: &str| format!("{block}.attn_{part}");
        let queries = heads * sizes.key_dim();
        let query = match sizes.q_lora_rank {
            None => Query::Direct(w.linear(&name("q"), n_embd, queries)?),
            Some(rank) => Query::LowRank(
                w.linear(&name("q_a"), n_embd, rank)?,
                norm.load(w, &name("q_a_norm"), &[rank])?,
                w.linear(&name("q_b"), rank, queries)?,
            ),
        };
        let down = w.linear(&name("kv_a_mqa"), n_embd, sizes.kv_lora_rank + sizes.qk_rope_dim)?;
        let key_norm = norm.load_opt(w, &name("k_norm"), &[sizes.qk_rope_dim])?;
        let norm = norm.load(w, &name("kv_a_norm"), &[sizes.kv_lora_rank])?;
        let [key_up, value_up] = load_absorbed(w, block, heads, &sizes)?;
        Ok((Self { sizes, query, down, norm, key_norm, key_up, rope }, value_up))
    }

    /// Input of the last query projection: `x`, or the low-rank query.
    pub fn source(&self, g: &mut Graph, x: ValueId) -> ValueId {
        let Query::LowRank(down, norm, _) = &self.query else { return x };
        let low_rank = g.linear("q", down, x);
        norm.apply(g, "q_normed", low_rank)
    }

    /// Query, key and value of `x`; key and value are the same.
    pub fn project(&self, g: &mut Graph, x: ValueId) -> [ValueId; 3] {
        let source = self.source(g, x);
        self.project_from(g, x, source)
    }

    /// [`Self::project`] if [`Self::source`] is already computed.
    pub fn project_from(&self, g: &mut Graph, x: ValueId, source: ValueId) -> [ValueId; 3] {
        let LatentSizes { kv_lora_rank, qk_rope_dim, qk_nope_dim, .. } = self.sizes;
        let (Query::Direct(q) | Query::LowRank(_, _, q)) = &self.query;
        let q = g.linear("q", q, source);
        let kv = g.linear("kv_cmpr_pe", &self.down, x);
        let q = self.rope.map_or(q, |rope| {
            g.rope_from("q_pe", q, (qk_nope_dim + qk_rope_dim, qk_nope_dim), rope)
        });
        let q = g.per_head_linear("Qcur", &self.key_up, q);
        let vector = g.slice(kv, 0, kv_lora_rank);
        let vector = self.norm.apply(g, "kv_cmpr", vector);
        if qk_rope_dim == 0 {
            return [q, vector, vector];
        }
        let key = g.slice(kv, kv_lora_rank, qk_rope_dim);
        let key = self.key_norm.as_ref().map_or(key, |norm| norm.apply(g, "k_pe_normed", key));
        let key = self.rope.map_or(key, |rope| g.rope("k_pe", key, qk_rope_dim, rope));
        let k = g.concat("Kcur", vector, key);
        [q, k, k]
    }
}

/// Loads `W_UK` and `W_UV` (`attn_k_b` and `attn_v_b`).
fn load_absorbed(
    w: &mut Weights<'_>,
    block: &str,
    heads: usize,
    sizes: &LatentSizes,
) -> Result<[PerHeadLinear; 2], ModelError> {
    let LatentSizes { kv_lora_rank, qk_nope_dim, qk_rope_dim, v_head_dim, .. } = *sizes;
    let name = |part: &str| format!("{block}.attn_{part}.weight");
    let parts = [("k_b", Half::Keys), ("v_b", Half::Values)].map(|(part, half)| (name(part), half));
    let both = name("kv_b");
    let is_old = parts.iter().all(|(name, _)| !w.has(name)) && w.has(&both);
    let mut load = |(name, half): (String, Half)| {
        let (input, out) = half.shape(sizes);
        let (shape, is_transposed) = ([input, out, heads], half == Half::Keys);
        let passthrough = if is_transposed { qk_rope_dim } else { 0 };
        if !is_old {
            return Ok(PerHeadLinear {
                w: w.per_head(&name, &shape, passthrough)?,
                input,
                out,
                heads,
            });
        }
        let each = qk_nope_dim + v_head_dim;
        let weight =
            w.derive(&name, &shape, (&both, &[kv_lora_rank, heads * each]), |source, ty| {
                let bytes = OnceLock::new();
                (half.ty(ty), Arc::new(SplitHalf { source, ty, sizes: *sizes, heads, half, bytes }))
            })?;
        let (first, rows) =
            if is_transposed { (0, qk_nope_dim) } else { (qk_nope_dim, v_head_dim) };
        w.slices.push(WeightSlice {
            of: both.clone(),
            weight,
            first,
            rows,
            each,
            is_transposed,
            passthrough,
        });
        Ok::<_, ModelError>(PerHeadLinear { w: weight, input, out, heads })
    };
    let [keys, values] = parts;
    Ok([load(keys)?, load(values)?])
}

/// Half of `attn_kv_b`, which has for each head the rows of its keys, then the rows of its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Keys,
    Values,
}

impl Half {
    /// Columns and rows of a head's matrix.
    fn shape(self, sizes: &LatentSizes) -> (usize, usize) {
        match self {
            Self::Keys => (sizes.qk_nope_dim, sizes.kv_lora_rank),
            Self::Values => (sizes.kv_lora_rank, sizes.v_head_dim),
        }
    }

    /// Storage type of the half if the tensor has type `ty`. Keys are transposed, so blocks would
    /// need other scales.
    fn ty(self, ty: TensorType) -> TensorType {
        match (self, ty) {
            (Self::Values, ty) | (Self::Keys, ty @ (TensorType::F32 | TensorType::BF16)) => ty,
            (Self::Keys, _) => TensorType::F16,
        }
    }
}

/// Half of `attn_kv_b`, made at its first use: values are copied, keys are transposed.
struct SplitHalf {
    source: SharedBytes,
    ty: TensorType,
    sizes: LatentSizes,
    heads: usize,
    half: Half,
    bytes: OnceLock<SharedBytes>,
}

impl Bytes for SplitHalf {
    fn bytes(&self) -> &[u8] {
        self.bytes.get_or_init(|| SharedBytes::aligned(&self.make()))
    }

    fn size(&self) -> usize {
        let (columns, rows) = self.half.shape(&self.sizes);
        let row = self.half.ty(self.ty).row_bytes(columns).unwrap_or(0);
        row * rows * self.heads
    }
}

impl SplitHalf {
    fn make(&self) -> Vec<u8> {
        let LatentSizes { qk_nope_dim, v_head_dim, .. } = self.sizes;
        let each = qk_nope_dim + v_head_dim;
        let row = self.source.len() / (self.heads * each);
        let heads =
            self.source.chunks_exact(each * row).map(|head| head.split_at(qk_nope_dim * row));
        match self.half {
            Half::Values => heads.flat_map(|(_, values)| values).copied().collect(),
            Half::Keys => heads.flat_map(|(keys, _)| self.transposed(keys)).collect(),
        }
    }

    /// The keys of a head, transposed.
    fn transposed(&self, keys: &[u8]) -> Vec<u8> {
        let LatentSizes { kv_lora_rank, qk_nope_dim, .. } = self.sizes;
        let mut floats = vec![0.0; kv_lora_rank * qk_nope_dim];
        puna_quant::dequantize(self.ty, keys, &mut floats)
            .expect("the tensor's type and size were checked");
        let columns =
            (0..kv_lora_rank).flat_map(|column| floats[column..].iter().step_by(kv_lora_rank));
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
    fn values_of_a_fused_kv_tensor_are_copied_and_keys_are_transposed() {
        // Number of attention heads.
        const HEADS: usize = 3;
        let sizes = LatentSizes {
            q_lora_rank: None,
            kv_lora_rank: 64,
            qk_nope_dim: 5,
            qk_rope_dim: 2,
            v_head_dim: 4,
        };
        let each = sizes.qk_nope_dim + sizes.v_head_dim;
        let numbers: Vec<f32> =
            (0..HEADS * each * sizes.kv_lora_rank).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
        for ty in [TensorType::F32, TensorType::F16, TensorType::BF16, TensorType::Q8_0] {
            let mut source = vec![0; ty.row_bytes(numbers.len()).unwrap()];
            puna_quant::quantize(ty, &numbers, sizes.kv_lora_rank, None, &mut source).unwrap();
            let all = floats(ty, &source);
            let half = |half: Half| {
                let (source, bytes) = (SharedBytes::aligned(&source), OnceLock::new());
                let split = SplitHalf { source, ty, sizes, heads: HEADS, half, bytes };
                floats(half.ty(ty), split.bytes())
            };
            let (keys, values) = (half(Half::Keys), half(Half::Values));
            for (head, rows) in all.chunks_exact(each * sizes.kv_lora_rank).enumerate() {
                let (of_keys, of_values) = rows.split_at(sizes.qk_nope_dim * sizes.kv_lora_rank);
                assert_eq!(&values[head * of_values.len()..][..of_values.len()], of_values, "{ty}");
                for (i, &want) in of_keys.iter().enumerate() {
                    let (row, column) = (i / sizes.kv_lora_rank, i % sizes.kv_lora_rank);
                    let got = keys[(head * sizes.kv_lora_rank + column) * sizes.qk_nope_dim + row];
                    // F16 cannot hold the product of a block scale exactly.
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
