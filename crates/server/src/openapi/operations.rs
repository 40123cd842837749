//! Table of every method of every route. A test compares it with the table of routes.

use puna_api::native::{self, ErrorBody};
use puna_api::schema::{MessageEvent, Response, ResponseEvent};
use puna_api::{anthropic, openai, responses};

use super::operation::{Operation, RequestBody, ResponseBody, SchemaOf, schema_of};
use super::shapes::{
    AnyError, AnyModel, AnyModelList, Cloud, CountedResponse, DeletedResponse, Health,
    Recommendations, WebFetch, WebSearch,
};
use crate::http::Dialect;
use crate::route_table::Route;

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
        Operation::post("/api/generate", "generate", "Continue a prompt")
            .description("Without a prompt the model is only loaded, or with `keep_alive` 0 unloaded.")
            .json::<native::GenerateRequest>(
                &["model"],
                r#"{"model": "cria", "prompt": "Why is the sky blue?", "options": {"num_predict": 20}}"#,
            )
            .response(
                200,
                "Text chunks, one per line; with `stream` false one object.",
                &[ResponseBody::Lines(schema_of::<native::GenerateResponse>), ResponseBody::Json(schema_of::<native::GenerateResponse>)],
            )
            .loads_model(),
        Operation::post("/api/chat", "chat", "Answer a conversation")
            .description("Without messages the model is only loaded, or with `keep_alive` 0 unloaded.")
            .json::<native::ChatRequest>(
                &["model"],
                r#"{"model": "cria", "messages": [{"role": "user", "content": "Hello!"}], "options": {"num_predict": 20}}"#,
            )
            .response(
                200,
                "Message chunks, one per line; with `stream` false one object.",
                &[ResponseBody::Lines(schema_of::<native::ChatResponse>), ResponseBody::Json(schema_of::<native::ChatResponse>)],
            )
            .loads_model(),
        Operation::post("/api/embed", "embed", "Embed texts")
            .description("Embeddings have norm 1. Without a text the model is only loaded.")
            .json::<native::EmbedRequest>(&["model"], r#"{"model": "minilm", "input": ["one", "two"]}"#)
            .object::<native::EmbedResponse>("One embedding per text.")
            .loads_model(),
        Operation::post("/api/embeddings", "embeddings", "Embed one text (older endpoint)")
            .description("The embedding is the result of the model's pooling, without normalization.")
            .json::<native::EmbeddingsRequest>(&["model"], r#"{"model": "minilm", "prompt": "one"}"#)
            .object::<native::EmbeddingsResponse>("The embedding.")
            .loads_model(),
        Operation::post("/api/tokenize", "tokenize", "Tokenize a text")
            .additive()
            .json::<native::TokenizeRequest>(&["model"], r#"{"model": "cria", "text": "Hello!"}"#)
            .object::<native::TokenizeResponse>("The tokens.")
            .loads_model(),
        Operation::post("/api/detokenize", "detokenize", "Detokenize tokens")
            .additive()
            .json::<native::DetokenizeRequest>(&["model"], r#"{"model": "cria", "tokens": [1, 2, 3]}"#)
            .object::<native::DetokenizeResponse>("The text.")
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
        ResponseBody::Lines(schema_of::<native::Progress>),
        ResponseBody::Json(schema_of::<native::Progress>),
    ];
    vec![
        Operation::get("/", "root", "Liveness check").response(
            200,
            "`Ollama is running`",
            &[ResponseBody::Text("text/plain")],
        ),
        Operation::get("/api/version", "version", "Versions").object::<native::VersionResponse>("Versions."),
        Operation::get("/api/tags", "tags", "List stored models")
            .object::<native::ListResponse>("The stored models, newest first.")
            .errors(&[500]),
        Operation::post("/api/show", "show", "Show a stored model")
            .json::<native::ShowRequest>(&[], r#"{"model": "cria"}"#)
            .object::<native::ShowResponse>("Details of the model.")
            .errors(&[403, 404, 500]),
        Operation::get("/api/ps", "ps", "List loaded models")
            .object::<native::ProcessResponse>("The models in memory, the last to expire first."),
        Operation::post("/api/create", "create", "Create a model")
            .description("From a stored model (`from`) or from files that were uploaded to `/api/blobs/…` before.")
            .json::<native::CreateRequest>(
                &[],
                r#"{"model": "polite", "from": "cria", "system": "Be polite."}"#,
            )
            .response(
                200,
                "Progress, one line per step; with `stream` false the last line only.",
                &progress,
            )
            .errors(&[404, 500]),
        Operation::post("/api/copy", "copy", "Copy a model to another name")
            .json::<native::CopyRequest>(
                &["source", "destination"],
                r#"{"source": "cria", "destination": "me/cria:v2"}"#,
            )
            .response(200, "Done.", &[ResponseBody::Nothing])
            .errors(&[404, 500]),
        Operation::delete("/api/delete", "delete", "Remove a model")
            .json::<native::DeleteRequest>(&[], r#"{"model": "me/cria:v2"}"#)
            .response(
                200,
                "Done. The body is empty, or an object whose `warning` is the reason why the space was not freed.",
                &[ResponseBody::Nothing],
            )
            .errors(&[404, 500]),
        Operation::post("/api/pull", "pull", "Pull a model from a registry")
            .json::<native::PullRequest>(&[], r#"{"model": "smollm2:135m"}"#)
            .response(200, "Progress lines; with `stream` false the last line only.", &progress)
            .errors(&[403, 404, 500]),
        Operation::post("/api/push", "push", "Push a model to a registry")
            .json::<native::PullRequest>(&[], r#"{"model": "me/cria:v2"}"#)
            .response(200, "Progress lines; with `stream` false the last line only.", &progress)
            .errors(&[403, 404, 500]),
        Operation::post("/api/verify", "verify", "Compare stored models with their digests")
            .description(
                "Each damaged file has a line. Remaining damage is an error.",
            )
            .json::<native::VerifyRequest>(&[], r#"{"model": "cria"}"#)
            .response(200, "Progress lines; with `stream` false the last line only.", &progress)
            .errors(&[404, 500]),
        Operation::post("/api/prune", "prune", "Remove unused files")
            .json::<native::PruneRequest>(&[], r#"{"dry_run": true}"#)
            .object::<native::PruneResponse>("The removed files, or those that would be removed.")
            .errors(&[500]),
        Operation::get("/api/downloads", "downloads", "List unfinished pulls")
            .object::<native::DownloadsResponse>("Running and interrupted pulls.")
            .errors(&[500]),
        digest(Operation::new("HEAD", "/api/blobs/{digest}", "has_blob", "Check whether a file was uploaded"))
            .response(200, "The file exists.", &[ResponseBody::Nothing])
            .errors(&[400, 404]),
        digest(Operation::post("/api/blobs/{digest}", "upload_blob", "Upload a file"))
            .body(RequestBody::Bytes)
            .response(200, "The file existed already.", &[ResponseBody::Nothing])
            .response(201, "The file was stored.", &[ResponseBody::Nothing])
            .errors(&[500]),
    ]
}

fn cloud() -> Vec<Operation> {
    let offline = "This server never connects to ollama.com.";
    vec![
        Operation::get("/api/status", "cloud_status", "Status of ollama.com features")
            .description("They are disabled.")
            .object::<Cloud>("They are disabled."),
        Operation::post("/api/me", "me", "The account at ollama.com")
            .description(offline)
            .refused(501),
        Operation::post("/api/signout", "signout", "Sign out of ollama.com")
            .description(offline)
            .refused(501),
        Operation::delete(
            "/api/user/keys/{key}",
            "delete_user_key",
            "Sign out of ollama.com (older endpoint)",
        )
        .description(offline)
        .parameter("path", "key", "The key.", r#"{"type": "string", "minLength": 1}"#)
        .refused(501),
        Operation::post(
            "/api/experimental/web_search",
            "web_search",
            "Search the web with ollama.com",
        )
        .description(offline)
        .json::<WebSearch>(&[], r#"{"query": "weather"}"#)
        .refused(403),
        Operation::post(
            "/api/experimental/web_fetch",
            "web_fetch",
            "Fetch a web page with ollama.com",
        )
        .description(offline)
        .json::<WebFetch>(&[], r#"{"url": "https://example.com"}"#)
        .refused(403),
        Operation::get(
            "/api/experimental/model-recommendations",
            "recommendations",
            "Recommended models",
        )
        .object::<Recommendations>("None."),
    ]
}

fn openai() -> Vec<Operation> {
    let id = |operation: Operation| {
        operation.parameter(
            "path",
            "id",
            "The response's id.",
            r#"{"type": "string", "minLength": 1}"#,
        )
    };
    let version = |operation: Operation| {
        let about = "If present, the response has Anthropic's format.";
        operation.parameter(
            "header",
            "anthropic-version",
            about,
            r#"{"type": "string", "examples": ["2023-06-01"]}"#,
        )
    };
    vec![
        Operation::post("/v1/chat/completions", "chat_completions", "Answer a conversation")
            .json::<openai::ChatCompletionRequest>(
                &["model", "messages"],
                r#"{"model": "cria", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 20, "stream": true}"#,
            )
            .response(200, "The answer; with `stream` its chunks, then `[DONE]`.", &[
                ResponseBody::Json(schema_of::<openai::ChatCompletion>),
                ResponseBody::Events(schema_of::<openai::ChatCompletionChunk>),
            ])
            .loads_model(),
        Operation::post("/v1/completions", "completions", "Continue one or more prompts")
            .json::<openai::CompletionRequest>(
                &["model"],
                r#"{"model": "cria", "prompt": "Hello!", "max_tokens": 20, "stream": true}"#,
            )
            .response(200, "The answer; with `stream` its chunks, then `[DONE]`.", &[
                ResponseBody::Json(schema_of::<openai::Completion>),
                ResponseBody::Events(schema_of::<openai::CompletionChunk>),
            ])
            .loads_model(),
        Operation::post("/v1/embeddings", "openai_embeddings", "Embed texts")
            .json::<openai::EmbedRequest>(&["model", "input"], r#"{"model": "minilm", "input": ["one", "two"]}"#)
            .object::<openai::EmbeddingList>("One embedding per text.")
            .loads_model(),
        Operation::post("/v1/responses", "create_response", "Create and store a response")
            .json::<responses::ResponsesRequest>(
                &["model"],
                r#"{"model": "cria", "input": "Hello!", "max_output_tokens": 20, "stream": true}"#,
            )
            .response(200, "The response; with `stream` its events.", &[
                ResponseBody::Json(schema_of::<Response>),
                ResponseBody::Events(schema_of::<ResponseEvent>),
            ])
            .loads_model(),
        Operation::post("/v1/responses/input_tokens", "count_response", "Count the tokens of a prompt")
            .description("The prompt is rendered as for generation.")
            .json::<responses::ResponsesRequest>(&["model"], r#"{"model": "cria", "input": "Hello!"}"#)
            .object::<CountedResponse>("The token count.")
            .loads_model(),
        id(Operation::get("/v1/responses/{id}", "get_response", "Get a stored response"))
            .response(
                200,
                "The response; with `stream` its events.",
                &[ResponseBody::Json(schema_of::<Response>), ResponseBody::Events(schema_of::<ResponseEvent>)],
            )
            .parameter("query", "stream", "Replay the events of its stream.", r#"{"type": "boolean"}"#)
            .parameter("query", "starting_after", "With `stream`: only events after this `sequence_number`.", r#"{"type": "integer", "minimum": 0}"#)
            .errors(&[400, 404]),
        id(Operation::delete("/v1/responses/{id}", "delete_response", "Delete a stored response"))
            .object::<DeletedResponse>("The response was deleted.")
            .errors(&[404]),
        Operation::post("/v1/audio/transcriptions", "transcriptions", "Transcribe audio")
            .description("Audio input is not supported yet: a valid request returns 400.")
            .body(RequestBody::Form(&[
                ("file", true, "The audio file."),
                ("model", true, "The model's name."), ("response_format", false, "`text` or `json`."), ("language", false, "Language of the audio."), ("prompt", false, "Text before the audio."),
            ]))
            .refused(400)
            .errors(&[403, 404, 500]),
        version(Operation::get("/v1/models", "models", "List stored models"))
            .parameter("query", "limit", "Models per page in Anthropic's format; 20 by default.", r#"{"type": "integer", "minimum": 1, "maximum": 1000}"#)
            .parameter("query", "after_id", "In Anthropic's format: the page starts after this model.", r#"{"type": "string"}"#)
            .parameter("query", "before_id", "In Anthropic's format: the page ends before this model.", r#"{"type": "string"}"#)
            .object::<AnyModelList>("The stored models, newest first.")
            .errors(&[400, 500]),
        version(Operation::get("/v1/models/{*model}", "model", "Show a stored model"))
            .parameter("path", "model", "Name of the model; slashes need no escaping.", r#"{"type": "string", "minLength": 1, "examples": ["cria"]}"#)
            .object::<AnyModel>("The model.")
            .errors(&[400, 403, 404, 500]),
    ]
}

fn anthropic() -> Vec<Operation> {
    vec![
        Operation::post("/v1/messages", "messages", "Answer a conversation")
            .json::<anthropic::MessagesRequest>(
                &["model", "max_tokens", "messages"],
                r#"{"model": "cria", "max_tokens": 20, "messages": [{"role": "user", "content": "Hello!"}], "stream": true}"#,
            )
            .response(200, "The message; with `stream` its events.", &[
                ResponseBody::Json(schema_of::<anthropic::MessagesResponse>),
                ResponseBody::Events(schema_of::<MessageEvent>),
            ])
            .loads_model(),
        Operation::post("/v1/messages/count_tokens", "count_tokens", "Count the tokens of a prompt")
            .description("The prompt is rendered as for generation.")
            .json::<anthropic::MessagesRequest>(
                &["model", "messages"],
                r#"{"model": "cria", "messages": [{"role": "user", "content": "Hello!"}]}"#,
            )
            .object::<anthropic::CountResponse>("The token count.")
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
        Operation::post(path, id, "Rank documents by their relevance to a query")
            .additive()
            .json::<native::RerankRequest>(
                &["model", "query", "documents"],
                r#"{"model": "reranker", "query": "What is a panda?", "documents": ["A bear.", "A car."]}"#,
            )
            .object::<native::RerankResponse>("Documents with scores, best first.")
            .loads_model()
    };
    names.map(one).into()
}

fn puna() -> Vec<Operation> {
    vec![
        Operation::get("/health", "health", "Health check")
            .additive()
            .object::<Health>("The server accepts requests."),
        Operation::get("/metrics", "metrics", "Metrics for Prometheus").additive().response(
            200,
            "The metrics.",
            &[ResponseBody::Text("text/plain")],
        ),
        Operation::get("/openapi.json", "openapi", "This document")
            .additive()
            .response(
                200,
                "This document.",
                &[ResponseBody::Json(|_| schemars::json_schema!({"type": "object"}))],
            )
            .response(
                304,
                "The document still has the tag in `If-None-Match`.",
                &[ResponseBody::Nothing],
            ),
        Operation::get("/docs", "docs", "Interactive page of this document")
            .additive()
            .response(200, "A page.", &[ResponseBody::Text("text/html")])
            .response(
                304,
                "The document still has the tag in `If-None-Match`.",
                &[ResponseBody::Nothing],
            ),
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
