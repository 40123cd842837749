//! A file by its address: `https://host/folder/model.gguf`, with the digest behind a `#` if it is known.

use std::sync::Arc;

use puna_store::{Digest, ModelName, Store};
use reqwest::header::{CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, LAST_MODIFIED, RANGE};
use reqwest::{Method, StatusCode, Url};
use serde_json::json;

use crate::Registry;
use crate::address::shown;
use crate::blocking::{at_work, blocking};
use crate::endpoint::Endpoint;
use crate::error::RegistryError;
use crate::fetch::{What, content_range};
use crate::http::{Ask, Session};
use crate::packaging::{Made, Origin, is_made_of};
use crate::pull::{forgetting, note};
use crate::settings::{Options, Progress, Report, tell};

/// What files of weights are called.
const SUFFIX: &str = ".gguf";

/// The address of a file of weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileUrl {
    url: Url,
    digest: Option<Digest>,
    name: ModelName,
}

impl FileUrl {
    /// Reads `https://…/NAME.gguf`, perhaps with `#sha256=…`; `None`: it is something else, such as a model's name.
    ///
    /// # Errors
    /// It is such an address, but what stands behind the `#` is no digest, or no name can be made of the file's.
    pub fn parse(text: &str) -> Option<Result<Self, String>> {
        if !text.starts_with("https://") && !text.starts_with("http://") {
            return None;
        }
        let mut url = Url::parse(text).ok()?;
        let file = url.path_segments()?.next_back()?.to_owned();
        let stem = file
            .strip_suffix(SUFFIX)
            .or_else(|| file.strip_suffix(&SUFFIX.to_uppercase()))?
            .to_owned();
        let fragment = url.fragment().map(str::to_owned);
        url.set_fragment(None);
        Some(Self::of(url, &stem, fragment.as_deref()))
    }

    fn of(url: Url, stem: &str, fragment: Option<&str>) -> Result<Self, String> {
        let digest = match fragment.filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => {
                let hex = text
                    .strip_prefix("sha256=")
                    .or_else(|| text.strip_prefix("sha256:"))
                    .unwrap_or(text);
                let digest = format!("sha256:{hex}").parse();
                Some(digest.map_err(|_| {
                    format!("{text:?} is no digest: write #sha256= and 64 hexadecimal digits")
                })?)
            }
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(
                "the address has a user or password in it: set them in the configuration".into()
            );
        }
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '-' };
        let name: String = stem.chars().map(plain).take(80).collect();
        let name = name.trim_start_matches(['-', '.']);
        let name = ModelName::parse(name)
            .map_err(|_| format!("no name can be made of {stem:?}{SUFFIX}"))?;
        Ok(Self { url, digest, name })
    }

    /// What the model is called that is made of it.
    pub fn name(&self) -> &ModelName {
        &self.name
    }
}

/// What a server says of a file.
struct Found {
    total: u64,
    /// What changes when the file does.
    version: String,
}

impl Registry {
    /// Fetches a file of weights by its address, and makes a model of it that is called as the file is.
    ///
    /// # Errors
    /// Of the server or the store.
    pub async fn pull_file(
        &self,
        store: &Arc<Store>,
        file: &FileUrl,
        options: &Options,
        report: Report,
    ) -> Result<(), RegistryError> {
        let pulled = at_work(store, self.pull_found(store, file, options, &report)).await;
        forgetting(store, &file.name, pulled).await?;
        tell(&report, Progress::status("success")).await;
        Ok(())
    }

