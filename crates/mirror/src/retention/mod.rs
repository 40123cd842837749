//! What of a library stays: the rules, what they mean for what is there, and the removal of the rest.

mod plan;
mod rule;
mod run;
#[cfg(test)]
mod tests;

pub use plan::Removal;
pub use rule::Rule;
pub use run::{Retained, retain};
