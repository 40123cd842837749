//! Addresses that serve `/v2`: the registry of a name, and the mirrors that are asked before it.

use puna_store::{DEFAULT_HOST, ModelName};
use reqwest::Url;

use crate::error::RegistryError;
use crate::hosts::Host;
use crate::settings::{Options, Settings};

/// Docker's registry: what it is called, where it is, and who hands out its tokens.
const HUB: (&str, &str, &str) = ("docker.io", "https://registry-1.docker.io", "auth.docker.io");
/// Hosts that list the files of models.
const HUBS: [&str; 2] = ["hf.co", "huggingface.co"];
/// Mirrors of one name at most.
const MAX_MIRRORS: usize = 16;

/// An address that serves `/v2`, and what is set for it.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    /// Scheme, host and port.
    pub(crate) root: Url,
    /// What stands between `/v2/` and the model's own names.
    pub(crate) prefix: Vec<String>,
    /// Its name, by which credentials are found.
    pub(crate) host: String,
    pub(crate) settings: Host,
    /// The host that it stands for, if it is a mirror.
    pub(crate) mirror_of: Option<String>,
}

impl Endpoint {
    /// Reads `host:port`, which is asked with encryption, or an address; a path stands before the models' names.
    pub(crate) fn parse(
        settings: &Settings,
        text: &str,
        http: bool,
    ) -> Result<Self, RegistryError> {
        let wrong = || RegistryError::Setup(format!("{text:?} is no address of a registry"));
        let has_scheme = text.contains("://");
        let bare = text.split_once("://").map_or(text, |(_, rest)| rest);
        let host = bare.split_once('/').map_or(bare, |(host, _)| host).to_owned();
        let of_host = settings.hosts.get(&host).cloned().unwrap_or_default();
        let scheme = if http || of_host.http { "http" } else { "https" };
        let text = if has_scheme { text.to_owned() } else { format!("{scheme}://{text}") };
        let url = Url::parse(&text).map_err(|_| wrong())?;
        let plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
        if !plain || url.fragment().is_some() || !matches!(url.scheme(), "http" | "https") {
            return Err(wrong());
        }
        let prefix = url
            .path_segments()
            .map(|parts| parts.filter(|p| !p.is_empty()).map(str::to_owned).collect());
        let mut root = url.clone();
        root.set_path("/");
        // A text that is read differently there would lead elsewhere.
        if host.is_empty()
            || !crate::address::authority(&root)
                .eq_ignore_ascii_case(&without_default_port(&host, &root))
        {
            return Err(wrong());
        }
        Ok(Self {
            root,
            prefix: prefix.unwrap_or_default(),
            host,
            settings: of_host,
            mirror_of: None,
        })
    }

    /// Where a file is.
    pub(crate) fn of_url(settings: &Settings, url: &Url) -> Result<Self, RegistryError> {
        Self::parse(
            settings,
            &format!("{}://{}", url.scheme(), crate::address::authority(url)),
            false,
        )
    }

    /// The registry of a name.
    fn origin(
        settings: &Settings,
        name: &ModelName,
        options: &Options,
    ) -> Result<Self, RegistryError> {
        let host = name.host();
        if host.eq_ignore_ascii_case(DEFAULT_HOST)
            && let Some(instead) = settings.default_registry.as_deref()
        {
            return Self::parse(settings, instead, options.insecure);
        }
        if host.eq_ignore_ascii_case(HUB.0) {
            let mut hub = Self::parse(settings, HUB.1, false)?;
            hub.settings = settings.hosts.get(HUB.0).cloned().unwrap_or_default();
            hub.settings.token_host.get_or_insert_with(|| HUB.2.to_owned());
            hub.host = HUB.0.to_owned();
            return Ok(hub);
        }
        let mut origin = Self::parse(settings, host, options.insecure)?;
        origin.settings.hub |= HUBS.iter().any(|hub| host.eq_ignore_ascii_case(hub));
        match origin.prefix.is_empty() {
            true => Ok(origin),
            false => Err(RegistryError::Setup(format!("{host:?} is no address of a registry"))),
        }
    }

    /// Everybody who may have a model, in the order of asking; the registry itself comes last.
    pub(crate) fn all(
        settings: &Settings,
        name: &ModelName,
        options: &Options,
    ) -> Result<Vec<Self>, RegistryError> {
        let origin = Self::origin(settings, name, options)?;
        let of_host = settings.hosts.get(name.host()).map_or(&[][..], |host| &host.mirrors[..]);
        let general = if name.host().eq_ignore_ascii_case(DEFAULT_HOST) {
            &settings.mirrors[..]
        } else {
            &[]
        };
        let mirrors: Vec<&String> = match &options.mirror {
            Some(mirror) if mirror.is_empty() => Vec::new(),
            Some(mirror) => vec![mirror],
            None => of_host.iter().chain(general).collect(),
        };
        let mut all = Vec::new();
        for mirror in mirrors.into_iter().take(MAX_MIRRORS) {
            let mirror_of = Some(name.host().to_owned());
            let mirror = Self { mirror_of, ..Self::parse(settings, mirror, false)? };
            if mirror.root != origin.root {
                all.push(mirror);
            }
        }
        all.push(origin);
        Ok(all)
    }

