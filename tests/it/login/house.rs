//! A manager that has login providers, asked over HTTP from an address that each test chooses.

use std::net::SocketAddr;

use axum::Extension;
use axum::extract::ConnectInfo;
use gvm::api::server::{self, Peer};
use gvm::auth::peercred::Peers;
use gvm::config::Config;
use gvm::store::audit::Whose;
use reqwest::{Client, Method, Response};
use serde_json::{Value, json};
use tokio::net::UnixListener;

use crate::support::world::{Life, World};

/// What browsers of the tests call the manager; nothing is ever sent there.
pub const URL: &str = "https://gvm.test";

/// The manager.
pub struct House {
    pub life: Life,
    _world: World,
    dir: tempfile::TempDir,
}

impl House {
    /// With this configuration.
    pub async fn new(edit: impl FnOnce(&mut Config)) -> Self {
        let mut world = World::new();
        edit(&mut world.config);
        let life = world.live().await;
        let dir = tempfile::tempdir().unwrap();
        let house = Self { life, _world: world, dir };
        house.listen("192.0.2.1");
        house
    }

    /// A listener for whom it comes from this address.
    pub fn listen(&self, address: &str) {
        let listener = UnixListener::bind(self.dir.path().join(address)).unwrap();
        let peers = Peers::new(self.life.manager.config());
        let peer = Peer::Network(SocketAddr::new(address.parse().unwrap(), 40_000));
        let router = server::router(self.life.manager.clone(), peers).layer(Extension(ConnectInfo(peer)));
        tokio::spawn(async move { axum::serve(listener, router).await });
    }

    pub fn client(&self, address: &str) -> Client {
        let path = self.dir.path().join(address);
        Client::builder().unix_socket(path).redirect(reqwest::redirect::Policy::none()).no_proxy().build().unwrap()
    }

    pub async fn ask_from(&self, address: &str, method: &str, path: &str, body: &Value) -> Response {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = self.client(address).request(method, format!("http://gvm{path}"));
        let request = if body.is_null() { request } else { request.json(body) };
        request.send().await.unwrap()
    }

    pub async fn ask(&self, method: &str, path: &str, body: &Value) -> Response {
        self.ask_from("192.0.2.1", method, path, body).await
    }

    /// Status and body.
    pub async fn answer(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.ask(method, path, body).await;
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")))
    }

    /// Logs in with a password.
    pub async fn password(&self, user: &str, password: &str) -> (u16, Value) {
        self.answer("POST", "/v1/login/password", &json!({"user": user, "password": password})).await
    }

    /// Who the manager says that a token is.
    pub async fn me(&self, token: &str) -> (u16, Value) {
        let answer = self.client("192.0.2.1").get("http://gvm/v1/me").bearer_auth(token).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    /// The newest lines of the record about logins: actor, outcome, detail.
    pub async fn record(&self) -> Vec<(String, String, String)> {
        let rows = self.life.store.operations(Whose::Everybody, 200).await.unwrap();
        let rows = rows.into_iter().filter(|row| row.action == "login");
        rows.map(|row| (row.actor, row.outcome.as_str().to_owned(), row.detail)).collect()
    }
}

/// A file for its owner's eyes only.
pub fn secret(dir: &std::path::Path, name: &str, text: &str) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}
