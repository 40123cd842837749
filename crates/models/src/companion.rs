//! Draft models that guess with parts of the model that they guess for: its hidden states, its cache, its embeddings. They are
//! loaded behind it on the same backend, where their graphs use the weights and the cache of both.

use puna_graph::{CacheLayer, Graph, Linear, Rows, Value, ValueId, WeightId};

use crate::error::ModelError;
use crate::hyper::mean;
use crate::model::Architecture;

/// How such a draft model guesses.
pub(crate) trait Guesser: Send + Sync {
    /// Records, behind a step of the model itself, what is made of its last hidden states and of what the layers that
    /// [`Needs::inputs`] names have read: states that the step hands out, or keys and values.
    fn read(&self, g: &mut Graph, hidden: ValueId, inputs: &[ValueId], trunk: &Trunk);

    /// Records a step that keeps keys and values of the model's tokens, where it takes what is not known in the model's own step:
    /// each row reads a token and the state ([`Graph::given`]) that came with the one before it.
    fn follow(&self, _g: &mut Graph, _trunk: &Trunk) -> Option<ValueId> {
        None
    }

    /// Records a step of guesses, as [`Guesses`] says. The result are logits of what follows.
    fn guess(&self, g: &mut Graph, trunk: &Trunk) -> ValueId;

    /// Records what is added to logits of a block, as [`Link`] says.
    fn link(&self, _g: &mut Graph) -> Option<ValueId> {
        None
    }
}

/// How a draft model guesses with parts of its model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guesses {
    /// One token after the other: a row for each sequence reads its newest token, or the guess before, and a state
    /// ([`puna_graph::StepInput::given`]), at first the one that came with the newest token that is computed; it hands out the
    /// state that the next guess reads.
    Chain {
        /// Features of a state.
        state: usize,
        /// Whose keys and values guesses see.
        sees: Seen,
    },
    /// Several tokens at once: the rows of a sequence are its newest token and masks, in their places behind what is computed.
    Block(Block),
}

impl Guesses {
    /// Rows of a sequence in a step of guesses, at most.
    pub fn rows(&self) -> usize {
        match self {
            Self::Chain { .. } => 1,
            Self::Block(block) => block.rows,
        }
    }
}

/// A block of guesses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Rows that it was made with.
    pub rows: usize,
    /// The token that stands for one that is not known.
    pub mask: u32,
    /// The first row that says what follows: with 0 a row says what comes behind it, with 1 what is in its place.
    pub first: usize,
    /// How the tokens of a block depend on each other, if they do.
    pub link: Option<Link>,
}

/// How a token of a block depends on the one before it: [`crate::Want::Link`] makes of that, and of the state that the block's step has
/// handed out beside the token's logits, what is added to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Features of the state; zero where none is read.
    pub state: usize,
    /// Whether the step hands out how sure the draft model is of its token, before a sigmoid.
    pub says_how_sure: bool,
    /// Of how many tokens, the likeliest ones, one is taken; of all where nothing is said.
    pub choices: Option<usize>,
    /// Whether what is added is for the model's tokens in their order, also where logits are for fewer.
    pub by_token: bool,
}

/// What the guesses of a chain see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Keys and values of the model. All rows of a sequence lie where its newest computed token does, whose keys and values are the
    /// last there are; their position is the newest token's. The model's own step hands out a state for each of its outputs.
    Model,
    /// Keys and values of the draft model, which it makes of a token and the state that came with the one before: the first token has
    /// none. The model's own step hands out a state for each of its rows, and [`crate::Want::Follow`] keeps what is made of them.
    Own,
}

/// What a file of such a draft model hands to the loader.
pub(crate) struct Companion {
    pub guesser: Box<dyn Guesser>,
    pub guesses: Guesses,
    pub needs: Needs,
    /// Layers of the cache that are its own.
    pub cache: Vec<CacheLayer>,
    /// The model's tokens that its logits stand for, in their order; without, all of them.
    pub tokens: Option<Vec<u32>>,
}

