//! Finds or starts a server. Commands that work on stored and running models use it over HTTP.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use puna_api::ollama::{ListResponse, VersionResponse};
use puna_api::{Client, ClientError};
use puna_server::config::{DEFAULT_PORT, Source};
use puna_server::{Address, Config};
use puna_store::{ModelName, Store};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Time limit for the first answer of a server started in the background.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Time limit for a listening server's answer to the version request, which costs it nothing.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Name of a draft model in the temporary store of a single file: its file name, made distinct from
/// the model's name.
pub fn draft_name(model: &Path, draft: &Path) -> ModelName {
    let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let (model, draft) = (model_name_from(&stem(model)), stem(draft));
    let name = model_name_from(&draft);
    if name.same(&model) { model_name_from(&format!("draft-{draft}")) } else { name }
}

/// A connected server, and the runtime for requests to it.
pub struct Service {
    client: Client,
    in_process: Arc<Mutex<Option<InProcessServer>>>,
    runtime: Runtime,
    /// Whether the server's address is on this machine.
    is_local: bool,
}

impl Service {
    fn new(
        client: Client,
        in_process: Option<InProcessServer>,
        runtime: Runtime,
        is_local: bool,
    ) -> Self {
        let in_process = Arc::new(Mutex::new(in_process));
        #[cfg(unix)]
        runtime.spawn(shut_down_on_sigterm(
            crate::terminal::SavedTerminal::capture(),
            in_process.clone(),
        ));
        Self { client, in_process, runtime, is_local }
    }

    /// Connects to the listening server.
    ///
    /// # Errors
    /// No server listens.
    pub fn connect() -> Result<Self> {
        let ServerProbe { config, client, runtime, probe } = probe_configured()?;
        match probe {
            ProbeResult::Server(_) => {
                Ok(Self::new(client, None, runtime, is_local_address(&config.address)))
            }
            ProbeResult::NotListening(_) if config.address.port == 0 => Err(no_port_error()),
            ProbeResult::NotListening(_) => {
                let (url, set) = (config.address.url(), address_source(&config));
                bail!(
                    "could not connect to a puna server at {url}{set}, run 'puna serve' to start it"
                )
            }
        }
    }

    /// Version of the listening server; `None` if no server listens.
    pub fn version() -> Result<Option<VersionResponse>> {
        match probe_configured()?.probe {
            ProbeResult::Server(version) => Ok(Some(version)),
            ProbeResult::NotListening(_) => Ok(None),
        }
    }

    /// Stored models of the listening server. If none listens at the default address, it reads the
    /// store, which needs no server.
    ///
    /// # Errors
    /// As [`Service::connect_or_run_in_process`].
    pub fn stored_models() -> Result<ListResponse> {
        // One or two requests need no worker threads.
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().context("cannot wait for a server")?;
        let ServerProbe { config, client, runtime, probe } = probe_configured_on(runtime)?;
        match probe {
            ProbeResult::Server(_) => Ok(runtime.block_on(client.list())?),
            ProbeResult::NotListening(_) if can_use_local_store(&config) => {
                Ok(puna_server::stored_models(&config.store()?)?)
            }
            ProbeResult::NotListening(error) => Err(not_listening_error(&config, &error)),
        }
    }

    /// Connects to the listening server. If none listens at the default address, starts one in this
    /// process, which ends with it.
    ///
    /// # Errors
    /// No server listens at a configured address. The store of this machine may differ from that
    /// server's.
    pub fn connect_or_run_in_process() -> Result<Self> {
        let ServerProbe { config, client, runtime, probe } = probe_configured()?;
        match probe {
            ProbeResult::Server(_) => {
                Ok(Self::new(client, None, runtime, is_local_address(&config.address)))
            }
            ProbeResult::NotListening(_) if can_use_local_store(&config) => {
                Self::in_process(config, runtime)
            }
            ProbeResult::NotListening(error) => Err(not_listening_error(&config, &error)),
        }
    }

    fn in_process(config: Config, runtime: Runtime) -> Result<Self> {
        let key = config.api_key.0.clone();
        let in_process = InProcessServer::start(&runtime, config)?;
        Ok(Self::new(
            Client::new(in_process.url.clone()).with_key(key),
            Some(in_process),
            runtime,
            true,
        ))
    }

