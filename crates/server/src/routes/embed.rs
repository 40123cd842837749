//! `POST /api/embed` and the older `/api/embeddings`, and the functions that the embedding routes
//! of all dialects share.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use puna_api::KeepAlive;
use puna_api::native::{
    EmbedInput, EmbedRequest, EmbedResponse, EmbeddingsRequest, EmbeddingsResponse,
};
use puna_store::Facts;
use serde_json::{Map, Value};

use crate::app::{App, RunningTask};
use crate::canonical::{ApiError, Embed, EmbedResult, EmbedText, Event, Task};
use crate::dialect::{Times, has};
use crate::http::{Client, ErrorResponse, Json, Native, json, note_ignored};
use crate::model_names::Name;
use crate::options::RequestOptions;
use crate::remote::report_ignored_keep_alive;

pub(super) async fn embed(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<Native, EmbedRequest>,
) -> Result<Response, ErrorResponse<Native>> {
    if request.model.is_empty() {
        return Err(ApiError::not_found("model '' not found").into());
    }
    let name = Name::parse_runnable(&request.model)?;
    let inputs = EmbedInput::from_value(&request.input)
        .ok_or_else(|| ApiError::bad_request("invalid input type"))?;
    let embedding_request = EmbeddingRequest {
        inputs: inputs.0.into_iter().map(EmbedText::Text).collect(),
        truncate_mode: request
            .truncate
            .map_or(TruncateMode::TruncateByDefault, TruncateMode::Requested),
        options: request.options,
        keep_alive: request.keep_alive,
    };
    let mut answer = compute_embeddings(&app, client, &name, embedding_request).await?;
    truncate_and_normalize_all(&mut answer.vectors, request.dimensions);
    let answer = EmbedResponse {
        model: request.model,
        embeddings: std::mem::take(&mut answer.vectors),
        total_duration: answer.times.total,
        load_duration: answer.times.load,
        prompt_eval_count: answer.tokens,
        truncated_inputs: answer.cut.len() as u64,
        truncated_tokens: answer.cut_tokens(),
    };
    Ok(json(StatusCode::OK, &answer))
}

/// `POST /api/embeddings`: the vector of one text, without normalization.
pub(super) async fn embeddings(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<Native, EmbeddingsRequest>,
) -> Result<Response, ErrorResponse<Native>> {
    if request.model.is_empty() {
        return Err(ApiError::bad_request("model is required").into());
    }
    let name = Name::parse_runnable(&request.model)?;
    let inputs =
        if request.prompt.is_empty() { Vec::new() } else { vec![EmbedText::Text(request.prompt)] };
    let (options, keep_alive, truncate_mode) =
        (request.options, request.keep_alive, TruncateMode::RefuseByDefault);
    let embedding_request = EmbeddingRequest { inputs, truncate_mode, options, keep_alive };
    let answer = compute_embeddings(&app, client, &name, embedding_request).await?;
    let first = answer.vectors.into_iter().next().unwrap_or_default();
    let embedding = first.into_iter().map(f64::from).collect();
    Ok(json(StatusCode::OK, &EmbeddingsResponse { embedding }))
}

/// A request for embeddings, in any dialect.
pub(super) struct EmbeddingRequest {
    pub(super) inputs: Vec<EmbedText>,
    pub(super) truncate_mode: TruncateMode,
    pub(super) options: Option<Map<String, Value>>,
    pub(super) keep_alive: Option<KeepAlive>,
}

/// Treatment of a text that exceeds the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TruncateMode {
    /// The text is truncated; this is the route's default.
    TruncateByDefault,
    /// The request is refused; this is the route's default.
    RefuseByDefault,
    /// The request says whether the text is truncated.
    Requested(bool),
}

/// Embeddings without normalization, as the model's pooling returns them.
#[derive(Default)]
pub(super) struct Embeddings {
    pub(super) vectors: Vec<Vec<f32>>,
    pub(super) tokens: u64,
    /// Truncated texts: index, and number of tokens removed.
    pub(super) cut: Vec<(usize, u64)>,
    pub(super) times: Times,
}

impl Embeddings {
    /// Number of tokens removed from all texts.
    pub(super) fn cut_tokens(&self) -> u64 {
        self.cut.iter().map(|(_, tokens)| tokens).sum()
    }
}

/// Loads the model and embeds the texts. Without texts it only loads the model.
pub(super) async fn compute_embeddings(
    app: &App,
    client: Client,
    name: &Name,
    embedding_request: EmbeddingRequest,
) -> Result<Embeddings, ApiError> {
    let missing = || format!("model {:?} not found, try pulling it first", name.given);
    let model = app.find(name, missing).await?;
    if model.facts.pooling == Some(Facts::RANK_POOLING) {
        return Err(ApiError::bad_request(format!(
            "{:?} does not support embeddings: it is a reranker, use POST /api/rerank",
            name.given
        )));
    }
    if !has(&model, "embedding") {
        return Err(ApiError::bad_request(format!("{:?} does not support embeddings", name.given)));
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
    let (num_ctx, given) = (run.num_ctx, run.given);
    let truncate = matches!(
        embedding_request.truncate_mode,
        TruncateMode::TruncateByDefault | TruncateMode::Requested(true)
    );
    let embed = Embed { inputs: embedding_request.inputs, truncate, num_ctx, given };
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
pub(super) fn truncate_and_normalize_all(vectors: &mut [Vec<f32>], dimensions: i64) {
    let most = vectors.iter().map(Vec::len).max().unwrap_or(0);
    if dimensions < 0 || !vectors.is_empty() && usize::try_from(dimensions).is_ok_and(|n| n > most)
    {
        note_ignored("dimensions".into());
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
