//! What a launch does, as text that a person can read and a shell can run.

use std::fmt::Write;
use std::path::Path;

use super::agents::{Agent, Setup, Target, quoted};

/// What stands for the key, which is not printed.
const KEY: &str = "$PUNA_API_KEY";

/// What stands for secrets in settings of the user.
const HIDDEN: &str = "\"[hidden]\"";

/// The files, the variables and the command of a launch.
pub fn plan(
    agent: &dyn Agent,
    target: &Target,
    setup: &Setup,
    arguments: &[String],
    folder: &Path,
) -> String {
    let mut text = about(target);
    let hidden = |text: &str| hidden(&without_secrets(text, setup), target);
    for (name, content) in &setup.files {
        let path = folder.join(name);
        let content = hidden(content);
        let _ =
            write!(text, "\n# {}, as long as {} runs:\n{content}", path.display(), agent.title());
    }
    text.push_str("\nenv");
    for name in &setup.removed {
        let _ = write!(text, " -u {name}");
    }
    for (name, value) in &setup.set {
        let _ = write!(text, " \\\n  {name}={}", shell(&hidden(value)));
    }
    let _ = write!(text, " \\\n  {}", agent.program());
    for argument in setup.arguments.iter().chain(arguments) {
        let _ = write!(text, " {}", shell(&hidden(argument)));
    }
    text.push('\n');
    text
}

/// How any other client is told of the server and the model.
pub fn instructions(client: &str, target: &Target) -> String {
    let mut text = about(target);
    let key = hidden(&target.key, target);
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
    let window = target.window.map_or("not known".to_owned(), |window| format!("{window} tokens"));
    format!("# server {}, model {}, context window {window}\n", target.url, target.model)
}

/// A value without the key in it, as it is or as a part of JSON.
fn hidden(value: &str, target: &Target) -> String {
    if target.key == NO_KEY || target.key.is_empty() {
        return value.to_owned();
    }
    let escaped = quoted(&target.key);
    value.replace(&escaped[1..escaped.len() - 1], KEY).replace(&target.key, KEY)
}

/// A text without the secrets of the user's settings, which are strings of JSON in it.
fn without_secrets(text: &str, setup: &Setup) -> String {
    setup.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(&quoted(secret), HIDDEN))
}

/// The key where a server asks for none: some clients do not start without one.
pub const NO_KEY: &str = "none";

/// A word of a shell's command line. What stands for the key is left to the shell.
fn shell(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    let quoted = |part: &str| format!("'{}'", part.replace('\'', r"'\''"));
    let parts: Vec<String> = word
        .split(KEY)
        .map(|part| if part.is_empty() { String::new() } else { quoted(part) })
        .collect();
    match parts.len() {
        1 => quoted(word),
        _ => parts.join(&format!("\"{KEY}\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_the_shell() {
        assert_eq!(shell("http://h:1/v1"), "http://h:1/v1");
        assert_eq!(shell(""), "''");
        assert_eq!(shell("model=\"a b\""), "'model=\"a b\"'");
        assert_eq!(shell("it's"), r"'it'\''s'");
        assert_eq!(shell("$PUNA_API_KEY"), "\"$PUNA_API_KEY\"");
        assert_eq!(shell("{\"k\":\"$PUNA_API_KEY\"}"), "'{\"k\":\"'\"$PUNA_API_KEY\"'\"}'");
    }
}
