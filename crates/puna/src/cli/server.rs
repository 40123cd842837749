//! Arguments of the commands that configure and manage servers.

use clap::{Args, Subcommand};

use super::JsonArgs;
use super::numbers::limit;

#[derive(Args, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    pub settings: SettingArgs,
    /// Speculative decoding: auto, off, ngram (drafts from the text alone), always, or a draft
    /// model for all models that it fits
    #[arg(long, value_name = "HOW")]
    pub speculate: Option<String>,
    /// Make answers independent of other requests, threads and the cache (prompts take about twice
    /// the time)
    #[arg(long)]
    pub deterministic: bool,
}

#[derive(Args, Debug)]
pub struct SettingArgs {
    /// Address to listen on, such as 127.0.0.1:11500; overrides OLLAMA_HOST, or PUNA_MIRROR_HOST of
    /// a mirror
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,
    /// Any setting that `puna config` lists; overrides the environment and the configuration file
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
    /// Remove models that no rule of mirror.retention keeps; a running mirror does this daily
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
    /// Any setting that `puna config` lists; overrides the environment and the configuration file
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// Manage the keys of the server. Without any key, every client may use the server, and clients on
/// the same machine may change its models.
#[derive(Subcommand, Debug)]
pub enum KeyCommand {
    /// Create and print a key; the server then requires a key
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
    /// Name of the key: its owner or purpose
    pub name: String,
    /// Permissions: inference, models (create, pull and remove) or admin (all)
    #[arg(long, value_delimiter = ',', default_value = "inference")]
    pub scope: Vec<String>,
    /// Ed25519 public key (the line of an id_ed25519.pub, or its file) by which the registry
    /// identifies the owner; no key is created
    #[arg(long, value_name = "KEY")]
    pub public_key: Option<String>,
    /// Namespaces of the registry that the key may use: me, or team-* for a prefix
    #[arg(long, value_delimiter = ',', value_name = "NAMESPACE")]
    pub namespace: Vec<String>,
    /// Group whose keys share cached prefixes if prefix_sharing is "group"
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
    /// Maximum requests per minute
    #[arg(long, value_name = "N", value_parser = limit)]
    pub requests_per_minute: Option<u32>,
    /// Maximum concurrent requests
    #[arg(long, value_name = "N", value_parser = limit)]
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
