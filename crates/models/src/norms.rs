//! Norms of either kind.

use puna_graph::{Graph, Norm, ValueId};

use crate::error::ModelError;
use crate::weights::Weights;

/// How an architecture normalises, with the epsilon.
#[derive(Debug, Clone, Copy)]
pub enum NormKind {
    /// By the root of the mean square.
    Rms(f32),
    /// By mean and variance.
    Layer(f32),
}

/// A norm of either kind, or none.
#[derive(Debug, Clone, Copy)]
pub enum AnyNorm {
    /// What was normalised elsewhere stays as it is.
    None,
    /// By the root of the mean square.
    Rms(Norm),
    /// By mean and variance.
    Layer(Norm),
}

impl NormKind {
    /// The norm `NAME` over the first of these dimensions.
    pub fn load(
        self,
        w: &mut Weights<'_>,
        name: &str,
        shape: &[usize],
    ) -> Result<AnyNorm, ModelError> {
        let missing = || ModelError::MissingTensor { name: format!("{name}.weight") };
        self.load_opt(w, name, shape)?.ok_or_else(missing)
    }

    /// The same, which may be absent.
    pub fn load_opt(
        self,
        w: &mut Weights<'_>,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<AnyNorm>, ModelError> {
        Ok(match self {
            Self::Rms(eps) => w.opt_norm(name, shape, eps)?.map(AnyNorm::Rms),
            Self::Layer(eps) => w.opt_norm(name, shape, eps)?.map(AnyNorm::Layer),
        })
    }

    /// The norm over `dim` columns without weights.
    pub fn plain(self, dim: usize) -> AnyNorm {
        let norm = |eps| Norm { w: None, b: None, dim, eps };
        match self {
            Self::Rms(eps) => AnyNorm::Rms(norm(eps)),
            Self::Layer(eps) => AnyNorm::Layer(norm(eps)),
        }
    }
}

impl AnyNorm {
    /// The norm of `x`.
    pub fn apply(&self, g: &mut Graph, name: &'static str, x: ValueId) -> ValueId {
        match self {
            Self::None => x,
            Self::Rms(norm) => g.rms_norm(name, norm, x),
            Self::Layer(norm) => g.layer_norm(name, norm, x),
        }
    }
}