    /// Where the hub lists files, which is not where it plays a registry.
    pub(crate) fn listing(&self) -> Self {
        let [short, long] = HUBS;
        let root = Url::parse(&format!("https://{long}/"))
            .ok()
            .filter(|_| self.host.eq_ignore_ascii_case(short));
        Self { root: root.unwrap_or_else(|| self.root.clone()), ..self.clone() }
    }

    /// The registry that a model is pushed to.
    pub(crate) fn target(
        settings: &Settings,
        name: &ModelName,
        options: &Options,
    ) -> Result<Self, RegistryError> {
        Self::origin(settings, name, options)
    }

    /// Whether it is asked without encryption.
    pub(crate) fn is_plain(&self) -> bool {
        self.root.scheme() == "http"
    }
}

/// `host:443` as addresses of HTTPS have it: without the port.
fn without_default_port(host: &str, url: &Url) -> String {
    let default = if url.scheme() == "https" { ":443" } else { ":80" };
    host.strip_suffix(default).unwrap_or(host).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(settings: &Settings, name: &str, options: &Options) -> Vec<(String, String)> {
        let name = ModelName::parse(name).unwrap();
        let all = Endpoint::all(settings, &name, options).unwrap();
        all.into_iter().map(|e| (e.root.to_string(), e.prefix.join("/"))).collect()
    }

    fn shown(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(root, prefix)| ((*root).to_owned(), (*prefix).to_owned())).collect()
    }

    #[test]
    fn mirrors_come_first_and_the_registry_last() {
        let mut settings = Settings::default();
        let plain = Options::default();
        assert_eq!(all(&settings, "llama3", &plain), shown(&[("https://registry.ollama.ai/", "")]));
        settings.mirrors = vec!["http://mirror:5000".into(), "harbor.example/ollama".into()];
        let want = shown(&[
            ("http://mirror:5000/", ""),
            ("https://harbor.example/", "ollama"),
            ("https://registry.ollama.ai/", ""),
        ]);
        assert_eq!(all(&settings, "llama3", &plain), want);
        assert_eq!(all(&settings, "h:5/a/b", &plain), shown(&[("https://h:5/", "")]));
        let only = Options { mirror: Some("other:1".into()), ..Options::default() };
        let want = shown(&[("https://other:1/", ""), ("https://registry.ollama.ai/", "")]);
        assert_eq!(all(&settings, "llama3", &only), want);
        let none = Options { mirror: Some(String::new()), ..Options::default() };
        assert_eq!(all(&settings, "llama3", &none), shown(&[("https://registry.ollama.ai/", "")]));
        settings.hosts.set("hf.co", Host { mirrors: vec!["mirror:6".into()], ..Host::default() });
        let want = shown(&[("https://mirror:6/", ""), ("https://hf.co/", "")]);
        assert_eq!(all(&settings, "hf.co/a/b", &plain), want);
    }

    #[test]
    fn another_default_registry_takes_the_place_of_ollamas() {
        let mut settings =
            Settings { default_registry: Some("models.example".into()), ..Settings::default() };
        settings.hosts.set("models.example", Host { http: true, ..Host::default() });
        let plain = Options::default();
        assert_eq!(all(&settings, "llama3", &plain), shown(&[("http://models.example/", "")]));
        assert_eq!(all(&settings, "hf.co/a/b", &plain), shown(&[("https://hf.co/", "")]));
    }

    #[test]
    fn the_hub_lists_under_its_long_name() {
        let of = |host: &str| {
            Endpoint::parse(&Settings::default(), host, false).unwrap().listing().root.to_string()
        };
        assert_eq!(of("hf.co"), "https://huggingface.co/");
        assert_eq!(of("huggingface.co"), "https://huggingface.co/");
        assert_eq!(of("hub.intra:5000"), "https://hub.intra:5000/");
    }

    #[test]
    fn dockers_registry_is_where_it_is() {
        let name = ModelName::parse("docker.io/ai/smollm2").unwrap();
        let hub = Endpoint::target(&Settings::default(), &name, &Options::default()).unwrap();
        assert_eq!(
            (hub.root.as_str(), hub.host.as_str()),
            ("https://registry-1.docker.io/", "docker.io")
        );
        assert_eq!(hub.settings.token_host.as_deref(), Some("auth.docker.io"));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let settings = Settings::default();
        for bad in [
            "",
            "https://",
            "ftp://h",
            "http://u:p@h",
            "h?x=1",
            "h#x",
            "a b",
            "http://h:port",
            "http:///x",
        ] {
            assert!(Endpoint::parse(&settings, bad, false).is_err(), "{bad}");
        }
        for good in ["h", "h:5000", "H:443", "http://h:80/", "https://h/a/b/", "10.0.0.1:5000"] {
            assert!(Endpoint::parse(&settings, good, false).is_ok(), "{good}");
        }
    }
}
