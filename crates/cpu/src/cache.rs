//! Memory of the paged KV cache.
//!
//! ```text
//! page:  layer 0 ─ head 0: keys, values │ head 1: keys, values │ …
//!        layer 1 ─ …
//! ```
//!
//! So attention reads a layer's part of a page from the first byte to the last. Keys are stored in
//! columns ([`KvLayout::Columns`]), the layout of the attention kernel; keys that contain their
//! values (latent attention) are stored in rows.

use puna_graph::{BackendError, CacheSpec, KvType, Mask, Segment};
use puna_kernels::{KV_TILE, KvLayout, KvRows, Level};

use crate::memory::SharedBuffer;

/// Keys and values of all layers.
pub struct Cache {
    spec: CacheSpec,
    layers: Vec<[CachedTensor; 2]>,
    /// Pages of layers that keep all positions, and window pages.
    arenas: [PageArena; 2],
}

/// Pages, one after the other, so that the cache touches huge pages of the system one by one while
/// it fills.
struct PageArena {
    bytes: SharedBuffer<u8>,
    page_bytes: usize,
}

impl PageArena {
    fn new(pages: usize, page_bytes: usize) -> Result<Self, BackendError> {
        Ok(Self {
            bytes: SharedBuffer::zeroed(pages.saturating_mul(page_bytes), "the KV cache")?,
            page_bytes,
        })
    }

    fn copy(&mut self, from: u32, to: u32) {
        let (from, to) = (from as usize * self.page_bytes, to as usize * self.page_bytes);
        self.bytes.get_mut().copy_within(from..from + self.page_bytes, to);
    }
}

/// Keys or values of one layer.
struct CachedTensor {
    /// Index of its arena.
    arena: usize,
    ty: KvType,
    layout: KvLayout,
    heads: usize,
    dim: usize,
    row_bytes: usize,
    /// Rows per page.
    rows: usize,
    /// Offset of the first head in a page, in bytes.
    offset: usize,
    /// Bytes from one head to the next: its keys and values.
    head_bytes: usize,
}

/// Keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOrValue {
    /// Keys.
    Key = 0,
    /// Values.
    Value = 1,
}

impl Cache {
    /// Makes an empty cache. The system provides its memory at the first write of a page.
    ///
    /// # Errors
    /// If memory is exhausted, or a dimension is no multiple of the block of its storage type.
    pub fn new(spec: CacheSpec) -> Result<Self, BackendError> {
        let check = |ty: KvType, dim: usize| {
            let multiple = ty.block_values();
            if dim.is_multiple_of(multiple) {
                Ok(())
            } else {
                Err(BackendError::CacheType { ty, multiple, dim })
            }
        };
        let mut layers = Vec::with_capacity(spec.layers.len());
        let mut offsets = [0; 2];
        for l in &spec.layers {
            check(spec.key_type, l.key_dim)?;
            check(if l.values_in_keys { spec.key_type } else { spec.value_type }, l.value_dim)?;
            let row_bytes = spec.row_bytes(l);
            let rows = l.page_rows(spec.page_tokens);
            // Columns consist of whole KV tiles. Keys that contain values are read in rows.
            let columns = rows.is_multiple_of(KV_TILE) && !l.values_in_keys;
            let key_layout = if columns { KvLayout::Columns } else { KvLayout::Rows };
            let (keys, head_bytes) = (rows * row_bytes[0], rows * row_bytes.iter().sum::<usize>());
            let arena = usize::from(l.has_window());
            let offset = offsets[arena];
            let tensor = |ty, layout, dim, row_bytes, offset| CachedTensor {
                arena,
                ty,
                layout,
                heads: l.kv_heads,
                dim,
                row_bytes,
                rows,
                offset,
                head_bytes,
            };
            layers.push([
                tensor(spec.key_type, key_layout, l.key_dim, row_bytes[0], offset),
                tensor(spec.value_type, KvLayout::Rows, l.value_dim, row_bytes[1], offset + keys),
            ]);
            offsets[arena] += l.kv_heads * head_bytes;
        }
        let arenas = [
            PageArena::new(spec.pages, offsets[0])?,
            PageArena::new(spec.window_pages, offsets[1])?,
        ];
        Ok(Self { layers, arenas, spec })
    }

    /// Whether a layer has window pages.
    pub fn has_window(&self, layer: usize) -> bool {
        self.spec.layers[layer].has_window()
    }

    /// Whether some layers have window pages, and whether some keep all positions.
    pub fn page_kinds(&self) -> [bool; 2] {
        [true, false]
            .map(|window| self.spec.layers.iter().any(|layer| layer.has_window() == window))
    }

