//! Definition of the command line: one table of commands, flags and help texts. The parser, help,
//! completions and manual pages are generated from it.

mod bundle;
mod debug;
mod help;
mod launch;
mod measure;
mod numbers;
mod server;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use help::with_variables;
use numbers::{dimensions, threads, token};

pub use bundle::*;
pub use debug::*;
pub use launch::*;
pub use measure::*;
pub use server::*;

/// Runs open language models: fetches, stores, creates, serves and answers, on its own engine.
#[derive(Parser, Debug)]
#[command(
    name = "puna",
    about = "Large language model runner",
    disable_version_flag = true,
    subcommand_required = false,
    after_help = "Try it without any download:\n  puna run cria \"What is the capital of France?\"\n\nUse \"puna COMMAND --help\" for more about a command.",
    override_usage = "puna [flags]\n       puna [command]"
)]
pub struct Cli {
    /// Show version information
    #[arg(short = 'v', long)]
    pub version: bool,

    #[command(subcommand)]
    pub command: Option<Command>,
}

const HOST_HELP: &str = "Environment Variables:\n      OLLAMA_HOST";
const STORE_HELP: &str = "MODEL is the name of a stored model (such as cria) or the path of a GGUF file.\n\nEnvironment Variables:\n      OLLAMA_MODELS\n      PUNA_KERNELS";
const CONFIG_HELP: &str = "\
A setting is taken from the command line, else from the variable PUNA_KEY or OLLAMA_KEY of the environment, else from the
configuration file: PUNA_CONFIG names it; else it is ~/.config/puna/puna.toml, else /etc/puna/puna.toml. The output has the
format of this file.";
const SERVE_HELP: &str =
    "Settings may also be in a configuration file; `puna config` shows them all.

Environment Variables:
      OLLAMA_DEBUG
      OLLAMA_HOST
      OLLAMA_CONTEXT_LENGTH
      OLLAMA_KEEP_ALIVE
      OLLAMA_MAX_LOADED_MODELS
      OLLAMA_MAX_QUEUE
      OLLAMA_MODELS
      OLLAMA_NUM_PARALLEL
      OLLAMA_NOPRUNE
      OLLAMA_ORIGINS
      OLLAMA_KV_CACHE_TYPE
      OLLAMA_MAX_TRANSFER_STREAMS
      PUNA_IMAGE_URLS
      PUNA_IMAGE_HOSTS
      OLLAMA_LOAD_TIMEOUT
      OLLAMA_GO_TEMPLATE
      PUNA_SPECULATE
      PUNA_KERNELS
      PUNA_THREADS
      PUNA_DETERMINISTIC";
const MIRROR_HELP: &str = "\
Serves the models of the store to Ollama, Puna, and the tools of container registries (skopeo, oras, docker …):
  puna mirror --host 0.0.0.0:5000
  ollama pull --insecure HOST:5000/library/llama3.2        on another machine
  skopeo copy --src-tls-verify=false docker://HOST:5000/me/thing dir:thing

`puna serve --set mirror.serve=on` adds the routes of the mirror to the server.
`puna mirror retain --dry-run` shows what the rules of mirror.retention would remove.

Environment Variables:
      PUNA_MIRROR_HOST
      PUNA_MIRROR_UPSTREAMS
      PUNA_MIRROR_PUSH
      PUNA_MIRROR_DELETE
      PUNA_MIRROR_RETENTION
      PUNA_MIRROR_FETCH
      OLLAMA_MODELS
      PUNA_TLS_CERTIFICATE
      PUNA_TLS_KEY";
const RUN_HELP: &str = "\
MODEL is the name of a stored model (such as cria) or the path of a GGUF file, which need not be in the store.
Without a prompt, on a terminal, it starts a conversation; type /? for help.

Examples:
  puna run cria \"What is the capital of France?\"
  git diff | puna run cria \"Summarise this:\"
  puna run ./model.gguf --verbose

Environment Variables:
      OLLAMA_HOST
      OLLAMA_EDITOR
      OLLAMA_NOHISTORY";
const VERIFY_HELP: &str = "\
Reads all files of the models and compares them with their digests. Exits with status 1 if a file is damaged.

Examples:
  puna verify                      all models
  puna verify llama3.2 --repair    fetches damaged files again from their registry

Environment Variables:
      OLLAMA_HOST";
