//! A model: an architecture with its weights, ready for a backend.

use std::sync::Arc;

use puna_gguf::{Metadata, View};
use puna_graph::{CacheLayer, Graph, Linear, Op, Rope, ValueId, Weight, WeightId};

use crate::adapter::{Adapter, Attached};
use crate::arch;
use crate::companion::{Accompanying, Guesses, HEAD, Host, TABLE};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::weights::Weights;

/// Whether tokens see only what came before, where files say it.
const CAUSAL: &str = "attention.causal";

/// What a step is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Want {
    /// Logits over the vocabulary, for the wanted rows.
    Logits,
    /// Final hidden states, for all rows.
    Hidden,
    /// What an encoder makes of prompts, for all rows: it reads each as a whole, and the cache keeps what the decoder needs of them.
    Encode,
    /// Guesses of the draft model that was loaded with the model ([`Model::guesses`]).
    Guess,
    /// What that keeps of the model's tokens, for all rows; gives nothing.
    Follow,
    /// What is added to logits of its guesses for the token before each, for all rows.
    Link,
    /// The classifier head of a reranker, for the wanted rows: each sequence's first token, or its last in a causal
    /// model.
    Score,
}

/// How token vectors become one vector of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Not at all.
    None,
    /// Their mean.
    Mean,
    /// The first token's.
    Cls,
    /// The last token's.
    Last,
    /// A score from the first token's, or the last token's in a causal model, by a classifier.
    Rank,
}

/// How a diffusion model makes a text: of masks that it replaces by tokens, in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unmasking {
    /// The token that stands for one that is not known.
    pub mask: u32,
    /// Whether the row of the token before it says what a mask is, rather than its own.
    pub is_shifted: bool,
    /// Places that are filled together before the next ones, as the model was published; `None` is the whole answer.
    pub block: Option<usize>,
    /// Which places come first, as the model was published.
    pub order: Order,
}

/// Which of the masked places of a text become tokens first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Those whose token is the likeliest.
    Confidence,
    /// Those whose distribution has least entropy.
    Entropy,
    /// Those whose two likeliest tokens differ most.
    Margin,
    /// Any, as many as are due.
    Random,
    /// Each with the same chance, so that as many as are due come on average.
    Origin,
}

/// A family of models: what its layers compute.
pub(crate) trait Architecture: Send + Sync {
    /// Records one step: from token ids to the final hidden states of all rows, after the last norm; rows that
    /// are not wanted may be dropped on the way when `outputs_only`.
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId;

    /// Records the step in which an encoder reads prompts, whose keys and values are kept for those that follow; `None` where the prompt is
    /// read by what writes the answer.
    fn encode(&self, _g: &mut Graph) -> Option<ValueId> {
        None
    }

    /// Logits of final hidden states.
    fn logits(&self, g: &mut Graph, hidden: ValueId) -> ValueId;

    /// The classifier head; `None` where the file has none.
    fn score(&self, _g: &mut Graph, _hidden: ValueId) -> Option<ValueId> {
        None
    }
}

/// What an architecture file hands to the loader beside its graph.
pub(crate) struct Loaded {
    pub arch: Box<dyn Architecture>,
    /// Empty for encoders.
    pub cache: Vec<CacheLayer>,
    pub shape: Shape,
}

/// Figures of a model that others need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Context that the model was trained with.
    pub n_ctx: usize,
    /// Features of the hidden state.
    pub n_embd: usize,
    /// Layers.
    pub n_layer: usize,
    /// Entries of the vocabulary.
    pub n_vocab: usize,
    /// Whether tokens see only what came before; encoders see everything.
    pub causal: bool,
    /// Whether there is an output matrix over the vocabulary.
    pub has_logits: bool,
    /// The token that answers begin with, where an encoder reads the prompt ([`Want::Encode`]).
    pub start: Option<u32>,
    /// Labels of the classifier head, if there is one.
    pub score_labels: usize,
    /// Whether scores are the softmax of what the head gives.
    pub score_is_softmax: bool,
    /// How text is made where that is not token by token.
    pub unmasking: Option<Unmasking>,
}

impl Shape {
    /// A causal decoder with an output matrix.
    pub(crate) fn decoder(hp: &Hparams) -> Self {
        let Hparams { n_ctx, n_embd, n_layer, n_vocab, .. } = *hp;
        Self {
            n_ctx,
            n_embd,
            n_layer,
            n_vocab,
            causal: true,
            has_logits: true,
            start: None,
            score_labels: 0,
            score_is_softmax: false,
            unmasking: None,
        }
    }
}

/// What the caller decides before loading.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions {
    /// The context of a sequence, which chooses between the factors of long-rope models; `None` takes the
    /// context that the model was trained with.
    pub n_ctx: Option<usize>,
}

/// A model of a known architecture.
pub struct Model {
    architecture: &'static str,
    arch: Box<dyn Architecture>,
    shape: Shape,
    pooling: Pooling,
    cache: Vec<CacheLayer>,
    weights: Vec<Weight>,
    ropes: Vec<Rope>,
    states: Vec<usize>,
    adapted: Attached,
    /// Whether tokens see those behind them where the architecture's would not.
    sees_all: bool,
    companion: Option<Accompanying>,
    /// How many of the weights are its own; those behind them are the draft model's.
    own_weights: usize,
}

