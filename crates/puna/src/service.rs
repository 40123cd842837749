//! Finding a server, or being one: the commands that work on stored and running models speak with it over HTTP.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use puna_api::native::{ListResponse, VersionResponse};
use puna_api::{Client, ClientError};
use puna_server::config::{DEFAULT_PORT, Source};
use puna_server::{Address, Config};
use puna_store::{ModelName, Store};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long a server that was started in the background may take to answer.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a server that listens may take for its first answer, which costs it nothing.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(5);

/// What a draft model is called in the store that exists for a file alone: as its own file is, and other than that.
pub fn draft_name(model: &Path, draft: &Path) -> ModelName {
    let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let (model, draft) = (name_of(&stem(model)), stem(draft));
    let own = name_of(&draft);
    if own.same(&model) { name_of(&format!("draft-{draft}")) } else { own }
}

/// A server that answers, and the runtime on which to ask it.
pub struct Service {
    client: Client,
    own: Arc<Mutex<Option<OwnServer>>>,
    runtime: Runtime,
    /// Whether the server's address is one of this machine.
    is_here: bool,
}

impl Service {
    fn new(client: Client, own: Option<OwnServer>, runtime: Runtime, is_here: bool) -> Self {
        let own = Arc::new(Mutex::new(own));
        #[cfg(unix)]
        runtime.spawn(end_when_terminated(crate::terminal::Saved::now(), own.clone()));
        Self { client, own, runtime, is_here }
    }

    /// The server that listens.
    ///
    /// # Errors
    /// None does.
    pub fn connect() -> Result<Self> {
        let Greeted { config, client, runtime, contact } = greet()?;
        match contact {
            Contact::Answers(_) => {
                Ok(Self::new(client, None, runtime, is_this_machine(&config.address)))
            }
            Contact::Nobody(_) => {
                let (url, set) = (config.address.url(), set_by(&config));
                bail!(
                    "could not connect to a puna server at {url}{set}, run 'puna serve' to start it"
                )
            }
        }
    }

    /// What the server that listens says of its version; `None` where none listens.
    pub fn version() -> Result<Option<VersionResponse>> {
        match greet()?.contact {
            Contact::Answers(version) => Ok(Some(version)),
            Contact::Nobody(_) => Ok(None),
        }
    }

    /// The stored models: those of the server that listens; where none does at the usual address, those of the store, which needs
    /// no server to be read.
    ///
    /// # Errors
    /// As [`Service::connect_or_own`].
    pub fn stored_models() -> Result<ListResponse> {
        // A question or two: no threads are worth that.
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().context("cannot wait for a server")?;
        let Greeted { config, client, runtime, contact } = greet_on(runtime)?;
        match contact {
            Contact::Answers(_) => Ok(runtime.block_on(client.list())?),
            Contact::Nobody(_) if may_do_without(&config) => {
                Ok(puna_server::stored_models(&config.store()?)?)
            }
            Contact::Nobody(error) => Err(nobody(&config, &error)),
        }
    }

    /// The server that listens; where none does at the usual address, a server in this process that ends with it.
    ///
    /// # Errors
    /// Nobody answers at an address that somebody has set: what is stored here may be something else than what is there.
    pub fn connect_or_own() -> Result<Self> {
        let Greeted { config, client, runtime, contact } = greet()?;
        match contact {
            Contact::Answers(_) => {
                Ok(Self::new(client, None, runtime, is_this_machine(&config.address)))
            }
            Contact::Nobody(_) if may_do_without(&config) => Self::own(config, runtime),
            Contact::Nobody(error) => Err(nobody(&config, &error)),
        }
    }

    fn own(config: Config, runtime: Runtime) -> Result<Self> {
        let key = config.api_key.0.clone();
        let own = OwnServer::start(&runtime, config)?;
        Ok(Self::new(Client::new(own.url.clone()).with_key(key), Some(own), runtime, true))
    }

    /// The server that listens; where none does on this machine, one that is started in the background and stays.
    pub fn connect_or_start() -> Result<Self> {
        let Greeted { config, client, runtime, contact } = greet()?;
        match contact {
            Contact::Answers(_) => {}
            Contact::Nobody(_) if config.address.port == 0 => return Self::own(config, runtime),
            Contact::Nobody(_) if is_this_machine(&config.address) => {
                let (mut child, log) = spawn_in_background()?;
                runtime.block_on(wait_for(&client, &mut child, &log))?;
            }
            Contact::Nobody(error) => return Err(nobody(&config, &error)),
        }
        Ok(Self::new(client, None, runtime, is_this_machine(&config.address)))
    }