const CREATE_HELP: &str = "A Modelfile names the source of the model and its settings:
  FROM cria
  SYSTEM You are a pirate.
  PARAMETER temperature 0.5

FROM takes a stored model, a GGUF file, or a folder of safetensors.

Examples:
  puna create pirate                       from ./Modelfile
  printf 'FROM ./model.gguf\\n' | puna create mine -f -
  puna create mine --reference             refers to the files, which must stay in place

Environment Variables:
      OLLAMA_HOST";

const PULL_HELP: &str = "MODEL is [HOST/][NAMESPACE/]NAME[:TAG]; the default host is Ollama's registry. It may be the address of a GGUF file,
https://HOST/PATH/NAME.gguf; the model is then called NAME.
The next pull of the model resumes an interrupted one.

Examples:
  puna pull llama3.2:1b
  puna pull hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M
  puna pull --insecure 192.168.1.5:5000/library/llama3.2
  puna pull https://models.example/tiny-Q8_0.gguf --digest sha256:0f1a...
  puna pull --mirror http://mirror.intra:5000 --limit-rate 20MB llama3.2:1b

Environment Variables:
      OLLAMA_HOST

The server, which runs the pull, also reads:
      OLLAMA_MAX_TRANSFER_STREAMS
      PUNA_REGISTRY_MIRRORS
      PUNA_REGISTRY_DEFAULT
      DOCKER_CONFIG              Folder of docker's config.json
      HTTPS_PROXY, HTTP_PROXY, NO_PROXY  Proxies for registries
      SSL_CERT_FILE              Certificates to trust instead of the system's";
const PUSH_HELP: &str = "\
The model's name determines the registry; `puna cp` copies the model to another name. If the registry requires authentication,
puna uses the credentials of the configuration or of `docker login`, else the key ~/.ollama/id_ed25519. The key is created at
its first use; its public half is next to it.

Example:
  puna cp mine 192.168.1.5:5000/me/mine && puna push --insecure 192.168.1.5:5000/me/mine

Environment Variables:
      OLLAMA_HOST";

