//! The paged cache: a page has for each layer, for each head its keys, then its values, so that attention to a page of a
//! layer reads memory from one end to the other. Keys lie in columns, as attention's kernel wants them; those that hold their
//! values lie in rows.

use puna_graph::{BackendError, CacheSpec, KvType};

use crate::kernels::{KvLayout, KvRows, Level, RUN};
use crate::memory::Shared;

/// Keys and values of all layers.
pub struct Cache {
    spec: CacheSpec,
    layers: Vec<[Half; 2]>,
    /// Page after page, in each the layers one after the other: large pages of the system are touched one by one as the
    /// cache fills.
    bytes: Shared<u8>,
    page_bytes: usize,
}

/// Keys or values of one layer.
struct Half {
    ty: KvType,
    layout: KvLayout,
    heads: usize,
    dim: usize,
    row_bytes: usize,
    /// Where the first head begins in a page.
    offset: usize,
    /// From one head to the next: keys and values of a head lie together.
    head_bytes: usize,
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
        // Columns hold whole runs.
        let columns = spec.page_tokens.is_multiple_of(RUN);
        let key_layout = if columns { KvLayout::Columns } else { KvLayout::Rows };
        let check = |ty: KvType, dim: usize| {
            let multiple = ty.block_values();
            if dim.is_multiple_of(multiple) {
                Ok(())
            } else {
                Err(BackendError::CacheType { ty, multiple, dim })
            }
        };
        let mut layers = Vec::with_capacity(spec.layers.len());
        let mut offset = 0;
        for l in &spec.layers {
            check(spec.key_type, l.key_dim)?;
            check(if l.values_in_keys { spec.key_type } else { spec.value_type }, l.value_dim)?;
            let row_bytes = spec.row_bytes(l);
            // As values, they are read from rows.
            let key_layout = if l.values_in_keys { KvLayout::Rows } else { key_layout };
            let (keys, head_bytes) =
                (spec.page_tokens * row_bytes[0], spec.page_tokens * row_bytes.iter().sum::<usize>());
            let half = |ty, layout, dim, row_bytes, offset| Half {
                ty,
                layout,
                heads: l.kv_heads,
                dim,
                row_bytes,
                offset,
                head_bytes,
            };
            layers.push([
                half(spec.key_type, key_layout, l.key_dim, row_bytes[0], offset),
                half(spec.value_type, KvLayout::Rows, l.value_dim, row_bytes[1], offset + keys),
            ]);
            offset += l.kv_heads * head_bytes;
        }
        let bytes = spec.pages.saturating_mul(offset);
        Ok(Self { layers, bytes: Shared::named(bytes, "the cache")?, page_bytes: offset, spec })
    }

    /// Tokens a page.
    pub fn page_tokens(&self) -> usize {
        self.spec.page_tokens
    }

    /// Bytes of a key and a value of a layer, of one head.
    pub fn row_bytes(&self, layer: usize) -> usize {
        self.spec.row_bytes(&self.spec.layers[layer]).iter().sum()
    }

    /// The storage type of keys or values.
    pub fn ty(&self, kind: Kind) -> KvType {
        match kind {
            Kind::Key => self.spec.key_type,
            Kind::Value => self.spec.value_type,
        }
    }

    /// Positions `first .. first + rows` of a head in a page: at most a run, `first` being a multiple of one.
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
        let page_tokens = self.spec.page_tokens;
        assert!(head < half.heads && first + rows <= page_tokens);
        let start = self.head_start(half, page, head);
        let (start, stride, bytes) = match half.layout {
            KvLayout::Rows => (start + first * half.row_bytes, half.row_bytes, rows * half.row_bytes),
            KvLayout::Columns if half.ty.block_values() > 1 => {
                // Run after run.
                let run = RUN * half.row_bytes;
                (start + first / RUN * run, RUN * half.ty.row_bytes(half.ty.block_values()), run)
            }
            KvLayout::Columns => {
                let stride = half.ty.row_bytes(page_tokens);
                (start + half.ty.row_bytes(first), stride, (half.dim - 1) * stride + half.ty.row_bytes(RUN))
            }
        };
        // SAFETY: passed on.
        let data = unsafe { self.bytes.slice(start, bytes) };
        KvRows { ty: half.ty, layout: half.layout, rows, stride, dim: half.dim, data }
    }

    /// Writes one position of a head in a page.
    ///
    /// # Safety
    /// Nobody else reads or writes it meanwhile.
    #[allow(clippy::too_many_arguments)] // a place has five coordinates
    pub unsafe fn store(
        &self,
        level: &Level,
        layer: usize,
        kind: Kind,
        page: u32,
        head: usize,
        token: usize,
        values: &[f32],
    ) {
        let half = &self.layers[layer][kind as usize];
        assert!(head < half.heads && token < self.spec.page_tokens && values.len() == half.dim);
        let start = self.head_start(half, page, head);
        match half.layout {
            KvLayout::Rows => {
                // SAFETY: passed on.
                let row = unsafe { self.bytes.slice_mut(start + token * half.row_bytes, half.row_bytes) };
                (level.vector.store_kv)(half.ty, values, row);
            }
            KvLayout::Columns => {
                let block = half.ty.block_values();
                let bytes = half.ty.row_bytes(block);
                let mut row = [0u8; 4 * RUN];
                for (i, values) in values.chunks(RUN).enumerate() {
                    let row = &mut row[..half.ty.row_bytes(values.len())];
                    (level.vector.store_kv)(half.ty, values, row);
                    for (d, value) in row.chunks_exact(bytes).enumerate() {
                        let d = i * RUN / block + d;
                        if block > 1 {
                            let at = start + token / RUN * RUN * half.row_bytes + d * RUN * bytes;
                            // SAFETY: passed on; other positions of the block are not touched.
                            unsafe { self.store_block(at, token % RUN, value) };
                            continue;
                        }
                        let at = start + d * half.ty.row_bytes(self.spec.page_tokens) + token * bytes;
                        // SAFETY: passed on; other positions of the column are not touched.
                        unsafe { self.bytes.slice_mut(at, bytes) }.copy_from_slice(value);
                    }
                }
            }
        }
    }

    /// Writes a position of a block in columns that begins at `at`.
    ///
    /// # Safety
    /// Nobody else reads or writes it meanwhile.
    unsafe fn store_block(&self, at: usize, position: usize, block: &[u8]) {
        let (scale, codes) = block.split_at(2);
        // SAFETY: passed on.
        unsafe { self.bytes.slice_mut(at + 2 * position, 2) }.copy_from_slice(scale);
        for (j, &code) in codes.iter().enumerate() {
            // SAFETY: passed on.
            unsafe { self.bytes.slice_mut(at + (2 + j) * RUN + position, 1) }.fill(code);
        }
    }

    /// Where the positions of a head in a page begin.
    fn head_start(&self, half: &Half, page: u32, head: usize) -> usize {
        page as usize * self.page_bytes + half.offset + head * half.head_bytes
    }

    /// Makes the page `to` a copy of `from`.
    pub fn copy_page(&mut self, from: u32, to: u32) {
        let (from, to) = (from as usize * self.page_bytes, to as usize * self.page_bytes);
        self.bytes.get_mut().copy_within(from..from + self.page_bytes, to);
    }
}