impl Model {
    /// Reads the keys and finds the tensors of a file; no weight is read.
    pub fn load(view: &View, options: LoadOptions) -> Result<Self, ModelError> {
        Self::load_adapted(view, &[], options)
    }

    /// The same with adapters, which all apply. The model's own weights stay as they are.
    ///
    /// # Errors
    /// As [`Model::load`]; [`ModelError::Adapter`] for one that does not fit.
    pub fn load_adapted(
        view: &View,
        adapters: &[Adapter],
        options: LoadOptions,
    ) -> Result<Self, ModelError> {
        Self::load_accompanied(view, adapters, options, None)
    }

    /// The same with a draft model that guesses with parts of it ([`is_companion`]): its weights are behind the model's.
    ///
    /// # Errors
    /// As [`Model::load_adapted`], for both files; [`ModelError::Companion`] for one of another model.
    pub fn load_accompanied(
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
        let adapted = Attached::new(adapters, view, size, &mut weights)?;
        let mut model = Self {
            architecture: entry.name,
            pooling: pooling(&keys)?,
            arch: loaded.arch,
            shape: loaded.shape,
            cache: loaded.cache,
            own_weights: weights.tensors.len(),
            weights: weights.tensors,
            ropes: weights.ropes,
            states: weights.states,
            adapted,
            sees_all: false,
            companion: None,
        };
        if model.shape.causal && keys.opt_bool(CAUSAL)? == Some(false) {
            model.see_all(&keys)?;
        }
        if let Some(draft) = companion {
            model.accompany(view, draft)?;
        }
        if !adapters.is_empty() {
            let wanted = [Want::Logits, Want::Hidden, Want::Encode, Want::Score];
            let graphs: Vec<Graph> =
                wanted.into_iter().filter_map(|want| model.graph(want)).collect();
            model.adapted.check_used(&graphs)?;
        }
        Ok(model)
    }

    /// Makes an encoder of a decoder, as files of embedding models ask for: every token sees the whole text.
    ///
    /// # Errors
    /// The architecture has parts that do not see a text as a whole.
    fn see_all(&mut self, keys: &Keys<'_>) -> Result<(), ModelError> {
        self.sees_all = true;
        let graph = self.graph(Want::Hidden).unwrap_or_default();
        let is_ordered = |op: &Op| match op {
            Op::Attention { spec, .. } => spec.mask.is_cached() || spec.only_reads,
            Op::TopKPositions { .. } | Op::StoreKv { .. } | Op::Recur(_) => true,
            _ => false,
        };
        if graph.nodes().iter().any(|node| is_ordered(&node.op)) {
            let reason = "this architecture has windows or states, which only look back";
            return Err(ModelError::KeyValue {
                key: keys.name(CAUSAL),
                value: "false".into(),
                reason,
            });
        }
        self.cache = Vec::new();
        self.shape = Shape { causal: false, has_logits: false, ..self.shape.clone() };
        Ok(())
    }

    /// Loads a draft model behind it.
    fn accompany(&mut self, own: &View, draft: &View) -> Result<(), ModelError> {
        let (name, load) = companion_entry(draft.metadata())?;
        let (table, head) = (self.table_named(TABLE), self.table_named(HEAD));
        // The architecture has it with its own matrix, which is not seen from here.
        let scale = Weights::new(own).numbers("output.scale", 1)?.map_or(1.0, |scale| scale[0]);
        let (tensors, ropes) = (std::mem::take(&mut self.weights), std::mem::take(&mut self.ropes));
        let mut weights = Weights::behind(draft, tensors, ropes);
        let companion = load(&Keys::new(draft.metadata())?, &mut weights)?;
        (self.weights, self.ropes) = (weights.tensors, weights.ropes);
        let n_vocab = self.shape.n_vocab;
        let host = Host {
            architecture: self.architecture,
            width: self.shape.n_embd,
            n_vocab,
            n_layer: self.shape.n_layer,
            cache: &self.cache,
            table,
            head: head.map(|w| Linear { w, scale, bias: None, out: n_vocab }),
        };
        let companion = Accompanying::new(name, companion, &host)?;
        // Whether its layers' inputs can be read shows when they are recorded.
        companion.hidden(Graph::new(), &*self.arch)?;
        self.cache.extend_from_slice(companion.cache());
        self.companion = Some(companion);
        Ok(())
    }

    /// A matrix with a row for each token, if it has one of that name.
    fn table_named(&self, name: &str) -> Option<WeightId> {
        let shape = [self.shape.n_embd, self.shape.n_vocab];
        let is_it = |weight: &Weight| weight.name == name && weight.shape == shape;
        self.weights.iter().position(is_it).map(|at| WeightId(at as u32))
    }

    /// How the draft model guesses that was loaded with the model, if one was.
    pub fn guesses(&self) -> Option<&Guesses> {
        self.companion.as_ref().map(Accompanying::guesses)
    }

