//! Attention that reads a part of the context.

mod chosen;
mod kit;
mod latent;
mod pooled;
