//! A model: an architecture with its weights, ready for a backend.

use std::sync::Arc;

use puna_gguf::{Metadata, View};
use puna_graph::{CacheLayer, Graph, Linear, Op, Rope, Weight, WeightId};

use crate::adapter::{Adapter, AttachedAdapters};
use crate::arch;
use crate::architecture::{Architecture, LoadOptions, ModelShape};
use crate::companion::{DraftMethod, LoadedDraft, OUTPUT_HEAD, TOKEN_TABLE, TargetModel};
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

/// Key that is false in files with bidirectional attention.
const CAUSAL: &str = "attention.causal";

/// Kind of a step, each with a graph of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// Logits over the vocabulary, for the output rows.
    Logits,
    /// [`StepKind::Logits`] of a step with rows of media. The step has an input of
    /// [`Model::media_width`] columns, with zeros for tokens.
    MediaLogits,
    /// Final hidden states, for all rows.
    Hidden,
    /// Encoder states of whole prompts, for all rows. The cache stores the keys and values that the
    /// decoder attends to.
    Encode,
    /// Draft logits of the companion draft model that was loaded with the model
    /// ([`Model::draft_method`]).
    Draft,
    /// Stores the draft model's keys and values of the target's tokens, for all rows; has no
    /// result.
    DraftPrefill,
    /// Logits to add to draft logits for the token before each, for all rows
    /// ([`crate::TransitionHead`]).
    TransitionLogits,
    /// Scores of a reranker's classifier, for the output rows: the first token of each sequence, or
    /// the last one in a causal model.
    Score,
}

/// How hidden states become an embedding of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// No pooling.
    None,
    /// Mean of all tokens.
    Mean,
    /// First token.
    Cls,
    /// Last token.
    Last,
    /// Score of a classifier for the first token, or in a causal model for the last one.
    Rank,
}

/// A model of a known architecture.
pub struct Model {
    architecture: &'static str,
    arch: Box<dyn Architecture>,
    shape: ModelShape,
    pooling: Pooling,
    cache: Vec<CacheLayer>,
    weights: Vec<Weight>,
    ropes: Vec<Rope>,
    states: Vec<usize>,
    adapters: AttachedAdapters,
    /// Whether attention is bidirectional although the architecture's is causal.
    is_bidirectional: bool,
    companion: Option<LoadedDraft>,
    /// Number of the model's own weights; the draft model's weights follow.
    target_weights: usize,
    /// Number of first layers that add rows of media behind them.
    deepstack_layers: usize,
}

impl Model {
    /// Reads the keys and finds the tensors of a file; no weights are read.
    pub fn load(view: &View, options: LoadOptions) -> Result<Self, ModelError> {
        Self::load_with_adapters(view, &[], options)
    }

    /// [`Self::load`] with adapters, all of which apply. The weights of the model stay unchanged.
    ///
    /// # Errors
    /// As [`Model::load`]; [`ModelError::Adapter`] for an adapter that does not fit.
    pub fn load_with_adapters(
        view: &View,
        adapters: &[Adapter],
        options: LoadOptions,
    ) -> Result<Self, ModelError> {
        Self::load_with_draft(view, adapters, options, None)
    }

    /// [`Self::load_with_adapters`] with a companion draft model ([`is_companion`]). Its weights
    /// follow the model's.
    ///
    /// # Errors
    /// As [`Model::load_with_adapters`], for both files; [`ModelError::Companion`] for a draft
    /// model of another target.
    pub fn load_with_draft(
        view: &View,
        adapters: &[Adapter],
        options: LoadOptions,
        companion: Option<&View>,
    ) -> Result<Self, ModelError> {
        let entry = entry(view.metadata())?;
        let keys = Keys::new(view.metadata())?;
        let mut weights = Weights::new(view);
        let loaded = (entry.load)(&keys, &mut weights, options)?;
        let size = (loaded.shape.n_layer, loaded.shape.n_embd);
        let deepstack_layers = deepstack_layers(&keys, loaded.shape.n_layer)?;
        let attached = AttachedAdapters::new(adapters, view, size, &mut weights)?;
        let mut model = Self {
            architecture: entry.name,
            pooling: pooling(&keys)?,
            arch: loaded.arch,
            shape: loaded.shape,
            cache: loaded.cache,
            target_weights: weights.tensors.len(),
            weights: weights.tensors,
            ropes: weights.ropes,
            states: weights.states,
            adapters: attached,
            is_bidirectional: false,
            companion: None,
            deepstack_layers,
        };
        if model.shape.causal && keys.opt_bool(CAUSAL)? == Some(false) {
            model.make_bidirectional(&keys)?;
        }
        if let Some(draft) = companion {
            model.attach_draft(view, draft)?;
        }
        if !adapters.is_empty() {
            let kinds = [StepKind::Logits, StepKind::Hidden, StepKind::Encode, StepKind::Score];
            let graphs: Vec<Graph> =
                kinds.into_iter().filter_map(|kind| model.graph(kind)).collect();
            model.adapters.check_used(&graphs)?;
        }
        Ok(model)
    }

