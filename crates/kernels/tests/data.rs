//! Test data: reproducible values, random blocks of every format, rounded activations.

use puna_kernels::{AMX_SLICE, Acts, Level, Q8Rows, TILE_K, TILE_ROWS, TileRows, emulated, levels};
use puna_quant::TensorType;

/// splitmix64.
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Roughly normal, about ±4.
    pub fn normal(&mut self) -> f32 {
        let sum: u64 = (0..4).map(|_| self.next() >> 44).sum();
        (sum as f32 / (1u64 << 20) as f32 - 2.0) * 1.7
    }

    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

/// Bytes in front of memory that cannot be read.
#[cfg(not(miri))]
pub(super) struct Guarded {
    map: *mut u8,
    mapped: usize,
    /// Range of the bytes in the mapping.
    place: std::ops::Range<usize>,
}

#[cfg(not(miri))]
impl Guarded {
    pub fn new(bytes: &[u8]) -> Self {
        // A multiple of every page size.
        const PAGE: usize = 64 << 10;
        let room = bytes.len().next_multiple_of(PAGE);
        let mapped = room + PAGE;
        // SAFETY: a mapping of its own, of which all but the last page is written and the last made
        // unreadable.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let map = libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            );
            assert_ne!(map, libc::MAP_FAILED);
            let map = map.cast::<u8>();
            map.add(room - bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            assert_eq!(libc::mprotect(map.add(room).cast(), PAGE, libc::PROT_NONE), 0);
            Self { map, mapped, place: room - bytes.len()..room }
        }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: they were written when the mapping was made.
        unsafe { std::slice::from_raw_parts(self.map.add(self.place.start), self.place.len()) }
    }
}

#[cfg(not(miri))]
impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping, and no borrow is left.
        unsafe { libc::munmap(self.map.cast(), self.mapped) };
    }
}

/// Miri reports reads behind an allocation, without a guard page.
#[cfg(miri)]
pub(super) struct Guarded(Vec<u8>);

#[cfg(miri)]
impl Guarded {
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The levels to test: all levels of this machine, and all levels that it can emulate.
pub(super) fn all() -> impl Iterator<Item = &'static Level> {
    levels().iter().chain(emulated()).copied()
}

/// Whether an emulator runs the tests (it is told which levels to expect): they take a hundred
/// times as long, so some try fewer sizes.
pub(super) fn is_emulated_processor() -> bool {
    std::env::var_os("PUNA_TEST_LEVELS").is_some()
}

/// All but the oracle.
pub(super) fn others() -> impl Iterator<Item = &'static Level> {
    all().skip(1)
}

/// Offsets of a format's binary16 scales in a block.
pub(super) fn half_fields(ty: TensorType) -> &'static [usize] {
    use TensorType::*;
    match ty {
        Q4_0 | Q5_0 | Q8_0 | IQ4_NL | Q1_0 | Q2_0 | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S
        | IQ1_S | IQ4_XS => &[0],
        Q4_1 | Q5_1 | Q4_K | Q5_K => &[0, 2],
        Q2_K => &[80, 82],
        Q3_K => &[108],
        Q6_K => &[208],
        TQ1_0 => &[52],
        TQ2_0 => &[64],
        _ => &[],
    }
}

