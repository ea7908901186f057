//! How a client knows the server again whose certificate no public authority signed.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme, version};

use crate::model::fingerprint::Fingerprint;

/// The fingerprint that a server showed, where it was not the one that is pinned.
#[derive(Clone, Debug, Default)]
pub struct Stranger(Arc<Mutex<Option<Fingerprint>>>);

impl Stranger {
    /// What was shown.
    pub fn shown(&self) -> Option<Fingerprint> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the pinned certificate and no other; names, dates and authorities say nothing.
#[derive(Debug)]
struct Pinned {
    /// None takes nothing, and only sees what is shown.
    pin: Option<Fingerprint>,
    stranger: Stranger,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = Fingerprint::of(certificate);
        if self.pin == Some(shown) {
            return Ok(ServerCertVerified::assertion());
        }
        *self.stranger.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown);
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// A client's side of TLS that knows the server by its fingerprint alone; without one it knows none.
///
/// # Errors
/// Where the cryptographic library knows no TLS.
pub fn pinned(pin: Option<Fingerprint>, stranger: Stranger) -> Result<ClientConfig, Error> {
    let provider = Arc::new(default_provider());
    let verifier = Arc::new(Pinned { pin, stranger, provider: Arc::clone(&provider) });
    Ok(ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth())
}

/// True where a server's certificate is why something failed.
pub fn is_about_certificate(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(inner) = cause {
        let wrapped = inner.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let found = match wrapped {
            Some(wrapped) => wrapped.downcast_ref::<Error>(),
            None => inner.downcast_ref::<Error>(),
        };
        if let Some(found) = found {
            return matches!(found, Error::InvalidCertificate(_));
        }
        cause = match wrapped {
            Some(wrapped) => Some(wrapped as &(dyn std::error::Error + 'static)),
            None => inner.source(),
        };
    }
    false
}
