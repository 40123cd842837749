//! Descriptions of TLS errors for users.

use std::error::Error;
use std::fmt;

use rustls::{CertificateError, InvalidMessage};

use crate::is_authority_itself;

/// Reason of a failed TLS connection. Its text is a plain sentence without advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsProblem {
    /// The authority of the server's certificate is not trusted.
    UnknownAuthority,
    /// The server's certificate is the certificate of an authority.
    AuthorityItself,
    /// The certificate is for other host names.
    OtherName {
        /// Host names of the certificate.
        names: Vec<String>,
    },
    /// The certificate has expired.
    Expired,
    /// The validity of the certificate begins later.
    NotYetValid,
    /// The certificate is not valid for another reason.
    Invalid(&'static str),
    /// The server does not speak TLS.
    NotTls,
    /// Any other reason.
    Other(String),
}

impl TlsProblem {
    /// Finds a TLS error among the causes of an error, and describes it. `None`: the error has
    /// another cause.
    pub fn find(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(tls) = error.downcast_ref::<rustls::Error>() {
                return Some(tls.into());
            }
            // An I/O error may contain another error that is not its source.
            let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
            cause = inner.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source());
        }
        None
    }

    /// Whether another attempt would fail too.
    pub fn is_permanent(&self) -> bool {
        !matches!(self, Self::Other(_))
    }

    /// What to do about a certificate that is not valid for the server.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            Self::OtherName { .. } => Some("use a host name that the certificate contains"),
            Self::Expired => Some("the server needs a new certificate"),
            Self::NotYetValid => Some("check the clocks of both machines"),
            _ => None,
        }
    }
}

impl From<&rustls::Error> for TlsProblem {
    fn from(error: &rustls::Error) -> Self {
        let text = match error {
            error if is_authority_itself(error) => return Self::AuthorityItself,
            rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
                return Self::NotTls;
            }
            rustls::Error::InvalidCertificate(error) => return certificate_problem(error),
            rustls::Error::General(text) => text.clone(),
            rustls::Error::NoCertificatesPresented => "the server has no certificate".to_owned(),
            rustls::Error::PeerIncompatible(_) => {
                "the server supports neither TLS 1.2 nor TLS 1.3 with a usable cipher".to_owned()
            }
            rustls::Error::AlertReceived(alert) => {
                format!("the server ended the TLS handshake with alert {}", u8::from(*alert))
            }
            rustls::Error::FailedToGetCurrentTime => "the clock is not set".to_owned(),
            rustls::Error::FailedToGetRandomBytes => {
                "cannot get random numbers from the system".to_owned()
            }
            _ => "the server does not follow the TLS protocol".to_owned(),
        };
        Self::Other(text)
    }
}

fn certificate_problem(error: &CertificateError) -> TlsProblem {
    use CertificateError as E;
    let text = match error {
        E::UnknownIssuer => return TlsProblem::UnknownAuthority,
        E::NotValidForName => return TlsProblem::OtherName { names: Vec::new() },
        E::NotValidForNameContext { presented, .. } => {
            return TlsProblem::OtherName {
                names: presented.iter().map(|n| plain_name(n)).collect(),
            };
        }
        E::Expired | E::ExpiredContext { .. } => return TlsProblem::Expired,
        E::NotValidYet | E::NotValidYetContext { .. } => return TlsProblem::NotYetValid,
        E::Revoked => "the server's certificate is revoked",
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            "the server's certificate is not meant for servers"
        }
        E::BadEncoding => "the server's certificate is damaged",
        _ => "the server's certificate is not valid",
    };
    TlsProblem::Invalid(text)
}

/// Returns the name in a description such as `DnsName("gpu.example")`.
fn plain_name(described: &str) -> String {
    let inner = described.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    let name = inner.unwrap_or(described).trim_matches('"');
    // A certificate is another party's text.
    name.chars().filter(|c| c.is_ascii_graphic()).take(MAX_NAME_CHARS).collect()
}

/// Longest host name that a message shows.
const MAX_NAME_CHARS: usize = 100;
/// Largest number of host names that a message shows.
const MAX_NAMES: usize = 4;

impl fmt::Display for TlsProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownAuthority => {
                f.write_str("the authority of the server's certificate is not trusted")
            }
            Self::AuthorityItself => {
                f.write_str("the server's certificate is that of an authority, and is not trusted")
            }
            Self::OtherName { names } if names.is_empty() => {
                f.write_str("the server's certificate is for another host name")
            }
            Self::OtherName { names } => {
                let more = if names.len() > MAX_NAMES { ", …" } else { "" };
                let names = names[..names.len().min(MAX_NAMES)].join(", ");
                write!(f, "the server's certificate is for another host name: {names}{more}")
            }
            Self::Expired => f.write_str("the server's certificate has expired"),
            Self::NotYetValid => f.write_str("the server's certificate is not valid yet"),
            Self::Invalid(text) => f.write_str(text),
            Self::NotTls => f.write_str("the server does not use TLS at this address"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use rustls::{AlertDescription, OtherError, PeerMisbehaved};

    use super::*;

    fn invalid(error: CertificateError) -> rustls::Error {
        rustls::Error::InvalidCertificate(error)
    }

    #[test]
    fn every_tls_error_has_a_plain_description() {
        use rustls::Error as E;
        let own = OtherError(Arc::new(webpki::Error::CaUsedAsEndEntity));
        let names = CertificateError::NotValidForNameContext {
            expected: "gpu".try_into().unwrap(),
            presented: vec!["DnsName(\"hub.example\")".into(), "IpAddress(10.0.0.1)".into()],
        };
        for (error, text) in [
            (
                invalid(CertificateError::UnknownIssuer),
                "authority of the server's certificate is not",
            ),
            (invalid(CertificateError::Other(own)), "certificate is that of an authority"),
            (invalid(names), "is for another host name: hub.example, 10.0.0.1"),
            (invalid(CertificateError::NotValidForName), "is for another host name"),
            (invalid(CertificateError::Expired), "has expired"),
            (invalid(CertificateError::NotValidYet), "is not valid yet"),
            (invalid(CertificateError::BadSignature), "is not valid"),
            (E::InvalidMessage(InvalidMessage::InvalidContentType), "does not use TLS"),
            (E::InvalidMessage(InvalidMessage::InvalidCcs), "does not follow the TLS protocol"),
            (E::PeerMisbehaved(PeerMisbehaved::BadCertChainExtensions), "does not follow"),
            (E::AlertReceived(AlertDescription::HandshakeFailure), "with alert 40"),
        ] {
            // As in an error of the HTTP client: within an I/O error.
            let error = io::Error::other(error);
            let shown = TlsProblem::find(&error).unwrap().to_string();
            assert!(shown.contains(text), "{shown}");
            let is_plain =
                |word: &str| !word.chars().skip(1).any(char::is_uppercase) || word == "TLS";
            assert!(shown.split(' ').all(is_plain), "{shown}");
        }
        assert_eq!(TlsProblem::find(&io::Error::other("no route")), None);
    }
}
