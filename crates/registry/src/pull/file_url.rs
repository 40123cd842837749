//! Pulls a file by its URL: `https://host/folder/model.gguf`, optionally with the digest after `#`.

use std::sync::Arc;

use puna_store::{Digest, ModelName, NewModel, Store};
use reqwest::header::{CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, LAST_MODIFIED, RANGE};
use reqwest::{Method, StatusCode, Url};
use serde_json::json;

use crate::Registry;
use crate::blocking::{blocking, with_store_guard};
use crate::client::endpoint::Endpoint;
use crate::client::session::{RequestSpec, Session};
use crate::client::settings::{Options, Progress, Report, send_progress};
use crate::display::{authority, display_url};
use crate::download::source::{DownloadSpec, parse_content_range};
use crate::error::RegistryError;
use crate::packaging::{ModelBuilder, SourceManifest, is_created_from};
use crate::pull::{forget_if_permanent, record_pull};

/// Suffix of GGUF files.
const GGUF_SUFFIX: &str = ".gguf";

/// URL of a GGUF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileUrl {
    url: Url,
    digest: Option<Digest>,
    name: ModelName,
}

impl FileUrl {
    /// Parses `https://…/NAME.gguf`, optionally with `#sha256=…`. `None`: the text is something
    /// else, such as a model name.
    ///
    /// # Errors
    /// The text is a file's URL, but its digest is invalid, or its file name gives no valid model
    /// name.
    pub fn parse(text: &str) -> Option<Result<Self, String>> {
        if !text.starts_with("https://") && !text.starts_with("http://") {
            return None;
        }
        let mut url = Url::parse(text).ok()?;
        let file = url.path_segments()?.next_back()?.to_owned();
        let stem = file
            .strip_suffix(GGUF_SUFFIX)
            .or_else(|| file.strip_suffix(&GGUF_SUFFIX.to_uppercase()))?
            .to_owned();
        let fragment = url.fragment().map(str::to_owned);
        url.set_fragment(None);
        Some(Self::from_parts(url, &stem, fragment.as_deref()))
    }

    fn from_parts(url: Url, stem: &str, fragment: Option<&str>) -> Result<Self, String> {
        let digest = match fragment.filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => {
                let hex = text
                    .strip_prefix("sha256=")
                    .or_else(|| text.strip_prefix("sha256:"))
                    .unwrap_or(text);
                let digest = format!("sha256:{hex}").parse();
                Some(digest.map_err(|_| {
                    format!("invalid digest {text:?}: it must be sha256: and 64 hexadecimal digits")
                })?)
            }
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(
                "the URL has a user or a password: set them in the configuration instead".into()
            );
        }
        let allowed =
            |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '-' };
        let name: String = stem.chars().map(allowed).take(80).collect();
        let name = name.trim_start_matches(['-', '.']);
        let name = ModelName::parse(name)
            .map_err(|_| format!("cannot derive a model name from {stem:?}{GGUF_SUFFIX}"))?;
        Ok(Self { url, digest, name })
    }

    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    /// The name of the model that the file becomes.
    pub fn name(&self) -> &ModelName {
        &self.name
    }
}

/// Size and version of a file, from the server.
struct FileInfo {
    total: u64,
    /// `ETag` and `Last-Modified`.
    version: String,
}

impl Registry {
    /// Checks that the caller of a file's pull may reach its host.
    ///
    /// # Errors
    /// As for [`Registry::check_pull`].
    pub async fn check_file(&self, file: &FileUrl, options: &Options) -> Result<(), RegistryError> {
        self.check_url(file.url(), options).await
    }

    /// Downloads a GGUF file and creates a model with the name of the file.
    ///
    /// # Errors
    /// An error of the server or the store.
    pub async fn pull_file(
        &self,
        store: &Arc<Store>,
        file: &FileUrl,
        options: &Options,
        report: Report,
    ) -> Result<(), RegistryError> {
        self.check_file(file, options).await?;
        let pulled =
            with_store_guard(store, self.pull_file_model(store, file, options, &report)).await;
        let host = authority(&file.url);
        let pulled = forget_if_permanent(store, &file.name, pulled).await;
        pulled.map_err(|error| self.error_for_caller(error, options, &host))?;
        send_progress(&report, Progress::status("success")).await;
        Ok(())
    }

