//! Arguments of `puna launch`.

use clap::Args;

pub const LAUNCH_HELP: &str = "\
CLIENT is claude, codex, opencode, qwen or pi, which must be installed. It gets the server's address, the key, the model and its
real context window for this run alone; puna changes no file of the client. Arguments after -- go to the client.

Without --model it gets the last launched model, else a loaded or stored model that can call tools. Without a suitable model, it
offers models that fit this machine.

Examples:
  puna launch claude
  puna launch codex --model qwen3-coder:30b -- exec \"Explain this repository\"
  puna launch opencode --print             prints files, environment and command
  puna launch zed --print                  prints the settings for any other client

Environment Variables:
      OLLAMA_HOST
      PUNA_API_KEY";

#[derive(Args, Debug)]
pub struct LaunchArgs {
    /// The agent
    pub client: String,
    /// The model
    #[arg(short, long)]
    pub model: Option<String>,
    /// Show files, environment and command instead of starting anything
    #[arg(long)]
    pub print: bool,
    /// Arguments for the agent
    #[arg(last = true)]
    pub arguments: Vec<String>,
}
