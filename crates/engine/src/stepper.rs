//! A model on a backend: programs by size class, made when first needed.

use std::collections::HashMap;

use puna_graph::{Backend, Capacity, Plan, ProgramId, StepInput};
use puna_models::{LoadOptions, Model, Want};

use puna_gguf::View;

use crate::error::EngineError;
use crate::options::{EngineOptions, MemoryReport, ModelInfo, cache_spec, context, memory_of};

/// Runs steps of one model.
pub struct Stepper {
    pub backend: Box<dyn Backend>,
    pub model: Model,
    pub info: ModelInfo,
    pub planned: MemoryReport,
    programs: HashMap<(Want, Capacity), (ProgramId, usize)>,
}

impl Stepper {
    /// Loads a model and hands it to a backend.
    pub fn new(
        view: &View,
        mut backend: Box<dyn Backend>,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        let model = Model::load(view, LoadOptions { n_ctx: options.num_ctx })?;
        backend.adopt(model.weights().to_vec(), model.ropes().to_vec())?;
        let spec = cache_spec(&model, options);
        if spec.pages > 0 {
            backend.create_cache(spec)?;
        }
        let shape = model.shape();
        let info = ModelInfo {
            architecture: model.architecture(),
            n_ctx: context(&model, options),
            n_ctx_train: shape.n_ctx,
            n_embd: shape.n_embd,
            n_layer: shape.n_layer,
            n_vocab: shape.n_vocab,
            causal: shape.causal,
            can_generate: shape.has_logits,
            pooling: model.pooling(),
            parameters: view.gguf().parameter_count(),
        };
        let planned = memory_of(&model, options);
        Ok(Self { backend, model, info, planned, programs: HashMap::new() })
    }

    /// Runs a step; the result has this many columns. `None` where the model has no such result.
    pub fn run(&mut self, want: Want, input: &StepInput) -> Result<Option<usize>, EngineError> {
        let capacity = Capacity::class(input.tokens.len(), input.outputs.len().max(1));
        let (program, cols) = match self.programs.get(&(want, capacity)) {
            Some(&known) => known,
            None => {
                let Some(graph) = self.model.graph(want) else { return Ok(None) };
                let cols = graph.result().map_or(0, |result| graph.value(result).cols);
                let program = self.backend.compile(Plan::new(graph, capacity))?;
                self.programs.insert((want, capacity), (program, cols));
                (program, cols)
            }
        };
        self.backend.run(program, input);
        Ok(Some(cols))
    }
}
