//! A conversation of two turns with streamed answers: `cargo run -p puna-api --example chat --
//! cria`

use std::io::Write as _;

use puna_api::Client;
use puna_api::ollama::{ChatRequest, Message};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "cria".into());
    let client = Client::from_env();
    let mut request = ChatRequest { model, ..ChatRequest::default() };
    for question in ["Hello! Who are you?", "And what can you do?"] {
        println!("> {question}");
        request.messages.push(Message::text("user", question));
        let mut answer = Message::text("assistant", "");
        let mut pieces = client.chat(&request).await?;
        while let Some(piece) = pieces.next().await {
            let piece = piece?;
            print!("{}", piece.message.content);
            std::io::stdout().flush()?;
            answer.content += &piece.message.content;
            if piece.done {
                let (tokens, ns) = (piece.metrics.eval_count, piece.metrics.eval_duration.max(1));
                println!("\n({tokens} tokens, {:.1} a second)", tokens as f64 * 1e9 / ns as f64);
            }
        }
        // The model has no memory: each request contains the whole conversation.
        request.messages.push(answer);
    }
    Ok(())
}
