//! The database file in trouble: read-only, damaged, locked by a stranger, of another version, wanted by many at once.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use gvm::auth::policy::Action;
use gvm::manager::view::ListRequest;
use gvm::model::principal::Role;
use gvm::store::{Store, StoreError};
use jiff::Timestamp;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

use crate::support::own_process::in_own_process;
use crate::support::world::World;

async fn made() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gvm.db");
    Store::open(&path).await.unwrap().close().await;
    (dir, path)
}

/// A program that is not gvm.
async fn stranger(path: &Path) -> SqlitePool {
    let options = SqliteConnectOptions::from_str("sqlite:").unwrap().filename(path);
    SqlitePool::connect_with(options).await.unwrap()
}

async fn refusal(path: &Path) -> String {
    match Store::open(path).await {
        Err(error @ StoreError::Open { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn nobody_else_can_read_the_keys_in_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gvm.db");
    let others = |file: &Path| std::fs::metadata(file).unwrap().permissions().mode() & 0o077;
    // As a manager without this care once made it.
    std::fs::write(&path, "").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let store = Store::open(&path).await.unwrap();
    store.ensure_user(1000, &"alice".parse().unwrap(), Role::Member, Timestamp::now()).await.unwrap();
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let file = entry.unwrap().path();
        assert_eq!(others(&file), 0, "{}", file.display());
    }
    assert!(dir.path().join("gvm.db-wal").exists());
}

#[tokio::test]
async fn a_damaged_file_is_told_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gvm.db");
    std::fs::write(&path, "this is no database at all, whatever its name says. ".repeat(40)).unwrap();
    let told = refusal(&path).await;
    assert!(told.contains("damaged") && told.contains("backup") && told.contains("gvm.db"), "{told}");

    // A good first page, and nothing but noise behind it.
    let (_dir, path) = made().await;
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.iter_mut().skip(4096).for_each(|byte| *byte = 0xa5);
    std::fs::write(&path, bytes).unwrap();
    let told = refusal(&path).await;
    assert!(told.contains("damaged"), "{told}");
}

#[tokio::test]
async fn a_file_of_a_newer_gvm_is_left_alone() {
    let (_dir, path) = made().await;
    let pool = stranger(&path).await;
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9999, 'later', 1, x'00', 0)",
    )
    .execute(&pool)
    .await
    .unwrap();
    pool.close().await;
    let before = std::fs::read(&path).unwrap();
    let told = refusal(&path).await;
    assert!(told.contains("does not fit this gvm") && told.contains("newer one"), "{told}");
    assert_eq!(std::fs::read(&path).unwrap(), before, "nothing was written to it");
}

#[tokio::test]
async fn an_edited_migration_is_refused() {
    let (_dir, path) = made().await;
    let pool = stranger(&path).await;
    sqlx::query("UPDATE _sqlx_migrations SET checksum = x'00' WHERE version = 1").execute(&pool).await.unwrap();
    pool.close().await;
    let told = refusal(&path).await;
    assert!(told.contains("does not fit this gvm"), "{told}");
}

#[test]
fn a_read_only_file_is_told_with_the_way_out() {
    in_own_process!(|| {
        use std::os::unix::fs::PermissionsExt as _;
        let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let (dir, path) = runtime().block_on(made());
        for (path, mode) in [(path.as_path(), 0o444), (dir.path(), 0o555)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        // Root may write everything, so the rest of this process is nobody.
        if nix::unistd::geteuid().is_root() {
            nix::unistd::seteuid(65_534.into()).unwrap();
        }
        let told = runtime().block_on(refusal(&path));
        assert!(told.contains("check") && (told.contains("read-only") || told.contains("writable")), "{told}");
        let told = runtime().block_on(refusal(&dir.path().join("none/gvm.db")));
        assert!(told.contains("check that the folder exists"), "{told}");
        if nix::unistd::getuid().is_root() {
            nix::unistd::seteuid(0.into()).unwrap();
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_three_seconds_is_waited_out_while_readers_go_on() {
    let (_dir, path) = made().await;
    let store = Store::open(&path).await.unwrap();
    let pool = stranger(&path).await;
    let lock = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let begun = Instant::now();
    let holder = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(3)).await;
        lock.rollback().await.unwrap();
    });
    let reading = async {
        let mut slowest = Duration::ZERO;
        while begun.elapsed() < Duration::from_millis(2500) {
            let at = Instant::now();
            store.vm_ids().await.unwrap();
            slowest = slowest.max(at.elapsed());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        slowest
    };
    let alice = "alice".parse().unwrap();
    let writing = store.ensure_user(1000, &alice, Role::Member, Timestamp::now());
    let opening = Store::open(&path);
    let (slowest, written, opened) = tokio::join!(reading, writing, opening);
    written.unwrap();
    opened.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(2900), "it wrote through a lock");
    assert!(slowest < Duration::from_secs(1), "a reader waited {slowest:?} for a writer");
    holder.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_at_once_and_a_reader_see_no_error() {
    let world = World::new();
    let life = world.live().await;
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let name = |n: usize| format!("vm{n}");
    let writing = async {
        let names: Vec<String> = (0..50).map(name).collect();
        let begun = Instant::now();
        let made = futures_util::future::join_all(names.iter().map(|name| life.create(name))).await;
        is_over.store(true, std::sync::atomic::Ordering::SeqCst);
        let ids: BTreeSet<_> = made.into_iter().map(|vm| vm.unwrap()).collect();
        assert_eq!(ids.len(), 50);
        begun.elapsed()
    };
    let reading = async {
        let permit = life.permit(Action::VmSee);
        let mut last = 0;
        while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
            let request = ListRequest { with_deleted: false, limit: 1000 };
            let now = life.manager.list(&permit, request).await.unwrap().len();
            assert!(now >= last, "a machine that was there is gone");
            last = now;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let (took, ()) = tokio::join!(writing, reading);
    assert!(took < Duration::from_secs(60), "{took:?}");
    let request = ListRequest { with_deleted: false, limit: 1000 };
    let all = life.manager.list(&life.permit(Action::VmSee), request).await.unwrap();
    let addresses: BTreeSet<_> = all.iter().map(|found| found.vm.placement.address).collect();
    let cards: BTreeSet<_> = all.iter().map(|found| found.vm.placement.mac).collect();
    assert_eq!((all.len(), addresses.len(), cards.len()), (50, 50, 50), "no address is given twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_creates_of_one_name_one_succeeds() {
    let world = World::new();
    let life = world.live().await;
    let made = futures_util::future::join_all((0..10).map(|_| life.create("dev"))).await;
    assert_eq!(made.iter().filter(|one| one.is_ok()).count(), 1);
    for error in made.into_iter().filter_map(Result::err) {
        assert_eq!(error.kind, gvm::manager::Kind::Conflict);
        assert_eq!(error.to_string(), "you already have a VM named dev");
    }
}
