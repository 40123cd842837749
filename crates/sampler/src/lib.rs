//! Turns the logits of a step into a token: sampler chain, grammars, log-probabilities and stop
//! strings.
//!
//! - [`Params`] are the sampling options of a request, with Ollama's defaults.
//!   [`Params::normalize`] clamps or rejects values from the API.
//! - [`Sampler`] runs the chain of one sequence: *logit bias → penalties → DRY → top-n-σ → top-k →
//!   typical → top-p → min-p → XTC → temperature → draw*. Random numbers are those of C++
//!   `std::mt19937`, and candidates have a defined order. So a seed gives the tokens that llama.cpp
//!   draws from the same logits.
//! - [`Grammar`] computes which tokens may follow in an answer with a [`Constraint`], and masks the
//!   others before the chain runs.
//! - [`log_probs`] computes log-probabilities from the raw logits of a step.
//! - [`StopMatcher`] finds stop strings across token boundaries, and holds back text that may be
//!   the start of one.
//!
//! ```
//! use puna_sampler::{Params, Sampler};
//!
//! let params = Params { temperature: 0.0, ..Params::default() };
//! let mut sampler = Sampler::new(&params, 4);
//! let token = sampler.sample(&mut [0.1, 0.3, 2.5, -1.0]);
//! sampler.accept(token);
//! assert_eq!(token, 2);
//! ```

#![forbid(unsafe_code)]

mod candidates;
mod chain;
mod constraint_size;
mod draw;
mod dry;
mod grammar;
mod infill;
mod logprobs;
mod params;
mod penalties;
mod rng;
mod sampler;
mod schema;
mod stop;
mod temperature;
mod truncate;
mod vocab;

pub use candidates::Candidate;
pub use constraint_size::MAX_CONSTRAINT_BYTES;
pub use grammar::{
    Constraint, Grammar, GrammarCompiler, GrammarError, GrammarToken, UnquotedString, lark_json,
    pattern_excluding,
};
pub use logprobs::{TokenLogprobs, log_probs};
pub use params::{Params, ParamsError, SamplerKind};
pub use rng::Mt19937;
pub use sampler::Sampler;
pub use schema::{JsonSchema, SchemaCheck, UnenforcedKeyword, WorkLimitExceeded, check_one_of};
pub use stop::{StopEvent, StopMatcher, check_stops};
pub use vocab::Vocab;

#[cfg(test)]
mod recorded_cases;
