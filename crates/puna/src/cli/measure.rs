//! Arguments and help of the commands that quantize and measure models.

use std::path::PathBuf;

use clap::Args;

use super::numbers::{context, count, positive, threads};

pub const BENCH_HELP: &str =
    "MODEL is the name of a stored model (such as cria) or the path of a GGUF file.

Examples:
  puna bench model.gguf -p 512,2048 -n 64            reading a prompt, generating
  puna bench model.gguf -p 512 -n 32 -d 0,4096       the same, also after 4096 tokens
  puna bench model.gguf -p 0 -n 32 -b 1,4,16         generating 1, 4 and 16 sequences at once
  puna bench minilm.gguf -e                          64 texts of mixed lengths
  puna bench model.gguf -p 0 --busy 2                next to a process with two busy threads
  puna bench model.gguf --memory --start             memory, and the time to the first output
  llama-bench -m model.gguf -o json > peer.json
  puna bench model.gguf --compare peer.json --plot chart.svg

Environment Variables:
      OLLAMA_MODELS
      PUNA_KERNELS";

#[derive(Args, Debug)]
pub struct QuantizeArgs {
    /// The model: a stored one or a GGUF file
    pub input: String,
    /// The file to write
    pub output: PathBuf,
    /// The type, such as Q4_K_M
    #[arg(value_name = "TYPE")]
    pub kind: String,
    /// Importance matrix
    #[arg(long)]
    pub imatrix: Option<PathBuf>,
    /// Threads
    #[arg(long, value_parser = threads)]
    pub threads: Option<usize>,
    /// Write as many files as the model has, OUTPUT-00001-of-00003.gguf and so on
    #[arg(long)]
    pub keep_split: bool,
}

#[derive(Args, Debug)]
pub struct ImatrixArgs {
    /// The model: a stored one or a GGUF file
    pub model: String,
    /// The text to read, ideally similar to the model's later input
    #[arg(short, long)]
    pub file: PathBuf,
    /// The file to write
    #[arg(short, long, default_value = "imatrix.gguf")]
    pub output: PathBuf,
    /// Tokens of a chunk
    #[arg(long, default_value = "512", value_parser = context)]
    pub ctx: usize,
    /// Read at most this many chunks
    #[arg(long, value_parser = positive)]
    pub chunks: Option<usize>,
    /// Include the output matrix
    #[arg(long)]
    pub process_output: bool,
    /// Kernel level
    #[arg(long)]
    pub kernels: Option<String>,
    /// Threads
    #[arg(short, long, value_parser = threads)]
    pub threads: Option<usize>,
}

#[derive(Args, Debug, Clone)]
pub struct BenchArgs {
    /// The model
    pub model: String,
    /// Prompt tokens per test; a list, such as 128,512, runs a test for each
    #[arg(short = 'p', long, value_delimiter = ',', default_value = "512", value_parser = count)]
    pub n_prompt: Vec<usize>,
    /// Generated tokens; also a list
    #[arg(short = 'n', long, value_delimiter = ',', default_value = "128", value_parser = count)]
    pub n_gen: Vec<usize>,
    /// Tokens in the context before the test; also a list
    #[arg(short = 'd', long, value_delimiter = ',', default_value = "0", value_parser = count)]
    pub depth: Vec<usize>,
    /// Concurrent sequences, or texts in a batch of embeddings; also a list [default: 1, texts: 64]
    #[arg(short = 'b', long, value_delimiter = ',', value_parser = positive)]
    pub sequences: Vec<usize>,
    /// Embed texts of mixed lengths up to the length of -p; the default for embedding models
    #[arg(short, long)]
    pub embed: bool,
    /// Repeat every test next to a process that keeps this many threads busy
    #[arg(long, value_name = "THREADS", value_parser = threads)]
    pub busy: Option<usize>,
    /// Also measure the time from the start of a `puna run` to its first output
    #[arg(long)]
    pub start: bool,
    /// Also measure resident memory beyond the mapped file and the cache
    #[arg(long)]
    pub memory: bool,
    /// Threads
    #[arg(short, long, value_parser = threads)]
    pub threads: Option<usize>,
    /// Kernel level
    #[arg(long)]
    pub kernels: Option<String>,
    /// Repetitions; the median is reported
    #[arg(short, long, default_value = "3", value_parser = positive)]
    pub repetitions: usize,
    /// Storage of keys: f32, f16, bf16, q8_0 or q4_0
    #[arg(long, default_value = "f16")]
    pub cache_type_k: String,
    /// Storage of values: f32, f16, bf16, q8_0 or q4_0
    #[arg(long, default_value = "f16")]
    pub cache_type_v: String,
    /// Compute as with `serve --deterministic`
    #[arg(long)]
    pub deterministic: bool,
    /// Also measure the time of each type of operation
    #[arg(long)]
    pub ops: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Results to compare with, from `puna bench --json`, `llama-bench -o json` or
    /// `llama-batched-bench --output-format jsonl`; may be repeated
    #[arg(long, value_name = "FILE")]
    pub compare: Vec<PathBuf>,
    /// Write a chart of the results as SVG
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct PerplexityArgs {
    /// The model
    pub model: String,
    /// The text
    #[arg(long)]
    pub file: PathBuf,
    /// Tokens of a window; its second half is scored
    #[arg(long, default_value = "512", value_parser = context)]
    pub ctx: usize,
    /// Move the window by this many tokens, and score as many at its end
    #[arg(long, value_parser = positive)]
    pub stride: Option<usize>,
    /// Compare with logits saved from another file of the same model
    #[arg(long)]
    pub kl_base: Option<PathBuf>,
    /// Save logits for later comparison
    #[arg(long)]
    pub save_logits: Option<PathBuf>,
    /// Score at most this many windows
    #[arg(long, value_parser = positive)]
    pub chunks: Option<usize>,
    /// Kernel level
    #[arg(long)]
    pub kernels: Option<String>,
    /// Storage of keys: f32, f16, bf16, q8_0 or q4_0
    #[arg(long, default_value = "f16")]
    pub cache_type_k: String,
    /// Storage of values: f32, f16, bf16, q8_0 or q4_0
    #[arg(long, default_value = "f16")]
    pub cache_type_v: String,
    /// Threads
    #[arg(short, long, value_parser = threads)]
    pub threads: Option<usize>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}
