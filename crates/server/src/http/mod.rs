//! HTTP layer below the middleware: connections, TLS, hosts, request bodies, responses, access log.

pub(crate) mod access_log;
mod body;
pub(crate) mod body_budget;
pub(crate) mod body_workers;
mod client;
pub(crate) mod connection_table;
mod dialect;
mod drain;
mod file_limit;
mod graceful_shutdown;
mod header_list;
pub(crate) mod host_check;
pub mod listen;
pub(crate) mod multipart;
pub(crate) mod peer;
mod request_scope;
mod response;
mod schema_report;
pub mod serve;
#[cfg(test)]
mod tests;
pub mod tls;
pub(crate) mod write_timeout;

pub(crate) use body::{
    BodyReader, CompatibilityReport, Json, MAX_SETTINGS_BODY_BYTES, read_body, record_adaptation,
    record_ignored_field,
};
pub(crate) use client::{CallerOutgoingAccess, Client, Owner};
pub(crate) use dialect::Dialect;
pub(crate) use request_scope::{VIA_HEADER, current_via};
pub(crate) use response::{
    Anthropic, ErrorFormat, ErrorResponse, JSON, Ollama, OpenAi, StreamFormat, anthropic_error,
    error_body, json, json_plain, openai_error, stream,
};
pub(crate) use schema_report::{
    SchemaReport, record_schema_violations, record_unenforced_keywords,
};