    /// Makes attention bidirectional and drops the cache, for embedding models that are decoders
    /// with `attention.causal = false`.
    ///
    /// # Errors
    /// The architecture has windows or recurrent states.
    fn make_bidirectional(&mut self, keys: &Keys<'_>) -> Result<(), ModelError> {
        self.is_bidirectional = true;
        let graph = self.graph(StepKind::Hidden).unwrap_or_default();
        let is_ordered = |op: &Op| match op {
            Op::Attention { spec, .. } => spec.mask.is_cached() || spec.only_reads,
            Op::TopKPositions { .. } | Op::StoreKv { .. } | Op::Recur(_) => true,
            _ => false,
        };
        if graph.nodes().iter().any(|node| is_ordered(&node.op)) {
            let reason =
                "this architecture has sliding windows or recurrent states, which are causal";
            return Err(ModelError::KeyValue {
                key: keys.name(CAUSAL),
                value: "false".into(),
                reason,
            });
        }
        self.cache = Vec::new();
        self.shape = ModelShape { causal: false, has_logits: false, ..self.shape.clone() };
        Ok(())
    }

    /// Loads a companion draft model after the model.
    fn attach_draft(&mut self, own: &View, draft: &View) -> Result<(), ModelError> {
        let (name, load) = companion_entry(draft.metadata())?;
        let (table, head) = (self.token_matrix(TOKEN_TABLE), self.token_matrix(OUTPUT_HEAD));
        // The architecture holds the scale in its own matrix, which is not accessible here.
        let scale = Weights::new(own).numbers("output.scale", 1)?.map_or(1.0, |scale| scale[0]);
        let (tensors, ropes) = (std::mem::take(&mut self.weights), std::mem::take(&mut self.ropes));
        let mut weights = Weights::after(draft, tensors, ropes);
        let companion = load(&Keys::new(draft.metadata())?, &mut weights)?;
        (self.weights, self.ropes) = (weights.tensors, weights.ropes);
        let n_vocab = self.shape.n_vocab;
        let target = TargetModel {
            architecture: self.architecture,
            width: self.shape.n_embd,
            n_vocab,
            n_layer: self.shape.n_layer,
            cache: &self.cache,
            table,
            head: head.map(|w| Linear { w, scale, bias: None, out: n_vocab }),
        };
        let companion = LoadedDraft::new(name, companion, &target)?;
        // Recording a graph shows whether the tapped layers can be read.
        companion.target_hidden(Graph::new(), &*self.arch)?;
        self.cache.extend_from_slice(companion.cache());
        self.companion = Some(companion);
        Ok(())
    }

    /// Matrix `[n_embd, n_vocab]` of this name, if there is one.
    fn token_matrix(&self, name: &str) -> Option<WeightId> {
        let shape = [self.shape.n_embd, self.shape.n_vocab];
        let is_it = |weight: &Weight| weight.name == name && weight.shape == shape;
        self.weights.iter().position(is_it).map(|at| WeightId(at as u32))
    }

    /// How the companion drafts, if one was loaded.
    pub fn draft_method(&self) -> Option<&DraftMethod> {
        self.companion.as_ref().map(LoadedDraft::method)
    }

    /// Target token of an entry of the draft logits.
    pub fn draft_token_id(&self, entry: usize) -> u32 {
        self.companion.as_ref().map_or(entry as u32, |companion| companion.token(entry))
    }

    /// Tensors of the model, and tensors of its draft model.
    pub fn weights_by_model(&self) -> [&[Weight]; 2] {
        self.weights.split_at(self.target_weights).into()
    }

    /// Name of the architecture.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// Sizes and properties.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// Pooling that the file requests.
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// Cache layers; empty for encoders.
    pub fn cache_layers(&self) -> &[CacheLayer] {
        &self.cache
    }

    /// Cache layers of the draft model, which are the last ones.
    pub fn draft_cache_layers(&self) -> &[CacheLayer] {
        self.companion.as_ref().map_or(&[], LoadedDraft::cache)
    }

    /// Tensors in the order of the graph's ids.
    pub fn weights(&self) -> &[Weight] {
        &self.weights
    }

    /// Rotary tables in the order of the graph's ids.
    pub fn ropes(&self) -> &[Rope] {
        &self.ropes
    }

    /// Columns of the rows of media: the width of the residual stream, and the same again for each
    /// layer that adds rows of media behind it.
    pub fn media_width(&self) -> usize {
        self.shape.n_embd.saturating_mul(self.deepstack_layers.saturating_add(1))
    }

    /// Number of values of each recurrent state of a sequence, in the order of the graph's ids.
    pub fn states(&self) -> &[usize] {
        &self.states
    }

