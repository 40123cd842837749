//! Storage types and layers of the KV cache.

use std::fmt;
use std::str::FromStr;

use crate::mask::Mask;

/// Storage type of cached keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KvType {
    /// 4 bytes per value.
    F32,
    /// 2 bytes per value.
    #[default]
    F16,
    /// 2 bytes per value.
    Bf16,
    /// Blocks of 32 values in 34 bytes.
    Q8_0,
    /// Blocks of 32 values in 18 bytes.
    Q4_0,
}

impl KvType {
    /// Every type.
    pub const ALL: [KvType; 5] =
        [KvType::F32, KvType::F16, KvType::Bf16, KvType::Q8_0, KvType::Q4_0];

    /// The name on the command line and in `OLLAMA_KV_CACHE_TYPE`.
    pub fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Bf16 => "bf16",
            KvType::Q8_0 => "q8_0",
            KvType::Q4_0 => "q4_0",
        }
    }

    /// Values per block with one scale; the dimension of a head must be a multiple.
    pub fn block_values(self) -> usize {
        match self {
            KvType::Q8_0 | KvType::Q4_0 => 32,
            _ => 1,
        }
    }

    /// Bytes of a row of `values`, rounded up to whole blocks.
    pub fn row_bytes(self, values: usize) -> usize {
        match self {
            KvType::F32 => values * 4,
            KvType::F16 | KvType::Bf16 => values * 2,
            KvType::Q8_0 => values.div_ceil(32) * 34,
            KvType::Q4_0 => values.div_ceil(32) * 18,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error: no storage type has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown cache type `{0}`: use f32, f16, bf16, q8_0 or q4_0")]
pub struct UnknownKvType(pub String);

impl FromStr for KvType {
    type Err = UnknownKvType;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let known = KvType::ALL.into_iter().find(|ty| ty.name().eq_ignore_ascii_case(s));
        known.ok_or_else(|| UnknownKvType(s.to_owned()))
    }
}

/// Keys and values of one layer in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLayer {
    /// Number of key and value heads.
    pub kv_heads: usize,
    /// Dimensions of a key head.
    pub key_dim: usize,
    /// Dimensions of a value head.
    pub value_dim: usize,
    /// Whether a value is the first dimensions of its key and not stored separately.
    pub values_in_keys: bool,
    /// Mask of the attention that reads them.
    pub mask: Mask,
}

impl CacheLayer {
    /// Whether the layer has window pages, which are released once no token sees them.
    pub fn has_window(&self) -> bool {
        self.mask.reach().is_some()
    }

    /// Rows per page of `page_tokens` tokens.
    pub fn page_rows(&self, page_tokens: usize) -> usize {
        page_tokens.div_ceil(self.mask.pooled())
    }

    /// Page number and row in the page of the row that is stored at `position`; `None` if no row is
    /// stored there.
    pub fn cache_slot(&self, position: usize, page_tokens: usize) -> Option<(usize, usize)> {
        let each = self.mask.pooled();
        let at = position % page_tokens;
        (position + 1).is_multiple_of(each).then_some((position / page_tokens, at / each))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pooled_row_has_its_own_slot_in_the_page_of_its_last_token() {
        for (each, page) in [(1, 64), (4, 64), (128, 64), (3, 4), (7, 5), (64, 64)] {
            let mask = Mask::Pooled(each);
            let layer =
                CacheLayer { kv_heads: 1, key_dim: 1, value_dim: 1, values_in_keys: true, mask };
            let slots: Vec<_> =
                (0..1000).filter_map(|position| layer.cache_slot(position, page)).collect();
            assert_eq!(slots.len(), 1000 / each as usize);
            assert!(slots.is_sorted() && slots.windows(2).all(|two| two[0] != two[1]), "{slots:?}");
            assert!(
                slots.iter().all(|&(_, slot)| slot < layer.page_rows(page)),
                "{each} of {page}"
            );
        }
        let layer = CacheLayer {
            kv_heads: 1,
            key_dim: 1,
            value_dim: 1,
            values_in_keys: true,
            mask: Mask::Causal,
        };
        assert_eq!((layer.cache_slot(70, 64), layer.page_rows(64)), (Some((1, 6)), 64));
    }
}
