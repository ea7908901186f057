//! Serial consoles: one writer, any number of readers, all seeing the same bytes.
//!
//! ```text
//!   libvirt stream <--> [hub task of the machine] --broadcast--> viewers
//!                              ^-- mpsc ------------------------ the one writer
//! ```
//!
//! A hub lives while somebody looks; it ends with its last viewer or with the machine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{broadcast, mpsc};

use super::{Manager, ManagerError, Result, lock};
use crate::auth::policy::Permit;
use crate::hypervisor::ByteStream;
use crate::model::event::Outcome;
use crate::model::id::VmId;
use crate::model::vm::Vm;

/// Chunks that a slow viewer may fall behind before it misses some.
const OUTPUT_DEPTH: usize = 256;
/// Chunks of typing that may wait for the machine.
const INPUT_DEPTH: usize = 64;
/// Largest chunk.
const CHUNK: usize = 4096;
/// Bytes that a viewer who comes later is shown of what was there before.
const REMEMBERED: usize = 8 * 1024;

/// All open consoles.
#[derive(Debug, Default)]
pub struct Consoles {
    hubs: Arc<Mutex<HashMap<VmId, Hub>>>,
    /// One opens at a time: a second stream to a machine would end the first and those who look at it.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Hub {
    output: broadcast::Sender<Arc<[u8]>>,
    input: mpsc::Sender<Vec<u8>>,
    /// Who types.
    writer: Option<String>,
    remembered: Vec<u8>,
}

/// One viewer's end of a console.
#[derive(Debug)]
pub struct Console {
    /// What was there before.
    pub remembered: Vec<u8>,
    /// What comes.
    pub output: broadcast::Receiver<Arc<[u8]>>,
    /// For typing; none for readers.
    pub input: Option<Typing>,
}

/// The right to type, given back on drop.
#[derive(Debug)]
pub struct Typing {
    /// Bytes for the machine.
    pub input: mpsc::Sender<Vec<u8>>,
    vm: VmId,
    hubs: Arc<Mutex<HashMap<VmId, Hub>>>,
}

impl Drop for Typing {
    fn drop(&mut self) {
        if let Some(hub) = lock(&self.hubs).get_mut(&self.vm) {
            hub.writer = None;
        }
    }
}

impl Manager {
    /// Opens a machine's serial line, for typing or for looking only.
    ///
    /// # Errors
    /// `Conflict` where it is off, or where somebody else types already.
    pub async fn console(&self, permit: &Permit, can_type: bool) -> Result<Console> {
        let vm = self.permitted(permit).await?;
        let console = self.open_console(permit, &vm, can_type).await?;
        let row = Self::pending(permit, "vm.console", self.label(&vm).await?, Some(vm.id));
        let why = if can_type { "to type" } else { "to look on" };
        self.store.record(&row.ended(Outcome::Success, why)).await?;
        Ok(console)
    }

    async fn open_console(&self, permit: &Permit, vm: &Vm, can_type: bool) -> Result<Console> {
        let actor = permit.actor();
        let _turn = self.consoles.opening.lock().await;
        if let Some(console) = self.consoles.join(vm.id, &actor, can_type, &vm.name.to_string())? {
            return Ok(console);
        }
        let stream = self.hypervisor.console(vm.id).await.map_err(|e| {
            let error = ManagerError::from(e);
            match error.kind {
                super::Kind::Conflict | super::Kind::NotFound => {
                    ManagerError::conflict(format!("VM {} is not running, so it has no console", vm.name))
                        .hint(format!("gvm start {}", vm.name))
                }
                _ => error,
            }
        })?;
        self.consoles.open(self, vm.id, stream);
        let gone = || ManagerError::unavailable("the console closed at once");
        self.consoles.join(vm.id, &actor, can_type, &vm.name.to_string())?.ok_or_else(gone)
    }
}

impl Consoles {
    fn join(&self, vm: VmId, actor: &str, can_type: bool, name: &str) -> Result<Option<Console>> {
        let mut hubs = lock(&self.hubs);
        let Some(hub) = hubs.get_mut(&vm) else { return Ok(None) };
        let input = match (&hub.writer, can_type) {
            (Some(who), true) => {
                return Err(ManagerError::conflict(format!("{who} is typing on the console of VM {name} already"))
                    .hint(format!("look on with: gvm console {name} --read-only")));
            }
            (None, true) => {
                hub.writer = Some(actor.to_owned());
                Some(Typing { input: hub.input.clone(), vm, hubs: self.hubs.clone() })
            }
            (_, false) => None,
        };
        Ok(Some(Console { remembered: hub.remembered.clone(), output: hub.output.subscribe(), input }))
    }

    fn open(&self, manager: &Manager, vm: VmId, stream: Box<dyn ByteStream>) {
        let (output, _) = broadcast::channel(OUTPUT_DEPTH);
        let (input, typed) = mpsc::channel(INPUT_DEPTH);
        let hub = Hub { output, input, writer: None, remembered: Vec::new() };
        lock(&self.hubs).insert(vm, hub);
        let hubs = self.hubs.clone();
        let stop = manager.stop.clone();
        manager.tasks.spawn(async move {
            let end = stop.run_until_cancelled(pump(&hubs, vm, stream, typed)).await;
            // An unwatched hub has gone already, and another may stand in its place.
            if end != Some(End::Unwatched) {
                lock(&hubs).remove(&vm);
            }
        });
    }
}

/// Between two looks whether anybody still listens.
const IDLE_LOOK: std::time::Duration = std::time::Duration::from_secs(2);

/// Why a hub ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The machine, or libvirt, closed the stream.
    Closed,
    /// Nobody looked any more; it has been taken off the table.
    Unwatched,
}

async fn pump(
    hubs: &Mutex<HashMap<VmId, Hub>>,
    vm: VmId,
    mut stream: Box<dyn ByteStream>,
    mut typed: mpsc::Receiver<Vec<u8>>,
) -> End {
    let mut buffer = vec![0; CHUNK];
    let mut idle = tokio::time::interval(IDLE_LOOK);
    idle.tick().await;
    loop {
        tokio::select! {
            read = stream.read(&mut buffer) => {
                let Some(chunk) = read.ok().and_then(|n| buffer.get(..n)).filter(|chunk| !chunk.is_empty()) else { return End::Closed };
                publish(hubs, vm, chunk);
            }
            Some(bytes) = typed.recv() => {
                if stream.write_all(&bytes).await.is_err() || stream.flush().await.is_err() {
                    return End::Closed;
                }
            }
            _ = idle.tick() => {
                // Looked at and taken away in one step, so that nobody joins what is about to end.
                let mut hubs = lock(hubs);
                if hubs.get(&vm).is_none_or(|hub| hub.output.receiver_count() == 0) {
                    hubs.remove(&vm);
                    return End::Unwatched;
                }
            }
        }
    }
}

/// Hands a chunk to all viewers.
fn publish(hubs: &Mutex<HashMap<VmId, Hub>>, vm: VmId, chunk: &[u8]) {
    let mut hubs = lock(hubs);
    let Some(hub) = hubs.get_mut(&vm) else { return };
    hub.remembered.extend_from_slice(chunk);
    let excess = hub.remembered.len().saturating_sub(REMEMBERED);
    hub.remembered.drain(..excess);
    // Nobody listening just now is no fault.
    let _ = hub.output.send(Arc::from(chunk));
}
