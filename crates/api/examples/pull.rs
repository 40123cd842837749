//! Pulls a model and shows the progress: `cargo run -p puna-api --example pull -- smollm2:135m`

use puna_api::Client;
use puna_api::ollama::PullRequest;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).ok_or("which model?")?;
    let mut progress =
        Client::from_env().pull(&PullRequest { model, ..PullRequest::default() }).await?;
    while let Some(line) = progress.next().await {
        let line = line?;
        match line.total {
            0 => println!("{}", line.status),
            total => println!("{}: {} %", line.status, line.completed * 100 / total),
        }
    }
    Ok(())
}
