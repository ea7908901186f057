//! Quotas over HTTP, as the command line asks for them.

use axum::Extension;
use axum::extract::ConnectInfo;
use gvm::api::client::{Client, ClientError};
use gvm::api::error::ErrorCode;
use gvm::api::server::{self, Peer};
use gvm::api::types::{Accepted, CreateVm, DryRun, QuotaView, SetQuota};
use gvm::auth::peercred::Peers;
use serde_json::{Value, json};
use tokio::net::UnixListener;

use super::*;
use crate::support::world::World;

/// Accounts that every Linux has.
const ROOT: u32 = 0;
const MEMBER: u32 = 1;

fn client(world: &World, life: &Life, uid: u32) -> Client {
    let path = world.state_dir().join(format!("{uid}.sock"));
    let listener = UnixListener::bind(&path).unwrap();
    let router = server::router(life.manager.clone(), Peers::new(&world.config));
    let router = router.layer(Extension(ConnectInfo(Peer::of_uid(uid))));
    tokio::spawn(async move { axum::serve(listener, router).await });
    Client::new(&path).unwrap()
}

fn used_limit_next(view: &QuotaView, kind: &str) -> (u64, Option<u64>, u64, String) {
    let line = view.lines.iter().find(|line| line.kind == kind).unwrap();
    (line.used, line.limit, line.next, line.source.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_are_shown_set_and_met_over_http() {
    let world = World::new();
    let life = world.live().await;
    let (root, member) = (client(&world, &life, ROOT), client(&world, &life, MEMBER));
    let name = member.get::<Value>("/v1/me").await.unwrap()["name"].as_str().unwrap().to_owned();
    let path = format!("/v1/users/{name}/quota");
    let set: SetQuota =
        serde_json::from_value(json!({"limits": {"vms": "1", "gpu_hours": "100h", "memory": "64GiB"}})).unwrap();
    let view: QuotaView = root.patch(&path, &set).await.unwrap();
    assert_eq!((view.name.as_str(), view.lines.len(), view.is_team), (name.as_str(), QuotaKind::ALL.len(), false));
    assert_eq!(used_limit_next(&view, "gpu_hours"), (0, Some(360_000), 0, "own".to_owned()));

    let request = CreateVm { name: Some("dev".to_owned()), profile: "firmware".to_owned(), ..CreateVm::default() };
    let run: DryRun = member.post("/v1/dry-run", &request).await.unwrap();
    let vms = run.quota.iter().find(|line| line.kind == "vms").unwrap();
    assert_eq!((vms.used, vms.limit, vms.next), (0, Some(1), 1));
    let made: Accepted = member.post("/v1/vms", &request).await.unwrap();
    assert_eq!((made.vm.name.as_str(), made.vm.team.as_str()), ("dev", ""));
    let own: QuotaView = member.get("/v1/quota?profile=firmware").await.unwrap();
    assert_eq!(used_limit_next(&own, "vms"), (1, Some(1), 1, "own".to_owned()));
    assert_eq!((own.profile.as_str(), used_limit_next(&own, "disk").1), ("firmware", None));
    let again = CreateVm { name: Some("two".to_owned()), ..request };
    let error = member.post::<_, Accepted>("/v1/vms", &again).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::OverQuota);
    insta::assert_snapshot!(error.to_string(), @"over your quota of virtual machines: you have 1, this asks for 1, the limit is 1: 1 too many");

    // Taken away again, and on the record.
    let lift: SetQuota = serde_json::from_value(json!({"limits": {"vms": null, "memory": "unlimited"}})).unwrap();
    let view: QuotaView = root.patch(&path, &lift).await.unwrap();
    assert_eq!(used_limit_next(&view, "vms"), (1, None, 1, String::new()));
    let record: Value = root.get("/v1/operations?limit=1").await.unwrap();
    let row = &record["operations"][0];
    let told = ["action", "target", "detail"].map(|field| row[field].as_str().unwrap().to_owned());
    assert_eq!(told, ["user.quota".to_owned(), name, "vms default, memory unlimited".to_owned()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_limits_are_refused_and_change_nothing() {
    let world = World::new();
    let life = world.live().await;
    let root = client(&world, &life, ROOT);
    let id = team(&life.store, "hpc", &[(QuotaKind::Vms, 2)], &[]).await;
    for (body, words) in [
        (json!({"limits": {"cats": "1"}}), "is not something that can be limited"),
        (json!({"limits": {"vms": "-1"}}), "write a whole number"),
        (json!({"limits": {"vms": "3", "memory": "much"}}), "is not a size"),
        (json!({"limits": {"gpu_hours": "99999999999999"}}), "as good as unlimited"),
        (json!({"limits": {"vms": 3}}), "not understood"),
        (json!({"limit": {}}), "unknown field"),
        (json!({"member_limits": {"vms": "3", "disk": ""}}), "disk"),
    ] {
        let error = root.patch::<_, QuotaView>("/v1/teams/hpc/quota", &body).await.unwrap_err();
        let ClientError::Api(told) = &error else { panic!("{error:?}") };
        assert!(told.code == ErrorCode::Invalid && told.message.contains(words), "{body}: {told:?}");
    }
    let limits = life.store.limits_of_team(id).await.unwrap();
    assert_eq!((limits.own, limits.member), (quota(&[(QuotaKind::Vms, 2)]), Quota::default()));
    let both = json!({"limits": {"gpus": "8"}, "member_limits": {"gpus": "2"}});
    let view: QuotaView = root.patch("/v1/teams/hpc/quota", &both).await.unwrap();
    assert_eq!((view.is_team, view.member_limits["gpus"].as_str()), (true, "2"));
    let own = json!({"member_limits": {"vms": "1"}});
    let error = root.patch::<_, QuotaView>("/v1/users/root/quota", &own).await.unwrap_err();
    assert!(error.to_string().contains("limits of members are a team's"), "{error}");
}
