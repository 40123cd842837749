//! The wire types of the HTTP dialects.

#![forbid(unsafe_code)]
