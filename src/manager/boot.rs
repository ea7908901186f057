//! Watches a machine come up: its first boot by the words on its serial line, its SSH server by its banner.
//!
//! One task per start of a machine; it only tells, and writes down how the first boot ended.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::{Manager, Result, error, lock};
use crate::image::firstboot;
use crate::model::id::VmId;
use crate::model::network::GuestAddress;
use crate::model::state::FirstBoot;
use crate::model::vm::Vm;
use crate::store::{commit, vms};

/// Looks in the first minute, and later.
const QUICK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(60));
const SLOW: Duration = Duration::from_secs(1);
/// How long a guest may take altogether; a desktop under emulation takes minutes.
const DEADLINE: Duration = Duration::from_secs(30 * 60);
/// A guest whose SSH answers but which never said a word of its first boot is taken as set up after this.
const SILENT: Duration = Duration::from_secs(60);
/// For connecting and for the banner.
const PROBE: Duration = Duration::from_millis(500);
/// Between two looks at the row and the serial line.
const ROW_EVERY: Duration = Duration::from_secs(1);
const SERIAL_EVERY: Duration = Duration::from_millis(200);
/// The port that a guest's SSH server listens on.
const SSH_PORT: u16 = 22;

/// Starts watching, unless this start of the machine is watched already or was seen to be up.
pub fn ensure_watched(manager: &Arc<Manager>, vm: &Vm) {
    let Some(started_at) = vm.started_at else { return };
    let is_up = lock(&manager.reachable).get(&vm.id) == Some(&started_at) && vm.first_boot != FirstBoot::Waiting;
    if is_up || lock(&manager.booting).insert(vm.id, started_at) == Some(started_at) {
        return;
    }
    let (manager, vm) = (manager.clone(), vm.clone());
    manager.clone().tasks.spawn(async move {
        let watched = manager.stop.run_until_cancelled(watch(&manager, &vm, started_at)).await;
        if let Some(Err(e)) = watched {
            tracing::error!(vm = %vm.id, error = %error::chain(&e), "watching the boot failed");
        }
    });
}

struct Seen {
    since: Instant,
    first_boot: FirstBoot,
    reachable_since: Option<Instant>,
    next_row: Instant,
    next_serial: Instant,
}

async fn watch(manager: &Arc<Manager>, vm: &Vm, started_at: Timestamp) -> Result<()> {
    let now = Instant::now();
    let mut seen = Seen {
        since: now,
        first_boot: vm.first_boot.clone(),
        reachable_since: None,
        next_row: now + ROW_EVERY,
        next_serial: now,
    };
    if !has_guest(vm) {
        manager.watch.tell(vm, "ready", "it runs; there is no system in it");
        return Ok(());
    }
    manager.watch.tell(vm, "boot", "waiting for the guest to come up");
    loop {
        if look_at_serial(manager, vm, &mut seen).await {
            write_down(manager, vm, started_at, &seen.first_boot).await?;
        }
        look_at_ssh(manager, vm, started_at, &mut seen).await;
        let is_set_up = matches!(seen.first_boot, FirstBoot::Done | FirstBoot::Failed(_));
        if seen.reachable_since.is_some() && is_set_up {
            write_down(manager, vm, started_at, &seen.first_boot).await?;
            manager.watch.tell(vm, "ready", "ready to log in");
            return Ok(());
        }
        let waited = seen.since.elapsed();
        if waited > DEADLINE {
            manager.watch.tell(
                vm,
                "boot",
                "the guest did not come up within 30 minutes; `gvm logs` shows what it said",
            );
            return Ok(());
        }
        if Instant::now() >= seen.next_row {
            seen.next_row = Instant::now() + ROW_EVERY;
            let row = manager.store.vm(vm.id).await?;
            if row.is_none_or(|row| row.started_at != Some(started_at)) {
                return Ok(());
            }
        }
        tokio::time::sleep(if waited < QUICK.1 { QUICK.0 } else { SLOW }).await;
    }
}

/// False for machines that run firmware alone.
fn has_guest(vm: &Vm) -> bool {
    vm.spec.boot != crate::model::image::Boot::Firmware
}

/// Follows the words on the serial line; true where they came to an end, good or bad.
async fn look_at_serial(manager: &Manager, vm: &Vm, seen: &mut Seen) -> bool {
    let is_over = |state: &FirstBoot| matches!(state, FirstBoot::Done | FirstBoot::Failed(_));
    if is_over(&seen.first_boot) || Instant::now() < seen.next_serial {
        return false;
    }
    seen.next_serial = Instant::now() + SERIAL_EVERY;
    let path = manager.layout.vm(vm.id).serial_log();
    let Ok(found) = firstboot::read(&path, 0).await else { return false };
    if found != seen.first_boot {
        match &found {
            FirstBoot::Stage(word) => manager.watch.tell(vm, "first_boot", format!("first boot: {word}")),
            FirstBoot::Done => manager.watch.tell(vm, "first_boot", "first boot: done"),
            FirstBoot::Failed(why) => manager.watch.tell(vm, "first_boot", format!("first boot failed: {why}")),
            FirstBoot::Waiting => {}
        }
        seen.first_boot = found;
        return is_over(&seen.first_boot);
    }
    false
}

async fn look_at_ssh(manager: &Manager, vm: &Vm, started_at: Timestamp, seen: &mut Seen) {
    if let Some(since) = seen.reachable_since {
        if seen.first_boot == FirstBoot::Waiting && since.elapsed() > SILENT {
            seen.first_boot = FirstBoot::Done;
        }
        return;
    }
    if answers(vm.placement.address).await {
        seen.reachable_since = Some(Instant::now());
        lock(&manager.reachable).insert(vm.id, started_at);
        manager.watch.tell(vm, "ssh", "its SSH server answers");
    }
}

/// True where an SSH server sends its banner.
async fn answers(address: GuestAddress) -> bool {
    let probe = async {
        let mut stream = TcpStream::connect((address.0, SSH_PORT)).await.ok()?;
        let mut banner = [0; 4];
        stream.read_exact(&mut banner).await.ok()?;
        (&banner == b"SSH-").then_some(())
    };
    matches!(tokio::time::timeout(PROBE, probe).await, Ok(Some(())))
}

/// Writes down how the first boot ended.
async fn write_down(manager: &Manager, vm: &Vm, started_at: Timestamp, first_boot: &FirstBoot) -> Result<()> {
    if *first_boot == vm.first_boot {
        return Ok(());
    }
    let mut tx = manager.store.write().await?;
    if let Some(mut fresh) = vms::read(&mut tx, vm.id).await?
        && fresh.started_at == Some(started_at)
        && fresh.first_boot != *first_boot
    {
        fresh.first_boot = first_boot.clone();
        vms::update(&mut tx, &fresh).await?;
    }
    Ok(commit(tx).await?)
}

/// True where the guest's SSH server was seen to answer since this start.
pub fn is_reachable(manager: &Manager, id: VmId, started_at: Option<Timestamp>) -> bool {
    started_at.is_some() && lock(&manager.reachable).get(&id).copied() == started_at
}
