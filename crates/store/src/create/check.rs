//! Checks of a create request before any work.

use puna_gguf::escape_for_message;
use serde_json::{Map, Value};

use super::request::{CreateHooks, CreateRequest};
use crate::builtin::{BuiltInFormat, PARSERS, RENDERERS};
use crate::error::StoreError;
use crate::manifest::Config;

/// Rejects options that a remote model cannot have.
pub(super) fn for_remote(request: &CreateRequest) -> Result<(), StoreError> {
    if !request.draft_files.is_empty() {
        return Err(StoreError::DraftRemote);
    }
    let given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    let asked = [
        ("files", request.files.as_ref().is_some_and(|files| !files.is_empty())),
        ("adapters", !request.adapters.is_empty()),
        ("quantize", given(&request.quantize)),
        ("imatrix", given(&request.imatrix)),
        ("renderer", given(&request.renderer)),
        ("parser", given(&request.parser)),
    ];
    let asked: Vec<&str> =
        asked.into_iter().filter(|(_, is_asked)| *is_asked).map(|(name, _)| name).collect();
    if asked.is_empty() {
        return Ok(());
    }
    let reason = format!("a remote model cannot have {}", asked.join(" and "));
    Err(StoreError::BadRemote(reason))
}

pub(super) fn check(request: &CreateRequest, hooks: &CreateHooks<'_>) -> Result<(), StoreError> {
    let files = request.files.iter().flatten().chain(&request.adapters).chain(&request.draft_files);
    for (name, digest) in files {
        if !is_relative(name) {
            return Err(StoreError::PathNotRelative);
        }
        if digest.is_empty() {
            return Err(crate::digest::DigestError.into());
        }
    }
    if request.draft_quantize.as_ref().is_some_and(|q| !q.is_empty())
        && request.draft_files.is_empty()
    {
        return Err(StoreError::DraftQuantize);
    }
    // This check comes before the check of the name.
    let names_host = request.remote_host.as_ref().is_some_and(|host| !host.is_empty());
    if !request.draft_files.is_empty() && names_host {
        return Err(StoreError::DraftRemote);
    }
    let from = request.from.as_deref().filter(|from| !from.is_empty());
    if request.remote()?.is_some() {
        for_remote(request)?;
    }
    match (from, &request.files) {
        (None, None) => return Err(StoreError::NoSource),
        (None, Some(files)) if files.is_empty() => return Err(StoreError::UnknownType),
        _ => {}
    }
    if let (Some(template), Some(check)) = (&request.template, hooks.check_template) {
        check(template).map_err(StoreError::Template)?;
    }
    let kind = |kind: &Option<String>| kind.clone().filter(|kind| !kind.is_empty());
    if request.imatrix.is_some() && kind(&request.quantize).is_none() {
        return Err(StoreError::ImatrixWithoutQuantize);
    }
    for (kind, has_imatrix) in [
        (kind(&request.quantize), request.imatrix.is_some()),
        (kind(&request.draft_quantize), false),
    ] {
        kind.map(|kind| super::files::quantize_type(&kind, has_imatrix)).transpose()?;
    }
    request.requires.as_deref().map_or(Ok(()), requires)?;
    if let (Some(wanted), Some(ours)) = (&request.requires, hooks.version)
        && core(wanted) > core(ours)
    {
        return Err(StoreError::RequiresNewerVersion { wanted: escape_for_message(wanted), ours });
    }
    check_known_name("renderer", request.renderer.as_deref(), RENDERERS)?;
    check_known_name("parser", request.parser.as_deref(), PARSERS)?;
    apply_info(&mut Config::default(), &request.info)
}

/// Rejects an invalid version.
pub(super) fn requires(version: &str) -> Result<(), StoreError> {
    match version.is_empty() || is_semver(version) {
        true => Ok(()),
        false => Err(StoreError::Requires),
    }
}

