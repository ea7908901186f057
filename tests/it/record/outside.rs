//! The record outside of the manager: exports, and `gvm audit` by whom has only a file.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use futures_util::StreamExt as _;
use gvm::api::types::{EntryList, HeadView, RecordVerdict};

use super::*;
use crate::support::run::{Ended, run};

const OPERATOR: u32 = 4;

/// `gvm` against a socket; one that is not there for what needs no manager.
async fn gvm(socket: PathBuf, args: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gvm"));
    command.args(args).env("GVM_SOCKET", socket).env_remove("GVM_CONFIG").env("GVM_LOG", "off");
    tokio::task::spawn_blocking(move || run(command, Duration::from_secs(60))).await.unwrap()
}

struct Exported {
    dir: tempfile::TempDir,
    world: World,
    life: Life,
    client: Client,
}

async fn written(count: usize) -> Exported {
    let mut world = World::new();
    world.config.people.operators = vec![login(OPERATOR)];
    let life = world.live().await;
    let dir = tempfile::tempdir().unwrap();
    let client = serve(&world, &life, dir.path(), OPERATOR).await;
    write(&life, count).await;
    Exported { dir, world, life, client }
}

impl Exported {
    fn socket(&self) -> PathBuf {
        self.dir.path().join(OPERATOR.to_string())
    }

    fn put(&self, lines: &[String]) -> String {
        let path = self.dir.path().join("export.jsonl");
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        path.to_str().unwrap().to_owned()
    }

