//! Every level against the portable one.

mod data;
mod linear;
mod vector;
