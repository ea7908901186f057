//! Composition root of `gvm serve`: configuration, parts, run until a signal, drain.

pub mod restore;

use std::fs::{File, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::fcntl::{Flock, FlockArg};
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::api::server::{self, https::Https, tls::Certificates};
use crate::auth::peercred::Peers;
use crate::config::{Config, GpuConfig};
use crate::gpu::{GpuOptions, HostGpus};
use crate::host::{HostRoot, facts};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::libvirt::{Libvirt, LibvirtOptions};
use crate::image::catalogue;
use crate::image::layout::Layout;
use crate::manager::{Manager, ThisHost, reconciler};
use crate::model::host::{Accelerator, Capacity};
use crate::model::id::HostId;
use crate::model::units::Mib;
use crate::store::Store;

/// How long requests and steps under way may take after the signal.
const DRAIN: Duration = Duration::from_secs(30);
/// The socket: its group may use it, nobody else.
const SOCKET_MODE: u32 = 0o660;
/// Folders of the state: QEMU's user passes through, nobody lists.
const STATE_MODE: u32 = 0o711;

/// Runs the manager until SIGTERM or SIGINT.
///
/// # Errors
/// Says what is missing or in the way, and what to do.
pub async fn run(config: Config) -> Result<()> {
    // From here on a signal waits until it can be answered by a clean end.
    let mut signals = Signals::listen()?;
    let state_dir = config.manager.state_dir.clone();
    make_state_dir(&state_dir)?;
    let _lock = take_lock(&state_dir)?;
    let layout = Layout::new(state_dir.clone());
    let store = Store::open(&state_dir.join("gvm.db")).await?;
    let swept = catalogue::sweep(&layout).await.context("cannot tidy the image folder")?;
    if swept > 0 {
        tracing::info!(swept, "removed what unfinished imports had left");
    }
    let root = HostRoot::default();
    let hypervisor: Arc<dyn Hypervisor> = Libvirt::connect(LibvirtOptions {
        templates: Some(config.manager.config_dir.join("templates")),
        default_cpu_shares: root.default_cpu_weight(),
        ..LibvirtOptions::new(config.manager.libvirt_uri.clone())
    })?;
    let gpus = Arc::new(HostGpus::new(gpu_options(&config)));
    let host = this_host(&config, &store, &root).await?;
    let stop = CancellationToken::new();
    let (manager, woken) = Manager::new(config.clone(), store.clone(), hypervisor, gpus, host, stop.clone());

    let listener = bind(&config)?;
    let https = https(&config).await?;
    let certificates = https.as_ref().map(|https| Arc::clone(https.certificates()));
    let router = server::router_with(manager.clone(), Peers::new(&config), certificates);
    let reconciler = tokio::spawn(reconciler::run(manager.clone(), woken));
    manager.spawn_head_signing()?;
    manager.spawn_accelerator_watch();
    manager.spawn_gpu_watch();
    manager.spawn_token_notes();
    let serving_https = https.map(|https| tokio::spawn(https.serve(router.clone(), stop.clone())));
    let serving = tokio::spawn(server::serve(listener, router, stop.clone()));
    tracing::info!(socket = %config.manager.socket.display(), "ready");
    // Fails where there is no systemd, which is no fault.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);

    signals.wait().await;
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    tracing::info!("stopping");
    stop.cancel();
    let drained = tokio::time::timeout(DRAIN, async {
        let _ = reconciler.await;
        let _ = serving.await;
        if let Some(serving) = serving_https {
            let _ = serving.await;
        }
        manager.drain().await;
    });
    if drained.await.is_err() {
        tracing::warn!(
            "something did not come to its end within {} s; it is taken up again at the next start",
            DRAIN.as_secs()
        );
    }
    manager.sign_or_say().await;
    store.close().await;
    let _ = std::fs::remove_file(&config.manager.socket);
    tracing::info!("stopped");
    Ok(())
}

/// The listener for other machines, where the configuration wants one.
async fn https(config: &Config) -> Result<Option<Https>> {
    let Some(address) = config.https.listen else { return Ok(None) };
    let certificates = Certificates::open(&config.https, &config.manager.state_dir, &config.gateway.host)?;
    let certificates = Arc::new(certificates);
    let https = Https::bind(&config.https, address, certificates.clone()).await?;
    tracing::info!(
        address = %https.address(), fingerprint = %certificates.fingerprint(), is_public = certificates.is_public(),
        "HTTPS"
    );
    Ok(Some(https))
}

fn gpu_options(config: &Config) -> GpuOptions {
    let usual = GpuOptions::default();
    let GpuConfig { managed, boot_displays, nvml, root, bind_seconds, .. } = config.gpu.clone();
    let bind_patience = bind_seconds.map_or(usual.bind_patience, Duration::from_secs);
    let root = root.unwrap_or_else(|| usual.root.clone());
    GpuOptions { managed, boot_displays, nvml, root, bind_patience, ..usual }
}

fn make_state_dir(state_dir: &Path) -> Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(STATE_MODE).create(state_dir).with_context(|| {
        format!("cannot make the state directory {}; run as root or change manager.state_dir", state_dir.display())
    })
}

