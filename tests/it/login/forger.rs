//! A provider of the tests' own that says and signs whatever a test wants. The honest one is oidc-provider.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RsaKeyPair};
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64;
use gvm::config::OidcConfig;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::house::URL;

/// A key that signs.
pub enum Key {
    Ec(EcdsaKeyPair),
    Rsa(RsaKeyPair),
    Ed(Ed25519KeyPair),
    /// No key at all: `alg` none.
    Nothing,
    /// A secret that both sides know.
    Shared(Vec<u8>),
}

impl Key {
    pub fn ec() -> Self {
        let scheme = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        Self::Ec(EcdsaKeyPair::generate(scheme).unwrap())
    }

    pub fn rsa() -> Self {
        Self::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap())
    }

    pub fn ed() -> Self {
        Self::Ed(Ed25519KeyPair::generate().unwrap())
    }

    pub const fn algorithm(&self) -> &'static str {
        match self {
            Self::Ec(_) => "ES256",
            Self::Rsa(_) => "RS256",
            Self::Ed(_) => "EdDSA",
            Self::Nothing => "none",
            Self::Shared(_) => "HS256",
        }
    }

    /// The public half as bytes, for who takes it for a secret.
    pub fn public(&self) -> Vec<u8> {
        match self {
            Self::Ec(pair) => pair.public_key().as_ref().to_vec(),
            Self::Rsa(pair) => pair.public_key().as_ref().to_vec(),
            Self::Ed(pair) => pair.public_key().as_ref().to_vec(),
            Self::Nothing | Self::Shared(_) => Vec::new(),
        }
    }

    /// The public half as in a provider's list.
    pub fn jwk(&self, kid: &str) -> Value {
        let public = self.public();
        let mut jwk = match self {
            Self::Ec(_) => {
                json!({"kty": "EC", "crv": "P-256", "x": B64.encode(&public[1..33]), "y": B64.encode(&public[33..])})
            }
            Self::Ed(_) => json!({"kty": "OKP", "crv": "Ed25519", "x": B64.encode(&public)}),
            // Sequence { modulus of 2048 bits with its leading zero, exponent of 3 bytes }.
            Self::Rsa(_) => {
                let (modulus, exponent) = (&public[9..265], &public[267..]);
                json!({"kty": "RSA", "n": B64.encode(modulus), "e": B64.encode(exponent)})
            }
            Self::Nothing | Self::Shared(_) => panic!("nobody lists that"),
        };
        jwk["kid"] = json!(kid);
        jwk["use"] = json!("sig");
        jwk
    }

    fn sign(&self, text: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Ec(pair) => pair.sign(&random, text).unwrap().as_ref().to_vec(),
            Self::Ed(pair) => pair.sign(text).as_ref().to_vec(),
            Self::Rsa(pair) => {
                let mut signed = vec![0; pair.public_modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, text, &mut signed).unwrap();
                signed
            }
            Self::Nothing => Vec::new(),
            Self::Shared(secret) => hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), text).as_ref().to_vec(),
        }
    }

    /// A token with these claims, under this name of a key.
    pub fn token(&self, kid: Option<&str>, claims: &Value) -> String {
        let mut head = json!({"alg": self.algorithm()});
        if let Some(kid) = kid {
            head["kid"] = json!(kid);
        }
        self.token_with(&head, claims)
    }

    pub fn token_with(&self, head: &Value, claims: &Value) -> String {
        let text = format!("{}.{}", B64.encode(head.to_string()), B64.encode(claims.to_string()));
        let signed = self.sign(text.as_bytes());
        format!("{text}.{}", B64.encode(signed))
    }
}

/// What it answers next.
#[derive(Clone, Debug)]
pub struct Script {
    /// Changes of its description.
    pub description: Value,
    pub keys: Vec<Value>,
    /// The token endpoint's answer.
    pub token: (u16, Value),
    /// Before each answer but the description's.
    pub delay: Duration,
    /// Questions by path.
    pub asked: BTreeMap<String, usize>,
}

/// The provider.
#[derive(Clone)]
pub struct Forger {
    pub issuer: String,
    script: Arc<Mutex<Script>>,
}

impl Forger {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}", listener.local_addr().unwrap());
        let script = Script {
            description: json!({}),
            keys: Vec::new(),
            token: (200, json!({})),
            delay: Duration::ZERO,
            asked: BTreeMap::new(),
        };
        let forger = Self { issuer, script: Arc::new(Mutex::new(script)) };
        let on = |path: &'static str| {
            let forger = forger.clone();
            move || {
                let forger = forger.clone();
                async move { forger.answer(path).await }
            }
        };
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(on("description")))
            .route("/jwks", get(on("jwks")))
            .route("/token", post(on("token")))
            .route("/device", post(on("device")));
        tokio::spawn(async move { axum::serve(listener, router).await });
        forger
    }

    pub fn set(&self, edit: impl FnOnce(&mut Script)) {
        edit(&mut self.script.lock().unwrap());
    }

    pub fn asked(&self, path: &str) -> usize {
        self.script.lock().unwrap().asked.get(path).copied().unwrap_or_default()
    }

    pub fn config(&self) -> OidcConfig {
        OidcConfig {
            issuer: self.issuer.clone(),
            client_id: "gvm".to_owned(),
            public_url: Some(URL.to_owned()),
            ..OidcConfig::default()
        }
    }

    async fn answer(&self, path: &str) -> Response {
        let script = {
            let mut script = self.script.lock().unwrap();
            *script.asked.entry(path.to_owned()).or_default() += 1;
            script.clone()
        };
        let issuer = &self.issuer;
        if path != "description" {
            tokio::time::sleep(script.delay).await;
        }
        let (status, body) = match path {
            "description" => {
                let mut body = json!({
                    "issuer": issuer, "authorization_endpoint": format!("{issuer}/auth"), "jwks_uri": format!("{issuer}/jwks"),
                    "token_endpoint": format!("{issuer}/token"), "device_authorization_endpoint": format!("{issuer}/device"),
                });
                for (name, value) in script.description.as_object().unwrap() {
                    body[name] = value.clone();
                }
                (200, body)
            }
            "jwks" => (200, json!({ "keys": script.keys })),
            "device" => {
                let body = json!({"device_code": "d", "user_code": "U", "verification_uri": issuer, "expires_in": 600, "interval": 1});
                (200, body)
            }
            _ => script.token,
        };
        let status = StatusCode::from_u16(status).unwrap();
        (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
    }
}