    async fn verify(&self, file: &str, more: &[&str]) -> Ended {
        gvm("/nonexistent/api.sock".into(), &[&["audit", "verify", "--file", file], more].concat()).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_is_verified_without_a_manager_and_an_edited_one_is_not() {
    let e = written(12).await;
    e.life.manager.sign_head().await.unwrap().unwrap();
    write(&e.life, 8).await;
    let head = e.life.manager.sign_head().await.unwrap().unwrap().to_string();
    write(&e.life, 4).await;
    let key = key_of(&e.world).public().to_string();
    let exported = gvm(e.socket(), &["audit", "export"]).await.ok().stdout;
    let lines: Vec<String> = exported.lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 1 + 24 + 2 + 1);
    let file = e.put(&lines);
    let plain = e.verify(&file, &[]).await.ok();
    assert!(plain.stdout.contains("ok: the export is what was written, from entry 1 to 24, and 2 signed heads agree"));
    assert!(plain.stderr.contains("who signed it was not checked"), "{}", plain.stderr);
    let checked = e.verify(&file, &["--head", &head, "--key", &key]).await.ok();
    assert!(
        checked.stdout.contains("3 signed heads") && checked.stderr.is_empty(),
        "{}{}",
        checked.stdout,
        checked.stderr
    );
    let kept = e.dir.path().join("heads");
    std::fs::write(&kept, format!("{head}\n")).unwrap();
    e.verify(&file, &["--head", kept.to_str().unwrap()]).await.ok();

    let wrong = async |lines: &[String], more: &[&str], said: &str| {
        let file = e.put(lines);
        let ended = e.verify(&file, more).await;
        assert_eq!(ended.code, 1, "{said}: {}{}", ended.stdout, ended.stderr);
        assert!(ended.stdout.contains(said), "{said}: {}", ended.stdout);
    };
    let with = |at: usize, from: &str, to: &str| {
        let mut lines = lines.clone();
        assert!(lines[at].contains(from));
        lines[at] = lines[at].replace(from, to);
        lines
    };
    wrong(&with(5, "thing-4", "thing-5"), &[], "fault: entry 5 is not what was written: it was edited").await;
    wrong(&with(5, "\"success\"", "\"denied\""), &[], "entry 5 is not what was written").await;
    let without = [&lines[..5], &lines[6..]].concat();
    wrong(&without, &[], "entry 5 is missing: it was deleted; the next is 6").await;
    wrong(&lines[..9], &[], "the export was cut off behind entry 8").await;
    // Cut off with an end of its own: a head tells.
    let mut shorter = lines[..9].to_vec();
    shorter.push("{\"end\":{\"seq\":8}}".to_owned());
    wrong(&shorter, &["--head", &head], "entry 9 is missing: the end was cut off, as a head signed at entry 20 says")
        .await;
    let at = lines.iter().position(|line| line.contains("{\"head\"")).unwrap();
    wrong(&with(at, ":12:", ":13:"), &[], "is not of an export of the record").await;
    let other = HeadKey::ensure(&e.dir.path().join("other")).unwrap().public().to_string();
    let file = e.put(&lines);
    let ended = e.verify(&file, &["--key", &other]).await;
    assert!(
        ended.code == 1 && ended.stdout.contains("the head at entry 12 is signed by another key"),
        "{}",
        ended.stdout
    );
    let json: RecordVerdict = serde_json::from_str(&e.verify(&e.put(&without), &["-o", "json"]).await.stdout).unwrap();
    assert_eq!((json.ok, json.first_bad, json.wrong.as_deref()), (false, Some(5), Some("deleted")));
    let told = e.verify(&file, &["--head", "gvm-record-head:1:7"]).await.fails(2);
    assert!(told.contains("this is no signed head"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_the_record_is_exported_and_verified() {
    let e = written(3).await;
    let middle = Timestamp::now();
    // More than a page.
    let mut tx = e.life.store.write().await.unwrap();
    for number in 0..2500 {
        gvm::store::audit::begin(&mut tx, &own(number), None).await.unwrap();
    }
    gvm::store::commit(tx).await.unwrap();
    let ended = gvm(e.socket(), &["audit", "export", "--since", &middle.to_string()]).await.ok();
    let lines: Vec<String> = ended.stdout.lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 1 + 2500 + 1);
    let told = e.verify(&e.put(&lines), &[]).await.ok().stdout;
    assert!(told.contains("from entry 4 to 2503; no signed head stands against it"), "{told}");
    // Nothing new: an export without entries.
    let later = (Timestamp::now() + jiff::SignedDuration::from_secs(60)).to_string();
    let ended = gvm(e.socket(), &["audit", "export", "--since", &later]).await.ok();
    assert_eq!(ended.stdout.lines().count(), 2, "{}", ended.stdout);
    e.verify(&e.put(&ended.stdout.lines().map(str::to_owned).collect::<Vec<_>>()), &[]).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_while_others_write_ends_where_it_began() {
    let e = written(2000).await;
    let mut pages = e.client.bytes("/v1/audit/export", gvm::api::client::STREAM_DEADLINE).await.unwrap();
    let mut text = Vec::new();
    while let Some(page) = pages.next().await {
        text.extend_from_slice(page.unwrap().as_ref());
        write(&e.life, 3).await;
    }
    let text = String::from_utf8(text).unwrap();
    assert!(text.ends_with("{\"end\":{\"seq\":2000}}\n"), "{}", &text[text.len() - 80..]);
    e.verify(&e.put(&text.lines().map(str::to_owned).collect::<Vec<_>>()), &[]).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_a_manager() {
    let e = written(5).await;
    let told = gvm(e.socket(), &["audit", "head"]).await.ok().stdout;
    assert!(told.contains("none is signed yet") && told.contains(&key_of(&e.world).public().to_string()), "{told}");
    let head = e.life.manager.sign_head().await.unwrap().unwrap().to_string();
    let told = gvm(e.socket(), &["audit", "head"]).await.ok().stdout;
    assert!(told.contains(&head), "{told}");
    let view: HeadView = e.client.get("/v1/audit/head").await.unwrap();
    assert_eq!((view.head.as_deref(), view.last), (Some(head.as_str()), 5));
    let told = gvm(e.socket(), &["audit", "verify", "--head", &head]).await.ok().stdout;
    assert_eq!(told, "ok: the record is what was written, up to entry 5, and 2 signed heads agree\n");
    let list = gvm(e.socket(), &["audit", "list", "--actor", "gvm", "-n", "2"]).await.ok().stdout;
    assert!(list.starts_with("WHEN ") && list.lines().count() == 3 && list.contains("thing-4"), "{list}");
    let all: EntryList = e.client.get("/v1/audit?limit=1").await.unwrap();
    let shown = gvm(e.socket(), &["audit", "show", &all.entries[0].operation]).await.ok().stdout;
    assert!(shown.contains("test.write") && shown.contains(&all.entries[0].hash), "{shown}");
    let unknown = gvm(e.socket(), &["audit", "show", "01890000-0000-7000-8000-000000000009"]).await.fails(4);
    assert!(unknown.contains("there is nothing on the record of"), "{unknown}");
    edit(&e.world, "UPDATE record SET detail = 'x' WHERE seq = 2").await;
    let ended = gvm(e.socket(), &["audit", "verify"]).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (1, "fault: entry 2 is not what was written: it was edited\n"));
}
