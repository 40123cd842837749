//! `POST /api/rerank` and its aliases: ranks documents by how well they answer a query.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use puna_api::ollama::{
    RerankDocument, RerankMeta, RerankRequest, RerankResponse, RerankResult, RerankTokens,
    RerankUsage,
};
use puna_store::{GgufInfo, Model};

use crate::api::chat;
use crate::api::{Times, has};
use crate::app::App;
use crate::canonical::{ApiError, Event, RerankScores, RerankTask, Task};
use crate::http::{Client, ErrorFormat, ErrorResponse, Json, json};
use crate::options::RequestOptions;
use crate::util::random_ids;

pub(crate) async fn rerank<D: ErrorFormat>(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<D, RerankRequest>,
) -> Result<Response, ErrorResponse<D>> {
    let (name, model) = chat::find_model(&app, &request.model).await?;
    check(&model, &name.requested)?;
    let (load, run) = app.options(&model, &RequestOptions::named(request.options.as_ref())).await?;
    let response_options = ResponseOptions::of(&request)?;
    let keep_alive = request.keep_alive;
    let task = RerankTask { num_ctx: run.num_ctx, ..rerank_task(request)? };
    let documents = response_options.return_documents.then(|| task.documents.clone());
    let loaded = app.load(&model, (load, run.num_ctx), keep_alive, client).await?;
    let mut running = loaded.run(Task::Rerank(task)).await;
    let Event::Reranked(rerank) = running.result().await? else {
        return Err(ApiError::internal("the model runner sent no scores").into());
    };
    Ok(json(StatusCode::OK, &response_options.answer(rerank, documents, Times::of(&running))))
}

/// Refuses a model that is no reranker; the message states what the model can do.
fn check(model: &Model, given: &str) -> Result<(), ApiError> {
    if model.gguf_info.pooling == Some(GgufInfo::RANK_POOLING) {
        return Ok(());
    }
    let does = match (has(model, "embedding"), has(model, "completion")) {
        (true, _) => "it is an embedding model, use POST /api/embed",
        (_, true) => "it generates text, use POST /api/chat or /api/generate",
        _ => "POST /api/show lists its capabilities",
    };
    Err(ApiError::bad_request(format!(
        "{given:?} does not support reranking: {does}; a reranker has pooling type {}",
        GgufInfo::RANK_POOLING
    )))
}

fn rerank_task(request: RerankRequest) -> Result<RerankTask, ApiError> {
    let query =
        request.query.ok_or_else(|| ApiError::bad_request("query is required"))?.into_text();
    if request.documents.is_empty() {
        return Err(ApiError::bad_request(
            "documents is required: send a list of at least one text",
        ));
    }
    let pair_tokens = match request.truncate_prompt_tokens {
        // -1 means the whole context.
        Some(-1) => Some(usize::MAX),
        other => positive("truncate_prompt_tokens", other)?,
    };
    Ok(RerankTask {
        query,
        documents: request.documents.into_iter().map(|document| document.into_text()).collect(),
        truncate: request.truncate.or(request.truncation).unwrap_or(false),
        document_tokens: positive("max_tokens_per_doc", request.max_tokens_per_doc)?,
        pair_tokens,
        num_ctx: None,
    })
}

fn positive(field: &str, value: Option<i64>) -> Result<Option<usize>, ApiError> {
    match value.map(usize::try_from) {
        None => Ok(None),
        Some(Ok(n @ 1..)) => Ok(Some(n)),
        Some(_) => Err(ApiError::bad_request(format!("{field} must be at least 1"))),
    }
}

/// The request's settings for the form of the response.
struct ResponseOptions {
    model: String,
    top_n: Option<usize>,
    return_documents: bool,
    normalize: bool,
}

impl ResponseOptions {
    fn of(request: &RerankRequest) -> Result<Self, ApiError> {
        Ok(Self {
            model: request.model.clone(),
            top_n: positive("top_n", request.top_n)?,
            return_documents: request.return_documents,
            normalize: request.normalize,
        })
    }

    fn answer(
        self,
        scores: RerankScores,
        documents: Option<Vec<String>>,
        times: Times,
    ) -> RerankResponse {
        let score = |raw: f32| if self.normalize { 1.0 / (1.0 + (-raw).exp()) } else { raw };
        let one = |(index, raw): (usize, f32)| RerankResult {
            index,
            relevance_score: score(raw),
            ..RerankResult::default()
        };
        let mut results: Vec<RerankResult> =
            scores.scores.into_iter().enumerate().map(one).collect();
        for &(index, tokens) in &scores.cut {
            if let Some(result) = results.get_mut(index) {
                result.truncated_tokens = tokens;
            }
        }
        // The sort is stable: documents with equal scores stay in the order of the request.
        results.sort_by(|a, b| b.relevance_score.total_cmp(&a.relevance_score));
        results.truncate(self.top_n.unwrap_or(usize::MAX));
        if let Some(mut texts) = documents {
            for result in &mut results {
                let text = texts.get_mut(result.index).map(std::mem::take).unwrap_or_default();
                result.document = Some(RerankDocument { text });
            }
        }
        let tokens = scores.tokens;
        RerankResponse {
            id: random_ids::hex("rerank-"),
            object: "list".into(),
            model: self.model,
            results,
            usage: RerankUsage {
                prompt_tokens: tokens,
                total_tokens: tokens,
                truncated_documents: scores.cut.len() as u64,
                truncated_tokens: scores.cut.iter().map(|(_, tokens)| tokens).sum(),
            },
            meta: RerankMeta { tokens: RerankTokens { input_tokens: tokens, output_tokens: 0 } },
            total_duration: times.total,
            load_duration: times.load,
        }
    }
}