    /// Connects to the listening server. If none listens on this machine, starts one in the
    /// background, which keeps running.
    pub fn connect_or_start() -> Result<Self> {
        let ServerProbe { config, client, runtime, probe } = probe_configured()?;
        match probe {
            ProbeResult::Server(_) => {}
            ProbeResult::NotListening(_) if config.address.port == 0 => {
                return Self::in_process(config, runtime);
            }
            ProbeResult::NotListening(_) if is_local_address(&config.address) => {
                let (mut child, log) = spawn_in_background()?;
                runtime.block_on(wait_for(&client, &mut child, &log))?;
            }
            ProbeResult::NotListening(error) => return Err(not_listening_error(&config, &error)),
        }
        Ok(Self::new(client, None, runtime, is_local_address(&config.address)))
    }

    /// Starts a server in this process for a file outside the store, and returns the model's name
    /// on it. The draft model's name there is [`draft_name`].
    pub fn for_file(path: &Path, draft: Option<&Path>) -> Result<(Self, String)> {
        crate::local::check_file(path)?;
        // The file is opened here so that an error names the file and not the model.
        puna_gguf::Gguf::open(path).with_context(|| path.display().to_string())?;
        let dir = tempfile::tempdir().context("cannot make a temporary folder")?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let name = model_name_from(&stem);
        let store = Store::open(dir.path())?;
        store.link_file(&name, path)?;
        if let Some(draft) = draft {
            crate::local::check_file(draft)?;
            puna_gguf::Gguf::open(draft).with_context(|| draft.display().to_string())?;
            store.link_file(&draft_name(path, draft), draft)?;
        }
        let mut config = Config::from_env()?;
        config.models = dir.path().to_owned();
        // Only this process knows the server's address, so it needs no API keys.
        config.keys = dir.path().join("no-keys.toml");
        let runtime = runtime()?;
        let mut in_process = InProcessServer::start(&runtime, config)?;
        in_process.folder = Some(dir);
        Ok((
            Self::new(Client::new(in_process.url.clone()), Some(in_process), runtime, true),
            name.to_string(),
        ))
    }

    /// Client of the server.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Whether the server is on this machine.
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// Whether the server runs in this process, with this user's settings.
    pub fn is_in_process(&self) -> bool {
        self.in_process.lock().unwrap_or_else(std::sync::PoisonError::into_inner).is_some()
    }

    /// Runtime for requests to the server.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Runs a request to completion.
    pub fn wait<T>(&self, work: impl Future<Output = Result<T, ClientError>>) -> Result<T> {
        Ok(self.runtime.block_on(work)?)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(in_process) = take_server(&self.in_process) {
            self.runtime.block_on(in_process.end());
        }
    }
}

fn runtime() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().context("cannot start threads")
}

/// A server in this process, on a port that only this process knows.
struct InProcessServer {
    url: String,
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
    /// Store with models that only this server has.
    folder: Option<tempfile::TempDir>,
}

impl InProcessServer {
    fn start(runtime: &Runtime, mut config: Config) -> Result<Self> {
        // Both ends are in this process, so the connection needs no encryption.
        config.tls = None;
        let listener = runtime
            .block_on(TcpListener::bind("127.0.0.1:0"))
            .context("cannot listen on this machine")?;
        let url = format!("http://{}", listener.local_addr()?);
        // An invalid store is reported here and not at the first request.
        config.store()?;
        let (end, ended) = oneshot::channel();
        let task = runtime.spawn(async move {
            let until = async {
                let _ = ended.await;
            };
            if let Err(error) = puna_server::serve(config, listener, until).await {
                tracing::error!(%error, "the server stopped");
            }
        });
        Ok(Self { url, end, task, folder: None })
    }

    /// Ends the server and its runners.
    async fn end(self) {
        let _ = self.end.send(());
        let _ = tokio::time::timeout(Duration::from_secs(2), self.task).await;
        drop(self.folder);
    }
}

