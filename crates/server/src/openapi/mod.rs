//! The description of the routes: the OpenAPI document, a page that shows it, and the table of fields in the manual
//! (`docs/fields.md`). Tests generate the document and the table from `operations` and the wire types, and fail where a
//! committed file differs: the program holds the document as text and no code that describes types.

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

/// The OpenAPI document.
pub(crate) const DOCUMENT: &str = include_str!("openapi.json");

/// The page.
pub(crate) const PAGE: &str = include_str!("page.html");