/// What it must find in its model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Features of the model's hidden states.
    pub width: usize,
    /// Entries of the vocabulary.
    pub n_vocab: usize,
    /// Features of the model's embeddings and output matrix, where it uses these.
    pub shares: Option<usize>,
    /// Layers of the model's cache that it reads. What is read as the one or the other kind is the last layer of that kind:
    /// of those that only keep what is near, or of those that keep everything.
    pub layers: Vec<CacheLayer>,
    /// Layers of the model whose inputs it reads: the first is 0, and one more than the last is what that hands on.
    pub inputs: Vec<usize>,
}

/// What it has found there.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trunk {
    /// The model's embeddings and its output matrix, where it uses these.
    pub shared: Option<(WeightId, Linear)>,
    /// For each of the layers that are read the number that it has in the model's cache.
    pub layers: Vec<usize>,
    /// The number of the draft model's first layer in that cache.
    pub own: usize,
}

/// A draft model that was loaded behind its model.
pub(crate) struct Accompanying {
    name: &'static str,
    /// The model's architecture.
    model: &'static str,
    companion: Companion,
    trunk: Trunk,
    /// Whether the model's last layer must let all rows through.
    reads_last: bool,
}

impl Accompanying {
    /// One whose weights are behind the model's, if it fits.
    pub fn new(
        name: &'static str,
        companion: Companion,
        host: &Host<'_>,
    ) -> Result<Self, ModelError> {
        let trunk = companion.needs.find(name, host)?;
        let reads_last = companion.needs.inputs.contains(&host.n_layer);
        Ok(Self { name, model: host.architecture, companion, trunk, reads_last })
    }

    /// How it guesses.
    pub fn guesses(&self) -> &Guesses {
        &self.companion.guesses
    }

    /// Layers of the cache that are its own.
    pub fn cache(&self) -> &[CacheLayer] {
        &self.companion.cache
    }

    /// The model's token that an entry of its logits stands for.
    pub fn token(&self, entry: usize) -> u32 {
        let tokens = self.companion.tokens.as_ref();
        tokens.map_or(entry as u32, |tokens| tokens[entry])
    }

    /// Records the model's own step with what is read of it; the result are the last hidden states of the rows that are wanted.
    pub fn hidden(
        &self,
        mut g: Graph,
        model: &dyn Architecture,
    ) -> Result<(Graph, ValueId), ModelError> {
        g = g.watching(&self.companion.needs.inputs);
        let hidden = model.hidden(&mut g, !self.reads_last);
        let hidden = match g.value(hidden).rows {
            Rows::Outputs => hidden,
            Rows::Tokens => g.gather_outputs(hidden),
        };
        let inputs = self.inputs(&mut g)?;
        self.companion.guesser.read(&mut g, hidden, &inputs, &self.trunk);
        Ok((g, hidden))
    }