/// One manager per state directory.
fn take_lock(state_dir: &Path) -> Result<Flock<File>> {
    let path = state_dir.join("lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        nix::errno::Errno::EWOULDBLOCK => anyhow!(
            "another gvm manager runs on {}; stop it first (systemctl stop gvm), or set manager.state_dir to another folder",
            state_dir.display()
        ),
        other => anyhow!("cannot lock {}: {other}", path.display()),
    })
}

/// A database that knows nothing beside machines that it should know is not a first start: its file was lost. Going on
/// would orphan them.
fn must_be_empty(state_dir: &Path) -> Result<()> {
    for folder in ["vms", "images"].map(|name| state_dir.join(name)) {
        let first = std::fs::read_dir(&folder).ok().and_then(|mut entries| entries.next());
        if first.is_some_and(|entry| entry.is_ok()) {
            return Err(anyhow!(
                "the database {} is new or empty, but there are files in {}; restore the database from a backup, or move \
                 vms and images away to begin anew",
                state_dir.join("gvm.db").display(),
                folder.display()
            ));
        }
    }
    Ok(())
}

async fn this_host(config: &Config, store: &Store, root: &HostRoot) -> Result<ThisHost> {
    let id = match store.meta::<HostId>("host").await? {
        Some(id) => id,
        None => {
            must_be_empty(&config.manager.state_dir)?;
            let id = HostId::generate();
            store.set_meta("host", &id).await?;
            id
        }
    };
    let accelerator = match config.manager.accelerator.as_deref() {
        Some("kvm") => Accelerator::Kvm,
        Some(_) => Accelerator::Emulation { why: "the configuration says so (manager.accelerator)".to_owned() },
        None => Accelerator::Emulation { why: "KVM is not proven to work yet".to_owned() },
    };
    let (memory, _) = facts::memory(root);
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(u32::MAX));
    let phys_bits = facts::phys_bits(root);
    let capacity = Capacity { memory, reserve: Mib(config.manager.reserve_memory_mib), cpus, phys_bits };
    let boot_id = root.boot_id().context("cannot read the host's boot id")?;
    Ok(ThisHost { id, boot_id, capacity, accelerator })
}

/// Binds the API's socket. A socket that nobody listens on is what a killed manager left behind.
fn bind(config: &Config) -> Result<UnixListener> {
    let path = &config.manager.socket;
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    // A plain file refuses a connection just as a dead socket does.
    if std::fs::symlink_metadata(path).is_ok_and(|meta| !meta.file_type().is_socket()) {
        bail!("{} is in the way and no socket; move it away, or set manager.socket to another path", path.display());
    }
    match UnixStream::connect(path) {
        Ok(_) => bail!("another program listens on {}; stop it, or set manager.socket to another path", path.display()),
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).with_context(|| format!("cannot remove the dead socket {}", path.display()))?;
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(e).with_context(|| format!("{} is in the way", path.display())),
    }
    // Closed to everybody until group and mode are as they should be.
    let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(path);
    nix::sys::stat::umask(before);
    let listener = listener.with_context(|| format!("cannot listen on {}", path.display()))?;
    open_to_group(path, config.manager.socket_group.as_deref())?;
    Ok(listener)
}

fn open_to_group(path: &PathBuf, group: Option<&str>) -> Result<()> {
    if let Some(name) = group {
        match nix::unistd::Group::from_name(name).with_context(|| format!("cannot look up group {name}"))? {
            Some(group) => std::os::unix::fs::chown(path, None, Some(group.gid.as_raw()))
                .with_context(|| format!("cannot give {} to group {name}", path.display()))?,
            None => tracing::warn!(
                group = name,
                "there is no such group; only root can use the socket (sudo groupadd --system {name})"
            ),
        }
    }
    std::fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))
        .with_context(|| format!("cannot set the mode of {}", path.display()))
}

/// The signals that end the manager.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
        Ok(Self { terminate, interrupt })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
