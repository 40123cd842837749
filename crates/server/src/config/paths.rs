//! Locations of files: the home directory and the configuration files. Also reads the proxy
//! variables.

use std::path::{Path, PathBuf};

use puna_registry::Proxies;

/// System-wide configuration file.
pub const SYSTEM_FILE: &str = "/etc/puna/puna.toml";

/// Home directory of the user.
pub fn home(variable: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    path_in(variable, "HOME").or_else(puna_store::account_home_dir)
}

/// Expands a leading `~` to the home directory, like shells.
pub fn expanded(path: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) if rest.as_os_str().is_empty() => home.to_owned(),
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

/// Proxies from the usual variables, in lower or upper case.
pub fn proxies(variable: &dyn Fn(&str) -> Option<String>) -> Proxies {
    let find = |name: &str| {
        let of = |name: String| {
            variable(&name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        of(name.to_uppercase()).or_else(|| of(name.to_lowercase()))
    };
    let all = || find("all_proxy");
    Proxies {
        http: find("http_proxy").or_else(all),
        https: find("https_proxy").or_else(all),
        direct: find("no_proxy").unwrap_or_default(),
    }
}

/// Docker's configuration file, where `docker login` stores credentials.
pub fn docker_config(variable: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let folder =
        path_in(variable, "DOCKER_CONFIG").or_else(|| Some(home(variable)?.join(".docker")))?;
    Some(folder.join("config.json"))
}

/// Finds the configuration file: `PUNA_CONFIG`, which must exist, else the user's, else the
/// system's.
pub fn find_file(
    variable: &dyn Fn(&str) -> Option<String>,
    system: Option<&Path>,
) -> Option<PathBuf> {
    let users = || {
        config_folder(variable).map(|folder| folder.join("puna.toml")).filter(|path| path.exists())
    };
    let systems = || system.filter(|path| path.exists()).map(Path::to_owned);
    let named =
        path_in(variable, "PUNA_CONFIG").map(|path| expanded(&path, home(variable).as_deref()));
    named.or_else(users).or_else(systems)
}

/// Configuration directory of the user.
pub fn config_folder(variable: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let folder = path_in(variable, "XDG_CONFIG_HOME");
    Some(folder.or_else(|| Some(home(variable)?.join(".config")))?.join("puna"))
}

/// Whether a variable locates files and is not a setting.
pub fn is_location_variable(variable: &str) -> bool {
    variable == "PUNA_CONFIG" || !(variable.starts_with("PUNA_") || variable.starts_with("OLLAMA_"))
}

fn path_in(variable: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<PathBuf> {
    variable(name).filter(|text| !text.trim().is_empty()).map(PathBuf::from)
}
