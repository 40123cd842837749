//! Settings of single registries: the tables `[registry.hosts."HOST"]` of the configuration file.

use std::path::{Path, PathBuf};

use puna_api::parse_rate;
use puna_registry::{Credentials, Host, Hosts, Secret};

use super::effective::{Setting, Source, quoted};
use super::error::ConfigError;
use super::file::{Entry, File, HostTable};
use super::host_keys::HOST_SETTINGS;
use super::paths::expanded;
use super::setting_table::ValueKind;

/// Maximum connections of one download.
pub const MAX_STREAMS: u32 = 64;

/// Host names of the Hugging Face hub.
const HUB_HOSTS: [&str; 2] = ["hf.co", "huggingface.co"];

/// Settings with secret values, which are never shown.
const SECRET_SETTINGS: [&str; 2] = ["password", "token"];

/// Settings of one host in effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSettings {
    /// Host name, with a port if there is one.
    pub host: String,
    /// The settings. Passwords and tokens have no value here.
    pub settings: Vec<Setting>,
}

/// Settings to show for the hosts of the file, in file order, and the hub's token if one is found
/// in its usual locations.
pub fn effective_settings(
    file: &File,
    variable: &dyn Fn(&str) -> Option<String>,
    home: Option<&Path>,
) -> Vec<HostSettings> {
    let one = |table: &HostTable| {
        let setting = |entry: &Entry| Setting {
            key: entry.key,
            value: (!SECRET_SETTINGS.contains(&entry.key)).then(|| as_toml(entry)),
            source: Source::File(file.path.clone(), entry.line),
            hidden: SECRET_SETTINGS.contains(&entry.key),
        };
        let mut entries: Vec<&Entry> = table.entries.iter().collect();
        entries.sort_by_key(|entry| entry.line);
        HostSettings {
            host: table.host.clone(),
            settings: entries.into_iter().map(setting).collect(),
        }
    };
    let mut tables: Vec<&HostTable> = file.hosts.iter().collect();
    tables.sort_by_key(|table| table.line);
    let mut all: Vec<HostSettings> = tables.into_iter().map(one).collect();
    let Some(token) = hub_token(variable, home) else { return all };
    for host in HUB_HOSTS {
        let at = all.iter().position(|known| known.host.eq_ignore_ascii_case(host));
        let at = at.unwrap_or_else(|| {
            all.push(HostSettings { host: host.to_owned(), settings: Vec::new() });
            all.len() - 1
        });
        let settings = &mut all[at].settings;
        let replaced = |setting: &Setting| match setting.key {
            "token_host" => false,
            "anonymous" => setting.value.as_deref() == Some("true"),
            key => SECRET_SETTINGS.iter().any(|secret| key.starts_with(secret)),
        };
        if !settings.iter().any(replaced) {
            settings.push(token.as_setting());
        }
    }
    all
}

/// Formats a value as in the file.
fn as_toml(entry: &Entry) -> String {
    let plain = |text: &str| text.parse::<u64>().is_ok() || text.parse::<bool>().is_ok();
    let is_any =
        HOST_SETTINGS.iter().any(|(key, kind)| *key == entry.key && *kind == ValueKind::Any);
    if is_any && plain(&entry.text) { entry.text.clone() } else { quoted(&entry.text) }
}

/// Reads the host settings of the file, and the hub's token from its usual locations.
pub fn read(
    file: &File,
    variable: &dyn Fn(&str) -> Option<String>,
    home: Option<&Path>,
) -> Result<Hosts, ConfigError> {
    let mut hosts = Hosts::default();
    for name in HUB_HOSTS {
        if let Some(token) = hub_token(variable, home) {
            let credentials = Some(Credentials::Token(token.secret()));
            hosts.set(name, Host { credentials, ..Host::default() });
        }
    }
    for table in &file.hosts {
        let read = HostTableReader { table, variable, home };
        let host = read.host();
        let host =
            host.map_err(|(line, text)| ConfigError::File { path: file.path.clone(), line, text })?;
        let mut host = host;
        if host.credentials.is_none()
            && !read.has("anonymous")
            && let Some(known) = hosts.get(&table.host)
        {
            host.credentials.clone_from(&known.credentials);
        }
        hosts.set(&table.host, host);
    }
    Ok(hosts)
}

/// Where a token of the hub's own tools was found.
enum HubToken {
    /// A variable and its value.
    Variable(&'static str, String),
    File(PathBuf),
}

impl HubToken {
    fn secret(self) -> Secret {
        match self {
            Self::Variable(_, text) => Secret::Text(text),
            Self::File(path) => Secret::File(path),
        }
    }

