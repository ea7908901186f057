//! `gvm admin restore`: a backup is read through, and put in place while no manager runs.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;

use crate::backup::{CONFIG, DATABASE, GATEWAY_KEY, STATE, Unpacked, unpack};
use crate::config::Config;
use crate::image::layout::Layout;
use crate::model::event::{AuditEvent, Outcome};
use crate::model::id::VmId;
use crate::store::backup::{Contents, examine};
use crate::store::{Store, vms};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Restore {
    /// The backup.
    pub from: PathBuf,
    /// Nothing is changed.
    pub is_check: bool,
    /// The configuration too.
    pub with_config: bool,
    /// Over a state that is there.
    pub replace: bool,
}

/// Reads a backup through, and puts it in place unless it is only to be checked.
///
/// # Errors
/// Where it is not whole or not ours, a manager runs, or there is a state already. Nothing was changed then.
pub async fn run(config: &Config, restore: &Restore) -> Result<()> {
    let state_dir = &config.manager.state_dir;
    // On the same file system as what it is to become, unless it is only looked at: that may be anywhere.
    let above = if restore.is_check { std::env::temp_dir() } else { state_dir.clone() };
    let lock = if restore.is_check {
        None
    } else {
        super::make_state_dir(state_dir)?;
        Some(super::take_lock(state_dir)?)
    };
    let folder = Folder(above.join(format!(".gvm-restore-{}", std::process::id())));
    let unpacked = unpack(&restore.from, &folder.0)?;
    let contents = examine(&unpacked.path(DATABASE)).await?;
    tell(&unpacked, &contents)?;
    if restore.is_check {
        return Ok(());
    }
    let aside = put_in_place(config, restore, &unpacked)?;
    let store = Store::open(&state_dir.join("gvm.db")).await?;
    let result = settle(&store, &Layout::new(state_dir.clone()), &contents, &unpacked).await;
    store.close().await;
    result?;
    if let Some(aside) = aside {
        say(&format!("what was there before is in {}", aside.display()))?;
    }
    drop(lock);
    say(
        "what was taken back since the backup is good again: look at `gvm token list`, `gvm key list` and `gvm user list`",
    )?;
    say("restored; start the manager: systemctl start gvm")
}

/// A folder that goes away with its owner.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn say(text: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{text}").context("cannot write to standard output")
}

fn tell(unpacked: &Unpacked, contents: &Contents) -> Result<()> {
    let manifest = &unpacked.manifest;
    say(&format!(
        "a whole backup, made {} by gvm {} on host {}: {} users, {} VMs, {} images, {} other files",
        manifest.made_at,
        manifest.version,
        manifest.host,
        contents.users,
        contents.vms.len(),
        contents.images,
        manifest.files.len().saturating_sub(1),
    ))
}

/// Moves the files to where they belong, and what is there out of the way. Gives the folder of the latter.
fn put_in_place(config: &Config, restore: &Restore, unpacked: &Unpacked) -> Result<Option<PathBuf>> {
    let state_dir = &config.manager.state_dir;
    let mut moves: Vec<(PathBuf, PathBuf)> = vec![(unpacked.path(DATABASE), state_dir.join("gvm.db"))];
    moves.extend(unpacked.below(STATE).map(|(rest, entry)| (unpacked.path(&entry.name), state_dir.join(rest))));
    if restore.with_config {
        let config_dir = &config.manager.config_dir;
        moves.extend(unpacked.below(CONFIG).map(|(rest, entry)| (unpacked.path(&entry.name), config_dir.join(rest))));
    }
    if unpacked.manifest.files.iter().any(|entry| entry.name == GATEWAY_KEY) {
        moves.push((unpacked.path(GATEWAY_KEY), config.gateway.host_key.clone()));
    }
    let mut old: Vec<PathBuf> = moves.iter().map(|(_, to)| to.clone()).collect();
    // A write-ahead log of another database would be played into this one.
    old.extend(["gvm.db-wal", "gvm.db-shm"].map(|name| state_dir.join(name)));
    old.retain(|path| path.symlink_metadata().is_ok());
    if old.iter().any(|path| path.starts_with(state_dir)) && !restore.replace {
        bail!("there is a state in {} already; --replace puts the backup in its place", state_dir.display());
    }
    let aside = (!old.is_empty()).then(|| state_dir.join(format!("before-restore-{}", Timestamp::now().as_second())));
    for (number, path) in old.iter().enumerate() {
        let Some(aside) = &aside else { break };
        std::fs::create_dir_all(aside).with_context(|| format!("cannot make {}", aside.display()))?;
        std::fs::set_permissions(aside, std::fs::Permissions::from_mode(0o700))
            .with_context(|| format!("cannot close {}", aside.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Two may have the same name in different folders, but for the database's files.
        let name = if name.starts_with("gvm.db") { name.into_owned() } else { format!("{number}-{name}") };
        transfer(path, &aside.join(name))?;
    }
    for (from, to) in &moves {
        transfer(from, to)?;
    }
    Ok(aside)
}

/// Moves a file, over the border of a file system as well; it belongs to whom its folder belongs to.
fn transfer(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    let moved = match std::fs::rename(from, to) {
        Err(e) if e.kind() == std::io::ErrorKind::CrossesDevices => {
            std::fs::copy(from, to).and_then(|_| std::fs::remove_file(from))
        }
        other => other,
    };
    moved.with_context(|| format!("cannot move {} to {}", from.display(), to.display()))?;
    let owner = std::fs::metadata(parent).with_context(|| format!("cannot look at {}", parent.display()))?;
    std::os::unix::fs::chown(to, Some(owner.uid()), Some(owner.gid()))
        .with_context(|| format!("cannot give {} to the owner of its folder", to.display()))
}

/// Makes the database fit what is on the disk: a machine whose disk is not there must not be started on an empty one.
async fn settle(store: &Store, layout: &Layout, contents: &Contents, unpacked: &Unpacked) -> Result<()> {
    let mut without = Vec::new();
    for id in &contents.vms {
        if !layout.vm(*id).root().exists()
            && let Some(vm) = store.vm(*id).await?
        {
            without.push(vm);
        }
    }
    for vm in &without {
        say(&format!("VM {} has no disk here: it stays stopped; starting it would begin with an empty one", vm.name))?;
    }
    let mut tx = store.write().await?;
    for vm in &without {
        vms::rest(&mut tx, vm.id).await?;
    }
    crate::store::commit(tx).await?;
    let known = |name: &str| name.parse::<VmId>().is_ok_and(|id| contents.vms.contains(&id));
    for entry in std::fs::read_dir(layout.vms_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !known(&name) {
            say(&format!(
                "{} belongs to a VM that the backup does not know; it is left alone",
                entry.path().display()
            ))?;
        }
    }
    let now = Timestamp::now();
    let at = format!("the state of {}", unpacked.manifest.made_at);
    let row = AuditEvent::own(now, "backup.restore", unpacked.manifest.host.clone(), Outcome::Success)
        .ended(Outcome::Success, &at);
    Ok(store.record(&row).await?)
}
