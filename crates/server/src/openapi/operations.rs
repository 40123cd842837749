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
        Operation::post("/api/generate", "generate", "Continue a prompt")
            .description("Without a prompt the model is only loaded, or with `keep_alive` 0 unloaded.")
            .json::<native::GenerateRequest>(
                &["model"],
                r#"{"model": "cria", "prompt": "Why is the sky blue?", "options": {"num_predict": 20}}"#,
            )
            .response(
                200,
                "Pieces of text, one a line; with `stream` false one object.",
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
                "Pieces of a message, one a line; with `stream` false one object.",
                &[ResponseBody::Lines(schema_of::<native::ChatResponse>), ResponseBody::Json(schema_of::<native::ChatResponse>)],
            )
            .loads_model(),
        Operation::post("/api/embed", "embed", "Texts to vectors")
            .description("Vectors have norm 1. Without a text the model is only loaded.")
            .json::<native::EmbedRequest>(&["model"], r#"{"model": "minilm", "input": ["one", "two"]}"#)
            .object::<native::EmbedResponse>("A vector for each text.")
            .loads_model(),
        Operation::post("/api/embeddings", "embeddings", "A text to its vector, in the older form")
            .description("The vector is as the model's pooling gives it.")
            .json::<native::EmbeddingsRequest>(&["model"], r#"{"model": "minilm", "prompt": "one"}"#)
            .object::<native::EmbeddingsResponse>("The vector.")
            .loads_model(),
        Operation::post("/api/tokenize", "tokenize", "A text to its tokens")
            .additive()
            .json::<native::TokenizeRequest>(&["model"], r#"{"model": "cria", "text": "Hello!"}"#)
            .object::<native::TokenizeResponse>("The tokens.")
            .loads_model(),
        Operation::post("/api/detokenize", "detokenize", "Tokens to their text")
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
        Operation::get("/", "root", "Whether the server is there").response(
            200,
            "`Ollama is running`",
            &[ResponseBody::Text("text/plain")],
        ),
        Operation::get("/api/version", "version", "Versions").object::<native::VersionResponse>("Versions."),
        Operation::get("/api/tags", "tags", "What is stored")
            .object::<native::ListResponse>("The stored models, the newest first.")
            .errors(&[500]),
        Operation::post("/api/show", "show", "About a stored model")
            .json::<native::ShowRequest>(&[], r#"{"model": "cria"}"#)
            .object::<native::ShowResponse>("What is known of the model.")
            .errors(&[403, 404, 500]),
        Operation::get("/api/ps", "ps", "What is loaded")
            .object::<native::ProcessResponse>("The models in memory, the one that stays longest first."),
        Operation::post("/api/create", "create", "Make a model")
            .description("From a stored model (`from`) or from files that were uploaded to `/api/blobs/…` before.")
            .json::<native::CreateRequest>(
                &[],
                r#"{"model": "polite", "from": "cria", "system": "Be polite."}"#,
            )
            .response(
                200,
                "What is being done, one line a step; with `stream` false the last of them.",
                &progress,
            )
            .errors(&[404, 500]),
        Operation::post("/api/copy", "copy", "Give a model a further name")
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
                "Done. Nothing is said, unless the space was not freed: then why, in `warning` of an object.",
                &[ResponseBody::Nothing],
            )
            .errors(&[404, 500]),
        Operation::post("/api/pull", "pull", "Fetch a model from a registry")
            .json::<native::PullRequest>(&[], r#"{"model": "smollm2:135m"}"#)
            .response(200, "Progress, one line at a time; with `stream` false the last of them.", &progress)
            .errors(&[403, 404, 500]),
        Operation::post("/api/push", "push", "Send a model to a registry")
            .json::<native::PullRequest>(&[], r#"{"model": "me/cria:v2"}"#)
            .response(200, "Progress, one line at a time; with `stream` false the last of them.", &progress)
            .errors(&[403, 404, 500]),
        Operation::post("/api/verify", "verify", "Compare stored models with their digests")
            .description(
                "Damaged parts are told in lines of their own; if any are left in the end, that is an error.",
            )
            .json::<native::VerifyRequest>(&[], r#"{"model": "cria"}"#)
            .response(200, "Progress, one line at a time; with `stream` false the last of them.", &progress)
            .errors(&[404, 500]),
        Operation::post("/api/prune", "prune", "Remove what no model uses")
            .json::<native::PruneRequest>(&[], r#"{"dry_run": true}"#)
            .object::<native::PruneResponse>("What was removed, or would be.")
            .errors(&[500]),
        Operation::get("/api/downloads", "downloads", "Pulls that are not finished")
            .object::<native::DownloadsResponse>("Those that go on and those that were interrupted.")
            .errors(&[500]),
        digest(Operation::new("HEAD", "/api/blobs/{digest}", "has_blob", "Whether a file was uploaded"))
            .response(200, "It is there.", &[ResponseBody::Nothing])
            .errors(&[400, 404]),
        digest(Operation::post("/api/blobs/{digest}", "upload_blob", "Upload a file"))
            .body(RequestBody::Bytes)
            .response(200, "It was there already.", &[ResponseBody::Nothing])
            .response(201, "It is stored.", &[ResponseBody::Nothing])
            .errors(&[500]),
    ]
}

fn cloud() -> Vec<Operation> {
    let offline = "Nothing here ever goes out to ollama.com.";
    vec![
        Operation::get("/api/status", "cloud_status", "Whether ollama.com is used")
            .description("It is not.")
            .object::<Cloud>("It is not."),
        Operation::post("/api/me", "me", "The account at ollama.com")
            .description(offline)
            .refused(501),
        Operation::post("/api/signout", "signout", "Leave ollama.com")
            .description(offline)
            .refused(501),
        Operation::delete(
            "/api/user/keys/{key}",
            "delete_user_key",
            "Leave ollama.com, in the older form",
        )
        .description(offline)
        .parameter("path", "key", "The key.", r#"{"type": "string", "minLength": 1}"#)
        .refused(501),
        Operation::post(
            "/api/experimental/web_search",
            "web_search",
            "Search the web by ollama.com",
        )
        .description(offline)
        .json::<WebSearch>(&[], r#"{"query": "weather"}"#)
        .refused(403),
        Operation::post("/api/experimental/web_fetch", "web_fetch", "Fetch a page by ollama.com")
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
        let about = "Where it is there, the answer has Anthropic's form.";
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
            .response(200, "The answer; with `stream` its pieces, and at the end `[DONE]`.", &[
                ResponseBody::Json(schema_of::<openai::ChatCompletion>),
                ResponseBody::Events(schema_of::<openai::ChatCompletionChunk>),
            ])
            .loads_model(),
        Operation::post("/v1/completions", "completions", "Answer a prompt, or several")
            .json::<openai::CompletionRequest>(
                &["model"],
                r#"{"model": "cria", "prompt": "Hello!", "max_tokens": 20, "stream": true}"#,
            )
            .response(200, "The answer; with `stream` its pieces, and at the end `[DONE]`.", &[
                ResponseBody::Json(schema_of::<openai::Completion>),
                ResponseBody::Events(schema_of::<openai::CompletionChunk>),
            ])
            .loads_model(),
        Operation::post("/v1/embeddings", "openai_embeddings", "Texts to vectors")
            .json::<openai::EmbedRequest>(&["model", "input"], r#"{"model": "minilm", "input": ["one", "two"]}"#)
            .object::<openai::EmbeddingList>("A vector for each text.")
            .loads_model(),
        Operation::post("/v1/responses", "create_response", "Answer items, and keep the answer")
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
            .description("Of the very prompt that the model would get.")
            .json::<responses::ResponsesRequest>(&["model"], r#"{"model": "cria", "input": "Hello!"}"#)
            .object::<CountedResponse>("Their number.")
            .loads_model(),
        id(Operation::get("/v1/responses/{id}", "get_response", "A response that was kept"))
            .response(
                200,
                "The response; with `stream` the events that told of it.",
                &[ResponseBody::Json(schema_of::<Response>), ResponseBody::Events(schema_of::<ResponseEvent>)],
            )
            .parameter("query", "stream", "Tell the events of its stream again.", r#"{"type": "boolean"}"#)
            .parameter("query", "starting_after", "With `stream`, only events behind that of this `sequence_number`.", r#"{"type": "integer", "minimum": 0}"#)
            .errors(&[400, 404]),
        id(Operation::delete("/v1/responses/{id}", "delete_response", "Forget a response"))
            .object::<DeletedResponse>("It is forgotten.")
            .errors(&[404]),
        Operation::post("/v1/audio/transcriptions", "transcriptions", "Sound to text")
            .description("No model here takes sound so far: a complete request is refused with 400.")
            .body(RequestBody::Form(&[
                ("file", true, "The sound."),
                ("model", true, "The model's name."), ("response_format", false, "`text` or `json`."), ("language", false, "The language that is spoken."), ("prompt", false, "What was said before."),
            ]))
            .refused(400)
            .errors(&[403, 404, 500]),
        version(Operation::get("/v1/models", "models", "What is stored"))
            .parameter("query", "limit", "Models on a page of Anthropic's form; 20 unless given.", r#"{"type": "integer", "minimum": 1, "maximum": 1000}"#)
            .parameter("query", "after_id", "Of Anthropic's form: the page begins behind this model.", r#"{"type": "string"}"#)
            .parameter("query", "before_id", "Of Anthropic's form: the page ends before this model.", r#"{"type": "string"}"#)
            .object::<AnyModelList>("The stored models, the newest first.")
            .errors(&[400, 500]),
        version(Operation::get("/v1/models/{*model}", "model", "About a stored model"))
            .parameter("path", "model", "Its name; slashes stay as they are.", r#"{"type": "string", "minLength": 1, "examples": ["cria"]}"#)
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
            .description("Of the very prompt that the model would get.")
            .json::<anthropic::MessagesRequest>(
                &["model", "messages"],
                r#"{"model": "cria", "messages": [{"role": "user", "content": "Hello!"}]}"#,
            )
            .object::<anthropic::CountResponse>("Their number.")
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
        Operation::post(path, id, "Documents in the order of how well they answer a query")
            .additive()
            .json::<native::RerankRequest>(
                &["model", "query", "documents"],
                r#"{"model": "reranker", "query": "What is a panda?", "documents": ["A bear.", "A car."]}"#,
            )
            .object::<native::RerankResponse>("Documents with their scores, the best first.")
            .loads_model()
    };
    names.map(one).into()
}

fn puna() -> Vec<Operation> {
    vec![
        Operation::get("/health", "health", "Whether requests are taken")
            .additive()
            .object::<Health>("They are."),
        Operation::get("/metrics", "metrics", "Figures for Prometheus").additive().response(
            200,
            "Figures.",
            &[ResponseBody::Text("text/plain")],
        ),
        Operation::get("/openapi.json", "openapi", "This document")
            .additive()
            .response(
                200,
                "This document.",
                &[ResponseBody::Json(|_| schemars::json_schema!({"type": "object"}))],
            )
            .response(304, "It is the one that `If-None-Match` names.", &[ResponseBody::Nothing]),
        Operation::get("/docs", "docs", "This document to read, and to try")
            .additive()
            .response(200, "A page.", &[ResponseBody::Text("text/html")])
            .response(304, "It is the one that `If-None-Match` names.", &[ResponseBody::Nothing]),
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