#[cfg(test)]
mod tests {
    use puna_graph::CacheLayer;

    use super::*;
    use crate::kernels::{level, load_position};

    const PAGE: usize = 2 * RUN;
    const HEADS: usize = 2;

    fn value(layer: usize, kind: Kind, page: u32, head: usize, token: usize, d: usize) -> f32 {
        let place = ((layer * 2 + kind as usize) * 3 + page as usize) * HEADS + head;
        ((place * 7919 + token * 104_729 + d * 1_299_709) % 2003) as f32 / 1000.0 - 1.0
    }

    #[test]
    fn every_position_of_every_head_is_read_as_it_was_stored() {
        let portable = level("portable").unwrap();
        for (key_type, value_type) in KvType::ALL.into_iter().flat_map(|k| KvType::ALL.map(|v| (k, v))) {
            let layers = vec![
                CacheLayer { kv_heads: HEADS, key_dim: 96, value_dim: 32, values_in_keys: false },
                CacheLayer { kv_heads: 1, key_dim: 64, value_dim: 128, values_in_keys: false },
                CacheLayer { kv_heads: HEADS, key_dim: 96, value_dim: 64, values_in_keys: true },
            ];
            let spec =
                CacheSpec { layers: layers.clone(), key_type, value_type, page_tokens: PAGE, pages: 3 };
            let mut cache = Cache::new(spec).unwrap();
            let mut places = Vec::new();
            for (layer, form) in layers.iter().enumerate() {
                let halves = [(Kind::Key, form.key_dim), (Kind::Value, form.value_dim)];
                for (kind, dim) in halves.into_iter().take(if form.values_in_keys { 1 } else { 2 }) {
                    for page in 0..2 {
                        places.extend((0..form.kv_heads).map(|head| (layer, kind, dim, page, head)));
                    }
                }
            }
            let values = |(layer, kind, dim, page, head): (usize, Kind, usize, u32, usize), token| {
                (0..dim).map(|d| value(layer, kind, page, head, token, d)).collect::<Vec<_>>()
            };
            for &place in &places {
                let (layer, kind, _, page, head) = place;
                for token in 0..PAGE {
                    // SAFETY: nobody else is here.
                    unsafe { cache.store(portable, layer, kind, page, head, token, &values(place, token)) };
                }
            }
            cache.copy_page(1, 2);
            for &place in &places {
                let (layer, kind, dim, page, head) = place;
                let ty = cache.ty(kind);
                for token in 0..PAGE {
                    let mut row = vec![0; ty.row_bytes(dim)];
                    (portable.vector.store_kv)(ty, &values(place, token), &mut row);
                    let alone =
                        KvRows { ty, layout: KvLayout::Rows, rows: 1, stride: row.len(), dim, data: &row };
                    let (mut expected, mut got) = (vec![0.0; dim], vec![0.0; dim]);
                    load_position(&alone, 0, &mut expected);
                    for page in [page, if page == 1 { 2 } else { 0 }] {
                        let first = token / RUN * RUN;
                        // SAFETY: nobody writes.
                        let run = unsafe { cache.rows(layer, kind, page, head, first, RUN) };
                        load_position(&run, token - first, &mut got);
                        assert_eq!(got, expected, "{key_type:?} {value_type:?} {place:?}, token {token}");
                    }
                }
            }
        }
    }
}
