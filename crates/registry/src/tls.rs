//! TLS: rustls on ring, with the certificates that the system trusts.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::crypto::ring::default_provider;
use rustls_platform_verifier::Verifier;

use crate::error::RegistryError;

/// What connections are made with. The system's certificates are read now (on Linux from `SSL_CERT_FILE` or
/// `SSL_CERT_DIR`, where these are set); a machine without any, such as a small container, gets Mozilla's list.
///
/// # Errors
/// The system's certificates cannot be used.
pub fn config() -> Result<ClientConfig, RegistryError> {
    let setup = |e: rustls::Error| RegistryError::Setup(e.to_string());
    let provider = Arc::new(default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().map_err(setup)?;
    let mut config = match Verifier::new(provider) {
        Ok(verifier) => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth()
        }
        Err(error) => {
            tracing::info!(%error, "no certificates on this system: using the built-in ones");
            let roots = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect::<rustls::RootCertStore>();
            builder.with_root_certificates(roots).with_no_client_auth()
        }
    };
    // Parts of one blob need connections of their own.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