    /// # Panics
    /// If the layer does not keep all positions that attention with this mask sees.
    pub fn check_mask(&self, layer: usize, mask: Mask) {
        let kept = self.spec.layers[layer].mask;
        assert!(mask.is_within(kept), "layer {layer} keeps what {kept:?} sees, not {mask:?}");
    }

    /// Tokens per page.
    pub fn page_tokens(&self) -> usize {
        self.spec.page_tokens
    }

    /// Page number and row of the cache row that a layer writes at `position`; see
    /// [`puna_graph::CacheLayer::cache_slot`].
    pub fn cache_slot(&self, layer: usize, position: usize) -> Option<(usize, usize)> {
        self.spec.layers[layer].cache_slot(position, self.spec.page_tokens)
    }

    /// Page and row in the page of a sequence's cache row.
    pub fn cache_slot_of(&self, layer: usize, s: &Segment, row: usize) -> (u32, usize) {
        let last = (row + 1) * self.spec.layers[layer].mask.pooled() - 1;
        let (number, at) =
            self.cache_slot(layer, last).expect("a pooled row is written at its last position");
        (s.page(self.has_window(layer), number), at)
    }

    /// Bytes of one key and one value of a head of a layer.
    pub fn row_bytes(&self, layer: usize) -> usize {
        self.spec.row_bytes(&self.spec.layers[layer]).iter().sum()
    }

    /// Storage type of keys or values.
    pub fn ty(&self, kind: KeyOrValue) -> KvType {
        match kind {
            KeyOrValue::Key => self.spec.key_type,
            KeyOrValue::Value => self.spec.value_type,
        }
    }

