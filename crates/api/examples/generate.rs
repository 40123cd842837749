//! Fills the gap in a text: `cargo run -p puna-api --example generate -- cria`

use puna_api::Client;
use puna_api::ollama::GenerateRequest;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let request = GenerateRequest {
        model: std::env::args().nth(1).unwrap_or_else(|| "cria".into()),
        prompt: "def add(a, b):\n    return ".into(),
        suffix: "\n\nprint(add(1, 2))\n".into(),
        options: serde_json::json!({"temperature": 0, "num_predict": 32}).as_object().cloned(),
        ..GenerateRequest::default()
    };
    let answer = Client::from_env().generate_whole(&request).await?;
    println!("{}[{}]{}", request.prompt, answer.response, request.suffix);
    println!(
        "ended by {}, {} of {} prompt tokens from the cache",
        answer.done_reason,
        answer.metrics.prompt_eval_cached_count,
        answer.metrics.prompt_eval_count
    );
    Ok(())
}
