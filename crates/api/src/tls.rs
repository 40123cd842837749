//! Trusted certificates of the client: the system's authorities, and server certificates in
//! `SSL_CERT_FILE`.

use std::error::Error;
use std::sync::{Arc, OnceLock};

use puna_trust::{PinnedCertificateVerifier, is_authority_itself};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, InvalidMessage, SignatureScheme,
};

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
            Ok(Box::new(PinnedCertificateVerifier::system(Vec::new(), self.provider.clone())?)
                as Box<dyn ServerCertVerifier>)
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
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return Some(explained(tls));
        }
        // An I/O error may contain another error that is not its source.
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        cause = inner.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
}

fn explained(error: &rustls::Error) -> String {
    use CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, UnknownIssuer,
    };
    let hint = match error {
        rustls::Error::InvalidCertificate(UnknownIssuer) => {
            "the authority of the server's certificate is not trusted: set SSL_CERT_FILE to its certificate, or add it to the system's trust store"
        }
        rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
            "use a host name that the certificate contains"
        }
        rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. }) => {
            "the server needs a new certificate"
        }
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the server does not use TLS at this address: use http://"
        }
        error if is_authority_itself(error) => {
            "the server's certificate is that of an authority: set SSL_CERT_FILE to a file with this certificate"
        }
        _ => return error.to_string(),
    };
    format!("{error}: {hint}")
}
