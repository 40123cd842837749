//! Tests with access to private items. The cases under `tests/data` were made by the reference
//! implementations.

mod adapt;
mod chat;
mod fit;
mod go_cases;
mod go_vectors;
mod hostile;
mod jinja_cases;
mod jinja_vectors;
mod named;
mod renderers;
