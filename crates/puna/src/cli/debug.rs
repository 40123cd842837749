//! Arguments of `puna debug`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::numbers::{context, sequences, step_tokens, threads, token};
use super::{JsonArgs, SettingArgs};

/// Commands for debugging the engine.
#[derive(Subcommand, Debug)]
pub enum Debug {
    /// Raw logits of some tokens, before any sampling
    Logits(LogitsArgs),
    /// What a model makes of pictures: pixels, rows, chunks of the prompt, and logits
    Media(MediaArgs),
    /// Values of raw blocks of a tensor type
    Dequantize {
        /// The type, such as Q4_K
        #[arg(long = "type", value_name = "TYPE")]
        ty: String,
        /// The blocks
        #[arg(long)]
        hex: String,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// The error of quantizing a fixed row to a tensor type
    QuantizeError {
        /// The type, such as Q4_K
        #[arg(long = "type", value_name = "TYPE")]
        ty: String,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// The rendered prompt of a request
    Render(RenderArgs),
    /// The output parser's result for a model's text
    Parse(ParseArgs),
    /// The computation of one step
    Graph {
        /// The model
        model: String,
        /// Tokens of the step
        #[arg(long, default_value = "1", value_parser = step_tokens)]
        tokens: usize,
        /// Write the graph for Graphviz
        #[arg(long)]
        dot: Option<PathBuf>,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Kernel levels of this machine
    Kernels(JsonArgs),
    /// Serve a model that answers from a script, for tests of clients
    #[command(hide = true)]
    Script(ScriptArgs),
}

#[derive(Args, Debug)]
pub struct ScriptArgs {
    /// The script
    pub file: PathBuf,
    /// Play an upstream server of OpenAI's chat dialect instead of a model
    #[arg(long)]
    pub upstream: bool,
    #[command(flatten)]
    pub settings: SettingArgs,
}

/// Settings of the computation.
#[derive(Args, Debug)]
pub struct ComputeArgs {
    /// Storage of keys
    #[arg(long, default_value = "f16")]
    pub cache_type_k: String,
    /// Storage of values
    #[arg(long, default_value = "f16")]
    pub cache_type_v: String,
    /// Kernel level
    #[arg(long)]
    pub kernels: Option<String>,
    /// Threads
    #[arg(long, value_parser = threads)]
    pub threads: Option<usize>,
}

#[derive(Args, Debug)]
pub struct LogitsArgs {
    /// The model
    pub model: String,
    /// The tokens, such as 1,2,3
    #[arg(long, value_delimiter = ',', required = true, value_parser = token)]
    pub tokens: Vec<u32>,
    /// Positions to print: all, last, or a list such as 0,5
    #[arg(long, default_value = "all")]
    pub positions: String,
    /// How to split the tokens: whole, one (by one), or the size of a chunk
    #[arg(long, default_value = "whole")]
    pub split: String,
    /// Run this many copies in one batch, with the same number of other sequences
    #[arg(long, value_parser = sequences)]
    pub parallel: Option<usize>,
    /// Context that long-rope factors assume
    #[arg(long, value_parser = context)]
    pub num_ctx: Option<usize>,
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Backend that runs the model
    #[arg(long, default_value = "cpu")]
    pub backend: String,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct MediaArgs {
    /// The model
    pub model: String,
    /// The pictures, one for each <__media__> in the prompt
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The projector, a GGUF file with the vision tower
    #[arg(long, value_name = "MMPROJ")]
    pub projector: Option<String>,
    /// The prompt, in which <__media__> stands for the next file
    #[arg(long)]
    pub prompt: String,
    /// How to split the prompt: whole, one (by one), the size of a chunk, or batch (whole, beside
    /// another sequence)
    #[arg(long, default_value = "whole")]
    pub split: String,
    /// Context length
    #[arg(long, value_parser = context)]
    pub num_ctx: Option<usize>,
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Write the pixels and rows of each picture to this folder, as input-N.npy and rows-N.npy
    #[arg(long, value_name = "FOLDER")]
    pub dump: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct RenderArgs {
    /// The model
    #[arg(required_unless_present_any = ["template", "renderer"])]
    pub model: Option<String>,
    /// A template instead of the model's own
    #[arg(long)]
    pub template: Option<PathBuf>,
    /// A built-in renderer instead of the model's own
    #[arg(long, value_name = "NAME", conflicts_with_all = ["template", "kind"])]
    pub renderer: Option<String>,
    /// Language of the template
    #[arg(long)]
    pub kind: Option<TemplateKind>,
    /// A body of /api/chat or /api/generate
    #[arg(long)]
    pub request: PathBuf,
    /// Print the changes of the conversation that the template requires
    #[arg(long, conflicts_with = "json")]
    pub explain: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct ParseArgs {
    /// The parser: a name as in a Modelfile's PARSER, or thinking
    #[arg(long, value_name = "NAME")]
    pub parser: String,
    /// A JSON list of the text's pieces in order of arrival; - reads it from standard input
    #[arg(long, value_name = "FILE")]
    pub chunks: PathBuf,
    /// A JSON list of the offered tools
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// Whether the request enables thinking
    #[arg(long, value_name = "BOOL")]
    pub think: Option<bool>,
    /// Opening tag of the reasoning, for the parser thinking
    #[arg(long, value_name = "TAG", default_value = "<think>")]
    pub open: String,
    /// Closing tag of the reasoning
    #[arg(long, value_name = "TAG", default_value = "</think>")]
    pub close: String,
    /// The prompt has the opening tag already
    #[arg(long)]
    pub opened: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Languages of templates.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateKind {
    /// Jinja, as in GGUF files
    Jinja,
    /// Go's text/template, as in Modelfiles
    Go,
}
