//! `puna debug`: inspects the engine.

mod blocks;
mod graph;
mod kernels;
mod logits;
mod media;
mod parse;
mod render;
mod script;

use anyhow::Result;

pub(super) use logits::kv_type;

use crate::cli::Debug;

pub fn run(command: Debug) -> Result<()> {
    match command {
        Debug::Logits(args) => logits::run(&args),
        Debug::Media(args) => media::run(&args),
        Debug::Dequantize { ty, hex, json } => blocks::dequantize(&ty, &hex, json),
        Debug::QuantizeError { ty, json } => blocks::quantize_error(&ty, json),
        Debug::Graph { model, tokens, dot, json } => {
            graph::run(&model, tokens, dot.as_deref(), json)
        }
        Debug::Kernels(args) => kernels::run(&args),
        Debug::Parse(args) => parse::run(&args),
        Debug::Render(args) => render::run(&args),
        Debug::Script(args) => script::run(args),
    }
}
