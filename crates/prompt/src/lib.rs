//! Jinja and Go templates, message collation and truncation.

#![forbid(unsafe_code)]
