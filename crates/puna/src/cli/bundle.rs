//! Arguments and help of `puna export` and `puna import`.

use std::path::PathBuf;

use clap::Args;

pub const EXPORT_HELP: &str = "FILE.tar gets the models as they are, with templates and parameters: `puna import` stores them elsewhere, and tools of container
registries read it (OCI image layout). FILE.gguf gets the weights of one model, for other programs; projectors and adapters become
separate files next to it. `-` writes a bundle to standard output.

Examples:
  puna export llama3.2 qwen3:4b models.tar           then, on the other machine: puna import models.tar
  puna export llama3.2 - | ssh host puna import -
  puna export llama3.2 llama3.2.gguf

Environment Variables:
      OLLAMA_MODELS";

pub const IMPORT_HELP: &str = "\
A model of the same name is replaced. If any part of the file is damaged, nothing is stored.

Examples:
  puna import models.tar
  puna import --name mine model.tar.gz

Environment Variables:
      OLLAMA_MODELS";

#[derive(Args, Debug)]
pub struct ExportArgs {
    /// The models
    #[arg(required = true, value_name = "MODEL")]
    pub models: Vec<String>,
    /// The file to write: .tar, .gguf, or `-`
    #[arg(value_name = "FILE")]
    pub output: PathBuf,
    /// Package format of the models in a bundle: Ollama's, Docker Model Runner's, or ModelPack
    #[arg(long, value_parser = ["ollama", "docker", "modelpack"], default_value = "ollama")]
    pub format: String,
}

#[derive(Args, Debug)]
pub struct ImportArgs {
    /// The bundle; `-` reads it from standard input
    pub file: PathBuf,
    /// Another name for the model, if the bundle has a single model
    #[arg(long)]
    pub name: Option<String>,
}
