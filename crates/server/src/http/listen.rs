//! Opening the server's address, and what is said where that cannot be.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::tls::PLAIN;
use crate::config::Address;

/// The server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody else has the port.
    #[error(
        "listen tcp {address}: bind: address already in use: {by} is running there already{hint}"
    )]
    InUse {
        /// The address.
        address: String,
        /// Who.
        by: String,
        /// The way out.
        hint: String,
    },
    /// Another reason.
    #[error("listen tcp {address}: bind: {error}{hint}")]
    Other {
        /// The address.
        address: String,
        /// The reason.
        error: io::Error,
        /// The way out, where one is known.
        hint: String,
    },
}

/// Opens an address; `setting` is the variable that it can be set by.
///
/// # Errors
/// Why it cannot be had, and the way out.
pub async fn listen(address: &Address, setting: &str) -> Result<TcpListener, ListenError> {
    let authority = address.authority();
    match TcpListener::bind(&authority).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let (by, hint) = who(address, setting).await;
            Err(ListenError::InUse { address: authority, by, hint })
        }
        Err(error) => Err(ListenError::Other {
            address: authority,
            hint: way_out(error.kind(), setting),
            error,
        }),
    }
}

/// What to do about an address that cannot be had, behind the reason.
fn way_out(reason: io::ErrorKind, setting: &str) -> String {
    match reason {
        io::ErrorKind::PermissionDenied => {
            format!(": ports below 1024 are for root alone; take a higher one ({setting})")
        }
        io::ErrorKind::AddrNotAvailable => format!(
            ": this machine has no such address; set {setting} to one that it has, or to 0.0.0.0 for all of them"
        ),
        _ => String::new(),
    }
}

/// Who listens at an address.
async fn who(address: &Address, setting: &str) -> (String, String) {
    let elsewhere =
        format!(": stop it, or set {setting} to another address (such as 127.0.0.1:11500)");
    let Some(root) = ask(address, "/").await else {
        return ("a program that does not speak HTTP".into(), elsewhere);
    };
    let version = ask(address, "/api/version").await.unwrap_or_default().body;
    let version: puna_api::native::VersionResponse =
        serde_json::from_str(&version).unwrap_or_default();
    if !version.puna.is_empty() {
        return (
            format!("Puna {}", version.puna),
            ": it can be used as it is, or stopped first".into(),
        );
    }
    if root.body.starts_with(PLAIN) {
        return ("a Puna with TLS".into(), ": it can be used at https://, or stopped first".into());
    }
    if root.body.starts_with("Ollama is running") {
        return (format!("Ollama {}", version.version).trim_end().to_owned(), elsewhere);
    }
    // It leads to its page.
    if root.head.to_ascii_lowercase().contains("\r\nlocation: /mirror\r\n") {
        return ("a mirror of Puna's".into(), elsewhere);
    }
    ("another HTTP server".into(), elsewhere)
}

/// What a server says.
#[derive(Default)]
struct Answer {
    /// Its status and headers, each line with its end.
    head: String,
    body: String,
}

/// What a server answers to a GET, if it speaks HTTP and does so soon.
async fn ask(address: &Address, path: &str) -> Option<Answer> {
    let url = address.url();
    let target = url.split("://").nth(1)?.split('/').next()?.to_owned();
    let exchange = async {
        let mut stream = TcpStream::connect(&target).await.ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.take(64 << 10).read_to_end(&mut answer).await.ok()?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").filter(|_| answer.starts_with("HTTP/"))?;
        Some(Answer { head: format!("{head}\r\n"), body: body.to_owned() })
    };
    timeout(Duration::from_secs(2), exchange).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_of_another_machine_is_refused_with_the_way_out() {
        // Kept for documentation: nobody has it.
        let address = Address::parse("192.0.2.1:0").0;
        let error = listen(&address, "OLLAMA_HOST").await.unwrap_err().to_string();
        assert!(
            error.starts_with("listen tcp 192.0.2.1:0: bind: ") && error.contains("OLLAMA_HOST"),
            "{error}"
        );
    }

    #[test]
    fn ports_that_are_roots_are_told_from_other_reasons() {
        let told = |kind| {
            let (address, error) = ("127.0.0.1:80".to_owned(), io::Error::from(kind));
            ListenError::Other { address, error, hint: way_out(kind, "OLLAMA_HOST") }.to_string()
        };
        assert_eq!(
            told(io::ErrorKind::PermissionDenied),
            "listen tcp 127.0.0.1:80: bind: permission denied: ports below 1024 are for root alone; take a higher one \
             (OLLAMA_HOST)"
        );
        assert_eq!(
            told(io::ErrorKind::OutOfMemory),
            "listen tcp 127.0.0.1:80: bind: out of memory"
        );
    }
}