    /// Records the graph of a step; `None` if the model has no steps of this kind.
    pub fn graph(&self, kind: StepKind) -> Option<Graph> {
        let mut g = Graph::with_adapter_updates(Arc::clone(&self.adapters.updates));
        if self.is_bidirectional {
            g = g.bidirectional();
        }
        let result = match kind {
            StepKind::Hidden => self.arch.hidden(&mut g, false),
            StepKind::Logits | StepKind::MediaLogits if self.shape.has_logits => {
                if kind == StepKind::MediaLogits {
                    g = g.with_media(self.deepstack_layers);
                }
                let hidden = match &self.companion {
                    Some(companion) => {
                        // Loading has already recorded this graph without error.
                        let (with, hidden) = companion.target_hidden(g, &*self.arch).ok()?;
                        g = with;
                        hidden
                    }
                    None => self.arch.hidden(&mut g, true),
                };
                self.arch.logits(&mut g, hidden)
            }
            StepKind::Logits | StepKind::MediaLogits => return None,
            StepKind::Encode => self.arch.encode(&mut g)?,
            // Adapters do not apply to the draft model.
            StepKind::Draft => {
                g = Graph::new();
                self.companion.as_ref()?.draft(&mut g)
            }
            StepKind::DraftPrefill => {
                g = Graph::new();
                self.companion.as_ref()?.prefill(&mut g)?
            }
            StepKind::TransitionLogits => {
                g = Graph::new();
                self.companion.as_ref()?.transition_logits(&mut g)?
            }
            StepKind::Score => {
                let hidden = self.arch.hidden(&mut g, true);
                self.arch.score(&mut g, hidden)?
            }
        };
        if kind == StepKind::MediaLogits && !g.takes_media() {
            return None;
        }
        g.set_result(result);
        if !self.adapters.updates.is_empty() {
            g.group_linears_by_input();
        }
        Some(g)
    }
}

/// Names of all architectures.
pub fn known_architectures() -> Vec<&'static str> {
    arch::ARCHITECTURES.iter().map(|a| a.name).collect()
}

/// Names of all companion draft architectures.
pub fn known_companions() -> Vec<&'static str> {
    arch::COMPANIONS.iter().map(|entry| entry.name).collect()
}

/// Whether this version may load files with this `general.architecture`. Only loading decides for
/// files in a layout that a view translates.
pub fn is_supported_architecture(name: &str) -> bool {
    arch::ARCHITECTURES.iter().any(|entry| entry.name == name)
        || companion_named(name).is_some()
        || View::may_translate(name)
}

/// Checks that this version knows the architecture of a file.
///
/// # Errors
/// [`ModelError::UnknownArchitecture`], or a missing key.
pub fn check_architecture(meta: &Metadata) -> Result<(), ModelError> {
    entry(meta).map(drop)
}

fn entry(meta: &Metadata) -> Result<&'static arch::Entry, ModelError> {
    let name = meta.architecture()?;
    let entry = arch::ARCHITECTURES.iter().find(|entry| entry.name == name);
    entry.ok_or_else(|| cannot_load_alone(name))
}

/// Error for an architecture that cannot be loaded on its own.
fn cannot_load_alone(name: &str) -> ModelError {
    if let Some(&arch::CompanionEntry { name, of, .. }) = companion_named(name) {
        return ModelError::DraftWithoutTarget { name, of };
    }
    ModelError::UnknownArchitecture { name: name.into(), known: known_architectures() }
}

fn companion_named(name: &str) -> Option<&'static arch::CompanionEntry> {
    arch::COMPANIONS.iter().find(|entry| entry.name == name)
}

/// Whether a file is a companion draft model, which cannot run without its target.
pub fn is_companion(meta: &Metadata) -> bool {
    meta.architecture().is_ok_and(|name| companion_named(name).is_some())
}

/// Checks keys and tensors of a companion draft model. Whether it fits a target is checked when
/// both are loaded.
///
/// # Errors
/// The first problem that loading finds.
pub fn check_companion(view: &View) -> Result<(), ModelError> {
    let (_, load) = companion_entry(view.metadata())?;
    load(&Keys::new(view.metadata())?, &mut Weights::new(view)).map(drop)
}

fn companion_entry(meta: &Metadata) -> Result<(&'static str, arch::LoadCompanion), ModelError> {
    let name = meta.architecture()?;
    let known = companion_named(name).map(|entry| (entry.name, entry.load));
    known.ok_or_else(|| cannot_load_alone(name))
}

/// Number of first layers that add rows of media behind them.
fn deepstack_layers(keys: &Keys<'_>, n_layer: usize) -> Result<usize, ModelError> {
    let count = keys.opt_count("n_deepstack_layers")?.unwrap_or(0);
    if count > n_layer {
        let (key, value) = (keys.name("n_deepstack_layers"), count.to_string());
        let reason = "must be at most the number of layers";
        return Err(ModelError::KeyValue { key, value, reason });
    }
    Ok(count)
}

fn pooling(keys: &Keys<'_>) -> Result<Pooling, ModelError> {
    Ok(match keys.opt_count("pooling_type")? {
        None | Some(0) => Pooling::None,
        Some(1) => Pooling::Mean,
        Some(2) => Pooling::Cls,
        Some(3) => Pooling::Last,
        Some(4) => Pooling::Rank,
        Some(other) => {
            let reason = "use 0 (none), 1 (mean), 2 (cls), 3 (last) or 4 (rank)";
            let (key, value) = (keys.name("pooling_type"), other.to_string());
            return Err(ModelError::KeyValue { key, value, reason });
        }
    })
}
