//! Companion draft models: they use the hidden states, the KV cache or the embeddings of their
//! target model. Their weights and cache layers follow the target's on the same backend, so that
//! their graphs can name both.

use puna_graph::{CacheLayer, Graph, Linear, Rows, Value, ValueId, WeightId};

use crate::architecture::Architecture;
use crate::error::ModelError;
use crate::hyper::mean;

/// Records the graphs of a companion draft model.
pub(crate) trait Drafter: Send + Sync {
    /// Records nodes behind the target's own step, from its last hidden states and from the inputs
    /// of the layers that [`TargetRequirements::tapped_layers`] names. The results are extra
    /// outputs (states), or keys and values in the cache.
    fn tap_target(&self, g: &mut Graph, hidden: ValueId, inputs: &[ValueId], target: &TargetParts);

    /// Records a step that stores keys and values of the target's tokens, for drafters that need
    /// more than the target's own step has. Each row reads a token and the state
    /// ([`Graph::input_rows`]) of the token before it.
    fn prefill(&self, _g: &mut Graph, _target: &TargetParts) -> Option<ValueId> {
        None
    }

    /// Records a draft step, as [`DraftMethod`] describes it. Returns the logits of the next
    /// tokens.
    fn draft(&self, g: &mut Graph, target: &TargetParts) -> ValueId;

    /// Records the transition logits of a block, as [`TransitionHead`] describes them.
    fn transition_logits(&self, _g: &mut Graph) -> Option<ValueId> {
        None
    }
}

/// How a companion drafts tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DraftMethod {
    /// One token per step. A row for each sequence reads its latest token or draft token, and a
    /// state ([`puna_graph::StepInput::inputs`]). The first state is that of the latest
    /// computed token; each step adds the state for the next one as an extra output.
    Chain {
        /// Dimensions of a state.
        state_dim: usize,
        /// Cache that the draft rows attend to.
        cache: DraftCache,
    },
    /// Several tokens per step: the rows of a sequence are its latest token and mask tokens, at the
    /// positions behind the computed ones.
    Block(DraftBlock),
}

impl DraftMethod {
    /// Largest number of rows of a sequence in a draft step.
    pub fn rows(&self) -> usize {
        match self {
            Self::Chain { .. } => 1,
            Self::Block(block) => block.rows,
        }
    }
}

/// Block of draft tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftBlock {
    /// Number of rows that the draft model was trained with.
    pub rows: usize,
    /// Mask token, which stands for a token to be drafted.
    pub mask: u32,
    /// First row with a prediction. With 0, a row predicts the token behind it; with 1, the token
    /// at its own position.
    pub first_output_row: usize,
    /// Dependency of a token on the token before it, if any.
    pub transition: Option<TransitionHead>,
}

/// Head that makes a token of a block depend on the token before it.
/// [`crate::StepKind::TransitionLogits`] computes logits from the token before and the state of a
/// row; they are added to the logits of the block's step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransitionHead {
    /// Dimensions of the state that the block's step has as extra output; zero if no state is read.
    pub state_dim: usize,
    /// Whether the step has the confidence of the draft model as extra output, before the sigmoid.
    pub has_confidence: bool,
    /// Number of likeliest tokens of which one is taken; `None` for all.
    pub top_k: Option<usize>,
    /// Whether the transition logits cover the target's whole vocabulary although the draft logits
    /// cover fewer tokens.
    pub is_full_vocabulary: bool,
}

/// Keys and values that a chain attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftCache {
    /// Keys and values of the target. All rows of a sequence have the position of its latest
    /// computed token, which has the last keys and values in the cache. The target's own step has a
    /// state for each of its outputs.
    Target,
    /// Keys and values of the draft model, computed from a token and the state of the token before;
    /// the first token has none. The target's own step has a state for each of its rows, and
    /// [`crate::StepKind::DraftPrefill`] stores keys and values for them.
    Own,
}

/// A loaded companion, before it is bound to its target model.
pub(crate) struct Companion {
    pub drafter: Box<dyn Drafter>,
    pub method: DraftMethod,
    pub requirements: TargetRequirements,
    /// Cache layers of the draft model itself.
    pub cache: Vec<CacheLayer>,
    /// Target token of each entry of the draft logits; `None` if the logits cover the whole
    /// vocabulary.
    pub tokens: Option<Vec<u32>>,
}

