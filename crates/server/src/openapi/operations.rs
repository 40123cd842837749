//! Table of every method of every route. A test compares it with the table of routes.

use puna_api::ollama::{self, ErrorBody};
use puna_api::schema::{MessageEvent, Response, ResponseEvent};
use puna_api::{anthropic, openai, responses};

use super::operation::{Operation, RequestBody, ResponseBody, SchemaOf, schema_of};
use super::shapes::{
    AnyError, AnyModel, AnyModelList, Cloud, CountedResponse, DeletedResponse, Health,
    Recommendations, WebFetch, WebSearch,
};
use crate::http::Dialect;
use crate::routes::table::Route;

/// Returns the whole table.
pub(crate) fn all() -> Vec<Operation> {
    let mut all = generation();
    all.extend(library());
    all.extend(cloud());
    all.extend(openai());
    all.extend(anthropic());
    all.extend(ranking());
    all.extend(puna());
    all
}

fn generation() -> Vec<Operation> {
    vec![
        Operation::post("/api/generate", "generate", "Generate a completion")
            .description("A request without a prompt only loads the model; with `keep_alive` 0 it unloads it.")
            .json::<ollama::GenerateRequest>(
                &["model"],
                r#"{"model": "cria", "prompt": "Why is the sky blue?", "options": {"num_predict": 20}}"#,
            )
            .response(
                200,
                "The completion in chunks, one JSON object per line; with `stream: false` one object.",
                &[ResponseBody::Lines(schema_of::<ollama::GenerateResponse>), ResponseBody::Json(schema_of::<ollama::GenerateResponse>)],
            )
            .loads_model(),
        Operation::post("/api/chat", "chat", "Generate a chat completion")
            .description("A request without messages only loads the model; with `keep_alive` 0 it unloads it.")
            .json::<ollama::ChatRequest>(
                &["model"],
                r#"{"model": "cria", "messages": [{"role": "user", "content": "Hello!"}], "options": {"num_predict": 20}}"#,
            )
            .response(
                200,
                "The message in chunks, one JSON object per line; with `stream: false` one object.",
                &[ResponseBody::Lines(schema_of::<ollama::ChatResponse>), ResponseBody::Json(schema_of::<ollama::ChatResponse>)],
            )
            .loads_model(),
        Operation::post("/api/embed", "embed", "Generate embeddings")
            .description("Embeddings have norm 1. A request without input only loads the model.")
            .json::<ollama::EmbedRequest>(&["model"], r#"{"model": "minilm", "input": ["one", "two"]}"#)
            .object::<ollama::EmbedResponse>("One embedding per text.")
            .loads_model(),
        Operation::post("/api/embeddings", "embeddings", "Generate an embedding (older API)")
            .description("The embedding is not normalized.")
            .json::<ollama::EmbeddingsRequest>(&["model"], r#"{"model": "minilm", "prompt": "one"}"#)
            .object::<ollama::EmbeddingsResponse>("The embedding.")
            .loads_model(),
        Operation::post("/api/tokenize", "tokenize", "Tokenize a text")
            .additive()
            .json::<ollama::TokenizeRequest>(&["model"], r#"{"model": "cria", "text": "Hello!"}"#)
            .object::<ollama::TokenizeResponse>("The tokens.")
            .loads_model(),
        Operation::post("/api/detokenize", "detokenize", "Detokenize tokens")
            .additive()
            .json::<ollama::DetokenizeRequest>(&["model"], r#"{"model": "cria", "tokens": [1, 2, 3]}"#)
            .object::<ollama::DetokenizeResponse>("The text.")
            .loads_model(),
    ]
}

fn library() -> Vec<Operation> {
    const DIGEST: &str = r#"{"type": "string", "pattern": "^sha256[:-][0-9a-fA-F]{64}$", "examples": ["sha256:0000000000000000000000000000000000000000000000000000000000000000"]}"#;
    let digest = |operation: Operation| {
        operation.parameter(
            "path",
            "digest",
            "SHA-256 of the file: `sha256:` and 64 hexadecimal digits.",
            DIGEST,
        )
    };
    let progress = [
        ResponseBody::Lines(schema_of::<ollama::Progress>),
        ResponseBody::Json(schema_of::<ollama::Progress>),
    ];
    vec![
        Operation::get("/", "root", "Check that the server runs").response(
            200,
            "`Ollama is running`",
            &[ResponseBody::Text("text/plain")],
        ),
        Operation::get("/api/version", "version", "Show versions").object::<ollama::VersionResponse>("The versions."),
        Operation::get("/api/tags", "tags", "List stored models")
            .object::<ollama::ListResponse>("The stored models, newest first.")
            .errors(&[500]),
        Operation::post("/api/show", "show", "Show details of a model")
            .json::<ollama::ShowRequest>(&[], r#"{"model": "cria"}"#)
            .object::<ollama::ShowResponse>("The details.")
            .errors(&[403, 404, 500]),
        Operation::get("/api/ps", "ps", "List loaded models")
            .object::<ollama::ProcessResponse>("The loaded models; the one that expires last is first."),
        Operation::post("/api/create", "create", "Create a model")
            .description("The source is a stored model (`from`) or files uploaded to `/api/blobs/{digest}` (`files`).")
            .json::<ollama::CreateRequest>(
                &[],
                r#"{"model": "polite", "from": "cria", "system": "Be polite."}"#,
            )
            .response(
                200,
                "Progress, one JSON object per line; with `stream: false` only the last object.",
                &progress,
            )
            .errors(&[404, 500]),
        Operation::post("/api/copy", "copy", "Copy a model to another name")
            .json::<ollama::CopyRequest>(
                &["source", "destination"],
                r#"{"source": "cria", "destination": "me/cria:v2"}"#,
            )
            .response(200, "The model was copied.", &[ResponseBody::Nothing])
            .errors(&[404, 500]),
        Operation::delete("/api/delete", "delete", "Delete a model")
            .json::<ollama::DeleteRequest>(&[], r#"{"model": "me/cria:v2"}"#)
            .response(
                200,
                "The model was deleted. The body is empty, or an object with a `warning` if its space was not freed.",
                &[ResponseBody::Nothing],
            )
            .errors(&[404, 500]),
        Operation::post("/api/pull", "pull", "Pull a model from a registry")
            .json::<ollama::PullRequest>(&[], r#"{"model": "smollm2:135m"}"#)
            .response(200, "Progress, one JSON object per line; with `stream: false` only the last object.", &progress)
            .errors(&[403, 404, 500]),
        Operation::post("/api/push", "push", "Push a model to a registry")
            .json::<ollama::PullRequest>(&[], r#"{"model": "me/cria:v2"}"#)
            .response(200, "Progress, one JSON object per line; with `stream: false` only the last object.", &progress)
            .errors(&[403, 404, 500]),
        Operation::post("/api/verify", "verify", "Verify stored models against their digests")
            .description(
                "Each damaged file has a progress line. The last line is an error if damaged files remain.",
            )
            .json::<ollama::VerifyRequest>(&[], r#"{"model": "cria"}"#)
            .response(200, "Progress, one JSON object per line; with `stream: false` only the last object.", &progress)
            .errors(&[404, 500]),
        Operation::post("/api/prune", "prune", "Delete files that no model uses")
            .json::<ollama::PruneRequest>(&[], r#"{"dry_run": true}"#)
            .object::<ollama::PruneResponse>("The deleted files, or with `dry_run` those that would be deleted.")
            .errors(&[500]),
        Operation::get("/api/downloads", "downloads", "List unfinished pulls")
            .object::<ollama::DownloadsResponse>("The running and the interrupted pulls.")
            .errors(&[500]),
        digest(Operation::new("HEAD", "/api/blobs/{digest}", "has_blob", "Check whether a blob exists"))
            .response(200, "The blob exists.", &[ResponseBody::Nothing])
            .errors(&[400, 404]),
        digest(Operation::post("/api/blobs/{digest}", "upload_blob", "Upload a blob"))
            .body(RequestBody::Bytes)
            .response(200, "The blob existed before.", &[ResponseBody::Nothing])
            .response(201, "The blob is stored.", &[ResponseBody::Nothing])
            .errors(&[500]),
    ]
}

fn cloud() -> Vec<Operation> {
    let offline = "Puna never connects to ollama.com.";
    vec![
        Operation::get("/api/status", "cloud_status", "Show whether cloud features are enabled")
            .object::<Cloud>("They are disabled."),
        Operation::post("/api/me", "me", "Show the account at ollama.com")
            .description(offline)
            .refused(501),
        Operation::post("/api/signout", "signout", "Sign out of ollama.com")
            .description(offline)
            .refused(501),
        Operation::delete(
            "/api/user/keys/{key}",
            "delete_user_key",
            "Sign out of ollama.com (older API)",
        )
        .description(offline)
        .parameter("path", "key", "Public key.", r#"{"type": "string", "minLength": 1}"#)
        .refused(501),
        Operation::post(
            "/api/experimental/web_search",
            "web_search",
            "Search the web through ollama.com",
        )
        .description(offline)
        .json::<WebSearch>(&[], r#"{"query": "weather"}"#)
        .refused(403),
        Operation::post(
            "/api/experimental/web_fetch",
            "web_fetch",
            "Fetch a web page through ollama.com",
        )
        .description(offline)
        .json::<WebFetch>(&[], r#"{"url": "https://example.com"}"#)
        .refused(403),
        Operation::get(
            "/api/experimental/model-recommendations",
            "recommendations",
            "List recommended models",
        )
        .object::<Recommendations>("An empty list."),
    ]
}

fn openai() -> Vec<Operation> {
    let id = |operation: Operation| {
        operation.parameter(
            "path",
            "id",
            "Id of the response.",
            r#"{"type": "string", "minLength": 1}"#,
        )
    };
    let version = |operation: Operation| {
        let about = "With this header the response has Anthropic's format.";
        operation.parameter(
            "header",
            "anthropic-version",
            about,
            r#"{"type": "string", "examples": ["2023-06-01"]}"#,
        )
    };
    vec![
        Operation::post("/v1/chat/completions", "chat_completions", "Generate a chat completion")
            .json::<openai::ChatCompletionRequest>(
                &["model", "messages"],
                r#"{"model": "cria", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 20, "stream": true}"#,
            )
            .response(200, "The completion; with `stream` its chunks as events, and `[DONE]` at the end.", &[
                ResponseBody::Json(schema_of::<openai::ChatCompletion>),
                ResponseBody::Events(schema_of::<openai::ChatCompletionChunk>),
            ])
            .loads_model(),
        Operation::post("/v1/completions", "completions", "Generate completions of one or several prompts")
            .json::<openai::CompletionRequest>(
                &["model"],
                r#"{"model": "cria", "prompt": "Hello!", "max_tokens": 20, "stream": true}"#,
            )
            .response(200, "The completion; with `stream` its chunks as events, and `[DONE]` at the end.", &[
                ResponseBody::Json(schema_of::<openai::Completion>),
                ResponseBody::Events(schema_of::<openai::CompletionChunk>),
            ])
            .loads_model(),
        Operation::post("/v1/embeddings", "openai_embeddings", "Generate embeddings")
            .json::<openai::EmbedRequest>(&["model", "input"], r#"{"model": "minilm", "input": ["one", "two"]}"#)
            .object::<openai::EmbeddingList>("One embedding per text.")
            .loads_model(),
        Operation::post("/v1/responses", "create_response", "Generate a response and store it")
            .json::<responses::ResponsesRequest>(
                &["model"],
                r#"{"model": "cria", "input": "Hello!", "max_output_tokens": 20, "stream": true}"#,
            )
            .response(200, "The response, or with `stream` its events.", &[
                ResponseBody::Json(schema_of::<Response>),
                ResponseBody::Events(schema_of::<ResponseEvent>),
            ])
            .loads_model(),
        Operation::post("/v1/responses/input_tokens", "count_response", "Count the prompt tokens of a request")
            .description("Counts the tokens of the rendered prompt, with the template and the tools.")
            .json::<responses::ResponsesRequest>(&["model"], r#"{"model": "cria", "input": "Hello!"}"#)
            .object::<CountedResponse>("The number of tokens.")
            .loads_model(),
        id(Operation::get("/v1/responses/{id}", "get_response", "Get a stored response"))
            .response(
                200,
                "The response, or with `stream` its events.",
                &[ResponseBody::Json(schema_of::<Response>), ResponseBody::Events(schema_of::<ResponseEvent>)],
            )
            .parameter("query", "stream", "Repeat the events of the response's stream.", r#"{"type": "boolean"}"#)
            .parameter("query", "starting_after", "With `stream`: only events after this `sequence_number`.", r#"{"type": "integer", "minimum": 0}"#)
            .errors(&[400, 404]),
        id(Operation::delete("/v1/responses/{id}", "delete_response", "Delete a stored response"))
            .object::<DeletedResponse>("The response was deleted.")
            .errors(&[404]),
        Operation::post("/v1/audio/transcriptions", "transcriptions", "Transcribe audio")
            .description("Puna accepts no audio input: a complete request is refused with status 400.")
            .body(RequestBody::Form(&[
                ("file", true, "Audio file."),
                ("model", true, "Name of the model."), ("response_format", false, "`text` or `json`."), ("language", false, "Language of the audio."), ("prompt", false, "Text before the audio."),
            ]))
            .refused(400)
            .errors(&[403, 404, 500]),
        version(Operation::get("/v1/models", "models", "List stored models"))
            .parameter("query", "limit", "Anthropic's format: models per page. Default: 20.", r#"{"type": "integer", "minimum": 1, "maximum": 1000}"#)
            .parameter("query", "after_id", "Anthropic's format: the page starts after this model.", r#"{"type": "string"}"#)
            .parameter("query", "before_id", "Anthropic's format: the page ends before this model.", r#"{"type": "string"}"#)
            .object::<AnyModelList>("The stored models, newest first.")
            .errors(&[400, 500]),
        version(Operation::get("/v1/models/{*model}", "model", "Get a stored model"))
            .parameter("path", "model", "Name of the model; slashes are not escaped.", r#"{"type": "string", "minLength": 1, "examples": ["cria"]}"#)
            .object::<AnyModel>("The model.")
            .errors(&[400, 403, 404, 500]),
    ]
}

fn anthropic() -> Vec<Operation> {
    vec![
        Operation::post("/v1/messages", "messages", "Generate a message")
            .json::<anthropic::MessagesRequest>(
                &["model", "max_tokens", "messages"],
                r#"{"model": "cria", "max_tokens": 20, "messages": [{"role": "user", "content": "Hello!"}], "stream": true}"#,
            )
            .response(200, "The message, or with `stream` its events.", &[
                ResponseBody::Json(schema_of::<anthropic::MessagesResponse>),
                ResponseBody::Events(schema_of::<MessageEvent>),
            ])
            .loads_model(),
        Operation::post("/v1/messages/count_tokens", "count_tokens", "Count the prompt tokens of a request")
            .description("Counts the tokens of the rendered prompt, with the template and the tools.")
            .json::<anthropic::MessagesRequest>(
                &["model", "messages"],
                r#"{"model": "cria", "messages": [{"role": "user", "content": "Hello!"}]}"#,
            )
            .object::<anthropic::CountResponse>("The number of tokens.")
            .loads_model(),
    ]
}

/// Returns the rerank route under each of the paths that other services use.
fn ranking() -> Vec<Operation> {
    let names = [
        ("/api/rerank", "rerank"),
        ("/rerank", "rerank_short"),
        ("/v1/rerank", "rerank_v1"),
        ("/v2/rerank", "rerank_v2"),
    ];
    let one = |(path, id)| {
        Operation::post(path, id, "Rank documents by relevance to a query")
            .additive()
            .json::<ollama::RerankRequest>(
                &["model", "query", "documents"],
                r#"{"model": "reranker", "query": "What is a panda?", "documents": ["A bear.", "A car."]}"#,
            )
            .object::<ollama::RerankResponse>("Documents with their scores, best first.")
            .loads_model()
    };
    names.map(one).into()
}

fn puna() -> Vec<Operation> {
    vec![
        Operation::get("/health", "health", "Check that the server accepts requests")
            .additive()
            .object::<Health>("The server accepts requests."),
        Operation::get("/metrics", "metrics", "Get metrics for Prometheus").additive().response(
            200,
            "The metrics.",
            &[ResponseBody::Text("text/plain")],
        ),
        Operation::get("/openapi.json", "openapi", "Get this document")
            .additive()
            .response(
                200,
                "This document.",
                &[ResponseBody::Json(|_| schemars::json_schema!({"type": "object"}))],
            )
            .response(304, "The content matches `If-None-Match`.", &[ResponseBody::Nothing]),
        Operation::get("/docs", "docs", "Show this document as a page")
            .additive()
            .response(200, "The page.", &[ResponseBody::Text("text/html")])
            .response(304, "The content matches `If-None-Match`.", &[ResponseBody::Nothing]),
    ]
}

/// Returns the schema of a route's error object.
pub(crate) fn error_of(route: &Route) -> SchemaOf {
    match route.dialect {
        _ if route.shared_with_anthropic => schema_of::<AnyError>,
        Dialect::Ollama | Dialect::Puna => schema_of::<ErrorBody>,
        Dialect::OpenAi => schema_of::<openai::ErrorBody>,
        Dialect::Anthropic => schema_of::<anthropic::ErrorBody>,
    }
}
