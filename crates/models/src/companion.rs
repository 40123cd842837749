//! Draft models that guess with parts of the model that they guess for: its hidden states, its cache, its embeddings. They are
//! loaded behind it on the same backend, where their graphs use the weights and the cache of both.

use puna_graph::{CacheLayer, Graph, ValueId, WeightId};

use crate::error::ModelError;

/// How such a draft model guesses.
pub(crate) trait Guesser: Send + Sync {
    /// Records a step of guesses, a row for each sequence. It reads the sequence's newest token, or the guess before, and a hidden
    /// state ([`Graph::given`]): at first that behind the model's last norm at the newest token that is computed. The result are
    /// logits of what follows, and what is handed out is the state that the next guess reads.
    ///
    /// A row lies where that computed token does, whose keys and values are the last in the cache; its position is the newest
    /// token's, for all guesses of a sequence.
    fn guess(&self, g: &mut Graph, trunk: &Trunk) -> ValueId;
}

/// What a file of such a draft model hands to the loader.
pub(crate) struct Companion {
    pub guesser: Box<dyn Guesser>,
    pub needs: Needs,
}

/// What it must find in its model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Features of the model's hidden states.
    pub width: usize,
    /// Entries of the vocabulary.
    pub n_vocab: usize,
    /// Layers of the model's cache that it reads. What is read as the one or the other kind is the last layer of that kind:
    /// of those that only keep what is near, or of those that keep everything.
    pub layers: Vec<CacheLayer>,
}

/// What it has found there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trunk {
    /// The model's embeddings.
    pub table: WeightId,
    /// For each of the layers that are read the number that it has in the model's cache.
    pub layers: Vec<usize>,
}

/// The model, as far as it matters here.
pub(crate) struct Host<'a> {
    pub architecture: &'static str,
    pub width: usize,
    pub n_vocab: usize,
    pub cache: &'a [CacheLayer],
    /// The model's embeddings, if they are where files have them.
    pub table: Option<WeightId>,
}

impl Needs {
    /// Finds in a model what is needed.
    pub fn find(&self, draft: &'static str, host: &Host<'_>) -> Result<Trunk, ModelError> {
        let differ = |difference| ModelError::Companion { draft, model: host.architecture, difference };
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
        let layers = self.layers.iter().map(|layer| of_kind(layer, host.cache).map_err(differ));
        let table = host.table.ok_or_else(|| ModelError::MissingTensor { name: TABLE.into() })?;
        Ok(Trunk { table, layers: layers.collect::<Result<_, _>>()? })
    }
}

/// What files call the embeddings.
pub(crate) const TABLE: &str = "token_embd.weight";

/// The number of the last layer of a kind.
fn of_kind(layer: &CacheLayer, cache: &[CacheLayer]) -> Result<usize, String> {
    let kind = if layer.is_recent() { "a sliding window" } else { "a view of everything" };
    let found = cache.iter().rposition(|theirs| theirs.is_recent() == layer.is_recent());
    let found =
        found.ok_or_else(|| format!("it reads what a layer with {kind} keeps, and the model has none"))?;
    let theirs = &cache[found];
    let form = |l: &CacheLayer| (l.kv_heads, l.key_dim, l.value_dim);
    if form(theirs) != form(layer) || theirs.values_in_keys != layer.values_in_keys {
        let [own, theirs] = [layer, theirs]
            .map(|l| format!("{} key heads of {} and {} features", l.kv_heads, l.key_dim, l.value_dim));
        return Err(format!("it reads {own} of the last layer with {kind}, which has {theirs}"));
    }
    if !layer.mask.is_within(theirs.mask) {
        let [own, theirs] = [layer, theirs].map(|l| l.mask.reach().unwrap_or(usize::MAX));
        return Err(format!("it sees {own} positions of the last layer with {kind}, which keeps {theirs}"));
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
        let layers =
            vec![layer(2, 8, Mask::Window(5)), layer(1, 16, Mask::Causal), layer(2, 8, Mask::Window(5))];
        Needs { width: 32, n_vocab: 100, layers }
    }

    #[test]
    fn the_last_layer_of_each_kind_is_read() {
        let cache = [Mask::Window(6), Mask::Causal, Mask::Window(6), Mask::Causal];
        let cache =
            cache.map(|mask| if mask == Mask::Causal { layer(1, 16, mask) } else { layer(2, 8, mask) });
        let table = Some(WeightId(7));
        let host = Host { architecture: "some", width: 32, n_vocab: 100, cache: &cache, table };
        let trunk = Trunk { table: WeightId(7), layers: vec![2, 3, 2] };
        assert_eq!(needs().find("draft", &host), Ok(trunk));
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        let cache = [layer(2, 8, Mask::Window(6)), layer(1, 16, Mask::Causal)];
        let of = |width, n_vocab, cache: &[CacheLayer]| {
            let host = Host { architecture: "some", width, n_vocab, cache, table: Some(WeightId(0)) };
            needs().find("draft", &host).unwrap_err().to_string()
        };
        let said = |error: String, words: &[&str]| {
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        };
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
