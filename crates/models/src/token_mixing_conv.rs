//! Dynamic convolutions over the tokens of a block, before and after a part of a layer (DFlash 2).

use puna_graph::{Graph, Linear, ValueId, WeightId};

use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

/// Largest accepted number of taps, against hostile files.
const MAX_TAPS: usize = 256;

/// Sizes of the convolution.
#[derive(Debug, Clone, Copy)]
pub struct TokenMixingSizes {
    taps: usize,
    /// Groups of features that share a dynamic tap.
    groups: usize,
}

/// Convolutions before and after a part of a layer. Each tap is a constant per feature plus a
/// dynamic part per token and group.
pub struct TokenMixingConv {
    /// `[features, taps]`: constant taps of both convolutions.
    base: [WeightId; 2],
    /// Projection to the dynamic taps of both convolutions.
    dynamic: Linear,
    mixing: TokenMixingSizes,
}

impl TokenMixingSizes {
    /// Reads `conv_kernel_size` and `conv_group_size`.
    pub fn read(keys: &Keys<'_>, n_embd: usize) -> Result<Self, ModelError> {
        let (taps, group) = (keys.count("conv_kernel_size")?, keys.count("conv_group_size")?);
        let wrong = |key: &str, value: usize, reason| {
            Err(ModelError::KeyValue { key: keys.name(key), value: value.to_string(), reason })
        };
        if taps > MAX_TAPS {
            return wrong("conv_kernel_size", taps, "must be at most 256");
        }
        if !n_embd.is_multiple_of(group) {
            return wrong("conv_group_size", group, "must divide the features");
        }
        Ok(Self { taps, groups: n_embd / group })
    }
}

impl TokenMixingConv {
    /// Loads `NAME_conv_base` and `NAME_conv_proj`.
    pub fn load(
        w: &mut Weights<'_>,
        name: &str,
        n_embd: usize,
        mixing: TokenMixingSizes,
    ) -> Result<Self, ModelError> {
        let base = w.split_stack(&format!("{name}_conv_base"), &[n_embd, mixing.taps, 2])?;
        let dynamic =
            w.linear(&format!("{name}_conv_proj"), n_embd, 2 * mixing.taps * mixing.groups)?;
        Ok(Self { base: [base[0], base[1]], dynamic, mixing })
    }

    fn forward(&self, g: &mut Graph, x: ValueId, dynamic: ValueId, side: usize) -> ValueId {
        let TokenMixingSizes { taps, groups } = self.mixing;
        let dynamic = g.slice(dynamic, side * taps * groups, taps * groups);
        g.dynamic_conv("conv_out", x, dynamic, (self.base[side], taps))
    }
}

/// Output of a part of a layer for `h`, with the convolutions before and after it, if any. `h`
/// determines the dynamic taps of both.
pub fn apply_around(
    g: &mut Graph,
    conv: Option<&TokenMixingConv>,
    h: ValueId,
    part: impl FnOnce(&mut Graph, ValueId) -> ValueId,
) -> ValueId {
    let Some(conv) = conv else { return part(g, h) };
    let dynamic = g.linear("conv_taps", &conv.dynamic, h);
    let h = conv.forward(g, h, dynamic, 0);
    let y = part(g, h);
    conv.forward(g, y, dynamic, 1)
}
