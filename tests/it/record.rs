//! The record: nothing of it can be changed without that being found, and every request leads to its entry.
//!
//! ```text
//!   manager on a fake hypervisor, real database <--- a program beside it that edits the file
//!        \--- HTTP: queries, export, head, verify
//! ```

mod carried;
mod outside;
mod queries;
mod secrets;
mod tamper;
mod writing;

use std::path::Path;
use std::str::FromStr as _;

use axum::Extension;
use axum::extract::ConnectInfo;
use gvm::api::client::Client;
use gvm::api::server::{self, Peer};
use gvm::auth::headkey::HeadKey;
use gvm::auth::peercred::Peers;
use gvm::auth::policy::{self, Action, Permit};
use gvm::manager::record::Verified;
use gvm::model::event::{AuditEvent, Outcome};
use gvm::model::id::UserId;
use gvm::model::name::UserName;
use gvm::model::principal::{Principal, Role, User};
use gvm::model::record::check::Fault;
use gvm::model::record::head::SignedHead;
use jiff::Timestamp;
use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tokio::net::UnixListener;

use crate::support::world::{Life, World};

/// Somebody who may see and verify everything.
fn auditor() -> Principal {
    let name: UserName = "ada".parse().unwrap();
    Principal::of(User { id: UserId::generate(), name, role: Role::Operator })
}

fn permit(action: Action) -> Permit {
    policy::allow(&auditor(), action).unwrap()
}

/// An entry of something that the manager did, told apart by its number.
fn own(number: usize) -> AuditEvent {
    AuditEvent::own(Timestamp::now(), "test.write", format!("thing-{number}"), Outcome::Success)
}

async fn write(life: &Life, count: usize) {
    for number in 0..count {
        life.store.record(&own(number)).await.unwrap();
    }
}

async fn verify(life: &Life, kept: &[SignedHead]) -> Verified {
    life.manager.verify_record(&permit(Action::AuditVerify), kept.to_vec(), None).await.unwrap()
}

/// The first bad entry.
async fn fault(life: &Life) -> Fault {
    verify(life, &[]).await.found.unwrap_err()
}

/// Does something to the database file beside the manager.
async fn edit(world: &World, sql: &str) {
    let options = SqliteConnectOptions::from_str("sqlite:").unwrap().filename(world.state_dir().join("gvm.db"));
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

fn key_of(world: &World) -> HeadKey {
    HeadKey::ensure(&world.state_dir().join("record.key")).unwrap()
}

/// The manager's API for the account of this uid, on a socket of its own.
async fn serve(world: &World, life: &Life, dir: &Path, uid: u32) -> Client {
    let socket = dir.join(uid.to_string());
    let listener = UnixListener::bind(&socket).unwrap();
    let router = server::router(life.manager.clone(), Peers::new(&world.config));
    let router = router.layer(Extension(ConnectInfo(Peer::of_uid(uid))));
    tokio::spawn(async move { axum::serve(listener, router).await });
    Client::new(&socket).unwrap()
}

/// The login of an account that every Linux has.
fn login(uid: u32) -> String {
    nix::unistd::User::from_uid(uid.into()).unwrap().unwrap().name
}
