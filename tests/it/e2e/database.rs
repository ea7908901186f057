//! The database file is read-only, locked or damaged.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::support::site::{BOOT, CONFIG, Site};
use crate::support::skip::need_libvirt;
use crate::support::traces::rows;

#[test]
fn a_database_that_cannot_be_written_or_read_is_told_at_the_start() {
    need_libvirt!();
    let site = Site::new(CONFIG);
    site.serve().stop();
    // The mode of a file does not bind root; a mount does.
    let file = "/var/lib/gvm/gvm.db";
    site.host.sh(&format!("mount --bind {file} {file} && mount -o remount,ro,bind {file}")).ok();
    let told = site.serve_fails();
    assert!(told.contains(file) && told.contains("read-only"), "{told}");
    site.host.sh(&format!("umount {file}")).ok();
    site.serve().stop();

    let path = site.state().join("gvm.db");
    let good = std::fs::read(&path).unwrap();
    let open = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    open.write_all_at(&[0x5a; 100], 0).unwrap();
    let told = site.serve_fails();
    assert!(told.contains(file) && told.contains("damaged"), "{told}");
    std::fs::write(&path, "notes of mine, no database at all").unwrap();
    let told = site.serve_fails();
    assert!(told.contains("damaged or not a database"), "{told}");
    assert_eq!(std::fs::read(&path).unwrap(), b"notes of mine, no database at all", "it was not touched");
    // In the middle, where opening it does not look.
    std::fs::write(&path, &good).unwrap();
    let open = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    open.write_all_at(&[0x5a; 4096], 4096 * 6).unwrap();
    let told = site.serve_fails();
    assert!(told.contains("damaged") && told.contains("backup"), "{told}");

    // One that is lost is not made anew beside the machines that it should know.
    std::fs::create_dir_all(site.state().join("vms/one")).unwrap();
    std::fs::rename(&path, site.state().join("away")).unwrap();
    let told = site.serve_fails();
    assert!(told.contains("is new or empty, but there are files in /var/lib/gvm/vms"), "{told}");
    std::fs::remove_dir(site.state().join("vms/one")).unwrap();
    std::fs::write(&path, good).unwrap();
    site.serve().stop();
}

/// Holds SQLite's write lock for so long, or until `meanwhile` is over where that comes first.
fn locked<T>(site: &Site, longest: Duration, meanwhile: impl FnOnce() -> T) -> T {
    let options = SqliteConnectOptions::new().filename(site.state().join("gvm.db"));
    let (ready, is_locked) = std::sync::mpsc::sync_channel(1);
    let (over, is_over) = tokio::sync::oneshot::channel::<()>();
    let holder = std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let mut other = SqliteConnection::connect_with(&options).await.unwrap();
            sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
            ready.send(()).unwrap();
            let _ = tokio::time::timeout(longest, is_over).await;
            sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
            other.close().await.unwrap();
        });
    });
    is_locked.recv_timeout(Duration::from_secs(60)).unwrap();
    let result = meanwhile();
    drop(over);
    holder.join().unwrap();
    result
}

#[test]
fn a_lock_of_another_program_is_waited_for_and_one_without_end_is_told() {
    need_libvirt!();
    let (site, manager) = Site::serving();
    // Shorter than the manager's patience; the answer comes after it.
    locked(&site, Duration::from_secs(3), || {
        site.gvm(&["list"]).ok();
        site.ask(&["create", "dev", "--profile", "firmware", "--stopped"]);
    });
    site.wait_for("dev", "stopped");
    let told = locked(&site, BOOT, || {
        site.gvm(&["list"]).ok();
        site.gvm(&["create", "other", "--profile", "firmware", "--no-wait"]).fails(6)
    });
    assert!(told.contains("another program holds a lock on the database"), "{told}");
    assert_eq!(rows(&site, "SELECT count(*) FROM vms"), 1, "the refused one is not there");
    site.gvm(&["delete", "--now", "--yes", "dev"]).ok();
    manager.stop();
    let told = locked(&site, BOOT, || site.serve_fails());
    assert!(told.contains("lock"), "{told}");
}
