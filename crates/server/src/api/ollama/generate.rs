//! `POST /api/generate`

use axum::extract::State;
use axum::response::Response;
use puna_api::ollama::GenerateRequest;

use crate::api::completion::{CheckedRequest, check};
use crate::api::ollama::{GenerateEncoder, convert_generate};
use crate::api::{collect, respond};
use crate::app::App;
use crate::canonical::Task;
use crate::http::{Client, ErrorResponse, Json, Ollama};

pub(crate) async fn generate(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<Ollama, GenerateRequest>,
) -> Result<Response, ErrorResponse<Ollama>> {
    let stream = request.stream.unwrap_or(true);
    let with_context = !request.raw;
    let encoder = GenerateEncoder::new(request.model.clone(), with_context);
    let encoder = encoder.with_schema_violations(request.return_adapted);
    Ok(match check(&app, client, convert_generate(request)?).await? {
        CheckedRequest::Unloaded => encoder.empty("unload"),
        CheckedRequest::Load(model_request) => {
            model_request.load(&app, client).await?;
            encoder.empty("load")
        }
        CheckedRequest::Generate(model_request, generate) => {
            let running =
                model_request.load(&app, client).await?.run(Task::Generate(generate)).await;
            match stream {
                true => respond(vec![running], encoder).await?,
                false => encoder.whole(collect(running).await?),
            }
        }
    })
}
