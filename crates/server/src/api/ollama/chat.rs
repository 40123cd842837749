//! `POST /api/chat`

use axum::extract::State;
use axum::response::Response;
use puna_api::ollama::ChatRequest;

use crate::api::chat::{find_model, prepare, unload_if_requested};
use crate::api::ollama::{ChatEncoder, convert_chat};
use crate::api::{collect, respond};
use crate::app::App;
use crate::http::{Client, ErrorResponse, Json, Ollama};

pub(crate) async fn chat(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<Ollama, ChatRequest>,
) -> Result<Response, ErrorResponse<Ollama>> {
    let (stream, return_adapted) = (request.stream.unwrap_or(true), request.return_adapted);
    let request = convert_chat(request)?;
    let (name, model) = find_model(&app, &request.model).await?;
    let encoder = ChatEncoder::new(name.requested.clone()).with_schema_violations(return_adapted);
    let empty = request.messages().is_empty();
    if empty
        && unload_if_requested(&app, client, &model, request.keep_alive, &request.options).await?
    {
        return Ok(encoder.empty("unload"));
    }
    let prepared = prepare(&app, client, request, &name, &model).await?;
    if empty {
        return Ok(encoder.empty("load"));
    }
    let running = prepared.start().await;
    if stream {
        return Ok(respond(vec![running], encoder).await?);
    }
    Ok(encoder.whole(collect(running).await?))
}
