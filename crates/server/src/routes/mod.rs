//! The table of all routes, and the handlers that belong to no API of [`crate::api`].

mod description;
mod maintenance;
mod metrics;
mod root;
pub(crate) mod table;
#[cfg(test)]
mod tests;

use axum::routing::{delete, get, post};

use crate::api::anthropic::routes as anthropic;
use crate::api::ollama::{
    blobs, chat, cloud, create, embed, generate, library, ps, tokens, transfer,
};
use crate::api::openai::responses::routes as responses;
use crate::api::openai::{audio, routes as openai};
use crate::api::rerank;
use crate::auth::caller::ModelAccess;
use crate::auth::{RouteRequirement, Scope};
use crate::http::{Dialect, Ollama, OpenAi};
use crate::routes::table::Route;

/// Returns all routes. HEAD is allowed only where the table names it; every method that the table
/// does not name gets 405.
pub(crate) fn all() -> Vec<Route> {
    const OLLAMA: Dialect = Dialect::Ollama;
    const OPENAI: Dialect = Dialect::OpenAi;
    const ANTHROPIC: Dialect = Dialect::Anthropic;
    const PUNA: Dialect = Dialect::Puna;
    const OPEN: RouteRequirement = RouteRequirement::Open;
    // Routes for every key that concern no model, use the model of the request, or list models.
    const ANY: RouteRequirement = RouteRequirement::Requires(Scope::Inference, ModelAccess::None);
    const USE: RouteRequirement = RouteRequirement::Requires(Scope::Inference, ModelAccess::Use);
    const LIST: RouteRequirement = RouteRequirement::Requires(Scope::Inference, ModelAccess::List);
    // Routes that change models: uploads for them, the model of the request, all models.
    const UPLOAD: RouteRequirement = RouteRequirement::Requires(Scope::Models, ModelAccess::None);
    const CHANGE: RouteRequirement = RouteRequirement::Requires(Scope::Models, ModelAccess::Change);
    const CHANGE_ALL: RouteRequirement =
        RouteRequirement::Requires(Scope::Models, ModelAccess::Server);
    const ADMIN: RouteRequirement = RouteRequirement::Requires(Scope::Admin, ModelAccess::Server);
    const READ: &[&str] = &["HEAD", "GET"];
    const GET: &[&str] = &["GET"];
    const POST: &[&str] = &["POST"];
    const DELETE: &[&str] = &["DELETE"];
    vec![
        Route::new(OLLAMA, OPEN, "/", READ, get(root::root)),
        Route::new(PUNA, OPEN, "/openapi.json", READ, get(description::document)),
        Route::new(PUNA, OPEN, "/docs", READ, get(description::page)),
        Route::new(PUNA, OPEN, "/health", GET, get(root::health)),
        Route::new(PUNA, ADMIN, "/metrics", GET, get(metrics::metrics)),
        Route::new(OLLAMA, OPEN, "/api/version", READ, get(root::version)),
        Route::new(OLLAMA, ANY, "/api/status", GET, get(cloud::status)),
        Route::new(OLLAMA, LIST, "/api/tags", READ, get(library::tags)),
        Route::new(OLLAMA, USE, "/api/show", POST, post(library::show)),
        Route::new(OLLAMA, LIST, "/api/ps", GET, get(ps::ps)),
        Route::new(OLLAMA, USE, "/api/generate", POST, post(generate::generate)),
        Route::new(OLLAMA, USE, "/api/chat", POST, post(chat::chat)),
        Route::new(OLLAMA, USE, "/api/embed", POST, post(embed::embed)),
        Route::new(OLLAMA, USE, "/api/embeddings", POST, post(embed::embeddings)),
        Route::new(OLLAMA, USE, "/api/rerank", POST, post(rerank::rerank::<Ollama>)),
        Route::new(OPENAI, USE, "/rerank", POST, post(rerank::rerank::<OpenAi>)),
        Route::new(OPENAI, USE, "/v1/rerank", POST, post(rerank::rerank::<OpenAi>)),
        Route::new(OPENAI, USE, "/v2/rerank", POST, post(rerank::rerank::<OpenAi>)),
        Route::new(OLLAMA, USE, "/api/tokenize", POST, post(tokens::tokenize)),
        Route::new(OLLAMA, USE, "/api/detokenize", POST, post(tokens::detokenize)),
        Route::new(OLLAMA, CHANGE, "/api/create", POST, post(create::create)),
        Route::new(OLLAMA, CHANGE, "/api/copy", POST, post(library::copy)),
        Route::new(OLLAMA, CHANGE, "/api/delete", DELETE, delete(library::delete)),
        Route::new(OLLAMA, CHANGE, "/api/pull", POST, post(transfer::pull)),
        Route::new(OLLAMA, CHANGE, "/api/push", POST, post(transfer::push)),
        Route::new(OLLAMA, CHANGE, "/api/verify", POST, post(maintenance::verify)),
        Route::new(OLLAMA, CHANGE_ALL, "/api/prune", POST, post(maintenance::prune)),
        Route::new(OLLAMA, LIST, "/api/downloads", GET, get(maintenance::downloads)),
        Route::new(
            OLLAMA,
            UPLOAD,
            "/api/blobs/{digest}",
            &["HEAD", "POST"],
            get(blobs::head).post(blobs::upload),
        ),
        Route::new(OLLAMA, ANY, "/api/me", POST, post(cloud::account)),
        Route::new(OLLAMA, ANY, "/api/signout", POST, post(cloud::account)),
        Route::new(OLLAMA, ANY, "/api/user/keys/{key}", DELETE, delete(cloud::account)),
        Route::new(OLLAMA, ANY, "/api/experimental/web_search", POST, post(cloud::web_search)),
        Route::new(OLLAMA, ANY, "/api/experimental/web_fetch", POST, post(cloud::web_fetch)),
        Route::new(
            OLLAMA,
            ANY,
            "/api/experimental/model-recommendations",
            GET,
            get(cloud::recommendations),
        ),
        Route::new(OPENAI, USE, "/v1/chat/completions", POST, post(openai::chat_completions)),
        Route::new(OPENAI, USE, "/v1/completions", POST, post(openai::completions)),
        Route::new(OPENAI, USE, "/v1/responses", POST, post(responses::create)),
        Route::new(OPENAI, USE, "/v1/responses/input_tokens", POST, post(responses::input_tokens)),
        Route::new(
            OPENAI,
            ANY,
            "/v1/responses/{id}",
            &["GET", "DELETE"],
            get(responses::retrieve).delete(responses::delete),
        ),
        Route::new(OPENAI, USE, "/v1/audio/transcriptions", POST, post(audio::transcriptions)),
        Route::new(ANTHROPIC, USE, "/v1/messages", POST, post(anthropic::messages)),
        Route::new(
            ANTHROPIC,
            USE,
            "/v1/messages/count_tokens",
            POST,
            post(anthropic::count_tokens),
        ),
        Route::new(OPENAI, USE, "/v1/embeddings", POST, post(openai::embeddings)),
        Route::new(OPENAI, LIST, "/v1/models", GET, get(openai::models)).shared_with_anthropic(),
        Route::new(OPENAI, USE, "/v1/models/{*model}", GET, get(openai::model))
            .shared_with_anthropic(),
    ]
}
