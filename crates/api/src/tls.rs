//! Trusted certificates of the client: the system's authorities, and server certificates in
//! `SSL_CERT_FILE`.

use std::error::Error;
use std::sync::{Arc, OnceLock};

use puna_trust::{PinnedCertificateVerifier, TlsProblem};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};

/// TLS configuration. Nothing is read before the first TLS connection.
pub(crate) fn config() -> ClientConfig {
    let provider = Arc::new(ring::default_provider());
    let versions =
        ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    versions
        .unwrap_or_else(|e| unreachable!("ring speaks the usual versions of TLS: {e}"))
        .dangerous()
        // The verifier uses the system's one.
        .with_custom_certificate_verifier(Arc::new(LazySystemVerifier {
            provider,
            verifier: OnceLock::new(),
        }))
        .with_no_client_auth()
}

/// The system's verifier, created at the first certificate: most servers are local and use no TLS.
#[derive(Debug)]
struct LazySystemVerifier {
    provider: Arc<CryptoProvider>,
    verifier: OnceLock<Result<Box<dyn ServerCertVerifier>, rustls::Error>>,
}

impl ServerCertVerifier for LazySystemVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verifier = self.verifier.get_or_init(|| {
            let verifier = PinnedCertificateVerifier::system(Vec::new(), self.provider.clone());
            let verifier = verifier.map_err(|error| rustls::Error::General(error.to_string()))?;
            Ok(Box::new(verifier) as Box<dyn ServerCertVerifier>)
        });
        verifier.as_ref().map_err(Clone::clone)?.verify_server_cert(
            certificate,
            between,
            name,
            ocsp,
            now,
        )
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Describes a TLS error and what to do. `None`: the error is another one.
pub(crate) fn tls_problem(error: &(dyn Error + 'static)) -> Option<String> {
    let problem = TlsProblem::find(error)?;
    let advice = match &problem {
        TlsProblem::UnknownAuthority => {
            Some("set SSL_CERT_FILE to its certificate, or add it to the system's trust store")
        }
        TlsProblem::AuthorityItself => Some("set SSL_CERT_FILE to a file with this certificate"),
        TlsProblem::NotTls => Some("use http://"),
        problem => problem.advice(),
    };
    Some(match advice {
        Some(advice) => format!("{problem}: {advice}"),
        None => problem.to_string(),
    })
}
