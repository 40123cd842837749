//! Arguments of the commands that configure and manage servers.

use clap::{Args, Subcommand};

use super::JsonArgs;

#[derive(Args, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
    /// Guess ahead: auto, off, ngram (from the text alone), always, or the draft model of all models that it fits
    #[arg(long, value_name = "HOW")]
    pub speculate: Option<String>,
    /// Answers that depend on nothing but the request: not on other requests, threads, or what is cached (prompts take about
    /// twice the time)
    #[arg(long)]
    pub deterministic: bool,
}

#[derive(Args, Debug)]
pub struct SettingArgs {
    /// Address to listen on, such as 127.0.0.1:11500 (wins over OLLAMA_HOST; of a mirror, over PUNA_MIRROR_HOST)
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,
    /// Any setting that `puna config` lists; wins over the environment and the configuration file
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct MirrorArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
    #[command(subcommand)]
    pub command: Option<MirrorCommand>,
}

#[derive(Subcommand, Debug)]
pub enum MirrorCommand {
    /// Remove what no rule of mirror.retention keeps, which a mirror that runs does daily by itself
    #[command(
        after_help = "Example:\n  puna mirror retain --dry-run --set 'mirror.retention=library=pulled:30d,team-*=last:5 keep:latest'"
    )]
    Retain(RetainArgs),
}

#[derive(Args, Debug)]
pub struct RetainArgs {
    /// Only show what would be removed
    #[arg(long)]
    pub dry_run: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Any setting that `puna config` lists; wins over the environment and the configuration file
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// Who may use the server. As long as there is no key, everybody may who can reach it, and change models from its own machine.
#[derive(Subcommand, Debug)]
pub enum KeyCommand {
    /// Make a key and print it; from then on the server asks for one
    #[command(
        after_help = "Examples:\n  puna key add laptop\n  puna key add ci --scope inference,models --requests-per-minute 60 --concurrent 2\n  puna key add anna --scope models --namespace anna --public-key ~/anna.pub\n\nShow it to the server as `Authorization: Bearer KEY` or `x-api-key: KEY`; commands take it from PUNA_API_KEY."
    )]
    Add(KeyAddArgs),
    /// List the keys, without the keys themselves
    #[command(visible_alias = "ls")]
    List(JsonArgs),
    /// Remove keys
    Rm {
        /// Their names
        #[arg(required = true)]
        names: Vec<String>,
    },
}

#[derive(Args, Debug)]
pub struct KeyAddArgs {
    /// Whose key it is, or what it is for
    pub name: String,
    /// What it is for: inference, models (making, fetching and removing them) or admin (everything)
    #[arg(long, value_delimiter = ',', default_value = "inference")]
    pub scope: Vec<String>,
    /// The public half of an Ed25519 key (the line of an id_ed25519.pub, or its file): registries know its owner by it, and no
    /// key is made
    #[arg(long, value_name = "KEY")]
    pub public_key: Option<String>,
    /// In the registry, for these namespaces alone: me, or team-* for all that begin so
    #[arg(long, value_delimiter = ',', value_name = "NAMESPACE")]
    pub namespace: Vec<String>,
    /// Requests a minute at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub requests_per_minute: Option<u32>,
    /// Requests at once at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrent: Option<u32>,
}

#[derive(Args, Debug)]
pub struct ConfigArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}