/// Requirements of a companion on its target model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TargetRequirements {
    /// Dimensions of the target's hidden states.
    pub width: usize,
    /// Entries of the vocabulary.
    pub n_vocab: usize,
    /// Dimensions of the target's embeddings and output matrix, if the companion uses them.
    pub shared_width: Option<usize>,
    /// Cache layers of the target that the companion reads. Each stands for the target's last layer
    /// of its kind: with a sliding window, or without.
    pub cache_layers: Vec<CacheLayer>,
    /// Layers of the target that provide their inputs to the companion. Layer 0 is the first; the
    /// number of layers stands for the output of the last one.
    pub tapped_layers: Vec<usize>,
}

/// The required parts, found in a target model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TargetParts {
    /// Embeddings and output matrix of the target, if the companion uses them.
    pub shared: Option<(WeightId, Linear)>,
    /// Index in the target's cache of each cache layer that the companion reads.
    pub cache_layers: Vec<usize>,
    /// Index of the companion's first layer in that cache.
    pub first_cache_layer: usize,
}

/// Companion draft model, loaded for a target model.
pub(crate) struct LoadedDraft {
    name: &'static str,
    /// Architecture of the target.
    model: &'static str,
    companion: Companion,
    target: TargetParts,
    /// Whether the companion taps the output of the last layer, so that this layer must compute all
    /// rows.
    taps_last_layer: bool,
}

impl LoadedDraft {
    /// Checks the companion against its target.
    pub fn new(
        name: &'static str,
        companion: Companion,
        target_model: &TargetModel<'_>,
    ) -> Result<Self, ModelError> {
        let target = companion.requirements.resolve(name, target_model)?;
        let taps_last_layer = companion.requirements.tapped_layers.contains(&target_model.n_layer);
        Ok(Self { name, model: target_model.architecture, companion, target, taps_last_layer })
    }

    /// How the companion drafts.
    pub fn method(&self) -> &DraftMethod {
        &self.companion.method
    }

    /// Cache layers of the companion itself.
    pub fn cache(&self) -> &[CacheLayer] {
        &self.companion.cache
    }

    /// Target token of an entry of the draft logits.
    pub fn token(&self, entry: usize) -> u32 {
        let tokens = self.companion.tokens.as_ref();
        tokens.map_or(entry as u32, |tokens| tokens[entry])
    }

    /// Records the target's own step with the nodes that the companion taps. Returns the last
    /// hidden states of the output rows.
    pub fn target_hidden(
        &self,
        mut g: Graph,
        model: &dyn Architecture,
    ) -> Result<(Graph, ValueId), ModelError> {
        g = g.with_feature_taps(&self.companion.requirements.tapped_layers);
        let hidden = model.hidden(&mut g, !self.taps_last_layer);
        let hidden = match g.value(hidden).rows {
            Rows::Outputs => hidden,
            Rows::Tokens => g.gather_outputs(hidden),
        };
        let inputs = self.tapped_inputs(&mut g)?;
        self.companion.drafter.tap_target(&mut g, hidden, &inputs, &self.target);
        Ok((g, hidden))
    }

    /// Values of the tapped layers, recorded by [`Graph::with_feature_taps`]. Several residual
    /// streams are averaged.
    ///
    /// # Errors
    /// The target's graph does not record a tapped layer, or its value is not a residual stream.
    fn tapped_inputs(&self, g: &mut Graph) -> Result<Vec<ValueId>, ModelError> {
        let TargetRequirements { width, tapped_layers: layers, .. } = &self.companion.requirements;
        let taps: Vec<_> = g.feature_taps().zip(layers).collect();
        let mut inputs = Vec::with_capacity(taps.len());
        for (input, layer) in taps {
            let is_stream =
                |value: Value| value.rows == Rows::Tokens && value.cols.is_multiple_of(*width);
            let Some(input) = input.filter(|&input| is_stream(g.value(input))) else {
                return Err(ModelError::UnreadableLayer {
                    draft: self.name,
                    model: self.model,
                    layer: *layer,
                });
            };
            let streams = g.value(input).cols / width;
            inputs.push(if streams == 1 { input } else { mean(g, input, streams) });
        }
        Ok(inputs)
    }

    /// Records a draft step.
    pub fn draft(&self, g: &mut Graph) -> ValueId {
        self.companion.drafter.draft(g, &self.target)
    }

    /// Records the transition logits of a block, if the companion has a transition head.
    pub fn transition_logits(&self, g: &mut Graph) -> Option<ValueId> {
        self.companion.drafter.transition_logits(g)
    }

    /// Records the prefill step of the companion, if it needs one.
    pub fn prefill(&self, g: &mut Graph) -> Option<ValueId> {
        self.companion.drafter.prefill(g, &self.target)
    }
}

