//! Endpoints that serve `/v2`: the registry of a model name, and the mirrors that are tried before
//! it.

use puna_store::{DEFAULT_HOST, ModelName};
use reqwest::Url;

use crate::client::hosts::Host;
use crate::client::settings::{Options, Settings};
use crate::error::{RegistryError, SetupProblem, WithheldCredentials};

/// Docker Hub: its name, its URL, and the host of its token server.
const DOCKER_HUB: (&str, &str, &str) =
    ("docker.io", "https://registry-1.docker.io", "auth.docker.io");
/// Hosts of Hugging Face, which list the files of models.
const HUGGING_FACE_HOSTS: [&str; 2] = ["hf.co", "huggingface.co"];
/// Largest number of mirrors for one name.
const MAX_MIRRORS: usize = 16;

/// Address that serves `/v2`, with the settings of its host.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    /// Scheme, host and port.
    pub(crate) root: Url,
    /// Path segments between `/v2/` and the repository's name.
    pub(crate) prefix: Vec<String>,
    /// Host name and port; credentials are looked up by it.
    pub(crate) host: String,
    pub(crate) settings: Host,
    /// The host that this endpoint mirrors, if it is a mirror.
    pub(crate) mirror_of: Option<String>,
    /// Whether the mirror comes from the options of the operation instead of the settings.
    pub(crate) is_requested_mirror: bool,
}

impl Endpoint {
    /// Parses `host:port`, which means HTTPS, or a URL. The URL's path comes before repository
    /// names.
    pub(crate) fn parse(
        settings: &Settings,
        text: &str,
        http: bool,
    ) -> Result<Self, RegistryError> {
        let invalid = || SetupProblem::Address { address: text.to_owned() };
        let has_scheme = text.contains("://");
        let bare = text.split_once("://").map_or(text, |(_, rest)| rest);
        let host = bare.split_once('/').map_or(bare, |(host, _)| host).to_owned();
        let host_settings = settings.hosts.get(&host).cloned().unwrap_or_default();
        let scheme = if http || host_settings.http { "http" } else { "https" };
        let text = if has_scheme { text.to_owned() } else { format!("{scheme}://{text}") };
        let url = Url::parse(&text).map_err(|_| invalid())?;
        let is_bare =
            url.username().is_empty() && url.password().is_none() && url.query().is_none();
        if !is_bare || url.fragment().is_some() || !matches!(url.scheme(), "http" | "https") {
            return Err(invalid().into());
        }
        let prefix = url
            .path_segments()
            .map(|parts| parts.filter(|p| !p.is_empty()).map(str::to_owned).collect());
        let mut root = url.clone();
        root.set_path("/");
        // If the URL parser reads another host than the text shows, requests would go elsewhere.
        if host.is_empty()
            || !crate::display::authority(&root)
                .eq_ignore_ascii_case(&without_default_port(&host, &root))
        {
            return Err(invalid().into());
        }
        Ok(Self {
            root,
            prefix: prefix.unwrap_or_default(),
            host,
            settings: host_settings,
            mirror_of: None,
            is_requested_mirror: false,
        })
    }

    /// The endpoint of a file's URL.
    pub(crate) fn from_url(settings: &Settings, url: &Url) -> Result<Self, RegistryError> {
        Self::parse(
            settings,
            &format!("{}://{}", url.scheme(), crate::display::authority(url)),
            false,
        )
    }

    /// The registry of a model name.
    fn origin(
        settings: &Settings,
        name: &ModelName,
        options: &Options,
    ) -> Result<Self, RegistryError> {
        let host = name.host();
        if host.eq_ignore_ascii_case(DEFAULT_HOST)
            && let Some(replacement) = settings.default_registry.as_deref()
        {
            return Self::parse(settings, replacement, options.insecure);
        }
        if host.eq_ignore_ascii_case(DOCKER_HUB.0) {
            let mut hub = Self::parse(settings, DOCKER_HUB.1, false)?;
            hub.settings = settings.hosts.get(DOCKER_HUB.0).cloned().unwrap_or_default();
            hub.settings.token_host.get_or_insert_with(|| DOCKER_HUB.2.to_owned());
            hub.host = DOCKER_HUB.0.to_owned();
            return Ok(hub);
        }
        let mut origin = Self::parse(settings, host, options.insecure)?;
        origin.settings.hub |= HUGGING_FACE_HOSTS.iter().any(|hub| host.eq_ignore_ascii_case(hub));
        match origin.prefix.is_empty() {
            true => Ok(origin),
            false => Err(SetupProblem::Address { address: host.to_owned() }.into()),
        }
    }

    /// All endpoints that may have a model, in the order of requests. The registry itself is last.
    pub(crate) fn candidates(
        settings: &Settings,
        name: &ModelName,
        options: &Options,
    ) -> Result<Vec<Self>, RegistryError> {
        let origin = Self::origin(settings, name, options)?;
        let host_mirrors =
            settings.hosts.get(name.host()).map_or(&[][..], |host| &host.mirrors[..]);
        let default_mirrors = if name.host().eq_ignore_ascii_case(DEFAULT_HOST) {
            &settings.mirrors[..]
        } else {
            &[]
        };
        let mirrors: Vec<&String> = match &options.mirror {
            Some(mirror) if mirror.is_empty() => Vec::new(),
            Some(mirror) => vec![mirror],
            None => host_mirrors.iter().chain(default_mirrors).collect(),
        };
        let mut all = Vec::new();
        for mirror in mirrors.into_iter().take(MAX_MIRRORS) {
            let mirror_of = Some(name.host().to_owned());
            let is_requested_mirror = options.mirror.is_some();
            let mirror =
                Self { mirror_of, is_requested_mirror, ..Self::parse(settings, mirror, false)? };
            if mirror.root != origin.root {
                all.push(mirror);
            }
        }
        all.push(origin);
        Ok(all)
    }