    /// What the model's layers read, of those that are watched.
    ///
    /// # Errors
    /// The architecture does not say it, or that is no stream of hidden states.
    fn inputs(&self, g: &mut Graph) -> Result<Vec<ValueId>, ModelError> {
        let Needs { width, inputs: layers, .. } = &self.companion.needs;
        let watched: Vec<_> = g.watched().zip(layers).collect();
        let mut inputs = Vec::with_capacity(watched.len());
        for (input, layer) in watched {
            let is_stream =
                |value: Value| value.rows == Rows::Tokens && value.cols.is_multiple_of(*width);
            let Some(input) = input.filter(|&input| is_stream(g.value(input))) else {
                return Err(ModelError::UnreadLayer {
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

    /// Records a step of guesses.
    pub fn guess(&self, g: &mut Graph) -> ValueId {
        self.companion.guesser.guess(g, &self.trunk)
    }

    /// Records what is added to logits of a block, where something is.
    pub fn link(&self, g: &mut Graph) -> Option<ValueId> {
        self.companion.guesser.link(g)
    }

    /// Records a step that follows the model's, where there is such.
    pub fn follow(&self, g: &mut Graph) -> Option<ValueId> {
        self.companion.guesser.follow(g, &self.trunk)
    }
}

/// The model, as far as it matters here.
pub(crate) struct Host<'a> {
    pub architecture: &'static str,
    pub width: usize,
    pub n_vocab: usize,
    pub n_layer: usize,
    pub cache: &'a [CacheLayer],
    /// The model's embeddings, if they are where files have them.
    pub table: Option<WeightId>,
    /// The model's output matrix; without one of its own the embeddings are.
    pub head: Option<Linear>,
}

impl Needs {
    /// Finds in a model what is needed.
    pub fn find(&self, draft: &'static str, host: &Host<'_>) -> Result<Trunk, ModelError> {
        let differ =
            |difference| ModelError::Companion { draft, model: host.architecture, difference };
        let (width, n_vocab) = (host.width, host.n_vocab);
        if self.width != width {
            let reads = self.width;
            return Err(differ(format!(
                "it reads hidden states of {reads} features, the model's have {width}"
            )));
        }
        if self.n_vocab != n_vocab {
            let own = self.n_vocab;
            return Err(differ(format!("its vocabulary has {own} entries, the model's {n_vocab}")));
        }
        if let Some(own) = self.shares.filter(|&own| own != width) {
            return Err(differ(format!(
                "it has no embeddings or output matrix of its own, and reads {own} features of the model's, which have {width}"
            )));
        }
        if let Some(layer) = self.inputs.iter().find(|&&layer| layer == 0 || layer > host.n_layer) {
            let last = host.n_layer;
            return Err(differ(format!(
                "it reads the input of layer {layer}, and those of layers 1 to {last} can be read"
            )));
        }
        let layers = self.layers.iter().map(|layer| of_kind(layer, host.cache).map_err(differ));
        let layers = layers.collect::<Result<_, _>>()?;
        let shared = |_| -> Result<_, ModelError> {
            let table = host.table.ok_or_else(|| {
                differ(format!(
                    "it has none of its own and finds no `{TABLE}` with a row for each token"
                ))
            })?;
            let tied = Linear { w: table, scale: 1.0, bias: None, out: n_vocab };
            Ok((table, host.head.unwrap_or(tied)))
        };
        Ok(Trunk { shared: self.shares.map(shared).transpose()?, layers, own: host.cache.len() })
    }
}

impl Trunk {
    /// The draft model's own embeddings, else the model's.
    pub fn table_or(&self, own: Option<WeightId>) -> WeightId {
        own.or(self.shared.map(|(table, _)| table)).expect("a model without embeddings was refused")
    }

    /// The draft model's own output matrix, else the model's.
    pub fn head_or<'a>(&'a self, own: Option<&'a Linear>) -> &'a Linear {
        own.or(self.shared.as_ref().map(|(_, head)| head)).expect("a model without one was refused")
    }
}

/// What several layers read, side by side.
pub(crate) fn side_by_side(g: &mut Graph, name: &'static str, inputs: &[ValueId]) -> ValueId {
    inputs[1..].iter().fold(inputs[0], |all, &input| g.concat(name, all, input))
}

/// What files call the embeddings.
pub(crate) const TABLE: &str = "token_embd.weight";
/// What they call the output matrix.
pub(crate) const HEAD: &str = "output.weight";

/// The number of the last layer of a kind.
fn of_kind(layer: &CacheLayer, cache: &[CacheLayer]) -> Result<usize, String> {
    let kind = if layer.is_recent() { "a sliding window" } else { "a view of everything" };
    let found = cache.iter().rposition(|theirs| theirs.is_recent() == layer.is_recent());
    let found = found.ok_or_else(|| {
        format!("it reads what a layer with {kind} keeps, and the model has none")
    })?;
    let theirs = &cache[found];
    let form = |l: &CacheLayer| (l.kv_heads, l.key_dim, l.value_dim);
    if form(theirs) != form(layer) || theirs.values_in_keys != layer.values_in_keys {
        let [own, theirs] = [layer, theirs].map(|l| {
            format!("{} key heads of {} and {} features", l.kv_heads, l.key_dim, l.value_dim)
        });
        return Err(format!("it reads {own} of the last layer with {kind}, which has {theirs}"));
    }
    if !layer.mask.is_within(theirs.mask) {
        let [own, theirs] = [layer, theirs].map(|l| l.mask.reach().unwrap_or(usize::MAX));
        return Err(format!(
            "it sees {own} positions of the last layer with {kind}, which keeps {theirs}"
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

    fn needs() -> Needs {
        let layers = vec![
            layer(2, 8, Mask::Window(5)),
            layer(1, 16, Mask::Causal),
            layer(2, 8, Mask::Window(5)),
        ];
        Needs { width: 32, n_vocab: 100, layers, ..Needs::default() }
    }

    fn host(width: usize, n_vocab: usize, cache: &[CacheLayer]) -> Host<'_> {
        let table = Some(WeightId(7));
        Host { architecture: "some", width, n_vocab, n_layer: 6, cache, table, head: None }
    }

    #[test]
    fn the_last_layer_of_each_kind_is_read() {
        let cache = [Mask::Window(6), Mask::Causal, Mask::Window(6), Mask::Causal];
        let cache = cache
            .map(|mask| if mask == Mask::Causal { layer(1, 16, mask) } else { layer(2, 8, mask) });
        let host = host(32, 100, &cache);
        let trunk = Trunk { shared: None, layers: vec![2, 3, 2], own: 4 };
        assert_eq!(needs().find("draft", &host), Ok(trunk));
    }

    #[test]
    fn what_the_model_shares_are_its_embeddings_and_its_output_matrix_or_the_same_once_more() {
        let (tied, table) =
            (Linear { w: WeightId(7), scale: 1.0, bias: None, out: 100 }, WeightId(7));
        let own = Linear { w: WeightId(9), scale: 2.0, ..tied };
        let needs = Needs { shares: Some(32), layers: Vec::new(), ..needs() };
        let shared = |host: &Host<'_>| needs.find("draft", host).map(|trunk| trunk.shared);
        assert_eq!(shared(&host(32, 100, &[])), Ok(Some((table, tied))));
        assert_eq!(shared(&Host { head: Some(own), ..host(32, 100, &[]) }), Ok(Some((table, own))));
        let error = shared(&Host { table: None, ..host(32, 100, &[]) }).unwrap_err().to_string();
        assert!(error.contains("`token_embd.weight`"), "{error}");
        let alone = Needs { shares: None, ..needs.clone() };
        assert!(alone.find("draft", &Host { table: None, ..host(32, 100, &[]) }).is_ok());
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        let cache = [layer(2, 8, Mask::Window(6)), layer(1, 16, Mask::Causal)];
        let of = |width, n_vocab, cache: &[CacheLayer]| {
            needs().find("draft", &host(width, n_vocab, cache)).unwrap_err().to_string()
        };
        let said = |error: String, words: &[&str]| {
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        };
        let wants =
            |needs: Needs| needs.find("draft", &host(32, 100, &cache)).unwrap_err().to_string();
        said(wants(Needs { shares: Some(24), ..needs() }), &["24 features", "32"]);
        said(wants(Needs { inputs: vec![1, 7], ..needs() }), &["input of layer 7", "1 to 6"]);
        said(wants(Needs { inputs: vec![0], ..needs() }), &["input of layer 0", "1 to 6"]);
        said(of(48, 100, &cache), &["`draft`", "`some`", "32 features", "48"]);
        said(of(32, 120, &cache), &["100 entries", "120"]);
        said(of(32, 100, &cache[..1]), &["a view of everything", "none"]);
        said(of(32, 100, &[cache[1], cache[1]]), &["sliding window", "none"]);
        let wide = [cache[0], layer(1, 24, Mask::Causal)];
        said(of(32, 100, &wide), &["1 key heads of 16", "1 key heads of 24"]);
        let near = [layer(2, 8, Mask::Window(4)), cache[1]];
        said(of(32, 100, &near), &["sees 5 positions", "keeps 4"]);
    }
}