    /// The token that an entry of the draft model's logits stands for.
    pub fn guessed_token(&self, entry: usize) -> u32 {
        self.companion.as_ref().map_or(entry as u32, |companion| companion.token(entry))
    }

    /// The model's own tensors, and those of the draft model that was loaded with it.
    pub fn weights_by_model(&self) -> [&[Weight]; 2] {
        self.weights.split_at(self.own_weights).into()
    }

    /// The architecture's name.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// Figures.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// How the file wants token vectors pooled.
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// The cache's layers; empty for encoders.
    pub fn cache_layers(&self) -> &[CacheLayer] {
        &self.cache
    }

    /// Those of the draft model that was loaded with the model, the last ones.
    pub fn draft_cache_layers(&self) -> &[CacheLayer] {
        self.companion.as_ref().map_or(&[], Accompanying::cache)
    }

    /// The tensors, in the order of the graph's ids.
    pub fn weights(&self) -> &[Weight] {
        &self.weights
    }

    /// The rotary tables, in the order of the graph's ids.
    pub fn ropes(&self) -> &[Rope] {
        &self.ropes
    }

    /// Values of each recurrent state of a sequence, in the order of the graph's numbers; empty for most.
    pub fn states(&self) -> &[usize] {
        &self.states
    }

    /// Records a step; `None` where the model has no such result.
    pub fn graph(&self, want: Want) -> Option<Graph> {
        let mut g = Graph::with_changes(Arc::clone(&self.adapted.changes));
        if self.sees_all {
            g = g.seeing_all();
        }
        let result = match want {
            Want::Hidden => self.arch.hidden(&mut g, false),
            Want::Logits if self.shape.has_logits => {
                let hidden = match &self.companion {
                    Some(companion) => {
                        // That it can be recorded was found when it was loaded.
                        let (with, hidden) = companion.hidden(g, &*self.arch).ok()?;
                        g = with;
                        hidden
                    }
                    None => self.arch.hidden(&mut g, true),
                };
                self.arch.logits(&mut g, hidden)
            }
            Want::Logits => return None,
            Want::Encode => self.arch.encode(&mut g)?,
            // What the draft model reads of the model is as the model's file has it.
            Want::Guess => {
                g = Graph::new();
                self.companion.as_ref()?.guess(&mut g)
            }
            Want::Follow => {
                g = Graph::new();
                self.companion.as_ref()?.follow(&mut g)?
            }
            Want::Link => {
                g = Graph::new();
                self.companion.as_ref()?.link(&mut g)?
            }
            Want::Score => {
                let hidden = self.arch.hidden(&mut g, true);
                self.arch.score(&mut g, hidden)?
            }
        };
        g.set_result(result);
        if !self.adapted.changes.is_empty() {
            g.join_products();
        }
        Some(g)
    }
}

/// Names of all architectures.
pub fn known_architectures() -> Vec<&'static str> {
    arch::ARCHITECTURES.iter().map(|a| a.name).collect()
}

/// Names of draft models that guess with parts of their model.
pub fn known_companions() -> Vec<&'static str> {
    arch::COMPANIONS.iter().map(|entry| entry.name).collect()
}

/// Checks that a file is of an architecture that this version knows.
///
/// # Errors
/// [`ModelError::UnknownArchitecture`], or the file does not say.
pub fn check_architecture(meta: &Metadata) -> Result<(), ModelError> {
    entry(meta).map(drop)
}

fn entry(meta: &Metadata) -> Result<&'static arch::Entry, ModelError> {
    let name = meta.architecture()?;
    let entry = arch::ARCHITECTURES.iter().find(|entry| entry.name == name);
    entry.ok_or_else(|| not_alone(name))
}

/// Why nothing that is called so runs by itself.
fn not_alone(name: &str) -> ModelError {
    if let Some(&arch::CompanionEntry { name, of, .. }) = companion_named(name) {
        return ModelError::NeedsItsModel { name, of };
    }
    ModelError::UnknownArchitecture { name: name.into(), known: known_architectures() }
}

fn companion_named(name: &str) -> Option<&'static arch::CompanionEntry> {
    arch::COMPANIONS.iter().find(|entry| entry.name == name)
}

/// Whether a file is a draft model that guesses with parts of its model, and does not run alone.
pub fn is_companion(meta: &Metadata) -> bool {
    meta.architecture().is_ok_and(|name| companion_named(name).is_some())
}

/// Checks the keys and tensors of a file that [`is_companion`]: whether it fits a model is found when that is loaded with it.
///
/// # Errors
/// What is wrong with it.
pub fn check_companion(view: &View) -> Result<(), ModelError> {
    let (_, load) = companion_entry(view.metadata())?;
    load(&Keys::new(view.metadata())?, &mut Weights::new(view)).map(drop)
}

fn companion_entry(meta: &Metadata) -> Result<(&'static str, arch::LoadCompanion), ModelError> {
    let name = meta.architecture()?;
    let known = companion_named(name).map(|entry| (entry.name, entry.load));
    known.ok_or_else(|| not_alone(name))
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
