//! `POST /v1/audio/transcriptions`: checks the request and refuses it, because no model accepts
//! audio input yet.

use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;

use crate::api::chat;
use crate::api::has;
use crate::app::App;
use crate::canonical::ApiError;
use crate::http::{ErrorResponse, OpenAi, multipart, read_body};

pub(crate) async fn transcriptions(
    State(app): State<App>,
    request: Request,
) -> Result<Response, ErrorResponse<OpenAi>> {
    let refused =
        |reason: &str| ApiError::bad_request(format!("failed to parse multipart form: {reason}"));
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let boundary = kind.and_then(multipart::boundary);
    let boundary =
        boundary.ok_or_else(|| refused("request Content-Type isn't multipart/form-data"))?;
    let body = read_body(request).await?;
    let fields =
        multipart::fields(&body.bytes, &boundary).map_err(|error| refused(&error.to_string()))?;
    let field =
        |name: &str| fields.iter().find(|(field, _)| field == name).map(|(_, value)| *value);
    let model = field("model").map(String::from_utf8_lossy).filter(|model| !model.is_empty());
    let model = model.ok_or_else(|| ApiError::bad_request("model is required"))?;
    let file = field("file")
        .ok_or_else(|| ApiError::bad_request("file is required: http: no such file"))?;
    if file.is_empty() {
        return Err(ApiError::bad_request("audio file is empty").into());
    }
    let (name, model) = chat::find_model(&app, &model).await?;
    Err(ApiError::bad_request(match has(&model, "audio") {
        false => format!("{:?} does not support audio input", name.requested),
        true => "audio input is not supported yet".into(),
    })
    .into())
}
