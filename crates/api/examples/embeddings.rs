//! Finds the text nearest to a question:
//! `cargo run -p puna-api --example embeddings -- minilm "who wrote it?"`

use puna_api::Client;
use puna_api::ollama::EmbedRequest;
use serde_json::json;

const TEXTS: [&str; 3] = [
    "The Alps are mountains in Europe.",
    "Bread is made of flour and water.",
    "Hamlet was written by Shakespeare.",
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "minilm".into());
    let question = std::env::args().nth(2).unwrap_or_else(|| "Who wrote that play?".into());
    let input: Vec<&str> = TEXTS.into_iter().chain([question.as_str()]).collect();
    let request = EmbedRequest { model, input: json!(input), ..EmbedRequest::default() };
    let vectors = Client::from_env().embed(&request).await?.embeddings;
    let (asked, texts) = vectors.split_last().ok_or("the server gave no vectors")?;
    // Vectors have norm 1, so the dot product is the cosine similarity.
    let near = |text: &[f32]| text.iter().zip(asked).map(|(a, b)| a * b).sum::<f32>();
    for (text, vector) in TEXTS.iter().zip(texts) {
        println!("{:.3}  {text}", near(vector));
    }
    Ok(())
}
