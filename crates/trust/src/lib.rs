//! Verifier of the certificates that TLS connections trust: those signed by the system's or by
//! additional authorities, and server certificates that the user trusts directly.
//!
//! `openssl req -x509` marks a self-signed certificate as one of an authority, and WebPKI rejects
//! an authority's certificate from a server. A user who adds it to the trusted certificates means
//! this server. The verifier accepts it if it is equal byte for byte, matches the server's name,
//! and is within its validity period.

#![forbid(unsafe_code)]

mod problem;

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

pub use problem::TlsProblem;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, SignatureScheme};
use rustls_platform_verifier::Verifier;

/// Environment variable with the path of a file of trusted certificates.
const VARIABLE: &str = "SSL_CERT_FILE";
/// Largest file of trusted certificates, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// DER encoding of the object identifier of the extension "extended key usage".
const EXTENDED_KEY_USAGE_OID: [u8; 5] = [0x06, 0x03, 0x55, 0x1d, 0x25];
/// DER encoding of the object identifier of the usage "server authentication".
const SERVER_AUTH_OID: [u8; 10] = [0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];

/// The trusted certificates cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The file of trusted certificates cannot be used.
    #[error("cannot read SSL_CERT_FILE {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The system has no certificates, or an additional certificate is invalid.
    #[error("{0}")]
    Certificates(TlsProblem),
}

/// Verifier that also accepts the certificates of servers that the user trusts directly. Another
/// verifier decides first.
#[derive(Debug)]
pub struct PinnedCertificateVerifier {
    inner: Arc<dyn ServerCertVerifier>,
    /// Certificates of servers that the user trusts directly.
    pinned: Vec<CertificateDer<'static>>,
}

impl PinnedCertificateVerifier {
    /// The system's verifier, with `extra` as additional trusted certificates. Reads the system's
    /// certificates at once.
    ///
    /// # Errors
    /// The system's certificates, or those of `SSL_CERT_FILE`, cannot be used.
    pub fn system(
        extra: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, TrustError> {
        let of_variable = certificates_of_file(std::env::var_os(VARIABLE))?;
        let inner = Verifier::new_with_extra_roots(extra.iter().cloned(), provider)
            .map_err(|error| TrustError::Certificates((&error).into()))?;
        Ok(Self { inner: Arc::new(inner), pinned: extra.into_iter().chain(of_variable).collect() })
    }
}

/// Certificates of the file that [`VARIABLE`] names. The system's verifier ignores an unusable
/// file.
fn certificates_of_file(
    path: Option<OsString>,
) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let Some(path) = path.filter(|path| !path.is_empty()).map(PathBuf::from) else {
        return Ok(Vec::new());
    };
    let mut text = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut text));
    if let Err(error) = read {
        return Err(TrustError::File { path, reason: error.to_string() });
    }
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(&text).filter_map(Result::ok).collect();
    match certificates.is_empty() {
        false => Ok(certificates),
        true => Err(TrustError::File {
            path,
            reason: "it contains no certificate in PEM format".to_owned(),
        }),
    }
}

/// Whether the error is the rejection of an authority's certificate as the server's own.
pub fn is_authority_itself(error: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(CertificateError::Other(other)) = error else {
        return false;
    };
    matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

impl PinnedCertificateVerifier {
    /// Completes the checks of a pinned certificate that was rejected as an authority's. The other
    /// verifier has checked the validity period before it returned `error`.
    fn accept(
        &self,
        certificate: &CertificateDer<'_>,
        name: &ServerName<'_>,
        error: rustls::Error,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if !is_authority_itself(&error)
            || !self.pinned.iter().any(|pinned| **pinned == **certificate)
        {
            return Err(error);
        }
        // The other verifier has not checked the key usage. Searching for bytes is safe, because
        // the user trusts the issuer of this certificate.
        let has = |what: &[u8]| certificate.windows(what.len()).any(|bytes| bytes == what);
        if has(&EXTENDED_KEY_USAGE_OID) && !has(&SERVER_AUTH_OID) {
            return Err(CertificateError::InvalidPurpose.into());
        }
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        Ok(ServerCertVerified::assertion())
    }
}

impl ServerCertVerifier for PinnedCertificateVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.inner.verify_server_cert(certificate, between, name, ocsp, now);
        verified.or_else(|error| self.accept(certificate, name, error))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{
        BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
    };
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::crypto::ring::default_provider;

    use super::*;

    /// Within the validity period: 2027, in seconds since 1970.
    const WITHIN: u64 = 1_800_000_000;
    /// After the validity period: 2031, in seconds since 1970.
    const AFTER: u64 = 1_930_000_000;

    /// A certificate as `openssl req -x509` makes it for `localhost`, with these usages of its key.
    fn self_signed(uses: &[ExtendedKeyUsagePurpose]) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.extended_key_usages = uses.to_vec();
        (params.not_before, params.not_after) =
            (date_time_ymd(2025, 1, 1), date_time_ymd(2030, 1, 1));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn verify(
        pinned: &CertificateDer<'static>,
        shown: &CertificateDer<'static>,
        name: &str,
        at: u64,
    ) -> Result<(), rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone()).unwrap();
        let provider = Arc::new(default_provider());
        let inner =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let verifier = PinnedCertificateVerifier { inner, pinned: vec![pinned.clone()] };
        let name = ServerName::try_from(name).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(at));
        verifier.verify_server_cert(shown, &[], &name, &[], now).map(drop)
    }

    #[test]
    fn an_unusable_certificate_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let (missing, empty) = (folder.path().join("none.pem"), folder.path().join("empty.pem"));
        std::fs::write(&empty, "no certificate").unwrap();
        let error = |path: &std::path::Path| {
            certificates_of_file(Some(path.into())).unwrap_err().to_string()
        };
        let start =
            |path: &std::path::Path| format!("cannot read SSL_CERT_FILE {}: ", path.display());
        assert!(error(&missing).starts_with(&start(&missing)), "{}", error(&missing));
        assert_eq!(error(&empty), start(&empty) + "it contains no certificate in PEM format");
        assert_eq!(certificates_of_file(None), Ok(Vec::new()));
        assert_eq!(certificates_of_file(Some(OsString::new())), Ok(Vec::new()));
    }

    #[test]
    fn a_pinned_server_certificate_is_accepted() {
        let ours = self_signed(&[]);
        assert_eq!(verify(&ours, &ours, "localhost", WITHIN), Ok(()));
        let for_servers = self_signed(&[
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ]);
        assert_eq!(verify(&for_servers, &for_servers, "localhost", WITHIN), Ok(()));
    }

    #[test]
    fn all_other_checks_apply_to_a_pinned_certificate() {
        let (ours, other) = (self_signed(&[]), self_signed(&[]));
        let error = verify(&ours, &other, "localhost", WITHIN).unwrap_err();
        assert!(is_authority_itself(&error), "{error}");
        let error = |pinned: &CertificateDer<'static>, name: &str, at: u64| match verify(
            pinned, pinned, name, at,
        ) {
            Err(rustls::Error::InvalidCertificate(error)) => error,
            other => panic!("{other:?}"),
        };
        use CertificateError::*;
        let name = error(&ours, "elsewhere.example", WITHIN);
        assert!(matches!(name, NotValidForName | NotValidForNameContext { .. }), "{name:?}");
        let late = error(&ours, "localhost", AFTER);
        assert!(matches!(late, Expired | ExpiredContext { .. }), "{late:?}");
        let of_clients = self_signed(&[ExtendedKeyUsagePurpose::ClientAuth]);
        assert_eq!(error(&of_clients, "localhost", WITHIN), InvalidPurpose);
    }
}
