//! Pulls a model into a folder and prints the time: `pull STORE MODEL [--insecure]`. Benchmarks use
//! it.

use std::sync::Arc;
use std::time::Instant;

use puna_registry::{Options, Registry, Settings};
use puna_store::{ModelRef, Store};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, model, rest @ ..] = &arguments[..] else {
        return Err("pull STORE MODEL [--insecure]".into());
    };
    let store = Arc::new(Store::open(store)?);
    let registry = Registry::new(Settings::default());
    let (report, mut lines) = tokio::sync::mpsc::channel(16);
    let name = ModelRef::parse(model)?;
    let options =
        Options { insecure: rest.contains(&"--insecure".to_owned()), ..Options::default() };
    let begun = Instant::now();
    let pull = async { registry.pull(&store, &name, &options, report).await };
    let show = async {
        let mut last = String::new();
        while let Some(line) = lines.recv().await {
            if line.status != last {
                println!("{}", line.status);
                last = line.status;
            }
        }
    };
    let (pulled, ()) = tokio::join!(pull, show);
    pulled?;
    println!("{:.2} s", begun.elapsed().as_secs_f64());
    Ok(())
}