    async fn pull_file_model(
        &self,
        store: &Arc<Store>,
        file: &FileUrl,
        options: &Options,
        report: &Report,
    ) -> Result<(), RegistryError> {
        send_progress(report, Progress::status("pulling manifest")).await;
        let (requested_name, at) = (file.name.clone(), store.clone());
        let name = blocking(move || Ok(at.stored_spelling(&requested_name)?)).await?;
        let endpoint = Endpoint::from_url(self.settings(), &file.url)?;
        let session = Arc::new(Session::new(
            self,
            name.clone(),
            endpoint,
            options,
            &self.rate_limits(options),
        )?);
        let info = session.file_info(&file.url).await?;
        // Without a digest, URL, version and size identify the file.
        let identity = format!("{}\n{}\n{}", file.url, info.version, info.total);
        let key = file.digest.unwrap_or_else(|| Digest::of(identity.as_bytes()));
        let part = json!({
            "mediaType": "application/octet-stream",
            "digest": key.to_string(),
            "size": info.total,
            "annotations": {"org.opencontainers.image.title": format!("{}{GGUF_SUFFIX}", name.model())},
        });
        let origin = SourceManifest::new(&display_url(&file.url), vec![part]);
        let (at, source) = (store.clone(), (origin.digest(), name.clone()));
        if !blocking(move || Ok(is_created_from(&at, &source.1, &source.0)?)).await? {
            let private_to = match file.digest {
                Some(digest) => options.reusable_blobs([digest]).await?.private_to(&digest),
                None => None,
            };
            let spec = DownloadSpec {
                key,
                verified: file.digest.is_some(),
                total: info.total,
                url: file.url.clone(),
                private_to,
            };
            self.create_from_file(store, &session, name, spec, origin, options, report).await?;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // one step of `pull_file_model`
    async fn create_from_file(
        &self,
        store: &Arc<Store>,
        session: &Arc<Session>,
        name: ModelName,
        spec: DownloadSpec,
        origin: SourceManifest,
        options: &Options,
        report: &Report,
    ) -> Result<(), RegistryError> {
        let total = spec.total;
        let new = NewModel::pulled(&name, vec![(spec.key, total)]);
        record_pull(store, new, options).await?;
        let digest = self.fetch_with_progress(session, store, &spec, report).await?;
        send_progress(report, Progress::blob("pulling", spec.key, total, total)).await;
        send_progress(report, Progress::status("verifying sha256 digest")).await;
        send_progress(report, Progress::status("writing manifest")).await;
        let (at, keep) = (store.clone(), options.keep_unused);
        let executor = self.settings().executor.clone();
        blocking(move || {
            let mut builder = ModelBuilder::default();
            builder.add_file(format!("{}{GGUF_SUFFIX}", name.model()), digest)?;
            builder.set_source(&at, &origin)?;
            builder.create(&at, &name, keep, executor.as_deref()).map(drop)
        })
        .await
    }
}

impl Session {
    /// The size and version of a file, from the response to a request for its first byte.
    async fn file_info(&self, url: &Url) -> Result<FileInfo, RegistryError> {
        let ask = RequestSpec::new(Method::GET, url.clone()).header(RANGE, "bytes=0-0");
        let response = self.send(&ask).await?;
        let invalid = |what: &str| RegistryError::InvalidResponse {
            url: display_url(url),
            what: what.to_owned(),
        };
        let total = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let text = response.headers().get(CONTENT_RANGE).and_then(|v| v.to_str().ok());
                text.and_then(parse_content_range).and_then(|(_, _, total)| total)
            }
            StatusCode::OK => response.content_length(),
            StatusCode::NOT_FOUND => return Err(RegistryError::NotFound),
            _ => return Err(self.error_from_response(response).await),
        };
        let kind =
            response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        if kind.starts_with("text/html") {
            return Err(invalid("the response is a web page instead of the file"));
        }
        let total = total.filter(|total| *total > 0);
        let total =
            total.ok_or_else(|| invalid("the response does not state the size of the file"))?;
        Ok(FileInfo { total, version: version_text(response.headers()) })
    }
}

fn version_text(headers: &HeaderMap) -> String {
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    format!("{}\n{}", text(ETAG), text(LAST_MODIFIED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_urls_are_distinguished_from_model_names() {
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
        assert!(
            name("https://h/x.gguf#sha256=12").unwrap().unwrap_err().contains("invalid digest")
        );
        assert!(name("https://u:p@h/x.gguf").unwrap().is_err());
        assert!(name("https://h/.gguf").unwrap().is_err());
    }
}
