//! The level `dotprod`: as `neon`, with products of packed weights by `sdot`.

use puna_quant::TensorType;

use super::neon::{self, Neon};
use super::neon_packed::sweep_shell;
use crate::kernels::generic::shells::packed_shells;
use crate::kernels::{Level, LinearKernel};

pub(super) static LEVEL: Level = Level { name: "dotprod", linear, vector: neon::LEVEL.vector };

fn linear(ty: TensorType) -> Option<LinearKernel> {
    packed::kernel(ty).or_else(|| (neon::LEVEL.linear)(ty))
}

packed_shells!(Neon<true>, "neon,dotprod");
sweep_shell!(pub(super) sweep, Neon<true>, "neon,dotprod");
