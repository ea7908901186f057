//! A manager that answers over HTTPS on the loopback device, with tokens of several people.

use std::net::SocketAddr;
use std::sync::Arc;

use gvm::api::client::Client;
use gvm::api::client::place::ServerUrl;
use gvm::api::server;
use gvm::api::server::https::Https;
use gvm::api::server::tls::Certificates;
use gvm::auth::peercred::Peers;
use gvm::manager::tokens::{NewToken, TokenRequest};
use gvm::model::fingerprint::Fingerprint;
use gvm::model::principal::{Principal, Scopes};
use reqwest::{Method, RequestBuilder};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::world::{Life, World};

/// A manager over HTTPS, and the member eve of it with a token.
#[derive(Debug)]
pub struct Served {
    pub world: World,
    pub life: Life,
    pub address: SocketAddr,
    pub certificates: Arc<Certificates>,
    pub token: NewToken,
    pub stop: CancellationToken,
    pub serving: JoinHandle<()>,
}

impl Served {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// With other settings than the usual ones.
    pub async fn with(edit: impl FnOnce(&mut gvm::config::Config)) -> Self {
        let mut world = World::new();
        // Tests ask faster than people, unless they are about that.
        (world.config.https.requests_per_second, world.config.https.person_requests_per_second) = (100_000, 100_000);
        edit(&mut world.config);
        let life = world.live().await;
        life.manager.spawn_token_notes();
        let config = &world.config;
        let certificates = Certificates::open(&config.https, &config.manager.state_dir, &config.gateway.host);
        let certificates = Arc::new(certificates.unwrap());
        // The row of eve has no account on this host: only the socket makes one of it.
        let address = "127.0.0.1:0".parse().unwrap();
        let https = Https::bind(&config.https, address, certificates.clone()).await.unwrap();
        let address = https.address();
        let router = server::router_with(life.manager.clone(), Peers::new(config), Some(certificates.clone()));
        let stop = CancellationToken::new();
        let serving = tokio::spawn(https.serve(router, stop.clone()));
        let token = make_token(&life, &life.member, "test", None).await;
        Self { world, life, address, certificates, token, stop, serving }
    }

    pub fn url(&self) -> ServerUrl {
        format!("https://localhost:{}", self.address.port()).parse().unwrap()
    }

    pub fn pin(&self) -> Fingerprint {
        self.certificates.fingerprint()
    }

    /// gvm's own client with that token.
    pub fn client(&self, token: &NewToken) -> Client {
        Client::https(&self.url(), Some(self.pin())).unwrap().with_token(Some(token.text.secret().clone()))
    }

    /// Any HTTP client, which takes any certificate.
    pub fn http(&self) -> reqwest::Client {
        reqwest::Client::builder().tls_danger_accept_invalid_certs(true).no_proxy().build().unwrap()
    }

    /// A request of eve's.
    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        self.http().request(method, format!("{}{path}", self.url())).bearer_auth(self.token.text.secret().expose())
    }
}

/// A token of somebody.
pub async fn make_token(life: &Life, who: &Principal, name: &str, scopes: Option<Scopes>) -> NewToken {
    let permit = life.manager.permit_tokens(who, None).await.unwrap();
    let request = TokenRequest { name: name.to_owned(), scopes, ttl: None };
    life.manager.create_token(&permit, request).await.unwrap()
}

/// A client's side of TLS that takes any certificate, for talking to the listener by hand.
pub fn any_certificate() -> Arc<tokio_rustls::rustls::ClientConfig> {
    use tokio_rustls::rustls;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider.clone());
    let config = config.with_safe_default_protocol_versions().unwrap().dangerous();
    Arc::new(config.with_custom_certificate_verifier(Arc::new(Any(provider))).with_no_client_auth())
}

#[derive(Debug)]
struct Any(Arc<tokio_rustls::rustls::crypto::CryptoProvider>);

mod any {
    use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use tokio_rustls::rustls::{DigitallySignedStruct, Error, SignatureScheme};

    impl ServerCertVerifier for super::Any {
        fn verify_server_cert(
            &self,
            _certificate: &CertificateDer<'_>,
            _others: &[CertificateDer<'_>],
            _name: &ServerName<'_>,
            _ocsp: &[u8],
            _now: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.signature_verification_algorithms.supported_schemes()
        }
    }
}
