//! Opens the listener, and explains failures.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::tls::PLAIN_HTTP_ERROR;
use crate::config::Address;

/// The listener cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another program uses the port.
    #[error(
        "listen tcp {address}: bind: address already in use: {by} is running there already{hint}"
    )]
    InUse {
        /// The address.
        address: String,
        /// Name of the program.
        by: String,
        /// Remedy.
        hint: String,
    },
    /// Any other error.
    #[error("listen tcp {address}: bind: {error}{hint}")]
    Other {
        /// The address.
        address: String,
        /// The system's error.
        error: io::Error,
        /// Remedy, if known.
        hint: String,
    },
}

/// Opens a listener. `setting` is the variable that sets the address.
///
/// # Errors
/// The port is in use, or the system rejects the address. The error names a remedy, if known.
pub async fn listen(address: &Address, setting: &str) -> Result<TcpListener, ListenError> {
    let authority = address.authority();
    match TcpListener::bind(&authority).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let (by, hint) = identify_listener(address, setting).await;
            Err(ListenError::InUse { address: authority, by, hint })
        }
        Err(error) => Err(ListenError::Other {
            address: authority,
            hint: bind_hint(error.kind(), setting),
            error,
        }),
    }
}

/// Hint appended to the error of a failed bind.
fn bind_hint(reason: io::ErrorKind, setting: &str) -> String {
    match reason {
        io::ErrorKind::PermissionDenied => {
            format!(": ports below 1024 need root rights; set {setting} to a higher port")
        }
        io::ErrorKind::AddrNotAvailable => format!(
            ": this machine does not have this address; set {setting} to one of its addresses, or to 0.0.0.0 for all"
        ),
        _ => String::new(),
    }
}

/// Identifies the program that listens at an address. Returns its name and a hint.
async fn identify_listener(address: &Address, setting: &str) -> (String, String) {
    let elsewhere =
        format!(": stop it, or set {setting} to another address (such as 127.0.0.1:11500)");
    let Some(root) = http_get(address, "/").await else {
        return ("a program that does not speak HTTP".into(), elsewhere);
    };
    let version = http_get(address, "/api/version").await.unwrap_or_default().body;
    let version: puna_api::ollama::VersionResponse =
        serde_json::from_str(&version).unwrap_or_default();
    if !version.puna.is_empty() {
        return (format!("Puna {}", version.puna), ": use it, or stop it first".into());
    }
    if root.body.starts_with(PLAIN_HTTP_ERROR) {
        return ("a Puna with TLS".into(), ": use it at https://, or stop it first".into());
    }
    if root.body.starts_with("Ollama is running") {
        return (format!("Ollama {}", version.version).trim_end().to_owned(), elsewhere);
    }
    // A mirror redirects `/` to its page.
    if root.head.to_ascii_lowercase().contains("\r\nlocation: /mirror\r\n") {
        return ("a Puna mirror".into(), elsewhere);
    }
    ("another HTTP server".into(), elsewhere)
}

/// An HTTP response.
#[derive(Default)]
struct HttpResponse {
    /// Status line and headers, each with its line end.
    head: String,
    body: String,
}

/// Sends a GET request. `None` if the server does not answer in HTTP within two seconds.
async fn http_get(address: &Address, path: &str) -> Option<HttpResponse> {
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
        Some(HttpResponse { head: format!("{head}\r\n"), body: body.to_owned() })
    };
    timeout(Duration::from_secs(2), exchange).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_of_another_machine_fails_with_a_hint() {
        // Reserved for documentation (RFC 5737), so no interface has it.
        let address = Address::parse("192.0.2.1:0").0;
        let error = listen(&address, "OLLAMA_HOST").await.unwrap_err().to_string();
        assert!(
            error.starts_with("listen tcp 192.0.2.1:0: bind: ") && error.contains("OLLAMA_HOST"),
            "{error}"
        );
    }

    #[test]
    fn privileged_ports_have_a_hint_and_other_errors_have_none() {
        let message = |kind| {
            let (address, error) = ("127.0.0.1:80".to_owned(), io::Error::from(kind));
            ListenError::Other { address, error, hint: bind_hint(kind, "OLLAMA_HOST") }.to_string()
        };
        assert_eq!(
            message(io::ErrorKind::PermissionDenied),
            "listen tcp 127.0.0.1:80: bind: permission denied: ports below 1024 need root rights; set OLLAMA_HOST to a higher port"
        );
        assert_eq!(
            message(io::ErrorKind::OutOfMemory),
            "listen tcp 127.0.0.1:80: bind: out of memory"
        );
    }
}