    /// Shows the token as the equivalent setting.
    fn as_setting(&self) -> Setting {
        match self {
            Self::Variable(name, _) => Setting {
                key: "token_env",
                value: Some(quoted(name)),
                source: Source::Variable((*name).to_owned()),
                hidden: false,
            },
            Self::File(path) => Setting {
                key: "token_file",
                value: Some(quoted(&path.display().to_string())),
                source: Source::Default,
                hidden: false,
            },
        }
    }
}

/// Finds the token of the hub's own tools: in the environment, else in their file.
fn hub_token(variable: &dyn Fn(&str) -> Option<String>, home: Option<&Path>) -> Option<HubToken> {
    let given = |name: &str| variable(name).map(|t| t.trim().to_owned()).filter(|t| !t.is_empty());
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        if let Some(token) = given(name) {
            return Some(HubToken::Variable(name, token));
        }
    }
    let folder = given("HF_HOME").map(PathBuf::from);
    let folder = folder.or_else(|| Some(home?.join(".cache").join("huggingface")))?;
    let path = folder.join("token");
    path.is_file().then_some(HubToken::File(path))
}

struct HostTableReader<'a> {
    table: &'a HostTable,
    variable: &'a dyn Fn(&str) -> Option<String>,
    home: Option<&'a Path>,
}

type LineError = (usize, String);

impl HostTableReader<'_> {
    fn entry(&self, key: &str) -> Option<&Entry> {
        self.table.entries.iter().find(|entry| entry.key == key)
    }

    fn has(&self, key: &str) -> bool {
        self.entry(key).is_some_and(|entry| entry.text != "false")
    }

    fn text(&self, key: &str) -> Option<String> {
        self.entry(key).map(|entry| entry.text.trim().to_owned())
    }

    fn parsed<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, LineError> {
        let parsed = |entry: &Entry| {
            let wrong = |problem| (entry.line, format!("{key} is {:?}: {problem}", entry.text));
            parse(&entry.text).map_err(wrong)
        };
        self.entry(key).map(parsed).transpose()
    }

    fn switch(&self, key: &str) -> Result<bool, LineError> {
        let parse = |text: &str| text.parse().map_err(|_| "it must be true or false".to_owned());
        Ok(self.parsed(key, parse)?.unwrap_or(false))
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        self.text(key).map(|text| expanded(Path::new(&text), self.home))
    }

    fn host(&self) -> Result<Host, LineError> {
        let streams = |text: &str| match text.parse::<usize>() {
            Ok(n) if (1..=MAX_STREAMS as usize).contains(&n) => Ok(n),
            _ => Err(format!("it must be a whole number from 1 to {MAX_STREAMS}")),
        };
        let mirrors = self.text("mirrors").unwrap_or_default();
        let mirrors = mirrors.split(',').map(str::trim).filter(|text| !text.is_empty());
        Ok(Host {
            http: self.switch("http")?,
            hub: self.switch("hub")?,
            ca: self.path("ca"),
            credentials: self.credentials()?,
            token_host: self.text("token_host"),
            mirrors: mirrors.map(str::to_owned).collect(),
            limit_rate: self.parsed("limit_rate", parse_rate)?,
            streams: self.parsed("streams", streams)?,
        })
    }

    fn credentials(&self) -> Result<Option<Credentials>, LineError> {
        let anonymous = self.switch("anonymous")?;
        let line = self.table.line;
        let (password, token) = (self.secret("password")?, self.secret("token")?);
        match (self.text("username"), password, token) {
            (None, None, None) => Ok(None),
            _ if anonymous => Err((
                line,
                "anonymous is set: remove the password and the token of this host".into(),
            )),
            (Some(user), Some(password), None) if !user.contains(':') => {
                Ok(Some(Credentials::Basic { user, password }))
            }
            (Some(_), Some(_), None) => Err((line, "username must not contain a colon".into())),
            (None, None, Some(token)) => Ok(Some(Credentials::Token(token))),
            (_, _, Some(_)) => {
                Err((line, "set either username and password, or token, not both".into()))
            }
            (Some(_), None, None) => Err((
                line,
                "username is set without a password: set password_file, password_env or password"
                    .into(),
            )),
            (None, Some(_), None) => Err((line, "password is set without a username".into())),
        }
    }

    /// Reads a secret from the setting `key`, `key_file` or `key_env`.
    fn secret(&self, key: &str) -> Result<Option<Secret>, LineError> {
        let (file, env) = (format!("{key}_file"), format!("{key}_env"));
        let set: Vec<&Entry> =
            [key, &file, &env].into_iter().filter_map(|key| self.entry(key)).collect();
        let entry = match set.as_slice() {
            [] => return Ok(None),
            [entry] => *entry,
            [_, second, ..] => {
                return Err((second.line, format!("set only one of {key}, {file} and {env}")));
            }
        };
        if entry.key == file {
            return Ok(self.path(&file).map(Secret::File));
        }
        if entry.key != env {
            return Ok(Some(Secret::Text(entry.text.clone())));
        }
        let name = entry.text.trim();
        match (self.variable)(name).filter(|text| !text.trim().is_empty()) {
            Some(text) => Ok(Some(Secret::Text(text))),
            None => Err((entry.line, format!("{env} is {name:?}, but this variable is not set"))),
        }
    }
}
