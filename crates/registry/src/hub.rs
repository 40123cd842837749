//! Models of Hugging Face by its listing of files. The client uses it if the registry API does not
//! serve a model, such as a model in several files.
//!
//! ```text
//! GET /api/models/USER/REPO/refs
//!     {"branches":[{"name":"main","targetCommit":"…"}]}
//! GET /api/models/USER/REPO/tree/COMMIT?recursive=true
//!     [{"type":"file","path":"…","size":…,"lfs":{"oid":SHA-256,"size":…}}]
//! GET /USER/REPO/resolve/COMMIT/PATH
//!     the file, after redirects
//! ```
//!
//! The SHA-256 of a large file equals its blob digest. So the download is verified, and models
//! share blobs.

use std::fmt;

use puna_store::{DEFAULT_TAG, Digest, PartName};
use reqwest::header::LINK;
use reqwest::{Method, Response, StatusCode, Url};
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::json;

use crate::client::session::{RequestSpec, Session};
use crate::error::{ListingProblem, ManifestProblem, RegistryError};
use crate::packaging::{SourceManifest, check_name};

/// Largest page of a listing, in bytes.
const MAX_PAGE_BYTES: usize = 16 << 20;
/// Largest number of pages of a listing.
const MAX_PAGES: usize = 64;
/// Largest number of GGUF files in a listing.
const MAX_FILES: usize = 20_000;
/// Longest path of a file, in bytes.
const MAX_PATH_BYTES: usize = 1024;
/// Largest number of files of a split model.
const MAX_SPLIT_FILES: u32 = 999;
/// Quantizations to try, in order, if the tag names none.
const DEFAULT_QUANTIZATIONS: [&str; 2] = ["Q4_K_M", "Q8_0"];
/// Parts of names of GGUF files that are not models themselves.
const NON_MODEL_NAMES: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];
/// Largest number of files that a message names.
const MAX_NAMED: usize = 24;

/// File of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HubFile {
    pub(crate) path: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
}

#[derive(Deserialize)]
struct Refs {
    #[serde(default)]
    branches: Vec<Branch>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Branch {
    name: String,
    target_commit: String,
}

#[derive(Deserialize)]
struct TreeEntry {
    #[serde(rename = "type", default)]
    kind: String,
    path: String,
    #[serde(default)]
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// Files of a model, and their commit.
pub(crate) struct HubModel {
    commit: String,
    pub(crate) files: Vec<HubFile>,
}

impl HubModel {
    /// Download URL of a file.
    pub(crate) fn url(&self, session: &Session, file: &HubFile) -> Url {
        let mut url = session.endpoint().root.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.clear().push(session.name().namespace()).push(session.name().model());
            path.push("resolve").push(&self.commit).extend(file.path.split('/'));
        }
        url
    }

    /// The manifest that records what the stored model is made of. A later pull compares its
    /// digest.
    pub(crate) fn origin(&self, session: &Session) -> SourceManifest {
        let name = session.name();
        let source = format!("{}/{}/{}", session.host(), name.namespace(), name.model());
        let files = self.files.iter().map(|file| {
            json!({
                "mediaType": "application/octet-stream",
                "digest": file.digest.to_string(),
                "size": file.size,
                "annotations": {"org.opencontainers.image.title": file.path},
            })
        });
        SourceManifest::new(&source, files.collect())
    }
}

impl Session {
    /// Reads the listing and selects the files of the session's model.
    pub(crate) async fn hub_model(&self) -> Result<HubModel, RegistryError> {
        let name = self.name();
        let api = |rest: &[&str]| {
            let mut url = self.endpoint().root.clone();
            if let Ok(mut path) = url.path_segments_mut() {
                path.clear().extend(["api", "models", name.namespace(), name.model()]).extend(rest);
            }
            url
        };
        let refs: Refs = self.parse_json(&self.get_listing(api(&["refs"])).await?.1)?;
        let main =
            refs.branches.iter().find(|branch| branch.name == "main").or(refs.branches.first());
        let commit = main.map(|branch| branch.target_commit.clone());
        let is_commit =
            |text: &String| !text.is_empty() && text.bytes().all(|c| c.is_ascii_hexdigit());
        let commit =
            commit.filter(is_commit).ok_or_else(|| listing_error(ListingProblem::NoCommit))?;
        let mut next = api(&["tree", &commit]);
        next.query_pairs_mut().append_pair("recursive", "true");
        let mut files: Vec<HubFile> = Vec::new();
        for _ in 0..MAX_PAGES {
            let (link, bytes) = self.get_listing(next.clone()).await?;
            files.extend(self.parse_json::<TreePage>(&bytes)?.0);
            if files.len() > MAX_FILES {
                return Err(listing_error(ListingProblem::TooManyFiles { max: MAX_FILES }));
            }
            let Some(link) = link else {
                files.sort_by(|a, b| a.path.cmp(&b.path));
                return Ok(HubModel { commit, files: select_files(&files, self.name().tag())? });
            };
            next = self.next_hop(&next, &link)?;
            if next.origin() != self.endpoint().root.origin() {
                return Err(listing_error(ListingProblem::OtherHost));
            }
        }
        Err(listing_error(ListingProblem::TooManyPages))
    }

