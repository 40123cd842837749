//! Functions that the embedding routes of all APIs share.

use puna_api::KeepAlive;
use puna_store::GgufInfo;
use serde_json::{Map, Value};

use crate::api::{Times, has};
use crate::app::{App, RunningTask};
use crate::canonical::{ApiError, EmbedResult, EmbedTask, EmbedText, Event, Task};
use crate::http::{Client, record_ignored_field};
use crate::models::names::Name;
use crate::options::RequestOptions;
use crate::remote::report_ignored_keep_alive;

/// A request for embeddings, in any dialect.
pub(crate) struct EmbeddingRequest {
    pub(crate) inputs: Vec<EmbedText>,
    pub(crate) truncate_mode: TruncateMode,
    pub(crate) options: Option<Map<String, Value>>,
    pub(crate) keep_alive: Option<KeepAlive>,
}

/// Treatment of a text that exceeds the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TruncateMode {
    /// The text is truncated; this is the route's default.
    TruncateByDefault,
    /// The request is refused; this is the route's default.
    RefuseByDefault,
    /// The request says whether the text is truncated.
    Requested(bool),
}

/// Embeddings without normalization, as the model's pooling returns them.
#[derive(Default)]
pub(crate) struct Embeddings {
    pub(crate) vectors: Vec<Vec<f32>>,
    pub(crate) tokens: u64,
    /// Truncated texts: index, and number of tokens removed.
    pub(crate) cut: Vec<(usize, u64)>,
    pub(crate) times: Times,
}

impl Embeddings {
    /// Number of tokens removed from all texts.
    pub(crate) fn cut_tokens(&self) -> u64 {
        self.cut.iter().map(|(_, tokens)| tokens).sum()
    }
}

/// Loads the model and embeds the texts. Without texts it only loads the model.
pub(crate) async fn compute_embeddings(
    app: &App,
    client: Client,
    name: &Name,
    embedding_request: EmbeddingRequest,
) -> Result<Embeddings, ApiError> {
    let missing = || format!("model {:?} not found, try pulling it first", name.requested);
    let model = app.find(name, missing).await?;
    if model.gguf_info.pooling == Some(GgufInfo::RANK_POOLING) {
        return Err(ApiError::bad_request(format!(
            "{:?} does not support embeddings: it is a reranker, use POST /api/rerank",
            name.requested
        )));
    }
    if !has(&model, "embedding") {
        return Err(ApiError::bad_request(format!(
            "{:?} does not support embeddings",
            name.requested
        )));
    }
    let options = RequestOptions::named(embedding_request.options.as_ref());
    let (load, run) = app.options(&model, &options).await?;
    let asked = matches!(embedding_request.truncate_mode, TruncateMode::Requested(_));
    let fields = [("keep_alive", embedding_request.keep_alive.is_some()), ("truncate", asked)];
    app.remotes().report_ignored_fields(&model, &fields, &options.named, |_| false);
    if embedding_request.inputs.is_empty() {
        report_ignored_keep_alive(&model, embedding_request.keep_alive);
    }
    let loaded =
        app.load(&model, (load, run.num_ctx), embedding_request.keep_alive, client).await?;
    if embedding_request.inputs.is_empty() {
        return Ok(Embeddings::default());
    }
    let (num_ctx, explicit_parameters) = (run.num_ctx, run.explicit_parameters);
    let truncate = matches!(
        embedding_request.truncate_mode,
        TruncateMode::TruncateByDefault | TruncateMode::Requested(true)
    );
    let embed =
        EmbedTask { inputs: embedding_request.inputs, truncate, num_ctx, explicit_parameters };
    read_embeddings(loaded.run(Task::Embed(embed)).await).await
}

async fn read_embeddings(mut running: RunningTask) -> Result<Embeddings, ApiError> {
    while let Some(event) = running.next().await {
        match event {
            Event::Embedded(EmbedResult { vectors, tokens, cut }) => {
                return Ok(Embeddings { vectors, tokens, cut, times: Times::of(&running) });
            }
            Event::Error(failure) => return Err(failure),
            _ => {}
        }
    }
    Err(ApiError::internal("the model runner sent no vectors"))
}

/// Truncates vectors to `dimensions` components and scales them to norm 1. A negative number, or
/// one above the vectors' length, leaves the length, as in Ollama, and is reported as ignored. 0
/// means no truncation.
pub(crate) fn truncate_and_normalize_all(vectors: &mut [Vec<f32>], dimensions: i64) {
    let max = vectors.iter().map(Vec::len).max().unwrap_or(0);
    if dimensions < 0 || !vectors.is_empty() && usize::try_from(dimensions).is_ok_and(|n| n > max) {
        record_ignored_field("dimensions".into());
    }
    vectors.iter_mut().for_each(|vector| truncate_and_normalize(vector, dimensions));
}

/// Keeps the leading `dimensions` components, if the vector has more, and scales it to norm 1.
fn truncate_and_normalize(vector: &mut Vec<f32>, dimensions: i64) {
    if let Ok(n @ 1..) = usize::try_from(dimensions) {
        vector.truncate(n);
    }
    let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
    vector.iter_mut().for_each(|x| *x /= norm);
}