/// Properties of the target model that requirements are compared with.
pub(crate) struct TargetModel<'a> {
    pub architecture: &'static str,
    pub width: usize,
    pub n_vocab: usize,
    pub n_layer: usize,
    pub cache: &'a [CacheLayer],
    /// Token embeddings, if a tensor has the usual name and shape.
    pub table: Option<WeightId>,
    /// Output matrix; `None` if the embeddings serve as one.
    pub head: Option<Linear>,
}

impl TargetRequirements {
    /// Finds the required parts in a target model.
    pub fn resolve(
        &self,
        draft: &'static str,
        target_model: &TargetModel<'_>,
    ) -> Result<TargetParts, ModelError> {
        let differ = |difference| ModelError::Companion {
            draft,
            model: target_model.architecture,
            difference,
        };
        let (width, n_vocab) = (target_model.width, target_model.n_vocab);
        if self.width != width {
            let reads = self.width;
            return Err(differ(format!(
                "it needs hidden states of {reads} features, the model's have {width}"
            )));
        }
        if self.n_vocab != n_vocab {
            let own = self.n_vocab;
            return Err(differ(format!("its vocabulary has {own} entries, the model's {n_vocab}")));
        }
        if let Some(own) = self.shared_width.filter(|&own| own != width) {
            return Err(differ(format!(
                "it uses the model's embeddings with {own} features, but they have {width}"
            )));
        }
        if let Some(layer) =
            self.tapped_layers.iter().find(|&&layer| layer == 0 || layer > target_model.n_layer)
        {
            let last = target_model.n_layer;
            return Err(differ(format!(
                "it needs the input of layer {layer}, but the model has layers 1 to {last}"
            )));
        }
        let layers = self
            .cache_layers
            .iter()
            .map(|layer| last_layer_of_kind(layer, target_model.cache).map_err(differ));
        let layers = layers.collect::<Result<_, _>>()?;
        let shared = |_| -> Result<_, ModelError> {
            let table = target_model.table.ok_or_else(|| {
                differ(format!(
                    "it uses the model's embeddings, but the model has no `{TOKEN_TABLE}` with one row per token"
                ))
            })?;
            let tied = Linear { w: table, scale: 1.0, bias: None, out: n_vocab };
            Ok((table, target_model.head.unwrap_or(tied)))
        };
        Ok(TargetParts {
            shared: self.shared_width.map(shared).transpose()?,
            cache_layers: layers,
            first_cache_layer: target_model.cache.len(),
        })
    }
}

impl TargetParts {
    /// Token embeddings of the draft model, or else of the target.
    pub fn token_table(&self, own: Option<WeightId>) -> WeightId {
        own.or(self.shared.map(|(table, _)| table)).expect("a model without embeddings was refused")
    }

    /// Output matrix of the draft model, or else of the target.
    pub fn output_head<'a>(&'a self, own: Option<&'a Linear>) -> &'a Linear {
        own.or(self.shared.as_ref().map(|(_, head)| head)).expect("a model without one was refused")
    }
}

/// Concatenates the inputs of several layers.
pub(crate) fn concat_features(g: &mut Graph, name: &'static str, inputs: &[ValueId]) -> ValueId {
    inputs[1..].iter().fold(inputs[0], |all, &input| g.concat(name, all, input))
}

/// Name of the token embeddings in files.
pub(crate) const TOKEN_TABLE: &str = "token_embd.weight";
/// Name of the output matrix in files.
pub(crate) const OUTPUT_HEAD: &str = "output.weight";