    /// Positions `first .. first + rows` of a head in a page: at most one KV tile; `first` is a
    /// multiple of [`KV_TILE`] for columns.
    ///
    /// # Safety
    /// No thread writes them while the slice lives.
    pub unsafe fn rows(
        &self,
        layer: usize,
        kind: KeyOrValue,
        page: u32,
        head: usize,
        first: usize,
        rows: usize,
    ) -> KvRows<'_> {
        let tensor = &self.layers[layer][kind as usize];
        assert!(head < tensor.heads && first + rows <= tensor.rows);
        let start = self.head_start(tensor, page, head);
        let (start, stride, bytes) = match tensor.layout {
            KvLayout::Rows => {
                (start + first * tensor.row_bytes, tensor.row_bytes, rows * tensor.row_bytes)
            }
            KvLayout::Columns if tensor.ty.block_values() > 1 => {
                // One KV tile after the other.
                let tile = KV_TILE * tensor.row_bytes;
                (
                    start + first / KV_TILE * tile,
                    KV_TILE * tensor.ty.row_bytes(tensor.ty.block_values()),
                    tile,
                )
            }
            KvLayout::Columns => {
                let stride = tensor.ty.row_bytes(tensor.rows);
                (
                    start + tensor.ty.row_bytes(first),
                    stride,
                    (tensor.dim - 1) * stride + tensor.ty.row_bytes(KV_TILE),
                )
            }
        };
        // SAFETY: the caller keeps the same contract.
        let data = unsafe { self.arenas[tensor.arena].bytes.slice(start, bytes) };
        KvRows { ty: tensor.ty, layout: tensor.layout, rows, stride, dim: tensor.dim, data }
    }

    /// Positions of a head, at most one KV tile, each given by page and row. If they are
    /// consecutive in one page, the result borrows the cache; otherwise they are copied to `into`
    /// in the same layout.
    ///
    /// # Safety
    /// No thread writes them while the slice lives.
    pub unsafe fn gathered<'a>(
        &'a self,
        layer: usize,
        kind: KeyOrValue,
        head: usize,
        slots: &[(u32, usize)],
        into: &'a mut Vec<u8>,
    ) -> KvRows<'a> {
        let tensor = &self.layers[layer][kind as usize];
        let (page, first) = slots[0];
        let follow = slots.iter().enumerate().all(|(i, slot)| *slot == (page, first + i));
        // A read of columns starts at the first position of a KV tile.
        if follow && (tensor.layout == KvLayout::Rows || first.is_multiple_of(KV_TILE)) {
            // SAFETY: the caller keeps the same contract.
            return unsafe { self.rows(layer, kind, page, head, first, slots.len()) };
        }
        let (block, count) = match tensor.layout {
            KvLayout::Rows => (tensor.dim, 1),
            KvLayout::Columns => (tensor.ty.block_values(), tensor.dim / tensor.ty.block_values()),
        };
        let positions = if tensor.layout == KvLayout::Rows { slots.len() } else { KV_TILE };
        let bytes = tensor.ty.row_bytes(block);
        let stride = if tensor.layout == KvLayout::Rows { bytes } else { bytes * KV_TILE };
        into.resize(count * bytes * positions, 0);
        for (i, &(page, token)) in slots.iter().enumerate() {
            let from =
                if tensor.layout == KvLayout::Rows { token } else { token / KV_TILE * KV_TILE };
            let rows = token - from + 1;
            // SAFETY: the caller keeps the same contract.
            let source = unsafe { self.rows(layer, kind, page, head, from, rows) };
            copy_position(&source, token - from, into, (stride, i));
        }
        KvRows {
            ty: tensor.ty,
            layout: tensor.layout,
            rows: slots.len(),
            stride,
            dim: tensor.dim,
            data: into,
        }
    }

    /// Converts `values` to the storage type and writes them as one position of a head in a page.
    ///
    /// # Safety
    /// No other thread reads or writes it at the same time.
    #[allow(clippy::too_many_arguments)] // the address of a row has five coordinates
    pub unsafe fn store(
        &self,
        level: &Level,
        layer: usize,
        kind: KeyOrValue,
        page: u32,
        head: usize,
        token: usize,
        values: &[f32],
    ) {
        let tensor = &self.layers[layer][kind as usize];
        assert!(head < tensor.heads && token < tensor.rows && values.len() == tensor.dim);
        let start = self.head_start(tensor, page, head);
        let bytes = &self.arenas[tensor.arena].bytes;
        match tensor.layout {
            KvLayout::Rows => {
                // SAFETY: the caller keeps the same contract.
                let row =
                    unsafe { bytes.slice_mut(start + token * tensor.row_bytes, tensor.row_bytes) };
                (level.vector.store_kv)(tensor.ty, values, row);
            }
            KvLayout::Columns => {
                let block = tensor.ty.block_values();
                let block_bytes = tensor.ty.row_bytes(block);
                let mut row = [0u8; 4 * KV_TILE];
                for (i, values) in values.chunks(KV_TILE).enumerate() {
                    let row = &mut row[..tensor.ty.row_bytes(values.len())];
                    (level.vector.store_kv)(tensor.ty, values, row);
                    for (d, value) in row.chunks_exact(block_bytes).enumerate() {
                        let d = i * KV_TILE / block + d;
                        if block > 1 {
                            let at = start
                                + token / KV_TILE * KV_TILE * tensor.row_bytes
                                + d * KV_TILE * block_bytes;
                            // SAFETY: the caller keeps the same contract; other positions of the
                            // block are not touched.
                            unsafe { store_block(bytes, at, token % KV_TILE, value) };
                            continue;
                        }
                        let at = start + d * tensor.ty.row_bytes(tensor.rows) + token * block_bytes;
                        // SAFETY: the caller keeps the same contract; other positions of the column
                        // are not touched.
                        unsafe { bytes.slice_mut(at, block_bytes) }.copy_from_slice(value);
                    }
                }
            }
        }
    }

    /// Offset in bytes of the positions of a head in a page.
    fn head_start(&self, tensor: &CachedTensor, page: u32, head: usize) -> usize {
        page as usize * self.arenas[tensor.arena].page_bytes
            + tensor.offset
            + head * tensor.head_bytes
    }

    /// Copies page `from` to page `to`.
    pub fn copy_page(&mut self, from: u32, to: u32) {
        self.arenas[0].copy(from, to);
    }

    /// Copies window page `from` to window page `to`.
    pub fn copy_window_page(&mut self, from: u32, to: u32) {
        self.arenas[1].copy(from, to);
    }
}

/// Copies position `i` of a KV tile to position `to` of a KV tile with the same layout and another
/// stride.
fn copy_position(from: &KvRows<'_>, i: usize, into: &mut [u8], (stride, to): (usize, usize)) {
    let block = from.ty.block_values();
    let bytes = from.ty.row_bytes(block);
    match from.layout {
        KvLayout::Rows => {
            let row = from.ty.row_bytes(from.dim);
            into[to * stride..][..row].copy_from_slice(&from.data[i * from.stride..][..row]);
        }
        KvLayout::Columns => {
            for d in 0..from.dim / block {
                let (from, into) = (&from.data[d * from.stride..], &mut into[d * stride..]);
                // A block in columns has the scales of all positions, then their codes, byte by
                // byte.
                let (first, last) = if block > 1 { (2, bytes - 2) } else { (bytes, 0) };
                into[first * to..][..first].copy_from_slice(&from[first * i..][..first]);
                for j in 0..last {
                    into[(2 + j) * KV_TILE + to] = from[(2 + j) * KV_TILE + i];
                }
            }
        }
    }
}

