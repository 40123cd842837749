//! Mamba layers of both versions as mixers.

use puna_graph::*;

use crate::decoder::{AnyNorm, LayerLoader, NormKind};
use crate::error::ModelError;
use crate::hybrid::{Mixer, MixerContext, SsmKeys};

/// Mamba 1 (Gu and Dao, 2023): a time step for each column, by a low-rank projection.
pub struct Mamba1 {
    keys: SsmKeys,
    input: Linear,
    conv: ConvSpec,
    /// Projection to time step, B and C.
    x: Linear,
    /// Norms of time step, B and C.
    norms: Option<[AnyNorm; 3]>,
    dt: Linear,
    scan: ScanSpec,
    out: Linear,
}

impl Mamba1 {
    /// Loads `ssm_{in,conv1d,x,dt,a,d,out}` of a layer, and `ssm_{dt,b,c}_norm` if present;
    /// `normed` adds norms without weights otherwise.
    pub fn load(
        b: &mut LayerLoader<'_, '_>,
        keys: SsmKeys,
        norm: NormKind,
        normed: bool,
    ) -> Result<Self, ModelError> {
        let SsmKeys { inner, state, rank, .. } = keys;
        let n_embd = b.hp.n_embd;
        let conv = conv(b, keys.taps, inner, true)?;
        let scan = ScanSpec {
            state: b.state("ssm_a", inner, state)?,
            heads: inner,
            head_dim: 1,
            state_dim: state,
            groups: 1,
            a: b.tensor("ssm_a", &[state, inner])?,
            d: b.tensor("ssm_d", &[inner])?,
            dt_bias: None,
        };
        let norms = if b.has("ssm_dt_norm.weight") {
            let [dt, of_b, of_c] =
                [("ssm_dt_norm", rank), ("ssm_b_norm", state), ("ssm_c_norm", state)];
            Some([
                b.norm_of(dt.0, &[dt.1])?,
                b.norm_of(of_b.0, &[of_b.1])?,
                b.norm_of(of_c.0, &[of_c.1])?,
            ])
        } else {
            normed.then(|| [rank, state, state].map(|dim| norm.unweighted(dim)))
        };
        Ok(Self {
            keys,
            input: b.linear("ssm_in", n_embd, 2 * inner)?,
            conv,
            x: b.linear("ssm_x", inner, rank + 2 * state)?,
            norms,
            dt: b.biased("ssm_dt", rank, inner)?,
            scan,
            out: b.linear("ssm_out", inner, n_embd)?,
        })
    }
}

impl Mixer for Mamba1 {
    fn mix(&self, g: &mut Graph, _: &mut MixerContext, h: ValueId) -> ValueId {
        let SsmKeys { inner, state, rank, .. } = self.keys;
        let xz = g.linear("ssm_in", &self.input, h);
        let (x, z) = (g.slice(xz, 0, inner), g.slice(xz, inner, inner));
        let x = g.recur("ssm_conv", Recurrence::Conv { x, spec: self.conv });
        let all = g.linear("ssm_x", &self.x, x);
        let (mut b, mut c) = (g.slice(all, rank, state), g.slice(all, rank + state, state));
        let mut dt = g.slice(all, 0, rank);
        match &self.norms {
            Some([of_dt, of_b, of_c]) => {
                dt = of_dt.apply(g, "ssm_dt_norm", dt);
                (b, c) = (of_b.apply(g, "ssm_b_norm", b), of_c.apply(g, "ssm_c_norm", c));
            }
            // A matrix product needs a contiguous copy, not a slice.
            None => dt = g.strided_columns("ssm_dt_in", all, 0, rank, rank + 2 * state),
        }
        let dt = g.linear("ssm_dt", &self.dt, dt);
        let y = g.recur("ssm_scan", Recurrence::Scan { x, dt, b, c, spec: self.scan });
        g.glu("ssm_gated", Glu::Silu, z, y)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("ssm_out", &self.out, mixed)
    }
}

/// Mamba 2 (Dao and Gu, 2024): a time step for each head.
pub struct Mamba2 {
    keys: SsmKeys,
    input: Linear,
    conv: ConvSpec,
    scan: ScanSpec,
    /// Norm of the gated result in groups.
    norm: Option<AnyNorm>,
    out: Linear,
}

impl Mamba2 {
    /// Loads `ssm_{in,conv1d,dt.bias,a,d,out}` of a layer, and `ssm_norm` if present.
    pub fn load(b: &mut LayerLoader<'_, '_>, keys: SsmKeys) -> Result<Self, ModelError> {
        let SsmKeys { inner, state, rank: heads, groups, .. } = keys;
        let (n_embd, both) = (b.hp.n_embd, 2 * groups * state);
        let scan = ScanSpec {
            state: b.state("ssm_a", inner, state)?,
            heads,
            head_dim: inner / heads,
            state_dim: state,
            groups,
            a: b.tensor("ssm_a", &[1, heads])?,
            d: b.tensor("ssm_d", &[1, heads])?,
            dt_bias: Some(b.tensor("ssm_dt.bias", &[heads])?),
        };
        Ok(Self {
            keys,
            input: b.linear("ssm_in", n_embd, 2 * inner + both + heads)?,
            conv: conv(b, keys.taps, inner + both, false)?,
            scan,
            norm: b.opt_norm_of("ssm_norm", &[inner / groups, groups])?,
            out: b.linear("ssm_out", inner, n_embd)?,
        })
    }
}

impl Mixer for Mamba2 {
    fn mix(&self, g: &mut Graph, _: &mut MixerContext, h: ValueId) -> ValueId {
        let SsmKeys { inner, state, rank: heads, groups, .. } = self.keys;
        let each = groups * state;
        let all = g.linear("ssm_in", &self.input, h);
        let z = g.slice(all, 0, inner);
        let xbc = g.slice(all, inner, inner + 2 * each);
        let dt = g.slice(all, 2 * inner + 2 * each, heads);
        let xbc = g.recur("ssm_conv", Recurrence::Conv { x: xbc, spec: self.conv });
        let x = g.slice(xbc, 0, inner);
        let (b, c) = (g.slice(xbc, inner, each), g.slice(xbc, inner + each, each));
        let y = g.recur("ssm_scan", Recurrence::Scan { x, dt, b, c, spec: self.scan });
        let y = g.glu("ssm_gated", Glu::Silu, z, y);
        self.norm.map_or(y, |norm| norm.apply(g, "ssm_norm", y))
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("ssm_out", &self.out, mixed)
    }
}

/// Loads `ssm_conv1d` over `cols` columns, followed by SiLU.
pub fn conv(
    b: &mut LayerLoader<'_, '_>,
    taps: usize,
    cols: usize,
    has_bias: bool,
) -> Result<ConvSpec, ModelError> {
    let bias = if has_bias {
        Some(b.tensor("ssm_conv1d.bias", &[cols])?)
    } else {
        b.opt_tensor("ssm_conv1d.bias", &[cols])?
    };
    let w = Some(b.tensor("ssm_conv1d.weight", &[taps, cols])?);
    let state = b.state("ssm_conv1d.weight", taps - 1, cols)?;
    Ok(ConvSpec { state, taps, stride: 1, w, bias, silu: true })
}
