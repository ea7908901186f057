//! A backup of the manager's own state, taken while everything goes on.

use std::fs::File;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::{Manager, ManagerError, Result};
use crate::auth::policy::Permit;
use crate::backup::{BackupError, CONFIG, DATABASE, GATEWAY_KEY, Pack, STATE, Source};
use crate::store::commit;

/// What the folder's files are called in which a backup is put together, below the state directory.
const FOLDER: &str = ".backup";

/// A backup that was put together; its file is gone when this is.
#[derive(Debug)]
pub struct Backup {
    /// Its bytes.
    pub file: File,
    /// How many they are.
    pub size: u64,
    /// What somebody should know: what was left out, and why.
    pub notes: Vec<String>,
}

/// A folder that goes away with its owner.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left is removed before the next backup.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Manager {
    /// Puts a backup together: database, keys, configuration, the gateway's identity.
    ///
    /// # Errors
    /// Where another one is being made, a file cannot be read, or the disk is full.
    pub async fn backup(&self, permit: &Permit) -> Result<Backup> {
        let Ok(_alone) = self.backing_up.try_lock() else {
            return Err(ManagerError::conflict("another backup is being made").hint("try again in a moment"));
        };
        let folder = self.config.manager.state_dir.join(FOLDER);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(|e| ManagerError::unavailable(format!("cannot make {}: {e}", folder.display())).because(e))?;
        let folder = Folder(folder);
        let mut tx = self.store.write().await?;
        self.put_on_record(&mut tx, permit, "backup.take", "").await?;
        commit(tx).await?;
        let database = folder.0.join(DATABASE);
        self.store.copy_to(&database).await?;
        let (config, host) = (self.config.clone(), self.host().id.to_string());
        let packed = tokio::task::spawn_blocking(move || {
            let mut pack = Pack::new(host, Timestamp::now());
            pack.add(DATABASE, Source::Settled(database));
            // Keys lie beside the database; machines, images and the like are folders, and SQLite's files are its own.
            let state_dir = config.manager.state_dir;
            let mut left_out = pack.add_folder(STATE, &state_dir, |path| is_key(path, &state_dir))?;
            left_out.extend(pack.add_folder(CONFIG, &config.manager.config_dir, |_| true)?);
            let mut notes: Vec<String> = left_out
                .iter()
                .map(|path| format!("not in it, since it is no small file: {}", path.display()))
                .collect();
            // The gateway may run elsewhere, or never have run.
            match File::open(&config.gateway.host_key) {
                Ok(_) => pack.add(GATEWAY_KEY, Source::Small(config.gateway.host_key)),
                Err(e) => {
                    notes.push(format!("not in it: the gateway's key {}: {e}", config.gateway.host_key.display()))
                }
            }
            let path = folder.0.join("backup.tar");
            pack.write(&path)?;
            let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
            let (size, file) = opened.map_err(|source| BackupError::File { what: "open", path, source })?;
            // The folder goes, the open file stays until it is sent.
            drop(folder);
            Ok::<_, BackupError>(Backup { file, size, notes })
        });
        let broke = |e: tokio::task::JoinError| ManagerError::unavailable("the backup broke off").because(e);
        packed.await.map_err(broke)?.map_err(|e| ManagerError::unavailable(e.to_string()).because(e))
    }
}

/// The folder of the certificate that the manager made itself, below the state directory.
const CERTIFICATE: &str = "https";

/// True for keys: files right in the state directory that are not the database's, and the certificate's.
fn is_key(path: &Path, state_dir: &Path) -> bool {
    let below = path.strip_prefix(state_dir).unwrap_or(path);
    let name = below.to_str().unwrap_or_default();
    let is_beside = path.is_file() && below.components().count() == 1;
    let is_ours = !name.starts_with("gvm.db") && !name.starts_with('.') && name != "lock";
    is_beside && is_ours || below.starts_with(CERTIFICATE)
}