/// Writes one position of a block in columns that begins at offset `at`.
///
/// # Safety
/// No other thread reads or writes it at the same time.
unsafe fn store_block(bytes: &SharedBuffer<u8>, at: usize, position: usize, block: &[u8]) {
    let (scale, codes) = block.split_at(2);
    // SAFETY: the caller keeps the same contract.
    unsafe { bytes.slice_mut(at + 2 * position, 2) }.copy_from_slice(scale);
    for (j, &code) in codes.iter().enumerate() {
        // SAFETY: the caller keeps the same contract.
        unsafe { bytes.slice_mut(at + (2 + j) * KV_TILE + position, 1) }.fill(code);
    }
}

#[cfg(test)]
mod tests {
    use puna_graph::{CacheLayer, Mask};

    use super::*;
    use puna_kernels::{level, load_position};

    /// Tokens per page.
    const PAGE: usize = 2 * KV_TILE;
    const HEADS: usize = 2;

    fn layer(
        kv_heads: usize,
        key_dim: usize,
        value_dim: usize,
        within: bool,
        mask: Mask,
    ) -> CacheLayer {
        CacheLayer { kv_heads, key_dim, value_dim, values_in_keys: within, mask }
    }

    fn value(
        layer: usize,
        kind: KeyOrValue,
        page: u32,
        head: usize,
        token: usize,
        d: usize,
    ) -> f32 {
        let place = ((layer * 2 + kind as usize) * 3 + page as usize) * HEADS + head;
        ((place * 7919 + token * 104_729 + d * 1_299_709) % 2003) as f32 / 1000.0 - 1.0
    }

    #[test]
    fn keys_and_values_are_read_back_as_stored() {
        let portable = level("portable").unwrap();
        for (key_type, value_type) in
            KvType::ALL.into_iter().flat_map(|k| KvType::ALL.map(|v| (k, v)))
        {
            let layers = vec![
                layer(HEADS, 96, 32, false, Mask::Causal),
                layer(1, 64, 128, false, Mask::Window(9)),
                layer(1, 64, 32, false, Mask::Causal),
                layer(HEADS, 96, 64, true, Mask::Chunk(7)),
                layer(1, 64, 64, true, Mask::Pooled(4)),
                layer(1, 96, 32, false, Mask::Pooled(3)),
            ];
            let spec = CacheSpec {
                layers: layers.clone(),
                key_type,
                value_type,
                page_tokens: PAGE,
                pages: 3,
                window_pages: 3,
            };
            let mut cache = Cache::new(spec).unwrap();
            let mut places = Vec::new();
            for (layer, form) in layers.iter().enumerate() {
                let tensors =
                    [(KeyOrValue::Key, form.key_dim), (KeyOrValue::Value, form.value_dim)];
                for (kind, dim) in tensors.into_iter().take(if form.values_in_keys { 1 } else { 2 })
                {
                    for page in 0..2 {
                        places
                            .extend((0..form.kv_heads).map(|head| (layer, kind, dim, page, head)));
                    }
                }
            }
            let values =
                |(layer, kind, dim, page, head): (usize, KeyOrValue, usize, u32, usize), token| {
                    (0..dim).map(|d| value(layer, kind, page, head, token, d)).collect::<Vec<_>>()
                };
            for &place in &places {
                let (layer, kind, _, page, head) = place;
                for token in 0..layers[layer].page_rows(PAGE) {
                    // SAFETY: this test uses one thread.
                    unsafe {
                        cache.store(portable, layer, kind, page, head, token, &values(place, token))
                    };
                }
            }
            cache.copy_page(1, 2);
            cache.copy_window_page(1, 2);
            for &place in &places {
                let (layer, kind, dim, page, head) = place;
                let (ty, rows) = (cache.ty(kind), layers[layer].page_rows(PAGE));
                for token in 0..rows {
                    let mut row = vec![0; ty.row_bytes(dim)];
                    (portable.vector.store_kv)(ty, &values(place, token), &mut row);
                    let alone = KvRows {
                        ty,
                        layout: KvLayout::Rows,
                        rows: 1,
                        stride: row.len(),
                        dim,
                        data: &row,
                    };
                    let (mut expected, mut got) = (vec![0.0; dim], vec![0.0; dim]);
                    load_position(&alone, 0, &mut expected);
                    for page in [page, if page == 1 { 2 } else { 0 }] {
                        let first = token / KV_TILE * KV_TILE;
                        // SAFETY: this test uses one thread.
                        let tile = unsafe {
                            cache.rows(layer, kind, page, head, first, KV_TILE.min(rows - first))
                        };
                        load_position(&tile, token - first, &mut got);
                        assert_eq!(
                            got, expected,
                            "{key_type:?} {value_type:?} {place:?}, token {token}"
                        );
                    }
                }
            }
        }
    }
}
