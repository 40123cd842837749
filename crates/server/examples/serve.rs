//! Minimal program around the server: `serve [runner | worker]`, configured by the environment like
//! `puna serve`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "runner") {
        return Ok(puna_server::runner::main(&args[1..])?);
    }
    if args.first().is_some_and(|arg| arg == "worker") {
        return Ok(puna_server::file_worker::main()?);
    }
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let config = puna_server::Config::from_env()?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let listener = puna_server::listen(&config.address, "OLLAMA_HOST").await?;
        let interrupted = async { drop(tokio::signal::ctrl_c().await) };
        Ok(puna_server::serve(config, listener, interrupted).await?)
    })
}
