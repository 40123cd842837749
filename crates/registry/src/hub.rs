//! Models of the hub by its listing of files, for what its registry does not serve: models in several files.
//!
//! ```text
//! GET /api/models/USER/REPO/refs                             {"branches":[{"name":"main","targetCommit":"…"}]}
//! GET /api/models/USER/REPO/tree/COMMIT?recursive=true       [{"type":"file","path":"…","size":…,"lfs":{"oid":SHA-256,"size":…}}]
//! GET /USER/REPO/resolve/COMMIT/PATH                         the file, after redirects
//! ```
//!
//! The SHA-256 of a large file is the digest of its blob, so that everything is verified, and shared with other models.

use std::fmt;

use puna_store::{DEFAULT_TAG, Digest, PartName};
use reqwest::header::LINK;
use reqwest::{Method, Response, StatusCode, Url};
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::json;

use crate::error::RegistryError;
use crate::http::{Ask, Session};
use crate::packaging::{Origin, check_name};

/// Bytes of one page of a listing at most.
const MAX_PAGE: usize = 16 << 20;
/// Pages of a listing at most.
const MAX_PAGES: usize = 64;
/// Files of weights in a listing at most.
const MAX_FILES: usize = 20_000;
/// Bytes of a file's path at most.
const MAX_PATH: usize = 1024;
/// Files of one model at most.
const MAX_PARTS: u32 = 999;
/// What is tried where no quantization is asked for.
const PREFERRED: [&str; 2] = ["Q4_K_M", "Q8_0"];
/// In names of files that are no models.
const NO_MODELS: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];
/// Quantizations that a message names.
const NAMED: usize = 24;

/// A file of the model.
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
struct Listed {
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

/// The files of a model, and the commit that they are of.
pub(crate) struct HubModel {
    commit: String,
    pub(crate) files: Vec<HubFile>,
}

impl HubModel {
    /// Where a file is.
    pub(crate) fn url(&self, session: &Session, file: &HubFile) -> Url {
        let mut url = session.endpoint().root.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.clear().push(session.name().namespace()).push(session.name().model());
            path.push("resolve").push(&self.commit).extend(file.path.split('/'));
        }
        url
    }

    /// What the model is made of, by which it is known again.
    pub(crate) fn origin(&self, session: &Session) -> Origin {
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
        Origin::new(&source, files.collect())
    }
}

impl Session {
    /// The model by the hub's listing.
    pub(crate) async fn hub_model(&self) -> Result<HubModel, RegistryError> {
        let name = self.name();
        let api = |rest: &[&str]| {
            let mut url = self.endpoint().root.clone();
            if let Ok(mut path) = url.path_segments_mut() {
                path.clear().extend(["api", "models", name.namespace(), name.model()]).extend(rest);
            }
            url
        };
        let refs: Refs = self.json(&self.get_listing(api(&["refs"])).await?.1)?;
        let main =
            refs.branches.iter().find(|branch| branch.name == "main").or(refs.branches.first());
        let commit = main.map(|branch| branch.target_commit.clone());
        let is_commit =
            |text: &String| !text.is_empty() && text.bytes().all(|c| c.is_ascii_hexdigit());
        let commit = commit.filter(is_commit).ok_or_else(|| wrong("it names no commit"))?;
        let mut next = api(&["tree", &commit]);
        next.query_pairs_mut().append_pair("recursive", "true");
        let mut files: Vec<HubFile> = Vec::new();
        for _ in 0..MAX_PAGES {
            let (link, bytes) = self.get_listing(next.clone()).await?;
            files.extend(self.json::<Page>(&bytes)?.0);
            if files.len() > MAX_FILES {
                return Err(wrong(&format!("it has more than {MAX_FILES} files of weights")));
            }
            let Some(link) = link else {
                files.sort_by(|a, b| a.path.cmp(&b.path));
                return Ok(HubModel { commit, files: choose(&files, self.name().tag())? });
            };
            next = self.next_hop(&next, &link)?;
            if next.origin() != self.endpoint().root.origin() {
                return Err(wrong("it goes on at another host"));
            }
        }
        Err(wrong("it has too many pages"))
    }

    /// A page, and where the next one is.
    async fn get_listing(&self, url: Url) -> Result<(Option<String>, bytes::Bytes), RegistryError> {
        let response = self.send(&Ask::new(Method::GET, url)).await?;
        match response.status() {
            StatusCode::NOT_FOUND => return Err(RegistryError::NotFound),
            status if status.is_success() => {}
            _ => return Err(self.refusal(response).await),
        }
        let link = next_page(&response);
        Ok((link, self.read(response, MAX_PAGE).await?))
    }

    fn json<T: serde::de::DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, RegistryError> {
        serde_json::from_slice(bytes).map_err(|e| wrong(&format!("it is not as documented: {e}")))
    }
}

fn wrong(what: &str) -> RegistryError {
    RegistryError::NotAManifest(format!("the listing of the hub cannot be used: {what}"))
}

/// `<address>; rel="next"`.
fn next_page(response: &Response) -> Option<String> {
    let text = response.headers().get(LINK)?.to_str().ok()?;
    let (address, rest) = text.trim().strip_prefix('<')?.split_once('>')?;
    rest.contains("rel=\"next\"").then(|| address.to_owned())
}

/// What a page of a listing has that a model may be made of. The rest of it is never kept: there are repositories of a million files.
struct Page(Vec<HubFile>);

impl<'de> Deserialize<'de> for Page {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Entries)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Page;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of files")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Page, A::Error> {
        let mut files = Vec::new();
        while let Some(entry) = entries.next_element::<Listed>()? {
            // One more than there may be, so that it is seen that there are too many.
            files.extend(file(entry).filter(|_| files.len() <= MAX_FILES));
        }
        Ok(Page(files))
    }
}