    /// A server of its own for a file that is in no store, and the name that the model has there. The file of its draft
    /// model is called [`draft_name`] there.
    pub fn for_file(path: &Path, draft: Option<&Path>) -> Result<(Self, String)> {
        crate::local::check_file(path)?;
        // What is wrong with the file is said of the file, not of the model that it would be.
        puna_gguf::Gguf::open(path).with_context(|| path.display().to_string())?;
        let dir = tempfile::tempdir().context("cannot make a temporary folder")?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let name = name_of(&stem);
        let store = Store::open(dir.path())?;
        store.link_file(&name, path)?;
        if let Some(draft) = draft {
            crate::local::check_file(draft)?;
            puna_gguf::Gguf::open(draft).with_context(|| draft.display().to_string())?;
            store.link_file(&draft_name(path, draft), draft)?;
        }
        let mut config = Config::from_env()?;
        config.models = dir.path().to_owned();
        // Nobody else is told where it listens; its keys would only stand in the way.
        config.keys = dir.path().join("no-keys.toml");
        let runtime = runtime()?;
        let mut own = OwnServer::start(&runtime, config)?;
        own.folder = Some(dir);
        Ok((Self::new(Client::new(own.url.clone()), Some(own), runtime, true), name.to_string()))
    }

    /// The server.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Whether the server is on this machine.
    pub fn is_here(&self) -> bool {
        self.is_here
    }

    /// Whether the server is in this process, with this user's settings.
    pub fn is_own(&self) -> bool {
        self.own.lock().unwrap_or_else(std::sync::PoisonError::into_inner).is_some()
    }

    /// Where to ask it.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Waits for an answer.
    pub fn wait<T>(&self, work: impl Future<Output = Result<T, ClientError>>) -> Result<T> {
        Ok(self.runtime.block_on(work)?)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(own) = taken(&self.own) {
            self.runtime.block_on(own.end());
        }
    }
}

fn runtime() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().context("cannot start threads")
}

/// A server in this process, on a port that only it knows.
struct OwnServer {
    url: String,
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
    /// Models that exist for this server only.
    folder: Option<tempfile::TempDir>,
}