/// The commands, in the order of the help.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start the server
    #[command(visible_alias = "start", after_help = with_variables(SERVE_HELP))]
    Serve(ServeArgs),
    /// Start a registry of models for the network
    #[command(after_help = with_variables(MIRROR_HELP))]
    Mirror(MirrorArgs),
    /// Create a model from a Modelfile
    #[command(after_help = with_variables(CREATE_HELP))]
    Create(CreateArgs),
    /// Show information for a model
    #[command(after_help = with_variables(HOST_HELP))]
    Show(ShowArgs),
    /// Run a model
    #[command(after_help = with_variables(RUN_HELP))]
    Run(RunArgs),
    /// Start a coding agent with a model of this server
    #[command(after_help = with_variables(LAUNCH_HELP))]
    Launch(LaunchArgs),
    /// Stop a running model
    #[command(after_help = with_variables(HOST_HELP))]
    Stop {
        /// The model
        model: String,
    },
    /// Pull a model from a registry
    #[command(after_help = with_variables(PULL_HELP))]
    Pull(PullArgs),
    /// Push a model to a registry
    #[command(after_help = with_variables(PUSH_HELP))]
    Push(PushArgs),
    /// List models
    #[command(visible_alias = "ls", after_help = with_variables(HOST_HELP))]
    List(StoredArgs),
    /// List running models
    #[command(after_help = with_variables(HOST_HELP))]
    Ps(ListArgs),
    /// Copy a model
    #[command(after_help = with_variables(HOST_HELP))]
    Cp {
        /// The model
        source: String,
        /// Its new name
        destination: String,
    },
    /// Remove a model
    #[command(after_help = with_variables(HOST_HELP))]
    Rm {
        /// The models
        #[arg(required = true)]
        models: Vec<String>,
    },
    /// Write models into a file, for a machine without a network
    #[command(after_help = with_variables(EXPORT_HELP))]
    Export(ExportArgs),
    /// Store the models of an exported file
    #[command(after_help = with_variables(IMPORT_HELP))]
    Import(ImportArgs),
    /// Check stored models for damage
    #[command(after_help = with_variables(VERIFY_HELP))]
    Verify(VerifyArgs),
    /// Remove files that no model uses
    #[command(after_help = with_variables(HOST_HELP))]
    Prune(PruneArgs),
    /// Show keys, tensors and memory needs of a model file
    #[command(after_help = with_variables(STORE_HELP))]
    Inspect(InspectArgs),
    /// Turn text into tokens
    #[command(after_help = with_variables(STORE_HELP))]
    Tokenize(TokenizeArgs),
    /// Turn tokens into text
    #[command(after_help = with_variables(STORE_HELP))]
    Detokenize(DetokenizeArgs),
    /// Measure speed, compared with the limits of the machine
    #[command(after_help = with_variables(BENCH_HELP))]
    Bench(BenchArgs),
    /// Measure how well a model predicts a text
    #[command(after_help = with_variables(STORE_HELP))]
    Perplexity(PerplexityArgs),
    /// Quantize a model file
    #[command(after_help = "Example:\n  puna quantize model-f16.gguf model-q4_k_m.gguf Q4_K_M")]
    Quantize(QuantizeArgs),
    /// Compute an importance matrix, for a better quantization
    #[command(
        after_help = "Example:\n  puna imatrix model-f16.gguf -f text.txt -o imatrix.gguf\n  puna quantize model-f16.gguf model-iq4_xs.gguf IQ4_XS --imatrix imatrix.gguf"
    )]
    Imatrix(ImatrixArgs),
    /// Show the devices that can run models
    Devices(JsonArgs),
    /// Show the settings in effect and their sources
    #[command(after_help = CONFIG_HELP)]
    Config(ConfigArgs),
    /// Manage the API keys of the server
    #[command(subcommand)]
    Key(KeyCommand),
    /// Debug the engine, templates and parsers
    #[command(subcommand, after_help = with_variables(STORE_HELP))]
    Debug(Debug),
    /// Print a completion script for a shell
    #[command(
        after_help = "Examples:\n  puna completion bash > ~/.local/share/bash-completion/completions/puna\n  puna completion zsh > ~/.zfunc/_puna\n  puna completion fish > ~/.config/fish/completions/puna.fish"
    )]
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write manual pages into a folder
    #[command(after_help = "Example:\n  puna manual ~/.local/share/man/man1")]
    Manual {
        /// The folder; created if missing
        folder: PathBuf,
    },
    /// Keep threads busy until standard input ends (started by bench)
    #[command(hide = true)]
    Spin {
        /// How many
        #[arg(value_parser = threads)]
        threads: usize,
    },
    /// Run a model for a server (started by the server)
    #[command(hide = true)]
    Runner {
        /// Arguments from the server
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Do one job on untrusted files (started by the server and by commands)
    #[command(hide = true)]
    Worker,
}

#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Name of the new model
    pub model: String,
    /// Name of the Modelfile; `-` reads it from standard input
    #[arg(short, long, default_value = "Modelfile")]
    pub file: PathBuf,
    /// Quantize model to this level (e.g. q4_K_M)
    #[arg(short, long)]
    pub quantize: Option<String>,
    /// Importance matrix to quantize with
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// Quantize the DRAFT model to this level
    #[arg(long, value_name = "TYPE")]
    pub draft_quantize: Option<String>,
    /// Refer to the files instead of copying them into the store
    #[arg(long)]
    pub reference: bool,
}

#[derive(Args, Debug)]
pub struct ShowArgs {
    /// The model
    pub model: String,
    /// Show license of a model
    #[arg(long)]
    pub license: bool,
    /// Show Modelfile of a model
    #[arg(long)]
    pub modelfile: bool,
    /// Show parameters of a model
    #[arg(long)]
    pub parameters: bool,
    /// Show system message of a model
    #[arg(long)]
    pub system: bool,
    /// Show template of a model
    #[arg(long)]
    pub template: bool,
    /// Show detailed model information
    #[arg(short, long)]
    pub verbose: bool,
}

#[derive(Args, Debug, Clone)]
pub struct TransferArgs {
    /// The model
    pub model: String,
    /// Use an insecure registry
    #[arg(long)]
    pub insecure: bool,
    /// Maximum bytes per second, such as 500KB or 20MB
    #[arg(long, value_name = "RATE", value_parser = puna_api::parse_rate)]
    pub limit_rate: Option<u64>,
}

#[derive(Args, Debug)]
pub struct PullArgs {
    #[command(flatten)]
    pub transfer: TransferArgs,
    /// SHA-256 of the file, if MODEL is the address of a file
    #[arg(long, value_name = "SHA256")]
    pub digest: Option<String>,
    /// Fetch the manifests for all runners, if the name has several
    #[arg(long)]
    pub all_runners: bool,
    /// Mirror to try before the registry, instead of the configured mirrors; "off": none; "auto": a
    /// mirror that announces itself on the network, after confirmation unless it is configured
    #[arg(long, value_name = "ADDRESS")]
    pub mirror: Option<String>,
}

