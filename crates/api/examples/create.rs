//! Creates a model with a system prompt from another model, uses it, and deletes it:
//! `cargo run -p puna-api --example create -- cria`

use puna_api::Client;
use puna_api::ollama::{ChatRequest, CreateRequest, Message};

const NAME: &str = "puna-api-example";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::from_env();
    let create = CreateRequest {
        model: NAME.into(),
        from: std::env::args().nth(1).unwrap_or_else(|| "cria".into()),
        system: "You are a pirate.".into(),
        parameters: serde_json::json!({"temperature": 0}).as_object().cloned(),
        ..CreateRequest::default()
    };
    let mut progress = client.create(&create).await?;
    while let Some(line) = progress.next().await {
        println!("{}", line?.status);
    }
    let messages = vec![Message::text("user", "Who are you?")];
    let request = ChatRequest { model: NAME.into(), messages, ..ChatRequest::default() };
    let answer = client.chat_whole(&request).await;
    client.delete(NAME).await?;
    println!("{}", answer?.message.content);
    Ok(())
}
