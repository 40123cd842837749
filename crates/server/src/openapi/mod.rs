//! Description of the routes: the OpenAPI document, a page that shows it, and the table of fields
//! in the manual (`docs/reference/fields.md`).
//!
//! Tests generate the document and the table from `operations` and the request and response types,
//! and fail where a committed file differs. The program contains only the generated text and no
//! schema generator.

#[cfg(test)]
mod document;
#[cfg(test)]
pub(crate) mod operation;
#[cfg(test)]
pub(crate) mod operations;
#[cfg(test)]
mod shapes;

#[cfg(test)]
pub(crate) use document::document;

/// The OpenAPI document, as `GET /openapi.json` sends it.
pub(crate) const DOCUMENT: &str = include_str!("openapi.json");

/// The HTML page of `GET /docs`.
pub(crate) const PAGE: &str = include_str!("page.html");
