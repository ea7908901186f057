//! A program beside the manager edits the file: the first bad entry is named.

use gvm::model::record::TEXTS;
use gvm::model::record::check::Wrong;

use super::*;

/// A manager with twenty entries, of which ten are under a signed head.
async fn written() -> (World, Life, SignedHead) {
    let world = World::new();
    let life = world.live().await;
    write(&life, 10).await;
    let head = life.manager.sign_head().await.unwrap().unwrap();
    write(&life, 10).await;
    assert_eq!(verify(&life, &[]).await, Verified { found: Ok(life.store.record_tip().await.unwrap()), heads: 1 });
    (world, life, head)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_of_any_column_is_found() {
    let (world, life, _) = written().await;
    for column in TEXTS.iter().chain(&["at", "hash"]) {
        edit(&world, "CREATE TABLE kept AS SELECT * FROM record WHERE seq = 7").await;
        for value in ["'x'", "NULL", "''", "x'00ff'", "7"] {
            let changed = format!("UPDATE OR IGNORE record SET {column} = {value} WHERE seq = 7");
            edit(&world, &changed).await;
            let found = verify(&life, &[]).await.found;
            let is_as_it_was = edit_is_void(&world, column).await;
            match found {
                Err(fault) => {
                    assert!(!is_as_it_was, "{column} = {value}");
                    assert_eq!(fault.seq, 7, "{column} = {value}: {fault}");
                    assert!(matches!(fault.wrong, Wrong::Edited | Wrong::Unreadable), "{column} = {value}: {fault}");
                }
                Ok(_) => assert!(is_as_it_was, "{column} = {value} is not found"),
            }
            edit(&world, &format!("UPDATE record SET {column} = (SELECT {column} FROM kept) WHERE seq = 7")).await;
        }
        edit(&world, "DROP TABLE kept").await;
        assert!(verify(&life, &[]).await.found.is_ok(), "{column} is put back");
    }
}

/// True where the value could not be put there, or was there already.
async fn edit_is_void(world: &World, column: &str) -> bool {
    let options = SqliteConnectOptions::from_str("sqlite:").unwrap().filename(world.state_dir().join("gvm.db"));
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let sql = format!(
        "SELECT r.{column} IS k.{column} AND typeof(r.{column}) = typeof(k.{column}) FROM record r, kept k WHERE r.seq = 7"
    );
    let same: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    same == 1
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_moved_or_put_in_is_found() {
    for (sql, said) in [
        ("DELETE FROM record WHERE seq = 7", "entry 7 is missing: it was deleted; the next is 8"),
        ("DELETE FROM record WHERE seq <= 3", "entry 1 is missing: it was deleted; the next is 4"),
        ("DELETE FROM record", "entry 1 is missing: the end was cut off, as a head signed at entry 10 says"),
        ("DELETE FROM record WHERE seq > 17", "entry 18 is missing: the end was cut off"),
        ("DELETE FROM record WHERE seq > 7", "entry 8 is missing: the end was cut off, as a head signed at entry 10 says"),
        (
            "UPDATE record SET seq = -1 WHERE seq = 7; UPDATE record SET seq = 7 WHERE seq = 12;
             UPDATE record SET seq = 12 WHERE seq = -1",
            "entry 7 is not in its place: what was written here stands at 12",
        ),
        (
            "UPDATE record SET seq = -seq - 1 WHERE seq >= 7; UPDATE record SET seq = -seq WHERE seq < 0;
             INSERT INTO record SELECT 7, at, operation, half, actor, actor_id, via, address, request_id, action, target,
                 vm_id, outcome, detail, hash FROM record WHERE seq = 3;
             UPDATE record_tip SET seq = 21",
            "entry 7 was put in: it is not what was written here",
        ),
        (
            "INSERT INTO record SELECT 0, at, operation, half, actor, actor_id, via, address, request_id, action, target,
                 vm_id, outcome, detail, hash FROM record WHERE seq = 20",
            "entry 0 was put in: it is not what was written here",
        ),
        ("UPDATE record SET seq = 'x' WHERE seq = 20", "entry 20 is missing: the end was cut off"),
        (
            "INSERT INTO record SELECT 21, at, operation, half, actor, actor_id, via, address, request_id, action, target,
                 vm_id, outcome, detail, hash FROM record WHERE seq = 20",
            "entry 21 was put in: it is not what was written here",
        ),
        ("UPDATE record_tip SET hash = (SELECT hash FROM record WHERE seq = 3)", "entry 20 is not what was written: it was edited"),
    ] {
        let (world, life, _) = written().await;
        edit(&world, sql).await;
        assert_eq!(fault(&life).await.to_string(), said, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_faulty_entry_does_not_hide_an_earlier_one_and_stretches_are_one_record() {
    let world = World::new();
    let life = world.live().await;
    let mut tx = life.store.write().await.unwrap();
    for number in 0..9000 {
        gvm::store::audit::begin(&mut tx, &own(number), None).await.unwrap();
    }
    gvm::store::commit(tx).await.unwrap();
    assert_eq!(verify(&life, &[]).await.found.unwrap().seq, 9000);
    // At the joints of what is read at once, and behind them.
    for (sql, first) in [
        ("UPDATE record SET target = 'x' WHERE seq = 8999", 8999),
        ("DELETE FROM record WHERE seq = 8500", 8500),
        ("UPDATE record SET target = 'x' WHERE seq = 8192", 8192),
        ("DELETE FROM record WHERE seq = 4097", 4097),
        ("DELETE FROM record WHERE seq = 4096", 4096),
        ("UPDATE record SET hash = 'x' WHERE seq = 4095", 4095),
    ] {
        edit(&world, sql).await;
        assert_eq!(fault(&life).await.seq, first, "{sql}");
    }
}

/// The whole chain anew, as somebody can who knows how it is made: the hash has no secret in it.
async fn rewrite(world: &World, life: &Life, from: u64, sql: &str) {
    edit(world, sql).await;
    let end = life.store.record_tip().await.unwrap();
    let mut last = gvm::model::record::check::Chain::START;
    for entry in life.store.entries_behind(0, end.seq, 100_000).await.unwrap() {
        let (seq, stored) = (entry.seq, entry.hash.clone());
        let (entry, hash) = entry.behind(last.seq, &last.hash);
        assert_eq!(entry.seq, seq);
        if seq >= from {
            edit(world, &format!("UPDATE record SET hash = '{hash}' WHERE seq = {seq}")).await;
        } else {
            assert_eq!(entry.hash, stored);
        }
        last = gvm::model::record::check::Chain { seq, hash };
    }
    edit(world, &format!("UPDATE record_tip SET seq = {}, hash = '{}'", last.seq, last.hash)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_was_made_anew_is_found_by_a_signed_head() {
    let (world, life, head) = written().await;
    rewrite(&world, &life, 7, "UPDATE record SET actor = 'bob' WHERE seq = 7").await;
    let found = fault(&life).await;
    assert_eq!(found, Fault { seq: 1, wrong: Wrong::Rewritten { head: 10 } });

    // With its heads gone as well, only a head that was kept elsewhere knows.
    edit(&world, "DELETE FROM record_heads").await;
    assert!(verify(&life, &[]).await.found.is_ok());
    assert_eq!(verify(&life, &[head]).await.found.unwrap_err(), found);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_was_cut_off_is_found_by_a_head_that_was_kept() {
    let (world, life, head) = written().await;
    let sql = "DELETE FROM record WHERE seq > 8; DELETE FROM record_heads; UPDATE record_tip SET seq = 8";
    rewrite(&world, &life, 9, sql).await;
    assert!(verify(&life, &[]).await.found.is_ok(), "nothing in the database tells of it");
    let found = verify(&life, std::slice::from_ref(&head)).await.found.unwrap_err();
    assert_eq!(found, Fault { seq: 9, wrong: Wrong::CutOff { head: 10 } });
    // What is written from now on does not heal it.
    write(&life, 5).await;
    let found = verify(&life, &[head]).await.found.unwrap_err();
    assert_eq!(found, Fault { seq: 1, wrong: Wrong::Rewritten { head: 10 } });
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_of_another_key_and_edited_heads_are_found() {
    let (world, life, head) = written().await;
    let dir = tempfile::tempdir().unwrap();
    let other = HeadKey::ensure(&dir.path().join("key")).unwrap();
    let foreign = other.sign(head.head.clone());
    edit(&world, &format!("UPDATE record_heads SET head = '{foreign}'")).await;
    assert_eq!(fault(&life).await, Fault { seq: 10, wrong: Wrong::OtherKey { key: other.public() } });
    // Whoever expects that key is content with it.
    let action = permit(Action::AuditVerify);
    let asked = life.manager.verify_record(&action, Vec::new(), Some(other.public())).await.unwrap();
    assert!(asked.found.is_ok());
    for text in [head.to_string().replace(":10:", ":11:"), "x".to_owned()] {
        edit(&world, &format!("UPDATE record_heads SET head = '{text}'")).await;
        assert_eq!(fault(&life).await, Fault { seq: 10, wrong: Wrong::BadSignature }, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_signed_that_does_not_go_on_from_the_last_head() {
    let (world, life, head) = written().await;
    let second = life.manager.sign_head().await.unwrap().unwrap();
    assert_eq!((head.head.seq, second.head.seq, second.key), (10, 20, key_of(&world).public()));
    assert!(life.manager.sign_head().await.unwrap().is_none(), "nothing is new");
    write(&life, 5).await;
    edit(&world, "UPDATE record SET target = 'x' WHERE seq = 23").await;
    let refused = life.manager.sign_head().await.unwrap_err().to_string();
    assert_eq!(refused, "no head of the record is signed: entry 23 is not what was written: it was edited");
    assert_eq!(life.store.newest_head().await.unwrap(), Some(second));
    // Somebody went back behind the head and wrote on.
    let sql = "DELETE FROM record WHERE seq > 15;
               UPDATE record_tip SET seq = 15, hash = (SELECT hash FROM record WHERE seq = 15)";
    edit(&world, sql).await;
    let refused = life.manager.sign_head().await.unwrap_err().to_string();
    assert!(
        refused.contains("entry 16 is missing: the end was cut off, as a head signed at entry 20 says"),
        "{refused}"
    );
    write(&life, 10).await;
    assert!(life.manager.sign_head().await.unwrap_err().to_string().contains("entry 21 is not what was written"));
}