impl OwnServer {
    fn start(runtime: &Runtime, mut config: Config) -> Result<Self> {
        // Nobody is between this process and itself.
        config.tls = None;
        let listener = runtime
            .block_on(TcpListener::bind("127.0.0.1:0"))
            .context("cannot listen on this machine")?;
        let url = format!("http://{}", listener.local_addr()?);
        // What is wrong with the store is known now rather than with the first request.
        config.store()?;
        let (end, ended) = oneshot::channel();
        let task = runtime.spawn(async move {
            let until = async {
                let _ = ended.await;
            };
            if let Err(error) = puna_server::serve(config, listener, until).await {
                tracing::error!(%error, "the server ended");
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

fn taken(own: &Mutex<Option<OwnServer>>) -> Option<OwnServer> {
    own.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Leaves terminal and disk in order when something asks this process to end.
#[cfg(unix)]
async fn end_when_terminated(terminal: crate::terminal::Saved, own: Arc<Mutex<Option<OwnServer>>>) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminated) = signal(SignalKind::terminate()) else { return };
    terminated.recv().await;
    terminal.restore();
    if let Some(own) = taken(&own) {
        own.end().await;
    }
    std::process::exit(128 + SignalKind::terminate().as_raw_value());
}

/// The configuration, after what is wrong with the part of it that concerns clients was told.
fn client_config() -> Result<Config> {
    let config = Config::from_env()?;
    for warning in config.warnings.iter().filter(|warning| warning.variable.ends_with("_HOST")) {
        crate::out::note(format_args!("warning: {warning}"));
    }
    Ok(config)
}

/// What is known after the first words to the address that is set.
struct Greeted {
    config: Config,
    client: Client,
    runtime: Runtime,
    contact: Contact,
}

/// Says hello to the server that is set.
///
/// # Errors
/// As [`contact`], or the configuration is wrong.
fn greet() -> Result<Greeted> {
    greet_on(runtime()?)
}

/// The same on a runtime of one's own.
fn greet_on(runtime: Runtime) -> Result<Greeted> {
    let config = client_config()?;
    let client = Client::new(config.address.url()).with_key(config.api_key.0.clone());
    let contact = runtime.block_on(contact(&client, &config.address))?;
    Ok(Greeted { config, client, runtime, contact })
}

/// What the first words to an address came to.
enum Contact {
    /// A server of Puna or Ollama.
    Answers(VersionResponse),
    /// Nobody listens.
    Nobody(ClientError),
}

/// Says hello to a server.
///
/// # Errors
/// What listens is something else, or does not answer.
async fn contact(client: &Client, address: &Address) -> Result<Contact> {
    let elsewhere = "stop it, or set OLLAMA_HOST to another address (such as 127.0.0.1:11500)";
    match tokio::time::timeout(CONTACT_TIMEOUT, client.version()).await {
        Ok(Ok(version)) if !version.version.is_empty() || !version.puna.is_empty() => {
            Ok(Contact::Answers(version))
        }
        Ok(Err(error @ ClientError::Unreachable { .. })) => Ok(Contact::Nobody(error)),
        Ok(Err(error @ ClientError::Tls { .. })) => Err(error.into()),
        // It says so itself.
        Ok(Err(ClientError::Status { status: 400, message })) if message.contains("HTTPS") => {
            bail!(message)
        }
        // Something stands before the server, and says what it wants.
        Ok(Err(error @ ClientError::Status { status: 401 | 403 | 407 | 500.., .. })) => {
            Err(error.into())
        }
        Ok(Ok(_) | Err(ClientError::Status { .. } | ClientError::InvalidResponse(_))) => {
            bail!("the server at {} is not a Puna or Ollama: {elsewhere}", address.url())
        }
        Ok(Err(ClientError::Transport(_))) => {
            bail!("a program that does not speak HTTP is running at {}: {elsewhere}", address.url())
        }
        Err(_) if is_this_machine(address) => {
            let seconds = CONTACT_TIMEOUT.as_secs();
            bail!(
                "a program that does not speak HTTP is running at {} (no answer in {seconds} s): {elsewhere}",
                address.url()
            )
        }
        Err(_) => bail!(
            "no answer from {} in {} s: is OLLAMA_HOST right, and is the server running?",
            address.url(),
            CONTACT_TIMEOUT.as_secs()
        ),
    }
}

/// Whether a command that finds no server works on the models of this machine itself: where it would look unless told otherwise,
/// and at port 0, where nobody can listen.
fn may_do_without(config: &Config) -> bool {
    let is_usual = *config.source("host") == Source::Default
        || [0, DEFAULT_PORT].contains(&config.address.port);
    is_usual && is_this_machine(&config.address)
}

/// That nobody answers, with the one who said that somebody would.
fn nobody(config: &Config, error: &ClientError) -> anyhow::Error {
    let set = set_by(config);
    match is_this_machine(&config.address) && !set.is_empty() {
        true => anyhow!(
            "{error}{set}: start a server there with `puna serve`, or leave the setting out to work on the models of this machine \
             without one"
        ),
        false => anyhow!("{error}{set}"),
    }
}

/// Who has set the address, as words behind it; none where nobody has.
fn set_by(config: &Config) -> String {
    match config.source("host") {
        Source::Default => String::new(),
        source => format!(" (the address is set by {source})"),
    }
}

fn is_this_machine(address: &Address) -> bool {
    let ip = address.host.parse::<std::net::IpAddr>();
    address.host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
}

/// Starts `puna serve` so that it outlives this process; its log goes to a file.
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
        // Ctrl-C here is not for the server.
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
            // Another process may have started one at the same moment.
            tokio::time::sleep(Duration::from_millis(100)).await;
            if client.root().await.is_ok() {
                return Ok(());
            }
            bail!(
                "the server that was started ended at once ({status}); its log is {}",
                log.display()
            );
        }
        if start.elapsed() > START_TIMEOUT {
            bail!("timed out waiting for server to start; its log is {}", log.display());
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// A model name made of a file's name.
fn name_of(stem: &str) -> ModelName {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let clean: String = stem.chars().filter(|c| allowed(*c)).take(80).collect();
    let clean = clean.trim_start_matches(['-', '.']);
    ModelName::parse(clean).or_else(|_| ModelName::parse("file")).expect("a name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_name_gives_a_model_name() {
        assert_eq!(
            name_of("SmolLM2-135M-Instruct.Q4_1").to_string(),
            "SmolLM2-135M-Instruct.Q4_1:latest"
        );
        assert_eq!(name_of("a b:c/é").to_string(), "abc:latest");
        assert_eq!(name_of("..").to_string(), "file:latest");
        assert_eq!(name_of(&"x".repeat(300)).model().len(), 80);
    }

    #[test]
    fn a_server_is_done_without_only_where_nobody_said_that_there_is_one() {
        let may = |host: &str| {
            let home = |name: &str| (name == "HOME").then(|| "/home/me".to_owned());
            let given =
                |name: &str| (name == "OLLAMA_HOST" && !host.is_empty()).then(|| host.to_owned());
            may_do_without(
                &Config::from_variables(|name| given(name).or_else(|| home(name))).unwrap(),
            )
        };
        // What a server listens at need not be what a command is to ask.
        assert!(may("") && may("127.0.0.1") && may("0.0.0.0:11434") && may("127.0.0.1:0"));
        assert!(
            !may("127.0.0.1:11500")
                && !may("0.0.0.0:11500")
                && !may("192.168.1.2")
                && !may("192.168.1.2:0")
        );
    }

    #[test]
    fn servers_elsewhere_are_not_started_here() {
        let here = |text: &str| is_this_machine(&Address::parse(text).0);
        assert!(here("") && here("localhost:1") && here("0.0.0.0") && here("[::1]:5"));
        assert!(!here("192.168.1.2") && !here("https://example.com"));
    }
}