/// `rows` rows of `k` weights: random codes, scales of ordinary size and either sign.
pub(super) fn weights(ty: TensorType, rows: usize, k: usize, random: &mut Random) -> Vec<u8> {
    let half = |random: &mut Random| {
        let d = half::f16::from_f32(random.normal() * 0.01 + 0.001);
        d.to_le_bytes()
    };
    match ty {
        TensorType::F32 => {
            return random.normals(rows * k).into_iter().flat_map(f32::to_le_bytes).collect();
        }
        TensorType::F16 => {
            let value = |_| half::f16::from_f32(random.normal()).to_le_bytes();
            return (0..rows * k).flat_map(value).collect();
        }
        TensorType::BF16 => {
            let value = |_| half::bf16::from_f32(random.normal()).to_le_bytes();
            return (0..rows * k).flat_map(value).collect();
        }
        _ => {}
    }
    let bytes = ty.row_bytes(k).unwrap() * rows;
    let mut data: Vec<u8> = (0..bytes).map(|_| (random.next() >> 32) as u8).collect();
    for block in data.chunks_exact_mut(ty.block_bytes()) {
        for &at in half_fields(ty) {
            block[at..at + 2].copy_from_slice(&half(random));
        }
        match ty {
            TensorType::MXFP4 => block[0] = 118 + block[0] % 8,
            TensorType::NVFP4 => block[..4].iter_mut().for_each(|d| *d = 0x10 + *d % 32),
            // The binary16 scale is spread over the high nibbles of the last four words.
            TensorType::IQ1_M => {
                let d = half(random);
                for (i, nibble) in
                    [d[0] & 15, d[0] >> 4, d[1] & 15, d[1] >> 4].into_iter().enumerate()
                {
                    block[49 + 2 * i] = block[49 + 2 * i] & 15 | nibble << 4;
                }
            }
            _ => {}
        }
    }
    data
}

/// Activations with what they round to in 8 bits.
pub(super) struct Rounded {
    pub rows: usize,
    pub k: usize,
    pub exact: Vec<f32>,
    pub codes: Vec<i8>,
    pub scales: Vec<f32>,
    pub sums: Vec<i16>,
    /// Both parts of the exact values, see [`TileRows`].
    pub tiles: Vec<u16>,
}

/// `x` as the sum of `parts` bf16, each the nearest to the remainder.
pub(super) fn bf16(x: f32, parts: usize) -> f32 {
    let high = half::bf16::from_f32(x).to_f32();
    if parts > 1 { high + half::bf16::from_f32(x - high).to_f32() } else { high }
}

/// Rows in tiles of two parts, value by value.
pub(super) fn tiles(x: &[f32], rows: usize, k: usize) -> Vec<u16> {
    let part = TileRows::part(rows, k);
    let mut data = vec![0; 2 * part];
    for (row, x) in x.chunks(k.max(1)).enumerate() {
        for (i, &x) in x.iter().enumerate() {
            let piece = TileRows::piece(rows, k, row / TILE_ROWS, i / AMX_SLICE);
            let (tile, pair) = (i % AMX_SLICE / TILE_K, i % TILE_K / 2);
            let at = piece.start + 512 * tile + 32 * pair + 2 * (row % TILE_ROWS) + i % 2;
            data[at] = half::bf16::from_f32(x).to_bits();
            data[part + at] = half::bf16::from_f32(x - bf16(x, 1)).to_bits();
        }
    }
    data
}

impl Rounded {
    pub fn new(rows: usize, k: usize, exact: Vec<f32>) -> Self {
        let n = rows * k;
        assert_eq!(exact.len(), n);
        let tiles = tiles(&exact, rows, k);
        let (codes, scales, sums) = (vec![0; n], vec![0.0; n / 32], vec![0; n / 16]);
        let mut x = Self { rows, k, exact, codes, scales, sums, tiles };
        (levels()[0].vector.quantize_q8)(&x.exact, &mut x.codes, &mut x.scales, &mut x.sums);
        x
    }

    pub fn q8(&self) -> Acts<'_> {
        let Self { rows, k, .. } = *self;
        Acts::Q8(Q8Rows { rows, k, codes: &self.codes, scales: &self.scales, sums: &self.sums })
    }

    pub fn tiles(&self) -> Acts<'_> {
        Acts::Tiles(TileRows { rows: self.rows, k: self.k, parts: 2, data: &self.tiles })
    }

    pub fn f32(&self) -> Acts<'_> {
        Acts::F32 { rows: self.rows, k: self.k, x: &self.exact }
    }

    /// The values that the codes stand for.
    pub fn rounded(&self) -> Vec<f32> {
        self.codes.iter().enumerate().map(|(i, &c)| f32::from(c) * self.scales[i / 32]).collect()
    }
}
