//! Adapters: files that modify a model without changing its weights. LoRA adapters add low-rank
//! updates to matrix products, control vectors add vectors to the residual stream. Each sequence
//! has a scale for each adapter, 1 by default.

mod control_vector;
mod error;
mod lora;
mod low_rank;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use puna_gguf::{Gguf, TensorView, View};
use puna_graph::{AdapterUpdates, Graph, Op, WeightId};

pub use error::AdapterError;

use crate::error::ModelError;
use crate::weights::Weights;

/// Adapter file and its name in errors.
#[derive(Clone)]
pub struct Adapter {
    name: String,
    gguf: Arc<Gguf>,
}

impl Adapter {
    /// An adapter. Loading a model with it checks whether it fits.
    pub fn new(name: impl Into<String>, gguf: Arc<Gguf>) -> Self {
        Self { name: name.into(), gguf }
    }

    /// Name in errors.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Adapter").field(&self.name).finish()
    }
}

/// Two handles of the same open file are equal.
impl PartialEq for Adapter {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.gguf, &other.gguf)
    }
}

impl Eq for Adapter {}

/// Updates of all adapters of a model.
#[derive(Debug, Default)]
pub(crate) struct AttachedAdapters {
    pub updates: Arc<AdapterUpdates>,
    weights_to_use: Vec<AdapterWeight>,
}

/// Rejects NaN and infinity: an adapter scale of zero would not remove them, so they would reach
/// requests without the adapter.
fn check_values(tensor: &TensorView<'_>) -> Result<(), AdapterError> {
    puna_quant::validate(tensor.ty, &tensor.bytes()).map_err(|error| AdapterError::Values {
        tensor: tensor.name.to_owned(),
        reason: error.to_string(),
    })
}

/// Weight of an adapter that the graphs of the model must use.
#[derive(Debug)]
struct AdapterWeight {
    adapter: String,
    tensor: String,
    weight: WeightId,
}

impl AttachedAdapters {
    /// Adds the tensors of `adapters` to `weights` and collects their updates. `size` is the number
    /// of layers and the width of the model.
    pub fn new(
        adapters: &[Adapter],
        model: &View,
        size: (usize, usize),
        weights: &mut Weights<'_>,
    ) -> Result<Self, ModelError> {
        let (mut updates, mut weights_to_use) = (AdapterUpdates::default(), Vec::new());
        for (number, adapter) in adapters.iter().enumerate() {
            let of_adapter = |error: AdapterError| error.of(&adapter.name);
            let view = View::untranslated(Arc::clone(&adapter.gguf));
            let part = |tensor: &str, weight| AdapterWeight {
                adapter: adapter.name.clone(),
                tensor: tensor.to_owned(),
                weight,
            };
            if control_vector::is_control_vector(&view) {
                let control_vectors =
                    control_vector::control_vectors(&view, number, size, &mut weights.tensors);
                for (layer, control_vector) in control_vectors.map_err(of_adapter)? {
                    weights_to_use.push(part(
                        &weights.tensors[control_vector.vector.index()].name,
                        control_vector.vector,
                    ));
                    updates.control_vectors.entry(layer).or_default().push(control_vector);
                }
                continue;
            }
            for (of, at, update) in
                lora::low_rank_updates(&view, number, model, weights).map_err(of_adapter)?
            {
                weights_to_use.push(part(of, update.up));
                updates.products.entry(at).or_default().push(update);
            }
        }
        Ok(Self { updates: Arc::new(updates), weights_to_use })
    }

    /// Checks that `graphs`, recorded with the updates, use every update.
    pub fn check_used(&self, graphs: &[Graph]) -> Result<(), ModelError> {
        let mut used: BTreeSet<WeightId> = BTreeSet::new();
        for node in graphs.iter().flat_map(Graph::nodes) {
            match &node.op {
                Op::Linear { w, .. } | Op::PerHeadLinear { w, .. } | Op::Embed { table: w, .. } => {
                    used.insert(*w);
                }
                Op::AddControlVector { control_vector, .. } => {
                    used.insert(control_vector.vector);
                }
                Op::Moe { spec, .. } => {
                    let all =
                        [&spec.lora_updates.gate, &spec.lora_updates.up, &spec.lora_updates.down];
                    used.extend(all.into_iter().flatten().map(|update| update.up));
                }
                _ => {}
            }
        }
        let unused = self.weights_to_use.iter().find(|part| !used.contains(&part.weight));
        unused.map_or(Ok(()), |AdapterWeight { adapter, tensor, .. }| {
            Err(AdapterError::Unused { tensor: tensor.clone() }.of(adapter))
        })
    }
}