fn check_known_name(
    what: &'static str,
    name: Option<&str>,
    known: &[BuiltInFormat],
) -> Result<(), StoreError> {
    let names: Vec<&str> = known.iter().map(|one| one.name).collect();
    match name {
        Some(name) if !name.is_empty() && !names.contains(&name) => {
            Err(StoreError::UnknownBuiltIn {
                what,
                name: escape_for_message(name),
                known: names.join(", "),
            })
        }
        _ => Ok(()),
    }
}

/// Whether a path consists of plain names between single slashes.
fn is_relative(path: &str) -> bool {
    !path.is_empty()
        && !path.contains(['\\', '\0'])
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Whether a text is a version such as `1.2.3`, with an optional leading `v`, pre-release and build
/// data.
fn is_semver(text: &str) -> bool {
    let text = text.strip_prefix('v').unwrap_or(text);
    let core = text.split(['-', '+']).next().unwrap_or_default();
    let number = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|c| c.is_ascii_digit())
            && (part == "0" || !part.starts_with('0'))
    };
    core.split('.').count() == 3 && core.split('.').all(number)
}

/// The three numbers of a valid version. Numbers beyond `u64` become the largest one.
fn core(version: &str) -> Vec<u64> {
    let version = version.strip_prefix('v').unwrap_or(version);
    let core = version.split(['-', '+']).next().unwrap_or_default();
    core.split('.').map(|part| part.parse().unwrap_or(u64::MAX)).collect()
}

/// Sets the fields of a config that the request's `info` contains.
pub(super) fn apply_info(config: &mut Config, info: &Map<String, Value>) -> Result<(), StoreError> {
    for (field, value) in info {
        let bad = |want| StoreError::InfoField { field: escape_for_message(field), want };
        let text = || value.as_str().map(str::to_owned).ok_or(bad("a string"));
        let number = || {
            let number = value.as_f64().ok_or(bad("a number"))?;
            if number < 0.0 || number.fract() != 0.0 {
                Err(bad("a non-negative integer"))
            } else {
                Ok(number as u64)
            }
        };
        match field.as_str() {
            "capabilities" => {
                let items = value.as_array().ok_or(bad("a list of strings"))?;
                let names = items.iter().map(|item| item.as_str().map(str::to_owned));
                config.capabilities =
                    names.collect::<Option<_>>().ok_or(bad("a list of strings"))?;
            }
            "model_family" => {
                config.model_family = text()?;
                config.model_families = Some(vec![config.model_family.clone()]);
            }
            "base_name" => config.base_name = text()?,
            "quantization_level" => config.file_type = text()?,
            "parameter_size" => config.model_type = text()?,
            "context_length" => config.context_length = number()?,
            "embedding_length" => config.embedding_length = number()?,
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_stay_within_their_folder() {
        assert!(is_relative("a.gguf") && is_relative("1_Pooling/config.json"));
        for bad in ["", "/abs.gguf", "../x", "a/../b", "a//b", "./a", "a/", "C:\\x", "a\0"] {
            assert!(!is_relative(bad), "{bad:?}");
        }
    }

    #[test]
    fn versions_have_three_numbers() {
        assert!(is_semver("0.14.0") && is_semver("v1.2.3") && is_semver("1.2.3-rc1+5"));
        assert!(!is_semver("1.2") && !is_semver("1.02.3") && !is_semver("x.y.z") && !is_semver(""));
    }

    #[test]
    fn overrides_must_have_their_type() {
        let of = |field: &str, value: Value| {
            let mut config = Config::default();
            apply_info(&mut config, &[(field.to_owned(), value)].into_iter().collect())
                .map(|()| config)
        };
        assert_eq!(of("context_length", 5.into()).unwrap().context_length, 5);
        let text = |field, value| of(field, value).unwrap_err().to_string();
        assert_eq!(
            text("context_length", "5".into()),
            "info field \"context_length\" must be a number"
        );
        assert_eq!(
            text("context_length", (-5).into()),
            "info field \"context_length\" must be a non-negative integer"
        );
        assert_eq!(text("model_family", 5.into()), "info field \"model_family\" must be a string");
    }
}