fn take_server(in_process: &Mutex<Option<InProcessServer>>) -> Option<InProcessServer> {
    in_process.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Restores the terminal and removes temporary files when SIGTERM ends this process.
#[cfg(unix)]
async fn shut_down_on_sigterm(
    terminal: crate::terminal::SavedTerminal,
    in_process: Arc<Mutex<Option<InProcessServer>>>,
) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminated) = signal(SignalKind::terminate()) else { return };
    terminated.recv().await;
    terminal.restore();
    if let Some(in_process) = take_server(&in_process) {
        in_process.end().await;
    }
    std::process::exit(128 + SignalKind::terminate().as_raw_value());
}

/// Loads the configuration and prints the warnings about client settings.
fn client_config() -> Result<Config> {
    let config = Config::from_env()?;
    for warning in config.warnings.iter().filter(|warning| warning.variable.ends_with("_HOST")) {
        crate::out::note(format_args!("warning: {warning}"));
    }
    Ok(config)
}

/// Result of the version request to the configured address.
struct ServerProbe {
    config: Config,
    client: Client,
    runtime: Runtime,
    probe: ProbeResult,
}

/// Sends the version request to the configured server.
///
/// # Errors
/// As [`probe`], or the configuration is invalid.
fn probe_configured() -> Result<ServerProbe> {
    probe_configured_on(runtime()?)
}

/// Like [`probe_configured`], on a given runtime.
fn probe_configured_on(runtime: Runtime) -> Result<ServerProbe> {
    let config = client_config()?;
    let client = Client::new(config.address.url()).with_key(config.api_key.0.clone());
    let probe = runtime.block_on(probe(&client, &config.address))?;
    Ok(ServerProbe { config, client, runtime, probe })
}

/// Error of the port 0, which stands for any free port.
pub fn no_port_error() -> anyhow::Error {
    anyhow!("OLLAMA_HOST has the port 0, at which no server can be reached: set another port")
}

/// Result of the version request to an address.
enum ProbeResult {
    /// A server of Puna or Ollama.
    Server(VersionResponse),
    /// No process listens there.
    NotListening(ClientError),
}

/// Sends the version request to a server.
///
/// # Errors
/// The listener is not an Ollama-compatible server, or does not answer.
async fn probe(client: &Client, address: &Address) -> Result<ProbeResult> {
    let elsewhere = "stop it, or set OLLAMA_HOST to another address (such as 127.0.0.1:11500)";
    match tokio::time::timeout(PROBE_TIMEOUT, client.version()).await {
        Ok(Ok(version)) if !version.version.is_empty() || !version.puna.is_empty() => {
            Ok(ProbeResult::Server(version))
        }
        Ok(Err(error @ ClientError::Unreachable { .. })) => Ok(ProbeResult::NotListening(error)),
        Ok(Err(error @ (ClientError::Tls { .. } | ClientError::Redirect(_)))) => Err(error.into()),
        // The server's message itself says that it expects HTTPS.
        Ok(Err(ClientError::Status { status: 400, message })) if message.contains("HTTPS") => {
            bail!(message)
        }
        // A proxy in front of the server answered; its message tells what it requires.
        Ok(Err(error @ ClientError::Status { status: 401 | 403 | 407 | 500.., .. })) => {
            Err(error.into())
        }
        Ok(Ok(_) | Err(ClientError::Status { .. } | ClientError::InvalidResponse(_))) => {
            bail!("the server at {} is not a Puna or Ollama: {elsewhere}", address.url())
        }
        Ok(Err(ClientError::Transport(_))) => {
            bail!("a program that does not speak HTTP is running at {}: {elsewhere}", address.url())
        }
        Err(_) if is_local_address(address) => {
            let seconds = PROBE_TIMEOUT.as_secs();
            bail!(
                "a program that does not speak HTTP is running at {} (no answer in {seconds} s): {elsewhere}",
                address.url()
            )
        }
        Err(_) => bail!(
            "no answer from {} in {} s: is OLLAMA_HOST right, and is the server running?",
            address.url(),
            PROBE_TIMEOUT.as_secs()
        ),
    }
}

/// Whether a command without a server uses the models of this machine: at the default address, and
/// at port 0, where no server can listen.
fn can_use_local_store(config: &Config) -> bool {
    let is_usual = *config.source("host") == Source::Default
        || [0, DEFAULT_PORT].contains(&config.address.port);
    is_usual && is_local_address(&config.address)
}

