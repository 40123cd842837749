//! `POST /api/embed` and its older form, and what embeddings of all dialects share.

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
use crate::remote::note_unheard;

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
    let wanted = Wanted {
        inputs: inputs.0.into_iter().map(EmbedText::Text).collect(),
        too_long: request.truncate.map_or(TooLong::Cut, TooLong::Asked),
        options: request.options,
        keep_alive: request.keep_alive,
    };
    let mut answer = vectors(&app, client, &name, wanted).await?;
    shorten_all(&mut answer.vectors, request.dimensions);
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

/// `POST /api/embeddings`: one text, its vector as it is.
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
    let (options, keep_alive, too_long) = (request.options, request.keep_alive, TooLong::Refuse);
    let wanted = Wanted { inputs, too_long, options, keep_alive };
    let answer = vectors(&app, client, &name, wanted).await?;
    let first = answer.vectors.into_iter().next().unwrap_or_default();
    let embedding = first.into_iter().map(f64::from).collect();
    Ok(json(StatusCode::OK, &EmbeddingsResponse { embedding }))
}

/// Texts that are to become vectors.
pub(super) struct Wanted {
    pub(super) inputs: Vec<EmbedText>,
    pub(super) too_long: TooLong,
    pub(super) options: Option<Map<String, Value>>,
    pub(super) keep_alive: Option<KeepAlive>,
}

/// What is done with a text that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TooLong {
    /// It is cut, as nobody said otherwise.
    Cut,
    /// It is refused, likewise.
    Refuse,
    /// What the request says: whether it is cut.
    Asked(bool),
}

/// Vectors as the model's pooling gives them.
#[derive(Default)]
pub(super) struct Vectors {
    pub(super) vectors: Vec<Vec<f32>>,
    pub(super) tokens: u64,
    /// Texts that were cut, and how many tokens each lost.
    pub(super) cut: Vec<(usize, u64)>,
    pub(super) times: Times,
}

impl Vectors {
    /// Tokens that all texts lost.
    pub(super) fn cut_tokens(&self) -> u64 {
        self.cut.iter().map(|(_, tokens)| tokens).sum()
    }
}

/// Loads the model and embeds the texts; without texts it only loads.
pub(super) async fn vectors(
    app: &App,
    client: Client,
    name: &Name,
    wanted: Wanted,
) -> Result<Vectors, ApiError> {
    let missing = || format!("model {:?} not found, try pulling it first", name.given);
    let model = app.find(name, missing).await?;
    if model.facts.pooling == Some(Facts::RANK_POOLING) {
        return Err(ApiError::bad_request(format!(
            "{:?} does not support embeddings; it ranks texts: POST /api/rerank",
            name.given
        )));
    }
    if !has(&model, "embedding") {
        return Err(ApiError::bad_request(format!("{:?} does not support embeddings", name.given)));
    }
    let options = RequestOptions::named(wanted.options.as_ref());
    let (load, run) = app.options(&model, &options).await?;
    let asked = matches!(wanted.too_long, TooLong::Asked(_));
    let fields = [("keep_alive", wanted.keep_alive.is_some()), ("truncate", asked)];
    app.remotes().note_lost(&model, &fields, &options.named, |_| false);
    if wanted.inputs.is_empty() {
        note_unheard(&model, wanted.keep_alive);
    }
    let loaded = app.load(&model, (load, run.num_ctx), wanted.keep_alive, client).await?;
    if wanted.inputs.is_empty() {
        return Ok(Vectors::default());
    }
    let (num_ctx, given) = (run.num_ctx, run.given);
    let truncate = matches!(wanted.too_long, TooLong::Cut | TooLong::Asked(true));
    let embed = Embed { inputs: wanted.inputs, truncate, num_ctx, given };
    finish(loaded.run(Task::Embed(embed)).await).await
}

async fn finish(mut running: RunningTask) -> Result<Vectors, ApiError> {
    while let Some(event) = running.next().await {
        match event {
            Event::Embedded(EmbedResult { vectors, tokens, cut }) => {
                return Ok(Vectors { vectors, tokens, cut, times: Times::of(&running) });
            }
            Event::Error(failure) => return Err(failure),
            _ => {}
        }
    }
    Err(ApiError::internal("the model runner sent no vectors"))
}

/// Brings vectors to so many components and to norm 1. A number that no vector can have leaves them whole, as Ollama has
/// it; 0 says nothing.
pub(super) fn shorten_all(vectors: &mut [Vec<f32>], dimensions: i64) {
    let most = vectors.iter().map(Vec::len).max().unwrap_or(0);
    if dimensions < 0 || !vectors.is_empty() && usize::try_from(dimensions).is_ok_and(|n| n > most)
    {
        note_ignored("dimensions".into());
    }
    vectors.iter_mut().for_each(|vector| shorten(vector, dimensions));
}

/// Keeps the leading components, if that is fewer, and brings the vector to norm 1.
fn shorten(vector: &mut Vec<f32>, dimensions: i64) {
    if let Ok(n @ 1..) = usize::try_from(dimensions) {
        vector.truncate(n);
    }
    let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
    vector.iter_mut().for_each(|x| *x /= norm);
}
