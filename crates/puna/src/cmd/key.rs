//! `puna key`: manages API keys.

use anyhow::{Context, Result};
use puna_server::Config;
use puna_server::auth::{Key, KeyError, KeyFile, Scope, check_key_name};
use serde_json::json;

use crate::cli::{KeyAddArgs, KeyCommand};
use crate::{format, out, usage};

pub fn run(command: &KeyCommand) -> Result<()> {
    let path = Config::from_env()?.keys;
    match command {
        KeyCommand::Add(args) => {
            let scopes = scopes(args)?;
            check(args)?;
            let public = args.public_key.as_deref().map(parse_public_key).transpose()?;
            let secret = KeyFile::change(&path, |file| {
                let secret = file.add(&args.name, scopes)?;
                if let Some(key) = file.keys.last_mut() {
                    (key.requests_per_minute, key.concurrent) =
                        (args.requests_per_minute, args.concurrent);
                    key.namespaces.clone_from(&args.namespace);
                    key.group.clone_from(&args.group);
                    if public.is_some() {
                        (key.public, key.hash) = (public.clone(), String::new());
                    }
                }
                Ok::<_, KeyError>(secret)
            })?;
            if public.is_some() {
                return out::line(&format!("added '{}'", args.name));
            }
            out::note(format_args!(
                "The key is shown only once. Servers that use {} now require a key.",
                path.display()
            ));
            out::line(&secret)
        }
        KeyCommand::List(args) if args.json => {
            let one = |key: &Key| json!({"name": key.name, "scopes": key.scopes, "created": key.created, "requests_per_minute": key.requests_per_minute, "concurrent": key.concurrent, "namespaces": key.namespaces, "group": key.group, "public": key.public});
            let file = KeyFile::read(&path)?;
            out::json(
                &json!({"file": path.display().to_string(), "keys": file.keys.iter().map(one).collect::<Vec<_>>()}),
            )
        }
        KeyCommand::List(_) => {
            let limit = |n: Option<u32>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
            let row = |key: &Key| {
                let scopes: Vec<_> = key.scopes.iter().map(|scope| scope.name()).collect();
                let (rate, at_once) = (limit(key.requests_per_minute), limit(key.concurrent));
                let within =
                    if key.namespaces.is_empty() { "-".into() } else { key.namespaces.join(",") };
                vec![key.name.clone(), scopes.join(","), within, rate, at_once, key.created.clone()]
            };
            let rows: Vec<_> = KeyFile::read(&path)?.keys.iter().map(row).collect();
            out::text(&format::table(
                &["NAME", "SCOPES", "NAMESPACES", "A MINUTE", "AT ONCE", "CREATED"],
                &rows,
            ))
        }
        KeyCommand::Rm { names } => {
            let none_left = KeyFile::change(&path, |file| {
                names.iter().try_for_each(|name| file.remove(name))?;
                Ok::<_, KeyError>(file.keys.is_empty())
            })?;
            if none_left {
                out::note("That was the last key: servers no longer require one.");
            }
            names.iter().try_for_each(|name| out::line(&format!("removed '{name}'")))
        }
    }
}

/// Refuses invalid arguments before the file is changed.
fn check(args: &KeyAddArgs) -> Result<()> {
    check_key_name(&args.name).map_err(|error| usage::error(error.to_string()))?;
    for namespace in &args.namespace {
        puna_server::mirror::check_namespace(namespace)
            .map_err(|error| usage::error(error.to_string()))?;
    }
    if args.group.as_ref().is_some_and(|group| group.trim().is_empty()) {
        return Err(usage::error("--group is empty: name a group, or leave it out"));
    }
    Ok(())
}

/// Parses the public key of an OpenSSH line or file.
fn parse_public_key(text: &str) -> Result<String> {
    let line = match text.contains("ssh-ed25519") || puna_server::mirror::is_public_key(text) {
        true => text.to_owned(),
        false => std::fs::read_to_string(text)
            .with_context(|| format!("cannot read the public key {text}"))?,
    };
    let key = line.split_whitespace().find(|word| puna_server::mirror::is_public_key(word));
    key.map(str::to_owned).with_context(|| {
        format!("{text} has no Ed25519 key: it must be the line of an id_ed25519.pub, `ssh-ed25519 AAAA…`")
    })
}

fn scopes(args: &KeyAddArgs) -> Result<Vec<Scope>> {
    let mut scopes = Vec::new();
    for name in &args.scope {
        match Scope::by_name(name) {
            Some(scope) if scopes.contains(&scope) => {}
            Some(scope) => scopes.push(scope),
            None => {
                let all = Scope::ALL.map(Scope::name).join(", ");
                return Err(usage::error(format!("unknown scope {name:?}: use one of {all}")));
            }
        }
    }
    Ok(scopes)
}
