//! A backup of a manager that goes on working, and what comes of it.

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use gvm::auth::policy::{self, Action};
use gvm::backup::{self, DATABASE};
use gvm::daemon::restore::{self, Restore};
use gvm::manager::Kind;
use gvm::model::principal::{Principal, Role};
use gvm::model::vm::Desired;
use gvm::store::Store;
use gvm::store::audit::Whose;
use jiff::Timestamp;

use crate::support::world::{Life, World};

async fn take(life: &Life, to: &Path) {
    let root = life.store.ensure_user(0, &"root".parse().unwrap(), Role::Admin, Timestamp::now()).await.unwrap();
    let permit = policy::allow(&Principal::of(root), Action::Backup).unwrap();
    let mut taken = life.manager.backup(&permit).await.unwrap();
    let mut bytes = Vec::new();
    taken.file.read_to_end(&mut bytes).unwrap();
    assert_eq!(u64::try_from(bytes.len()).unwrap(), taken.size);
    std::fs::write(to, bytes).unwrap();
}

fn restore(from: &Path) -> Restore {
    Restore { from: from.to_owned(), is_check: false, with_config: true, replace: false }
}

/// What a restoring says is wrong.
async fn fault(world: &World, restore: Restore) -> String {
    format!("{:#}", restore::run(&world.config, &restore).await.unwrap_err())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_taken_in_the_middle_of_things_is_whole_and_comes_back() {
    let world = World::new();
    std::fs::create_dir_all(world.config.manager.config_dir.join("profiles")).unwrap();
    let profile = world.config.manager.config_dir.join("profiles/mine.toml");
    std::fs::write(&profile, "inherits = 'firmware'").unwrap();
    std::fs::write(world.state_dir().join("audit.key"), "secret").unwrap();
    std::fs::create_dir(world.state_dir().join("https")).unwrap();
    std::fs::write(world.state_dir().join("https/key.pem"), "pinned").unwrap();
    let life = world.live().await;
    let first = life.create("first").await.unwrap();
    let disk = gvm::image::layout::Layout::new(world.state_dir()).vm(first).root();
    std::fs::create_dir_all(disk.parent().unwrap()).unwrap();
    std::fs::write(&disk, "a disk").unwrap();

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup.tar");
    let creating = async {
        for number in 0..40 {
            life.create(&format!("m{number}")).await.unwrap();
        }
    };
    tokio::join!(creating, take(&life, &file));
    assert!(!world.state_dir().join(".backup").exists(), "nothing is left of the making");
    life.crash().await;

    // Checked by another one's eyes, on a host that has nothing.
    let fresh = World::new();
    restore::run(&fresh.config, &Restore { is_check: true, ..restore(&file) }).await.unwrap();
    assert_eq!(std::fs::read_dir(fresh.state_dir()).unwrap().count(), 0, "checking changes nothing");

    // And put back where only the disk of the first one is.
    let place = gvm::image::layout::Layout::new(fresh.state_dir()).vm(first).root();
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::fs::copy(&disk, &place).unwrap();
    restore::run(&fresh.config, &restore(&file)).await.unwrap();
    assert_eq!(std::fs::read_to_string(fresh.state_dir().join("audit.key")).unwrap(), "secret");
    assert_eq!(std::fs::read_to_string(fresh.state_dir().join("https/key.pem")).unwrap(), "pinned", "members pin it");
    let mode = std::fs::metadata(fresh.state_dir().join("gvm.db")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let back = fresh.config.manager.config_dir.join("profiles/mine.toml");
    assert_eq!(std::fs::read_to_string(back).unwrap(), "inherits = 'firmware'");
    let life = fresh.live().await;
    let ids = life.store.vm_ids().await.unwrap();
    assert!(ids.contains(&first), "{ids:?}");
    for id in ids {
        let wanted = if id == first { Desired::Running } else { Desired::Stopped };
        assert_eq!(life.store.vm(id).await.unwrap().unwrap().desired, wanted, "no machine begins with an empty disk");
    }
    let newest = life.store.operations(Whose::Everybody, 1).await.unwrap();
    assert_eq!(newest[0].action, "backup.restore");
}

#[tokio::test]
async fn what_is_there_is_not_replaced_unasked_and_kept_when_it_is() {
    let world = World::new();
    let life = world.live().await;
    life.create("old").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup.tar");
    take(&life, &file).await;
    let later = life.create("later").await.unwrap();
    life.crash().await;

    assert!(fault(&world, restore(&file)).await.contains("--replace"));
    let store = Store::open(&world.state_dir().join("gvm.db")).await.unwrap();
    assert!(store.vm(later).await.unwrap().is_some(), "nothing was changed");
    store.close().await;

    restore::run(&world.config, &Restore { replace: true, ..restore(&file) }).await.unwrap();
    let store = Store::open(&world.state_dir().join("gvm.db")).await.unwrap();
    assert!(store.vm(later).await.unwrap().is_none(), "the state is that of the backup");
    store.close().await;
    let aside = std::fs::read_dir(world.state_dir()).unwrap().map(|entry| entry.unwrap().path());
    let aside: Vec<PathBuf> = aside.filter(|path| path.to_str().unwrap().contains("before-restore-")).collect();
    let kept = Store::open(&aside[0].join("gvm.db")).await.unwrap();
    assert!(kept.vm(later).await.unwrap().is_some(), "what was replaced is kept");
    kept.close().await;
}

#[tokio::test]
async fn a_backup_that_was_touched_is_refused() {
    let world = World::new();
    std::fs::write(world.state_dir().join("a.key"), "secret").unwrap();
    let life = world.live().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup.tar");
    take(&life, &file).await;
    life.crash().await;
    let whole = std::fs::read(&file).unwrap();
    let fresh = World::new();
    let refused = async |bytes: &[u8]| {
        let touched = folder.path().join("touched.tar");
        std::fs::write(&touched, bytes).unwrap();
        let text = fault(&fresh, restore(&touched)).await;
        assert_eq!(
            std::fs::read_dir(fresh.state_dir()).unwrap().filter(|e| e.as_ref().unwrap().file_name() != "lock").count(),
            0,
            "nothing is put in place: {text}"
        );
        text
    };
    assert!(refused(b"").await.contains("it is empty"));
    assert!(refused(b"not a tar archive at all").await.contains("no whole backup"));
    // A byte in the middle of the database, and one of the key.
    let at = |needle: &[u8]| whole.windows(needle.len()).position(|w| w == needle).unwrap();
    for place in [at(b"SQLite format 3") + 5000, whole.windows(6).rposition(|w| w == b"secret").unwrap()] {
        let mut bytes = whole.clone();
        bytes[place] ^= 1;
        assert!(refused(&bytes).await.contains("its bytes were changed or cut"));
    }
    for part in [1, 2, 3] {
        let text = refused(&whole[..whole.len() * part / 4]).await;
        assert!(text.contains("no whole backup"), "{text}");
    }
    // A manifest that names other files, and one of a later gvm.
    let edited = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let place = at(from.as_bytes());
        let mut bytes = whole.clone();
        bytes[place..place + to.len()].copy_from_slice(to.as_bytes());
        bytes
    };
    assert!(refused(&edited("\"state/a.key\"", "\"state/../ab\"")).await.contains("cannot be in it"));
    assert!(refused(&edited("\"state/a.key\"", "\"state/b.key\"")).await.contains("is not where its manifest says"));
    assert!(refused(&edited("\"format\": 1", "\"format\": 9")).await.contains("format 9"));
    // Two in one.
    let mut twice = whole.clone();
    twice.truncate(twice.len() - 1024);
    twice.extend(&whole);
    assert!(!refused(&twice).await.is_empty());
}

#[tokio::test]
async fn a_database_that_is_none_of_ours_or_damaged_is_told_before_anything_is_touched() {
    let folder = tempfile::tempdir().unwrap();
    let strange = folder.path().join("strange.db");
    std::fs::write(&strange, "hello").unwrap();
    let pack = |database: &Path, to: &Path| {
        let mut pack = backup::Pack::new("host".to_owned(), Timestamp::now());
        pack.add(DATABASE, backup::Source::Settled(database.to_owned()));
        pack.write(to).unwrap();
    };
    let file = folder.path().join("strange.tar");
    pack(&strange, &file);
    let fresh = World::new();
    let text = fault(&fresh, Restore { is_check: true, ..restore(&file) }).await;
    assert!(text.contains("damaged or not a database of gvm"), "{text}");
    // Empty, but a database.
    let empty = folder.path().join("empty.db");
    std::fs::write(&empty, "").unwrap();
    pack(&empty, &file);
    let text = fault(&fresh, Restore { is_check: true, ..restore(&file) }).await;
    assert!(text.contains("no database of gvm"), "{text}");
}

#[tokio::test]
async fn one_is_made_at_a_time_and_none_beside_a_running_manager() {
    let world = World::new();
    let life = world.live().await;
    let permit = {
        let root = life.store.ensure_user(0, &"root".parse().unwrap(), Role::Admin, Timestamp::now()).await.unwrap();
        policy::allow(&Principal::of(root), Action::Backup).unwrap()
    };
    let (one, other) = tokio::join!(life.manager.backup(&permit), life.manager.backup(&permit));
    let kinds: Vec<_> = [one, other].into_iter().map(|made| made.map_err(|e| e.kind).err()).collect();
    assert_eq!(kinds, [None, Some(Kind::Conflict)]);
    assert!(policy::allow(&life.member, Action::Backup).is_err(), "it holds everybody's secrets");

    let file = world.state_dir().parent().unwrap().join("backup.tar");
    take(&life, &file).await;
    // As a running manager holds it.
    let lock = std::fs::File::create(world.state_dir().join("lock")).unwrap();
    lock.lock().unwrap();
    let text = fault(&world, Restore { replace: true, ..restore(&file) }).await;
    assert!(text.contains("another gvm manager runs"), "{text}");
}