#[derive(Args, Debug)]
pub struct PushArgs {
    #[command(flatten)]
    pub transfer: TransferArgs,
    /// Package format of the model: Ollama's, Docker Model Runner's, or ModelPack
    #[arg(long, value_parser = ["ollama", "docker", "modelpack"], default_value = "ollama")]
    pub format: String,
}

#[derive(Args, Debug)]
pub struct RunArgs {
    /// The model
    pub model: String,
    /// The prompt
    #[arg(trailing_var_arg = false)]
    pub prompt: Vec<String>,
    /// Duration to keep a model loaded (e.g. 5m)
    #[arg(long, allow_hyphen_values = true)]
    pub keepalive: Option<String>,
    /// Show timings for response
    #[arg(long)]
    pub verbose: bool,
    /// Use an insecure registry
    #[arg(long)]
    pub insecure: bool,
    /// Don't wrap words to the next line automatically
    #[arg(long)]
    pub nowordwrap: bool,
    /// Response format (e.g. json, or a JSON schema)
    #[arg(long)]
    pub format: Option<String>,
    /// Think before the answer: true, false, high, medium, low or max
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub think: Option<String>,
    /// Hide thinking output
    #[arg(long)]
    pub hidethinking: bool,
    /// Set a parameter like PARAMETER of a Modelfile (e.g. -p temperature=0 -p seed=7); may be
    /// repeated
    #[arg(short, long, value_name = "NAME=VALUE")]
    pub parameter: Vec<String>,
    /// Speculative decoding: auto, off, ngram (drafts from the text alone), always, or the name of
    /// a draft model; answers stay the same
    #[arg(long, value_name = "HOW")]
    pub speculate: Option<String>,
    /// For embedding models: truncate inputs exceeding context length
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub truncate: Option<bool>,
    /// For embedding models: dimensions of the output
    #[arg(long, value_parser = dimensions)]
    pub dimensions: Option<i64>,
}

#[derive(Args, Debug)]
pub struct ListArgs {
    /// Only models with this name prefix
    pub prefix: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct StoredArgs {
    #[command(flatten)]
    pub list: ListArgs,
    /// Show unfinished pulls instead
    #[arg(long)]
    pub partial: bool,
}

#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// The model [default: all]
    pub model: Option<String>,
    /// Fetch damaged files again
    #[arg(long)]
    pub repair: bool,
    /// Fetch by plain HTTP
    #[arg(long, requires = "repair")]
    pub insecure: bool,
}

#[derive(Args, Debug)]
pub struct PruneArgs {
    /// Only show what would be removed
    #[arg(long)]
    pub dry_run: bool,
    /// Also remove interrupted downloads and leftovers of failed operations, unless a process uses
    /// them
    #[arg(long)]
    pub partial: bool,
    /// Remove without asking
    #[arg(short, long)]
    pub yes: bool,
    /// Restore the files that were removed in the last day
    #[arg(long, conflicts_with_all = ["partial", "empty_trash"])]
    pub undo: bool,
    /// Free the space of the files that were removed in the last day
    #[arg(long, conflicts_with = "partial")]
    pub empty_trash: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct JsonArgs {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct InspectArgs {
    /// The model
    pub model: String,
    /// Every tensor
    #[arg(long)]
    pub tensors: bool,
    /// Every key
    #[arg(long)]
    pub kv: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct TokenizeArgs {
    /// The model
    pub model: String,
    /// The text; standard input without it
    #[arg(allow_hyphen_values = true)]
    pub text: Option<String>,
    /// Read the text from a file
    #[arg(long, conflicts_with = "text")]
    pub file: Option<PathBuf>,
    /// Leave out the tokens that the model adds at the start and end of a text
    #[arg(long)]
    pub no_bos: bool,
    /// Treat the text of special tokens as plain text
    #[arg(long)]
    pub no_special: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct DetokenizeArgs {
    /// The model
    pub model: String,
    /// The tokens, such as 1,2,3
    #[arg(long, value_delimiter = ',', required = true, value_parser = token)]
    pub tokens: Vec<u32>,
    /// Keep special tokens
    #[arg(long)]
    pub special: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}
