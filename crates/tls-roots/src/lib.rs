//! Verifies TLS servers with the certificate authorities in the files of the system, or in those that
//! `SSL_CERT_FILE` and `SSL_CERT_DIR` name. It has what reqwest uses of the crate whose name it has.
//!
//! It never asks a keychain: the frameworks for that exist only on a Mac, and the product is also built
//! elsewhere for it. Without certificates it can be made, because a local server needs none; each verification
//! then fails.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};

const CERT_FILE: &str = "SSL_CERT_FILE";
const CERT_DIR: &str = "SSL_CERT_DIR";

/// A verifier with the certificate authorities that this machine trusts.
#[derive(Debug)]
pub struct Verifier {
    /// None if there are no certificate authorities.
    inner: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    pub fn new(provider: Arc<CryptoProvider>) -> Result<Self, Error> {
        Self::new_with_extra_roots([], provider)
    }

    /// Trusts these certificates, too.
    pub fn new_with_extra_roots(
        extra: impl IntoIterator<Item = CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in extra {
            roots.add(certificate)?;
        }
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
        // A certificate of the system that cannot be parsed is one that is not trusted.
        roots.add_parsable_certificates(load(variable(CERT_FILE), variable(CERT_DIR)));
        Self::with_roots(roots, provider)
    }

    fn with_roots(roots: RootCertStore, provider: Arc<CryptoProvider>) -> Result<Self, Error> {
        let inner = if roots.is_empty() {
            None
        } else {
            let builder =
                WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone());
            let built = builder.build();
            Some(built.map_err(|error| Error::Other(OtherError(Arc::new(error))))?)
        };
        Ok(Self { inner, provider })
    }
}

/// The certificates of a file and a directory; of those of the system if neither is named.
fn load(file: Option<PathBuf>, directory: Option<PathBuf>) -> Vec<CertificateDer<'static>> {
    if file.is_some() || directory.is_some() {
        return load_files(file, directory);
    }
    let system = openssl_probe::probe();
    match system.cert_file {
        Some(file) => load_files(Some(file), None),
        // One directory has them all; those after it are of other systems.
        None => load_files(None, system.cert_dir.into_iter().next()),
    }
}

fn load_files(file: Option<PathBuf>, directory: Option<PathBuf>) -> Vec<CertificateDer<'static>> {
    let entries = directory.map(std::fs::read_dir);
    let entries = entries.and_then(Result::ok).into_iter().flatten().flatten();
    let files = file.into_iter().chain(entries.map(|entry| entry.path()));
    files.flat_map(|path| certificates(&path)).collect()
}

fn certificates(path: &Path) -> Vec<CertificateDer<'static>> {
    if !path.is_file() {
        return Vec::new();
    }
    match CertificateDer::pem_file_iter(path) {
        Ok(certificates) => certificates.filter_map(Result::ok).collect(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read certificates");
            Vec::new()
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(inner) = &self.inner else {
            return Err(Error::General(format!(
                "this machine has no certificate authorities, so the server cannot be verified; install them \
                 (the package ca-certificates), or name a file with {CERT_FILE}"
            )));
        };
        inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate's frame with bytes that are no certificate: enough to count what is loaded.
    const PEM: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

    fn provider() -> Arc<CryptoProvider> {
        Arc::new(rustls::crypto::ring::default_provider())
    }

    #[test]
    fn variables_replace_the_certificates_of_the_system() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("all.pem");
        std::fs::write(&file, PEM.repeat(3)).unwrap();
        let below = directory.path().join("below");
        std::fs::create_dir(&below).unwrap();
        std::fs::write(below.join("one.pem"), PEM).unwrap();
        std::fs::write(below.join("other"), "no certificate").unwrap();
        assert_eq!(load(Some(file.clone()), None).len(), 3);
        assert_eq!(load(None, Some(below.clone())).len(), 1);
        assert_eq!(load(Some(file), Some(below)).len(), 4);
        assert!(load(Some(directory.path().join("none")), None).is_empty());
    }

    #[test]
    fn without_certificates_it_is_made_and_verifies_nothing() {
        let verifier = Verifier::with_roots(RootCertStore::empty(), provider()).unwrap();
        let server = ServerName::try_from("example.com").unwrap();
        let certificate = CertificateDer::from(vec![0]);
        let now = UnixTime::now();
        let refused = verifier.verify_server_cert(&certificate, &[], &server, &[], now);
        assert!(
            refused.unwrap_err().to_string().contains(CERT_FILE),
            "the error names the remedy"
        );
    }
}
