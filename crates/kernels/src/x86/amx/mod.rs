//! The level `amx`: products with many activation rows on matrix units.
//!
//! Weight rows are the A operand in their natural order: 16 rows × 32 values of bf16 a tile,
//! expanded from the file's format into a panel that the first-level cache holds ([`expand`]).
//! Activations are the B operand, interleaved once for all products that read them ([`interleave`],
//! [`TileRows`](crate::TileRows)). Sums stay f32 over all of K ([`multiply`]). Products with few
//! activation rows, and all other functions, come from `avx512vnni`.
//!
//! The bodies use the few instructions of a [`unit`]. There are two units: the processor's, and a
//! unit in plain code, so that machines with only AVX-512 can test the bodies (level
//! `amx-emulated`).

mod expand;
mod interleave;
mod multiply;
mod peak;
mod unit;

use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

use puna_quant::TensorType;

use self::expand::Expand;
use self::unit::{Hardware, Unit};
use super::{avx512, vnni};
use crate::{Acts, Level, LinearKernel, OutMut, STREAM_ROWS, Scratch, TileForm, WeightRows};

/// Whether this processor runs the level and the system lets it, given that it runs `avx512vnni`.
pub(super) fn available() -> bool {
    vectors() && tiles() && permitted()
}

/// Whether the processor has the vector instructions that the level adds to `avx512vnni`.
fn vectors() -> bool {
    is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512vbmi")
}

/// AMX with bf16 and int8, tiles of 16 rows of 64 bytes, and the system saves them.
fn tiles() -> bool {
    const TILE_BF16_INT8: u32 = 1 << 24 | 1 << 22 | 1 << 25;
    const TILE_STATE: u64 = 1 << 17 | 1 << 18;
    const OSXSAVE: u32 = 1 << 27;
    #[target_feature(enable = "xsave")]
    fn saved() -> u64 {
        // SAFETY: register 0 exists wherever the instruction does.
        unsafe { _xgetbv(0) }
    }
    let max = __cpuid(0).eax;
    if max < 0x1d || __cpuid_count(7, 0).edx & TILE_BF16_INT8 != TILE_BF16_INT8 {
        return false;
    }
    // SAFETY: the bit says that the system has enabled the instruction.
    if __cpuid(1).ecx & OSXSAVE == 0 || unsafe { saved() } & TILE_STATE != TILE_STATE {
        return false;
    }
    // Palette 1: bytes of all tiles and of one, bytes a row and tiles, rows.
    let palette = __cpuid_count(0x1d, 1);
    palette.eax == 1024 << 16 | 8192 && palette.ebx == 8 << 16 | 64 && palette.ecx & 0xffff == 16
}

/// Requests tiles for the process; the system grants them only on request.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and changes what the kernel saves, nothing else.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Other systems are not supported.
#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

pub(super) const LEVEL: Level =
    Level { name: "amx", linear: linear::<Hardware>, vector: avx512::LEVEL.vector };

/// Kernels of AMX on tiles in plain code, for tests on processors with `avx512vnni`.
#[cfg(any(test, feature = "emulated"))]
pub(super) fn emulated() -> Option<&'static Level> {
    const LEVEL: Level = Level {
        name: "amx-emulated",
        linear: linear::<unit::Emulated>,
        vector: avx512::LEVEL.vector,
    };
    vectors().then_some(&LEVEL)
}

/// Rounds of multiply-adds, and the number of multiply-adds per round.
pub type Peak = (fn(u32) -> f32, u64);

/// Multiply-adds on tiles, for probes: of bf16 and of int8.
///
/// # Safety
/// The level was handed out.
pub unsafe fn peaks() -> [Peak; 2] {
    // SAFETY: the caller guarantees that the processor has AMX.
    let bf16 = |rounds| unsafe { peak::bf16::<Hardware>(rounds) };
    // SAFETY: as above.
    let int8 = |rounds| unsafe { peak::int8::<Hardware>(rounds) };
    [(bf16, peak::BF16_MACS), (int8, peak::INT8_MACS)]
}

