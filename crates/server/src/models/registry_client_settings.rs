//! Settings of the model registry client.

use puna_registry::Settings;

use crate::config::Config;
use crate::runner::detect_template;
use crate::version::{OLLAMA_VERSION, VERSION};

/// Registry client settings from the configuration.
pub fn settings(config: &Config) -> Settings {
    let (arch, system) = (std::env::consts::ARCH, std::env::consts::OS);
    Settings {
        user_agent: format!("ollama/{} ({arch} {system}) puna/{}", OLLAMA_VERSION, VERSION),
        key_file: config.registry_key.clone(),
        streams: config.max_transfer_streams,
        proxies: config.proxies.clone(),
        outgoing: Some(config.outgoing_policy()),
        default_registry: config.registry_default.clone(),
        mirrors: config.registry_mirrors.clone(),
        hosts: config.registry_hosts.clone(),
        docker_config: config.docker_config.clone(),
        limit_rate: config.registry_limit_rate,
        detect_template: Some(detect_template),
        ..Settings::default()
    }
}
