//! From a step's logits to a token: the sampler chain, log-probabilities and stop strings.
//!
//! - [`Params`] are the options of a request, with Ollama's defaults; [`Params::normalize`] clamps or refuses what
//!   the API gets from outside.
//! - [`Sampler`] runs the chain of one sequence: *logit bias → penalties → DRY → top-n-σ → top-k → typical → top-p →
//!   min-p → XTC → temperature → draw*. The random numbers are those of a C++ `std::mt19937`, and candidates are kept
//!   in a defined order, so a seed gives the tokens that llama.cpp draws from the same logits.
//! - [`Grammar`] says which tokens an answer of some form ([`Constraint`]) may go on with, and hides
//!   the others before the chain sees them.
//! - [`log_probs`] describes the raw distribution of a step.
//! - [`StopMatcher`] finds stop strings across token boundaries and holds back text that could become one.
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
mod draw;
mod dry;
mod grammar;
mod infill;
mod link;
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
pub use grammar::{
    BareText, CONSTRAINT_BYTES_MAX, Constraint, Grammar, GrammarError, Grammars, Spelling,
    check_one_of, lark_json, pattern_without,
};
pub use logprobs::{TokenLogprobs, log_probs};
pub use params::{Kind, Params, ParamsError};
pub use rng::Mt19937;
pub use sampler::Sampler;
pub use schema::{JsonSchema, SchemaCheck, TooMuchWork, UnenforcedKeyword};
pub use stop::{StopEvent, StopMatcher};
pub use vocab::Vocab;

#[cfg(test)]
mod corpus;
