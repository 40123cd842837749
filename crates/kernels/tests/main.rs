//! Every level against the portable one.

mod data;
mod linear;
mod recurrent;
mod selection;
mod vector;
