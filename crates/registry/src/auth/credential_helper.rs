//! Docker's credential helpers: programs called `docker-credential-NAME` that store credentials of
//! `docker login`. A helper reads the name of a registry and prints a user and a secret. The client
//! uses the secret in requests only.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::Deserialize;

use crate::client::hosts::{Credentials, Secret};

/// How long a helper may run. It may have to ask the user.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Largest output of a helper, in bytes.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;
/// User name that marks the secret as a refresh token for a token server.
const TOKEN_USER: &str = "<token>";

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct HelperOutput {
    username: String,
    secret: String,
}

/// Gets the credentials for a registry from a helper. `None`: it has none.
///
/// # Errors
/// The helper cannot be run, or its output is invalid. Messages never contain the output, since it
/// may be a secret.
pub(crate) fn get_credentials(name: &str, server: &str) -> Result<Option<Credentials>, String> {
    // The name must not be a path to another program.
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
        return Err(format!("{name:?} is not a name of a credential helper"));
    }
    let program = format!("docker-credential-{name}");
    let mut command = Command::new(&program);
    command.arg("get");
    credentials_from(command, server, TIMEOUT).map_err(|problem| format!("{program}: {problem}"))
}

fn credentials_from(
    command: Command,
    server: &str,
    timeout: Duration,
) -> Result<Option<Credentials>, String> {
    let (output, success) = run_with_line(command, server, timeout)?;
    if !success {
        // Docker's helpers print these words if they have no credentials. Other failures are
        // errors.
        let absent =
            String::from_utf8_lossy(&output).to_ascii_lowercase().contains("credentials not found");
        return if absent { Ok(None) } else { Err("it failed".to_owned()) };
    }
    let output: HelperOutput =
        serde_json::from_slice(&output).map_err(|_| "its output is not JSON".to_owned())?;
    let secret = Secret::Text(output.secret);
    Ok(match (output.username, secret) {
        (_, Secret::Text(text)) if text.is_empty() => None,
        (user, secret) if user == TOKEN_USER => Some(Credentials::Refresh(secret)),
        (user, _) if user.is_empty() => None,
        (user, password) => Some(Credentials::Basic { user, password }),
    })
}

/// Runs a program with a line as input. Returns its output, and whether it succeeded.
fn run_with_line(
    mut command: Command,
    line: &str,
    timeout: Duration,
) -> Result<(Vec<u8>, bool), String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => "it is not installed, or not in PATH".to_owned(),
        _ => format!("cannot run it: {e}"),
    })?;
    let (sender, result) = mpsc::channel();
    if let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) {
        let line = line.to_owned();
        thread::spawn(move || {
            // A program that reads no input may have closed the pipe already.
            let _ = writeln!(input, "{line}");
            drop(input);
            let mut bytes = Vec::new();
            let read = output.take(MAX_OUTPUT_BYTES + 1).read_to_end(&mut bytes);
            let _ = sender.send(read.map(|_| bytes));
        });
    }
    let output = match result.recv_timeout(timeout) {
        Ok(Ok(output)) if output.len() as u64 <= MAX_OUTPUT_BYTES => Ok(output),
        Ok(Ok(_)) => Err(format!("its output has more than {MAX_OUTPUT_BYTES} bytes")),
        Ok(Err(e)) => Err(e.to_string()),
        Err(_) => Err(format!("it did not answer within {} seconds", timeout.as_secs_f32())),
    };
    match output {
        Ok(output) => Ok((output, wait_for_success(&mut child, timeout)?)),
        Err(problem) => {
            kill(&mut child);
            Err(problem)
        }
    }
}

/// Waits for a program that has closed its output. Returns whether it succeeded.
fn wait_for_success(child: &mut Child, timeout: Duration) -> Result<bool, String> {
    const POLL_INTERVAL: Duration = Duration::from_millis(5);
    let mut waited = Duration::ZERO;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status.success()),
            Ok(None) if waited < timeout => thread::sleep(POLL_INTERVAL),
            Ok(None) => {
                kill(child);
                return Err("it does not exit after its output".to_owned());
            }
            Err(e) => return Err(e.to_string()),
        }
        waited += POLL_INTERVAL;
    }
}

fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Runs a shell script as a helper.
    fn run_script(script: &str) -> Result<Option<Credentials>, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        credentials_from(command, "registry.example", Duration::from_millis(700))
    }

    #[test]
    fn helpers_read_the_registry_and_print_credentials() {
        let basic = Credentials::Basic {
            user: "u".into(),
            password: Secret::Text("registry.example".into()),
        };
        let echo =
            r#"read line; echo "{\"ServerURL\":\"x\",\"Username\":\"u\",\"Secret\":\"$line\"}""#;
        assert_eq!(run_script(echo), Ok(Some(basic)));
        let token = r#"echo '{"Username":"<token>","Secret":"lasting"}'"#;
        assert_eq!(
            run_script(token),
            Ok(Some(Credentials::Refresh(Secret::Text("lasting".into()))))
        );
        assert_eq!(run_script("echo 'credentials not found in native keychain'; exit 1"), Ok(None));
        assert_eq!(run_script(r#"echo '{"Username":"u","Secret":""}'"#), Ok(None));
    }

    #[test]
    fn errors_of_helpers_do_not_contain_their_output() {
        for (script, want) in [
            ("echo hunter2 >&2; echo hunter2; exit 3", "it failed"),
            ("echo hunter2", "not JSON"),
            ("yes hunter2", "more than 65536 bytes"),
            ("echo hunter2; exec sleep 60", "did not answer within 0.7 seconds"),
            ("echo hunter2; exec >&-; exec sleep 60", "does not exit"),
        ] {
            let problem = run_script(script).unwrap_err();
            assert!(problem.contains(want) && !problem.contains("hunter2"), "{script}: {problem}");
        }
    }

    #[test]
    fn invalid_and_missing_helpers_are_not_run() {
        for name in ["", "../sh", "a/b", "a b", "x;y"] {
            assert!(
                get_credentials(name, "h")
                    .unwrap_err()
                    .ends_with("is not a name of a credential helper"),
                "{name}"
            );
        }
        let text = get_credentials("that-nobody-has", "h").unwrap_err();
        assert_eq!(text, "docker-credential-that-nobody-has: it is not installed, or not in PATH");
    }
}
