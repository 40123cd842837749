//! Adapters: files that change a model, whose own weights stay as they are. LoRA adapters change products, control vectors
//! what layers hand on; how much of each a sequence has is its dose, one where it does not say.

mod error;
mod lora;
mod low_rank;
mod steering;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use puna_gguf::{Gguf, TensorView, View};
use puna_graph::{Changes, Graph, Op, WeightId};

pub use error::AdapterError;

use crate::error::ModelError;
use crate::weights::Weights;

/// An adapter's file, and what errors call it.
#[derive(Clone)]
pub struct Adapter {
    name: String,
    gguf: Arc<Gguf>,
}

impl Adapter {
    /// An adapter. Whether it fits a model is found when one is loaded with it.
    pub fn new(name: impl Into<String>, gguf: Arc<Gguf>) -> Self {
        Self { name: name.into(), gguf }
    }

    /// What errors call it.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Adapter").field(&self.name).finish()
    }
}

/// Two handles of one opened file are the same adapter.
impl PartialEq for Adapter {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.gguf, &other.gguf)
    }
}

impl Eq for Adapter {}

/// The changes of all adapters of a model.
#[derive(Debug, Default)]
pub(crate) struct Attached {
    pub changes: Arc<Changes>,
    parts: Vec<Part>,
}

/// Refuses values that are no numbers: a dose of zero would not take them away, and requests without the adapter would have them too.
fn check_values(tensor: &TensorView<'_>) -> Result<(), AdapterError> {
    puna_quant::validate(tensor.ty, &tensor.bytes()).map_err(|error| AdapterError::Values {
        tensor: tensor.name.to_owned(),
        reason: error.to_string(),
    })
}

/// A weight of an adapter: that of a file's tensor that nothing of the model may be left without.
#[derive(Debug)]
struct Part {
    adapter: String,
    tensor: String,
    weight: WeightId,
}

impl Attached {
    /// Finds what `adapters` change of a model with these `weights` and so many layers of so many features, and adds their own
    /// tensors to those.
    pub fn new(
        adapters: &[Adapter],
        model: &View,
        size: (usize, usize),
        weights: &mut Weights<'_>,
    ) -> Result<Self, ModelError> {
        let (mut changes, mut parts) = (Changes::default(), Vec::new());
        for (number, adapter) in adapters.iter().enumerate() {
            let of_adapter = |error: AdapterError| error.of(&adapter.name);
            let view = View::untranslated(Arc::clone(&adapter.gguf));
            let part = |tensor: &str, weight| Part {
                adapter: adapter.name.clone(),
                tensor: tensor.to_owned(),
                weight,
            };
            if steering::is_control_vector(&view) {
                let directions = steering::directions(&view, number, size, &mut weights.tensors);
                for (layer, direction) in directions.map_err(of_adapter)? {
                    parts.push(part(
                        &weights.tensors[direction.vector.index()].name,
                        direction.vector,
                    ));
                    changes.directions.entry(layer).or_default().push(direction);
                }
                continue;
            }
            for (of, at, change) in
                lora::changes(&view, number, model, weights).map_err(of_adapter)?
            {
                parts.push(part(of, change.up));
                changes.products.entry(at).or_default().push(change);
            }
        }
        Ok(Self { changes: Arc::new(changes), parts })
    }

    /// Checks that `graphs`, which were recorded with the changes, use every one of them.
    pub fn check_used(&self, graphs: &[Graph]) -> Result<(), ModelError> {
        let mut used: BTreeSet<WeightId> = BTreeSet::new();
        for node in graphs.iter().flat_map(Graph::nodes) {
            match &node.op {
                Op::Linear { w, .. } | Op::LinearOfHeads { w, .. } | Op::Embed { table: w, .. } => {
                    used.insert(*w);
                }
                Op::Steer { direction, .. } => drop(used.insert(direction.vector)),
                Op::Moe { spec, .. } => {
                    let all = [&spec.changes.gate, &spec.changes.up, &spec.changes.down];
                    used.extend(all.into_iter().flatten().map(|change| change.up));
                }
                _ => {}
            }
        }
        let unused = self.parts.iter().find(|part| !used.contains(&part.weight));
        unused.map_or(Ok(()), |Part { adapter, tensor, .. }| {
            Err(AdapterError::Unused { tensor: tensor.clone() }.of(adapter))
        })
    }
}
