//! The certificate of the HTTPS listener: from files that may change, or one that signs itself.

use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, version};

use crate::config::HttpsConfig;
use crate::model::fingerprint::Fingerprint;
use crate::model::secret::Secret;

/// Where the one that signs itself lies, below the state directory.
const FOLDER: &str = "https";
/// Largest file that is read; chains have a few KiB.
const FILE_MAX: u64 = 1 << 20;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file.
    #[error("cannot {doing} {path}")]
    File {
        /// What was being done.
        doing: &'static str,
        /// Which.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// It does not hold what it should.
    #[error("{path} is no {what} in PEM")]
    Pem {
        /// Which.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// The two do not go together, or are of a kind that is not known.
    #[error("the certificate {path} cannot be used with its key")]
    Pair {
        /// The certificate.
        path: PathBuf,
        /// Cause.
        #[source]
        source: rustls::Error,
    },
    /// None could be made.
    #[error("cannot make a certificate")]
    Make(#[source] rcgen::Error),
    /// The cryptographic library knows no TLS.
    #[error("cannot set TLS up")]
    Setup(#[source] rustls::Error),
}

/// A pair of files.
#[derive(Clone, Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

/// What is shown to clients now.
#[derive(Debug)]
struct Current {
    pair: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
    /// A public authority signed it for all of the names.
    is_public: bool,
    /// What the files held.
    bytes: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Bytes {
    certificate: Vec<u8>,
    key: Secret<Vec<u8>>,
}

/// The certificate, exchanged while connections go on.
#[derive(Debug)]
pub struct Certificates {
    files: Files,
    names: Vec<String>,
    current: RwLock<Current>,
    /// Contents that cannot be used; they are told once.
    refused: RwLock<Option<Bytes>>,
}

impl Certificates {
    /// Reads the configuration's files; without any, those of the state directory, made where they are missing.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn open(config: &HttpsConfig, state_dir: &Path, default_name: &str) -> Result<Self, TlsError> {
        let files = match (&config.certificate, &config.key) {
            (Some(certificate), Some(key)) => Files { certificate: certificate.clone(), key: key.clone() },
            _ => ensure_self_signed(&state_dir.join(FOLDER), &config.names, default_name)?,
        };
        let current = load(&files, &config.names)?;
        Ok(Self { files, names: config.names.clone(), current: RwLock::new(current), refused: RwLock::default() })
    }

    /// Of the certificate in use.
    pub fn fingerprint(&self) -> Fingerprint {
        self.read().fingerprint
    }

    /// A public authority signed it for the names of the configuration.
    pub fn is_public(&self) -> bool {
        self.read().is_public
    }

    /// Takes the files anew where they changed. What cannot be used leaves the old pair in use, and is told.
    pub fn refresh(&self) {
        let read = Bytes::read(&self.files);
        if let Ok(bytes) = &read
            && (*bytes == self.read().bytes || self.refused().as_ref() == Some(bytes))
        {
            return;
        }
        match read.and_then(|bytes| self.take(bytes)) {
            Ok(current) => {
                tracing::info!(fingerprint = %current.fingerprint, is_public = current.is_public, "took the new certificate");
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
            }
            Err(error) => tracing::warn!(
                error = %crate::manager::error::chain(&error),
                "the new certificate cannot be used; the old one stays"
            ),
        }
    }

    /// The server's side of TLS 1.2 and 1.3 with this certificate.
    ///
    /// # Errors
    /// [`TlsError::Setup`].
    pub fn server_config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, TlsError> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(TlsError::Setup)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    fn take(&self, bytes: Bytes) -> Result<Current, TlsError> {
        let taken = of_bytes(&self.files, &self.names, bytes.clone());
        if taken.is_err() {
            *self.refused.write().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
        }
        taken
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self) -> std::sync::RwLockReadGuard<'_, Option<Bytes>> {
        self.refused.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.read().pair))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

impl Bytes {
    fn read(files: &Files) -> Result<Self, TlsError> {
        Ok(Self { certificate: read_file(&files.certificate)?, key: read_file(&files.key)?.into() })
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::File { doing: "read", path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, FILE_MAX), &mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn load(files: &Files, names: &[String]) -> Result<Current, TlsError> {
    of_bytes(files, names, Bytes::read(files)?)
}

fn of_bytes(files: &Files, names: &[String], bytes: Bytes) -> Result<Current, TlsError> {
    let no_pem = |path: &Path, what| TlsError::Pem { path: path.to_owned(), what };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&bytes.certificate)
        .collect::<Result<_, _>>()
        .map_err(|_| no_pem(&files.certificate, "certificate"))?;
    let first = chain.first().ok_or_else(|| no_pem(&files.certificate, "certificate"))?;
    let fingerprint = Fingerprint::of(first);
    let is_public = is_public(&chain, names);
    let key = PrivateKeyDer::from_pem_slice(bytes.key.expose()).map_err(|_| no_pem(&files.key, "private key"))?;
    let pair = CertifiedKey::from_der(chain, key, &provider())
        .map_err(|source| TlsError::Pair { path: files.certificate.clone(), source })?;
    Ok(Current { pair: Arc::new(pair), fingerprint, is_public, bytes })
}

/// True where any browser would take it for all of these names.
fn is_public(chain: &[CertificateDer<'_>], names: &[String]) -> bool {
    let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let Ok(verifier) = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build() else {
        return false;
    };
    let Some((first, others)) = chain.split_first() else { return false };
    let is_good = |name: &String| {
        let Ok(name) = ServerName::try_from(name.as_str()) else { return false };
        verifier.verify_server_cert(first, others, &name, &[], UnixTime::now()).is_ok()
    };
    !names.is_empty() && names.iter().all(is_good)
}

/// Makes a certificate that signs itself where there is none; its key is for its owner alone.
fn ensure_self_signed(folder: &Path, names: &[String], default_name: &str) -> Result<Files, TlsError> {
    let files = Files { certificate: folder.join("certificate.pem"), key: folder.join("key.pem") };
    if files.certificate.exists() && files.key.exists() {
        return Ok(files);
    }
    let mut names = names.to_vec();
    if names.is_empty() {
        names.extend([default_name.to_owned(), "localhost".to_owned()]);
        names.dedup();
    }
    let made = rcgen::generate_simple_self_signed(names).map_err(TlsError::Make)?;
    let failed = |path: &Path, doing| {
        let path = path.to_owned();
        move |source| TlsError::File { doing, path, source }
    };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed(folder, "make"))?;
    // The certificate last: where it is there, the key is as well.
    for (path, text, mode) in
        [(&files.key, made.signing_key.serialize_pem(), 0o600), (&files.certificate, made.cert.pem(), 0o644)]
    {
        let part = path.with_extension("part");
        let _ = std::fs::remove_file(&part);
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&part);
        let mut file = file.map_err(failed(&part, "make"))?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed(&part, "write"))?;
        std::fs::rename(&part, path).map_err(failed(path, "put in its place"))?;
    }
    Ok(files)
}

/// How often files are looked at.
pub const REFRESH_EVERY: Duration = Duration::from_secs(30);
