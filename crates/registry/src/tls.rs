//! TLS: rustls on ring, with the certificates that the system trusts.

use std::path::Path;
use std::sync::Arc;

use puna_trust::Named;
use rustls::ClientConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::error::RegistryError;
use crate::hosts::read_text;

/// Bytes of a file of certificates at most.
const MAX_FILE: u64 = 4 << 20;

/// What connections are made with. The system's certificates are read now (on Linux from `SSL_CERT_FILE` or
/// `SSL_CERT_DIR`, where these are set); a machine without any, such as a small container, gets Mozilla's list.
///
/// # Errors
/// The system's certificates cannot be used.
pub fn config() -> Result<ClientConfig, RegistryError> {
    config_with(None)
}

/// The same, with the certificates of a file (PEM) trusted too, of authorities and of servers.
pub(crate) fn config_with(ca: Option<&Path>) -> Result<ClientConfig, RegistryError> {
    let setup = |e: rustls::Error| RegistryError::Setup(e.to_string());
    let provider = Arc::new(default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().map_err(setup)?;
    let extra = ca.map(certificates).transpose()?.unwrap_or_default();
    let mut config = match Named::system(extra, provider) {
        Ok(verifier) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth(),
        // What is wrong with the file is said; without one, the system has no certificates.
        Err(error) if ca.is_some() => return Err(setup(error)),
        Err(error) => {
            tracing::info!(%error, "no certificates on this system: using the built-in ones");
            let roots =
                webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect::<rustls::RootCertStore>();
            builder.with_root_certificates(roots).with_no_client_auth()
        }
    };
    // Parts of one blob need connections of their own.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The certificates of a file.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, RegistryError> {
    let fail = |reason: String| {
        RegistryError::Setup(format!("the certificates {}: {reason}", path.display()))
    };
    let text = read_text(path, MAX_FILE).map_err(|e| fail(e.to_string()))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(fail("there are none in it".into())),
        Err(e) => Err(fail(e.to_string())),
    }
}
