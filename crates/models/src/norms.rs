//! RMS norm and layer norm.

use puna_graph::{Graph, Norm, ValueId};

use crate::error::ModelError;
use crate::weights::Weights;

/// Kind of norm of an architecture, with its epsilon.
#[derive(Debug, Clone, Copy)]
pub enum NormKind {
    /// RMS norm.
    Rms(f32),
    /// Layer norm: mean and variance.
    Layer(f32),
}

/// Norm of any kind, or none.
#[derive(Debug, Clone, Copy)]
pub enum AnyNorm {
    /// The value stays unchanged.
    None,
    /// RMS norm.
    Rms(Norm),
    /// Layer norm.
    Layer(Norm),
}

impl NormKind {
    /// Norm `NAME` over the first dimension of `shape`.
    pub fn load(
        self,
        w: &mut Weights<'_>,
        name: &str,
        shape: &[usize],
    ) -> Result<AnyNorm, ModelError> {
        let missing = || ModelError::MissingTensor { name: format!("{name}.weight") };
        self.load_opt(w, name, shape)?.ok_or_else(missing)
    }

    /// [`Self::load`], optional.
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

    /// Norm over `dim` columns without weights.
    pub fn unweighted(self, dim: usize) -> AnyNorm {
        let norm = |eps| Norm { w: None, b: None, dim, eps };
        match self {
            Self::Rms(eps) => AnyNorm::Rms(norm(eps)),
            Self::Layer(eps) => AnyNorm::Layer(norm(eps)),
        }
    }
}

impl AnyNorm {
    /// Norm of `x`.
    pub fn apply(&self, g: &mut Graph, name: &'static str, x: ValueId) -> ValueId {
        match self {
            Self::None => x,
            Self::Rms(norm) => g.rms_norm(name, norm, x),
            Self::Layer(norm) => g.layer_norm(name, norm, x),
        }
    }
}
