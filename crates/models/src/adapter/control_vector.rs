//! Control vectors: directions that are added to the residual stream after layers, which steers the
//! text that a model writes.
//!
//! The layout is llama.cpp's: `general.architecture` is `controlvector`, and `direction.N` of shape
//! `[features]` is added after layer N, counted from zero. Layer 0 has no direction.
//! `controlvector.model_hint` is not checked: tools write different names for the same models
//! there.

use std::sync::Arc;

use puna_gguf::View;
use puna_graph::{ControlVector, Weight, WeightId};
use puna_quant::TensorType;

use super::check_values;
use super::error::AdapterError;
use crate::weights::MappedBytes;

/// `general.architecture` of a control vector file.
const CONTROL_VECTOR: &str = "controlvector";

/// Whether the file is a control vector.
pub(super) fn is_control_vector(adapter: &View) -> bool {
    adapter.metadata().architecture().is_ok_and(|architecture| architecture == CONTROL_VECTOR)
}

/// Vectors of a control-vector file for a model with this number of `layers` and `features`, by
/// layer. `adapter` is the index of the adapter.
pub(super) fn control_vectors(
    view: &View,
    adapter: usize,
    (layers, features): (usize, usize),
    tensors: &mut Vec<Weight>,
) -> Result<Vec<(usize, ControlVector)>, AdapterError> {
    let mut control_vectors = Vec::new();
    for tensor in view.tensors() {
        let layer =
            tensor.name.strip_prefix("direction.").and_then(|number| number.parse::<usize>().ok());
        let Some(layer) = layer.filter(|layer| (1..layers).contains(layer)) else {
            return Err(AdapterError::Direction { tensor: tensor.name.to_owned(), layers });
        };
        if tensor.shape.first() != Some(&(features as u64))
            || tensor.shape.iter().skip(1).any(|&n| n != 1)
        {
            let (tensor, found) = (tensor.name.to_owned(), tensor.shape.to_vec());
            let (model, expected) = (vec![features], vec![features as u64]);
            return Err(AdapterError::Shape { tensor, found, model, expected });
        }
        if tensor.ty != TensorType::F32 {
            return Err(AdapterError::Type { tensor: tensor.name.to_owned(), ty: tensor.ty });
        }
        check_values(&tensor)?;
        let vector = WeightId(tensors.len() as u32);
        control_vectors.push((layer, ControlVector { vector, adapter }));
        let (name, data) = (tensor.name.to_owned(), Arc::new(MappedBytes(tensor.shared())));
        tensors.push(Weight { name, ty: tensor.ty, shape: vec![features], data });
    }
    if control_vectors.is_empty() {
        return Err(AdapterError::Empty);
    }
    Ok(control_vectors)
}
