//! Nothing secret on the record or in the log, whatever people put in the wrong place.

use std::io::Write;
use std::sync::{Arc, Mutex};

use gvm::api::client::segment;
use serde_json::{Value, json};
use sqlx::Row as _;

use super::*;
use crate::support::own_process::in_own_process;

const OWNER: u32 = 1;
const OTHER: u32 = 2;

/// Never to be seen, each in a place where people put such things.
const PASSWORD: &str = "correct-horse-battery-staple";
const TOKEN: &str = "gvm_p_0123456789abcdefABCDEF0123456789";
const PRIVATE: &str = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAE\n-----END";
const BODY: &str = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAE";

/// Where a machine's own secrets have to be.
const PLACES: [(&str, &str); 3] =
    [("vm_secrets", "host_key_private"), ("vm_secrets", "login_key_private"), ("vms", "spec")];

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Every value of every table, with where it stands.
async fn values(world: &World) -> Vec<(String, String, String)> {
    let options = SqliteConnectOptions::from_str("sqlite:").unwrap().filename(world.state_dir().join("gvm.db"));
    let mut db = SqliteConnection::connect_with(&options).await.unwrap();
    let sql =
        "SELECT m.name AS t, c.name AS c FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'";
    let columns = sqlx::query(sql).fetch_all(&mut db).await.unwrap();
    let mut all = Vec::new();
    for column in columns {
        let (table, name): (String, String) = (column.get("t"), column.get("c"));
        let sql = sqlx::AssertSqlSafe(format!(
            "SELECT COALESCE(CASE typeof({name}) WHEN 'blob' THEN hex({name}) ELSE CAST({name} AS TEXT) END, '') AS v FROM {table}"
        ));
        let rows = sqlx::query(sql).fetch_all(&mut db).await.unwrap();
        all.extend(rows.iter().map(|row| (table.clone(), name.clone(), row.get("v"))));
    }
    all
}

async fn story(world: &World, life: &Life, dir: &Path) {
    let owner = serve(world, life, dir, OWNER).await;
    let other = serve(world, life, dir, OTHER).await;
    let user_data = format!("#cloud-config\npassword: {PASSWORD}\n");
    let body = json!({"profile": "firmware", "name": "dev", "user_data": user_data});
    let made: Result<Value, _> = owner.post("/v1/vms", &body).await;
    assert!(made.is_ok(), "{made:?}");
    let broken = json!({"profile": "firmware", "name": "bad", "user_data": format!("#cloud-config\n{PASSWORD}: [")});
    let _: Result<Value, _> = owner.post("/v1/vms", &broken).await;
    let keys: [Result<Value, _>; 3] = [
        owner.post("/v1/keys", &json!({"public_key": PRIVATE})).await,
        owner.post("/v1/keys", &json!({"public_key": TOKEN})).await,
        owner.delete(&format!("/v1/keys/{TOKEN}")).await,
    ];
    assert!(keys.iter().all(Result::is_err));
    for wrong in [TOKEN.to_owned(), segment(PRIVATE), format!("dev.{TOKEN}")] {
        for client in [&owner, &other] {
            let answer: Result<Value, _> = client.delete(&format!("/v1/vms/{wrong}")).await;
            assert!(answer.is_err());
            let answer: Result<Value, _> =
                client.post(&format!("/v1/vms/{wrong}/clone"), &json!({"name": TOKEN})).await;
            assert!(answer.is_err());
        }
    }
    for id in life.store.vm_ids().await.unwrap() {
        life.settle(id).await;
    }
    life.manager.sign_head().await.unwrap().unwrap();
}

#[test]
fn secrets_in_the_wrong_place_are_not_kept() {
    in_own_process!(|| {
        let log = Log::default();
        let sink = log.clone();
        let filter = tracing_subscriber::EnvFilter::new("gvm=trace");
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(move || sink.clone()).init();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let world = World::new();
            let life = world.live().await;
            let dir = tempfile::tempdir().unwrap();
            story(&world, &life, dir.path()).await;
            let all = values(&world).await;
            let secrets: Vec<&String> = all
                .iter()
                .filter(|(table, name, _)| table == "vm_secrets" && name.ends_with("private"))
                .map(|v| &v.2)
                .collect();
            assert!(secrets.len() == 2 && all.iter().any(|(table, _, text)| table == "record" && text == "vm.clone"));
            let seed = std::fs::read_to_string(world.state_dir().join("record.key")).unwrap();
            let mut hidden = vec![PASSWORD, TOKEN, BODY, "PRIVATE KEY", seed.trim()];
            // A line of each machine's own keys.
            hidden.extend(secrets.iter().filter_map(|key| key.lines().nth(3)));
            for (table, name, text) in &all {
                let is_its_place = PLACES.contains(&(table.as_str(), name.as_str()));
                let found = hidden.iter().find(|secret| text.contains(**secret) && !is_its_place);
                assert_eq!(found, None, "{table}.{name}: {text}");
            }
            let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
            assert!(log.contains("a request was refused") && log.contains("the record's head"), "{log}");
            for secret in hidden {
                let line = log.lines().find(|line| line.contains(secret));
                assert_eq!(line, None);
            }
        });
    });
}
