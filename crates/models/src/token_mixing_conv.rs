//! Tokens of a block mixed with those before them, around a part of a layer.

use puna_graph::{Graph, Linear, ValueId, WeightId};

use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

/// More taps than any model has, to bound what a file can ask for.
const MOST_TAPS: usize = 256;

/// How far back it goes.
#[derive(Debug, Clone, Copy)]
pub struct Mixing {
    taps: usize,
    /// Groups of features that share what a token makes of a tap.
    groups: usize,
}

/// The convolutions before and behind a part of a layer: for each feature a constant and what the token makes of it.
pub struct Neighbours {
    /// `[features, taps]`, before and behind.
    constant: [WeightId; 2],
    /// To the token's taps of both.
    own: Linear,
    mixing: Mixing,
}

impl Mixing {
    /// By the file's keys.
    pub fn read(keys: &Keys<'_>, n_embd: usize) -> Result<Self, ModelError> {
        let (taps, group) = (keys.count("conv_kernel_size")?, keys.count("conv_group_size")?);
        let wrong = |key: &str, value: usize, reason| {
            Err(ModelError::KeyValue { key: keys.name(key), value: value.to_string(), reason })
        };
        if taps > MOST_TAPS {
            return wrong("conv_kernel_size", taps, "must be at most 256");
        }
        if !n_embd.is_multiple_of(group) {
            return wrong("conv_group_size", group, "the features must come in groups of one size");
        }
        Ok(Self { taps, groups: n_embd / group })
    }
}

impl Neighbours {
    /// `NAME_conv_base` and `NAME_conv_proj`.
    pub fn load(
        w: &mut Weights<'_>,
        name: &str,
        n_embd: usize,
        mixing: Mixing,
    ) -> Result<Self, ModelError> {
        let constant = w.parts(&format!("{name}_conv_base"), &[n_embd, mixing.taps, 2])?;
        let own =
            w.linear(&format!("{name}_conv_proj"), n_embd, 2 * mixing.taps * mixing.groups)?;
        Ok(Self { constant: [constant[0], constant[1]], own, mixing })
    }

    fn forward(&self, g: &mut Graph, x: ValueId, own: ValueId, side: usize) -> ValueId {
        let Mixing { taps, groups } = self.mixing;
        let own = g.slice(own, side * taps * groups, taps * groups);
        g.dynamic_conv("conv_out", x, own, (self.constant[side], taps))
    }
}

/// A part of a layer that reads `h`, with neighbours mixed before and behind it where there is such: both by what `h` makes of the taps.
pub fn around(
    g: &mut Graph,
    mix: Option<&Neighbours>,
    h: ValueId,
    part: impl FnOnce(&mut Graph, ValueId) -> ValueId,
) -> ValueId {
    let Some(mix) = mix else { return part(g, h) };
    let own = g.linear("conv_taps", &mix.own, h);
    let h = mix.forward(g, h, own, 0);
    let y = part(g, h);
    mix.forward(g, y, own, 1)
}
