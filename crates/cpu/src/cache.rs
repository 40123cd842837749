//! The paged cache: for each layer, pages of keys and of values; in a page, each head's rows follow each other.

use puna_graph::{BackendError, CacheSpec, KvType};

use crate::kernels::KvRows;
use crate::memory::Shared;

/// Keys and values of all layers.
pub struct Cache {
    spec: CacheSpec,
    layers: Vec<[Half; 2]>,
}

/// Keys or values of one layer.
struct Half {
    ty: KvType,
    heads: usize,
    dim: usize,
    row_bytes: usize,
    bytes: Shared<u8>,
}

/// Which half of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Keys.
    Key = 0,
    /// Values.
    Value = 1,
}

impl Cache {
    /// An empty cache. Its memory is reserved now and taken when pages are first written.
    pub fn new(spec: CacheSpec) -> Result<Self, BackendError> {
        let half = |ty: KvType, heads: usize, dim: usize| {
            let multiple = ty.block_values();
            if !dim.is_multiple_of(multiple) {
                return Err(BackendError::CacheType { ty, multiple, dim });
            }
            let row_bytes = ty.row_bytes(dim);
            let bytes = spec.pages.checked_mul(heads * spec.page_tokens * row_bytes);
            let bytes = bytes.ok_or(BackendError::OutOfMemory { what: "the cache", bytes: usize::MAX })?;
            Ok(Half { ty, heads, dim, row_bytes, bytes: Shared::named(bytes, "the cache")? })
        };
        let layers = spec
            .layers
            .iter()
            .map(|l| {
                Ok([
                    half(spec.key_type, l.kv_heads, l.key_dim)?,
                    half(spec.value_type, l.kv_heads, l.value_dim)?,
                ])
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { spec, layers })
    }

    /// Tokens a page.
    pub fn page_tokens(&self) -> usize {
        self.spec.page_tokens
    }

    /// The storage type of keys or values.
    pub fn ty(&self, kind: Kind) -> KvType {
        match kind {
            Kind::Key => self.spec.key_type,
            Kind::Value => self.spec.value_type,
        }
    }

    /// Rows `first .. first + rows` of a head in a page.
    ///
    /// # Safety
    /// Nobody writes them while the slice lives.
    pub unsafe fn rows(
        &self,
        layer: usize,
        kind: Kind,
        page: u32,
        head: usize,
        first: usize,
        rows: usize,
    ) -> KvRows<'_> {
        let half = &self.layers[layer][kind as usize];
        let start = self.offset(half, page, head, first);
        // SAFETY: passed on.
        let data = unsafe { half.bytes.slice(start, rows * half.row_bytes) };
        KvRows { ty: half.ty, rows, stride: half.row_bytes, dim: half.dim, data }
    }

    /// One row of a head in a page, for writing.
    ///
    /// # Safety
    /// Nobody else reads or writes it while the slice lives.
    #[allow(clippy::mut_from_ref)] // memory shared by the threads of a step
    pub unsafe fn row_mut(
        &self,
        layer: usize,
        kind: Kind,
        page: u32,
        head: usize,
        token: usize,
    ) -> &mut [u8] {
        let half = &self.layers[layer][kind as usize];
        let start = self.offset(half, page, head, token);
        // SAFETY: passed on.
        unsafe { half.bytes.slice_mut(start, half.row_bytes) }
    }

    fn offset(&self, half: &Half, page: u32, head: usize, token: usize) -> usize {
        assert!(head < half.heads && token < self.spec.page_tokens);
        ((page as usize * half.heads + head) * self.spec.page_tokens + token) * half.row_bytes
    }

    /// Copies the first `tokens` tokens of a page, all layers.
    pub fn copy_page(&mut self, from: u32, to: u32, tokens: usize) {
        let page_tokens = self.spec.page_tokens;
        for half in self.layers.iter_mut().flatten() {
            for head in 0..half.heads {
                let start = |page: u32| (page as usize * half.heads + head) * page_tokens * half.row_bytes;
                let (from, to, len) = (start(from), start(to), tokens * half.row_bytes);
                half.bytes.get_mut().copy_within(from..from + len, to);
            }
        }
    }
}
