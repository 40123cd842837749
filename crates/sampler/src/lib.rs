//! The sampler chain, stop strings and log-probabilities.

#![forbid(unsafe_code)]
