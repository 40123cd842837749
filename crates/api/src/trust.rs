//! Whose certificates a client believes: those of the authorities that the system knows, and of servers that `SSL_CERT_FILE` names.

use std::error::Error;
use std::sync::{Arc, OnceLock};

use puna_trust::{Named, is_authority_itself};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, InvalidMessage, SignatureScheme,
};

/// What connections with TLS need. Nothing is read before the first of them.
pub(crate) fn config() -> ClientConfig {
    let provider = Arc::new(ring::default_provider());
    let versions =
        ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    versions
        .unwrap_or_else(|e| unreachable!("ring speaks the usual versions of TLS: {e}"))
        .dangerous()
        // It asks the system's verifier.
        .with_custom_certificate_verifier(Arc::new(System { provider, verifier: OnceLock::new() }))
        .with_no_client_auth()
}

/// The system's verifier, made when the first certificate comes: most servers are on this machine and have none.
#[derive(Debug)]
struct System {
    provider: Arc<CryptoProvider>,
    verifier: OnceLock<Result<Box<dyn ServerCertVerifier>, rustls::Error>>,
}

impl ServerCertVerifier for System {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verifier = self.verifier.get_or_init(|| {
            Ok(Box::new(Named::system(Vec::new(), self.provider.clone())?)
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

/// What went wrong with TLS, if that was it, and the way out.
pub(crate) fn problem(error: &(dyn Error + 'static)) -> Option<String> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return Some(explained(tls));
        }
        // An error of the system may have another one inside that is not its source.
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
            "this machine does not know who has signed the server's certificate: set SSL_CERT_FILE to the authority's \
             certificate, or make the system trust it"
        }
        rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
            "use a name that the certificate is for"
        }
        rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. }) => {
            "the server needs a new certificate"
        }
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the server speaks without TLS there: use http://"
        }
        error if is_authority_itself(error) => {
            "the server shows a certificate of an authority for its own: set SSL_CERT_FILE to a file with that very certificate"
        }
        _ => return error.to_string(),
    };
    format!("{error}: {hint}")
}
