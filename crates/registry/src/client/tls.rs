//! TLS configuration: rustls on ring, with the certificates that the system trusts.

use std::path::Path;
use std::sync::Arc;

use puna_trust::{PinnedCertificateVerifier, TlsProblem, TrustError};
use rustls::ClientConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::client::hosts::read_text;
use crate::error::{RegistryError, SetupProblem};

/// Largest certificate file, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Reads the system's certificates (on Linux from `SSL_CERT_FILE` or `SSL_CERT_DIR` if set) and
/// makes a TLS configuration. A system without certificates, such as a small container, gets
/// Mozilla's list.
///
/// # Errors
/// The system's certificates cannot be used.
pub fn config() -> Result<ClientConfig, RegistryError> {
    config_with(None)
}

/// Like [`config`], and also trusts the certificates of a PEM file: of authorities and of servers.
pub(crate) fn config_with(ca: Option<&Path>) -> Result<ClientConfig, RegistryError> {
    let setup = |e: rustls::Error| SetupProblem::Tls { reason: TlsProblem::from(&e).to_string() };
    let provider = Arc::new(default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().map_err(setup)?;
    let extra = ca.map(read_certificates).transpose()?.unwrap_or_default();
    let mut config = match PinnedCertificateVerifier::system(extra, provider) {
        Ok(verifier) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth(),
        Err(error @ TrustError::File { .. }) => {
            return Err(SetupProblem::Tls { reason: error.to_string() }.into());
        }
        Err(TrustError::Certificates(error)) => {
            // An error concerns the given file. Without a file, the system has no certificates.
            if let Some(path) = ca {
                let (path, reason) = (path.to_owned(), "a certificate is invalid".to_owned());
                return Err(SetupProblem::Certificates { path, reason }.into());
            }
            tracing::info!(%error, "no certificates on this system: using the built-in ones");
            let roots =
                webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect::<rustls::RootCertStore>();
            builder.with_root_certificates(roots).with_no_client_auth()
        }
    };
    // Ranges of one blob need separate connections, so HTTP/2 is not offered.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Reads the certificates of a PEM file.
fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, SetupProblem> {
    let error_for = |reason: String| SetupProblem::Certificates { path: path.to_owned(), reason };
    let text = read_text(path, MAX_FILE_BYTES).map_err(|e| error_for(e.to_string()))?;
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match parsed {
        Ok(parsed) if !parsed.is_empty() => Ok(parsed),
        Ok(_) => Err(SetupProblem::NoCertificates { path: path.to_owned() }),
        Err(e) => Err(error_for(e.to_string())),
    }
}