    async fn pull_found(
        &self,
        store: &Arc<Store>,
        file: &FileUrl,
        options: &Options,
        report: &Report,
    ) -> Result<(), RegistryError> {
        tell(report, Progress::status("pulling manifest")).await;
        let (asked, at) = (file.name.clone(), store.clone());
        let name = blocking(move || Ok(at.spelled(&asked)?)).await?;
        let endpoint = Endpoint::of_url(self.settings(), &file.url)?;
        let session = Arc::new(Session::new(self, name.clone(), endpoint, &self.limits(options))?);
        let found = session.find_file(&file.url).await?;
        // Without a digest, a file is known by where it is and by what the server says of its version.
        let known = format!("{}\n{}\n{}", file.url, found.version, found.total);
        let key = file.digest.unwrap_or_else(|| Digest::of(known.as_bytes()));
        let part = json!({
            "mediaType": "application/octet-stream",
            "digest": key.to_string(),
            "size": found.total,
            "annotations": {"org.opencontainers.image.title": format!("{}{SUFFIX}", name.model())},
        });
        let origin = Origin::new(&shown(&file.url), vec![part]);
        let (at, wanted) = (store.clone(), (origin.digest(), name.clone()));
        if !blocking(move || Ok(is_made_of(&at, &wanted.1, &wanted.0)?)).await? {
            let what = What {
                key,
                verified: file.digest.is_some(),
                total: found.total,
                url: file.url.clone(),
            };
            self.make_of_file(store, &session, name, what, origin, options, report).await?;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // one step of the above
    async fn make_of_file(
        &self,
        store: &Arc<Store>,
        session: &Arc<Session>,
        name: ModelName,
        what: What,
        origin: Origin,
        options: &Options,
        report: &Report,
    ) -> Result<(), RegistryError> {
        let total = what.total;
        note(store, &name, vec![(what.key, total)]).await?;
        let digest = self.fetch_told(session, store, &what, report).await?;
        tell(report, Progress::blob("pulling", what.key, total, total)).await;
        tell(report, Progress::status("verifying sha256 digest")).await;
        tell(report, Progress::status("writing manifest")).await;
        let (at, keep) = (store.clone(), options.keep_unused);
        blocking(move || {
            let mut made = Made::default();
            made.file(format!("{}{SUFFIX}", name.model()), digest)?;
            made.made_of(&at, &origin)?;
            made.finish(&at, &name, keep).map(drop)
        })
        .await
    }
}

impl Session {
    /// The size of a file, by asking for its first byte.
    async fn find_file(&self, url: &Url) -> Result<Found, RegistryError> {
        let ask = Ask::new(Method::GET, url.clone()).header(RANGE, "bytes=0-0");
        let response = self.send(&ask).await?;
        let wrong = |what: &str| RegistryError::Answer { url: shown(url), what: what.to_owned() };
        let total = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let text = response.headers().get(CONTENT_RANGE).and_then(|v| v.to_str().ok());
                text.and_then(content_range).and_then(|(_, _, total)| total)
            }
            StatusCode::OK => response.content_length(),
            StatusCode::NOT_FOUND => return Err(RegistryError::NotFound),
            _ => return Err(self.refusal(response).await),
        };
        let kind =
            response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        if kind.starts_with("text/html") {
            return Err(wrong("instead of the file comes a page for browsers"));
        }
        let total = total.filter(|total| *total > 0);
        let total = total.ok_or_else(|| wrong("the server does not say how long the file is"))?;
        Ok(Found { total, version: version(response.headers()) })
    }
}

fn version(headers: &HeaderMap) -> String {
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    format!("{}\n{}", text(ETAG), text(LAST_MODIFIED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_files_are_told_from_names_of_models() {
        let name = |text: &str| FileUrl::parse(text).map(|url| url.map(|url| url.name.to_string()));
        assert_eq!(name("llama3"), None);
        assert_eq!(name("https://h/n/m"), None);
        assert_eq!(name("h/n/m.gguf"), None);
        assert_eq!(
            name("https://h/a/Tiny%20Model-Q4.gguf?x=1"),
            Some(Ok("Tiny-20Model-Q4:latest".into()))
        );
        let hex = "ab".repeat(32);
        for fragment in [format!("#sha256={hex}"), format!("#sha256:{hex}"), format!("#{hex}")] {
            let url = FileUrl::parse(&format!("http://h:1/x.GGUF{fragment}")).unwrap().unwrap();
            assert_eq!(
                (url.url.as_str(), url.digest.unwrap().hex()),
                ("http://h:1/x.GGUF", hex.clone())
            );
        }
        assert!(name("https://h/x.gguf#sha256=12").unwrap().unwrap_err().contains("no digest"));
        assert!(name("https://u:p@h/x.gguf").unwrap().is_err());
        assert!(name("https://h/.gguf").unwrap().is_err());
    }
}
