//! The routes, one module a group.

mod anthropic;
mod audio;
mod blobs;
mod chat;
mod cloud;
mod create;
mod embed;
mod generate;
mod library;
mod lines;
mod metrics;
mod openai;
mod ps;
mod rerank;
mod responses;
mod root;
#[cfg(test)]
mod tests;
mod tokens;
mod transfer;

use axum::routing::{delete, get, post};

use crate::http::paths::Route;
use crate::http::{Native, OpenAi};
use crate::keys::{Access, Scope};
use crate::openapi;

/// All routes. HEAD is answered where the table names it; the rest of the methods are 405.
pub(crate) fn all() -> Vec<Route> {
    const OPEN: Access = Access::Open;
    const USE: Access = Access::Needs(Scope::Inference);
    const MODELS: Access = Access::Needs(Scope::Models);
    const ADMIN: Access = Access::Needs(Scope::Admin);
    const READ: &[&str] = &["HEAD", "GET"];
    const GET: &[&str] = &["GET"];
    const POST: &[&str] = &["POST"];
    const DELETE: &[&str] = &["DELETE"];
    vec![
        Route::new(OPEN, "/", READ, get(root::root)),
        Route::new(OPEN, "/openapi.json", READ, get(openapi::document)),
        Route::new(OPEN, "/docs", READ, get(openapi::page)),
        Route::new(OPEN, "/health", GET, get(root::health)),
        Route::new(ADMIN, "/metrics", GET, get(metrics::metrics)),
        Route::new(OPEN, "/api/version", READ, get(root::version)),
        Route::new(USE, "/api/status", GET, get(cloud::status)),
        Route::new(USE, "/api/tags", READ, get(library::tags)),
        Route::new(USE, "/api/show", POST, post(library::show)),
        Route::new(USE, "/api/ps", GET, get(ps::ps)),
        Route::new(USE, "/api/generate", POST, post(generate::generate)),
        Route::new(USE, "/api/chat", POST, post(chat::chat)),
        Route::new(USE, "/api/embed", POST, post(embed::embed)),
        Route::new(USE, "/api/embeddings", POST, post(embed::embeddings)),
        Route::new(USE, "/api/rerank", POST, post(rerank::rerank::<Native>)),
        Route::new(USE, "/rerank", POST, post(rerank::rerank::<OpenAi>)),
        Route::new(USE, "/v1/rerank", POST, post(rerank::rerank::<OpenAi>)),
        Route::new(USE, "/v2/rerank", POST, post(rerank::rerank::<OpenAi>)),
        Route::new(USE, "/api/tokenize", POST, post(tokens::tokenize)),
        Route::new(USE, "/api/detokenize", POST, post(tokens::detokenize)),
        Route::new(MODELS, "/api/create", POST, post(create::create)),
        Route::new(MODELS, "/api/copy", POST, post(library::copy)),
        Route::new(MODELS, "/api/delete", DELETE, delete(library::delete)),
        Route::new(MODELS, "/api/pull", POST, post(transfer::pull)),
        Route::new(MODELS, "/api/push", POST, post(transfer::push)),
        Route::new(MODELS, "/api/blobs/{digest}", &["HEAD", "POST"], get(blobs::head).post(blobs::upload)),
        Route::new(USE, "/api/me", POST, post(cloud::account)),
        Route::new(USE, "/api/signout", POST, post(cloud::account)),
        Route::new(USE, "/api/user/keys/{key}", DELETE, delete(cloud::account)),
        Route::new(USE, "/api/experimental/web_search", POST, post(cloud::web_search)),
        Route::new(USE, "/api/experimental/web_fetch", POST, post(cloud::web_fetch)),
        Route::new(USE, "/api/experimental/model-recommendations", GET, get(cloud::recommendations)),
        Route::new(USE, "/v1/chat/completions", POST, post(openai::chat_completions)),
        Route::new(USE, "/v1/completions", POST, post(openai::completions)),
        Route::new(USE, "/v1/responses", POST, post(responses::create)),
        Route::new(USE, "/v1/responses/input_tokens", POST, post(responses::input_tokens)),
        Route::new(
            USE,
            "/v1/responses/{id}",
            &["GET", "DELETE"],
            get(responses::retrieve).delete(responses::delete),
        ),
        Route::new(USE, "/v1/audio/transcriptions", POST, post(audio::transcriptions)),
        Route::new(USE, "/v1/messages", POST, post(anthropic::messages)),
        Route::new(USE, "/v1/messages/count_tokens", POST, post(anthropic::count_tokens)),
        Route::new(USE, "/v1/embeddings", POST, post(openai::embeddings)),
        Route::new(USE, "/v1/models", GET, get(openai::models)),
        Route::new(USE, "/v1/models/{*model}", GET, get(openai::model)),
    ]
}

/// A time as it stands in answers.
pub(crate) fn rfc3339(time: std::time::SystemTime) -> String {
    jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::MAX).to_string()
}