    /// Gets a page of a listing. Returns the link to the next page, and the body.
    async fn get_listing(&self, url: Url) -> Result<(Option<String>, bytes::Bytes), RegistryError> {
        let response = self.send(&RequestSpec::new(Method::GET, url)).await?;
        match response.status() {
            StatusCode::NOT_FOUND => return Err(RegistryError::NotFound),
            status if status.is_success() => {}
            _ => return Err(self.error_from_response(response).await),
        }
        let link = next_page(&response);
        Ok((link, self.read(response, MAX_PAGE_BYTES).await?))
    }

    fn parse_json<T: serde::de::DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, RegistryError> {
        serde_json::from_slice(bytes)
            .map_err(|e| listing_error(ListingProblem::Json { reason: e.to_string() }))
    }
}

fn listing_error(problem: ListingProblem) -> RegistryError {
    ManifestProblem::Listing(problem).into()
}

/// Reads the link to the next page: `<address>; rel="next"`.
fn next_page(response: &Response) -> Option<String> {
    let text = response.headers().get(LINK)?.to_str().ok()?;
    let (address, rest) = text.trim().strip_prefix('<')?.split_once('>')?;
    rest.contains("rel=\"next\"").then(|| address.to_owned())
}

/// GGUF files of a page. Other entries are dropped while parsing, since a repository may have a
/// million files.
struct TreePage(Vec<HubFile>);

impl<'de> Deserialize<'de> for TreePage {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(TreePageVisitor)
    }
}

struct TreePageVisitor;

impl<'de> Visitor<'de> for TreePageVisitor {
    type Value = TreePage;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of files")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<TreePage, A::Error> {
        let mut files = Vec::new();
        while let Some(entry) = entries.next_element::<TreeEntry>()? {
            // Keeps one file more than allowed, so that the caller detects the excess.
            files.extend(model_file(entry).filter(|_| files.len() <= MAX_FILES));
        }
        Ok(TreePage(files))
    }
}

/// The entry as a file of a model: a large GGUF file with a valid name.
fn model_file(entry: TreeEntry) -> Option<HubFile> {
    let lfs = entry.lfs.filter(|_| entry.kind == "file")?;
    let is_wanted =
        entry.path.len() <= MAX_PATH_BYTES && entry.path.to_ascii_lowercase().ends_with(".gguf");
    check_name(&entry.path).ok().filter(|name| is_wanted && *name == entry.path)?;
    Some(HubFile {
        digest: lfs.oid.parse().or_else(|_| format!("sha256:{}", lfs.oid).parse()).ok()?,
        path: entry.path,
        size: lfs.size,
    })
}

