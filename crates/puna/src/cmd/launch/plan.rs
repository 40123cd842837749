//! Prints the effect of a launch as text that a shell can run.

use std::fmt::Write;
use std::path::Path;

use super::agent::{Agent, Setup, Target, quoted};

/// Placeholder for the key, which is not printed.
const KEY_PLACEHOLDER: &str = "$PUNA_API_KEY";

/// Placeholder for secrets in the user's settings.
const SECRET_PLACEHOLDER: &str = "\"[hidden]\"";

/// Prints the files, variables and command of a launch.
pub fn plan(
    agent: &dyn Agent,
    target: &Target,
    setup: &Setup,
    arguments: &[String],
    folder: &Path,
) -> String {
    let mut text = about(target);
    let hide = |text: &str| hide_key(&without_secrets(text, setup), target);
    for (name, content) in &setup.files {
        let path = folder.join(name);
        let content = hide(content);
        let _ = write!(text, "\n# {}, while {} runs:\n{content}", path.display(), agent.title());
    }
    text.push_str("\nenv");
    for name in &setup.removed {
        let _ = write!(text, " -u {name}");
    }
    for (name, value) in &setup.set {
        let _ = write!(text, " \\\n  {name}={}", shell_quote(&hide(value)));
    }
    let _ = write!(text, " \\\n  {}", agent.program());
    for argument in setup.arguments.iter().chain(arguments) {
        let _ = write!(text, " {}", shell_quote(&hide(argument)));
    }
    text.push('\n');
    text
}

/// Prints how to configure any other client.
pub fn instructions(client: &str, target: &Target) -> String {
    let mut text = about(target);
    let key = hide_key(&target.key, target);
    let _ = write!(
        text,
        "\n{client} is not started by puna. In its settings, choose a server of one of these kinds:\n\n\
         OpenAI compatible   base URL {0}/v1   (chat completions and responses)\n\
         Anthropic           base URL {0}      (messages)\n\
         Ollama              address  {0}\n\n\
         API key             {key}\n\
         model               {1}\n",
        target.url, target.model
    );
    if let (Some(window), Some(output)) = (target.window, target.output()) {
        let _ = write!(text, "context window      {window}\nlongest answer      {output}\n");
    }
    text
}

fn about(target: &Target) -> String {
    let window = target.window.map_or("unknown".to_owned(), |window| format!("{window} tokens"));
    format!("# server {}, model {}, context window {window}\n", target.url, target.model)
}

/// Replaces the key in a value, verbatim or inside JSON.
fn hide_key(value: &str, target: &Target) -> String {
    if target.key == NO_KEY || target.key.is_empty() {
        return value.to_owned();
    }
    let escaped = quoted(&target.key);
    value
        .replace(&escaped[1..escaped.len() - 1], KEY_PLACEHOLDER)
        .replace(&target.key, KEY_PLACEHOLDER)
}

/// Replaces the secrets of the user's settings, which are JSON strings in the text.
fn without_secrets(text: &str, setup: &Setup) -> String {
    setup
        .secrets
        .iter()
        .fold(text.to_owned(), |text, secret| text.replace(&quoted(secret), SECRET_PLACEHOLDER))
}

/// Key for a server without API keys: some clients require one.
pub const NO_KEY: &str = "none";

/// Quotes a word for a shell. The shell expands the key's placeholder.
fn shell_quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    let quoted = |part: &str| format!("'{}'", part.replace('\'', r"'\''"));
    let parts: Vec<String> = word
        .split(KEY_PLACEHOLDER)
        .map(|part| if part.is_empty() { String::new() } else { quoted(part) })
        .collect();
    match parts.len() {
        1 => quoted(word),
        _ => parts.join(&format!("\"{KEY_PLACEHOLDER}\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_the_shell() {
        assert_eq!(shell_quote("http://h:1/v1"), "http://h:1/v1");
        assert_eq!(shell_quote(""), "''");
        assert_eq!(shell_quote("model=\"a b\""), "'model=\"a b\"'");
        assert_eq!(shell_quote("it's"), r"'it'\''s'");
        assert_eq!(shell_quote("$PUNA_API_KEY"), "\"$PUNA_API_KEY\"");
        assert_eq!(shell_quote("{\"k\":\"$PUNA_API_KEY\"}"), "'{\"k\":\"'\"$PUNA_API_KEY\"'\"}'");
    }
}
