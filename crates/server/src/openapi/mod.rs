//! What the routes take and answer, described once: the OpenAPI document, a page to read and try it, and the table of
//! fields in the manual (`docs/fields.md`) all come from [`operations`] and the wire types.

mod document;
pub(crate) mod operation;
pub(crate) mod operations;
mod shapes;

pub(crate) use document::document;

/// The page.
pub(crate) const PAGE: &str = include_str!("page.html");
