//! Whose certificates connections believe: those of the authorities that the system knows, of further ones, and a server's own
//! certificate where somebody has named that very one.
//!
//! A certificate that `openssl req -x509` makes says of itself that it is an authority's, and rules of the web let no server show such
//! a one. Who puts it into a file of certificates to trust means that server all the same; so it is believed, byte for byte,
//! as long as it is for the server's name and its time has not passed.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, SignatureScheme};
use rustls_platform_verifier::Verifier;

/// The variable that names the system's certificates where they are elsewhere.
const VARIABLE: &str = "SSL_CERT_FILE";
/// Bytes of such a file at most.
const MAX_FILE: u64 = 4 << 20;
/// The extension that says what a key may be used for, and that it may be a server's, as certificates have them.
const USES: [u8; 5] = [0x06, 0x03, 0x55, 0x1d, 0x25];
const SERVER: [u8; 10] = [0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];

/// Another verifier, which is asked first, and certificates of servers that are named themselves.
#[derive(Debug)]
pub struct Named {
    inner: Arc<dyn ServerCertVerifier>,
    named: Vec<CertificateDer<'static>>,
}

impl Named {
    /// The system's verifier, with certificates trusted beside the system's. Reads these now.
    ///
    /// # Errors
    /// The system's certificates cannot be used.
    pub fn system(
        extra: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, rustls::Error> {
        let inner = Arc::new(Verifier::new_with_extra_roots(extra.iter().cloned(), provider)?);
        Ok(Self { inner, named: extra.into_iter().chain(of_variable()).collect() })
    }
}

/// The certificates of the file that the environment names. What is wrong with it is the system's verifier's to say.
fn of_variable() -> Vec<CertificateDer<'static>> {
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else {
        return Vec::new();
    };
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut text));
    read.map(|_| CertificateDer::pem_slice_iter(&text).filter_map(Result::ok).collect())
        .unwrap_or_default()
}

/// Whether a server was refused as it shows an authority's certificate for its own.
pub fn is_authority_itself(error: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(CertificateError::Other(other)) = error else {
        return false;
    };
    matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

impl Named {
    /// Looks at what is left of a certificate when it was refused for being an authority's: its time was looked at before that.
    fn accept(
        &self,
        certificate: &CertificateDer<'_>,
        name: &ServerName<'_>,
        error: rustls::Error,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if !is_authority_itself(&error) || !self.named.iter().any(|named| **named == **certificate)
        {
            return Err(error);
        }
        // Not looked at yet. A file that somebody trusts is not made to deceive a search for bytes.
        let has = |what: &[u8]| certificate.windows(what.len()).any(|bytes| bytes == what);
        if has(&USES) && !has(&SERVER) {
            return Err(CertificateError::InvalidPurpose.into());
        }
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        Ok(ServerCertVerified::assertion())
    }
}

impl ServerCertVerifier for Named {
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

    /// 2027 and 2031.
    const WITHIN: u64 = 1_800_000_000;
    const AFTER: u64 = 1_930_000_000;

    /// What `openssl req -x509` makes for `localhost`, with uses of its key.
    fn made(uses: &[ExtendedKeyUsagePurpose]) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.extended_key_usages = uses.to_vec();
        (params.not_before, params.not_after) =
            (date_time_ymd(2025, 1, 1), date_time_ymd(2030, 1, 1));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn ask(
        named: &CertificateDer<'static>,
        shown: &CertificateDer<'static>,
        name: &str,
        at: u64,
    ) -> Result<(), rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(named.clone()).unwrap();
        let provider = Arc::new(default_provider());
        let inner =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let named = Named { inner, named: vec![named.clone()] };
        let name = ServerName::try_from(name).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(at));
        named.verify_server_cert(shown, &[], &name, &[], now).map(drop)
    }

    #[test]
    fn a_servers_own_certificate_that_is_named_is_believed() {
        let ours = made(&[]);
        assert_eq!(ask(&ours, &ours, "localhost", WITHIN), Ok(()));
        let for_servers =
            made(&[ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]);
        assert_eq!(ask(&for_servers, &for_servers, "localhost", WITHIN), Ok(()));
    }

    #[test]
    fn all_else_about_it_is_looked_at_as_ever() {
        let (ours, other) = (made(&[]), made(&[]));
        let error = ask(&ours, &other, "localhost", WITHIN).unwrap_err();
        assert!(is_authority_itself(&error), "{error}");
        let error = |named: &CertificateDer<'static>, name: &str, at: u64| match ask(
            named, named, name, at,
        ) {
            Err(rustls::Error::InvalidCertificate(error)) => error,
            other => panic!("{other:?}"),
        };
        use CertificateError::*;
        let name = error(&ours, "elsewhere.example", WITHIN);
        assert!(matches!(name, NotValidForName | NotValidForNameContext { .. }), "{name:?}");
        let late = error(&ours, "localhost", AFTER);
        assert!(matches!(late, Expired | ExpiredContext { .. }), "{late:?}");
        let of_clients = made(&[ExtendedKeyUsagePurpose::ClientAuth]);
        assert_eq!(error(&of_clients, "localhost", WITHIN), InvalidPurpose);
    }
}
