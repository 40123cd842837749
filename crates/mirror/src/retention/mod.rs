//! Retention of tags and manifests: rules, the plan they result in, and its execution.

mod plan;
mod rule;
mod run;
#[cfg(test)]
mod tests;
pub(crate) mod usage_log;

pub use plan::Removal;
pub use rule::Rule;
pub use run::{RetentionReport, apply_retention};