/// Selects the files for a tag: all parts of the model, and the nearest multimodal projector.
fn select_files(files: &[HubFile], tag: &str) -> Result<Vec<HubFile>, RegistryError> {
    let models: Vec<&HubFile> = files.iter().filter(|file| is_model(&file.path)).collect();
    let by_tag = |tag: &str| models.iter().find(|file| has_tag(&file.path, tag)).copied();
    let model = match tag {
        DEFAULT_TAG => {
            DEFAULT_QUANTIZATIONS.iter().find_map(|tag| by_tag(tag)).or(models.first().copied())
        }
        tag => by_tag(tag),
    };
    let Some(model) = model else {
        let names: Vec<&str> =
            models.iter().take(MAX_NAMED).map(|file| file_name(&file.path)).collect();
        return Err(match names.as_slice() {
            [] => ManifestProblem::NoGgufFiles.into(),
            names => {
                let (tag, names) = (tag.to_owned(), names.join(", "));
                ManifestProblem::NoFileForTag { tag, names }.into()
            }
        });
    };
    let mut selected = split_files(files, model)?;
    selected.extend(projector(files, model, tag).cloned());
    Ok(selected)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn is_model(path: &str) -> bool {
    let name = file_name(path).to_ascii_lowercase();
    let is_first = PartName::parse(&name).is_none_or(|part| part.number == 1);
    name.ends_with(".gguf") && is_first && !NON_MODEL_NAMES.iter().any(|other| name.contains(other))
}

/// Whether the file name contains the tag before `.` or `-`, or file or folder equal the tag.
fn has_tag(path: &str, tag: &str) -> bool {
    let (name, tag) = (file_name(path).to_ascii_lowercase(), tag.to_ascii_lowercase());
    let behind = |(at, _): (usize, &str)| name[at + tag.len()..].starts_with(['.', '-']);
    name == tag || name.match_indices(&tag).any(behind) || folder(path).eq_ignore_ascii_case(&tag)
}

/// All parts of a split model, or the single file.
fn split_files(files: &[HubFile], first: &HubFile) -> Result<Vec<HubFile>, RegistryError> {
    let Some(name) = PartName::parse(&first.path) else { return Ok(vec![first.clone()]) };
    if name.count > MAX_SPLIT_FILES {
        let (path, count) = (first.path.clone(), name.count);
        return Err(listing_error(ListingProblem::FileCount { path, count }));
    }
    let part = |number: u32| {
        let path = name.other(number);
        let missing = || listing_error(ListingProblem::MissingPart { path: path.clone() });
        files.iter().find(|file| file.path == path).cloned().ok_or_else(missing)
    };
    (1..=name.count).map(part).collect()
}

/// The projector nearest to a model: in its folder or a parent folder, preferably with the same
/// tag.
fn projector<'a>(files: &'a [HubFile], model: &HubFile, tag: &str) -> Option<&'a HubFile> {
    let of_model = folder(&model.path);
    let is_near = |file: &&HubFile| {
        let folder = folder(&file.path);
        let above =
            folder.is_empty() || of_model == folder || of_model.starts_with(&format!("{folder}/"));
        above
            && file.path.ends_with(".gguf")
            && file_name(&file.path).to_ascii_lowercase().contains("mmproj")
    };
    let rank = |file: &&HubFile| {
        let precise = ["f16", "bf16"].iter().any(|kind| has_tag(&file.path, kind));
        (folder(&file.path).len(), tag != DEFAULT_TAG && has_tag(&file.path, tag), precise)
    };
    files.iter().filter(is_near).max_by_key(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(paths: &[&str], tag: &str) -> Result<Vec<String>, String> {
        let file = |path: &&str| HubFile {
            path: (*path).to_owned(),
            digest: Digest::of(path.as_bytes()),
            size: 1,
        };
        let mut files: Vec<HubFile> = paths.iter().map(file).collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let selected = select_files(&files, tag).map_err(|e| e.to_string())?;
        Ok(selected.into_iter().map(|file| file.path).collect())
    }

    #[test]
    fn a_tag_selects_its_file_and_all_parts() {
        let few = ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-imatrix.gguf", "README.md"];
        let of = |tag: &str| choice(&few, tag).unwrap();
        assert_eq!(of("latest"), ["m-Q4_K_M.gguf"]);
        assert_eq!(of("q8_0"), ["m-Q8_0.gguf"]);
        assert_eq!(of("m-Q4_K_S.gguf"), ["m-Q4_K_S.gguf"]);
        let text = choice(&few, "IQ1_S").unwrap_err();
        assert!(
            text.contains("no file for the tag \"IQ1_S\"") && text.contains("m-Q8_0.gguf"),
            "{text}"
        );
        assert!(choice(&["a.safetensors"], "latest").unwrap_err().contains("no GGUF files"));
        let split = [
            "Q4/m-Q4_0-00001-of-00002.gguf",
            "Q4/m-Q4_0-00002-of-00002.gguf",
            "m-F16-00001-of-00002.gguf",
        ];
        assert_eq!(choice(&split, "Q4_0").unwrap(), split[..2]);
        assert_eq!(choice(&split, "Q4").unwrap(), split[..2], "by folder");
        assert!(
            choice(&split, "F16").unwrap_err().contains("m-F16-00002-of-00002.gguf is missing")
        );
        assert!(
            choice(&["m-00001-of-99999.gguf"], "latest")
                .unwrap_err()
                .contains("one of 99999 files")
        );
    }

    #[test]
    fn only_gguf_files_of_a_listing_are_kept() {
        let page = |n: usize, path: &str| {
            let entry = format!(
                r#"{{"type":"file","path":"{path}","lfs":{{"oid":"{}","size":9}},"other":[1,{{}}]}}"#,
                Digest::of(path.as_bytes()).hex()
            );
            let text = format!("[{}]", vec![entry; n].join(","));
            serde_json::from_str::<TreePage>(&text).unwrap().0.len()
        };
        assert_eq!(page(10, "a/m-Q4_K_M.GGUF"), 10);
        for other in ["model.safetensors", "data/0001.parquet", "../m.gguf"] {
            assert_eq!(page(1000, other), 0, "{other}");
        }
        assert_eq!(page(1, &format!("{}.gguf", "x".repeat(MAX_PATH_BYTES))), 0);
        assert_eq!(
            page(MAX_FILES + 100, "m.gguf"),
            MAX_FILES + 1,
            "no more than show that they are too many"
        );
    }

    #[test]
    fn the_nearest_projector_is_selected() {
        let files =
            ["m-Q4_K_M.gguf", "mmproj-F16.gguf", "mmproj-Q8_0.gguf", "other/mmproj-F16.gguf"];
        assert_eq!(choice(&files, "latest").unwrap(), ["m-Q4_K_M.gguf", "mmproj-F16.gguf"]);
        let files = ["q/m-Q8_0.gguf", "mmproj-F16.gguf", "q/mmproj-Q8_0.gguf"];
        assert_eq!(choice(&files, "Q8_0").unwrap(), ["q/m-Q8_0.gguf", "q/mmproj-Q8_0.gguf"]);
    }
}
