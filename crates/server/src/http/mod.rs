//! What stands between the network and the door: connections, hosts, bodies, answers, the log.

mod body;
mod client;
mod dialect;
mod ending;
mod header_list;
pub(crate) mod hosts;
pub(crate) mod journal;
mod lingering;
pub mod listen;
pub(crate) mod multipart;
pub(crate) mod patient;
pub(crate) mod peer;
mod reply;
pub(crate) mod room;
mod schema_notes;
pub mod serve;
#[cfg(test)]
mod tests;
pub mod tls;

pub(crate) use body::{Ignored, Json, Pieces, note_adapted, note_ignored, read_body};
pub(crate) use client::{Client, Owner};
pub(crate) use dialect::Dialect;
pub(crate) use journal::{VIA_HEADER, current_via};
pub(crate) use reply::{
    Anthropic, ErrorForm, JSON, Native, OpenAi, Refused, Wire, anthropic_error, error_body, json,
    json_plain, openai_error, stream,
};
pub(crate) use schema_notes::{SchemaNotes, note_unenforced, note_violations};
