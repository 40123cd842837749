//! Tests of workers that misbehave. Those of true workers are in `tests/process.rs`.

use std::io;

use puna_store::{FileJob, JobExecutor, StoreError};

use super::FileWorkerLauncher;

fn run(script: &str, out: &mut dyn io::Write) -> Result<(), StoreError> {
    let job = FileJob::Convert { files: Vec::new() };
    FileWorkerLauncher::of_script(script).execute(&job, out, &mut |_| {})
}

/// A shell command that sends a message.
fn send(message: &str) -> String {
    assert!(message.len() < 256);
    let length = message.len();
    format!("printf '\\000\\{length:03o}\\000\\000\\000' >&0; printf %s '{message}' >&0;")
}

fn message(script: &str) -> String {
    run(script, &mut io::sink()).unwrap_err().to_string()
}

#[test]
fn data_arrives_before_the_result() {
    let mut out = Vec::new();
    let data = r"printf '\001\004\000\000\000GGUF' >&0;";
    run(&format!("{data} {}", send(r#"{"Done":{"text":null}}"#)), &mut out).unwrap();
    assert_eq!(out, b"GGUF");
}

#[test]
fn an_error_of_a_worker_keeps_its_text_and_its_class() {
    let failed = send(r#"{"Failed":{"message":"config.json is missing","is_bad_request":true}}"#);
    let error = run(&failed, &mut io::sink()).unwrap_err();
    assert!(error.is_bad_request());
    assert_eq!(error.to_string(), "config.json is missing");
}

#[test]
fn a_worker_that_breaks_the_protocol_is_ended() {
    let forever = "while :; do sleep 1; done";
    let unknown = message(&format!(r"printf '\011\000\000\000\000' >&0; {forever}"));
    assert!(unknown.contains("unknown kind 9"), "{unknown}");
    let large = message(&format!(r"printf '\001\377\377\377\377' >&0; {forever}"));
    assert!(large.contains("too large"), "{large}");
    let nonsense = message(&format!("{} {forever}", send("{}")));
    assert!(nonsense.contains("stopped unexpectedly"), "{nonsense}");
}

#[test]
fn the_rest_of_the_output_is_not_read_after_the_parent_cannot_write() {
    struct FullDisk;
    impl io::Write for FullDisk {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::other("no space"))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let endless = r"while printf '\001\004\000\000\000GGUF' >&0; do :; done";
    let error = run(endless, &mut FullDisk).unwrap_err().to_string();
    assert_eq!(error, "cannot write the GGUF file: no space");
}

#[test]
fn a_program_that_cannot_start_is_an_error_of_the_job() {
    let mut worker = FileWorkerLauncher::of_script("");
    worker.program = "/nonexistent/puna".into();
    let error = worker.check_template("{{ .Prompt }}").unwrap_err();
    let start = "cannot check the template: no process for it can be started: ";
    assert!(error.starts_with(start), "{error}");
}