    /// The endpoint that lists files. Hugging Face lists them at another host than its registry
    /// API.
    pub(crate) fn hub_listing(&self) -> Self {
        let [short, long] = HUGGING_FACE_HOSTS;
        let root = Url::parse(&format!("https://{long}/"))
            .ok()
            .filter(|_| self.host.eq_ignore_ascii_case(short));
        Self { root: root.unwrap_or_else(|| self.root.clone()), ..self.clone() }
    }

    /// The registry to push a model to.
    pub(crate) fn push_target(
        settings: &Settings,
        name: &ModelName,
        options: &Options,
    ) -> Result<Self, RegistryError> {
        Self::origin(settings, name, options)
    }

    /// Why the endpoint gets no stored credentials: no password, no token and no signature of the
    /// client's key. `None`: it may get them.
    pub(crate) fn withheld_credentials(&self) -> Option<WithheldCredentials> {
        if self.is_requested_mirror {
            return Some(WithheldCredentials::RequestedMirror);
        }
        // A request may ask for plain HTTP, but only the host's own settings allow secrets.
        (self.is_unencrypted() && !self.settings.http)
            .then(|| WithheldCredentials::Unencrypted { host: self.host.clone() })
    }

    /// Whether requests are plain HTTP.
    pub(crate) fn is_unencrypted(&self) -> bool {
        self.root.scheme() == "http"
    }
}

/// Removes the default port of the URL's scheme, as the URL parser does.
fn without_default_port(host: &str, url: &Url) -> String {
    let default = if url.scheme() == "https" { ":443" } else { ":80" };
    host.strip_suffix(default).unwrap_or(host).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(settings: &Settings, name: &str, options: &Options) -> Vec<(String, String)> {
        let name = ModelName::parse(name).unwrap();
        let candidates = Endpoint::candidates(settings, &name, options).unwrap();
        candidates.into_iter().map(|e| (e.root.to_string(), e.prefix.join("/"))).collect()
    }

    fn endpoints(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(root, prefix)| ((*root).to_owned(), (*prefix).to_owned())).collect()
    }

    #[test]
    fn mirrors_come_first_and_the_registry_last() {
        let mut settings = Settings::default();
        let plain = Options::default();
        assert_eq!(
            candidates(&settings, "llama3", &plain),
            endpoints(&[("https://registry.ollama.ai/", "")])
        );
        settings.mirrors = vec!["http://mirror:5000".into(), "harbor.example/ollama".into()];
        let want = endpoints(&[
            ("http://mirror:5000/", ""),
            ("https://harbor.example/", "ollama"),
            ("https://registry.ollama.ai/", ""),
        ]);
        assert_eq!(candidates(&settings, "llama3", &plain), want);
        assert_eq!(candidates(&settings, "h:5/a/b", &plain), endpoints(&[("https://h:5/", "")]));
        let only = Options { mirror: Some("other:1".into()), ..Options::default() };
        let want = endpoints(&[("https://other:1/", ""), ("https://registry.ollama.ai/", "")]);
        assert_eq!(candidates(&settings, "llama3", &only), want);
        let none = Options { mirror: Some(String::new()), ..Options::default() };
        assert_eq!(
            candidates(&settings, "llama3", &none),
            endpoints(&[("https://registry.ollama.ai/", "")])
        );
        settings.hosts.set("hf.co", Host { mirrors: vec!["mirror:6".into()], ..Host::default() });
        let want = endpoints(&[("https://mirror:6/", ""), ("https://hf.co/", "")]);
        assert_eq!(candidates(&settings, "hf.co/a/b", &plain), want);
    }

    #[test]
    fn the_default_registry_can_be_replaced() {
        let mut settings =
            Settings { default_registry: Some("models.example".into()), ..Settings::default() };
        settings.hosts.set("models.example", Host { http: true, ..Host::default() });
        let plain = Options::default();
        assert_eq!(
            candidates(&settings, "llama3", &plain),
            endpoints(&[("http://models.example/", "")])
        );
        assert_eq!(
            candidates(&settings, "hf.co/a/b", &plain),
            endpoints(&[("https://hf.co/", "")])
        );
    }

    #[test]
    fn listings_of_hf_co_are_requested_from_huggingface_co() {
        let listing_url = |host: &str| {
            Endpoint::parse(&Settings::default(), host, false)
                .unwrap()
                .hub_listing()
                .root
                .to_string()
        };
        assert_eq!(listing_url("hf.co"), "https://huggingface.co/");
        assert_eq!(listing_url("huggingface.co"), "https://huggingface.co/");
        assert_eq!(listing_url("hub.intra:5000"), "https://hub.intra:5000/");
    }

    #[test]
    fn docker_hub_has_separate_registry_and_token_hosts() {
        let name = ModelName::parse("docker.io/ai/smollm2").unwrap();
        let hub = Endpoint::push_target(&Settings::default(), &name, &Options::default()).unwrap();
        assert_eq!(
            (hub.root.as_str(), hub.host.as_str()),
            ("https://registry-1.docker.io/", "docker.io")
        );
        assert_eq!(hub.settings.token_host.as_deref(), Some("auth.docker.io"));
    }

    #[test]
    fn invalid_addresses_are_refused() {
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
