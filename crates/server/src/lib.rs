//! HTTP routes, the scheduler of models and the runner processes.

#![forbid(unsafe_code)]
