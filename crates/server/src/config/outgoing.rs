//! Policy of outgoing requests: the hosts that the configuration names.

use puna_registry::{HostPattern, OutgoingPolicy};

use super::Config;

impl Config {
    /// Policy of pulls, pushes and upstream registries for callers that may not administer the
    /// server. The hosts of the registry, mirror and remote settings may have any address.
    pub fn outgoing_policy(&self) -> OutgoingPolicy {
        let hosts = self.registry_hosts.iter().flat_map(|(name, host)| {
            std::iter::once(name)
                .chain(host.mirrors.iter().map(String::as_str))
                .chain(host.token_host.as_deref())
        });
        let keyed = self.remote_keys.0.iter().map(|(server, _)| server);
        let others = [
            &self.registry_mirrors,
            &self.mirror.upstreams.hosts,
            &self.remotes,
            &self.outgoing_hosts,
        ];
        let others = others.into_iter().flatten().chain(&self.registry_default).chain(keyed);
        let named = hosts.chain(others.map(String::as_str)).flat_map(HostPattern::of_registry);
        OutgoingPolicy::new(named.collect()).with_named_only(!self.outgoing_hosts.is_empty())
    }

    /// Policy of images by URL, for all callers: a text that a model gets may name the URL.
    pub(crate) fn image_policy(&self) -> OutgoingPolicy {
        let images = self.image_hosts.iter().filter_map(|host| HostPattern::of_machine(host));
        let listed = self.outgoing_hosts.iter().flat_map(|host| HostPattern::of_registry(host));
        OutgoingPolicy::new(images.chain(listed).collect())
            .with_named_only(!self.outgoing_hosts.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use reqwest::Url;

    use super::*;

    #[test]
    fn hosts_of_all_settings_are_named_with_their_ports() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("puna.toml");
        let text = "[registry.hosts.\"hub.intra:5000\"]\nmirrors = [\"http://m.intra:5001\"]\ntoken_host = \"auth.intra\"\n";
        std::fs::write(&path, text).unwrap();
        let config = Config::from_variables(|name| match name {
            "OLLAMA_MODELS" => Some("/tmp".into()),
            "PUNA_CONFIG" => Some(path.display().to_string()),
            "PUNA_REGISTRY_DEFAULT" => Some("http://default.intra:5002".into()),
            "PUNA_REGISTRY_MIRRORS" => Some("mirror.intra:5003/ollama".into()),
            "PUNA_MIRROR_UPSTREAMS" => Some("up.intra:5004".into()),
            "PUNA_REMOTES" => Some("gpu1:8000".into()),
            "PUNA_REMOTE_KEYS" => Some("https://gpu2:8001=k".into()),
            "PUNA_OUTGOING_HOSTS" => Some("files.intra".into()),
            _ => None,
        })
        .unwrap();
        let policy = config.outgoing_policy();
        let names = |url: &str| policy.names(&Url::parse(url).unwrap());
        for url in [
            "http://hub.intra:5000",
            "http://m.intra:5001",
            "https://auth.intra",
            "http://default.intra:5002",
            "https://mirror.intra:5003",
            "https://up.intra:5004",
            "http://gpu1:8000",
            "https://gpu2:8001",
            "http://files.intra",
        ] {
            assert!(names(url), "{url}");
        }
        for url in ["http://hub.intra", "http://gpu1:22", "http://files.intra:8080", "http://x"] {
            assert!(!names(url), "{url}");
        }
    }
}