fn linear<U: Unit>(ty: TensorType) -> Option<LinearKernel> {
    use expand::*;

    use crate::generic::formats::{blocks, codebook, kquants, ternary};
    let base = (vnni::LEVEL.linear)(ty)?;
    Some(match ty {
        TensorType::F16 => kernel::<U, F16>(base),
        TensorType::BF16 => kernel::<U, Bf16>(base),
        TensorType::Q4_0 => kernel::<U, Nibbles<blocks::Q4_0>>(base),
        TensorType::Q4_1 => kernel::<U, Nibbles<blocks::Q4_1>>(base),
        TensorType::IQ4_NL => kernel::<U, Nibbles<blocks::IQ4_NL>>(base),
        TensorType::MXFP4 => kernel::<U, Nibbles<blocks::MXFP4>>(base),
        TensorType::IQ4_XS => kernel::<U, Nibbles<kquants::IQ4_XS>>(base),
        TensorType::Q4_K => kernel::<U, Q4K>(base),
        TensorType::Q8_0 => kernel::<U, Q8>(base),
        TensorType::Q5_0 => kernel::<U, Tables<blocks::Q5_0>>(base),
        TensorType::Q5_1 => kernel::<U, Tables<blocks::Q5_1>>(base),
        TensorType::Q5_K => kernel::<U, Tables<kquants::Q5_K>>(base),
        TensorType::Q2_K => kernel::<U, Tables<kquants::Q2_K>>(base),
        TensorType::Q3_K => kernel::<U, Tables<kquants::Q3_K>>(base),
        TensorType::Q1_0 => kernel::<U, Tables<blocks::Q1_0>>(base),
        TensorType::Q2_0 => kernel::<U, Tables<blocks::Q2_0>>(base),
        TensorType::TQ1_0 => kernel::<U, Tables<ternary::TQ1_0>>(base),
        TensorType::TQ2_0 => kernel::<U, Tables<ternary::TQ2_0>>(base),
        TensorType::Q6_K => kernel::<U, Products<kquants::Q6_K>>(base),
        TensorType::NVFP4 => kernel::<U, Products<blocks::NVFP4>>(base),
        TensorType::IQ1_S => kernel::<U, Products<codebook::IQ1_S>>(base),
        TensorType::IQ1_M => kernel::<U, Products<codebook::IQ1_M>>(base),
        TensorType::IQ2_XXS => kernel::<U, Products<codebook::IQ2_XXS>>(base),
        TensorType::IQ2_XS => kernel::<U, Products<codebook::IQ2_XS>>(base),
        TensorType::IQ2_S => kernel::<U, Products<codebook::IQ2_S>>(base),
        TensorType::IQ3_XXS => kernel::<U, Products<codebook::IQ3_XXS>>(base),
        TensorType::IQ3_S => kernel::<U, Products<codebook::IQ3_S>>(base),
        // F32 keeps the f32 kernel: one bf16 would lose precision, and three products per value
        // would gain no speed.
        _ => base,
    })
}

fn kernel<U: Unit, E: Expand>(base: LinearKernel) -> LinearKernel {
    LinearKernel {
        stream_rows: STREAM_ROWS,
        panel: run::<U, E>,
        panel_rows: multiply::PANEL_ROWS,
        bf16_parts: E::PARTS,
        tiles: Some(TileForm { parts: E::PARTS, interleave: interleave::interleave }),
        ..base
    }
}

fn run<U: Unit, E: Expand>(w: WeightRows<'_>, x: Acts<'_>, out: OutMut<'_>, scratch: &mut Scratch) {
    assert_eq!(w.ty, E::TYPE);
    let expander = expand::Expander::of::<E>();
    // SAFETY: the level was handed out after its features and the unit's were found.
    unsafe { multiply::run::<U>(w, x, out, scratch, &expander) }
}
