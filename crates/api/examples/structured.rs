//! Structured output as a Rust type: `cargo run -p puna-api --example structured -- cria`

use puna_api::Client;
use puna_api::ollama::{ChatRequest, Message};
use serde::Deserialize;
use serde_json::json;

#[derive(Debug, Deserialize)]
struct City {
    name: String,
    country: String,
    inhabitants: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let request = ChatRequest {
        model: std::env::args().nth(1).unwrap_or_else(|| "cria".into()),
        messages: vec![Message::text("user", "Name a city.")],
        format: Some(json!({
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 40},
                "country": {"type": "string", "maxLength": 40},
                "inhabitants": {"type": "integer", "minimum": 0, "maximum": 50_000_000}
            },
            "required": ["name", "country", "inhabitants"]
        })),
        ..ChatRequest::default()
    };
    let answer = Client::from_env().chat_whole(&request).await?;
    let city: City = serde_json::from_str(&answer.message.content)?;
    println!(
        "{} in {} has {} inhabitants, if the model is right",
        city.name, city.country, city.inhabitants
    );
    Ok(())
}
