//! Runs the program as users do, in a home directory with its own store and address.

#![allow(dead_code, reason = "each test program uses its part")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Path of a file in `tests/data`.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

/// A home directory with its own store and address.
pub struct Puna {
    pub home: tempfile::TempDir,
    pub port: u16,
    server: Option<Child>,
}

impl Puna {
    /// For commands that contact no server.
    pub fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap(), port: 0, server: None }
    }

    /// No server runs at the address, but a command may start one.
    pub fn without_server() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut puna = Self::new();
        puna.port = port;
        puna
    }

    /// A server runs at the address.
    pub fn with_server() -> Self {
        let mut puna = Self::without_server();
        puna.server = Some(
            puna.command(&["serve"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap(),
        );
        let start = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", puna.port)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(20), "the server does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        puna
    }

    /// A command with no other environment variables.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_puna"));
        let host = format!("127.0.0.1:{}", self.port);
        command
            .args(args)
            .env_clear()
            .env("HOME", self.home.path())
            .env("OLLAMA_HOST", host)
            .stdin(Stdio::null());
        command
    }

    /// Runs a command and returns its output.
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Standard output of a command that must succeed.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The only JSON document on standard output.
    pub fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    /// Exit status and standard error of a command that must fail without other output.
    pub fn fails(&self, args: &[&str]) -> (i32, String) {
        let output = self.run(args);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{args:?}");
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    /// Error message of a command that must fail with status 1.
    pub fn error(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        text.lines().find(|line| line.starts_with("Error: ")).unwrap_or(&text).to_owned()
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Puna {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
        if self.port == 0 {
            return;
        }
        // A server that `run` started in the background is found only by its address.
        let address = format!("OLLAMA_HOST=127.0.0.1:{}\0", self.port);
        for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
            if String::from_utf8_lossy(&environment).contains(&address) {
                let _ = Command::new("kill").arg(process.file_name()).status();
            }
        }
    }
}