/// A large file of weights with a good name.
fn file(listed: Listed) -> Option<HubFile> {
    let lfs = listed.lfs.filter(|_| listed.kind == "file")?;
    let is_wanted =
        listed.path.len() <= MAX_PATH && listed.path.to_ascii_lowercase().ends_with(".gguf");
    check_name(&listed.path).ok().filter(|name| is_wanted && *name == listed.path)?;
    Some(HubFile {
        digest: lfs.oid.parse().or_else(|_| format!("sha256:{}", lfs.oid).parse()).ok()?,
        path: listed.path,
        size: lfs.size,
    })
}

/// The files of the model that a tag asks for: its parts, and the projector of images or sound that is nearest to it.
fn choose(files: &[HubFile], tag: &str) -> Result<Vec<HubFile>, RegistryError> {
    let models: Vec<&HubFile> = files.iter().filter(|file| is_model(&file.path)).collect();
    let by_tag = |tag: &str| models.iter().find(|file| has_tag(&file.path, tag)).copied();
    let found = match tag {
        DEFAULT_TAG => PREFERRED.iter().find_map(|tag| by_tag(tag)).or(models.first().copied()),
        tag => by_tag(tag),
    };
    let Some(found) = found else {
        let names: Vec<&str> =
            models.iter().take(NAMED).map(|file| file_name(&file.path)).collect();
        return Err(RegistryError::NotAManifest(match names.as_slice() {
            [] => "the repository has no GGUF files: `create` makes a model of safetensors".into(),
            names => format!(
                "the repository has no file for the tag {tag:?}; it has {}",
                names.join(", ")
            ),
        }));
    };
    let mut chosen = parts(files, found)?;
    chosen.extend(projector(files, found, tag).cloned());
    Ok(chosen)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn is_model(path: &str) -> bool {
    let name = file_name(path).to_ascii_lowercase();
    let is_first = PartName::of(&name).is_none_or(|part| part.number == 1);
    name.ends_with(".gguf") && is_first && !NO_MODELS.iter().any(|other| name.contains(other))
}

/// Whether a file has a tag in its name, with a point or a dash behind it, or is called so.
fn has_tag(path: &str, tag: &str) -> bool {
    let (name, tag) = (file_name(path).to_ascii_lowercase(), tag.to_ascii_lowercase());
    let behind = |(at, _): (usize, &str)| name[at + tag.len()..].starts_with(['.', '-']);
    name == tag || name.match_indices(&tag).any(behind) || folder(path).eq_ignore_ascii_case(&tag)
}

/// All parts of a file, which may be the only one.
fn parts(files: &[HubFile], first: &HubFile) -> Result<Vec<HubFile>, RegistryError> {
    let Some(name) = PartName::of(&first.path) else { return Ok(vec![first.clone()]) };
    if name.count > MAX_PARTS {
        return Err(wrong(&format!("{} is one of {} files", first.path, name.count)));
    }
    let part = |number: u32| {
        let path = name.other(number);
        let missing = || wrong(&format!("there is no {path}"));
        files.iter().find(|file| file.path == path).cloned().ok_or_else(missing)
    };
    (1..=name.count).map(part).collect()
}

/// The projector that is nearest to a model: in its folder or one above, with its tag if there is such a one.
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
        let chosen = choose(&files, tag).map_err(|e| e.to_string())?;
        Ok(chosen.into_iter().map(|file| file.path).collect())
    }

    #[test]
    fn a_tag_finds_its_file_and_all_of_its_parts() {
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
        assert!(choice(&split, "F16").unwrap_err().contains("no m-F16-00002-of-00002.gguf"));
        assert!(
            choice(&["m-00001-of-99999.gguf"], "latest")
                .unwrap_err()
                .contains("one of 99999 files")
        );
    }

    #[test]
    fn of_a_listing_only_files_of_weights_are_kept() {
        let page = |n: usize, path: &str| {
            let entry = format!(
                r#"{{"type":"file","path":"{path}","lfs":{{"oid":"{}","size":9}},"other":[1,{{}}]}}"#,
                Digest::of(path.as_bytes()).hex()
            );
            let text = format!("[{}]", vec![entry; n].join(","));
            serde_json::from_str::<Page>(&text).unwrap().0.len()
        };
        assert_eq!(page(10, "a/m-Q4_K_M.GGUF"), 10);
        for other in ["model.safetensors", "data/0001.parquet", "../m.gguf"] {
            assert_eq!(page(1000, other), 0, "{other}");
        }
        assert_eq!(page(1, &format!("{}.gguf", "x".repeat(MAX_PATH))), 0);
        assert_eq!(
            page(MAX_FILES + 100, "m.gguf"),
            MAX_FILES + 1,
            "no more than show that they are too many"
        );
    }

    #[test]
    fn the_nearest_projector_comes_along() {
        let files =
            ["m-Q4_K_M.gguf", "mmproj-F16.gguf", "mmproj-Q8_0.gguf", "other/mmproj-F16.gguf"];
        assert_eq!(choice(&files, "latest").unwrap(), ["m-Q4_K_M.gguf", "mmproj-F16.gguf"]);
        let files = ["q/m-Q8_0.gguf", "mmproj-F16.gguf", "q/mmproj-Q8_0.gguf"];
        assert_eq!(choice(&files, "Q8_0").unwrap(), ["q/m-Q8_0.gguf", "q/mmproj-Q8_0.gguf"]);
    }
}