/// Error for an address at which no server listens, with the setting that named the address.
fn not_listening_error(config: &Config, error: &ClientError) -> anyhow::Error {
    let set = address_source(config);
    match is_local_address(&config.address) && !set.is_empty() {
        true => anyhow!(
            "{error}{set}: start a server there with `puna serve`, or unset it to use the models of this machine without a server"
        ),
        false => anyhow!("{error}{set}"),
    }
}

/// Suffix for an error message that names the setting of the address; empty for the default.
fn address_source(config: &Config) -> String {
    match config.source("host") {
        Source::Default => String::new(),
        source => format!(" (the address is set by {source})"),
    }
}

fn is_local_address(address: &Address) -> bool {
    let ip = address.host.parse::<std::net::IpAddr>();
    address.host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
}

/// Starts `puna serve` so that it outlives this process. Its log goes to a file.
fn spawn_in_background() -> Result<(Child, PathBuf)> {
    let log = crate::env::home().unwrap_or_default().join(".ollama").join("logs").join("puna.log");
    let file = log.parent().map(std::fs::create_dir_all).and_then(|made| {
        made.ok()?;
        std::fs::File::options().create(true).append(true).open(&log).ok()
    });
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let mut command = std::process::Command::new(program);
    command.arg("serve").stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(file.map_or_else(Stdio::null, Stdio::from));
    #[cfg(unix)]
    {
        // The process group keeps Ctrl-C in this terminal from reaching the server.
        use std::os::unix::process::CommandExt;
        command.process_group(0);
    }
    Ok((command.spawn().context("cannot start the server")?, log))
}

async fn wait_for(client: &Client, child: &mut Child, log: &Path) -> Result<()> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        if client.root().await.is_ok() {
            return Ok(());
        }
        if let Some(status) = child.try_wait()? {
            // Another process may have started a server at the same moment.
            tokio::time::sleep(Duration::from_millis(100)).await;
            if client.root().await.is_ok() {
                return Ok(());
            }
            bail!("the server exited at start ({status}): see its log {}", log.display());
        }
        if start.elapsed() > START_TIMEOUT {
            bail!("timed out waiting for server to start: see its log {}", log.display());
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// A valid model name made from a file name.
fn model_name_from(stem: &str) -> ModelName {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let clean: String = stem.chars().filter(|c| allowed(*c)).take(80).collect();
    let clean = clean.trim_start_matches(['-', '.']);
    ModelName::parse(clean).or_else(|_| ModelName::parse("file")).expect("a name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_name_becomes_a_valid_model_name() {
        assert_eq!(
            model_name_from("SmolLM2-135M-Instruct.Q4_1").to_string(),
            "SmolLM2-135M-Instruct.Q4_1:latest"
        );
        assert_eq!(model_name_from("a b:c/é").to_string(), "abc:latest");
        assert_eq!(model_name_from("..").to_string(), "file:latest");
        assert_eq!(model_name_from(&"x".repeat(300)).model().len(), 80);
    }

    #[test]
    fn the_local_store_replaces_a_server_only_at_the_default_address() {
        let may = |host: &str| {
            let home = |name: &str| (name == "HOME").then(|| "/home/me".to_owned());
            let given =
                |name: &str| (name == "OLLAMA_HOST" && !host.is_empty()).then(|| host.to_owned());
            can_use_local_store(
                &Config::from_variables(|name| given(name).or_else(|| home(name))).unwrap(),
            )
        };
        // A server's listen address may differ from the address that a client uses.
        assert!(may("") && may("127.0.0.1") && may("0.0.0.0:11434") && may("127.0.0.1:0"));
        assert!(
            !may("127.0.0.1:11500")
                && !may("0.0.0.0:11500")
                && !may("192.168.1.2")
                && !may("192.168.1.2:0")
        );
    }

    #[test]
    fn only_local_addresses_can_start_a_server() {
        let here = |text: &str| is_local_address(&Address::parse(text).0);
        assert!(here("") && here("localhost:1") && here("0.0.0.0") && here("[::1]:5"));
        assert!(!here("192.168.1.2") && !here("https://example.com"));
    }
}
