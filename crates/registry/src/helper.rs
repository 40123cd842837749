//! Docker's credential helpers: programs called `docker-credential-NAME`, which keep what `docker login` was told. They are
//! handed the name of a registry and answer with a user and a secret, which go nowhere but into a request.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::Deserialize;

use crate::hosts::{Credentials, Secret};

/// How long a helper may take; it may have to ask its user.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of an answer at most.
const MAX_ANSWER: u64 = 64 << 10;
/// The user of a secret that a token server exchanges for others.
const TOKEN: &str = "<token>";

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct Answer {
    username: String,
    secret: String,
}

/// What a helper has for a registry; `None` if it has nothing.
///
/// # Errors
/// It cannot be run, or does not answer as it should. Nothing of what it wrote is said, since that may be a secret.
pub(crate) fn ask(name: &str, server: &str) -> Result<Option<Credentials>, String> {
    // A word, and no path to another program.
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
        return Err(format!("{name:?} is no name of a credential helper"));
    }
    let program = format!("docker-credential-{name}");
    let mut command = Command::new(&program);
    command.arg("get");
    read(command, server, PATIENCE).map_err(|problem| format!("{program}: {problem}"))
}

fn read(command: Command, server: &str, patience: Duration) -> Result<Option<Credentials>, String> {
    let (answer, success) = run(command, server, patience)?;
    if !success {
        // The words of docker's own helpers for what is not there; other failures are worth a word.
        let absent =
            String::from_utf8_lossy(&answer).to_ascii_lowercase().contains("credentials not found");
        return if absent { Ok(None) } else { Err("it failed".to_owned()) };
    }
    let answer: Answer = serde_json::from_slice(&answer)
        .map_err(|_| "it answered with something that is no JSON".to_owned())?;
    let secret = Secret::Text(answer.secret);
    Ok(match (answer.username, secret) {
        (_, Secret::Text(text)) if text.is_empty() => None,
        (user, secret) if user == TOKEN => Some(Credentials::Refresh(secret)),
        (user, _) if user.is_empty() => None,
        (user, password) => Some(Credentials::Basic { user, password }),
    })
}

/// What a program writes when it is handed a line, and whether it succeeded.
fn run(mut command: Command, line: &str, patience: Duration) -> Result<(Vec<u8>, bool), String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => "it is not installed, or not in PATH".to_owned(),
        _ => format!("it cannot be run: {e}"),
    })?;
    let (done, ended) = mpsc::channel();
    if let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) {
        let line = line.to_owned();
        thread::spawn(move || {
            // One that needs no input may be gone already.
            let _ = writeln!(input, "{line}");
            drop(input);
            let mut answer = Vec::new();
            let read = output.take(MAX_ANSWER + 1).read_to_end(&mut answer);
            let _ = done.send(read.map(|_| answer));
        });
    }
    let answer = match ended.recv_timeout(patience) {
        Ok(Ok(answer)) if answer.len() as u64 <= MAX_ANSWER => Ok(answer),
        Ok(Ok(_)) => Err(format!("it answered with more than {MAX_ANSWER} bytes")),
        Ok(Err(e)) => Err(e.to_string()),
        Err(_) => Err(format!("it did not answer within {} seconds", patience.as_secs_f32())),
    };
    match answer {
        Ok(answer) => Ok((answer, has_succeeded(&mut child, patience)?)),
        Err(problem) => {
            end(&mut child);
            Err(problem)
        }
    }
}

/// Whether a program that has closed its output succeeds.
fn has_succeeded(child: &mut Child, patience: Duration) -> Result<bool, String> {
    const STEP: Duration = Duration::from_millis(5);
    let mut waited = Duration::ZERO;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status.success()),
            Ok(None) if waited < patience => thread::sleep(STEP),
            Ok(None) => {
                end(child);
                return Err("it answered and does not end".to_owned());
            }
            Err(e) => return Err(e.to_string()),
        }
        waited += STEP;
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// What a script answers.
    fn of(script: &str) -> Result<Option<Credentials>, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        read(command, "registry.example", Duration::from_millis(700))
    }

    #[test]
    fn helpers_are_told_the_registry_and_answer_with_a_user_or_a_token() {
        let basic = Credentials::Basic {
            user: "u".into(),
            password: Secret::Text("registry.example".into()),
        };
        let echo =
            r#"read line; echo "{\"ServerURL\":\"x\",\"Username\":\"u\",\"Secret\":\"$line\"}""#;
        assert_eq!(of(echo), Ok(Some(basic)));
        let token = r#"echo '{"Username":"<token>","Secret":"lasting"}'"#;
        assert_eq!(of(token), Ok(Some(Credentials::Refresh(Secret::Text("lasting".into())))));
        assert_eq!(of("echo 'credentials not found in native keychain'; exit 1"), Ok(None));
        assert_eq!(of(r#"echo '{"Username":"u","Secret":""}'"#), Ok(None));
    }

    #[test]
    fn helpers_that_fail_babble_or_stand_still_say_nothing_of_what_they_wrote() {
        for (script, want) in [
            ("echo hunter2 >&2; echo hunter2; exit 3", "it failed"),
            ("echo hunter2", "no JSON"),
            ("yes hunter2", "more than 65536 bytes"),
            ("echo hunter2; exec sleep 60", "did not answer within 0.7 seconds"),
            ("echo hunter2; exec >&-; exec sleep 60", "does not end"),
        ] {
            let problem = of(script).unwrap_err();
            assert!(problem.contains(want) && !problem.contains("hunter2"), "{script}: {problem}");
        }
    }

    #[test]
    fn what_is_no_name_or_not_there_is_not_run() {
        for name in ["", "../sh", "a/b", "a b", "x;y"] {
            assert!(
                ask(name, "h").unwrap_err().ends_with("is no name of a credential helper"),
                "{name}"
            );
        }
        let text = ask("that-nobody-has", "h").unwrap_err();
        assert_eq!(text, "docker-credential-that-nobody-has: it is not installed, or not in PATH");
    }
}