/// Index of the last cache layer of the same kind (with or without a sliding window), if its shape
/// and range suffice.
fn last_layer_of_kind(layer: &CacheLayer, cache: &[CacheLayer]) -> Result<usize, String> {
    let kind = if layer.has_window() { "a sliding window" } else { "full attention" };
    let found =
        cache.iter().rposition(|target_layer| target_layer.has_window() == layer.has_window());
    let found = found.ok_or_else(|| {
        format!("it needs the KV cache of a layer with {kind}, but the model has none")
    })?;
    let target_layer = &cache[found];
    let dims = |l: &CacheLayer| (l.kv_heads, l.key_dim, l.value_dim);
    if dims(target_layer) != dims(layer) || target_layer.values_in_keys != layer.values_in_keys {
        let [own, target_layer] = [layer, target_layer].map(|l| {
            format!("{} KV heads of {} and {} features", l.kv_heads, l.key_dim, l.value_dim)
        });
        return Err(format!(
            "it needs {own} in the last layer with {kind}, which has {target_layer}"
        ));
    }
    if !layer.mask.is_within(target_layer.mask) {
        let [own, target_layer] =
            [layer, target_layer].map(|l| l.mask.reach().unwrap_or(usize::MAX));
        return Err(format!(
            "it needs {own} positions of the last layer with {kind}, which has {target_layer}"
        ));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use puna_graph::Mask;

    use super::*;

    fn layer(kv_heads: usize, dim: usize, mask: Mask) -> CacheLayer {
        CacheLayer { kv_heads, key_dim: dim, value_dim: dim, values_in_keys: false, mask }
    }

    fn requirements() -> TargetRequirements {
        let layers = vec![
            layer(2, 8, Mask::Window(5)),
            layer(1, 16, Mask::Causal),
            layer(2, 8, Mask::Window(5)),
        ];
        TargetRequirements {
            width: 32,
            n_vocab: 100,
            cache_layers: layers,
            ..TargetRequirements::default()
        }
    }

    fn target_model(width: usize, n_vocab: usize, cache: &[CacheLayer]) -> TargetModel<'_> {
        let table = Some(WeightId(7));
        TargetModel { architecture: "some", width, n_vocab, n_layer: 6, cache, table, head: None }
    }

    #[test]
    fn the_last_cache_layer_of_each_kind_is_used() {
        let cache = [Mask::Window(6), Mask::Causal, Mask::Window(6), Mask::Causal];
        let cache = cache
            .map(|mask| if mask == Mask::Causal { layer(1, 16, mask) } else { layer(2, 8, mask) });
        let target_model = target_model(32, 100, &cache);
        let target =
            TargetParts { shared: None, cache_layers: vec![2, 3, 2], first_cache_layer: 4 };
        assert_eq!(requirements().resolve("draft", &target_model), Ok(target));
    }

    #[test]
    fn a_companion_shares_embeddings_and_output_matrix_which_may_be_tied() {
        let (tied, table) =
            (Linear { w: WeightId(7), scale: 1.0, bias: None, out: 100 }, WeightId(7));
        let own = Linear { w: WeightId(9), scale: 2.0, ..tied };
        let requirements = TargetRequirements {
            shared_width: Some(32),
            cache_layers: Vec::new(),
            ..requirements()
        };
        let shared = |target_model: &TargetModel<'_>| {
            requirements.resolve("draft", target_model).map(|target| target.shared)
        };
        assert_eq!(shared(&target_model(32, 100, &[])), Ok(Some((table, tied))));
        assert_eq!(
            shared(&TargetModel { head: Some(own), ..target_model(32, 100, &[]) }),
            Ok(Some((table, own)))
        );
        let error = shared(&TargetModel { table: None, ..target_model(32, 100, &[]) })
            .unwrap_err()
            .to_string();
        assert!(error.contains("`token_embd.weight`"), "{error}");
        let alone = TargetRequirements { shared_width: None, ..requirements.clone() };
        assert!(
            alone
                .resolve("draft", &TargetModel { table: None, ..target_model(32, 100, &[]) })
                .is_ok()
        );
    }

    #[test]
    fn mismatches_are_reported_with_both_numbers() {
        let cache = [layer(2, 8, Mask::Window(6)), layer(1, 16, Mask::Causal)];
        let of = |width, n_vocab, cache: &[CacheLayer]| {
            requirements()
                .resolve("draft", &target_model(width, n_vocab, cache))
                .unwrap_err()
                .to_string()
        };
        let assert_contains = |error: String, words: &[&str]| {
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        };
        let error_of = |requirements: TargetRequirements| {
            requirements.resolve("draft", &target_model(32, 100, &cache)).unwrap_err().to_string()
        };
        assert_contains(
            error_of(TargetRequirements { shared_width: Some(24), ..requirements() }),
            &["24 features", "32"],
        );
        assert_contains(
            error_of(TargetRequirements { tapped_layers: vec![1, 7], ..requirements() }),
            &["input of layer 7", "1 to 6"],
        );
        assert_contains(
            error_of(TargetRequirements { tapped_layers: vec![0], ..requirements() }),
            &["input of layer 0", "1 to 6"],
        );
        assert_contains(of(48, 100, &cache), &["`draft`", "`some`", "32 features", "48"]);
        assert_contains(of(32, 120, &cache), &["100 entries", "120"]);
        assert_contains(of(32, 100, &cache[..1]), &["full attention", "none"]);
        assert_contains(of(32, 100, &[cache[1], cache[1]]), &["sliding window", "none"]);
        let wide = [cache[0], layer(1, 24, Mask::Causal)];
        assert_contains(of(32, 100, &wide), &["1 KV heads of 16", "1 KV heads of 24"]);
        let near = [layer(2, 8, Mask::Window(4)), cache[1]];
        assert_contains(of(32, 100, &near), &["needs 5 positions", "has 4"]);
    }
}
